"""Commands as a server reads them: RESP, one bulk string after another.

Compiled (deploy/native.py): a commit has thousands of arguments, most of them short. redis-py takes no packer for a
cluster: there it is what `send` packs with, and nothing else.
"""

from __future__ import annotations

from typing import Final, final

from librt.strings import BytesWriter
from mypy_extensions import i64
from redis.exceptions import DataError

_HEADS: Final = [b"\r\n$%d\r\n" % length for length in range(1024)]
"""What stands before an argument of so many bytes."""
_KNOWN: Final[i64] = 1024


@final
class Packed:
    """A command as it is sent."""

    __slots__ = ("name", "wire")

    def __init__(self, *arguments: object) -> None:
        """Pack it; raises `DataError` for arguments that are neither bytes, text nor numbers."""
        self.name: Final = str(arguments[0])
        # The words of a command, such as SCRIPT LOAD, are arguments of their own.
        words = _encoded(arguments[0]).split()
        writer = BytesWriter()
        writer.write(b"*%d" % (len(words) + len(arguments) - 1))
        for word in words:
            _write(writer, word)
        for argument in arguments[1:]:
            _write(writer, argument if isinstance(argument, bytes) else _encoded(argument))
        writer.write(b"\r\n")
        self.wire: Final = writer.getvalue()


@final
class Packer:
    """What a connection of redis-py packs its commands with (`command_packer`)."""

    def pack(self, *arguments: object) -> list[bytes]:
        """Return a command's bytes: see `Packed`."""
        return [Packed(*arguments).wire]


def _write(writer: BytesWriter, text: bytes) -> None:
    length: i64 = len(text)
    writer.write(_HEADS[length] if length < _KNOWN else b"\r\n$%d\r\n" % length)
    writer.write(text)


def _encoded(argument: object) -> bytes:
    if isinstance(argument, bytes):
        return argument
    if isinstance(argument, str):
        return argument.encode()
    if isinstance(argument, (int, float)) and not isinstance(argument, bool):
        return repr(argument).encode()
    raise DataError(f"an argument of type {type(argument).__name__}, expected bytes, text or a number")
