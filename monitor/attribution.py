"""What one response and one student amount to, as pure functions of the events seen about them.

A response's row is a set: the response event that won (the earliest, should an id be used twice) and every distinct
reaction to it. Whatever order the events came in, the set is the same, and `Rules.evaluate` is a function of the set;
so is everything that is summed from it. Nothing here knows the time of day.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Any, Final, Literal, TypeAlias, final

from mypy_extensions import i64

from monitor.config import FEEDBACK, LATENCY, ExperimentSettings, GradeRule
from monitor.events import Feedback, Response
from monitor.identity import ITEM_BYTES, TAG_BYTES, Identities
from monitor.ranking import Scorer

DAY_MS: Final = 86_400_000
_HALF: Final = 0.5
_PAIR: Final = 2
MAX_REACTIONS: Final = 1000
"""Reactions kept per response, the newest by event time: which those are does not depend on the order of arrival."""

Reaction: TypeAlias = tuple[int, str, bytes, bytes, str, float]
"""(event time in ms, feedback id, student's tag or b"", item's hash or b"" for the whole answer, kind, score)."""
Boxed: TypeAlias = tuple[Any, ...]
"""A `Reaction` as one object: what is compiled takes the other apart, and makes a second tuple to put it into a row."""

Outcome = Literal["applied", "duplicate", "revised"]

PENDING: Final = -1
BEFORE: Final = 255
"""Stands for the variant of a response from before the experiment, of whichever variant it was."""
UNKNOWN: Final = -1
"""Stands for a latency or a category that a response does not give."""


@final
class Row:
    """One response as the store keeps it.

    While only its feedback has been seen, `arm` is `PENDING` and `timestamp_ms` that of the newest reaction.
    """

    __slots__ = (
        "arm", "category", "home", "items", "latency_ms", "name", "ranks", "reactions", "student", "timestamp_ms",
        "touched", "value", "version",
    )  # fmt: skip

    def __init__(
        self,
        timestamp_ms: int = 0,
        arm: int = PENDING,
        student: bytes = b"",
        items: bytes = b"",
        ranks: tuple[int, ...] | None = None,
        latency_ms: int = UNKNOWN,
        category: int = UNKNOWN,
        reactions: tuple[Reaction, ...] = (),
        version: int = 0,
    ) -> None:
        """Begin with what is stored."""
        self.timestamp_ms = timestamp_ms
        self.arm = arm
        self.student = student
        self.items = items
        """The items' hashes, `ITEM_BYTES` each, in the order of the list."""
        self.ranks = ranks
        """The items' positions; None where they are 1, 2, 3 …"""
        self.latency_ms = latency_ms
        """How long the bot took, in whole ms; `UNKNOWN` if the response does not say."""
        self.category = category
        """Place among the experiment's declared categories, sorted; their number for any other, `UNKNOWN` for none."""
        self.reactions = reactions
        """Sorted, distinct."""
        self.version = version
        """See `monitor.store.rows`."""
        self.value: Value | None = None
        """What it contributed when it was last evaluated; not stored."""
        self.name = b""
        """The stored id of its response; not in the row."""
        self.home: i64 = 0
        """The shard where it is stored; not in the row."""
        self.touched = False
        """Whether the batch that is being applied changes it; not stored."""

    def is_blank(self) -> bool:
        """Return whether it says nothing yet."""
        return self.arm == PENDING and not self.reactions


@final
class Value:
    """What a response contributes: integers in fixed point, -1 where the metric is undefined."""

    __slots__ = ("kinds", "last_reaction_ms", "rated", "sums", "values")

    def __init__(
        self,
        rated: bool,  # noqa: FBT001
        values: tuple[int, ...],
        sums: tuple[int, ...],
        kinds: tuple[tuple[str, int], ...],
        last_reaction_ms: int,
    ) -> None:
        """Take what was worked out."""
        self.rated = rated
        self.values = values
        self.sums = sums
        """The same as a student's sums vector: see `monitor.students`."""
        self.kinds = kinds
        """Current reactions by kind, sorted by kind."""
        self.last_reaction_ms = last_reaction_ms


def merge_response(
    row: Row,
    timestamp_ms: int,
    arm: int,
    student: bytes,
    items: bytes,
    ranks: tuple[int, ...] | None,
    latency_ms: int,
    category: int,
) -> Outcome:
    """Put a response event into its row; of two different events under one id the smaller (earlier) one stays."""
    outcome: Outcome = "applied"
    if row.arm != PENDING:
        new = (timestamp_ms, arm, student, items, ranks or (), latency_ms, category)
        known = (row.timestamp_ms, row.arm, row.student, row.items, row.ranks or (), row.latency_ms, row.category)
        if new >= known:
            return "duplicate"
        outcome = "revised"
    row.timestamp_ms, row.arm, row.student, row.items, row.ranks = timestamp_ms, arm, student, items, ranks
    row.latency_ms, row.category = latency_ms, category
    return outcome


