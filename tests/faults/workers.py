"""Faults of the workers themselves."""

from __future__ import annotations

import signal
import time
from contextlib import ExitStack

from kafka import KafkaAdminClient

from tests.faults.arena import Result
from tests.faults.catalogue import Ground, fault
from tests.support.command import eventually


@fault("Worker killed", "`kill -9`", fast=False)
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


@fault("Workers join and leave", "three, one leaves, one joins")
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


@fault("Rolling restart", "two static members")
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


@fault("Worker frozen past its session", "SIGSTOP, takeover, SIGCONT")
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


@fault("Partitions added while running", "from two to five per topic")
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


@fault("All events sent twice", "other order, other partitions", fast=False)
def everything_twice(ground: Ground) -> Result:
    with ground.arena() as arena, arena.worker(), arena.worker():
        arena.write(per_second=10_000)
        arena.written()
        arena.write(sorted(arena.events, key=lambda event: hash(event.payload)), per_second=10_000)
        arena.finish()
        return arena.compare()
