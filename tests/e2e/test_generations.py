"""Rebuild and reset: definitions change without downtime, and data is deleted only with consent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka import KafkaAdminClient, TopicPartition

from monitor.config import StoreSettings
from monitor.state import ShardedStore, StoreShard
from monitor.state.generations import connect_active_generation, read_generation_numbers
from tests.faults.arena import Arena, Expectations
from tests.faults.catalogue import Ground
from tests.servers.kafka import KafkaBroker
from tests.servers.redis import RedisServer, redis_binary
from tests.support.command import HASHED, ab_monitor
from tests.support.dump import dump


@pytest.fixture
def arena(tmp_path: Path, kafka: KafkaBroker, monkeypatch: pytest.MonkeyPatch) -> Iterator[Arena]:
    """Yield an arena with half of the stream applied; all commands use the arena's hash key."""
    for name, value in HASHED.items():
        monkeypatch.setenv(name, value)
    with RedisServer(redis_binary()) as calm:
        ground = Ground(tmp_path, kafka, Expectations(tmp_path, calm))
        with ground.arena() as arena_in_use:
            with arena_in_use.worker():
                arena_in_use.write(arena_in_use.events[: arena_in_use.half], per_second=20_000)
                arena_in_use.finish()
            yield arena_in_use


def _live(arena: Arena) -> ShardedStore:
    return connect_active_generation(StoreSettings(url=arena.server.url))


_OTHER_DEFINITIONS = """
gain = "exp2"
categories = ["fractions", "geometry"]
novelty = true
guardrails = [{ metric = "latency_ms", harmful_direction = "up", margin = 100 }]
"""


