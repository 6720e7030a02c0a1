"""The store on Redis ≥ 6.2 or Valkey ≥ 7.2: one script per batch, positions and effects in one write.

What `RedisStore.ask` returns is the only place that changes what an aggregate amounts to. Its script

1. compares the live generation, the server's run and the offset of each partition of the batch with what the worker
   expects, and if rows were swept since, whether any could be one that the batch rests on;
2. if anybody else has committed since this worker's last commit, looks for rows that are new to the worker (unless
   `monitor.store.made` says that they are new), and compares the versions of the others if somebody else has touched
   any of their marks (`monitor.store.rows`);
3. writes rows (many are written beside it: `monitor.store.parcel`), differences and the new offsets, and what the
   batch means for other shards into their outboxes.

A worker whose beliefs are out of date changes nothing. That includes all that it believed of a server which has since
been started again, or replaced by its replica: what was acknowledged there last may be gone. When a reply is lost, the
positions tell whether the script ran.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar, cast

import redis
import redis.exceptions

from monitor.config import StoreSettings
from monitor.errors import StoreOwned
from monitor.store import turns
from monitor.store.connection import Pending, connect, pairs, unavailable
from monitor.store.keys import LIVE, Keys, live_number
from monitor.store.packing import Packed
from monitor.store.parcel import Parcel
from monitor.store.records import Commit, Position, Sent, State, Status, positions_of
from monitor.store.scripts import Scripts

SCHEMA: Final = 13
_READ_AT_ONCE: Final = 5000
_OUTDATED_AFTER: Final = 64, 4096
"""Commits with comparisons after which reading all rows anew is cheaper: at first, and at most if it does not help."""
_TRIES: Final = 3  # to write rows beside the script, where others void it
_ELSEWHERE: Final = (redis.exceptions.AskError, redis.exceptions.TryAgainError)
_FORBIDDEN: Final = re.compile("NOPERM|no permissions|unknown command")
Result = TypeVar("Result")
Reply = Callable[[], "tuple[Status, list[Sent]]"]
"""Waits for a batch's status, and for the entries that its `sends` have become."""

_STATUS: Final[tuple[Status, ...]] = ("applied", "moved", "changed", "swept", "restarted", "switched")


class _Asked(NamedTuple):
    """Whether a batch may be written beside the script."""

    pending: Pending
    question: Sequence[Sequence[Any]]
    takes: bool
    """A turn, with the question."""
    until: float
    """Until when it has that, by `time.monotonic`."""
    tries: int


