"""Feedback that expired before its response arrived, as the store's reader sums it up."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from monitor.config import DecisionSettings, GuardrailSettings
from monitor.store import RedisStore
from tests.integration.test_exactness import Bench
from tests.servers.redis import RedisServer
from tests.support.streams import EXPERIMENT

WATCHED = replace(
    EXPERIMENT,
    grades=MappingProxyType({"rating": "score", "helpful": 3.0}),
    decision=DecisionSettings(guardrails=(GuardrailSettings("feedback:escalated", "up", 0.01),)),
)


def count_unmatched(shard: RedisStore, **reactions: int) -> None:
    """Add to the unmatched feedback of a shard, by kind."""
    for kind, count in reactions.items():
        shard.client.hincrby(shard.keys.unmatched, kind, count)


class TestReader:
    """The counts of a summary."""

    def test_shards_are_added_up_and_configured_kinds_are_there_from_the_start(self, redis_server: RedisServer) -> None:
        """Grades and guardrails name kinds; others appear with their first count."""
        bench = Bench(redis_server, WATCHED, 2)
        assert bench.reader.summary().unmatched_feedback == {"escalated": 0, "helpful": 0, "rating": 0}
        first, second = bench.shards
        count_unmatched(first, rating=3, clicked=1)
        count_unmatched(second, rating=4, helpful=1)
        found = bench.reader.summary().unmatched_feedback
        assert found == {"clicked": 1, "escalated": 0, "helpful": 1, "rating": 7}
        assert list(found) == sorted(found)

    def test_kinds_that_are_not_configured_are_bounded(self, redis_server: RedisServer) -> None:
        """Anybody may write a new kind, and each is a series."""
        bench = Bench(redis_server, WATCHED)
        count_unmatched(bench.store, **{f"odd-{number}": number for number in range(1, 61)})
        found = bench.reader.summary().unmatched_feedback
        assert set(found) == {"escalated", "helpful", "rating", *(f"odd-{number}" for number in range(11, 61))}
