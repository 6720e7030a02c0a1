"""Bytes → `Response` and `Feedback`, or a `Refusal` with its reason.

A usual event is read and checked in one pass over its bytes (`monitor.events.scanning`). Any other is decoded by
msgspec, and only when that fails is it taken apart slowly, to see whether it is wrapped in a CloudEvents envelope and
what exactly is wrong with it.
"""

from __future__ import annotations

import math
from base64 import b64decode
from typing import Any, Final, TypeAlias, TypeVar, cast, final

import msgspec
from mypy_extensions import i64

from monitor.config import Settings
from monitor.errors import Refusal
from monitor.events.event import Feedback, Response
from monitor.events.instant import instant_ms
from monitor.events.records import LARGEST_POSITION, LONGEST_LATENCY_MS, WireFeedback, WireItem, WireResponse
from monitor.events.scanning import scan_feedback, scan_response

_LONGEST_KIND: Final = 64
_FEW: Final = 8

Wire = TypeVar("Wire", WireResponse, WireFeedback)

_ResponseFields: TypeAlias = tuple[
    str, str | int, str, str, tuple[WireItem, ...], str | None, str | None, str | None, float | None
]
_FeedbackFields: TypeAlias = tuple[str, str, str | int, str, str | None, str | None, float]

_fields_of: Final = msgspec.structs.astuple
"""All fields at once cost less than each by its name."""
_response_from: Final = msgspec.json.Decoder(WireResponse).decode
_feedback_from: Final = msgspec.json.Decoder(WireFeedback).decode
_scan_response: Final = scan_response
_scan_feedback: Final = scan_feedback
_anything_from: Final = msgspec.json.Decoder().decode


def _unwrapped(payload: bytes) -> dict[str, Any]:
    """Return the fields of the event in a message, out of its CloudEvents 1.0 envelope (structured mode) if any."""
    found = _parsed(payload)
    if not (isinstance(found.get("specversion"), str) and ("data" in found or "data_base64" in found)):
        return found
    if not found["specversion"].startswith("1."):
        raise Refusal("invalid_envelope", "specversion: expected 1.0")
    data = found.get("data")
    if data is None and "data_base64" in found:
        try:
            data = _parsed(b64decode(found["data_base64"], validate=True))
        except (TypeError, ValueError):
            raise Refusal("invalid_envelope", "data_base64: expected an event as JSON in base64") from None
    if not isinstance(data, dict):
        raise Refusal("invalid_envelope", "data: expected an object")
    return data


