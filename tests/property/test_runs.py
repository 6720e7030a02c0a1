"""Chunks of time buckets as runs: their sums are those of everything that was appended."""

from __future__ import annotations

from collections import Counter
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.engine.delta_runs import pack_runs, unpack_runs
from monitor.store.runs import as_run, summed

_records = st.lists(st.one_of(st.integers(-9, 9), st.sampled_from([0] * 9 + [2**51 + 1, -(2**61)])), max_size=60)
_appended = st.lists(st.lists(st.tuples(st.integers(0, 40), _records), max_size=3), max_size=3)


@given(_appended, st.integers(0, 3))
def test_sums_are_of_everything_that_was_appended(appended: list[list[tuple[int, list[int]]]], again: int) -> None:
    """In runs that overlap or leave gaps, and where the sums of the first stand as runs already."""
    chunk, expected = b"", Counter[int]()
    for number, changes in enumerate(appended):
        vectors, first = [], 0
        for gap, record in changes:
            first += gap
            vectors.append((first, record))
            expected.update({first + place: each for place, each in enumerate(record)})
            first += len(record)
        chunk += pack_runs(vectors)
        if number < again:
            chunk = as_run(summed(chunk))
    found = [int.from_bytes(summed(chunk)[at : at + 8], signed=True) for at in range(0, len(summed(chunk)), 8)]
    assert {at: each for at, each in enumerate(found) if each} == {at: each for at, each in expected.items() if each}


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=300), st.sampled_from([0, 1, 10_000]))
def test_sums_as_a_run_are_read_as_differences(integers: list[int], zeros: int) -> None:
    """And as a chunk."""
    whole = [0] * zeros + integers
    packed = pack(f">{len(whole)}q", *whole)
    assert unpack_runs(as_run(packed)) == list(enumerate(whole))
    assert summed(as_run(packed)) == packed


@pytest.mark.parametrize("length", [1, 3, 5, 11, 13, 15, 23])
def test_what_are_no_runs_is_refused(length: int) -> None:
    """Each has a head of four bytes, and as many integers as that says."""
    whole = (b"\0\0\0\1" + bytes(8)) * 2
    with pytest.raises(ValueError, match="bytes"):
        summed(whole[:length])