class RedisStore:
    """One shard of the store. Several threads may read of it at the same time (`values`, `monitor.store.moments`)."""

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
        self.scripts = Scripts(self.client)
        self._commits = self._seen = self._sweeps = self._closings = self._compared = 0
        self._run = ""
        self._marks: dict[int, int] = {}
        self._pending: Pending | None = None
        self._transacts = True  # unless this user may not, or the server cannot
        self._behind = False  # whether others have committed since what is believed
        self._patience = _OUTDATED_AFTER[0]
        self.long_chunks: dict[bytes, int] = {}  # and from how many bytes on each is: see `sum_up`
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
        self._commits = self._seen = int(meta.get(b"seq", 0))
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
            *tables, live, run = self.run_script(self.scripts.state, [*names, LIVE] if keys.shard == 0 else names)
        meta, *others = map(pairs, tables)
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

    def run_script(self, script: Any, keys: Sequence[bytes], arguments: Sequence[Any] = ()) -> Any:
        """Return the reply of one of the `scripts`."""
        command = ("EVALSHA", script.sha, len(keys), *keys, *arguments)
        return self._loaded(script, command, lambda: self.on_own_node(self.client.execute_command, *command))

    def _loaded(self, script: Any, command: Sequence[Any], reply: Callable[[], Any]) -> Any:
        """Return the reply to the command that runs a script, sent once more if the server did not know the script."""
        try:
            return reply()
        except redis.exceptions.NoScriptError:
            self.on_own_node(self.client.execute_command, "SCRIPT LOAD", script.script)
            return self.on_own_node(self.client.execute_command, *command)

    def send(self, *commands: Sequence[Any] | Packed) -> Pending:
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

    def ask_rows(self, keys: Sequence[bytes]) -> Callable[[], list[bytes | None]]:
        """Ask for the stored rows of keys, and return what waits for them; it is used as `start` is."""
        if not keys:
            return list
        command = ("MGET", *keys[:_READ_AT_ONCE])
        with unavailable(self.settings):
            pending = self._pending = self.send(command)

        def found() -> list[bytes | None]:
            with unavailable(self.settings):
                first: list[bytes | None] = self._reply(pending, command)
            return first + self.rows(keys[_READ_AT_ONCE:])

        return found

    def values(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of the keys as they are at one moment: None where there is none."""
        command = ("MGET", *keys)
        with unavailable(self.settings):
            return cast(list[bytes | None], self._reply(self.send(command), command)) if keys else []

    def commit(self, commit: Commit) -> Status:
        """Apply a batch; raise `StoreUnavailable` when it is not known whether it was: `state` tells."""
        return self.start(commit)()[0]

    def start(self, commit: Commit) -> Reply:
        """Send a batch and return what waits for its status and for the entries that its `sends` have become.

        Both may raise `StoreUnavailable`. It is to be called once, and before anything else is asked of this store.
        """
        return self.ask(commit)()

    def ask(self, commit: Commit) -> Callable[[], Reply]:
        """Return what starts a batch, once whatever has to be asked before that was sent: all shards are asked at once.

        It may raise `StoreUnavailable`, and is used as `start` is.
        """
        beliefs = (self.live if self.keys.shard == 0 else "", self._run, self._commits, self._sweeps, self._closings)
        parcel = Parcel(commit, self.keys, beliefs, self._marks, shared=self._behind)
        with unavailable(self.settings):
            asked = self._asked(parcel)

        def send() -> Reply:
            with unavailable(self.settings):
                reply = self._sent_apart(parcel, asked) or self._sent(parcel)
            return lambda: self._judged(reply, parcel.marks, commit.buckets[::2], commit.full)

        return send

    def _sent(self, parcel: Parcel) -> Callable[[], Any]:
        """Send a batch to the script as a whole; return what waits for its reply."""
        command = parcel.whole(self.scripts.commit.sha)
        pending = self._pending = self.send(command)
        return partial(self._loaded, self.scripts.commit, command, partial(self._reply, pending, command))

    def _asked(self, parcel: Parcel, tries: int = _TRIES) -> _Asked | None:
        """Ask whether many rows may be written beside the script; None if they are few, or this user may not."""
        if parcel.count < self.many or not self._transacts or not tries:
            return None
        anew = self._behind or tries < _TRIES
        takes = anew and not self._compared
        if takes:
            parcel.writing()
        others = [parcel.made.since(self._seen)] if anew and parcel.has_new else []
        question = parcel.looking(self.scripts.commit.sha, *others)
        until = time.monotonic() + turns.TURN_MS / 1000
        pending = self._pending = self.send(*[turns.take(self.keys.turn)] * takes, *question)
        return _Asked(pending, question, takes, until, tries)

    def _sent_apart(self, parcel: Parcel, asked: _Asked | None) -> Callable[[], Any] | None:
        """Send many rows beside the script; None if it has to compare them, or nothing was asked."""
        if asked is None:
            return None
        pending, taken, until = asked.pending, asked.takes, asked.until
        try:
            parcel.writing()  # unless others wait for that, while the server looks
            said = pending.replies()
            if taken and not said.pop(0):
                pending.send(("DISCARD",))
                pending.replies()
                taken = turns.wait_for(self.keys.turn, pending)
                until = time.monotonic() + turns.TURN_MS / 1000
                pending.send(*asked.question)
                said = pending.replies()
            _, *entries, (status, commits, *told), _ = said
            new = commits == self._commits or not parcel.has_new
            if status == 0 and not new and entries:
                new = parcel.made.is_new(entries[0], self._seen, commits)
                if not new:
                    pending.send(("DISCARD",), *parcel.looking(self.scripts.commit.sha, parcel.existing()))
                    _, _, existing, (status, commits, *told), _ = pending.replies()
                    new = existing == 0
            refused = status != 0 or not new
            commands = [("DISCARD",)] if refused else parcel.apart(self.scripts.commit.script, *told)
            # Once it has run out, a turn may be somebody else's.
            turn = [("UNLINK", self.keys.turn)] * (taken and time.monotonic() < until)
            pending.send(*commands, *turn)
            if refused:
                pending.reply(len(turn))
                return None
        except BaseException as error:  # also an interruption: the connection is within a transaction
            pending.abandon()
            if not isinstance(error, redis.exceptions.ResponseError):
                raise
            self._transacts = not _FORBIDDEN.search(str(error))
            return None
        return partial(self._done, parcel, partial(pending.reply, len(turn)), asked.tries - 1)

    def _done(self, parcel: Parcel, reply: Callable[[], Any], tries: int) -> Any:
        """Return what the script said in the transaction; if that was void, send the same rows again."""
        try:
            done = reply()
        except redis.exceptions.ResponseError as error:  # what is refused before its end voids it
            self._transacts, done, tries = not _FORBIDDEN.search(str(error)), None, 0
        if done is None:
            return (self._sent_apart(parcel, self._asked(parcel, tries)) or self._sent(parcel))()
        for each in done:
            if isinstance(each, Exception):
                if not isinstance(done[1], Exception):  # its count says that all is done
                    self.client.hincrby(self.keys.meta, "begun", 1)
                raise each
        return parcel.told(done)

    def is_shared(self) -> bool:
        """Return whether others write here as well, who have to be told of rows that are made."""
        return self._behind

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
        self._seen = commits
        if not self._behind:
            self._commits = commits
        self._marks |= dict.fromkeys(marks.difference(behind), commits)
        self._compared += bool(behind)
        grown = zip(chunks, full, lengths, strict=True)
        self.long_chunks |= {chunk: most for chunk, most, length in grown if length >= most}
        return "applied", [Sent(before, entry) for before, entry in zip(entries[::2], entries[1::2], strict=True)]

    def sweep(
        self, experiment: str, hours: Sequence[int], before_ms: int, *, wait_until: float = 0.0
    ) -> tuple[int, int]:
        """Delete four thousand or more of the rows noted in hours, one after the other; return (rows, hours) that went.

        Workers that are writing are waited for, but not beyond a time of `time.monotonic`.
        """
        keys = self.keys
        names = [keys.meta, keys.hours, keys.turn]
        names += [name(experiment, hour) for hour in hours for name in (keys.hour, keys.moved)]
        fields = [f"{experiment}:{hour}" for hour in hours]
        arguments = [experiment, keys.prefix + b"r", f"swept:{experiment}", before_ms]
        found = None
        with unavailable(self.settings):
            while not found:
                insists = int(time.monotonic() >= wait_until)
                found = self.run_script(self.scripts.sweep, names, [*arguments, insists, *fields])
                if not found:
                    time.sleep(turns.POLL_S)
        deleted, done, before, after = found
        # Rows of feedback without a response may be in the caller's cache and change again; those of responses cannot.
        if before == self._sweeps and not (experiment == "p" and deleted > 0):
            self._sweeps = after
        return deleted, done
