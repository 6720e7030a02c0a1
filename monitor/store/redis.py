"""The store on Redis ≥ 6.2 or Valkey ≥ 7.2: one script per batch, positions and effects in one write.

`RedisStore.commit` is the only place that changes an aggregate:

1. the script compares the live generation, the server's run, the number of sweeps and the offset of each partition of
   the batch with what the worker expects;
2. if anybody else has committed since this worker's last commit, it compares the version of each row as well;
3. it writes rows, differences and the new offsets.

A worker whose beliefs are out of date changes nothing. That includes all that it believed of a server which has since
been started again, or replaced by its replica: what was acknowledged there last may be gone. When a reply is lost, the
positions tell whether the script ran.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any, Final, Literal, NamedTuple, cast

import redis
import redis.exceptions
from redis.backoff import NoBackoff
from redis.retry import Retry

from monitor.config import StoreSettings
from monitor.errors import StoreOwned, StoreUnavailable, UsageError
from monitor.store.keys import LIVE, Keys
from monitor.store.tls import refusal

SCHEMA: Final = 2
_TIMEOUT_S: Final = 10.0
_READ_AT_ONCE: Final = 5000
_SCAN_AT_ONCE: Final = 2000

Status = Literal["applied", "moved", "changed", "swept", "restarted", "switched"]
_STATUS: Final[tuple[Status, ...]] = ("applied", "moved", "changed", "swept", "restarted", "switched")


class Refusals(NamedTuple):
    """How many of a partition's events were refused: in a row up to now, and of the latest ones."""

    run: int = 0
    records: int = 0
    refused: int = 0


_NONE_REFUSED: Final = Refusals()


@dataclass(frozen=True, slots=True)
class Position:
    """How far a partition was applied."""

    next_offset: int
    newest_ms: int = 0
    """The newest event time applied; 0 before the first."""
    refusals: Refusals = _NONE_REFUSED
    origin: str = ""
    """Identity of the topic that the offset is of: one of the same name that was created anew is another."""


@dataclass(frozen=True, slots=True)
class Advance:
    """One partition's step: from the offset the worker expects (None: no position yet) to its next position."""

    partition: str
    expected: int | None
    position: Position


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
class State:
    """What the store says of itself."""

    commits: int
    sweeps: int
    swept_ms: Mapping[str, int]
    """Experiment number (or "p" for rows without their response) → responses before this time are gone."""
    positions: Mapping[str, Position]


