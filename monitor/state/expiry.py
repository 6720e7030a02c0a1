"""Deletion of students' rows after the end of an experiment, and of records past retention."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Final

from monitor.state.redis_connection import translating_errors
from monitor.state.store_records import ExpiredRange
from monitor.state.store_shard import StoreShard

_KEYS_PER_COMMAND: Final = 2000


def read_expiry_hours(store: StoreShard) -> Iterator[tuple[str, int]]:
    """Yield (experiment number or `PENDING_FEEDBACK`, hour) for each list of rows that expire with an hour."""
    with translating_errors(store.settings):
        names = store.client.hkeys(store.keys.expiry_hours)
    for name in names:
        experiment, _, hour = name.decode().partition(":")
        yield experiment, int(hour)


def read_experiments_without_students(store: StoreShard) -> frozenset[int]:
    """Return the numbers of the ended experiments without remaining students' rows."""
    with translating_errors(store.settings):
        fields = store.client.hkeys(store.keys.meta)
    prefix = b"students_deleted:"
    return frozenset(int(field.removeprefix(prefix)) for field in fields if field.startswith(prefix))


def delete_student_rows(store: StoreShard, experiment: int) -> Iterator[int]:
    """Delete the students' rows of an experiment, up to 2 000 at each step; yield the number of deleted rows."""
    client, keys = store.client, store.keys
    with translating_errors(store.settings):
        # A commit of another worker then fails with "expired"; the worker reads the state, and skips the experiment.
        announcement = client.pipeline(transaction=True)
        announcement.hset(keys.meta, f"students_deleting:{experiment}", 1)
        announcement.hincrby(keys.meta, "student_deletions", 1).hincrby(keys.meta, "expirations", 1).execute()
        pattern = _escape_glob(keys.student_row_prefix(experiment)) + b"*"
        row_keys = client.scan_iter(pattern, count=_KEYS_PER_COMMAND)
        has_more = True
        while has_more:
            batch = list(islice(row_keys, _KEYS_PER_COMMAND))
            has_more = len(batch) == _KEYS_PER_COMMAND
            deleted_rows = int(client.unlink(*batch)) if batch else 0
            if not has_more:
                client.hset(keys.meta, f"students_deleted:{experiment}", 1)
            yield deleted_rows


def delete_expired(store: StoreShard, ranges: Sequence[ExpiredRange]) -> None:
    """Delete the records of expired ranges, and the members of the indexes that list the records."""
    client = store.client
    with translating_errors(store.settings):
        index_reads = client.pipeline(transaction=False)
        for expired in ranges:
            index_reads.zrange(expired.index_key, 0, -1)
        for expired, members in zip(ranges, index_reads.execute(), strict=True):
            first = min(map(int, members), default=0) + expired.kept_count
            expired_members = [member for member in members if first <= int(member) < expired.end]
            record_keys = chain.from_iterable(expired.record_keys(int(member)) for member in expired_members)
            while batch := list(islice(record_keys, _KEYS_PER_COMMAND)):
                client.unlink(*batch)
            if expired_members:
                client.zrem(expired.index_key, *expired_members)


def _escape_glob(text: bytes) -> bytes:
    return b"".join(b"\\" + bytes((byte,)) if byte in b"*?[]^-\\" else bytes((byte,)) for byte in text)
