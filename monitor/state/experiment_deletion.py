"""Deletion of all that a generation stores under the number of an experiment that is not counted any more."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import Final

from monitor.engine import decode_response_row
from monitor.state.expiry import delete_student_rows
from monitor.state.redis_connection import translating_errors
from monitor.state.sharded_store import ShardedStore
from monitor.state.store_shard import StoreShard

_KEYS_PER_COMMAND: Final = 2000
_META_FIELDS: Final = ("expired_before", "students_deleting", "students_deleted")


def read_stored_numbers(store: ShardedStore) -> set[int]:
    """Return the numbers under which a generation stores data. Raises `StoreUnavailable`."""
    with translating_errors(store.settings):
        return {int(number) for number in store.client.hkeys(store.first_shard.keys.horizons)}


def delete_experiment(store: ShardedStore, number: int) -> int:
    """Delete everything that is stored under a number, and return the number of keys.

    No worker may count events under this number any more: its set of declared experiments must have a later version
    than that which removed the number. If the deletion is interrupted, another call completes it. Raises
    `StoreUnavailable`.
    """
    deleted_keys = sum(_delete_from_shard(shard, number) for shard in store)
    with translating_errors(store.settings):
        store.client.hdel(store.first_shard.keys.horizons, number)
    return deleted_keys


def _delete_from_shard(shard: StoreShard, number: int) -> int:
    client, keys = shard.client, shard.keys
    deleted_keys = sum(delete_student_rows(shard, number))
    with translating_errors(shard.settings):
        for field in client.hkeys(keys.expiry_hours):
            experiment, _, hour = field.decode().partition(":")
            if experiment == str(number):
                deleted_keys += _delete_response_rows(shard, number, int(hour))
                client.hdel(keys.expiry_hours, field)
        # Names of rows begin with r or s, other names do not.
        name_pattern = re.compile(re.escape(keys.prefix) + rb"[a-qt-z][a-z_]*:%d(:.*)?" % number, re.DOTALL)
        stored_keys = filter(name_pattern.fullmatch, client.scan_iter(keys.prefix + b"[^rs]*", count=_KEYS_PER_COMMAND))
        while batch := list(islice(stored_keys, _KEYS_PER_COMMAND)):
            deleted_keys += int(client.unlink(*batch))
        newest_times = [
            field
            for field in client.hkeys(keys.newest_times)
            if field.startswith(b"%d:" % number) or field.endswith(b":feedback:%d" % number)
        ]
        if newest_times:
            client.hdel(keys.newest_times, *newest_times)
        client.hdel(keys.backfills, number)
        client.hdel(keys.meta, *(f"{field}:{number}" for field in _META_FIELDS))
        client.hdel(keys.events_skipped, b"feedback:%d" % number)
    return deleted_keys


def _delete_response_rows(shard: StoreShard, number: int, hour: int) -> int:
    """Delete the rows of responses that are listed under an hour and still have the number, and the list."""
    client, keys = shard.client, shard.keys
    list_key = keys.expiry_rows(str(number), hour)
    deleted_rows = 0
    for entry in client.lrange(list_key, 0, -1):
        row_keys = [keys.response_row(name) for name in _split_names(entry)]
        for row_key, row in zip(row_keys, shard.read_values(row_keys), strict=True):
            if row is not None and decode_response_row(row).variant_key >> 8 == number:
                deleted_rows += int(client.unlink(row_key))
    client.unlink(list_key, keys.expiry_moved_rows(str(number), hour))
    return deleted_rows


def _split_names(entry: bytes) -> Iterator[bytes]:
    """Yield the names in a list entry; each is preceded by a byte with its length."""
    position = 0
    while position < len(entry):
        length = entry[position]
        yield entry[position + 1 : position + 1 + length]
        position += 1 + length
