"""Files of declared experiments that are swapped, in conflict, older, or smaller, while two workers run."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from kafka import KafkaAdminClient, TopicPartition

from monitor.engine import decode_response_row
from monitor.simulation.simulator import SimulatedEvent
from monitor.state import ShardedStore, read_backfills, read_declared_set
from monitor.state.keys import SERVICE_KEY
from tests.support.command import HASHED, ab_monitor, eventually, status
from tests.support.dump import dump
from tests.support.replicas import (
    FIRST,
    PARTITIONS,
    SECOND,
    Replicas,
    aggregates_of,
    simulated_events,
    undisturbed,
)

RESPONSES = 2_000
THIRD = FIRST.replace("first", "third")
DEFAULT_SECOND = """
[[experiments]]
name = "second"
control = "control"
variants = { control = 0.5, treatment = 0.5 }
"""
SMALLER_EFFECT = FIRST.replace("[experiments.grades]", "mde = 0.01\n[experiments.grades]")
EXPONENTIAL = FIRST.replace("[experiments.grades]", 'gain = "exp2"\n[experiments.grades]')
_SUCCESSFUL = "abmonitor_config_last_reload_successful"
_RELOADED_AT = "abmonitor_config_last_reload_success_timestamp_seconds"
_FAMILIES_WITH_PARTITIONS = {b"positions", b"backfill_positions", b"backfill_targets", b"events_lost", b"arrivals"}
"""Their fields end with numbers of partitions."""


@pytest.fixture(autouse=True)
def _quick(replicas: Replicas) -> None:
    replicas.module = "tests.support.quick_monitor"


def _start(replicas: Replicas, experiments: str, environ: Mapping[str, str] | None = None) -> None:
    for replica in (1, 2):
        replicas.write(replica, experiments)
        replicas.start(replica, environ=environ)
    eventually("the workers serve", lambda: replicas.logs().count("serving url=") == 2)


def _await_version(replicas: Replicas, version: int) -> None:
    eventually("the version is in force", lambda: read_declared_set(replicas.store).version >= version)


def _assert_undisturbed(replicas: Replicas, events: Sequence[SimulatedEvent], experiments: str, *names: str) -> None:
    """Assert that the aggregates equal those of a store that has had the experiments from the beginning."""
    found, expected = dump(replicas.store), undisturbed(replicas, events, experiments)
    declared_set = read_declared_set(replicas.store)
    for number, name in enumerate(names, 1):
        declared = declared_set.find(name)
        assert declared is not None
        assert aggregates_of(found, declared.number) == aggregates_of(expected, number), name
    assert "Traceback" not in replicas.logs()


def _leftovers(store: ShardedStore, number: int) -> list[str]:
    """Return the keys, and the fields of hashes, that belong to the number of an experiment."""
    digits, leftovers = b"%d" % number, []
    for shard in store:
        prefix = shard.keys.prefix
        for key in store.client.scan_iter(prefix + b"*", count=10_000):
            name = key.removeprefix(prefix)
            family, _, rest = name.partition(b":")
            if name.startswith(b"r"):
                row = store.client.get(key)
                if row is not None and decode_response_row(row).variant_key >> 8 == number:
                    leftovers.append(repr(name))
            elif name.startswith(b"s"):
                if key.startswith(shard.keys.student_row_prefix(number)):
                    leftovers.append(repr(name))
            elif rest.split(b":")[0] == digits and family != b"arrivals":
                leftovers.append(repr(name))
            elif store.client.type(key) == b"hash" and family not in _FAMILIES_WITH_PARTITIONS:
                fields = store.client.hkeys(key)
                leftovers += [
                    f"{name!r} {field!r}"
                    for field in fields
                    if field == digits or field.startswith(digits + b":") or field.endswith(b":" + digits)
                ]
    return leftovers


@pytest.mark.timeout(200)
def test_a_swapped_link_is_one_reload_if_the_experiments_differ_and_none_otherwise(replicas: Replicas) -> None:
    """As Kubernetes updates a mounted ConfigMap: `..data` is replaced, and the file's link stays as it is."""
    mount = replicas.directory / "mount"
    mount.mkdir()

    def publish(name: str, experiments: str) -> None:
        (mount / name).mkdir()
        (mount / name / "service.toml").write_text(replicas.text(experiments))
        (mount / "..new").symlink_to(name)
        (mount / "..new").replace(mount / "..data")

    publish("..1", FIRST)
    config = mount / "service.toml"
    config.symlink_to(Path("..data") / "service.toml")
    replicas.start(1, config=config)
    log = replicas.logs_of[1]
    eventually("the first poll is done", lambda: log.exists() and "configuration read again" in log.read_text())
    reloaded_at, reloads = replicas.metric(1, _RELOADED_AT), log.read_text().count("configuration read again")
    publish("..2", FIRST)
    shutil.rmtree(mount / "..1")
    time.sleep(2)
    assert replicas.metric(1, _RELOADED_AT) == reloaded_at
    assert read_declared_set(replicas.store).version == 1
    publish("..3", SMALLER_EFFECT)
    _await_version(replicas, 2)
    time.sleep(2)
    assert replicas.metric(1, _RELOADED_AT) > reloaded_at
    assert log.read_text().count("configuration read again") == reloads + 1
    assert read_declared_set(replicas.store).version == 2


