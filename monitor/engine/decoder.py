"""Bytes of a message → `Response` or `Feedback`, or a `Refusal` with its reason.

msgspec decodes the message into a struct of the schema, and the decoder then checks what a schema cannot express. Only
if msgspec fails, the message is parsed without a schema: it is a CloudEvents envelope, or the rejection needs a reason.
"""

from __future__ import annotations

import math
from base64 import b64decode
from typing import Any, Final, TypeVar

import msgspec

from monitor.config import Settings
from monitor.errors import Refusal
from monitor.events import (
    MAX_KIND_LENGTH,
    MAX_LATENCY_MS,
    MAX_POSITION,
    Feedback,
    Response,
    WireFeedback,
    WireResponse,
    instant_ms,
)

Schema = TypeVar("Schema", WireResponse, WireFeedback)

_decode_response: Final = msgspec.json.Decoder(WireResponse).decode
_decode_feedback: Final = msgspec.json.Decoder(WireFeedback).decode
_decode_json: Final = msgspec.json.Decoder().decode
_DECODE_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class Decoder:
    """Decodes messages within the limits and the score scales of the settings."""

    def __init__(self, settings: Settings) -> None:
        limits = settings.limits
        self._max_bytes = limits.max_payload_bytes
        self._max_items = limits.max_items
        self._max_id_length = limits.max_id_length
        self._max_skew_ms = limits.max_clock_skew_ms
        # Feedback does not name its experiment, so a score is rejected only if it is outside the scale of every
        # experiment. A kind that some experiment does not grade by its score has no scale there.
        kinds = {kind for experiment in settings.experiments for kind in experiment.grades}
        self._scales = {
            kind: max(experiment.max_grade for experiment in settings.experiments)
            for kind in kinds
            if all(experiment.grades.get(kind) == "score" for experiment in settings.experiments)
        }

    def response(self, payload: bytes | None, now_ms: int) -> Response:
        """Return the response in a message; raises `Refusal`."""
        content = self._content(payload)
        try:
            message = _decode_response(content)
        except _DECODE_ERRORS:
            message = _converted(_event_fields(content), WireResponse)
        return self._checked_response(message, now_ms)

    def feedback(self, payload: bytes | None, now_ms: int) -> Feedback:
        """Return the feedback in a message; raises `Refusal`."""
        content = self._content(payload)
        try:
            message = _decode_feedback(content)
        except _DECODE_ERRORS:
            message = _converted(_event_fields(content), WireFeedback)
        return self._checked_feedback(message, now_ms)

    def event(self, payload: bytes | None, now_ms: int) -> Response | Feedback:
        """Return the event in a message, which is feedback if it has a feedback_id; raises `Refusal`."""
        content = self._content(payload)
        try:
            return self._checked_feedback(_decode_feedback(content), now_ms)
        except _DECODE_ERRORS:
            pass
        try:
            message = _decode_response(content)
        except _DECODE_ERRORS:
            fields = _event_fields(content)
            if "feedback_id" in fields:
                return self._checked_feedback(_converted(fields, WireFeedback), now_ms)
            message = _converted(fields, WireResponse)
        return self._checked_response(message, now_ms)

    def _content(self, payload: bytes | None) -> bytes:
        if not payload:
            raise Refusal("empty_payload", "expected a JSON object")
        if len(payload) > self._max_bytes:
            raise Refusal("payload_too_large", f"{len(payload)} bytes, expected at most {self._max_bytes}")
        return payload

    def _checked_response(self, message: WireResponse, now_ms: int) -> Response:
        items = message.items
        if len(items) > self._max_items:
            raise Refusal("list_too_long", f"items: {len(items)}, expected at most {self._max_items}")
        ids = tuple([item.item_id for item in items])
        if len(set(ids)) != len(ids):
            raise Refusal("repeated_item", "items: expected each item_id once")
        positions = [item.position for item in items]
        ranks = None if positions == [*range(1, len(items) + 1)] else tuple(positions)
        if ranks is not None and len(set(ranks)) != len(ranks):
            raise Refusal("repeated_position", "items: expected each position once")
        self._check_id("response_id", message.response_id)
        self._check_id("user_id", message.user_id)
        self._check_id("query_id", message.query_id)
        for item_id in ids:
            if len(item_id) > self._max_id_length:  # a call for each item would take as long as all other checks
                self._check_id("item_id", item_id)
        latency_ms = message.latency_ms
        if latency_ms is not None and not 0 <= latency_ms <= MAX_LATENCY_MS:
            raise _invalid_latency()
        return Response(
            message.response_id,
            self._event_time_ms(message.timestamp, now_ms),
            message.experiment,
            message.variant,
            ids,
            ranks,
            message.user_id,
            message.query_id,
            message.category,
            latency_ms,
        )

    def _checked_feedback(self, message: WireFeedback, now_ms: int) -> Feedback:
        kind, score = message.kind, message.score
        if len(kind) > MAX_KIND_LENGTH or kind[0] == "+" or not kind.isprintable():
            raise Refusal(
                "invalid_kind", f"kind: expected 1 to {MAX_KIND_LENGTH} printable characters, the first not +"
            )
        if not 0 <= score < math.inf:
            raise Refusal("invalid_score", "score: expected a finite number from 0")
        scale = self._scales.get(kind)
        if scale is not None and score > scale:
            raise Refusal("score_out_of_scale", f"score: expected 0 to {scale:g} for this kind")
        self._check_id("feedback_id", message.feedback_id)
        self._check_id("response_id", message.response_id)
        self._check_id("user_id", message.user_id)
        self._check_id("item_id", message.item_id)
        return Feedback(
            message.feedback_id,
            message.response_id,
            self._event_time_ms(message.timestamp, now_ms),
            kind,
            message.user_id,
            message.item_id,
            score,
        )

    def _event_time_ms(self, timestamp: str | int, now_ms: int) -> int:
        event_time_ms = instant_ms(timestamp)
        if event_time_ms > now_ms + self._max_skew_ms:
            ahead_s = (event_time_ms - now_ms) / 1000
            raise Refusal("timestamp_in_future", f"timestamp: {ahead_s:.0f} s ahead of this machine's clock")
        return event_time_ms

    def _check_id(self, name: str, value: str | None) -> None:
        if value is not None and len(value) > self._max_id_length:
            raise Refusal("invalid_id", f"{name}: {len(value)} characters, expected at most {self._max_id_length}")


