"""Unit tests of the cache of rows."""

from __future__ import annotations

import pytest

from monitor.engine.processor import RowCache


@pytest.mark.parametrize(("limit", "size"), [(100, 1), (100, 40), (100, 51), (100, 80), (100, 500)])
def test_the_cache_is_bounded_for_any_batch_size(limit: int, size: int) -> None:
    """Two generations are cached, each as large as the limit or a larger batch; the last batch is always cached."""
    cache: RowCache[int] = RowCache(limit)
    batches = [range(first, first + size) for first in range(0, 10 * limit + size, size)]
    for batch in batches:
        for number in batch:
            cache.add(b"%d" % number, number)
        cache.end_batch()
    cached_numbers = [number for batch in batches for number in batch if cache.get(b"%d" % number) is not None]
    assert cached_numbers[-size:] == list(batches[-1])
    assert min(limit - size, size) <= len(cached_numbers) <= 2 * max(limit, size)


def test_rows_used_by_each_batch_stay_cached() -> None:
    """Using a cached row is no addition, and begins no new generation."""
    cache: RowCache[int] = RowCache(100)
    for number in range(60):
        cache.add(b"%d" % number, number)
    cache.end_batch()
    for _ in range(5):
        assert [cache.get(b"%d" % number) for number in range(60)] == list(range(60))
        cache.end_batch()
        assert len(cache) == 60


def test_removed_rows_do_not_count_as_additions() -> None:
    """The processor adds a blank row for late feedback to an unknown response, and removes the row."""
    cache: RowCache[int] = RowCache(2)
    cache.add(b"kept", 1)
    for number in range(100):
        cache.add(b"%d" % number, number)
        cache.remove(b"%d" % number)
    cache.end_batch()
    assert cache.get(b"kept") == 1
    assert len(cache) == 1
