"""Generations of the store: one is live, the next may be built beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from monitor.aggregates import Layout, responses_of
from monitor.config import StoreSettings
from monitor.store.keys import LIVE, ROOT, Keys
from monitor.store.opening import stored_experiments
from monitor.store.redis import RedisStore, unavailable

_AT_ONCE: Final = 5_000
_SWITCH: Final = """
if (redis.call('GET', KEYS[1]) or '0') ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2])
return 1
"""


@dataclass(frozen=True, slots=True)
class ArmTotals:
    """One variant over all time."""

    responses: int
    rated: int
    means: Mapping[str, float | None]


def live_store(settings: StoreSettings) -> RedisStore:
    """Return the store's live generation; raises `StoreUnavailable`."""
    store = RedisStore(settings)
    with unavailable(settings):
        store.use(int(store.client.get(LIVE) or 0))
    return store


def next_store(live: RedisStore) -> RedisStore:
    """Return the generation that may be built beside the live one."""
    return RedisStore(live.settings, Keys(live.live + 1), live.live)


def generations(store: RedisStore) -> set[int]:
    """Return the numbers of the generations that there is anything of."""
    found = set()
    for name in _names(store, ROOT + b"*:m"):
        number = name.removeprefix(ROOT).partition(b":")[0]
        if number.isdigit():
            found.add(int(number))
    return found


def switch(store: RedisStore, to: int) -> bool:
    """Make a generation the live one in place of the one the store was opened under; False if that is live no more."""
    with unavailable(store.settings):
        return bool(store.client.eval(_SWITCH, 1, LIVE, store.live, to))


def drop(store: RedisStore, generation: int) -> int:
    """Delete a generation; return how many keys it had."""
    return _delete(store, Keys(generation).prefix + b"*")


def drop_everything(store: RedisStore) -> int:
    """Delete all generations, and what says which is live; return how many keys there were."""
    return _delete(store, ROOT + b"*")


def _names(store: RedisStore, pattern: bytes) -> Iterator[bytes]:
    with unavailable(store.settings):
        yield from store.client.scan_iter(pattern, count=_AT_ONCE)


def _delete(store: RedisStore, pattern: bytes) -> int:
    deleted = 0
    batch: list[bytes] = []
    for name in _names(store, pattern):
        batch.append(name)
        if len(batch) >= _AT_ONCE:
            deleted += store.client.unlink(*batch)
            batch = []
    with unavailable(store.settings):
        return deleted + (store.client.unlink(*batch) if batch else 0)


def totals(store: RedisStore) -> dict[str, dict[str, ArmTotals]]:
    """Return experiment → variant → totals of a generation, whatever its definitions."""
    found: dict[str, dict[str, ArmTotals]] = {}
    for name, stored in stored_experiments(store).items():
        definitions = stored["definitions"]
        metrics = definitions["metrics"]
        layout = Layout(len(metrics), (0,) * len(metrics))
        found[name] = {}
        for index, variant in enumerate(definitions["variants"]):
            with unavailable(store.settings):
                value = store.client.get(store.keys.responses(stored["number"], index)) or b""
            record = np.zeros(layout.response_width, dtype=np.int64)
            record[: len(value) // 8] = np.frombuffer(value, dtype=">i8")
            rated = int(record[2])
            means = {
                metric: total / (rated - undefined) if rated > undefined else None
                for metric, (undefined, total, _) in zip(metrics, responses_of(record, layout), strict=True)
            }
            found[name][variant] = ArmTotals(int(record[0]), rated, means)
    return found
