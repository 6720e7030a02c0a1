"""The file source: events from files of JSON lines, merged by event time.

The offset of a file is the number of its lines that were applied. Its partition is named after a hash of its content. A
replay that was stopped therefore continues at the same line. A changed file is read from its beginning; events that
were applied before change nothing.
"""

from __future__ import annotations

import codecs
import gzip
import heapq
import io
import logging
import math
import os
import re
import secrets
import select
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from hashlib import blake2b, file_digest
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple, cast

import msgspec

from monitor.decoding import ANY_TOPIC, RecordDecoder
from monitor.errors import InputRejected, InvalidEvent, UsageError, count_noun
from monitor.events import MAX_TIMESTAMP_MS, Response, parse_timestamp_ms
from monitor.sources.source import PartitionRecords, PlainRecord, RejectedRecord, UnsharedSource
from monitor.state import Position

log = logging.getLogger(__name__)
_MAX_POLL_LINES: Final = 2000
_MAX_LINE_BYTES: Final = 16 * 1024 * 1024
"""A longer line is split, and its parts are rejected."""
_MAX_REPORTED_LINES: Final = 3
"""Largest number of lines that are reported for each kind of fault."""
_NUMBERS: Final = re.compile(r"-?[0-9]+(?:\.[0-9]+)?(?:e-?[0-9]+)?")
_MAX_COUNTED_NAMES: Final = 1000
"""Producers may write any number of names."""
_POLL_TIMEOUT_S: Final = 0.2
_READ_BYTES: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class EventFile:
    """A file whose lines are records of a topic."""

    path: str
    """`-` is the standard input."""
    topic: str = ANY_TOPIC


class _NativeHead(msgspec.Struct):
    """The fields of a native event that the merge and the report about names need."""

    timestamp: str | int | None = None
    experiment: str | None = None
    variant: str | None = None


class _LineHead(NamedTuple):
    """The event time of a line, and the (experiment, variant) of its responses."""

    timestamp_ms: int | None = None
    names: Sequence[tuple[str, str]] = ()


class _LineReader:
    """Reads the lines of a file; stores the number and the event time of the current line."""

    def __init__(self, file: EventFile, stream: BinaryIO, partition: str, raw: BinaryIO | None = None) -> None:
        """Read lines from `stream`; `raw` is the underlying file, or None if a second reading is impossible."""
        self.path = "stdin" if file.path == "-" else file.path
        self.topic = file.topic
        self.raw = raw
        self.stream = stream
        self.partition = partition
        self.line_number = 0
        self.line = b""
        self.event_time_ms = 0.0
        self.names: Sequence[tuple[str, str]] = ()
        """(experiment, variant) of the responses in the current line."""
        self.is_waiting = False
        """Whether there is no current line because the next line has not arrived yet."""
        self.is_exhausted = False

    def restart(self) -> None:
        """Continue before the first line; raises `UsageError` if the file can be read only once."""
        if self.raw is None:
            raise UsageError(
                f"{self.path}: the store has lost events of this input, and the input can be read only once. Run the "
                "command again with the same events"
            )
        self.stream.seek(0)
        self.line_number, self.line, self.event_time_ms, self.is_exhausted = 0, b"", 0.0, False

    def read_line(self, deadline_s: float) -> bytes | None:
        """Return the next line, b"" after the last line, or None if none arrives before the monotonic deadline."""
        del deadline_s
        return self.stream.readline(_MAX_LINE_BYTES)

    def advance(self, read_head: Callable[[_LineReader], _LineHead], deadline_s: float = 0.0) -> bool:
        """Make the next line the current line, or wait for a line; return False at the end of the file.

        A line without a valid timestamp gets the event time of the line before. Raises `InputRejected` if the file
        cannot be read.
        """
        try:
            line = self.read_line(deadline_s)
        except (OSError, EOFError, zlib.error) as error:
            raise InputRejected(
                f"{self.path}: the file cannot be read after line {self.line_number}: {error}. Restore the file, then "
                "run the command again"
            ) from error
        self.is_waiting = line is None
        if line is None:
            return True
        if not line:
            self.is_exhausted = True
            return False
        self.line = line.removeprefix(codecs.BOM_UTF8) if self.line_number == 0 else line
        self.line_number += 1
        head = read_head(self)
        if head.timestamp_ms is not None:
            self.event_time_ms = head.timestamp_ms
        self.names = head.names
        return True


