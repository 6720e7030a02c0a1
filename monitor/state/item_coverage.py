"""How many different items a variant has shown, from the live counts of items, at the price of a scrape."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from monitor.analysis import Coverage
from monitor.clock import DAY_MS, HOUR_MS
from monitor.config import ExperimentSettings
from monitor.engine import OTHERS
from monitor.metrics import SHOWN, ItemLayout
from monitor.state.item_reader import fields
from monitor.state.redis_connection import unavailable
from monitor.state.redis_store import RedisStore
from monitor.state.shards import Shards

MOST_BUCKETS: Final = 1 << 16
"""Buckets of all slices of all variants up to which coverage is read."""

_OLDEST_S: Final = 3600.0

_Items = NDArray[np.uint64]
"""Hashes, each once."""


@dataclass(frozen=True, slots=True)
class _Slice:
    stamp: float
    """Number of the commit that last changed it."""
    items: _Items


_Slices = Mapping[tuple[int, int, int], _Slice]
"""(shard, variant, slice) → what was shown there."""


@dataclass(frozen=True, slots=True)
class _Memory:
    """What was found in an hour of event time."""

    runs: tuple[str, ...]
    hour: int = -1
    read_at: float = 0.0
    """By the process's own clock: what came after the newest event of then is told as well, be there none since."""
    found: Mapping[tuple[int, int], Coverage] = field(default_factory=dict)
    slices: _Slices = field(default_factory=dict)


class CoverageReader:
    """Reads one experiment's coverage once in an hour, of event time or its own: slices that have changed since."""

    def __init__(self, store: Shards, settings: ExperimentSettings, number: int) -> None:
        self._store = store
        self._settings = settings
        self._number = number
        self._layout = ItemLayout.of(settings)
        self._memory: _Memory | None = None

    def coverage(self, newest_ms: int, runs: tuple[str, ...]) -> Mapping[tuple[int, int], Coverage]:
        """Return each variant's coverage over the horizon that ends with the newest response, as of its hour.

        Nothing where there are more buckets than `MOST_BUCKETS`. What is remembered holds as long as the servers'
        `runs` are the same: see `Reader.summary`. Raises `StoreUnavailable`.
        """
        variants, hour = range(len(self._settings.variants)), newest_ms // HOUR_MS
        if self._layout.buckets * self._layout.slices * len(variants) > MOST_BUCKETS:
            return {}
        memory = self._memory
        if memory is None or memory.runs != runs:
            memory = _Memory(runs)
        now = time.monotonic()
        if memory.hour != hour or now - memory.read_at > _OLDEST_S:
            slices = self._shown(variants, newest_ms, memory.slices)
            found = {
                (self._number, variant): self._coverage(_together(slices, variant), newest_ms) for variant in variants
            }
            memory = self._memory = _Memory(runs, hour, now, found, slices)
        return memory.found

    def _coverage(self, items: _Items, newest_ms: int) -> Coverage:
        settings = self._settings.items
        assert settings is not None
        # Of a catalogue of which only a part is counted nobody knows how much was shown.
        known = len(settings.catalogue) if settings.catalogue is not None and settings.one_in == 1 else None
        since_ms = self._layout.oldest(newest_ms) * self._layout.days * DAY_MS
        return Coverage(since_ms, len(items), None if known is None else len(items) / known)

    def _shown(self, variants: Sequence[int], newest_ms: int, known: _Slices) -> _Slices:
        """Return the items of all slices of the horizon; those that have not changed are taken from what is known."""
        oldest, newest = self._layout.oldest(newest_ms), self._layout.slice_of(newest_ms)
        found: dict[tuple[int, int, int], _Slice] = {}
        for shard in self._store:
            with unavailable(self._store.settings):
                pipeline = shard.client.pipeline(transaction=False)
                for variant in variants:
                    pipeline.zrange(shard.keys.item_slices(self._number, variant), 0, -1, withscores=True)
                indexes = pipeline.execute()
            for variant, stamps in zip(variants, indexes, strict=True):
                for piece, stamp in stamps:
                    place = shard.keys.shard, variant, int(piece)
                    if oldest <= place[2] <= newest:
                        held = known.get(place)
                        if held is None or held.stamp != stamp:
                            held = self._slice(shard, place, stamp)
                        found[place] = held
        return found

    def _slice(self, shard: RedisStore, place: tuple[int, int, int], stamp: float) -> _Slice:
        _, variant, piece = place
        names = (shard.keys.items(self._number, variant, piece, bucket) for bucket in range(self._layout.buckets))
        items = {name[:-1] for name, _ in fields(shard, names) if name[-1:] == SHOWN} - {OTHERS}
        return _Slice(stamp, np.fromiter(map(int.from_bytes, items), np.uint64, len(items)))


def _together(slices: _Slices, variant: int) -> _Items:
    """Return the items that a variant has shown in any slice, on any shard."""
    own = [each.items for (_, other, _), each in slices.items() if other == variant]
    return np.unique(np.concatenate(own)) if own else np.zeros(0, np.uint64)
