"""Records of a partition, with and without what they stand in."""

from __future__ import annotations

from bisect import bisect_left

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.ingest.records import Records

_BYTES = st.none() | st.binary(max_size=5)
_RECORDS = st.lists(st.tuples(st.integers(0, 40), _BYTES, _BYTES), max_size=12, unique_by=lambda each: each[0])


def _records(expected: list[tuple[int, bytes | None, bytes | None]]) -> Records:
    return Records.of([each[0] for each in expected], [each[2] for each in expected], [each[1] for each in expected])


def _told(records: Records) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(offset, records.key(at), records[at]) for at, offset in enumerate(records.offsets)]


@given(_RECORDS.map(sorted), st.integers(0, 41), st.integers(0, 41))
def test_parts_are_cut_by_offset(expected: list[tuple[int, bytes | None, bytes | None]], begin: int, end: int) -> None:
    """Offsets may have gaps; what is empty is not what is missing, neither for keys nor for payloads."""
    records = _records(expected)
    assert _told(records) == expected
    assert list(records) == [payload for _, _, payload in expected]
    offsets = [offset for offset, _, _ in expected]
    first, last = records.place_of(begin), records.place_of(max(begin, end))
    assert (first, last) == (bisect_left(offsets, begin), bisect_left(offsets, max(begin, end)))
    part = records.part(first, last)
    records.let_go()
    assert _told(part) == expected[first:last]


@pytest.mark.parametrize(("offsets", "keys"), [([1], None), ([1, 2, 3], None), ([1, 2], [b"k"])])
def test_each_record_has_an_offset_and_a_key(offsets: list[int], keys: list[bytes | None] | None) -> None:
    """Otherwise a payload would be taken for another's, or one would be missing in silence."""
    with pytest.raises(ValueError, match="zip"):
        Records.of(offsets, [b"a", b"b"], keys)


def test_what_has_let_go_has_its_offsets_only() -> None:
    """Whoever still wants a payload is told so."""
    records = _records([(3, b"k", b"v"), (5, None, b"w")])
    records.let_go()
    assert (len(records), records.offset(0), records.offset(-1)) == (2, 3, 5)
    with pytest.raises(IndexError):
        _ = records[0]
    with pytest.raises(IndexError):
        records.key(0)
