"""Records of the service in the store: how often workers have started, the last failure, and the running workers.

The hash `SERVICE_KEY` belongs to no generation. Its fields are

    starts          number of starts of all workers, since the store was created
    last_failure    JSON: exit code, reason and time of the last worker that ended because of an error
    file:DIGEST     time (ms) at which a worker last had the experiments with this digest in its configuration file
    worker:ID       JSON: `WorkerRecord`, renewed every few seconds; ID is the host and the process id
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec

from monitor.state.keys import SERVICE_KEY
from monitor.state.redis_connection import translating_errors
from monitor.state.sharded_store import ShardedStore

_WORKER_PREFIX: Final = b"worker:"
_FILE_PREFIX: Final = b"file:"
_FILE_IN_USE_MS: Final = 300_000
"""A file counts as in use for this time, so that a restart of its last worker does not let an older file win."""
_FORGOTTEN_AFTER_MS: Final = 3_600_000
"""A worker that ended without removing its record, for example after SIGKILL, is listed for this time."""
_MAX_REASON_LENGTH: Final = 1000


class WorkerRecord(msgspec.Struct, frozen=True):
    """State of a worker, as of `seen_ms`; the names of the fields are JSON keys."""

    version: str
    config_digest: str
    started_ms: int
    seen_ms: int
    paused: dict[str, str]
    """Dependency (store, kafka, dead_letters) → why the worker waits for the dependency."""
    lag_events: int | None
    """Events in all partitions that no worker has applied; None if unknown."""


class Failure(msgspec.Struct, frozen=True):
    """The end of a worker because of an error."""

    exit_code: int
    reason: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class ServiceRecords:
    """Starts, the last failure, and the workers of the service."""

    starts: int = 0
    last_failure: Failure | None = None
    workers: tuple[tuple[str, WorkerRecord], ...] = ()
    """(id, record), in the order of the ids."""

    @property
    def newest_lag(self) -> tuple[int, int] | None:
        """(time, events that no worker had applied at the time) of the newest record with a lag; None if unknown."""
        lags = [(worker.seen_ms, worker.lag_events) for _, worker in self.workers if worker.lag_events is not None]
        return max(lags, default=None)

    def consumed_at_ms(self, now_ms: int) -> int:
        """Return the time of the newest report that the topics are read to their end; 0 if the newest has a lag.

        A store without any start of a service was filled from files, and is assumed to have all events until now.
        """
        if not self.starts:
            return now_ms
        return self.newest_lag[0] if self.newest_lag is not None and self.newest_lag[1] == 0 else 0


def count_start(store: ShardedStore) -> None:
    """Add a start to the count of starts. Raises `StoreUnavailable`."""
    with translating_errors(store.settings):
        store.client.hincrby(SERVICE_KEY, "starts", 1)


def record_failure(store: ShardedStore, failure: Failure) -> None:
    """Store the failure as the last failure. Raises `StoreUnavailable`."""
    failure = msgspec.structs.replace(failure, reason=failure.reason[:_MAX_REASON_LENGTH])
    with translating_errors(store.settings):
        store.client.hset(SERVICE_KEY, "last_failure", msgspec.json.encode(failure))


def write_worker(store: ShardedStore, worker_id: str, record: WorkerRecord) -> None:
    """Store the record of a worker, and delete others that are older than an hour. Raises `StoreUnavailable`."""
    oldest_ms = record.seen_ms - _FORGOTTEN_AFTER_MS
    old_worker_ids = [
        name for name, other in read_service_records(store).workers if other.seen_ms < oldest_ms and name != worker_id
    ]
    with translating_errors(store.settings):
        store.client.hset(SERVICE_KEY, _worker_field(worker_id), msgspec.json.encode(record))
        if old_worker_ids:
            store.client.hdel(SERVICE_KEY, *map(_worker_field, old_worker_ids))


def remove_worker(store: ShardedStore, worker_id: str) -> None:
    """Delete the record of a worker. Raises `StoreUnavailable`."""
    with translating_errors(store.settings):
        store.client.hdel(SERVICE_KEY, _worker_field(worker_id))


def record_file_in_use(store: ShardedStore, digest: str, now_ms: int) -> None:
    """Record that a worker has a file whose experiments have the digest. Raises `StoreUnavailable`."""
    with translating_errors(store.settings):
        store.client.hset(SERVICE_KEY, _FILE_PREFIX + digest.encode(), now_ms)


def is_file_in_use(store: ShardedStore, digest: str, now_ms: int) -> bool:
    """Return whether a worker has had this file within the last five minutes. Raises `StoreUnavailable`."""
    with translating_errors(store.settings):
        seen_ms = store.client.hget(SERVICE_KEY, _FILE_PREFIX + digest.encode())
    return seen_ms is not None and int(seen_ms) > now_ms - _FILE_IN_USE_MS


def read_service_records(store: ShardedStore) -> ServiceRecords:
    """Return the records of the service. Raises `StoreUnavailable`."""
    with translating_errors(store.settings):
        stored = store.client.hgetall(SERVICE_KEY)
    failure = stored.get(b"last_failure")
    workers = {
        name.removeprefix(_WORKER_PREFIX).decode(): msgspec.json.decode(record, type=WorkerRecord)
        for name, record in stored.items()
        if name.startswith(_WORKER_PREFIX)
    }
    return ServiceRecords(
        starts=int(stored.get(b"starts", 0)),
        last_failure=None if failure is None else msgspec.json.decode(failure, type=Failure),
        workers=tuple(sorted(workers.items())),
    )


def _worker_field(worker_id: str) -> bytes:
    return _WORKER_PREFIX + worker_id.encode()
