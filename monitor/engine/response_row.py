"""The stored row of a response, and the functions that merge events into a row.

A row is a set: one response event and every distinct reaction to the response. If several response events have the same
id, the row has the earliest event. The set does not depend on the order of arrival.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final, Literal, TypeAlias, final

from mypy_extensions import i64

from monitor.engine.id_hash import ITEM_HASH_BYTES, STUDENT_TAG_BYTES, IdHasher
from monitor.events import Feedback, Response

MAX_REACTIONS: Final = 1000
"""Maximum of stored reactions per response. The newest by event time are stored, whatever their order of arrival."""
NO_RESPONSE: Final = -1
"""The variant key of a row whose response event has not arrived, and of a response that does not count."""
PRE_PERIOD_VARIANT: Final = 255
"""The variant of all responses in the pre-period, whatever variant generated the response."""
EXCLUDED_VARIANT_OFFSET: Final = 128
"""Added to the variant of an excluded response. Only experiments with fewer variants have excluded responses."""
MISSING: Final = -1
"""The value of a latency or category that a response does not have."""

WITHDRAWN: Final = -1.0
"""The score of a reaction that takes earlier reactions back, of the same student, about the same item, of the kind."""

Reaction: TypeAlias = tuple[int, str, bytes, bytes, str, float]
"""(event time in ms, feedback id, student tag or b"", hash of the item or b"" for the whole response, kind, score)."""

UNCOUNTED_REACTIONS: Final = ("before_response", "item_not_shown", "nothing_to_withdraw", "off_scale", "outside_window")
"""Reasons why a stored reaction, or the withdrawal of one, has no effect."""

CAPPED_PREFIX: Final = "capped:"
"""Before the name of a metric: the responses whose value is above the metric's range, counted as the largest value."""

MergeOutcome = Literal["applied", "duplicate", "revised"]


@final
class ResponseRow:
    """A response and the reactions to the response, as stored.

    Before the response event arrives, `variant_key` is `NO_RESPONSE`, and `timestamp_ms` is the time of the newest
    reaction.
    """

    __slots__ = (
        "category",
        "contribution",
        "is_changed",
        "item_hashes",
        "latency_ms",
        "ranks",
        "reactions",
        "session",
        "stored_id",
        "student_hash",
        "superseded_response",
        "timestamp_ms",
        "variant_key",
        "version",
    )

    def __init__(
        self,
        timestamp_ms: int = 0,
        variant_key: int = NO_RESPONSE,
        student_hash: bytes = b"",
        item_hashes: bytes = b"",
        ranks: tuple[int, ...] | None = None,
        latency_ms: int = MISSING,
        category: int = MISSING,
        reactions: tuple[Reaction, ...] = (),
        version: int = 0,
        session: int = MISSING,
    ) -> None:
        self.timestamp_ms = timestamp_ms
        self.variant_key = variant_key
        """Experiment number · 256 + variant.

        The variant is the index of its name among the sorted variant names, plus `EXCLUDED_VARIANT_OFFSET` for an
        excluded response, or `PRE_PERIOD_VARIANT`.
        """
        self.student_hash = student_hash
        self.item_hashes = item_hashes
        """Concatenated hashes of the items, `ITEM_HASH_BYTES` each, in the order of the list."""
        self.ranks = ranks
        """Positions of the items; None for the positions 1, 2, 3 …"""
        self.latency_ms = latency_ms
        """Response time of the bot in whole ms; `MISSING` if the event has no latency."""
        self.category = category
        """Index among the sorted declared categories.

        An undeclared category has the number of declared categories; a response without category has `MISSING`.
        """
        self.session = session
        """Hash of the session; `MISSING` without a session, or if no metric of the experiment is per session."""
        self.reactions = reactions
        """Distinct reactions, ascending."""
        self.version = version
        """Version in the store, raised by 1 with each write; 0 before the first write."""
        self.contribution: Contribution | None = None
        """The last evaluation of the row; not stored."""
        self.stored_id = b""
        """The stored id of the response, part of the Redis key of the row; not stored in the row."""
        self.is_changed = False
        """Whether the current batch changes the row; not stored."""
        self.superseded_response: tuple[int, int] | None = None
        """(experiment number, time in ms) of the stored response that `clear_superseded` has removed; not stored."""

    def is_blank(self) -> bool:
        """Return whether the row has neither the response event nor a reaction."""
        return self.variant_key == NO_RESPONSE and not self.reactions

    def clear_superseded(self) -> None:
        """Make the row blank, except for its version: its stored response has a superseded experiment number."""
        self.superseded_response = self.variant_key >> 8, self.timestamp_ms
        self.timestamp_ms = 0
        self.variant_key = NO_RESPONSE
        self.student_hash = self.item_hashes = b""
        self.ranks = None
        self.latency_ms = self.category = self.session = MISSING
        self.reactions = ()

    def review_score(self) -> float | None:
        """Return the score of the latest review, inside or outside the feedback window; None without a review."""
        for _, _, _, _, kind, score in reversed(self.reactions):
            if kind == "reviewed":
                return None if score == WITHDRAWN else score
        return None


