"""Event files → judged responses, ratings, and responses with feedback, by the rules of the service without a store."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from monitor.analysis import ResponseWithFeedback
from monitor.clock import Clock
from monitor.config import ExperimentSettings, Settings
from monitor.decoding import RecordDecoder
from monitor.engine import (
    EXCLUDED_VARIANT_OFFSET,
    MISSING,
    STUDENT_TAG_BYTES,
    ExclusionRules,
    GradingRules,
    IdHasher,
    ResponseRow,
    merge_reaction,
    merge_response,
    reaction_from_feedback,
    rounded_latency_ms,
)
from monitor.errors import InputRejected, InvalidEvent, count_noun
from monitor.events import Feedback, Response
from monitor.metrics import from_fixed_point
from monitor.offline.metric_definitions import JudgedResponse
from monitor.offline.rater_agreement import Rating, TargetKind
from monitor.offline.undeclared_names import describe_undeclared_names
from monitor.sources import FileSource, RejectedRecord

_HASH_KEY: Final = b"rows of one evaluation, kept nowhere"
"""A constant is safe: hashes of ids never leave the process."""


def read_judged_responses(source: FileSource, settings: Settings, clock: Clock) -> dict[str, list[JudgedResponse]]:
    """Return experiment → responses with grades; the source reports rejected lines."""
    identities = IdHasher(_HASH_KEY)
    return {
        experiment.name: [
            JudgedResponse(
                query_id=event.query_id,
                user_id=event.user_id,
                variant=event.variant,
                items=event.items,
                ranks=event.ranks or tuple(range(1, len(event.items) + 1)),
                grades=tuple(grades.get(identities.hash_item(item)) for item in event.items),
                answer_values=_answer_values(experiment, rules, row),
            )
            for row, event in rows
            for grades in (rules.item_grades(row),)
        ]
        for experiment, rules, rows in _join_feedback(source, settings, clock, identities)
    }


def _answer_values(experiment: ExperimentSettings, rules: GradingRules, row: ResponseRow) -> dict[str, float | None]:
    """Return answer metric → value of a response, None if it is undefined."""
    values = rules.evaluate(row).metric_values if experiment.answer_metrics else ()
    return {
        metric.name: None if value < 0 else from_fixed_point(value)
        for metric, value in zip(experiment.metrics, values, strict=bool(values))
        if not metric.is_ranking
    }


def read_ratings(source: FileSource, settings: Settings, clock: Clock) -> dict[str, list[Rating]]:
    """Return experiment → ratings of the items in responses; the source reports rejected lines."""
    identities = IdHasher(_HASH_KEY)
    ratings_by_experiment: dict[str, list[Rating]] = {}
    for experiment, rules, rows in _join_feedback(source, settings, clock, identities):
        ratings = ratings_by_experiment[experiment.name] = []
        for row, event in rows:
            target_kind: TargetKind = "response" if event.query_id is None else "query"
            target_id = event.response_id if event.query_id is None else event.query_id
            items = {identities.hash_item(item): item for item in event.items}
            # A response without a student is a rater of its own.
            response_rater = row.student_hash[:STUDENT_TAG_BYTES] or b"response " + event.response_id.encode()
            for (student, item), (grade, at_ms) in rules.judgements(row).items():
                if item in items:
                    rater = (student or response_rater).hex()
                    target = (target_kind, target_id, items[item])
                    ratings.append(Rating(event.variant, target, rater, at_ms, grade))
    return ratings_by_experiment


def read_responses_with_feedback(
    source: FileSource, settings: Settings, clock: Clock
) -> dict[str, list[ResponseWithFeedback]]:
    """Return experiment → responses with all ratings of their items; the source reports rejected lines.

    Reviews count without a time limit: analysts review responses after the end of the feedback window.
    """
    identities = IdHasher(_HASH_KEY)
    responses_by_experiment: dict[str, list[ResponseWithFeedback]] = {}
    for experiment, rules, rows in _join_feedback(source, settings, clock, identities):
        responses = responses_by_experiment[experiment.name] = []
        for row, event in rows:
            items = {identities.hash_item(item): item for item in _items_by_rank(event)}
            judgements = rules.judgements(row).items()
            responses.append(
                ResponseWithFeedback(
                    variant=event.variant,
                    timestamp_ms=event.timestamp_ms,
                    student_id=(row.student_hash or b"response " + event.response_id.encode()).hex(),
                    query_id=event.query_id,
                    category=event.category,
                    items=tuple(items.values()),
                    ratings=tuple((items[item], grade) for (_, item), (grade, _) in judgements if item in items),
                    review_score=row.review_score(),
                )
            )
    return responses_by_experiment


def _items_by_rank(event: Response) -> Sequence[str]:
    """Return the items of a response, the first rank first."""
    if event.ranks is None:
        return event.items
    return [item for _, item in sorted(zip(event.ranks, event.items, strict=True))]


def _join_feedback(
    source: FileSource, settings: Settings, clock: Clock, identities: IdHasher
) -> Iterator[tuple[ExperimentSettings, GradingRules, list[tuple[ResponseRow, Response]]]]:
    """Yield (experiment, grading rules, rows of responses with events); the rows contain the feedback."""
    responses, feedback = _read_events(source, settings, clock)
    for sentence in _describe_skipped_responses(responses, settings):
        source.report(sentence)
    # Rows do not contain these fields. Of events that differ in these fields only, the first is kept, so the order is
    # made independent of the files.
    responses.sort(key=lambda event: (event.query_id or "", event.category or ""))
    for experiment in settings.experiments:
        rows: dict[str, tuple[ResponseRow, Response]] = {}
        exclusion_rules = ExclusionRules(experiment.exclude)
        for event in responses:
            if event.experiment == experiment.name and _is_counted(event, experiment):
                is_excluded = event.is_excluded or exclusion_rules.match(event)
                arm = sorted(experiment.variants).index(event.variant) + EXCLUDED_VARIANT_OFFSET * is_excluded
                _merge_response_event(rows, msgspec.structs.replace(event, is_excluded=is_excluded), arm, identities)
        rows = {response_id: (row, event) for response_id, (row, event) in rows.items() if not event.is_excluded}
        for response_id, (row, _) in rows.items():
            for reaction in feedback.get(response_id, ()):
                merge_reaction(row, reaction_from_feedback(reaction, identities))
        yield experiment, GradingRules(experiment), list(rows.values())


def _read_events(
    source: FileSource, settings: Settings, clock: Clock
) -> tuple[list[Response], dict[str, list[Feedback]]]:
    """Return the responses, and response_id → feedback; raises `InputRejected` if no line is an event."""
    decoder = RecordDecoder(settings)
    responses: list[Response] = []
    feedback: dict[str, list[Feedback]] = defaultdict(list)
    source.seek(source.initial_positions({}))
    while not source.is_exhausted():
        for batch in source.poll():
            decode = decoder.partition_decoder(batch.topic, batch.partition)
            for record in batch.records:
                try:
                    events = decode(record, clock())
                except InvalidEvent as error:
                    source.dead_letter_queue.write(
                        [RejectedRecord(batch.partition, record.offset, record.value, error.reason, error.detail)]
                    )
                    continue
                for event in () if isinstance(events, str) else events:
                    if isinstance(event, Response):
                        responses.append(event)
                    else:
                        feedback[event.response_id].append(event)
    if source.rejected_count and not (responses or feedback):
        lines = count_noun(source.rejected_count, "line was", "lines were")
        raise InputRejected(f"{lines} rejected, and none accepted; docs/events.md has the format of events")
    return responses, feedback


def _describe_skipped_responses(responses: Sequence[Response], settings: Settings) -> list[str]:
    """Return a sentence for each reason why responses are skipped, with the number of responses.

    Raises `InputRejected` if every response is skipped, with the sentences.
    """
    experiments = {experiment.name: experiment for experiment in settings.experiments}
    skipped_names, outside_period, excluded = Counter[tuple[str, str]](), Counter[str](), Counter[str]()
    exclusion_rules = {name: ExclusionRules(experiment.exclude) for name, experiment in experiments.items()}
    for event in responses:
        experiment = experiments.get(event.experiment)
        if experiment is None or event.variant not in experiment.variants:
            skipped_names[event.experiment, event.variant] += 1
        elif not _is_counted(event, experiment):
            outside_period[event.experiment] += 1
        elif event.is_excluded or exclusion_rules[event.experiment].match(event):
            excluded[event.experiment] += 1
    sentences = describe_undeclared_names(skipped_names, settings) + [
        f"{count_noun(count, 'response')} skipped: outside of starts_at and ends_at of experiment {name}"
        for name, count in outside_period.items()
    ]
    sentences += [
        f"{count_noun(count, 'response')} excluded: a rule of exclude matches, of experiment {name} or of its source"
        for name, count in excluded.items()
    ]
    skipped = skipped_names.total() + outside_period.total() + excluded.total()
    if responses and skipped == len(responses) and sentences:
        raise InputRejected("\n".join(["no response counts:", *(f"  {sentence}" for sentence in sentences)]))
    return sentences


def _is_counted(event: Response, experiment: ExperimentSettings) -> bool:
    """Return whether the response is from a variant and the period of the experiment."""
    starts_at_ms, ends_at_ms = experiment.starts_at_ms, experiment.ends_at_ms
    is_after_start = starts_at_ms is None or event.timestamp_ms >= starts_at_ms
    is_before_end = ends_at_ms is None or event.timestamp_ms < ends_at_ms
    return event.variant in experiment.variants and is_after_start and is_before_end


def _merge_response_event(
    rows: dict[str, tuple[ResponseRow, Response]], event: Response, arm: int, identities: IdHasher
) -> None:
    """Add the response event to the row of the response_id, unless the row contains the event already."""
    row, _ = rows.get(event.response_id, (ResponseRow(), event))
    student = identities.hash_student(event.user_id) if event.user_id is not None else b""
    items = identities.hash_items(event.items)
    latency_ms = rounded_latency_ms(event)
    outcome = merge_response(row, event.timestamp_ms, arm, student, items, event.ranks, latency_ms, MISSING, MISSING)
    if outcome != "duplicate":
        rows[event.response_id] = row, event
