"""Decayed means, read from the time buckets: of exponential decays, only the chunks that have changed are read again.

The index of chunks says in which commit each was last changed. What a chunk amounts to is remembered with the numbers
of those commits, one for each shard, for as long as the servers are the same: after a restart that lost commits, the
same numbers come again (see `Reader.summary`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, KeysView, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from itertools import islice
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
from monitor.config import DecaySpec
from monitor.series import Series, digests, together
from monitor.store.connection import unavailable
from monitor.store.rows import decode_record
from monitor.store.shards import Shards
from monitor.summary import DecayedMean

_BUCKETS: Final = np.arange(BUCKETS_PER_CHUNK)
_NO_NUMBERS: Final = np.zeros(0, dtype=np.int64)
_AT_ONCE: Final = 128
"""Chunks that are read and summed at the same time: 3 MB with six metrics."""

Stamp: TypeAlias = tuple[bytes | None, ...]
"""In which commit of each shard a chunk was last changed."""
Name: TypeAlias = tuple[int, int, str]
"""Number of the experiment, variant, decay."""


@dataclass(frozen=True, slots=True)
class Place:
    """The time buckets of one variant and decay."""

    number: int
    variant: int
    decay: DecaySpec
    layout: Layout
    seen: Sequence[bool]
    """Which metrics have had a value at any time."""
    index: Sequence[Mapping[bytes, bytes]]
    """By shard: chunk → number of the commit that last changed it."""

    @property
    def name(self) -> Name:
        """What its chunks are stored and remembered under."""
        return self.number, self.variant, self.decay.name


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
    has not been observed in, of 0.6 kB each with six metrics; and the numbers of those that are stored.
    """

    runs: tuple[str, ...]
    windows: dict[Name, Window] = field(default_factory=dict)
    stored: dict[Name, tuple[list[KeysView[bytes]], list[int]]] = field(default_factory=dict)


