"""`ab-monitor check`: whether the file is right, Kafka and the store answer, and anything about them is unsafe."""

from __future__ import annotations

from collections.abc import Sequence

from monitor.clock import wall_clock
from monitor.config import Settings, experiment_warnings
from monitor.errors import AbMonitorError
from monitor.ingest.connection import inspect_cluster
from monitor.ingest.kafka import check_client
from monitor.service import viewed
from monitor.store import warnings


def run(settings: Settings) -> int:
    """Print what was found; if both the store and Kafka cannot be used, the former is raised and the latter printed."""
    print(f"configuration  ok: {', '.join(each.name for each in settings.experiments)}")
    _warn(experiment_warnings(settings.experiments))
    faults = []
    for part in (_store, _kafka):
        try:
            part(settings)
        except AbMonitorError as error:
            faults.append(error)
    for fault in faults[1:]:
        print(f"kafka          failed: {fault}")
    if faults:
        raise faults[0]
    return 0


def _store(settings: Settings) -> None:
    with viewed(settings, wall_clock, existing=False) as reader:
        known = any(number >= 0 for number in reader.numbers.values())
        shards = f", {len(reader.store)} shards" if len(reader.store) > 1 else ""
        print(f"store          ok: reachable, {'definitions agree' if known else 'no experiment in it yet'}{shards}")
        _warn(warnings(reader.store))


def _kafka(settings: Settings) -> None:
    print(f"kafka          client {check_client(settings.kafka)}")
    for line, problem in inspect_cluster(settings.kafka):
        print(f"kafka          {line}")
        _warn([problem] if problem else [])


def _warn(found: Sequence[str]) -> None:
    print("".join(f"warning        {each}\n" for each in found), end="")
