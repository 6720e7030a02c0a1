"""`ab-monitor check`: whether the file is right, Kafka and the store answer, and anything about them is unsafe."""

from __future__ import annotations

from collections.abc import Sequence

from monitor.app import viewed
from monitor.clock import wall_clock
from monitor.config import Settings, experiment_warnings
from monitor.errors import AbMonitorError
from monitor.sources import check_copartitioning, client_version, inspect_cluster, join
from monitor.state import warnings


def run(_arguments: object, settings: Settings) -> int:
    """Print what was found; if both the store and Kafka cannot be used, the former is raised and the latter printed."""
    print(f"configuration  ok: {', '.join(experiment.name for experiment in settings.experiments)}")
    _warn(experiment_warnings(settings.experiments))
    shards = settings.store.shards or 1
    failure: AbMonitorError | None = None
    try:
        shards = _check_store(settings)
    except AbMonitorError as error:
        failure = error
    try:
        _check_kafka(settings, shards)
    except AbMonitorError as error:
        if failure is None:
            raise
        print(f"kafka          failed: {error}")
    if failure is not None:
        raise failure
    return 0


def _check_store(settings: Settings) -> int:
    """Print the state of the store and return its number of shards."""
    with viewed(settings, wall_clock, existing=False) as reader:
        known = any(number >= 0 for number in reader.numbers.values())
        count = len(reader.store)
        shards = f", {count} shards" if count > 1 else ""
        print(f"store          ok: reachable, {'definitions agree' if known else 'no experiment in it yet'}{shards}")
        _warn(warnings(reader.store))
        return count


def _check_kafka(settings: Settings, shards: int) -> None:
    """Print the state of the cluster and its topics."""
    print(f"kafka          client {client_version(settings.kafka)}")
    for line, problem in inspect_cluster(settings.kafka):
        print(f"kafka          {line}")
        _warn([problem] if problem else [])
    if settings.kafka.client == "confluent":
        # The lines above are kafka-python's, whose errors are clearer: librdkafka has to accept the same settings.
        join(settings.kafka).close({})
    if shards > 1:
        copartitioning = check_copartitioning(settings, shards)
        if copartitioning is not None:
            print(f"kafka          {copartitioning}")


def _warn(problems: Sequence[str]) -> None:
    for problem in problems:
        print(f"warning        {problem}")
