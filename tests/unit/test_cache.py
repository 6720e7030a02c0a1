"""What a worker remembers stays bounded, however large its batches are."""

from __future__ import annotations

import pytest

from monitor.ingest.cache import Cache, end_batch


@pytest.mark.parametrize(("limit", "size"), [(100, 1), (100, 40), (100, 51), (100, 80), (100, 500)])
def test_memories_are_bounded_together(limit: int, size: int) -> None:
    """By two generations, each of a limit or of a batch that is larger; the last batch is always remembered."""
    caches: list[Cache[int]] = [Cache(), Cache()]
    batches = [range(first, first + size) for first in range(0, 10 * limit + size, size)]
    for batch in batches:
        for number in batch:
            caches[number % 2].put(b"%d" % number, number)
        end_batch(caches, limit)
    known = [number for batch in batches for number in batch if caches[number % 2].get(b"%d" % number) is not None]
    assert known[-size:] == list(batches[-1])
    assert min(limit - size, size) <= len(known) <= 2 * max(limit, size)


def test_what_is_used_again_stays_without_being_fresh() -> None:
    """Entries that each batch uses are few, however many batches there are: they are not forgotten."""
    cache: Cache[int] = Cache()
    for number in range(60):
        cache.put(b"%d" % number, number)
    end_batch([cache], 100)
    for _ in range(5):
        assert [cache.get(b"%d" % number) for number in range(60)] == list(range(60))
        end_batch([cache], 100)
        assert len(cache) == 60


def test_what_was_dropped_is_not_counted() -> None:
    """Feedback to unknown responses looks for a row that there is not."""
    cache: Cache[int] = Cache()
    cache.put(b"kept", 1)
    for number in range(100):
        cache.put(b"%d" % number, number)
        cache.drop(b"%d" % number)
    end_batch([cache], 2)
    assert cache.get(b"kept") == 1
    assert len(cache) == 1
