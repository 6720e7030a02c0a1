"""The loop, on a real store."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from monitor.clock import wall_clock
from monitor.errors import StoreUnavailable
from monitor.events import instant_ms
from monitor.ingest.experiment import HOUR_MS
from monitor.ingest.files import FileSource
from monitor.ingest.telemetry import Telemetry
from monitor.service import opened, worker_for
from monitor.store import Commit, Sent, Status
from tests.integration.test_exactness import Bench
from tests.servers.redis import RedisServer
from tests.support.streams import EXPERIMENT, START


def test_what_others_swept_while_a_reply_was_lost_is_known(
    tmp_path: Path, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store's count of sweeps was read anew, so nothing else would refuse what is late by now."""
    bench = Bench(redis_server)
    events = tmp_path / "events.jsonl"
    response = {
        "response_id": "r-1",
        "timestamp": START,
        "experiment": EXPERIMENT.name,
        "variant": "control",
        "items": [],
    }
    events.write_text(json.dumps({**response, "items": []}))
    source = FileSource([str(events)], instant_ms, report=print)
    topics = {"response": "file", "feedback": "file"}
    with opened(bench.settings, wall_clock) as opening:
        worker = worker_for(bench.settings, opening, source, Telemetry(), topics, wall_clock)
        store = opening.store.first
        start = store.start

        def lost(changes: Commit) -> Callable[[], tuple[Status, list[Sent]]]:
            reply = start(changes)

            def none() -> NoReturn:
                reply()
                _, other = bench.worker()
                other.sweep(str(bench.number), START // HOUR_MS, START + 7 * HOUR_MS)
                raise StoreUnavailable("the reply was lost")

            return none if changes.rows else reply

        monkeypatch.setattr(store, "start", lost)
        worker.run()
        assert worker._progress.late_before()[str(bench.number)] >= START + 7 * HOUR_MS
    source.close()
