"""Decayed means, read from the time buckets: of exponential decays, only the chunks that have changed are read again.

The index of chunks says which have changed since the commits that a reading knows, one number for each shard. What the
others amount to is remembered for as long as the servers are the same: after a restart that lost commits, the same
numbers come again (see `Reader.summary`).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from itertools import islice
from typing import Final, TypeAlias

import numpy as np
from librt.strings import BytesWriter
from librt.vecs import vec
from mypy_extensions import i64

from monitor.aggregates import (
    BUCKETS_PER_CHUNK,
    Floats,
    Ints,
    Layout,
    Moments,
    bucket_span_ms,
    chunks_in_reach,
    decayed,
)
from monitor.series import Series, digests, reached_buckets, together
from monitor.store.chunks import NO_CHUNKS, Changed, Chunks, Indexes, Name, Place
from monitor.store.moments import values
from monitor.store.rows import chunk_integers, decode_records, weigh_chunk
from monitor.store.shards import Shards
from monitor.summary import DecayedMean

_BUCKETS: Final = np.arange(BUCKETS_PER_CHUNK)
_NO_NUMBERS: Final = np.zeros(0, dtype=np.int64)
_AT_ONCE: Final = 64
"""Chunks that are read at the same time: 4 MB with six metrics."""

Wanted: TypeAlias = tuple[Place, Chunks]
"""A place, and chunks of it."""
Lacking: TypeAlias = "tuple[Place, Window, int]"
"""Where in a window what a chunk amounts to is lacking."""


@dataclass(frozen=True, slots=True)
class Window:
    """Chunks of one place, and what each amounts to."""

    chunks: Chunks
    from_ms: Floats
    """As of when, or later, it amounts to that; ∞ where it was so in one reading only."""
    sums: Floats
    """See `digests`."""

    def place_of(self, chunk: int) -> int | None:
        """Return where a chunk stands; None if it does not."""
        at = bisect_left(self.chunks, chunk)
        return at if at < len(self.chunks) and self.chunks[at] == chunk else None

    def part(self, chunks: Chunks) -> Window:
        """Return a window of other chunks, with what is known of them here; of the others nothing, from ∞ on."""
        if self.chunks == chunks:
            return self
        start = bisect_left(self.chunks, chunks[0]) if chunks else 0
        part = slice(start, start + len(chunks))
        if self.chunks[part] == chunks:
            return Window(chunks, self.from_ms[part], self.sums[part])
        held, wanted = np.asarray(self.chunks), np.asarray(chunks)
        places = held.searchsorted(wanted).clip(max=len(held) - 1)
        # What is copied of others is not used: it is read and replaced.
        return Window(chunks, np.where(held[places] == wanted, self.from_ms[places], np.inf), self.sums[places])

    def copied(self) -> Window:
        """Return a copy, which may be changed."""
        return Window(self.chunks, self.from_ms.copy(), self.sums.copy())

    def after(self, older: Window) -> Window:
        """Return both windows as one."""
        return Window(
            older.chunks + self.chunks,
            np.concatenate([older.from_ms, self.from_ms]),
            np.concatenate([older.sums, self.sums]),
        )


@dataclass(frozen=True, slots=True)
class Memory:
    """What a reading found while the servers were those of `runs`: the next one begins with it.

    It is bounded by what a reading needs: for each variant and decay the numbers of all chunks, of 8 bytes each, and
    what the 81 newest amount to, or as many more as a metric has not been observed in, of 0.6 kB each with six metrics.
    """

    runs: tuple[str, ...]
    indexes: Indexes = field(default_factory=Indexes)
    windows: Mapping[Name, Window] = field(default_factory=dict)


class Buckets:
    """Reads the time buckets of a store as of one time."""

    def __init__(self, store: Shards, memory: Memory, as_of_ms: int) -> None:
        self._store = store
        self._memory = memory
        self._as_of_ms = as_of_ms
        self._indexes = Indexes()
        self._changed: Changed = {}

    def means(self, places: Sequence[Place]) -> tuple[list[list[DecayedMean]], Memory]:
        """Return the decayed means of every metric at each place, and what to remember for the same places."""
        self._indexes, self._changed = self._memory.indexes.now(self._store, places)
        wanted = [(place, self._reach(place)) for place in places]
        means, windows = self._exponential([each for each in wanted if each[0].decay.half_life_ms is not None])
        means |= self._reciprocal([each for each in wanted if each[0].decay.half_life_ms is None])
        return [means[place.name] for place in places], Memory(self._memory.runs, self._indexes, windows)

    def _reach(self, place: Place) -> Chunks:
        """Return the chunks that are in reach of the newest."""
        return chunks_in_reach(self._indexes.chunks[place.name], self._as_of_ms, place.decay, place.oldest)

    def _exponential(self, wanted: Sequence[Wanted]) -> tuple[dict[Name, list[DecayedMean]], Mapping[Name, Window]]:
        """Read what is in reach, then what is needed of what lies further back."""
        windows, places = self._windows(wanted), [place for place, _ in wanted]
        while places:
            further = [(place, self._older(place, windows[place.name])) for place in places]
            older = [(place, chunks) for place, chunks in further if chunks]
            for name, window in self._windows(older).items():
                windows[name] = windows[name].after(window)
            places = [place for place, _ in older]
        alike = defaultdict[int, list[Name]](list)
        for place, _ in wanted:
            alike[place.layout.metrics].append(place.name)
        found: dict[Name, list[DecayedMean]] = {}
        for count, names in alike.items():
            own = [windows[name] for name in names]
            moments = together([window.sums for window in own], [window.chunks for window in own])
            found |= dict(zip(names, _means(moments, count), strict=True))
        return found, windows

    def _anchor(self, place: Place, window: Window) -> float:
        """Return the chunk of the newest observation of the metric that was observed longest ago.

        −∞ if that lies before the window; ∞ if nothing does that is stored, or no metric was ever observed.
        """
        seen = place.seen
        if not window.chunks or window.chunks[0] <= self._indexes.chunks[place.name][0] or not seen.any():
            return math.inf
        for chunk, sums in zip(reversed(window.chunks), window.sums[::-1], strict=True):
            seen = seen & (sums[0, : place.layout.metrics] <= 0)
            if not seen.any():
                return chunk
        return -math.inf

    def _older(self, place: Place, window: Window) -> Chunks:
        """Return the chunks before a window that are needed, as a metric's newest observation lies so far back."""
        anchor = self._anchor(place, window)
        if anchor == math.inf or anchor == window.chunks[-1]:
            return NO_CHUNKS
        stored = self._indexes.chunks[place.name]
        newest = stored[bisect_left(stored, window.chunks[0]) - 1] if anchor == -math.inf else int(anchor)
        more = chunks_in_reach(stored, self._as_of_ms, place.decay, stored[0], newest)
        return more[: bisect_left(more, window.chunks[0])]

    def _windows(self, wanted: Sequence[Wanted]) -> dict[Name, Window]:
        """Return what chunks of exponential decays amount to, reading those that are not known as they are now."""
        windows = {place.name: self._remembered(place, chunks) for place, chunks in wanted}
        lacking = defaultdict[Layout, list[Lacking]](list)
        for place, _ in wanted:
            unknown = np.flatnonzero(windows[place.name].from_ms > self._as_of_ms).tolist()
            if unknown:
                # What is remembered is others' as well.
                window = windows[place.name] = windows[place.name].copied()
                lacking[place.layout] += [(place, window, at) for at in unknown]
        for layout, own in lacking.items():
            self._weigh(own, layout)
        return windows

    def _weigh(self, lacking: Sequence[Lacking], layout: Layout) -> None:
        """Read what is lacking, all of one layout, and put what it amounts to in its place."""
        chunks = [window.chunks[at] for _, window, at in lacking]
        spans_ms = [bucket_span_ms(place.decay) for place, _, _ in lacking]
        reached = reached_buckets(chunks, spans_ms, self._as_of_ms)
        stored = self._stored([(place, chunk) for (place, _, _), chunk in zip(lacking, chunks, strict=True)])
        nothing, writer = vec[i64]([0] * BUCKETS_PER_CHUNK * layout.response_width), BytesWriter()
        for (names, runs), until in zip(stored, reached.tolist(), strict=True):
            weigh_chunk(writer, nothing, names, runs, layout.metrics, until)
        sums, from_ms = digests(writer.getvalue(), chunks, spans_ms, reached, layout, self._as_of_ms)
        for (_, window, at), each, since_ms in zip(lacking, sums, from_ms.tolist(), strict=True):
            window.sums[at], window.from_ms[at] = each, since_ms

    def _remembered(self, place: Place, chunks: Chunks) -> Window:
        """Return a window with what is known of the chunks as they are now; of the others nothing, from ∞ on."""
        known = self._memory.windows.get(place.name)
        if known is None or not known.chunks:
            shape = len(chunks), 5, 2 * place.layout.metrics
            return Window(chunks, np.full(len(chunks), np.inf), np.zeros(shape))
        found = known.part(chunks)
        changed = [at for chunk in self._changed[place.name] if (at := found.place_of(chunk)) is not None]
        if not changed:
            return found
        from_ms = found.from_ms.copy()
        from_ms[changed] = np.inf
        return Window(chunks, from_ms, found.sums)

    def _reciprocal(self, wanted: Sequence[Wanted]) -> dict[Name, list[DecayedMean]]:
        """Weights are no products: all chunks are read and weighted each time."""
        stored = self._stored([(place, chunk) for place, chunks in wanted for chunk in chunks])
        found = {}
        for place, chunks in wanted:
            tables = [_table(place, *each) for each in islice(stored, len(chunks))]
            series = _series(place, chunks, tables)
            metrics = range(place.layout.metrics)
            groups = [*map(series.rated, metrics), *map(series.everything, metrics)]
            columns = [astuple(decayed(each, self._as_of_ms, place.decay)) for each in groups]
            (found[place.name],) = _means(Moments(*np.array(columns).T[:, None]), len(metrics))
        return found

    def _stored(self, wanted: Sequence[tuple[Place, int]]) -> Iterator[tuple[Sequence[bytes], Sequence[bytes | None]]]:
        """Yield the names of each chunk on all shards, and what is stored there; many are of one moment on each."""
        for start in range(0, len(wanted), _AT_ONCE):
            some = wanted[start : start + _AT_ONCE]
            names = [[shard.keys.chunk(*place.name, chunk) for place, chunk in some] for shard in self._store]
            found = [values(shard, own) for shard, own in zip(self._store, names, strict=True)]
            yield from zip(zip(*names, strict=True), zip(*found, strict=True), strict=True)


