"""`make faults`: the whole catalogue on real parts, and its table in docs/reliability.md.

The table is written if all faults have run without arguments, and every result is exact.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import traceback
from pathlib import Path

from monitor.config import KafkaClientName
from tests.faults import clusters, inputs, kafkas, stores, workers  # noqa: F401  they fill the catalogue
from tests.faults.arena import Expectations, Result
from tests.faults.catalogue import CATALOGUE, Fault, Ground
from tests.servers.kafka import KafkaBroker
from tests.servers.redis import RedisServer, redis_binary, valkey_binary

_DOCUMENT = Path(__file__).parents[2] / "docs/reliability.md"
_BEGIN, _END = "<!-- faults -->\n", "<!-- /faults -->\n"
_HEAD = "| fault | how | times | resumed after |\n|---|---|---:|---:|\n"


def _row(fault: Fault, result: Result) -> str:
    cells = [
        fault.name,
        fault.how + (f"; *{result.note}*" if result.note else ""),
        str(result.times),
        "–" if result.resumed_s is None else f"{result.resumed_s:.1f} s",
    ]
    return "| " + " | ".join(cells) + " |\n"


def _outcome(result: Result) -> str:
    """Return "exact", or how the stored numbers differ from those of an undisturbed run."""
    expected, got = result.expected, result.got
    difference = got.responses + got.reactions - expected.responses - expected.reactions
    if difference:
        return f"WRONG, {abs(difference)} {'doubled' if difference > 0 else 'lost'}"
    return "exact" if result.equal and got == expected else "WRONG"


def main(arguments: list[str]) -> int:
    """Run, print, and write the table if everything was run."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("words", nargs="*", help="only the faults whose names contain one of them (default: all)")
    parser.add_argument("--valkey", action="store_true", help="the stores are Valkey servers")
    parser.add_argument("--confluent", action="store_true", help="the workers read with librdkafka")
    options = parser.parse_intermixed_args(arguments)
    found = {word: [each for each in CATALOGUE if word.lower() in each.name.lower()] for word in options.words}
    if unknown := [word for word, faults in found.items() if not faults]:
        known = "; ".join(each.name for each in CATALOGUE)
        parser.error(f"no fault is called {' or '.join(unknown)}; there are: {known}")
    binary = valkey_binary() if options.valkey else redis_binary()
    client: KafkaClientName = "confluent" if options.confluent else "kafka-python"
    chosen = [each for each in CATALOGUE if not found or any(each in faults for faults in found.values())]
    rows = []
    bad = 0
    with tempfile.TemporaryDirectory(prefix="abm-faults-") as place, KafkaBroker() as broker:
        directory = Path(place)
        with RedisServer(redis_binary()) as calm:
            ground = Ground(directory, broker, Expectations(directory, calm), binary, client)
            for number, fault in enumerate(chosen, 1):
                began = time.monotonic()
                try:
                    result = fault.run(ground)
                except Exception:  # noqa: BLE001  a failed fault must not stop the other faults
                    traceback.print_exc()
                    print(f"{number}/{len(chosen)} {fault.name}: FAILED", flush=True)
                    bad += 1
                    continue
                outcome = _outcome(result)
                bad += outcome != "exact"
                rows.append(_row(fault, result))
                took = time.monotonic() - began
                print(f"{number}/{len(chosen)} {fault.name}: {outcome} ({took:.0f} s)", flush=True)
    print(_HEAD + "".join(rows))
    if not arguments and not bad:
        text = _DOCUMENT.read_text()
        before, after = text.partition(_BEGIN)[0], text.partition(_END)[2]
        _DOCUMENT.write_text(before + _BEGIN + _HEAD + "".join(rows) + _END + after)
    return bad


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
