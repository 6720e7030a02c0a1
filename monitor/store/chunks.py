"""Which chunks of time buckets there are, and in which commits they were last changed.

With a short half-life there are hundreds, of which a reading needs the newest 81 and some more; so only those are asked
for, and all where it turns out that they do not suffice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from monitor.aggregates import REACH_HALF_LIVES, Layout, bucket_span_ms
from monitor.config import DecaySpec
from monitor.store.connection import unavailable
from monitor.store.shards import Shards

_BEHIND: Final = 24
"""Half-lives by which a metric's newest observation may lie behind the newest response: ratings come later."""

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
    newest_ms: int | None
    """The variant's newest response."""
    oldest: int
    """The first chunk that retention keeps."""

    @property
    def name(self) -> Name:
        """What its chunks are stored and remembered under."""
        return self.number, self.variant, self.decay.name


@dataclass(frozen=True, slots=True)
class Index:
    """Chunks of a place."""

    stamps: Mapping[int, Stamp]
    """By chunk, rising."""
    first: int | None
    """Those before were not asked for; None: there are no others."""

    def covers(self, anchor: float) -> bool:
        """Return whether it has all that are in reach of an observation in a chunk."""
        return self.first is None or anchor - REACH_HALF_LIVES >= self.first


def read_indexes(store: Shards, places: Sequence[Place], as_of_ms: int, *, whole: bool = False) -> dict[Name, Index]:
    """Return the newest chunks of each place, or all, in one transaction on each shard; raises `StoreUnavailable`."""
    asked = [None if whole else _newest(place, as_of_ms) for place in places]
    names = {chunks: [b"%d" % chunk for chunk in chunks] for chunks in set(asked) if chunks is not None}
    replies: list[list[Any]] = []
    with unavailable(store.settings):
        for shard in store:
            pipeline = shard.client.pipeline(transaction=True)
            for place, chunks in zip(places, asked, strict=True):
                key = shard.keys.chunks(*place.name)
                if chunks is None:
                    pipeline.hgetall(key)
                else:
                    pipeline.hmget(key, names[chunks])
            replies.append(pipeline.execute())
    found = {}
    for place, chunks, *answers in zip(places, asked, *replies, strict=True):
        if chunks is None:
            held = [{int(name): commit for name, commit in answer.items()} for answer in answers]
            stored = sorted(set[int]().union(*held))
            found[place.name] = Index({chunk: tuple([each.get(chunk) for each in held]) for chunk in stored}, None)
        else:
            stamps: dict[int, Stamp] = dict(zip(chunks, zip(*answers, strict=True), strict=True))
            if any(None in answer for answer in answers):
                stamps = {chunk: stamp for chunk, stamp in stamps.items() if any(stamp)}
            found[place.name] = Index(stamps, chunks.start)
    return found


def _newest(place: Place, as_of_ms: int) -> range | None:
    """Return the chunks to ask for; None for all, where those are not many more."""
    if place.decay.half_life_ms is None or place.newest_ms is None:
        return None
    last = min(place.newest_ms, as_of_ms) // bucket_span_ms(place.decay)
    first = last - REACH_HALF_LIVES - _BEHIND
    return range(first, last + 1) if place.oldest < first else None
