"""From stored sums to verdicts: which students count, under which shares, and whether what is printed is enough."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.analysis.plan import stretches
from monitor.analysis.verdicts import Judgement
from monitor.config import AllocationSettings, DecisionSettings, ExperimentSettings, GuardrailSettings
from monitor.metrics import SCALE
from monitor.metrics.record_layout import Ints, Layout
from monitor.stats import Comparison, Skipped, StoredStudents, compare, decide, sample_ratio_test
from monitor.stats.decision import evidence_from
from monitor.stats.estimates import Estimate
from monitor.stats.evidence import Arms
from monitor.stats.guardrails import Guardrail, watch
from tests.support.streams import EXPERIMENT
from tests.support.units import cohort_terms, judge, unit_terms

DAY = 86_400_000
FIRST = 20_454
"""A UTC day."""
METRICS = len(EXPERIMENT.metrics)
SHARES = {"control": 0.5, "treatment": 0.5}


class Seen(NamedTuple):
    """A student: where and when first exposed, with N responses, n rated ones and the same value of every metric."""

    variant: str
    day: int
    value: float
    responses: int = 2
    rated: int = 1
    alike: int = 1
    """So many students are all like this."""
    category: int = -1
    """Place of the first response's category, -1 for none."""


def stored(experiment: ExperimentSettings, seen: Sequence[Seen], **more: Any) -> StoredStudents:
    """Return what the store would hold of the students."""
    layout = Layout.of(experiment)
    units = {name: np.zeros(layout.unit_width, dtype=np.int64) for name in experiment.variants}
    cohorts: dict[str, dict[int, Ints]] = {name: {} for name in experiment.variants}
    for each in seen:
        total = round(each.value * SCALE) * each.rated
        sums = np.array([[each.responses, each.rated, *[total] * METRICS, *[0] * METRICS]])
        units[each.variant] += unit_terms(layout, sums)[0] * each.alike
        units[each.variant][0] += each.alike
        cohort = cohorts[each.variant].setdefault(each.day, np.zeros(layout.cohort_width, dtype=np.int64))
        cohort += cohort_terms(layout, sums, each.category)[0] * each.alike
        cohort[0] += each.alike
    newest_ms = max((each.day * DAY + DAY // 2 for each in seen), default=None)
    return StoredStudents(**{"units": units, "cohorts": cohorts, "newest_ms": newest_ms, **more})


def crowd(variant: str, mean: float, count: int = 400, days: int = 10, seed: int = 1, first: int = FIRST) -> list[Seen]:
    """Return students spread evenly over the days, with values around a mean; every other one has rated everything."""
    values = np.clip(np.random.default_rng(seed).normal(mean, 0.5, count), 0, 4)
    return [
        Seen(variant, first + at % days, round(float(value), 3), rated=1 + at // days % 2)
        for at, value in enumerate(values)
    ]


def after(days: float) -> int:
    """Return the time so many days after the first midnight."""
    return int((FIRST + days) * DAY)


def decided(**settings: Any) -> ExperimentSettings:
    """Return the experiment with other decision settings, and without segments."""
    return replace(EXPERIMENT, categories=(), decision=DecisionSettings(**settings))


BETTER = [*crowd("control", 1.5, seed=1), *crowd("treatment", 2.0, seed=2)]
SENSITIVE = decided(mde=0.3, guardrails=(GuardrailSettings("rated_share", "down", 0.05),))
PARTED = replace(SENSITIVE, categories=("geometry", "fractions"), novelty=True)
"""Effects by category, in the order fractions, geometry, other; and by days since first exposure."""
UNLIKE = [
    *(each._replace(category=0) for each in crowd("control", 1.5, 300, seed=1)),
    *(each._replace(category=0) for each in crowd("treatment", 2.3, 300, seed=2)),
    *(each._replace(category=1) for each in crowd("control", 1.5, 300, seed=3)),
    *(each._replace(category=1) for each in crowd("treatment", 1.5, 300, seed=4)),
]
"""An effect in fractions and none in geometry."""


class TestClosedStudents:
    """Who decides: students whose own window is over."""

    def test_means_are_those_over_students_whose_window_is_over(self) -> None:
        """Three days from the first, and a day for feedback; those of later days are not in yet."""
        judgement = judge(EXPERIMENT, stored(EXPERIMENT, BETTER), after(8))
        inside = [each for each in BETTER if each.day + 3 <= FIRST + 7]
        for variant, estimate in zip(("control", "treatment"), _arms(judgement, "dcg@5"), strict=True):
            values = [each.value for each in inside if each.variant == variant]
            assert estimate.units == len(values)
            assert estimate.mean == pytest.approx(np.mean(values), abs=1e-8)
            assert estimate.variance == pytest.approx(np.var(values, ddof=1) / len(values), rel=1e-6)

    def test_the_moment_at_which_a_window_is_over_counts(self) -> None:
        """A millisecond before it does not."""
        held = stored(EXPERIMENT, BETTER)
        assert _arms(judge(EXPERIMENT, held, after(4) - 1), "dcg@5")[0].units == 0
        assert _arms(judge(EXPERIMENT, held, after(4)), "dcg@5")[0].units == 40

    def test_the_population_of_all_responses_counts_unrated_ones_as_nothing(self) -> None:
        """Of a student with one rated response of two, half."""
        experiment = decided(population="all")
        found = _arms(judge(experiment, stored(experiment, BETTER), after(20)), "dcg@5")[0]
        values = [each.value * each.rated / each.responses for each in BETTER if each.variant == "control"]
        assert found.mean == pytest.approx(np.mean(values), abs=1e-8)

    def test_the_live_estimand_counts_everybody_and_never_decides(self) -> None:
        """Also those whose window is still open; labelled as approximate."""
        live = judge(EXPERIMENT, stored(EXPERIMENT, BETTER), after(5)).comparisons["treatment"]["dcg@5"]["live"]
        assert (live.control.units, live.treatment.units) == (400, 400)
        assert not live.decides


class TestStates:
    """The states, from sums."""

    @pytest.mark.parametrize(
        ("means", "days", "state"),
        [
            ((1.5, 2.0), 14.0, "ship"),
            ((2.0, 1.5), 14.0, "stop_harm"),
            ((2.0, 2.0), 14.0, "futile"),
            ((1.5, 2.0), 6.0, "insufficient_data"),
        ],
    )
    def test_of_a_known_effect(self, means: tuple[float, float], days: float, state: str) -> None:
        """Better, worse, the same, too early."""
        seen = [*crowd("control", means[0], 800, seed=1), *crowd("treatment", means[1], 800, seed=2)]
        assert judge(SENSITIVE, stored(SENSITIVE, seen), after(days)).verdicts["treatment"].state == state

    def test_where_nothing_varies_neither_estimand_has_an_interval(self) -> None:
        """Sums in fixed point are rounded: what is left of them is no variance."""
        seen = [
            Seen(name, FIRST, value, responses=rated, rated=rated, alike=40)
            for name, value in (("control", 0.8691), ("treatment", 0.7382))
            for rated in (2, 5, 9)
        ]
        judgement = judge(SENSITIVE, stored(SENSITIVE, seen), after(14))
        verdict = judgement.verdicts["treatment"]
        assert (verdict.state, verdict.days_to_resolve) == ("insufficient_data", None)
        for both in judgement.comparisons["treatment"].values():
            assert [each.lower for each in both.values()] == [None, None]

    def test_a_split_that_is_not_the_intended_one_is_invalid(self) -> None:
        """Whatever the effect."""
        seen = [*crowd("control", 1.5, 1000), *crowd("treatment", 2.0, 600)]
        verdict = judge(SENSITIVE, stored(SENSITIVE, seen), after(14)).verdicts["treatment"]
        assert (verdict.state, verdict.reasons[0].code) == ("invalid", "sample_ratio")

    def test_lost_events_are_invalid(self) -> None:
        """Nobody knows what they would have said."""
        verdict = judge(SENSITIVE, stored(SENSITIVE, BETTER, lost_events=3), after(14)).verdicts["treatment"]
        assert (verdict.state, verdict.reasons[0].code) == ("invalid", "lost_events")

    def test_skipped_events_are_noted(self) -> None:
        """They are missing whatever the variant: the sample ratio shows it where they are not."""
        skipped = Skipped(responses=5, reactions=0, unnamed=0, first_ms=FIRST * DAY, last_ms=after(14))
        verdict = judge(SENSITIVE, stored(SENSITIVE, BETTER, skipped=skipped), after(14)).verdicts["treatment"]
        assert verdict.state == judge(SENSITIVE, stored(SENSITIVE, BETTER), after(14)).verdicts["treatment"].state
        (note,) = [each.text for each in verdict.notes if each.code == "skipped_events"]
        assert note.startswith("5 responses were skipped, dated 20")
        assert note.endswith("did not have the experiment; `ab-monitor rebuild` counts them")
        assert decide(evidence_from(json.loads(json.dumps(verdict.to_json()))["evidence"])).notes == verdict.notes

    def test_crossovers_are_counted_of_all_students(self) -> None:
        """Nine of 809 are more than one per cent."""
        held = stored(SENSITIVE, [*BETTER, *[Seen("control", FIRST, 1.0)] * 9])
        held.units["control"][1] = 9
        verdict = judge(SENSITIVE, held, after(14)).verdicts["treatment"]
        assert (verdict.evidence.crossovers, verdict.evidence.students) == (9, 809)
        assert verdict.reasons[0].code == "crossovers"

    def test_of_an_empty_store_nothing_is_said(self) -> None:
        """Absent is null, and not 0."""
        found = json.loads(json.dumps(judge(EXPERIMENT, stored(EXPERIMENT, []), 0).to_json(), allow_nan=False))
        assert found["verdict"]["treatment"]["state"] == "insufficient_data"
        assert found["verdict"]["treatment"]["days_to_resolve"] is None
        assert found["comparisons"]["treatment"]["dcg@5"]["closed"]["lower"] is None

    def test_an_experiment_without_a_treatment_has_no_verdict(self) -> None:
        """A treatment that has no share yet; its traffic is strange already."""
        alone = replace(EXPERIMENT, variants={"control": 1.0, "treatment": 0.0})
        judgement = judge(alone, stored(alone, BETTER), after(14))
        assert judgement.verdicts == {}
        assert judgement.sample_ratio.stray == ("treatment",)


class TestAge:
    """Days that an experiment has run."""

    def test_from_the_first_students_day_or_the_start_to_the_newest_event(self) -> None:
        """A time of reading after the newest event makes nothing older."""
        held = stored(EXPERIMENT, BETTER)
        assert held.newest_ms == after(9.5)
        ages = [judge(each, held, at).verdicts["treatment"].evidence.age_days for each, at in (
            (EXPERIMENT, after(5)),
            (EXPERIMENT, after(50)),
            (replace(EXPERIMENT, starts_at_ms=after(0.5)), after(50)),
        )]  # fmt: skip
        assert ages == [5.0, 9.5, 9.0]

    def test_a_day_whose_students_were_first_seen_earlier_after_all_is_none(self) -> None:
        """Its sums are 0 again, but it stays in the store."""
        held = stored(EXPERIMENT, BETTER)
        empty = np.zeros(Layout.of(EXPERIMENT).cohort_width, dtype=np.int64)
        held = replace(held, cohorts={**held.cohorts, "control": {FIRST - 20: empty, **held.cohorts["control"]}})
        assert judge(EXPERIMENT, held, after(5)).verdicts["treatment"].evidence.age_days == 5

    def test_students_per_day_are_those_of_the_last_closed_week(self) -> None:
        """Days without students are days, too."""
        seen = [*crowd("control", 1.5, 100, days=1), *crowd("treatment", 2.0, 70, days=7, first=FIRST + 1)]
        verdict = judge(EXPERIMENT, stored(EXPERIMENT, seen), after(11)).verdicts["treatment"]
        assert verdict.evidence.students_per_day == (0.0, 10.0)


class TestAllocations:
    """Shares that change."""

    def test_a_change_at_midnight_begins_a_phase(self) -> None:
        """Each phase has its own counts, and the deviation of neither is that of their sum."""
        experiment = _ramp(after(5))
        seen = [
            *crowd("control", 1.5, 900, days=5, seed=1),
            *crowd("treatment", 2.0, 100, days=5, seed=2),
            *crowd("control", 1.5, 500, days=5, seed=3, first=FIRST + 5),
            *crowd("treatment", 2.0, 500, days=5, seed=4, first=FIRST + 5),
        ]
        judgement = judge(experiment, stored(experiment, seen), after(20))
        phases = judgement.verdicts["treatment"].evidence.phases
        assert [dict(phase.students) for phase in phases] == [
            {"control": 900, "treatment": 100},
            {"control": 500, "treatment": 500},
        ]
        assert not judgement.sample_ratio.alarm
        assert judgement.days_left_out == ()

    def test_the_day_within_which_shares_change_is_left_out(self) -> None:
        """Nobody knows who came before and who after; it is named."""
        experiment = _ramp(after(5) + 1)
        seen = [*BETTER, *[Seen("control", FIRST + 5, 4.0)] * 50]
        judgement = judge(experiment, stored(experiment, seen), after(20))
        evidence = judgement.verdicts["treatment"].evidence
        assert [sum(phase.students.values()) for phase in evidence.phases] == [400, 320]
        assert evidence.arms.control.units == 360
        day = datetime.fromtimestamp(after(5) / 1000, UTC).date().isoformat()
        assert judgement.to_json()["sample_ratio"]["days_left_out"] == [day]

    def test_json_says_what_share_each_variant_has(self) -> None:
        """Of each phase: how many students, which share of them, and between which bounds the true one is."""
        judgement = judge(SENSITIVE, stored(SENSITIVE, BETTER), after(14))
        told = judgement.to_json()["sample_ratio"]
        ratio, (phase,) = judgement.sample_ratio, told["phases"]
        assert (told["alpha"], told["log_e"], told["alarm"]) == (ratio.alpha, ratio.log_e, ratio.alarm)
        assert told.keys() > {"p", "mismatch", "empty", "stray", "days_left_out"}
        assert sum(arm["students"] for arm in phase["arms"]) == phase["students"]
        for arm in phase["arms"]:
            assert arm.keys() == {"variant", "students", "intended", "observed", "lower", "upper"}
            assert arm["observed"] == arm["students"] / phase["students"]
            assert arm["lower"] < arm["observed"] < arm["upper"]

    def test_two_changes_within_a_day_leave_no_phase_between_them(self) -> None:
        """There is no whole day of the first one's shares."""
        changes = tuple(AllocationSettings(after(5) + hour, SHARES) for hour in (1, 2))
        first, last = stretches(decided(allocations=changes))
        assert (first.first, first.end, last.first, last.end) == (None, FIRST + 5, FIRST + 6, None)

    def test_a_ramp_up_does_not_turn_an_effect_round(self) -> None:
        """Bad days with few treated students, good days with many: pooled, the treatment would seem much better."""
        experiment = _ramp(after(5))
        seen = [
            *crowd("control", 1.0, 900, days=5, seed=1),
            *crowd("treatment", 0.8, 100, days=5, seed=2),
            *crowd("control", 3.0, 500, days=5, seed=3, first=FIRST + 5),
            *crowd("treatment", 2.8, 500, days=5, seed=4, first=FIRST + 5),
        ]
        held = stored(experiment, seen)
        pooled = judge(EXPERIMENT, held, after(20)).comparisons["treatment"]["dcg@5"]["closed"]
        apart = judge(experiment, held, after(20)).comparisons["treatment"]["dcg@5"]["closed"]
        assert (pooled.difference.effect or 0) > 0.5
        assert apart.difference.effect == pytest.approx(-0.2, abs=0.06)

    def test_students_of_later_days_are_not_counted_yet(self) -> None:
        """As of an earlier time the phases are those of then; that day itself counts."""
        judgement = judge(EXPERIMENT, stored(EXPERIMENT, BETTER), after(5))
        assert judgement.verdicts["treatment"].evidence.phases[0].students == {"control": 240, "treatment": 240}


class TestCriteria:
    """What is compared with what."""

    def test_each_treatment_has_its_part_of_alpha(self) -> None:
        """Two treatments: half of it each; a variant that never has a share has none."""
        shares = {"control": 0.4, "treatment": 0.3, "other": 0.3, "idle": 0.0}
        experiment = replace(EXPERIMENT, variants=shares)
        judgement = judge(experiment, stored(experiment, BETTER), after(14))
        assert set(judgement.verdicts) == {"treatment", "other"}
        assert judgement.comparisons["treatment"]["rr@5"]["live"].alpha == 0.025

    def test_without_an_mde_it_is_a_hundredth_of_the_largest_value(self) -> None:
        """And that of another metric is the same part of its own largest value."""
        evidence = judge(EXPERIMENT, stored(EXPERIMENT, BETTER), after(14)).verdicts["treatment"].evidence
        ideal = 4 * sum(1 / np.log2(rank + 1) for rank in range(1, 6))
        assert evidence.criteria.mde == pytest.approx(ideal / 100)
        assert {each.name: each.mde for each in evidence.diagnostics}["rr@5"] == pytest.approx(0.01)

    def test_guardrails_watch_metrics_and_the_rated_share(self) -> None:
        """In the unit of each, with what a student can have at most."""
        rails = (GuardrailSettings("rr@5", "down", 0.1), GuardrailSettings("rated_share", "up", 0.2))
        experiment = decided(guardrails=rails)
        verdict = judge(experiment, stored(experiment, BETTER), after(14)).verdicts["treatment"]
        assert [(each.guardrail.name, each.guardrail.largest) for each in verdict.guardrails] == [
            ("rr@5", 1.0),
            ("rated_share", 1.0),
        ]
        assert verdict.guardrails[1].control.mean == 0.75
        assert verdict.evidence.criteria.rated_share_margin == 0.2


@st.composite
def _crowds(draw: st.DrawFn) -> list[Seen]:
    """Draw a few groups of equal students, from none to a million times as many in one variant as in another."""
    groups = draw(
        st.lists(
            st.tuples(
                st.sampled_from(("control", "treatment", "other")),
                st.integers(FIRST - 3, FIRST + 12),
                st.sampled_from((0.0, 1e-9, 0.5, 1.0, 11.0)),
                st.sampled_from(((1, 0), (1, 1), (7, 3), (1_000_000, 1))),
                st.sampled_from((1, 2, 49, 50, 60, 5_000_000)),
            ),
            max_size=8,
        )
    )
    return [Seen(variant, day, value, *responses, count) for variant, day, value, responses, count in groups]


class TestRobust:
    """Whatever was stored, a page and a scrape must be able to read it."""

    @settings(max_examples=200)
    @given(_crowds(), st.sampled_from((0.0, 3.9, 4.0, 9.5, 40.0)), st.sampled_from((0, 1, 2)))
    def test_nothing_makes_it_fail(self, seen: list[Seen], days: float, changed: int) -> None:
        """Every number in the JSON is one, and the verdict follows from what is printed."""
        shares = {"control": 0.6, "treatment": 0.399999, "other": 0.000001}
        changes = (AllocationSettings(after(2), SHARES), AllocationSettings(after(5.5), shares))
        decision = DecisionSettings(allocations=changes[:changed], min_days=0)
        experiment = replace(EXPERIMENT, variants=shares, decision=decision)
        text = json.dumps(judge(experiment, stored(experiment, seen), after(days)).to_json(), allow_nan=False)
        for said in json.loads(text)["verdict"].values():
            assert decide(evidence_from(said["evidence"])).state == said["state"]


class TestReproducible:
    """Every verdict can be computed again from the numbers printed with it."""

    @pytest.mark.parametrize("days", [0.0, 6.0, 9.0, 14.0])
    @pytest.mark.parametrize("means", [(1.5, 2.0), (2.0, 1.5), (2.0, 2.0)])
    def test_from_the_json_alone(self, means: tuple[float, float], days: float) -> None:
        """State, reasons, bounds, guardrails, sample ratio and days, through text and back."""
        seen = [*crowd("control", means[0], seed=1), *crowd("treatment", means[1], seed=2)]
        found = json.loads(json.dumps(judge(SENSITIVE, stored(SENSITIVE, seen), after(days)).to_json()))
        printed = found["verdict"]["treatment"]
        again = json.loads(json.dumps(decide(evidence_from(printed["evidence"])).to_json()))
        for key in ("state", "reasons", "notes", "days_to_resolve"):
            assert again[key] == printed[key]
        assert again["guardrails"] == found["guardrails"]["treatment"]
        for name, each in [("dcg@5", again["primary"]), *again["diagnostics"]]:
            assert each.items() <= found["comparisons"]["treatment"][name]["closed"].items()
        assert again["sample_ratio"].items() <= found["sample_ratio"].items()
        assert again["other_population"].items() <= printed["other_population"].items()

    def test_the_live_comparison_too(self) -> None:
        """From its own estimates, level and the mde in the evidence."""
        found = json.loads(json.dumps(judge(SENSITIVE, stored(SENSITIVE, BETTER), after(14)).to_json()))
        live = found["comparisons"]["treatment"]["dcg@5"]["live"]
        arms = evidence_from(found["verdict"]["treatment"]["evidence"])
        assert live["approximate"]
        again = compare(**_estimates(live), alpha=live["alpha"], mde=arms.criteria.mde, estimand="live")
        assert (again.lower, again.upper, again.p) == (live["lower"], live["upper"], live["p"])

    def test_the_sample_ratio_of_an_experiment_is_that_of_each_verdict(self) -> None:
        """It stands once beside them."""
        judgement = judge(SENSITIVE, stored(SENSITIVE, BETTER), after(14))
        evidence = judgement.verdicts["treatment"].evidence
        assert judgement.sample_ratio == sample_ratio_test(evidence.phases, alpha=evidence.criteria.sample_ratio_alpha)


def _ramp(at_ms: int) -> ExperimentSettings:
    """Return the experiment with 90 : 10 before a time and 50 : 50 from then on."""
    return replace(
        EXPERIMENT,
        variants={"control": 0.9, "treatment": 0.1},
        decision=DecisionSettings(allocations=(AllocationSettings(at_ms, SHARES),)),
    )


def _arms(judgement: Judgement, metric: str) -> tuple[Any, Any]:
    each: Comparison = judgement.comparisons["treatment"][metric]["closed"]
    return each.control, each.treatment


def _estimates(comparison: Mapping[str, Any]) -> dict[str, Any]:
    arms: Arms = msgspec.convert({key: comparison[key] for key in ("control", "treatment")}, Arms)
    return {"control": arms.control, "treatment": arms.treatment}


class TestParts:
    """Where the effect differs; for looking."""

    def test_the_segment_with_the_effect_is_found_and_the_other_is_not(self) -> None:
        """Intervals exclude 0 where a segment is discovered, and only there; empty segments say nothing."""
        found = {
            each.name: each for each in judge(PARTED, stored(PARTED, UNLIKE), after(14)).parts["treatment"].segments
        }
        assert list(found) == ["none", "fractions", "geometry", "other"]
        assert [name for name, each in found.items() if each.discovered] == ["fractions"]
        lower, upper = found["geometry"].comparison.lower, found["geometry"].comparison.upper
        assert lower is not None
        assert upper is not None
        assert lower < 0 < upper
        assert (found["fractions"].comparison.lower or 0) > 0
        assert found["other"].comparison.control.units == 0

    def test_an_age_counts_once_it_is_over(self) -> None:
        """Of the first day, students of days whose next midnight is a feedback window ago."""
        held = stored(PARTED, UNLIKE)
        ages = judge(PARTED, held, after(2)).parts["treatment"].ages
        assert [each.comparison.control.units for each in ages] == [60, 0, 0, 0, 0]
        ages = judge(PARTED, held, after(2) - 1).parts["treatment"].ages
        assert [each.comparison.control.units for each in ages] == [0, 0, 0, 0, 0]

    def test_the_verdict_does_not_depend_on_them(self) -> None:
        """The same students, with and without."""
        with_parts = judge(PARTED, stored(PARTED, UNLIKE), after(14)).verdicts["treatment"]
        assert with_parts == judge(SENSITIVE, stored(SENSITIVE, UNLIKE), after(14)).verdicts["treatment"]

    def test_json_has_them_and_nothing_where_they_are_not_kept(self) -> None:
        """By treatment, with everything that a comparison says."""
        printed = json.loads(json.dumps(judge(PARTED, stored(PARTED, UNLIKE), after(14)).to_json()))
        fractions = printed["segments"]["treatment"][1]
        assert (fractions["segment"], fractions["discovered"]) == ("fractions", True)
        assert fractions["control"]["units"] == 300
        assert [each["approximate"] for each in printed["novelty"]["treatment"]] == [False] * 4 + [True]
        bare = replace(SENSITIVE, categories=())
        plain = judge(bare, stored(bare, UNLIKE), after(14)).to_json()
        assert (plain["segments"], plain["novelty"]) == ({"treatment": []}, {"treatment": []})


@pytest.mark.parametrize(("seen", "state"), [(0.0, "unknown"), (0.02, "held")])
def test_what_nobody_ever_did_is_not_known_to_be_harmless(seen: float, state: str) -> None:
    """A kind that is misspelled in the configuration must not let anything ship."""
    rail = Guardrail("feedback:escalatd", "up", 0.05, 1.0)
    control = Estimate(2000, seen, seen * 1e-6)
    assert watch(rail, control, Estimate(2000, 0.0, 0.0), alpha=0.05).state == state
