"""What chunks of time buckets amount to is what their buckets, weighted one by one, amount to."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from librt.strings import BytesWriter
from librt.vecs import vec
from mypy_extensions import i64

from monitor.aggregates import BUCKETS_PER_CHUNK, Floats, Ints, Layout, Moments, bucket_span_ms, decayed
from monitor.engine.accumulator import Accumulator
from monitor.ranking import SCALE
from monitor.series import Series, digests, reached_buckets, together
from monitor.weighing import weigh
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


def _digests(
    records: Ints, as_of_ms: int, chunks: Sequence[int] = range(FIRST, FIRST + CHUNKS)
) -> tuple[Floats, Floats]:
    spans_ms, writer = [SPAN_MS] * len(chunks), BytesWriter()
    reached = reached_buckets(chunks, spans_ms, as_of_ms)
    for record, until in zip(records, reached.tolist(), strict=True):
        weigh(writer, vec[i64](record.ravel().tolist()), LAYOUT.metrics, until)
    return digests(writer.getvalue(), chunks, spans_ms, reached, LAYOUT, as_of_ms)


def _one_by_one(records: Ints, as_of_ms: int) -> list[Moments]:
    flat = records.reshape(-1, LAYOUT.response_width)
    filled = np.flatnonzero(flat[:, 0])
    series = Series.read(flat[filled], filled + FIRST * BUCKETS_PER_CHUNK, SPAN_MS, LAYOUT)
    metrics = range(LAYOUT.metrics)
    groups = [*map(series.rated, metrics), *map(series.everything, metrics)]
    return [decayed(each, as_of_ms, DECAY) for each in groups]


@given(
    responses=st.lists(st.tuples(times, st.booleans(), values), min_size=1, max_size=40),
    near_ms=st.none() | st.integers(-BUCKET_MS, BUCKET_MS),
    after_ms=st.integers(-SPAN_MS, (CHUNKS + 1) * SPAN_MS),
)
def test_chunks_are_the_sum_of_their_buckets(responses: list[Seen], near_ms: int | None, after_ms: int) -> None:
    """At any time, also within a bucket with a response; that of the newest one is what readings of now are of."""
    as_of_ms = FIRST * SPAN_MS + (after_ms if near_ms is None else max(responses)[0] + near_ms)
    records = _records(responses)
    found = together([_digests(records, as_of_ms)[0]], [range(FIRST, FIRST + CHUNKS)])
    expected = _one_by_one(records, as_of_ms)
    for name in ("mean", "effective_count", "standard_error"):
        wanted = np.array([getattr(each, name) for each in expected])
        np.testing.assert_allclose(getattr(found, name)[0], wanted, rtol=1e-9, atol=1e-6)


@given(responses=st.lists(st.tuples(times, st.booleans()), min_size=1, max_size=40), after_ms=times, later_ms=times)
def test_what_is_remembered_stays_to_the_last_digit(
    responses: list[tuple[int, bool]], after_ms: int, later_ms: int
) -> None:
    """A chunk that says from when on nothing in it changes says the same from then on, also when it is read alone."""
    records = _records([(at_ms, rated, ONE) for at_ms, rated in responses])
    as_of_ms = FIRST * SPAN_MS + after_ms
    sums, from_ms = _digests(records, as_of_ms)
    settled = from_ms <= as_of_ms
    newest_ms = max(responses)[0]
    assert newest_ms > after_ms or settled.all()
    assert newest_ms < after_ms + SPAN_MS / BUCKETS_PER_CHUNK or not settled[newest_ms // SPAN_MS]
    for chunk in np.flatnonzero(settled):
        for at_ms in (math.ceil(from_ms[chunk]), as_of_ms + later_ms):
            alone, _ = _digests(records[chunk : chunk + 1], at_ms, [FIRST + int(chunk)])
            assert (alone[0] == sums[chunk]).all()


@given(responses=st.lists(st.tuples(times, st.booleans()), min_size=1, max_size=40), after_ms=times)
def test_a_metric_that_is_always_one_has_the_mean_one(responses: list[tuple[int, bool]], after_ms: int) -> None:
    """Exactly: what is summed of its values is what is summed of counts."""
    sums, _ = _digests(_records([(at_ms, rated, ONE) for at_ms, rated in responses]), FIRST * SPAN_MS + after_ms)
    weight, total = sums[:, 0, : LAYOUT.metrics], sums[:, 1, : LAYOUT.metrics]
    assert (weight == total).all()
