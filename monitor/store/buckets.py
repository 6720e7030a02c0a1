"""Decayed means, read from the time buckets: of exponential decays, only the chunks that have changed are read again.

The index of chunks says in which commit each was last changed. What a chunk amounts to is remembered with the numbers
of those commits, one for each shard, for as long as the servers are the same: after a restart that lost commits, the
same numbers come again (see `Reader.summary`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from monitor.aggregates import (
    BUCKETS_PER_CHUNK,
    Ints,
    Layout,
    Moments,
    bucket_span_ms,
    chunks_in_reach,
    decayed,
)
from monitor.config import DecaySpec
from monitor.series import Digest, Series, together
from monitor.store.connection import unavailable
from monitor.store.rows import decode_record
from monitor.store.shards import Shards
from monitor.summary import DecayedMean

_BUCKETS: Final = np.arange(BUCKETS_PER_CHUNK)
_NO_NUMBERS: Final = np.zeros(0, dtype=np.int64)
_MOST_REMEMBERED: Final = 20_000
"""Chunks, about a kilobyte each with six metrics."""


@dataclass(frozen=True, slots=True)
class Place:
    """The time buckets of one variant and decay."""

    number: int
    variant: int
    decay: DecaySpec
    layout: Layout
    seen: Sequence[bool]
    """Which metrics have had a value at any time."""
    stamps: Sequence[Mapping[bytes, bytes]]
    """By shard: chunk → number of the commit that last changed it."""

    def stamp(self, chunk: int) -> tuple[bytes | None, ...]:
        """Return what tells whether a chunk has changed."""
        name = b"%d" % chunk
        return tuple([shard.get(name) for shard in self.stamps])

    def stored(self) -> list[int]:
        """Return all chunks that there are, rising."""
        return sorted({int(name) for shard in self.stamps for name in shard})


@dataclass(frozen=True, slots=True)
class Memory:
    """What chunks amounted to while the servers were those of `runs`."""

    runs: tuple[str, ...]
    chunks: dict[tuple[int, int, str, int], tuple[tuple[bytes | None, ...], Digest]] = field(default_factory=dict)


class Buckets:
    """Reads the time buckets of a store as of one time."""

    def __init__(self, store: Shards, memory: Memory, as_of_ms: int) -> None:
        self._store = store
        self._memory = memory
        self._as_of_ms = as_of_ms
        self._now: dict[tuple[int, int, str, int], Digest] = {}

    def means(self, places: Sequence[tuple[Place, int]]) -> list[list[DecayedMean]]:
        """Return the decayed means of every metric at each place; `int` is the oldest chunk that retention keeps."""
        stored = [place.stored() for place, _ in places]
        wanted = [
            (place, chunks_in_reach(chunks, self._as_of_ms, place.decay, oldest))
            for (place, oldest), chunks in zip(places, stored, strict=True)
        ]
        self._learn(wanted)
        found = []
        for (place, chunks), all_chunks in zip(wanted, stored, strict=True):
            if place.decay.half_life_ms is None:
                found.append(self._reciprocal(place, chunks))
            else:
                found.append(self._exponential(place, place.decay.half_life_ms, chunks, all_chunks))
        return found

    def _learn(self, wanted: Iterable[tuple[Place, Sequence[int]]]) -> None:
        """Read chunks of exponential decays that are not known as they are now, of all places at once."""
        known = self._memory.chunks
        missing = []
        for place, chunks in wanted:
            if place.decay.half_life_ms is not None:
                new = [chunk for chunk in chunks if self._remembered(place, chunk) is None]
                missing.append((place, new))
        if len(known) > _MOST_REMEMBERED:
            known.clear()
        for (place, chunks), table in zip(missing, self._tables(missing), strict=True):
            for at, chunk in enumerate(chunks):
                own = table[at * BUCKETS_PER_CHUNK : (at + 1) * BUCKETS_PER_CHUNK]
                assert place.decay.half_life_ms is not None
                digest = _series(place, [chunk], own).digest(place.decay.half_life_ms, self._as_of_ms)
                self._now[_name(place, chunk)] = digest
                if digest.from_ms <= self._as_of_ms:
                    known[_name(place, chunk)] = place.stamp(chunk), digest

    def _remembered(self, place: Place, chunk: int) -> Digest | None:
        """Return what a chunk amounts to, if that is known."""
        name = _name(place, chunk)
        if name in self._now:
            return self._now[name]
        stamp, digest = self._memory.chunks.get(name, (None, None))
        if digest is None or stamp != place.stamp(chunk) or digest.from_ms > self._as_of_ms:
            return None
        self._now[name] = digest
        return digest

    def _exponential(
        self, place: Place, half_life_ms: int, chunks: Sequence[int], stored: Sequence[int]
    ) -> list[DecayedMean]:
        """Read further back where a metric's newest observation lies far behind the newest response."""
        count, seen = place.layout.metrics, np.array(place.seen)
        newest_ms, moments = self._together(place, half_life_ms, chunks)
        while seen.any() and chunks and chunks[0] > stored[0]:
            rated_ms = newest_ms[:count]
            known = np.isfinite(rated_ms)
            anchor = stored[stored.index(chunks[0]) - 1]
            if not (seen & ~known).any():
                anchor = int(rated_ms[known].min()) // half_life_ms
            more = chunks_in_reach(stored, self._as_of_ms, place.decay, stored[0], anchor)
            if len(more) <= len(chunks):
                break
            chunks = more
            self._learn([(place, chunks)])
            newest_ms, moments = self._together(place, half_life_ms, chunks)
        return [_mean(moments[metric], moments[count + metric]) for metric in range(count)]

    def _together(
        self, place: Place, half_life_ms: int, chunks: Sequence[int]
    ) -> tuple[NDArray[np.float64], list[Moments]]:
        digests = [self._now[_name(place, chunk)] for chunk in chunks]
        return together(digests or [Digest.empty(place.layout.metrics)], half_life_ms)

    def _reciprocal(self, place: Place, chunks: Sequence[int]) -> list[DecayedMean]:
        """Weights are no products: all chunks are read and weighted each time."""
        (table,) = self._tables([(place, chunks)])
        series = _series(place, chunks, table)
        return [
            _mean(
                decayed(series.rated(metric), self._as_of_ms, place.decay),
                decayed(series.everything(metric), self._as_of_ms, place.decay),
            )
            for metric in range(place.layout.metrics)
        ]

    def _tables(self, wanted: Sequence[tuple[Place, Sequence[int]]]) -> list[Ints]:
        """Return the records of the chunks' buckets, summed over the shards; each is read in one transaction."""
        tables = [
            np.zeros((len(chunks) * BUCKETS_PER_CHUNK, place.layout.response_width), dtype=np.int64)
            for place, chunks in wanted
        ]
        if not any(len(table) for table in tables):
            return tables
        with unavailable(self._store.settings):
            for shard in self._store:
                pipeline = shard.client.pipeline(transaction=True)
                for place, chunks in wanted:
                    if chunks:
                        # The method of this name is not for clusters, as it does not know that all are in one slot.
                        names = [shard.keys.chunk(*_name(place, chunk)) for chunk in chunks]
                        pipeline.execute_command("MGET", *names)
                replies = iter(pipeline.execute())
                for (place, chunks), table in zip(wanted, tables, strict=True):
                    for at, stored in enumerate(next(replies) if chunks else ()):
                        part = table[at * BUCKETS_PER_CHUNK : (at + 1) * BUCKETS_PER_CHUNK].reshape(-1)
                        found = decode_record(shard.keys.chunk(*_name(place, chunks[at])), stored)
                        part[: len(found)] += found
        return tables


def _name(place: Place, chunk: int) -> tuple[int, int, str, int]:
    return place.number, place.variant, place.decay.name, chunk


def _series(place: Place, chunks: Sequence[int], table: Ints) -> Series:
    """Return the buckets that are not empty."""
    numbers = np.concatenate([_NO_NUMBERS, *[_BUCKETS + chunk * BUCKETS_PER_CHUNK for chunk in chunks]])
    filled = table[:, 0] > 0
    return Series.read(table[filled], numbers[filled], bucket_span_ms(place.decay), place.layout)


def _mean(rated: Moments, everything: Moments) -> DecayedMean:
    """Return one metric's decayed mean over rated and over all responses."""
    return DecayedMean(
        mean=rated.mean,
        effective_count=rated.effective_count if rated.weight else None,
        mean_over_all=everything.mean,
        effective_count_over_all=everything.effective_count if everything.weight else None,
        standard_error=rated.standard_error,
    )
