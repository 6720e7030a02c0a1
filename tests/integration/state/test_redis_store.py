"""Contract of the store, on Redis and on Valkey."""

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
from monitor.engine.response_row import NO_RESPONSE, PRE_PERIOD_VARIANT, ResponseRow
from monitor.engine.row_codec import decode_student_row, encode_response_row, load_response_row, pack_vector_changes
from monitor.errors import CorruptStore, IncompatibleStore, StoreUnavailable, UsageError
from monitor.events import Feedback, Response
from monitor.metrics import StudentField
from monitor.pipeline.batch_applier import BatchApplier
from monitor.pipeline.batch_decoding import DecodedBatch
from monitor.pipeline.commit_pipeline import ShardBatch, ShardedWriter
from monitor.pipeline.retention import RetentionCleaner
from monitor.pipeline.watermark import WatermarkTracker
from monitor.state import (
    Commit,
    LogEpoch,
    Position,
    PositionUpdate,
    RejectionCounts,
    ShardedStore,
    StoreReader,
    StoreShard,
    initialize_store,
    read_experiments_without_students,
    read_expiry_hours,
    read_server_warnings,
    read_shown_experiments,
    running_store_server,
)
from monitor.state.generations import (
    connect_active_generation,
    delete_all_generations,
    delete_generation,
    read_generation_numbers,
)
from monitor.state.keys import ACTIVE_GENERATION_KEY, PENDING_FEEDBACK
from tests.servers.redis import RedisServer, redis_binary
from tests.support.command import eventually
from tests.support.dump import dump
from tests.support.store_bench import StoreBench, make_rating, make_response
from tests.support.streams import EXPERIMENT, HOUR, START, changed, normalize_events, settings_with


def _of_next(event: Response) -> Response:
    """Return the same response of the other experiment."""
    return changed(event, experiment="next")


class TestCommit:
    """A commit compares the state, then writes."""

    def test_a_lost_reply_changes_nothing_when_sent_again(self, store_server: RedisServer) -> None:
        """At the second attempt, the stored offsets are those that the first attempt has written."""
        bench = StoreBench(store_server)
        engine, store = bench.connect_engine()
        commit, _ = engine.apply(bench.normalize(make_response(1, START)), {"1": 0, PENDING_FEEDBACK: 0})
        commit.position_updates = [PositionUpdate("t:0", None, Position(1, START))]
        assert store.commit(commit) == "applied"
        once = dump(bench.first_shard)
        store.read_state()
        assert store.commit(commit) == "positions_changed"
        assert store.read_state().positions["t:0"] == Position(1, START)
        assert dump(bench.first_shard) == once

    def test_a_worker_whose_positions_are_out_of_date_changes_nothing(self, store_server: RedisServer) -> None:
        """Another worker has applied further records of the partition."""
        bench = StoreBench(store_server)
        bench.apply([[make_response(1, START)], [make_response(2, START)]])
        engine, store = bench.connect_engine()
        commit, _ = engine.apply(bench.normalize(make_response(3, START)), {"1": 0, PENDING_FEEDBACK: 0})
        commit.position_updates = [
            PositionUpdate("t:0", 1, Position(2, START)),
            PositionUpdate("t:1", None, Position(5, START)),
        ]
        before = dump(bench.first_shard)
        assert store.commit(commit) == "positions_changed"
        assert dump(bench.first_shard) == before

    def test_a_position_is_read_as_it_was_committed(self, store_server: RedisServer) -> None:
        """All parts of the position are stored."""
        store = StoreBench(store_server).first_shard
        store.read_state()
        position = Position(17, START, RejectionCounts(1, 20, 3), LogEpoch("c5f6:id", 2, 9, 3))
        store.commit(Commit(position_updates=[PositionUpdate("topic:3", None, position)]))
        assert store.read_state().positions["topic:3"] == position


class TestRecordIncrements:
    """Records are exact sums of 64-bit integers."""

    @pytest.mark.parametrize(
        "numbers",
        [
            [0, 1, -1, 2**32 - 1, -(2**32), 2**53 + 1, -(2**53) - 1, 2**61 - 1, -(2**61)],
            [0, 1, -1, 2**32 - 1, -(2**32), 2**51, 2**51 - 1, -(2**51)],
            [0, 2**51 + 1, -(2**51) - 1],
        ],
    )
    def test_increments_of_any_size_give_exact_64_bit_sums(self, store_server: RedisServer, numbers: list[int]) -> None:
        """Sums beyond 2^53, with carries and signs, in records longer than a run."""
        bench = StoreBench(store_server)
        chance, key = random.Random(1), bench.first_shard.keys.unit_sums(bench.experiment_number, 0)
        expected: list[int] = []
        for width in (1, 40, 7, 2500, 2500, 40, 40, 40, 40):
            commit = Commit()
            expected += [0] * (width - len(expected))
            record = [0] * width
            for position in range(chance.randrange(2), width):
                # Two of the largest would not fit.
                record[position] = chance.choice(
                    [candidate for candidate in numbers if abs(expected[position] + candidate) < 2**63]
                )
                expected[position] += record[position]
            if changes := pack_vector_changes([(0, record)]):
                commit.record_increments[key] = changes
            bench.first_shard.read_state()
            assert bench.first_shard.commit(commit) == "applied"
            stored = bench.first_shard.client.get(key) or b""
            stored_integers = [
                int.from_bytes(stored[position : position + 8], signed=True) for position in range(0, len(stored), 8)
            ]
            assert stored_integers + [0] * (len(expected) - len(stored_integers)) == expected

    @pytest.mark.parametrize(
        "terms",
        [[2**51] * 4 + [1, 1, -(2**51)], [2**53 + 1, -(2**53), 1], [2**51 + 1] * 3 + [2**62, -(2**62) - 1]],
        ids=["short terms, a long sum", "long terms, a short sum", "both"],
    )
    @pytest.mark.parametrize("sign", [1, -1])
    def test_each_increment_is_exact_when_operands_or_sum_exceed_double_precision(
        self, store_server: RedisServer, terms: list[int], sign: int
    ) -> None:
        """The stored integer, the increment, or only the sum exceeds 2^53."""
        bench = StoreBench(store_server)
        for index, term in enumerate(terms):
            commit = Commit()
            commit.record_increments[bench.first_shard.keys.unit_sums(bench.experiment_number, 0)] = (
                pack_vector_changes([(0, [sign * term])])
            )
            bench.first_shard.read_state()
            assert bench.first_shard.commit(commit) == "applied"
            stored = bench.first_shard.client.get(bench.first_shard.keys.unit_sums(bench.experiment_number, 0))
            assert int.from_bytes(stored, signed=True) == sign * sum(terms[: index + 1])


class TestConflictingResponsesWithOneId:
    """Of two different responses with the same id, the earlier response counts, and both students are exposed."""

    def test_the_earlier_response_counts_in_any_order_and_batching(self, store_server: RedisServer) -> None:
        """The responses have different students and variants."""
        early = make_response(1, START)
        late = Response("r-1", START + 50 * HOUR, "ranker", "treatment", early.items, None, "student-7")
        dumps = []
        for batches in ([[early, late]], [[late, early]], [[late], [early]], [[early], [late]], [[late, early, late]]):
            bench = StoreBench(store_server)
            bench.apply(batches)
            dumps.append(dump(bench.first_shard))
        assert all(aggregates == dumps[0] for aggregates in dumps)


