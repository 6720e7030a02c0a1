"""Chunks of time buckets as runs: their sums are those of everything that was appended."""

from __future__ import annotations

from collections import Counter
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st
from librt.vecs import vec
from mypy_extensions import i64

from monitor.store.runs import HEAD_BYTES, Runs, as_runs, summed, unpacked

_records = st.lists(st.one_of(st.integers(-9, 9), st.sampled_from([0] * 9 + [2**51 + 1, -(2**61)])), max_size=60)
_appended = st.lists(st.lists(st.tuples(st.integers(0, 40), _records), max_size=3), max_size=3)


@given(_appended, st.integers(0, 3))
def test_sums_are_of_everything_that_was_appended(appended: list[list[tuple[int, list[int]]]], again: int) -> None:
    """In runs that overlap or leave gaps, and where the sums of the first stand as runs already."""
    chunk, expected = bytes(HEAD_BYTES), Counter[int]()
    for number, changes in enumerate(appended):
        runs, first = Runs(), 0
        for gap, record in changes:
            first += gap
            runs.add(first, vec[i64](record))
            expected.update({first + place: each for place, each in enumerate(record)})
            first += len(record)
        chunk += runs.packed()
        if number < again:
            chunk = chunk[:HEAD_BYTES] + as_runs(summed(chunk))
    found = [int.from_bytes(summed(chunk)[at : at + 8], signed=True) for at in range(0, len(summed(chunk)), 8)]
    assert {at: each for at, each in enumerate(found) if each} == {at: each for at, each in expected.items() if each}


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=300), st.sampled_from([0, 1, 32_767, 32_768, 65_535]))
def test_sums_as_runs_have_no_gap(integers: list[int], zeros: int) -> None:
    """They are read by what reads differences, and as a chunk."""
    whole = ([0] * zeros + integers)[:65_535]
    packed = pack(f">{len(whole)}q", *whole)
    assert unpacked(as_runs(packed)) == list(enumerate(whole))
    assert summed(bytes(HEAD_BYTES) + as_runs(packed)) == packed


@pytest.mark.parametrize("length", [0, 7, 9, 11, 12, 19, 21])
def test_what_is_no_chunk_is_refused(length: int) -> None:
    """A head of eight bytes, and runs of as many integers as they say."""
    whole = bytes(HEAD_BYTES) + b"\0\0\0\1" + bytes(8) + b"\0"
    with pytest.raises(ValueError, match="bytes"):
        summed(whole[:length])
