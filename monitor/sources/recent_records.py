"""The newest records of topics, read without joining the consumer group and without committing offsets."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError

from monitor.config import KafkaSettings
from monitor.sources.kafka_connection import connect_kafka_client, translate_kafka_error

_POLL_MS: Final = 200
_MAX_POLL_RECORDS: Final = 20_000


class RecentRecordReader:
    """Reads the newest committed records of topics."""

    def __init__(self, consumer: KafkaConsumer) -> None:
        self._consumer = consumer
        self.is_complete = True
        """Whether the last `read` has reached the ends of the partitions."""

    def find_partitions(self, topics: Collection[str]) -> dict[str, set[int]]:
        """Return the numbers of the partitions by topic; none for a topic that does not exist."""
        return {topic: self._consumer.partitions_for_topic(topic) or set() for topic in topics}

    def read(self, partitions: Sequence[tuple[str, int]], count: int, timeout_s: float) -> Iterator[Any]:
        """Yield the records at the last `count` offsets of each partition, for at most `timeout_s` seconds."""
        consumer = self._consumer
        topic_partitions = [TopicPartition(*partition) for partition in partitions]
        consumer.assign(topic_partitions)
        first_offsets, end_offsets = (
            consumer.beginning_offsets(topic_partitions),
            consumer.end_offsets(topic_partitions),
        )
        for partition in topic_partitions:
            consumer.seek(partition, max(first_offsets[partition], end_offsets[partition] - count))
        deadline_s = time.monotonic() + timeout_s
        self.is_complete = False
        while any(consumer.position(partition) < end_offsets[partition] for partition in topic_partitions):
            if time.monotonic() >= deadline_s:
                return
            for records in consumer.poll(timeout_ms=_POLL_MS).values():
                yield from records
        self.is_complete = True


@contextmanager
def open_recent_records(settings: KafkaSettings) -> Iterator[RecentRecordReader]:
    """Yield a reader with a connection of its own.

    Raises `DependencyUnavailable` if the cluster cannot be reached, `UsageError` if the cluster rejects the user.
    """
    consumer = connect_kafka_client(
        KafkaConsumer,
        settings,
        group_id=None,
        enable_auto_commit=False,
        isolation_level="read_committed",
        max_poll_records=_MAX_POLL_RECORDS,
        metrics_enabled=False,
    )
    try:
        yield RecentRecordReader(consumer)
    except KafkaError as error:
        raise translate_kafka_error(settings, error) from error
    finally:
        consumer.close(autocommit=False)
