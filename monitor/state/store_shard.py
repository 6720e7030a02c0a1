"""A shard of the store on Redis ≥ 6.2 or Valkey ≥ 7.2, with the Lua scripts.

Concurrency control is optimistic, so workers need no locks. A worker uses a shard in three steps:

1. `StoreShard.read_state` returns the positions, and records the state that later commits are compared with.
2. `StoreShard.read_rows` returns the rows that a batch may change.
3. `StoreShard.commit` writes rows, differences of sums and offsets in one script, if the state is the expected one.

Any other status than "applied" means that nothing was written: the worker goes back to step 1 and applies the batch
again. If the reply is lost, the positions of step 1 show whether the script ran.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.resources import files
from itertools import chain
from typing import Any, Final, TypeVar

import msgspec
import redis.exceptions

from monitor.config import StoreSettings
from monitor.errors import CorruptStore, ExperimentsChanged, IncompatibleStore
from monitor.state.keys import ACTIVE_GENERATION_KEY, PENDING_FEEDBACK, StoreKeys, parse_active_generation
from monitor.state.redis_connection import connect, hash_from_reply, translating_errors
from monitor.state.store_records import (
    Commit,
    CommitStatus,
    Position,
    PositionUpdate,
    StoreState,
    decode_positions,
    encode_position,
)

SCHEMA: Final = 18
_ROWS_PER_COMMAND: Final = 5000
Result = TypeVar("Result")


class LuaScripts:
    """The Lua scripts of a client, as redis-py scripts: `script` is the text, `sha` the text's digest."""

    def __init__(self, client: Any) -> None:
        """Register the scripts with the client, which sends a script to the server at the first call."""
        self.activate_generation = client.register_script(_script_text("activate_generation"))
        self.append_snapshot = client.register_script(_script_text("append_snapshot"))
        self.commit = client.register_script(_script_text("commit"))
        self.delete_rows = client.register_script(_script_text("delete_rows"))
        self.declare = client.register_script(_script_text("declare"))
        self.compact = client.register_script(_script_text("compact"))
        self.expire = client.register_script(_script_text("expire"))
        self.record_messages = client.register_script(_script_text("record_messages"))
        self.renew_lease = client.register_script(_script_text("renew_lease"))
        self.postpone_delivery = client.register_script(_script_text("postpone_delivery"))
        self.read_state = client.register_script(_script_text("read_state"))


def _script_text(name: str) -> str:
    """Return the text of a script without comments and indents, because clients send the text again and again."""
    return re.sub(r"(?m)^\s*(--.*\n)?", "", (files("monitor.state") / "lua" / f"{name}.lua").read_text("utf-8"))


@dataclass(slots=True)
class _ExpectedState:
    """The stored state with which commits are compared: as of `read_state`, plus the connection's own changes."""

    run_id: str = ""
    """Identifies the server process."""
    commits: int = 0
    expirations: int = 0
    student_deletions: int = 0


