"""Draw every board with what a Prometheus has: a preview, not a screenshot of Grafana.

python -m grafana.preview --prometheus http://localhost:9090 --minutes 60 --out docs
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from grafana.preview.rendering import preview


def main(arguments: list[str]) -> int:
    """Write a PNG for each board; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m grafana.preview", description="Draw the boards without a Grafana.")
    parser.add_argument("--prometheus", metavar="URL", default="http://localhost:9090", help="its address")
    parser.add_argument("--minutes", type=float, default=60, metavar="N", help="time that is shown (60)")
    parser.add_argument("--scrape-interval", type=float, default=15, metavar="S", help="of Prometheus, in seconds (15)")
    parser.add_argument("--out", type=Path, default=Path("docs"), metavar="DIR", help="where board-*.png go (docs)")
    parsed = parser.parse_args(arguments)
    try:
        empty = preview(parsed.prometheus, time.time(), 60 * parsed.minutes, parsed.scrape_interval, parsed.out)
    except OSError as error:
        sys.stderr.write(f"{parsed.prometheus}: {error}\n")
        return 3
    for board, titles in empty.items():
        sys.stdout.write(f"{board}: {', '.join(titles) or 'nothing'} without data\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
