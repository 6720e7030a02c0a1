"""The store on Redis ≥ 6.2 or Valkey ≥ 7.2: one script per batch, positions and effects in one write.

`RedisStore.commit` is the only place that changes an aggregate:

1. the script compares the number of sweeps and the offset of each partition of the batch with what the worker expects;
2. if anybody else has committed since this worker's last commit, it compares the version of each row as well;
3. it writes rows, differences and the new offsets.

A worker whose beliefs are out of date changes nothing. A script whose reply was lost is sent again: the second time the
offsets are those it was to write, and it says "already applied".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any, Final, Literal, cast

import redis
import redis.exceptions
from redis.backoff import NoBackoff
from redis.retry import Retry

from monitor.config import StoreSettings
from monitor.errors import StoreOwned, StoreUnavailable, UsageError
from monitor.store.keys import Keys
from monitor.store.tls import refusal

SCHEMA: Final = 1
_TIMEOUT_S: Final = 10.0
_READ_AT_ONCE: Final = 5000

Status = Literal["applied", "already", "moved", "stale"]
_STATUS: Final[Mapping[int, Status]] = {1: "applied", 2: "already", 0: "moved", -1: "stale"}


@dataclass(frozen=True, slots=True)
class Advance:
    """One partition's step: from the offset the worker expects (None: no position yet) to the next one to apply."""

    partition: str
    expected: int | None
    next_offset: int
    newest_ms: int
    at_end: bool


