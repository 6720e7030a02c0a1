"""`ab-monitor share`: the address of a share link, which opens one experiment without a login until a time."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime

from monitor.clock import DAY_MS, wall_clock
from monitor.config import Settings, parse_instant_ms, parse_integer
from monitor.errors import UsageError
from monitor.state import open_store_reader
from monitor.web import DEFAULT_SHARE_DAYS, MAX_SHARE_DAYS, ShareLink, share_path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    parser.set_defaults(reads_store=True, experiment_argument="share E")
    parser.add_argument("experiment", metavar="E", help="the experiment's name")
    parser.add_argument(
        "--days",
        type=int,
        default=DEFAULT_SHARE_DAYS,
        metavar="N",
        help=f"days until the link expires, 1 to {MAX_SHARE_DAYS} (default {DEFAULT_SHARE_DAYS})",
    )
    parser.add_argument(
        "--as-of", metavar="T", help="the link shows the state at this ISO 8601 time, and no other (default: today's)"
    )


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    """Print the address; the store has to have the experiment."""
    days = parse_integer("--days", arguments.days, 1, MAX_SHARE_DAYS)
    now_ms = wall_clock()
    as_of_ms = None if arguments.as_of is None else parse_instant_ms("--as-of", arguments.as_of)
    if as_of_ms is not None and as_of_ms > now_ms:
        raise UsageError(f"--as-of: got {arguments.as_of!r}, expected a past time")
    as_of = "" if as_of_ms is None else _utc_text(as_of_ms)
    secret = settings.http.share_secret
    if secret is None:
        raise UsageError(
            "share: no secret for the signature of links, expected the same one as that of the service: write the "
            "output of `openssl rand -hex 32` to a file, and name the file in ABMONITOR_HTTP_SHARE_SECRET_FILE for both"
        )
    selection = {"experiment": arguments.experiment, "argument": arguments.experiment_argument}
    with open_store_reader(settings, wall_clock, **selection):
        link = ShareLink(arguments.experiment, (now_ms + days * DAY_MS) // 1000, as_of)
    print(settings.http.url.removesuffix("/") + share_path(secret, link))
    return 0


def _utc_text(instant_ms: int) -> str:
    """Return a time as in addresses of pages, with seconds and milliseconds only if needed."""
    time = datetime.fromtimestamp(instant_ms / 1000, UTC)
    return time.isoformat(timespec="auto" if instant_ms % 1000 else "seconds").replace("+00:00", "Z")
