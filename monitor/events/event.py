"""The records of events that everybody works with, once they have been read and checked."""

from __future__ import annotations

from typing import Final, final


@final
class Response:
    """One answer of the bot, a ranked list of videos."""

    __slots__ = (
        "category", "experiment", "items", "latency_ms", "query_id", "ranks", "response_id", "timestamp_ms", "user_id",
        "variant",
    )  # fmt: skip

    def __init__(
        self,
        response_id: str,
        timestamp_ms: int,
        experiment: str,
        variant: str,
        items: tuple[str, ...],
        ranks: tuple[int, ...] | None = None,
        user_id: str | None = None,
        query_id: str | None = None,
        category: str | None = None,
        latency_ms: float | None = None,
    ) -> None:
        """Take what was read."""
        self.response_id: Final = response_id
        self.timestamp_ms: Final = timestamp_ms
        """Event time."""
        self.experiment: Final = experiment
        self.variant: Final = variant
        self.items: Final = items
        """Ids of the videos, as the list has them."""
        self.ranks: Final = ranks
        """Their positions; None where they are 1, 2, 3 …"""
        self.user_id: Final = user_id
        self.query_id: Final = query_id
        self.category: Final = category
        self.latency_ms: Final = latency_ms


@final
class Feedback:
    """One reaction of a student to a response (`item_id` None: to the whole answer)."""

    __slots__ = ("feedback_id", "item_id", "kind", "response_id", "score", "timestamp_ms", "user_id")

    def __init__(
        self,
        feedback_id: str,
        response_id: str,
        timestamp_ms: int,
        kind: str,
        user_id: str | None = None,
        item_id: str | None = None,
        score: float = 1.0,
    ) -> None:
        """Take what was read."""
        self.feedback_id: Final = feedback_id
        self.response_id: Final = response_id
        self.timestamp_ms: Final = timestamp_ms
        """Event time."""
        self.kind: Final = kind
        self.user_id: Final = user_id
        self.item_id: Final = item_id
        self.score: Final = score
