"""Limbs, time buckets and decay at read time."""

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
from monitor.engine.accumulator import Accumulator
from monitor.metrics.decay import Groups, decayed, relevant_chunks, weights
from monitor.metrics.record_layout import (
    BUCKETS_PER_CHUNK,
    Layout,
    bucket_span_ms,
    join_limbs,
    limbs,
)
from tests.support.streams import EXPERIMENT, HOUR, START

DAY = 86_400_000
MINUTE = 60_000
HALF_DAY_VECTORS = DecaySpec("1d", DAY)
RECIPROCAL = DecaySpec("reciprocal-10d", None, 10 * DAY)


def _vectors(shared: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((shared / "vectors/decay_vectors.json").read_text())["vectors"]
    return found


class TestDecayVectors:
    """Worked examples of both decays."""

    def test_exponential(self, shared: Path) -> None:
        """Means and effective counts hold at any time of reading, also 400 days later."""
        for vector in _vectors(shared):
            days, values = np.array(vector["events"]).T
            expected = vector["exponential_half_per_day"]
            found = decayed(Groups.single(days * DAY, values), int(vector["as_of_day"] * DAY), HALF_DAY_VECTORS)
            assert found.mean == pytest.approx(expected["mean"], abs=1e-9), vector["id"]
            assert found.effective_count == pytest.approx(expected["ess"], abs=1e-9)
            ages = vector["as_of_day"] * DAY - days * DAY
            assert weights(ages, HALF_DAY_VECTORS).sum() == pytest.approx(expected["weight_sum"], rel=1e-9)

    def test_reciprocal(self, shared: Path) -> None:
        """1/(1 + days), 0 from day 10; nothing left is undefined."""
        for vector in _vectors(shared):
            days, values = np.array(vector["events"]).T
            expected = vector["hyperbolic_cut10"]
            found = decayed(Groups.single(days * DAY, values), int(vector["as_of_day"] * DAY), RECIPROCAL)
            assert found.weight == pytest.approx(expected["weight_sum"], abs=1e-9), vector["id"]
            mean = np.nan if expected["mean"] is None else expected["mean"]
            assert found.mean == pytest.approx(mean, abs=1e-9, nan_ok=True)


def _groups(tally: Accumulator, layout: Layout, span_ms: int) -> Groups:
    """Return the non-empty time buckets of a tally's only variant and decay."""
    buckets = tally.buckets[0]
    numbers = sorted(buckets)
    middles_ms = (np.array(numbers) + 0.5) * (span_ms / BUCKETS_PER_CHUNK)
    return Groups.of_buckets(np.array([buckets[number].integers() for number in numbers]), middles_ms, layout, span_ms)


class TestDecayed:
    """Edges of the reading."""

    def test_events_after_as_of_do_not_count(self) -> None:
        """The past does not know the future."""
        groups = Groups.single(np.array([0.0, DAY]), np.array([1.0, 5.0]))
        assert decayed(groups, DAY // 2, HALF_DAY_VECTORS).mean == 1.0

    def test_nothing_is_undefined(self) -> None:
        """No observation, no mean, no effective count."""
        empty = np.zeros(0)
        found = decayed(Groups.single(empty, empty), DAY, HALF_DAY_VECTORS)
        assert np.isnan([found.mean, found.effective_count, found.standard_error]).all()

    @given(st.lists(st.tuples(st.integers(0, 40 * HOUR), st.floats(0, 4)), min_size=1, max_size=60))
    def test_buckets_are_right_to_first_order(self, events: list[tuple[int, float]]) -> None:
        """A mean over buckets is within 0.01 % of the mean over events."""
        decay = EXPERIMENT.decay[0]
        assert decay.half_life_ms is not None
        layout = Layout(1, (30,))
        tally = Accumulator(layout, [decay.half_life_ms])
        times = np.array([START + at for at, _ in events])
        values = np.rint(np.array([value for _, value in events]) * 2**30).astype(np.int64)
        for at_ms, value in zip(times.tolist(), values.tolist(), strict=True):
            tally.add_response(1, 0, at_ms, rated=True, values=(value,))
        found = decayed(_groups(tally, layout, decay.half_life_ms), int(times.max()), decay)
        exact = decayed(Groups.single(times.astype(float), values / 2**30), int(times.max()), decay)
        assert found.mean == pytest.approx([float(exact.mean)] * 2, rel=1e-4, abs=1e-9)
        assert found.effective_count == pytest.approx([float(exact.effective_count)] * 2, rel=2e-4)

    @pytest.mark.parametrize("beyond_ms", [-2 * MINUTE, 2 * MINUTE])
    def test_reciprocal_weights_are_right_at_both_ends(self, beyond_ms: int) -> None:
        """Of the newest event, and of one that has just passed the cutoff or is about to."""
        layout, span_ms = Layout(1, (30,)), bucket_span_ms(RECIPROCAL)
        tally = Accumulator(layout, [span_ms])
        times = np.array([START, START + 10 * DAY + beyond_ms])
        for at_ms, value in zip(times.tolist(), (0, 2**30), strict=True):
            tally.add_response(1, 0, at_ms, rated=True, values=(value,))
        found = decayed(_groups(tally, layout, span_ms), int(times[1]), RECIPROCAL)
        exact = decayed(Groups.single(times.astype(float), np.array([0.0, 1.0])), int(times[1]), RECIPROCAL)
        assert found.mean == pytest.approx([float(exact.mean)] * 2, rel=1e-4)
        assert found.effective_count == pytest.approx([float(exact.effective_count)] * 2, rel=1e-4)


class TestBuckets:
    """Where an event goes."""

    def test_a_chunk_is_one_half_life(self) -> None:
        """64 buckets, counted from the epoch."""
        tally = Accumulator(Layout(1, (30,)), [HOUR])
        for at_ms in (0, HOUR - 1, HOUR):
            tally.add_response(1, 0, at_ms, rated=False, values=(0,))
        found = {number: record.integers()[:2] for number, record in tally.buckets[0].items()}
        assert found == {0: [1, 0], BUCKETS_PER_CHUNK - 1: [1, 1023], BUCKETS_PER_CHUNK: [1, 0]}

    def test_reach(self) -> None:
        """80 half-lives behind the newest, nothing after as_of, nothing before retention."""
        decay = EXPERIMENT.decay[0]
        stored = array("q", [0, 10, 100, 150, 200])
        assert list(relevant_chunks(stored, 160 * HOUR, decay, oldest=0)) == [100, 150]
        assert list(relevant_chunks(stored, 160 * HOUR, decay, oldest=120)) == [150]
        assert list(relevant_chunks(stored, 300 * HOUR, decay, oldest=0, anchor=100)) == [100, 150, 200]
        assert not relevant_chunks(array("q"), 160 * HOUR, decay, oldest=0)


class TestLimbs:
    """Two integers for one."""

    @given(st.lists(st.integers(0, 2**53), min_size=1, max_size=50))
    def test_sums_of_limbs_are_sums(self, terms: list[int]) -> None:
        """Splitting, adding and joining is adding."""
        low, high = limbs(np.array(terms, dtype=np.float64))
        total = join_limbs(low.sum(keepdims=True), high.sum(keepdims=True))[0]
        assert total == pytest.approx(float(sum(terms)), rel=1e-15)

    def test_differences_return_to_zero(self) -> None:
        """What is taken away is exactly what was added."""
        layout = Layout.of(EXPERIMENT)
        values = (3, -1, 2**30, 5, 2**31, 7)
        tally = Accumulator(layout, [HOUR])
        tally.add_response(1, 0, START, rated=True, values=values)
        assert tally.responses[0].metrics[1].undefined == 1  # the second metric is undefined
        tally.add_response(-1, 0, START, rated=True, values=values)
        for record in (tally.responses[0], *tally.buckets[0].values()):
            assert not any(record.integers())
