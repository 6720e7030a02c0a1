"""Generated streams of events for property tests, with everything that real ones do wrong."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st
from msgspec import structs

from monitor.config import (
    DecaySpec,
    DecisionSettings,
    DriftSettings,
    ExperimentSettings,
    GuardrailSettings,
    ItemSettings,
    MetricSpec,
    Settings,
)
from monitor.engine import EventBatch, EventNormalizer
from monitor.events import Feedback, Response
from monitor.sources.source import PlainRecord

HOUR = 3_600_000
START = 1_767_225_600_000

EXPERIMENT = ExperimentSettings(
    name="ranker",
    control="control",
    variants={"control": 0.5, "treatment": 0.5},
    metrics=(
        MetricSpec("dcg@5", "dcg", 5),
        MetricSpec("ndcg@3", "ndcg", 3),
        MetricSpec("success@2", "success", 2),
        MetricSpec("rr@5", "rr", 5),
        MetricSpec("cg@5", "cg", 5),
        MetricSpec("p@3", "p", 3),
    ),
    grades={"rating": "score", "helpful": 4.0, "watched": ((0.1, 1.0), (0.5, 2.0), (0.9, 4.0))},
    categories=("fractions", "geometry"),
    drift=DriftSettings(reference=1, items_reference=1),
    items=ItemSettings(30, expected_items=20),
    decay=(DecaySpec("1h", HOUR), DecaySpec("24h", 24 * HOUR), DecaySpec("reciprocal-10d", None, 240 * HOUR)),
)
ANSWER_METRICS = (
    MetricSpec("score:reviewed", "score", kind="reviewed", least=1, most=5),
    MetricSpec("sum:watched", "sum", kind="watched", most=1),
    MetricSpec("items_shown", "items_shown", most=4),
    MetricSpec("empty", "empty", lower_is_better=True),
    MetricSpec("share:watched>=0.5", "share", kind="watched", threshold=0.5),
    MetricSpec("latency_above_ms:500", "latency_above_ms", threshold=500, lower_is_better=True),
    MetricSpec("latency_ms", "latency_ms", most=60_000, lower_is_better=True),
    MetricSpec("share:escalated", "share", kind="escalated", lower_is_better=True),
)
WITH_ANSWER_METRICS = replace(
    EXPERIMENT,
    metrics=(*EXPERIMENT.metrics, *ANSWER_METRICS),
    student_metrics=(
        "per_student:share:escalated",
        "responses_per_session",
        "responses_per_student",
        "return_days",
        "sessions_per_student",
        "sessions_with:success@2",
    ),
    exclusive_kinds=(("helpful", "escalated"),),
    additive_kinds=("watched",),
)
RICH = replace(
    WITH_ANSWER_METRICS,
    novelty=True,
    starts_at_ms=START + 24 * HOUR,
    pre_period_ms=20 * HOUR,
    decision=DecisionSettings(
        mde=0.3,
        min_days=0,
        guardrails=(
            GuardrailSettings("rated_share", "down", 0.05),
            GuardrailSettings("latency_ms", "up", 100),
            GuardrailSettings("share:escalated", "up", 0.05),
            GuardrailSettings("latency_above_ms:500", "up", 0.05),
            GuardrailSettings("responses_per_student", "down", 0.1, is_relative=True),
            GuardrailSettings("return_days", "down", 0.1),
        ),
    ),
)
"""With everything that is only stored where it is asked for."""
EXCLUDING = replace(RICH, exclude={"user_id": ("student-[12]",), "category": ("history",)})
"""With excluded responses; of several copies of a response, some may be excluded."""
_WITH_SILENCE = MetricSpec("score:reviewed", "score", kind="reviewed", least=1, most=5, silence=2)
ANSWERS_ONLY = replace(
    WITH_ANSWER_METRICS,
    metrics=(_WITH_SILENCE, *ANSWER_METRICS[1:]),
    student_metrics=(
        "per_student:share:escalated",
        "responses_per_student",
        "return_days",
        "sessions_with:share:escalated",
    ),
    primary="score:reviewed",
    grades={},
)
"""Without ranking metrics and grades; responses without a score have one, too."""
RICH_ANSWERS_ONLY = replace(
    RICH, metrics=ANSWER_METRICS, student_metrics=ANSWERS_ONLY.student_metrics, primary="score:reviewed", grades={}
)
SETTINGS = Settings((EXPERIMENT,))


def settings_with(experiment: ExperimentSettings) -> Settings:
    """Return the settings for another experiment."""
    return replace(SETTINGS, experiments=(experiment,))


def changed(response: Response, **fields: Any) -> Response:
    """Return the response with other fields."""
    return structs.replace(response, **fields)


@st.composite
def _response(draw: st.DrawFn, number: int) -> Response:
    count = draw(st.integers(0, 6))
    positions = list(range(1, count + 1))
    if draw(st.integers(0, 4)) == 0:
        positions = draw(st.lists(st.integers(1, 9), min_size=count, max_size=count, unique=True))
    items = draw(st.lists(st.integers(0, 9), min_size=count, max_size=count, unique=True))
    student = draw(st.integers(0, 5))
    return Response(
        response_id=f"r-{number}" if number % 3 else f"a-long-response-id-{number}",
        timestamp_ms=START + draw(st.integers(0, 100 * HOUR)) * draw(st.sampled_from([1, 1, 3])),
        experiment=draw(st.sampled_from(["ranker"] * 9 + ["other"])),
        variant=draw(
            st.sampled_from([("control", "treatment")[student % 2]] * 8 + ["control", "treatment", "unknown"])
        ),
        items=tuple(f"video-{item}" for item in items),
        ranks=None if positions == list(range(1, count + 1)) else tuple(positions),
        user_id=f"student-{student}" if student else None,
        category=draw(st.sampled_from([None, "fractions", "geometry", "history"])),
        session_id=draw(st.sampled_from([None, "s-1", "s-2"])),
        latency_ms=draw(st.sampled_from([None, 0, 49.6, 50, 412.4, 700, 61_000, 86_400_000])),
    )


@st.composite
def _reactions(draw: st.DrawFn, response: Response) -> list[Feedback]:
    reactions = []
    for number in range(draw(st.integers(0, 4))):
        kind, scores = draw(
            st.sampled_from(
                [
                    ("rating", [0.0, 1.0, 2.5, 4.0]),
                    ("rating", [0.0, 3.0]),
                    ("helpful", [1.0]),
                    ("watched", [0.0, 0.1, 0.95, 1e300]),
                    ("escalated", [1.0]),
                    ("reviewed", [0.0, 1.0, 5.0]),
                ]
            )
        )
        reactions.append(
            Feedback(
                feedback_id=f"f-{number}",
                response_id=response.response_id,
                timestamp_ms=response.timestamp_ms
                + draw(st.sampled_from([-1, 0, 1, HOUR, HOUR, 24 * HOUR, 24 * HOUR + 1])),
                kind=kind,
                user_id=draw(st.sampled_from([response.user_id, None, "student-9"])),
                item_id=draw(st.sampled_from([*response.items, None, "video-99"])),
                score=draw(st.sampled_from(scores)),
                is_withdrawn=draw(st.sampled_from([False] * 4 + [True])),
            )
        )
    return reactions


@st.composite
def streams(draw: st.DrawFn, largest: int = 25) -> list[Response | Feedback]:
    """Draw the set of events of up to `largest` responses: unknown arms, crossovers, revisions, early and late ones."""
    events: list[Response | Feedback] = []
    for number in range(draw(st.integers(1, largest))):
        response = draw(_response(number))
        events.append(response)
        events += draw(_reactions(response))
        if draw(st.integers(0, 7)) == 0:
            # The same id once more with something else in it: one of both stands, in whatever order they come.
            category = draw(st.sampled_from([None, "fractions", "history"]))
            kept = draw(st.integers(0, len(response.items)))
            ranks = None if response.ranks is None else response.ranks[:kept]
            # The beginning of a list stands, whatever the hashes of its items are.
            again = changed(
                response,
                latency_ms=draw(st.sampled_from([None, 120])),
                category=category,
                items=response.items[:kept],
                ranks=ranks,
            )
            events.append(again)
    return events


@st.composite
def arrivals(draw: st.DrawFn, events: list[Response | Feedback]) -> list[list[Response | Feedback]]:
    """Draw an order, re-sent events and a division into batches."""
    again = draw(st.lists(st.sampled_from(events), max_size=10))
    order = draw(st.permutations(events + again))
    batches = []
    while order:
        size = draw(st.integers(1, 12))
        batches.append(order[:size])
        order = order[size:]
    return batches


def normalize_events(normalizer: EventNormalizer, events: Iterable[Response | Feedback]) -> EventBatch:
    """Return the events as a worker has them once they are decoded."""
    found = EventBatch()
    for event in events:
        normalizer.append_event(found, event)
    return found


def records_of(payloads: Sequence[bytes | None], first_offset: int = 0) -> list[PlainRecord]:
    """Return records without keys, at consecutive offsets."""
    return [PlainRecord(offset, None, payload) for offset, payload in enumerate(payloads, first_offset)]
