"""Simulated classroom traffic with a declared effect; the same seed generates the same events.

The model:

- A student has an ability a ~ N(0, 0.55²) and stays in one variant. The number of questions per student is log-normal.
- Responses follow school hours; weekends have less traffic.
- The item at rank r of a response has a latent quality: 2.3 − 0.3·(r − 1) + effect of the variant + a + N(0, 0.85²).
  The item's grade is the quality rounded to an integer from 0 to 4. So responses to a student correlate by about 0.3.
- A declared share of responses is rated, at one or two ranks. Some ratings are sent twice, some are revised later, and
  some arrive before the response.
- A variant may lose a share of its latent quality at a time. Effects may begin at a time, or fade with the days since a
  student's first response. Variants may differ in the share of responses that are escalated to a human, and in latency.
"""

from __future__ import annotations

import heapq
import json
import math
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import count
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from monitor.clock import HOUR_MS
from monitor.config import ExperimentSettings
from monitor.errors import setting_text
from monitor.metrics import FIXED_POINT_SCALE, Scorer

_FIRST_RANK_QUALITY: Final = 2.3
_QUALITY_LOSS_PER_RANK: Final = 0.3
_ABILITY_SD: Final = 0.55
_QUALITY_NOISE_SD: Final = 0.85
_RATED_RANK_SHARES: Final = (0.4, 0.25, 0.15, 0.12, 0.08)
"""Share of rated answers by the first rated rank, from rank 1."""
_SECOND_RATING_SHARE: Final = 0.33
_HOURLY_TRAFFIC: Final = (1, 1, 1, 1, 1, 2, 5, 12, 20, 24, 22, 18, 14, 16, 20, 24, 26, 24, 20, 16, 12, 8, 4, 2)
_WEEKEND_TRAFFIC_FACTOR: Final = 0.45
_TOPICS: Final = ("fractions", "geometry", "algebra", "grammar", "essays", "physics", "chemistry", "history")
_LATEST_START_MS: Final = 252_771_000_000_000
_DEFAULT_START_MS: Final = 1_793_577_600_000
_TRUE_MEAN_SAMPLE_SIZE: Final = 200_000
_DEFAULT_ESCALATION_SHARE: Final = 0.02
_MAX_LATENCY_FACTOR: Final = 1000.0
_MAX_COUNT: Final = 100_000_000
_MAX_DAYS: Final = 3650
_HOUR_S: Final = 3600

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


class SimulatedEvent(NamedTuple):
    """A message: arrival time, kind of event, key (the student) and value (JSON)."""

    arrival_ms: int
    kind: Literal["response", "feedback"]
    key: bytes
    payload: bytes


class QualityDrop(NamedTuple):
    """A loss of latent quality of a variant's responses from a time on."""

    variant: str
    share: float
    """Lost share of the latent quality, from 0 to 1."""
    at_ms: int


