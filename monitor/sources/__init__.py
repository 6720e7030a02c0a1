"""Sources of records: Kafka through either client, files of JSON lines, the dead-letter topic."""

from __future__ import annotations

from monitor.sources.copartitioning import check_copartitioning
from monitor.sources.dead_letter_queue import NULL
from monitor.sources.jsonl import FileSource
from monitor.sources.kafka_connection import BEGINNING, Topics, connect, inspect_cluster, translate_error, unreachable
from monitor.sources.kafka_source import KafkaSource, client_version, join
from monitor.sources.source import Gap, PlainRecord, Record, Refused, Slice, Source, UnsharedSource

__all__ = [
    "BEGINNING",
    "NULL",
    "FileSource",
    "Gap",
    "KafkaSource",
    "PlainRecord",
    "Record",
    "Refused",
    "Slice",
    "Source",
    "Topics",
    "UnsharedSource",
    "check_copartitioning",
    "client_version",
    "connect",
    "inspect_cluster",
    "join",
    "translate_error",
    "unreachable",
]
