"""The time of the pages of a service with 50 experiments of three variants, each three weeks old.

Measured over HTTP, as the processor time of this process and of redis-server: the clock would also count what other
processes do. Before each request, new events are applied, and the readings that requests share are too old.
"""

from __future__ import annotations

import statistics
import time
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Final

import redis

from monitor.export.health import MAX_READING_AGE_S
from monitor.web.pages import experiment_path
from tests.bench.figures import Figure
from tests.support.experiments_store import experiment_name, filled_store, served_store

_EXPERIMENTS: Final = 50
_RESPONSES: Final = 2_000
_ROUNDS: Final = 3
_PATHS: Final = {
    "list of 50 experiments: CPU": "/",
    "page of one of 50 experiments: CPU": experiment_path(experiment_name(7)),
    "page of the service, 50 experiments: CPU": "/service",
}
_BUDGET_MS: Final = 300


def measure() -> Iterator[Figure]:
    """Yield the median of the milliseconds of each page, without the first requests after the start."""
    times: dict[str, list[float]] = defaultdict(list)
    with (
        filled_store(_EXPERIMENTS, _RESPONSES, later_parts=_ROUNDS * len(_PATHS)) as store,
        served_store(store.settings) as server,
    ):
        client = redis.Redis.from_url(store.settings.store.url)
        for path in _PATHS.values():
            _request_ms(server.url.rstrip("/") + path, client)
        for _ in range(_ROUNDS):
            for name, path in _PATHS.items():
                store.apply_later_events()
                time.sleep(MAX_READING_AGE_S)
                times[name].append(_request_ms(server.url.rstrip("/") + path, client))
    for name, values in times.items():
        yield Figure(name, statistics.median(values), "ms", _BUDGET_MS)


def _request_ms(url: str, client: Any) -> float:
    """Return how many milliseconds of processor time a page takes in this process and in the store."""
    store_s, began = _used_s(client), time.process_time()
    with urllib.request.urlopen(url, timeout=60) as answer:  # noqa: S310  our own server
        answer.read()
    own_s = time.process_time() - began
    return (own_s + _used_s(client) - store_s) * 1000


def _used_s(client: Any) -> float:
    used = client.info("cpu")
    return float(used["used_cpu_user"] + used["used_cpu_sys"])
