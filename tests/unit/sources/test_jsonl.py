"""Events from files and from stdin, of which nobody knows when more comes."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from monitor.events import instant_ms
from monitor.sources import jsonl as files
from monitor.sources.jsonl import FileSource


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.FileIO]:
    """Yield where to write what is read from stdin."""
    reading, writing = os.pipe()
    with os.fdopen(reading, "r") as stdin, open(writing, "wb", buffering=0) as written:  # noqa: PTH123  a descriptor
        monkeypatch.setattr("sys.stdin", stdin)
        yield written


def _line(at_ms: int) -> bytes:
    return json.dumps({"timestamp": at_ms}).encode() + b"\n"


def _source(*paths: str) -> FileSource:
    source = FileSource(paths, instant_ms, report=print)
    source.place(source.starts({}))
    return source


def _times(source: FileSource) -> list[int]:
    """Return the times of the next events, partition by partition."""
    return [json.loads(record.value or b"")["timestamp"] for each in source.poll() for record in each.records]


def test_what_is_there_is_handed_out_and_the_rest_is_not_waited_for(pipe: io.FileIO) -> None:
    """A line that is not whole yet is the rest; at the end it is a line."""
    source = _source("-")
    assert _times(source) == []
    pipe.write(_line(1000) + _line(2000) + _line(3000)[:5])
    assert _times(source) == [1000, 2000]
    assert (_times(source), source.finished(), list(source.ends().values())) == ([], False, [None])
    pipe.write(_line(3000)[5:] + _line(4000)[:-1])
    pipe.close()
    assert _times(source) == [3000, 4000]
    assert (_times(source), source.finished(), list(source.ends().values())) == ([], True, [4])


def test_files_wait_for_stdin_where_that_may_be_older(pipe: io.FileIO, tmp_path: Path) -> None:
    """Nothing is handed out before what is older than it."""
    (tmp_path / "events").write_bytes(_line(1500) + _line(2500))
    source = _source(str(tmp_path / "events"), "-")
    assert _times(source) == []
    pipe.write(_line(1000) + _line(2000))
    assert sorted(_times(source)) == [1000, 1500, 2000]
    pipe.close()
    assert (_times(source), source.finished()) == ([2500], True)
    source.close()


def test_lines_of_any_length(pipe: io.FileIO, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is longer than a piece of the pipe comes as one, what is too long in parts."""
    monkeypatch.setattr(files, "_LONGEST_LINE", 40_000)
    source = _source("-")
    pipe.write(b"x" * 30_000 + b"\n" + b"y" * 30_000)
    assert [[len(record.value or b"") for record in each.records] for each in source.poll()] == [[30_000]]
    pipe.write(b"y" * 30_000 + b"\n" * 3)
    pipe.close()
    assert [[len(record.value or b"") for record in each.records] for each in source.poll()] == [[40_000, 20_000]]
    assert list(source.ends().values()) == [5]
