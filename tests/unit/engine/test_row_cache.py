"""What a worker remembers stays bounded, however large its batches are."""

from __future__ import annotations

import pytest

from monitor.engine.processor import RowCache


@pytest.mark.parametrize(("limit", "size"), [(100, 1), (100, 40), (100, 51), (100, 80), (100, 500)])
def test_a_cache_is_bounded(limit: int, size: int) -> None:
    """By two generations, each of a limit or of a batch that is larger; the last batch is always remembered."""
    cache: RowCache[int] = RowCache(limit)
    batches = [range(first, first + size) for first in range(0, 10 * limit + size, size)]
    for batch in batches:
        for number in batch:
            cache.add(b"%d" % number, number)
        cache.end_batch()
    known = [number for batch in batches for number in batch if cache.get(b"%d" % number) is not None]
    assert known[-size:] == list(batches[-1])
    assert min(limit - size, size) <= len(known) <= 2 * max(limit, size)


def test_what_is_used_again_stays_without_being_fresh() -> None:
    """Entries that each batch uses are few, however many batches there are: they are not forgotten."""
    cache: RowCache[int] = RowCache(100)
    for number in range(60):
        cache.add(b"%d" % number, number)
    cache.end_batch()
    for _ in range(5):
        assert [cache.get(b"%d" % number) for number in range(60)] == list(range(60))
        cache.end_batch()
        assert len(cache) == 60


def test_what_was_dropped_is_not_counted() -> None:
    """Feedback to unknown responses looks for a row that there is not."""
    cache: RowCache[int] = RowCache(2)
    cache.add(b"kept", 1)
    for number in range(100):
        cache.add(b"%d" % number, number)
        cache.remove(b"%d" % number)
    cache.end_batch()
    assert cache.get(b"kept") == 1
    assert len(cache) == 1
