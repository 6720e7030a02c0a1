"""The stored state of one response, and how events change it.

A row is a set: the response event that won (the earliest, should an id be used twice) and every distinct reaction to
it. The set does not depend on the order in which the events came.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final, Literal, TypeAlias, final

from mypy_extensions import i64

from monitor.engine.id_hash import ITEM_BYTES, TAG_BYTES, IdHasher
from monitor.events import Feedback, Response

MAX_REACTIONS: Final = 1000
"""Reactions kept per response, the newest by event time: the choice does not depend on the order of arrival."""
NO_RESPONSE: Final = -1
"""The arm of a row whose response event has not arrived."""
PRE_PERIOD: Final = 255
"""The variant of a response from before the experiment, of whichever variant it was."""
MISSING: Final = -1
"""The latency or category of a response without one."""

Reaction: TypeAlias = tuple[int, str, bytes, bytes, str, float]
"""(event time in ms, feedback id, student's tag or b"", item's hash or b"" for the whole answer, kind, score)."""

MergeOutcome = Literal["applied", "duplicate", "revised"]


@final
class ResponseRow:
    """One response as the store keeps it.

    Before the response event arrives, `arm` is `NO_RESPONSE` and `timestamp_ms` is the time of the newest reaction.
    """

    __slots__ = (
        "arm", "category", "contribution", "items", "latency_ms", "name", "ranks", "reactions", "student",
        "timestamp_ms", "touched", "version",
    )  # fmt: skip

    def __init__(
        self,
        timestamp_ms: int = 0,
        arm: int = NO_RESPONSE,
        student: bytes = b"",
        items: bytes = b"",
        ranks: tuple[int, ...] | None = None,
        latency_ms: int = MISSING,
        category: int = MISSING,
        reactions: tuple[Reaction, ...] = (),
        version: int = 0,
    ) -> None:
        self.timestamp_ms = timestamp_ms
        self.arm = arm
        """Experiment number · 256 + index of the variant among the experiment's sorted variants."""
        self.student = student
        self.items = items
        """The items' hashes, `ITEM_BYTES` each, in the order of the list."""
        self.ranks = ranks
        """The items' positions; None if they are 1, 2, 3 …"""
        self.latency_ms = latency_ms
        """How long the bot took, in whole ms; `MISSING` if the response has none."""
        self.category = category
        """Index among the experiment's sorted categories; their number for any other, `MISSING` for none."""
        self.reactions = reactions
        """Sorted, distinct."""
        self.version = version
        """Number of times that the row was written; 0 until it is stored."""
        self.contribution: Contribution | None = None
        """The row's last evaluation; not stored."""
        self.name = b""
        """The stored id of the response, which is the row's key; not stored in the row."""
        self.touched = False
        """Whether the current batch changes the row; not stored."""

    def is_blank(self) -> bool:
        """Return whether neither the response nor a reaction to it has arrived."""
        return self.arm == NO_RESPONSE and not self.reactions

    def review_score(self) -> float | None:
        """Return the score of the latest review, None without one. A review counts whenever it was written."""
        for _, _, _, _, kind, score in reversed(self.reactions):
            if kind == "reviewed":
                return score
        return None


@final
class Contribution:
    """What one response adds to the aggregates: integers in fixed point, -1 where a metric is undefined."""

    __slots__ = ("kinds", "last_reaction_ms", "rated", "sums", "values")

    def __init__(
        self,
        rated: bool,  # noqa: FBT001
        values: tuple[int, ...],
        sums: tuple[int, ...],
        kinds: tuple[tuple[str, int], ...],
        last_reaction_ms: int,
    ) -> None:
        self.rated = rated
        self.values = values
        """One value per metric."""
        self.sums = sums
        """The response's sums vector: see `monitor.engine.student`."""
        self.kinds = kinds
        """(kind, number of current reactions), sorted by kind."""
        self.last_reaction_ms = last_reaction_ms


def merge_response(
    row: ResponseRow,
    timestamp_ms: int,
    arm: int,
    student: bytes,
    items: bytes,
    ranks: tuple[int, ...] | None,
    latency_ms: int,
    category: int,
) -> MergeOutcome:
    """Merge a response event into its row; of two different events with one id the smaller (earlier) one wins."""
    outcome: MergeOutcome = "applied"
    if row.arm != NO_RESPONSE:
        new = (timestamp_ms, arm, student, items, ranks or (), latency_ms, category)
        old = (row.timestamp_ms, row.arm, row.student, row.items, row.ranks or (), row.latency_ms, row.category)
        if new >= old:
            return "duplicate"
        outcome = "revised"
    row.timestamp_ms, row.arm, row.student, row.items, row.ranks = timestamp_ms, arm, student, items, ranks
    row.latency_ms, row.category = latency_ms, category
    return outcome


def merge_reaction(row: ResponseRow, reaction: Reaction) -> MergeOutcome:
    """Merge a reaction into its row's set; with another of its student, item and kind it is a revision."""
    reactions = row.reactions
    index = bisect_left(reactions, reaction)
    if index < len(reactions) and reactions[index] == reaction:
        return "duplicate"
    if index == 0 and len(reactions) >= MAX_REACTIONS:
        return "duplicate"
    _, _, tag, item, kind, _ = reaction
    outcome: MergeOutcome = "applied"
    for _, _, other_tag, other_item, other_kind, _ in reactions:
        if other_kind == kind and other_item == item and other_tag == tag:
            outcome = "revised"
            break
    row.reactions = (*reactions[:index], reaction, *reactions[index:])[-MAX_REACTIONS:]
    return outcome


def reaction_of(event: Feedback, ids: IdHasher) -> Reaction:
    """Return a feedback event as the row of its response stores it."""
    return (
        event.timestamp_ms,
        event.feedback_id,
        b"" if event.user_id is None else ids.student(event.user_id)[:TAG_BYTES],
        b"" if event.item_id is None else ids.item(event.item_id),
        event.kind,
        event.score + 0.0,  # -0.0 becomes 0.0: equal scores are equal bytes
    )


def latency_of(event: Response) -> int:
    """Return a response's latency in whole ms, half to even; `MISSING` if it has none."""
    return MISSING if event.latency_ms is None else round(event.latency_ms)


def item_index(item: bytes, items: bytes) -> i64:
    """Return the index of an item's hash in a list of hashes, -1 if the list does not contain it."""
    first, end = item[0], i64(len(items))
    at: i64 = 0
    while at < end:
        if items[at] == first and items[at : at + ITEM_BYTES] == item:
            return at // ITEM_BYTES
        at += ITEM_BYTES
    return -1
