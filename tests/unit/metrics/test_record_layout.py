"""Words of sums, indices of records, time buckets and decayed means."""

from __future__ import annotations

import json
from array import array
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.config import DecaySpec
from monitor.engine.accumulator import MetricAccumulator
from monitor.metrics.decay import ObservationGroups, decay_weights, decayed_moments, relevant_chunks
from monitor.metrics.record_layout import (
    BUCKETS_PER_CHUNK,
    LOW_WORD_BITS,
    CohortField,
    CohortMetricField,
    MeanField,
    PairField,
    RecordLayout,
    StudentMetric,
    SubgroupField,
    UndefinedField,
    chunk_length_ms,
    join_words,
)
from tests.support.streams import EXPERIMENT, HOUR, START

DAY = 86_400_000
MINUTE = 60_000
HALF_DAY_VECTORS = DecaySpec("1d", DAY)
RECIPROCAL = DecaySpec("reciprocal-10d", None, 10 * DAY)


def _vectors(shared: Path) -> list[dict[str, Any]]:
    vectors: list[dict[str, Any]] = json.loads((shared / "vectors/decay_vectors.json").read_text())["vectors"]
    return vectors


class TestDecayVectors:
    """Worked examples of both decays."""

    def test_exponential_decay_reproduces_the_examples(self, shared: Path) -> None:
        """Means and effective counts are correct at any time, also 400 days later."""
        for vector in _vectors(shared):
            days, values = np.array(vector["events"]).T
            expected = vector["exponential_half_per_day"]
            moments = decayed_moments(
                ObservationGroups.single(days * DAY, values), int(vector["as_of_day"] * DAY), HALF_DAY_VECTORS
            )
            assert moments.mean == pytest.approx(expected["mean"], abs=1e-9), vector["id"]
            assert moments.effective_count == pytest.approx(expected["ess"], abs=1e-9)
            ages = vector["as_of_day"] * DAY - days * DAY
            assert decay_weights(ages, HALF_DAY_VECTORS).sum() == pytest.approx(expected["weight_sum"], rel=1e-9)

    def test_reciprocal_decay_reproduces_the_examples(self, shared: Path) -> None:
        """Weights are 1/(1 + days), and 0 from day 10; without weight the mean is undefined."""
        for vector in _vectors(shared):
            days, values = np.array(vector["events"]).T
            expected = vector["hyperbolic_cut10"]
            moments = decayed_moments(
                ObservationGroups.single(days * DAY, values), int(vector["as_of_day"] * DAY), RECIPROCAL
            )
            assert moments.weight == pytest.approx(expected["weight_sum"], abs=1e-9), vector["id"]
            mean = np.nan if expected["mean"] is None else expected["mean"]
            assert moments.mean == pytest.approx(mean, abs=1e-9, nan_ok=True)


def _groups(accumulator: MetricAccumulator, layout: RecordLayout, span_ms: int) -> ObservationGroups:
    """Return the non-empty time buckets of an accumulator with a single variant and decay."""
    buckets = accumulator.bucket_sums[0]
    numbers = sorted(buckets)
    midpoints_ms = (np.array(numbers) + 0.5) * (span_ms / BUCKETS_PER_CHUNK)
    return ObservationGroups.of_buckets(
        np.array([buckets[number].integers() for number in numbers]), midpoints_ms, layout, span_ms
    )


