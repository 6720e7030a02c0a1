"""Grading rules: selection of the reactions that count, their grades, and the metrics of a response.

`GradingRules.evaluate` is a pure function of a row. Sums of contributions are therefore functions of the set of rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias, final

from monitor.config import (
    FEEDBACK_METRIC_PREFIX,
    LATENCY_ABOVE_PREFIX,
    LATENCY_METRIC,
    ExperimentSettings,
    GradeRule,
)
from monitor.engine.id_hash import STUDENT_TAG_BYTES
from monitor.engine.response_row import (
    MISSING,
    NO_RESPONSE,
    PRE_PERIOD_VARIANT,
    WITHDRAWN,
    Contribution,
    Reaction,
    ResponseRow,
    find_item,
)
from monitor.metrics import Scorer

_MAX_CACHED_SCORES: Final = 100_000

ScoredMetrics: TypeAlias = "tuple[tuple[int, ...], tuple[int, ...]]"
"""(value of each metric, sums vector without guardrail metrics) of a rated response."""
ReactionKey: TypeAlias = tuple[bytes, bytes, str]
"""(student tag or b"" for the student of the response, hash of the item, kind)."""


@final
class GradingRules:
    """Evaluates rows by the grades, metrics and guardrail metrics of an experiment."""

    __slots__ = (
        "_cached_scores",
        "_graders",
        "_grades_with_gain",
        "_guardrail_kinds",
        "_has_guardrail_sums",
        "_has_latency_guardrail",
        "_latency_thresholds_ms",
        "_max_scores",
        "_scorer",
        "_starts_at_ms",
        "_tolerance_ms",
        "_window_ms",
        "metric_count",
        "unrated_contribution",
    )

    def __init__(self, experiment: ExperimentSettings) -> None:
        self._scorer = Scorer.for_experiment(experiment)
        self._window_ms = experiment.feedback_window_ms
        self._tolerance_ms = experiment.feedback_clock_tolerance_ms
        self._starts_at_ms = experiment.starts_at_ms or 0
        self._graders = {kind: grading_function(rule) for kind, rule in experiment.grades.items()}
        self._max_scores = {kind: experiment.max_grade for kind, rule in experiment.grades.items() if rule == "score"}
        self._grades_with_gain = None if isinstance(experiment.gain, str) else frozenset(experiment.gain)
        self._cached_scores: dict[tuple[tuple[int, ...], tuple[float, ...]], ScoredMetrics] = {}
        """(ranks, grades) → scores."""
        self.metric_count = len(experiment.metrics)
        zeros = (0,) * self.metric_count
        self.unrated_contribution = Contribution(False, zeros, (1, 0, *zeros, *zeros), (), 0)  # noqa: FBT003
        self._guardrail_kinds = [
            name.removeprefix(FEEDBACK_METRIC_PREFIX)
            for name in experiment.guardrail_only_metrics
            if name.startswith(FEEDBACK_METRIC_PREFIX)
        ]
        self._latency_thresholds_ms = [
            int(name.removeprefix(LATENCY_ABOVE_PREFIX))
            for name in experiment.guardrail_only_metrics
            if name.startswith(LATENCY_ABOVE_PREFIX)
        ]
        self._has_guardrail_sums = bool(experiment.guardrail_only_metrics)
        self._has_latency_guardrail = LATENCY_METRIC in experiment.guardrail_only_metrics

    def evaluate(self, row: ResponseRow) -> Contribution:
        """Return the contribution of a row; without the response event, reactions are ignored."""
        contribution = self.unrated_contribution
        if row.reactions and row.variant_key != NO_RESPONSE:
            uncounted: dict[str, int] = {}
            current_reactions = self._current_reactions(row, uncounted)
            if current_reactions:
                contribution = self._evaluate_reactions(row, current_reactions, uncounted)
            elif uncounted:
                contribution = self._unrated_with_reactions((), 0, uncounted)
        if self._has_guardrail_sums:
            return self._add_guardrail_sums(row, contribution)
        return contribution

    def item_grades(self, row: ResponseRow) -> dict[bytes, float]:
        """Return the highest grade by item hash, also of items that are not in the response's list."""
        return self._highest_grades(self._current_reactions(row))

    def judgements(self, row: ResponseRow) -> dict[tuple[bytes, bytes], tuple[float, int]]:
        """Return (student tag, item hash) → (highest grade, time of the latest graded reaction).

        The student of the response has the tag b"".
        """
        response_student = row.student_hash[:STUDENT_TAG_BYTES]
        judgements: dict[tuple[bytes, bytes], tuple[float, int]] = {}
        for timestamp_ms, _, student_tag, item, kind, score in self._current_reactions(row):
            grade_of = self._graders.get(kind)
            grade = grade_of(score) if item and grade_of is not None else None
            if grade is not None:
                key = b"" if student_tag == response_student else student_tag, item
                highest_grade, latest_ms = judgements.get(key, (grade, 0))
                judgements[key] = max(highest_grade, grade), max(latest_ms, timestamp_ms)
        return judgements

    def _current_reactions(self, row: ResponseRow, uncounted: dict[str, int] | None = None) -> list[Reaction]:
        """Return the latest reaction of each (student, item, kind), unless it is withdrawn.

        Reactions outside the feedback window, or with a score outside the scale, do not count, nor do withdrawals
        without an earlier reaction; the numbers of them are added to `uncounted`, by reason. At the same time, a
        withdrawal is later than a reaction.
        """
        window_start_ms = row.timestamp_ms - self._tolerance_ms
        window_end_ms = row.timestamp_ms + self._window_ms
        if row.variant_key & 255 == PRE_PERIOD_VARIANT:
            # A variant may change how students rate older responses once the experiment has begun.
            window_end_ms = min(window_end_ms, self._starts_at_ms - 1)
        counted_reactions = []
        for reaction in row.reactions:
            timestamp_ms, _, _, _, kind, score = reaction
            if window_start_ms <= timestamp_ms <= window_end_ms and self._is_on_scale(kind, score):
                counted_reactions.append(reaction)
            elif uncounted is not None:
                is_outside = timestamp_ms > window_end_ms
                reason = "outside_window" if is_outside else "off_scale"
                reason = "before_response" if timestamp_ms < window_start_ms else reason
                uncounted[reason] = uncounted.get(reason, 0) + 1
        if len(counted_reactions) == 1 and counted_reactions[0][5] != WITHDRAWN:
            return counted_reactions
        response_student = row.student_hash[:STUDENT_TAG_BYTES]
        latest_reactions: dict[ReactionKey, Reaction] = {}
        for reaction in counted_reactions:
            timestamp_ms, _, student_tag, item, kind, _ = reaction
            key = b"" if student_tag == response_student else student_tag, item, kind
            previous = latest_reactions.get(key)
            if previous is None or previous[5] != WITHDRAWN or previous[0] < timestamp_ms:
                latest_reactions[key] = reaction
        if uncounted is not None:
            _add_withdrawals_of_nothing(counted_reactions, response_student, uncounted)
        return [reaction for reaction in latest_reactions.values() if reaction[5] != WITHDRAWN]

    def _is_on_scale(self, kind: str, score: float) -> bool:
        max_score = self._max_scores.get(kind)
        return (
            max_score is None
            or score == WITHDRAWN
            or (score <= max_score and (self._grades_with_gain is None or score in self._grades_with_gain))
        )

    def _highest_grades(self, current_reactions: list[Reaction]) -> dict[bytes, float]:
        grades: dict[bytes, float] = {}
        for _, _, _, item, kind, score in current_reactions:
            grade_of = self._graders.get(kind)
            if item and grade_of is not None:
                grade = grade_of(score)
                if grade is not None and grade > grades.get(item, -1.0):
                    grades[item] = grade
        return grades

    def _evaluate_reactions(
        self, row: ResponseRow, current_reactions: list[Reaction], uncounted: dict[str, int]
    ) -> Contribution:
        """Return the contribution of a row with current reactions, without guardrail metrics.

        `uncounted` are the numbers of reactions that do not count, by reason; reactions to items that the response does
        not have are added.
        """
        if len(current_reactions) == 1:
            return self._evaluate_single_reaction(row, current_reactions[0], uncounted)
        counts_by_kind: dict[str, int] = {}
        last_reaction_ms = 0
        for timestamp_ms, _, _, item, kind, _ in current_reactions:
            counts_by_kind[kind] = counts_by_kind.get(kind, 0) + 1
            last_reaction_ms = max(last_reaction_ms, timestamp_ms)
            if item and find_item(item, row.item_hashes) < 0:
                uncounted["item_not_shown"] = uncounted.get("item_not_shown", 0) + 1
        counts = counts_by_kind.items()
        reaction_counts = tuple(counts) if len(counts_by_kind) == 1 else tuple(sorted(counts))
        graded_ranks = []
        for item, grade in self._highest_grades(current_reactions).items():
            index = find_item(item, row.item_hashes)
            if index >= 0:
                graded_ranks.append((row.ranks[index] if row.ranks is not None else int(index) + 1, grade))
        if not graded_ranks:
            return self._unrated_with_reactions(reaction_counts, last_reaction_ms, uncounted)
        graded_ranks.sort()
        ranks, grades = tuple([rank for rank, _ in graded_ranks]), tuple([grade for _, grade in graded_ranks])
        metric_values, sums = self._score(ranks, grades)
        return Contribution(
            True,  # noqa: FBT003
            metric_values,
            sums,
            reaction_counts,
            last_reaction_ms,
            _sorted_counts(uncounted),
        )

    def _evaluate_single_reaction(
        self, row: ResponseRow, reaction: Reaction, uncounted: dict[str, int]
    ) -> Contribution:
        """Return the contribution of a row with a single current reaction, the most frequent case."""
        timestamp_ms, _, _, item, kind, score = reaction
        reaction_counts = ((kind, 1),)
        index = find_item(item, row.item_hashes) if item else -1
        if item and index < 0:
            uncounted["item_not_shown"] = 1
        grade_of = self._graders.get(kind) if index >= 0 else None
        grade = grade_of(score) if grade_of is not None else None
        if grade is None:
            return self._unrated_with_reactions(reaction_counts, timestamp_ms, uncounted)
        rank = row.ranks[index] if row.ranks is not None else int(index) + 1
        metric_values, sums = self._score((rank,), (grade,))
        return Contribution(
            True,  # noqa: FBT003
            metric_values,
            sums,
            reaction_counts,
            timestamp_ms,
            _sorted_counts(uncounted),
        )

    def _unrated_with_reactions(
        self, reaction_counts: tuple[tuple[str, int], ...], last_reaction_ms: int, uncounted: dict[str, int]
    ) -> Contribution:
        """Return the contribution of a response with reactions but without a graded item in the list."""
        unrated = self.unrated_contribution
        return Contribution(
            False,  # noqa: FBT003
            unrated.metric_values,
            unrated.sums,
            reaction_counts,
            last_reaction_ms,
            _sorted_counts(uncounted),
        )

    def _score(self, ranks: tuple[int, ...], grades: tuple[float, ...]) -> ScoredMetrics:
        """Return the scores of a response with grades at ascending ranks; recent scores are cached."""
        scores = self._cached_scores.get((ranks, grades))
        if scores is None:
            if len(self._cached_scores) >= _MAX_CACHED_SCORES:
                self._cached_scores.clear()
            metric_values = tuple([-1 if value is None else value for value in self._scorer.score(ranks, grades)])
            sums = (1, 1, *[max(value, 0) for value in metric_values], *[int(value < 0) for value in metric_values])
            scores = self._cached_scores[ranks, grades] = metric_values, sums
        return scores

    def _add_guardrail_sums(self, row: ResponseRow, contribution: Contribution) -> Contribution:
        """Return a contribution extended by the sums of guardrail metrics: see `monitor.metrics.StudentField`."""
        kinds = [kind for kind, _ in contribution.reaction_counts]
        totals = [int(kind in kinds) for kind in self._guardrail_kinds]
        missing = [0] * len(totals)
        latency_ms, latency_is_missing = max(row.latency_ms, 0), int(row.latency_ms == MISSING)
        for threshold_ms in self._latency_thresholds_ms:
            totals.append(int(latency_ms > threshold_ms))
            missing.append(latency_is_missing)
        if self._has_latency_guardrail:
            totals.append(latency_ms)
            missing.append(latency_is_missing)
        return Contribution(
            contribution.is_rated,
            contribution.metric_values,
            (*contribution.sums, *totals, *missing),
            contribution.reaction_counts,
            contribution.last_reaction_ms,
            contribution.uncounted_reactions,
        )


