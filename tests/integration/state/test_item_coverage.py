"""How many different items were shown, at every scrape: what it is, how old it may be, what reading it costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.analysis.item_sums import Coverage
from monitor.config import ItemSettings
from monitor.events import Feedback, Response
from monitor.state import Advance, Position, RedisStore, open_store
from monitor.state.item_reader import fields
from tests.integration.pipeline.test_exactness import _SLOW, Bench
from tests.servers.redis import RedisServer, redis_binary
from tests.support.oracle import DAY, judge
from tests.support.streams import EXPERIMENT, HOUR, START, arrivals, streams


def _coverage(bench: Bench) -> dict[str, Coverage | None]:
    return {name: each.coverage for name, each in bench.reader.summary().experiments["ranker"].variants.items()}


def _shown(number: int, at_ms: int, *items: str, variant: str = "control") -> Response:
    return Response(f"r-{number}", at_ms, "ranker", variant, items)


@settings(max_examples=25, suppress_health_check=_SLOW)
@given(data=st.data(), known=st.sampled_from([None, "video-1 video-2 video-77"]), shards=st.sampled_from([1, 3]))
def test_it_is_what_a_recomputation_says(
    data: st.DataObject, known: str | None, shards: int, redis_server: RedisServer
) -> None:
    """In any order, also of items that a revision took back; of a catalogue only what is in it."""
    events = data.draw(streams())
    catalogue = None if known is None else frozenset(known.split())
    bench = Bench(redis_server, replace(EXPERIMENT, items=ItemSettings(30, catalogue, expected_items=20)), shards)
    bench.feed(data.draw(arrivals(events)))
    judged = judge(EXPERIMENT, events)
    for name, found in _coverage(bench).items():
        if not judged:
            assert found is None
            continue
        shown = {item for each in judged if each.response.variant == name for item in each.response.items}
        shown &= catalogue or shown
        assert found is not None
        assert (found.items, found.share) == (len(shown), None if catalogue is None else len(shown) / 3)


class Fed:
    """A store that is fed further, and how many commands reading sends for counts of items."""

    def __init__(self, server: RedisServer, monkeypatch: pytest.MonkeyPatch, items: ItemSettings) -> None:
        self.bench = Bench(server, replace(EXPERIMENT, items=items))
        self.writer = self.bench.writer()
        self.writer.state()
        self.offset = 0
        self.read: list[bytes] = []

        def counted(shard: RedisStore, names: Any) -> Any:
            listed = list(names)
            self.read += listed
            return fields(shard, listed)

        monkeypatch.setattr("monitor.state.item_coverage.fields", counted)

    def feed(self, *events: Response | Feedback) -> None:
        """Apply one batch."""
        step = Advance("t:0", self.offset or None, Position(self.offset + len(events)))
        assert self.bench.submit(self.writer, [*events], step).status.result() == "applied"
        self.offset += len(events)

    def look(self) -> tuple[int, int]:
        """Return the control's different items, and how many buckets were read to know them."""
        self.read.clear()
        found = _coverage(self.bench)["control"]
        assert found is not None
        return found.items, len(self.read)


class TestCost:
    """A scrape every few seconds."""

    def test_it_is_read_once_an_hour_and_only_what_has_changed(
        self, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Slices of three days, in two buckets for each variant; the first day's are not read twice."""
        fed = Fed(redis_server, monkeypatch, ItemSettings(30, expected_items=20))
        begin = START // (3 * DAY) * 3 * DAY + 3 * DAY
        fed.feed(_shown(1, begin, "a", "b"))
        assert fed.look() == (2, 2)
        fed.feed(_shown(2, begin + HOUR - 1, "c"))
        assert fed.look() == (2, 0)
        fed.feed(_shown(3, begin + HOUR, "d"))
        assert fed.look() == (4, 2)
        fed.feed(_shown(4, begin + 4 * DAY, "a", "e"))
        assert fed.look() == (5, 2)
        fed.feed(_shown(5, begin + 4 * DAY + HOUR, "a"), _shown(6, begin, "f"))
        assert fed.look() == (6, 4)
        fed.feed(_shown(7, begin + 30 * DAY, "g"))
        assert fed.look() == (3, 2)

    def test_what_came_last_is_told_an_hour_later_though_nothing_comes_after_it(
        self, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """By the clock of the process that is asked: event time stands still then."""
        fed, now = Fed(redis_server, monkeypatch, ItemSettings(30, expected_items=20)), [1e6]
        monkeypatch.setattr("monitor.state.item_coverage.time", SimpleNamespace(monotonic=lambda: now[0]))
        fed.feed(_shown(1, START, "a"))
        assert fed.look() == (1, 2)
        fed.feed(_shown(2, START + 1, "b"))
        now[0] += 3599
        assert fed.look() == (1, 0)
        now[0] += 2
        assert fed.look() == (2, 2)

    def test_what_a_restarted_server_has_lost_is_not_remembered(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Its commits have the same numbers again, with other items in them."""
        with RedisServer(redis_binary(), appendonly="no") as server:
            fed = Fed(server, monkeypatch, ItemSettings(30, expected_items=20))
            fed.feed(_shown(1, START, "a", "b"))
            assert fed.look() == (2, 2)
            server.process.stop()
            server.start()
            open_store(fed.bench.shards, fed.bench.settings)
            fed.writer.state()
            fed.offset = 0
            fed.feed(_shown(1, START, "c"))
            assert fed.look() == (1, 2)

    def test_too_many_buckets_are_not_read(self, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
        """Who asks for them is answered: see `ab-monitor items E`."""
        for most, told in ((52_000, True), (53_000, False)):
            fed = Fed(redis_server, monkeypatch, ItemSettings(30, expected_items=most))
            fed.feed(_shown(1, START, "a"))
            assert (_coverage(fed.bench)["control"] is not None) == told

    def test_of_a_sample_of_a_catalogue_no_share_is_told(
        self, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Only so many of its items are counted."""
        items: Sequence[str] = [f"video-{number}" for number in range(60)]
        fed = Fed(redis_server, monkeypatch, ItemSettings(30, frozenset(items), one_in=3, expected_items=60))
        fed.feed(_shown(1, START, *items))
        found = _coverage(fed.bench)["control"]
        assert found is not None
        assert 5 < found.items < 40
        assert found.share is None
