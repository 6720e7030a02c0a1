"""Deletion of all that a generation stores under the number of an experiment that is not counted any more."""

from __future__ import annotations

import re
from itertools import islice
from typing import Final

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
    keys = shard.keys
    list_key, arguments = keys.expiry_rows(str(number), hour), [number, keys.response_row(b"")]
    deleted_rows, has_more = 0, True
    while has_more:
        deleted, has_more = shard.run_script(shard.scripts.delete_rows, [list_key], arguments)
        deleted_rows += int(deleted)
    shard.client.unlink(list_key, keys.expiry_moved_rows(str(number), hour))
    return deleted_rows
