"""Events from files → judged responses, raters' grades, items: the stream's rows and rules, without a store."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

from monitor.analysis import Answer
from monitor.clock import Clock
from monitor.config import ExperimentSettings, Settings
from monitor.engine import (
    MISSING,
    TAG_BYTES,
    Decoder,
    GradingRules,
    IdHasher,
    ResponseRow,
    latency_of,
    merge_reaction,
    merge_response,
    reaction_of,
)
from monitor.errors import InputRefused, Refusal
from monitor.events import Feedback, Response
from monitor.offline.agreement import Rating, TargetKind
from monitor.offline.metric_definitions import JudgedResponse
from monitor.sources import FileSource, Refused

_KEY: Final = b"rows of one evaluation, kept nowhere"


def judged_responses(source: FileSource, settings: Settings, clock: Clock) -> dict[str, list[JudgedResponse]]:
    """Return each experiment's responses with their grades; refused lines are reported by the source."""
    identities = IdHasher(_KEY)
    return {
        experiment.name: [
            JudgedResponse(
                query_id=event.query_id,
                user_id=event.user_id,
                variant=event.variant,
                items=event.items,
                ranks=event.ranks or tuple(range(1, len(event.items) + 1)),
                grades=tuple(grades.get(identities.item(item)) for item in event.items),
            )
            for row, event in rows
            for grades in (rules.grades(row),)
        ]
        for experiment, rules, rows in _joined(source, settings, clock, identities)
    }


def ratings(source: FileSource, settings: Settings, clock: Clock) -> dict[str, list[Rating]]:
    """Return what every student gave each shown item, by experiment; refused lines are reported by the source."""
    identities = IdHasher(_KEY)
    found: dict[str, list[Rating]] = {}
    for experiment, rules, rows in _joined(source, settings, clock, identities):
        given = found[experiment.name] = []
        for row, event in rows:
            kind: TargetKind = "response" if event.query_id is None else "query"
            name = event.response_id if event.query_id is None else event.query_id
            items = {identities.item(item): item for item in event.items}
            # A response without a student is a rater of its own.
            own = row.student[:TAG_BYTES] or b"response " + event.response_id.encode()
            for (student, item), (grade, at_ms) in rules.judgements(row).items():
                if item in items:
                    rater = (student or own).hex()
                    given.append(Rating(event.variant, (kind, name, items[item]), rater, at_ms, grade))
    return found


def shown_answers(source: FileSource, settings: Settings, clock: Clock) -> dict[str, list[Answer]]:
    """Return each experiment's responses with all grades of their items; refused lines are reported by the source.

    A review counts whenever it was written: analysts come later than a feedback window.
    """
    identities = IdHasher(_KEY)
    found: dict[str, list[Answer]] = {}
    for experiment, rules, rows in _joined(source, settings, clock, identities):
        answers = found[experiment.name] = []
        for row, event in rows:
            items = {identities.item(item): item for item in _ranked(event)}
            judged = rules.judgements(row).items()
            answers.append(
                Answer(
                    variant=event.variant,
                    at_ms=event.timestamp_ms,
                    student=(row.student or b"response " + event.response_id.encode()).hex(),
                    query_id=event.query_id,
                    category=event.category,
                    items=tuple(items.values()),
                    ratings=tuple((items[item], grade) for (_, item), (grade, _) in judged if item in items),
                    review=row.review_score(),
                )
            )
    return found


def _ranked(event: Response) -> Sequence[str]:
    if event.ranks is None:
        return event.items
    return [item for _, item in sorted(zip(event.ranks, event.items, strict=True))]


def _joined(
    source: FileSource, settings: Settings, clock: Clock, identities: IdHasher
) -> Iterator[tuple[ExperimentSettings, GradingRules, list[tuple[ResponseRow, Response]]]]:
    """Yield every experiment with its rules, its responses and the reactions to them."""
    responses, feedback = _read(source, settings, clock)
    # Of events that are alike but for these the first one stays.
    responses.sort(key=lambda event: (event.query_id or "", event.category or ""))
    for experiment in settings.experiments:
        rows: dict[str, tuple[ResponseRow, Response]] = {}
        for event in responses:
            if event.experiment == experiment.name and _counts(event, experiment):
                _merge(rows, event, experiment, identities)
        for name, (row, _) in rows.items():
            for reaction in feedback.get(name, ()):
                merge_reaction(row, reaction_of(reaction, identities))
        yield experiment, GradingRules(experiment), list(rows.values())


def _read(source: FileSource, settings: Settings, clock: Clock) -> tuple[list[Response], dict[str, list[Feedback]]]:
    decoder = Decoder(settings)
    responses: list[Response] = []
    feedback: dict[str, list[Feedback]] = defaultdict(list)
    source.place(source.starts({}))
    while not source.finished():
        for each in source.poll():
            for record in each.records:
                try:
                    event = decoder.event(record.value, clock())
                except Refusal as refusal:
                    source.keep_refused(
                        [Refused(each.partition, record.offset, record.value, refusal.reason, refusal.detail)]
                    )
                    continue
                if isinstance(event, Response):
                    responses.append(event)
                else:
                    feedback[event.response_id].append(event)
    if source.refused and not (responses or feedback):
        raise InputRefused(f"not one of {source.refused} lines is an event")
    return responses, feedback


def _counts(event: Response, experiment: ExperimentSettings) -> bool:
    starts, ends = experiment.starts_at_ms, experiment.ends_at_ms
    begun = starts is None or event.timestamp_ms >= starts
    return event.variant in experiment.variants and begun and (ends is None or event.timestamp_ms < ends)


def _merge(
    rows: dict[str, tuple[ResponseRow, Response]], event: Response, experiment: ExperimentSettings, identities: IdHasher
) -> None:
    row, _ = rows.get(event.response_id, (ResponseRow(), event))
    student = identities.student(event.user_id) if event.user_id is not None else b""
    items = identities.items(event.items)
    arm = sorted(experiment.variants).index(event.variant)
    latency_ms = latency_of(event)
    if merge_response(row, event.timestamp_ms, arm, student, items, event.ranks, latency_ms, MISSING) != "duplicate":
        rows[event.response_id] = row, event
