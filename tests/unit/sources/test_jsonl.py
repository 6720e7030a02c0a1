"""The file source: events from files, and from the standard input, where lines may arrive at any time."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from monitor.decoding import RecordDecoder
from monitor.sources import EventFile, FileSource, jsonl
from monitor.sources.source import RejectedRecord
from tests.support.files import file_source
from tests.unit.decoding.test_mapping import feedback_source, response_source, settings_of


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.FileIO]:
    """Yield a pipe into the standard input."""
    read_end, write_end = os.pipe()
    with os.fdopen(read_end, "r") as stdin, open(write_end, "wb", buffering=0) as stdin_pipe:  # noqa: PTH123  a descriptor
        monkeypatch.setattr("sys.stdin", stdin)
        yield stdin_pipe


def _line(timestamp_ms: int) -> bytes:
    return json.dumps({"timestamp": timestamp_ms}).encode() + b"\n"


def _source(*paths: str) -> FileSource:
    source = file_source(paths)
    source.seek(source.initial_positions({}))
    return source


def _times(source: FileSource) -> list[int]:
    """Return the times of the next events, partition by partition."""
    return [
        json.loads(record.value or b"")["timestamp"]
        for partition_records in source.poll()
        for record in partition_records.records
    ]


def _lengths(source: FileSource) -> list[list[int]]:
    """Return the lengths of the next lines by partition."""
    return [[len(record.value or b"") for record in partition_records.records] for partition_records in source.poll()]


def test_complete_lines_of_stdin_are_returned_before_an_incomplete_line_ends(pipe: io.FileIO) -> None:
    """At the end of the input, the incomplete line is a line."""
    source = _source("-")
    assert _times(source) == []
    pipe.write(_line(1000) + _line(2000) + _line(3000)[:5])
    assert _times(source) == [1000, 2000]
    assert (_times(source), source.is_exhausted(), list(source.end_offsets().values())) == ([], False, [None])
    pipe.write(_line(3000)[5:] + _line(4000)[:-1])
    pipe.close()
    assert _times(source) == [3000, 4000]
    assert (_times(source), source.is_exhausted(), list(source.end_offsets().values())) == ([], True, [4])


def test_files_wait_for_stdin_whose_next_line_may_be_older(pipe: io.FileIO, tmp_path: Path) -> None:
    """Events are returned in the order of their times."""
    (tmp_path / "events").write_bytes(_line(1500) + _line(2500))
    source = _source(str(tmp_path / "events"), "-")
    assert _times(source) == []
    pipe.write(_line(1000) + _line(2000))
    assert sorted(_times(source)) == [1000, 1500, 2000]
    pipe.close()
    assert (_times(source), source.is_exhausted()) == ([2500], True)
    source.close()


def test_a_long_line_of_stdin_is_returned_whole_and_a_too_long_line_is_split(
    pipe: io.FileIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pipe returns a long line in several reads."""
    monkeypatch.setattr(jsonl, "_MAX_LINE_BYTES", 40_000)
    source = _source("-")
    pipe.write(b"x" * 30_000 + b"\n" + b"y" * 30_000)
    assert _lengths(source) == [[30_000]]
    pipe.write(b"y" * 30_000 + b"\n" * 3)
    pipe.close()
    assert _lengths(source) == [[40_000, 20_000]]
    assert list(source.end_offsets().values()) == [5]


def test_rejected_lines_are_listed_up_to_three_per_reason_and_counted_beyond(tmp_path: Path) -> None:
    """Equal reasons do not fill the screen; each total is reported once."""
    path = tmp_path / "events.jsonl"
    path.write_bytes(_line(1000))
    reported_lines: list[str] = []
    source = file_source([path], report=reported_lines.append)
    (partition,) = source.assignment()
    reasons = ["missing_field"] * 1005 + ["invalid_id"] * 2
    source.dead_letter_queue.write(
        [RejectedRecord(partition, offset, b"", reason, "detail") for offset, reason in enumerate(reasons)]
    )
    source.report_rejected_totals()
    source.report_rejected_totals()
    source.close()
    assert reported_lines == [
        *(f"{path}:{line}: rejected: missing_field: detail" for line in (1, 2, 3)),
        *(f"{path}:{line}: rejected: invalid_id: detail" for line in (1006, 1007)),
        "1,002 more lines rejected: missing_field: detail (in all 1,005)",
    ]
    assert source.rejected_count == 1007


def test_a_pipe_with_a_path_is_read_as_the_standard_input_is() -> None:
    """Shells pass `<(zcat events.gz)` as such a path."""
    read_end, write_end = os.pipe()
    with os.fdopen(read_end, "rb"), os.fdopen(write_end, "wb", buffering=0) as pipe:
        source = _source(f"/dev/fd/{read_end}")
        assert _times(source) == []
        pipe.write(_line(1000))
        pipe.close()
        assert _times(source) == [1000]
        source.close()


def test_one_file_may_have_the_records_of_two_topics(tmp_path: Path) -> None:
    """Each topic maps the lines in its own way."""
    path = tmp_path / "all.jsonl"
    path.write_text("{}\n")
    decoder = RecordDecoder(settings_of(response_source(), feedback_source()), reads_files=True)
    source = FileSource([EventFile(str(path), "answers"), EventFile(str(path), "clicks")], decoder, report=print)
    assert len(source.assignment()) == 2
    source.close()
