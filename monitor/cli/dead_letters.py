"""`ab-monitor dead-letters`: what was refused, by reason, and its way back after a fix."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError
from rich.console import Console
from rich.table import Table
from rich.text import Text

from monitor.analysis import iso
from monitor.clock import wall_clock
from monitor.config import KafkaSettings, Settings
from monitor.engine import Decoder
from monitor.errors import DependencyUnavailable, Refusal, UsageError
from monitor.events import REASONS
from monitor.export import print_json, simple_table
from monitor.sources import NULL, connect, translate_error

FOREIGN: Final = "foreign"
"""The reason of what stands in the topic and is none of this service's."""
_POLL_MS: Final = 500
_STALLED_POLLS: Final = 60
_REQUEST_S: Final = 60.0
_DIGITS: Final = 20
_WIDEST: Final = 400
_LARGEST: Final = 512 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Letter:
    """One refused message: where it came from, why it was refused, and what it was."""

    topic: str
    partition: int
    offset: int
    reason: str
    detail: str
    version: str
    key: bytes | None
    value: bytes | None
    refused_at_ms: int

    @property
    def origin(self) -> tuple[str, int, int]:
        """The record that it was: a crash may have left two letters of one record."""
        return self.topic, self.partition, self.offset


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    parser.add_argument(
        "action",
        choices=["list", "retry"],
        help="list: how many there are, by topic and reason; retry: send those that are acceptable by now back to "
        "their topics (what was applied before changes nothing)",
    )
    parser.add_argument("--reason", metavar="R", help="only those refused for this reason")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    """List the dead letters or send them round again."""
    if arguments.reason not in {None, FOREIGN, *REASONS}:
        raise UsageError(f"--reason: got {arguments.reason!r}, expected one of {', '.join([*REASONS, FOREIGN])}")
    letters = (each for each in dead_letters(settings.kafka) if arguments.reason in (None, each.reason))
    found = _listed(settings, letters) if arguments.action == "list" else _retried(settings, letters)
    if arguments.json:
        print_json(found)
    elif arguments.action == "list":
        # Whole lines, however narrow the terminal: they are there to be searched.
        Console(width=_WIDEST).print(_table(found))
    else:
        still = ", ".join(f"{reason} {count}" for reason, count in found["still_refused"].items())
        refused = sum(found["still_refused"].values())
        print(f"{found['sent']} sent back to their topics, {refused} still refused" + (f": {still}" if still else ""))
    return 0


def dead_letters(settings: KafkaSettings) -> Iterator[Letter]:
    """Yield every letter once, from the beginning of the topic to what is its end now."""
    place = f"Kafka at {settings.bootstrap_servers}"
    consumer = connect(
        KafkaConsumer,
        settings,
        group_id=None,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        metrics_enabled=False,
    )
    try:
        topic = settings.dead_letter_topic
        numbers = consumer.partitions_for_topic(topic)
        if not numbers:
            raise UsageError(f"kafka.dead_letter_topic: there is no topic {topic} at {settings.bootstrap_servers}")
        partitions = [TopicPartition(topic, number) for number in numbers]
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        yield from _until(consumer, dict(consumer.end_offsets(partitions)), place)
    except KafkaError as error:
        raise translate_error(settings, error) from error
    finally:
        consumer.close(autocommit=False)


def _until(consumer: KafkaConsumer, ends: dict[TopicPartition, int], place: str) -> Iterator[Letter]:
    seen: set[tuple[str, int, int]] = set()
    idle = 0
    while any(consumer.position(partition) < end for partition, end in ends.items()):
        polled = consumer.poll(timeout_ms=_POLL_MS)
        idle = 0 if polled else idle + 1
        if idle > _STALLED_POLLS:
            raise DependencyUnavailable(f"{place}: nothing arrives from the dead-letter topic although there is more")
        for partition, records in polled.items():
            for record in records:
                letter = _letter(record)
                if record.offset < ends[partition] and letter.origin not in seen:
                    seen.add(letter.origin)
                    yield letter


