"""A Redis Cluster as the store, as a user has it: every command, and what is said when something is wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from redis.crc import key_slot

from monitor.config import StoreSettings
from monitor.simulation.simulator import Scenario, generate
from monitor.state import Advance, Commit, Position, warnings
from monitor.state.generations import live_store
from monitor.state.keys import LIVE
from tests.faults.arena import Expectations
from tests.faults.catalogue import Ground
from tests.integration.pipeline.test_exactness import Bench
from tests.servers.cluster import RedisCluster
from tests.servers.kafka import KafkaBroker
from tests.servers.redis import RedisServer, redis_binary
from tests.support.command import HASHED, ab_monitor
from tests.support.dump import dump

_EVENTS = list(generate(Scenario(responses=2_000, students=150, days=2, seed=3)))
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
    with RedisCluster() as made:
        yield made


def _config(directory: Path, url: str, more: str = "") -> Path:
    config = directory / "config.toml"
    config.write_text(_CONFIG.format(url=url, more=more, experiment=Scenario().experiment))
    return config


def _events(directory: Path) -> Path:
    lines = directory / "events.jsonl"
    lines.write_bytes(b"\n".join(event.payload for event in _EVENTS) + b"\n")
    return lines


def test_every_command_with_the_least_rights(cluster: RedisCluster, redis_server: RedisServer, tmp_path: Path) -> None:
    """What is replayed into a cluster reads as on one server, under the documented rights."""
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
    assert "definitions agree, 3 shards" in checked.stdout
    redis_server.client().flushall()
    plain = tmp_path / "plain"
    plain.mkdir()
    alone = _config(plain, redis_server.url)
    assert ab_monitor("replay", "--config", alone, lines, environ=HASHED).returncode == 0
    read_alone = ab_monitor("status", "--config", alone, "--json", environ=HASHED)
    assert json.loads(status.stdout) == json.loads(read_alone.stdout)
    store, one = live_store(StoreSettings(url=cluster.url)), live_store(StoreSettings(url=redis_server.url))
    assert len(store) == 3
    assert warnings(store) == []
    assert dump(store) == dump(one)
    assert ab_monitor("audit", "--config", config, environ=environ).returncode == 0
    assert ab_monitor("reset", "--config", config, "--yes", environ=environ).returncode == 0
    assert sum(len(list(server.client().scan_iter())) for server in cluster.servers) == 0


def test_what_is_wrong_is_said_in_a_line(cluster: RedisCluster, redis_server: RedisServer, tmp_path: Path) -> None:
    """A cluster named as a server, a server named as a cluster, a wrong password, nobody there."""
    elsewhere = next(server for server in cluster.servers if server is not cluster.master_of(key_slot(LIVE)))
    node = f"127.0.0.1:{elsewhere.port}"
    password = {"ABMONITOR_STORE_USERNAME": "nobody", "ABMONITOR_STORE_PASSWORD": "wrong"}
    for url, environ, code, said in (
        (f"redis://{node}/0", {}, 2, r"is a node of a cluster: say redis\+cluster://"),
        (redis_server.url.replace("redis://", "redis+cluster://"), {}, 2, "is not a cluster"),
        (cluster.url, password, 2, "refuses this user"),
        ("redis+cluster://127.0.0.1:1", {}, 3, "Connection refused"),
        ("redis+cluster://127.0.0.1:7000/3", {}, 2, "no database but 0"),
    ):
        found = ab_monitor("status", "--config", _config(tmp_path, url), environ=environ)
        assert found.returncode == code, found.stderr
        assert re.search(said, found.stderr), found.stderr
        assert len(found.stderr.splitlines()) == 1


def test_masters_that_hold_several_shards_while_others_are_idle_are_named(cluster: RedisCluster) -> None:
    """Nothing is wrong then, but one store is soon too small again."""
    store = live_store(StoreSettings(url=cluster.url, shards=2))
    slots = [store.client.keyslot(shard.keys.meta) for shard in store]
    assert warnings(store) == []
    home = cluster.master_of(slots[1])
    cluster.move(slots[1], cluster.master_of(slots[0]))
    assert any("2 shards lie on 1 of 3 masters" in each for each in warnings(live_store(store.settings)))
    cluster.move(slots[1], home)


def test_shards_are_found_where_they_are_now(cluster: RedisCluster) -> None:
    """By a worker that has been told nothing of it: rows are read and commits applied, each at the first try."""
    bench = Bench(cluster, shards=3)
    with closing(bench.shards):
        shard = bench.shards[1]
        shard.state()
        slot = bench.store.client.keyslot(shard.keys.meta)
        home = cluster.master_of(slot)
        away = next(server for server in cluster.servers if server is not home)
        name, row = shard.keys.row(b"one"), (1).to_bytes(4)
        commit = Commit()
        commit.add_row(name, row, is_new=True)
        assert shard.commit(commit) == "applied"
        cluster.move(slot, away)
        assert shard.rows([name, shard.keys.row(b"none"), name]) == [row, None, row]
        cluster.move(slot, home)
        assert shard.commit(Commit(advances=[Advance("t:9", None, Position(3))])) == "applied"
        assert shard.positions()["t:9"].next_offset == 3


def test_a_rebuild_changes_the_number_of_shards(kafka: KafkaBroker, tmp_path: Path) -> None:
    """From what one server can hold to what three can, and on."""
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
            assert "store.shards: got 5, but the store has 3. `ab-monitor rebuild`" in refused.stderr
            rebuilt = ab_monitor("rebuild", "--config", arena.config, environ=HASHED)
            assert rebuilt.returncode == 0, rebuilt.stderr
            arena.store = live_store(StoreSettings(url=arena.cluster.url))
            assert (len(arena.store), arena.store.generation) == (5, 1)
            result = arena.compare()
            assert result.equal, result
            assert {name.split(b":")[2] for name in arena.store.client.scan_iter("abm:*:*:*")} == {b"1"}
