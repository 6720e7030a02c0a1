"""Refused messages: kept in a topic of their own as they were, with where and why in the headers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kafka import KafkaProducer
from kafka.errors import KafkaError

from monitor import __version__
from monitor.config import KafkaSettings
from monitor.errors import DependencyUnavailable
from monitor.sources.kafka_connection import connect
from monitor.sources.source import Refused

NULL: Final = "null"
"""Header that says that the record had no value, although its dead letter has an empty one."""
_REQUEST_S: Final = 30.0
_LARGEST: Final = 512 * 1024 * 1024
"""What the topic accepts is decided by its own `max.message.bytes`, not by this client."""


class DeadLetters:
    """Writes to the dead-letter topic."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._topic = settings.dead_letter_topic
        self._producer = connect(
            KafkaProducer,
            settings,
            acks="all",
            max_block_ms=int(_REQUEST_S * 1000),
            max_request_size=_LARGEST,
            metrics_enabled=False,
        )

    def keep(self, refused: Sequence[Refused]) -> None:
        """Write the records with their keys and wait for every acknowledgement; raises `DependencyUnavailable`."""
        futures = []
        try:
            for each in refused:
                topic, _, number = each.partition.rpartition(":")
                headers = {
                    "topic": topic,
                    "partition": number,
                    "offset": str(each.offset),
                    "reason": each.reason,
                    "detail": each.detail,
                    "version": __version__,
                }
                key, value = each.key, each.payload
                if key is None and value is None:
                    # The client sends no record without both.
                    headers[NULL], value = "value", b""
                futures.append(
                    self._producer.send(
                        self._topic,
                        key=key,
                        value=value,
                        headers=[(name, text.encode()) for name, text in headers.items()],
                    )
                )
            self._producer.flush(timeout=_REQUEST_S)
            for future in futures:
                future.get(timeout=_REQUEST_S)
        except KafkaError as error:
            raise DependencyUnavailable(
                f"dead-letter topic {self._topic} does not accept a refused event: {error}"
            ) from error

    def close(self) -> None:
        self._producer.close(timeout=_REQUEST_S)
