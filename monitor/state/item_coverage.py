"""Coverage of the catalogue by each variant, from the stored counts of items; cheap enough for each scrape."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from monitor.analysis import ItemCoverage
from monitor.clock import HOUR_MS
from monitor.config import ExperimentSettings
from monitor.engine import OTHER_ITEMS_HASH
from monitor.metrics import SHOWN_FIELD, ItemLayout
from monitor.state.item_reader import read_nonzero_fields
from monitor.state.redis_connection import translating_errors
from monitor.state.sharded_store import ShardedStore
from monitor.state.store_shard import StoreShard

MAX_BUCKETS: Final = 1 << 16
"""Coverage is not read if all slices of all variants have more buckets."""
_MAX_AGE_S: Final = 3600.0
_ItemHashes = NDArray[np.uint64]
"""Distinct hashes of items."""


@dataclass(frozen=True, slots=True)
class _Slice:
    commit: float
    """Number of the commit that last changed the slice."""
    items: _ItemHashes


_Slices = Mapping[tuple[int, int, int], _Slice]
"""(shard, variant, slice) → items that the variant has displayed."""


@dataclass(frozen=True, slots=True)
class _CachedCoverage:
    """Coverage as of an hour of event time."""

    run_ids: tuple[str, ...]
    hour: int = -1
    read_at_s: float = 0.0
    """Monotonic time. Without newer events, responses after `hour` began are counted an hour later."""
    coverage: Mapping[tuple[int, int], ItemCoverage] = field(default_factory=dict)
    slices: _Slices = field(default_factory=dict)


class CoverageReader:
    """Reads the coverage of an experiment, once for each hour of event time or of the clock.

    Only slices that have changed since the previous reading are read.
    """

    def __init__(self, store: ShardedStore, settings: ExperimentSettings, number: int) -> None:
        self._store = store
        self._settings = settings
        self._number = number
        self._layout = ItemLayout.for_experiment(settings)
        self._cache: _CachedCoverage | None = None

    def read_coverage(self, newest_ms: int, run_ids: tuple[str, ...]) -> Mapping[tuple[int, int], ItemCoverage]:
        """Return (experiment number, variant) → coverage over the horizon that ends in the hour of the newest response.

        The result is empty if there are more than `MAX_BUCKETS` buckets. Cached slices are valid while the servers' run
        ids remain the same, see `StoreReader.read_summary`. Raises `StoreUnavailable`.
        """
        variants, hour = range(len(self._settings.variants)), newest_ms // HOUR_MS
        if self._layout.bucket_count * self._layout.slice_count * len(variants) > MAX_BUCKETS:
            return {}
        cache = self._cache
        if cache is None or cache.run_ids != run_ids:
            cache = _CachedCoverage(run_ids)
        now = time.monotonic()
        if cache.hour != hour or now - cache.read_at_s > _MAX_AGE_S:
            slices = self._read_slices(variants, newest_ms, cache.slices)
            coverage = {
                (self._number, variant): self._coverage_of(_displayed_items(slices, variant), newest_ms)
                for variant in variants
            }
            cache = self._cache = _CachedCoverage(run_ids, hour, now, coverage, slices)
        return cache.coverage

    def _coverage_of(self, items: _ItemHashes, newest_ms: int) -> ItemCoverage:
        settings = self._settings.items
        assert settings is not None
        # If only a sample of the catalogue is counted, the number of displayed items is unknown.
        catalogue_size = (
            len(settings.catalogue) if settings.catalogue is not None and settings.sample_one_in == 1 else None
        )
        since_ms = self._layout.slice_start_ms(self._layout.oldest_slice(newest_ms))
        return ItemCoverage(since_ms, len(items), None if catalogue_size is None else len(items) / catalogue_size)

    def _read_slices(self, variants: Sequence[int], newest_ms: int, cached_slices: _Slices) -> _Slices:
        """Return the slices of the horizon; unchanged slices are taken from the cache."""
        oldest, newest = self._layout.oldest_slice(newest_ms), self._layout.slice_of(newest_ms)
        slices: dict[tuple[int, int, int], _Slice] = {}
        for shard in self._store:
            with translating_errors(self._store.settings):
                pipeline = shard.client.pipeline(transaction=False)
                for variant in variants:
                    pipeline.zrange(shard.keys.item_index(self._number, variant), 0, -1, withscores=True)
                indexes = pipeline.execute()
            for variant, members in zip(variants, indexes, strict=True):
                for member, commit in members:
                    slice_number = int(member)
                    if not oldest <= slice_number <= newest:
                        continue
                    slice_key = shard.keys.shard, variant, slice_number
                    cached = cached_slices.get(slice_key)
                    if cached is None or cached.commit != commit:
                        cached = _Slice(commit, self._read_items(shard, variant, slice_number))
                    slices[slice_key] = cached
        return slices

    def _read_items(self, shard: StoreShard, variant: int, slice_number: int) -> _ItemHashes:
        """Return the items that a variant has displayed in a slice, without the hash of items outside the catalogue."""
        keys = (
            shard.keys.item_counts(self._number, variant, slice_number, bucket)
            for bucket in range(self._layout.bucket_count)
        )
        items = {field[:-1] for field, _ in read_nonzero_fields(shard, keys) if field[-1:] == SHOWN_FIELD} - {
            OTHER_ITEMS_HASH
        }
        return np.fromiter(map(int.from_bytes, items), np.uint64, len(items))


def _displayed_items(slices: _Slices, variant: int) -> _ItemHashes:
    """Return the distinct items that a variant has displayed in some slice, on some shard."""
    items = [cached.items for (_, slice_variant, _), cached in slices.items() if slice_variant == variant]
    return np.unique(np.concatenate(items)) if items else np.zeros(0, np.uint64)
