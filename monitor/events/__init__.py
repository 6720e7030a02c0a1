"""The two event types, responses and feedback, and the rules of their JSON format (docs/events.md).

- `models`: the decoded events
- `schema`: the JSON schema of messages, its limits, and the reasons for rejecting a message
- `timestamps`: the formats of event times

`monitor.engine.EventDecoder` decodes a message into a `Response` or a `Feedback`.
"""

from __future__ import annotations

from monitor.events.models import Feedback, Response
from monitor.events.schema import (
    MAX_KIND_LENGTH,
    MAX_LATENCY_MS,
    MAX_POSITION,
    REJECTION_REASONS,
    WireFeedback,
    WireItem,
    WireResponse,
)
from monitor.events.timestamps import MAX_TIMESTAMP_MS, parse_timestamp_ms

__all__ = [
    "MAX_KIND_LENGTH",
    "MAX_LATENCY_MS",
    "MAX_POSITION",
    "MAX_TIMESTAMP_MS",
    "REJECTION_REASONS",
    "Feedback",
    "Response",
    "WireFeedback",
    "WireItem",
    "WireResponse",
    "parse_timestamp_ms",
]
