"""What commits say of the rows that they made is believed only where it proves that one's own are new."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.store.made import Made
from monitor.store.packing import PackedRows

Entry = list[object]
NAMES = st.sets(st.binary(min_size=1, max_size=16), max_size=30)


def _made(names: Sequence[bytes], *, summed: bool = False) -> Made:
    rows = PackedRows(summed=summed)
    for name in names:
        rows.add(b"abm:{0}:0:r", name, b"\x01row")
    return Made(b"stream", rows)


def _entry(number: int, names: Sequence[bytes]) -> Entry:
    """Return an entry as a server gives it back."""
    return [b"%d-0" % number, [b"n", _made(names).left()[1]]]


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=30))
def test_checksums_are_those_of_zlib_whenever_they_are_made(names: list[bytes]) -> None:
    """As the rows come, or afterwards; older workers have made the same."""
    expected = b"".join(crc32(name).to_bytes(4, "little") for name in names)
    for summed in (False, True):
        made = _made(names, summed=summed)
        assert [made.left()[1], made.left()[1]] == [expected] * 2


@given(own=NAMES.filter(bool), others=st.lists(NAMES, max_size=5), after=st.integers(0, 1 << 53))
def test_rows_are_new_exactly_if_no_checksum_is_among_those_of_others(
    own: set[bytes], others: list[set[bytes]], after: int
) -> None:
    """However many commits there were, and however often one name is among their rows or one's own."""
    entries = [_entry(after + place, sorted(names) * 2) for place, names in enumerate(others, 1)]
    shared = {crc32(name) for name in own} & {crc32(name) for names in others for name in names}
    assert _made(sorted(own) * 2).is_new(entries, after, after + len(others)) == (not shared)


@pytest.mark.parametrize("left_out", [each for count in (1, 2, 3) for each in combinations(range(3), count)])
def test_a_commit_that_says_nothing_may_have_made_any(left_out: tuple[int, ...]) -> None:
    """Or one whose entry is kept no more."""
    entries = [_entry(8 + place, []) for place in range(3)]
    own = _made([b"r-1"])
    assert own.is_new(entries, 7, 10)
    assert not own.is_new([each for place, each in enumerate(entries) if place not in left_out], 7, 10)


def test_entries_of_other_commits_prove_nothing() -> None:
    """As many as there were commits."""
    assert not _made([b"r-1"]).is_new([_entry(8, []), _entry(10, [])], 7, 9)
