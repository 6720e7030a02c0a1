"""Schema, decoding and validation of the two event types (docs/events.md).

`Decoder` turns the bytes of a message into a `Response` or a `Feedback`, or raises `Refusal` with one of `REASONS`:

    decoder = Decoder(settings)
    response = decoder.response(message.value, now_ms)
"""

from __future__ import annotations

from monitor.events.decoder import Decoder
from monitor.events.models import Feedback, Response
from monitor.events.schema import REASONS
from monitor.events.timestamps import LATEST_MS, instant_ms

__all__ = ["LATEST_MS", "REASONS", "Decoder", "Feedback", "Response", "instant_ms"]
