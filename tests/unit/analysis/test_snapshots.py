"""What is kept of a past hour, and for how long."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.analysis.snapshots import DAYS_KEPT, HOURS_KEPT, DecayedThen, Snapshot, snapshot, superfluous
from monitor.analysis.summary import DecayedMean, ExperimentSummary, MetricSummary, VariantSummary
from tests.support.units import judge
from tests.unit.analysis.test_verdicts import BETTER, SENSITIVE, after, stored


def _variant(mean: float, design_effect: float | None = 4.0) -> VariantSummary:
    metric = MetricSummary(
        count=400,
        undefined=0,
        sum=800.0,
        mean=2.0,
        mean_over_all=0.8,
        variance=1.9,
        decayed={"24h": DecayedMean(mean, 212.4, 0.85, 530.9, 0.1)},
        design_effect=design_effect,
    )
    return VariantSummary(1000, 400, 400, 0, {}, {}, 7, 9, {"dcg@5": metric})


def _summary(**variants: VariantSummary) -> ExperimentSummary:
    judgement = judge(SENSITIVE, stored(SENSITIVE, BETTER), after(14))
    return ExperimentSummary("ranker", "control", "dcg@5", 3, variants, judgement)


SUMMARY = _summary(control=_variant(2.0), treatment=_variant(2.5))


class TestSnapshot:
    """What is taken down."""

    def test_holds_what_was_said_and_shown(self) -> None:
        """The verdict, both intervals, the counts, and decayed means with a standard error over students."""
        found = snapshot(SUMMARY)
        assert found is not None
        judgement = SUMMARY.judgement
        assert judgement is not None
        both = judgement.comparisons["treatment"]["dcg@5"]
        treatment = found.treatments["treatment"]
        assert treatment.state == "ship"
        assert treatment.closed == (both["closed"].difference.effect, both["closed"].lower, both["closed"].upper)
        assert treatment.live == (both["live"].difference.effect, both["live"].lower, both["live"].upper)
        assert (found.crossovers, found.variants["control"].responses, found.variants["control"].rated_responses) == (
            3,
            1000,
            400,
        )
        assert found.variants["treatment"].decayed["24h"] == DecayedThen(2.5, 0.2, 212.4)

    def test_of_an_unknown_design_effect_there_is_no_standard_error(self) -> None:
        """Responses would pass for independent."""
        found = snapshot(_summary(control=_variant(2.0, None), treatment=_variant(2.5)))
        assert found is not None
        assert found.variants["control"].decayed["24h"].standard_error is None

    def test_of_nothing_there_is_none(self) -> None:
        """Before the first event, and without a judgement."""
        silent = replace(_variant(2.0), last_event_at_ms=None)
        assert snapshot(_summary(control=silent, treatment=silent)) is None
        assert snapshot(replace(SUMMARY, judgement=None)) is None

    def test_is_read_as_it_was_written(self) -> None:
        """Through MessagePack; something else is refused."""
        found = snapshot(SUMMARY)
        packed = msgspec.msgpack.encode(found)
        assert msgspec.msgpack.decode(packed, type=Snapshot) == found
        assert len(packed) < 500
        with pytest.raises(msgspec.ValidationError):
            msgspec.msgpack.decode(msgspec.msgpack.encode(["dcg@5", "many"]), type=Snapshot)


class TestHowManyAreKept:
    """Hours lately, days before."""

    @given(hours=st.sets(st.integers(0, 60_000), max_size=300), run=st.integers(0, 2_500))
    def test_never_more_than_so_many(self, hours: set[int], run: int) -> None:
        """Newest ones whole, and of every earlier day the first; whatever was dropped before."""
        held = hours | set(range(60_000, 60_000 + run))
        gone = set(superfluous(held))
        kept = sorted(held - gone)
        assert len(kept) <= HOURS_KEPT + DAYS_KEPT
        assert kept[-HOURS_KEPT:] == sorted(held)[-HOURS_KEPT:]
        earlier = kept[:-HOURS_KEPT]
        assert len({hour // 24 for hour in earlier}) == len(earlier)
        assert superfluous(kept) == []

    def test_hour_by_hour_it_is_the_same_as_at_once(self) -> None:
        """Each day keeps its first hour, also where it was thinned while it was still growing."""
        held: set[int] = set()
        for hour in range(3_000):
            held.add(hour)
            held -= set(superfluous(held))
        assert held == set(range(3_000)) - set(superfluous(range(3_000)))
        assert len(held) == HOURS_KEPT + 2_000 // 24 + 1

    def test_years_of_days_end_as_well(self) -> None:
        """The oldest go."""
        held = [24 * day for day in range(3_000)]
        assert sorted(set(held) - set(superfluous(held))) == held[-2_000:]
