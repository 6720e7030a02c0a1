"""Batches of many rows: these are written beside the script, and nothing of a batch is done unless all of it is."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
import redis

from monitor.errors import StoreOwned, StoreUnavailable
from monitor.events import Feedback, Response
from monitor.ingest.experiment import PENDING_CLASS
from monitor.ingest.lanes import applied_field, journal, outbox
from monitor.ingest.sharded import ShardedWriter
from monitor.store import Advance, Commit, Position, RedisStore
from monitor.store.packing import Packed
from monitor.store.parcel import Parcel
from tests.integration.test_exactness import Bench
from tests.servers.redis import RedisServer, redis_binary
from tests.support.dump import Dump, dump
from tests.support.streams import HOUR, START, taken

_RESPONSES = 700
_LATE = {"1": 0, PENDING_CLASS: 0}


def _events(first: int = 0) -> list[Response | Feedback]:
    """Return responses, of which every other one is rated, to a hundred students whom no other number has."""
    numbers = range(first, first + _RESPONSES)
    found: list[Response | Feedback] = [
        Response(
            f"r-{number}", START + number, "ranker", "control", ("video-1",), None, f"student-{first}-{number % 100}"
        )
        for number in numbers
    ]
    found += [
        Feedback(f"f-{number}", f"r-{number}", START + number + 1, "rating", None, "video-1", 4.0)
        for number in numbers
        if number % 2
    ]
    return found


class _Worker:
    """An engine with a partition of its own."""

    def __init__(self, bench: Bench, partition: str) -> None:
        self._bench = bench
        self._mark = len(partition) + int(partition[-1])
        self.engine, self.store = bench.worker()
        self._partition = partition
        self._offset = 0

    def batch(self, events: Sequence[Response | Feedback]) -> Commit:
        commit, _ = self.engine.apply(taken(self._bench.intake, events, self._mark), _LATE)
        commit.advances = [Advance(self._partition, self._offset or None, Position(self._offset + len(events)))]
        return commit

    def apply(self, events: Sequence[Response | Feedback]) -> str:
        status = self.store.commit(self.batch(events))
        self._offset += len(events) if status == "applied" else 0
        return status


def _transactions(server: RedisServer) -> int:
    """Return how many were done since the numbers were last reset; the commands of scripts are not among these."""
    found: dict[str, Any] = server.client().info("commandstats").get("cmdstat_exec", {})
    return int(found.get("calls", 0)) - int(found.get("failed_calls", 0)) - int(found.get("rejected_calls", 0))


def _rows(store: RedisStore) -> dict[bytes, bytes]:
    """Return the rows of responses and students as they are stored."""
    names = {name for kind in (b"r", b"s") for name in store.client.scan_iter(store.keys.prefix + kind + b"*")}
    return dict(zip(sorted(names), store.client.mget(sorted(names)), strict=True)) if names else {}


@pytest.fixture
def meddling(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Return what has something done, between the question whether a batch would be applied and the batch: once."""
    send = Parcel.apart

    def meddle(act: Callable[[], object], times: int = 1) -> None:
        def apart(parcel: Parcel, *said: Any) -> Sequence[Sequence[Any] | Packed]:
            monkeypatch.setattr(Parcel, "apart", send)
            act()
            if times > 1:
                meddle(act, times - 1)
            return send(parcel, *said)

        monkeypatch.setattr(Parcel, "apart", apart)

    return meddle


