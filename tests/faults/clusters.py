"""Faults of a store that is a Redis Cluster of three masters."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from redis.crc import key_slot

from tests.faults.arena import Arena, Result, Worker
from tests.faults.catalogue import Ground, fault
from tests.faults.stores import loses_its_tail
from tests.servers.cluster import RedisCluster


@contextmanager
def _under_way(ground: Ground, *, replicas: int = 0) -> Iterator[tuple[Arena, Worker]]:
    """Yield a run in mid-stream on a cluster."""
    with ground.arena(RedisCluster(replicas=replicas)) as arena, arena.worker() as worker:
        arena.write(per_second=600)
        arena.progresses(1_000)
        yield arena, worker


def _slots(arena: Arena) -> list[int]:
    return [key_slot(shard.keys.prefix) for shard in arena.store]


@fault("Slots move", "three shards, two workers write")
def moving_slots(ground: Ground) -> Result:
    with _under_way(ground) as (arena, worker), arena.worker():
        slots = _slots(arena)
        arena.result.times = len(slots)
        for slot in slots:
            source = arena.cluster.master_of(slot)
            others = [server for server in arena.cluster.servers if server is not source]
            arena.cluster.move(slot, others[slot % len(others)], pause_s=0.1)
            moved = time.monotonic()
            arena.resumes(moved)
        worker.ready()
        arena.finish()
        return arena.compare()


@fault("Master killed, its replica takes over", "`kill -9`")
def failing_over(ground: Ground) -> Result:
    with _under_way(ground, replicas=1) as (arena, worker):
        slots = _slots(arena)
        arena.result.times = 2
        for slot in slots[: arena.result.times]:
            killed = time.monotonic()
            arena.cluster.master_of(slot).process.kill()
            arena.resumes(killed)
        worker.ready()
        arena.finish()
        return arena.compare()


@fault("Masters killed and restarted", "`kill -9`", fast=False)
def restarting(ground: Ground) -> Result:
    with _under_way(ground) as (arena, worker):
        arena.result.times = len(arena.cluster.servers)
        for server in arena.cluster.servers:
            server.process.kill()
            worker.unready("store at")
            server.start()
            back = time.monotonic()
            arena.resumes(back)
        worker.ready()
        arena.finish()
        return arena.compare()


@fault("Masters lose their last writes", "`kill -9`, file cut at a random byte")
def losing_tails(ground: Ground) -> Result:
    chance = random.Random(29)
    with _under_way(ground) as (arena, worker):
        arena.result.times = len(arena.cluster.servers)
        for server in arena.cluster.servers:
            loses_its_tail(server, chance)
            back = time.monotonic()
            arena.resumes(back)
            worker.ready()
        arena.finish()
        return arena.compare()


@fault("Worker killed between commits of shards", "`kill -9`", fast=False)
def killed(ground: Ground) -> Result:
    with ground.arena(RedisCluster()) as arena:
        arena.write(per_second=600)
        arena.result.times = 4
        for _ in range(arena.result.times):
            with arena.worker() as worker:
                arena.progresses(600)
                worker.process.kill()
                worker.process.wait()
                died = time.monotonic()
        with arena.worker():
            arena.resumes(died)
            arena.finish()
        return arena.compare()


@fault("Workers join, freeze and leave", "three workers, three shards", fast=False)
def many_workers(ground: Ground) -> Result:
    with ground.arena(RedisCluster()) as arena, ExitStack() as stack:
        arena.write(per_second=500)
        workers = [stack.enter_context(arena.worker()) for _ in range(3)]
        for worker in workers:
            worker.ready()
        arena.progresses(800)
        workers[0].signal(signal.SIGSTOP)
        try:
            workers[1].signal(signal.SIGTERM)
            workers[1].ends_with(0)
            workers[2].says("assigned count=8")
            arena.progresses(800)
        finally:
            workers[0].signal(signal.SIGCONT)
        thawed = time.monotonic()
        arena.resumes(thawed)
        arena.finish()
        return arena.compare()
