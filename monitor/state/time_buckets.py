"""Decayed means, read from chunks of time buckets; and the rewriting of long chunks.

The sums of a chunk under exponential decay stay the same until a commit changes the chunk (`monitor.metrics.decay`).
The index of chunks names the commit that last changed each of them. A reading asks for the chunks that have changed
since the previous reading, reads these, and takes the sums of all others from its `Cache`.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from itertools import islice
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from monitor.analysis import DecayedMean
from monitor.config import DecaySpec
from monitor.metrics import (
    BUCKETS_PER_CHUNK,
    Chunks,
    Floats,
    Groups,
    Ints,
    Layout,
    Moments,
    bucket_middles_ms,
    bucket_span_ms,
    chunk_moments,
    decayed,
    merge_moments,
    relevant_chunks,
)
from monitor.state.record_reader import add_chunk, decode_chunk, encode_chunk, transaction, values
from monitor.state.redis_connection import unavailable
from monitor.state.redis_store import RedisStore
from monitor.state.shards import Shards

_BATCH: Final = 64
"""Chunks that are read at the same time: 4 MB with six metrics."""
_REWRITE_BATCH: Final = 32
_REWRITE_BATCHES: Final = 8
_NO_CHUNKS: Final[Chunks] = array("q")

Name: TypeAlias = tuple[int, int, str]
"""Number of the experiment, variant, decay."""


@dataclass(frozen=True, slots=True)
class Series:
    """The time buckets of one variant and decay."""

    name: Name
    decay: DecaySpec
    layout: Layout
    observed: NDArray[np.bool_]
    """Which metrics have ever had a value."""
    oldest: int
    """The first chunk that retention keeps."""


@dataclass(frozen=True, slots=True)
class Cache:
    """The numbers of all stored chunks, and the sums of the chunks that the latest reading needed.

    The sums of a chunk are valid until a commit after `commits` changes it. All are valid only while the servers' runs
    are the same, because a restart may lose commits whose numbers come again, and while the shards' identities are,
    because a store that was reset counts its commits anew. Of each series it keeps the numbers of all chunks, 8 bytes
    each, and the sums of about 81, 0.6 kB each with six metrics. A reading makes a new cache, so threads may share one.
    """

    runs: tuple[str, ...]
    identities: Sequence[bytes] = ()
    commits: Sequence[int] = ()
    """How many commits each shard had applied."""
    chunks: Mapping[Name, Chunks] = field(default_factory=dict)
    sums: Mapping[Name, dict[int, Floats]] = field(default_factory=dict)
    """Of exponential decays, by chunk: see `chunk_moments`."""


class BucketReading:
    """One reading of time buckets: as of a time in the past, or of everything in the store."""

    def __init__(self, store: Shards, cache: Cache, as_of_ms: int, *, past: bool) -> None:
        self._store = store
        self._cache = cache
        self._as_of_ms = as_of_ms
        self._past = past

    def means(self, all_series: Sequence[Series]) -> tuple[Mapping[Name, Sequence[DecayedMean]], Cache]:
        """Return the decayed means of all metrics in each series, and the cache for the next reading of these series.

        Raises `StoreUnavailable` and `StoreOwned`.
        """
        self._cache = _refreshed(self._cache, self._store, all_series)
        windows = {series.name: self._window(series) for series in all_series}
        exponential = [series for series in all_series if series.decay.half_life_ms is not None]
        self._load([(series, chunk) for series in exponential for chunk in windows[series.name]])
        for series in exponential:
            while older := self._older(series, windows[series.name]):
                self._load([(series, chunk) for chunk in older])
                windows[series.name] = older + windows[series.name]
        means = _means(all_series, [self._moments(series, windows[series.name]) for series in all_series])
        needed_sums = {
            series.name: {
                chunk: self._cache.sums[series.name][chunk]
                for chunk in windows[series.name]
                if not self._is_cut(series, chunk)
            }
            for series in exponential
        }
        return means, replace(self._cache, sums=needed_sums)

    def _is_cut(self, series: Series, chunk: int) -> bool:
        """Return whether only a part of a chunk counts in this reading."""
        return self._past and chunk == self._as_of_ms // bucket_span_ms(series.decay)

    def _window(self, series: Series) -> Chunks:
        """Return the chunks that are needed if every metric was observed in the newest."""
        return relevant_chunks(self._cache.chunks[series.name], self._as_of_ms, series.decay, series.oldest)

    def _older(self, series: Series, window: Chunks) -> Chunks:
        """Return the chunks before a window that are needed, as a metric's newest observation lies so far back."""
        stored = self._cache.chunks[series.name]
        if not window or window[0] == stored[0]:
            return _NO_CHUNKS
        sums, missing, newest = self._cache.sums[series.name], series.observed, window[-1]
        for chunk in reversed(window):
            missing = missing & (sums[chunk][0, : series.layout.metrics] <= 0)
            if not missing.any():
                newest = chunk
                break
        else:
            newest = stored[bisect_left(stored, window[0]) - 1]
        needed = relevant_chunks(stored, self._as_of_ms, series.decay, stored[0], newest)
        return needed[: bisect_left(needed, window[0])]

    def _load(self, chunks: Sequence[tuple[Series, int]]) -> None:
        """Read the chunks whose sums are not in the cache, and put their sums there."""
        unknown = defaultdict[tuple[Layout, int], list[tuple[Series, int]]](list)
        for series, chunk in chunks:
            if chunk not in self._cache.sums[series.name] or self._is_cut(series, chunk):
                unknown[series.layout, bucket_span_ms(series.decay)].append((series, chunk))
        for (layout, span_ms), similar in unknown.items():
            for start in range(0, len(similar), _BATCH):
                batch = similar[start : start + _BATCH]
                as_of_ms = [self._as_of_ms - (chunk + 1) * span_ms for _, chunk in batch] if self._past else None
                moments = chunk_moments(self._read(batch, layout), layout, span_ms, as_of_ms)
                for (series, chunk), sums in zip(batch, moments, strict=True):
                    self._cache.sums[series.name][chunk] = sums

    def _moments(self, series: Series, window: Chunks) -> Floats:
        """Return the fields of `Moments` over a window of chunks: 5 × 2·m."""
        layout, decay = series.layout, series.decay
        if not window:
            return np.zeros((5, 2 * layout.metrics))
        if decay.half_life_ms is not None:
            return merge_moments(np.array([self._cache.sums[series.name][chunk] for chunk in window]), window)
        # Reciprocal weights change with the time of the reading, so nothing of them is cached.
        records = self._read([(series, chunk) for chunk in window], layout).reshape(-1, layout.response_width)
        span_ms = bucket_span_ms(decay)
        groups = Groups.of_buckets(records, bucket_middles_ms(window, span_ms), layout, span_ms)
        return np.array(astuple(decayed(groups, self._as_of_ms, decay)))

    def _read(self, chunks: Sequence[tuple[Series, int]], layout: Layout) -> Ints:
        """Return the records of chunks, added up over the shards: chunks × buckets × width."""
        total = np.zeros((len(chunks), BUCKETS_PER_CHUNK * layout.response_width), dtype=np.int64)
        for shard in self._store:
            keys = [shard.keys.chunk(*series.name, chunk) for series, chunk in chunks]
            for start in range(0, len(keys), _BATCH):
                batch = keys[start : start + _BATCH]
                for integers, key, stored in zip(total[start:], batch, values(shard, batch), strict=False):
                    add_chunk(integers, key, stored)
        return total.reshape(-1, BUCKETS_PER_CHUNK, layout.response_width)


