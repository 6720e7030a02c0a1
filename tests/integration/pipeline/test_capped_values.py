"""Tests of the numbers of capped values, in every order of the events."""

from __future__ import annotations

from itertools import permutations

import pytest

from monitor.events import Feedback, Response
from tests.servers.redis import RedisServer
from tests.support.store_bench import StoreBench
from tests.support.streams import START, WITH_ANSWER_METRICS

EVENTS = (
    Response("r-1", START, "ranker", "control", ("v-1", "v-2"), user_id="s-1", latency_ms=90_000),
    *[
        Feedback(f"f-{item}", "r-1", START + 1000, "watched", user_id="s-1", item_id=item, score=0.7)
        for item in ("v-1", "v-2")
    ],
    Response("r-2", START, "ranker", "treatment", ("v-1",), user_id="s-2", latency_ms=400),
)


@pytest.mark.parametrize("order", [*permutations(EVENTS)])
def test_capped_values_are_counted_by_metric_in_every_order(
    redis_server: RedisServer, order: tuple[Response | Feedback, ...]
) -> None:
    """Repeated events count once, and capped values are no uncounted reactions."""
    bench = StoreBench(redis_server, WITH_ANSWER_METRICS)
    bench.apply([order, order])
    experiment = bench.reader.read_summary().experiments["ranker"]
    capped = {
        name: {metric: summary.capped for metric, summary in variant.metrics.items() if summary.capped is not None}
        for name, variant in experiment.variants.items()
    }
    assert capped == {
        "control": {"sum:watched": 1, "items_shown": 0, "latency_ms": 1},
        "treatment": {"sum:watched": 0, "items_shown": 0, "latency_ms": 0},
    }
    assert experiment.data_quality is not None
    assert [dict(variant.uncounted_reactions) for variant in experiment.data_quality.variants.values()] == [{}, {}]
