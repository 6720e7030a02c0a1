"""One batch as the commands that apply it, in either of two ways.

All of it may go through `commit.lua`. But whatever is given to a script becomes a string of Lua, which takes the server
as long as writing a row does. So many rows go by a plain MSET, with them time buckets by APPEND and what shards say to
each other by XADD, beside the script that does everything else, in one transaction. That cannot refuse anything by
itself. So the script is asked beforehand whether it would be done, while what everybody changes who changes anything is
watched: if it does in between, nothing of the transaction is done.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Final, final

from monitor.store.keys import LIVE, Keys
from monitor.store.made import Made
from monitor.store.packing import Packed
from monitor.store.records import Commit, encode_progress

_PAIR: Final = 2
_ALL, _LOOK, _BUT_ROWS = range(3)


@final
class Parcel:
    """The commands for one batch, under what the worker believes of the store."""

    def __init__(
        self, commit: Commit, keys: Keys, beliefs: Sequence[Any], known: Mapping[int, int], *, shared: bool
    ) -> None:
        """Take a batch apart, of which no more rows are to come.

        `beliefs` are the live generation, the server's run, and the numbers of commits, sweeps and closings; `known`
        says which commit noted a mark last. If the store is `shared` with others, they are told what is made.
        """
        self._beliefs = beliefs
        self._rows, self._new = commit.rows, commit.new_rows
        self.made = Made(keys.made, commit.new_rows)
        self._shared = shared
        self.marks = commit.rows.marks
        self.count = self._rows.count + self._new.count
        self._writing: Packed | None = None
        self._sends, self._receipts, self._buckets = commit.sends, commit.receipts, commit.buckets
        self._said = [len(commit.sends) // 3, len(commit.receipts) // 5]
        self._sizes = [
            len(commit.differences) // 2, len(commit.counts) // 3, len(commit.stamps) // 2, len(commit.latest) // 2,
            len(commit.notes) // 3, *self._said, len(commit.names) // 3,
        ]  # fmt: skip
        self._advances = len(commit.advances)
        self._reached = len(commit.reached)
        self._records: list[Any] = [keys.meta, keys.offsets, keys.progress, keys.latest, keys.hours]
        self._records += keys.lanes, keys.made
        self._live = [LIVE] if keys.shard == 0 else []
        self._compared: list[Any] = []
        """What the script compares, of its arguments."""
        for step in commit.advances:
            self._compared += (
                step.partition,
                "" if step.expected is None else step.expected,
                step.position.origin if step.left is None else step.left,
                step.position.next_offset,
                encode_progress(step.position),
            )
        for mark in self.marks:
            self._compared += mark, known.get(mark, "")
        for experiment, oldest_ms in commit.reached.items():
            self._compared += f"swept:{experiment}", oldest_ms
        self._others: list[Any] = []
        """Keys of all but what may be written beside the script."""
        self._written: list[Any] = []
        """What is written there, or under `_records`."""
        for part, width in ((commit.differences, 2), (commit.counts, 3), (commit.stamps, 2)):
            _split(part, width, self._others, self._written)
        self._written += commit.latest
        for part, width in ((commit.notes, 3), (commit.names, 3)):
            _split(part, width, self._others, self._written)
        self._lanes = commit.sends[::3] + commit.receipts[::5]

    @property
    def has_new(self) -> bool:
        """Whether some rows must not be in the store yet."""
        return self._new.count > 0

    def writing(self) -> Packed:
        """Return the command of `apart` that writes the rows, packed once however often it is sent."""
        if self._writing is None:
            self._writing = Packed("MSET", rows=[self._rows, self._new])
        return self._writing

    def whole(self, script: str) -> Sequence[Any]:
        """Return the command that applies everything, by the script of this digest."""
        rows = self._rows.flat() + self._new.flat()
        keys = [*self._records, *rows[::2], *self._others, *self._buckets[::2], *self._lanes, *self._live]
        said = [*_without(self._receipts, 5), *_without(self._sends, 3)]
        head = self._head(_ALL, [*self._sizes, len(self._buckets) // 2], said)
        written = rows[1::2] + self._written + self._buckets[1::2]
        return ("EVALSHA", script, len(keys), *keys, *head, *written)

    def existing(self) -> Sequence[Any]:
        """Return the command that says how many of the new rows there are."""
        return ("EXISTS", *self._new.flat()[::2])

    def looking(self, script: str, *others: Sequence[Any]) -> Sequence[Sequence[Any]]:
        """Return the commands that begin a transaction, of which the last but one says whether it would be applied.

        The `others` stand before that one.
        """
        keys = [*self._records, *self._live]
        sizes = [0, 0, 0, 0, 0, *self._said, 0, 0]
        return (
            # Every commit, sweep and closing counts itself in the first.
            ("WATCH", self._records[0], *self._live),
            *others,
            ("EVALSHA", script, len(keys), *keys, *self._head(_LOOK, sizes, self._unsaid([b""] * self._said[0]))),
            ("MULTI",),
        )

    def apart(self, script: str, oldest_ms: bytes, now_ms: int, *before: bytes) -> Sequence[Sequence[Any] | Packed]:
        """Return the commands of the transaction, for what the script has said in reply to `looking`.

        The script goes as its text: one that the server has forgotten would fail. The count comes first, so that it
        tells if the script fails: see `RedisStore.state`.
        """
        keys = [*self._records, *self._others, *self._lanes, *self._live]
        entries = [_following(entry, now_ms) for entry in before]
        head = self._head(_BUT_ROWS, [*self._sizes, 0], self._unsaid(entries))
        kept = (b"MINID", b"~", oldest_ms)
        sends, receipts = self._sends, self._receipts
        return (
            ("HINCRBY", self._records[0], "begun", 1),
            ("EVAL", script, len(keys), *keys, *head, *self._written),
            self.writing(),
            *[("APPEND", *chunk) for chunk in zip(self._buckets[::2], self._buckets[1::2], strict=True)],
            *[
                ("XADD", outbox, *kept, entry, b"p", last, b"c", said)
                for outbox, said, entry, last in zip(sends[::3], sends[2::3], entries, before, strict=True)
            ],
            *[
                ("XADD", receipts[at], *kept, b"*", b"i", receipts[at + 3], b"p", receipts[at + 2], b"c", said)
                for at, said in zip(range(0, len(receipts), 5), receipts[4::5], strict=True)
                if said
            ],
            ("EXEC",),
        )

    def told(self, done: Sequence[Any]) -> Sequence[Any]:
        """Return what the script says of a batch that it applies as a whole, from the replies to a transaction."""
        _, (status, commits, _, *told), _, *others = done
        return [status, commits, others[: len(self._buckets) // 2], *told]

    def _unsaid(self, entries: Sequence[bytes]) -> list[Any]:
        """Return what is compared of receipts and entries whose text does not go through the script."""
        receipts = _without(self._receipts, 5)
        receipts[3::4] = [b""] * self._said[1]
        return [*receipts, *chain.from_iterable(zip(self._sends[1::3], entries, strict=True))]

    def _head(self, asked: int, sizes: Sequence[int], said: Sequence[Any]) -> list[Any]:
        rows, new = (self.count, self._new.count) if asked == _ALL else (0, 0)
        counts = [self._advances, rows, *sizes, new, len(self.marks), self._reached]
        left = self.made.left() if self._shared and asked != _LOOK else ("", "")
        return [*self._beliefs, asked, *left, *counts, *self._compared, *said]


def _following(entry: bytes, now_ms: int) -> bytes:
    """Return what an entry of a stream may be called that is made now, after another one or, if that is empty, none."""
    last_ms, number = map(int, entry.split(b"-")) if entry else (0, 0)
    return b"%d-%d" % max((now_ms, 0), (last_ms, number + 1))


def _split(part: Sequence[bytes | int], width: int, keys: list[Any], arguments: list[Any]) -> None:
    """Take apart flat records of `width`: their first fields are keys, the others arguments."""
    keys += part[::width]
    arguments += part[1::width] if width == _PAIR else _without(part, width)


def _without(part: Sequence[bytes | int], width: int) -> list[Any]:
    """Return flat records of `width` without their first fields."""
    rest = list(part)
    del rest[::width]
    return rest
