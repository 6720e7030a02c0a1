"""What one response and one student amount to, as pure functions of the events seen about them.

A response's row is a set: the response event that won (the earliest, should an id be used twice) and every distinct
reaction to it. Whatever order the events came in, the set is the same, and `Rules.evaluate` is a function of the set;
so is everything that is summed from it. Nothing here knows the time of day.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from struct import Struct
from typing import Literal, NamedTuple, TypeAlias, TypeVar

import msgspec

from monitor.config import ExperimentSettings, GradeRule
from monitor.events import Feedback
from monitor.identity import ITEM_BYTES, TAG_BYTES, Identities
from monitor.ranking import Scorer

DAY_MS = 86_400_000
MAX_REACTIONS = 1000
"""Reactions kept per response, the newest by event time: which those are does not depend on the order of arrival."""

Reaction: TypeAlias = tuple[int, str, bytes, bytes, str, float]
"""(event time in ms, feedback id, student's tag or b"", item's hash or b"" for the whole answer, kind, score)."""

Key = TypeVar("Key")
Outcome = Literal["applied", "duplicate", "revised"]

PENDING = -1


class Row(msgspec.Struct, gc=False):
    """One response as the store keeps it.

    While only its feedback has been seen, `arm` is `PENDING` and `timestamp_ms` that of the newest reaction.
    """

    timestamp_ms: int
    arm: int
    student: bytes
    items: bytes
    """The items' hashes, `ITEM_BYTES` each, in the order of the list."""
    ranks: tuple[int, ...] | None
    """The items' positions; None where they are 1, 2, 3 …"""
    reactions: list[Reaction]
    """Sorted, distinct."""
    version: int = 0
    """Times the store has written it; 0 if never."""
    value: Value | None = None
    """What it contributed when it was last evaluated; not stored."""


class Value(NamedTuple):
    """What a response contributes: integers in fixed point, -1 where the metric is undefined."""

    rated: bool
    values: tuple[int, ...]
    kinds: tuple[tuple[str, int], ...]
    """Current reactions by kind, sorted by kind."""
    last_reaction_ms: int


def merge_response(
    row: Row, timestamp_ms: int, arm: int, student: bytes, items: bytes, ranks: tuple[int, ...] | None
) -> Outcome:
    """Put a response event into its row; of two different events under one id the smaller (earlier) one stays."""
    if row.arm == PENDING:
        row.timestamp_ms, row.arm, row.student, row.items, row.ranks = timestamp_ms, arm, student, items, ranks
        return "applied"
    new = (timestamp_ms, arm, student, items, ranks or ())
    if new >= (row.timestamp_ms, row.arm, row.student, row.items, row.ranks or ()):
        return "duplicate"
    row.timestamp_ms, row.arm, row.student, row.items, row.ranks = timestamp_ms, arm, student, items, ranks
    return "revised"


def merge_reaction(row: Row, reaction: Reaction) -> Outcome:
    """Put a reaction into its row's set."""
    reactions = row.reactions
    if not reactions:
        reactions.append(reaction)
        return "applied"
    at = bisect_left(reactions, reaction)
    if at < len(reactions) and reactions[at] == reaction:
        return "duplicate"
    if at == 0 and len(reactions) >= MAX_REACTIONS:
        return "duplicate"
    register = reaction[2:5]
    outcome: Outcome = "applied"
    for other in reactions:
        if other[2:5] == register:
            outcome = "revised"
            break
    reactions.insert(at, reaction)
    if len(reactions) > MAX_REACTIONS:
        del reactions[0]
    return outcome


def reaction_of(event: Feedback, identities: Identities) -> Reaction:
    """Return a feedback event as it stands in its response's row."""
    return (
        event.timestamp_ms,
        event.feedback_id,
        b"" if event.user_id is None else identities.student(event.user_id)[:TAG_BYTES],
        b"" if event.item_id is None else identities.item(event.item_id),
        event.kind,
        event.score,
    )


def grader(rule: GradeRule) -> Callable[[float], float | None]:
    """Return the function score → grade (None: no grade) that a configuration's rule stands for."""
    if rule == "score":
        return lambda score: score
    if isinstance(rule, tuple):
        steps = rule

        def graded(score: float) -> float | None:
            grade = None
            for threshold, reached in steps:
                if score < threshold:
                    break
                grade = reached
            return grade

        return graded
    constant = float(rule)
    return lambda _score: constant


