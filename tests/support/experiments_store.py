"""A store with several experiments of three variants, filled by `ab-monitor replay` with simulated events."""

from __future__ import annotations

import heapq
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from monitor.app import serve_http
from monitor.clock import DAY_MS, wall_clock
from monitor.config import Settings, load_settings
from monitor.pipeline.telemetry import Telemetry
from monitor.simulation.simulator import Scenario, generate_events
from monitor.state import open_store_reader
from monitor.web import HttpServer
from tests.servers.redis import RedisServer, redis_binary

_SHARES: Final = {"control": 0.4, "plain": 0.3, "reranked": 0.3}
_KAFKA: Final = 'bootstrap_servers = "k:1"\nresponses_topic = "r"\nfeedback_topic = "f"\ngroup_id = "g"\n'
_EXPERIMENT: Final = """
[[experiments]]
name = "{name}"
control = "control"
variants = {{ control = 0.4, plain = 0.3, reranked = 0.3 }}
metrics = ["dcg@5", "ndcg@5", "success@5"]
decay = ["1h", "24h"]
items = "30d"
categories = ["fractions", "geometry", "algebra", "grammar", "essays", "physics", "chemistry", "history"]
[experiments.grades]
rating = "score"
"""


def experiment_name(number: int) -> str:
    """Return the name of an experiment; a slash and a blank need encoding in addresses."""
    return f"team/experiment {number}"


@dataclass(frozen=True, slots=True)
class FilledStore:
    """A store with experiments, and the newest events, which are not applied yet."""

    settings: Settings
    config: Path
    later_events: Iterator[Path]

    def apply_later_events(self) -> None:
        """Apply the next of the newest events. Raises StopIteration after the last."""
        _replay(self.config, next(self.later_events))


@contextmanager
def filled_store(count: int, responses: int, days: int = 21, *, later_parts: int = 0) -> Iterator[FilledStore]:
    """Yield a store with so many experiments, and so many responses of each until now.

    The effect of `reranked` depends on the number of the experiment. With `later_parts`, the last hundredth of the
    events is applied in so many parts by `FilledStore.apply_later_events`.
    """
    now_ms = int(time.time() * 1000)
    start_ms = (now_ms // DAY_MS - days) * DAY_MS
    scenarios = [
        Scenario(
            experiment=experiment_name(number),
            shares=_SHARES,
            effects={"reranked": 0.15 * (number % 5 - 1)},
            responses=responses,
            students=responses // 3,
            days=(now_ms - start_ms - DAY_MS // 24) / DAY_MS,
            start_ms=start_ms,
            seed=number + 1,
        )
        for number in range(count)
    ]
    with tempfile.TemporaryDirectory() as directory, RedisServer(redis_binary(), appendonly="no") as server:
        config, events = Path(directory) / "config.toml", Path(directory) / "events.jsonl"
        experiments = "".join(_EXPERIMENT.format(name=scenario.experiment) for scenario in scenarios)
        config.write_text(f'[kafka]\n{_KAFKA}[store]\nurl = "{server.url}"\n[http]\nport = 9464\n{experiments}')
        arrivals = heapq.merge(*map(generate_events, scenarios), key=lambda event: event.arrival_ms)
        payloads = [b"%s\n" % event.payload for event in arrivals if event.arrival_ms <= now_ms]
        first_later = len(payloads) - (len(payloads) // 100 if later_parts else 0)
        events.write_bytes(b"".join(payloads[:first_later]))
        _replay(config, events)
        later_events = []
        for part in range(later_parts):
            later_events.append(Path(directory) / f"later-{part}.jsonl")
            later_events[-1].write_bytes(b"".join(payloads[first_later + part :: later_parts]))
        settings = load_settings(config, {})
        settings = replace(settings, http=replace(settings.http, port=0))
        yield FilledStore(settings, config, iter(later_events))


def _replay(config: Path, events: Path) -> None:
    # Without a limit of time: a benchmark replays many events.
    command = [sys.executable, "-m", "monitor", "replay", "--config", str(config), str(events)]
    subprocess.run(command, check=True, capture_output=True)


@contextmanager
def served_store(settings: Settings) -> Iterator[HttpServer]:
    """Yield a server with the pages of the store."""
    with (
        open_store_reader(settings, wall_clock) as reader,
        serve_http(settings, lambda: reader, Telemetry(), tuple, wall_clock) as server,
    ):
        yield server
