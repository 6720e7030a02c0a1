"""Wire format → `Response` and `Feedback`, or a `Refusal` with its reason (docs/events.md)."""

from __future__ import annotations

from monitor.events.decoder import Decoder
from monitor.events.event import Feedback, Response
from monitor.events.instant import LATEST_MS, instant_ms
from monitor.events.records import REASONS

__all__ = ["LATEST_MS", "REASONS", "Decoder", "Feedback", "Response", "instant_ms"]
