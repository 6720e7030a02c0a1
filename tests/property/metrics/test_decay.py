"""Moments of chunks of time buckets equal the sums over the single buckets."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from monitor.engine.accumulator import MetricAccumulator
from monitor.metrics import FIXED_POINT_SCALE, FloatArray, IntArray
from monitor.metrics.decay import (
    DecayedMoments,
    ObservationGroups,
    bucket_midpoints_ms,
    chunk_moments,
    decayed_moments,
    merge_moments,
)
from monitor.metrics.record_layout import BUCKETS_PER_CHUNK, RecordLayout, chunk_length_ms
from tests.support.streams import EXPERIMENT

CHUNKS = 3
LAYOUT = RecordLayout.for_experiment(EXPERIMENT)
DECAY = EXPERIMENT.decay[0]
SPAN_MS = chunk_length_ms(DECAY)
FIRST = 1_700_000_000_000 // SPAN_MS

TimedResponse = tuple[int, bool, tuple[int, ...]]
"""(ms after the beginning of the first chunk, rated, values in fixed point, -1 for an undefined metric)."""

ONE = (FIXED_POINT_SCALE,) * LAYOUT.metric_count
values = st.tuples(*[st.integers(-1, 3 * FIXED_POINT_SCALE)] * LAYOUT.metric_count)
BUCKET_MS = SPAN_MS // BUCKETS_PER_CHUNK
chunk_times = st.integers(0, CHUNKS * SPAN_MS - 1)
times = chunk_times | st.integers(SPAN_MS, SPAN_MS + 2 * BUCKET_MS)
"""Half of the times are within two buckets, so buckets have several responses."""


def _records(responses: list[TimedResponse]) -> IntArray:
    accumulator = MetricAccumulator(LAYOUT, [SPAN_MS])
    for after_ms, is_rated, metric_values in responses:
        accumulator.add_response(1, 0, FIRST * SPAN_MS + after_ms, is_rated, metric_values)
    records = np.zeros((CHUNKS * BUCKETS_PER_CHUNK, LAYOUT.response_width), dtype=np.int64)
    for bucket, record in accumulator.bucket_sums[0].items():
        records[bucket - FIRST * BUCKETS_PER_CHUNK] = record.integers()
    return records.reshape(CHUNKS, BUCKETS_PER_CHUNK, LAYOUT.response_width)


def _sums(records: IntArray, as_of_ms: int) -> FloatArray:
    """Return the sums of each chunk as of a time."""
    ends_ms = [(FIRST + number + 1) * SPAN_MS for number in range(len(records))]
    return chunk_moments(records, LAYOUT, SPAN_MS, [as_of_ms - end_ms for end_ms in ends_ms])


def _moments_of_single_buckets(records: IntArray, as_of_ms: int) -> DecayedMoments:
    """Return the moments of all buckets, without sums of chunks."""
    flat = records.reshape(-1, LAYOUT.response_width)
    middles_ms = bucket_midpoints_ms(range(FIRST, FIRST + CHUNKS), SPAN_MS)
    return decayed_moments(ObservationGroups.of_buckets(flat, middles_ms, LAYOUT, SPAN_MS), as_of_ms, DECAY)


@given(
    responses=st.lists(st.tuples(times, st.booleans(), values), min_size=1, max_size=40),
    near_ms=st.none() | st.integers(-BUCKET_MS, BUCKET_MS),
    after_ms=st.integers(-SPAN_MS, (CHUNKS + 1) * SPAN_MS),
)
def test_chunks_are_the_sum_of_their_buckets(
    responses: list[TimedResponse], near_ms: int | None, after_ms: int
) -> None:
    """The time is arbitrary, or near the newest response."""
    as_of_ms = FIRST * SPAN_MS + (after_ms if near_ms is None else max(responses)[0] + near_ms)
    records = _records(responses)
    moments = DecayedMoments(*merge_moments(_sums(records, as_of_ms), range(FIRST, FIRST + CHUNKS)))
    expected = _moments_of_single_buckets(records, as_of_ms)
    for name in ("mean", "effective_count", "standard_error"):
        np.testing.assert_allclose(getattr(moments, name), getattr(expected, name), rtol=1e-9, atol=1e-6)


@given(responses=st.lists(st.tuples(times, st.booleans()), min_size=1, max_size=40), after_ms=times)
def test_a_past_chunk_has_the_same_sums_at_any_later_time(responses: list[tuple[int, bool]], after_ms: int) -> None:
    """The sums are equal in all digits, also for a chunk alone, because readings cache the sums of chunks."""
    records = _records([(at_ms, rated, ONE) for at_ms, rated in responses])
    sums_as_of, complete_sums = _sums(records, FIRST * SPAN_MS + after_ms), chunk_moments(records, LAYOUT, SPAN_MS)
    for number in range(CHUNKS):
        alone = chunk_moments(records[number : number + 1], LAYOUT, SPAN_MS)
        assert (alone[0] == complete_sums[number]).all()
        if number < after_ms // SPAN_MS or max(responses)[0] <= after_ms - BUCKET_MS:
            assert (complete_sums[number] == sums_as_of[number]).all()


@given(responses=st.lists(st.tuples(times, st.booleans()), min_size=1, max_size=40), after_ms=times)
def test_a_metric_with_all_values_1_has_exactly_the_mean_1(responses: list[tuple[int, bool]], after_ms: int) -> None:
    """The sums of values equal the sums of weights in all digits."""
    sums = _sums(_records([(at_ms, rated, ONE) for at_ms, rated in responses]), FIRST * SPAN_MS + after_ms)
    assert (sums[:, 0, : LAYOUT.metric_count] == sums[:, 1, : LAYOUT.metric_count]).all()
