"""Events from files of JSON lines, merged by event time.

A file's position is the number of lines applied, under the name of its content (a hash of its bytes): a replay that was
stopped goes on where it was, and a file that has changed is read from its beginning, which changes nothing that was
applied before.
"""

from __future__ import annotations

import codecs
import gzip
import heapq
import io
import logging
import math
import os
import secrets
import select
import sys
import time
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from hashlib import blake2b, file_digest
from pathlib import Path
from typing import BinaryIO, Final, cast

import msgspec

from monitor.errors import InputRefused, Refusal, UsageError
from monitor.sources.source import PlainRecord, Refused, Slice, UnsharedSource
from monitor.state import Position

log = logging.getLogger(__name__)
_BATCH_LINES: Final = 2000
_LONGEST_LINE: Final = 16 * 1024 * 1024
_REPORTED: Final = 20
_IDLE_S: Final = 0.2
_PIECE: Final = 1 << 16


class _When(msgspec.Struct):
    timestamp: str | int | None = None


class _File:
    """One file: its lines, how many were handed out, and the event time of the line at hand."""

    def __init__(self, path: str, stream: BinaryIO, partition: str, raw: BinaryIO | None = None) -> None:
        self.path = path
        self.raw = raw
        self.stream = stream
        self.partition = partition
        self.line_number = 0
        self.line = b""
        self.at_ms = 0.0
        self.waits = False
        """Whether there is no line at hand because none has come yet."""
        self.ended = False

    def begin_again(self) -> None:
        if self.raw is None:
            raise UsageError(f"{self.path} cannot be read again, and the store no longer holds what came from it")
        self.stream.seek(0)
        self.line_number, self.line, self.at_ms, self.ended = 0, b"", 0.0, False

    def read_line(self, until: float) -> bytes | None:
        """Return the next line, b"" after the last one, None if none has come `until` then (monotonic seconds)."""
        del until
        return self.stream.readline(_LONGEST_LINE)

    def advance(self, instant: Callable[[bytes], float | None], until: float = 0.0) -> bool:
        """Take the next line or wait for it; a line without a readable time keeps the time of the one before."""
        try:
            line = self.read_line(until)
        except (OSError, EOFError, zlib.error) as error:
            raise InputRefused(f"{self.path}: after line {self.line_number}: cannot be read on: {error}") from error
        self.waits = line is None
        if line is None:
            return True
        if not line:
            self.ended = True
            return False
        self.line = line.removeprefix(codecs.BOM_UTF8) if self.line_number == 0 else line
        self.line_number += 1
        at_ms = instant(line)
        if at_ms is not None:
            self.at_ms = at_ms
        return True


class _Stdin(_File):
    """Lines that come by and by."""

    def __init__(self) -> None:
        super().__init__("stdin", sys.stdin.buffer, f"file-{secrets.token_hex(8)}:0")
        self._read = bytearray()
        self._all = False

    def read_line(self, until: float) -> bytes | None:
        searched = 0
        while not (end := self._read.find(b"\n", searched, _LONGEST_LINE) + 1):
            searched = len(self._read)
            if self._all or searched >= _LONGEST_LINE:
                end = min(searched, _LONGEST_LINE)
                break
            if not select.select([self.stream], [], [], max(until - time.monotonic(), 0.0))[0]:
                return None
            piece = os.read(self.stream.fileno(), _PIECE)
            self._read += piece
            self._all = not piece
        line = bytes(self._read[:end])
        del self._read[:end]
        return line