class Rules:
    """One experiment's definitions, compiled: which reactions count, what they grade, what the grades amount to."""

    __slots__ = ("_graders", "_memo", "_scales", "_scored", "_scorer", "_window_ms", "metrics", "unrated")

    _MEMO_LIMIT = 100_000

    def __init__(self, experiment: ExperimentSettings) -> None:
        self._scorer = Scorer.of(experiment)
        self._window_ms = experiment.feedback_window_ms
        self._graders = {kind: grader(rule) for kind, rule in experiment.grades.items()}
        self._scales = {kind: experiment.max_grade for kind, rule in experiment.grades.items() if rule == "score"}
        self._scored = None if isinstance(experiment.gain, str) else frozenset(experiment.gain)
        self._memo: dict[tuple[tuple[int, ...], tuple[float, ...]], tuple[int, ...]] = {}
        self.metrics = len(experiment.metrics)
        self.unrated = Value(rated=False, values=(0,) * self.metrics, kinds=(), last_reaction_ms=0)

    def evaluate(self, row: Row) -> Value:
        """Return what the row contributes; a row without its response contributes nothing."""
        if not row.reactions or row.arm == PENDING:
            return self.unrated
        current = self._current(row)
        if not current:
            return self.unrated
        kinds: dict[str, int] = {}
        last = 0
        for (_, _, kind), reaction in current.items():
            kinds[kind] = kinds.get(kind, 0) + 1
            last = max(last, reaction[0])
        values = self._values(row, self._grades(current))
        counts = tuple(kinds.items()) if len(kinds) == 1 else tuple(sorted(kinds.items()))
        if values is None:
            return Value(rated=False, values=self.unrated.values, kinds=counts, last_reaction_ms=last)
        return Value(rated=True, values=values, kinds=counts, last_reaction_ms=last)

    def grades(self, row: Row) -> dict[bytes, float]:
        """Return the grade of each item (by its hash) that has one, shown in the list or not."""
        return self._grades(self._current(row))

    def judgements(self, row: Row) -> dict[tuple[bytes, bytes], tuple[float, int]]:
        """Return each item's grade by each student (a tag, b"" for the response's own), and when it was last graded."""
        judged: dict[tuple[bytes, bytes], tuple[float, int]] = {}
        for (student, item, kind), reaction in self._current(row).items():
            grade_of = self._graders.get(kind)
            grade = grade_of(reaction[5]) if item and grade_of is not None else None
            if grade is not None:
                best, last = judged.get((student, item), (grade, 0))
                judged[student, item] = max(best, grade), max(last, reaction[0])
        return judged

    def _grades(self, current: Mapping[tuple[bytes, bytes, str], Reaction]) -> dict[bytes, float]:
        grades: dict[bytes, float] = {}
        for (_, item, kind), reaction in current.items():
            grade_of = self._graders.get(kind)
            if item and grade_of is not None:
                grade = grade_of(reaction[5])
                if grade is not None and grade > grades.get(item, -1.0):
                    grades[item] = grade
        return grades

    def _current(self, row: Row) -> dict[tuple[bytes, bytes, str], Reaction]:
        """Return the register of each (student, item, kind): the latest reaction that counts."""
        opens = row.timestamp_ms
        closes = opens + self._window_ms
        own = row.student[:TAG_BYTES]
        scales, scored = self._scales, self._scored
        current: dict[tuple[bytes, bytes, str], Reaction] = {}
        for reaction in row.reactions:
            timestamp_ms, _, student, item, kind, score = reaction
            if not opens <= timestamp_ms <= closes:
                continue
            if kind in scales and (score > scales[kind] or (scored is not None and score not in scored)):
                continue
            current[b"" if student == own else student, item, kind] = reaction
        return current

    def _values(self, row: Row, grades: Mapping[bytes, float]) -> tuple[int, ...] | None:
        """Return the metrics of the graded items at their ranks; None if no item of the list has a grade."""
        judged = []
        for item, grade in grades.items():
            index = _index_of(item, row.items)
            if index is not None:
                judged.append((row.ranks[index] if row.ranks else index + 1, grade))
        if not judged:
            return None
        judged.sort()
        ranks, marks = zip(*judged, strict=True)
        known = self._memo.get((ranks, marks))
        if known is None:
            if len(self._memo) >= self._MEMO_LIMIT:
                self._memo.clear()
            known = tuple(-1 if value is None else value for value in self._scorer.score(ranks, marks))
            self._memo[ranks, marks] = known
        return known