@pytest.mark.timeout(200)
def test_two_new_files_are_a_conflict_that_names_both_and_loses_no_event(replicas: Replicas) -> None:
    """The set in force stays; an older file follows, and wins once no worker has the newer one."""
    events = simulated_events("first", "second", responses=RESPONSES)
    quarter = len(events) // 4
    _start(replicas, FIRST)
    replicas.send(events[:quarter]).join()
    replicas.write(1, FIRST + SECOND)
    _await_version(replicas, 2)
    sender = replicas.send(events[quarter : 3 * quarter])
    replicas.write(2, FIRST + THIRD)
    eventually("the conflict is reported", lambda: replicas.metric(2, _SUCCESSFUL) == 0)
    errors = [line for line in replicas.logs_of[2].read_text().splitlines() if "two files replace" in line]
    assert len(errors) == 1
    assert str(replicas.config(1)) in errors[0]
    assert str(replicas.config(2)) in errors[0]
    assert replicas.metric(1, _SUCCESSFUL) == 1

    replicas.write(2, FIRST)
    eventually("the older file follows", lambda: replicas.metric(2, _SUCCESSFUL) == 1)
    sender.join()
    declared_set = read_declared_set(replicas.store)
    assert {each.name for each in declared_set.counted} == {"first", "second"}
    replicas.wait_until_applied(events[: 3 * quarter])
    _assert_undisturbed(replicas, events[: 3 * quarter], FIRST + SECOND, "first", "second")

    newer_digest = read_declared_set(replicas.store).digest
    for replica in (1, 2):
        replicas.stop(replica)
        replicas.write_file(replica, FIRST)
    five_minutes_ago = int(time.time() * 1000) - 301_000
    replicas.store.client.hset(SERVICE_KEY, f"file:{newer_digest}", five_minutes_ago)
    for replica in (1, 2):
        replicas.start(replica)
    eventually(
        "the older file is in force",
        lambda: {each.name for each in read_declared_set(replicas.store).counted} == {"first"},
    )
    replicas.send(events[3 * quarter :]).join()
    replicas.wait_until_applied(events)
    _assert_undisturbed(replicas, events, FIRST, "first")


@pytest.mark.timeout(200)
def test_an_experiment_that_comes_back_after_it_was_archived_counts_all_events(replicas: Replicas) -> None:
    """Its events while it was archived are filled, and nothing remains of the archived number."""
    events = simulated_events("first", "second", responses=RESPONSES)
    third = len(events) // 3
    _start(replicas, FIRST + SECOND)
    replicas.send(events[:third]).join()
    sender = replicas.send(events[third : 2 * third])
    for replica in (1, 2):
        replicas.write(replica, FIRST)
    _await_version(replicas, 2)
    sender.join()
    eventually("the events are applied", lambda: replicas.applied_count() >= 2 * third)
    sender = replicas.send(events[2 * third :])
    for replica in (1, 2):
        replicas.write(replica, FIRST + SECOND)
    _await_version(replicas, 3)
    sender.join()
    replicas.wait_until_applied(events)
    _assert_undisturbed(replicas, events, FIRST + SECOND, "first", "second")
    eventually("the archived number is deleted", lambda: not _leftovers(replicas.store, 2))
    _assert_undisturbed(replicas, events, FIRST + SECOND, "first", "second")


@pytest.mark.timeout(200)
def test_a_discovered_experiment_is_adopted_once_and_counts_all_its_events(replicas: Replicas) -> None:
    """By one of the workers, while its events are arriving; another name is not adopted."""
    events = simulated_events("first", "second", "third", responses=RESPONSES)
    half = len(events) // 2
    _start(replicas, f'{FIRST}\n[discover]\nauto_adopt = "sec*"\n')
    replicas.send(events[:half]).join()
    sender = replicas.send(events[half:])
    _await_version(replicas, 2)
    sender.join()
    replicas.wait_until_applied(events)
    declared_set = read_declared_set(replicas.store)
    assert [(each.name, each.source) for each in declared_set.experiments] == [
        ("first", "file"),
        ("second", "discovered"),
    ]
    assert declared_set.version == 3, "adopted, and filled"
    _assert_undisturbed(replicas, events, FIRST + DEFAULT_SECOND, "first", "second")


