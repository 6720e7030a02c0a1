"""The thread that works on unfinished backfills: states in the store, failures, leases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from monitor.engine import Experiment, IdHasher
from monitor.errors import DependencyUnavailable, StoreUnavailable
from monitor.pipeline import backfill_runner
from monitor.pipeline.backfill import BackfillInterrupted, RemainingRecords
from monitor.pipeline.backfill_runner import BackfillRunner, held_numbers
from monitor.pipeline.telemetry import Telemetry
from monitor.state import (
    PENDING_FEEDBACK,
    BackfillState,
    read_backfills,
    renew_backfill_lease,
    write_backfill,
)
from tests.servers.redis import RedisServer
from tests.support.command import eventually
from tests.support.store_bench import StoreBench
from tests.support.streams import EXPERIMENT

COMPLETE = RemainingRecords(0, None)
Attempt = Callable[[Callable[[RemainingRecords], object]], RemainingRecords]


def _raise(error: Exception) -> RemainingRecords:
    raise error


@dataclass
class Bench:
    """A store, and a runner whose backfills of experiment 1 and 2 are functions."""

    server: RedisServer
    monkeypatch: pytest.MonkeyPatch
    attempts: dict[int, list[Attempt]]
    """Number of the experiment → results of its attempts; the last one is repeated."""
    started: list[int] = field(default_factory=list)
    """Numbers of the experiments in the order of the attempts."""
    completed: list[tuple[int, int | None]] = field(default_factory=list)
    now_ms: int = 1_000_000

    def __post_init__(self) -> None:
        store_bench = StoreBench(self.server)
        self.store, self.settings = store_bench.store, store_bench.settings
        self.telemetry = Telemetry()
        bench = self

        class FakeBackfill:
            def __init__(self, *, number: int, on_progress: Callable[[RemainingRecords], object], **_: Any) -> None:
                self._number, self._on_progress = number, on_progress

            def run(self) -> RemainingRecords:
                bench.started.append(self._number)
                attempts = bench.attempts[self._number]
                return (attempts.pop(0) if len(attempts) > 1 else attempts[0])(self._on_progress)

            def close(self) -> None:
                """Fail, as a client may that has lost its connection."""
                raise OSError("not connected")

        for name, value in (("_CHECK_INTERVAL_S", 0.0), ("_PROGRESS_INTERVAL_S", 0.01), ("_LEASE_RENEWAL_S", 0.0)):
            self.monkeypatch.setattr(backfill_runner, name, value)
        self.monkeypatch.setattr(backfill_runner, "ExperimentBackfill", FakeBackfill)

    def state(self, number: int) -> BackfillState | None:
        """Return the stored state of a backfill."""
        return read_backfills(self.store).get(number)

    @contextmanager
    def running(self, on_complete: Callable[[int, int | None], None] | None = None) -> Iterator[BackfillRunner]:
        """Run the backfills while the block runs."""
        experiments = [Experiment(number, replace(EXPERIMENT, name=f"e{number}")) for number in (1, 2)]
        runner = BackfillRunner(
            settings=self.settings,
            experiments=experiments,
            unfinished=sorted(self.attempts),
            superseded_numbers=frozenset(),
            id_hasher=IdHasher(b"key"),
            store=self.store,
            telemetry=self.telemetry,
            clock=lambda: self.now_ms,
            on_complete=on_complete or (lambda *completed: self.completed.append(completed)),
        )
        runner.start()
        try:
            yield runner
        finally:
            runner.stop()

    def metric(self, name: str, experiment: str) -> float | None:
        """Return the value of a metric of an experiment."""
        return self.telemetry.registry.get_sample_value(name, {"experiment": experiment})


@pytest.fixture
def make_bench(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> Callable[[dict[int, list[Attempt]]], Bench]:
    """Return a function that creates a bench from the results of attempts."""
    return lambda attempts: Bench(redis_server, monkeypatch, attempts)


BenchFactory = Callable[[dict[int, list[Attempt]]], Bench]


def test_a_failing_backfill_does_not_delay_another_one(make_bench: BenchFactory) -> None:
    """The failure and its reason are in the store and in a metric; the other backfill is complete."""
    bench = make_bench({1: [lambda _: _raise(ValueError("a defect"))], 2: [lambda _: RemainingRecords(0, 77)]})
    with bench.running() as runner:
        eventually("the second backfill is complete", lambda: bench.completed == [(2, 77)])
        assert runner.held_numbers() == {"1"}
    failure, complete = bench.state(1), bench.state(2)
    assert failure is not None
    assert (failure.state, failure.reason, failure.attempts) == ("failed", "a defect", 1)
    assert complete is not None
    assert (complete.state, complete.complete_since_ms, complete.progress_ratio) == ("complete", 77, 1)
    assert bench.metric("abmonitor_backfill_failed", "e1") == 1
    assert bench.metric("abmonitor_backfill_failed", "e2") == 0
    assert bench.metric("abmonitor_backfill_progress_ratio", "e2") == 1


def test_a_failed_backfill_is_attempted_again_after_a_pause(make_bench: BenchFactory) -> None:
    """The pause counts from the failure, also of another process; it doubles with each failure."""
    bench = make_bench(
        {1: [lambda _: _raise(ValueError("a defect"))], 2: [lambda _: _raise(DependencyUnavailable("no"))]}
    )
    with bench.running():
        eventually("the first attempt fails", lambda: bench.state(1))
        bench.now_ms += 59_000
        started_count = len(bench.started)
        eventually("the other backfill is attempted again", lambda: len(bench.started) > started_count + 3)
        assert bench.started.count(1) == 1
        bench.now_ms += 1_000
        eventually("the second attempt fails", lambda: bench.started.count(1) == 2)
        bench.now_ms += 119_000
        started_count = len(bench.started)
        eventually("the other backfill is attempted again", lambda: len(bench.started) > started_count + 3)
        assert bench.started.count(1) == 2
        bench.now_ms += 1_000
        eventually("the third attempt fails", lambda: bench.started.count(1) == 3)


def test_an_unavailable_dependency_is_no_failure(make_bench: BenchFactory) -> None:
    """Nor is an interruption; the backfill is attempted again soon."""
    bench = make_bench(
        {
            1: [
                lambda _: _raise(DependencyUnavailable("no Kafka")),
                lambda _: _raise(StoreUnavailable("no store")),
                lambda _: _raise(BackfillInterrupted("the store has changed")),
                lambda _: COMPLETE,
            ]
        }
    )
    with bench.running():
        eventually("the backfill is complete", lambda: bench.completed == [(1, None)])
    state = bench.state(1)
    assert state is not None
    assert (state.state, state.attempts) == ("complete", 0)


def test_the_progress_is_stored_while_the_backfill_runs(make_bench: BenchFactory) -> None:
    """After an interruption, the total remains that of the first attempt."""

    def interrupted(remaining_records: int) -> Attempt:
        def attempt(on_progress: Callable[[RemainingRecords], object]) -> RemainingRecords:
            on_progress(RemainingRecords(remaining_records, 5))
            raise BackfillInterrupted("the process stops")

        return attempt

    bench = make_bench({1: [interrupted(100), interrupted(75)]})
    with bench.running() as runner:
        eventually("progress is stored", lambda: (state := bench.state(1)) and state.records_done == 25)
        assert runner.held_numbers() == {"1", PENDING_FEEDBACK}
    state = bench.state(1)
    assert state is not None
    assert (state.state, state.records_total, state.complete_since_ms) == ("running", 100, 5)
    assert bench.metric("abmonitor_backfill_progress_ratio", "e1") == 0.25


def test_the_completion_is_announced_again_after_an_error(make_bench: BenchFactory) -> None:
    """For example if the store is unavailable at that moment."""
    bench = make_bench({1: [lambda _: COMPLETE]})
    announcements: list[int] = []

    def announce(number: int, _since_ms: int | None) -> None:
        announcements.append(number)
        if len(announcements) < 3:
            raise StoreUnavailable("no store")

    with bench.running(announce):
        eventually("the announcement succeeds", lambda: announcements == [1, 1, 1])


def test_a_backfill_waits_while_another_process_has_the_lease(make_bench: BenchFactory) -> None:
    """The other backfill is free; a lease that has ended is free, too."""
    bench = make_bench({1: [lambda _: COMPLETE], 2: [lambda _: COMPLETE]})
    assert renew_backfill_lease(bench.store, 1, "another process", 60_000)
    with bench.running():
        eventually("the free backfill is complete", lambda: bench.completed == [(2, None)])
        assert bench.started == [2]
        bench.store.client.delete(bench.store.first_shard.keys.backfill_lease(1))
        eventually("the other backfill is complete", lambda: bench.completed == [(2, None), (1, None)])
    assert not bench.store.client.exists(bench.store.first_shard.keys.backfill_lease(1))


def test_a_process_that_has_lost_its_lease_ends_its_backfill(make_bench: BenchFactory) -> None:
    """A process that was suspended for longer than the lease leaves the work to the other process."""

    def lose_lease(on_progress: Callable[[RemainingRecords], object]) -> RemainingRecords:
        bench.store.client.set(bench.store.first_shard.keys.backfill_lease(1), "another process")
        on_progress(RemainingRecords(1, None))
        return COMPLETE

    bench = make_bench({1: [lose_lease], 2: [lambda _: COMPLETE]})
    with bench.running():
        eventually("the other backfill is complete", lambda: bench.completed == [(2, None)])
    assert bench.started == [1, 2]


def test_the_metrics_show_the_stored_states_without_an_unfinished_backfill(make_bench: BenchFactory) -> None:
    """Another process may have completed the backfill before this process has started again."""
    bench = make_bench({})
    write_backfill(bench.store, 1, BackfillState("complete", 0, 0, 5, 5))
    bench.telemetry.backfill_failed.labels("e1").set(1)
    with bench.running():
        eventually("the metric is set", lambda: bench.metric("abmonitor_backfill_progress_ratio", "e1") == 1)
        assert bench.metric("abmonitor_backfill_failed", "e1") == 0


def test_pending_feedback_is_held_until_every_unfinished_backfill_has_failed() -> None:
    """A backfill without a state has not begun."""
    running, failed = BackfillState("running", 0, 0), BackfillState("failed", 0, 0)
    assert held_numbers([], {3: running}) == frozenset()
    assert held_numbers([1, 2], {1: failed, 2: failed}) == {"1", "2"}
    assert held_numbers([1, 2], {1: failed, 2: running}) == {"1", "2", PENDING_FEEDBACK}
    assert held_numbers([1, 2], {1: failed}) == {"1", "2", PENDING_FEEDBACK}


def test_a_stored_reason_has_at_most_a_thousand_characters(make_bench: BenchFactory) -> None:
    """Pages and logs show the reason."""
    bench = make_bench({1: [lambda _: COMPLETE]})
    write_backfill(bench.store, 1, BackfillState("failed", 0, 0, reason="x" * 5000))
    assert read_backfills(bench.store)[1].reason == "x" * 1000
