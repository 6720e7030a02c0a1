"""The JSON schema of messages as msgspec structs, and the reasons for rejecting a message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, TypeAlias

import msgspec

REJECTION_REASONS: Final[Mapping[str, str]] = {
    "empty_payload": "the message has no value, or an empty one",
    "payload_too_large": "the message is longer than limits.max_payload_bytes",
    "invalid_json": "the message is not JSON in UTF-8, or is nested too deeply",
    "invalid_framing": "the bytes before the data are not those of the source's format",
    "unknown_schema": "the schema registry does not have the schema of the message, or no registry is set",
    "invalid_avro": "the data does not fit its Avro schema",
    "invalid_protobuf": "the data does not fit its Protobuf schema",
    "not_an_object": "the message, or the data of its envelope, is not an object",
    "invalid_envelope": "the envelope (CloudEvents, Debezium, Kafka Connect) has no usable data",
    "missing_field": "a required field is absent",
    "wrong_type": "a field has another JSON type than its definition",
    "invalid_id": "an id is empty or longer than limits.max_id_length",
    "placeholder_id": "the response_id is one of limits.placeholder_ids, such as null",
    "invalid_timestamp": "the timestamp cannot be read, is before 1970 or after 9999",
    "timestamp_without_offset": "the timestamp has no offset from UTC",
    "implausible_timestamp": "the timestamp is before limits.oldest_timestamp, or in another unit than milliseconds",
    "timestamp_in_future": "the timestamp is further ahead than limits.max_clock_skew",
    "list_too_long": "the list has more items than limits.max_items",
    "invalid_position": "a position is not a number from 1 to 1000000",
    "repeated_position": "two items have the same position",
    "repeated_item": "an item occurs twice in the list, with limits.repeated_items = reject",
    "invalid_score": "the score is negative or not finite",
    "score_out_of_scale": "the score is above the scales of all experiments for the kind",
    "invalid_kind": "the kind is empty, longer than 64 characters, not printable, or begins with +",
    "invalid_latency": "latency_ms is negative or above 86400000, a day",
}

MAX_POSITION: Final = 1_000_000
MAX_LATENCY_MS: Final = 86_400_000
"""One day."""
MAX_KIND_LENGTH: Final = 64

Text: TypeAlias = Annotated[str, msgspec.Meta(min_length=1)]


class WireItem(msgspec.Struct, gc=False):
    """An item of a ranked list, as JSON."""

    item_id: Text
    position: Annotated[int, msgspec.Meta(ge=1, le=MAX_POSITION)]


class WireResponse(msgspec.Struct, gc=False):
    """A response event, as JSON."""

    response_id: Text
    timestamp: str | int
    experiment: Text
    variant: Text
    items: tuple[WireItem, ...]
    user_id: str | None = None
    query_id: Text | None = None
    category: str | None = None
    latency_ms: float | None = None
    group_id: Text | None = None
    session_id: Any = None
    """A text, checked only if an experiment counts sessions."""


class WireFeedback(msgspec.Struct, gc=False):
    """A feedback event, as JSON."""

    feedback_id: Text
    response_id: Text
    timestamp: str | int
    kind: Text
    user_id: str | None = None
    item_id: Text | None = None
    score: float = 1.0
    withdrawn: bool = False