def _add_withdrawals_of_nothing(reactions: list[Reaction], response_student: bytes, uncounted: dict[str, int]) -> None:
    """Add the number of withdrawals without an earlier reaction, or one of the same time, to `uncounted`."""
    first_times: dict[ReactionKey, int] = {}
    withdrawals: list[tuple[ReactionKey, int]] = []
    for timestamp_ms, _, student_tag, item, kind, score in reactions:
        key = b"" if student_tag == response_student else student_tag, item, kind
        if score == WITHDRAWN:
            withdrawals.append((key, timestamp_ms))
        else:
            first_times.setdefault(key, timestamp_ms)
    for key, timestamp_ms in withdrawals:
        if first_times.get(key, timestamp_ms + 1) > timestamp_ms:
            uncounted["nothing_to_withdraw"] = uncounted.get("nothing_to_withdraw", 0) + 1


def _sorted_counts(counts: dict[str, int]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(counts.items())) if counts else ()


def grading_function(rule: GradeRule) -> Callable[[float], float | None]:
    """Return the function score → grade of a configured rule; the grade None means that the reaction is ungraded."""
    if rule == "score":
        return lambda score: score
    if isinstance(rule, tuple):
        steps = rule

        def grade_of(score: float) -> float | None:
            grade = None
            for threshold, step_grade in steps:
                if score < threshold:
                    break
                grade = step_grade
            return grade

        return grade_of
    constant = float(rule)
    return lambda _score: constant
