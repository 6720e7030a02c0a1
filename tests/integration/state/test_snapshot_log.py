"""Snapshots in a real store, written once an hour by workers."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from monitor.analysis import BackfillProgress, ExperimentHistory
from monitor.analysis.snapshots import MAX_DAILY_SNAPSHOTS, MAX_HOURLY_SNAPSHOTS, take_snapshot
from monitor.clock import HOUR_MS
from monitor.errors import IncompatibleStore, StoreUnavailable, UsageError
from monitor.pipeline.snapshot_writer import SnapshotWriter
from monitor.pipeline.watermark import WatermarkTracker
from monitor.state import Position, ShardedStore, SnapshotLog, StoreReader, StoreState
from monitor.state.generations import connect_next_generation, delete_generation
from tests.servers.redis import RedisServer
from tests.support.dump import dump
from tests.support.oracle import DAY_MS
from tests.support.store_bench import (
    DECISION_EXPERIMENT,
    HOUR_OF_DAY_9,
    StoreBench,
    create_tracker_at_hour,
    student_traffic,
    take_snapshots,
)

DOCUMENT = (Path(__file__).parents[3] / "docs" / "security.md").read_text()


@pytest.fixture(params=[1, 3])
def bench(request: pytest.FixtureRequest, redis_server: RedisServer) -> StoreBench:
    """Return a store with two weeks of traffic, on a single shard or on three shards."""
    filled_bench = StoreBench(redis_server, DECISION_EXPERIMENT, request.param)
    filled_bench.apply([student_traffic()])
    return filled_bench


def test_a_snapshot_equals_the_summary_of_its_hour(bench: StoreBench) -> None:
    """A snapshot is a function of the summary as of its hour."""
    take_snapshots(bench, HOUR_OF_DAY_9)
    expected = take_snapshot(bench.reader.read_summary(HOUR_OF_DAY_9 * HOUR_MS).experiments["ranker"])
    assert SnapshotLog(bench.store).read_all(bench.experiment_number) == {HOUR_OF_DAY_9: expected}
    assert expected is not None
    assert expected.variants["control"].decayed_means["24h"].standard_error is not None
    assert bench.reader.read_snapshots("ranker") == {HOUR_OF_DAY_9: expected}


def test_the_first_snapshot_of_an_hour_stays(bench: StoreBench) -> None:
    """A second worker does not replace a snapshot, even if it has newer data."""
    take_snapshots(bench, HOUR_OF_DAY_9)
    before = bench.reader.read_snapshots("ranker")
    changed_experiment = replace(DECISION_EXPERIMENT, primary="cg@5")
    other_reader = StoreReader(
        bench.store, replace(bench.settings, experiments=(changed_experiment,)), bench.metadata.numbers, lambda: 0
    )
    second_snapshot = take_snapshot(other_reader.read_summary().experiments["ranker"])
    assert second_snapshot is not None
    SnapshotLog(bench.store).add(bench.experiment_number, HOUR_OF_DAY_9, second_snapshot)
    assert bench.reader.read_snapshots("ranker") == before


def test_hours_without_new_events_have_no_snapshot(bench: StoreBench) -> None:
    """An ended experiment does not replace its own snapshots."""
    take_snapshots(bench, *range(HOUR_OF_DAY_9 + 24 * 100, HOUR_OF_DAY_9 + 24 * 100 + 5))
    assert list(bench.reader.read_snapshots("ranker")) == [HOUR_OF_DAY_9 + 24 * 100]


def test_a_reader_reads_only_new_snapshots_and_forgets_deleted_ones(
    bench: StoreBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages are refreshed every few seconds; a stored snapshot is never changed."""
    take_snapshots(bench, HOUR_OF_DAY_9, HOUR_OF_DAY_9 + 24)
    requested_hours: list[list[str]] = []
    client = bench.first_shard.client
    read_values = client.hmget

    def hmget(key: str, hours: list[str]) -> Any:
        requested_hours.append(hours)
        return read_values(key, hours)

    monkeypatch.setattr(client, "hmget", hmget)
    assert list(bench.reader.read_snapshots("ranker")) == [HOUR_OF_DAY_9, HOUR_OF_DAY_9 + 24]
    take_snapshots(bench, HOUR_OF_DAY_9 + 48)
    SnapshotLog(bench.store).delete(bench.experiment_number, [HOUR_OF_DAY_9])
    for _ in range(2):
        assert list(bench.reader.read_snapshots("ranker")) == [HOUR_OF_DAY_9 + 24, HOUR_OF_DAY_9 + 48]
    assert requested_hours == [[str(HOUR_OF_DAY_9), str(HOUR_OF_DAY_9 + 24)], [str(HOUR_OF_DAY_9 + 48)]]


