"""A straightforward recomputation of the stored results from the complete set of events: the oracle of exactness tests.

The functions follow the definitions in docs/metrics.md and share only the event records with the package.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from hashlib import blake2b
from zoneinfo import ZoneInfo

from monitor.config import ExperimentSettings, MetricSpec
from monitor.events import Feedback, Response

DAY_MS = 86_400_000
_EPOCH_ORDINAL = date(1970, 1, 1).toordinal()


@dataclass
class ExpectedResponse:
    """A response with the grades and metrics that follow from the response's reactions."""

    response: Response
    grades: dict[int, float]
    """Position → grade."""
    kinds: dict[str, int]
    """Feedback kind → number of current reactions."""
    metrics: dict[str, float | None] = field(default_factory=dict)
    """Metric → value, None if undefined; without grades, only the answer metrics."""
    ratings: dict[tuple[str | None, str], float] = field(default_factory=dict)
    """(student, item of the response) → grade."""
    latest_review: float | None = None
    """The score of the latest review, of any time; None without a review."""
    is_rated: bool = False
    """Whether any item of the response has a grade or, without ranking metrics, an answer metric has feedback."""


def local_day(zone: str, timestamp_ms: int) -> int:
    """Return the days from 1970-01-01 to the date of a time in a zone."""
    return datetime.fromtimestamp(timestamp_ms // 1000, ZoneInfo(zone)).date().toordinal() - _EPOCH_ORDINAL


def local_time_ms(zone: str, day: int, hour: int = 0, minute: int = 0) -> int:
    """Return a time of day on a day since 1970; of a time that a clock shows twice, the first."""
    midnight = datetime.fromordinal(day + _EPOCH_ORDINAL)
    return round(midnight.replace(hour=hour, minute=minute, tzinfo=ZoneInfo(zone)).timestamp() * 1000)


def _gain(experiment: ExperimentSettings, grade: float) -> float:
    if isinstance(experiment.gain, str):
        return grade if experiment.gain == "linear" else float(2.0**grade) - 1
    return experiment.gain[grade]


def _discount(experiment: ExperimentSettings, rank: int) -> float:
    if experiment.discount == "log2":
        return 1 / math.log2(rank + 1)
    if experiment.discount == "reciprocal":
        return 1 / rank
    return 1 / max(1.0, math.log2(rank)) if rank > 1 else 1.0


def _metric(experiment: ExperimentSettings, measure: str, k: int, grades: dict[int, float]) -> float | None:
    top = {rank: grade for rank, grade in grades.items() if rank <= k}
    relevant = sorted(rank for rank, grade in top.items() if grade >= experiment.relevant_grade)
    dcg = sum(_gain(experiment, grade) * _discount(experiment, rank) for rank, grade in top.items())
    if measure == "cg":
        return sum(_gain(experiment, grade) for grade in top.values())
    if measure == "dcg":
        return dcg
    if measure == "success":
        return float(bool(relevant))
    if measure == "rr":
        return 1 / relevant[0] if relevant else 0.0
    if measure == "p":
        return len(relevant) / k
    best = [experiment.max_grade] * k if experiment.ideal == "constant" else sorted(grades.values(), reverse=True)[:k]
    ideal = sum(_gain(experiment, grade) * _discount(experiment, rank) for rank, grade in enumerate(best, 1))
    return dcg / ideal if ideal else None


def _grade(experiment: ExperimentSettings, kind: str, score: float) -> float | None:
    rule = experiment.grades.get(kind)
    if rule is None:
        return None
    if rule == "score":
        return score
    if isinstance(rule, tuple):
        return max((grade for threshold, grade in rule if score >= threshold), default=None)
    assert isinstance(rule, (int, float))
    return float(rule)


def compute_expected_responses(
    experiment: ExperimentSettings, events: Iterable[Response | Feedback]
) -> list[ExpectedResponse]:
    """Return the distinct responses of an experiment with grades and metrics."""
    responses: dict[str, Response] = {}
    reactions: dict[str, set[Feedback]] = defaultdict(set)
    unique = {_identity(event): event for event in events}
    for event in unique.values():
        if isinstance(event, Feedback):
            reactions[event.response_id].add(event)
        elif event.experiment == experiment.name and event.variant in experiment.variants:
            previous = responses.get(event.response_id)
            if previous is None or _precedence(experiment, event) < _precedence(experiment, previous):
                responses[event.response_id] = event
    return [
        _expected_response(experiment, response, reactions[response.response_id]) for response in responses.values()
    ]


def _identity(event: Response | Feedback) -> object:
    if isinstance(event, Feedback):
        return event
    return (
        event.response_id, event.timestamp_ms, event.variant, event.user_id, event.items, event.latency_ms,
        event.category, event.session_id,
    )  # fmt: skip


def _precedence(experiment: ExperimentSettings, event: Response) -> tuple[int, int, int, int]:
    """Return the sort key of responses with the same id; the response with the smallest key counts."""
    return event.timestamp_ms, len(event.items), rounded_latency_ms(event), category_index(experiment, event)


def rounded_latency_ms(event: Response) -> int:
    """Return the latency of a response in whole ms, -1 without a latency."""
    return -1 if event.latency_ms is None else round(event.latency_ms)


def category_index(experiment: ExperimentSettings, event: Response) -> int:
    """Return the index of a response's category: the number of declared categories for any other, -1 for none."""
    names = sorted(experiment.categories)
    if event.category is None:
        return -1
    return names.index(event.category) if event.category in names else len(names)


def item_cell_counts(hash_key: bytes, responses: Iterable[Response]) -> list[int]:
    """Return the number of items shown per cell; the cell is the low six bits of the BLAKE2b of key and item."""
    counts = [0] * 64
    for response in responses:
        for item in response.items:
            digest = blake2b(hash_key + item.encode(), digest_size=6, person=b"item").digest()
            counts[int.from_bytes(digest) % 64] += 1
    return counts


def _counts(experiment: ExperimentSettings, response: Response, reaction: Feedback) -> bool:
    """Return whether a reaction is within the feedback window, and its score on the scale."""
    age_ms = reaction.timestamp_ms - response.timestamp_ms
    if not -experiment.feedback_clock_tolerance_ms <= age_ms <= experiment.feedback_window_ms:
        return False
    if response.timestamp_ms < (experiment.starts_at_ms or 0) <= reaction.timestamp_ms:
        return False
    ranges = [
        (metric.least, metric.most)
        for metric in experiment.metrics
        if metric.measure == "score" and metric.kind == reaction.kind
    ]
    if experiment.grades.get(reaction.kind) == "score":
        ranges.append((0.0, experiment.max_grade))
    return reaction.is_withdrawn or all(least <= reaction.score <= most for least, most in ranges)


def _current_reactions(
    experiment: ExperimentSettings, response: Response, reactions: set[Feedback]
) -> list[tuple[str | None, Feedback]]:
    """Return (student, reaction) of the current reactions in the order of time."""
    current: dict[tuple[str | None, str | None, str], Feedback] = {}
    registers = {kind: group[0] for group in experiment.exclusive_kinds for kind in group}
    for reaction in sorted(reactions, key=lambda each: (each.timestamp_ms, each.is_withdrawn, each.feedback_id)):
        if not _counts(experiment, response, reaction):
            continue
        user = reaction.user_id if reaction.user_id is not None else response.user_id
        name = registers.get(reaction.kind, reaction.kind)
        if reaction.is_withdrawn:
            for key in [key for key in current if key[:2] == (user, reaction.item_id)]:
                if current[key].kind == reaction.kind:
                    del current[key]
        else:
            number = reaction.feedback_id if reaction.kind in experiment.additive_kinds else ""
            current[user, reaction.item_id, f"{name} {number}"] = reaction
    ordered = sorted(current.items(), key=lambda pair: (pair[1].timestamp_ms, pair[1].feedback_id))
    return [(user, reaction) for (user, _, _), reaction in ordered]


def _expected_response(
    experiment: ExperimentSettings, response: Response, reactions: set[Feedback]
) -> ExpectedResponse:
    kinds: dict[str, int] = defaultdict(int)
    grades: dict[int, float] = {}
    ratings: dict[tuple[str | None, str], float] = {}
    ranks = response.ranks or range(1, len(response.items) + 1)
    positions = dict(zip(response.items, ranks, strict=True))
    current = _current_reactions(experiment, response, reactions)
    for user, reaction in current:
        kinds[reaction.kind] += 1
        grade = _grade(experiment, reaction.kind, reaction.score)
        if reaction.item_id in positions and grade is not None:
            rank = positions[reaction.item_id]
            grades[rank] = max(grade, grades.get(rank, grade))
            assert reaction.item_id is not None
            ratings[user, reaction.item_id] = max(grade, ratings.get((user, reaction.item_id), grade))
    reviews = sorted(
        (reaction.timestamp_ms, reaction.feedback_id, reaction.score, reaction.is_withdrawn)
        for reaction in reactions
        if reaction.kind == "reviewed"
    )
    expected = ExpectedResponse(
        response,
        grades,
        dict(kinds),
        ratings=ratings,
        latest_review=reviews[-1][2] if reviews and not reviews[-1][3] else None,
        is_rated=bool(grades) if experiment.ranking_metrics else not _answer_kinds(experiment).isdisjoint(kinds),
    )
    if grades:
        expected.metrics = {
            metric.name: _metric(experiment, metric.measure, metric.k, grades) for metric in experiment.ranking_metrics
        }
    for metric in experiment.answer_metrics:
        scores = [reaction.score for _, reaction in current if reaction.kind == metric.kind]
        value = _answer_value(metric, response, scores)
        expected.metrics[metric.name] = None if value is None else min(value, metric.most)
    return expected


def _answer_kinds(experiment: ExperimentSettings) -> set[str]:
    """Return the kinds of feedback of the answer metrics, and the kinds that exclude them."""
    kinds = {metric.kind for metric in experiment.answer_metrics}
    return kinds | {kind for group in experiment.exclusive_kinds for kind in group if kinds & set(group)}


def _answer_value(metric: MetricSpec, response: Response, scores: list[float]) -> float | None:
    """Return the value of an answer metric before the cap; `scores` are of current reactions in the order of time."""
    latency_ms = rounded_latency_ms(response)
    values: dict[str, float | None] = {
        "share": float(any(score >= metric.threshold for score in scores)),
        "score": scores[-1] if scores else metric.silence,
        "sum": math.fsum(scores),
        "items_shown": float(len(response.items)),
        "empty": float(not response.items),
        "latency_ms": None if latency_ms < 0 else float(latency_ms),
        "latency_above_ms": None if latency_ms < 0 else float(latency_ms > metric.threshold),
    }
    return values[metric.measure]


def expected_decayed_mean(
    pairs: Sequence[tuple[int, float]], as_of_ms: int, half_life_ms: int
) -> tuple[float, float] | None:
    """Return the exact decayed mean and effective count of (time in ms, value) pairs; None without pairs."""
    past = [(time_ms, value) for time_ms, value in pairs if time_ms <= as_of_ms]
    if not past:
        return None
    newest_ms = max(time_ms for time_ms, _ in past)
    weights = [2.0 ** (-(newest_ms - time_ms) / half_life_ms) for time_ms, _ in past]
    total = math.fsum(weights)
    mean = math.fsum(weight * value for weight, (_, value) in zip(weights, past, strict=True)) / total
    return mean, total**2 / math.fsum(weight**2 for weight in weights)


@dataclass
class StudentSums:
    """The responses of a student in a variant: number, rated number, and per metric [number of values, sum]."""

    responses: int = 0
    rated: int = 0
    metrics: dict[str, list[float]] = field(default_factory=lambda: defaultdict(lambda: [0, 0.0]))


def student_sums_by_variant(expected_responses: Iterable[ExpectedResponse]) -> dict[str, dict[str, StudentSums]]:
    """Return student → variant → sums over the responses with a student."""
    sums: dict[str, dict[str, StudentSums]] = defaultdict(lambda: defaultdict(StudentSums))
    for expected in expected_responses:
        if expected.response.user_id is None:
            continue
        student_sums = sums[expected.response.user_id][expected.response.variant]
        student_sums.responses += 1
        student_sums.rated += expected.is_rated
        for name, value in expected.metrics.items():
            if value is not None:
                student_sums.metrics[name][0] += 1
                student_sums.metrics[name][1] += value
    return sums
