"""Changes of stored integers, packed in runs: nothing is lost, added, or put elsewhere."""

from __future__ import annotations

from struct import unpack_from

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.config import DecaySpec
from monitor.engine.accumulator import Accumulator
from monitor.engine.row_codec import pack_runs, unpack_runs
from monitor.metrics.record_layout import BUCKETS_PER_CHUNK, Layout
from monitor.state import Commit, Keys
from monitor.state.record_deltas import write_tally

HOUR = 3_600_000
DECAY = DecaySpec("1h", HOUR)
SEVERAL = Layout(5, (30,) * 5)
LONGEST, WIDE = 1000, 1 << 15
LARGEST = 2**51

_numbers = st.one_of(st.integers(-9, 9), st.sampled_from([LARGEST, -LARGEST, LARGEST + 1, -LARGEST - 1, 2**62]))


@given(st.dictionaries(st.tuples(st.integers(0, 3 * BUCKETS_PER_CHUNK), st.integers(0, 43)), _numbers, max_size=300))
def test_runs_have_every_change_of_the_vectors(changes: dict[tuple[int, int], int]) -> None:
    """Near each other and far apart, and marked where numbers are large."""
    width = SEVERAL.response_width
    vectors: dict[int, list[int]] = {}
    for (bucket, index), change in changes.items():
        vectors.setdefault(bucket * width, [0] * width)[index] = change
    packed = pack_runs(sorted(vectors.items()))
    unpacked = unpack_runs(packed)
    assert len(dict(unpacked)) == len(unpacked)
    for integers, wide in _runs(packed):
        assert 0 < len(integers) <= LONGEST
        assert integers[0]
        assert integers[-1]
        assert wide == any(abs(each) > LARGEST for each in integers)
    expected = {bucket * width + index: change for (bucket, index), change in changes.items() if change}
    assert {index: change for index, change in unpacked if change} == expected


def test_neighbours_share_a_run() -> None:
    """A run for each bucket would cost the store more than the few zeros between them."""
    tally = Accumulator(SEVERAL, [HOUR])
    for bucket in reversed(range(10)):
        tally.add_response(1, 0, bucket * HOUR // BUCKETS_PER_CHUNK, rated=True, values=(1, 2, 3, 4, 5))
    commit = Commit()
    write_tally(commit, Keys(), 1, (DECAY,), tally)
    chunk = commit.chunks[Keys().chunk(1, 0, "1h", 0)]
    assert len(_runs(chunk)) == 1


@pytest.mark.parametrize(
    ("record", "sizes"),
    [
        ([1] * 2500, [1000, 1000, 500]),
        ([1] * 999 + [0] + [1] * 1001, [999, 1000, 1]),
        ([0, 1, *[0] * 16, 1], [18]),
        ([0, 1, *[0] * 17, 1], [1, 1]),
    ],
    ids=["full", "a zero where it is full", "near", "far"],
)
def test_runs_end_where_they_are_full_or_what_follows_is_far(record: list[int], sizes: list[int]) -> None:
    """The store takes a thousand integers at once."""
    packed = pack_runs([(0, record)])
    assert [len(integers) for integers, _ in _runs(packed)] == sizes
    assert dict(unpack_runs(packed)).items() >= {at: number for at, number in enumerate(record) if number}.items()


def test_no_change_is_no_run() -> None:
    """The store is not asked to add zeros."""
    assert pack_runs([(0, [0, 0]), (7, [0])]) == b""


def _runs(packed: bytes) -> list[tuple[tuple[int, ...], bool]]:
    """Return the integers of each run, and whether it is marked as wide."""
    found: list[tuple[tuple[int, ...], bool]] = []
    at = 0
    while at < len(packed):
        _, many = unpack_from(">HH", packed, at)
        count = many % WIDE
        found.append((unpack_from(f">{count}q", packed, at + 4), many >= WIDE))
        at += 4 + 8 * count
    return found
