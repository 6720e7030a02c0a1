"""Rebuild and reset: definitions change without downtime, and nothing goes without being asked for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka import KafkaAdminClient, TopicPartition

from monitor.config import StoreSettings
from monitor.state import RedisStore, Shards
from monitor.state.generations import generation_numbers, live_store
from tests.faults.arena import Arena, Expectations
from tests.faults.catalogue import Ground
from tests.servers.kafka import KafkaBroker
from tests.servers.redis import RedisServer, redis_binary
from tests.support.command import HASHED, ab_monitor
from tests.support.dump import dump


@pytest.fixture
def arena(tmp_path: Path, kafka: KafkaBroker, monkeypatch: pytest.MonkeyPatch) -> Iterator[Arena]:
    """Yield a place with half of its stream applied; all commands have its key of hashes."""
    for name, value in HASHED.items():
        monkeypatch.setenv(name, value)
    with RedisServer(redis_binary()) as calm:
        ground = Ground(tmp_path, kafka, Expectations(tmp_path, calm))
        with ground.arena() as made:
            with made.worker():
                made.write(made.events[: made.half], per_second=20_000)
                made.finish()
            yield made


def _live(arena: Arena) -> Shards:
    return live_store(StoreSettings(url=arena.server.url))


_OTHER = """
gain = "exp2"
categories = ["fractions", "geometry"]
novelty = true
guardrails = [{ metric = "latency_ms", bad = "up", margin = 100 }]
"""


class TestRebuild:
    """A new generation beside the live one."""

    def test_definitions_change_while_the_service_runs(self, arena: Arena) -> None:
        """The old workers serve until the switch, then stop; the new numbers are those of a fresh start."""
        new = arena.directory / "new.toml"
        new.write_text(arena.config.read_text() + _OTHER)
        with arena.worker() as worker:
            worker.ready()
            arena.write(arena.events[arena.half :], per_second=2_000)
            done = ab_monitor("rebuild", "--config", new)
            assert done.returncode == 0, done.stderr
            assert "switched to generation 1" in done.stdout
            worker.ends_with(5)
            assert "switched to generation 1" in worker.said()
        assert ab_monitor("status", "--config", arena.config).returncode == 5
        arena.written()
        store = _live(arena)
        arena.store = store
        with arena.worker(new):
            arena.finish()
        assert generation_numbers(store) == {1}
        anew = RedisServer(redis_binary())
        with anew:
            fresh = arena.write_config(arena.directory / "fresh.toml", store_url=anew.url)
            fresh.write_text(fresh.read_text() + _OTHER)
            lines = arena.directory / "all.jsonl"
            lines.write_bytes(b"\n".join(event.payload for event in arena.events))
            assert ab_monitor("replay", "--config", fresh, lines).returncode == 0
            expected = dump(RedisStore(StoreSettings(url=anew.url)))
        assert dump(store) == expected

    def test_what_was_skipped_is_said_and_counted_by_a_rebuild(self, arena: Arena) -> None:
        """An experiment that was taken out of the configuration for a while, and put back."""
        old = arena.directory / "old.toml"
        old.write_text(arena.config.read_text().replace('name = "ranker-v2"', 'name = "another"'))
        with arena.worker(old) as worker:
            arena.write(arena.events[arena.half :], per_second=20_000)
            arena.finish()
            assert worker.said().count("events are skipped for good experiment=ranker-v2") == 1
        skipped = re.compile(
            r"\d+ responses and \d+ reactions were skipped, dated 20.*`ab-monitor rebuild` counts them"
        )
        for command in (["status"], ["verdict", "ranker-v2"]):
            said = ab_monitor(*command, "--config", arena.config).stdout
            assert skipped.search(" ".join(said.split()))
        assert "skipped_events" in ab_monitor("verdict", "ranker-v2", "--config", arena.config, "--json").stdout
        done = ab_monitor("rebuild", "--config", arena.config)
        assert done.returncode == 0, done.stderr
        assert "were skipped" not in ab_monitor("status", "--config", arena.config).stdout
        arena.store = _live(arena)
        assert arena.compare().equal

    def test_an_older_schema_is_rebuilt_and_an_idle_worker_of_the_old_one_stops(self, arena: Arena) -> None:
        """Without any event to write, by looking every ten seconds."""
        with arena.worker() as worker:
            worker.ready()
            arena.store.client.hset(arena.store.first.keys.meta, "schema", 2)
            refused = ab_monitor("status", "--config", arena.config)
            assert refused.returncode == 5
            assert "schema 2" in refused.stderr
            done = ab_monitor("rebuild", "--config", arena.config)
            assert done.returncode == 0, done.stderr
            worker.ends_with(5)
            assert "switched to generation 1" in worker.said()
        assert ab_monitor("status", "--config", arena.config).returncode == 0

    @pytest.mark.parametrize("topic", ["responses", "feedback"])
    def test_lost_history_is_not_switched_to(self, arena: Arena, topic: str) -> None:
        """Kafka holds less than the store: the live generation stays unless that is accepted."""
        with KafkaAdminClient(bootstrap_servers=arena.broker.bootstrap) as admin:
            admin.delete_records({TopicPartition(arena.topics[topic], 0): 100})
        before = dump(arena.store)
        done = ab_monitor("rebuild", "--config", arena.config)
        assert done.returncode == 6
        assert f"{arena.topics[topic]}:0: 100 offsets that the live generation has read are not there" in done.stderr
        assert _live(arena).live == 0
        assert {name: found for name, found in dump(arena.store).items() if name in before} == before
        accepted = ab_monitor("rebuild", "--config", arena.config, "--accept-loss")
        assert accepted.returncode == 0, accepted.stderr
        assert _live(arena).live == 1

    def test_what_is_left_of_a_rebuild_can_be_discarded(self, arena: Arena) -> None:
        """The live generation is not touched."""
        with KafkaAdminClient(bootstrap_servers=arena.broker.bootstrap) as admin:
            admin.delete_records({TopicPartition(arena.topics["responses"], 0): 300})
        assert ab_monitor("rebuild", "--config", arena.config).returncode == 6
        assert generation_numbers(arena.store) == {0, 1}
        assert ab_monitor("rebuild", "--config", arena.config, "--discard").returncode == 0
        assert generation_numbers(arena.store) == {0}

    def test_what_is_left_of_one_with_other_experiments_is_no_beginning(self, arena: Arena) -> None:
        """What it has read already would be missing of an experiment that the file has by now."""
        with KafkaAdminClient(bootstrap_servers=arena.broker.bootstrap) as admin:
            admin.delete_records({TopicPartition(arena.topics["responses"], 0): 300})
        assert ab_monitor("rebuild", "--config", arena.config).returncode == 6
        more = arena.directory / "more.toml"
        arms = "{ control = 0.5, treatment = 0.5 }"
        added = f'[[experiments]]\nname = "added"\ncontrol = "control"\nvariants = {arms}\n'
        more.write_text(f"{arena.config.read_text()}\n{added}")
        done = ab_monitor("rebuild", "--config", more, "--accept-loss")
        assert done.returncode == 0, done.stderr
        assert "an earlier rebuild is deleted reason=it was begun with other experiments: added" in done.stderr


class TestReset:
    """Everything goes, after asking."""

    def test_an_idle_worker_stops(self, arena: Arena) -> None:
        """It would serve nothing and write to nothing."""
        with arena.worker() as worker:
            worker.ready()
            assert ab_monitor("reset", "--config", arena.config, "--yes").returncode == 0
            worker.ends_with(5)
            assert "emptied" in worker.said()

    def test_without_a_terminal_it_needs_yes(self, arena: Arena) -> None:
        """Nothing is deleted by accident; what would be is named."""
        refused = ab_monitor("reset", "--config", arena.config)
        assert refused.returncode == 2
        assert "responses of ranker-v2" in refused.stderr
        assert dump(arena.store)
        done = ab_monitor("reset", "--config", arena.config, "--yes")
        assert done.returncode == 0, done.stderr
        assert arena.server.client().dbsize() == 0
