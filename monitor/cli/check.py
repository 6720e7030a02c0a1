"""`ab-monitor check`: validate the configuration, connect to Kafka and the store, and warn about unsafe settings."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from monitor.clock import wall_clock
from monitor.config import Settings, experiment_warnings
from monitor.errors import AbMonitorError
from monitor.sources import check_copartitioning, create_consumer, inspect_kafka_topics, kafka_client_version
from monitor.state import open_store_reader, read_server_warnings


def add_arguments(_parser: argparse.ArgumentParser) -> None:
    """Declare no flags: the command has only `--config`."""


def run(_arguments: object, settings: Settings) -> int:
    """Print the state of the configuration, the store and Kafka; return the exit code.

    Raises the error of the store or of Kafka. If both fail, Kafka's error is printed and the store's error is raised.
    """
    print(f"configuration  ok: {', '.join(experiment.name for experiment in settings.experiments)}")
    _print_warnings(experiment_warnings(settings.experiments))
    shard_count = settings.store.shards or 1
    store_error: AbMonitorError | None = None
    try:
        shard_count = _check_store(settings)
    except AbMonitorError as error:
        store_error = error
    try:
        _check_kafka(settings, shard_count)
    except AbMonitorError as error:
        if store_error is None:
            raise
        print(f"kafka          failed: {error}")
    if store_error is not None:
        raise store_error
    return 0


def _check_store(settings: Settings) -> int:
    """Print the state of the store, and return the store's number of shards."""
    with open_store_reader(settings, wall_clock, must_exist=False) as reader:
        has_experiments = any(number >= 0 for number in reader.numbers.values())
        shard_count = len(reader.store)
        content = "definitions agree" if has_experiments else "no experiment in it yet"
        shards = f", {shard_count} shards" if shard_count > 1 else ""
        print(f"store          ok: reachable, {content}{shards}")
        _print_warnings(read_server_warnings(reader.store))
        return shard_count


def _check_kafka(settings: Settings, shard_count: int) -> None:
    """Print the state of the Kafka cluster and of the configured topics."""
    print(f"kafka          client {kafka_client_version(settings.kafka)}")
    for line, problem in inspect_kafka_topics(settings.kafka):
        print(f"kafka          {line}")
        _print_warnings([problem] if problem else [])
    if settings.kafka.client == "confluent":
        # kafka-python has made the checks above, because its errors are clearer. librdkafka has to accept the same
        # settings.
        create_consumer(settings.kafka).close({})
    if shard_count > 1:
        copartitioning = check_copartitioning(settings, shard_count)
        if copartitioning is not None:
            print(f"kafka          {copartitioning}")


def _print_warnings(problems: Sequence[str]) -> None:
    for problem in problems:
        print(f"warning        {problem}")
