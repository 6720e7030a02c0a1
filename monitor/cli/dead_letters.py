"""`ab-monitor dead-letters`: list rejected records by reason, and send acceptable records back to their topics."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError
from rich.table import Table

from monitor.analysis import format_timestamp
from monitor.clock import wall_clock
from monitor.config import KafkaSettings, Settings
from monitor.decoding import Headers, RecordDecoder
from monitor.errors import DependencyUnavailable, InvalidEvent, UsageError
from monitor.events import REJECTION_REASONS
from monitor.export import DataConsole, id_text, print_json, simple_table
from monitor.sources import (
    NULL_VALUE_HEADER,
    RECORD_HEADER_PREFIX,
    PlainRecord,
    connect_kafka_client,
    translate_kafka_error,
)

FOREIGN_REASON: Final = "foreign"
"""The reason reported for records of the dead-letter topic that this service has not written."""
_POLL_TIMEOUT_MS: Final = 500
_MAX_EMPTY_POLLS: Final = 60
_REQUEST_TIMEOUT_S: Final = 60.0
_MAX_OFFSET_DIGITS: Final = 20
_TABLE_WIDTH: Final = 400
_MAX_REQUEST_BYTES: Final = 512 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A rejected record: topic, partition, offset, the reason of the rejection, key and value."""

    topic: str
    partition: int
    offset: int
    reason: str
    detail: str
    version: str
    key: bytes | None
    value: bytes | None
    rejected_at_ms: int
    headers: Headers = ()
    """Headers of the rejected record."""
    timestamp: int | None = None
    """Kafka's time of the rejected record in ms."""

    @property
    def source_record(self) -> tuple[str, int, int]:
        """Topic, partition and offset of the rejected record; after a crash, two dead letters may have the same."""
        return self.topic, self.partition, self.offset


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    parser.add_argument(
        "action",
        choices=["list", "retry"],
        help="list: print the number of dead letters by topic and reason; retry: send the dead letters that are valid "
        "under the present configuration to their topics again (an event that was already applied counts once)",
    )
    parser.add_argument("--reason", metavar="R", help="only dead letters with this reason")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    """List the dead letters, or send the acceptable dead letters to their topics again; return the exit code."""
    if arguments.reason not in {None, FOREIGN_REASON, *REJECTION_REASONS}:
        raise UsageError(
            f"--reason: got {arguments.reason!r}, expected one of {', '.join([*REJECTION_REASONS, FOREIGN_REASON])}"
        )
    letters = (letter for letter in read_dead_letters(settings.kafka) if arguments.reason in (None, letter.reason))
    if arguments.action == "list":
        result = _summarize_letters(settings, letters)
    else:
        result = _send_acceptable_letters(settings, letters)
    if arguments.json:
        print_json(result)
    elif arguments.action == "list":
        # Long lines are not wrapped, so that they can be searched, however narrow the terminal is.
        DataConsole(width=_TABLE_WIDTH).print(_build_table(result))
    else:
        reasons = ", ".join(f"{reason} {count}" for reason, count in result["still_rejected"].items())
        rejected_count = sum(result["still_rejected"].values())
        line = f"{result['sent']} dead letters sent to their topics again, {rejected_count} still rejected"
        print(f"{line}: {reasons}" if reasons else line)
    return 0


