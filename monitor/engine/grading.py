"""Grading rules: selection of the reactions that count, their grades, and the metrics of a response.

`GradingRules.evaluate` is a pure function of a row. Sums of contributions are therefore functions of the set of rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias, final

from monitor.config import ExperimentSettings, GradeRule
from monitor.engine.answer_values import AnswerValues
from monitor.engine.id_hash import STUDENT_TAG_BYTES
from monitor.engine.response_row import (
    CAPPED_PREFIX,
    NO_RESPONSE,
    PRE_PERIOD_VARIANT,
    WITHDRAWN,
    Contribution,
    Reaction,
    ResponseRow,
    find_item,
)
from monitor.metrics import Scorer, StudentField

_MAX_CACHED_SCORES: Final = 100_000

ScoredMetrics: TypeAlias = "tuple[tuple[int, ...], tuple[int, ...]]"
"""(value of each ranking metric, sums vector of the ranking metrics) of a rated response."""
ReactionKey: TypeAlias = tuple[bytes, bytes, str]
"""(student tag or b"" for the student of the response, hash of the item, kind)."""


@final
class GradingRules:
    """Evaluates rows by the grades and metrics of an experiment."""

    __slots__ = (
        "_additive_kinds",
        "_answer_values",
        "_cached_scores",
        "_graders",
        "_grades_with_gain",
        "_has_ranking_metrics",
        "_registers",
        "_scales",
        "_score_kinds",
        "_scorer",
        "_starts_at_ms",
        "_tolerance_ms",
        "_window_ms",
        "unrated_contribution",
    )

    def __init__(self, experiment: ExperimentSettings) -> None:
        self._scorer = Scorer.for_experiment(experiment)
        self._window_ms = experiment.feedback_window_ms
        self._tolerance_ms = experiment.feedback_clock_tolerance_ms
        self._starts_at_ms = experiment.starts_at_ms or 0
        self._graders = {kind: grading_function(rule) for kind, rule in experiment.grades.items()}
        self._grades_with_gain = None if isinstance(experiment.gain, str) else frozenset(experiment.gain)
        self._score_kinds = frozenset([kind for kind, rule in experiment.grades.items() if rule == "score"])
        self._scales = _score_scales(experiment)
        self._registers = {kind: group[0] for group in experiment.exclusive_kinds for kind in group}
        """Kind → name of the register that the kinds of its group share."""
        self._additive_kinds = frozenset(experiment.additive_kinds)
        self._cached_scores: dict[tuple[tuple[int, ...], tuple[float, ...]], ScoredMetrics] = {}
        """(ranks, grades) → scores."""
        self._has_ranking_metrics = bool(experiment.ranking_metrics)
        self._answer_values = AnswerValues(experiment) if experiment.answer_metrics else None
        zeros = (0,) * len(experiment.ranking_metrics)
        self.unrated_contribution = Contribution(False, zeros, (1, 0, *zeros, *zeros), ())  # noqa: FBT003
        """The contribution of a response without reactions, before its answer metrics are added."""

    def evaluate(self, row: ResponseRow) -> Contribution:
        """Return the contribution of a row; without the response event, reactions are ignored."""
        contribution = self.unrated_contribution
        current_reactions: list[Reaction] = []
        if row.reactions and row.variant_key != NO_RESPONSE:
            uncounted: dict[str, int] = {}
            current_reactions = self._current_reactions(row, uncounted)
            if current_reactions:
                contribution = self._evaluate_reactions(row, current_reactions, uncounted)
            elif uncounted:
                contribution = self._unrated_with_reactions((), uncounted)
        if self._answer_values is not None:
            return self._add_answer_values(row, self._answer_values, current_reactions, contribution)
        return contribution

    def last_reaction_ms(self, row: ResponseRow) -> int:
        """Return the time of the latest reaction or withdrawal within the feedback window, 0 without one."""
        for reaction in reversed(row.reactions):
            timestamp_ms = reaction[0]
            if row.timestamp_ms - self._tolerance_ms <= timestamp_ms <= row.timestamp_ms + self._window_ms:
                return timestamp_ms
        return 0

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
        """Return the latest reaction of each (student, item, kind) unless it is withdrawn, in ascending order.

        Exclusive kinds share a place: the latest reaction of any of them is current, and only a withdrawal of its own
        kind withdraws it. Of an additive kind, all reactions after the latest withdrawal are current. At the same time,
        a withdrawal is later than a reaction. The numbers of reactions and withdrawals that do not count are added to
        `uncounted`, by reason: see `_counted_reactions`, and withdrawals without an earlier reaction.
        """
        counted_reactions = self._counted_reactions(row, uncounted)
        if len(counted_reactions) == 1 and counted_reactions[0][5] != WITHDRAWN:
            return counted_reactions
        if self._registers:
            counted_reactions.sort(key=_order_in_register)
        response_student = row.student_hash[:STUDENT_TAG_BYTES]
        latest_reactions: dict[ReactionKey, Reaction] = {}
        added_reactions: list[Reaction] = []
        for reaction in counted_reactions:
            timestamp_ms, _, student_tag, item, kind, score = reaction
            if kind in self._additive_kinds and score != WITHDRAWN:
                added_reactions.append(reaction)
                continue
            key = b"" if student_tag == response_student else student_tag, item, self._registers.get(kind, kind)
            previous = latest_reactions.get(key)
            if previous is not None and previous[4] != kind:
                is_later = score != WITHDRAWN
            else:
                is_later = previous is None or previous[5] != WITHDRAWN or previous[0] < timestamp_ms
            if is_later:
                latest_reactions[key] = reaction
        if uncounted is not None:
            _add_withdrawals_of_nothing(counted_reactions, response_student, uncounted)
        current_reactions = [reaction for reaction in latest_reactions.values() if reaction[5] != WITHDRAWN]
        if added_reactions:
            current_reactions += _not_withdrawn(added_reactions, latest_reactions, response_student)
        current_reactions.sort()
        return current_reactions

    def _counted_reactions(self, row: ResponseRow, uncounted: dict[str, int] | None) -> list[Reaction]:
        """Return the reactions and withdrawals within the feedback window, with a score on the scale."""
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
        return counted_reactions

    def _is_on_scale(self, kind: str, score: float) -> bool:
        scale = self._scales.get(kind)
        if scale is None or score == WITHDRAWN:
            return True
        gains = self._grades_with_gain
        return scale[0] <= score <= scale[1] and (gains is None or kind not in self._score_kinds or score in gains)

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
        """Return the contribution of a row with current reactions, without answer metrics.

        `uncounted` are the numbers of reactions that do not count, by reason; reactions to items that the response does
        not have are added.
        """
        if len(current_reactions) == 1:
            return self._evaluate_single_reaction(row, current_reactions[0], uncounted)
        counts_by_kind: dict[str, int] = {}
        for _, _, _, item, kind, _ in current_reactions:
            counts_by_kind[kind] = counts_by_kind.get(kind, 0) + 1
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
            return self._unrated_with_reactions(reaction_counts, uncounted)
        graded_ranks.sort()
        ranks, grades = tuple([rank for rank, _ in graded_ranks]), tuple([grade for _, grade in graded_ranks])
        metric_values, sums = self._score(ranks, grades)
        return Contribution(
            True,  # noqa: FBT003
            metric_values,
            sums,
            reaction_counts,
            _sorted_counts(uncounted),
        )

    def _evaluate_single_reaction(
        self, row: ResponseRow, reaction: Reaction, uncounted: dict[str, int]
    ) -> Contribution:
        """Return the contribution of a row with a single current reaction, the most frequent case."""
        _, _, _, item, kind, score = reaction
        reaction_counts = ((kind, 1),)
        index = find_item(item, row.item_hashes) if item else -1
        if item and index < 0:
            uncounted["item_not_shown"] = 1
        grade_of = self._graders.get(kind) if index >= 0 else None
        grade = grade_of(score) if grade_of is not None else None
        if grade is None:
            return self._unrated_with_reactions(reaction_counts, uncounted)
        rank = row.ranks[index] if row.ranks is not None else int(index) + 1
        metric_values, sums = self._score((rank,), (grade,))
        return Contribution(
            True,  # noqa: FBT003
            metric_values,
            sums,
            reaction_counts,
            _sorted_counts(uncounted),
        )

    def _unrated_with_reactions(
        self, reaction_counts: tuple[tuple[str, int], ...], uncounted: dict[str, int]
    ) -> Contribution:
        """Return the contribution of a response with reactions but without a graded item in the list."""
        unrated = self.unrated_contribution
        return Contribution(
            False,  # noqa: FBT003
            unrated.metric_values,
            unrated.sums,
            reaction_counts,
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

    def _add_answer_values(
        self, row: ResponseRow, answers: AnswerValues, current_reactions: list[Reaction], contribution: Contribution
    ) -> Contribution:
        """Return a contribution extended by the answer metrics.

        Without ranking metrics, a response is rated if it has a reaction of a kind on which the answer metrics depend.
        """
        values, capped = answers.compute(row, current_reactions)
        is_rated = contribution.is_rated
        if not self._has_ranking_metrics:
            is_rated = any(reaction[4] in answers.kinds for reaction in current_reactions)
        sums = contribution.sums
        undefined_start = StudentField.TOTALS + (len(sums) - StudentField.TOTALS) // 2
        counts = dict(contribution.uncounted_reactions)
        for name in capped:
            counts[CAPPED_PREFIX + name] = 1
        return Contribution(
            is_rated,
            (*contribution.metric_values, *values),
            (
                1,
                int(is_rated),
                *sums[StudentField.TOTALS : undefined_start],
                *[max(value, 0) for value in values],
                *sums[undefined_start:],
                *[int(value < 0) for value in values],
            ),
            contribution.reaction_counts,
            _sorted_counts(counts),
        )


def _score_scales(experiment: ExperimentSettings) -> dict[str, tuple[float, float]]:
    """Return kind → (least, largest) score that counts, as a grade and as the value of an answer metric."""
    scales = {kind: (0.0, experiment.max_grade) for kind, rule in experiment.grades.items() if rule == "score"}
    for metric in experiment.answer_metrics:
        if metric.measure == "score":
            least, most = scales.get(metric.kind, (metric.least, metric.most))
            scales[metric.kind] = max(least, metric.least), min(most, metric.most)
    return scales


def _order_in_register(reaction: Reaction) -> tuple[int, bool, str]:
    return reaction[0], reaction[5] == WITHDRAWN, reaction[1]


def _not_withdrawn(
    reactions: list[Reaction], withdrawals: dict[ReactionKey, Reaction], response_student: bytes
) -> list[Reaction]:
    """Return the latest reaction with each feedback id that is later than the withdrawal of its student, item and kind.

    `withdrawals` has the latest withdrawal of an additive kind under its key.
    """
    latest: dict[tuple[ReactionKey, str], Reaction] = {}
    for reaction in reactions:
        timestamp_ms, feedback_id, student_tag, item, kind, _ = reaction
        key = b"" if student_tag == response_student else student_tag, item, kind
        withdrawal = withdrawals.get(key)
        if withdrawal is None or withdrawal[0] < timestamp_ms:
            latest[key, feedback_id] = reaction
    return list(latest.values())


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
