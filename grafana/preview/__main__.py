"""Draw all boards with the data of a Prometheus server: a preview, not a screenshot of Grafana.

python -m grafana.preview --prometheus http://localhost:9090 --minutes 60 --out docs
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from pathlib import Path

from grafana.preview.rendering import render_previews


def _address(text: str) -> str:
    if not text.startswith(("http://", "https://")):
        raise argparse.ArgumentTypeError(f"{text!r}: expected http://… or https://…")
    return text


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a positive number")
    return value


def main(arguments: list[str]) -> int:
    """Write a PNG for each board; returns the exit code: 3 if Prometheus does not answer."""
    parser = argparse.ArgumentParser(prog="python -m grafana.preview", description="Draw the boards without a Grafana.")
    parser.add_argument(
        "--prometheus", type=_address, metavar="URL", default="http://localhost:9090", help="its address"
    )
    parser.add_argument("--minutes", type=_positive, default=60, metavar="N", help="time that is shown (60)")
    parser.add_argument("--scrape-interval", type=_positive, default=15, metavar="S", help="of Prometheus, in s (15)")
    parser.add_argument("--out", type=Path, default=Path(), metavar="DIR", help="where board-*.png go (here)")
    parsed = parser.parse_args(arguments)
    try:
        empty = render_previews(parsed.prometheus, time.time(), 60 * parsed.minutes, parsed.scrape_interval, parsed.out)
    except OSError as error:
        sys.stderr.write(f"{parsed.prometheus}, {parsed.out}: {error}\n")
        return 3
    for board, titles in empty.items():
        sys.stdout.write(f"{board}: {', '.join(titles) or 'nothing'} without data\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
