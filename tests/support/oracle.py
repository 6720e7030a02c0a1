"""A straightforward recomputation of everything the store should say, from the whole set of events at once.

Written from the definitions in docs/metrics.md and sharing no code with the package but its records.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from monitor.config import ExperimentSettings
from monitor.events import Feedback, Response

DAY = 86_400_000


@dataclass
class Judged:
    """One response with what its reactions amount to."""

    response: Response
    grades: dict[int, float]
    """position → grade"""
    kinds: dict[str, int]
    metrics: dict[str, float | None] = field(default_factory=dict)
    ratings: dict[tuple[str | None, str], float] = field(default_factory=dict)
    """(student, shown item) → grade"""
    review: float | None = None
    """The score of the latest review, whenever it was written."""

    @property
    def rated(self) -> bool:
        """Whether any shown item has a grade."""
        return bool(self.grades)


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


def judge(experiment: ExperimentSettings, events: Iterable[Response | Feedback]) -> list[Judged]:
    """Return every response that counts, once, with its grades."""
    responses: dict[str, Response] = {}
    reactions: dict[str, set[Feedback]] = defaultdict(set)
    unique = {_identity(event): event for event in events}
    for event in unique.values():
        if isinstance(event, Feedback):
            reactions[event.response_id].add(event)
        elif event.experiment == experiment.name and event.variant in experiment.variants:
            known = responses.get(event.response_id)
            if known is None or _standing(experiment, event) < _standing(experiment, known):
                responses[event.response_id] = event
    return [_judged(experiment, response, reactions[response.response_id]) for response in responses.values()]


def _identity(event: Response | Feedback) -> object:
    if isinstance(event, Feedback):
        return event
    return (
        event.response_id, event.timestamp_ms, event.variant, event.user_id, event.items, event.latency_ms,
        event.category,
    )  # fmt: skip


def _standing(experiment: ExperimentSettings, event: Response) -> tuple[int, int, int, int]:
    """Return what decides between two responses of one id, as far as streams let them differ: the smaller stands."""
    return event.timestamp_ms, len(event.items), latency_ms(event), category(experiment, event)


def latency_ms(event: Response) -> int:
    """Return a response's latency in whole ms, -1 without one."""
    return -1 if event.latency_ms is None else round(event.latency_ms)


def category(experiment: ExperimentSettings, event: Response) -> int:
    """Return the place of a response's category among the declared ones, their number for another, -1 for none."""
    names = sorted(experiment.categories)
    if event.category is None:
        return -1
    return names.index(event.category) if event.category in names else len(names)


def cells(hash_key: bytes, responses: Iterable[Response]) -> list[int]:
    """Return how often items of each of 64 cells were shown: the low six bits of the BLAKE2b of key and item."""
    found = [0] * 64
    for each in responses:
        for item in each.items:
            digest = blake2b(hash_key + item.encode(), digest_size=6, person=b"item").digest()
            found[int.from_bytes(digest) % 64] += 1
    return found


def _judged(experiment: ExperimentSettings, response: Response, reactions: set[Feedback]) -> Judged:
    latest: dict[tuple[str | None, str | None, str], Feedback] = {}
    for each in reactions:
        scale = experiment.max_grade if experiment.grades.get(each.kind) == "score" else math.inf
        if not 0 <= each.timestamp_ms - response.timestamp_ms <= experiment.feedback_window_ms or each.score > scale:
            continue
        if response.timestamp_ms < (experiment.starts_at_ms or 0) <= each.timestamp_ms:
            continue
        user = each.user_id if each.user_id is not None else response.user_id
        register = (user, each.item_id, each.kind)
        known = latest.get(register)
        if known is None or (each.timestamp_ms, each.feedback_id) > (known.timestamp_ms, known.feedback_id):
            latest[register] = each
    kinds: dict[str, int] = defaultdict(int)
    grades: dict[int, float] = {}
    ratings: dict[tuple[str | None, str], float] = {}
    ranks = response.ranks or range(1, len(response.items) + 1)
    positions = dict(zip(response.items, ranks, strict=True))
    for each in latest.values():
        kinds[each.kind] += 1
        grade = _grade(experiment, each.kind, each.score)
        if each.item_id in positions and grade is not None:
            rank = positions[each.item_id]
            grades[rank] = max(grade, grades.get(rank, grade))
            user = each.user_id if each.user_id is not None else response.user_id
            assert each.item_id is not None
            ratings[user, each.item_id] = max(grade, ratings.get((user, each.item_id), grade))
    reviews = sorted((each.timestamp_ms, each.feedback_id, each.score) for each in reactions if each.kind == "reviewed")
    judged = Judged(response, grades, dict(kinds), ratings=ratings, review=reviews[-1][2] if reviews else None)
    if grades:
        judged.metrics = {
            metric.name: _metric(experiment, metric.measure, metric.k, grades) for metric in experiment.metrics
        }
    return judged


def decayed_mean(pairs: Sequence[tuple[int, float]], as_of_ms: int, half_life_ms: int) -> tuple[float, float] | None:
    """Return the exact decayed mean and effective count of (time, value) pairs; None without any."""
    past = [(at_ms, value) for at_ms, value in pairs if at_ms <= as_of_ms]
    if not past:
        return None
    newest = max(at_ms for at_ms, _ in past)
    weights = [2.0 ** (-(newest - at_ms) / half_life_ms) for at_ms, _ in past]
    total = math.fsum(weights)
    mean = math.fsum(weight * value for weight, (_, value) in zip(weights, past, strict=True)) / total
    return mean, total**2 / math.fsum(weight**2 for weight in weights)


@dataclass
class StudentSums:
    """One student's responses in one variant: N, n, and per metric (n_q, S)."""

    responses: int = 0
    rated: int = 0
    metrics: dict[str, list[float]] = field(default_factory=lambda: defaultdict(lambda: [0, 0.0]))


def students(judged: Iterable[Judged]) -> dict[str, dict[str, StudentSums]]:
    """Return student → variant → sums, of the responses that name a student."""
    sums: dict[str, dict[str, StudentSums]] = defaultdict(lambda: defaultdict(StudentSums))
    for each in judged:
        if each.response.user_id is None:
            continue
        own = sums[each.response.user_id][each.response.variant]
        own.responses += 1
        own.rated += each.rated
        for name, value in each.metrics.items():
            if value is not None:
                own.metrics[name][0] += 1
                own.metrics[name][1] += value
    return sums