def _index_of(item: bytes, items: bytes) -> int | None:
    at = items.find(item)
    while at > 0 and at % ITEM_BYTES:
        at = items.find(item, at + 1)
    return None if at < 0 else at // ITEM_BYTES


class Standing(NamedTuple):
    """What a student contributes: to each variant it has responses in, to its cohort, and as a statistical unit."""

    variants: tuple[int, ...]
    """Variants with responses, rising; more than one makes a crossover."""
    first_variant: int
    first_day: int
    unit: bytes
    """(variant, first day, sums, sums of the closed window) as 64-bit integers; empty for a crossover, left out."""


class Student(msgspec.Struct, gc=False):
    """One student of one experiment as the store keeps it.

    A sums vector is [responses, rated responses, Σ metric 1 …, undefined of metric 1 …]: 2 + 2·m integers, the sums in
    fixed point over rated, defined responses.
    """

    first_ms: int
    first_variant: int
    """Where and when the student was first shown a response; ties go to the smaller variant."""
    totals: dict[int, list[int]]
    """variant → sums over all responses."""
    days: dict[tuple[int, int], list[int]]
    """(variant, UTC day) → sums, for the days of the closed window that have responses."""
    version: int = 0
    standing: Standing | None = None
    """What it contributed when it was last settled; not stored."""


def expose(student: Student, timestamp_ms: int, variant: int, exposure_days: int) -> None:
    """Note that the student was shown a response; an earlier one moves the closed window, which can only shrink."""
    if (timestamp_ms, variant) >= (student.first_ms, student.first_variant):
        return
    moved = timestamp_ms // DAY_MS < student.first_ms // DAY_MS
    student.first_ms, student.first_variant = timestamp_ms, variant
    if moved:
        end = timestamp_ms // DAY_MS + exposure_days
        student.days = {key: sums for key, sums in student.days.items() if key[1] < end}


def add_sums(student: Student, timestamp_ms: int, variant: int, difference: Sequence[int], exposure_days: int) -> None:
    """Add a response's difference to the student's sums, and to its day's if that lies in the closed window.

    A response that adds itself was shown: see `expose`.
    """
    if difference[0] > 0:
        expose(student, timestamp_ms, variant, exposure_days)
    _accumulate(student.totals, variant, difference)
    day = timestamp_ms // DAY_MS
    if day < student.first_ms // DAY_MS + exposure_days:
        _accumulate(student.days, (variant, day), difference)


def _accumulate(sums: dict[Key, list[int]], key: Key, difference: Sequence[int]) -> None:
    known = sums.get(key)
    if known is None:
        sums[key] = list(difference)
        return
    for index, change in enumerate(difference):
        if change:
            known[index] += change
    # Without a response there can be more only while shards are brought in line, in whatever order.
    if not known[0] and not any(known):
        del sums[key]


def standing(student: Student, width: int) -> Standing:
    """Return what the student contributes, with sums vectors of `width`."""
    first_day = student.first_ms // DAY_MS
    if len(student.totals) != 1:
        return Standing(tuple(sorted(student.totals)), student.first_variant, first_day, b"")
    ((variant, totals),) = student.totals.items()
    window = None
    for (day_variant, _), sums in student.days.items():
        if day_variant == variant:
            window = sums if window is None else [a + b for a, b in zip(window, sums, strict=True)]
    unit = pack_unit(variant, first_day, totals, window or [0] * width)
    return Standing((variant,), student.first_variant, first_day, unit)


def pack_unit(variant: int, first_day: int, totals: Sequence[int], window: Sequence[int]) -> bytes:
    """Return a unit's numbers as native 64-bit integers, for numpy to read a whole batch of them at once."""
    return _unit_format(2 * len(totals) + 2).pack(variant, first_day, *totals, *window)


@cache
def _unit_format(numbers: int) -> Struct:
    return Struct(f"={numbers}q")


def response_sums(value: Value) -> tuple[int, ...]:
    """Return one response's sums vector."""
    if not value.rated:
        return (1, 0, *value.values, *value.values)
    return (
        1,
        1,
        *(max(metric, 0) for metric in value.values),
        *(int(metric < 0) for metric in value.values),
    )