@dataclass(frozen=True, slots=True)
class Scenario:
    """The parameters of a simulation; effects are shifts of the latent quality (in grades)."""

    experiment: str = "ranker-v2"
    shares: Mapping[str, float] = field(default_factory=lambda: {"control": 0.5, "treatment": 0.5})
    """Share of students by variant; the first variant is the control."""
    effects: Mapping[str, float] = field(default_factory=lambda: {"treatment": 0.15})
    responses: int = 60_000
    students: int = 5_000
    days: float = 7.0
    start_ms: int = _DEFAULT_START_MS
    items: int = 5
    catalogue: int = 500
    rated_share: float = 0.4
    resent_share: float = 0.01
    revised_share: float = 0.01
    early_share: float = 0.005
    empty_share: float = 0.01
    feedback_delay_s: float = 60.0
    """Median time from a response to its rating."""
    drop: QualityDrop | None = None
    effects_from_ms: int = 0
    """Time from which the variants have effects; before, all variants are alike."""
    fade_days: float | None = None
    """Half-life of the effect in days since the student's first response with an effect in this segment."""
    escalation_shares: Mapping[str, float] = field(default_factory=dict)
    """Share of the unrated responses that are escalated to a human, by variant; default: 0.02."""
    latency_factors: Mapping[str, float] = field(default_factory=dict)
    """Factor on the usual latency, by variant; default: 1."""
    seed: int = 1
    segment: int = 0
    """Number of this segment of a longer simulation. Segments have the same students and different responses."""

    def __post_init__(self) -> None:
        names = ", ".join(self.shares)
        for name in ("responses", "students", "items", "catalogue"):
            _check_value(name, getattr(self, name), f"1 to {_MAX_COUNT}", 1 <= getattr(self, name) <= _MAX_COUNT)
        for name in ("rated_share", "resent_share", "revised_share", "early_share", "empty_share"):
            _check_value(name, getattr(self, name), "0 to 1", 0 <= getattr(self, name) <= 1)
        positive_up_to = "more than 0 and at most"
        _check_value(
            "feedback delay",
            f"{self.feedback_delay_s} s",
            f"{positive_up_to} 3600",
            0 < self.feedback_delay_s <= _HOUR_S,
        )
        _check_value("days", self.days, f"{positive_up_to} {_MAX_DAYS}", 0 < self.days <= _MAX_DAYS)
        _check_value("start", f"{self.start_ms} ms", "a time from 1970 to 9980", 0 <= self.start_ms <= _LATEST_START_MS)
        _check_value("seed", self.seed, "0 or more", self.seed >= 0)
        for name, share in self.shares.items():
            _check_value("share", f"{share:g} for {name}", "0 to 1", 0 <= share <= 1)
        total = sum(self.shares.values())
        _check_value(
            "shares", dict(self.shares), "shares that sum to 1", math.isclose(total, 1, rel_tol=0, abs_tol=1e-9)
        )
        for parameter, numbers, minimum, maximum, expected in (
            ("effect", self.effects, -sys.float_info.max, sys.float_info.max, "a number"),
            ("escalated", self.escalation_shares, 0.0, 1.0, "0 to 1"),
            ("slowness", self.latency_factors, 0.0, _MAX_LATENCY_FACTOR, f"0 to {_MAX_LATENCY_FACTOR:g}"),
        ):
            for variant, number in numbers.items():
                _check_value(parameter, f"{number} for {variant}", expected, minimum <= number <= maximum)
                _check_value(parameter, setting_text(variant), f"one of {names}", variant in self.shares)
        if self.fade_days is not None:
            _check_value("fade days", self.fade_days, f"{positive_up_to} {_MAX_DAYS}", 0 < self.fade_days <= _MAX_DAYS)
        if self.drop is not None:
            is_valid = self.drop.variant in self.shares and 0 <= self.drop.share <= 1
            _check_value(
                "drop", f"{self.drop.share:g} for {self.drop.variant!r}", f"0 to 1 for one of {names}", is_valid
            )
        _check_value("catalogue", self.catalogue, f"at least {self.items} items", self.catalogue >= self.items)


def _check_value(name: str, value: object, expected: str, is_valid: bool) -> None:  # noqa: FBT001  the check itself
    """Raise ValueError unless the value of a scenario's parameter is valid."""
    if not is_valid:
        raise ValueError(f"{name}: got {value}, expected {expected}")


def benchmark_scenario() -> Scenario:
    """Return the workload of performance measurements: a week of 300 000 responses and about 160 000 reactions."""
    return Scenario(responses=300_000, students=20_000, seed=2026)