class _PipeReader(_LineReader):
    """Lines of the standard input or of a pipe, which may arrive at any time and cannot be read again."""

    def __init__(self, file: EventFile, stream: BinaryIO) -> None:
        super().__init__(file, stream, f"file-{secrets.token_hex(8)}:0")
        self._buffer = bytearray()
        self._is_closed = False

    def read_line(self, deadline_s: float) -> bytes | None:
        searched_bytes = 0
        while not (line_end := self._buffer.find(b"\n", searched_bytes, _MAX_LINE_BYTES) + 1):
            searched_bytes = len(self._buffer)
            if self._is_closed or searched_bytes >= _MAX_LINE_BYTES:
                line_end = min(searched_bytes, _MAX_LINE_BYTES)
                break
            if not select.select([self.stream], [], [], max(deadline_s - time.monotonic(), 0.0))[0]:
                return None
            chunk = os.read(self.stream.fileno(), _READ_BYTES)
            self._buffer += chunk
            self._is_closed = not chunk
        line = bytes(self._buffer[:line_end])
        del self._buffer[:line_end]
        return line


class _RejectedLineReport:
    """Counts rejected lines by kind of fault, and reports the first lines of each; all lines remain in their files.

    Faults are of the same kind if reason and detail differ in numbers only.
    """

    def __init__(self, paths: Mapping[str, str], report: Callable[[str], None]) -> None:
        """Report rejected lines by the path of their file; `paths` is by partition."""
        self.line_count = 0
        self._unreported_counts: Counter[str] = Counter()
        """Kind of fault → number of lines that no report contains yet."""
        self._line_counts: Counter[str] = Counter()
        self._examples: dict[str, str] = {}
        """Kind of fault → reason and detail of its first line."""
        self._paths = paths
        self._report = report

    def write(self, rejected_records: Sequence[RejectedRecord]) -> None:
        for record in rejected_records:
            fault = f"{record.reason}: {record.detail}"
            kind = _NUMBERS.sub("0", fault)
            self._examples.setdefault(kind, fault)
            self.line_count += 1
            self._line_counts[kind] += 1
            if self._line_counts[kind] <= _MAX_REPORTED_LINES:
                self._report(f"{self._paths[record.partition]}:{record.offset + 1}: rejected: {fault}")
            else:
                self._unreported_counts[kind] += 1

    def report_totals(self) -> None:
        """Report the number of further lines by kind of fault, once."""
        for kind, count in self._unreported_counts.most_common():
            lines = count_noun(count, "more line")
            self._report(f"{lines} rejected: {self._examples[kind]} (in all {self._line_counts[kind]:,})")
        self._unreported_counts.clear()


