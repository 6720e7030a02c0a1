"""Unmatched feedback: feedback that expired before its response arrived."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import MappingProxyType

from monitor.config import DecisionSettings, GuardrailSettings, MetricSpec
from monitor.events import Feedback, Response
from monitor.pipeline.retention import RetentionCleaner
from monitor.pipeline.watermark import WatermarkTracker
from monitor.state import Position, PositionUpdate, StoreShard, read_arrivals
from tests.servers.redis import RedisServer
from tests.support.store_bench import StoreBench
from tests.support.streams import EXPERIMENT, HOUR, START

EXPERIMENT_WITH_GUARDRAIL = replace(
    EXPERIMENT,
    grades=MappingProxyType({"rating": "score", "helpful": 3.0}),
    metrics=(*EXPERIMENT.metrics, MetricSpec("share:escalated", "share", kind="escalated")),
    decision=DecisionSettings(guardrails=(GuardrailSettings("share:escalated", "up", 0.01),)),
)


def count_unmatched(shard: StoreShard, **reactions: int) -> None:
    """Add to the unmatched feedback of a shard, by kind."""
    for kind, count in reactions.items():
        shard.client.hincrby(shard.keys.feedback_unmatched, kind, count)


class TestReader:
    """Counts of unmatched feedback in the summary."""

    def test_counts_are_summed_over_shards_and_configured_kinds_start_at_0(self, redis_server: RedisServer) -> None:
        """Grades and guardrails configure kinds. Unconfigured kinds appear with their first count."""
        bench = StoreBench(redis_server, EXPERIMENT_WITH_GUARDRAIL, 2)
        assert bench.reader.read_summary().unmatched_feedback == {"escalated": 0, "helpful": 0, "rating": 0}
        first, second = bench.store
        count_unmatched(first, rating=3, clicked=1)
        count_unmatched(second, rating=4, helpful=1)
        unmatched = bench.reader.read_summary().unmatched_feedback
        assert unmatched == {"clicked": 1, "escalated": 0, "helpful": 1, "rating": 7}
        assert list(unmatched) == sorted(unmatched)

    def test_the_number_of_unconfigured_kinds_is_limited(self, redis_server: RedisServer) -> None:
        """Anybody may write new kinds, and every kind is a series in Prometheus."""
        bench = StoreBench(redis_server, EXPERIMENT_WITH_GUARDRAIL)
        count_unmatched(bench.first_shard, **{f"odd-{number}": number for number in range(1, 61)})
        unmatched = bench.reader.read_summary().unmatched_feedback
        assert set(unmatched) == {"escalated", "helpful", "rating", *(f"odd-{number}" for number in range(11, 61))}


class TestExpiry:
    """Expiry of rows that contain feedback without a response."""

    def test_each_unmatched_reaction_is_counted_once_when_its_row_expires(self, store_server: RedisServer) -> None:
        """Not before the expiry, not if the response arrived, and not twice if the event is sent again."""
        bench = StoreBench(store_server)
        unmatched = [_reaction(1, "rating", START), _reaction(2, "rating", START), _reaction(2, "helpful", START + 1)]
        matched: list[Response | Feedback] = [_response(3), _reaction(3, "rating", START + 1)]
        bench.apply([[*unmatched, *matched], [unmatched[0]]])
        expected: dict[bytes, bytes]
        for passed_ms, expected in ((-2 * HOUR, {}), (2 * HOUR, {b"rating": b"2", b"helpful": b"1"})):
            _expire_rows(bench, 6, passed_ms)
            assert bench.first_shard.client.hgetall(bench.first_shard.keys.feedback_unmatched) == expected
        assert bench.reader.read_summary().unmatched_feedback["rating"] == 2

    def test_unmatched_reactions_are_counted_by_the_hour_of_their_expiry(self, store_server: RedisServer) -> None:
        """In the same script that deletes their rows, for the topic of feedback."""
        bench = StoreBench(store_server)
        bench.apply([[_reaction(1, "rating", START), _reaction(2, "helpful", START)]])
        for _ in range(2):
            _expire_rows(bench, 3, 2 * HOUR, feedback_topic="ratings")
        assert read_arrivals(bench.store, START, START).since(0)["ratings"].unmatched == 2

    def test_feedback_is_matched_if_the_response_arrives_before_the_expiry(self, store_server: RedisServer) -> None:
        """The feedback may arrive before the response."""
        bench = StoreBench(store_server)
        bench.apply([[_reaction(1, "rating", START + 1)], [_response(1)]])
        _expire_rows(bench, 2, 2 * HOUR)
        assert bench.first_shard.client.exists(bench.first_shard.keys.feedback_unmatched) == 0
        assert not list(bench.first_shard.client.scan_iter(bench.first_shard.keys.response_row(b"*")))


def _expire_rows(bench: StoreBench, offset: int, passed_ms: int, feedback_topic: str | None = None) -> None:
    """Delete expired rows when the watermark is `passed_ms` beyond the horizon."""
    tracker = WatermarkTracker({"1": EXPERIMENT.horizon_ms})
    tracker.load_state(bench.first_shard.read_state())
    tracker.apply_position_updates(
        [PositionUpdate("t:0", offset, Position(offset, START + EXPERIMENT.horizon_ms + passed_ms))]
    )
    tracker.update_end_offsets({"t:0": offset})
    cleaner = RetentionCleaner(
        bench.first_shard, [bench.experiment], feedback_topic=feedback_topic, clock=partial(int, START)
    )
    cleaner.clean(tracker)


def _response(number: int) -> Response:
    return Response(f"r-{number}", START, "ranker", "control", ("video-1",), None, f"student-{number}")


def _reaction(number: int, kind: str, timestamp_ms: int) -> Feedback:
    return Feedback(f"f-{number}", f"r-{number}", timestamp_ms, kind, None, "video-1", 4.0)
