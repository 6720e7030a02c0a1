"""Sentences about events that do not count: rejected, skipped and unmatched ones of the last hour, by topic."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from monitor.analysis import find_meant_name
from monitor.clock import HOUR_MS
from monitor.config import similar_name
from monitor.errors import count_noun
from monitor.state import SLOT_MS, ArrivalLog, TopicArrivals

ProblemKind = Literal["rejected", "filtered", "undeclared_experiment", "undeclared_variant", "unmatched"]
_MIN_SHARE: Final = 0.01
"""Smallest share of a topic's messages that is a problem. Less is usual: test messages, retries of old clients. More
can change a verdict, and is the default limit of rejected events in a verdict."""
_MIN_COUNT: Final = 10
"""Smallest number of messages that is a problem, unless all messages are concerned: on a quiet topic, one message is
more than 1 %."""
_MIN_UNMATCHED_SHARE: Final = 0.1
"""The same for unmatched feedback. Feedback about responses of other bots is usual, and expires in bursts."""
_ONGOING_MS: Final = 2 * SLOT_MS
_MAX_LISTED_NAMES: Final = 5


@dataclass(frozen=True, slots=True)
class DataProblem:
    """Events of a topic that do not count, in the last hour."""

    topic: str
    kind: ProblemKind
    count: int
    received: int
    """Messages of the topic in the last hour, without ignored ones."""
    text: str
    """A sentence with counts, the reason or the names, and the next step."""
    is_ongoing: bool
    """Whether such events have arrived within the last ten minutes."""

    def to_json(self) -> dict[str, Any]:
        """Return the problem as in the JSON of `status`."""
        return {
            "topic": self.topic,
            "kind": self.kind,
            "count": self.count,
            "received": self.received,
            "ongoing": self.is_ongoing,
            "text": self.text,
        }


def find_data_problems(
    arrivals: ArrivalLog,
    declared_variants: Mapping[str, Collection[str]],
    removed_experiments: Collection[str],
    now_ms: int,
) -> list[DataProblem]:
    """Return the problems of the last hour, by topic.

    `declared_variants` are the variants by experiment. `removed_experiments` are archived, or in the store, but not in
    the configuration: their events are skipped on purpose.
    """
    recent_by_topic = arrivals.since(now_ms - _ONGOING_MS)
    problems: list[DataProblem] = []
    for topic, counts in arrivals.since(now_ms - HOUR_MS).items():
        recent_counts = recent_by_topic.get(topic, TopicArrivals())
        problems += _find_filtered(topic, counts, recent_counts)
        problems += _find_rejected(topic, counts, recent_counts)
        problems += _find_undeclared(topic, counts, recent_counts, declared_variants, removed_experiments)
        if counts.unmatched >= max(_MIN_COUNT, _MIN_UNMATCHED_SHARE * counts.considered):
            text = (
                f"last hour: {_count(counts.unmatched)} reactions of {topic} expired, because their responses never "
                f"arrived ({_count(counts.considered)} messages were received). Compare the response_id of both topics"
            )
            is_ongoing = recent_counts.unmatched > 0
            problems.append(
                DataProblem(
                    topic, "unmatched", counts.unmatched, counts.considered, f"{text}{_end(is_ongoing)}", is_ongoing
                )
            )
    return problems


def _find_filtered(topic: str, counts: TopicArrivals, recent_counts: TopicArrivals) -> Iterator[DataProblem]:
    """Yield a problem if no message passes the filters: a shared topic has some, a mistyped filter passes none."""
    count = counts.ignored["filtered"]
    if count < _MIN_COUNT or count < counts.received - counts.ignored["tombstone"]:
        return
    is_ongoing = recent_counts.ignored["filtered"] > 0
    text = (
        f"last hour: all {_count(count)} messages of {topic} ignored, because none passes `when` of the topic's "
        "sources; see `ab-monitor check --sample 50 --config FILE`"
    )
    yield DataProblem(topic, "filtered", count, count, f"{text}{_end(is_ongoing)}", is_ongoing)


def _find_rejected(topic: str, counts: TopicArrivals, recent_counts: TopicArrivals) -> Iterator[DataProblem]:
    count, received = counts.rejected.total(), counts.considered
    if not _is_problem(count, received):
        return
    ((reason, reason_count),) = counts.rejected.most_common(1)
    cause = reason if reason_count == count else f"mostly {reason}"
    is_ongoing = recent_counts.rejected.total() > 0
    text = (
        f"last hour: {_part(count, received)} of {topic} rejected, {cause}; see `ab-monitor dead-letters list "
        "--config FILE`"
    )
    yield DataProblem(topic, "rejected", count, received, f"{text}{_end(is_ongoing)}", is_ongoing)


def _find_undeclared(
    topic: str,
    counts: TopicArrivals,
    recent_counts: TopicArrivals,
    declared_variants: Mapping[str, Collection[str]],
    removed_experiments: Collection[str],
) -> Iterator[DataProblem]:
    by_kind: dict[ProblemKind, dict[tuple[str, str], int]] = {"undeclared_experiment": {}, "undeclared_variant": {}}
    for (experiment, variant), count in counts.undeclared.most_common():
        # The configuration may have been changed within the hour.
        is_declared = variant in declared_variants.get(experiment, ()) if variant else experiment in declared_variants
        if not is_declared and experiment not in removed_experiments:
            by_kind["undeclared_variant" if variant else "undeclared_experiment"][experiment, variant] = count
    for kind, responses in by_kind.items():
        count = sum(responses.values())
        if not _is_problem(count, counts.considered):
            continue
        listed_names = list(responses)[:_MAX_LISTED_NAMES]
        parts = [_describe_names(names, responses[names], declared_variants) for names in listed_names]
        if len(responses) > len(listed_names):
            parts.append(f"and {len(responses) - len(listed_names)} more")
        subject, next_step = "variants", ""
        if kind == "undeclared_experiment":
            subject = "experiments"
            next_step = " To count an experiment, see `ab-monitor experiments adopt NAME --config FILE`"
        is_ongoing = any(names in recent_counts.undeclared for names in responses)
        if next_step and not parts[-1].endswith("?"):
            parts[-1] += "."
        text = (
            f"last hour: {_part(count, counts.considered)} of {topic} skipped: the configuration does not "
            f"declare their {subject}: {'; '.join(parts)}{next_step}"
        )
        yield DataProblem(topic, kind, count, counts.considered, f"{text}{_end(is_ongoing)}", is_ongoing)


def _describe_names(names: tuple[str, str], count: int, declared_variants: Mapping[str, Collection[str]]) -> str:
    """Return the undeclared name with its count, and the declared name that was probably meant."""
    experiment, variant = names
    if names == ("", ""):
        return f"further names ({_count(count)})"
    if variant:
        declared = declared_variants.get(experiment, ())
        suggestion = similar_name(variant, declared)
        hint = f"did you mean '{suggestion}'?" if suggestion else f"declared are {', '.join(sorted(declared))}"
        return f"'{variant}' of '{experiment}' ({_count(count)}), {hint}"
    suggestion = find_meant_name(experiment, declared_variants)
    hint = f", did you mean '{suggestion}'?" if suggestion else ""
    return f"'{experiment}' ({_count(count)}){hint}"


def _is_problem(count: int, received: int) -> bool:
    """Return whether so many of the received messages are a problem."""
    return count > 0 and (count >= received or (count >= _MIN_COUNT and count >= _MIN_SHARE * received))


def _part(count: int, received: int) -> str:
    share = f"({100 * count / received:.1f} %) " if count < received else ""
    return f"{_count(count)} of {count_noun(received, f'{share}message', separator=' ')}"


def _end(is_ongoing: bool) -> str:  # noqa: FBT001
    return "" if is_ongoing else ". None within the last ten minutes"


def _count(number: int) -> str:
    return f"{number:,}".replace(",", " ")