class RedisStore:
    """One shard of the store. Not for concurrent use by several threads, but for `reader()`."""

    def __init__(self, settings: StoreSettings, keys: Keys | None = None, live: int | None = None) -> None:
        self.keys = keys or Keys()
        self.live = self.keys.generation if live is None else live
        """The generation that must be live for this one to be used: itself, unless it is being built."""
        self.settings = settings
        self.client: Any = connect(settings)
        scripts = files("monitor.store")
        self._commit = self.client.register_script((scripts / "commit.lua").read_text())
        self._sweep = self.client.register_script((scripts / "sweep.lua").read_text())
        self._commits = 0
        self._sweeps = 0
        self._run = ""
        self.opened = False
        """Whether `open_store` has registered the experiments here."""

    def use(self, generation: int) -> None:
        """Turn to the generation that is live."""
        self.keys, self.live = Keys(generation), generation

    def close(self) -> None:
        """Close the connections."""
        self.client.close()

    def ping(self) -> None:
        """Raise `StoreUnavailable` unless the store answers."""
        with unavailable(self.settings):
            self.client.ping()

    def state(self) -> State:
        """Read the positions and remember the number of commits and sweeps as this worker's belief.

        Raises `StoreOwned` when the store has been emptied, or switched to another generation, since it was opened.
        """
        keys = self.keys
        with unavailable(self.settings):
            meta, offsets, progress, live, server = (
                self.client.pipeline(transaction=True)
                .hgetall(keys.meta)
                .hgetall(keys.offsets)
                .hgetall(keys.progress)
                .get(LIVE)
                .info("server")
                .execute()
            )
        if self.opened and live is not None:
            self.check_live(live)
        if self.opened and b"schema" not in meta:
            raise StoreOwned(
                "the store was emptied while it was in use. Start again: without positions, events are read again from "
                "where kafka.start says"
            )
        self._run = server["run_id"]
        if meta.get(b"begun", b"0") != meta.get(b"seq", b"0"):
            raise StoreOwned(
                "the server has applied a part of a commit again when it loaded its append-only file, which was cut "
                "within a transaction: its aggregates cannot be trusted. `ab-monitor rebuild` makes new ones from Kafka"
            )
        if self.opened and meta.get(b"run") != self._run.encode():
            self._meet_server()
        self._commits = int(meta.get(b"seq", 0))
        self._sweeps = int(meta.get(b"sweeps", 0))
        swept = {name[6:].decode(): int(ms) for name, ms in meta.items() if name.startswith(b"swept:")}
        return State(self._commits, self._sweeps, swept, _positions(offsets, progress))

    def _meet_server(self) -> None:
        """Have a server that was started since rewrite its append-only file.

        If the file was cut within a transaction, Redis and Valkey leave the beginning of that transaction in it, and
        what is appended next would complete it at the start after this one (mended in valkey-io/valkey#4342).
        """
        with unavailable(self.settings):
            # It may not be allowed to this user, there may be no such file, or it may be being rewritten already.
            with suppress(redis.exceptions.ResponseError):
                self.client.bgrewriteaof()
            self.client.hset(self.keys.meta, "run", self._run)

    def check_live(self, live: bytes | None) -> None:
        """Raise `StoreOwned` unless the live generation is the one that this store was opened under."""
        if int(live or 0) != self.live:
            raise StoreOwned(
                f"the store was switched to generation {int(live or 0)} (`ab-monitor rebuild`); start again to use it"
            )

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
        """Apply a batch; raise `StoreUnavailable` when it is not known whether it was: `state` tells."""
        keys = self.keys
        arguments: list[Any] = [
            self.live,
            self._run,
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
                step.position.next_offset,
                _encode(step.position),
            )
        for part in (commit.rows, commit.differences, commit.counts, commit.stamps, commit.latest, commit.notes):
            arguments += part
        with unavailable(self.settings):
            status, commits = self._commit(
                keys=[keys.meta, keys.offsets, keys.progress, keys.latest, keys.hours, LIVE], args=arguments
            )
        # If others have committed in between, rows that this batch did not touch may be out of date in the caller's
        # cache: the belief stays behind, and versions are compared until `state` is read again.
        if status == 0 and commits == self._commits + 1:
            self._commits = commits
        return _STATUS[int(status)]

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
        # Rows of feedback without a response may be in the caller's cache and change again; those of responses cannot.
        if before == self._sweeps and not (experiment == "p" and deleted > 0):
            self._sweeps = after
        return int(deleted)

    def closed(self) -> frozenset[int]:
        """Return the numbers of the experiments that are over and whose students' rows were deleted."""
        with unavailable(self.settings):
            names = self.client.hkeys(self.keys.meta)
        return frozenset(int(name[7:]) for name in names if name.startswith(b"closed:"))

    def drop_students(self, experiment: int, cursor: int) -> int:
        """Delete some of an experiment's students' rows from `cursor` (0 at first) on; return the next, 0 when done."""
        with unavailable(self.settings):
            pattern = self.keys.prefix + b"s" + _escaped(experiment.to_bytes(2)) + b"*"
            cursor, names = self.client.scan(cursor, match=pattern, count=_SCAN_AT_ONCE)
            if names:
                self.client.unlink(*names)
            if cursor == 0:
                self.client.hset(self.keys.meta, f"closed:{experiment}", 1)
        return int(cursor)

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
    return {name.decode(): _decode(int(offset), progress[name]) for name, offset in offsets.items()}


def _escaped(text: bytes) -> bytes:
    """Return the bytes as a pattern that matches only them."""
    return b"".join(b"\\" + bytes((byte,)) if byte in b"*?[]^-\\" else bytes((byte,)) for byte in text)


def _encode(position: Position) -> str:
    return ":".join(map(str, (position.newest_ms, *position.refusals, position.origin)))


def _decode(next_offset: int, progress: bytes) -> Position:
    newest_ms, run, records, refused, origin = progress.decode().split(":", 4)
    return Position(next_offset, int(newest_ms), Refusals(int(run), int(records), int(refused)), origin)


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
