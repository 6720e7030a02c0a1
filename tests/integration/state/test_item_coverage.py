"""Coverage of the catalogue at scrapes: its value, its age, and the cost of reading."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.analysis.item_sums import ItemCoverage
from monitor.config import ItemSettings
from monitor.events import Feedback, Response
from monitor.state import Position, PositionUpdate, StoreShard, initialize_store
from monitor.state.item_reader import read_nonzero_fields
from tests.servers.redis import RedisServer, redis_binary
from tests.support.oracle import DAY_MS, compute_expected_responses
from tests.support.store_bench import SLOW_HEALTH_CHECKS, StoreBench
from tests.support.streams import EXPERIMENT, HOUR, START, arrivals, streams


def _coverage(bench: StoreBench) -> dict[str, ItemCoverage | None]:
    return {
        name: variant.coverage for name, variant in bench.reader.read_summary().experiments["ranker"].variants.items()
    }


def _response(number: int, at_ms: int, *items: str, variant: str = "control") -> Response:
    return Response(f"r-{number}", at_ms, "ranker", variant, items)


@settings(max_examples=25, suppress_health_check=SLOW_HEALTH_CHECKS)
@given(
    data=st.data(), catalogue_item=st.sampled_from([None, "video-1 video-2 video-77"]), shards=st.sampled_from([1, 3])
)
def test_coverage_equals_a_recomputation_from_events(
    data: st.DataObject, catalogue_item: str | None, shards: int, redis_server: RedisServer
) -> None:
    """In any order of events, with items that a revision removed, and with items outside the catalogue."""
    events = data.draw(streams())
    catalogue = None if catalogue_item is None else frozenset(catalogue_item.split())
    bench = StoreBench(redis_server, replace(EXPERIMENT, items=ItemSettings(30, catalogue, expected_items=20)), shards)
    bench.apply(data.draw(arrivals(events)))
    judged = compute_expected_responses(EXPERIMENT, events)
    for name, coverage in _coverage(bench).items():
        if not judged:
            assert coverage is None
            continue
        displayed_items = {
            item
            for expected_response in judged
            if expected_response.response.variant == name
            for item in expected_response.response.items
        }
        displayed_items &= catalogue or displayed_items
        assert coverage is not None
        assert (coverage.items, coverage.share) == (
            len(displayed_items),
            None if catalogue is None else len(displayed_items) / 3,
        )


class Fed:
    """A store that is fed further, and how many commands reading sends for counts of items."""

    def __init__(self, server: RedisServer, monkeypatch: pytest.MonkeyPatch, items: ItemSettings) -> None:
        self.bench = StoreBench(server, replace(EXPERIMENT, items=items))
        self.writer = self.bench.connect_writer()
        self.writer.reload_state()
        self.offset = 0
        self.read: list[bytes] = []

        def counted(shard: StoreShard, names: Any) -> Any:
            listed = list(names)
            self.read += listed
            return read_nonzero_fields(shard, listed)

        monkeypatch.setattr("monitor.state.item_coverage.read_nonzero_fields", counted)

    def feed(self, *events: Response | Feedback) -> None:
        """Apply a batch."""
        step = PositionUpdate("t:0", self.offset or None, Position(self.offset + len(events)))
        assert self.bench.submit(self.writer, [*events], step).result() == "applied"
        self.offset += len(events)

    def read_and_count(self) -> tuple[int, int]:
        """Return the number of distinct items of the control, and the number of buckets that were read."""
        self.read.clear()
        coverage = _coverage(self.bench)["control"]
        assert coverage is not None
        return coverage.items, len(self.read)


class TestCoverageCache:
    """A scrape every few seconds."""

    def test_coverage_is_read_once_an_hour_and_only_from_changed_slices(
        self, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Slices of three days, in two buckets for each variant; the first day's are not read twice."""
        fed = Fed(redis_server, monkeypatch, ItemSettings(30, expected_items=20))
        begin = START // (3 * DAY_MS) * 3 * DAY_MS + 3 * DAY_MS
        fed.feed(_response(1, begin, "a", "b"))
        assert fed.read_and_count() == (2, 2)
        fed.feed(_response(2, begin + HOUR - 1, "c"))
        assert fed.read_and_count() == (2, 0)
        fed.feed(_response(3, begin + HOUR, "d"))
        assert fed.read_and_count() == (4, 2)
        fed.feed(_response(4, begin + 4 * DAY_MS, "a", "e"))
        assert fed.read_and_count() == (5, 2)
        fed.feed(_response(5, begin + 4 * DAY_MS + HOUR, "a"), _response(6, begin, "f"))
        assert fed.read_and_count() == (6, 4)
        fed.feed(_response(7, begin + 30 * DAY_MS, "g"))
        assert fed.read_and_count() == (3, 2)

    def test_the_last_responses_are_counted_an_hour_later_without_newer_events(
        self, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """By the clock of the process that is asked: event time stands still then."""
        fed, now = Fed(redis_server, monkeypatch, ItemSettings(30, expected_items=20)), [1e6]
        monkeypatch.setattr("monitor.state.item_coverage.time", SimpleNamespace(monotonic=lambda: now[0]))
        fed.feed(_response(1, START, "a"))
        assert fed.read_and_count() == (1, 2)
        fed.feed(_response(2, START + 1, "b"))
        now[0] += 3599
        assert fed.read_and_count() == (1, 0)
        now[0] += 2
        assert fed.read_and_count() == (2, 2)

    def test_the_cache_is_dropped_after_a_server_restart(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """After the restart, commits with the same numbers contain other items."""
        with RedisServer(redis_binary(), appendonly="no") as server:
            fed = Fed(server, monkeypatch, ItemSettings(30, expected_items=20))
            fed.feed(_response(1, START, "a", "b"))
            assert fed.read_and_count() == (2, 2)
            server.process.stop()
            server.start()
            initialize_store(fed.bench.store, fed.bench.settings)
            fed.writer.reload_state()
            fed.offset = 0
            fed.feed(_response(1, START, "c"))
            assert fed.read_and_count() == (1, 2)

    def test_coverage_with_too_many_buckets_is_not_read(
        self, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """`ab-monitor items E` still reports the items."""
        for expected_items, has_coverage in ((52_000, True), (53_000, False)):
            fed = Fed(redis_server, monkeypatch, ItemSettings(30, expected_items=expected_items))
            fed.feed(_response(1, START, "a"))
            assert (_coverage(fed.bench)["control"] is not None) == has_coverage

    def test_a_sampled_catalogue_has_no_coverage_share(
        self, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Only a sample of its items is counted."""
        items: Sequence[str] = [f"video-{number}" for number in range(60)]
        fed = Fed(redis_server, monkeypatch, ItemSettings(30, frozenset(items), sample_one_in=3, expected_items=60))
        fed.feed(_response(1, START, *items))
        coverage = _coverage(fed.bench)["control"]
        assert coverage is not None
        assert 5 < coverage.items < 40
        assert coverage.share is None
