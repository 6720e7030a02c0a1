"""What chunks of time buckets amount to is what their buckets, weighted one by one, amount to."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from monitor.engine.accumulator import Accumulator
from monitor.metrics import SCALE
from monitor.metrics.decay import Groups, Moments, bucket_middles_ms, chunk_moments, decayed, merge_moments
from monitor.metrics.record_layout import BUCKETS_PER_CHUNK, Floats, Ints, Layout, bucket_span_ms
from tests.support.streams import EXPERIMENT

CHUNKS = 3
LAYOUT = Layout.of(EXPERIMENT)
DECAY = EXPERIMENT.decay[0]
SPAN_MS = bucket_span_ms(DECAY)
FIRST = 1_700_000_000_000 // SPAN_MS

Seen = tuple[int, bool, tuple[int, ...]]
"""(ms after the beginning of the first chunk, rated, values in fixed point, -1 where a metric is undefined)."""

ONE = (SCALE,) * LAYOUT.metrics
values = st.tuples(*[st.integers(-1, 3 * SCALE)] * LAYOUT.metrics)
BUCKET_MS = SPAN_MS // BUCKETS_PER_CHUNK
anywhere = st.integers(0, CHUNKS * SPAN_MS - 1)
times = anywhere | st.integers(SPAN_MS, SPAN_MS + 2 * BUCKET_MS)
"""Some fall into the same bucket."""


def _records(responses: list[Seen]) -> Ints:
    tally = Accumulator(LAYOUT, [SPAN_MS])
    for after_ms, rated, own in responses:
        tally.add_response(1, 0, FIRST * SPAN_MS + after_ms, rated, own)
    records = np.zeros((CHUNKS * BUCKETS_PER_CHUNK, LAYOUT.response_width), dtype=np.int64)
    for bucket, record in tally.buckets[0].items():
        records[bucket - FIRST * BUCKETS_PER_CHUNK] = record.integers()
    return records.reshape(CHUNKS, BUCKETS_PER_CHUNK, LAYOUT.response_width)


def _sums(records: Ints, as_of_ms: int) -> Floats:
    """Return the sums of each chunk as of a time."""
    ends_ms = [(FIRST + number + 1) * SPAN_MS for number in range(len(records))]
    return chunk_moments(records, LAYOUT, SPAN_MS, [as_of_ms - end_ms for end_ms in ends_ms])


def _one_by_one(records: Ints, as_of_ms: int) -> Moments:
    """Return what the buckets amount to, none of them put together to chunks before."""
    flat = records.reshape(-1, LAYOUT.response_width)
    middles_ms = bucket_middles_ms(range(FIRST, FIRST + CHUNKS), SPAN_MS)
    return decayed(Groups.of_buckets(flat, middles_ms, LAYOUT, SPAN_MS), as_of_ms, DECAY)


@given(
    responses=st.lists(st.tuples(times, st.booleans(), values), min_size=1, max_size=40),
    near_ms=st.none() | st.integers(-BUCKET_MS, BUCKET_MS),
    after_ms=st.integers(-SPAN_MS, (CHUNKS + 1) * SPAN_MS),
)
def test_chunks_are_the_sum_of_their_buckets(responses: list[Seen], near_ms: int | None, after_ms: int) -> None:
    """At any time, also within a bucket with a response; that of the newest one is what readings of now are of."""
    as_of_ms = FIRST * SPAN_MS + (after_ms if near_ms is None else max(responses)[0] + near_ms)
    records = _records(responses)
    found = Moments(*merge_moments(_sums(records, as_of_ms), range(FIRST, FIRST + CHUNKS)))
    expected = _one_by_one(records, as_of_ms)
    for name in ("mean", "effective_count", "standard_error"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-9, atol=1e-6)


@given(responses=st.lists(st.tuples(times, st.booleans()), min_size=1, max_size=40), after_ms=times)
def test_a_chunk_that_is_over_has_the_same_sums_at_any_later_time(
    responses: list[tuple[int, bool]], after_ms: int
) -> None:
    """To the last digit, also when it is read alone: readings use the sums that another reading has found."""
    records = _records([(at_ms, rated, ONE) for at_ms, rated in responses])
    at_end, whole = _sums(records, FIRST * SPAN_MS + after_ms), chunk_moments(records, LAYOUT, SPAN_MS)
    for number in range(CHUNKS):
        alone = chunk_moments(records[number : number + 1], LAYOUT, SPAN_MS)
        assert (alone[0] == whole[number]).all()
        if number < after_ms // SPAN_MS or max(responses)[0] <= after_ms - BUCKET_MS:
            assert (whole[number] == at_end[number]).all()


@given(responses=st.lists(st.tuples(times, st.booleans()), min_size=1, max_size=40), after_ms=times)
def test_a_metric_that_is_always_one_has_the_mean_one(responses: list[tuple[int, bool]], after_ms: int) -> None:
    """Exactly: what is summed of its values is what is summed of counts."""
    sums = _sums(_records([(at_ms, rated, ONE) for at_ms, rated in responses]), FIRST * SPAN_MS + after_ms)
    assert (sums[:, 0, : LAYOUT.metrics] == sums[:, 1, : LAYOUT.metrics]).all()