class FileSource(UnsharedSource):
    """Reads every file once, from the file's stored position; see `Source`."""

    def __init__(self, files: Sequence[EventFile], decoder: RecordDecoder, *, report: Callable[[str], None]) -> None:
        """Open the files. A pipe is read as the standard input is.

        `report` prints a line about a rejected record. Raises `UsageError` if a file cannot be read.
        """
        self._open_files = ExitStack()
        self._report = report
        self._decode_native = msgspec.json.Decoder(_NativeHead).decode
        self._decoder = decoder
        paths = [Path(file.path) for file in files if file.path != "-"]
        self.total_bytes = sum(path.stat().st_size for path in paths if path.is_file())
        """Size of the files on disk, without the standard input."""
        self._readers = [self._open(file) for file in dict.fromkeys(files)]
        self._deadline_s = 0.0
        self._needs_seek = True
        self.name_counts: Counter[tuple[str, str]] = Counter()
        """(experiment, variant) → responses that were returned."""
        self._next_offsets: dict[str, int] = {}
        """Line that the next poll returns first, by partition."""
        self._merged_lines: Iterator[_LineReader] = iter(())
        self._next_reader: _LineReader | None = None
        """Reader whose current line is the next line to return."""
        self._reader_by_partition: dict[str, _LineReader] = {reader.partition: reader for reader in self._readers}
        if len(self._reader_by_partition) < len(self._readers):
            log.info(
                "reading files with equal content once files=%d contents=%d",
                len(self._readers),
                len(self._reader_by_partition),
            )
            self._readers = list(self._reader_by_partition.values())
        self.dead_letter_queue = _RejectedLineReport(
            {partition: reader.path for partition, reader in self._reader_by_partition.items()}, report
        )
        """Reports rejected lines instead of writing them to a topic."""

    @property
    def rejected_count(self) -> int:
        """Number of lines that were rejected so far."""
        return self.dead_letter_queue.line_count

    def report(self, line: str) -> None:
        """Print a line in the same way as the lines about rejected records."""
        self._report(line)

    def report_rejected_totals(self) -> None:
        """Report the rejected lines that were only counted so far, by kind of fault."""
        self.dead_letter_queue.report_totals()

    def _open(self, file: EventFile) -> _LineReader:
        path = file.path
        if path == "-":
            return _PipeReader(file, sys.stdin.buffer)
        try:
            raw = self._open_files.enter_context(Path(path).open("rb"))  # noqa: SIM115  closed by the stack
            if not raw.seekable():
                return _PipeReader(file, raw)
            digest = file_digest(raw, lambda: blake2b(digest_size=12)).hexdigest()
            raw.seek(0)
        except OSError as error:
            raise UsageError(f"{path}: the file of events cannot be read: {error.strerror}") from error
        is_gzipped = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        stream: BinaryIO = raw
        if is_gzipped:
            stream = cast(BinaryIO, self._open_files.enter_context(gzip.open(raw)))  # noqa: SIM115  closed by the stack
        return _LineReader(
            file, io.BufferedReader(cast(io.RawIOBase, stream), 1 << 20), self._partition(digest, file.topic), raw
        )

    def _partition(self, content_digest: str, topic: str) -> str:
        """Return the name of a file's partition, which differs if the lines are read as other events."""
        if not self._decoder.has_mappings:
            return f"file-{content_digest}:0"
        text = f"{content_digest} {topic} {self._decoder.mapping_digest}"
        return f"file-{blake2b(text.encode(), digest_size=12).hexdigest()}:0"

    def _read_head(self, reader: _LineReader) -> _LineHead:
        """Return the head of the current line; an empty head if the line is not an event."""
        try:
            return self._read_mapped_head(reader) if self._decoder.has_mappings else self._read_native_head(reader.line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, InvalidEvent):
            return _LineHead()

    def _read_native_head(self, line: bytes) -> _LineHead:
        head = self._decode_native(line)
        return _LineHead(
            None if head.timestamp is None else parse_timestamp_ms(head.timestamp),
            () if head.experiment is None or head.variant is None else ((head.experiment, head.variant),),
        )

    def _read_mapped_head(self, reader: _LineReader) -> _LineHead:
        """Return the head of a line that a mapping describes; raises `InvalidEvent`."""
        record = PlainRecord(reader.line_number - 1, None, reader.line)
        events = self._decoder.partition_decoder(reader.topic, reader.partition)(record, MAX_TIMESTAMP_MS)
        if isinstance(events, str):
            return _LineHead()
        names = [(event.experiment, event.variant) for event in events if isinstance(event, Response)]
        return _LineHead(min(event.timestamp_ms for event in events), names)

    def partitions_to_seek(self) -> Sequence[str]:
        return [reader.partition for reader in self._readers] if self._needs_seek else []

    def initial_positions(self, positions: Mapping[str, Position]) -> Mapping[str, Position]:
        return {partition: Position(0) for partition in self._reader_by_partition if partition not in positions}

    def seek(self, positions: Mapping[str, Position]) -> None:
        """Skip the lines before the positions; raises `InputRejected` if a file cannot be read."""
        self._needs_seek = False
        self._next_offsets = {partition: positions[partition].next_offset for partition in self._reader_by_partition}
        for reader in self._readers:
            while reader.line_number < positions[reader.partition].next_offset and reader.advance(self._read_head):
                pass
        # A reader that waits sorts first: its next line may be older than every line that was read.
        self._merged_lines = heapq.merge(
            *(self._lines(reader) for reader in self._readers),
            key=lambda reader: -math.inf if reader.is_waiting else reader.event_time_ms,
        )
        self._next_reader = next(self._merged_lines, None)

    def assignment(self) -> Collection[str]:
        return self._reader_by_partition

    def _lines(self, reader: _LineReader) -> Iterator[_LineReader]:
        """Yield the reader once per line, while that line is the current line."""
        while reader.advance(self._read_head, self._deadline_s):
            yield reader

    def rewind(self) -> None:
        """Restart all files: the store has lost commits, or another process replays the files into the same store."""
        for reader in self._readers:
            reader.restart()
        # Nothing is returned before the next `seek`.
        self._merged_lines, self._next_reader = iter(()), None
        self._needs_seek = True

    def _has_all_names(self) -> bool:
        return len(self.name_counts) >= _MAX_COUNTED_NAMES

    def poll(self, *, wait: bool = True) -> Sequence[PartitionRecords]:
        """Return the next lines in the order of their event times, without blank lines; see `Source`."""
        del wait
        lines: dict[str, list[PlainRecord]] = {}
        next_offsets: dict[str, int] = {}
        self._deadline_s = time.monotonic() + _POLL_TIMEOUT_S
        if self._next_reader is not None and self._next_reader.is_waiting:
            self._next_reader = next(self._merged_lines, None)
        for _ in range(_MAX_POLL_LINES):
            reader = self._next_reader
            if reader is None or reader.is_waiting:
                break
            records = lines.setdefault(reader.partition, [])
            next_offsets[reader.partition] = reader.line_number
            payload = reader.line.strip()
            if payload:
                records.append(PlainRecord(reader.line_number - 1, None, payload))
                for names in reader.names:
                    if names in self.name_counts or not self._has_all_names():
                        self.name_counts[names] += 1
            # One line is read ahead, so that `is_exhausted` is True right after the last line was returned.
            self._next_reader = next(self._merged_lines, None)
        polled = [
            PartitionRecords(
                partition,
                self._reader_by_partition[partition].topic,
                self._next_offsets[partition],
                records,
                next_offsets[partition],
            )
            for partition, records in lines.items()
        ]
        self._next_offsets |= next_offsets
        return polled

    def bytes_read(self) -> int:
        """Return how many bytes of the files on disk were read, without the standard input."""
        return sum(reader.raw.tell() for reader in self._readers if reader.raw is not None)

    def poll_paused(self) -> None:
        time.sleep(_POLL_TIMEOUT_S)

    def end_offsets(self) -> Mapping[str, int | None]:
        return {reader.partition: reader.line_number if reader.is_exhausted else None for reader in self._readers}

    def fetch_end_offsets(self) -> Mapping[str, int | None]:
        return self.end_offsets()

    def is_exhausted(self) -> bool:
        return self._next_reader is None and all(reader.is_exhausted for reader in self._readers)

    def close(self) -> None:
        self._open_files.close()
