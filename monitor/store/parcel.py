"""One batch as the commands that apply it, in either of two ways.

All of it may go through `commit.lua`. But whatever is given to a script becomes a string of Lua, which takes the server
as long as writing a row does. So many rows go by a plain MSET, beside the script that does everything else, in one
transaction. That cannot refuse anything by itself. So the script is asked beforehand whether it would be done, while
what everybody changes who changes anything is watched: if it does in between, nothing of the transaction is done.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, final

from monitor.store.keys import LIVE, Keys
from monitor.store.records import Commit, encode_progress

_PAIR: Final = 2
_ALL, _LOOK, _BUT_ROWS = range(3)


@final
class Parcel:
    """The commands for one batch, under what the worker believes of the store."""

    def __init__(self, commit: Commit, keys: Keys, beliefs: Sequence[Any], known: Mapping[int, int]) -> None:
        """Take a batch apart.

        `beliefs` are the live generation, the server's run, and the numbers of commits, sweeps and closings; `known`
        says which commit noted a mark last.
        """
        self._beliefs = beliefs
        self._new = commit.new_rows[::2]
        self._rows = commit.rows + commit.new_rows
        # A version begins with it.
        self.marks = {row[0] for row in commit.rows[1::2]}
        self._sizes = [
            len(commit.differences) // 2, len(commit.counts) // 3, len(commit.stamps) // 2, len(commit.latest) // 2,
            len(commit.notes) // 4, len(commit.sends) // 3, len(commit.receipts) // 5, len(commit.names) // 3,
            len(commit.buckets) // 2,
        ]  # fmt: skip
        self._advances = len(commit.advances)
        self._reached = len(commit.reached)
        self._records: list[Any] = [keys.meta, keys.offsets, keys.progress, keys.latest, keys.hours, keys.lanes]
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
        """Keys of all but the rows."""
        self._written: list[Any] = []
        """What is written there, or under `_records`."""
        for part, width in ((commit.differences, 2), (commit.counts, 3), (commit.stamps, 2)):
            _split(part, width, self._others, self._written)
        self._written += commit.latest
        for part, width in ((commit.notes, 4), (commit.sends, 3)):
            _split(part, width, self._others, self._written)
        _split(commit.receipts, 5, self._others, self._compared)
        for part, width in ((commit.names, 3), (commit.buckets, 2)):
            _split(part, width, self._others, self._written)

    @property
    def rows(self) -> int:
        """How many there are."""
        return len(self._rows) // 2

    @property
    def has_new(self) -> bool:
        """Whether some of them must not be in the store yet."""
        return bool(self._new)

    def whole(self, script: str) -> Sequence[Any]:
        """Return the command that applies everything, by the script of this digest."""
        keys = [*self._records, *self._rows[::2], *self._others, *self._live]
        return ("EVALSHA", script, len(keys), *keys, *self._head(_ALL, self._sizes), *self._rows[1::2], *self._written)

    def looking(self, script: str, *, anew: bool) -> Sequence[Sequence[Any]]:
        """Return the commands that begin a transaction, of which the last but one says whether it would be applied.

        If `anew`, the first but one says how many of the new rows there are: none, where others have committed besides.
        """
        keys = [*self._records, *self._live]
        sizes = [size if place == _RECEIPTS else 0 for place, size in enumerate(self._sizes)]
        return (
            # Every commit, sweep and closing counts itself in the first.
            ("WATCH", self._records[0], *self._live),
            *([("EXISTS", *self._new)] if anew and self._new else []),
            ("EVALSHA", script, len(keys), *keys, *self._head(_LOOK, sizes)),
            ("MULTI",),
        )

    def apart(self, script: str) -> Sequence[Sequence[Any]]:
        """Return the commands of the transaction. The script goes as its text: one the server has forgotten would fail.

        The count comes first, so that it tells if the script fails: see `RedisStore.state`.
        """
        keys = [*self._records, *self._others, *self._live]
        return (
            ("HINCRBY", self._records[0], "begun", 1),
            ("EVAL", script, len(keys), *keys, *self._head(_BUT_ROWS, self._sizes), *self._written),
            ("MSET", *self._rows),
            ("EXEC",),
        )

    def _head(self, asked: int, sizes: Sequence[int]) -> list[Any]:
        rows, new = (self.rows, len(self._new)) if asked == _ALL else (0, 0)
        counts = [self._advances, rows, *sizes, new, len(self.marks), self._reached]
        return [*self._beliefs, asked, *counts, *self._compared]


_RECEIPTS: Final = 6
"""Their place among the sizes."""


def _split(part: Sequence[bytes | int], width: int, keys: list[Any], arguments: list[Any]) -> None:
    """Take apart flat records of `width`: their first fields are keys, the others arguments."""
    keys += part[::width]
    if width == _PAIR:
        arguments += part[1::width]
        return
    rest = list(part)
    del rest[::width]
    arguments += rest