class TestRebuildCommand:
    """The command `rebuild`."""

    def test_definitions_may_change_while_the_service_runs(self, arena: Arena) -> None:
        """The old workers run until the switch; the new aggregates equal those of a new store."""
        new = arena.directory / "new.toml"
        new.write_text(arena.config.read_text() + _OTHER_DEFINITIONS)
        with arena.worker() as worker:
            worker.ready()
            arena.write(arena.events[arena.half :], per_second=2_000)
            process = ab_monitor("rebuild", "--config", new)
            assert process.returncode == 0, process.stderr
            assert "switched to generation 1" in process.stdout
            worker.ends_with(5)
            assert "switched to generation 1" in worker.said()
        assert ab_monitor("status", "--config", arena.config).returncode == 0
        arena.written()
        store = _live(arena)
        arena.store = store
        with arena.worker(new):
            arena.finish()
        assert read_generation_numbers(store) == {1}
        fresh_server = RedisServer(redis_binary())
        with fresh_server:
            fresh = arena.write_config(arena.directory / "fresh.toml", store_url=fresh_server.url)
            fresh.write_text(fresh.read_text() + _OTHER_DEFINITIONS)
            lines = arena.directory / "all.jsonl"
            lines.write_bytes(b"\n".join(event.payload for event in arena.events))
            assert ab_monitor("replay", "--config", fresh, lines).returncode == 0
            expected = dump(StoreShard(StoreSettings(url=fresh_server.url)))
        assert dump(store) == expected

    def test_events_of_an_archived_experiment_are_counted_by_a_rebuild_with_the_file(self, arena: Arena) -> None:
        """An experiment is removed from the configuration for a while."""
        old = arena.directory / "old.toml"
        old.write_text(arena.config.read_text().replace('name = "ranker-v2"', 'name = "another"'))
        with arena.worker(old):
            arena.write(arena.events[arena.half :], per_second=20_000)
            arena.finish()
        listed = json.loads(ab_monitor("experiments", "list", "--config", arena.config, "--json").stdout)
        archived = [experiment["name"] for experiment in listed["experiments"] if experiment["archived_ms"]]
        assert archived == ["ranker-v2"]
        process = ab_monitor("rebuild", "--config", arena.config, "--drop-missing")
        assert process.returncode == 0, process.stderr
        assert "were skipped" not in ab_monitor("status", "--config", arena.config).stdout
        arena.store = _live(arena)
        assert arena.compare().equal

    def test_an_idle_worker_stops_after_the_rebuild_of_an_older_schema(self, arena: Arena) -> None:
        """The idle worker checks the active generation every ten seconds."""
        with arena.worker() as worker:
            worker.ready()
            arena.store.client.hset(arena.store.first_shard.keys.meta, "schema", 2)
            refused = ab_monitor("status", "--config", arena.config)
            assert refused.returncode == 5
            assert "schema 2" in refused.stderr
            process = ab_monitor("rebuild", "--config", arena.config)
            assert process.returncode == 0, process.stderr
            worker.ends_with(5)
            assert "switched to generation 1" in worker.said()
        assert ab_monitor("status", "--config", arena.config).returncode == 0

    @pytest.mark.parametrize("topic", ["responses", "feedback"])
    def test_a_loss_of_events_prevents_the_switch(self, arena: Arena, topic: str) -> None:
        """Kafka lacks events of the store: the active generation remains, unless the loss is accepted."""
        with KafkaAdminClient(bootstrap_servers=arena.broker.bootstrap) as admin:
            admin.delete_records({TopicPartition(arena.topics[topic], 0): 100})
        before = dump(arena.store)
        process = ab_monitor("rebuild", "--config", arena.config)
        assert process.returncode == 6
        assert f"{arena.topics[topic]}:0: 100 offsets that the active generation has read are missing" in process.stderr
        assert _live(arena).active_generation == 0
        assert {name: value for name, value in dump(arena.store).items() if name in before} == before
        accepted = ab_monitor("rebuild", "--config", arena.config, "--accept-loss")
        assert accepted.returncode == 0, accepted.stderr
        assert _live(arena).active_generation == 1

    def test_an_unfinished_rebuild_can_be_discarded(self, arena: Arena) -> None:
        """The active generation does not change."""
        with KafkaAdminClient(bootstrap_servers=arena.broker.bootstrap) as admin:
            admin.delete_records({TopicPartition(arena.topics["responses"], 0): 300})
        assert ab_monitor("rebuild", "--config", arena.config).returncode == 6
        assert read_generation_numbers(arena.store) == {0, 1}
        assert ab_monitor("rebuild", "--config", arena.config, "--discard").returncode == 0
        assert read_generation_numbers(arena.store) == {0}

    def test_an_unfinished_rebuild_with_other_experiments_is_deleted(self, arena: Arena) -> None:
        """The unfinished rebuild lacks events of an experiment that was added to the file since."""
        with KafkaAdminClient(bootstrap_servers=arena.broker.bootstrap) as admin:
            admin.delete_records({TopicPartition(arena.topics["responses"], 0): 300})
        assert ab_monitor("rebuild", "--config", arena.config).returncode == 6
        more = arena.directory / "more.toml"
        arms = "{ control = 0.5, treatment = 0.5 }"
        added = f'[[experiments]]\nname = "added"\ncontrol = "control"\nvariants = {arms}\n'
        more.write_text(f"{arena.config.read_text()}\n{added}")
        process = ab_monitor("rebuild", "--config", more, "--accept-loss")
        assert process.returncode == 0, process.stderr
        assert "unfinished rebuild deleted reason=the unfinished rebuild has other experiments: added" in process.stderr


class TestResetCommand:
    """The command `reset`."""

    def test_an_idle_worker_stops_after_a_reset(self, arena: Arena) -> None:
        """The worker has no store to write to."""
        with arena.worker() as worker:
            worker.ready()
            assert ab_monitor("reset", "--config", arena.config, "--yes").returncode == 0
            worker.ends_with(5)
            assert "emptied" in worker.said()

    def test_reset_without_a_terminal_needs_yes(self, arena: Arena) -> None:
        """The error names the data that the command would delete."""
        refused = ab_monitor("reset", "--config", arena.config)
        assert refused.returncode == 2
        assert "responses of ranker-v2" in refused.stderr
        assert dump(arena.store)
        process = ab_monitor("reset", "--config", arena.config, "--yes")
        assert process.returncode == 0, process.stderr
        assert arena.server.client().dbsize() == 0
