"""Classroom traffic with a declared effect: the same seed makes the same events.

The model. A student has an ability to be helped a ~ N(0, 0.55²) and keeps to one variant. Answers follow school hours
and a weekend dip; students differ in how much they ask (log-normal). The item at rank r of an answer has the latent
quality 2.3 − 0.3·(r − 1) + effect of the variant + a + N(0, 0.85²), and its grade is that, rounded, from 0 to 4:
within a student answers correlate by about 0.3. A declared share of answers is rated, at one or two of its ranks; some
reactions are sent again, some are revised later, and some arrive before the answer they are about. A variant may lose a
share of its latent quality from one moment on; effects may begin only then, or fade with the days since a student's
first answer; and variants may differ in how often an answer ends with a person, and in how long it takes.
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
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from monitor.config import ExperimentSettings
from monitor.metrics import SCALE, Scorer

HOUR_MS: Final = 3_600_000
_QUALITY, _STEP, _ABILITY, _NOISE = 2.3, 0.3, 0.55, 0.85
_RANK_RATED: Final = (0.4, 0.25, 0.15, 0.12, 0.08)
_SECOND_RATED: Final = 0.33
_HOURS: Final = (1, 1, 1, 1, 1, 2, 5, 12, 20, 24, 22, 18, 14, 16, 20, 24, 26, 24, 20, 16, 12, 8, 4, 2)
_WEEKEND: Final = 0.45
_TOPICS: Final = ("fractions", "geometry", "algebra", "grammar", "essays", "physics", "chemistry", "history")
_LATEST_START_MS: Final = 252_771_000_000_000
_DEFAULT_START_MS: Final = 1_793_577_600_000
_TRUTH_SAMPLE: Final = 200_000
_ESCALATED: Final = 0.02
_SLOWEST: Final = 1000.0
_MOST: Final = 100_000_000
_MOST_DAYS: Final = 3650
_HOUR_S: Final = 3600

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class SimulatedEvent(NamedTuple):
    """One message: when it arrives, what it is, the key (the student) and the value."""

    arrival_ms: int
    kind: Literal["response", "feedback"]
    key: bytes
    payload: bytes


class Drop(NamedTuple):
    """From a moment on, answers of one variant have lost that share of their latent quality."""

    variant: str
    share: float
    at_ms: int


@dataclass(frozen=True, slots=True)
class Scenario:
    """What to simulate; shares are of 1, effects are shifts of the latent quality (in grades)."""

    experiment: str = "ranker-v2"
    shares: Mapping[str, float] = field(default_factory=lambda: {"control": 0.5, "treatment": 0.5})
    """Share of students by variant; the first is the control."""
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
    """Median time from an answer to its rating."""
    drop: Drop | None = None
    effects_from_ms: int = 0
    """Before, there is no effect: all variants are alike."""
    fade_days: float | None = None
    """Days since a student's first answer (with an effect, of this part) in which half of the effect is gone."""
    escalated: Mapping[str, float] = field(default_factory=dict)
    """Share of the unrated answers that end with a person, by variant; 0.02 where it is not given."""
    slowness: Mapping[str, float] = field(default_factory=dict)
    """How many times the usual latency a variant takes; 1 where it is not given."""
    seed: int = 1
    part: int = 0
    """Number of this stretch of a longer simulation: other answers, the same students."""

    def __post_init__(self) -> None:
        names = ", ".join(self.shares)
        for name in ("responses", "students", "items", "catalogue"):
            _expect(name, getattr(self, name), f"1 to {_MOST}", 1 <= getattr(self, name) <= _MOST)
        for name in ("rated_share", "resent_share", "revised_share", "early_share", "empty_share"):
            _expect(name, getattr(self, name), "0 to 1", 0 <= getattr(self, name) <= 1)
        above = "more than 0 and at most"
        _expect("feedback delay", f"{self.feedback_delay_s} s", f"{above} 3600", 0 < self.feedback_delay_s <= _HOUR_S)
        _expect("days", self.days, f"{above} {_MOST_DAYS}", 0 < self.days <= _MOST_DAYS)
        _expect("start", f"{self.start_ms} ms", "a time from 1970 to 9980", 0 <= self.start_ms <= _LATEST_START_MS)
        _expect("seed", self.seed, "0 or more", self.seed >= 0)
        for name, share in self.shares.items():
            _expect("share", f"{share:g} for {name}", "0 to 1", 0 <= share <= 1)
        total = sum(self.shares.values())
        _expect("shares", dict(self.shares), "shares that sum to 1", math.isclose(total, 1, rel_tol=0, abs_tol=1e-9))
        for what, given, least, most, expected in (
            ("effect", self.effects, -sys.float_info.max, sys.float_info.max, "a number"),
            ("escalated", self.escalated, 0.0, 1.0, "0 to 1"),
            ("slowness", self.slowness, 0.0, _SLOWEST, f"0 to {_SLOWEST:g}"),
        ):
            for name, number in given.items():
                _expect(what, f"{number} for {name}", expected, least <= number <= most)
                _expect(what, repr(name), f"one of {names}", name in self.shares)
        if self.fade_days is not None:
            _expect("fade days", self.fade_days, f"{above} {_MOST_DAYS}", 0 < self.fade_days <= _MOST_DAYS)
        if self.drop is not None:
            fits = self.drop.variant in self.shares and 0 <= self.drop.share <= 1
            _expect("drop", f"{self.drop.share:g} for {self.drop.variant!r}", f"0 to 1 for one of {names}", fits)
        _expect("catalogue", self.catalogue, f"at least {self.items} items", self.catalogue >= self.items)


