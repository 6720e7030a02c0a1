"""Decayed means, read from chunks of time buckets; and chunks rewritten when they have become long.

The sums of a chunk under exponential decay stay the same until a commit changes the chunk (`monitor.decay`). The index
of chunks names the commit that last changed each of them. A reading asks for the chunks that have changed since the
previous reading, reads these, and takes the sums of the others from its `Cache`.
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

from monitor.aggregates import BUCKETS_PER_CHUNK, Floats, Ints, Layout, bucket_span_ms
from monitor.config import DecaySpec
from monitor.decay import (
    Chunks,
    Groups,
    Moments,
    add_chunks,
    bucket_middles_ms,
    chunk_sums,
    chunks_in_reach,
    decayed,
)
from monitor.store.connection import unavailable
from monitor.store.redis import RedisStore
from monitor.store.shards import Shards
from monitor.store.stored_records import at_once, decode_chunk, encode_chunk, values
from monitor.summary import DecayedMean

_READ_AT_ONCE: Final = 64
"""Chunks that are read at the same time: 4 MB with six metrics."""
_REWRITTEN_AT_ONCE: Final = 32
_REWRITES: Final = 8
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
    """What a reading leaves for the next one: which chunks are stored, and the sums of those that it needed.

    The sums of a chunk are valid until a commit after `commits` changes it. All are valid only while the servers' runs
    are the same, because a restart may lose commits whose numbers come again, and while the shards' marks are, because
    a store that was reset counts its commits anew. Of each series it keeps the numbers of all chunks, 8 bytes each, and
    the sums of about 81, 0.6 kB each with six metrics. A reading makes a new cache, so threads may share one.
    """

    runs: tuple[str, ...]
    marks: Sequence[bytes] = ()
    commits: Sequence[int] = ()
    """How many commits each shard had applied."""
    chunks: Mapping[Name, Chunks] = field(default_factory=dict)
    sums: Mapping[Name, dict[int, Floats]] = field(default_factory=dict)
    """Of exponential decays, by chunk: see `chunk_sums`."""


class Buckets:
    """One reading of time buckets: as of a time in the past, or of all that is stored."""

    def __init__(self, store: Shards, cache: Cache, as_of_ms: int, *, past: bool) -> None:
        self._store = store
        self._cache = cache
        self._as_of_ms = as_of_ms
        self._past = past

    def means(self, series: Sequence[Series]) -> tuple[Mapping[Name, Sequence[DecayedMean]], Cache]:
        """Return the decayed means of every metric in each series, and the cache for the next reading of these series.

        A reading of the past returns the cache that it was given. Raises `StoreUnavailable` and `StoreOwned`.
        """
        given, self._cache = self._cache, _refreshed(self._cache, self._store, series)
        windows = {each.name: self._in_reach(each) for each in series}
        exponential = [each for each in series if each.decay.half_life_ms is not None]
        if self._past:
            for each in exponential:
                # The time cuts this chunk: not everything in it counts.
                self._cache.sums[each.name].pop(self._as_of_ms // bucket_span_ms(each.decay), None)
        self._load([(each, chunk) for each in exponential for chunk in windows[each.name]])
        for each in exponential:
            while older := self._older(each, windows[each.name]):
                self._load([(each, chunk) for chunk in older])
                windows[each.name] = older + windows[each.name]
        means = _means(series, [self._moments(each, windows[each.name]) for each in series])
        sums = {each.name: self._cache.sums[each.name] for each in exponential}
        needed = {name: {chunk: own[chunk] for chunk in windows[name]} for name, own in sums.items()}
        return means, given if self._past else replace(self._cache, sums=needed)

    def _in_reach(self, series: Series) -> Chunks:
        """Return the chunks that are in reach of the newest."""
        return chunks_in_reach(self._cache.chunks[series.name], self._as_of_ms, series.decay, series.oldest)

    def _older(self, series: Series, window: Chunks) -> Chunks:
        """Return the chunks before a window that are needed, as a metric's newest observation lies so far back."""
        stored = self._cache.chunks[series.name]
        if not window or window[0] == stored[0]:
            return _NO_CHUNKS
        sums, anchor, missing = self._cache.sums[series.name], window[-1], series.observed
        for chunk in reversed(window):
            missing = missing & (sums[chunk][0, : series.layout.metrics] <= 0)
            if not missing.any():
                anchor = chunk
                break
        else:
            anchor = stored[bisect_left(stored, window[0]) - 1]
        more = chunks_in_reach(stored, self._as_of_ms, series.decay, stored[0], anchor)
        return more[: bisect_left(more, window[0])]

    def _load(self, wanted: Sequence[tuple[Series, int]]) -> None:
        """Read the chunks whose sums are unknown, and add their sums to the cache."""
        unknown = defaultdict[tuple[Layout, DecaySpec], list[tuple[Series, int]]](list)
        for series, chunk in wanted:
            if chunk not in self._cache.sums[series.name]:
                unknown[series.layout, series.decay].append((series, chunk))
        for (layout, decay), chunks in unknown.items():
            span_ms = bucket_span_ms(decay)
            for start in range(0, len(chunks), _READ_AT_ONCE):
                some = chunks[start : start + _READ_AT_ONCE]
                after_end_ms = [self._as_of_ms - (chunk + 1) * span_ms if self._past else 0 for _, chunk in some]
                sums = chunk_sums(self._read(some, layout), layout, decay, np.minimum(after_end_ms, 0.0))
                for (series, chunk), own in zip(some, sums, strict=True):
                    self._cache.sums[series.name][chunk] = own

    def _moments(self, series: Series, window: Chunks) -> Floats:
        """Return the fields of `Moments` over a window of chunks: 5 × 2·m."""
        layout, decay = series.layout, series.decay
        if not window:
            return np.zeros((5, 2 * layout.metrics))
        if decay.half_life_ms is not None:
            return add_chunks(np.array([self._cache.sums[series.name][chunk] for chunk in window]), window)
        # Weights are no powers of a common factor, so they change with the time of the reading.
        records = self._read([(series, chunk) for chunk in window], layout).reshape(-1, layout.response_width)
        span_ms = bucket_span_ms(decay)
        groups = Groups.of_buckets(records, bucket_middles_ms(window, span_ms), layout, span_ms)
        return np.array(astuple(decayed(groups, self._as_of_ms, decay)))

    def _read(self, wanted: Sequence[tuple[Series, int]], layout: Layout) -> Ints:
        """Return the records of chunks, added up over the shards: chunks × buckets × width."""
        width = BUCKETS_PER_CHUNK * layout.response_width
        total = np.zeros((len(wanted), width), dtype=np.int64)
        for shard in self._store:
            keys = [shard.keys.chunk(*series.name, chunk) for series, chunk in wanted]
            stored = [
                value
                for start in range(0, len(keys), _READ_AT_ONCE)
                for value in values(shard, keys[start : start + _READ_AT_ONCE])
            ]
            total += [decode_chunk(key, runs, width) for key, runs in zip(keys, stored, strict=True)]
        return total.reshape(-1, BUCKETS_PER_CHUNK, layout.response_width)