class StoreShard:
    """A shard of the store, and the state that commits expect. Several threads may read at the same time."""

    def __init__(
        self,
        settings: StoreSettings,
        keys: StoreKeys | None = None,
        active_generation: int | None = None,
        client: Any = None,
        *,
        backfill: int | None = None,
    ) -> None:
        """With `backfill`, the number of an experiment, positions are those of the experiment's backfill."""
        self.keys = keys or StoreKeys()
        self.positions_key = self.keys.positions if backfill is None else self.keys.backfill_positions(backfill)
        """The hash of positions that commits compare and write."""
        self.active_generation = self.keys.generation if active_generation is None else active_generation
        """The generation that must be active for commits: the shard's own, unless a rebuild is filling the shard."""
        self.settings = settings
        self.client: Any = client or connect(settings)
        self.clustered = hasattr(self.client, "get_nodes")
        self.scripts = LuaScripts(self.client)
        self._expected = _ExpectedState()
        self.chunks_to_compact: dict[bytes, int] = {}
        """Key of a chunk of time buckets that is due for compaction → length (bytes) from which on it is due."""
        self.experiments_version = 0
        """Version of the set of declared experiments under which the events of commits are decoded."""
        self.is_initialized = False
        """Whether `initialize_store` has registered the experiments."""

    def close(self) -> None:
        """Close the connections."""
        self.client.close()

    def read_state(self) -> StoreState:
        """Return the state of the shard, with which later commits are compared.

        Raises `UnusableStore` if the store is damaged, was emptied, or has switched to another generation since
        `initialize_store`; `ExperimentsChanged` if the set of declared experiments was changed.
        """
        meta, positions, run_id = self._read_meta()
        if meta.get(b"commits_begun", b"0") != meta.get(b"commits", b"0"):
            raise CorruptStore(
                "the append-only file of the store was cut within a commit, and the server has applied only a part of "
                "that commit, so the aggregates are wrong. Run `ab-monitor rebuild`, which computes them again from "
                "Kafka"
            )
        if self.is_initialized and meta.get(b"run_id") != run_id.encode():
            self._rewrite_append_only_file(run_id)
        expected = self._expected
        expected.run_id = run_id
        expected.commits = int(meta.get(b"commits", 0))
        expected.expirations = int(meta.get(b"expirations", 0))
        expected.student_deletions = int(meta.get(b"student_deletions", 0))
        return StoreState(
            commits=expected.commits,
            expirations=expected.expirations,
            expired_before_ms={name: int(time_ms) for name, time_ms in _fields_of(meta, "expired_before").items()},
            positions=positions,
            experiments_deleting_students=frozenset(map(int, _fields_of(meta, "students_deleting"))),
        )

    def read_positions(self) -> dict[str, Position]:
        """Return the positions that all workers have committed; the expected state of commits does not change."""
        return self._read_meta()[1]

    def _read_meta(self) -> tuple[dict[bytes, bytes], dict[str, Position], str]:
        """Return the hash meta, the positions, and the run id of the server."""
        keys = [self.keys.meta, self.positions_key]
        if self.keys.shard == 0:
            keys.append(ACTIVE_GENERATION_KEY)
        with translating_errors(self.settings):
            meta_reply, positions, active_generation, run_id = self.run_script(self.scripts.read_state, keys)
        meta = hash_from_reply(meta_reply)
        if self.is_initialized and active_generation is not None:
            self.check_active_generation(active_generation)
        if self.is_initialized and b"schema" not in meta:
            raise CorruptStore(
                "the store was emptied while it was in use. Start the command again: events are then read from the "
                "position that kafka.start sets"
            )
        if self.is_initialized and int(meta.get(b"experiments_version", 0)) != self.experiments_version:
            raise ExperimentsChanged(
                "the declared experiments were changed while the command was running. Start the command again"
            )
        return meta, decode_positions(hash_from_reply(positions)), run_id.decode()

    def _rewrite_append_only_file(self, run_id: str) -> None:
        """Make a restarted server rewrite its append-only file, and store the server's run id.

        If the file was cut within a transaction, Redis and Valkey leave the beginning of that transaction in the file.
        The next writes would then complete the transaction at the next start (corrected in valkey-io/valkey#4342).
        """
        with translating_errors(self.settings):
            # The user may lack the right, the server may have no such file, or may be rewriting the file already.
            with suppress(redis.exceptions.ResponseError):
                self.execute_on_node(self.client.bgrewriteaof)
            self.client.hset(self.keys.meta, "run_id", run_id)

    def run_script(self, script: Any, keys: Sequence[bytes], arguments: Sequence[Any] = ()) -> Any:
        """Run a script of `scripts`, and return the reply."""
        command = ("EVALSHA", script.sha, len(keys), *keys, *arguments)
        try:
            return self.execute_on_node(self.client.execute_command, *command)
        except redis.exceptions.NoScriptError:
            self.execute_on_node(self.client.execute_command, "SCRIPT LOAD", script.script)
            return self.execute_on_node(self.client.execute_command, *command)

    def execute_on_node(self, command: Callable[..., Result], *arguments: object) -> Result:
        """Send a command to the shard's server. The client of a cluster then need not compute the slot of every key."""
        client = self.client
        options = {"target_nodes": client.get_node_from_key(self.keys.meta)} if self.clustered else {}
        return command(*arguments, **options)

    def check_active_generation(self, stored: bytes | None) -> None:
        """Raise `UnusableStore` unless the stored number is that of the expected active generation."""
        stored_generation = parse_active_generation(stored)
        if stored_generation != self.active_generation:
            raise IncompatibleStore(
                f"the store was switched to generation {stored_generation} by `ab-monitor rebuild`. Start the command "
                "again to use the new generation"
            )

    def read_applied_offset(self, partition: str) -> int | None:
        """Return the next offset of a partition; None if no position is stored."""
        with translating_errors(self.settings):
            stored = self.client.hget(self.positions_key, partition)
        return None if stored is None else decode_positions({partition.encode(): stored})[partition].next_offset

    def read_rows(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the stored rows (version and body) of the keys, None for a key without a row."""
        rows: list[bytes | None] = []
        for start in range(0, len(keys), _ROWS_PER_COMMAND):
            rows += self.read_values(keys[start : start + _ROWS_PER_COMMAND])
        return rows

    def read_values(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of the keys, all at the same moment; None for a key without a value."""
        if not keys:
            return []
        with translating_errors(self.settings):
            # Not `mget`: the client of a cluster would compute the slot of every key, and all slots are the same.
            values: list[bytes | None] = self.execute_on_node(self.client.execute_command, "MGET", *keys)
        return values

    def commit(self, commit: Commit) -> CommitStatus:
        """Write a batch if the stored state is as expected, and return the status.

        The steps are those of lua/commit.lua:

        1. If another generation is active, or this one is being deleted: "generation_switched". If another version of
           the set of declared experiments is stored: "experiments_changed".
        2. If the server was restarted or replaced, so that it may have lost acknowledged writes: "server_restarted".
        3. If a partition of the batch is at another offset, or at an offset of another log: "positions_changed".
        4. If rows have expired since, on which the batch may depend, or the student rows of an experiment are being
           deleted: "expired".
        5. If another worker has committed since, and has inserted or changed a row of the batch: "rows_changed".
        6. Write rows, differences of sums and the new offsets: "applied".

        Raises `StoreUnavailable` if the outcome is unknown; the positions of `read_state` then show the outcome.
        """
        keys, expected = self.keys, self._expected
        blocks = _blocks(commit)
        header = {
            "run_id": expected.run_id,
            "active_generation": str(self.active_generation) if keys.shard == 0 else False,
            "experiments_version": self.experiments_version,
            "commits": expected.commits,
            "expirations": expected.expirations,
            "student_deletions": expected.student_deletions,
            "positions": [_position_argument(update) for update in commit.position_updates],
            "dependencies": {f"expired_before:{name}": ms for name, ms in commit.oldest_dependencies_ms.items()},
            "newest_times": commit.newest_times,
            "blocks": {name: len(block_keys) for name, block_keys, _ in blocks},
        }
        script_keys = [keys.meta, self.positions_key, keys.newest_times, keys.expiry_hours]
        script_keys += chain(*(block_keys for _, block_keys, _ in blocks))
        if keys.shard == 0:
            script_keys.append(ACTIVE_GENERATION_KEY)
        arguments = [msgspec.msgpack.encode(header), *chain(*(values for _, _, values in blocks))]
        with translating_errors(self.settings):
            reply = self.run_script(self.scripts.commit, script_keys, arguments)
        status: CommitStatus = reply[0].decode()
        if status == "applied":
            _, commits, chunk_lengths = reply
            if commits == expected.commits + 1:
                # Otherwise another worker has committed in between, and may have changed rows that this worker caches.
                # The next commits then compare versions until `read_state` is called again.
                expected.commits = commits
            appends = zip(commit.bucket_appends, commit.compaction_limits, chunk_lengths, strict=True)
            self.chunks_to_compact |= {chunk: limit for chunk, limit, length in appends if length >= limit}
        return status

    def expire_rows(
        self, experiment: str, hours: Sequence[int], before_ms: int, unmatched_field: tuple[int, bytes] = (0, b"")
    ) -> tuple[int, int]:
        """Delete at least 4 000 of the rows that are listed under expired hours, hour by hour.

        `experiment` is an experiment's number, or `PENDING_FEEDBACK`. The expiry boundary moves to `before_ms`.
        `unmatched_field` is an hour and a field of `StoreKeys.arrivals` that counts unmatched feedback, if not empty.
        Return the number of deleted rows and the number of completed hours.
        """
        keys = self.keys
        lists = (name(experiment, hour) for hour in hours for name in (keys.expiry_rows, keys.expiry_moved_rows))
        arrival_hour, arrival_field = unmatched_field
        script_keys = [keys.meta, keys.expiry_hours, keys.feedback_unmatched]
        script_keys += [keys.arrivals(arrival_hour), keys.arrival_index, *lists]
        hour_fields = [f"{experiment}:{hour}" for hour in hours]
        boundary_field = f"expired_before:{experiment}"
        arguments = [experiment, keys.response_row(b""), boundary_field, before_ms, arrival_field, arrival_hour]
        arguments += hour_fields
        with translating_errors(self.settings):
            reply = self.run_script(self.scripts.expire, script_keys, arguments)
        deleted_rows, completed_hours, expirations_before, expirations_after = reply
        # The worker may have cached pending feedback, which can still change. Expired rows of responses cannot change.
        may_be_cached = experiment == PENDING_FEEDBACK and deleted_rows > 0
        if expirations_before == self._expected.expirations and not may_be_cached:
            self._expected.expirations = expirations_after
        return deleted_rows, completed_hours


def _fields_of(meta: dict[bytes, bytes], name: str) -> dict[str, bytes]:
    """Return the fields `name:EXPERIMENT` of meta by experiment."""
    prefix = f"{name}:".encode()
    return {field[len(prefix) :].decode(): value for field, value in meta.items() if field.startswith(prefix)}


def _blocks(commit: Commit) -> list[tuple[str, Sequence[bytes], Sequence[bytes | str | int]]]:
    """Return (name, keys, values) of each block, in the order of BLOCKS in lua/commit.lua."""
    counters, texts, entries = commit.counter_increments, commit.hash_texts, commit.expiry_entries
    return [
        ("new_rows", commit.new_row_keys, commit.new_row_values),
        ("changed_rows", commit.changed_row_keys, commit.changed_row_values),
        ("record_increments", [*commit.record_increments], [*commit.record_increments.values()]),
        ("bucket_appends", [*commit.bucket_appends], [*commit.bucket_appends.values()]),
        ("counter_increments", [key for key, _ in counters], _flat((name, n) for (_, name), n in counters.items())),
        ("index_members", [key for key, _ in commit.index_members], [member for _, member in commit.index_members]),
        (
            "expiry_entries",
            [key for key, _, _ in entries],
            _flat((hour_field, names) for _, hour_field, names in entries),
        ),
        ("hash_texts", [key for key, _ in texts], _flat((name, text) for (_, name), text in texts.items())),
    ]


def _flat(entries: Iterable[tuple[bytes | str, bytes | int]]) -> list[bytes | str | int]:
    return list(chain.from_iterable(entries))


def _position_argument(update: PositionUpdate) -> dict[str, str | bool]:
    """Return the values that lua/commit.lua compares and writes for a partition."""
    expected_log = update.position.log if update.expected_log is None else update.expected_log
    return {
        "partition": update.partition,
        "expected_offset": False if update.expected_offset is None else str(update.expected_offset),
        "expected_log": str(expected_log),
        "position": encode_position(update.position),
    }