class TestDecayedMoments:
    """Decayed means of events and of time buckets."""

    def test_events_after_as_of_do_not_count(self) -> None:
        """The newest event has no weight at a time before the event."""
        groups = ObservationGroups.single(np.array([0.0, DAY]), np.array([1.0, 5.0]))
        assert decayed_moments(groups, DAY // 2, HALF_DAY_VECTORS).mean == 1.0

    def test_moments_without_observations_are_undefined(self) -> None:
        """Mean, effective count and standard error are NaN."""
        empty = np.zeros(0)
        moments = decayed_moments(ObservationGroups.single(empty, empty), DAY, HALF_DAY_VECTORS)
        assert np.isnan([moments.mean, moments.effective_count, moments.standard_error]).all()

    @given(st.lists(st.tuples(st.integers(0, 40 * HOUR), st.floats(0, 4)), min_size=1, max_size=60))
    def test_means_of_buckets_are_correct_to_first_order(self, events: list[tuple[int, float]]) -> None:
        """A mean over buckets is within 0.01 % of the mean over events."""
        decay = EXPERIMENT.decay[0]
        assert decay.half_life_ms is not None
        layout = RecordLayout(1, (30,))
        accumulator = MetricAccumulator(layout, [decay.half_life_ms])
        times = np.array([START + offset_ms for offset_ms, _ in events])
        values = np.rint(np.array([value for _, value in events]) * 2**30).astype(np.int64)
        for at_ms, value in zip(times.tolist(), values.tolist(), strict=True):
            accumulator.add_response(1, 0, at_ms, is_rated=True, metric_values=(value,))
        moments = decayed_moments(_groups(accumulator, layout, decay.half_life_ms), int(times.max()), decay)
        exact = decayed_moments(ObservationGroups.single(times.astype(float), values / 2**30), int(times.max()), decay)
        assert moments.mean == pytest.approx([float(exact.mean)] * 2, rel=1e-4, abs=1e-9)
        assert moments.effective_count == pytest.approx([float(exact.effective_count)] * 2, rel=2e-4)

    @pytest.mark.parametrize("beyond_ms", [-2 * MINUTE, 2 * MINUTE])
    def test_reciprocal_weights_of_buckets_are_correct_at_both_ends(self, beyond_ms: int) -> None:
        """The events are the newest event, and an event two minutes before or after the cutoff."""
        layout, span_ms = RecordLayout(1, (30,)), chunk_length_ms(RECIPROCAL)
        accumulator = MetricAccumulator(layout, [span_ms])
        times = np.array([START, START + 10 * DAY + beyond_ms])
        for at_ms, value in zip(times.tolist(), (0, 2**30), strict=True):
            accumulator.add_response(1, 0, at_ms, is_rated=True, metric_values=(value,))
        moments = decayed_moments(_groups(accumulator, layout, span_ms), int(times[1]), RECIPROCAL)
        exact = decayed_moments(
            ObservationGroups.single(times.astype(float), np.array([0.0, 1.0])), int(times[1]), RECIPROCAL
        )
        assert moments.mean == pytest.approx([float(exact.mean)] * 2, rel=1e-4)
        assert moments.effective_count == pytest.approx([float(exact.effective_count)] * 2, rel=1e-4)


class TestTimeBuckets:
    """The bucket and the offset of an event."""

    def test_a_chunk_of_64_buckets_is_one_half_life_long(self) -> None:
        """Buckets are numbered from the Unix epoch; an offset is in units of 1/1024 of the bucket."""
        accumulator = MetricAccumulator(RecordLayout(1, (30,)), [HOUR])
        for at_ms in (0, HOUR - 1, HOUR):
            accumulator.add_response(1, 0, at_ms, is_rated=False, metric_values=(0,))
        offsets = {number: (sums.responses, sums.offset_total) for number, sums in accumulator.bucket_sums[0].items()}
        assert offsets == {0: (1, 0), BUCKETS_PER_CHUNK - 1: (1, 1023), BUCKETS_PER_CHUNK: (1, 0)}

    def test_relevant_chunks_are_recent_past_and_retained(self) -> None:
        """Chunks are at most 80 half-lives before the newest, not after `as_of_ms`, and not before `oldest`."""
        decay = EXPERIMENT.decay[0]
        stored = array("q", [0, 10, 100, 150, 200])
        assert list(relevant_chunks(stored, 160 * HOUR, decay, oldest=0)) == [100, 150]
        assert list(relevant_chunks(stored, 160 * HOUR, decay, oldest=120)) == [150]
        assert list(relevant_chunks(stored, 300 * HOUR, decay, oldest=0, anchor=100)) == [100, 150, 200]
        assert not relevant_chunks(array("q"), 160 * HOUR, decay, oldest=0)


class TestWords:
    """Sums in two words."""

    @given(st.lists(st.integers(0, 2**53), min_size=1, max_size=50))
    def test_joined_sums_of_words_are_the_sums_of_terms(self, terms: list[int]) -> None:
        """The relative error is at most 1e-15."""
        values = np.array(terms, dtype=np.int64)
        low, high = values & (2**LOW_WORD_BITS - 1), values >> LOW_WORD_BITS
        total = join_words(low.sum(keepdims=True), high.sum(keepdims=True))[0]
        assert total == pytest.approx(float(sum(terms)), rel=1e-15)

    def test_subtracting_a_response_leaves_zeros(self) -> None:
        """All integers of all records are 0 after the subtraction."""
        layout = RecordLayout.for_experiment(EXPERIMENT)
        values = (3, -1, 2**30, 5, 2**31, 7)
        accumulator = MetricAccumulator(layout, [HOUR])
        accumulator.add_response(1, 0, START, is_rated=True, metric_values=values)
        assert accumulator.response_sums[0].metric_sums[1].undefined == 1  # the second metric is undefined
        accumulator.add_response(-1, 0, START, is_rated=True, metric_values=values)
        for record in (accumulator.response_sums[0], *accumulator.bucket_sums[0].values()):
            assert not any(record.integers())


class TestIndices:
    """The indices of the fields."""

    @pytest.mark.parametrize(
        "layout",
        [
            RecordLayout(2, (30, 28)),
            RecordLayout(
                2,
                (30, 28),
                (False, True),
                student_metrics=(StudentMetric("responses"), StudentMetric("session_share", 1)),
                has_undefined=True,
                primary_index=1,
                segment_count=3,
                has_exposure_ages=True,
                has_pre_period=True,
            ),
        ],
        ids=["plain", "all parts"],
    )
    def test_blocks_of_a_cohort_record_are_adjacent_and_fill_the_record(self, layout: RecordLayout) -> None:
        """Each block begins at the end of the block before."""
        starts = [
            CohortField.METRICS,
            *(layout.cohort_metric_index(metric) + CohortMetricField.WIDTH for metric in range(layout.metric_count)),
            *(layout.student_metric_index(metric) + MeanField.WIDTH for metric in range(len(layout.student_metrics))),
            *([layout.undefined_index + UndefinedField.WIDTH] if layout.has_undefined else []),
            *(layout.subgroup_index(subgroup) + SubgroupField.WIDTH for subgroup in range(layout.subgroup_count)),
            *(layout.pair_index(population) + PairField.WIDTH for population in (0, 1) if layout.has_pre_period),
        ]
        expected_starts = [
            *(layout.cohort_metric_index(metric) for metric in range(layout.metric_count)),
            *(layout.student_metric_index(metric) for metric in range(len(layout.student_metrics))),
            *([layout.undefined_index] if layout.has_undefined else []),
            *(layout.subgroup_index(subgroup) for subgroup in range(layout.subgroup_count)),
            *(layout.pair_index(population) for population in (0, 1) if layout.has_pre_period),
            layout.cohort_width,
        ]
        assert starts == expected_starts

    def test_parts_of_a_sums_vector_are_adjacent_and_fill_the_vector(self) -> None:
        """The parts have an integer for each metric."""
        layout = RecordLayout(2, (30, 28))
        indices = [*range(layout.sums_width)]
        assert indices[layout.student_totals] == [2, 3]
        assert indices[layout.student_undefined] == [4, 5]
        assert len(indices) == 6
