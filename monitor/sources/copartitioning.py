"""The check for co-partitioned topics: responses and feedback of a user are in partitions with the same number.

A store of several shards needs co-partitioned topics, because a Kafka partition belongs to one shard. The check reads a
sample of recent records, without joining the consumer group.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Final

from monitor.clock import wall_clock
from monitor.config import Settings
from monitor.decoding import RecordDecoder
from monitor.errors import InvalidEvent, UsageError, count_noun
from monitor.sources.recent_records import open_recent_records

_SAMPLE_RECORDS: Final = 20_000
_MIN_PARTITION_RECORDS: Final = 50
"""Records sampled from each partition, even if the whole sample then exceeds `_SAMPLE_RECORDS`."""
_SAMPLE_S: Final = 10.0


def check_copartitioning(settings: Settings, shards: int) -> str | None:
    """Return a sentence on the sampled records, or None if a topic does not exist.

    Raises `UsageError` if the topics are not co-partitioned, `DependencyUnavailable` if the cluster cannot be reached.
    """
    topics = settings.kafka.topics
    with open_recent_records(settings.kafka) as reader:
        partitions = reader.find_partitions(topics)
        if not all(partitions.values()):
            return None
        if len({len(numbers) for numbers in partitions.values()}) > 1:
            counts = ", ".join(
                f"topic {topic} has {count_noun(len(numbers), 'partition')}" for topic, numbers in partitions.items()
            )
            raise UsageError(f"{counts}; {_remedy(shards)}")
        sampled_partitions = [(topic, number) for topic in topics for number in sorted(partitions[topic])]
        partition_sample = max(_MIN_PARTITION_RECORDS, _SAMPLE_RECORDS // len(sampled_partitions))
        return _verify(settings, reader.read(sampled_partitions, partition_sample, _SAMPLE_S), shards)


def _remedy(shards: int) -> str:
    return (
        f"store.shards = {shards} needs co-partitioned topics: the same number of partitions, both keyed by user_id "
        "with the same partitioner. Change the topics or their producers, or use a new store with store.shards = 1"
    )


def _verify(settings: Settings, records: Iterator[Any], shards: int) -> str:
    """Return a sentence on the records; raises `UsageError` if the topics are not co-partitioned."""
    decoder = RecordDecoder(settings)
    now_ms = wall_clock()
    partitions_by_user: defaultdict[str, set[int]] = defaultdict(set)
    event_types_by_user: defaultdict[str, set[str]] = defaultdict(set)
    count = without_user = rejected = 0
    for record in records:
        count += 1
        try:
            events = decoder.partition_decoder(record.topic, f"{record.topic}:{record.partition}")(record, now_ms)
        except InvalidEvent:
            rejected += 1
            continue
        for event in () if isinstance(events, str) else events:
            if event.user_id is None:
                without_user += 1
                continue
            partitions_by_user[event.user_id].add(record.partition)
            event_types_by_user[event.user_id].add(type(event).__name__)
    sample = f"{count_noun(count, 'recent record')} ({without_user} without user_id, {rejected} rejected)"
    scattered = [sorted(numbers) for numbers in partitions_by_user.values() if len(numbers) > 1]
    if scattered:
        raise UsageError(
            f"{len(scattered)} of {count_noun(len(partitions_by_user), 'user')} with records in partitions of "
            f"different numbers, such as {' and '.join(map(str, scattered[0]))}, in {sample}; {_remedy(shards)}"
        )
    shared = sum(len(event_types) > 1 for event_types in event_types_by_user.values())
    if not shared:
        return f"co-partitioning not verified: no user has both responses and feedback in {sample}"
    return f"co-partitioned: {count_noun(shared, 'user')} with both responses and feedback in {sample}"
