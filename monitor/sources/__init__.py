"""Sources of records: the interface `Source`, Kafka, and files of JSON lines.

- `source`: the interface and its records
- `kafka_source`: Kafka, on one of two client libraries behind the interface `consumer` (`kafka_python`, `confluent`)
- `kafka_connection`: connection options, translated errors, requests about topics, offsets and groups
- `dead_letter_queue`: the topic of rejected records
- `recent_records`, `history_reader`: the newest records, and ranges of offsets, read without the consumer group
- `copartitioning`: the check that a store of several shards needs
- `jsonl`: files
"""

from __future__ import annotations

from monitor.sources.consumer import OffsetOutOfRange
from monitor.sources.copartitioning import check_copartitioning
from monitor.sources.dead_letter_queue import NULL_VALUE_HEADER, RECORD_HEADER_PREFIX
from monitor.sources.history_reader import HistoryReader
from monitor.sources.jsonl import EventFile, FileSource
from monitor.sources.kafka_connection import (
    EARLIEST_OFFSET,
    ClusterAdmin,
    TopicInspection,
    connect_kafka_client,
    inspect_kafka_topics,
    kafka_connection_problem,
    translate_kafka_error,
)
from monitor.sources.kafka_source import KafkaSource, create_consumer, kafka_client_version
from monitor.sources.recent_records import open_recent_records
from monitor.sources.source import (
    DeadLetterQueue,
    OffsetGap,
    PartitionRecords,
    PlainRecord,
    RejectedRecord,
    Source,
    UnsharedSource,
)

__all__ = [
    "EARLIEST_OFFSET",
    "NULL_VALUE_HEADER",
    "RECORD_HEADER_PREFIX",
    "ClusterAdmin",
    "DeadLetterQueue",
    "EventFile",
    "FileSource",
    "HistoryReader",
    "KafkaSource",
    "OffsetGap",
    "OffsetOutOfRange",
    "PartitionRecords",
    "PlainRecord",
    "RejectedRecord",
    "Source",
    "TopicInspection",
    "UnsharedSource",
    "check_copartitioning",
    "connect_kafka_client",
    "create_consumer",
    "inspect_kafka_topics",
    "kafka_client_version",
    "kafka_connection_problem",
    "open_recent_records",
    "translate_kafka_error",
]