def read_dead_letters(settings: KafkaSettings) -> Iterator[DeadLetter]:
    """Yield the dead letter of every rejected record once, from the beginning to the current end of the topic.

    Raises `UsageError` if the topic does not exist, `DependencyUnavailable` if Kafka does not respond.
    """
    cluster = f"Kafka at {settings.bootstrap_servers}"
    consumer = connect_kafka_client(
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
            raise UsageError(
                f"kafka.dead_letter_topic: topic {topic} does not exist at {settings.bootstrap_servers}. Create the "
                "topic, or correct the setting"
            )
        partitions = [TopicPartition(topic, number) for number in numbers]
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        yield from _read_until(consumer, dict(consumer.end_offsets(partitions)), cluster)
    except KafkaError as error:
        raise translate_kafka_error(settings, error) from error
    finally:
        consumer.close(autocommit=False)


def _read_until(consumer: KafkaConsumer, end_offsets: dict[TopicPartition, int], cluster: str) -> Iterator[DeadLetter]:
    """Yield the dead letters before the end offsets, without repetitions."""
    yielded_records: set[tuple[str, int, int]] = set()
    empty_polls = 0
    while any(consumer.position(partition) < end_offset for partition, end_offset in end_offsets.items()):
        polled_records = consumer.poll(timeout_ms=_POLL_TIMEOUT_MS)
        empty_polls = 0 if polled_records else empty_polls + 1
        if empty_polls > _MAX_EMPTY_POLLS:
            raise DependencyUnavailable(
                f"{cluster}: no records of the dead-letter topic have arrived for "
                f"{_MAX_EMPTY_POLLS * _POLL_TIMEOUT_MS // 1000} s, although the topic has more. Check the brokers, "
                "then run the command again"
            )
        for partition, records in polled_records.items():
            for record in records:
                letter = _parse_letter(record)
                if record.offset < end_offsets[partition] and letter.source_record not in yielded_records:
                    yielded_records.add(letter.source_record)
                    yield letter


def _parse_letter(record: Any) -> DeadLetter:
    """Return the dead letter that a record of the dead-letter topic contains."""
    headers = {name: value.decode("utf-8", "replace") for name, value in record.headers if value is not None}
    partition, offset, timestamp = (
        _parse_number(headers.get(name, "")) for name in ("partition", "offset", "timestamp")
    )
    if not headers.get("topic") or partition is None or offset is None:
        # Not written by this service: identified by its own partition and offset, and never sent to another topic.
        return DeadLetter("", record.partition, record.offset, FOREIGN_REASON, "", "", None, None, record.timestamp)
    return DeadLetter(
        headers["topic"],
        partition,
        offset,
        headers.get("reason", ""),
        headers.get("detail", ""),
        headers.get("version", ""),
        record.key,
        None if NULL_VALUE_HEADER in headers else record.value,
        record.timestamp,
        [
            (name.removeprefix(RECORD_HEADER_PREFIX), content)
            for name, content in record.headers
            if name.startswith(RECORD_HEADER_PREFIX)
        ],
        timestamp,
    )


def _parse_number(text: str) -> int | None:
    return int(text) if text.isdecimal() and len(text) < _MAX_OFFSET_DIGITS else None


def _summarize_letters(settings: Settings, letters: Iterator[DeadLetter]) -> dict[str, Any]:
    """Return a JSON object with the number of letters by topic and reason, and the newest letter as an example."""
    groups: dict[tuple[str, str], dict[str, Any]] = {}
    for letter in letters:
        group = groups.setdefault(
            (letter.topic, letter.reason),
            {
                "topic": letter.topic,
                "reason": letter.reason,
                "count": 0,
                "first_at": letter.rejected_at_ms,
                "last_at": 0,
            },
        )
        group["count"] += 1
        group["first_at"] = min(group["first_at"], letter.rejected_at_ms)
        if letter.rejected_at_ms >= group["last_at"]:
            group["last_at"] = letter.rejected_at_ms
            group["example"] = {
                "partition": letter.partition,
                "offset": letter.offset,
                "detail": letter.detail,
                "version": letter.version,
            }
    sorted_groups = sorted(groups.values(), key=lambda group: (-group["count"], group["topic"], group["reason"]))
    for group in sorted_groups:
        group["first_at"], group["last_at"] = format_timestamp(group["first_at"]), format_timestamp(group["last_at"])
    return {"dead_letter_topic": settings.kafka.dead_letter_topic, "reasons": sorted_groups}


def _build_table(summary: dict[str, Any]) -> Table | str:
    """Return a table with a row per topic and reason; a sentence if the summary has no dead letters."""
    if not summary["reasons"]:
        return "no dead letters"
    text_columns = ("reason", "last rejected", "last record: partition, offset, error")
    table = simple_table("topic", text_columns[0], "count", *text_columns[1:], left_aligned=text_columns, no_wrap=True)
    for group in summary["reasons"]:
        example = group["example"]
        detail = f"{example['partition']}, {example['offset']}: {example['detail']}"
        cells = (group["topic"], group["reason"], str(group["count"]), group["last_at"], detail)
        # Anybody may write to the topic: headers may contain control characters.
        table.add_row(*map(id_text, cells))
    return table


def _send_acceptable_letters(settings: Settings, letters: Iterator[DeadLetter]) -> dict[str, Any]:
    """Send each acceptable letter to the partition of the record; return the counts as a JSON object."""
    decoder = RecordDecoder(settings)
    rejection_counts: Counter[str] = Counter()
    failures: list[BaseException] = []
    sent_count = 0
    producer = connect_kafka_client(
        KafkaProducer, settings.kafka, acks="all", max_request_size=_MAX_REQUEST_BYTES, metrics_enabled=False
    )
    try:
        for letter in letters:
            if letter.topic not in settings.kafka.topics:
                rejection_counts[FOREIGN_REASON if letter.reason == FOREIGN_REASON else "topic not configured"] += 1
                continue
            decode = decoder.partition_decoder(letter.topic, f"{letter.topic}:{letter.partition}")
            try:
                record = PlainRecord(letter.offset, letter.key, letter.value, letter.timestamp, letter.headers)
                ignored_reason = decode(record, wall_clock())
            except InvalidEvent as error:
                rejection_counts[error.reason] += 1
                continue
            if isinstance(ignored_reason, str):
                rejection_counts[f"ignored: {ignored_reason}"] += 1
                continue
            if letter.partition not in producer.partitions_for(letter.topic):
                rejection_counts["partition does not exist"] += 1
                continue
            delivery = producer.send(
                letter.topic,
                letter.value,
                key=letter.key,
                headers=[(name, content or b"") for name, content in letter.headers],
                partition=letter.partition,
                timestamp_ms=letter.timestamp,
            )
            delivery.add_errback(failures.append)
            sent_count += 1
        producer.flush(timeout=_REQUEST_TIMEOUT_S)
    except KafkaError as error:
        raise translate_kafka_error(settings.kafka, error) from error
    finally:
        producer.close(timeout=_REQUEST_TIMEOUT_S)
    if failures:
        raise DependencyUnavailable(
            f"Kafka at {settings.kafka.bootstrap_servers} rejected {len(failures)} of {sent_count} messages: "
            f"{failures[0]}. Run the command again: events that are sent twice count once"
        )
    return {
        "sent": sent_count,
        "still_rejected": dict(sorted(rejection_counts.items(), key=lambda item: (-item[1], item[0]))),
    }