def _letter(record: Any) -> Letter:
    headers = {name: value.decode("utf-8", "replace") for name, value in record.headers if value is not None}
    numbers = [headers.get(name, "") for name in ("partition", "offset")]
    partition, offset = (int(number) if number.isdecimal() and len(number) < _DIGITS else -1 for number in numbers)
    if not headers.get("topic") or partition < 0 or offset < 0:
        # Not from this service: shown under its own place, and never sent anywhere.
        return Letter("", record.partition, record.offset, FOREIGN, "", "", None, None, record.timestamp)
    return Letter(
        headers["topic"],
        partition,
        offset,
        headers.get("reason", ""),
        headers.get("detail", ""),
        headers.get("version", ""),
        record.key,
        None if NULL in headers else record.value,
        record.timestamp,
    )


def _listed(settings: Settings, letters: Iterator[Letter]) -> dict[str, Any]:
    """Return how many letters there are by topic and reason, with the newest of each as an example."""
    groups: dict[tuple[str, str], dict[str, Any]] = {}
    for each in letters:
        group = groups.setdefault(
            (each.topic, each.reason),
            {"topic": each.topic, "reason": each.reason, "count": 0, "first_at": each.refused_at_ms, "last_at": 0},
        )
        group["count"] += 1
        group["first_at"] = min(group["first_at"], each.refused_at_ms)
        if each.refused_at_ms >= group["last_at"]:
            group["last_at"] = each.refused_at_ms
            group["example"] = {
                "partition": each.partition,
                "offset": each.offset,
                "detail": each.detail,
                "version": each.version,
            }
    found = sorted(groups.values(), key=lambda group: (-group["count"], group["topic"], group["reason"]))
    for group in found:
        group["first_at"], group["last_at"] = iso(group["first_at"]), iso(group["last_at"])
    return {"dead_letter_topic": settings.kafka.dead_letter_topic, "reasons": found}


def _table(found: dict[str, Any]) -> Table | str:
    if not found["reasons"]:
        return "no dead letters"
    texts = ("reason", "last refused", "the last one: partition, offset, what was wrong")
    table = simple_table("topic", texts[0], "count", *texts[1:], left=texts, no_wrap=True)
    for group in found["reasons"]:
        example = group["example"]
        wrong = f"{example['partition']}, {example['offset']}: {example['detail']}"
        cells = (group["topic"], group["reason"], str(group["count"]), group["last_at"], wrong)
        # Anybody may write headers; neither markup nor control characters of theirs are for the terminal.
        table.add_row(*[Text("".join(each if each.isprintable() else "\ufffd" for each in cell)) for cell in cells])
    return table


def _retried(settings: Settings, letters: Iterator[Letter]) -> dict[str, Any]:
    """Send back what would be accepted now, to the partition it came from; return the numbers."""
    decoder = Decoder(settings)
    decoders = {settings.kafka.responses_topic: decoder.response, settings.kafka.feedback_topic: decoder.feedback}
    still: Counter[str] = Counter()
    failures: list[BaseException] = []
    sent = 0
    producer = connect(KafkaProducer, settings.kafka, acks="all", max_request_size=_LARGEST, metrics_enabled=False)
    try:
        for each in letters:
            decode = decoders.get(each.topic)
            if decode is None:
                still[FOREIGN if each.reason == FOREIGN else "topic not configured"] += 1
                continue
            try:
                decode(each.value, wall_clock())
            except Refusal as refusal:
                still[refusal.reason] += 1
                continue
            if each.partition not in producer.partitions_for(each.topic):
                still["partition is gone"] += 1
                continue
            sending = producer.send(each.topic, each.value, key=each.key, partition=each.partition)
            sending.add_errback(failures.append)
            sent += 1
        producer.flush(timeout=_REQUEST_S)
    except KafkaError as error:
        raise translate_error(settings.kafka, error) from error
    finally:
        producer.close(timeout=_REQUEST_S)
    if failures:
        raise DependencyUnavailable(
            f"Kafka at {settings.kafka.bootstrap_servers} refused {len(failures)} of {sent} messages: {failures[0]}. "
            "Try again: what was sent twice changes nothing"
        )
    return {"sent": sent, "still_refused": dict(sorted(still.items(), key=lambda item: (-item[1], item[0])))}