def _refreshed(cache: Cache, store: Shards, series: Sequence[Series]) -> Cache:
    """Return a cache of the chunks that are stored now, without the sums of those that have changed."""
    commits, marks, replies = [], [], []
    for shard, commit in zip(store, cache.commits or [-1] * len(store), strict=True):
        indexes = [("ZRANGE", shard.keys.chunks(*each.name), f"({commit}", "+inf", "BYSCORE") for each in series]
        (applied, mark), *members = at_once(shard, [("HMGET", shard.keys.meta, "seq", "made"), *indexes])
        commits.append(int(applied or 0))
        marks.append(mark or b"")
        replies.append(members)
    if cache.marks and cache.marks != marks:
        return _refreshed(Cache(cache.runs), store, series)
    chunks, sums = {}, {}
    for each, *shards in zip(series, *replies, strict=True):
        changed = {int(member) for members in shards for member in members}
        stored = cache.chunks.get(each.name, _NO_CHUNKS)
        if any(chunk not in stored[place : place + 1] for chunk in changed for place in [bisect_left(stored, chunk)]):
            stored = array("q", sorted({*stored, *changed}))
        chunks[each.name] = stored[bisect_left(stored, each.oldest) :]
        valid = cache.sums.get(each.name, {}).items()
        sums[each.name] = {chunk: own for chunk, own in valid if chunk not in changed}
    return Cache(cache.runs, marks, commits, chunks, sums)


def _means(series: Sequence[Series], moments: Sequence[Floats]) -> dict[Name, list[DecayedMean]]:
    """Return the decayed means of each series: of every metric over rated and over all responses."""
    sums = Moments(*np.concatenate([np.zeros((5, 0)), *moments], axis=1))
    statistics = np.array([sums.mean, sums.effective_count, sums.standard_error])
    defined = statistics.astype(object)
    defined[np.isnan(statistics)] = None
    columns = iter(defined.T.tolist())
    found = {}
    for each in series:
        rated, everything = (list(islice(columns, each.layout.metrics)) for _ in range(2))
        found[each.name] = [
            DecayedMean(mean, count, mean_over_all, count_over_all, error)
            for (mean, count, error), (mean_over_all, count_over_all, _) in zip(rated, everything, strict=True)
        ]
    return found


def sum_up(store: RedisStore) -> None:
    """Replace the runs of chunks that commits have found long by their sums (docs/decisions/0004-buckets.md).

    Called now and then: a commit would wait for it, and the next commits append to the same chunks. Very many chunks
    are left to the next calls.
    """
    with unavailable(store.settings):
        for _ in range(_REWRITES):
            chunks = list(islice(store.long_chunks, _REWRITTEN_AT_ONCE))
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
                store.run_script(store.scripts.sum, keys, arguments)
            for chunk in chunks:
                del store.long_chunks[chunk]
