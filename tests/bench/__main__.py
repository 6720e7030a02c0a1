"""Measures the budgets of the project, in less than 20 minutes on two cores.

Usage: python -m tests.bench [PART …] [--responses N]

Parts are throughput, scaleout, formats, latency, scrape and pages. A run of all parts with the whole workload writes
docs/performance.md. The exit code is 1 if a budget is missed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from monitor.simulation.simulator import benchmark_scenario
from tests.bench import formats, latency, pages, scrape, workers
from tests.bench.figures import Figure, line, write_page

_PARTS: Final[dict[str, Callable[[int], Iterator[Figure]]]] = {
    "throughput": workers.throughput,
    "scaleout": workers.scaleout,
    "formats": formats.measure,
    "latency": lambda _: latency.measure(),
    "scrape": lambda _: scrape.measure(),
    "pages": lambda _: pages.measure(),
}

_MIN_RESPONSES: Final = 1000


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and print a line for each figure as soon as it is known."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(_PARTS)}; all without any")
    parser.add_argument(
        "--responses",
        type=int,
        default=benchmark_scenario().responses,
        help="of the stream of throughput, scaleout, formats",
    )
    arguments = parser.parse_args(argv)
    unknown = [part for part in arguments.parts if part not in _PARTS]
    if unknown:
        parser.error(f"part: got {unknown[0]!r}, expected one of {', '.join(_PARTS)}")
    if arguments.responses < _MIN_RESPONSES:
        parser.error(f"--responses: got {arguments.responses}, expected {_MIN_RESPONSES} or more")
    figures = []
    for part in arguments.parts or _PARTS:
        print(part)
        for figure in _PARTS[part](arguments.responses):
            figures.append(figure)
            print("  " + line(figure), flush=True)
    if not arguments.parts and arguments.responses == benchmark_scenario().responses:
        write_page(figures)
    return int(any(figure.missed for figure in figures))


if __name__ == "__main__":
    sys.exit(main())