class FileSource(UnsharedSource):
    """Reads files once, from their stored positions."""

    def __init__(
        self, paths: Sequence[str], instant: Callable[[str | int], int], *, report: Callable[[str], None]
    ) -> None:
        self._stack = ExitStack()
        self._decode = msgspec.json.Decoder(_When).decode
        self._instant = instant
        self._report = report
        self._reported = 0
        self.refused = 0
        self.total_bytes = sum(Path(path).stat().st_size for path in paths if path != "-" and Path(path).is_file())
        self._files = [self._open(path) for path in dict.fromkeys(paths)]
        self._until = 0.0
        self._unplaced = True
        self._handed: dict[str, int] = {}
        self._merge: Iterator[_File] = iter(())
        self._ahead: _File | None = None
        self._held: dict[str, _File] = {file.partition: file for file in self._files}
        if len(self._held) < len(self._files):
            log.info("files with equal content are read once")
            self._files = list(self._held.values())

    def _open(self, path: str) -> _File:
        if path == "-":
            return _Stdin()
        try:
            raw = self._stack.enter_context(Path(path).open("rb"))  # noqa: SIM115  closed by the stack
            digest = file_digest(raw, lambda: blake2b(digest_size=12)).hexdigest()
            raw.seek(0)
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror}") from error
        packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        stream: BinaryIO = raw
        if packed:
            stream = cast(BinaryIO, self._stack.enter_context(gzip.open(raw)))  # noqa: SIM115  closed by the stack
        return _File(path, io.BufferedReader(cast(io.RawIOBase, stream), 1 << 20), f"file-{digest}:0", raw)

    def _when(self, line: bytes) -> float | None:
        try:
            timestamp = self._decode(line).timestamp
            return None if timestamp is None else self._instant(timestamp)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, Refusal):
            return None

    def unplaced(self) -> Sequence[str]:
        return [file.partition for file in self._files] if self._unplaced else []

    def starts(self, positions: Mapping[str, Position]) -> Mapping[str, Position]:
        return {name: Position(0) for name in self._held if name not in positions}

    def place(self, positions: Mapping[str, Position]) -> None:
        """Skip the lines that were applied before."""
        self._unplaced = False
        self._handed = {name: positions[name].next_offset for name in self._held}
        for file in self._files:
            while file.line_number < positions[file.partition].next_offset and file.advance(self._when):
                pass
        # What has nothing yet comes first: the others wait for it.
        self._merge = heapq.merge(
            *(self._lines(file) for file in self._files), key=lambda file: -math.inf if file.waits else file.at_ms
        )
        self._ahead = next(self._merge, None)

    def own(self) -> Collection[str]:
        return self._held

    def _lines(self, file: _File) -> Iterator[_File]:
        while file.advance(self._when, self._until):
            yield file

    def rewind(self) -> None:
        """Begin again: the store went back, or another process reads the same files into it."""
        for file in self._files:
            file.begin_again()
        # Nothing is handed out before the files are placed.
        self._merge, self._ahead = iter(()), None
        self._unplaced = True

    def poll(self, *, wait: bool = True) -> Sequence[Slice]:
        """Return the next lines in the order of their event times; blank ones are passed over."""
        del wait
        lines: dict[str, list[PlainRecord]] = {}
        next_lines: dict[str, int] = {}
        self._until = time.monotonic() + _IDLE_S
        if self._ahead is not None and self._ahead.waits:
            self._ahead = next(self._merge, None)
        for _ in range(_BATCH_LINES):
            file = self._ahead
            if file is None or file.waits:
                break
            records = lines.setdefault(file.partition, [])
            next_lines[file.partition] = file.line_number
            payload = file.line.strip()
            if payload:
                records.append(PlainRecord(file.line_number - 1, None, payload))
            # One line ahead, so that the last batch knows that it is the last.
            self._ahead = next(self._merge, None)
        slices = [
            Slice(partition, "event", self._handed[partition], records, next_lines[partition])
            for partition, records in lines.items()
        ]
        self._handed |= next_lines
        return slices

    def bytes_read(self) -> int:
        """Return how far the files have been read, in bytes of the files as they lie there."""
        return sum(file.raw.tell() for file in self._files if file.raw is not None)

    def idle(self) -> None:
        time.sleep(_IDLE_S)

    def ends(self) -> Mapping[str, int | None]:
        return {file.partition: file.line_number if file.ended else None for file in self._files}

    ask_ends = ends

    def finished(self) -> bool:
        return self._ahead is None and all(file.ended for file in self._files)

    def keep_refused(self, refused: Sequence[Refused]) -> None:
        """Report the places of the first refused lines: all stay in their files."""
        for each in refused:
            self.refused += 1
            if self._reported < _REPORTED:
                self._reported += 1
                file = self._held[each.partition]
                self._report(f"{file.path}:{each.offset + 1}: refused: {each.reason}: {each.detail}")
                if self._reported == _REPORTED:
                    self._report("further refused lines are only counted")

    def close(self) -> None:
        self._stack.close()
