"""Faults of the store."""

from __future__ import annotations

import os
import random
import resource
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.faults.arena import Arena, Result, Worker
from tests.faults.catalogue import Ground, fault
from tests.servers.proxy import Proxy
from tests.servers.redis import RedisServer
from tests.support.command import eventually


@contextmanager
def _under_way(ground: Ground, store: RedisServer | None = None) -> Iterator[tuple[Arena, Proxy, Worker]]:
    """Yield a run in mid-stream whose store is behind a proxy."""
    server = store or ground.server()
    with Proxy(server.port) as proxy, ground.arena(server, store_url=proxy.url) as arena, arena.worker() as worker:
        arena.write(per_second=600)
        arena.progresses(1_000)
        yield arena, proxy, worker


@fault("Store killed and restarted", "`kill -9`")
def killed(ground: Ground) -> Result:
    with _under_way(ground) as (arena, _, worker):
        arena.result.times = 2
        for _ in range(arena.result.times):
            arena.server.process.kill()
            worker.unready("store at")
            arena.server.start()
            back = time.monotonic()
            arena.resumes(back)
            worker.ready()
        arena.finish()
        return arena.compare()


def _unreachable(ground: Ground, for_s: float) -> Result:
    with _under_way(ground) as (arena, proxy, worker):
        proxy.cut()
        worker.unready("store at")
        time.sleep(for_s)
        assert "partitions revoked" not in worker.said().split("assigned count=8")[1], "the group membership is kept"
        proxy.mend()
        back = time.monotonic()
        arena.resumes(back)
        worker.ready()
        arena.finish()
        return arena.compare()


@fault("Store unreachable for 15 seconds", "connections rejected, longer than a Kafka session")
def unreachable(ground: Ground) -> Result:
    return _unreachable(ground, 15)


@fault("Store unreachable for 2 minutes", "connections rejected", fast=False)
def unreachable_long(ground: Ground) -> Result:
    return _unreachable(ground, 120)


@fault("Store silent", "packets dropped for 25 s, connections open", fast=False)
def silent(ground: Ground) -> Result:
    with _under_way(ground) as (arena, proxy, worker):
        proxy.silent = True
        worker.unready("store at")
        time.sleep(12)
        proxy.mend()
        back = time.monotonic()
        arena.resumes(back)
        arena.finish()
        return arena.compare()


@fault("Store slow", "replies 0.5 s late")
def slow(ground: Ground) -> Result:
    with _under_way(ground) as (arena, proxy, _):
        proxy.delay_s = 0.5
        began = time.monotonic()
        arena.resumes(began)
        time.sleep(5)
        proxy.delay_s = 0.0
        arena.finish()
        return arena.compare()


@fault("Replies lost after the script ran", "connection closed")
def lost_replies(ground: Ground) -> Result:
    with _under_way(ground) as (arena, proxy, worker):
        proxy.lose_replies_to = b"EVALSHA"
        eventually("ten replies are lost", lambda: proxy.lost >= 10)
        proxy.lose_replies_to = None
        back = time.monotonic()
        arena.result.times = proxy.lost
        arena.resumes(back)
        worker.ready()
        arena.finish()
        return arena.compare()


@fault("Store out of memory", "`maxmemory` below the used memory")
def out_of_memory(ground: Ground) -> Result:
    with _under_way(ground) as (arena, _, worker):
        client = arena.server.client()
        client.config_set("maxmemory", "1mb")
        worker.unready("maxmemory")
        client.config_set("maxmemory", "0")
        back = time.monotonic()
        arena.resumes(back)
        worker.ready()
        arena.finish()
        return arena.compare()


@fault("Disk of the store full", "writes to the append-only file fail")
def disk_full(ground: Ground) -> Result:
    server = ground.server()
    server.process.wrapped_in("env", "--ignore-signal=XFSZ")
    with _under_way(ground, server) as (arena, _, worker):
        _, hard = resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (1_000, hard))
        worker.unready("AOF")
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (hard, hard))
        back = time.monotonic()
        arena.resumes(back)
        worker.ready()
        arena.finish()
        return arena.compare()


