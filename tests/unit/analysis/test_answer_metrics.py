"""The analysis of answer metrics: students' means, the other population, and metrics of which less is better."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.analysis import Analysis
from monitor.config import DecisionSettings, ExperimentSettings, GuardrailSettings, MetricSpec, Population
from monitor.engine.grading import GradingRules
from monitor.engine.response_row import Reaction, ResponseRow
from monitor.metrics import CohortField, RecordLayout
from monitor.stats import Estimate, StoredStudentSums, VerdictEvidence
from tests.support.streams import EXPERIMENT, START
from tests.support.student_groups import FIRST_DAY, StudentGroup, sum_students, time_after_days
from tests.support.units import analyze, cohort_records, student_records

_SATISFACTION = MetricSpec("score:csat", "score", kind="csat", least=1, most=5)
_LIKED = MetricSpec("share:thumb_up", "share", kind="thumb_up")
_MINUTES = MetricSpec("sum:minutes", "sum", kind="minutes", most=4)


def _experiment(*metrics: MetricSpec, population: Population = "rated") -> ExperimentSettings:
    """Return an experiment with answer metrics only, the first of which is the primary metric."""
    decision = DecisionSettings(mde=0.3, population=population, guardrails=())
    return replace(EXPERIMENT, metrics=metrics, primary=metrics[0].name, grades={}, categories=(), decision=decision)


def _row(kind: str, score: float | None) -> ResponseRow:
    """Return the row of a response with one reaction or, with the score None, without any."""
    reaction: Reaction = START, "f", b"", b"", kind, score or 0.0
    return ResponseRow(START, 0, b"student", reactions=() if score is None else (reaction,))


def _sum_answers(
    experiment: ExperimentSettings, students: Sequence[tuple[str, Sequence[float | None]]]
) -> StoredStudentSums:
    """Return the sums of (variant, score of each response or None) of students who all enter on the first day."""
    layout, rules = RecordLayout.for_experiment(experiment), GradingRules(experiment)
    kind = experiment.metrics[0].kind
    variant_records, cohorts = {}, {}
    for name in experiment.variants:
        sums = np.array(
            [
                np.sum([rules.evaluate(_row(kind, score)).sums for score in scores], axis=0)
                for variant, scores in students
                if variant == name
            ]
        )
        variant_records[name] = student_records(layout, sums).sum(axis=0)
        record = cohort_records(layout, sums).sum(axis=0)
        record[CohortField.EXPOSURES] = len(sums)
        cohorts[name] = {FIRST_DAY: record}
    return StoredStudentSums(variant_records, cohorts)


def _evidence(experiment: ExperimentSettings, scores_of_students: Sequence[Sequence[float | None]]) -> VerdictEvidence:
    """Return the evidence after ten days if the same students are in both variants."""
    students = [(name, scores) for name in experiment.variants for scores in scores_of_students]
    analysis = analyze(experiment, _sum_answers(experiment, students), time_after_days(10))
    return analysis.verdicts["treatment"].evidence


def _mean(estimate: Estimate) -> tuple[int, float | None]:
    return estimate.units, None if estimate.mean is None else round(estimate.mean, 7)


class TestStudentMeans:
    """Each student counts once, with the mean over the student's responses that have a value."""

    def test_a_share_is_over_all_responses_of_a_student(self) -> None:
        """Students with 1 of 2, 0 of 1 and 3 of 3 responses have the mean share (1/2 + 0 + 1) / 3."""
        evidence = _evidence(_experiment(_LIKED), [[1, None], [None], [1, 1, 1]])
        assert _mean(evidence.arms.control) == (3, 0.5)
        assert evidence.other_population is None
        assert evidence.rated_share is None

    @pytest.mark.parametrize("population", ["rated", "all"])
    def test_a_score_is_over_rated_responses_and_silence_is_the_least_score_in_the_other_population(
        self, population: Population
    ) -> None:
        """Scores 5, none and 1 on the range 1 to 5 have the mean 3; over all responses 7/3.

        `population` is that of ranking metrics.
        """
        evidence = _evidence(_experiment(_SATISFACTION, population=population), [[5, None, 1], [None]])
        assert _mean(evidence.arms.control) == (1, 3)
        assert evidence.other_population is not None
        assert _mean(evidence.other_population.control) == (2, round((7 / 3 + 1) / 2, 7))
        assert evidence.undefined_share is None

    def test_with_a_value_for_silence_a_score_is_over_all_responses(self) -> None:
        """Scores 5, none and 1 have the mean 7/3 if silence is 1, and 3 if silence is 3."""
        for silence, mean in ((1, round(7 / 3, 7)), (3, 3)):
            evidence = _evidence(_experiment(replace(_SATISFACTION, silence=silence)), [[5, None, 1]])
            assert _mean(evidence.arms.control) == (1, mean)
            assert evidence.other_population is None

    def test_a_capped_sum_is_over_all_responses(self) -> None:
        """Responses with 6, 2 and no minutes count as 4, 2 and 0, because the range ends at 4."""
        assert _mean(_evidence(_experiment(_MINUTES), [[6, 2, None]]).arms.control) == (1, 2)

    def test_a_metric_of_the_response_alone_has_no_rated_share(self) -> None:
        """No response depends on feedback."""
        empty = MetricSpec("empty", "empty", lower_is_better=True)
        evidence = _evidence(_experiment(empty, _LIKED), [[1, None]])
        assert evidence.rated_share is None
        assert _mean(evidence.arms.control) == (1, 1)


