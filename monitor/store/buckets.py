"""Decayed means, read from the time buckets: of exponential decays, only the chunks that have changed are read again.

The index of chunks says in which commit each was last changed. What a chunk amounts to is remembered with the numbers
of those commits, one for each shard, for as long as the servers are the same: after a restart that lost commits, the
same numbers come again (see `Reader.summary`).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, field
from operator import eq
from typing import Final, TypeAlias

import numpy as np

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
from monitor.series import Series, digests, together
from monitor.store.chunks import Index, Name, Place, Stamp, read_indexes
from monitor.store.rows import chunk_integers, decode_records
from monitor.store.shards import Shards
from monitor.summary import DecayedMean

_BUCKETS: Final = np.arange(BUCKETS_PER_CHUNK)
_NO_NUMBERS: Final = np.zeros(0, dtype=np.int64)
_AT_ONCE: Final = 64
"""Chunks that are read and summed at the same time: 4 MB with six metrics."""

Wanted: TypeAlias = tuple[Place, Sequence[int]]
"""A place, and chunks of it, rising."""


@dataclass(frozen=True, slots=True)
class Window:
    """Chunks of one place, rising, and what each amounts to."""

    chunks: Sequence[int]
    stamps: Sequence[Stamp]
    from_ms: Floats
    """As of when, or later, it amounts to that; ∞ where it was so in one reading only."""
    sums: Floats
    """See `digests`."""

    def after(self, older: Window) -> Window:
        """Return both windows as one."""
        return Window(
            [*older.chunks, *self.chunks],
            [*older.stamps, *self.stamps],
            np.concatenate([older.from_ms, self.from_ms]),
            np.concatenate([older.sums, self.sums]),
        )


@dataclass(frozen=True, slots=True)
class Memory:
    """What the last reading found while the servers were those of `runs`.

    It is bounded by what a reading needs: for each variant and decay the 81 newest chunks, or as many more as a metric
    has not been observed in, of 0.6 kB each with six metrics.
    """

    runs: tuple[str, ...]
    windows: dict[Name, Window] = field(default_factory=dict)


class Buckets:
    """Reads the time buckets of a store as of one time; several threads may do so with one memory."""

    def __init__(self, store: Shards, memory: Memory, as_of_ms: int) -> None:
        self._store = store
        self._memory = memory
        self._as_of_ms = as_of_ms
        self._indexes: dict[Name, Index] = {}

    def means(self, places: Sequence[Place]) -> list[list[DecayedMean]]:
        """Return the decayed means of every metric at each place."""
        self._indexes |= read_indexes(self._store, places, self._as_of_ms)
        reach = {place.name: self._reach(place) for place in places}
        short = [place for place in places if not self._covered(place, max(reach[place.name], default=-math.inf))]
        self._complete(short)
        reach |= {place.name: self._reach(place) for place in short}
        wanted = [(place, reach[place.name]) for place in places]
        found = {
            **self._exponential([each for each in wanted if each[0].decay.half_life_ms is not None]),
            **self._reciprocal([each for each in wanted if each[0].decay.half_life_ms is None]),
        }
        return [found[place.name] for place in places]

    def _reach(self, place: Place) -> Sequence[int]:
        """Return the known chunks that are in reach of the newest."""
        return chunks_in_reach(list(self._indexes[place.name].stamps), self._as_of_ms, place.decay, place.oldest)

    def _covered(self, place: Place, anchor: float) -> bool:
        return self._indexes[place.name].covers(anchor)

    def _complete(self, places: Sequence[Place]) -> None:
        """Make known all chunks of places."""
        if places:
            self._indexes |= read_indexes(self._store, places, self._as_of_ms, whole=True)

    def _exponential(self, wanted: Sequence[Wanted]) -> dict[Name, list[DecayedMean]]:
        """Read what is in reach, then what is needed of what lies further back."""
        windows, places = self._windows(wanted), [place for place, _ in wanted]
        while places:
            anchors = {place.name: self._anchor(place, windows[place.name]) for place in places}
            self._complete([place for place in places if not self._covered(place, anchors[place.name])])
            further = [(place, self._older(place, windows[place.name], anchors[place.name])) for place in places]
            older = [(place, chunks) for place, chunks in further if chunks]
            for name, window in self._windows(older).items():
                windows[name] = windows[name].after(window)
            places = [place for place, _ in older]
        self._memory.windows.update(windows)
        alike = defaultdict[int, list[Name]](list)
        for place, _ in wanted:
            alike[place.layout.metrics].append(place.name)
        found: dict[Name, list[DecayedMean]] = {}
        for count, names in alike.items():
            own = [windows[name] for name in names]
            moments = together([window.sums for window in own], [window.chunks for window in own])
            found |= dict(zip(names, _means(moments, count), strict=True))
        return found

    def _anchor(self, place: Place, window: Window) -> float:
        """Return the chunk of the newest observation of the metric that was observed longest ago.

        −∞ if that lies before the window; ∞ if nothing does that is stored, or no metric was ever observed.
        """
        seen, index = np.array(place.seen), self._indexes[place.name]
        if not window.chunks or not seen.any():
            return math.inf
        if index.first is None and window.chunks[0] <= next(iter(index.stamps), math.inf):
            return math.inf
        for chunk, sums in zip(reversed(window.chunks), window.sums[::-1], strict=True):
            seen &= sums[0, : place.layout.metrics] <= 0
            if not seen.any():
                return chunk
        return -math.inf

    def _older(self, place: Place, window: Window, anchor: float) -> Sequence[int]:
        """Return the chunks before a window that are needed, as a metric's newest observation lies at the anchor."""
        stored = list(self._indexes[place.name].stamps)
        before = bisect_left(stored, window.chunks[0]) if anchor < math.inf else 0
        if not before:
            return []
        newest = stored[before - 1] if anchor == -math.inf else int(anchor)
        more = chunks_in_reach(stored, self._as_of_ms, place.decay, stored[0], newest)
        return more[: bisect_left(more, window.chunks[0])]

    def _windows(self, wanted: Sequence[Wanted]) -> dict[Name, Window]:
        """Return what chunks of exponential decays amount to, reading those that are not known as they are now."""
        windows = {place.name: self._remembered(place, chunks) for place, chunks in wanted}
        lacking = [
            (place, windows[place.name], at)
            for place, _ in wanted
            for at in np.flatnonzero(windows[place.name].from_ms > self._as_of_ms).tolist()
        ]
        for own, layout, records in self._tables([(place, window.chunks[at]) for place, window, at in lacking]):
            some = [lacking[each] for each in own]
            chunks = [window.chunks[at] for _, window, at in some]
            spans_ms = [bucket_span_ms(place.decay) for place, _, _ in some]
            sums, from_ms = digests(records, chunks, spans_ms, layout, self._as_of_ms)
            for (_, window, at), each, since_ms in zip(some, sums, from_ms.tolist(), strict=True):
                window.sums[at], window.from_ms[at] = each, since_ms
        return windows

    def _remembered(self, place: Place, chunks: Sequence[int]) -> Window:
        """Return a window with what is known of the chunks as they are now; of the others nothing, from ∞ on."""
        index = self._indexes[place.name].stamps
        stamps = list(map(index.__getitem__, chunks))
        known = self._memory.windows.get(place.name)
        if known is None or not known.chunks:
            shape = len(chunks), 5, 2 * place.layout.metrics
            return Window(chunks, stamps, np.full(len(chunks), np.inf), np.zeros(shape))
        start = bisect_left(known.chunks, chunks[0]) if chunks else 0
        part = slice(start, start + len(chunks))
        if known.chunks[part] == chunks:
            same = list(map(eq, known.stamps[part], stamps))
            return Window(chunks, stamps, np.where(same, known.from_ms[part], np.inf), known.sums[part].copy())
        held = dict(zip(known.chunks, known.stamps, strict=True))
        same = list(map(eq, map(held.get, chunks), stamps))
        places = np.searchsorted(known.chunks, chunks).clip(max=len(known.chunks) - 1)
        # What is copied of others is not used: it is read and replaced.
        return Window(chunks, stamps, np.where(same, known.from_ms[places], np.inf), known.sums[places])

    def _reciprocal(self, wanted: Sequence[Wanted]) -> dict[Name, list[DecayedMean]]:
        """Weights are no products: all chunks are read and weighted each time."""
        blocks = self._tables([(place, chunk) for place, chunks in wanted for chunk in chunks])
        tables: dict[int, Ints] = {}
        found, at = {}, 0
        for place, chunks in wanted:
            own = range(at, at + len(chunks))
            while not all(each in tables for each in own):
                read, _, records = next(blocks)
                tables.update(zip(read, records, strict=True))
            series = _series(place, chunks, [tables.pop(each) for each in own])
            at = own.stop
            metrics = range(place.layout.metrics)
            groups = [*map(series.rated, metrics), *map(series.everything, metrics)]
            columns = [astuple(decayed(each, self._as_of_ms, place.decay)) for each in groups]
            (found[place.name],) = _means(Moments(*np.array(columns).T[:, None]), len(metrics))
        return found

    def _tables(self, wanted: Sequence[tuple[Place, int]]) -> Iterator[tuple[Sequence[int], Layout, Ints]]:
        """Yield, for each layout, which of the wanted chunks have it and the records of their buckets over all shards.

        `_AT_ONCE` are read of one moment on each shard.
        """
        for start in range(0, len(wanted), _AT_ONCE):
            some = wanted[start : start + _AT_ONCE]
            alike = defaultdict[Layout, list[int]](list)
            for at, (place, _) in enumerate(some):
                alike[place.layout].append(at)
            widths = {layout: BUCKETS_PER_CHUNK * layout.response_width for layout in alike}
            tables: dict[Layout, Ints] = {}
            for shard in self._store:
                names = [shard.keys.chunk(*place.name, chunk) for place, chunk in some]
                stored = [
                    None if chunk is None else chunk_integers(name, chunk)
                    for name, chunk in zip(names, shard.values(names), strict=True)
                ]
                for layout, own in alike.items():
                    part = decode_records([names[at] for at in own], [stored[at] for at in own], widths[layout])
                    tables[layout] = tables[layout] + part if layout in tables else part
            for layout, own in alike.items():
                records = tables[layout].reshape(-1, BUCKETS_PER_CHUNK, layout.response_width)
                yield [start + at for at in own], layout, records


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