class Buckets:
    """Reads the time buckets of a store as of one time; several threads may do so with one memory."""

    def __init__(self, store: Shards, memory: Memory, as_of_ms: int) -> None:
        self._store = store
        self._memory = memory
        self._as_of_ms = as_of_ms

    def means(self, places: Sequence[tuple[Place, int]]) -> list[list[DecayedMean]]:
        """Return the decayed means of every metric at each place; `int` is the oldest chunk that retention keeps."""
        wanted = [
            (place, chunks_in_reach(self._stored(place), self._as_of_ms, place.decay, oldest))
            for place, oldest in places
        ]
        found = {
            **self._exponential([each for each in wanted if each[0].decay.half_life_ms is not None]),
            **self._reciprocal([each for each in wanted if each[0].decay.half_life_ms is None]),
        }
        return [found[place.name] for place, _ in places]

    def _stored(self, place: Place) -> Sequence[int]:
        """Return all chunks that there are, rising."""
        keys = [shard.keys() for shard in place.index]
        known, stored = self._memory.stored.get(place.name, (None, ()))
        if known != keys:
            stored = sorted({int(name) for names in keys for name in names})
            self._memory.stored[place.name] = keys, stored
        return stored

    def _exponential(self, wanted: Sequence[Wanted]) -> dict[Name, list[DecayedMean]]:
        """Read what is in reach, then what is needed of what lies further back."""
        windows = self._windows(wanted)
        while older := [(place, more) for place, _ in wanted if (more := self._older(place, windows[place.name]))]:
            for name, window in self._windows(older).items():
                windows[name] = windows[name].after(window)
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

    def _older(self, place: Place, window: Window) -> Sequence[int]:
        """Return what lies before a window and is needed, as a metric's newest observation lies far behind others."""
        chunks, count = window.chunks, place.layout.metrics
        _, stored = self._memory.stored[place.name]
        if not chunks or chunks[0] == stored[0] or not any(place.seen):
            return []
        observed = window.sums[:, 0, :count] > 0
        known = observed.any(axis=0)
        if (np.array(place.seen) & ~known).any():
            anchor = stored[bisect_left(stored, chunks[0]) - 1]
        else:
            anchor = chunks[len(chunks) - 1 - int(observed[::-1, known].argmax(axis=0).max())]
        more = chunks_in_reach(stored, self._as_of_ms, place.decay, stored[0], anchor)
        return more[: max(len(more) - len(chunks), 0)]

    def _windows(self, wanted: Sequence[Wanted]) -> dict[Name, Window]:
        """Return what chunks of exponential decays amount to, reading those that are not known as they are now."""
        windows = {place.name: self._remembered(place, chunks) for place, chunks in wanted}
        lacking = [
            (place, windows[place.name], at)
            for place, _ in wanted
            for at in np.flatnonzero(windows[place.name].from_ms > self._as_of_ms).tolist()
        ]
        tables = self._tables([(place, window.chunks[at]) for place, window, at in lacking])
        for start in range(0, len(lacking), _AT_ONCE):
            some = lacking[start : start + _AT_ONCE]
            alike = defaultdict[tuple[Layout, int], list[tuple[Window, int, Ints]]](list)
            for (place, window, at), table in zip(some, islice(tables, len(some)), strict=True):
                alike[place.layout, bucket_span_ms(place.decay)].append((window, at, table))
            for (layout, half_life_ms), own in alike.items():
                records, chunks = np.stack([table for _, _, table in own]), [window.chunks[at] for window, at, _ in own]
                sums, from_ms = digests(records, chunks, half_life_ms, layout, self._as_of_ms)
                from_ms[from_ms > self._as_of_ms] = np.inf
                for (window, at, _), each, since_ms in zip(own, sums, from_ms, strict=True):
                    window.sums[at], window.from_ms[at] = each, since_ms
        return windows

    def _remembered(self, place: Place, chunks: Sequence[int]) -> Window:
        """Return a window with what is known of the chunks as they are now; of the others nothing, from ∞ on."""
        names = [b"%d" % chunk for chunk in chunks]
        stamps = list(zip(*[map(shard.get, names) for shard in place.index], strict=True))
        known = self._memory.windows.get(place.name)
        if known is None or not known.chunks:
            shape = len(chunks), 5, 2 * place.layout.metrics
            return Window(chunks, stamps, np.full(len(chunks), np.inf), np.zeros(shape))
        places = np.searchsorted(known.chunks, chunks).clip(max=len(known.chunks) - 1)
        same = [
            known.chunks[at] == chunk and known.stamps[at] == stamp
            for at, chunk, stamp in zip(places.tolist(), chunks, stamps, strict=True)
        ]
        # What is copied of others is not used: it is read and replaced.
        return Window(chunks, stamps, np.where(same, known.from_ms[places], np.inf), known.sums[places])

    def _reciprocal(self, wanted: Sequence[Wanted]) -> dict[Name, list[DecayedMean]]:
        """Weights are no products: all chunks are read and weighted each time."""
        tables = self._tables([(place, chunk) for place, chunks in wanted for chunk in chunks])
        found = {}
        for place, chunks in wanted:
            series = _series(place, chunks, list(islice(tables, len(chunks))))
            metrics = range(place.layout.metrics)
            groups = [*map(series.rated, metrics), *map(series.everything, metrics)]
            columns = [astuple(decayed(each, self._as_of_ms, place.decay)) for each in groups]
            (found[place.name],) = _means(Moments(*np.array(columns).T[:, None]), len(metrics))
        return found

    def _tables(self, wanted: Sequence[tuple[Place, int]]) -> Iterator[Ints]:
        """Yield the records of chunks' buckets, summed over the shards; `_AT_ONCE` are read in one transaction each."""
        for start in range(0, len(wanted), _AT_ONCE):
            some = wanted[start : start + _AT_ONCE]
            tables = [np.zeros((BUCKETS_PER_CHUNK, each.layout.response_width), dtype=np.int64) for each, _ in some]
            with unavailable(self._store.settings):
                for shard in self._store:
                    names = [shard.keys.chunk(*place.name, chunk) for place, chunk in some]
                    pipeline = shard.client.pipeline(transaction=True)
                    # The method of this name is not for clusters, as it does not know that all are in one slot.
                    pipeline.execute_command("MGET", *names)
                    for name, table, stored in zip(names, tables, pipeline.execute()[0], strict=True):
                        found = decode_record(name, stored)
                        table.reshape(-1)[: len(found)] += found
            yield from tables


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
