"""Generations of the store: one is live, the next may be built beside it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from monitor.config import StoreSettings
from monitor.errors import StoreOwned, UsageError
from monitor.metrics import Layout, responses_of
from monitor.state.keys import LIVE, ROOT, Keys, live_number
from monitor.state.record_reader import decode_record
from monitor.state.redis_connection import connect, unavailable
from monitor.state.redis_store import SCHEMA
from monitor.state.shards import Shards
from monitor.state.store_metadata import stored_experiments

_AT_ONCE: Final = 5_000
_NAME: Final = re.compile(rb"abm:\{\d+\}:(\d+):")
_META: Final = re.compile(rb"abm:\{\d+\}:\d+:m")
_SWITCH: Final = """
if (redis.call('GET', KEYS[1]) or '0') ~= ARGV[1] then return 0 end
for i = 3, #ARGV, 2 do redis.call('HINCRBY', KEYS[2], ARGV[i], ARGV[i + 1]) end
redis.call('SET', KEYS[1], ARGV[2])
return 1
"""


@dataclass(frozen=True, slots=True)
class ArmTotals:
    """One variant over all time."""

    responses: int
    rated: int
    means: Mapping[str, float | None]


def live_store(settings: StoreSettings, *, as_stored: bool = False) -> Shards:
    """Return the store's live generation; raises `StoreUnavailable`.

    Raises `StoreOwned` if it has another number of shards than the settings say, unless it is wanted `as_stored`.
    """
    client: Any = connect(settings)
    with unavailable(settings):
        known = client.get(LIVE)
        live = live_number(known)
        # Stores that were made before there were several have one.
        stored, schema = client.hmget(Keys(live).meta, ["shards", "schema"])
        stored = stored or (1 if schema else None)
    if not as_stored and known is None and schema is None and (others := _others(Shards(settings, client=client))):
        raise StoreOwned(
            f"{LIVE.decode()} is missing, but there is a generation {max(others)}: set it to what was live, or "
            "start anew with `ab-monitor reset`"
        )
    # A new store has as many shards as a cluster has masters, unless the settings say.
    masters = len(client.get_primaries()) if stored is None and hasattr(client, "get_primaries") else 1
    count = settings.shards or masters if stored is None else int(stored)
    if settings.shards not in {None, count} and not as_stored:
        raise StoreOwned(
            f"store.shards: got {settings.shards}, but the store has {count}. `ab-monitor rebuild` makes a new one of "
            f"{settings.shards} from Kafka"
        )
    return Shards(settings, live, count=count, client=client)


def _others(store: Shards) -> set[int]:
    """Return what generations there are, as far as this user may look; the first may just have been begun by others."""
    with suppress(UsageError):
        return generation_numbers(store) - {0}
    return set()


def next_store(live: Shards) -> Shards:
    """Return the generation that may be built beside the live one."""
    count = live.settings.shards or len(live)
    return Shards(live.settings, live.live + 1, live.live, count=count)


def generation_numbers(store: Shards) -> set[int]:
    """Return the numbers of the generations that there is anything of."""
    return {int(name.split(b":")[2]) for name in _metas(store) if name.startswith(ROOT)}


def switch(store: Shards, to: Shards, lost: Mapping[str, int]) -> bool:
    """Make a generation the live one in place of the one the store was opened under; False if that is live no more.

    What is `lost` is added to the new one's lost events in the same write.
    """
    counts = [part for count in lost.items() for part in count]
    with unavailable(store.settings):
        script = store.client.register_script(_SWITCH)
        names = [LIVE, to.first.keys.lost]
        return bool(store.first.run_script(script, names, [store.live, to.generation, *counts]))


def lost_events(store: Shards) -> dict[str, int]:
    """Return a generation's lost events, see `Keys`."""
    lost = Counter[str]()
    for shard in store:
        with unavailable(store.settings):
            lost.update({name.decode(): int(count) for name, count in store.client.hgetall(shard.keys.lost).items()})
    return dict(lost)


def first_day(store: Shards, experiments: Collection[str]) -> int | None:
    """Return the first UTC day of which a generation has a response of these experiments; None without any.

    0 for a generation of another schema: it may be any.
    """
    days: set[int] = set()
    with unavailable(store.settings):
        if int(store.client.hget(store.first.keys.meta, "schema") or 0) != SCHEMA:
            return 0
    for name, stored in stored_experiments(store).items():
        for index in range(len(stored["definitions"]["variants"]) if name in experiments else 0):
            for shard in store:
                with unavailable(store.settings):
                    days.update(map(int, store.client.zrange(shard.keys.cohorts(stored["number"], index), 0, -1)))
    return min(days, default=None)


def drop_everything(store: Shards) -> int:
    """Delete all generations in the same way, and what says which is live; return how many keys there were."""
    return drop(store, None) + _unlink(store, [LIVE])


def _names(store: Shards, pattern: bytes, generation: int | None) -> Iterator[bytes]:
    """Yield the names of keys that match: of one generation, or of any."""
    with unavailable(store.settings):
        for name in store.client.scan_iter(pattern, count=_AT_ONCE):
            found = _NAME.match(name)
            if found is not None and generation in {None, int(found[1])}:
                yield name


def _metas(store: Shards, generation: int | None = None) -> list[bytes]:
    return [name for name in _names(store, b"abm:{*}:*:m", generation) if _META.fullmatch(name)]


def drop(store: Shards, generation: int | None) -> int:
    """Delete a generation, or all of them; return how many keys there were.

    What names it goes last, so that one that is interrupted is found again (`generations`), and first loses its schema,
    so that no worker writes to it any more.
    """
    metas = _metas(store, generation)
    with unavailable(store.settings):
        for name in metas:
            store.client.hdel(name, "schema")
    deleted = 0
    batch: list[bytes] = []
    for name in _names(store, b"abm:{*}:*", generation):
        if name not in metas:
            batch.append(name)
        if len(batch) >= _AT_ONCE:
            deleted += _unlink(store, batch)
            batch = []
    return deleted + _unlink(store, batch) + _unlink(store, metas)


def _unlink(store: Shards, names: Sequence[bytes]) -> int:
    with unavailable(store.settings):
        return int(store.client.unlink(*names)) if names else 0


def totals(store: Shards) -> dict[str, dict[str, ArmTotals]]:
    """Return experiment → variant → totals of a generation, whatever its definitions."""
    found: dict[str, dict[str, ArmTotals]] = {}
    for name, stored in stored_experiments(store).items():
        definitions = stored["definitions"]
        metrics = definitions["metrics"]
        layout = Layout(len(metrics), (0,) * len(metrics))
        found[name] = {}
        for index, variant in enumerate(definitions["variants"]):
            record = np.zeros(layout.response_width, dtype=np.int64)
            for shard in store:
                with unavailable(store.settings):
                    key = shard.keys.responses(stored["number"], index)
                    part = decode_record(key, store.client.get(key))
                record[: len(part)] += part
            rated = int(record[2])
            means = {
                metric: total / (rated - undefined) if rated > undefined else None
                for metric, (undefined, total, _) in zip(metrics, responses_of(record, layout), strict=True)
            }
            found[name][variant] = ArmTotals(int(record[0]), rated, means)
    return found
