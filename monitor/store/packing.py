"""Commands as a server reads them: RESP, one bulk string after another.

Compiled (deploy/native.py): a commit has thousands of arguments, most of them short. redis-py takes no packer for a
cluster: there it is what `send` packs with, and nothing else.
"""

from __future__ import annotations

from typing import Final, final

from redis.exceptions import DataError

_HEADS: Final = [b"\r\n$%d\r\n" % length for length in range(1024)]
"""What stands before an argument of so many bytes."""


@final
class Packer:
    """What a connection of redis-py packs its commands with (`command_packer`)."""

    def pack(self, *arguments: object) -> list[bytes]:
        """Return a command's bytes; raises `DataError` for arguments that are neither bytes, text nor numbers."""
        heads = _HEADS
        known = len(heads)
        pieces = []
        # The words of a command, such as SCRIPT LOAD, are arguments of their own.
        words = _encoded(arguments[0]).split()
        for argument in (*words, *arguments[1:]):
            text = argument if isinstance(argument, bytes) else _encoded(argument)
            length = len(text)
            pieces.append(heads[length] if length < known else b"\r\n$%d\r\n" % length)
            pieces.append(text)
        return [b"".join([b"*%d" % (len(pieces) // 2), *pieces, b"\r\n"])]


def _encoded(argument: object) -> bytes:
    if isinstance(argument, bytes):
        return argument
    if isinstance(argument, str):
        return argument.encode()
    if isinstance(argument, (int, float)) and not isinstance(argument, bool):
        return repr(argument).encode()
    raise DataError(f"an argument of type {type(argument).__name__}, expected bytes, text or a number")