def _event_fields(payload: bytes) -> dict[str, Any]:
    """Return the fields of the event in a message, without its CloudEvents 1.0 envelope (structured mode), if any."""
    fields = _json_object(payload)
    if not (isinstance(fields.get("specversion"), str) and ("data" in fields or "data_base64" in fields)):
        return fields
    if not fields["specversion"].startswith("1."):
        raise Refusal("invalid_envelope", "specversion: expected 1.0")
    data = fields.get("data")
    if data is None and "data_base64" in fields:
        try:
            data = _json_object(b64decode(fields["data_base64"], validate=True))
        except (TypeError, ValueError):
            raise Refusal("invalid_envelope", "data_base64: expected an event as JSON in base64") from None
    if not isinstance(data, dict):
        raise Refusal("invalid_envelope", "data: expected an object")
    return data


def _json_object(payload: bytes) -> dict[str, Any]:
    try:
        value = _decode_json(payload)
    except _DECODE_ERRORS:
        raise Refusal("invalid_json", "expected a JSON object in UTF-8") from None
    if not isinstance(value, dict):
        raise Refusal("not_an_object", "expected a JSON object")
    return value


def _converted(fields: dict[str, Any], schema: type[Schema]) -> Schema:
    """Return the struct of an event's fields; raises `Refusal` for the first field that does not fit the schema."""
    try:
        return msgspec.convert(fields, schema)
    except msgspec.ValidationError as error:
        message = str(error)
    for field in msgspec.structs.fields(schema):
        if field.required and field.name not in fields:
            raise Refusal("missing_field", f"{field.name}: expected in every {schema.__name__[4:].lower()}")
    for field in msgspec.structs.fields(schema):
        if field.name in fields and field.name != "items":
            try:
                msgspec.convert(fields[field.name], field.type)
            except msgspec.ValidationError as error:
                raise _field_refusal(field.name, str(error)) from None
    _check_items(fields.get("items", ()))
    raise Refusal("wrong_type", message)


def _field_refusal(name: str, message: str) -> Refusal:
    if name == "latency_ms":
        return _invalid_latency()
    if "length" in message:
        reason = "invalid_kind" if name == "kind" else "invalid_id"
        return Refusal(reason, f"{name}: expected at least 1 character")
    return Refusal("wrong_type", f"{name}: {message}")


def _check_items(items: object) -> None:
    """Raise the `Refusal` of the first item that does not fit the schema."""
    if not isinstance(items, (list, tuple)):
        raise Refusal("wrong_type", "items: expected a list")
    for index, item in enumerate(items):
        path = f"items[{index}]"
        if not isinstance(item, dict):
            raise Refusal("wrong_type", f"{path}: expected an object")
        for name in ("item_id", "position"):
            if name not in item:
                raise Refusal("missing_field", f"{path}.{name}: expected in every item")
        if not isinstance(item["item_id"], str):
            raise Refusal("wrong_type", f"{path}.item_id: expected a string")
        if not item["item_id"]:
            raise Refusal("invalid_id", f"{path}.item_id: expected at least 1 character")
        position = item["position"]
        if isinstance(position, bool) or not isinstance(position, int):
            raise Refusal("wrong_type", f"{path}.position: expected an integer")
        if not 1 <= position <= MAX_POSITION:
            raise Refusal("invalid_position", f"{path}.position: expected 1 to {MAX_POSITION}")


def _invalid_latency() -> Refusal:
    return Refusal("invalid_latency", f"latency_ms: expected 0 to {MAX_LATENCY_MS}")
