"""Grading: which reactions to a response count, the grades that they give, and the response's metrics.

`GradingRules.evaluate` is a pure function of a row, and so is every sum of its results.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from monitor.config import FEEDBACK, LATENCY, ExperimentSettings, GradeRule
from monitor.engine.id_hash import TAG_BYTES
from monitor.engine.response_row import (
    MISSING,
    NO_RESPONSE,
    PRE_PERIOD,
    Contribution,
    Reaction,
    ResponseRow,
    item_index,
)
from monitor.metrics import Scorer

_MAX_CACHED_SCORES: Final = 100_000


@final
class GradingRules:
    """One experiment's definitions of grades and metrics, in a form that evaluates rows quickly."""

    __slots__ = (
        "_graders", "_kinds", "_latency", "_scales", "_scored", "_scorer", "_scores", "_starts_ms", "_window_ms",
        "metrics", "unrated",
    )  # fmt: skip

    def __init__(self, experiment: ExperimentSettings) -> None:
        self._scorer = Scorer.of(experiment)
        self._window_ms = experiment.feedback_window_ms
        self._starts_ms = experiment.starts_at_ms or 0
        self._graders = {kind: grader(rule) for kind, rule in experiment.grades.items()}
        self._scales = {kind: experiment.max_grade for kind, rule in experiment.grades.items() if rule == "score"}
        self._scored = None if isinstance(experiment.gain, str) else frozenset(experiment.gain)
        self._scores: dict[tuple[tuple[int, ...], tuple[float, ...]], tuple[tuple[int, ...], tuple[int, ...]]] = {}
        """(ranks, grades) → (values, sums) of a contribution."""
        self.metrics = len(experiment.metrics)
        zeros = (0,) * self.metrics
        self.unrated = Contribution(False, zeros, (1, 0, *zeros, *zeros), (), 0)  # noqa: FBT003
        self._kinds = [name.removeprefix(FEEDBACK) for name in experiment.watched if name.startswith(FEEDBACK)]
        self._latency = LATENCY in experiment.watched

    def evaluate(self, row: ResponseRow) -> Contribution:
        """Return what the row contributes; a row without its response contributes nothing."""
        contribution = self.unrated
        if row.reactions and row.arm != NO_RESPONSE:
            current = self._current(row)
            if current:
                contribution = self._contribution(row, current)
        return self._with_guardrails(row, contribution) if self._kinds or self._latency else contribution

    def grades(self, row: ResponseRow) -> dict[bytes, float]:
        """Return the highest grade of each graded item (by its hash), in the response's list or not."""
        return self._grades(self._current(row))

    def judgements(self, row: ResponseRow) -> dict[tuple[bytes, bytes], tuple[float, int]]:
        """Return {(student, item): (highest grade, time of the latest one)}; the response's own student is b""."""
        own = row.student[:TAG_BYTES]
        judgements: dict[tuple[bytes, bytes], tuple[float, int]] = {}
        for timestamp_ms, _, student, item, kind, score in self._current(row):
            grade_of = self._graders.get(kind)
            grade = grade_of(score) if item and grade_of is not None else None
            if grade is not None:
                key = b"" if student == own else student, item
                best, last = judgements.get(key, (grade, 0))
                judgements[key] = max(best, grade), max(last, timestamp_ms)
        return judgements

    def _current(self, row: ResponseRow) -> list[Reaction]:
        """Return the latest reaction that counts of each (student, item, kind)."""
        opens, closes = row.timestamp_ms, row.timestamp_ms + self._window_ms
        if row.arm & 255 == PRE_PERIOD:
            # A variant may change how students rate older responses once the experiment has begun.
            closes = min(closes, self._starts_ms - 1)
        counting = []
        for reaction in row.reactions:
            timestamp_ms, _, _, _, kind, score = reaction
            if opens <= timestamp_ms <= closes and self._is_on_scale(kind, score):
                counting.append(reaction)
        if len(counting) <= 1:
            return counting
        own = row.student[:TAG_BYTES]
        latest: dict[tuple[bytes, bytes, str], Reaction] = {}
        for reaction in counting:
            _, _, student, item, kind, _ = reaction
            latest[b"" if student == own else student, item, kind] = reaction
        return list(latest.values())

    def _is_on_scale(self, kind: str, score: float) -> bool:
        largest = self._scales.get(kind)
        return largest is None or (score <= largest and (self._scored is None or score in self._scored))

    def _grades(self, current: list[Reaction]) -> dict[bytes, float]:
        grades: dict[bytes, float] = {}
        for _, _, _, item, kind, score in current:
            grade_of = self._graders.get(kind)
            if item and grade_of is not None:
                grade = grade_of(score)
                if grade is not None and grade > grades.get(item, -1.0):
                    grades[item] = grade
        return grades

    def _contribution(self, row: ResponseRow, current: list[Reaction]) -> Contribution:
        """Return what the row contributes by its current reactions, without guardrail metrics."""
        if len(current) == 1:
            return self._contribution_of_one(row, current[0])
        kinds: dict[str, int] = {}
        last_ms = 0
        for timestamp_ms, _, _, _, kind, _ in current:
            kinds[kind] = kinds.get(kind, 0) + 1
            last_ms = max(last_ms, timestamp_ms)
        counts = tuple(kinds.items()) if len(kinds) == 1 else tuple(sorted(kinds.items()))
        judged = []
        for item, grade in self._grades(current).items():
            index = item_index(item, row.items)
            if index >= 0:
                judged.append((row.ranks[index] if row.ranks is not None else int(index) + 1, grade))
        if not judged:
            return Contribution(False, self.unrated.values, self.unrated.sums, counts, last_ms)  # noqa: FBT003
        judged.sort()
        values, sums = self._score(tuple([rank for rank, _ in judged]), tuple([grade for _, grade in judged]))
        return Contribution(True, values, sums, counts, last_ms)  # noqa: FBT003

    def _contribution_of_one(self, row: ResponseRow, reaction: Reaction) -> Contribution:
        """Return the same of a row with one current reaction, as most have."""
        timestamp_ms, _, _, item, kind, score = reaction
        counts = ((kind, 1),)
        index = item_index(item, row.items) if item else -1
        grade_of = self._graders.get(kind) if index >= 0 else None
        grade = grade_of(score) if grade_of is not None else None
        if grade is None:
            return Contribution(False, self.unrated.values, self.unrated.sums, counts, timestamp_ms)  # noqa: FBT003
        rank = row.ranks[index] if row.ranks is not None else int(index) + 1
        values, sums = self._score((rank,), (grade,))
        return Contribution(True, values, sums, counts, timestamp_ms)  # noqa: FBT003

    def _score(self, ranks: tuple[int, ...], grades: tuple[float, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the values and sums of graded ranks."""
        scores = self._scores.get((ranks, grades))
        if scores is None:
            if len(self._scores) >= _MAX_CACHED_SCORES:
                self._scores.clear()
            values = tuple([-1 if value is None else value for value in self._scorer.score(ranks, grades)])
            sums = (1, 1, *[max(value, 0) for value in values], *[int(value < 0) for value in values])
            scores = self._scores[ranks, grades] = values, sums
        return scores

    def _with_guardrails(self, row: ResponseRow, contribution: Contribution) -> Contribution:
        """Return the contribution with the guardrail metrics in its sums: see `monitor.engine.student`."""
        kinds = [kind for kind, _ in contribution.kinds]
        totals = [int(kind in kinds) for kind in self._kinds]
        missing = [0] * len(totals)
        if self._latency:
            totals.append(0 if row.latency_ms == MISSING else row.latency_ms)
            missing.append(int(row.latency_ms == MISSING))
        return Contribution(
            contribution.rated,
            contribution.values,
            (*contribution.sums, *totals, *missing),
            contribution.kinds,
            contribution.last_reaction_ms,
        )


def grader(rule: GradeRule) -> Callable[[float], float | None]:
    """Return the function score → grade (None: no grade) of a configured rule."""
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