@fault("Append-only file truncated", "`kill -9`, file cut at a random byte")
def cut_file(ground: Ground) -> Result:
    chance = random.Random(17)
    with _under_way(ground) as (arena, _, worker):
        arena.result.times = 4
        for _ in range(arena.result.times):
            arena.progresses(300)
            loses_its_tail(arena.server, chance)
            back = time.monotonic()
            arena.resumes(back)
            worker.ready()
        arena.finish()
        return arena.compare()


def loses_its_tail(server: RedisServer, chance: random.Random) -> None:
    """Kill a server and start it again on a part of its append-only file."""
    server.process.kill()
    files = Path(server.directory, "appendonlydir").glob("*.incr.aof")
    file = max(files, key=lambda each: each.stat().st_mtime)
    os.truncate(file, chance.randrange(file.stat().st_size // 2, file.stat().st_size))
    server.start()


@fault("Last writes lost while idle", "the same, without new events")
def quiet(ground: Ground) -> Result:
    with ground.arena() as arena, arena.worker() as worker:
        arena.write()
        arena.finish()
        loses_its_tail(arena.server, random.Random(23))
        worker.says("store has lost commits")
        arena.finish()
        return arena.compare()


@fault("Stale replica promoted", "replica is 2 s behind the killed master")
def stale_replica(ground: Ground) -> Result:
    with ground.server() as replica, _under_way(ground) as (arena, proxy, worker):
        copy = replica.client()
        copy.replicaof("127.0.0.1", arena.server.port)
        eventually("the replica is in step", lambda: copy.info("replication")["master_link_status"] == "up")
        arena.progresses(500)
        copy.replicaof("NO", "ONE")
        arena.progresses(1_000)
        arena.server.process.kill()
        proxy.target = replica.port
        proxy.mend()
        promoted = time.monotonic()
        arena.turn_to(replica)
        arena.resumes(promoted)
        worker.ready()
        arena.finish()
        return arena.compare()


@fault("Read-only replica by mistake", "address leads to a replica")
def read_only_replica(ground: Ground) -> Result:
    with ground.server() as replica, _under_way(ground) as (arena, proxy, worker):
        copy = replica.client()
        copy.replicaof("127.0.0.1", arena.server.port)
        eventually("the replica is in step", lambda: copy.info("replication")["master_link_status"] == "up")
        proxy.target = replica.port
        proxy.mend()
        worker.unready("read only replica")
        proxy.target = arena.server.port
        proxy.mend()
        back = time.monotonic()
        arena.resumes(back)
        worker.ready()
        arena.finish()
        return arena.compare()


@fault("Store frozen", "SIGSTOP for 15 s")
def frozen(ground: Ground) -> Result:
    with _under_way(ground) as (arena, _, worker):
        os.kill(arena.server.process.pid, signal.SIGSTOP)
        try:
            worker.unready("store at")
            time.sleep(4)
        finally:
            os.kill(arena.server.process.pid, signal.SIGCONT)
        back = time.monotonic()
        arena.resumes(back)
        arena.finish()
        return arena.compare()


@fault("Scripts and connections dropped", "`SCRIPT FLUSH`, `CLIENT KILL`")
def scripts_and_connections_gone(ground: Ground) -> Result:
    with _under_way(ground) as (arena, _, _worker):
        client = arena.server.client()
        arena.result.times = 10
        for _ in range(arena.result.times):
            client.script_flush()
            client.client_kill_filter(_type="normal", skipme=True)
            back = time.monotonic()
            time.sleep(0.1)
        arena.resumes(back)
        arena.finish()
        return arena.compare()


@fault("Store emptied", "`FLUSHALL`: exit code 5, started again")
def emptied(ground: Ground) -> Result:
    with ground.arena() as arena:
        with arena.worker() as worker:
            arena.write(per_second=600)
            arena.progresses(1_000)
            arena.server.client().flushall()
            worker.ends_with(5)
            ended = time.monotonic()
        with arena.worker():
            arena.resumes(ended)
            arena.finish()
        return arena.compare()