def _expect(name: str, value: object, expected: str, holds: bool) -> None:  # noqa: FBT001  the check itself
    """Raise ValueError if a check of a scenario's value does not hold."""
    if not holds:
        raise ValueError(f"{name}: got {value}, expected {expected}")


def w1() -> Scenario:
    """Return the workload that performance is measured on: a week of 300 000 answers and about 160 000 reactions."""
    return Scenario(responses=300_000, students=20_000, seed=2026)


def default_config(scenario: Scenario) -> str:
    """Return a configuration file that fits the scenario."""
    names = list(scenario.shares)
    shares = ", ".join(f"{_quoted(name)} = {share:g}" for name, share in scenario.shares.items())
    return f"""# AB Monitor: docs/configuration.md has every key.
[kafka]
bootstrap_servers = "localhost:9092"
responses_topic = "chatbot.responses"
feedback_topic = "student.feedback"
dead_letter_topic = "ab-monitor.dead-letter"
group_id = "ab-monitor"

[store]
url = "redis://localhost:6379/0"

[http]
host = "127.0.0.1"
port = 9464

[[experiments]]
name = {_quoted(scenario.experiment)}
control = {_quoted(names[0])}
variants = {{ {shares} }}
metrics = ["dcg@5", "ndcg@5", "success@5"]
primary = "dcg@5"
gain = "linear"
max_grade = 4
relevant_grade = 3
decay = ["1h", "24h"]
categories = {json.dumps(_TOPICS)}
drift = {{ reference = 2 }}

[experiments.grades]
rating = "score"
helpful = 4
watched = [[0.1, 1], [0.5, 2], [0.9, 4]]
"""


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def variant_of(scenario: Scenario, student: int) -> str:
    """Return the variant a student keeps to, by a hash of the student's id.

    A checksum would not do: on names that are counted up it is so regular that a sample-ratio test finds out.
    """
    place = int.from_bytes(blake2b(f"student-{student}".encode(), digest_size=8).digest()) / 2**64
    for name, share in scenario.shares.items():
        place -= share
        if place < 0:
            return name
    return name


def truth(scenario: Scenario, experiment: ExperimentSettings) -> dict[str, dict[str, float]]:
    """Return variant → metric → mean over rated responses that the model declares, from a large sample of it."""
    chance = np.random.default_rng(0)
    scorer = Scorer.of(experiment)
    means = {}
    for name in scenario.shares:
        ability = chance.normal(scenario.effects.get(name, 0.0), _ABILITY, _TRUTH_SAMPLE)
        ranks, grades = _judgements(scenario, chance, ability)
        values, defined = scorer.score_batch(ranks, grades)
        means[name] = {
            metric.name: float(values[defined[:, at], at].mean() / SCALE)
            for at, metric in enumerate(experiment.metrics)
        }
    return means


def _judgements(
    scenario: Scenario, chance: np.random.Generator, shift: Floats, kept: Floats | float = 1.0
) -> tuple[Ints, Floats]:
    """Return (ranks, grades) of rated answers, n × 2, NaN where one is not rated.

    `shift` is effect + ability, `kept` the share of their quality that a drop has left.
    """
    n = len(shift)
    deepest = min(scenario.items, len(_RANK_RATED))
    odds = np.array(_RANK_RATED[:deepest]) / sum(_RANK_RATED[:deepest])
    first = chance.choice(deepest, size=n, p=odds)
    second = (first + 1) % deepest
    ranks = np.stack([first, second], axis=1) + 1
    quality = np.transpose(kept * (_QUALITY - _STEP * (ranks.T - 1) + shift))
    grades = np.clip(np.rint(quality + chance.normal(0, _NOISE, (n, 2))), 0, 4)
    grades[(chance.random(n) >= _SECOND_RATED) | (deepest == 1), 1] = np.nan
    return ranks, grades