class TestOutageWhileABatchIsApplied:
    """The store may become unavailable between two reads of a batch."""

    @pytest.mark.parametrize("nth", [1, 2])
    def test_the_whole_batch_is_applied_at_the_next_attempt(self, store_server: RedisServer, nth: int) -> None:
        """Half-changed rows in the cache would look like duplicates, and their contributions would be lost."""
        bench = StoreBench(store_server)
        earlier = [make_response(number, START - HOUR) for number in range(3, 9)]
        events: list[Response | Feedback] = [
            make_response(1, START),
            make_response(2, START),
            make_rating(1, START + 1),
        ]
        bench.apply([earlier, events])
        expected = dump(bench.first_shard)
        bench = StoreBench(store_server)
        bench.apply([earlier])
        engine, store = bench.connect_engine()
        read, reads = store.read_rows, 0

        def interrupted(keys: Sequence[bytes]) -> list[bytes | None]:
            nonlocal reads
            reads += 1
            if reads == nth:
                raise StoreUnavailable("gone for a moment")
            return read(keys)

        store.read_rows = interrupted  # type: ignore[method-assign]
        taken_in = bench.normalize(*events)
        with pytest.raises(StoreUnavailable):
            engine.apply(taken_in, {"1": 0, PENDING_FEEDBACK: 0})
        commit, _ = engine.apply(taken_in, {"1": 0, PENDING_FEEDBACK: 0})
        commit.position_updates = [PositionUpdate("t:0", len(earlier), Position(len(earlier) + 3))]
        assert store.commit(commit) == "applied"
        assert dump(bench.first_shard) == expected


class TestRowVersions:
    """Row versions are compared if another worker has committed since the state was read."""

    @pytest.mark.parametrize("changed", [None, 0, 1, 749, 751, 1497, 1500, 3999, 4000])
    def test_one_changed_row_among_thousands_makes_the_commit_fail(
        self, store_server: RedisServer, changed: int | None
    ) -> None:
        """The row may be at any place among those of a command; a third of the rows are new."""
        bench = StoreBench(store_server)
        rows = [(bench.first_shard.keys.response_row(b"%d" % number), number % 3) for number in range(4001)]
        unrelated_row = (bench.first_shard.keys.response_row(b"beside"), 1)
        mine, other_worker = (StoreShard(bench.settings.store) for _ in range(2))
        for store in (mine, other_worker):
            store.experiments_version = bench.metadata.declared_set.version
            store.read_state()
        bench.first_shard.client.mset(
            {key: version.to_bytes(4) + b"row" for key, version in [*rows, unrelated_row] if version}
        )

        def commit(rows: Sequence[tuple[bytes, int]]) -> Commit:
            row_commit = Commit()
            for key, version in rows:
                row_commit.add_row(key, (version + 1).to_bytes(4) + b"new", is_new=not version)
            return row_commit

        changed_rows = [unrelated_row] if changed is None else [unrelated_row, rows[changed]]
        assert other_worker.commit(commit(changed_rows)) == "applied"
        assert mine.commit(commit(rows)) == ("applied" if changed is None else "rows_changed")


def test_a_student_in_two_experiments_has_a_row_in_each(store_server: RedisServer) -> None:
    """In a single batch or in several, with cached or newly read rows."""
    experiment_settings = (EXPERIMENT, replace(EXPERIMENT, name="next"))
    settings = replace(
        settings_with(EXPERIMENT), experiments=experiment_settings, store=StoreSettings(url=store_server.url)
    )
    dumps = []
    for size in (1, 3, 40):
        store_server.client().flushall()
        shards = ShardedStore(settings.store)
        opened = initialize_store(shards, settings)
        experiments = [Experiment(opened.numbers[configured.name], configured) for configured in experiment_settings]
        normalizer = EventNormalizer(experiments, IdHasher(b"key"))
        writer = ShardedWriter(experiments, IdHasher(b"key"), shards, max_cached_rows=2)
        writer.reload_state()
        late = {**{str(configured.number): 0 for configured in experiments}, PENDING_FEEDBACK: 0}
        events = [
            Response(
                f"r-{begin}",
                START + begin,
                experiment_settings[begin % 5 % 2].name,
                "control",
                ("a",),
                None,
                f"student-{begin % 4}",
            )
            for begin in range(40)
        ]
        for begin in range(0, len(events), size):
            step = PositionUpdate("t:0", begin or None, Position(begin + size))
            batch = ShardBatch(
                0, size, DecodedBatch(normalize_events(normalizer, events[begin : begin + size])), [step]
            )
            assert writer.submit(batch, late).result() == "applied"
        responses = {}
        for experiment in experiments:
            for begin in range(4):
                name = shards.first_shard.keys.student_row_prefix(experiment.number) + IdHasher(b"key").hash_student(
                    f"student-{begin}"
                )
                (stored,) = shards.first_shard.read_rows([name])
                student = decode_student_row(stored or b"", experiment.sums_width)
                responses[experiment.number, begin] = student.total_sums(0)[StudentField.RESPONSES]
        dumps.append(responses)
    assert dumps[0] == dumps[1] == dumps[2]
    assert sum(dumps[0].values()) == 40
    assert min(dumps[0].values()) > 0


