"""One shard of the store on Redis ≥ 6.2 or Valkey ≥ 7.2: one script per batch, positions and effects in one write.

`RedisStore.commit` is the only place that changes aggregates. Concurrency control is optimistic; the script

1. compares the live generation, the server's run id, and the offset of each partition of the batch with what the worker
   expects, and if rows were swept since, whether the batch may depend on one of them;
2. if another worker has committed since this worker read the state, compares the versions of the rows of the batch;
3. writes rows, differences and the new offsets.

If anything differs, nothing is written, and the worker reads the state and applies the batch again. A server that was
started again or replaced by a replica may have lost acknowledged writes, so its new run id is a difference, too. When a
reply is lost, the positions tell whether the script ran.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, Final, TypeVar

import msgspec
import redis.exceptions

from monitor.config import StoreSettings
from monitor.errors import StoreOwned
from monitor.state.keys import LIVE, Keys, live_number
from monitor.state.lua_scripts import Scripts
from monitor.state.redis_connection import connect, pairs, unavailable
from monitor.state.store_records import Advance, Commit, Position, State, Status, decode_positions, encode_position

SCHEMA: Final = 13
_READ_AT_ONCE: Final = 5000
Result = TypeVar("Result")


class RedisStore:
    """One shard of the store. Several threads may read from it at the same time."""

    def __init__(
        self, settings: StoreSettings, keys: Keys | None = None, live: int | None = None, client: Any = None
    ) -> None:
        self.keys = keys or Keys()
        self.live = self.keys.generation if live is None else live
        """The generation that must be live for this one to be used: itself, unless it is being built."""
        self.settings = settings
        self.client: Any = client or connect(settings)
        self.clustered = hasattr(self.client, "get_nodes")
        self.scripts = Scripts(self.client)
        self._commits = self._sweeps = self._closings = 0
        self._run = ""
        self.long_chunks: dict[bytes, int] = {}
        """Chunks of time buckets that are due for compaction, and from how many bytes on they are."""
        self.opened = False
        """Whether `open_store` has registered the experiments here."""

    def close(self) -> None:
        """Close the connections."""
        self.client.close()

    def state(self) -> State:
        """Read the positions, and the counters of commits, sweeps and closings that later commits are compared with.

        Raises `StoreOwned` if the store was emptied, damaged, or switched to another generation since it was opened.
        """
        meta, positions, self._run = self._read_state()
        if meta.get(b"begun", b"0") != meta.get(b"seq", b"0"):
            raise StoreOwned(
                "the server has applied a part of a commit again when it loaded its append-only file, which was cut "
                "within a transaction: its aggregates cannot be trusted. `ab-monitor rebuild` makes new ones from Kafka"
            )
        if self.opened and meta.get(b"run") != self._run.encode():
            self._meet_server()
        self._commits = int(meta.get(b"seq", 0))
        self._sweeps = int(meta.get(b"sweeps", 0))
        self._closings = int(meta.get(b"closings", 0))
        swept = {name[6:].decode(): int(ms) for name, ms in meta.items() if name.startswith(b"swept:")}
        closing = frozenset(int(name[8:]) for name in meta if name.startswith(b"closing:"))
        return State(self._commits, self._sweeps, swept, positions, closing)

    def positions(self) -> dict[str, Position]:
        """Read how far every partition was applied, by any worker; later commits are compared with the same state."""
        return self._read_state()[1]

    def _read_state(self) -> tuple[dict[bytes, bytes], dict[str, Position], str]:
        """Return meta, positions, and the run id of the server."""
        keys = self.keys
        names = [keys.meta, keys.positions]
        with unavailable(self.settings):
            meta, positions, live, run = self.run_script(
                self.scripts.read_state, [*names, LIVE] if keys.shard == 0 else names
            )
        meta = pairs(meta)
        if self.opened and live is not None:
            self.check_live(live)
        if self.opened and b"schema" not in meta:
            raise StoreOwned(
                "the store was emptied while it was in use. Start again: without positions, events are read again from "
                "where kafka.start says"
            )
        return meta, decode_positions(pairs(positions)), run.decode()

    def _meet_server(self) -> None:
        """Have a server that was started since rewrite its append-only file.

        If the file was cut within a transaction, Redis and Valkey leave the beginning of that transaction in it, and
        what is appended next would complete it at the start after this one (mended in valkey-io/valkey#4342).
        """
        with unavailable(self.settings):
            # It may not be allowed to this user, there may be no such file, or it may be being rewritten already.
            with suppress(redis.exceptions.ResponseError):
                self.on_own_node(self.client.bgrewriteaof)
            self.client.hset(self.keys.meta, "run", self._run)

    def run_script(self, script: Any, keys: Sequence[bytes], arguments: Sequence[Any] = ()) -> Any:
        """Return the reply of one of the `scripts`."""
        command = ("EVALSHA", script.sha, len(keys), *keys, *arguments)
        try:
            return self.on_own_node(self.client.execute_command, *command)
        except redis.exceptions.NoScriptError:
            self.on_own_node(self.client.execute_command, "SCRIPT LOAD", script.script)
            return self.on_own_node(self.client.execute_command, *command)

    def on_own_node(self, command: Callable[..., Result], *arguments: object) -> Result:
        """Send a command to the server that holds this shard; a cluster's client need not look at all of its keys."""
        client = self.client
        own = {"target_nodes": client.get_node_from_key(self.keys.meta)} if self.clustered else {}
        return command(*arguments, **own)

    def check_live(self, live: bytes | None) -> None:
        """Raise `StoreOwned` unless the live generation is the one that this store was opened under."""
        now = live_number(live)
        if now != self.live:
            raise StoreOwned(
                f"the store was switched to generation {now} (`ab-monitor rebuild`); start again to use it"
            )

    def applied_offset(self, partition: str) -> int | None:
        """Read how far one partition was applied; None if it has no position yet."""
        with unavailable(self.settings):
            stored = self.client.hget(self.keys.positions, partition)
        return None if stored is None else decode_positions({partition.encode(): stored})[partition].next_offset

    def rows(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the stored rows (version and body) of the keys, None where there is none."""
        rows: list[bytes | None] = []
        for start in range(0, len(keys), _READ_AT_ONCE):
            rows += self.values(keys[start : start + _READ_AT_ONCE])
        return rows

    def values(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of the keys as they are at one moment: None where there is none."""
        if not keys:
            return []
        with unavailable(self.settings):
            # Not `mget`: a cluster's client would compute the slot of every key, and all are in one.
            values: list[bytes | None] = self.on_own_node(self.client.execute_command, "MGET", *keys)
        return values

    def commit(self, commit: Commit) -> Status:
        """Apply a batch: see commit.lua. Raises `StoreUnavailable` when the outcome is unknown: `state` tells it."""
        keys = self.keys
        blocks: list[tuple[str, Sequence[bytes], Sequence[bytes | str | int]]] = [
            ("new_rows", commit.new_row_keys, commit.new_row_values),
            ("rows", commit.row_keys, commit.row_values),
            ("sums", [*commit.sums], [*commit.sums.values()]),
            ("chunks", [*commit.chunks], [*commit.chunks.values()]),
            ("counters", [name for name, _ in commit.counters], _flat((f, n) for (_, f), n in commit.counters.items())),
            ("members", [index for index, _ in commit.members], [member for _, member in commit.members]),
            ("hours", [name for name, _, _ in commit.hours], _flat((f, names) for _, f, names in commit.hours)),
            ("texts", [name for name, _ in commit.texts], _flat((f, text) for (_, f), text in commit.texts.items())),
        ]
        header = {
            "run": self._run,
            "live": str(self.live) if keys.shard == 0 else False,
            "commits": self._commits,
            "sweeps": self._sweeps,
            "closings": self._closings,
            "positions": [_position_step(step) for step in commit.advances],
            "dependencies": {f"swept:{name}": ms for name, ms in commit.oldest_dependencies.items()},
            "latest": commit.latest,
            "blocks": {name: len(names) for name, names, _ in blocks},
        }
        script_keys = [keys.meta, keys.positions, keys.latest, keys.hours, *chain(*(names for _, names, _ in blocks))]
        if keys.shard == 0:
            script_keys.append(LIVE)
        arguments = [msgspec.msgpack.encode(header), *chain(*(values for _, _, values in blocks))]
        with unavailable(self.settings):
            reply = self.run_script(self.scripts.commit, script_keys, arguments)
        status: Status = reply[0].decode()
        if status == "applied":
            _, commits, lengths = reply
            if commits == self._commits + 1:
                # Otherwise another worker has committed in between and may have changed rows that this worker caches:
                # versions are compared until `state` is read again.
                self._commits = commits
            grown = zip(commit.chunks, commit.chunk_limits, lengths, strict=True)
            self.long_chunks |= {chunk: limit for chunk, limit, length in grown if length >= limit}
        return status

    def sweep(self, experiment: str, hours: Sequence[int], before_ms: int) -> tuple[int, int]:
        """Delete at least 4 000 of the rows noted in hours, hour by hour; return how many (rows, hours) went."""
        keys = self.keys
        lists = (name(experiment, hour) for hour in hours for name in (keys.hour, keys.moved))
        names = [keys.meta, keys.hours, keys.unmatched, *lists]
        fields = [f"{experiment}:{hour}" for hour in hours]
        arguments = [experiment, keys.prefix + b"r", f"swept:{experiment}", before_ms, *fields]
        with unavailable(self.settings):
            deleted, done, before, after = self.run_script(self.scripts.expire, names, arguments)
        # Rows of feedback without a response may be in the caller's cache and change again; those of responses cannot.
        if before == self._sweeps and not (experiment == "p" and deleted > 0):
            self._sweeps = after
        return deleted, done


def _flat(entries: Iterable[tuple[bytes | str, bytes | int]]) -> list[bytes | str | int]:
    return list(chain.from_iterable(entries))


def _position_step(step: Advance) -> dict[str, str | bool]:
    """Return what commit.lua compares and writes of one partition's position."""
    return {
        "partition": step.partition,
        "offset": False if step.expected is None else str(step.expected),
        "origin": step.position.origin if step.left is None else step.left,
        "position": encode_position(step.position),
    }