def _minutes(means: tuple[float, float], *, lower_is_better: bool, margin: float, mde: float, seed: int) -> Analysis:
    """Return the analysis after two weeks of students with minutes around the variants' means, in quarters of a minute.

    If less is better, the students have 4 minus these minutes.
    """
    chance = np.random.default_rng(seed)
    groups = []
    for variant, mean in zip(("control", "treatment"), means, strict=True):
        values = np.clip(np.rint(chance.normal(4 * mean, 2, 600)) / 4, 0, 4)
        values = 4 - values if lower_is_better else values
        for (day, value), count in Counter(
            (number % 10, value) for number, value in enumerate(values.tolist())
        ).items():
            groups.append(StudentGroup(variant, FIRST_DAY + day, value, rated_responses=2, student_count=count))
    guardrail = GuardrailSettings("rated_share", "down", 0.05)
    experiment = replace(
        _experiment(replace(_MINUTES, lower_is_better=lower_is_better)),
        decision=DecisionSettings(mde=mde, margin=margin, guardrails=(guardrail,)),
    )
    return analyze(experiment, sum_students(experiment, groups), time_after_days(14))


class TestLowerIsBetter:
    """A fall of a metric of which less is better is a gain."""

    @pytest.mark.parametrize(
        ("means", "margin", "state"),
        [
            ((2.0, 1.5), 0.0, "ship"),
            ((1.5, 2.0), 0.0, "stop_harm"),
            ((2.0, 2.0), 0.0, "futile"),
            ((2.0, 2.0), 0.3, "non_inferior"),
            ((2.0, 1.95), 0.0, "continue"),
        ],
    )
    def test_states_follow_from_the_fall_of_the_metric(
        self, means: tuple[float, float], margin: float, state: str
    ) -> None:
        """The means are those of the metric; the students have 4 minus the simulated minutes."""
        simulated_means = 4 - means[0], 4 - means[1]
        analysis = _minutes(simulated_means, lower_is_better=True, margin=margin, mde=0.1, seed=1)
        verdict = analysis.verdicts["treatment"]
        assert verdict.state == state
        effect = verdict.primary.difference.effect
        assert effect is not None
        assert effect == pytest.approx(means[1] - means[0], abs=0.1)

    @settings(max_examples=30)
    @given(
        means=st.tuples(st.floats(0.1, 3.9), st.floats(-0.6, 0.6)),
        margin=st.sampled_from([0.0, 0.1, 0.3]),
        mde=st.sampled_from([0.05, 0.3]),
        seed=st.integers(0, 1000),
    )
    def test_a_mirrored_metric_has_the_same_verdict(
        self, means: tuple[float, float], margin: float, mde: float, seed: int
    ) -> None:
        """If each value x becomes 4 − x and less is better, state, reasons and times are the same."""
        variant_means = means[0], means[0] + means[1]
        verdict, mirrored = (
            _minutes(variant_means, lower_is_better=lower, margin=margin, mde=mde, seed=seed).verdicts["treatment"]
            for lower in (False, True)
        )
        assert mirrored.state == verdict.state
        assert [reason.code for reason in mirrored.reasons] == [reason.code for reason in verdict.reasons]
        assert [note.code for note in mirrored.notes] == [note.code for note in verdict.notes]
        assert mirrored.days_to_resolve == pytest.approx(verdict.days_to_resolve)
        assert mirrored.days_to_power == pytest.approx(verdict.days_to_power)
        assert mirrored.primary.lower == pytest.approx(-_known(verdict.primary.upper))
        assert mirrored.primary.upper == pytest.approx(-_known(verdict.primary.lower))
        assert mirrored.shrunken_effect == pytest.approx(-_known(verdict.shrunken_effect))


def _known(number: float | None) -> float:
    assert number is not None
    return number
