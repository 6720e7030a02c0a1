"""Unit tests of the packed runs of vector changes."""

from __future__ import annotations

from struct import unpack_from

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.config import DecaySpec
from monitor.engine.accumulator import MetricAccumulator
from monitor.engine.row_codec import pack_vector_changes, unpack_vector_changes
from monitor.metrics.record_layout import BUCKETS_PER_CHUNK, RecordLayout
from monitor.state import Commit, StoreKeys
from monitor.state.record_deltas import add_metric_sums

HOUR = 3_600_000
DECAY = DecaySpec("1h", HOUR)
LAYOUT = RecordLayout(5, (30,) * 5)
MAX_RUN, WIDE_FLAG = 1000, 1 << 15
MAX_NARROW = 2**51

_numbers = st.one_of(
    st.integers(-9, 9), st.sampled_from([MAX_NARROW, -MAX_NARROW, MAX_NARROW + 1, -MAX_NARROW - 1, 2**62])
)


@given(st.dictionaries(st.tuples(st.integers(0, 3 * BUCKETS_PER_CHUNK), st.integers(0, 43)), _numbers, max_size=300))
def test_unpacked_runs_have_every_change_of_the_vectors(changes: dict[tuple[int, int], int]) -> None:
    """Runs have a bounded length, no zeros at either end, and a flag for large integers."""
    width = LAYOUT.response_width
    vectors: dict[int, list[int]] = {}
    for (bucket, index), change in changes.items():
        vectors.setdefault(bucket * width, [0] * width)[index] = change
    packed = pack_vector_changes(sorted(vectors.items()))
    unpacked = unpack_vector_changes(packed)
    assert len(dict(unpacked)) == len(unpacked)
    for integers, wide in _runs(packed):
        assert 0 < len(integers) <= MAX_RUN
        assert integers[0]
        assert integers[-1]
        assert wide == any(abs(number) > MAX_NARROW for number in integers)
    expected = {bucket * width + index: change for (bucket, index), change in changes.items() if change}
    assert {index: change for index, change in unpacked if change} == expected


def test_consecutive_buckets_share_a_run() -> None:
    """A run per bucket would cost the store more than a few zeros between buckets."""
    accumulator = MetricAccumulator(LAYOUT, [HOUR])
    for bucket in reversed(range(10)):
        accumulator.add_response(1, 0, bucket * HOUR // BUCKETS_PER_CHUNK, is_rated=True, metric_values=(1, 2, 3, 4, 5))
    commit = Commit()
    add_metric_sums(commit, StoreKeys(), 1, (DECAY,), accumulator)
    chunk = commit.bucket_appends[StoreKeys().bucket_chunk(1, 0, "1h", 0)]
    assert len(_runs(chunk)) == 1


@pytest.mark.parametrize(
    ("record", "sizes"),
    [
        ([1] * 2500, [1000, 1000, 500]),
        ([1] * 999 + [0] + [1] * 1001, [999, 1000, 1]),
        ([0, 1, *[0] * 16, 1], [18]),
        ([0, 1, *[0] * 17, 1], [1, 1]),
    ],
    ids=["maximum length", "zero at the maximum length", "short gap", "long gap"],
)
def test_a_run_ends_at_its_maximum_length_or_at_a_long_gap(record: list[int], sizes: list[int]) -> None:
    """The maximum length is 1 000 integers, the maximum gap 16 zeros."""
    packed = pack_vector_changes([(0, record)])
    assert [len(integers) for integers, _ in _runs(packed)] == sizes
    assert (
        dict(unpack_vector_changes(packed)).items()
        >= {index: number for index, number in enumerate(record) if number}.items()
    )


def test_vectors_of_zeros_are_packed_as_no_run() -> None:
    """The store adds no zeros."""
    assert pack_vector_changes([(0, [0, 0]), (7, [0])]) == b""


def _runs(packed: bytes) -> list[tuple[tuple[int, ...], bool]]:
    """Return (integers, whether the wide flag is set) of each run."""
    runs: list[tuple[tuple[int, ...], bool]] = []
    run_start = 0
    while run_start < len(packed):
        _, length = unpack_from(">HH", packed, run_start)
        count = length % WIDE_FLAG
        runs.append((unpack_from(f">{count}q", packed, run_start + 4), length >= WIDE_FLAG))
        run_start += 4 + 8 * count
    return runs
