"""Decayed means, read from chunks of time buckets; and the rewriting of long chunks.

The sums of a chunk under exponential decay remain the same until a commit changes the chunk (`monitor.metrics.decay`).
The index of chunks contains the number of the commit that last changed each chunk. A reading reads only the chunks that
have changed since the previous reading, and takes the sums of all other chunks from its `BucketCache`.
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
    ChunkNumbers,
    DecayedMoments,
    FloatArray,
    IntArray,
    ObservationGroups,
    RecordLayout,
    bucket_midpoints_ms,
    chunk_length_ms,
    chunk_moments,
    decayed_moments,
    merge_moments,
    relevant_chunks,
)
from monitor.state.record_reader import add_chunk, decode_chunk, encode_chunk, read_in_transaction, read_records
from monitor.state.redis_connection import translating_errors
from monitor.state.sharded_store import ShardedStore
from monitor.state.store_shard import StoreShard

_CHUNKS_PER_READ: Final = 64
"""Chunks that are read at the same time: 4 MB with six metrics."""
_CHUNKS_PER_COMPACTION: Final = 32
_COMPACTIONS_PER_CALL: Final = 8
_NO_CHUNKS: Final[ChunkNumbers] = array("q")

SeriesKey: TypeAlias = tuple[int, int, str]
"""(number of the experiment, index of the variant, name of the decay)"""


@dataclass(frozen=True, slots=True)
class BucketSeries:
    """The time buckets of a variant and a decay."""

    key: SeriesKey
    decay: DecaySpec
    layout: RecordLayout
    observed_metrics: NDArray[np.bool_]
    """True for each metric that has ever had a value."""
    oldest_chunk: int
    """The first chunk that retention keeps."""


@dataclass(frozen=True, slots=True)
class BucketCache:
    """Numbers of all stored chunks, and sums of the chunks that the latest reading needed.

    The sums of a chunk are valid until a commit after `commits` changes the chunk. A restart of a server may lose
    commits, whose numbers are then used again. So all sums are valid only while the run ids of the servers remain the
    same. The store ids of the shards must also remain the same, because a reset store counts its commits from 0.

    For each series, the cache has the numbers of all chunks (8 bytes each) and the sums of about 81 chunks (0.6 kB each
    with six metrics). Each reading makes a new cache, so threads may share a cache.
    """

    run_ids: tuple[str, ...]
    store_ids: Sequence[bytes] = ()
    commits: Sequence[int] = ()
    """Number of commits of each shard."""
    chunks: Mapping[SeriesKey, ChunkNumbers] = field(default_factory=dict)
    sums: Mapping[SeriesKey, dict[int, FloatArray]] = field(default_factory=dict)
    """Series → chunk → sums under exponential decay, see `chunk_moments`."""


class BucketReading:
    """Reads time buckets once: as of a time in the past, or all buckets in the store."""

    def __init__(self, store: ShardedStore, cache: BucketCache, as_of_ms: int, *, past: bool) -> None:
        self._store = store
        self._cache = cache
        self._as_of_ms = as_of_ms
        self._past = past

    def read_means(
        self, all_series: Sequence[BucketSeries]
    ) -> tuple[Mapping[SeriesKey, Sequence[DecayedMean]], BucketCache]:
        """Return the decayed means of all metrics in each series, and a cache for the next reading of the same series.

        Raises `StoreUnavailable` and `UnusableStore`.
        """
        self._cache = _refreshed(self._cache, self._store, all_series)
        windows = {series.key: self._window(series) for series in all_series}
        exponential = [series for series in all_series if series.decay.half_life_ms is not None]
        self._load([(series, chunk) for series in exponential for chunk in windows[series.key]])
        for series in exponential:
            while older := self._older(series, windows[series.key]):
                self._load([(series, chunk) for chunk in older])
                windows[series.key] = older + windows[series.key]
        means = _means(all_series, [self._moments(series, windows[series.key]) for series in all_series])
        needed_sums = {
            series.key: {
                chunk: self._cache.sums[series.key][chunk]
                for chunk in windows[series.key]
                if not self._is_cut(series, chunk)
            }
            for series in exponential
        }
        return means, replace(self._cache, sums=needed_sums)

    def _is_cut(self, series: BucketSeries, chunk: int) -> bool:
        """Return whether the reading uses only a part of a chunk."""
        return self._past and chunk == self._as_of_ms // chunk_length_ms(series.decay)

    def _window(self, series: BucketSeries) -> ChunkNumbers:
        """Return the chunks that are needed if every metric was observed in the newest chunk."""
        return relevant_chunks(self._cache.chunks[series.key], self._as_of_ms, series.decay, series.oldest_chunk)

    def _older(self, series: BucketSeries, window: ChunkNumbers) -> ChunkNumbers:
        """Return the chunks before a window that are needed for metrics without an observation in the window."""
        stored = self._cache.chunks[series.key]
        if not window or window[0] == stored[0]:
            return _NO_CHUNKS
        sums, missing, newest = self._cache.sums[series.key], series.observed_metrics, window[-1]
        for chunk in reversed(window):
            missing = missing & (DecayedMoments(*sums[chunk]).weight[: series.layout.metric_count] <= 0)
            if not missing.any():
                newest = chunk
                break
        else:
            newest = stored[bisect_left(stored, window[0]) - 1]
        needed = relevant_chunks(stored, self._as_of_ms, series.decay, stored[0], newest)
        return needed[: bisect_left(needed, window[0])]

    def _load(self, chunks: Sequence[tuple[BucketSeries, int]]) -> None:
        """Read the chunks whose sums are not in the cache, and add the sums to the cache."""
        unknown = defaultdict[tuple[RecordLayout, int], list[tuple[BucketSeries, int]]](list)
        for series, chunk in chunks:
            if chunk not in self._cache.sums[series.key] or self._is_cut(series, chunk):
                unknown[series.layout, chunk_length_ms(series.decay)].append((series, chunk))
        for (layout, span_ms), similar in unknown.items():
            for start in range(0, len(similar), _CHUNKS_PER_READ):
                batch = similar[start : start + _CHUNKS_PER_READ]
                as_of_ms = [self._as_of_ms - (chunk + 1) * span_ms for _, chunk in batch] if self._past else None
                moments = chunk_moments(self._read(batch, layout), layout, span_ms, as_of_ms)
                for (series, chunk), sums in zip(batch, moments, strict=True):
                    self._cache.sums[series.key][chunk] = sums

    def _moments(self, series: BucketSeries, window: ChunkNumbers) -> FloatArray:
        """Return the fields of `DecayedMoments` over a window of chunks: 5 × 2·m."""
        layout, decay = series.layout, series.decay
        if not window:
            return np.zeros((5, 2 * layout.metric_count))
        if decay.half_life_ms is not None:
            return merge_moments(np.array([self._cache.sums[series.key][chunk] for chunk in window]), window)
        # Reciprocal weights change with the time of the reading, so no sums are cached.
        records = self._read([(series, chunk) for chunk in window], layout).reshape(-1, layout.response_width)
        span_ms = chunk_length_ms(decay)
        groups = ObservationGroups.of_buckets(records, bucket_midpoints_ms(window, span_ms), layout, span_ms)
        return np.array(astuple(decayed_moments(groups, self._as_of_ms, decay)))

    def _read(self, chunks: Sequence[tuple[BucketSeries, int]], layout: RecordLayout) -> IntArray:
        """Return the records of chunks, added up over the shards: chunks × buckets × width."""
        total = np.zeros((len(chunks), BUCKETS_PER_CHUNK * layout.response_width), dtype=np.int64)
        for shard in self._store:
            keys = [shard.keys.bucket_chunk(*series.key, chunk) for series, chunk in chunks]
            for start in range(0, len(keys), _CHUNKS_PER_READ):
                batch = keys[start : start + _CHUNKS_PER_READ]
                for integers, key, stored in zip(total[start:], batch, read_records(shard, batch), strict=False):
                    add_chunk(integers, key, stored)
        return total.reshape(-1, BUCKETS_PER_CHUNK, layout.response_width)


def _refreshed(cache: BucketCache, store: ShardedStore, all_series: Sequence[BucketSeries]) -> BucketCache:
    """Return a cache with the numbers of all stored chunks, and without the sums of changed chunks."""
    commits, store_ids, replies = [], [], []
    for shard, commit in zip(store, cache.commits or [-1] * len(store), strict=True):
        indexes = [
            ("ZRANGE", shard.keys.bucket_index(*series.key), f"({commit}", "+inf", "BYSCORE") for series in all_series
        ]
        (applied, store_id), *members = read_in_transaction(
            shard, [("HMGET", shard.keys.meta, "commits", "store_id"), *indexes]
        )
        commits.append(int(applied or 0))
        store_ids.append(store_id or b"")
        replies.append(members)
    if cache.store_ids and cache.store_ids != store_ids:
        return _refreshed(BucketCache(cache.run_ids), store, all_series)
    chunks, sums = {}, {}
    for series, *members_by_shard in zip(all_series, *replies, strict=True):
        changed = {int(member) for members in members_by_shard for member in members}
        stored = cache.chunks.get(series.key, _NO_CHUNKS)
        if any(chunk not in stored[index : index + 1] for chunk in changed for index in [bisect_left(stored, chunk)]):
            stored = array("q", sorted({*stored, *changed}))
        chunks[series.key] = stored[bisect_left(stored, series.oldest_chunk) :]
        cached_sums = cache.sums.get(series.key, {}).items()
        sums[series.key] = {chunk: moments for chunk, moments in cached_sums if chunk not in changed}
    return BucketCache(cache.run_ids, store_ids, commits, chunks, sums)


def _means(all_series: Sequence[BucketSeries], moments: Sequence[FloatArray]) -> dict[SeriesKey, list[DecayedMean]]:
    sums = DecayedMoments(*np.concatenate([np.zeros((5, 0)), *moments], axis=1))
    statistics = np.array([sums.mean, sums.effective_count, sums.standard_error])
    defined = statistics.astype(object)
    defined[np.isnan(statistics)] = None
    columns = iter(defined.T.tolist())
    means = {}
    for series in all_series:
        over_rated, over_all = (list(islice(columns, series.layout.metric_count)) for _ in range(2))
        means[series.key] = [
            DecayedMean(mean, count, mean_over_all, count_over_all, error)
            for (mean, count, error), (mean_over_all, count_over_all, _) in zip(over_rated, over_all, strict=True)
        ]
    return means


def compact_time_buckets(store: StoreShard) -> None:
    """Replace the runs of long chunks by their sums (docs/decisions/0004-buckets.md).

    The chunks are those in `StoreShard.chunks_to_compact`, at most 256 in a call. Compaction is not part of a commit,
    because the commit would be slower, and the next commits append to the same chunks.
    """
    with translating_errors(store.settings):
        for _ in range(_COMPACTIONS_PER_CALL):
            chunks = list(islice(store.chunks_to_compact, _CHUNKS_PER_COMPACTION))
            if not chunks:
                return
            keys: list[bytes] = []
            arguments: list[bytes] = []
            for chunk, stored in zip(chunks, store.read_rows(chunks), strict=True):
                # Another worker may have compacted the chunk already.
                if stored is not None and len(stored) >= store.chunks_to_compact[chunk]:
                    keys.append(chunk)
                    arguments += (stored, encode_chunk(decode_chunk(chunk, stored)))
            if keys:
                store.run_script(store.scripts.compact, keys, arguments)
            for chunk in chunks:
                del store.chunks_to_compact[chunk]