def _parsed(payload: bytes) -> dict[str, Any]:
    try:
        found = _anything_from(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise Refusal("invalid_json", "expected a JSON object in UTF-8") from None
    if not isinstance(found, dict):
        raise Refusal("not_an_object", "expected a JSON object")
    return found


def _checked(fields: dict[str, Any], wire: type[Wire]) -> Wire:
    """Return the wire record that the fields make, or the refusal that says which of them does not fit."""
    for field in msgspec.structs.fields(wire):
        if field.required and field.name not in fields:
            raise Refusal("missing_field", f"{field.name}: expected in every {wire.__name__[4:].lower()}")
    for field in msgspec.structs.fields(wire):
        if field.name in fields and field.name != "items":
            try:
                msgspec.convert(fields[field.name], field.type)
            except msgspec.ValidationError as error:
                raise _misfit(field.name, str(error)) from None
    _check_items(fields.get("items", ()))
    try:
        return msgspec.convert(fields, wire)
    except msgspec.ValidationError as error:
        raise Refusal("wrong_type", str(error)) from None


def _misfit(name: str, message: str) -> Refusal:
    if name == "latency_ms":
        return Refusal("invalid_latency", f"latency_ms: expected 0 to {LONGEST_LATENCY_MS}")
    if "length" in message:
        reason = "invalid_kind" if name == "kind" else "invalid_id"
        return Refusal(reason, f"{name}: expected at least 1 character")
    return Refusal("wrong_type", f"{name}: {message}")


def _check_items(items: object) -> None:
    if not isinstance(items, (list, tuple)):
        raise Refusal("wrong_type", "items: expected a list")
    for place, item in enumerate(items):
        where = f"items[{place}]"
        if not isinstance(item, dict):
            raise Refusal("wrong_type", f"{where}: expected an object")
        for name in ("item_id", "position"):
            if name not in item:
                raise Refusal("missing_field", f"{where}.{name}: expected in every item")
        if not isinstance(item["item_id"], str):
            raise Refusal("wrong_type", f"{where}.item_id: expected a string")
        if not item["item_id"]:
            raise Refusal("invalid_id", f"{where}.item_id: expected at least 1 character")
        position = item["position"]
        if isinstance(position, bool) or not isinstance(position, int):
            raise Refusal("wrong_type", f"{where}.position: expected an integer")
        if not 1 <= position <= LARGEST_POSITION:
            raise Refusal("invalid_position", f"{where}.position: expected 1 to {LARGEST_POSITION}")


def _repeats(ids: list[str]) -> bool:
    """Return whether one of the ids stands there twice."""
    count = len(ids)
    if count > _FEW:
        return len(set(ids)) != count
    for at in range(1, count):
        one = ids[at]
        for before in range(at):
            if ids[before] == one:
                return True
    return False


def _size_of(payload: bytes | None) -> i64:
    return 0 if payload is None else len(payload)


@final
class Decoder:
    """Decodes messages under the limits and the declared score scales of the settings."""

    def __init__(self, settings: Settings) -> None:
        limits = settings.limits
        self._max_bytes = limits.max_payload_bytes
        self._max_items = limits.max_items
        self._max_id = limits.max_id_length
        self._max_skew_ms = limits.max_clock_skew_ms
        # Feedback does not say its experiment: only what is outside every scale can be refused here. A kind that some
        # experiment does not grade by its score has no scale there.
        kinds = {kind for experiment in settings.experiments for kind in experiment.grades}
        self._scales = {
            kind: max(experiment.max_grade for experiment in settings.experiments)
            for kind in kinds
            if all(experiment.grades.get(kind) == "score" for experiment in settings.experiments)
        }

    def response(self, payload: bytes | None, now_ms: int) -> Response:
        """Return the response in a message; raises `Refusal`."""
        return self.response_in(payload, 0, _size_of(payload), now_ms)

    def feedback(self, payload: bytes | None, now_ms: int) -> Feedback:
        """Return the feedback in a message; raises `Refusal`."""
        return self.feedback_in(payload, 0, _size_of(payload), now_ms)

    def event(self, payload: bytes | None, now_ms: int) -> Response | Feedback:
        """Return whichever kind of event is in a message: feedback has a feedback_id; raises `Refusal`."""
        return self.event_in(payload, 0, _size_of(payload), now_ms)

    def response_in(self, stored: bytes | None, begin: i64, end: i64, now_ms: int) -> Response:
        """Return the response in a message that stands among others, up to the place `end`; raises `Refusal`."""
        stored = self._sized(stored, end - begin)
        usual = self._usual_response(stored, begin, end, now_ms)
        return self._any_response(stored[begin:end], now_ms) if usual is None else usual

    def feedback_in(self, stored: bytes | None, begin: i64, end: i64, now_ms: int) -> Feedback:
        """Return the feedback in a message that stands among others, up to the place `end`; raises `Refusal`."""
        stored = self._sized(stored, end - begin)
        usual = self._usual_feedback(stored, begin, end, now_ms)
        return self._any_feedback(stored[begin:end], now_ms) if usual is None else usual

    def event_in(self, stored: bytes | None, begin: i64, end: i64, now_ms: int) -> Response | Feedback:
        """Return whichever kind of event is in a message that stands among others; raises `Refusal`."""
        stored = self._sized(stored, end - begin)
        feedback = self._usual_feedback(stored, begin, end, now_ms)
        if feedback is not None:
            return feedback
        payload = stored[begin:end]
        # An event may have all fields of both.
        response = None if b"feedback_id" in payload else self._usual_response(stored, begin, end, now_ms)
        return self._any_event(payload, now_ms) if response is None else response

    def _usual_response(self, stored: bytes, begin: i64, end: i64, now_ms: int) -> Response | None:
        found = _scan_response(stored, begin, end, self._max_id, self._max_items)
        if found is None:
            return None
        response_id, at_ms, experiment, variant, ids, user_id, query_id, category, latency_ms = found
        if at_ms > now_ms + self._max_skew_ms:
            return None
        return Response(response_id, at_ms, experiment, variant, ids, None, user_id, query_id, category, latency_ms)

    def _usual_feedback(self, stored: bytes, begin: i64, end: i64, now_ms: int) -> Feedback | None:
        found = _scan_feedback(stored, begin, end, self._max_id)
        if found is None:
            return None
        feedback_id, response_id, at_ms, kind, user_id, item_id, score = found
        scale = self._scales.get(kind)
        if at_ms > now_ms + self._max_skew_ms or (scale is not None and score > scale):
            return None
        return Feedback(feedback_id, response_id, at_ms, kind, user_id, item_id, score)

    def _any_response(self, payload: bytes, now_ms: int) -> Response:
        try:
            wire = _response_from(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return self._response(self._slowly(payload, WireResponse), now_ms)
        return self._response(wire, now_ms)

    def _any_feedback(self, payload: bytes, now_ms: int) -> Feedback:
        try:
            wire = _feedback_from(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return self._feedback(self._slowly(payload, WireFeedback), now_ms)
        return self._feedback(wire, now_ms)

    def _any_event(self, payload: bytes, now_ms: int) -> Response | Feedback:
        try:
            return self._feedback(_feedback_from(payload), now_ms)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass
        try:
            wire = _response_from(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            fields = _unwrapped(payload)
            if "feedback_id" in fields:
                return self._feedback(_checked(fields, WireFeedback), now_ms)
            return self._response(_checked(fields, WireResponse), now_ms)
        return self._response(wire, now_ms)

    def _sized(self, stored: bytes | None, size: i64) -> bytes:
        if stored is None or size == 0:
            raise Refusal("empty_payload", "expected a JSON object")
        if size > self._max_bytes:
            raise Refusal("payload_too_large", f"{size} bytes, expected at most {self._max_bytes}")
        return stored

    def _slowly(self, payload: bytes, wire: type[Wire]) -> Wire:
        return _checked(_unwrapped(payload), wire)

    def _time(self, timestamp: str | int, now_ms: int) -> int:
        at_ms = instant_ms(timestamp)
        if at_ms > now_ms + self._max_skew_ms:
            ahead_s = (at_ms - now_ms) / 1000
            raise Refusal("timestamp_in_future", f"timestamp: {ahead_s:.0f} s ahead of this machine's clock")
        return at_ms

    def _id(self, name: str, value: str | None) -> None:
        if value is not None and len(value) > self._max_id:
            raise Refusal("invalid_id", f"{name}: {len(value)} characters, expected at most {self._max_id}")

    def _response(self, wire: WireResponse, now_ms: int) -> Response:
        response_id, timestamp, experiment, variant, items, user_id, query_id, category, latency_ms = cast(
            _ResponseFields, _fields_of(wire)
        )
        count = len(items)
        if count > self._max_items:
            raise Refusal("list_too_long", f"items: {count}, expected at most {self._max_items}")
        ids: list[str] = []
        in_order = True
        for item in items:
            item_id, position = cast(tuple[str, int], _fields_of(item))
            ids.append(item_id)
            in_order = in_order and position == len(ids)
        if _repeats(ids):
            raise Refusal("repeated_item", "items: expected each item_id once")
        ranks = None if in_order else tuple([item.position for item in items])
        if ranks is not None and len(set(ranks)) != count:
            raise Refusal("repeated_position", "items: expected each position once")
        self._id("response_id", response_id)
        self._id("user_id", user_id)
        self._id("query_id", query_id)
        for item_id in ids:
            self._id("item_id", item_id)
        if latency_ms is not None and not 0 <= latency_ms <= LONGEST_LATENCY_MS:
            raise Refusal("invalid_latency", f"latency_ms: expected 0 to {LONGEST_LATENCY_MS}")
        at_ms = self._time(timestamp, now_ms)
        return Response(
            response_id, at_ms, experiment, variant, tuple(ids), ranks, user_id, query_id, category, latency_ms
        )

    def _feedback(self, wire: WireFeedback, now_ms: int) -> Feedback:
        feedback_id, response_id, timestamp, kind, user_id, item_id, score = cast(_FeedbackFields, _fields_of(wire))
        if len(kind) > _LONGEST_KIND or kind[0] == "+" or not kind.isprintable():
            raise Refusal("invalid_kind", f"kind: expected 1 to {_LONGEST_KIND} printable characters, the first not +")
        if not 0 <= score < math.inf:
            raise Refusal("invalid_score", "score: expected a finite number from 0")
        scale = self._scales.get(kind)
        if scale is not None and score > scale:
            raise Refusal("score_out_of_scale", f"score: expected 0 to {scale:g} for this kind")
        self._id("feedback_id", feedback_id)
        self._id("response_id", response_id)
        self._id("user_id", user_id)
        self._id("item_id", item_id)
        return Feedback(feedback_id, response_id, self._time(timestamp, now_ms), kind, user_id, item_id, score)
