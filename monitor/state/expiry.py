"""Deleting what is over and what is past, some at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Final

from monitor.state.redis_connection import unavailable
from monitor.state.redis_store import RedisStore
from monitor.state.store_records import ExpiredRange

_AT_ONCE: Final = 2000


def noted_hours(store: RedisStore) -> Iterator[tuple[str, int]]:
    """Yield (experiment number or "p", hour) wherever rows are noted for sweeping."""
    with unavailable(store.settings):
        names = store.client.hkeys(store.keys.hours)
    for name in names:
        experiment, _, hour = name.decode().partition(":")
        yield experiment, int(hour)


def closed_experiments(store: RedisStore) -> frozenset[int]:
    """Return the numbers of the experiments that are over and whose students' rows were deleted."""
    with unavailable(store.settings):
        names = store.client.hkeys(store.keys.meta)
    return frozenset(int(name[7:]) for name in names if name.startswith(b"closed:"))


def drop_students(store: RedisStore, experiment: int) -> Iterator[int]:
    """Delete an experiment's students' rows, some at each step; yield how many went."""
    client, keys = store.client, store.keys
    with unavailable(store.settings):
        # Whoever is about to write to them reads the state first, and then leaves them alone.
        marking = client.pipeline(transaction=True)
        marking.hset(keys.meta, f"closing:{experiment}", 1)
        marking.hincrby(keys.meta, "closings", 1).hincrby(keys.meta, "sweeps", 1).execute()
        pattern = keys.prefix + b"s" + _escaped(experiment.to_bytes(2)) + b"*"
        names = client.scan_iter(pattern, count=_AT_ONCE)
        left = True
        while left:
            batch = list(islice(names, _AT_ONCE))
            left = len(batch) == _AT_ONCE
            deleted = int(client.unlink(*batch)) if batch else 0
            if not left:
                client.hset(keys.meta, f"closed:{experiment}", 1)
            yield deleted


def drop_past(store: RedisStore, pasts: Sequence[ExpiredRange]) -> None:
    """Delete what is past, and its entries in the indexes that name it."""
    client = store.client
    with unavailable(store.settings):
        looking = client.pipeline(transaction=False)
        for past in pasts:
            looking.zrange(past.index, 0, -1)
        for past, names in zip(pasts, looking.execute(), strict=True):
            begins = min(map(int, names), default=0) + past.kept
            gone = [name for name in names if begins <= int(name) < past.before]
            deleted = chain.from_iterable(past.records(int(name)) for name in gone)
            while batch := list(islice(deleted, _AT_ONCE)):
                client.unlink(*batch)
            if gone:
                client.zrem(past.index, *gone)


def _escaped(text: bytes) -> bytes:
    return b"".join(b"\\" + bytes((byte,)) if byte in b"*?[]^-\\" else bytes((byte,)) for byte in text)
