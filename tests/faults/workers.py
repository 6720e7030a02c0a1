"""Faults of the workers themselves."""

from __future__ import annotations

import signal
import time
from contextlib import ExitStack

from kafka import KafkaAdminClient

from tests.faults.arena import Result
from tests.faults.catalogue import Ground, fault
from tests.support.command import eventually


@fault("workers", "Worker killed", "`kill -9` at a random moment, started again", fast=False)
def killed(ground: Ground) -> Result:
    with ground.arena() as arena:
        arena.write(per_second=600)
        arena.result.times = 3
        for _ in range(arena.result.times):
            with arena.worker() as worker:
                arena.progresses(800)
                worker.process.kill()
                worker.process.wait()
                died = time.monotonic()
        with arena.worker():
            arena.resumes(died)
            arena.finish()
        return arena.compare()


@fault("workers", "Workers join and leave", "three workers, one of them stopped, a fourth joining, all in mid-stream")
def joining_and_leaving(ground: Ground) -> Result:
    with ground.arena() as arena, ExitStack() as stack:
        arena.write(per_second=600)
        workers = [stack.enter_context(arena.worker()) for _ in range(3)]
        for worker in workers:
            worker.ready()
        arena.progresses(1_000)
        workers[0].signal(signal.SIGTERM)
        workers[0].ends_with(0)
        left = time.monotonic()
        arena.resumes(left)
        stack.enter_context(arena.worker())
        arena.finish()
        return arena.compare()


@fault("workers", "Rolling restart", "two static members (`group_instance_id`), each stopped and started in turn")
def rolling_restart(ground: Ground) -> Result:
    with ground.arena() as arena, ExitStack() as stack:
        configs = [
            arena.write_config(arena.directory / f"{n}.toml", kafka=f'group_instance_id = "worker-{n}"')
            for n in range(2)
        ]
        arena.write(per_second=600)
        workers = [stack.enter_context(arena.worker(config)) for config in configs]
        for worker in workers:
            worker.ready()
        arena.progresses(1_000)
        arena.result.times = 2
        for number, config in enumerate(configs):
            workers[number].signal(signal.SIGTERM)
            workers[number].ends_with(0)
            stopped = time.monotonic()
            workers[number] = stack.enter_context(arena.worker(config))
            workers[number].ready()
            arena.resumes(stopped)
        arena.finish()
        return arena.compare()


@fault(
    "workers",
    "Worker frozen past its session and resumed",
    "SIGSTOP in mid-stream, SIGCONT after its session has timed out and another worker has taken over",
)
def frozen(ground: Ground) -> Result:
    with ground.arena() as arena, arena.worker() as first, arena.worker() as second:
        second.ready()
        arena.write(per_second=600)
        arena.progresses(1_000)
        first.signal(signal.SIGSTOP)
        try:
            second.says("assigned count=8")
            arena.progresses(1_000)
        finally:
            first.signal(signal.SIGCONT)
        resumed = time.monotonic()
        arena.resumes(resumed)
        arena.finish()
        return arena.compare()


@fault("workers", "Partitions added while running", "two partitions become five in both topics")
def partitions_added(ground: Ground) -> Result:
    with ground.arena(partitions=2) as arena, arena.worker() as worker:
        half = len(arena.events) // 2
        arena.write(arena.events[:half])
        arena.written()
        eventually("the first half is applied", lambda: arena.applied() >= half)
        with KafkaAdminClient(bootstrap_servers=arena.broker.bootstrap) as admin:
            admin.create_partitions({arena.topics["responses"]: 5, arena.topics["feedback"]: 5})
        added = time.monotonic()
        arena._partitions = 5
        eventually("the producer sees them", lambda: len(arena.ends()) == 10)
        arena.write(arena.events[half:], per_second=300)
        worker.says("assigned count=10", within_s=90)
        arena.resumes(added)
        arena.finish()
        return arena.compare()


@fault(
    "workers",
    "The whole stream sent again",
    "every event is written twice, the second time in another order and to another partition",
    fast=False,
)
def everything_twice(ground: Ground) -> Result:
    with ground.arena() as arena, arena.worker(), arena.worker():
        arena.write(per_second=10_000)
        arena.written()
        arena.write(sorted(arena.events, key=lambda event: hash(event.payload)), per_second=10_000)
        arena.finish()
        return arena.compare()
