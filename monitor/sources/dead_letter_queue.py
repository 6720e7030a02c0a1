"""The dead-letter topic: rejected records, unchanged, with their origin and the reason in the headers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kafka import KafkaProducer
from kafka.errors import KafkaError

from monitor import __version__
from monitor.config import KafkaSettings
from monitor.errors import DependencyUnavailable
from monitor.sources.kafka_connection import connect_kafka_client
from monitor.sources.source import RejectedRecord

NULL_VALUE_HEADER: Final = "null"
"""Name of a header: the rejected record had no value, although the dead letter has an empty value."""
RECORD_HEADER_PREFIX: Final = "record."
"""Prefix of the names of the rejected record's own headers."""
_REQUEST_TIMEOUT_S: Final = 30.0
_METADATA_TIMEOUT_S: Final = 10.0
"""How long a write waits for a missing topic. The worker tries again later, so a short time only shortens its stop."""
_MAX_REQUEST_BYTES: Final = 512 * 1024 * 1024
"""The limit is `max.message.bytes` of the topic, not a setting of this client."""


class KafkaDeadLetterQueue:
    """Writes rejected records to the dead-letter topic; see `DeadLetterQueue`."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._topic = settings.dead_letter_topic
        self._producer = connect_kafka_client(
            KafkaProducer,
            settings,
            acks="all",
            max_block_ms=int(_METADATA_TIMEOUT_S * 1000),
            max_request_size=_MAX_REQUEST_BYTES,
            metrics_enabled=False,
        )

    def write(self, rejected_records: Sequence[RejectedRecord]) -> None:
        """Write the records with their keys, and wait until the brokers have acknowledged every record."""
        futures = []
        try:
            for record in rejected_records:
                topic, _, number = record.partition.rpartition(":")
                headers = {
                    "topic": topic,
                    "partition": number,
                    "offset": str(record.offset),
                    "reason": record.reason,
                    "detail": record.detail,
                    "version": __version__,
                }
                if record.timestamp is not None and record.timestamp >= 0:
                    headers["timestamp"] = str(record.timestamp)
                # kafka-python sends no header without a value, only with an empty one.
                record_headers = [(f"{RECORD_HEADER_PREFIX}{name}", content or b"") for name, content in record.headers]
                key, value = record.key, record.value
                if key is None and value is None:
                    # kafka-python sends no record that has neither a key nor a value.
                    headers[NULL_VALUE_HEADER], value = "value", b""
                futures.append(
                    self._producer.send(
                        self._topic,
                        key=key,
                        value=value,
                        headers=[*((name, text.encode()) for name, text in headers.items()), *record_headers],
                    )
                )
            self._producer.flush(timeout=_REQUEST_TIMEOUT_S)
            for future in futures:
                future.get(timeout=_REQUEST_TIMEOUT_S)
        except KafkaError as error:
            raise DependencyUnavailable(
                f"dead-letter topic {self._topic}: a rejected record could not be written: {error}. The topic must "
                "exist, and accept messages as large as those of the event topics (max.message.bytes)"
            ) from error

    def close(self) -> None:
        self._producer.close(timeout=_REQUEST_TIMEOUT_S)
