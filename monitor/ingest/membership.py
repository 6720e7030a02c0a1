"""Which partitions the group gives to this worker."""

from __future__ import annotations

import logging

from kafka import KafkaConsumer, TopicPartition
from kafka.consumer.subscription_state import ConsumerRebalanceListener

log = logging.getLogger(__name__)


def partition_name(partition: TopicPartition) -> str:
    """Return the name of a partition's position in the store."""
    return f"{partition.topic}:{partition.partition}"


def partition_of(name: str) -> TopicPartition:
    """Return the partition of a position's name."""
    topic, _, number = name.rpartition(":")
    return TopicPartition(topic, int(number))


class Rebalances(ConsumerRebalanceListener):  # type: ignore[misc]  # kafka-python carries no types
    """Pauses what is new, notes what is gone."""

    def __init__(self, consumer: KafkaConsumer) -> None:
        self._consumer = consumer
        self.unplaced: set[TopicPartition] = set()
        self.joined = False

    def on_partitions_assigned(self, assigned: list[TopicPartition]) -> None:
        self.joined = True
        self._consumer.pause(*assigned)
        self.unplaced |= set(assigned)
        log.info("partitions assigned count=%d", len(assigned))

    def on_partitions_revoked(self, revoked: list[TopicPartition]) -> None:
        self.unplaced -= set(revoked)
        log.info("partitions revoked count=%d", len(revoked))