def review_of(row: Row) -> float | None:
    """Return the score of the latest review of a response, None without: it counts whenever it was written."""
    for reaction in reversed(row.reactions):
        if reaction[4] == "reviewed":
            return reaction[5]
    return None


def latency_of(event: Response) -> int:
    """Return a response's latency as it stands in its row: in whole ms, half to even, `UNKNOWN` if it does not say."""
    latency_ms = event.latency_ms
    if latency_ms is None:
        return UNKNOWN
    whole = int(latency_ms)
    rest = latency_ms - whole
    return whole + 1 if rest > _HALF or (rest == _HALF and whole & 1) else whole


def merge_reaction(row: Row, reaction: Boxed) -> Outcome:
    """Put a reaction into its row's set."""
    reactions = row.reactions
    if not reactions:
        row.reactions = (reaction,)
        return "applied"
    at = bisect_left(reactions, reaction)
    if at < len(reactions) and reactions[at] == reaction:
        return "duplicate"
    if at == 0 and len(reactions) >= MAX_REACTIONS:
        return "duplicate"
    tag: bytes = reaction[2]
    item: bytes = reaction[3]
    kind: str = reaction[4]
    outcome: Outcome = "applied"
    for other in reactions:
        if other[4] == kind and other[3] == item and other[2] == tag:
            outcome = "revised"
            break
    row.reactions = (*reactions[:at], reaction, *reactions[at:])[-MAX_REACTIONS:]
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


