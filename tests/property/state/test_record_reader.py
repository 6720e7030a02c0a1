"""Decoding of records, and of chunks of time buckets, whose runs are added up."""

from __future__ import annotations

from collections import Counter
from struct import pack

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.engine.row_codec import pack_vector_changes, unpack_vector_changes
from monitor.errors import CorruptStore
from monitor.state.record_reader import add_chunk, decode_chunk, decode_records, encode_chunk

_records = st.lists(st.one_of(st.integers(-9, 9), st.sampled_from([0] * 9 + [2**51 + 1, -(2**61)])), max_size=60)
_appended = st.lists(st.lists(st.tuples(st.integers(0, 40), _records), max_size=3), max_size=3)


@given(_appended, st.integers(0, 3))
def test_a_decoded_chunk_is_the_sum_of_all_appended_runs(
    appended: list[list[tuple[int, list[int]]]], repetitions: int
) -> None:
    """In runs that overlap or leave gaps, and where the sums of the first stand as runs already."""
    chunk, expected = b"", Counter[int]()
    for number, changes in enumerate(appended):
        vectors, first = list[tuple[int, list[int]]](), 0
        for gap, record in changes:
            first += gap
            vectors.append((first, record))
            expected.update({first + position: integer for position, integer in enumerate(record)})
            first += len(record)
        chunk += pack_vector_changes(vectors)
        if number < repetitions:
            chunk = encode_chunk(decode_chunk(b"chunk", chunk))
    integers = decode_chunk(b"chunk", chunk).tolist()
    assert {index: integer for index, integer in enumerate(integers) if integer} == {
        index: integer for index, integer in expected.items() if integer
    }


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=300), st.sampled_from([0, 1, 10_000]))
def test_an_encoded_chunk_is_decoded_to_the_same_integers(integers: list[int], zeros: int) -> None:
    """And as a chunk."""
    chunk_integers = [0] * zeros + integers
    packed = encode_chunk(np.array(chunk_integers, dtype=np.int64))
    assert unpack_vector_changes(packed) == list(enumerate(chunk_integers))
    assert decode_chunk(b"chunk", packed).tolist() == chunk_integers


@pytest.mark.parametrize("length", [1, 3, 5, 11, 13, 15, 23])
def test_bytes_that_end_within_a_run_raise_corrupt_store(length: int) -> None:
    """Each has a head of four bytes, and as many integers as that says."""
    two_runs = (b"\0\0\0\1" + bytes(8)) * 2
    with pytest.raises(CorruptStore, match=rf"chunk is damaged \({length} bytes end.*ab-monitor rebuild"):
        decode_chunk(b"chunk", two_runs[:length])


def test_a_chunk_with_more_integers_than_expected_raises_corrupt_store() -> None:
    """Additional integers would be ignored otherwise."""
    with pytest.raises(CorruptStore, match=r"chunk is damaged \(25 integers, expected at most 24"):
        add_chunk(np.zeros(24, dtype=np.int64), b"chunk", encode_chunk(np.ones(25, dtype=np.int64)))


def test_records_are_decoded_to_the_rows_of_a_table() -> None:
    """Zeros at the end of a record are not stored, and a day without students has no record."""
    stored = [pack(">3q", 1, -2, 1 << 40), None, pack(">q", 7)]
    assert decode_records([b"a", b"b", b"c"], stored, 3).tolist() == [[1, -2, 1 << 40], [0, 0, 0], [7, 0, 0]]
    assert decode_records([], [], 3).shape == (0, 3)


@pytest.mark.parametrize("length", [3, 32])
def test_bytes_that_are_no_record_raise_corrupt_store(length: int) -> None:
    """The bytes are half an integer, or more integers than the width."""
    with pytest.raises(CorruptStore, match=rf"b is damaged \({length} bytes.*3 integers.*ab-monitor rebuild"):
        decode_records([b"a", b"b"], [None, bytes(length)], 3)
