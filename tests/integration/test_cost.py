"""What an event costs the worker, against what nobody can do without in the same run."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest

from monitor import tally
from monitor.ingest.simulator import w1
from tests.bench.throughput import readings, settings_for, write
from tests.servers.kafka import KafkaBroker
from tests.servers.redis import RedisServer

_MOST: Final = 5.5
"""The aim is 2; docs/performance.md has what is measured. The rest is room for a short run on a busy machine."""


@pytest.mark.skipif(tally.__file__.endswith(".py"), reason="nothing is compiled here: no C compiler")
def test_the_worker_costs_a_few_times_the_floor(kafka: KafkaBroker, redis_server: RedisServer) -> None:
    """CPU time of poll, decode, attribution and commit, over that of poll and decode; no clock on a wall is read."""
    scenario = replace(w1(), responses=40_000)
    redis_server.client().flushall()
    settings = settings_for(scenario, kafka, redis_server)
    own = replace(
        settings.kafka,
        responses_topic="cost.responses",
        feedback_topic="cost.feedback",
        dead_letter_topic="cost.dead",
    )
    settings = replace(settings, kafka=own)
    events = sum(write(scenario, kafka, settings).values())
    (_, floor, _), worker = readings(settings, events, redis_server)
    assert floor.rate / worker.rate < _MOST