def render_example_config(
    scenario: Scenario,
    *,
    store_url: str = "redis://localhost:6379/0",
    http_port: int = 9464,
    items: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Return a configuration file that fits the scenario; `items` has the keys of `[experiments.items]`, if any."""
    items_table = "".join(f"{key} = {_quote(value)}\n" for key, value in items.items())
    names = list(scenario.shares)
    shares = ", ".join(f"{_quote(name)} = {share:g}" for name, share in scenario.shares.items())
    return f"""# AB Monitor: docs/configuration.md has every key.
[kafka]
bootstrap_servers = "localhost:9092"
responses_topic = "chatbot.responses"
feedback_topic = "student.feedback"
dead_letter_topic = "ab-monitor.dead-letter"
group_id = "ab-monitor"

[store]
url = {_quote(store_url)}

[http]
host = "127.0.0.1"
port = {http_port}

[[experiments]]
name = {_quote(scenario.experiment)}
control = {_quote(names[0])}
variants = {{ {shares} }}
metrics = ["dcg@5", "ndcg@5", "success@5"]
primary = "dcg@5"
gain = "linear"
max_grade = 4
relevant_grade = 3
min_days = 3  # a simulated week only; a real experiment needs at least a whole week: 7, the default
decay = ["1h", "24h"]
categories = {json.dumps(_TOPICS)}
drift = {{ reference = 2 }}

[experiments.grades]
rating = "score"
helpful = 4
watched = [[0.1, 1], [0.5, 2], [0.9, 4]]
""" + (f"\n[experiments.items]\n{items_table}" if items else "")


def _quote(text: str) -> str:
    """Return a string literal that is valid in JSON and TOML."""
    return json.dumps(text, ensure_ascii=False)


def assign_variant(scenario: Scenario, student: int) -> str:
    """Return the variant of a student, by a hash of the student's id.

    A checksum of consecutive ids is too regular: the test for a sample ratio mismatch would detect the regularity.
    """
    remainder = int.from_bytes(blake2b(f"student-{student}".encode(), digest_size=8).digest()) / 2**64
    for name, share in scenario.shares.items():
        remainder -= share
        if remainder < 0:
            return name
    return name


def compute_true_means(scenario: Scenario, experiment: ExperimentSettings) -> dict[str, dict[str, float]]:
    """Return variant → metric → mean over rated responses under the model, estimated from a large sample."""
    generator = np.random.default_rng(0)
    scorer = Scorer.for_experiment(experiment)
    means = {}
    for name in scenario.shares:
        shift = generator.normal(scenario.effects.get(name, 0.0), _ABILITY_SD, _TRUE_MEAN_SAMPLE_SIZE)
        ranks, grades = _draw_grades(scenario, generator, shift)
        values, is_defined = scorer.score_batch(ranks, grades)
        means[name] = {
            metric.name: float(values[is_defined[:, index], index].mean() / FIXED_POINT_SCALE)
            for index, metric in enumerate(experiment.metrics)
        }
    return means


def _draw_grades(
    scenario: Scenario, generator: np.random.Generator, shift: FloatArray, remaining_quality: FloatArray | float = 1.0
) -> tuple[IntArray, FloatArray]:
    """Return (ranks, grades) of rated responses, arrays of n × 2; NaN is a missing second grade.

    `shift` is effect + ability of each response, `remaining_quality` the share of quality that a quality drop has left.
    """
    n = len(shift)
    rank_count = min(scenario.items, len(_RATED_RANK_SHARES))
    rank_probabilities = np.array(_RATED_RANK_SHARES[:rank_count]) / sum(_RATED_RANK_SHARES[:rank_count])
    first_indices = generator.choice(rank_count, size=n, p=rank_probabilities)
    second_indices = (first_indices + 1) % rank_count
    ranks = np.stack([first_indices, second_indices], axis=1) + 1
    rank_quality = _FIRST_RANK_QUALITY - _QUALITY_LOSS_PER_RANK * (ranks.T - 1)
    quality = np.transpose(remaining_quality * (rank_quality + shift))
    grades = np.clip(np.rint(quality + generator.normal(0, _QUALITY_NOISE_SD, (n, 2))), 0, 4)
    grades[(generator.random(n) >= _SECOND_RATING_SHARE) | (rank_count == 1), 1] = np.nan
    return ranks, grades


def generate_events(scenario: Scenario) -> Iterator[SimulatedEvent]:
    """Yield the events in the order of their arrival; an hour of the simulation is generated at a time."""
    generator = np.random.default_rng([scenario.seed, scenario.segment])
    # Students are the same in all segments.
    student_generator = np.random.default_rng(scenario.seed)
    abilities = student_generator.normal(0, _ABILITY_SD, scenario.students)
    cumulative_activity = np.cumsum(student_generator.lognormal(0, 1.0, scenario.students))
    variants = [assign_variant(scenario, student) for student in range(scenario.students)]
    quoted_variants = [_quote(variant) for variant in variants]
    effects = np.array([scenario.effects.get(variant, 0.0) for variant in variants])
    escalation_shares = np.array(
        [scenario.escalation_shares.get(variant, _DEFAULT_ESCALATION_SHARE) for variant in variants]
    )
    latency_factors = np.array([scenario.latency_factors.get(variant, 1.0) for variant in variants])
    first_answer_ms = np.full(scenario.students, np.iinfo(np.int64).max)
    hours = max(round(scenario.days * 24), 1)
    traffic = np.array([_relative_traffic(scenario.start_ms + hour * HOUR_MS) for hour in range(hours)])
    answers_per_hour = generator.multinomial(scenario.responses, traffic / traffic.sum())
    hour_length_ms = scenario.days * 24 * HOUR_MS / hours
    pending_events: list[tuple[int, int, SimulatedEvent]] = []
    serial_numbers = count()
    first_number = 0
    for hour, answer_count in enumerate(answers_per_hour.tolist()):
        hour_start_ms = scenario.start_ms + int(hour * hour_length_ms)
        times_ms = hour_start_ms + np.sort(generator.integers(0, max(int(hour_length_ms), 1), answer_count))
        students = np.searchsorted(cumulative_activity, generator.random(answer_count) * cumulative_activity[-1])
        effect_shares = _effect_shares(scenario, first_answer_ms, times_ms, students)
        shift = effects[students] * effect_shares + abilities[students]
        answers = _Answers(times_ms, students, shift, escalation_shares[students], latency_factors[students])
        for event in _generate_hour(scenario, generator, answers, quoted_variants, first_number):
            heapq.heappush(pending_events, (event.arrival_ms, next(serial_numbers), event))
        first_number += answer_count
        while pending_events and pending_events[0][0] < hour_start_ms + int(hour_length_ms):
            yield heapq.heappop(pending_events)[2]
    while pending_events:
        yield heapq.heappop(pending_events)[2]


class _Answers(NamedTuple):
    """The responses of an hour, an element per response in each array."""

    times_ms: IntArray
    students: IntArray
    shift: FloatArray
    """Effect of the variant + ability of the student."""
    escalation_shares: FloatArray
    latency_factors: FloatArray


def _effect_shares(scenario: Scenario, first_answer_ms: IntArray, times_ms: IntArray, students: IntArray) -> FloatArray:
    """Return the share of the effect that each response has, from 0 to 1.

    Updates `first_answer_ms`, the time of each student's first response with an effect.
    """
    has_effect = times_ms >= scenario.effects_from_ms
    np.minimum.at(first_answer_ms, students[has_effect], times_ms[has_effect])
    if scenario.fade_days is None:
        return has_effect.astype(np.float64)
    days = np.where(has_effect, times_ms - first_answer_ms[students], 0) / (24 * HOUR_MS)
    return np.where(has_effect, np.exp2(-days / scenario.fade_days), 0.0)


def _relative_traffic(time_ms: int) -> float:
    """Return the traffic of the hour of a time, relative to other hours."""
    calendar_time = time.gmtime(time_ms / 1000)
    is_weekend = calendar_time.tm_wday >= 5  # noqa: PLR2004  Saturday
    return _HOURLY_TRAFFIC[calendar_time.tm_hour] * (_WEEKEND_TRAFFIC_FACTOR if is_weekend else 1.0)


def _generate_hour(
    scenario: Scenario, generator: np.random.Generator, answers: _Answers, variants: list[str], first_number: int
) -> Iterator[SimulatedEvent]:
    """Yield the responses of an hour and all reactions to the responses, in no particular order.

    `variants` are the quoted names by student. The responses are numbered from `first_number`.
    """
    times_ms, students = answers.times_ms, answers.students
    n = len(times_ms)
    experiment = _quote(scenario.experiment)
    timestamps = np.datetime_as_string(times_ms.astype("datetime64[ms]"), unit="ms").tolist()
    first_videos = generator.integers(0, scenario.catalogue, (n, 1))
    videos = (first_videos + np.arange(scenario.items)) % scenario.catalogue
    is_empty = generator.random(n) < scenario.empty_share
    is_rated = (generator.random(n) < scenario.rated_share / max(1 - scenario.empty_share, 1e-9)) & ~is_empty
    is_escalated = (generator.random(n) < answers.escalation_shares) & ~is_rated
    is_rated_early = is_rated & (generator.random(n) < scenario.early_share)
    latencies_ms = np.rint(generator.lognormal(6.0, 0.5, n) * answers.latency_factors).astype(int).tolist()
    usual_delays_ms = np.clip(generator.lognormal(11.0, 1.2, (n, 2)), 2_000, 20 * HOUR_MS)
    delays_ms = (usual_delays_ms * (scenario.feedback_delay_s / 60)).astype(np.int64)
    remaining_quality = _remaining_quality(scenario.drop, times_ms, students, variants)
    ranks, grades = _draw_grades(scenario, generator, answers.shift, remaining_quality)
    for index, student in enumerate(students.tolist()):
        time_ms = int(times_ms[index])
        student_id = f"student-{student}"
        response_id = f"r-{scenario.seed}-{scenario.segment}-{first_number + index:09d}"
        items = [] if is_empty[index] else [f"v-{video}" for video in videos[index].tolist()]
        items_json = ",".join([f'{{"item_id":"{item}","position":{rank}}}' for rank, item in enumerate(items, 1)])
        payload = (
            f'{{"response_id":"{response_id}","timestamp":"{timestamps[index]}Z","experiment":{experiment},'
            f'"variant":{variants[student]},"user_id":"{student_id}","query_id":"q-{student % 40}",'
            f'"items":[{items_json}],"category":"{_TOPICS[student % len(_TOPICS)]}",'
            f'"latency_ms":{latencies_ms[index]}}}'
        ).encode()
        arrival_ms = time_ms
        if is_rated[index]:
            answer_delays_ms = delays_ms[index].tolist()
            ratings = list(
                _generate_ratings(
                    scenario,
                    generator,
                    response_id,
                    student_id,
                    time_ms,
                    answer_delays_ms,
                    items,
                    ranks[index],
                    grades[index],
                )
            )
            if is_rated_early[index]:
                arrival_ms = ratings[0].arrival_ms + int(generator.integers(1000, 30_000))
            yield from ratings
        elif is_escalated[index]:
            escalation_ms = time_ms + int(delays_ms[index, 0])
            yield _create_feedback(f"{response_id}-e", response_id, student_id, escalation_ms, None, "escalated", 1)
        yield SimulatedEvent(arrival_ms, "response", student_id.encode(), payload)


def _remaining_quality(
    drop: QualityDrop | None, times_ms: IntArray, students: IntArray, variants: list[str]
) -> FloatArray | float:
    """Return the share of quality that the drop has left to each response."""
    if drop is None:
        return 1.0
    is_dropped_variant = np.array([variant == _quote(drop.variant) for variant in variants])[students]
    return np.where(is_dropped_variant & (times_ms >= drop.at_ms), 1 - drop.share, 1.0)


def _generate_ratings(
    scenario: Scenario,
    generator: np.random.Generator,
    response_id: str,
    student_id: str,
    answer_ms: int,
    delays_ms: list[int],
    items: list[str],
    ranks: IntArray,
    grades: FloatArray,
) -> Iterator[SimulatedEvent]:
    """Yield the ratings of a response; some ratings are sent twice, some are revised."""
    for index, (rank, grade) in enumerate(zip(ranks.tolist(), grades.tolist(), strict=True)):
        if math.isnan(grade):
            continue
        rating_ms = answer_ms + delays_ms[index]
        random_share = generator.random()
        item, rating_id = items[rank - 1], f"{response_id}-{index}"
        rating = _create_feedback(rating_id, response_id, student_id, rating_ms, item, "rating", int(grade))
        yield rating
        if random_share < scenario.resent_share:
            yield rating._replace(arrival_ms=rating_ms + int(generator.integers(1000, HOUR_MS)))
        elif random_share < scenario.resent_share + scenario.revised_share:
            revision_ms = rating_ms + int(generator.integers(60_000, HOUR_MS))
            score = int(generator.integers(0, 5))
            yield _create_feedback(f"{rating_id}b", response_id, student_id, revision_ms, item, "rating", score)


def _create_feedback(
    feedback_id: str, response_id: str, student_id: str, time_ms: int, item: str | None, kind: str, score: int
) -> SimulatedEvent:
    item_json = f'"item_id":"{item}",' if item is not None else ""
    payload = (
        f'{{"feedback_id":"{feedback_id}","response_id":"{response_id}","timestamp":{time_ms},'
        f'"user_id":"{student_id}",{item_json}"kind":"{kind}","score":{score}}}'
    ).encode()
    return SimulatedEvent(time_ms, "feedback", student_id.encode(), payload)


def generate_endless_events(scenario: Scenario) -> Iterator[SimulatedEvent]:
    """Yield the events of endlessly many consecutive segments of the scenario, in the order of arrival."""
    late_events: list[SimulatedEvent] = []
    length_ms = scenario.days * 24 * HOUR_MS
    for index in count():
        start_ms = scenario.start_ms + int(index * length_ms)
        end_ms = scenario.start_ms + int((index + 1) * length_ms)
        segment_events = generate_events(replace(scenario, segment=scenario.segment + index, start_ms=start_ms))
        # Events that arrive after the end of their segment are merged into the events of the next segment.
        merged_events = heapq.merge(late_events, segment_events, key=lambda event: event.arrival_ms)
        late_events = []
        for event in merged_events:
            if event.arrival_ms < end_ms:
                yield event
            else:
                late_events.append(event)