@dataclass(slots=True)
class Commit:
    """One batch's writes, in the order in which the script takes them; lists are flat (see commit.lua)."""

    advances: list[Advance] = field(default_factory=list)
    rows: list[bytes] = field(default_factory=list)
    versions: bytearray = field(default_factory=bytearray)
    differences: list[bytes] = field(default_factory=list)
    counts: list[bytes | int] = field(default_factory=list)
    stamps: list[bytes | int] = field(default_factory=list)
    latest: list[bytes | int] = field(default_factory=list)
    notes: list[bytes | int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Position:
    """How far a partition was applied."""

    next_offset: int
    newest_ms: int
    at_end: bool


@dataclass(frozen=True, slots=True)
class State:
    """What the store says of itself."""

    commits: int
    sweeps: int
    swept_ms: Mapping[str, int]
    """Experiment number (or "p" for rows without their response) → responses before this time are gone."""
    positions: Mapping[str, Position]


class RedisStore:
    """One shard of the store. Not for concurrent use by several threads, but for `reader()`."""

    def __init__(self, settings: StoreSettings, keys: Keys | None = None) -> None:
        self.keys = keys or Keys()
        self.settings = settings
        self.client: Any = connect(settings)
        scripts = files("monitor.store")
        self._commit = self.client.register_script((scripts / "commit.lua").read_text())
        self._sweep = self.client.register_script((scripts / "sweep.lua").read_text())
        self._commits = 0
        self._sweeps = 0
        self.opened = False
        """Whether `open_store` has registered the experiments here."""

    def close(self) -> None:
        """Close the connections."""
        self.client.close()

    def ping(self) -> None:
        """Raise `StoreUnavailable` unless the store answers."""
        with unavailable(self.settings):
            self.client.ping()

    def state(self) -> State:
        """Read the positions and remember the number of commits and sweeps as this worker's belief.

        Raises `StoreOwned` when the store has been emptied since it was opened.
        """
        keys = self.keys
        with unavailable(self.settings):
            meta, offsets, progress = (
                self.client.pipeline(transaction=True)
                .hgetall(keys.meta)
                .hgetall(keys.offsets)
                .hgetall(keys.progress)
                .execute()
            )
        if self.opened and b"schema" not in meta:
            raise StoreOwned(
                "the store was emptied while it was in use. Start again: without positions, events are read again from "
                "where kafka.start says"
            )
        self._commits = int(meta.get(b"seq", 0))
        self._sweeps = int(meta.get(b"sweeps", 0))
        swept = {name[6:].decode(): int(ms) for name, ms in meta.items() if name.startswith(b"swept:")}
        return State(self._commits, self._sweeps, swept, _positions(offsets, progress))

    def positions(self) -> Mapping[str, Position]:
        """Read how far every partition was applied, by whomever; the belief stays as it is."""
        keys = self.keys
        with unavailable(self.settings):
            offsets, progress = (
                self.client.pipeline(transaction=True).hgetall(keys.offsets).hgetall(keys.progress).execute()
            )
        return _positions(offsets, progress)

    def rows(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the stored rows (version and body) of the keys, None where there is none."""
        found: list[bytes | None] = []
        with unavailable(self.settings):
            for start in range(0, len(keys), _READ_AT_ONCE):
                found += cast(list[bytes | None], self.client.mget(keys[start : start + _READ_AT_ONCE]))
        return found

    def commit(self, commit: Commit) -> Status:
        """Apply a batch; raise `StoreUnavailable` when it is not known whether it was (call again with the same)."""
        keys = self.keys
        arguments: list[Any] = [
            self._commits,
            self._sweeps,
            bytes(commit.versions),
            len(commit.advances),
            len(commit.rows) // 2,
            len(commit.differences) // 2,
            len(commit.counts) // 3,
            len(commit.stamps) // 2,
            len(commit.latest) // 2,
            len(commit.notes) // 4,
        ]
        for step in commit.advances:
            arguments += (
                step.partition,
                "" if step.expected is None else step.expected,
                step.next_offset,
                f"{step.newest_ms}:{step.at_end:d}",
            )
        for part in (commit.rows, commit.differences, commit.counts, commit.stamps, commit.latest, commit.notes):
            arguments += part
        with unavailable(self.settings):
            status, commits, _ = self._commit(
                keys=[keys.meta, keys.offsets, keys.progress, keys.latest, keys.hours], args=arguments
            )
        # If others have committed in between, rows that this batch did not touch may be out of date in the caller's
        # cache: the belief stays behind, and versions are compared until `state` is read again.
        if status == 1 and commits == self._commits + 1:
            self._commits = commits
        return _STATUS[status]

    def hours(self) -> Iterator[tuple[str, int]]:
        """Yield (experiment number or "p", hour) wherever rows are noted for sweeping."""
        with unavailable(self.settings):
            names = self.client.hkeys(self.keys.hours)
        for name in names:
            experiment, _, hour = name.decode().partition(":")
            yield experiment, int(hour)

    def sweep(self, experiment: str, hour: int, before_ms: int) -> int:
        """Delete one noted batch of rows of that hour; return how many went, or -1 when the hour is done."""
        keys = self.keys
        with unavailable(self.settings):
            deleted, before, after = self._sweep(
                keys=[keys.meta, keys.hour(experiment, hour), keys.hours],
                args=[
                    f"{experiment}:{hour}",
                    "pending" if experiment == "p" else "",
                    keys.prefix + b"r",
                    f"swept:{experiment}",
                    before_ms,
                ],
            )
        if before == self._sweeps:
            self._sweeps = after
        return int(deleted)

    def newest_response_ms(self, experiment: int, variants: int) -> int | None:
        """Return the newest response's time over all variants of an experiment; None before the first."""
        with unavailable(self.settings):
            times = self.client.hmget(self.keys.latest, [f"{experiment}:{variant}:r" for variant in range(variants)])
        return max((int(time) for time in times if time is not None), default=None)

    def drop_chunks(self, experiment: int, variant: int, decay: str, oldest: int) -> None:
        """Delete the chunks of time buckets before `oldest`."""
        index = self.keys.chunks(experiment, variant, decay)
        with unavailable(self.settings):
            gone = [name for name in self.client.hkeys(index) if int(name) < oldest]
            if gone:
                pipeline = self.client.pipeline(transaction=True)
                pipeline.hdel(index, *gone)
                pipeline.unlink(*[self.keys.chunk(experiment, variant, decay, int(name)) for name in gone])
                pipeline.execute()


def _positions(offsets: Mapping[bytes, bytes], progress: Mapping[bytes, bytes]) -> dict[str, Position]:
    positions = {}
    for partition, offset in offsets.items():
        newest, _, at_end = progress[partition].partition(b":")
        positions[partition.decode()] = Position(int(offset), int(newest), at_end == b"1")
    return positions


def connect(settings: StoreSettings) -> redis.Redis:
    """Return a client that never sends a command twice by itself: a lost reply is for the caller to judge."""
    options: dict[str, Any] = {
        "socket_timeout": _TIMEOUT_S,
        "socket_connect_timeout": _TIMEOUT_S,
        "retry": Retry(NoBackoff(), 0),
        "decode_responses": False,
    }
    if settings.username:
        options["username"] = settings.username
    if settings.password:
        options["password"] = settings.password
    if settings.url.startswith("rediss://"):
        options |= {
            "ssl_ca_certs": settings.ssl_ca_file,
            "ssl_certfile": settings.ssl_cert_file,
            "ssl_keyfile": settings.ssl_key_file,
        }
    try:
        return redis.Redis.from_url(settings.url, **options)
    except ValueError as error:
        raise UsageError(f"store.url: {error}") from error


_WAIT: Final = (
    redis.exceptions.ConnectionError,
    redis.exceptions.TimeoutError,
    redis.exceptions.ReadOnlyError,
    redis.exceptions.OutOfMemoryError,
    redis.exceptions.ClusterDownError,
    redis.exceptions.TryAgainError,
)
_WAIT_CODES: Final = ("LOADING", "MASTERDOWN", "MISCONF", "NOREPLICAS", "BUSY", "READONLY", "OOM", "-OOM")


@contextmanager
def unavailable(settings: StoreSettings) -> Iterator[None]:
    """Turn what the store says when it cannot serve into `StoreUnavailable`; what it refuses, `UsageError`."""
    place = settings.url.partition("://")[2].rpartition("@")[2]
    try:
        yield
    except (redis.exceptions.AuthenticationError, redis.exceptions.NoPermissionError) as error:
        raise UsageError(f"store at {place} refuses this user: {error}") from error
    except _WAIT as error:
        refused = refusal(settings, error)
        if refused is not None:
            raise UsageError(f"store at {place}: {refused}") from error
        raise StoreUnavailable(f"store at {place}: {error}") from error
    except redis.exceptions.ResponseError as error:
        if "WRONGTYPE" in str(error):
            raise StoreOwned(f"store at {place} holds something else under the prefix abm: ({error})") from error
        if not str(error).startswith(_WAIT_CODES):
            raise
        raise StoreUnavailable(f"store at {place}: {error}") from error
