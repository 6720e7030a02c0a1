"""Instructions that an event costs, by function: the same number however fast the machine is just now.

Usage: python -m tests.bench.instructions [--workers N] [--shards N] [--batch N] [--after N] [--most N]

Wants valgrind. The simulator's W1 in order of arrival, in batches (of 2 000 events) decoded and applied to a real
server, without Kafka; several workers take turns, each with the students of one partition. The first batches (100) go
by unseen, then 12 000 events and the rest of a batch are counted by callgrind, in the workers' process and in the
server's. It does not count how long the processor waits for memory: what costs fewer instructions still has to be
measured by the clock.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Final
from zlib import crc32

from monitor.clock import wall_clock
from monitor.config import StoreSettings
from monitor.engine.id_hash import IdHasher
from monitor.events import Decoder
from monitor.ingest.decoding import decode
from monitor.ingest.experiment import PENDING_CLASS, Experiment
from monitor.ingest.intake import Intake
from monitor.ingest.records import Records
from monitor.ingest.simulator import Scenario, generate, w1
from monitor.ingest.source import Kind, Slice
from monitor.service import opened, writer_for
from monitor.store import Advance, Position, sum_up
from tests.bench.settings import settings_of
from tests.servers.redis import RedisServer, redis_binary

_COUNTED: Final = 12_000
_CALLGRIND: Final = ("valgrind", "-q", "--tool=callgrind", "--instr-atstart=no")
_LINE: Final = re.compile(r"\s*([\d,]+) \(.*?\)\s+\S*?([^/\\:]+:\S+)")


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is counted."""

    workers: int
    shards: int
    batch: int
    after: int

    @property
    def batches(self) -> int:
        """How many are counted."""
        return -(-_COUNTED // self.batch)


def main() -> None:
    """Count, and print the dearest functions."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.instructions", description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="that take turns (default: 1)")
    parser.add_argument("--shards", type=int, default=1, metavar="N", help="of the store (default: 1)")
    parser.add_argument("--batch", type=int, default=2000, metavar="N", help="events of a batch (default: 2000)")
    parser.add_argument("--after", type=int, default=100, metavar="N", help="batches before (default: 100)")
    parser.add_argument("--most", type=int, default=60, metavar="N", help="functions to print (default: 60)")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    plan = _Plan(arguments.workers, arguments.shards, arguments.batch, arguments.after)
    if arguments.inside:
        _run(plan, arguments.inside)
        return
    if shutil.which("valgrind") is None:
        raise SystemExit("valgrind is not here: it counts the instructions (apt-get install valgrind)")
    with tempfile.TemporaryDirectory() as directory:
        inside = [sys.executable, "-m", "tests.bench.instructions", "--inside", directory, *sys.argv[1:]]
        subprocess.run([*_CALLGRIND, f"--callgrind-out-file={directory}/workers", *inside], check=True)
        for process in ("workers", "redis-server"):
            annotate = ["callgrind_annotate", "--inclusive=yes", "--threshold=100", f"{directory}/{process}"]
            told = subprocess.run(annotate, check=True, capture_output=True, text=True).stdout
            print(f"{process}:")
            for line in islice(_per_event(told, plan.batches * plan.batch), arguments.most):
                print(line)


def _per_event(told: str, events: int) -> Iterator[str]:
    """Yield instructions per event: of everything, then of the functions, each with what it calls."""
    for line in told.splitlines():
        if line.endswith("PROGRAM TOTALS"):
            yield f"{int(line.split()[0].replace(',', '')) / events:8.0f}  everything"
        elif found := _LINE.match(line):
            yield f"{int(found[1].replace(',', '')) / events:8.0f}  {found[2].partition(':')[2]}"


def _run(plan: _Plan, directory: Path) -> None:
    scenario = w1()
    server = RedisServer(redis_binary())
    server.process.wrapped_in(*_CALLGRIND, f"--callgrind-out-file={directory}/redis-server")
    with server:
        settings = replace(settings_of(scenario), store=StoreSettings(url=server.url, shards=plan.shards))
        with opened(settings, wall_clock) as opening, ExitStack() as stack:
            experiment = Experiment(opening.held.numbers[scenario.experiment], settings.experiments[0])
            identities = IdHasher(opening.held.hash_key)
            decoder, intake = Decoder(settings), Intake([experiment], identities)
            late = {str(experiment.number): 0, PENDING_CLASS: 0}
            writers = []
            stores = [opening.store.again() for _ in range(plan.workers)]
            for number, store in enumerate(stores):
                stack.callback(store.close)
                writers.append(writer_for(store, [experiment], identities))
                writers[-1].state([f"bench:{number}"])
            begins = [0] * plan.workers
            batches = list(islice(_batches(plan, scenario), plan.after + plan.batches))
            if len(batches) < plan.after + plan.batches:
                raise SystemExit(f"W1 has {len(batches)} such batches, expected {plan.after + plan.batches}")
            for turn, (worker, batch) in enumerate(batches):
                if turn == plan.after:
                    _count("on", server)
                begin, writer = begins[worker], writers[worker]
                begins[worker] += len(batch)
                step = Advance(f"bench:{worker}", begin or None, Position(begins[worker]))
                decoded = decode(list(_slices(worker, batch)), decoder, intake, wall_clock())
                status = "changed"
                while status == "changed":
                    status, _ = writer.begin(decoded.events, late, [step])()
                    if status == "changed":
                        writer.state([f"bench:{worker}"])
                if status != "applied" or decoded.refused:
                    raise SystemExit(f"a batch was not applied: {status}, {decoded.refused[:1]}")
                for shard in stores[worker]:
                    sum_up(shard)
            _count("off", server)


def _count(state: str, server: RedisServer) -> None:
    """Have callgrind begin or end to count, in this process and in the server's."""
    for pid in (os.getpid(), server.process.pid):
        subprocess.run(["callgrind_control", "-i", state, str(pid)], check=True, capture_output=True)


def _batches(plan: _Plan, scenario: Scenario) -> Iterator[tuple[int, list[tuple[Kind, bytes]]]]:
    """Yield (worker, its next batch), in the order in which batches become full."""
    waiting: list[list[tuple[Kind, bytes]]] = [[] for _ in range(plan.workers)]
    for event in generate(scenario):
        worker = crc32(event.key) % plan.workers
        waiting[worker].append((event.kind, event.payload))
        if len(waiting[worker]) == plan.batch:
            yield worker, waiting[worker]
            waiting[worker] = []


def _slices(worker: int, batch: Sequence[tuple[Kind, bytes]]) -> Iterator[Slice]:
    kinds: tuple[Kind, ...] = ("response", "feedback")
    for kind in kinds:
        payloads: list[bytes | None] = [payload for each, payload in batch if each == kind]
        yield Slice(f"{kind}:{worker}", kind, 0, Records.of(range(len(payloads)), payloads), len(payloads))


if __name__ == "__main__":
    main()
