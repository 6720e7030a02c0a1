"""Stored records as integers; chunks of time buckets, whose runs add up to everything that was appended."""

from __future__ import annotations

from collections import Counter
from struct import pack

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.engine.row_codec import pack_runs, unpack_runs
from monitor.errors import StoreOwned
from monitor.state.record_reader import add_chunk, decode_chunk, decode_records, encode_chunk

_records = st.lists(st.one_of(st.integers(-9, 9), st.sampled_from([0] * 9 + [2**51 + 1, -(2**61)])), max_size=60)
_appended = st.lists(st.lists(st.tuples(st.integers(0, 40), _records), max_size=3), max_size=3)


@given(_appended, st.integers(0, 3))
def test_sums_are_of_everything_that_was_appended(appended: list[list[tuple[int, list[int]]]], again: int) -> None:
    """In runs that overlap or leave gaps, and where the sums of the first stand as runs already."""
    chunk, expected = b"", Counter[int]()
    for number, changes in enumerate(appended):
        vectors, first = list[tuple[int, list[int]]](), 0
        for gap, record in changes:
            first += gap
            vectors.append((first, record))
            expected.update({first + place: each for place, each in enumerate(record)})
            first += len(record)
        chunk += pack_runs(vectors)
        if number < again:
            chunk = encode_chunk(decode_chunk(b"chunk", chunk))
    found = decode_chunk(b"chunk", chunk).tolist()
    assert {at: each for at, each in enumerate(found) if each} == {at: each for at, each in expected.items() if each}


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=300), st.sampled_from([0, 1, 10_000]))
def test_sums_as_a_run_are_read_as_differences(integers: list[int], zeros: int) -> None:
    """And as a chunk."""
    whole = [0] * zeros + integers
    packed = encode_chunk(np.array(whole, dtype=np.int64))
    assert unpack_runs(packed) == list(enumerate(whole))
    assert decode_chunk(b"chunk", packed).tolist() == whole


@pytest.mark.parametrize("length", [1, 3, 5, 11, 13, 15, 23])
def test_what_are_no_runs_is_refused(length: int) -> None:
    """Each has a head of four bytes, and as many integers as that says."""
    whole = (b"\0\0\0\1" + bytes(8)) * 2
    with pytest.raises(StoreOwned, match=rf"chunk is damaged \({length} bytes end.*ab-monitor rebuild"):
        decode_chunk(b"chunk", whole[:length])


def test_a_chunk_with_more_integers_than_its_buckets_have_is_refused() -> None:
    """They would not be counted."""
    with pytest.raises(StoreOwned, match=r"chunk is damaged \(25 integers, expected 24"):
        add_chunk(np.zeros(24, dtype=np.int64), b"chunk", encode_chunk(np.ones(25, dtype=np.int64)))


def test_records_are_rows_of_a_table() -> None:
    """The end of a record is not stored before it is needed, and of a day without students nothing."""
    stored = [pack(">3q", 1, -2, 1 << 40), None, pack(">q", 7)]
    assert decode_records([b"a", b"b", b"c"], stored, 3).tolist() == [[1, -2, 1 << 40], [0, 0, 0], [7, 0, 0]]
    assert decode_records([], [], 3).shape == (0, 3)


@pytest.mark.parametrize("length", [3, 32])
def test_bytes_that_are_no_record_are_refused(length: int) -> None:
    """Half an integer, or more of them than there are."""
    with pytest.raises(StoreOwned, match=rf"b is damaged \({length} bytes.*3 integers.*ab-monitor rebuild"):
        decode_records([b"a", b"b"], [None, bytes(length)], 3)
