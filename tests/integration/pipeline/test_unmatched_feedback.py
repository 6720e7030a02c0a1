"""Feedback that expired before its response arrived, as the store's reader sums it up."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from monitor.config import DecisionSettings, GuardrailSettings
from monitor.events import Feedback, Response
from monitor.pipeline.retention import Sweeper
from monitor.pipeline.watermark import Progress
from monitor.state import Advance, Position, RedisStore
from tests.integration.pipeline.test_exactness import Bench
from tests.servers.redis import RedisServer
from tests.support.streams import EXPERIMENT, HOUR, START

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


class TestExpiry:
    """Rows of feedback whose response has not arrived."""

    def test_each_reaction_counts_once_by_kind_when_its_row_expires(self, store_server: RedisServer) -> None:
        """Not before, not for a response that came, and not twice if the event is sent again."""
        bench = Bench(store_server)
        unmatched = [_reaction(1, "rating", START), _reaction(2, "rating", START), _reaction(2, "helpful", START + 1)]
        matched: list[Response | Feedback] = [_response(3), _reaction(3, "rating", START + 1)]
        bench.feed([[*unmatched, *matched], [unmatched[0]]])
        expected: dict[bytes, bytes]
        for passed, expected in ((-2 * HOUR, {}), (2 * HOUR, {b"rating": b"2", b"helpful": b"1"})):
            _sweep(bench, 6, passed)
            assert bench.store.client.hgetall(bench.store.keys.unmatched) == expected
        assert bench.reader.summary().unmatched_feedback["rating"] == 2

    def test_a_response_that_arrives_in_time_leaves_nothing_unmatched(self, store_server: RedisServer) -> None:
        """Although its feedback was there first."""
        bench = Bench(store_server)
        bench.feed([[_reaction(1, "rating", START + 1)], [_response(1)]])
        _sweep(bench, 2, 2 * HOUR)
        assert bench.store.client.exists(bench.store.keys.unmatched) == 0
        assert not list(bench.store.client.scan_iter(bench.store.keys.row(b"*")))


def _sweep(bench: Bench, offset: int, passed_ms: int) -> None:
    """Sweep when the watermark has passed the horizon by so much."""
    progress = Progress({"1": EXPERIMENT.horizon_ms})
    progress.load(bench.store.state())
    progress.advanced([Advance("t:0", offset, Position(offset, START + EXPERIMENT.horizon_ms + passed_ms))])
    progress.see_ends({"t:0": offset})
    Sweeper(bench.store, [bench.experiment]).sweep(progress)


def _response(number: int) -> Response:
    return Response(f"r-{number}", START, "ranker", "control", ("video-1",), None, f"student-{number}")


def _reaction(number: int, kind: str, at_ms: int) -> Feedback:
    return Feedback(f"f-{number}", f"r-{number}", at_ms, kind, None, "video-1", 4.0)