def generate(scenario: Scenario) -> Iterator[SimulatedEvent]:
    """Yield the events in the order of their arrival, an hour of the simulation at a time."""
    chance = np.random.default_rng([scenario.seed, scenario.part])
    constant = np.random.default_rng(scenario.seed)
    ability = constant.normal(0, _ABILITY, scenario.students)
    activity = np.cumsum(constant.lognormal(0, 1.0, scenario.students))
    variants = [variant_of(scenario, student) for student in range(scenario.students)]
    quoted = [_quoted(name) for name in variants]
    effect = np.array([scenario.effects.get(name, 0.0) for name in variants])
    escalated = np.array([scenario.escalated.get(name, _ESCALATED) for name in variants])
    slowness = np.array([scenario.slowness.get(name, 1.0) for name in variants])
    first = np.full(scenario.students, np.iinfo(np.int64).max)
    hours = max(round(scenario.days * 24), 1)
    rhythm = np.array([_rhythm(scenario.start_ms + hour * HOUR_MS) for hour in range(hours)])
    per_hour = chance.multinomial(scenario.responses, rhythm / rhythm.sum())
    length_ms = scenario.days * 24 * HOUR_MS / hours
    waiting: list[tuple[int, int, SimulatedEvent]] = []
    serial = count()
    number = 0
    for hour, answers in enumerate(per_hour.tolist()):
        begin = scenario.start_ms + int(hour * length_ms)
        times = begin + np.sort(chance.integers(0, max(int(length_ms), 1), answers))
        students = np.searchsorted(activity, chance.random(answers) * activity[-1])
        shift = effect[students] * _strength(scenario, first, times, students) + ability[students]
        asked = _Asked(times, students, shift, escalated[students], slowness[students])
        for event in _hour(scenario, chance, asked, quoted, number):
            heapq.heappush(waiting, (event.arrival_ms, next(serial), event))
        number += answers
        while waiting and waiting[0][0] < begin + int(length_ms):
            yield heapq.heappop(waiting)[2]
    while waiting:
        yield heapq.heappop(waiting)[2]


class _Asked(NamedTuple):
    """One hour's answers: when, to whom, effect + ability, how likely they end with a person, how slow they are."""

    times: Ints
    students: Ints
    shift: Floats
    escalated: Floats
    slowness: Floats


def _strength(scenario: Scenario, first: Ints, times: Ints, students: Ints) -> Floats:
    """Return how much of its effect each answer has; `first` takes the times of students' first answers with any."""
    begun = times >= scenario.effects_from_ms
    np.minimum.at(first, students[begun], times[begun])
    if scenario.fade_days is None:
        return begun.astype(np.float64)
    days = np.where(begun, times - first[students], 0) / (24 * HOUR_MS)
    return np.where(begun, np.exp2(-days / scenario.fade_days), 0.0)


def _rhythm(at_ms: int) -> float:
    moment = time.gmtime(at_ms / 1000)
    weekend = moment.tm_wday >= 5  # noqa: PLR2004  Saturday
    return _HOURS[moment.tm_hour] * (_WEEKEND if weekend else 1.0)


