"""The two event types: their schema, and the reasons for which a message is rejected (docs/events.md).

`monitor.engine.Decoder` turns the bytes of a message into a `Response` or a `Feedback`.
"""

from __future__ import annotations

from monitor.events.models import Feedback, Response
from monitor.events.schema import MAX_KIND_LENGTH, MAX_LATENCY_MS, MAX_POSITION, REASONS, WireFeedback, WireResponse
from monitor.events.timestamps import LATEST_MS, instant_ms

__all__ = [
    "LATEST_MS",
    "MAX_KIND_LENGTH",
    "MAX_LATENCY_MS",
    "MAX_POSITION",
    "REASONS",
    "Feedback",
    "Response",
    "WireFeedback",
    "WireResponse",
    "instant_ms",
]
