"""Records are read from a batch as kafka-python reads them."""

from __future__ import annotations

from typing import Any

import kafka
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka import TopicPartition
from kafka.errors import CorruptRecordError
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from kafka.record.memory_records import MemoryRecords
from kafka.record.util import calc_crc32c

from monitor.ingest.records import Records
from monitor.ingest.unpacked import KNOWN, Unpacked
from monitor.ingest.unpacking import records_of

_PARTITION = TopicPartition("t", 0)
_BYTES = st.none() | st.binary(max_size=200)
_HEADERS = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3)
_RECORDS = st.lists(
    st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 2**42), _BYTES, _BYTES, _HEADERS),
    min_size=1,
    max_size=20,
    unique_by=lambda each: each[0],
)


def _batch(records: list[tuple[int, int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]]) -> bytes:
    """Return a batch with gaps between its offsets, as compaction leaves them."""
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 30)
    for offset, timestamp_ms, key, value, headers in sorted(records):
        builder.append(offset, timestamp_ms, key, value, headers)
    return bytes(builder.build())


@given(records=_RECORDS)
def test_offsets_keys_and_values_are_those_of_the_client(
    records: list[tuple[int, int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]],
) -> None:
    """Whatever stands besides them."""
    data = _batch(records)
    expected = [(each.offset, each.key, each.value) for each in DefaultRecordBatch(data)]
    header = DefaultRecordBatch(data)
    found = records_of(data, header._pos, header.records_count, header.base_offset)
    assert [(offset, found.key(at), found[at]) for at, offset in enumerate(found.offsets)] == expected


def test_what_is_no_batch_is_refused() -> None:
    """Cut off anywhere, with something behind it, with fewer records than it says, or with other bytes in it."""
    data = _batch([(n, 1000 + n, b"key", b"value", [("name", b"text")]) for n in range(3)])
    at = DefaultRecordBatch(data)._pos
    for end in range(at, len(data)):
        with pytest.raises(ValueError, match="bytes"):
            records_of(data[:end], at, 3, 0)
    with pytest.raises(ValueError, match="1 bytes behind the last record"):
        records_of(data + b"\0", at, 3, 0)
    for count in (2, 4, 1 << 30):
        with pytest.raises(ValueError, match="bytes"):
            records_of(data, at, count, 0)
    for place in range(at, len(data)):
        for byte in (0, 1, 127, 128, 255):
            try:
                records_of(data[:place] + bytes((byte,)) + data[place + 1 :], at, 3, 0)
            except ValueError as error:
                assert str(error)


def _taken_from(*batches: bytes, begin: int = 0) -> tuple[Any, dict[TopicPartition, Records]]:
    """Return the fetch, and where it notes what was taken."""
    noted: dict[TopicPartition, Records] = {}
    return Unpacked(noted, begin, _PARTITION, MemoryRecords(b"".join(batches)), isolation_level=1), noted


def test_what_is_damaged_is_fetched_again() -> None:
    """What came before it is delivered; nothing is left of the fetch then, so the client does not ask it for ever."""
    records: list[Any] = [(n, 1000 + n, b"key", b"value", []) for n in range(3)]
    damaged = bytearray(_batch([(n, *rest) for n, (_, *rest) in enumerate(records, 3)]))
    damaged[-3] ^= 1
    fetch, noted = _taken_from(_batch(records), bytes(damaged))
    assert len(fetch.take(100)) == 3
    assert list(noted[_PARTITION]) == [b"value"] * 3
    assert fetch.next_fetch_offset == 3
    with pytest.raises(CorruptRecordError):
        fetch.take(100)
    assert not fetch
    assert noted[_PARTITION].offsets == [0, 1, 2]


@given(
    batches=st.lists(st.integers(1, 5), min_size=1, max_size=5),
    begin=st.integers(0, 24),
    steps=st.lists(st.integers(1, 9), min_size=25, max_size=25),
)
def test_records_are_taken_from_where_the_fetch_begins_as_many_as_asked_for(
    batches: list[int], begin: int, steps: list[int]
) -> None:
    """Across batches, and in the middle of one, where a fetch may begin; offsets, keys and payloads stay together."""
    stored, number = [], 0
    for size in batches:
        stored.append(_batch([(n, n, b"k%d" % n, b"v%d" % n, []) for n in range(number, number + size)]))
        number += size
    fetch, noted = _taken_from(*stored, begin=begin)
    following = begin
    for step in steps:
        expected = list(range(following, max(following, min(following + step, number))))
        assert len(fetch.take(step)) == len(expected)
        following += len(expected)
        if following < number:
            assert fetch.next_fetch_offset == following
    assert not fetch
    if found := noted.get(_PARTITION):
        assert found.offsets == list(range(begin, number))
        assert [found.key(at) for at in range(len(found))] == [b"k%d" % n for n in found.offsets]
        assert list(found) == [b"v%d" % n for n in found.offsets]


def test_an_empty_batch_that_ended_a_transaction_is_passed() -> None:
    """As compaction leaves it for a producer that has written nothing since."""
    header = DefaultRecordBatch.HEADER_STRUCT
    body = header.pack(7, header.size - 12, 0, 2, 0, 0x30, 0, 1000, 1000, 5, 0, -1, 0)
    crc = calc_crc32c(body[DefaultRecordBatch.ATTRIBUTES_OFFSET :])
    empty = header.pack(7, header.size - 12, 0, 2, crc, 0x30, 0, 1000, 1000, 5, 0, -1, 0)
    fetch, _ = _taken_from(empty)
    assert fetch.take(100) == []
    assert fetch.next_fetch_offset == 8


def test_the_pinned_client_is_the_one_that_is_known() -> None:
    """Another version may have other inner parts: compare `Unpacked` with them, then say so."""
    assert kafka.__version__ == KNOWN