def _refreshed(cache: Cache, store: Shards, all_series: Sequence[Series]) -> Cache:
    """Return a cache with the numbers of all stored chunks, and without the sums of changed chunks."""
    commits, identities, replies = [], [], []
    for shard, commit in zip(store, cache.commits or [-1] * len(store), strict=True):
        indexes = [
            ("ZRANGE", shard.keys.chunks(*series.name), f"({commit}", "+inf", "BYSCORE") for series in all_series
        ]
        (applied, identity), *members = transaction(shard, [("HMGET", shard.keys.meta, "seq", "made"), *indexes])
        commits.append(int(applied or 0))
        identities.append(identity or b"")
        replies.append(members)
    if cache.identities and cache.identities != identities:
        return _refreshed(Cache(cache.runs), store, all_series)
    chunks, sums = {}, {}
    for series, *shards in zip(all_series, *replies, strict=True):
        changed = {int(member) for members in shards for member in members}
        stored = cache.chunks.get(series.name, _NO_CHUNKS)
        if any(chunk not in stored[index : index + 1] for chunk in changed for index in [bisect_left(stored, chunk)]):
            stored = array("q", sorted({*stored, *changed}))
        chunks[series.name] = stored[bisect_left(stored, series.oldest) :]
        cached = cache.sums.get(series.name, {}).items()
        sums[series.name] = {chunk: moments for chunk, moments in cached if chunk not in changed}
    return Cache(cache.runs, identities, commits, chunks, sums)


def _means(all_series: Sequence[Series], moments: Sequence[Floats]) -> dict[Name, list[DecayedMean]]:
    sums = Moments(*np.concatenate([np.zeros((5, 0)), *moments], axis=1))
    statistics = np.array([sums.mean, sums.effective_count, sums.standard_error])
    defined = statistics.astype(object)
    defined[np.isnan(statistics)] = None
    columns = iter(defined.T.tolist())
    means = {}
    for series in all_series:
        over_rated, over_all = (list(islice(columns, series.layout.metrics)) for _ in range(2))
        means[series.name] = [
            DecayedMean(mean, count, mean_over_all, count_over_all, error)
            for (mean, count, error), (mean_over_all, count_over_all, _) in zip(over_rated, over_all, strict=True)
        ]
    return means


def sum_up(store: RedisStore) -> None:
    """Replace the runs of chunks that commits have found long by their sums (docs/decisions/0004-buckets.md).

    Called now and then: a commit would wait for it, and the next commits append to the same chunks. Very many chunks
    are left to the next calls.
    """
    with unavailable(store.settings):
        for _ in range(_REWRITE_BATCHES):
            chunks = list(islice(store.long_chunks, _REWRITE_BATCH))
            if not chunks:
                return
            keys: list[bytes] = []
            arguments: list[bytes] = []
            for chunk, stored in zip(chunks, store.rows(chunks), strict=True):
                # Another worker may have replaced them by now.
                if stored is not None and len(stored) >= store.long_chunks[chunk]:
                    keys.append(chunk)
                    arguments += (stored, encode_chunk(decode_chunk(chunk, stored)))
            if keys:
                store.run_script(store.scripts.compact, keys, arguments)
            for chunk in chunks:
                del store.long_chunks[chunk]