@final
class Rules:
    """One experiment's definitions, compiled: which reactions count, what they grade, what the grades amount to."""

    __slots__ = (
        "_graders", "_kinds", "_latency", "_memo", "_only", "_scales", "_scored", "_scorer", "_starts_ms",
        "_window_ms", "metrics", "unrated",
    )  # fmt: skip

    _MEMO_LIMIT = 100_000
    _ONLY_LIMIT = 10_000

    def __init__(self, experiment: ExperimentSettings) -> None:
        self._scorer = Scorer.of(experiment)
        self._window_ms = experiment.feedback_window_ms
        self._starts_ms = experiment.starts_at_ms or 0
        self._graders = {kind: grader(rule) for kind, rule in experiment.grades.items()}
        self._scales = {kind: experiment.max_grade for kind, rule in experiment.grades.items() if rule == "score"}
        self._scored = None if isinstance(experiment.gain, str) else frozenset(experiment.gain)
        self._memo: dict[tuple[tuple[int, ...], tuple[float, ...]], tuple[tuple[int, ...], tuple[int, ...]]] = {}
        self._only: dict[tuple[str, int, float | None], Value] = {}
        """(kind, rank or 0 for what is not in the list, grade) → what a row with no other reaction contributes."""
        self.metrics = len(experiment.metrics)
        nothing = (0,) * self.metrics
        self.unrated = Value(False, nothing, (1, 0, *nothing, *nothing), (), 0)  # noqa: FBT003
        self._kinds = [name.removeprefix(FEEDBACK) for name in experiment.watched if name.startswith(FEEDBACK)]
        self._latency = LATENCY in experiment.watched

    def evaluate(self, row: Row) -> Value:
        """Return what the row contributes; a row without its response contributes nothing."""
        value = self._evaluate(row)
        return self._with_watched(row, value) if self._kinds or self._latency else value

    def _with_watched(self, row: Row, value: Value) -> Value:
        """Return the value with what guardrails watch in its sums: see `monitor.students`."""
        counted = [kind for kind, _ in value.kinds]
        totals = [int(kind in counted) for kind in self._kinds]
        missing = [0] * len(totals)
        if self._latency:
            known = row.latency_ms != UNKNOWN
            totals.append(row.latency_ms if known else 0)
            missing.append(int(not known))
        return Value(value.rated, value.values, (*value.sums, *totals, *missing), value.kinds, value.last_reaction_ms)

    def _evaluate(self, row: Row) -> Value:
        if not row.reactions or row.arm == PENDING:
            return self.unrated
        if len(row.reactions) == 1:
            return self._with_only(row, row.reactions[0])
        return self._with(row, self._current(row))

    def _with_only(self, row: Row, reaction: Reaction) -> Value:
        """Return what the row contributes by its only reaction: as `_with` says, which is asked once for all alike."""
        timestamp_ms, _, _, item, kind, score = reaction
        if not row.timestamp_ms <= timestamp_ms <= self._closes(row) or not self._is_on_scale(kind, score):
            return self.unrated
        index = place_of(item, row.items) if item else -1
        rank, grade = 0, None
        if index >= 0:
            rank = row.ranks[index] if row.ranks is not None else int(index) + 1
            grade_of = self._graders.get(kind)
            grade = grade_of(score) if grade_of is not None else None
        place = kind, rank, grade
        known = self._only.get(place)
        if known is None:
            if len(self._only) >= self._ONLY_LIMIT:
                self._only.clear()
            known = self._only[place] = self._with(row, [reaction])
        return Value(known.rated, known.values, known.sums, known.kinds, timestamp_ms)

    def _with(self, row: Row, current: list[Reaction]) -> Value:
        """Return what the row contributes by its current reactions."""
        if not current:
            return self.unrated
        kinds: dict[str, int] = {}
        last = 0
        for reaction in current:
            kind = reaction[4]
            kinds[kind] = kinds.get(kind, 0) + 1
            last = max(last, reaction[0])
        counts = tuple(kinds.items()) if len(kinds) == 1 else tuple(sorted(kinds.items()))
        metrics = self._metrics(row, self._grades(current))
        if metrics is None:
            return Value(False, self.unrated.values, self.unrated.sums, counts, last)  # noqa: FBT003
        return Value(True, metrics[0], metrics[1], counts, last)  # noqa: FBT003

    def grades(self, row: Row) -> dict[bytes, float]:
        """Return the grade of each item (by its hash) that has one, shown in the list or not."""
        return self._grades(self._current(row))

    def judgements(self, row: Row) -> dict[tuple[bytes, bytes], tuple[float, int]]:
        """Return each item's grade by each student (a tag, b"" for the response's own), and when it was last graded."""
        own = row.student[:TAG_BYTES]
        judged: dict[tuple[bytes, bytes], tuple[float, int]] = {}
        for timestamp_ms, _, student, item, kind, score in self._current(row):
            grade_of = self._graders.get(kind)
            grade = grade_of(score) if item and grade_of is not None else None
            if grade is not None:
                key = b"" if student == own else student, item
                best, last = judged.get(key, (grade, 0))
                judged[key] = max(best, grade), max(last, timestamp_ms)
        return judged

    def _grades(self, current: list[Reaction]) -> dict[bytes, float]:
        grades: dict[bytes, float] = {}
        for _, _, _, item, kind, score in current:
            grade_of = self._graders.get(kind)
            if item and grade_of is not None:
                grade = grade_of(score)
                if grade is not None and grade > grades.get(item, -1.0):
                    grades[item] = grade
        return grades

    def _current(self, row: Row) -> list[Reaction]:
        """Return the register of each (student, item, kind): the latest reaction that counts."""
        opens, closes = row.timestamp_ms, self._closes(row)
        counting = []
        for reaction in row.reactions:
            timestamp_ms, _, _, _, kind, score = reaction
            if opens <= timestamp_ms <= closes and self._is_on_scale(kind, score):
                counting.append(reaction)
        if len(counting) <= 1:
            return counting
        own = row.student[:TAG_BYTES]
        if len(counting) == _PAIR:
            one, other = counting
            differs = one[4] != other[4] or one[3] != other[3] or (one[2] or own) != (other[2] or own)
            return counting if differs else [other]
        registers: dict[tuple[bytes, bytes, str], Reaction] = {}
        for reaction in counting:
            _, _, student, item, kind, _ = reaction
            registers[b"" if student == own else student, item, kind] = reaction
        return list(registers.values())

    def _closes(self, row: Row) -> int:
        """Return the last time at which a reaction counts."""
        closes = row.timestamp_ms + self._window_ms
        # What is said after the experiment has begun may be what a variant has changed.
        return min(closes, self._starts_ms - 1) if row.arm & 255 == BEFORE else closes

    def _is_on_scale(self, kind: str, score: float) -> bool:
        largest = self._scales.get(kind)
        return largest is None or (score <= largest and (self._scored is None or score in self._scored))

    def _metrics(self, row: Row, grades: dict[bytes, float]) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """Return values and sums of the graded items at their ranks; None if no item of the list has a grade."""
        judged = []
        for item, grade in grades.items():
            index = place_of(item, row.items)
            if index >= 0:
                judged.append((row.ranks[index] if row.ranks is not None else int(index) + 1, grade))
        if not judged:
            return None
        judged.sort()
        ranks, marks = tuple([rank for rank, _ in judged]), tuple([grade for _, grade in judged])
        known = self._memo.get((ranks, marks))
        if known is None:
            if len(self._memo) >= self._MEMO_LIMIT:
                self._memo.clear()
            values = tuple([-1 if value is None else value for value in self._scorer.score(ranks, marks)])
            undefined = [int(value < 0) for value in values]
            known = values, (1, 1, *[max(value, 0) for value in values], *undefined)
            self._memo[ranks, marks] = known
        return known


def place_of(item: bytes, items: bytes) -> i64:
    """Return the place of an item in a list, by their hashes; -1 if it is not in there."""
    first, end = item[0], i64(len(items))
    at: i64 = 0
    while at < end:
        if items[at] == first and items[at : at + ITEM_BYTES] == item:
            return at // ITEM_BYTES
        at += ITEM_BYTES
    return -1