class TestManyRows:
    """They amount to what few at a time do."""

    def test_they_are_written_beside_the_script(self, store_server: RedisServer) -> None:
        """Byte for byte what the script writes, where it is not asked for the rows."""
        few = Bench(store_server)
        worker = _Worker(few, "t:0")
        worker.store.many = sys.maxsize
        assert [worker.apply(_events()), worker.apply(_events(500))] == ["applied", "applied"]
        expected, rows = dump(few.store), _rows(few.store)
        many = Bench(store_server)
        worker = _Worker(many, "t:0")
        store_server.client().config_resetstat()
        assert [worker.apply(_events()), worker.apply(_events(500))] == ["applied", "applied"]
        assert _transactions(store_server) == 2
        assert (dump(many.store), _rows(many.store)) == (expected, rows)
        assert worker.store.state().positions["t:0"].next_offset == 2 * len(_events())

    def test_few_go_with_it(self, store_server: RedisServer) -> None:
        """A transaction would cost more than it saves."""
        worker = _Worker(Bench(store_server), "t:0")
        store_server.client().config_resetstat()
        assert worker.apply(_events()[:100]) == "applied"
        assert _transactions(store_server) == 0

    def test_who_may_not_send_transactions_has_the_script_write_them(self, store_server: RedisServer) -> None:
        """As users are that older documentation described."""
        for missing in ("watch", "multi", "eval", "exec"):
            bench = Bench(store_server)
            worker = _Worker(bench, "t:0")
            admin = store_server.client()
            admin.execute_command("ACL", "SETUSER", "limited", "on", "nopass", "~abm:*", "+@all", f"-{missing}")
            try:
                worker.store.client = redis.Redis(port=store_server.port, username="limited", password="x")
                assert worker.apply(_events()) == "applied"
                assert worker.apply(_events(_RESPONSES)) == "applied"
            finally:
                admin.acl_deluser("limited")
            assert bench.reader.summary().experiments["ranker"].variants["control"].responses == 2 * _RESPONSES

    @pytest.mark.parametrize("missing", ["WATCH", "EVAL"])
    def test_a_server_without_a_command_has_the_script_write_them(self, missing: str, tmp_path: Path) -> None:
        """Some services rename commands away."""
        settings = tmp_path / "redis.conf"
        settings.write_text(f'rename-command {missing} ""\n')
        with RedisServer(redis_binary(), include=str(settings)) as server:
            worker = _Worker(Bench(server), "t:0")
            statuses = [worker.apply(_events(first)) for first in (0, 1000, 2000)]
            assert (statuses, worker.store._transacts) == (["applied"] * 3, False)

    def test_a_transaction_that_may_not_be_given_up_ends_with_its_connection(self, store_server: RedisServer) -> None:
        """Left open, it would swallow whatever is asked next."""
        bench = Bench(store_server)
        mine, other = _Worker(bench, "t:0"), _Worker(bench, "t:1")
        admin = store_server.client()
        admin.execute_command("ACL", "SETUSER", "limited", "on", "nopass", "~abm:*", "+@all", "-discard")
        try:
            mine.store.client = redis.Redis(port=store_server.port, username="limited", password="x")
            assert other.apply(_events(5000)) == "applied"
            assert mine.apply(_events()) == "applied"
            assert mine.store.state().positions.keys() == {"t:0", "t:1"}
        finally:
            admin.acl_deluser("limited")


class TestShards:
    """What they say to each other goes beside the script as well."""

    def test_it_is_what_the_script_says(self, store_server: RedisServer) -> None:
        """Batch for batch, in entries each of which names the one before; all are applied."""
        batches = [_events(), _events(5000), _events(300)]
        few = Bench(store_server, shards=2, many=sys.maxsize)
        few.feed(batches)
        expected = dump(few.shards), _said(few)
        many = Bench(store_server, shards=2, many=30)
        store_server.client().config_resetstat()
        many.feed(batches)
        assert _transactions(store_server) == 2 * 2 * len(batches)
        assert (dump(many.shards), _said(many)) == expected
        assert [len(said) for said in expected[1]] == [len(batches)] * 4

    def test_entries_have_an_order_whoever_names_them(self, store_server: RedisServer) -> None:
        """A server names them by its clock, in milliseconds, and a worker by what the server has told it of that."""
        bench = Bench(store_server, shards=2)
        writer = bench.writer()
        writer.state([_LANE])
        shards = [shard.store for shard in writer._shards] if isinstance(writer, ShardedWriter) else []
        for turn in range(6):
            for shard in shards:
                shard.many = sys.maxsize if turn % 3 == 0 else 30
            step = Advance(_LANE, turn * 10 or None, Position(turn * 10 + 10))
            assert writer.begin(bench.taken(*_events(1000 * turn)), bench.late, [step])()[0] == "applied"
        assert [len(said) for said in _said(bench)] == [6] * 4


_LANE = "t:0"


