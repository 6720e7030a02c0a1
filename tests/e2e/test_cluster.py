"""A Redis Cluster as the store: every command, and the errors of wrong settings."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from redis.crc import key_slot

from monitor.config import StoreSettings
from monitor.simulation.simulator import Scenario, generate_events
from monitor.state import Commit, Position, PositionUpdate, read_server_warnings
from monitor.state.generations import connect_active_generation
from monitor.state.keys import ACTIVE_GENERATION_KEY
from tests.faults.arena import Expectations
from tests.faults.catalogue import Ground
from tests.servers.cluster import RedisCluster
from tests.servers.kafka import KafkaBroker
from tests.servers.redis import RedisServer, redis_binary
from tests.support.command import HASHED, ab_monitor
from tests.support.dump import dump
from tests.support.store_bench import StoreBench

_EVENTS = list(generate_events(Scenario(responses=2_000, students=150, days=2, seed=3)))
_CONFIG = """
[kafka]
bootstrap_servers = "127.0.0.1:1"
[store]
url = "{url}"
{more}
[[experiments]]
name = "{experiment}"
control = "control"
variants = {{ control = 0.5, treatment = 0.5 }}
"""
_PASSWORD = "only-for-tests"
_DOCUMENT = (Path(__file__).parents[2] / "docs/security.md").read_text()


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisCluster]:
    """Yield three masters."""
    with RedisCluster() as redis_cluster:
        yield redis_cluster


def _config(directory: Path, url: str, more: str = "") -> Path:
    config = directory / "config.toml"
    config.write_text(_CONFIG.format(url=url, more=more, experiment=Scenario().experiment))
    return config


def _events(directory: Path) -> Path:
    lines = directory / "events.jsonl"
    lines.write_bytes(b"\n".join(event.payload for event in _EVENTS) + b"\n")
    return lines


def test_every_command_works_with_the_documented_rights(
    cluster: RedisCluster, redis_server: RedisServer, tmp_path: Path
) -> None:
    """The results on a cluster equal those on a single server, with the documented rights."""
    grants = re.findall(r"^(ACL SETUSER .*)$", _DOCUMENT, re.MULTILINE)
    more = re.search(r"On a Redis Cluster both need `(.*?)`", _DOCUMENT)
    assert more is not None
    for server in cluster.servers:
        with server.client() as client:
            for grant in grants:
                client.execute_command(*f"{grant} {more[1]}".replace("PASSWORD", _PASSWORD).split())
    environ = {"ABMONITOR_STORE_USERNAME": "ab-monitor", "ABMONITOR_STORE_PASSWORD": _PASSWORD, **HASHED}
    config, lines = _config(tmp_path, cluster.url), _events(tmp_path)
    replayed = ab_monitor("replay", "--config", config, lines, environ=environ)
    assert replayed.returncode == 0, replayed.stderr
    status = ab_monitor("status", "--config", config, "--json", environ=environ)
    checked = ab_monitor("check", "--config", config, environ=environ)
    assert "same definitions as the configuration, 3 shards" in checked.stdout
    redis_server.client().flushall()
    plain = tmp_path / "plain"
    plain.mkdir()
    alone = _config(plain, redis_server.url)
    assert ab_monitor("replay", "--config", alone, lines, environ=HASHED).returncode == 0
    read_alone = ab_monitor("status", "--config", alone, "--json", environ=HASHED)
    assert json.loads(status.stdout) == json.loads(read_alone.stdout)
    store, one = (
        connect_active_generation(StoreSettings(url=cluster.url)),
        connect_active_generation(StoreSettings(url=redis_server.url)),
    )
    assert len(store) == 3
    assert read_server_warnings(store) == []
    assert dump(store) == dump(one)
    assert ab_monitor("audit", "--config", config, environ=environ).returncode == 0
    assert ab_monitor("reset", "--config", config, "--yes", environ=environ).returncode == 0
    assert sum(len(list(server.client().scan_iter())) for server in cluster.servers) == 0


def test_connection_errors_are_reported_in_one_line(
    cluster: RedisCluster, redis_server: RedisServer, tmp_path: Path
) -> None:
    """A cluster configured as a server, a server configured as a cluster, a wrong password, no server."""
    elsewhere = next(
        server for server in cluster.servers if server is not cluster.master_of(key_slot(ACTIVE_GENERATION_KEY))
    )
    node = f"127.0.0.1:{elsewhere.port}"
    password = {"ABMONITOR_STORE_USERNAME": "nobody", "ABMONITOR_STORE_PASSWORD": "wrong"}
    for url, environ, code, message in (
        (f"redis://{node}/0", {}, 2, r"is a node of a cluster: set redis\+cluster://"),
        (redis_server.url.replace("redis://", "redis+cluster://"), {}, 2, "is not a cluster"),
        (cluster.url, password, 2, "rejects the user nobody"),
        ("redis+cluster://127.0.0.1:1", {}, 3, "Connection refused"),
        ("redis+cluster://127.0.0.1:7000/3", {}, 2, "database 0 or none"),
    ):
        process = ab_monitor("status", "--config", _config(tmp_path, url), environ=environ)
        assert process.returncode == code, process.stderr
        assert re.search(message, process.stderr), process.stderr
        assert len(process.stderr.splitlines()) == 1


def test_unevenly_distributed_shards_cause_a_warning(cluster: RedisCluster) -> None:
    """Idle masters are not an error, but a part of the cluster carries the whole load."""
    store = connect_active_generation(StoreSettings(url=cluster.url, shards=2))
    slots = [store.client.keyslot(shard.keys.meta) for shard in store]
    assert read_server_warnings(store) == []
    home = cluster.master_of(slots[1])
    cluster.move(slots[1], cluster.master_of(slots[0]))
    assert any(
        "2 shards of the store are on 1 of 3 masters" in warning
        for warning in read_server_warnings(connect_active_generation(store.settings))
    )
    cluster.move(slots[1], home)


def test_a_worker_finds_moved_shards(cluster: RedisCluster) -> None:
    """The worker is not informed of the move: reads and commits succeed at the first attempt."""
    bench = StoreBench(cluster, shard_count=3)
    with closing(bench.store):
        shard = bench.store[1]
        shard.read_state()
        slot = bench.first_shard.client.keyslot(shard.keys.meta)
        home = cluster.master_of(slot)
        away = next(server for server in cluster.servers if server is not home)
        name, row = shard.keys.response_row(b"one"), (1).to_bytes(4)
        commit = Commit()
        commit.add_row(name, row, is_new=True)
        assert shard.commit(commit) == "applied"
        cluster.move(slot, away)
        assert shard.read_rows([name, shard.keys.response_row(b"none"), name]) == [row, None, row]
        cluster.move(slot, home)
        assert shard.commit(Commit(position_updates=[PositionUpdate("t:9", None, Position(3))])) == "applied"
        assert shard.read_positions()["t:9"].next_offset == 3


def test_a_rebuild_may_change_the_number_of_shards(kafka: KafkaBroker, tmp_path: Path) -> None:
    """From a single shard to several shards, and on."""
    with RedisServer(redis_binary()) as calm:
        ground = Ground(tmp_path, kafka, Expectations(tmp_path, calm))
        with ground.arena(RedisCluster()) as arena:
            arena.write(per_second=20_000)
            with arena.worker():
                arena.finish()
            text = arena.config.read_text()
            arena.config.write_text(text.replace("[store]", "[store]\nshards = 5"))
            refused = ab_monitor("status", "--config", arena.config, environ=HASHED)
            assert refused.returncode == 5
            assert "store.shards: got 5, but the store has 3. Set store.shards to 3, or run" in refused.stderr
            rebuilt = ab_monitor("rebuild", "--config", arena.config, environ=HASHED)
            assert rebuilt.returncode == 0, rebuilt.stderr
            arena.store = connect_active_generation(StoreSettings(url=arena.cluster.url))
            assert (len(arena.store), arena.store.generation) == (5, 1)
            result = arena.compare()
            assert result.equal, result
            assert {name.split(b":")[2] for name in arena.store.client.scan_iter("abm:*:*:*")} == {b"1"}
