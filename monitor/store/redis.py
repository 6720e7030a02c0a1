"""The store on Redis ≥ 6.2 or Valkey ≥ 7.2: one script per batch, positions and effects in one write.

`RedisStore.start` is the only place that changes what an aggregate amounts to. Its script

1. compares the live generation, the server's run and the offset of each partition of the batch with what the worker
   expects, and if rows were swept since, whether any could be one that the batch rests on;
2. if anybody else has committed since this worker's last commit, looks for rows that are new to the worker, and
   compares the versions of the others if somebody else has touched any of their marks (`monitor.store.rows`);
3. writes rows (many are written beside it: `monitor.store.parcel`), differences and the new offsets, and what the
   batch means for other shards into their outboxes.

A worker whose beliefs are out of date changes nothing. That includes all that it believed of a server which has since
been started again, or replaced by its replica: what was acknowledged there last may be gone. When a reply is lost, the
positions tell whether the script ran.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar, cast

import redis
import redis.exceptions

from monitor.config import StoreSettings
from monitor.errors import StoreOwned, StoreUnavailable
from monitor.store.connection import Pending, connect, unavailable
from monitor.store.keys import LIVE, Keys, live_number
from monitor.store.packing import Packed
from monitor.store.parcel import Parcel
from monitor.store.records import Commit, Position, Sent, State, Status, positions_of
from monitor.store.rows import chunk_integers
from monitor.store.runs import as_run
from monitor.store.scripts import Scripts

SCHEMA: Final = 12
_READ_AT_ONCE: Final = 5000
_SUM_AT_ONCE: Final = 32
_OUTDATED_AFTER: Final = 64, 4096
"""Commits with comparisons after which reading all rows anew is cheaper: at first, and at most if it does not help."""
_TURN_MS: Final = 100
"""What a worker has for a batch that is written beside the script, until others no longer wait for it."""
_POLL_S: Final = 0.002
_TRIES: Final = 3  # to write rows beside the script, where others void it
_ELSEWHERE: Final = (redis.exceptions.AskError, redis.exceptions.TryAgainError)
_FORBIDDEN: Final = re.compile("NOPERM|no permissions|unknown command")
Reply = TypeVar("Reply")

_STATUS: Final[tuple[Status, ...]] = ("applied", "moved", "changed", "swept", "restarted", "switched")


class RedisStore:
    """One shard of the store. Several threads may use `values` and `rows` at the same time, and nothing else."""

    many = 500  # rows are written beside the script, and more

    def __init__(
        self, settings: StoreSettings, keys: Keys | None = None, live: int | None = None, client: Any = None
    ) -> None:
        self.keys = keys or Keys()
        self.live = self.keys.generation if live is None else live
        """The generation that must be live for this one to be used: itself, unless it is being built."""
        self.settings = settings
        self.client: Any = client or connect(settings)
        self.clustered = hasattr(self.client, "get_nodes")
        self._scripts = Scripts(self.client)
        self._commits = self._sweeps = self._closings = self._compared = 0
        self._run = ""
        self._marks: dict[int, int] = {}
        self._pending: Pending | None = None
        self._transacts = True  # unless this user may not, or the server cannot
        self._behind = False  # whether others have committed since what is believed
        self._patience = _OUTDATED_AFTER[0]
        self.opened = False
        """Whether `open_store` has registered the experiments here."""

    def close(self) -> None:
        """Close the connections."""
        self.client.close()

    def state(self) -> State:
        """Read the positions and remember the numbers of commits, sweeps and closings as this worker's belief."""
        (meta, offsets, progress, lanes), run = self._said()
        self._run = run
        if meta.get(b"begun", b"0") != meta.get(b"seq", b"0"):
            raise StoreOwned(
                "the server has applied a part of a commit again when it loaded its append-only file, which was cut "
                "within a transaction: its aggregates cannot be trusted. `ab-monitor rebuild` makes new ones from Kafka"
            )
        if self.opened and meta.get(b"run") != self._run.encode():
            self._meet_server()
        self._commits = int(meta.get(b"seq", 0))
        self._behind = False
        self._sweeps = int(meta.get(b"sweeps", 0))
        self._closings = int(meta.get(b"closings", 0))
        self._marks = {int(name[5:]): int(number) for name, number in meta.items() if name.startswith(b"mark:")}
        if self.outdated():
            self._patience = min(2 * self._patience, _OUTDATED_AFTER[1])
        self._compared = 0
        swept = {name[6:].decode(): int(ms) for name, ms in meta.items() if name.startswith(b"swept:")}
        closing = frozenset(int(name[8:]) for name in meta if name.startswith(b"closing:"))
        return State(self._commits, self._sweeps, swept, positions_of(offsets, progress), lanes=lanes, closing=closing)

    def outdated(self) -> bool:
        """Return whether versions were compared so often since `state` that dropping every belief is cheaper."""
        return self._compared >= self._patience

    def look(self) -> tuple[Mapping[str, Position], Mapping[bytes, bytes], bool]:
        """Read the positions, the lanes, and whether the server is the one that is believed in; beliefs stay."""
        (_, offsets, progress, lanes), run = self._said()
        return positions_of(offsets, progress), lanes, run == self._run

    def _said(self) -> tuple[list[dict[bytes, bytes]], str]:
        """Return meta, offsets, progress and lanes, and the run of the server.

        Raises `StoreOwned` when the store has been emptied, or switched to another generation, since it was opened.
        """
        keys = self.keys
        names = [keys.meta, keys.offsets, keys.progress, keys.lanes]
        with unavailable(self.settings):
            *tables, live, run = self._run_script(self._scripts.state, [*names, LIVE] if keys.shard == 0 else names)
        meta, *others = (dict(zip(table[::2], table[1::2], strict=True)) for table in tables)
        if self.opened and live is not None:
            self.check_live(live)
        if self.opened and b"schema" not in meta:
            raise StoreOwned(
                "the store was emptied while it was in use. Start again: without positions, events are read again from "
                "where kafka.start says"
            )
        return [meta, *others], run.decode()

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

    def _run_script(self, script: Any, keys: Sequence[bytes], arguments: Sequence[Any] = ()) -> Any:
        command = ("EVALSHA", script.sha, len(keys), *keys, *arguments)
        return self._loaded(script, command, lambda: self.on_own_node(self.client.execute_command, *command))

    def _loaded(self, script: Any, command: Sequence[Any], reply: Callable[[], Any]) -> Any:
        """Return the reply to the command that runs a script, sent once more if the server did not know the script."""
        try:
            return reply()
        except redis.exceptions.NoScriptError:
            self.on_own_node(self.client.execute_command, "SCRIPT LOAD", script.script)
            return self.on_own_node(self.client.execute_command, *command)

    def _send(self, *commands: Sequence[Any] | Packed) -> Pending:
        """Send commands to the server that is believed to hold this shard."""
        client = self.client
        if self.clustered:
            client = client.get_redis_connection(client.get_node_from_key(self.keys.meta))
        return Pending(client, *commands)

    def _reply(self, pending: Pending, command: Sequence[Any]) -> Any:
        """Return the reply to a command; where the shard is elsewhere by now, a cluster's client finds it.

        So it does for masters that do not answer, as soon as it sends something itself: `state`.
        """
        try:
            return pending.reply()
        except _ELSEWHERE:
            return self.on_own_node(self.client.execute_command, *command)

    def on_own_node(self, command: Callable[..., Reply], *arguments: object) -> Reply:
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

    def positions(self) -> Mapping[str, Position]:
        """Read how far every partition was applied, by whomever; the belief stays as it is."""
        return self.look()[0]

    def reached(self, partition: str) -> int | None:
        """Read how far one partition was applied."""
        with unavailable(self.settings):
            return int(offset) if (offset := self.client.hget(self.keys.offsets, partition)) else None

    def rows(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the stored rows (version and body) of the keys, None where there is none."""
        found: list[bytes | None] = []
        for start in range(0, len(keys), _READ_AT_ONCE):
            found += self.values(keys[start : start + _READ_AT_ONCE])
        return found

    def values(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of the keys as they are at one moment: None where there is none."""
        command = ("MGET", *keys)
        with unavailable(self.settings):
            return cast(list[bytes | None], self._reply(self._send(command), command)) if keys else []

    def commit(self, commit: Commit) -> Status:
        """Apply a batch; raise `StoreUnavailable` when it is not known whether it was: `state` tells."""
        return self.start(commit)()[0]

    def start(self, commit: Commit) -> Callable[[], tuple[Status, list[Sent]]]:
        """Send a batch and return what waits for its status and for the entries that its `sends` have become.

        Both may raise `StoreUnavailable`. It is to be called once, and before anything else is asked of this store.
        """
        beliefs = (self.live if self.keys.shard == 0 else "", self._run, self._commits, self._sweeps, self._closings)
        parcel = Parcel(commit, self.keys, beliefs, self._marks)
        with unavailable(self.settings):
            reply = self._sent_apart(parcel) or self._sent(parcel)
        return lambda: self._judged(reply, parcel.marks, commit.buckets[::2], commit.full)

    def _sent(self, parcel: Parcel) -> Callable[[], Any]:
        """Send a batch to the script as a whole; return what waits for its reply."""
        command = parcel.whole(self._scripts.commit.sha)
        self._pending = self._send(command)
        return partial(self._loaded, self._scripts.commit, command, partial(self._reply, self._pending, command))

    def _sent_apart(self, parcel: Parcel, tries: int = _TRIES) -> Callable[[], Any] | None:
        """Send many rows beside the script; None if they are few, or the script has to compare them, or may not."""
        if parcel.rows < self.many or not self._transacts or not tries:
            return None
        script, anew = self._scripts.commit, self._behind or tries < _TRIES
        turn: Sequence[Sequence[Any]] = ()
        if anew and not self._compared:
            parcel.writing()
            turn = self._turn()
        pending = self._pending = self._send(*parcel.looking(script.sha, anew=anew))
        try:
            parcel.writing()  # unless others wait for that, while the server looks
            _, *others, (status, commits, *told), _ = pending.replies()
            if status != 0 or (commits != self._commits and parcel.has_new and others != [0]):
                pending.send(("DISCARD",), *turn)
                pending.reply(len(turn))
                return None
            pending.send(*parcel.apart(script.script, *told), *turn)
        except BaseException as error:  # also an interruption: the connection is within a transaction
            pending.abandon()
            if not isinstance(error, redis.exceptions.ResponseError):
                raise
            self._transacts = not _FORBIDDEN.search(str(error))
            return None
        return partial(self._done, parcel, partial(pending.reply, len(turn)), tries - 1)

    def _turn(self) -> Sequence[Sequence[Any]]:
        """Wait until no other is between question and batch, which would void what one of both sends, but not for long.

        Return the command that ends the turn that this worker has then, if it has one: it binds nobody.
        """
        until = time.monotonic() + _TURN_MS / 1000
        with suppress(redis.exceptions.ResponseError):  # then without
            while not self._send(("SET", self.keys.turn, b"", "PX", _TURN_MS, "NX")).reply():
                if time.monotonic() >= until:
                    return ()
                time.sleep(_POLL_S)
            return (("UNLINK", self.keys.turn),)
        return ()

    def _done(self, parcel: Parcel, reply: Callable[[], Any], tries: int) -> Any:
        """Return what the script said in the transaction; if that was void, send the same rows again."""
        try:
            done = reply()
        except redis.exceptions.ResponseError as error:  # what is refused before its end voids it
            self._transacts, done, tries = not _FORBIDDEN.search(str(error)), None, 0
        if done is None:
            return (self._sent_apart(parcel, tries) or self._sent(parcel))()
        for each in done:
            if isinstance(each, Exception):
                if not isinstance(done[1], Exception):  # its count says that all is done
                    self.client.hincrby(self.keys.meta, "begun", 1)
                raise each
        return parcel.told(done)

    def abandon(self) -> None:
        """Wait no more for what was started, if anything was: `state` tells what became of it."""
        if self._pending is not None:
            self._pending.abandon()

    def _judged(
        self, reply: Callable[[], Any], marks: set[int], chunks: Sequence[bytes], full: Sequence[int]
    ) -> tuple[Status, list[Sent]]:
        with unavailable(self.settings):
            status, commits, *told = reply()
        if status != 0:
            return _STATUS[int(status)], []
        lengths, behind, *entries = told
        # If others have committed in between, rows that this batch did not touch may be out of date in the caller's
        # cache: the belief stays behind, and so does that in marks that others have noted, until `state` is read.
        self._behind = commits != self._commits + 1
        if not self._behind:
            self._commits = commits
        self._marks |= dict.fromkeys(marks.difference(behind), commits)
        self._compared += bool(behind)
        self._sum_up([chunk for chunk, most, length in zip(chunks, full, lengths, strict=True) if length >= most])
        return "applied", [Sent(before, entry) for before, entry in zip(entries[::2], entries[1::2], strict=True)]

    def _sum_up(self, chunks: Sequence[bytes]) -> None:
        """Replace the runs of chunks of time buckets by what they amount to, of some at once.

        Others, and those that cannot be reached, are so when somebody next appends to them.
        """
        with suppress(StoreUnavailable), unavailable(self.settings):
            keys: list[bytes] = []
            arguments: list[bytes] = []
            for chunk, stored in zip(chunks, self.rows(chunks[:_SUM_AT_ONCE]), strict=False):
                if stored is not None:
                    keys.append(chunk)
                    arguments += (stored, as_run(chunk_integers(chunk, stored)))
            if keys:
                self._run_script(self._scripts.sum, keys, arguments)

    def outbox(self, shard: int, lane: bytes) -> list[tuple[Sent, bytes]]:
        """Return the entries that are kept of what was sent to a shard, oldest first, and what each says."""
        with unavailable(self.settings):
            found = self.client.xrange(self.keys.outbox(shard, lane))
        return [(Sent(fields[b"p"], entry), fields[b"c"]) for entry, fields in found]

    def journal(self, shard: int, lane: bytes) -> dict[bytes, tuple[Sent, bytes]]:
        """Return the entries that are kept of what was applied from a shard, and what each says."""
        with unavailable(self.settings):
            found = self.client.xrange(self.keys.journal(shard, lane))
        return {fields[b"i"]: (Sent(fields[b"p"], fields[b"i"]), fields[b"c"]) for _, fields in found}

    def hours(self) -> Iterator[tuple[str, int]]:
        """Yield (experiment number or "p", hour) wherever rows are noted for sweeping."""
        with unavailable(self.settings):
            names = self.client.hkeys(self.keys.hours)
        for name in names:
            experiment, _, hour = name.decode().partition(":")
            yield experiment, int(hour)

    def sweep(
        self, experiment: str, hours: Sequence[int], before_ms: int, *, wait_until: float = 0.0
    ) -> tuple[int, int]:
        """Delete a thousand or more of the rows noted in hours, one after the other; return (rows, hours) that went.

        Workers that are writing are waited for, but not beyond a time of `time.monotonic`.
        """
        keys = self.keys
        names = [name(experiment, hour) for hour in hours for name in (keys.hour, keys.moved)]
        fields = [f"{experiment}:{hour}" for hour in hours]
        arguments = [experiment, keys.prefix + b"r", f"swept:{experiment}", before_ms]
        found = None
        with unavailable(self.settings):
            while not found:
                insists = int(time.monotonic() >= wait_until)
                found = self._run_script(
                    self._scripts.sweep,
                    [keys.meta, keys.hours, keys.turn, *names],
                    [*arguments, insists, *fields],
                )
                if not found:
                    time.sleep(_POLL_S)
        deleted, done, before, after = found
        # Rows of feedback without a response may be in the caller's cache and change again; those of responses cannot.
        if before == self._sweeps and not (experiment == "p" and deleted > 0):
            self._sweeps = after
        return deleted, done

    def register(self, experiment: str, definitions: str) -> None:
        """Give an experiment a number and keep its definitions (JSON), unless somebody has done so."""
        with unavailable(self.settings):
            self._run_script(self._scripts.register, [self.keys.meta, self.keys.definitions], [experiment, definitions])

    def keep(self, experiment: int, hour: int, snapshot: bytes) -> None:
        """Keep the snapshot of an hour, unless there is one or the generation is being deleted."""
        with unavailable(self.settings):
            self._run_script(self._scripts.history, [self.keys.meta, self.keys.history(experiment)], [hour, snapshot])

    def closed(self) -> frozenset[int]:
        """Return the numbers of the experiments that are over and whose students' rows were deleted."""
        with unavailable(self.settings):
            names = self.client.hkeys(self.keys.meta)
        return frozenset(int(name[7:]) for name in names if name.startswith(b"closed:"))

    def newest_response_ms(self, experiment: int, variants: Iterable[int]) -> int | None:
        """Return the newest response's time over variants of an experiment; None before the first."""
        with unavailable(self.settings):
            times = self.client.hmget(self.keys.latest, [f"{experiment}:{variant}:r" for variant in variants])
        return max((int(time) for time in times if time is not None), default=None)