@final
class Contribution:
    """The contribution of a response to the stored sums, in fixed point; an undefined metric has the value -1."""

    __slots__ = ("is_rated", "metric_values", "reaction_counts", "sums", "uncounted_reactions")

    def __init__(
        self,
        is_rated: bool,  # noqa: FBT001
        metric_values: tuple[int, ...],
        sums: tuple[int, ...],
        reaction_counts: tuple[tuple[str, int], ...],
        uncounted_reactions: tuple[tuple[str, int], ...] = (),
    ) -> None:
        self.is_rated = is_rated
        self.metric_values = metric_values
        """The value of each metric."""
        self.sums = sums
        """The response's sums vector: see `monitor.engine.student`."""
        self.reaction_counts = reaction_counts
        """(feedback kind, number of current reactions), sorted by kind."""
        self.uncounted_reactions = uncounted_reactions
        """(reason why reactions do not count, number of reactions), sorted: see `UNCOUNTED_REACTIONS`.

        Capped values of metrics are counted with them, under `CAPPED_PREFIX` and the metric."""


def merge_response(
    row: ResponseRow,
    timestamp_ms: int,
    variant_key: int,
    student_hash: bytes,
    item_hashes: bytes,
    ranks: tuple[int, ...] | None,
    latency_ms: int,
    category: int,
    session: int,
) -> MergeOutcome:
    """Merge a response event into a row; of several events with the same id, the smallest (earliest) is stored."""
    outcome: MergeOutcome = "applied"
    if row.variant_key != NO_RESPONSE:
        new = (timestamp_ms, variant_key, student_hash, item_hashes, ranks or (), latency_ms, category, session)
        old = (
            row.timestamp_ms,
            row.variant_key,
            row.student_hash,
            row.item_hashes,
            row.ranks or (),
            row.latency_ms,
            row.category,
            row.session,
        )
        if new >= old:
            return "duplicate"
        outcome = "revised"
    row.timestamp_ms, row.variant_key, row.student_hash, row.item_hashes, row.ranks = (
        timestamp_ms,
        variant_key,
        student_hash,
        item_hashes,
        ranks,
    )
    row.latency_ms, row.category, row.session = latency_ms, category, session
    return outcome


def merge_reaction(row: ResponseRow, reaction: Reaction) -> MergeOutcome:
    """Merge a reaction into the row of a response.

    The outcome is "revised" if the row has another reaction of the same student, item and kind. The outcome is
    "duplicate" if the row has the same reaction, or `MAX_REACTIONS` newer reactions.
    """
    reactions = row.reactions
    index = bisect_left(reactions, reaction)
    if index < len(reactions) and reactions[index] == reaction:
        return "duplicate"
    if index == 0 and len(reactions) >= MAX_REACTIONS:
        return "duplicate"
    _, _, student_tag, item, kind, _ = reaction
    outcome: MergeOutcome = "applied"
    for _, _, other_student_tag, other_item, other_kind, _ in reactions:
        if other_kind == kind and other_item == item and other_student_tag == student_tag:
            outcome = "revised"
            break
    row.reactions = (*reactions[:index], reaction, *reactions[index:])[-MAX_REACTIONS:]
    return outcome


def reaction_from_feedback(feedback: Feedback, ids: IdHasher) -> Reaction:
    """Return the reaction that a feedback event adds to the row of a response."""
    return (
        feedback.timestamp_ms,
        feedback.feedback_id,
        b"" if feedback.user_id is None else ids.hash_student(feedback.user_id)[:STUDENT_TAG_BYTES],
        b"" if feedback.item_id is None else ids.hash_item(feedback.item_id),
        feedback.kind,
        WITHDRAWN if feedback.is_withdrawn else feedback.score + 0.0,  # -0.0 becomes 0.0: equal scores are equal bytes
    )


def rounded_latency_ms(response: Response) -> int:
    """Return the latency of a response in whole ms, rounded half to even; `MISSING` if the event has no latency."""
    return MISSING if response.latency_ms is None else round(response.latency_ms)


def find_item(item_hash: bytes, item_hashes: bytes) -> i64:
    """Return the index of an item's hash in concatenated hashes; -1 if absent."""
    first_byte, end = item_hash[0], i64(len(item_hashes))
    start: i64 = 0
    while start < end:
        if item_hashes[start] == first_byte and item_hashes[start : start + ITEM_HASH_BYTES] == item_hash:
            return start // ITEM_HASH_BYTES
        start += ITEM_HASH_BYTES
    return -1
