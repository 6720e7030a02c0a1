"""Which chunks of time buckets there are, and which have changed.

Indexes are sorted by the commit that last changed each chunk, so a reading asks for those after the commits that it
knows. With a short half-life there are thousands of chunks, of which few change between two readings.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from monitor.aggregates import Layout
from monitor.config import DecaySpec
from monitor.store.moments import at_once
from monitor.store.shards import Shards

Chunks: TypeAlias = "array[int]"
"""Numbers of chunks, rising."""
Name: TypeAlias = tuple[int, int, str]
"""Number of the experiment, variant, decay."""
NO_CHUNKS: Final[Chunks] = array("q")


@dataclass(frozen=True, slots=True)
class Place:
    """The time buckets of one variant and decay."""

    name: Name
    """What its chunks are stored and remembered under."""
    decay: DecaySpec
    layout: Layout
    seen: NDArray[np.bool_]
    """Which metrics have had a value at any time."""
    oldest: int
    """The first chunk that retention keeps."""


Changed: TypeAlias = Mapping[Name, Sequence[int]]
"""Chunks that have changed, by place."""


@dataclass(frozen=True, slots=True)
class Indexes:
    """The chunks of some places, as of one moment on each shard."""

    commits: Sequence[int] = ()
    """How many each shard had applied."""
    marks: Sequence[bytes] = ()
    """What each shard was marked with when it was made: after a reset it is another one, and counts anew."""
    chunks: Mapping[Name, Chunks] = field(default_factory=dict)
    """All that are stored, from the oldest one on that retention keeps."""

    def now(self, store: Shards, places: Sequence[Place]) -> tuple[Indexes, Changed]:
        """Return what they are now, of the same places, and what has changed since. Raises `StoreUnavailable`."""
        commits, marks, replies = [], [], []
        for shard, known in zip(store, self.commits or [-1] * len(store), strict=True):
            indexes = [("ZRANGE", shard.keys.chunks(*place.name), f"({known}", "+inf", "BYSCORE") for place in places]
            (commit, mark), *members = at_once(shard, [("HMGET", shard.keys.meta, "seq", "made"), *indexes])
            commits.append(int(commit or 0))
            marks.append(mark or b"")
            replies.append(members)
        if self.marks and marks != self.marks:
            return Indexes().now(store, places)
        chunks, changed = {}, {}
        for place, *members in zip(places, *replies, strict=True):
            found = sorted({int(member) for some in members for member in some})
            changed[place.name] = found
            chunks[place.name] = _merged(self.chunks.get(place.name, NO_CHUNKS), found, place.oldest)
        return Indexes(commits, marks, chunks), changed


def _merged(known: Chunks, found: Sequence[int], oldest: int) -> Chunks:
    """Return all chunks from the oldest on."""
    if any(place == len(known) or known[place] != chunk for chunk in found for place in [bisect_left(known, chunk)]):
        known = array("q", sorted({*known, *found}))
    return known[bisect_left(known, oldest) :]