class TestInitializeStore:
    """Checks and registration when a process connects to a store."""

    def test_changed_definitions_are_refused_with_the_difference_and_the_remedy(
        self, store_server: RedisServer
    ) -> None:
        """Nothing is written then."""
        bench = StoreBench(store_server)
        bench.apply([[make_response(1, START)]])
        before = dump(bench.first_shard)
        changed_settings = replace(bench.settings, experiments=(replace(EXPERIMENT, gain="exp2"),))
        for opening in (initialize_store, read_shown_experiments):
            with pytest.raises(
                IncompatibleStore, match=r"ranker\.gain: linear in the store, exp2 in.*new name"
            ) as caught:
                opening(bench.store, changed_settings)
            assert caught.value.exit_code == 5
        assert dump(bench.first_shard) == before

    def test_a_further_experiment_is_registered(self, store_server: RedisServer) -> None:
        """The experiment has the next number."""
        bench = StoreBench(store_server)
        joined = replace(bench.settings, experiments=(replace(EXPERIMENT, name="next"), EXPERIMENT))
        assert initialize_store(bench.store, joined).numbers == {"ranker": 1, "next": 2}

    def test_workers_that_start_together_register_an_experiment_once(self, store_server: RedisServer) -> None:
        """An unused number would make the store differ from that of a single worker."""
        settings = replace(settings_with(EXPERIMENT), store=StoreSettings(url=store_server.url))
        for _ in range(10):
            store_server.client().flushall()
            stores = [ShardedStore(settings.store) for _ in range(6)]
            with ThreadPoolExecutor(len(stores)) as together:
                opened = list(together.map(lambda store: initialize_store(store, settings), stores))
            assert {metadata.numbers["ranker"] for metadata in opened} == {1}
            assert stores[0].client.hget(stores[0].first_shard.keys.meta, "experiments_version") == b"1"

    def test_a_connection_during_initialization_sees_the_final_number_of_shards(
        self, store_server: RedisServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """After each command of the initialization."""
        settings = replace(settings_with(EXPERIMENT), store=StoreSettings(url=store_server.url, shards=3))
        store = connect_active_generation(settings.store)
        make = store.client.execute_command
        shard_counts = []

        def watched(*command: object, **options: object) -> object:
            reply = make(*command, **options)
            other_store = connect_active_generation(settings.store)
            read_shown_experiments(other_store, settings)
            shard_counts.append(len(other_store))
            other_store.close()
            return reply

        monkeypatch.setattr(store.client, "execute_command", watched)
        initialize_store(store, settings)
        assert len(shard_counts) > 5
        assert set(shard_counts) == {3}

    def test_a_read_only_command_reports_a_wrong_hash_key(self, store_server: RedisServer) -> None:
        """`check` raises the same error as `run`."""
        bench = StoreBench(store_server)
        for key in (None, "another"):
            changed_settings = replace(bench.settings, store=replace(bench.settings.store, user_hash_key=key))
            with pytest.raises(IncompatibleStore, match="user_hash_key"):
                read_shown_experiments(bench.store, changed_settings)

    def test_a_store_without_the_number_of_its_active_generation_is_refused(self, store_server: RedisServer) -> None:
        """Otherwise its aggregates would seem to be lost, or a stale generation would be shown."""
        bench = StoreBench(store_server)
        client = bench.first_shard.client
        client.rename(b"abm:{0}:0:meta", b"abm:{0}:3:meta")
        client.delete(ACTIVE_GENERATION_KEY)
        with pytest.raises(CorruptStore, match=r"abm:\{0\}:active is missing, but generation 3 exists"):
            connect_active_generation(bench.settings.store)
        client.set(ACTIVE_GENERATION_KEY, "zzz")
        with pytest.raises(CorruptStore, match=r"abm:\{0\}:active: got 'zzz', expected the number of a generation"):
            connect_active_generation(bench.settings.store)

    @pytest.mark.parametrize("schema", [2, 13])
    def test_a_store_with_the_key_names_of_an_older_schema_is_refused(
        self, store_server: RedisServer, schema: int
    ) -> None:
        """Its hash meta had another name; a rebuild deletes its keys."""
        bench = StoreBench(store_server)
        keys, client = bench.first_shard.keys, bench.first_shard.client
        client.flushall()
        client.hset(keys.meta_of_old_schema, mapping={"schema": schema, "shards": 1})
        old_store = connect_active_generation(bench.settings.store)
        with pytest.raises(IncompatibleStore, match=f"the store has schema {schema}.*`ab-monitor rebuild`"):
            initialize_store(old_store, bench.settings)
        assert read_generation_numbers(old_store) == {0}
        assert delete_generation(old_store, 0) == 1

    def test_an_idle_worker_notices_a_switched_or_emptied_store(self, store_server: RedisServer) -> None:
        """By looking, without anything to write."""
        bench = StoreBench(store_server)
        worker = ShardedWriter([bench.experiment], IdHasher(b"key"), bench.store)
        worker.reload_state()
        assert worker.read_positions() == {}
        bench.first_shard.client.set(ACTIVE_GENERATION_KEY, 5)
        with pytest.raises(IncompatibleStore, match="switched to generation 5"):
            worker.read_positions()
        bench.first_shard.client.flushall()
        with pytest.raises(CorruptStore, match="emptied"):
            worker.read_positions()

    def test_a_store_with_another_number_of_shards_is_refused(self, store_server: RedisServer) -> None:
        """With half of the shards, a reader would miss half of the aggregates."""
        bench = StoreBench(store_server, shard_count=4)
        with pytest.raises(IncompatibleStore, match="created the store with 4 shards, but this worker expects 2"):
            initialize_store(ShardedStore(bench.settings.store, shard_count=2), bench.settings)

    def test_a_store_with_another_hash_key_is_refused(self, store_server: RedisServer) -> None:
        """Rows of ids that were hashed with another key would not be found."""
        bench = StoreBench(store_server)
        for key in (None, "another"):
            settings = replace(bench.settings, store=replace(bench.settings.store, user_hash_key=key))
            with pytest.raises(IncompatibleStore, match="user_hash_key"):
                initialize_store(bench.store, settings)

    def test_a_store_emptied_while_in_use_is_reported(self, store_server: RedisServer) -> None:
        """Going on would fill a store that knows no experiment."""
        bench = StoreBench(store_server)
        bench.first_shard.read_state()
        bench.first_shard.client.flushall()
        with pytest.raises(CorruptStore, match="emptied while it was in use"):
            bench.first_shard.read_state()

    def test_read_only_commands_write_nothing(self, store_server: RedisServer) -> None:
        """Experiments that the store does not know are empty, each by itself."""
        store = ShardedStore(StoreSettings(url=store_server.url))
        small = replace(EXPERIMENT, name="small", metrics=EXPERIMENT.metrics[:1], primary=EXPERIMENT.metrics[0].name)
        settings = replace(settings_with(EXPERIMENT), experiments=(EXPERIMENT, small))
        _, numbers, _ = read_shown_experiments(store, settings)
        assert all(number < 0 for number in numbers.values())
        summary = StoreReader(store, settings, numbers, lambda: 0).read_summary()
        assert {name: set(experiment_summary.variants) for name, experiment_summary in summary.experiments.items()} == {
            "ranker": set(EXPERIMENT.variants),
            "small": set(EXPERIMENT.variants),
        }
        assert store.client.dbsize() == 0

    def test_a_record_with_too_many_integers_is_reported_with_its_key(self, store_server: RedisServer) -> None:
        """The additional integers are not ignored."""
        bench = StoreBench(store_server)
        name = bench.first_shard.keys.traffic(bench.experiment_number, 0)
        bench.first_shard.client.set(name, bytes(8 * 1000))
        with pytest.raises(CorruptStore, match=rf"{re.escape(name.decode())} is damaged \(8000 bytes"):
            bench.reader.read_summary()

    def test_reading_no_keys_sends_no_command(self, store_server: RedisServer) -> None:
        """Servers refuse to be asked for no key."""
        assert StoreBench(store_server).first_shard.read_values([]) == []


class TestLuaScripts:
    """The server may drop its scripts at any time."""

    def test_scripts_are_loaded_again_after_the_server_dropped_them(
        self, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """If that happens between SCRIPT LOAD and EVALSHA, the worker waits."""
        bench = StoreBench(redis_server)
        command = bench.first_shard.client.execute_command

        def flushing(*arguments: object, **options: object) -> object:
            if arguments[0] == "EVALSHA":
                bench.first_shard.client.script_flush()
            return command(*arguments, **options)

        with monkeypatch.context() as patch:
            patch.setattr(bench.first_shard.client, "execute_command", flushing)
            with pytest.raises(StoreUnavailable, match="No matching script"):
                bench.first_shard.read_state()
        assert bench.first_shard.read_state().positions == {}


class TestStoreUnavailable:
    """Errors for which a worker waits, and errors with which it stops."""

    def test_a_closed_port_raises_store_unavailable(self) -> None:
        """The place is named, a password is not."""
        store = StoreShard(StoreSettings(url="redis://:secret@127.0.0.1:1/0"))
        with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1:1") as caught:
            store.read_state()
        assert "secret" not in str(caught.value)

    @pytest.mark.parametrize("scheme", ["redis", "redis+cluster"])
    def test_another_protocol_on_the_port_raises_store_unavailable(self, scheme: str) -> None:
        """A web server, say: perhaps only while the store is away, so that is waited for."""
        with ThreadingHTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler) as server:
            address = f"127.0.0.1:{server.server_port}"
            Thread(target=server.serve_forever, daemon=True).start()
            try:
                with pytest.raises(
                    StoreUnavailable, match=f"{address}: the server at this address does not use the Redis prot"
                ):
                    StoreShard(StoreSettings(url=f"{scheme}://{address}")).read_state()
            finally:
                server.shutdown()

    def test_a_wrong_password_raises_usage_error(self) -> None:
        """Waiting would not help."""
        with RedisServer(redis_binary(), requirepass="right") as server:
            with pytest.raises(UsageError, match="rejects the user default"):
                StoreShard(StoreSettings(url=server.url, password="wrong")).read_state()
            StoreShard(StoreSettings(url=server.url, password="right")).read_state()

    def test_a_store_without_free_memory_raises_store_unavailable(self) -> None:
        """With noeviction, the server rejects the script before its first write."""
        with RedisServer(redis_binary(), maxmemory="2mb", maxmemory_policy="noeviction") as server:
            settings = replace(settings_with(EXPERIMENT), store=StoreSettings(url=server.url))
            shards = ShardedStore(settings.store)
            initialize_store(shards, settings)
            store = shards.first_shard
            store.read_state()
            store.client.config_set("maxmemory", "1mb")
            # The runbook names the next step by the server's code.
            with pytest.raises(StoreUnavailable, match=": OOM command not allowed"):
                store.commit(Commit(position_updates=[PositionUpdate("t:0", None, Position(1, START))]))
            store.client.config_set("maxmemory", "0")
            assert store.commit(Commit(position_updates=[PositionUpdate("t:0", None, Position(1, START))])) == "applied"


class TestServerWarnings:
    """Settings that a store should not have."""

    def test_a_server_with_safe_settings_has_no_warnings(self, store_server: RedisServer) -> None:
        """Append-only, and nothing is evicted."""
        assert read_server_warnings(ShardedStore(StoreSettings(url=store_server.url))) == []

    def test_eviction_and_missing_persistence_are_reported(self) -> None:
        """Both at once."""
        with RedisServer(redis_binary(), appendonly="no", maxmemory_policy="allkeys-lru") as server:
            server_warnings = " ".join(read_server_warnings(ShardedStore(StoreSettings(url=server.url))))
        assert "maxmemory-policy is allkeys-lru" in server_warnings
        assert "persistence is off" in server_warnings

    def test_reasons_to_reject_writes_are_reported(self) -> None:
        """Such a server answers reads, so a test of the connection alone would pass."""
        with RedisServer(redis_binary(), maxmemory_policy="noeviction") as server:
            store = ShardedStore(StoreSettings(url=server.url))
            # A snapshot cannot replace a directory.
            (server.directory / "dump.rdb").mkdir()
            server.client().bgsave()
            (warning,) = eventually("the snapshot fails", lambda: read_server_warnings(store))
            assert "may reject all writes (MISCONF): free disk space" in warning
            server.client().config_set("maxmemory", "100kb")
            assert "uses all of its maxmemory (102400 bytes)" in read_server_warnings(store)[-1]


class TestExpiry:
    """Forgetting by event time."""

    def test_expired_rows_are_deleted_and_their_events_are_not_counted_again(self, store_server: RedisServer) -> None:
        """Once swept, a response that is sent again is late, for every worker."""
        bench = StoreBench(store_server)
        bench.apply([[make_response(1, START), make_rating(1, START + 1), make_rating(9, START + 1)]])
        later = START + EXPERIMENT.horizon_ms + 2 * HOUR
        engine, store = bench.connect_engine()
        experiment = bench.experiment
        progress = WatermarkTracker({"1": EXPERIMENT.horizon_ms})
        progress.load_state(store.read_state())
        progress.update_end_offsets({"t:0": 4})
        commit, _ = engine.apply(bench.normalize(make_response(2, later)), progress.late_before_ms())
        commit.position_updates = [PositionUpdate("t:0", 3, Position(4, later))]
        assert store.commit(commit) == "applied"
        progress.apply_position_updates(commit.position_updates)
        before = dump(bench.first_shard)
        assert len(list(store.client.scan_iter(store.keys.response_row(b"*")))) == 3
        RetentionCleaner(store, [experiment]).clean(progress)
        assert [key[-3:] for key in store.client.scan_iter(store.keys.response_row(b"*"))] == [b"r-2"]
        assert dump(bench.first_shard) == before
        assert list(read_expiry_hours(store)) == [("1", later // HOUR_MS)]
        fresh = WatermarkTracker({"1": EXPERIMENT.horizon_ms})
        fresh.load_state(store.read_state())
        fresh.update_end_offsets({"t:0": 4})
        other_engine, _ = bench.connect_engine()
        repeated_commit, outcomes = other_engine.apply(
            bench.normalize(make_response(1, START), make_rating(1, START + 1)), fresh.late_before_ms()
        )
        assert outcomes["response", "late"] == 1
        assert outcomes["feedback", "late"] == 1
        assert not repeated_commit.changed_row_keys + repeated_commit.new_row_keys

    def test_records_past_retention_are_deleted_within_a_minute_or_at_the_end(
        self, store_server: RedisServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Not at every new hour of the watermark, because a backlog enters hours all the time."""
        engine, store = StoreBench(store_server).connect_engine()
        bench, decay = StoreBench(store_server), EXPERIMENT.decay[0].name
        sweeper = RetentionCleaner(store, [bench.experiment])
        now_s = time.monotonic()
        monkeypatch.setattr(time, "monotonic", lambda: now_s)
        progress = WatermarkTracker({"1": EXPERIMENT.horizon_ms})
        remaining_counts: list[int] = []
        for offset, (after_s, last) in enumerate([(0, False), (59, False), (1, False), (0, False), (0, True)]):
            at_ms = START + offset * (EXPERIMENT.retention_ms + HOUR)
            commit, _ = engine.apply(bench.normalize(make_response(offset, at_ms)), progress.late_before_ms())
            now_s += after_s
            progress.load_state(store.read_state() if not offset else bench.first_shard.read_state())
            commit.position_updates = [PositionUpdate("t:0", offset or None, Position(offset + 1, at_ms))]
            assert store.commit(commit) == "applied"
            progress.update_end_offsets({"t:0": 9})
            progress.apply_position_updates(commit.position_updates)
            sweeper.clean(progress, last=last)
            remaining_counts.append(
                sum(store.client.zcard(store.keys.bucket_index(1, variant, decay)) for variant in range(2))
            )
        assert remaining_counts == [1, 2, 1, 2, 1]

    @pytest.mark.parametrize("memory", ["keeps it", "has lost it"])
    def test_a_reused_id_is_a_new_response_also_for_a_worker_with_the_old_row_cached(
        self, store_server: RedisServer, memory: str
    ) -> None:
        """Also for the worker that has deleted the row and still has a cached copy."""
        bench = StoreBench(store_server)
        engine, store = bench.connect_engine()
        progress = WatermarkTracker({"1": EXPERIMENT.horizon_ms})
        later = START + EXPERIMENT.horizon_ms + 2 * HOUR
        for offset, event in enumerate([make_response(1, START), make_response(2, later), make_response(1, later)]):
            progress.load_state(store.read_state() if offset == 0 else bench.first_shard.read_state())
            progress.update_end_offsets({"t:0": 9})
            if offset == 2:
                RetentionCleaner(store, [bench.experiment]).clean(progress)
                assert [key[-3:] for key in store.client.scan_iter(store.keys.response_row(b"*"))] == [b"r-2"]
                if memory == "has lost it":
                    engine.clear_cache()
            commit, outcomes = engine.apply(bench.normalize(event), progress.late_before_ms())
            commit.position_updates = [PositionUpdate("t:0", offset or None, Position(offset + 1, event.timestamp_ms))]
            assert outcomes == {("response", "applied"): 1}
            assert store.commit(commit) == "applied"

    def test_a_commit_that_depends_on_expired_rows_fails(self, store_server: RedisServer) -> None:
        """The worker's boundary for late events is out of date."""
        bench = StoreBench(store_server)
        bench.apply([[make_response(1, START)]])
        engine, store = bench.connect_engine()
        commit, _ = engine.apply(bench.normalize(make_response(1, START)), {"1": 0, PENDING_FEEDBACK: 0})
        commit.position_updates = [PositionUpdate("t:5", None, Position(1, START))]
        bench.first_shard.read_state()
        assert bench.first_shard.expire_rows("1", [START // HOUR_MS], START + HOUR)[0] == 1
        assert store.commit(commit) == "expired"

    def test_an_expiry_of_unrelated_rows_does_not_make_a_commit_fail(self, store_server: RedisServer) -> None:
        """While several workers read a backlog, somebody always sweeps."""
        bench = StoreBench(store_server)
        bench.apply([[make_response(1, START), make_rating(9, START)]])
        engine, store = bench.connect_engine()
        later = START + 3 * HOUR
        commit, _ = engine.apply(
            bench.normalize(make_response(2, later), make_rating(8, later)), {"1": 0, PENDING_FEEDBACK: 0}
        )
        commit.position_updates = [PositionUpdate("t:5", None, Position(1, later))]
        bench.first_shard.read_state()
        assert bench.first_shard.expire_rows("1", [START // HOUR], START + HOUR)[0] == 1
        assert bench.first_shard.expire_rows(PENDING_FEEDBACK, [START // HOUR], START + HOUR)[0] == 1
        assert store.commit(commit) == "applied"

    def test_a_reused_id_after_expiry_is_a_new_response_for_a_worker_with_an_old_state(
        self, store_server: RedisServer
    ) -> None:
        """The cached row is no longer stored, and its counts stay."""
        bench = StoreBench(store_server)
        engine, store = bench.connect_engine()
        late = {"1": 0, PENDING_FEEDBACK: 0}
        commit, _ = engine.apply(bench.normalize(make_response(1, START)), late)
        commit.position_updates = [PositionUpdate("t:0", None, Position(1, START))]
        assert store.commit(commit) == "applied"
        later = START + 3 * HOUR
        bench.first_shard.read_state()
        assert bench.first_shard.expire_rows("1", [START // HOUR], START + HOUR)[0] == 1
        for refused in (True, False):
            commit, outcomes = engine.apply(bench.normalize(make_response(1, later)), late)
            commit.position_updates = [PositionUpdate("t:0", 1, Position(2, later))]
            assert store.commit(commit) == ("expired" if refused else "applied")
            store.read_state()
            engine.clear_cache()
        assert outcomes == {("response", "applied"): 1}
        assert bench.reader.read_summary().experiments["ranker"].variants["control"].responses == 2

    @pytest.mark.parametrize("event", [make_response(1, START + 2 * HOUR), make_rating(1, START + 2 * HOUR)])
    def test_a_response_whose_pending_feedback_expired_meanwhile_is_applied_again(
        self, store_server: RedisServer, event: Response | Feedback
    ) -> None:
        """The worker remembers reactions without a response that the store has deleted."""
        bench = StoreBench(store_server)
        engine, store = bench.connect_engine()
        late = {"1": 0, PENDING_FEEDBACK: 0}
        commit, _ = engine.apply(bench.normalize(make_rating(1, START)), late)
        commit.position_updates = [PositionUpdate("t:0", None, Position(1, START))]
        assert store.commit(commit) == "applied"
        bench.first_shard.read_state()
        assert bench.first_shard.expire_rows(PENDING_FEEDBACK, [START // HOUR], START + HOUR)[0] == 1
        commit, _ = engine.apply(bench.normalize(event), late)
        commit.position_updates = [PositionUpdate("t:0", 1, Position(2, event.timestamp_ms))]
        assert store.commit(commit) == "expired"

    def test_a_row_that_was_deleted_and_inserted_again_has_another_version(self, store_server: RedisServer) -> None:
        """Versions start at a random number, so the new row never has the version that another worker expects."""
        bench = StoreBench(store_server)
        (engine, store), (other_engine, other_store) = bench.connect_engine(), bench.connect_engine()
        late = {"1": 0, PENDING_FEEDBACK: 0}

        def apply(
            engine: BatchApplier, store: StoreShard, event: Response | Feedback, partition: str, begin: int | None
        ) -> str:
            commit, _ = engine.apply(bench.normalize(event), late)
            commit.position_updates = [PositionUpdate(partition, begin, Position((begin or 0) + 1))]
            return store.commit(commit)

        assert apply(engine, store, make_response(1, START + 2 * HOUR), "t:0", None) == "applied"
        other_store.read_state()
        assert apply(other_engine, other_store, make_response(1, START), "t:1", None) == "applied"
        bench.first_shard.read_state()
        assert bench.first_shard.expire_rows("1", [START // HOUR], START + HOUR)[0] == 1
        other_store.read_state()
        other_engine.clear_cache()
        assert apply(other_engine, other_store, make_rating(1, START + 3 * HOUR), "t:1", 1) == "applied"
        assert apply(engine, store, make_rating(1, START + 2 * HOUR + 1), "t:0", 1) == "rows_changed"

    def test_an_old_expiry_entry_does_not_delete_a_younger_row_of_the_same_id(self, store_server: RedisServer) -> None:
        """The id is listed under two hours, and was reused after it expired with the first hour."""
        bench = StoreBench(store_server)
        bench.apply([[make_response(1, START + 2 * HOUR)], [make_response(1, START)]])
        bench.first_shard.read_state()
        assert bench.first_shard.expire_rows("1", [START // HOUR], START + HOUR)[0] == 1
        engine, store = bench.connect_engine()
        commit, _ = engine.apply(
            bench.normalize(make_response(1, START + 9 * HOUR)), {"1": START + HOUR, PENDING_FEEDBACK: 0}
        )
        commit.position_updates = [PositionUpdate("t:5", None, Position(1))]
        assert store.commit(commit) == "applied"
        assert bench.first_shard.expire_rows("1", [START // HOUR + 2], START + 3 * HOUR)[0] == 0
        assert bench.first_shard.expire_rows("1", [START // HOUR + 9], START + 10 * HOUR)[0] == 1

    def test_one_call_expires_several_hours_up_to_4000_rows(self, store_server: RedisServer) -> None:
        """Otherwise each hour with few rows would need a call; the number of completed hours includes empty hours."""
        bench = StoreBench(store_server)
        bench.apply([[make_response(number, START + number % 6 * HOUR) for number in range(7200)]])
        bench.first_shard.read_state()
        hours = [START // HOUR + offset for offset in (5, 9, 4, 3, 2, 1)]
        assert bench.first_shard.expire_rows("1", hours, START + 6 * HOUR) == (4800, 4)
        assert [hour for _, hour in read_expiry_hours(bench.first_shard)] == [
            START // HOUR + offset for offset in (0, 1, 2)
        ]
        assert bench.first_shard.expire_rows("1", hours[4:], START + 6 * HOUR) == (1200, 2)
        assert (
            len(list(bench.first_shard.client.scan_iter(bench.first_shard.keys.response_row(b"*"), count=10_000)))
            == 1200
        )

    def test_expiry_keeps_up_with_a_backlog(self, store_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
        """So many rows at once, and twice as many as were applied."""
        monkeypatch.setattr("monitor.pipeline.retention._MIN_SCRIPTS", 1)
        bench = StoreBench(store_server)
        bench.apply(
            [
                [make_response(number, START + number) for number in range(begin, begin + 1000)]
                for begin in range(0, 16_000, 1000)
            ]
        )
        _, store = bench.connect_engine()
        progress = WatermarkTracker({"1": EXPERIMENT.horizon_ms})
        progress.load_state(store.read_state())
        progress.apply_position_updates(
            [PositionUpdate("t:0", 16_000, Position(16_000, START + EXPERIMENT.horizon_ms + 2 * HOUR))]
        )
        progress.update_end_offsets({"t:0": 16_000})
        sweeper = RetentionCleaner(store, [bench.experiment])
        for events, remaining_rows in ((0, 12_000), (2000, 4000)):
            sweeper.clean(progress, events)
            assert len(list(store.client.scan_iter(store.keys.response_row(b"*"), count=10_000))) == remaining_rows

    def test_time_buckets_and_traffic_past_retention_are_deleted(self, store_server: RedisServer) -> None:
        """Chunks behind the newest response's retention are deleted; all-time sums stay."""
        bench = StoreBench(store_server)
        later = START + EXPERIMENT.retention_ms + 60 * HOUR
        bench.apply([[make_response(1, START), make_response(3, START + 25 * HOUR), make_response(2, later)]])
        _, store = bench.connect_engine()
        progress = WatermarkTracker({"1": EXPERIMENT.horizon_ms})
        progress.load_state(store.read_state())
        progress.update_end_offsets({"t:0": 3})
        progress.apply_position_updates([PositionUpdate("t:0", 3, Position(3, later))])
        RetentionCleaner(store, [bench.experiment]).clean(progress)
        for name, expected_count in (
            (b"bucket_chunk:1:0:1h:*", 1),
            (b"traffic_hour:1:0:*", 1),
            (b"traffic_day:1:0:*", 2),
        ):
            assert len(list(store.client.scan_iter(store.keys.prefix + name))) == expected_count
        # The first day is the reference of what comes later.
        for index, expected_count in (
            (store.keys.traffic_hour_index(1, 0), 1),
            (store.keys.traffic_day_index(1, 0), 2),
        ):
            assert store.client.zcard(index) == expected_count
        summary = bench.reader.read_summary().experiments["ranker"].variants["control"]
        assert summary.responses == 3


class TestEmbeddedServer:
    """`embedded:DIRECTORY`."""

    def test_data_is_there_after_a_restart(self, tmp_path: Path) -> None:
        """A second starter finds the data of the first; a second user finds the running server."""
        settings = StoreSettings(url=f"embedded:{tmp_path / 'store'}")
        with running_store_server(settings) as first_settings:
            StoreShard(first_settings).client.set("a", "1")
            with running_store_server(settings) as second_settings:
                assert StoreShard(second_settings).client.get("a") == b"1"
            assert read_server_warnings(ShardedStore(first_settings)) == []
        with running_store_server(settings) as restarted_settings:
            assert StoreShard(restarted_settings).client.get("a") == b"1"

    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
    @pytest.mark.parametrize("is_serving", [True, False], ids=["serving", "starting"])
    def test_the_server_stops_when_its_starter_ends_by_any_signal(
        self, tmp_path: Path, number: signal.Signals, *, is_serving: bool
    ) -> None:
        """Also after SIGKILL, and while the server is still starting."""
        with _user(tmp_path / "store", wait=is_serving) as starter:
            starter.send_signal(number)
            starter.wait(60)
            eventually("there is no process left", lambda: not _processes(tmp_path / "store"), within_s=30)
        with running_store_server(
            StoreSettings(url=f"embedded:{tmp_path / 'store'}"), must_exist=True
        ) as store_settings:
            StoreShard(store_settings).client.ping()

    def test_an_unwritable_directory_raises_store_unavailable(self, tmp_path: Path) -> None:
        """A directory takes the place of a file of the server, because root may write everywhere."""
        (tmp_path / "users.lock").mkdir()
        with (
            pytest.raises(StoreUnavailable, match=r"the directory .* of the embedded store cannot be used"),
            running_store_server(StoreSettings(url=f"embedded:{tmp_path}")),
        ):
            pass

    def test_the_server_stops_although_its_disk_is_full(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The server then replies to every command with an error."""
        ping = redis.Redis.ping

        def full(client: redis.Redis) -> object:
            ping(client)
            raise redis.exceptions.ResponseError("MISCONF Errors writing to the AOF file: No space left on device")

        with running_store_server(StoreSettings(url=f"embedded:{tmp_path / 'store'}")):
            monkeypatch.setattr(redis.Redis, "ping", full)
        assert not _processes(tmp_path / "store")

    def test_the_server_runs_for_other_processes_after_its_starter_was_killed(self, tmp_path: Path) -> None:
        """The server stops when the last process ends."""
        settings = StoreSettings(url=f"embedded:{tmp_path / 'store'}")
        with _user(tmp_path / "store") as starter, _user(tmp_path / "store") as last:
            with running_store_server(settings) as store_settings:
                starter.kill()
                starter.wait(60)
                # It would take a moment to stop.
                time.sleep(1)
                StoreShard(store_settings).client.set("a", "1")
            assert StoreShard(store_settings).client.get("a") == b"1"
            last.kill()
            eventually("there is no process left", lambda: not _processes(tmp_path / "store"), within_s=30)


@contextmanager
def _user(directory: Path, *, wait: bool = True) -> Iterator[subprocess.Popen[bytes]]:
    """Yield a process that uses an embedded store until killed; without `wait`, as soon as a server process exists."""
    # Tests that run in a shell's background were started with Ctrl-C ignored.
    script = (
        "import signal, sys, time; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from monitor.config import StoreSettings; from monitor.state import running_store_server\n"
        "with running_store_server(StoreSettings(url=sys.argv[1])): print('here', flush=True); time.sleep(600)"
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
        int(process.name)
        for process in Path("/proc").iterdir()
        if process.name.isdigit() and all(word in _command(process) for word in arguments)
    ]


def _command(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""


class TestLostWrites:
    """A server restarts without its last acknowledged writes."""

    def test_rows_cached_from_lost_writes_do_not_hide_an_event(self) -> None:
        """The position of the other partition is as expected, but the worker's cached rows are not the stored rows."""
        with RedisServer(redis_binary(), appendfsync="always") as server:
            bench = StoreBench(server)
            engine, store = bench.connect_engine()
            late = {"1": 0, PENDING_FEEDBACK: 0}

            def commit(partition: str, event: Response | Feedback, offset: int) -> str:
                event_commit, _ = engine.apply(bench.normalize(event), late)
                event_commit.position_updates = [PositionUpdate(partition, offset - 1 or None, Position(offset))]
                return store.commit(event_commit)

            assert commit("a:0", make_response(1, START), 1) == "applied"
            (file,) = (server.directory / "appendonlydir").glob("*.incr.aof")
            size = file.stat().st_size
            assert commit("b:0", make_rating(1, START + 1), 1) == "applied"
            server.process.kill()
            os.truncate(file, size)
            server.start()
            click = Feedback("f-2", "r-1", START + 2, "clicked", None, "video-1", 1.0)
            assert commit("a:0", click, 2) == "server_restarted"
            engine.clear_cache()
            assert "b:0" not in store.read_state().positions
            assert commit("a:0", click, 2) == "applied"
            assert commit("b:0", make_rating(1, START + 1), 1) == "applied"
            variant_summary = bench.reader.read_summary().experiments["ranker"].variants["control"]
            assert (variant_summary.rated_responses, dict(variant_summary.feedback)) == (1, {"clicked": 1, "rating": 1})

    def test_a_commit_that_was_applied_in_part_from_the_append_only_file_is_reported(self) -> None:
        """A file that was cut within a transaction, loaded, appended to and loaded again applies increments twice."""
        with RedisServer(redis_binary(), appendfsync="always") as server:
            store = StoreBench(server).connect_engine()[1]
            (file,) = (server.directory / "appendonlydir").glob("*.incr.aof")

            def commit(offset: int) -> None:
                step = PositionUpdate("a:0", offset - 1 or None, Position(offset))
                assert store.commit(Commit(position_updates=[step])) == "applied"

            commit(1)
            commit(2)
            server.process.kill()
            os.truncate(file, file.read_bytes().rindex(b"EXEC") + 2)
            server.start()
            store.read_state()
            commit(2)
            server.process.kill()
            server.start()
            with pytest.raises(CorruptStore, match=r"append-only file.*rebuild"):
                store.read_state()


class TestGenerations:
    """Deletion of a generation."""

    def test_deletion_keeps_a_key_that_only_resembles_those_of_the_generation(self, redis_server: RedisServer) -> None:
        """Ids are arbitrary bytes."""
        bench = StoreBench(redis_server)
        row = bench.first_shard.keys.response_row(b"x}:1:y")
        bench.first_shard.client.set(row, b"row")
        bench.first_shard.client.set(b"abm:{0}:1:rx", b"row")
        assert delete_generation(bench.store, 1) == 1
        assert bench.first_shard.client.get(row) == b"row"

    @pytest.mark.parametrize(
        "delete", [lambda store: delete_generation(store, 0), delete_all_generations], ids=["one", "all"]
    )
    @pytest.mark.parametrize("shards", [1, 2])
    def test_commits_to_a_generation_fail_from_the_first_step_of_its_deletion(
        self,
        redis_server: RedisServer,
        shards: int,
        delete: Callable[[ShardedStore], int],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """The hash meta is deleted last."""
        bench = StoreBench(redis_server, shard_count=shards)
        bench.apply([[make_response(number, START) for number in range(20)]])
        for shard in bench.store:
            shard.read_state()
        with monkeypatch.context() as patch:
            patch.setattr(bench.store.client, "unlink", lambda *_names: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                delete(bench.store)
        assert read_generation_numbers(bench.store) == {0}
        step = PositionUpdate("t:1", None, Position(1))
        for shard in bench.store:
            assert shard.commit(Commit(position_updates=[step])) == "generation_switched"
        delete_generation(bench.store, 0)
        assert read_generation_numbers(bench.store) == set()
        assert list(bench.first_shard.client.scan_iter(b"abm:*")) == [b"abm:{0}:active"]


class TestExpiredRows:
    """Everything that is noted goes at last."""

    def test_a_row_that_now_belongs_to_another_experiment_is_not_deleted(self, store_server: RedisServer) -> None:
        """An id that was used twice belongs to the earlier event; the other experiment may forget sooner."""
        settings = replace(
            settings_with(EXPERIMENT),
            experiments=(EXPERIMENT, replace(EXPERIMENT, name="next")),
            store=StoreSettings(url=store_server.url),
        )
        store_server.client().flushall()
        shards = ShardedStore(settings.store)
        numbers = initialize_store(shards, settings).numbers
        store = shards.first_shard
        store.read_state()
        experiments = [
            Experiment(numbers[experiment_settings.name], experiment_settings)
            for experiment_settings in settings.experiments
        ]
        engine, normalizer = (
            BatchApplier(experiments, IdHasher(b"key"), store),
            EventNormalizer(experiments, IdHasher(b"key")),
        )
        late = {"1": 0, "2": 0, PENDING_FEEDBACK: 0}
        for offset, event in enumerate((make_response(1, START + 10), _of_next(make_response(1, START + 5)))):
            commit, outcomes = engine.apply(normalize_events(normalizer, [event]), late)
            commit.position_updates = [PositionUpdate("t:0", offset or None, Position(offset + 1))]
            assert store.commit(commit) == "applied"
        assert outcomes["response", "revised"] == 1
        assert store.expire_rows("1", [START // HOUR], START + HOUR)[0] == 0
        assert list(store.client.scan_iter(store.keys.response_row(b"*")))
        assert store.expire_rows("2", [START // HOUR], START + HOUR)[0] == 1

    def test_rows_expire_by_the_number_of_their_experiment(self, store_server: RedisServer) -> None:
        """Also for numbers above 255 and for rows of the pre-period; all rows have moved."""
        bench = StoreBench(store_server)
        store = bench.connect_engine()[1]
        hour = START // HOUR
        rows = {
            b"usual": ResponseRow(START, 1 << 8 | 1, version=1),
            b"before": ResponseRow(START, 1 << 8 | PRE_PERIOD_VARIANT, version=1),
            b"beyond": ResponseRow(START, 257 << 8 | PRE_PERIOD_VARIANT, version=1),
            b"largest": ResponseRow(START, (1 << 23) - 1 << 8, version=1),
            b"pending": ResponseRow(
                START + 1, NO_RESPONSE, reactions=((START + 1, "f", b"", b"", "rating", 1.0),), version=1
            ),
            b"fresh": ResponseRow(
                START + HOUR, NO_RESPONSE, reactions=((START, "f", b"", b"", "rating", 1.0),), version=1
            ),
        }
        expiry_entry = b"".join(bytes([len(key)]) + key for key in [*rows, b"gone"])
        owned: dict[str, set[bytes]] = {
            "0": set(),
            "1": {b"usual", b"before"},
            "257": {b"beyond"},
            str((1 << 23) - 1): {b"largest"},
            PENDING_FEEDBACK: {b"pending"},
        }
        for number, expected in owned.items():
            for key, row in rows.items():
                store.client.set(store.keys.response_row(key), encode_response_row(row))
            store.client.rpush(store.keys.expiry_rows(number, hour), expiry_entry)
            store.client.hset(store.keys.expiry_moved_rows(number, hour), mapping=dict.fromkeys([*rows, b"gone"], b""))
            assert store.expire_rows(number, [hour], START + HOUR)[0] == len(expected)
            deleted_keys = {key for key in rows if not store.client.exists(store.keys.response_row(key))}
            assert deleted_keys == expected

    def test_an_old_expiry_entry_does_not_delete_a_row_of_a_later_hour(self, store_server: RedisServer) -> None:
        """A remaining entry would delete the next row of the same id, because younger hours expire first."""
        bench = StoreBench(store_server)
        engine, store = bench.connect_engine()
        hour = START // HOUR
        outcomes: list[tuple[str, str]] = []
        for offset, (at_ms, swept) in enumerate([(5, None), (3, 5), (9, 3), (9, None)]):
            engine.clear_cache()
            late = {"1": START + 6 * HOUR if offset > 1 else 0, PENDING_FEEDBACK: 0}
            commit, outcome = engine.apply(bench.normalize(make_response(1, START + at_ms * HOUR)), late)
            commit.position_updates = [PositionUpdate("t:0", offset or None, Position(offset + 1))]
            assert store.commit(commit) == "applied"
            outcomes += outcome
            if swept is not None:
                while store.expire_rows("1", [hour + swept], START + 6 * HOUR)[1] == 0:
                    pass
                assert store.client.exists(*store.client.scan_iter(store.keys.response_row(b"*")), b"-") == (swept == 5)
        assert [outcome for _, outcome in outcomes] == ["applied", "revised", "duplicate", "applied"]
        assert len(list(store.client.scan_iter(store.keys.response_row(b"*")))) == 1

    @pytest.mark.parametrize("seed", range(40))
    def test_rows_expire_with_the_hour_of_their_response(self, store_server: RedisServer, seed: int) -> None:
        """Rows may move several times, and hours may expire in any order; no entry remains."""
        chance = random.Random(seed)
        bench = StoreBench(store_server)
        engine, store = bench.connect_engine()
        late, offset, first = {"1": 0, PENDING_FEEDBACK: 0}, 0, START // HOUR

        def rows() -> dict[bytes, int]:
            """Return the hours of the rows that have their response."""
            row_hours = {}
            for name in store.client.scan_iter(store.keys.response_row(b"*")):
                row = ResponseRow()
                load_response_row(row, store.client.get(name))
                if row.variant_key != NO_RESPONSE:
                    row_hours[name] = row.timestamp_ms // HOUR
            return row_hours

        for due in (range(first, first + 3), range(first + 3, first + 6)):
            for hour in (None, *chance.sample(due, len(due))):
                if hour is not None:
                    late["1"] = due.stop * HOUR
                    remaining_rows = {name: row_hour for name, row_hour in rows().items() if row_hour != hour}
                    while store.expire_rows("1", [hour], late["1"])[1] == 0:
                        pass
                    assert rows() == remaining_rows
                for _ in range(chance.randrange(1, 7)):
                    if chance.random() < 0.5:
                        engine.clear_cache()
                    number, at_ms = chance.randrange(2), START + chance.randrange(6 * HOUR)
                    rated = chance.random() < 0.2
                    event = make_rating(number, at_ms) if rated else make_response(number, at_ms)
                    commit, _ = engine.apply(bench.normalize(event), late)
                    commit.position_updates = [PositionUpdate("t:0", offset or None, Position(offset + 1))]
                    assert store.commit(commit) == "applied"
                    offset += 1
                    listed_keys = {
                        store.keys.expiry_rows(*experiment_and_hour) for experiment_and_hour in read_expiry_hours(store)
                    }
                    assert set(store.client.scan_iter(store.keys.prefix + b"expiry_rows:*")) <= listed_keys
        assert not rows()
        families = (b"expiry_rows:1:*", b"expiry_moved_rows:*")
        assert not [key for family in families for key in store.client.scan_iter(store.keys.prefix + family)]
        assert not [name for name in store.client.hkeys(store.keys.expiry_hours) if name.startswith(b"1:")]

    def test_pending_feedback_expires_with_its_newest_reaction(self, store_server: RedisServer) -> None:
        """An early uncounted reaction must not delete a later reaction."""
        bench = StoreBench(store_server)
        engine, store = bench.connect_engine()
        commit, _ = engine.apply(bench.normalize(make_rating(1, START)), {"1": 0, PENDING_FEEDBACK: 0})
        commit.position_updates = [PositionUpdate("t:0", None, Position(1))]
        assert store.commit(commit) == "applied"
        later = Feedback("f-7", "r-1", START + 50 * HOUR, "rating", None, "video-1", 3.0)
        commit, _ = engine.apply(bench.normalize(later), {"1": 0, PENDING_FEEDBACK: 0})
        commit.position_updates = [PositionUpdate("t:0", 1, Position(2))]
        assert store.commit(commit) == "applied"
        progress = WatermarkTracker({"1": EXPERIMENT.horizon_ms})
        sweeper = RetentionCleaner(store, [bench.experiment])
        for passed, rows in ((10 * HOUR, 1), (60 * HOUR, 0)):
            progress.load_state(store.read_state())
            progress.apply_position_updates(
                [PositionUpdate("t:0", None, Position(2, START + EXPERIMENT.horizon_ms + passed))]
            )
            progress.update_end_offsets({"t:0": 2})
            sweeper.clean(progress)
            assert len(list(store.client.scan_iter(store.keys.response_row(b"*")))) == rows
        assert list(read_expiry_hours(store)) == []

    def test_rows_of_many_small_commits_expire_as_fast_as_rows_of_few_commits(self, store_server: RedisServer) -> None:
        """A live stream has hundreds of commits per second, so expiry must be as fast as insertion."""
        bench = StoreBench(store_server)
        bench.apply([[make_response(number, START + number)] for number in range(300)])
        _, store = bench.connect_engine()
        progress = WatermarkTracker({"1": EXPERIMENT.horizon_ms})
        progress.load_state(store.read_state())
        progress.apply_position_updates(
            [PositionUpdate("t:0", 300, Position(300, START + EXPERIMENT.horizon_ms + 2 * HOUR))]
        )
        progress.update_end_offsets({"t:0": 300})
        RetentionCleaner(store, [bench.experiment]).clean(progress)
        assert not list(store.client.scan_iter(store.keys.response_row(b"*")))

    def test_students_of_an_ended_experiment_are_deleted_and_its_sums_stay(self, store_server: RedisServer) -> None:
        """After the last possible change, for every worker."""
        ended = replace(EXPERIMENT, ends_at_ms=START + 5 * HOUR)
        bench = StoreBench(store_server, ended)
        bench.apply([[make_response(1, START), make_rating(1, START + 1), make_response(2, START + HOUR)]])
        before = dump(bench.first_shard)
        _, store = bench.connect_engine()
        other_engine, other_store = bench.connect_engine()
        students = bench.first_shard.keys.student_row_prefix(bench.experiment_number) + b"*"
        sweeper = RetentionCleaner(store, [bench.experiment])
        for passed, rows in ((4 * HOUR, 2), (6 * HOUR, 2), (6 * HOUR, 2), (7 * HOUR, 0)):
            progress = WatermarkTracker({"1": ended.horizon_ms})
            progress.load_state(store.read_state())
            progress.apply_position_updates([PositionUpdate("t:0", 3, Position(3, START + ended.horizon_ms + passed))])
            progress.update_end_offsets({"t:0": 3})
            sweeper.clean(progress)
            assert len(list(store.client.scan_iter(students))) == rows
        assert dump(bench.first_shard) == before
        assert read_experiments_without_students(store) == {1}
        commit, _ = other_engine.apply(bench.normalize(make_response(3, START)), {"1": 0, PENDING_FEEDBACK: 0})
        commit.position_updates = [PositionUpdate("t:1", None, Position(1))]
        assert other_store.commit(commit) == "expired"
        # As one that is only about students, on a shard that has not the responses.
        assert other_store.commit(Commit(position_updates=commit.position_updates)) == "expired"

    def test_students_of_an_archived_experiment_are_deleted_at_once_and_its_sums_stay(
        self, store_server: RedisServer
    ) -> None:
        """No worker counts its events any more."""
        bench = StoreBench(store_server)
        bench.apply([[make_response(1, START), make_rating(1, START + 1), make_response(2, START + HOUR)]])
        before = dump(bench.first_shard)
        _, store = bench.connect_engine()
        students = store.keys.student_row_prefix(bench.experiment_number) + b"*"
        assert len(list(store.client.scan_iter(students))) == 2
        RetentionCleaner(store, [], archived=[bench.experiment_number]).clean(WatermarkTracker({}))
        assert list(store.client.scan_iter(students)) == []
        assert dump(bench.first_shard) == before

    def test_rows_of_an_experiment_that_is_no_longer_configured_expire(self, store_server: RedisServer) -> None:
        """The store keeps the horizon of the experiment."""
        bench = StoreBench(store_server)
        bench.apply([[make_response(1, START)]])
        removed_experiment = replace(EXPERIMENT, name="next")
        opened = initialize_store(bench.store, replace(bench.settings, experiments=(removed_experiment,)))
        progress = WatermarkTracker(opened.horizons_ms)
        progress.load_state(bench.first_shard.read_state())
        progress.apply_position_updates(
            [PositionUpdate("t:0", 1, Position(1, START + EXPERIMENT.horizon_ms + 2 * HOUR))]
        )
        progress.update_end_offsets({"t:0": 1})
        RetentionCleaner(bench.first_shard, []).clean(progress)
        assert list(bench.first_shard.client.scan_iter(bench.first_shard.keys.response_row(b"*"))) == []
