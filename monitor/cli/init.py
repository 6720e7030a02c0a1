"""`ab-monitor init`: write a starting configuration from a sample of the topics."""

from __future__ import annotations

import argparse
import os
import tomllib
from collections.abc import Collection, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from monitor.cli.command_io import write_result
from monitor.clock import wall_clock
from monitor.config import KafkaSettings, Settings, parse_integer, parse_settings, similar_name
from monitor.decoding import (
    RecordDecoder,
    SchemaRegistry,
    build_sample_report,
    experiment_sections,
    guess_sources,
    sample_topics,
    source_sections,
    toml_string,
)
from monitor.engine import EventDecoder
from monitor.errors import UsageError
from monitor.sources import ClusterAdmin, open_recent_records

_DEFAULT_FILE: Final = "ab-monitor.toml"
_DEFAULT_SAMPLE: Final = 200
_MAX_SAMPLE: Final = 10_000
_MAX_TOPICS: Final = 30
_SAMPLE_S: Final = 60.0
_SECTIONS: Final = ("KAFKA_", "SCHEMA_REGISTRY_")
_ANY_EXPERIMENT: Final[dict[str, Any]] = {
    "name": "any", "control": "a", "variants": {"a": 0.5, "b": 0.5}, "grades": {"any": 1}
}  # fmt: skip
"""An experiment for settings that decode a sample: it grades no kind by its score, so every score is accepted."""
_CONNECTION_KEYS: Final = (
    "security_protocol",
    "ssl_ca_file",
    "ssl_cert_file",
    "ssl_key_file",
    "sasl_mechanism",
    "sasl_username",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    parser.add_argument(
        "--bootstrap-servers",
        metavar="HOST:PORT",
        help="the Kafka cluster; further settings by the variables ABMONITOR_KAFKA_… (localhost:9092)",
    )
    parser.add_argument("--topics", metavar="A,B", help="topics to read (all of the cluster)")
    parser.add_argument(
        "--sample", type=int, default=_DEFAULT_SAMPLE, metavar="N", help="records of each partition to read (200)"
    )
    parser.add_argument(
        "--output", default=_DEFAULT_FILE, metavar="FILE", help=f"the file to write; - for stdout ({_DEFAULT_FILE})"
    )
    parser.add_argument("--force", action="store_true", help="overwrite the file")


def run(arguments: argparse.Namespace) -> int:
    """Write the configuration; return the exit code."""
    parse_integer("--sample", arguments.sample, 1, _MAX_SAMPLE)
    if arguments.output != "-" and not arguments.force and Path(arguments.output).exists():
        raise UsageError(f"--output: the file {arguments.output} exists. Name another file, or overwrite it by --force")
    environ = {
        name: text
        for name, text in os.environ.items()
        if name.removeprefix("ABMONITOR_").startswith(_SECTIONS) and name.startswith("ABMONITOR_")
    }
    if arguments.bootstrap_servers is not None:
        environ["ABMONITOR_KAFKA_BOOTSTRAP_SERVERS"] = arguments.bootstrap_servers
    settings = parse_settings({"experiments": [_ANY_EXPERIMENT]}, environ)
    with closing(ClusterAdmin(settings.kafka)) as admin:
        existing_topics = admin.list_topics()
    topics = _select_topics(settings.kafka, arguments.topics, existing_topics)
    records = _read_sample(settings.kafka, topics, arguments.sample)
    text = _build_text(settings, topics, records, environ, existing_topics)
    write_result("--output", arguments.output, text)
    if arguments.output != "-":
        _, *lines = text.splitlines()
        todo_count = sum("TODO" in line for line in lines)
        print(f"{arguments.output} written from {len(records):,} records of {', '.join(topics)}")
        print(f"next: correct the {todo_count} lines with TODO")
        print(f"then: ab-monitor check --config {arguments.output} --sample {arguments.sample}")
    return 0


def _select_topics(kafka: KafkaSettings, names: str | None, existing_topics: Collection[str]) -> list[str]:
    """Return the topics to read; raises `UsageError` for a topic that does not exist, and for too many topics."""
    if names is None:
        topics = [topic for topic in existing_topics if topic != kafka.dead_letter_topic and not topic.startswith("_")]
        if not topics:
            raise UsageError(f"Kafka at {kafka.bootstrap_servers} has no topics that the user may read")
        if len(topics) > _MAX_TOPICS:
            raise UsageError(
                f"Kafka at {kafka.bootstrap_servers} has {len(topics)} topics, expected at most {_MAX_TOPICS}: name "
                "those with responses and feedback by --topics A,B"
            )
        return topics
    topics = list(dict.fromkeys(filter(None, map(str.strip, names.split(",")))))
    for topic in topics:
        _check_topic(topic, existing_topics, kafka)
    if not topics:
        raise UsageError(f'--topics: got "{names}", expected names of topics, separated by commas')
    return topics


def _check_topic(topic: str, existing_topics: Collection[str], kafka: KafkaSettings) -> None:
    if topic not in existing_topics:
        similar = similar_name(topic, existing_topics)
        hint = f"; did you mean {similar}?" if similar else ""
        raise UsageError(f"--topics: topic {topic} does not exist at {kafka.bootstrap_servers}{hint}")


def _read_sample(kafka: KafkaSettings, topics: Sequence[str], count: int) -> list[Any]:
    with open_recent_records(kafka) as reader:
        partitions = [
            (topic, number) for topic, numbers in reader.find_partitions(topics).items() for number in sorted(numbers)
        ]
        return list(reader.read(partitions, count, _SAMPLE_S))


def _build_text(
    settings: Settings,
    topics: Sequence[str],
    records: Sequence[Any],
    environ: dict[str, str],
    existing_topics: Collection[str],
) -> str:
    """Return the text of the configuration file."""
    now_ms = wall_clock()
    registry = SchemaRegistry(settings.schema_registry) if settings.schema_registry.url else None
    samples = sample_topics(records, topics, EventDecoder(settings), registry, now_ms)
    guesses = [guess for sample in samples for guess in guess_sources(sample)]
    guesses.sort(key=lambda guess: guess.event_type == "feedback")
    kafka_lines, source_lines = source_sections(samples, guesses)
    dead_letter_topic = settings.kafka.dead_letter_topic
    missing = "" if dead_letter_topic in existing_topics else "  # TODO: create this topic, for rejected records"
    head = [
        "# Written by ab-monitor init from a sample. Every line with TODO is a guess or is missing: docs/sources.md",
        "[kafka]",
        f"bootstrap_servers = {toml_string(settings.kafka.bootstrap_servers)}",
        *_connection_lines(settings.kafka),
        *kafka_lines,
        f"dead_letter_topic = {toml_string(dead_letter_topic)}{missing}",
        "",
        *source_lines,
    ]
    if settings.schema_registry.url is not None:
        head += ["[schema_registry]", f"url = {toml_string(settings.schema_registry.url)}", ""]
    document = tomllib.loads("\n".join(head))
    sampled_settings = parse_settings({**document, "experiments": [_ANY_EXPERIMENT]}, environ)
    report = build_sample_report(sampled_settings, RecordDecoder(sampled_settings), records, now_ms)
    store = ["[store]", 'url = "redis://localhost:6379/0"  # TODO: address of Redis or Valkey', ""]
    return "\n".join([*head, *store, *experiment_sections(report)]) + "\n"


def _connection_lines(kafka: KafkaSettings) -> list[str]:
    """Return the settings of the connection that are not the defaults, without secrets."""
    return [
        f"{key} = {toml_string(getattr(kafka, key))}"
        for key in _CONNECTION_KEYS
        if getattr(kafka, key) != getattr(KafkaSettings(), key)
    ]
