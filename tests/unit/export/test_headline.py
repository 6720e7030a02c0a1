"""The headline: one judged effect, and what is known, what blocks, and what comes next."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import pytest
from msgspec import structs

from monitor.analysis import ExperimentSummary, StoreSummary
from monitor.config import ExperimentSettings, GuardrailSettings, MetricSpec
from monitor.export import ExperimentsCollector, Headline, describe_headlines, headlines_json
from monitor.stats import Verdict, days_until_decided
from monitor.stats.estimates import Estimate
from monitor.stats.experiment_history import BackfillProgress, ExperimentHistory
from monitor.stats.guardrails import Guardrail, GuardrailResult, evaluate_guardrail
from tests.support.student_groups import (
    SENSITIVE_EXPERIMENT,
    STUDENTS_WITH_EFFECT,
    StudentGroup,
    make_students,
    sum_students,
    time_after_days,
    with_decision_settings,
)
from tests.support.units import analyze

ESCALATED = Guardrail("share:escalated", "up", 0.01, 1.0)
EQUAL_STUDENTS = [*make_students("control", 1.5, seed=1), *make_students("treatment", 1.52, seed=2)]


def _experiment(
    settings: ExperimentSettings = SENSITIVE_EXPERIMENT,
    students: Sequence[StudentGroup] = STUDENTS_WITH_EFFECT,
    days: float = 14.0,
) -> ExperimentSummary:
    analysis = analyze(settings, sum_students(settings, students), time_after_days(days))
    return ExperimentSummary("ranker", "control", "dcg@5", 0, {}, analysis, (MetricSpec("dcg@5", "dcg", 5),))


def _headline(experiment: ExperimentSummary, min_students: int = 1) -> Headline:
    (headline,) = describe_headlines(experiment, min_students)
    return headline


def _verdict(experiment: ExperimentSummary) -> Verdict:
    assert experiment.analysis is not None
    return experiment.analysis.verdicts["treatment"]


def _with_verdict(experiment: ExperimentSummary, **changes: object) -> ExperimentSummary:
    assert experiment.analysis is not None
    verdict = replace(_verdict(experiment), **changes)  # type: ignore[arg-type]
    return replace(experiment, analysis=replace(experiment.analysis, verdicts={"treatment": verdict}))


def _share(share: float, units: int) -> Estimate:
    return Estimate(units, share, share * (1 - share) / units)


def _escalations(treatment: float, units: int, control: float = 0.011) -> GuardrailResult:
    return evaluate_guardrail(ESCALATED, _share(control, units), _share(treatment, units), alpha=0.05)


class TestEffect:
    """The first number everywhere."""

    def test_the_effect_is_the_relative_one_of_the_verdict(self) -> None:
        """The text, the bounds and the JSON come from the same numbers."""
        experiment = _experiment()
        headline, verdict = _headline(experiment), _verdict(experiment)
        bounds = (verdict.primary.difference.relative_effect, *verdict.relative_bounds)
        assert headline.bounds == bounds
        percent = [f"{100 * (bound or 0.0):+.1f} %" for bound in bounds]
        assert headline.effect == f"{percent[0]} ({percent[1]} to {percent[2]})"
        content = headlines_json(experiment)["treatment"]
        assert (content["effect"], content["lower"], content["upper"]) == bounds
        assert content["effect_text"] == headline.effect
        assert headline.effect in headline.finding

    def test_prometheus_has_the_same_effect(self) -> None:
        """As a fraction, with its bounds."""
        experiment = _experiment()
        families = {
            family.name: family
            for family in ExperimentsCollector(lambda: StoreSummary(0, {"r": experiment}), 1).collect()
        }
        exported = tuple(
            families[f"abmonitor_relative_effect{suffix}"].samples[0].value for suffix in ("", "_lower", "_upper")
        )
        assert exported == _headline(experiment).bounds

    def test_few_students_have_no_effect(self) -> None:
        """Neither below the minimum for display, nor without an interval."""
        experiment = _experiment()
        for headline, reason in (
            (_headline(experiment, 10**6), "hidden, because a variant has few students"),
            (_headline(_experiment(days=0.5)), "not known yet"),
        ):
            assert (headline.effect, headline.bounds) == (None, (None, None, None))
            assert headline.finding == f"The effect of treatment on dcg@5 is {reason}."

    def test_a_hidden_effect_is_in_no_line(self) -> None:
        """Reasons with numbers and the time until they are decided are left out, too."""
        settings = with_decision_settings(mde=0.05, guardrails=())
        headline = _headline(_experiment(settings, EQUAL_STUDENTS), 10**6)
        assert headline.obstacle == "The evidence does not suffice for another state yet."
        assert headline.next_step == "Keep the experiment running."

    def test_a_relative_change_of_a_share_is_named_so(self) -> None:
        """It could be taken for percentage points."""
        experiment = _experiment()
        evidence = structs.replace(_verdict(experiment).evidence, metric="share:liked")
        assert (_headline(_with_verdict(experiment, evidence=evidence)).effect or "").startswith("relative +36.2 % (")

    def test_a_bound_other_than_0_is_not_displayed_as_0(self) -> None:
        """The finding and the numbers would contradict each other."""
        headline = _headline(_with_verdict(_experiment(), relative_bounds=(0.0002, 0.7)))
        assert headline.effect == "+36.17 % (+0.02 % to +70.00 %)"

    def test_an_invalid_comparison_has_no_effect(self) -> None:
        """A reader would take it for a result."""
        headline = _headline(_with_verdict(_experiment(), state="invalid"))
        assert (headline.effect, headline.tone) == (None, "bad")
        assert headline.finding == "The variants cannot be compared, so no effect is known."

    def test_an_effect_without_relative_bounds_is_in_the_unit_of_the_metric(self) -> None:
        """A control whose mean may be 0 has no relative bounds."""
        headline = _headline(_with_verdict(_experiment(), relative_bounds=(None, None)))
        assert re.fullmatch(r"\+0\.\d+ \(\+0\.\d+ to \+0\.\d+\)", headline.effect or "")


class TestLines:
    """Known, blocking, next."""

    def test_a_treatment_to_ship_is_blocked_by_nothing(self) -> None:
        """The next step is the roll-out."""
        headline = _headline(_experiment())
        assert (headline.title, headline.tone, headline.obstacle) == ("Ship", "good", None)
        assert headline.finding.startswith("dcg@5 is better with treatment: +")
        assert headline.next_step == "Roll out treatment: nothing more has to be waited for."

    def test_an_undecided_experiment_has_the_days_until_its_smallest_effect_would_show(self) -> None:
        """With the date, which a reader can put into a calendar."""
        settings = with_decision_settings(mde=0.05, guardrails=())
        headline = _headline(_experiment(settings, EQUAL_STUDENTS))
        assert headline.title == "Keep running"
        assert headline.finding.startswith("dcg@5 may be better or worse with treatment: ")
        assert (headline.obstacle or "").startswith("The effect on dcg@5 may be anywhere from")
        assert re.search(
            r"An effect of 0\.05 on dcg@5 would show in about \d+ days, on \d+ (January|February)", headline.next_step
        )

    def test_the_time_is_that_of_the_open_guardrail_if_the_effect_is_proven(self) -> None:
        """No sentence is about the smallest effect of interest, which is not what blocks."""
        guardrails = (GuardrailSettings("rated_share", "down", 0.02),)
        headline = _headline(_experiment(with_decision_settings(mde=0.3, guardrails=guardrails)))
        assert headline.title == "Keep running"
        assert headline.finding.startswith("dcg@5 is better with treatment: +")
        assert (headline.obstacle or "").startswith("Share of rated responses")
        assert "smallest effect" not in headline.next_step
        start = "Guardrail on share of rated responses: if the difference stays as observed, it is decided in about"
        assert start in headline.next_step

    def test_the_first_decision_has_a_date(self) -> None:
        """Too young: the days that `min_days` still requires."""
        settings = with_decision_settings(mde=0.3, min_days=9, guardrails=())
        headline = _headline(_experiment(settings, days=9.0))
        assert headline.title == "Too early to decide"
        assert "The first decision is possible in about 3 days, on 13 January" in headline.next_step

    def test_certain_harm_is_stated_though_the_guardrail_is_open_or_held(self) -> None:
        """Escalations nearly double: whether that is allowed is another question."""
        for treatment, units, state, conclusion in (
            (0.019, 20_000, "open", "which may be more than the allowed"),
            (0.015, 60_000, "tolerable", "within the allowed"),
        ):
            result = _escalations(treatment, units)
            assert result.state == state
            headline = _headline(_with_verdict(_experiment(), guardrails=(result,)))
            assert "Share of responses with feedback 'escalated' rose by 0." in headline.finding
            assert f", {conclusion} 1" in headline.finding

    def test_an_experiment_too_young_for_a_decision_is_invalid_already_with_a_wrong_split(self) -> None:
        """A repair now saves the days until the decision rule would say so."""
        students = [*make_students("control", 1.5, 1000, seed=1), *make_students("treatment", 2.0, 400, seed=2)]
        headline = _headline(_experiment(with_decision_settings(mde=0.3, min_days=20, guardrails=()), students))
        assert (headline.title, headline.tone, headline.effect) == ("Too early to decide", "bad", None)
        assert headline.finding == "The variants cannot be compared, so no effect is known."
        assert "Students are not split as intended" in (headline.obstacle or "")
        assert headline.next_step == "Repair the cause now: waiting does not help."

    def test_a_gain_before_the_first_decision_is_no_finding_yet(self) -> None:
        """The word "better" is kept for decisions."""
        headline = _headline(_experiment(with_decision_settings(mde=0.3, min_days=20, guardrails=())))
        assert headline.finding.startswith("dcg@5 is higher with treatment so far: +36.2 %")

    def test_an_experiment_that_is_over_is_not_kept_running(self) -> None:
        """After the planned end, and archived."""
        settings = with_decision_settings(mde=0.05, guardrails=())
        undecided = _experiment(settings, EQUAL_STUDENTS)
        ended = _headline(replace(undecided, ends_at_ms=time_after_days(13)))
        assert (ended.title, ended.next_step) == (
            "Ended, not decided yet",
            "The experiment has ended. Its verdict is final once the last windows are complete.",
        )
        archived = _headline(replace(undecided, history=ExperimentHistory(archived_at_ms=time_after_days(13))))
        assert (archived.title, archived.next_step) == (
            "Ended without a decision",
            "The experiment is archived: no further events count.",
        )

    def test_an_experiment_before_its_start_is_not_kept_running(self) -> None:
        """The next step is the start."""
        experiment = replace(
            _experiment(days=0.5), starts_at_ms=time_after_days(30), newest_event_ms=time_after_days(1)
        )
        headline = _headline(experiment)
        assert (headline.title, headline.next_step) == (
            "Not started yet",
            "The experiment starts on 31 Jan 2026, 00:00 UTC.",
        )

    def test_a_narrow_interval_needs_no_more_days(self) -> None:
        """It is as narrow as the smallest effect of interest already."""
        settings = with_decision_settings(mde=0.25, guardrails=())
        students = [*make_students("control", 1.5, seed=1), *make_students("treatment", 1.62, seed=2)]
        headline = _headline(_experiment(settings, students))
        assert headline.title == "Keep running"
        assert "The interval is narrow enough to show an effect of 0.25 on dcg@5" in headline.next_step

    def test_without_new_students_waiting_decides_nothing(self) -> None:
        """The line must not announce a date."""
        settings = with_decision_settings(mde=0.05, guardrails=())
        undecided = _experiment(settings, EQUAL_STUDENTS)
        evidence = structs.replace(_verdict(undecided).evidence, has_new_students=False)
        headline = _headline(_with_verdict(undecided, evidence=evidence))
        assert headline.next_step.startswith("No new students enter the experiment, so waiting decides nothing")

    def test_several_treatments_to_ship_are_not_compared_with_each_other(self) -> None:
        """Each of them has a verdict against the control only."""
        experiment = _experiment()
        assert experiment.analysis is not None
        verdicts = {name: _verdict(experiment) for name in ("treatment", "other")}
        both = replace(experiment, analysis=replace(experiment.analysis, verdicts=verdicts))
        for headline in describe_headlines(both):
            assert headline.next_step.endswith("they are not compared with each other.")

    def test_the_planned_end_is_named(self) -> None:
        """While the experiment waits for a decision."""
        settings = with_decision_settings(mde=0.05, guardrails=())
        experiment = replace(_experiment(settings, EQUAL_STUDENTS), ends_at_ms=time_after_days(60))
        assert _headline(experiment).next_step.endswith("The planned end is 2 Mar 2026, 00:00 UTC.")

    def test_incomplete_numbers_wait_for_the_backfill(self) -> None:
        """They have no effect yet."""
        experiment = _experiment()
        verdict = _verdict(experiment)
        history = ExperimentHistory(backfill=BackfillProgress("running", 0.4, None))
        headline = _headline(_with_verdict(experiment, evidence=structs.replace(verdict.evidence, history=history)))
        assert headline.title == "Incomplete, so no decision yet"
        assert (headline.effect, headline.next_step) == (None, "Wait until the earlier events are counted.")


class TestDaysUntilDecided:
    """The time until an open guardrail is held or crossed."""

    @pytest.mark.parametrize(("treatment", "decision"), [(0.015, "held"), (0.018, "held"), (0.03, "crossed")])
    def test_the_guardrail_is_decided_after_that_time_if_the_harm_stays(self, treatment: float, decision: str) -> None:
        """One day earlier it is still open."""
        units, per_day = 2_000, 500.0
        result = _escalations(treatment, units)
        assert result.state == "open"
        days = days_until_decided(result, (per_day, per_day))
        assert days is not None
        assert _escalations(treatment, round(units + (days - 1) * per_day)).state == "open"
        later = _escalations(treatment, round(units + (days + 2) * per_day))
        assert later.state != "open"
        assert (later.state == "crossed") == (decision == "crossed")

    def test_a_harm_at_the_margin_is_never_decided(self) -> None:
        """And one that is decided already has no time."""
        assert days_until_decided(_escalations(0.021, 2_000), (500.0, 500.0)) is None
        assert days_until_decided(_escalations(0.011, 60_000), (500.0, 500.0)) is None
