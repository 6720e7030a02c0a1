"""Responses and feedback after decoding and validation."""

from __future__ import annotations

import msgspec


class Response(msgspec.Struct, frozen=True, gc=False):
    """A response of the chatbot to a student: a ranked list of items (videos)."""

    response_id: str
    timestamp_ms: int
    """Event time."""
    experiment: str
    variant: str
    items: tuple[str, ...]
    """Ids of the items, each once, in the order of the message."""
    ranks: tuple[int, ...] | None = None
    """Positions of the items, from 1; None for the positions 1, 2, 3 … A repeated item has its smallest position."""
    user_id: str | None = None
    query_id: str | None = None
    category: str | None = None
    latency_ms: float | None = None
    group_id: str | None = None
    """Id of a group of students that is assigned to a variant as a whole, such as a class."""
    has_placeholder_user: bool = False
    """Whether the message has a user id that is one of `LimitSettings.placeholder_ids`; `user_id` is then None."""
    has_repeated_items: bool = False
    """Whether the message has an item more than once."""
    session_id: str | None = None
    attributes: tuple[tuple[str, str], ...] = ()
    """(name, value as text) of further fields with a value, which the settings name: see `Settings.attributes`."""
    is_excluded: bool = False
    """Whether a rule of the response's source excludes the response from every experiment."""


class Feedback(msgspec.Struct, frozen=True, gc=False):
    """A reaction of a student to a response, such as a rating or a click."""

    feedback_id: str
    response_id: str
    timestamp_ms: int
    """Event time."""
    kind: str
    user_id: str | None = None
    item_id: str | None = None
    """Id of the item that the feedback is about; None for feedback on the whole response."""
    score: float = 1.0
    is_withdrawn: bool = False
    """Whether the student takes an earlier reaction back, of the same kind and about the same item."""