def test_the_history_of_a_verdict_ends_at_the_time_of_the_analysis(bench: StoreBench) -> None:
    """A verdict as of a past time has no later history."""
    take_snapshots(bench, HOUR_OF_DAY_9)
    experiment = bench.reader.read_summary().experiments["ranker"]
    first_period = bench.reader.read_verdict_history(experiment)["treatment"][0]
    assert first_period.since_ms == HOUR_OF_DAY_9 * HOUR_MS
    past_experiment = bench.reader.read_summary((HOUR_OF_DAY_9 - 24) * HOUR_MS).experiments["ranker"]
    assert bench.reader.read_verdict_history(past_experiment) == {"treatment": ()}


def test_an_experiment_without_events_has_no_snapshots(redis_server: RedisServer) -> None:
    """An experiment that is only configured has no snapshots."""
    empty = StoreBench(redis_server, DECISION_EXPERIMENT)
    take_snapshots(empty, HOUR_OF_DAY_9)
    assert empty.reader.read_snapshots("ranker") == {}


@pytest.mark.parametrize(
    "history",
    [ExperimentHistory(backfill=BackfillProgress("running")), ExperimentHistory(archived_at_ms=0)],
    ids=["filling", "archived"],
)
def test_incomplete_and_archived_numbers_have_no_snapshots(bench: StoreBench, history: ExperimentHistory) -> None:
    """Incomplete numbers would be a false history."""
    bench.reader.histories = {"ranker": history}
    take_snapshots(bench, HOUR_OF_DAY_9)
    assert bench.reader.read_snapshots("ranker") == {}


def test_snapshots_are_stored_apart_from_aggregates_on_the_first_shard(bench: StoreBench) -> None:
    """Comparisons of stores ignore snapshots, which are on the first shard only."""
    before = dump(bench.store)
    take_snapshots(bench, HOUR_OF_DAY_9, HOUR_OF_DAY_9 + 1)
    assert dump(bench.store) == before
    names = {bytes(name) for name in bench.first_shard.client.scan_iter(b"abm:*:hourly_snapshots:*")}
    assert names == {bench.first_shard.keys.hourly_snapshots(bench.experiment_number)}


