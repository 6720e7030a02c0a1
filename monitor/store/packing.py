"""Commands as a server reads them: RESP, one bulk string after another.

Compiled (deploy/native.py): a commit has thousands of arguments, most of them short, and its rows are packed as they
come. redis-py takes no packer for a cluster: there it is what `Pending` packs with, and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, final
from zlib import crc32

from hiredis import Reader
from librt.strings import BytesWriter, write_i32_le
from mypy_extensions import i32, i64
from redis.exceptions import DataError

_HEADS: Final = [b"\r\n$%d\r\n" % length for length in range(1024)]
"""What stands before an argument of so many bytes."""
_KNOWN: Final[i64] = 1024


@final
class PackedRows:
    """Keys and their values, packed as they come: a batch that kept its rows as objects would be slower to send."""

    __slots__ = ("_mark", "_names", "_packed", "_summed", "_sums", "_writer", "count", "marks")

    def __init__(self, *, summed: bool = False) -> None:
        """Begin with none; if they are `summed`, the checksums of their names are made as they come."""
        self._writer = BytesWriter()
        self._packed = b""
        """Those that were asked for: a second copy of them would be another megabyte."""
        self._mark: i64 = -1
        self.count: i64 = 0
        self.marks: set[int] = set()
        """The first bytes of all values: see `monitor.store.rows`."""
        self._summed = summed
        self._sums = BytesWriter()
        self._names: list[bytes] = []
        """Those of which there is no checksum yet."""

    def add(self, prefix: bytes, name: bytes, row: bytes) -> None:
        """Append a row, which is not empty; its key is the prefix and the name."""
        writer = self._writer
        _write_head(writer, len(prefix) + len(name))
        writer.write(prefix)
        writer.write(name)
        _write(writer, row)
        self.count += 1
        if self._summed:
            _write_sum(self._sums, name)
        else:
            self._names.append(name)
        mark: i64 = row[0]
        if mark != self._mark:
            self._mark = mark
            self.marks.add(mark)

    def checksums(self) -> bytes:
        """Return the CRC-32 of each name, in four bytes, little-endian."""
        for name in self._names:
            _write_sum(self._sums, name)
        self._names = []
        return self._sums.getvalue()

    def wire(self) -> bytes:
        """Return them as arguments of a command."""
        if len(self._writer):
            more, self._writer = self._writer.getvalue(), BytesWriter()
            self._packed = self._packed + more if self._packed else more
        return self._packed

    def flat(self) -> list[bytes]:
        """Return key and value of each, one behind the other."""
        reader = Reader()
        reader.feed(b"*%d" % (2 * self.count) + self.wire() + b"\r\n")
        found: list[bytes] = reader.gets()
        return found


@final
class Packed:
    """A command as it is sent: one part behind the other."""

    __slots__ = ("parts",)

    def __init__(self, *arguments: object, rows: Sequence[PackedRows] = ()) -> None:
        """Pack it, with rows behind the arguments.

        Raises `DataError` for arguments that are neither bytes, text nor numbers.
        """
        # The words of a command, such as SCRIPT LOAD, are arguments of their own.
        words = _encoded(arguments[0]).split()
        writer = BytesWriter()
        writer.write(b"*%d" % (len(words) + len(arguments) - 1 + 2 * sum([each.count for each in rows])))
        for word in words:
            _write(writer, word)
        for argument in arguments[1:]:
            _write(writer, argument if isinstance(argument, bytes) else _encoded(argument))
        self.parts: Final = [writer.getvalue(), *[each.wire() for each in rows], b"\r\n"]


@final
class Packer:
    """What a connection of redis-py packs its commands with (`command_packer`)."""

    def pack(self, *arguments: object) -> list[bytes]:
        """Return a command's bytes: see `Packed`."""
        return [b"".join(Packed(*arguments).parts)]


def _write(writer: BytesWriter, text: bytes) -> None:
    _write_head(writer, len(text))
    writer.write(text)


def _write_head(writer: BytesWriter, length: i64) -> None:
    writer.write(_HEADS[length] if length < _KNOWN else b"\r\n$%d\r\n" % length)


def _write_sum(writer: BytesWriter, name: bytes) -> None:
    checksum: i64 = crc32(name)
    write_i32_le(writer, i32(checksum - (1 << 32) if checksum >> 31 else checksum))


def _encoded(argument: object) -> bytes:
    if isinstance(argument, bytes):
        return argument
    if isinstance(argument, str):
        return argument.encode()
    if isinstance(argument, (int, float)) and not isinstance(argument, bool):
        return repr(argument).encode()
    raise DataError(f"an argument of type {type(argument).__name__}, expected bytes, text or a number")
