"""Instructions that an event costs a worker, by function: the same number however fast the machine is just now.

Usage: python -m tests.bench.instructions [--after N] [--most N]     (wants valgrind)

The simulator's W1 in batches of 2 000 events, in order of arrival: decoded and applied to a real server, without Kafka.
The first N batches go by unseen, six more are counted by callgrind. It counts neither what the server does nor how long
the processor waits for memory: what costs fewer instructions still has to be measured by the clock.
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
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Final

from monitor.clock import wall_clock
from monitor.config import StoreSettings
from monitor.events import Decoder
from monitor.identity import Identities
from monitor.ingest.decoding import decode
from monitor.ingest.experiment import PENDING_CLASS, Experiment
from monitor.ingest.intake import Intake
from monitor.ingest.simulator import generate, w1
from monitor.ingest.source import Kind, Slice
from monitor.service import opened, writer_for
from monitor.store import Advance, Position
from tests.bench.settings import settings_of
from tests.servers.redis import RedisServer, redis_binary

_BATCH: Final = 2000
_COUNTED: Final = 6
_LINE: Final = re.compile(r"\s*([\d,]+) \(.*?\)\s+\S*?([^/\\:]+:\S+)")


def main() -> None:
    """Count, and print the dearest functions."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.instructions", description=__doc__.splitlines()[0])
    parser.add_argument("--after", type=int, default=100, metavar="N", help="batches before (default: 100)")
    parser.add_argument("--most", type=int, default=60, metavar="N", help="functions to print (default: 60)")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inside:
        _run(arguments.after)
        return
    if shutil.which("valgrind") is None:
        raise SystemExit("valgrind is not here: it counts the instructions (apt-get install valgrind)")
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "callgrind.out"
        command = ["valgrind", "-q", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={out}"]
        inside = [sys.executable, "-m", "tests.bench.instructions", "--inside", f"--after={arguments.after}"]
        subprocess.run([*command, *inside], check=True)
        annotate = ["callgrind_annotate", "--inclusive=yes", "--threshold=100", str(out)]
        told = subprocess.run(annotate, check=True, capture_output=True, text=True).stdout
    for line in islice(_per_event(told), arguments.most):
        print(line)


def _per_event(told: str) -> Iterator[str]:
    """Yield instructions per event: of everything, then of the functions, each with what it calls."""
    for line in told.splitlines():
        if line.endswith("PROGRAM TOTALS"):
            yield f"{int(line.split()[0].replace(',', '')) / _COUNTED / _BATCH:8.0f}  everything"
        elif found := _LINE.match(line):
            yield f"{int(found[1].replace(',', '')) / _COUNTED / _BATCH:8.0f}  {found[2].partition(':')[2]}"


def _run(after: int) -> None:
    scenario = w1()
    with RedisServer(redis_binary()) as server:
        settings = replace(settings_of(scenario), store=StoreSettings(url=server.url))
        with opened(settings, wall_clock) as opening:
            identities = Identities(opening.held.hash_key)
            experiment = Experiment(opening.held.numbers[scenario.experiment], settings.experiments[0])
            intake, writer = Intake([experiment], identities), writer_for(opening.store, [experiment], identities)
            writer.state(["bench:0"])
            decoder, late = Decoder(settings), {str(experiment.number): 0, PENDING_CLASS: 0}
            events = ((event.kind, event.payload) for event in generate(scenario))
            batches = [list(islice(events, _BATCH)) for _ in range(after + _COUNTED)]
            for number, batch in enumerate(batches):
                if number == after:
                    subprocess.run(["callgrind_control", "-i", "on", str(os.getpid())], check=True, capture_output=True)
                begin = number * _BATCH
                step = Advance("bench:0", begin or None, Position(begin + len(batch)))
                decoded = decode(list(_slices(batch)), decoder, intake, wall_clock())
                status, _ = writer.begin(decoded.events, late, [step])()
                if status != "applied" or decoded.refused:
                    raise SystemExit(f"a batch was not applied: {status}, {decoded.refused[:1]}")
            subprocess.run(["callgrind_control", "-i", "off", str(os.getpid())], check=True, capture_output=True)


def _slices(batch: Sequence[tuple[Kind, bytes]]) -> Iterator[Slice]:
    kinds: tuple[Kind, ...] = ("response", "feedback")
    for kind in kinds:
        payloads: list[bytes | None] = [payload for each, payload in batch if each == kind]
        yield Slice(f"{kind}:0", kind, 0, range(len(payloads)), payloads, len(payloads))


if __name__ == "__main__":
    main()
