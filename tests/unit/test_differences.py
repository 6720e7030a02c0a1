"""What a batch adds to the stored integers, packed in runs: nothing is lost, added, or put elsewhere."""

from __future__ import annotations

from struct import unpack_from

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.aggregates import BUCKETS_PER_CHUNK, Layout
from monitor.cells import CELL_BITS, zeros
from monitor.config import DecaySpec
from monitor.ingest.differences import write_tally
from monitor.store import Commit, Keys
from monitor.store.runs import unpacked
from monitor.tally import Tally

HOUR = 3_600_000
DECAY = DecaySpec("1h", HOUR)
SEVERAL = Layout(5, (30,) * 5)
LONGEST, WIDE = 1000, 1 << 15
LARGEST = 2**51

_numbers = st.one_of(st.integers(-9, 9), st.sampled_from([LARGEST, -LARGEST, LARGEST + 1, -LARGEST - 1, 2**62]))
_places = st.tuples(st.integers(0, 2), st.integers(1000, 1000 + 3 * BUCKETS_PER_CHUNK), st.integers(0, 43))


@given(st.dictionaries(_places, _numbers, max_size=300))
def test_runs_say_what_the_buckets_hold(changes: dict[tuple[int, int, int], int]) -> None:
    """In whatever order buckets came up, near each other and far apart, and marked where numbers are large."""
    tally, width = Tally(SEVERAL, [HOUR]), SEVERAL.response_width
    expected: dict[tuple[bytes, int], int] = {}
    for (variant, bucket, place), change in changes.items():
        begin = tally.buckets[0].at(variant << CELL_BITS | bucket)
        tally.buckets[0].numbers[begin + place] = change
        chunk, within = divmod(bucket, BUCKETS_PER_CHUNK)
        expected[Keys().chunk(1, variant, DECAY.name, chunk), within * width + place] = change
    commit = Commit()
    write_tally(commit, Keys(), 1, (DECAY,), tally)
    found: dict[tuple[bytes, int], int] = {}
    for key, packed in commit.chunks.items():
        assert packed
        for index, change in unpacked(packed):
            assert (key, index) not in found
            found[key, index] = change
        for integers, wide in _runs(packed):
            assert 0 < len(integers) <= LONGEST
            assert integers[0]
            assert integers[-1]
            assert wide == any(abs(each) > LARGEST for each in integers)
    assert {place: change for place, change in found.items() if change} == {
        place: change for place, change in expected.items() if change
    }


def test_neighbours_share_a_run() -> None:
    """A run for each bucket would cost the store more than the few zeros between them."""
    tally = Tally(SEVERAL, [HOUR])
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
    tally = Tally(SEVERAL, [])
    tally.units[0] = zeros(len(record))
    for place, number in enumerate(record):
        tally.units[0][place] = number
    commit = Commit()
    write_tally(commit, Keys(), 1, (), tally)
    (packed,) = commit.sums.values()
    assert [len(integers) for integers, _ in _runs(packed)] == sizes
    assert dict(unpacked(packed)).items() >= {place: number for place, number in enumerate(record) if number}.items()


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