def test_old_snapshots_are_thinned_to_one_per_day(bench: StoreBench) -> None:
    """When snapshots are added, older hours are thinned to days."""
    history = SnapshotLog(bench.store)
    take_snapshots(bench, HOUR_OF_DAY_9)
    snapshot = history.read_all(bench.experiment_number)[HOUR_OF_DAY_9]
    for hour in range(HOUR_OF_DAY_9 - 3_000, HOUR_OF_DAY_9):
        history.add(bench.experiment_number, hour, msgspec.structs.replace(snapshot, crossovers=hour))
    take_snapshots(bench, HOUR_OF_DAY_9 + 1)
    hours = history.read_hours(bench.experiment_number)
    assert len(hours) == MAX_HOURLY_SNAPSHOTS + len(
        {hour // 24 for hour in range(HOUR_OF_DAY_9 - 3_000, HOUR_OF_DAY_9 + 2 - MAX_HOURLY_SNAPSHOTS)}
    )
    assert len(hours) <= MAX_HOURLY_SNAPSHOTS + MAX_DAILY_SNAPSHOTS


def test_snapshots_are_deleted_with_their_generation(bench: StoreBench) -> None:
    """A late writer does not store a snapshot in a deleted generation."""
    take_snapshots(bench, HOUR_OF_DAY_9)
    snapshot = bench.reader.read_snapshots("ranker")[HOUR_OF_DAY_9]
    building = connect_next_generation(bench.store)
    SnapshotLog(building).add(bench.experiment_number, HOUR_OF_DAY_9, snapshot)
    assert SnapshotLog(building).read_all(bench.experiment_number) == {}, "a generation without a schema is not there"
    delete_generation(bench.store, 0)
    SnapshotLog(bench.store).add(bench.experiment_number, HOUR_OF_DAY_9, snapshot)
    assert list(bench.first_shard.client.scan_iter(b"abm:{*}:0:*")) == []


def test_snapshots_in_an_unknown_format_are_skipped(bench: StoreBench) -> None:
    """The other snapshots are read."""
    take_snapshots(bench, HOUR_OF_DAY_9)
    bench.first_shard.client.hset(
        bench.first_shard.keys.hourly_snapshots(bench.experiment_number), str(HOUR_OF_DAY_9 - 1), b"\x93\x01\x02\x03"
    )
    assert list(bench.reader.read_snapshots("ranker")) == [HOUR_OF_DAY_9]


def test_a_damaged_snapshot_key_is_reported_and_does_not_stop_the_worker(bench: StoreBench) -> None:
    """A worker continues; a reader raises an error."""
    bench.first_shard.client.set(bench.first_shard.keys.hourly_snapshots(bench.experiment_number), b"something else")
    take_snapshots(bench, HOUR_OF_DAY_9)
    with pytest.raises(IncompatibleStore, match="a key with the prefix abm: has another type"):
        bench.reader.read_snapshots("ranker")


class Away(StoreReader):
    """A reader whose store is unavailable."""

    def __init__(self, bench: StoreBench) -> None:
        super().__init__(bench.store, bench.settings, bench.metadata.numbers, lambda: 0)
        self.summary_calls = 0

    def read_summary(self, as_of_ms: int | None = None, names: Any = None) -> Any:
        del as_of_ms, names
        self.summary_calls += 1
        raise StoreUnavailable("the store is away")


def test_an_outage_skips_a_snapshot_and_does_not_stop_the_worker(bench: StoreBench) -> None:
    """The worker does not wait, and tries again at the next hour."""
    reader = Away(bench)
    historian = SnapshotWriter(reader)
    for hour in (HOUR_OF_DAY_9, HOUR_OF_DAY_9, HOUR_OF_DAY_9 + 1):
        historian.write_if_due(create_tracker_at_hour(bench, hour))
        historian._next_check_s = 0.0
    assert reader.summary_calls == 2


def test_snapshots_take_about_a_hundredth_of_the_time_of_a_backlog(bench: StoreBench) -> None:
    """After a snapshot that takes a second, no snapshot is written for a hundred seconds."""
    clock = [0.0]

    class Slow(Away):
        """Takes a second."""

        def read_summary(self, as_of_ms: int | None = None, names: Any = None) -> Any:
            clock[0] += 1.0
            return super().read_summary(as_of_ms, names)

    reader = Slow(bench)
    historian = SnapshotWriter(reader, lambda: clock[0])
    for step in range(300):
        clock[0] = max(clock[0], float(step))
        historian.write_if_due(create_tracker_at_hour(bench, HOUR_OF_DAY_9 + step))
    assert reader.summary_calls == 3


def test_several_workers_take_as_many_snapshots_of_a_backlog_as_one_worker(bench: StoreBench) -> None:
    """A worker waits after another worker's snapshot; an hour without a snapshot is written all the same."""
    clock = [0.0]

    class Slow(StoreReader):
        """Takes 15 ms."""

        def read_summary(self, as_of_ms: int | None = None, names: Any = None) -> Any:
            clock[0] += 0.015
            return StoreReader.read_summary(self, as_of_ms, names)

    reader = Slow(bench.store, bench.settings, bench.metadata.numbers, lambda: 0)
    historians = [SnapshotWriter(reader, lambda: clock[0]) for _ in range(4)]
    for historian in historians:
        historian.write_if_due(create_tracker_at_hour(bench, 0))
    for step in range(300):
        clock[0] = max(clock[0], step / 10)
        for historian in historians:
            historian.write_if_due(create_tracker_at_hour(bench, HOUR_OF_DAY_9 + step))
    assert 18 <= len(bench.reader.read_snapshots("ranker")) <= 20
    for _ in range(2):
        clock[0] += 20
        historians[0].write_if_due(create_tracker_at_hour(bench, HOUR_OF_DAY_9 + 400))
    assert HOUR_OF_DAY_9 + 400 in bench.reader.read_snapshots("ranker")


def test_nothing_is_stored_before_the_watermark_is_confirmed(bench: StoreBench) -> None:
    """The watermark of a young deployment is days after 1970, which is no hour of its events."""
    tracker = WatermarkTracker({"1": DAY_MS}, max_unconfirmed_advance_ms=3 * DAY_MS)
    tracker.confirm_end_offsets({})
    tracker.load_state(StoreState(0, 0, {}, {"answers:0": Position(5, HOUR_OF_DAY_9 * HOUR_MS)}))
    tracker.update_end_offsets({"answers:0": 5})
    historian = SnapshotWriter(bench.reader)
    historian.write_if_due(tracker)
    assert bench.reader.read_snapshots("ranker") == {}
    tracker.confirm_end_offsets({"answers:0": 5})
    historian.write_if_due(tracker)
    assert list(bench.reader.read_snapshots("ranker")) == [HOUR_OF_DAY_9]


def test_the_hour_of_a_snapshot_is_the_hour_of_the_watermark(bench: StoreBench) -> None:
    """A partition that is far ahead does not count, because other partitions have not reached that hour."""
    progress = create_tracker_at_hour(bench, HOUR_OF_DAY_9)
    progress.load_state(
        StoreState(
            0,
            0,
            {},
            {"t:0": Position(1, HOUR_OF_DAY_9 * HOUR_MS + 1), "t:1": Position(1, HOUR_OF_DAY_9 * HOUR_MS + DAY_MS)},
        )
    )
    progress.update_end_offsets({"t:0": 5, "t:1": 5})
    SnapshotWriter(bench.reader).write_if_due(progress)
    assert list(bench.reader.read_snapshots("ranker")) == [HOUR_OF_DAY_9]


def test_the_documented_redis_rights_are_enough_for_snapshots(bench: StoreBench, redis_server: RedisServer) -> None:
    """The service user writes and deletes snapshots; the reader user reads them and cannot delete them."""
    admin = redis_server.client()
    try:
        for line in re.findall(r"^(ACL SETUSER .*)$", DOCUMENT, re.MULTILINE):
            admin.execute_command(*line.replace("PASSWORD", "a-secret").split())
        stores = {
            user: ShardedStore(
                replace(bench.settings.store, username=user, password="a-secret"), shard_count=len(bench.store)
            )
            for user in ("ab-monitor", "ab-monitor-reader")
        }
        service = StoreReader(stores["ab-monitor"], bench.settings, bench.metadata.numbers, lambda: 0)
        admin.script_flush()
        historian = SnapshotWriter(service)
        for hour in (HOUR_OF_DAY_9, HOUR_OF_DAY_9 + 1):
            historian.write_if_due(create_tracker_at_hour(bench, hour))
            historian._next_check_s = 0.0
        SnapshotLog(service.store).delete(bench.experiment_number, [HOUR_OF_DAY_9])
        reader = StoreReader(stores["ab-monitor-reader"], bench.settings, bench.metadata.numbers, lambda: 0)
        assert list(reader.read_snapshots("ranker")) == [HOUR_OF_DAY_9 + 1]
        assert reader.read_student_sums("ranker").cohorts
        with pytest.raises(UsageError, match="rejects the user"):
            SnapshotLog(reader.store).delete(bench.experiment_number, [HOUR_OF_DAY_9 + 1])
    finally:
        admin.acl_deluser("ab-monitor", "ab-monitor-reader")