def _table(place: Place, names: Sequence[bytes], stored: Sequence[bytes | None]) -> Ints:
    """Return the records of a chunk's buckets, added up over the shards."""
    width = place.layout.response_width
    integers = [None if runs is None else chunk_integers(name, runs) for name, runs in zip(names, stored, strict=True)]
    found: Ints = decode_records(names, integers, BUCKETS_PER_CHUNK * width).sum(axis=0).reshape(-1, width)
    return found


def _series(place: Place, chunks: Sequence[int], tables: Sequence[Ints]) -> Series:
    """Return the buckets that are not empty."""
    numbers = np.concatenate([_NO_NUMBERS, *[_BUCKETS + chunk * BUCKETS_PER_CHUNK for chunk in chunks]])
    table = np.concatenate([np.zeros((0, place.layout.response_width), dtype=np.int64), *tables])
    filled = table[:, 0] > 0
    return Series.read(table[filled], numbers[filled], bucket_span_ms(place.decay), place.layout)


def _means(moments: Moments, metrics: int) -> list[list[DecayedMean]]:
    """Return the decayed means of each row of moments: of the metrics over rated, then over all responses."""
    statistics = np.array([moments.mean, moments.effective_count, moments.standard_error])
    found = statistics.astype(object)
    found[np.isnan(statistics)] = None
    return [
        [
            DecayedMean(mean, effective_count, mean_over_all, effective_count_over_all, standard_error)
            for (mean, effective_count, standard_error), (mean_over_all, effective_count_over_all, _) in zip(
                columns[:metrics], columns[metrics:], strict=True
            )
        ]
        for columns in np.moveaxis(found, 0, 2).tolist()
    ]