@pytest.mark.timeout(200)
def test_nothing_remains_of_a_deleted_experiment_and_the_other_one_is_complete(replicas: Replicas) -> None:
    """It was filled, archived and deleted while its events were arriving."""
    events = simulated_events("first", "second", responses=RESPONSES)
    third = len(events) // 3
    _start(replicas, FIRST)
    replicas.send(events[:third]).join()
    for replica in (1, 2):
        replicas.write(replica, FIRST + SECOND)
    _await_version(replicas, 2)
    replicas.wait_until_filled()
    sender = replicas.send(events[third:], 400)
    for replica in (1, 2):
        replicas.write(replica, FIRST)
    eventually("the experiment is archived", lambda: len(read_declared_set(replicas.store).counted) == 1)
    assert _leftovers(replicas.store, 2)
    deleted = ab_monitor("experiments", "delete", "second", "--yes", "--config", replicas.config(1), environ=HASHED)
    assert deleted.returncode == 0, deleted.stderr
    sender.join()
    replicas.wait_until_applied(events)
    assert _leftovers(replicas.store, 2) == []
    assert read_declared_set(replicas.store).find("second") is None

    keys = replicas.store.first_shard.keys
    replicas.store.client.hset(keys.horizons, "2", 1)
    replicas.store.client.set(keys.unit_sums(2, 0), b"")
    eventually("an interrupted deletion is completed", lambda: not _leftovers(replicas.store, 2))
    _assert_undisturbed(replicas, events, FIRST, "first")


@pytest.mark.timeout(200)
def test_a_definition_that_kafka_can_no_longer_fill_is_complete_since_a_time_that_status_shows(
    replicas: Replicas,
) -> None:
    """The other experiment stays as it is, and the keys of the superseded number are deleted."""
    events = simulated_events("first", "second", responses=RESPONSES)
    _start(replicas, FIRST + SECOND)
    replicas.send(events, 1e6).join()
    replicas.wait_until_applied(events)
    second_before = aggregates_of(dump(replicas.store), 2)
    with KafkaAdminClient(bootstrap_servers=replicas.broker.bootstrap) as admin:
        admin.delete_records(
            {TopicPartition(replicas.kafka.responses_topic, partition): 50 for partition in range(PARTITIONS)}
        )
    for replica in (1, 2):
        replicas.write(replica, EXPONENTIAL + SECOND)
    _await_version(replicas, 2)
    replicas.wait_until_filled()
    declared_set = read_declared_set(replicas.store)
    first, second = declared_set.find("first"), declared_set.find("second")
    assert first is not None
    assert second is not None
    assert first.complete_since_ms is not None
    assert second.complete_since_ms is None
    shown = status(replicas.config(1), HASHED)["experiments"]
    assert shown["first"]["declaration"]["complete_since"]
    assert shown["second"]["declaration"]["complete_since"] is None
    done = ab_monitor("status", "--config", replicas.config(1), environ=HASHED)
    assert done.returncode == 0, done.stderr
    assert "omplete since" in done.stdout
    eventually("the superseded number is deleted", lambda: not _leftovers(replicas.store, 1))
    assert aggregates_of(dump(replicas.store), 2) == second_before
    assert aggregates_of(dump(replicas.store), first.number)


@pytest.mark.timeout(200)
def test_a_failing_backfill_delays_neither_live_events_nor_another_backfill(replicas: Replicas) -> None:
    """The failure is in the store; the workers go on."""
    events = simulated_events("first", "second", "third", responses=RESPONSES)
    half = len(events) // 2
    _start(replicas, FIRST, {"FAILING_BACKFILL": "2"})
    replicas.send(events[:half]).join()
    for replica in (1, 2):
        replicas.write(replica, FIRST + SECOND + THIRD)
    _await_version(replicas, 2)
    replicas.send(events[half:]).join()
    eventually("all events are applied", lambda: replicas.applied_count() >= len(events))
    eventually(
        "the other backfill is complete",
        lambda: [each.name for each in read_declared_set(replicas.store).experiments if each.is_filling] == ["second"],
    )
    state = read_backfills(replicas.store)[2]
    assert (state.state, state.reason) == ("failed", "a defect")
    expected = undisturbed(replicas, events, FIRST + SECOND + THIRD)
    found = dump(replicas.store)
    for number in (1, 3):
        assert aggregates_of(found, number) == aggregates_of(expected, number)
