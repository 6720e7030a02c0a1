"""The store's contract, on Redis and on Valkey."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import redis

from monitor.clock import HOUR_MS
from monitor.config import StoreSettings
from monitor.engine import EventNormalizer, Experiment
from monitor.engine.id_hash import IdHasher
from monitor.engine.response_row import NO_RESPONSE, PRE_PERIOD, ResponseRow
from monitor.engine.row_codec import decode_student, encode_response, pack_runs, read_response
from monitor.errors import StoreOwned, StoreUnavailable, UsageError
from monitor.events import Feedback, Response
from monitor.pipeline.batch_applier import Engine
from monitor.pipeline.batch_decoding import Decoded
from monitor.pipeline.commit_pipeline import Batch, ShardedWriter
from monitor.pipeline.retention import Sweeper
from monitor.pipeline.watermark import Progress
from monitor.state import (
    Advance,
    Commit,
    Position,
    Reader,
    RedisStore,
    Refusals,
    Shards,
    closed_experiments,
    noted_hours,
    open_store,
    served,
    view_store,
    warnings,
)
from monitor.state.generations import drop, drop_everything, generation_numbers, live_store
from monitor.state.keys import LIVE, PENDING_CLASS
from tests.integration.pipeline.test_exactness import Bench
from tests.servers.redis import RedisServer, redis_binary
from tests.support.command import eventually
from tests.support.dump import dump
from tests.support.streams import EXPERIMENT, HOUR, START, changed, settings_with, taken


def _response(number: int, at_ms: int) -> Response:
    return Response(f"r-{number}", at_ms, "ranker", "control", ("video-1",), None, f"student-{number}")


def _of_next(event: Response) -> Response:
    """Return the same response of the other experiment."""
    return changed(event, experiment="next")


def _rating(number: int, at_ms: int, score: float = 4.0) -> Feedback:
    return Feedback(f"f-{number}", f"r-{number}", at_ms, "rating", None, "video-1", score)


class TestCommit:
    """Compare, then write."""

    def test_a_lost_reply_changes_nothing_when_sent_again(self, store_server: RedisServer) -> None:
        """The second time the script finds other offsets than it expects: its own."""
        bench = Bench(store_server)
        engine, store = bench.worker()
        commit, _ = engine.apply(bench.taken(_response(1, START)), {"1": 0, PENDING_CLASS: 0})
        commit.advances = [Advance("t:0", None, Position(1, START))]
        assert store.commit(commit) == "applied"
        once = dump(bench.store)
        store.state()
        assert store.commit(commit) == "moved"
        assert store.state().positions["t:0"] == Position(1, START)
        assert dump(bench.store) == once

    def test_a_worker_whose_positions_are_out_of_date_changes_nothing(self, store_server: RedisServer) -> None:
        """The partition has gone on under another owner."""
        bench = Bench(store_server)
        bench.feed([[_response(1, START)], [_response(2, START)]])
        engine, store = bench.worker()
        commit, _ = engine.apply(bench.taken(_response(3, START)), {"1": 0, PENDING_CLASS: 0})
        commit.advances = [Advance("t:0", 1, Position(2, START)), Advance("t:1", None, Position(5, START))]
        before = dump(bench.store)
        assert store.commit(commit) == "moved"
        assert dump(bench.store) == before

    def test_positions_are_kept_with_their_progress(self, store_server: RedisServer) -> None:
        """What is written is read back."""
        store = Bench(store_server).store
        store.state()
        position = Position(17, START, Refusals(1, 20, 3), "c5f6:id")
        store.commit(Commit(advances=[Advance("topic:3", None, position)]))
        assert store.state().positions["topic:3"] == position


class TestSums:
    """What is stored is a sum of 64-bit integers, whatever they are."""

    @pytest.mark.parametrize(
        "numbers",
        [
            [0, 1, -1, 2**32 - 1, -(2**32), 2**53 + 1, -(2**53) - 1, 2**61 - 1, -(2**61)],
            [0, 1, -1, 2**32 - 1, -(2**32), 2**51, 2**51 - 1, -(2**51)],
            [0, 2**51 + 1, -(2**51) - 1],
        ],
    )
    def test_sums_are_exact(self, store_server: RedisServer, numbers: list[int]) -> None:
        """Beyond what a float64 holds, over carries and signs, in vectors that are longer than one run."""
        bench = Bench(store_server)
        chance, key = random.Random(1), bench.store.keys.units(bench.number, 0)
        expected: list[int] = []
        for width in (1, 40, 7, 2500, 2500, 40, 40, 40, 40):
            commit = Commit()
            expected += [0] * (width - len(expected))
            record = [0] * width
            for at in range(chance.randrange(2), width):
                # Two of the largest would not fit.
                record[at] = chance.choice([each for each in numbers if abs(expected[at] + each) < 2**63])
                expected[at] += record[at]
            if changes := pack_runs([(0, record)]):
                commit.sums[key] = changes
            bench.store.state()
            assert bench.store.commit(commit) == "applied"
            stored = bench.store.client.get(key) or b""
            found = [int.from_bytes(stored[at : at + 8], signed=True) for at in range(0, len(stored), 8)]
            assert found + [0] * (len(expected) - len(found)) == expected

    @pytest.mark.parametrize(
        "terms",
        [[2**51] * 4 + [1, 1, -(2**51)], [2**53 + 1, -(2**53), 1], [2**51 + 1] * 3 + [2**62, -(2**62) - 1]],
        ids=["short terms, a long sum", "long terms, a short sum", "both"],
    )
    @pytest.mark.parametrize("sign", [1, -1])
    def test_each_step_is_exact(self, store_server: RedisServer, terms: list[int], sign: int) -> None:
        """Where what is there, what comes, or only the sum is beyond what a float64 holds."""
        bench = Bench(store_server)
        for at, term in enumerate(terms):
            commit = Commit()
            commit.sums[bench.store.keys.units(bench.number, 0)] = pack_runs([(0, [sign * term])])
            bench.store.state()
            assert bench.store.commit(commit) == "applied"
            stored = bench.store.client.get(bench.store.keys.units(bench.number, 0))
            assert int.from_bytes(stored, signed=True) == sign * sum(terms[: at + 1])


class TestOneIdTwice:
    """Two different responses under one id: the earlier one stands, and both students were shown something."""

    def test_order_and_batches_do_not_matter(self, store_server: RedisServer) -> None:
        """Also when they name different students and variants."""
        early = _response(1, START)
        late = Response("r-1", START + 50 * HOUR, "ranker", "treatment", early.items, None, "student-7")
        dumps = []
        for batches in ([[early, late]], [[late, early]], [[late], [early]], [[early], [late]], [[late, early, late]]):
            bench = Bench(store_server)
            bench.feed(batches)
            dumps.append(dump(bench.store))
        assert all(each == dumps[0] for each in dumps)


class TestOutageWithinABatch:
    """The store may go between two reads of one batch."""

    @pytest.mark.parametrize("nth", [1, 2])
    def test_the_batch_is_applied_whole_the_next_time(self, store_server: RedisServer, nth: int) -> None:
        """Half-changed rows in the cache would look like duplicates, and their contributions would be lost."""
        bench = Bench(store_server)
        earlier = [_response(number, START - HOUR) for number in range(3, 9)]
        events: list[Response | Feedback] = [_response(1, START), _response(2, START), _rating(1, START + 1)]
        bench.feed([earlier, events])
        expected = dump(bench.store)
        bench = Bench(store_server)
        bench.feed([earlier])
        engine, store = bench.worker()
        read, reads = store.rows, 0

        def interrupted(keys: Sequence[bytes]) -> list[bytes | None]:
            nonlocal reads
            reads += 1
            if reads == nth:
                raise StoreUnavailable("gone for a moment")
            return read(keys)

        store.rows = interrupted  # type: ignore[method-assign]
        taken_in = bench.taken(*events)
        with pytest.raises(StoreUnavailable):
            engine.apply(taken_in, {"1": 0, PENDING_CLASS: 0})
        commit, _ = engine.apply(taken_in, {"1": 0, PENDING_CLASS: 0})
        commit.advances = [Advance("t:0", len(earlier), Position(len(earlier) + 3))]
        assert store.commit(commit) == "applied"
        assert dump(bench.store) == expected


class TestVersions:
    """Rows are compared where others have committed in between."""

    @pytest.mark.parametrize("changed", [None, 0, 1, 749, 751, 1497, 1500, 3999, 4000])
    def test_one_changed_row_of_thousands_is_seen(self, store_server: RedisServer, changed: int | None) -> None:
        """Wherever it is among those that are read at once; a third are new, and looked for."""
        bench = Bench(store_server)
        rows = [(bench.store.keys.row(b"%d" % number), number % 3) for number in range(4001)]
        beside = (bench.store.keys.row(b"beside"), 1)
        mine, other = (RedisStore(bench.settings.store) for _ in range(2))
        for store in (mine, other):
            store.state()
        bench.store.client.mset({key: version.to_bytes(4) + b"row" for key, version in [*rows, beside] if version})

        def commit(rows: Sequence[tuple[bytes, int]]) -> Commit:
            made = Commit()
            for key, version in rows:
                made.add_row(key, (version + 1).to_bytes(4) + b"new", is_new=not version)
            return made

        others = [beside] if changed is None else [beside, rows[changed]]
        assert other.commit(commit(others)) == "applied"
        assert mine.commit(commit(rows)) == ("applied" if changed is None else "changed")


def test_a_student_of_two_experiments_is_two(store_server: RedisServer) -> None:
    """One batch or several, remembered or read again."""
    both = (EXPERIMENT, replace(EXPERIMENT, name="next"))
    settings = replace(settings_with(EXPERIMENT), experiments=both, store=StoreSettings(url=store_server.url))
    found = []
    for size in (1, 3, 40):
        store_server.client().flushall()
        shards = Shards(settings.store)
        opened = open_store(shards, settings)
        experiments = [Experiment(opened.numbers[each.name], each) for each in both]
        normalizer = EventNormalizer(experiments, IdHasher(b"key"))
        writer = ShardedWriter(experiments, IdHasher(b"key"), shards, cached=2)
        writer.state()
        late = {**{str(each.number): 0 for each in experiments}, PENDING_CLASS: 0}
        events = [
            Response(f"r-{at}", START + at, both[at % 5 % 2].name, "control", ("a",), None, f"student-{at % 4}")
            for at in range(40)
        ]
        for at in range(0, len(events), size):
            step = Advance("t:0", at or None, Position(at + size))
            batch = Batch(0, size, Decoded(taken(normalizer, events[at : at + size])), [step])
            assert writer.submit(batch, late).status.result() == "applied"
        responses = {}
        for experiment in experiments:
            for at in range(4):
                name = shards.first.keys.students(experiment.number) + IdHasher(b"key").student(f"student-{at}")
                (stored,) = shards.first.rows([name])
                student = decode_student(stored or b"", experiment.sums_width)
                responses[experiment.number, at] = student.totals(0)[0]
        found.append(responses)
    assert found[0] == found[1] == found[2]
    assert sum(found[0].values()) == 40
    assert min(found[0].values()) > 0


class TestOpening:
    """Whose store it is."""

    def test_other_definitions_are_refused_with_what_differs_and_what_to_do(self, store_server: RedisServer) -> None:
        """Nothing is written then."""
        bench = Bench(store_server)
        bench.feed([[_response(1, START)]])
        before = dump(bench.store)
        other = replace(bench.settings, experiments=(replace(EXPERIMENT, gain="exp2"),))
        for opening in (open_store, view_store):
            with pytest.raises(StoreOwned, match=r"ranker\.gain: .*'linear'.*'exp2'.*new name") as caught:
                opening(bench.shards, other)
            assert caught.value.exit_code == 5
        assert dump(bench.store) == before

    def test_another_experiment_may_join(self, store_server: RedisServer) -> None:
        """It gets a number of its own."""
        bench = Bench(store_server)
        joined = replace(bench.settings, experiments=(replace(EXPERIMENT, name="next"), EXPERIMENT))
        assert open_store(bench.shards, joined).numbers == {"ranker": 1, "next": 2}

    def test_workers_that_start_together_give_an_experiment_one_number(self, store_server: RedisServer) -> None:
        """A number that nobody uses would make a store that is not the one of a single worker."""
        settings = replace(settings_with(EXPERIMENT), store=StoreSettings(url=store_server.url))
        for _ in range(10):
            store_server.client().flushall()
            stores = [Shards(settings.store) for _ in range(6)]
            with ThreadPoolExecutor(len(stores)) as together:
                opened = list(together.map(lambda store: open_store(store, settings), stores))
            assert {each.numbers["ranker"] for each in opened} == {1}
            assert stores[0].client.hget(stores[0].first.keys.meta, "experiments") == b"1"

    def test_who_comes_while_a_store_is_made_sees_all_of_its_shards(
        self, store_server: RedisServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """After each of the commands that make it."""
        settings = replace(settings_with(EXPERIMENT), store=StoreSettings(url=store_server.url, shards=3))
        store = live_store(settings.store)
        make = store.client.execute_command
        seen = []

        def watched(*command: object, **options: object) -> object:
            reply = make(*command, **options)
            other = live_store(settings.store)
            view_store(other, settings)
            seen.append(len(other))
            other.close()
            return reply

        monkeypatch.setattr(store.client, "execute_command", watched)
        open_store(store, settings)
        assert len(seen) > 5
        assert set(seen) == {3}

    def test_a_wrong_hash_key_is_seen_by_just_looking(self, store_server: RedisServer) -> None:
        """`check` says what `run` would say."""
        bench = Bench(store_server)
        for key in (None, "another"):
            other = replace(bench.settings, store=replace(bench.settings.store, user_hash_key=key))
            with pytest.raises(StoreOwned, match="user_hash_key"):
                view_store(bench.shards, other)

    def test_a_store_that_does_not_say_what_is_live_is_refused(self, store_server: RedisServer) -> None:
        """Its numbers would seem to be gone, or what is stale would be shown."""
        bench = Bench(store_server)
        client = bench.store.client
        client.rename(b"abm:{0}:0:m", b"abm:{0}:3:m")
        client.delete(LIVE)
        with pytest.raises(StoreOwned, match=r"abm:\{0\}:live is missing, but there is a generation 3"):
            live_store(bench.settings.store)
        client.set(LIVE, "zzz")
        with pytest.raises(StoreOwned, match=r"abm:\{0\}:live is b'zzz'"):
            live_store(bench.settings.store)

    def test_an_idle_worker_notices_what_became_of_its_store(self, store_server: RedisServer) -> None:
        """By looking, without anything to write."""
        bench = Bench(store_server)
        worker = ShardedWriter([bench.experiment], IdHasher(b"key"), bench.shards)
        worker.state()
        assert worker.positions() == {}
        bench.store.client.set(LIVE, 5)
        with pytest.raises(StoreOwned, match="switched to generation 5"):
            worker.positions()
        bench.store.client.flushall()
        with pytest.raises(StoreOwned, match="emptied"):
            worker.positions()

    def test_another_number_of_shards_is_refused(self, store_server: RedisServer) -> None:
        """Half of the shards have names of all of them: what they hold is not the whole."""
        bench = Bench(store_server, shards=4)
        with pytest.raises(StoreOwned, match="the store has 4 shards, not 2"):
            open_store(Shards(bench.settings.store, count=2), bench.settings)

    def test_another_hash_key_is_refused(self, store_server: RedisServer) -> None:
        """Rows made under one key are not found under another."""
        bench = Bench(store_server)
        for key in (None, "another"):
            settings = replace(bench.settings, store=replace(bench.settings.store, user_hash_key=key))
            with pytest.raises(StoreOwned, match="user_hash_key"):
                open_store(bench.shards, settings)

    def test_an_emptied_store_is_noticed(self, store_server: RedisServer) -> None:
        """Going on would fill a store that knows no experiment."""
        bench = Bench(store_server)
        bench.store.state()
        bench.store.client.flushall()
        with pytest.raises(StoreOwned, match="emptied while it was in use"):
            bench.store.state()

    def test_looking_writes_nothing(self, store_server: RedisServer) -> None:
        """Experiments that the store does not know are empty, each by itself."""
        store = Shards(StoreSettings(url=store_server.url))
        small = replace(EXPERIMENT, name="small", metrics=EXPERIMENT.metrics[:1], primary=EXPERIMENT.metrics[0].name)
        settings = replace(settings_with(EXPERIMENT), experiments=(EXPERIMENT, small))
        numbers = view_store(store, settings)
        assert all(number < 0 for number in numbers.values())
        summary = Reader(store, settings, numbers, lambda: 0).summary()
        assert {name: set(found.variants) for name, found in summary.experiments.items()} == {
            "ranker": set(EXPERIMENT.variants),
            "small": set(EXPERIMENT.variants),
        }
        assert store.client.dbsize() == 0

    def test_a_record_that_is_too_long_is_named(self, store_server: RedisServer) -> None:
        """What was added to it is not left out."""
        bench = Bench(store_server)
        name = bench.store.keys.traffic(bench.number, 0)
        bench.store.client.set(name, bytes(8 * 1000))
        with pytest.raises(StoreOwned, match=rf"{re.escape(name.decode())} is damaged \(8000 bytes"):
            bench.reader.summary()

    def test_nothing_is_read_of_nothing(self, store_server: RedisServer) -> None:
        """Servers refuse to be asked for no key."""
        assert Bench(store_server).store.values([]) == []


class TestScripts:
    """What the server forgets."""

    def test_dropped_again_and_again(self, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
        """Also between loading one and running it: that is waited for."""
        bench = Bench(redis_server)
        command = bench.store.client.execute_command

        def flushing(*arguments: object, **options: object) -> object:
            if arguments[0] == "EVALSHA":
                bench.store.client.script_flush()
            return command(*arguments, **options)

        with monkeypatch.context() as patch:
            patch.setattr(bench.store.client, "execute_command", flushing)
            with pytest.raises(StoreUnavailable, match="No matching script"):
                bench.store.state()
        assert bench.store.state().positions == {}


class TestUnavailable:
    """What is a reason to wait, and what is a reason to stop."""

    def test_nobody_listens(self) -> None:
        """The place is named, a password is not."""
        store = RedisStore(StoreSettings(url="redis://:secret@127.0.0.1:1/0"))
        with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1:1") as caught:
            store.state()
        assert "secret" not in str(caught.value)

    @pytest.mark.parametrize("scheme", ["redis", "redis+cluster"])
    def test_what_answers_is_something_else(self, scheme: str) -> None:
        """A web server, say: perhaps only while the store is away, so that is waited for."""
        with ThreadingHTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler) as server:
            place = f"127.0.0.1:{server.server_port}"
            Thread(target=server.serve_forever, daemon=True).start()
            try:
                with pytest.raises(
                    StoreUnavailable, match=f"{place}: what answers there does not speak the Redis prot"
                ):
                    RedisStore(StoreSettings(url=f"{scheme}://{place}")).state()
            finally:
                server.shutdown()

    def test_a_wrong_password_is_a_mistake_and_not_an_outage(self) -> None:
        """Waiting would not help."""
        with RedisServer(redis_binary(), requirepass="right") as server:
            with pytest.raises(UsageError, match="refuses this user"):
                RedisStore(StoreSettings(url=server.url, password="wrong")).state()
            RedisStore(StoreSettings(url=server.url, password="right")).state()

    def test_a_full_store_is_waited_for(self) -> None:
        """With noeviction it refuses the script before its first write."""
        with RedisServer(redis_binary(), maxmemory="2mb", maxmemory_policy="noeviction") as server:
            settings = replace(settings_with(EXPERIMENT), store=StoreSettings(url=server.url))
            shards = Shards(settings.store)
            open_store(shards, settings)
            store = shards.first
            store.state()
            store.client.config_set("maxmemory", "1mb")
            with pytest.raises(StoreUnavailable):
                store.commit(Commit(advances=[Advance("t:0", None, Position(1, START))]))
            store.client.config_set("maxmemory", "0")
            assert store.commit(Commit(advances=[Advance("t:0", None, Position(1, START))])) == "applied"


class TestWarnings:
    """Settings that a store should not have."""

    def test_a_safe_server_has_none(self, store_server: RedisServer) -> None:
        """Append-only, and nothing is evicted."""
        assert warnings(Shards(StoreSettings(url=store_server.url))) == []

    def test_eviction_and_no_persistence_are_named(self) -> None:
        """Both at once."""
        with RedisServer(redis_binary(), appendonly="no", maxmemory_policy="allkeys-lru") as server:
            found = " ".join(warnings(Shards(StoreSettings(url=server.url))))
        assert "maxmemory-policy is allkeys-lru" in found
        assert "nothing is persisted" in found


class TestSweep:
    """Forgetting by event time."""

    def test_rows_go_when_nothing_can_change_them_and_cannot_be_counted_twice(self, store_server: RedisServer) -> None:
        """Once swept, a response that is sent again is late, for every worker."""
        bench = Bench(store_server)
        bench.feed([[_response(1, START), _rating(1, START + 1), _rating(9, START + 1)]])
        later = START + EXPERIMENT.horizon_ms + 2 * HOUR
        engine, store = bench.worker()
        experiment = bench.experiment
        progress = Progress({"1": EXPERIMENT.horizon_ms})
        progress.load(store.state())
        progress.see_ends({"t:0": 4})
        commit, _ = engine.apply(bench.taken(_response(2, later)), progress.late_before())
        commit.advances = [Advance("t:0", 3, Position(4, later))]
        assert store.commit(commit) == "applied"
        progress.advanced(commit.advances)
        before = dump(bench.store)
        assert len(list(store.client.scan_iter(store.keys.row(b"*")))) == 3
        Sweeper(store, [experiment]).sweep(progress)
        assert [key[-3:] for key in store.client.scan_iter(store.keys.row(b"*"))] == [b"r-2"]
        assert dump(bench.store) == before
        assert list(noted_hours(store)) == [("1", later // HOUR_MS)]
        fresh = Progress({"1": EXPERIMENT.horizon_ms})
        fresh.load(store.state())
        fresh.see_ends({"t:0": 4})
        other, _ = bench.worker()
        again, outcomes = other.apply(bench.taken(_response(1, START), _rating(1, START + 1)), fresh.late_before())
        assert outcomes["response", "late"] == 1
        assert outcomes["feedback", "late"] == 1
        assert not again.row_keys + again.new_row_keys

    def test_what_is_past_retention_goes_within_a_minute_or_at_the_end(
        self, store_server: RedisServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Not whenever the watermark enters an hour: in a backlog it does so all the time."""
        engine, store = Bench(store_server).worker()
        bench, decay = Bench(store_server), EXPERIMENT.decay[0].name
        sweeper = Sweeper(store, [bench.experiment])
        now_s = time.monotonic()
        monkeypatch.setattr(time, "monotonic", lambda: now_s)
        progress = Progress({"1": EXPERIMENT.horizon_ms})
        known: list[int] = []
        for offset, (after_s, last) in enumerate([(0, False), (59, False), (1, False), (0, False), (0, True)]):
            at_ms = START + offset * (EXPERIMENT.retention_ms + HOUR)
            commit, _ = engine.apply(bench.taken(_response(offset, at_ms)), progress.late_before())
            now_s += after_s
            progress.load(store.state() if not offset else bench.store.state())
            commit.advances = [Advance("t:0", offset or None, Position(offset + 1, at_ms))]
            assert store.commit(commit) == "applied"
            progress.see_ends({"t:0": 9})
            progress.advanced(commit.advances)
            sweeper.sweep(progress, last=last)
            known.append(sum(store.client.zcard(store.keys.chunks(1, variant, decay)) for variant in range(2)))
        assert known == [1, 2, 1, 2, 1]

    @pytest.mark.parametrize("memory", ["keeps it", "has lost it"])
    def test_an_id_that_is_used_again_is_a_new_response_whoever_remembers_the_old_one(
        self, store_server: RedisServer, memory: str
    ) -> None:
        """Also at the worker that has swept its row and still has it in memory."""
        bench = Bench(store_server)
        engine, store = bench.worker()
        progress = Progress({"1": EXPERIMENT.horizon_ms})
        later = START + EXPERIMENT.horizon_ms + 2 * HOUR
        for offset, event in enumerate([_response(1, START), _response(2, later), _response(1, later)]):
            progress.load(store.state() if offset == 0 else bench.store.state())
            progress.see_ends({"t:0": 9})
            if offset == 2:
                Sweeper(store, [bench.experiment]).sweep(progress)
                assert [key[-3:] for key in store.client.scan_iter(store.keys.row(b"*"))] == [b"r-2"]
                if memory == "has lost it":
                    engine.forget()
            commit, outcomes = engine.apply(bench.taken(event), progress.late_before())
            commit.advances = [Advance("t:0", offset or None, Position(offset + 1, event.timestamp_ms))]
            assert outcomes == {("response", "applied"): 1}
            assert store.commit(commit) == "applied"

    def test_a_worker_that_has_not_seen_the_sweep_is_refused(self, store_server: RedisServer) -> None:
        """Its idea of what is late is out of date."""
        bench = Bench(store_server)
        bench.feed([[_response(1, START)]])
        engine, store = bench.worker()
        commit, _ = engine.apply(bench.taken(_response(1, START)), {"1": 0, PENDING_CLASS: 0})
        commit.advances = [Advance("t:5", None, Position(1, START))]
        bench.store.state()
        assert bench.store.sweep("1", [START // HOUR_MS], START + HOUR)[0] == 1
        assert store.commit(commit) == "swept"

    def test_a_sweep_of_what_a_batch_does_not_rest_on_refuses_nobody(self, store_server: RedisServer) -> None:
        """While several workers read a backlog, somebody always sweeps."""
        bench = Bench(store_server)
        bench.feed([[_response(1, START), _rating(9, START)]])
        engine, store = bench.worker()
        later = START + 3 * HOUR
        commit, _ = engine.apply(bench.taken(_response(2, later), _rating(8, later)), {"1": 0, PENDING_CLASS: 0})
        commit.advances = [Advance("t:5", None, Position(1, later))]
        bench.store.state()
        assert bench.store.sweep("1", [START // HOUR], START + HOUR)[0] == 1
        assert bench.store.sweep(PENDING_CLASS, [START // HOUR], START + HOUR)[0] == 1
        assert store.commit(commit) == "applied"

    def test_an_id_that_is_used_again_after_a_sweep_is_a_new_response_for_whoever_has_not_seen_that(
        self, store_server: RedisServer
    ) -> None:
        """The row that the worker remembers is not there any more, and what was counted stays."""
        bench = Bench(store_server)
        engine, store = bench.worker()
        late = {"1": 0, PENDING_CLASS: 0}
        commit, _ = engine.apply(bench.taken(_response(1, START)), late)
        commit.advances = [Advance("t:0", None, Position(1, START))]
        assert store.commit(commit) == "applied"
        later = START + 3 * HOUR
        bench.store.state()
        assert bench.store.sweep("1", [START // HOUR], START + HOUR)[0] == 1
        for refused in (True, False):
            commit, outcomes = engine.apply(bench.taken(_response(1, later)), late)
            commit.advances = [Advance("t:0", 1, Position(2, later))]
            assert store.commit(commit) == ("swept" if refused else "applied")
            store.state()
            engine.forget()
        assert outcomes == {("response", "applied"): 1}
        assert bench.reader.summary().experiments["ranker"].variants["control"].responses == 2

    @pytest.mark.parametrize("event", [_response(1, START + 2 * HOUR), _rating(1, START + 2 * HOUR)])
    def test_what_joins_a_reaction_that_was_swept_meanwhile_is_applied_anew(
        self, store_server: RedisServer, event: Response | Feedback
    ) -> None:
        """The worker remembers reactions without a response that the store has deleted."""
        bench = Bench(store_server)
        engine, store = bench.worker()
        late = {"1": 0, PENDING_CLASS: 0}
        commit, _ = engine.apply(bench.taken(_rating(1, START)), late)
        commit.advances = [Advance("t:0", None, Position(1, START))]
        assert store.commit(commit) == "applied"
        bench.store.state()
        assert bench.store.sweep(PENDING_CLASS, [START // HOUR], START + HOUR)[0] == 1
        commit, _ = engine.apply(bench.taken(event), late)
        commit.advances = [Advance("t:0", 1, Position(2, event.timestamp_ms))]
        assert store.commit(commit) == "swept"

    def test_a_row_that_was_moved_swept_and_made_anew_is_not_taken_for_the_one_that_was_there(
        self, store_server: RedisServer
    ) -> None:
        """Each worker begins with versions of its own, so the new row never has one that another worker expects."""
        bench = Bench(store_server)
        (engine, store), (other, elsewhere) = bench.worker(), bench.worker()
        late = {"1": 0, PENDING_CLASS: 0}

        def apply(
            engine: Engine, store: RedisStore, event: Response | Feedback, partition: str, begin: int | None
        ) -> str:
            commit, _ = engine.apply(bench.taken(event), late)
            commit.advances = [Advance(partition, begin, Position((begin or 0) + 1))]
            return store.commit(commit)

        assert apply(engine, store, _response(1, START + 2 * HOUR), "t:0", None) == "applied"
        elsewhere.state()
        assert apply(other, elsewhere, _response(1, START), "t:1", None) == "applied"
        bench.store.state()
        assert bench.store.sweep("1", [START // HOUR], START + HOUR)[0] == 1
        elsewhere.state()
        other.forget()
        assert apply(other, elsewhere, _rating(1, START + 3 * HOUR), "t:1", 1) == "applied"
        assert apply(engine, store, _rating(1, START + 2 * HOUR + 1), "t:0", 1) == "changed"

    def test_a_row_that_is_young_again_is_not_swept_by_an_old_note(self, store_server: RedisServer) -> None:
        """Its id was noted under two hours, and was used again after it had gone with the first."""
        bench = Bench(store_server)
        bench.feed([[_response(1, START + 2 * HOUR)], [_response(1, START)]])
        bench.store.state()
        assert bench.store.sweep("1", [START // HOUR], START + HOUR)[0] == 1
        engine, store = bench.worker()
        commit, _ = engine.apply(bench.taken(_response(1, START + 9 * HOUR)), {"1": START + HOUR, PENDING_CLASS: 0})
        commit.advances = [Advance("t:5", None, Position(1))]
        assert store.commit(commit) == "applied"
        assert bench.store.sweep("1", [START // HOUR + 2], START + 3 * HOUR)[0] == 0
        assert bench.store.sweep("1", [START // HOUR + 9], START + 10 * HOUR)[0] == 1

    def test_hours_are_swept_together_until_four_thousand_rows_have_gone(self, store_server: RedisServer) -> None:
        """Each of few rows would take a script of its own; those that are done are counted, empty ones too."""
        bench = Bench(store_server)
        bench.feed([[_response(number, START + number % 6 * HOUR) for number in range(7200)]])
        bench.store.state()
        hours = [START // HOUR + place for place in (5, 9, 4, 3, 2, 1)]
        assert bench.store.sweep("1", hours, START + 6 * HOUR) == (4800, 4)
        assert [hour for _, hour in noted_hours(bench.store)] == [START // HOUR + place for place in (0, 1, 2)]
        assert bench.store.sweep("1", hours[4:], START + 6 * HOUR) == (1200, 2)
        assert len(list(bench.store.client.scan_iter(bench.store.keys.row(b"*"), count=10_000))) == 1200

    def test_a_backlog_is_swept_as_fast_as_it_is_read(
        self, store_server: RedisServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """So many rows at once, and twice as many as were applied."""
        monkeypatch.setattr("monitor.pipeline.retention._SCRIPTS", 1)
        bench = Bench(store_server)
        bench.feed(
            [
                [_response(number, START + number) for number in range(begin, begin + 1000)]
                for begin in range(0, 16_000, 1000)
            ]
        )
        _, store = bench.worker()
        progress = Progress({"1": EXPERIMENT.horizon_ms})
        progress.load(store.state())
        progress.advanced([Advance("t:0", 16_000, Position(16_000, START + EXPERIMENT.horizon_ms + 2 * HOUR))])
        progress.see_ends({"t:0": 16_000})
        sweeper = Sweeper(store, [bench.experiment])
        for events, left in ((0, 12_000), (2000, 4000)):
            sweeper.sweep(progress, events)
            assert len(list(store.client.scan_iter(store.keys.row(b"*"), count=10_000))) == left

    def test_buckets_go_past_retention(self, store_server: RedisServer) -> None:
        """Chunks behind the newest response's retention are deleted; all-time sums stay."""
        bench = Bench(store_server)
        later = START + EXPERIMENT.retention_ms + 60 * HOUR
        bench.feed([[_response(1, START), _response(3, START + 25 * HOUR), _response(2, later)]])
        _, store = bench.worker()
        progress = Progress({"1": EXPERIMENT.horizon_ms})
        progress.load(store.state())
        progress.see_ends({"t:0": 3})
        progress.advanced([Advance("t:0", 3, Position(3, later))])
        Sweeper(store, [bench.experiment]).sweep(progress)
        for name, left in ((b"b:1:0:1h:*", 1), (b"g:1:0:*", 1), (b"v:1:0:*", 2)):
            assert len(list(store.client.scan_iter(store.keys.prefix + name))) == left
        # The first day is the reference of what comes later.
        for index, left in ((store.keys.traffic_hours(1, 0), 1), (store.keys.days(1, 0), 2)):
            assert store.client.zcard(index) == left
        summary = bench.reader.summary().experiments["ranker"].variants["control"]
        assert summary.responses == 3


class TestEmbedded:
    """`embedded:DIRECTORY`."""

    def test_what_was_written_is_there_the_next_time(self, tmp_path: Path) -> None:
        """A second starter finds the data of the first; a second user finds the running server."""
        settings = StoreSettings(url=f"embedded:{tmp_path / 'store'}")
        with served(settings) as reached:
            RedisStore(reached).client.set("a", "1")
            with served(settings) as again:
                assert RedisStore(again).client.get("a") == b"1"
            assert warnings(Shards(reached)) == []
        with served(settings) as later:
            assert RedisStore(later).client.get("a") == b"1"

    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
    @pytest.mark.parametrize("begun", [True, False], ids=["serving", "starting"])
    def test_it_stops_with_its_starter_however_that_ends(
        self, tmp_path: Path, number: signal.Signals, *, begun: bool
    ) -> None:
        """Also when that is killed, and when it has only begun to start it."""
        with _user(tmp_path / "store", wait=begun) as starter:
            starter.send_signal(number)
            starter.wait(60)
            eventually("there is no process left", lambda: not _processes(tmp_path / "store"), within_s=30)
        with served(StoreSettings(url=f"embedded:{tmp_path / 'store'}"), existing=True) as reached:
            RedisStore(reached).client.ping()

    def test_a_directory_that_cannot_be_written_is_one_line(self, tmp_path: Path) -> None:
        """A directory stands where a file of its own would be: root may write everywhere else."""
        (tmp_path / "users.lock").mkdir()
        with (
            pytest.raises(StoreUnavailable, match="embedded store: cannot use"),
            served(StoreSettings(url=f"embedded:{tmp_path}")),
        ):
            pass

    def test_it_stops_although_its_disk_is_full(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Then it answers whatever it is asked with that."""
        ping = redis.Redis.ping

        def full(client: redis.Redis) -> object:
            ping(client)
            raise redis.exceptions.ResponseError("MISCONF Errors writing to the AOF file: No space left on device")

        with served(StoreSettings(url=f"embedded:{tmp_path / 'store'}")):
            monkeypatch.setattr(redis.Redis, "ping", full)
        assert not _processes(tmp_path / "store")

    def test_it_outlives_a_killed_starter_for_those_who_use_it(self, tmp_path: Path) -> None:
        """It stops with the last of them, however that ends."""
        settings = StoreSettings(url=f"embedded:{tmp_path / 'store'}")
        with _user(tmp_path / "store") as starter, _user(tmp_path / "store") as last:
            with served(settings) as reached:
                starter.kill()
                starter.wait(60)
                # It would take a moment to stop.
                time.sleep(1)
                RedisStore(reached).client.set("a", "1")
            assert RedisStore(reached).client.get("a") == b"1"
            last.kill()
            eventually("there is no process left", lambda: not _processes(tmp_path / "store"), within_s=30)


@contextmanager
def _user(directory: Path, *, wait: bool = True) -> Iterator[subprocess.Popen[bytes]]:
    """Yield a process that uses an embedded store until it is killed; without `wait`, as soon as it starts one."""
    # Tests that run in a shell's background were started with Ctrl-C ignored.
    script = (
        "import signal, sys, time; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from monitor.config import StoreSettings; from monitor.state import served\n"
        "with served(StoreSettings(url=sys.argv[1])): print('here', flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-c", script, f"embedded:{directory}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            if wait:
                assert process.stdout is not None
                assert process.stdout.readline() == b"here\n"
            else:
                eventually("a server is started", lambda: _processes(directory), every_s=0.001)
            yield process
        finally:
            process.kill()


def _processes(directory: Path) -> list[int]:
    """Return the processes that have to do with a Valkey in a directory."""
    arguments = [str(directory).encode(), b"valkey-server"]
    return [
        int(each.name)
        for each in Path("/proc").iterdir()
        if each.name.isdigit() and all(word in _command(each) for word in arguments)
    ]


def _command(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""


class TestLostTail:
    """A server that comes back without what it acknowledged last."""

    def test_rows_cached_from_lost_writes_hide_no_event(self) -> None:
        """The positions of the other partition are as expected, but the worker's rows are not what is stored."""
        with RedisServer(redis_binary(), appendfsync="always") as server:
            bench = Bench(server)
            engine, store = bench.worker()
            late = {"1": 0, PENDING_CLASS: 0}

            def commit(partition: str, event: Response | Feedback, offset: int) -> str:
                made, _ = engine.apply(bench.taken(event), late)
                made.advances = [Advance(partition, offset - 1 or None, Position(offset))]
                return store.commit(made)

            assert commit("a:0", _response(1, START), 1) == "applied"
            (file,) = (server.directory / "appendonlydir").glob("*.incr.aof")
            size = file.stat().st_size
            assert commit("b:0", _rating(1, START + 1), 1) == "applied"
            server.process.kill()
            os.truncate(file, size)
            server.start()
            click = Feedback("f-2", "r-1", START + 2, "clicked", None, "video-1", 1.0)
            assert commit("a:0", click, 2) == "restarted"
            engine.forget()
            assert "b:0" not in store.state().positions
            assert commit("a:0", click, 2) == "applied"
            assert commit("b:0", _rating(1, START + 1), 1) == "applied"
            found = bench.reader.summary().experiments["ranker"].variants["control"]
            assert (found.rated_responses, dict(found.feedback)) == (1, {"clicked": 1, "rating": 1})

    def test_a_commit_that_is_half_replayed_is_noticed(self) -> None:
        """A file cut within a transaction, loaded, appended to and loaded again: its increments count twice."""
        with RedisServer(redis_binary(), appendfsync="always") as server:
            store = Bench(server).worker()[1]
            (file,) = (server.directory / "appendonlydir").glob("*.incr.aof")

            def commit(offset: int) -> None:
                step = Advance("a:0", offset - 1 or None, Position(offset))
                assert store.commit(Commit(advances=[step])) == "applied"

            commit(1)
            commit(2)
            server.process.kill()
            os.truncate(file, file.read_bytes().rindex(b"EXEC") + 2)
            server.start()
            store.state()
            commit(2)
            server.process.kill()
            server.start()
            with pytest.raises(StoreOwned, match=r"append-only file.*rebuild"):
                store.state()


class TestGenerations:
    """One that is deleted."""

    def test_a_name_that_looks_like_another_generations_stays(self, redis_server: RedisServer) -> None:
        """Ids are anybody's."""
        bench = Bench(redis_server)
        row = bench.store.keys.row(b"x}:1:y")
        bench.store.client.set(row, b"row")
        bench.store.client.set(b"abm:{0}:1:rx", b"row")
        assert drop(bench.shards, 1) == 1
        assert bench.store.client.get(row) == b"row"

    @pytest.mark.parametrize("delete", [lambda store: drop(store, 0), drop_everything], ids=["one", "all"])
    @pytest.mark.parametrize("shards", [1, 2])
    def test_nobody_writes_to_it_and_an_interrupted_deletion_is_found_again(
        self,
        redis_server: RedisServer,
        shards: int,
        delete: Callable[[Shards], int],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """What names it goes last."""
        bench = Bench(redis_server, shards=shards)
        bench.feed([[_response(number, START) for number in range(20)]])
        for shard in bench.shards:
            shard.state()
        with monkeypatch.context() as patch:
            patch.setattr(bench.shards.client, "unlink", lambda *_names: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                delete(bench.shards)
        assert generation_numbers(bench.shards) == {0}
        step = Advance("t:1", None, Position(1))
        for shard in bench.shards:
            assert shard.commit(Commit(advances=[step])) == "switched"
        drop(bench.shards, 0)
        assert generation_numbers(bench.shards) == set()
        assert list(bench.store.client.scan_iter(b"abm:*")) == [b"abm:{0}:live"]


class TestForgottenRows:
    """Everything that is noted goes at last."""

    def test_a_row_that_is_another_experiments_by_now_stays(self, store_server: RedisServer) -> None:
        """An id that was used twice belongs to the earlier event; the other experiment may forget sooner."""
        settings = replace(
            settings_with(EXPERIMENT),
            experiments=(EXPERIMENT, replace(EXPERIMENT, name="next")),
            store=StoreSettings(url=store_server.url),
        )
        store_server.client().flushall()
        shards = Shards(settings.store)
        numbers = open_store(shards, settings).numbers
        store = shards.first
        store.state()
        experiments = [Experiment(numbers[each.name], each) for each in settings.experiments]
        engine, normalizer = (
            Engine(experiments, IdHasher(b"key"), store),
            EventNormalizer(experiments, IdHasher(b"key")),
        )
        late = {"1": 0, "2": 0, PENDING_CLASS: 0}
        for offset, event in enumerate((_response(1, START + 10), _of_next(_response(1, START + 5)))):
            commit, outcomes = engine.apply(taken(normalizer, [event]), late)
            commit.advances = [Advance("t:0", offset or None, Position(offset + 1))]
            assert store.commit(commit) == "applied"
        assert outcomes["response", "revised"] == 1
        assert store.sweep("1", [START // HOUR], START + HOUR)[0] == 0
        assert list(store.client.scan_iter(store.keys.row(b"*")))
        assert store.sweep("2", [START // HOUR], START + HOUR)[0] == 1

    def test_each_experiments_rows_go_by_its_own_number(self, store_server: RedisServer) -> None:
        """Those of numbers beyond a byte, too, and those from before an experiment; all of them have moved."""
        bench = Bench(store_server)
        store = bench.worker()[1]
        hour = START // HOUR
        rows = {
            b"usual": ResponseRow(START, 1 << 8 | 1, version=1),
            b"before": ResponseRow(START, 1 << 8 | PRE_PERIOD, version=1),
            b"beyond": ResponseRow(START, 257 << 8 | PRE_PERIOD, version=1),
            b"largest": ResponseRow(START, (1 << 23) - 1 << 8, version=1),
            b"pending": ResponseRow(
                START + 1, NO_RESPONSE, reactions=((START + 1, "f", b"", b"", "rating", 1.0),), version=1
            ),
            b"fresh": ResponseRow(
                START + HOUR, NO_RESPONSE, reactions=((START, "f", b"", b"", "rating", 1.0),), version=1
            ),
        }
        noted = b"".join(bytes([len(key)]) + key for key in [*rows, b"gone"])
        owned: dict[str, set[bytes]] = {
            "0": set(),
            "1": {b"usual", b"before"},
            "257": {b"beyond"},
            str((1 << 23) - 1): {b"largest"},
            PENDING_CLASS: {b"pending"},
        }
        for number, expected in owned.items():
            for key, row in rows.items():
                store.client.set(store.keys.row(key), encode_response(row))
            store.client.rpush(store.keys.hour(number, hour), noted)
            store.client.hset(store.keys.moved(number, hour), mapping=dict.fromkeys([*rows, b"gone"], b""))
            assert store.sweep(number, [hour], START + HOUR)[0] == len(expected)
            gone = {key for key in rows if not store.client.exists(store.keys.row(key))}
            assert gone == expected

    def test_an_old_note_does_not_take_a_row_that_another_one_stands_for(self, store_server: RedisServer) -> None:
        """What is left of it would take the next row of that id, however young: younger hours are swept first."""
        bench = Bench(store_server)
        engine, store = bench.worker()
        hour = START // HOUR
        outcomes: list[tuple[str, str]] = []
        for offset, (at_ms, swept) in enumerate([(5, None), (3, 5), (9, 3), (9, None)]):
            engine.forget()
            late = {"1": START + 6 * HOUR if offset > 1 else 0, PENDING_CLASS: 0}
            commit, outcome = engine.apply(bench.taken(_response(1, START + at_ms * HOUR)), late)
            commit.advances = [Advance("t:0", offset or None, Position(offset + 1))]
            assert store.commit(commit) == "applied"
            outcomes += outcome
            if swept is not None:
                while store.sweep("1", [hour + swept], START + 6 * HOUR)[1] == 0:
                    pass
                assert store.client.exists(*store.client.scan_iter(store.keys.row(b"*")), b"-") == (swept == 5)
        assert [outcome for _, outcome in outcomes] == ["applied", "revised", "duplicate", "applied"]
        assert len(list(store.client.scan_iter(store.keys.row(b"*")))) == 1

    @pytest.mark.parametrize("seed", range(40))
    def test_rows_go_with_the_hour_of_their_response(self, store_server: RedisServer, seed: int) -> None:
        """And with no other, however often they move and in whatever order hours are swept; nothing is left of it."""
        chance = random.Random(seed)
        bench = Bench(store_server)
        engine, store = bench.worker()
        late, offset, first = {"1": 0, PENDING_CLASS: 0}, 0, START // HOUR

        def rows() -> dict[bytes, int]:
            """Return the hours of the rows that have their response."""
            found = {}
            for name in store.client.scan_iter(store.keys.row(b"*")):
                row = ResponseRow()
                read_response(row, store.client.get(name))
                if row.arm != NO_RESPONSE:
                    found[name] = row.timestamp_ms // HOUR
            return found

        for due in (range(first, first + 3), range(first + 3, first + 6)):
            for hour in (None, *chance.sample(due, len(due))):
                if hour is not None:
                    late["1"] = due.stop * HOUR
                    left = {name: at for name, at in rows().items() if at != hour}
                    while store.sweep("1", [hour], late["1"])[1] == 0:
                        pass
                    assert rows() == left
                for _ in range(chance.randrange(1, 7)):
                    if chance.random() < 0.5:
                        engine.forget()
                    number, at_ms = chance.randrange(2), START + chance.randrange(6 * HOUR)
                    rated = chance.random() < 0.2
                    event = _rating(number, at_ms) if rated else _response(number, at_ms)
                    commit, _ = engine.apply(bench.taken(event), late)
                    commit.advances = [Advance("t:0", offset or None, Position(offset + 1))]
                    assert store.commit(commit) == "applied"
                    offset += 1
                    noted = {store.keys.hour(*place) for place in noted_hours(store)}
                    assert set(store.client.scan_iter(store.keys.prefix + b"x:*")) <= noted
        assert not rows()
        assert not [name for kind in (b"x:1:*", b"X:*") for name in store.client.scan_iter(store.keys.prefix + kind)]
        assert not [name for name in store.client.hkeys(store.keys.hours) if name.startswith(b"1:")]

    def test_feedback_without_its_response_stays_as_long_as_its_newest_reaction(
        self, store_server: RedisServer
    ) -> None:
        """An early reaction that counts for nothing must not take a later one with it."""
        bench = Bench(store_server)
        engine, store = bench.worker()
        commit, _ = engine.apply(bench.taken(_rating(1, START)), {"1": 0, PENDING_CLASS: 0})
        commit.advances = [Advance("t:0", None, Position(1))]
        assert store.commit(commit) == "applied"
        later = Feedback("f-7", "r-1", START + 50 * HOUR, "rating", None, "video-1", 3.0)
        commit, _ = engine.apply(bench.taken(later), {"1": 0, PENDING_CLASS: 0})
        commit.advances = [Advance("t:0", 1, Position(2))]
        assert store.commit(commit) == "applied"
        progress = Progress({"1": EXPERIMENT.horizon_ms})
        sweeper = Sweeper(store, [bench.experiment])
        for passed, rows in ((10 * HOUR, 1), (60 * HOUR, 0)):
            progress.load(store.state())
            progress.advanced([Advance("t:0", None, Position(2, START + EXPERIMENT.horizon_ms + passed))])
            progress.see_ends({"t:0": 2})
            sweeper.sweep(progress)
            assert len(list(store.client.scan_iter(store.keys.row(b"*")))) == rows
        assert list(noted_hours(store)) == []

    def test_the_rows_of_many_small_commits_go_as_fast_as_those_of_few(self, store_server: RedisServer) -> None:
        """A live stream has hundreds of commits a second; what comes must not outrun what goes."""
        bench = Bench(store_server)
        bench.feed([[_response(number, START + number)] for number in range(300)])
        _, store = bench.worker()
        progress = Progress({"1": EXPERIMENT.horizon_ms})
        progress.load(store.state())
        progress.advanced([Advance("t:0", 300, Position(300, START + EXPERIMENT.horizon_ms + 2 * HOUR))])
        progress.see_ends({"t:0": 300})
        Sweeper(store, [bench.experiment]).sweep(progress)
        assert not list(store.client.scan_iter(store.keys.row(b"*")))

    def test_students_of_an_experiment_that_is_over_go_and_its_sums_stay(self, store_server: RedisServer) -> None:
        """Once nothing can change it, and for every worker."""
        ended = replace(EXPERIMENT, ends_at_ms=START + 5 * HOUR)
        bench = Bench(store_server, ended)
        bench.feed([[_response(1, START), _rating(1, START + 1), _response(2, START + HOUR)]])
        before = dump(bench.store)
        _, store = bench.worker()
        other, elsewhere = bench.worker()
        students = bench.store.keys.students(bench.number) + b"*"
        sweeper = Sweeper(store, [bench.experiment])
        for passed, rows in ((4 * HOUR, 2), (6 * HOUR, 2), (6 * HOUR, 2), (7 * HOUR, 0)):
            progress = Progress({"1": ended.horizon_ms})
            progress.load(store.state())
            progress.advanced([Advance("t:0", 3, Position(3, START + ended.horizon_ms + passed))])
            progress.see_ends({"t:0": 3})
            sweeper.sweep(progress)
            assert len(list(store.client.scan_iter(students))) == rows
        assert dump(bench.store) == before
        assert closed_experiments(store) == {1}
        commit, _ = other.apply(bench.taken(_response(3, START)), {"1": 0, PENDING_CLASS: 0})
        commit.advances = [Advance("t:1", None, Position(1))]
        assert elsewhere.commit(commit) == "swept"
        # As one that is only about students, on a shard that has not the responses.
        assert elsewhere.commit(Commit(advances=commit.advances)) == "swept"

    def test_rows_of_an_experiment_that_is_configured_no_longer_go_too(self, store_server: RedisServer) -> None:
        """Its horizon is kept in the store."""
        bench = Bench(store_server)
        bench.feed([[_response(1, START)]])
        other = replace(EXPERIMENT, name="next")
        opened = open_store(bench.shards, replace(bench.settings, experiments=(other,)))
        progress = Progress(opened.horizons_ms)
        progress.load(bench.store.state())
        progress.advanced([Advance("t:0", 1, Position(1, START + EXPERIMENT.horizon_ms + 2 * HOUR))])
        progress.see_ends({"t:0": 1})
        Sweeper(bench.store, []).sweep(progress)
        assert list(bench.store.client.scan_iter(bench.store.keys.row(b"*"))) == []