def _hour(
    scenario: Scenario, chance: np.random.Generator, asked: _Asked, variants: list[str], number: int
) -> Iterator[SimulatedEvent]:
    """Yield one hour's answers and all the reactions to them, in any order."""
    times, students = asked.times, asked.students
    n = len(times)
    experiment = _quoted(scenario.experiment)
    stamps = np.datetime_as_string(times.astype("datetime64[ms]"), unit="ms").tolist()
    shown = (chance.integers(0, scenario.catalogue, (n, 1)) + np.arange(scenario.items)) % scenario.catalogue
    empty = chance.random(n) < scenario.empty_share
    rated = (chance.random(n) < scenario.rated_share / max(1 - scenario.empty_share, 1e-9)) & ~empty
    escalated = (chance.random(n) < asked.escalated) & ~rated
    early = rated & (chance.random(n) < scenario.early_share)
    latency = np.rint(chance.lognormal(6.0, 0.5, n) * asked.slowness).astype(int).tolist()
    delay = np.clip(chance.lognormal(11.0, 1.2, (n, 2)), 2_000, 20 * HOUR_MS) * (scenario.feedback_delay_s / 60)
    delay = delay.astype(np.int64)
    ranks, grades = _judgements(scenario, chance, asked.shift, _kept(scenario.drop, times, students, variants))
    for at, student in enumerate(students.tolist()):
        at_ms = int(times[at])
        name = f"student-{student}"
        identity = f"r-{scenario.seed}-{scenario.part}-{number + at:09d}"
        videos = [] if empty[at] else [f"v-{video}" for video in shown[at].tolist()]
        items = ",".join([f'{{"item_id":"{video}","position":{rank}}}' for rank, video in enumerate(videos, 1)])
        payload = (
            f'{{"response_id":"{identity}","timestamp":"{stamps[at]}Z","experiment":{experiment},'
            f'"variant":{variants[student]},"user_id":"{name}","query_id":"q-{student % 40}",'
            f'"items":[{items}],"category":"{_TOPICS[student % len(_TOPICS)]}","latency_ms":{latency[at]}}}'
        ).encode()
        arrival_ms = at_ms
        if rated[at]:
            reactions = list(
                _reactions(scenario, chance, identity, name, at_ms, delay[at].tolist(), videos, ranks[at], grades[at])
            )
            if early[at]:
                arrival_ms = reactions[0].arrival_ms + int(chance.integers(1000, 30_000))
            yield from reactions
        elif escalated[at]:
            yield _feedback(f"{identity}-e", identity, name, at_ms + int(delay[at, 0]), None, "escalated", 1)
        yield SimulatedEvent(arrival_ms, "response", name.encode(), payload)


def _kept(drop: Drop | None, times: Ints, students: Ints, variants: list[str]) -> Floats | float:
    """Return the share of its quality that each answer has."""
    if drop is None:
        return 1.0
    of_variant = np.array([name == _quoted(drop.variant) for name in variants])[students]
    return np.where(of_variant & (times >= drop.at_ms), 1 - drop.share, 1.0)


def _reactions(
    scenario: Scenario,
    chance: np.random.Generator,
    identity: str,
    student: str,
    at_ms: int,
    delays: list[int],
    videos: list[str],
    ranks: Ints,
    grades: Floats,
) -> Iterator[SimulatedEvent]:
    """Yield the ratings of one answer: sometimes twice, sometimes revised."""
    for place, (rank, grade) in enumerate(zip(ranks.tolist(), grades.tolist(), strict=True)):
        if grade != grade:  # noqa: PLR0124  NaN: this rank is not rated
            continue
        reacted_ms = at_ms + delays[place]
        luck = chance.random()
        event = _feedback(f"{identity}-{place}", identity, student, reacted_ms, videos[rank - 1], "rating", int(grade))
        yield event
        if luck < scenario.resent_share:
            yield event._replace(arrival_ms=reacted_ms + int(chance.integers(1000, HOUR_MS)))
        elif luck < scenario.resent_share + scenario.revised_share:
            later_ms = reacted_ms + int(chance.integers(60_000, HOUR_MS))
            score = int(chance.integers(0, 5))
            yield _feedback(f"{identity}-{place}b", identity, student, later_ms, videos[rank - 1], "rating", score)


def _feedback(
    name: str, response: str, student: str, at_ms: int, item: str | None, kind: str, score: int
) -> SimulatedEvent:
    about = f'"item_id":"{item}",' if item is not None else ""
    payload = (
        f'{{"feedback_id":"{name}","response_id":"{response}","timestamp":{at_ms},"user_id":"{student}",'
        f'{about}"kind":"{kind}","score":{score}}}'
    ).encode()
    return SimulatedEvent(at_ms, "feedback", student.encode(), payload)


def endless(scenario: Scenario) -> Iterator[SimulatedEvent]:
    """Yield one stretch of the scenario after the other, for ever, in the order of arrival."""
    late: list[SimulatedEvent] = []
    length_ms = scenario.days * 24 * HOUR_MS
    for part in count():
        start_ms = scenario.start_ms + int(part * length_ms)
        ends_ms = scenario.start_ms + int((part + 1) * length_ms)
        stretch = generate(replace(scenario, part=scenario.part + part, start_ms=start_ms))
        # What arrives after the stretch goes in between the events of the next.
        both = heapq.merge(late, stretch, key=lambda event: event.arrival_ms)
        late = []
        for event in both:
            if event.arrival_ms < ends_ms:
                yield event
            else:
                late.append(event)
