"""What events, scrapes, starts and bytes cost, held to the aims in docs/performance.md.

Usage: python -m tests.bench [PART …] [--responses N] [--large] [--record]

Parts are throughput, latency, scrape, growth, scaleout and items; all of them without any. Figures are compared with
those in recorded.json, which changes, with the table and the plot in docs/, only with --record.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from tests.bench import growth, items, latency, scaleout, scrape, throughput
from tests.bench.figures import Figure, line, record, recorded

_PARTS: Final[dict[str, Callable[[argparse.Namespace], Iterator[Figure]]]] = {
    "throughput": lambda arguments: throughput.measure(arguments.responses),
    "latency": lambda _: latency.measure(),
    "scrape": lambda _: scrape.measure(),
    "growth": lambda arguments: growth.measure(large=arguments.large),
    "scaleout": lambda _: scaleout.measure(),
    "items": lambda _: items.measure(),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and print a line for each figure as it is known."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(_PARTS)}; all without any")
    parser.add_argument("--responses", type=int, default=300_000, help="responses of the stream of `throughput`")
    parser.add_argument("--large", action="store_true", help="`growth` with ten million rows, too: 4 GB of memory")
    parser.add_argument("--record", action="store_true", help="keep the figures for the next comparison")
    arguments = parser.parse_args(argv)
    unknown = [part for part in arguments.parts if part not in _PARTS]
    if unknown:
        parser.error(f"part: got {unknown[0]!r}, expected one of {', '.join(_PARTS)}")
    if arguments.responses < 1:
        parser.error(f"--responses: got {arguments.responses}, expected 1 or more")
    known, figures = recorded(), []
    for part in arguments.parts or _PARTS:
        print(part)
        for figure in _PARTS[part](arguments):
            figures.append(figure)
            print("  " + line(figure, known), flush=True)
    if arguments.record:
        record(figures)
        growth.plot()
    return 0


if __name__ == "__main__":
    sys.exit(main())