def _said(bench: Bench) -> list[list[bytes]]:
    """Return what each shard has said to each, once it is seen that both know it by the same names, in one order."""
    found = []
    for source, sender in enumerate(bench.shards):
        for target, receiver in enumerate(bench.shards):
            sent, applied = outbox(sender, target, _LANE.encode()), journal(receiver, source, _LANE.encode())
            assert list(applied.values()) == sent
            assert [each.before for each, _ in sent] == [b"", *[each.entry for each, _ in sent[:-1]]]
            found.append([said for _, said in sent])
    return found


class TestOthers:
    """What they do just before the transaction voids it; the script says what becomes of the batch then."""

    def test_who_commits_something_else_does_no_harm(
        self, store_server: RedisServer, meddling: Callable[[Callable[[], object]], None]
    ) -> None:
        """It is applied once."""
        bench = Bench(store_server)
        bench.feed([_events(), _events(5000)])
        expected = dump(bench.store)
        bench = Bench(store_server)
        mine, other = _Worker(bench, "t:0"), _Worker(bench, "t:1")
        meddling(lambda: other.apply(_events(5000)))
        assert mine.apply(_events()) == "applied"
        assert dump(bench.store) == expected

    @pytest.mark.parametrize(("times", "written"), [(1, 1), (2, 1), (3, 0)])
    def test_rows_are_sent_beside_the_script_three_times_at_most(
        self, store_server: RedisServer, times: int, written: int, meddling: Callable[..., None]
    ) -> None:
        """What others commit in between voids a transaction; then the script writes them."""
        bench = Bench(store_server)
        mine, other = _Worker(bench, "t:0"), _Worker(bench, "t:1")
        others = iter([_events(first)[:50] for first in (5000, 6000, 7000)])
        meddling(lambda: other.apply(next(others)), times)
        store_server.client().config_resetstat()
        assert mine.apply(_events()) == "applied"
        stats: dict[str, Any] = store_server.client().info("commandstats")
        assert stats["cmdstat_exec"]["calls"] == times + written
        assert stats.get("cmdstat_eval", {}).get("calls", 0) == written
        assert bench.reader.summary().experiments["ranker"].variants["control"].responses == _RESPONSES + 50 * times

    def test_who_commits_all_the_time_leaves_room_for_transactions(self, store_server: RedisServer) -> None:
        """A worker that has been overtaken has its new rows looked for from then on."""
        bench = Bench(store_server)
        mine, other = _Worker(bench, "t:0"), _Worker(bench, "t:1")
        for turn in range(3):
            store_server.client().config_resetstat()
            assert other.apply(_events(5000 + 1000 * turn)) == "applied"
            assert mine.apply(_events(1000 * turn)) == "applied"
        assert _transactions(store_server) == 2

    def test_who_is_behind_sees_that_others_have_written_a_row(self, store_server: RedisServer) -> None:
        """The same responses came by another partition."""
        bench = Bench(store_server)
        mine, other = _Worker(bench, "t:0"), _Worker(bench, "t:1")
        assert other.apply(_events(5000)) == "applied"
        assert mine.apply(_events()) == "applied"
        late = mine.batch(_events(9000))
        assert other.apply(_events(9000)) == "applied"
        once = dump(bench.store), _rows(bench.store)
        assert mine.store.commit(late) == "changed"
        assert (dump(bench.store), _rows(bench.store)) == once

    def test_who_moves_the_position_takes_the_batch(
        self, store_server: RedisServer, meddling: Callable[[Callable[[], object]], None]
    ) -> None:
        """The partition is another worker's by now."""
        bench = Bench(store_server)
        mine, other = _Worker(bench, "t:0"), _Worker(bench, "t:0")
        found: list[Dump | dict[bytes, bytes]] = []

        def move() -> None:
            assert other.apply(_events(5000)) == "applied"
            found.extend((dump(bench.store), _rows(bench.store)))

        meddling(move)
        assert mine.apply(_events()) == "moved"
        assert [dump(bench.store), _rows(bench.store)] == found
        mine.store.state()

    def test_who_sweeps_what_it_rests_on_has_it_refused(
        self, store_server: RedisServer, meddling: Callable[[Callable[[], object]], None]
    ) -> None:
        """The rows are gone."""
        bench = Bench(store_server)
        mine = _Worker(bench, "t:0")
        assert mine.apply(_events()) == "applied"
        bench.store.state()
        meddling(lambda: bench.store.sweep("1", [START // HOUR], START + HOUR))
        clicks = [Feedback(f"c-{number}", f"r-{number}", START + HOUR, "clicked") for number in range(_RESPONSES)]
        assert mine.apply(clicks) == "swept"
        mine.store.state()


class TestNewRows:
    """Where others write, what these say that they have made spares looking for each of one's own new rows."""

    @pytest.fixture
    def both(self, store_server: RedisServer) -> tuple[_Worker, _Worker]:
        """Return two workers that know of each other."""
        bench = Bench(store_server)
        mine, other = _Worker(bench, "t:0"), _Worker(bench, "t:1")
        for turn in range(2):
            assert mine.apply(_events(1000 * turn)) == other.apply(_events(5000 + 1000 * turn)) == "applied"
        assert mine.apply(_events(3000)) == "applied"
        mine.store.client.config_resetstat()
        return mine, other

    @staticmethod
    def _looked(worker: _Worker) -> tuple[int, int]:
        """Return how often rows were looked for, and how many transactions were done."""
        told: dict[str, dict[str, int]] = worker.store.client.info("commandstats")
        return told.get("cmdstat_exists", {}).get("calls", 0), told.get("cmdstat_exec", {}).get("calls", 0)

    @pytest.mark.parametrize(("others", "looked"), [(_RESPONSES, (0, 6)), (50, (3, 3))], ids=["many", "few"])
    def test_they_are_not_looked_for(self, both: tuple[_Worker, _Worker], others: int, looked: tuple[int, int]) -> None:
        """Whether the others write their rows beside the script or not: it looks for few of its own."""
        mine, other = both
        for turn in range(3):
            assert other.apply(_events(20_000 + 1000 * turn)[:others]) == "applied"
            assert mine.apply(_events(10_000 + 1000 * turn)) == "applied"
        assert self._looked(mine) == looked

    def test_one_that_another_has_made_is_found(self, both: tuple[_Worker, _Worker]) -> None:
        """One of seven hundred."""
        mine, other = both
        late = mine.batch(_events(10_000))
        assert other.apply([*_events(20_000), _events(10_000)[123]]) == "applied"
        once = _rows(mine.store)
        assert mine.store.commit(late) == "changed"
        assert _rows(mine.store) == once

    def test_the_same_checksum_has_them_looked_for(self, both: tuple[_Worker, _Worker]) -> None:
        """They are two rows."""
        mine, other = both
        first, second = "twin-8755d764", "twin-4170cb18"
        assert crc32(first.encode()) == crc32(second.encode())
        own, theirs = (Response(each, START, "ranker", "control", ("video-1",)) for each in (first, second))
        late = mine.batch([*_events(10_000), own])
        assert other.apply([*_events(20_000), theirs]) == "applied"
        assert mine.store.commit(late) == "applied"
        assert self._looked(mine) == (1, 2)

    def test_a_commit_that_says_nothing_has_them_looked_for(self, both: tuple[_Worker, _Worker]) -> None:
        """As of a worker that does not know of others yet."""
        mine, _ = both
        third = _Worker(mine._bench, "t:2")
        late = mine.batch(_events(10_000))
        assert third.apply([*_events(20_000), _events(10_000)[123]]) == "applied"
        assert mine.store.commit(late) == "changed"
        mine.store.state()
        assert self._looked(mine)[0] > 0

    def test_few_entries_are_kept(self, both: tuple[_Worker, _Worker]) -> None:
        """However many commits there are."""
        mine, other = both
        for turn in range(200):
            assert mine.apply(_events(30_000 + turn)[:1]) == other.apply(_events(40_000 + turn)[:1]) == "applied"
        assert 64 <= mine.store.client.xlen(mine.store.keys.made) < 200

    def test_who_is_alone_says_nothing(self, store_server: RedisServer) -> None:
        """Nobody would read it."""
        alone = _Worker(Bench(store_server), "t:0")
        assert [alone.apply(_events(1000 * turn)) for turn in range(2)] == ["applied"] * 2
        assert alone.store.client.exists(alone.store.keys.made) == 0


class TestTurns:
    """Workers that would void each other's transactions write one after the other; nobody is kept waiting for long."""

    @pytest.fixture
    def overtaken(self, store_server: RedisServer) -> _Worker:
        """Return a worker since whose last batch but one another has committed."""
        bench = Bench(store_server)
        mine, other = _Worker(bench, "t:0"), _Worker(bench, "t:1")
        assert [mine.apply(_events()), other.apply(_events(5000))] == ["applied", "applied"]
        assert mine.apply(_events(1000)) == "applied"
        return mine

    @pytest.fixture
    def sleeping(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[int, Callable[[], object]], list[float]]:
        """Return what has something done when a worker waits for the n-th time; it returns the waits so far."""
        waits: list[float] = []

        def after(times: int, act: Callable[[], object]) -> list[float]:
            def sleep(seconds: float) -> None:
                waits.append(seconds)
                if len(waits) == times:
                    act()

            monkeypatch.setattr("monitor.store.turns.time.sleep", sleep)
            return waits

        return after

    def test_a_worker_waits_until_the_other_has_written(
        self,
        overtaken: _Worker,
        sleeping: Callable[[int, Callable[[], object]], list[float]],
        store_server: RedisServer,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """And asks again from time to time."""
        monkeypatch.setattr("monitor.store.turns.TURN_MS", 60_000)
        store = overtaken.store
        store.client.set(store.keys.turn, b"", px=60_000)
        waits = sleeping(3, lambda: store.client.unlink(store.keys.turn))
        store_server.client().config_resetstat()
        assert overtaken.apply(_events(2000)) == "applied"
        assert (len(waits), _transactions(store_server)) == (3, 1)
        assert store.client.exists(store.keys.turn) == 0

    def test_nobody_waits_for_long(
        self, overtaken: _Worker, sleeping: Callable[[int, Callable[[], object]], list[float]]
    ) -> None:
        """Whoever has it may be gone, and it stays somebody else's."""
        store = overtaken.store
        store.client.set(store.keys.turn, b"", px=600_000)
        waits = sleeping(0, lambda: None)
        assert overtaken.apply(_events(2000)) == "applied"
        assert waits
        assert store.client.pttl(store.keys.turn) > 300_000

    def test_a_turn_ends_by_itself(
        self,
        overtaken: _Worker,
        meddling: Callable[[Callable[[], object]], None],
        monkeypatch: pytest.MonkeyPatch,
        store_server: RedisServer,
    ) -> None:
        """The worker may be killed between the question and the batch."""
        monkeypatch.setattr("monitor.store.turns.TURN_MS", 60_000)
        left: list[int] = []
        meddling(lambda: left.append(store_server.client().pttl(overtaken.store.keys.turn)))
        assert overtaken.apply(_events(2000)) == "applied"
        assert 0 < left[0] <= 60_000

    def test_a_turn_that_has_run_out_is_somebody_elses(
        self,
        overtaken: _Worker,
        meddling: Callable[[Callable[[], object]], None],
        monkeypatch: pytest.MonkeyPatch,
        store_server: RedisServer,
    ) -> None:
        """The worker does not end it."""
        monkeypatch.setattr("monitor.store.turns.TURN_MS", 50)
        client, name = store_server.client(), overtaken.store.keys.turn

        def late() -> None:
            time.sleep(0.1)
            assert client.set(name, b"", px=60_000, nx=True)

        meddling(late)
        assert overtaken.apply(_events(2000)) == "applied"
        assert client.exists(name) == 1

    @pytest.mark.parametrize("times", [1, 2])
    def test_a_void_transaction_ends_it(
        self,
        overtaken: _Worker,
        times: int,
        meddling: Callable[..., None],
        monkeypatch: pytest.MonkeyPatch,
        sleeping: Callable[[int, Callable[[], object]], list[float]],
    ) -> None:
        """The worker waits for nobody, least of all for itself, when it tries again."""
        monkeypatch.setattr("monitor.store.turns.TURN_MS", 60_000)
        waits = sleeping(0, lambda: None)
        other = _Worker(overtaken._bench, "t:2")
        others = iter([_events(first)[:50] for first in (6000, 7000)])
        meddling(lambda: other.apply(next(others)), times)
        assert overtaken.apply(_events(2000)) == "applied"
        assert (waits, overtaken.store.client.exists(overtaken.store.keys.turn)) == ([], 0)

    def test_a_refused_batch_ends_it(self, overtaken: _Worker, monkeypatch: pytest.MonkeyPatch) -> None:
        """Others need not wait for one that is not written."""
        monkeypatch.setattr("monitor.store.turns.TURN_MS", 60_000)
        store = overtaken.store
        late = overtaken.batch(_events(9000))
        other = _Worker(overtaken._bench, "t:1")
        other._offset = len(_events())
        assert other.apply(_events(9000)) == "applied"
        assert store.commit(late) == "changed"
        assert store.client.exists(store.keys.turn) == 0

    @pytest.mark.parametrize("missing", ["set", "unlink", "xadd", "xrange"])
    def test_who_may_not_take_one_does_without(self, overtaken: _Worker, missing: str) -> None:
        """The batch is applied."""
        admin = overtaken.store.client
        admin.execute_command("ACL", "SETUSER", "limited", "on", "nopass", "~abm:*", "+@all", f"-{missing}")
        try:
            port = admin.connection_pool.connection_kwargs["port"]
            overtaken.store.client = redis.Redis(port=port, username="limited", password="x")
            assert overtaken.apply(_events(2000)) == "applied"
            assert overtaken.apply(_events(3000)) == "applied"
        finally:
            admin.acl_deluser("limited")

    def test_a_sweep_waits(
        self, overtaken: _Worker, sleeping: Callable[[int, Callable[[], object]], list[float]]
    ) -> None:
        """It would void the transaction as well."""
        store, rows = overtaken.store, []

        def end() -> None:
            rows.append(len(_rows(store)))
            store.client.unlink(store.keys.turn)

        store.client.set(store.keys.turn, b"", px=60_000)
        waits = sleeping(2, end)
        before = len(_rows(store))
        deleted, _ = store.sweep("1", [START // HOUR], START + HOUR, wait_until=time.monotonic() + 60)
        assert (rows, len(waits), len(_rows(store))) == ([before], 2, before - deleted)
        assert deleted > 0

    def test_a_sweep_does_not_wait_for_long(self, overtaken: _Worker) -> None:
        """It has to go on."""
        store = overtaken.store
        store.client.set(store.keys.turn, b"", px=600_000)
        assert store.sweep("1", [START // HOUR], START + HOUR, wait_until=time.monotonic() + 0.05)[0] > 0
        assert store.client.pttl(store.keys.turn) > 300_000


class TestTrouble:
    """All of a batch or nothing."""

    @pytest.mark.parametrize("full", ["before", "after"])
    def test_a_full_store_refuses_all_of_it(self, full: str, meddling: Callable[[Callable[[], object]], None]) -> None:
        """With noeviction, before anything is written, whether it had room when it was asked or not."""
        with RedisServer(redis_binary(), maxmemory_policy="noeviction") as server:
            bench = Bench(server)
            worker = _Worker(bench, "t:0")
            assert worker.apply(_events()) == "applied"
            before = dump(bench.store), _rows(bench.store)
            batch = worker.batch(_events(1000))
            fill = partial(server.client().config_set, "maxmemory", "1mb")
            if full == "after":
                meddling(fill)
            else:
                fill()
            with pytest.raises(StoreUnavailable):
                worker.store.commit(batch)
            server.client().config_set("maxmemory", "0")
            assert (dump(bench.store), _rows(bench.store)) == before
            assert worker.store.commit(batch) == "applied"

    def test_forgotten_scripts_are_no_trouble(
        self, store_server: RedisServer, meddling: Callable[[Callable[[], object]], None]
    ) -> None:
        """The transaction brings its own."""
        bench = Bench(store_server)
        worker = _Worker(bench, "t:0")
        meddling(lambda: store_server.client().script_flush())
        assert worker.apply(_events()) == "applied"
        store_server.client().script_flush()
        assert worker.apply(_events(_RESPONSES)) == "applied"
        assert bench.reader.summary().experiments["ranker"].variants["control"].responses == 2 * _RESPONSES

    @pytest.mark.parametrize("known", ["to nobody", "to the client"])
    def test_a_lost_connection_leaves_nothing(
        self, store_server: RedisServer, known: str, meddling: Callable[[Callable[[], object]], None]
    ) -> None:
        """Between the question and the batch; the client would make a new one."""
        bench = Bench(store_server)
        worker = _Worker(bench, "t:0")

        def lose() -> None:
            store_server.client().client_kill_filter(_type="normal", skipme=True)
            if known == "to the client":
                assert worker.store._pending is not None
                worker.store._pending._connection.disconnect()

        meddling(lose)
        with pytest.raises(StoreUnavailable):
            worker.apply(_events())
        assert _rows(bench.store) == {}
        worker.store.state()
        worker.engine.forget()
        assert worker.apply(_events()) == "applied"

    @pytest.mark.parametrize("place", ["of the script", "of a time bucket"])
    def test_a_part_that_fails_is_noticed(self, store_server: RedisServer, place: str) -> None:
        """Somebody has put something else in the place of a record."""
        bench = Bench(store_server)
        worker = _Worker(bench, "t:0")
        batch = worker.batch(_events())
        wrong = bench.store.keys.latest if place == "of the script" else batch.buckets[0]
        bench.store.client.zadd(wrong, {"something": 1})
        with pytest.raises(StoreOwned, match="something else"):
            worker.store.commit(batch)
        with pytest.raises(StoreOwned, match="rebuild"):
            worker.store.state()

    @pytest.mark.parametrize("kind", [b"q", b"j"])
    def test_what_shards_cannot_be_told_is_noticed(self, store_server: RedisServer, kind: bytes) -> None:
        """The students of another shard would never hear of it."""
        bench = Bench(store_server, shards=2, many=30)
        writer = bench.writer()
        writer.state([_LANE])
        store = bench.shards[1]
        wrong = store.keys.outbox(0, _LANE.encode()) if kind == b"q" else store.keys.journal(0, _LANE.encode())
        store.client.set(wrong, "something else")
        with pytest.raises(StoreOwned, match="something else"):
            writer.begin(bench.taken(*_events()), bench.late, [Advance(_LANE, None, Position(1))])()
        with pytest.raises(StoreOwned, match="rebuild"):
            writer.state([_LANE])

    def test_a_message_that_is_gone_is_not_waited_for(self, store_server: RedisServer) -> None:
        """The last one to another shard, which has not applied it: nothing can say any more what it said."""
        bench = Bench(store_server, shards=2, many=30)
        bench.feed([_events(), _events(5000)])
        source, target = bench.shards
        (*_, (sent, _)) = outbox(source, 1, _LANE.encode())
        source.client.xdel(source.keys.outbox(1, _LANE.encode()), sent.entry)
        target.client.hset(target.keys.lanes, applied_field(0, _LANE.encode()), sent.before)
        with pytest.raises(StoreOwned, match="rebuild"):
            bench.writer().state([_LANE])

    @pytest.mark.parametrize("share", [0.02, 0.3, 0.6, 0.95, 0.9999])
    def test_a_file_that_was_cut_within_it_has_nothing_of_it(self, share: float) -> None:
        """The server was killed while it wrote the transaction to its append-only file."""
        with RedisServer(redis_binary(), appendfsync="always") as server:
            bench = Bench(server)
            worker = _Worker(bench, "t:0")
            assert worker.apply(_events()) == "applied"
            before = dump(bench.store), _rows(bench.store)
            (file,) = (server.directory / "appendonlydir").glob("*.incr.aof")
            begin = file.stat().st_size
            assert worker.apply(_events(1000)) == "applied"
            end = file.stat().st_size
            server.process.kill()
            os.truncate(file, begin + int(share * (end - begin)))
            server.start()
            assert (dump(bench.store), _rows(bench.store)) == before
            assert worker.store.state().positions["t:0"].next_offset == len(_events())
