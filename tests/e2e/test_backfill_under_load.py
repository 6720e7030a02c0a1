"""A backfill beside live consumption, with killed workers.

`CHANGE_TEST_EVENTS` is the number of events that the workers have read before the experiment is declared, by default
20 000. With 300 000, the test takes about eight minutes. `--log-level=INFO -rP` shows the duration and the lags.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from statistics import median
from typing import Final

import pytest

from monitor.state import read_backfills
from tests.support.command import eventually
from tests.support.dump import dump
from tests.support.replicas import FIRST, SECOND, Replicas, aggregates_of, simulated_events, undisturbed

log = logging.getLogger(__name__)
_EVENTS: Final = int(os.environ.get("CHANGE_TEST_EVENTS", "20000"))
_EVENTS_PER_SECOND: Final = 2_000
_LIVE_EVENTS: Final = max(_EVENTS // 2, 20_000)
_EVENTS_PER_RESPONSE: Final = 1.55
_KILLED_AT: Final = ((0.3, 1), (0.5, 2), (0.7, 1), (0.85, 2))
"""(share of the backfill, replica)"""
_WITHIN_S: Final = 120 + _EVENTS / 500


class _Measurement:
    """Samples the lag of live consumption, in events, twice a second."""

    def __init__(self, replicas: Replicas, sent_before: int, live_count: int) -> None:
        self.lags: list[int] = []
        self._replicas = replicas
        self._sent_before = sent_before
        self._live_count = live_count
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample)

    def _sample(self) -> None:
        started_s = time.monotonic()
        while not self._stop.wait(0.5):
            sent = min(int((time.monotonic() - started_s) * _EVENTS_PER_SECOND), self._live_count)
            self.lags.append(self._sent_before + sent - self._replicas.applied_count())

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


def _progress(replicas: Replicas) -> float:
    states = read_backfills(replicas.store)
    return max((state.progress_ratio for state in states.values()), default=0.0)


@pytest.mark.timeout(900)
def test_a_backfill_beside_live_events_with_killed_workers_loses_and_repeats_no_event(replicas: Replicas) -> None:
    """Each worker is killed twice during the backfill. Live consumption keeps up before the first kill."""
    replicas.module = "tests.support.quick_monitor"
    responses = round((_EVENTS + _LIVE_EVENTS) / _EVENTS_PER_RESPONSE)
    events = simulated_events("first", "second", responses=responses)
    for replica in (1, 2):
        replicas.write(replica, FIRST)
        replicas.start(replica)
    replicas.send(events[:_EVENTS], 1e6).join()
    eventually("the first events are applied", lambda: replicas.applied_count() == _EVENTS, within_s=_WITHIN_S)
    bytes_before = replicas.server.client().info("memory")["used_memory"]
    measurement = _Measurement(replicas, _EVENTS, len(events) - _EVENTS)
    sender = replicas.send(events[_EVENTS:], _EVENTS_PER_SECOND)
    measurement.start()
    for replica in (1, 2):
        replicas.write(replica, FIRST + SECOND)
    started_s = time.monotonic()
    undisturbed_lags: list[int] = []
    for share, replica in _KILLED_AT:
        eventually(
            "the backfill advances", lambda share=share: _progress(replicas) >= share, within_s=_WITHIN_S, every_s=0.02
        )
        undisturbed_lags = undisturbed_lags or measurement.lags[:]
        replicas.kill(replica)
        replicas.start(replica)
    replicas.wait_until_filled(_WITHIN_S)
    duration_s = time.monotonic() - started_s
    sender.join()
    replicas.wait_until_applied(events, _WITHIN_S)
    measurement.stop()
    used_bytes = replicas.server.client().info("memory")["used_memory"] - bytes_before
    log.info("backfill_s=%.1f store_mb=+%d lags=%s", duration_s, used_bytes >> 20, measurement.lags)
    assert median(undisturbed_lags or [0]) < 2 * _EVENTS_PER_SECOND
    found = dump(replicas.store)
    expected = undisturbed(replicas, events, FIRST + SECOND)
    for number in (1, 2):
        assert aggregates_of(found, number) == aggregates_of(expected, number)
    assert "Traceback" not in replicas.logs()
