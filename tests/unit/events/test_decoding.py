"""Decoding of messages: accepted forms, and the reason of each rejection."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from monitor.config import LimitSettings, Settings
from monitor.engine.decoder import EventDecoder
from monitor.errors import InvalidEvent
from monitor.events import REJECTION_REASONS, Feedback, Response
from tests.support.streams import EXPERIMENT

NOW = 1_800_000_000_000
_REASONS_OF_FORMATS = {"invalid_framing", "unknown_schema", "invalid_avro", "invalid_protobuf"}
"""Reasons of `monitor.decoding`."""
RESPONSE: dict[str, Any] = {
    "response_id": "r-1",
    "timestamp": "2026-11-20T10:15:30.123Z",
    "experiment": "ranker",
    "variant": "treatment",
    "user_id": "student-17",
    "session_id": "s-9",
    "query_id": "q-3",
    "user_query": "how do I …",
    "items": [{"item_id": "video-12", "position": 1}, {"item_id": "video-13", "position": 2}],
    "category": "fractions",
    "latency_ms": 412,
}
FEEDBACK: dict[str, Any] = {
    "feedback_id": "f-1",
    "response_id": "r-1",
    "timestamp": "2026-11-20T10:16:02Z",
    "user_id": "student-17",
    "item_id": "video-12",
    "kind": "rating",
    "score": 4,
}
LIMITS = LimitSettings(max_payload_bytes=2000, max_items=3, max_id_length=20, repeated_items="reject")
DECODER = EventDecoder(Settings((EXPERIMENT,), limits=LIMITS))


def _bytes(event: object) -> bytes:
    return json.dumps(event).encode()


def _items(*pairs: tuple[object, object]) -> list[dict[str, object]]:
    return [{"item_id": item, "position": position} for item, position in pairs]


class TestAccepted:
    """Well-formed events."""

    def test_the_documented_response_is_decoded(self) -> None:
        """All fields of the event are decoded."""
        event = DECODER.decode_response(_bytes(RESPONSE), NOW)
        assert (event.response_id, event.timestamp_ms, event.variant) == ("r-1", 1_795_169_730_123, "treatment")
        assert (event.items, event.ranks) == (("video-12", "video-13"), None)
        assert (event.user_id, event.query_id, event.latency_ms) == ("student-17", "q-3", 412)

    def test_the_documented_feedback_is_decoded(self) -> None:
        """All fields of the event are decoded."""
        expected = Feedback("f-1", "r-1", 1_795_169_762_000, "rating", "student-17", "video-12", 4.0)
        assert DECODER.decode_feedback(_bytes(FEEDBACK), NOW) == expected

    def test_optional_fields_may_be_absent(self) -> None:
        """The default score is 1; a response may have no items."""
        feedback = {name: FEEDBACK[name] for name in ("feedback_id", "response_id", "timestamp", "kind")}
        assert DECODER.decode_feedback(_bytes(feedback), NOW).score == 1
        assert DECODER.decode_response(_bytes({**RESPONSE, "items": []}), NOW).items == ()

    @pytest.mark.parametrize(
        "timestamp",
        [
            1_795_169_730_123,
            "2026-11-20T10:15:30.123Z",
            "2026-11-20T10:15:30.123999+00:00",
            "2026-11-20T12:15:30.123+02:00",
            "2026-11-20 10:15:30.123Z",
            "20261120T101530.123Z",
        ],
    )
    def test_all_forms_of_timestamps_are_accepted(self, timestamp: object) -> None:
        """Timestamps are ISO 8601 with an offset, or integer milliseconds; microseconds are truncated."""
        assert (
            DECODER.decode_response(_bytes({**RESPONSE, "timestamp": timestamp}), NOW).timestamp_ms == 1_795_169_730_123
        )

    def test_unknown_fields_of_any_type_are_ignored(self) -> None:
        """The student's question is such a field, and is never decoded."""
        event = DECODER.decode_response(
            _bytes({**RESPONSE, "user_query": {"a": [1]}, "specversion": "1.0", "new": None}), NOW
        )
        assert "how do I" not in repr(event)

    def test_a_cloudevents_envelope_is_unwrapped(self) -> None:
        """The event is in `data` as JSON, or in `data_base64`."""
        envelope = {"specversion": "1.0", "id": "1", "source": "/bot", "type": "t"}
        plain = DECODER.decode_response(_bytes(RESPONSE), NOW)
        assert DECODER.decode_response(_bytes({**envelope, "data": RESPONSE}), NOW) == plain
        coded = base64.b64encode(_bytes(RESPONSE)).decode()
        assert DECODER.decode_event(_bytes({**envelope, "data_base64": coded}), NOW) == plain
        assert isinstance(DECODER.decode_event(_bytes({**envelope, "data": FEEDBACK}), NOW), Feedback)

    def test_an_event_with_a_feedback_id_is_feedback(self) -> None:
        """Files contain both event types."""
        assert isinstance(DECODER.decode_event(_bytes(RESPONSE), NOW), Response)
        assert isinstance(DECODER.decode_event(_bytes(FEEDBACK), NOW), Feedback)

    def test_feedback_in_an_envelope_may_have_any_unknown_field(self) -> None:
        """A field of responses is unknown in feedback."""
        envelope = {"specversion": "1.0", "data": {**FEEDBACK, "items": [{}]}}
        assert DECODER.decode_feedback(_bytes(envelope), NOW) == DECODER.decode_feedback(_bytes(FEEDBACK), NOW)

    @pytest.mark.parametrize(
        ("old", "new", "field", "expected"),
        [
            ('"r-1"', '"\\u0072-\\ud83d\\ude00\\n\\""', "response_id", 'r-😀\n"'),
            ('"r-1"', '"ü-😀"', "response_id", "ü-😀"),
            ('"r-1"', '"first", "response_id": "last"', "response_id", "last"),
            ('"r-1"', '7, "response_id": "last"', "response_id", "last"),
            ('"r-1"', '"' + "ü" * 20 + '"', "response_id", "ü" * 20),
            ('"how do I \\u2026"', '"\xff"', "response_id", "r-1"),
            ('"how do I \\u2026"', "1e999", "response_id", "r-1"),
            ("412", "4.125e2", "latency_ms", 412.5),
            ("412", "-0", "latency_ms", 0.0),
            ("412", "86400000", "latency_ms", 86_400_000.0),
            ("412", "null", "latency_ms", None),
            ('"student-17"', "null", "user_id", None),
            ('"fractions"', '""', "category", ""),
            ('"position": 1}', '"position": 7}', "ranks", (7, 2)),
            ('"position": 1}', '"title": "\\"", "position": 1}', "items", ("video-12", "video-13")),
            (", ", "\n,\t", "items", ("video-12", "video-13")),
        ],
    )
    def test_all_notations_of_json_are_accepted(self, old: str, new: str, field: str, expected: object) -> None:
        """Of a repeated key, the last value counts; invalid UTF-8 is accepted in ignored fields."""
        text = json.dumps(RESPONSE)
        assert old in text
        payload = text.replace(old, new).encode().replace(b"\xc3\xbf", b"\xff")
        assert getattr(DECODER.decode_response(payload, NOW), field) == expected

    @pytest.mark.parametrize(
        "score", ["0", "4", "4.0", "0.4e1", "0.1", "2.675", "0.00000000000000001", "3.999999999999999"]
    )
    def test_scores_are_the_nearest_float(self, score: str) -> None:
        """The score equals Python's float of the same digits."""
        payload = json.dumps(FEEDBACK).replace('"score": 4', f'"score": {score}').encode()
        assert DECODER.decode_feedback(payload, NOW).score == float(score)


def _response(**changes: object) -> bytes:
    return _bytes({**RESPONSE, **changes})


def _feedback(**changes: object) -> bytes:
    return _bytes({**FEEDBACK, **changes})


def _without(event: dict[str, Any], name: str) -> bytes:
    return _bytes({key: value for key, value in event.items() if key != name})


REJECTED_EVENTS: list[tuple[str, bytes | None, str]] = [
    ("empty_payload", None, "response"),
    ("empty_payload", b"", "feedback"),
    ("payload_too_large", b" " * 3000, "response"),
    ("invalid_json", _response(query_id="\ud800"), "response"),
    ("invalid_json", _response(items=_items(("\udfff", 1))), "response"),
    ("invalid_json", _response(response_id="\ud800"), "event"),
    ("invalid_json", _feedback(item_id="\ud800"), "feedback"),
    ("invalid_json", _response(user_id="half a pair").replace(b"half a pair", b"\xed\xa0\x80"), "response"),
    ("invalid_json", b"{", "response"),
    ("invalid_json", b'{"response_id": "\xff"}', "response"),
    ("invalid_json", b"[" * 1900, "feedback"),
    ("invalid_json", b'{"score": NaN}', "feedback"),
    ("invalid_json", _bytes(RESPONSE) + b"}", "response"),
    ("invalid_json", _bytes(RESPONSE)[:-1] + b",}", "response"),
    ("invalid_json", _bytes(RESPONSE) + b"\0", "event"),
    ("invalid_json", _bytes(RESPONSE).replace(b"412", b"0412"), "response"),
    ("invalid_json", _bytes(RESPONSE).replace(b"412", b"+412"), "response"),
    ("invalid_json", _bytes(RESPONSE).replace(b"412", b"Infinity"), "event"),
    ("invalid_json", _bytes(RESPONSE).replace(b"fractions", b"frac\ttions"), "response"),
    ("invalid_json", _bytes(RESPONSE).replace(b"fractions", b"\\x"), "response"),
    ("invalid_json", _bytes(RESPONSE).replace(b"fractions", b"\\u12"), "response"),
    ("invalid_json", _bytes(FEEDBACK).replace(b"rating", b"\xc3"), "feedback"),
    ("invalid_json", _bytes(FEEDBACK).replace(b"4}", b"NaN}"), "feedback"),
    ("not_an_object", b"[]", "response"),
    ("not_an_object", b"7", "event"),
    ("invalid_envelope", _bytes({"specversion": "1.0", "data": 5}), "response"),
    ("invalid_envelope", _bytes({"specversion": "1.0", "data": None}), "response"),
    ("invalid_envelope", _bytes({"specversion": "1.0", "data": None, "data_base64": None}), "feedback"),
    ("invalid_envelope", _bytes({"specversion": "0.3", "data": RESPONSE}), "response"),
    ("invalid_envelope", _bytes({"specversion": "1.0", "data_base64": "%"}), "feedback"),
    ("missing_field", _without(RESPONSE, "items"), "response"),
    ("missing_field", _without(FEEDBACK, "kind"), "feedback"),
    ("missing_field", _response(items=[{"item_id": "a"}]), "response"),
    ("missing_field", _bytes(FEEDBACK), "response"),
    ("wrong_type", _response(response_id=7), "response"),
    ("wrong_type", _feedback(item_id=669735617462052600), "feedback"),
    ("wrong_type", _feedback(score="4"), "feedback"),
    ("wrong_type", _feedback(score=True), "feedback"),
    ("wrong_type", _response(items={}), "response"),
    ("wrong_type", _response(items=_items(("a", "1"))), "response"),
    ("wrong_type", _response(items=_items(("a", True))), "response"),
    ("wrong_type", _response(timestamp=1.5), "response"),
    ("wrong_type", _response(timestamp=None), "response"),
    ("invalid_id", _response(response_id=""), "response"),
    ("invalid_id", _response(user_id="x" * 21), "response"),
    ("invalid_id", _response(items=_items(("", 1))), "response"),
    ("invalid_timestamp", _response(timestamp="yesterday"), "response"),
    ("invalid_timestamp", _response(timestamp=-1), "response"),
    ("implausible_timestamp", _response(timestamp=1_795_169_730), "response"),
    ("implausible_timestamp", _feedback(timestamp=1_795_169_730_123_000), "feedback"),
    ("implausible_timestamp", _response(timestamp=1_795_169_730_123_000_000), "response"),
    ("implausible_timestamp", _response(timestamp=0), "response"),
    ("implausible_timestamp", _response(timestamp="1970-01-01T00:00:00Z"), "response"),
    ("placeholder_id", _response(response_id="undefined"), "response"),
    ("placeholder_id", _feedback(response_id="NULL"), "feedback"),
    ("invalid_timestamp", _response(timestamp="1969-12-31T23:59:59Z"), "response"),
    ("timestamp_without_offset", _response(timestamp="2026-11-20T10:15:30"), "response"),
    ("timestamp_in_future", _response(timestamp=NOW + 300_001), "response"),
    ("list_too_long", _response(items=_items(*((f"v{n}", n) for n in range(1, 5)))), "response"),
    ("invalid_position", _response(items=_items(("a", 0))), "response"),
    ("invalid_position", _response(items=_items(("a", 10**7))), "response"),
    ("invalid_position", _response(items=_items(("a", 10**30))), "response"),
    ("repeated_position", _response(items=_items(("a", 1), ("b", 1))), "response"),
    ("repeated_item", _response(items=_items(("a", 1), ("a", 2))), "response"),
    ("invalid_score", _feedback(score=-0.5), "feedback"),
    ("invalid_kind", _feedback(kind="tab\t"), "feedback"),
    ("invalid_id", _response(response_id="ü" * 21), "response"),
    ("invalid_id", _response(items=_items(("x" * 21, 1))), "response"),
    ("invalid_timestamp", _response(timestamp="2026-11-20T10:60:30Z"), "response"),
    ("invalid_timestamp", _response(timestamp="9999-12-31T23:59:59-23:59"), "response"),
    ("invalid_timestamp", _response(timestamp=253_402_300_800_000), "response"),
    ("score_out_of_scale", _feedback(score=4.5), "feedback"),
    ("invalid_kind", _feedback(kind=""), "feedback"),
    ("invalid_kind", _feedback(kind="k" * 65), "feedback"),
    ("invalid_kind", _feedback(kind="+rating"), "feedback"),
    ("invalid_latency", _response(latency_ms=-1), "response"),
    ("invalid_latency", _response(latency_ms=86_400_001), "response"),
    ("invalid_latency", _response(latency_ms="slow"), "response"),
]


class TestPlaceholders:
    """Clients that do not know an id send a text such as null instead."""

    @pytest.mark.parametrize("user_id", ["undefined", "null", "None", "NaN", "anonymous", "0", ""])
    def test_a_placeholder_is_no_user_id(self, user_id: str) -> None:
        """The response remains, as one without a user id, and is marked."""
        response = DECODER.decode_response(_response(user_id=user_id), NOW)
        assert (response.user_id, response.has_placeholder_user) == (None, True)
        assert DECODER.decode_feedback(_feedback(user_id=user_id), NOW).user_id is None

    def test_an_id_that_contains_a_placeholder_is_an_id(self) -> None:
        """Only the whole id is compared."""
        response = DECODER.decode_response(_response(user_id="null-17"), NOW)
        assert (response.user_id, response.has_placeholder_user) == ("null-17", False)

    def test_the_configuration_decides_which_ids_are_placeholders(self) -> None:
        """Without the empty text among the placeholders, an empty user id is invalid."""
        limits = replace(LIMITS, placeholder_ids=frozenset({"guest"}))
        decoder = EventDecoder(Settings((EXPERIMENT,), limits=limits))
        assert decoder.decode_response(_response(user_id="Guest"), NOW).user_id is None
        assert decoder.decode_response(_response(user_id="null"), NOW).user_id == "null"
        with pytest.raises(InvalidEvent, match="user_id: expected at least 1 character"):
            decoder.decode_response(_response(user_id=""), NOW)


class TestRejected:
    """Invalid events are rejected, never repaired."""

    @pytest.mark.parametrize(
        ("timestamp", "unit"),
        [(1_795_169_730, "seconds"), (1_795_169_730 * 10**6, "microseconds"), (1_795_169_730 * 10**9, "nanoseconds")],
    )
    def test_a_timestamp_in_another_unit_is_rejected_with_the_unit(self, timestamp: int, unit: str) -> None:
        """Read as milliseconds, seconds would be a response of 1970."""
        with pytest.raises(InvalidEvent, match=f"timestamp: {timestamp} looks like {unit}, expected milliseconds"):
            DECODER.decode_response(_response(timestamp=timestamp), NOW)

    def test_a_time_before_the_limit_is_rejected_with_the_limit(self) -> None:
        """The limit is a setting."""
        expected = r"timestamp: 1999-12-31T23:59:59Z, expected limits.oldest_timestamp, 2001-09-09T01:46:40Z, or later"
        with pytest.raises(InvalidEvent, match=expected):
            DECODER.decode_response(_response(timestamp="1999-12-31T23:59:59Z"), NOW)
        decoder = EventDecoder(Settings((EXPERIMENT,), limits=replace(LIMITS, oldest_timestamp_ms=0)))
        assert decoder.decode_response(_response(timestamp="1970-01-01T00:00:01Z"), NOW).timestamp_ms == 1000

    @pytest.mark.parametrize(
        ("payload", "detail"),
        [
            (_response(response_id=7), "response_id: expected a string, got an integer"),
            (_response(user_id=7), "user_id: expected a string or null, got an integer"),
            (_response(timestamp=1.5), "timestamp: expected an integer or a string, got a number"),
            (_response(category=[]), "category: expected a string or null, got a list"),
        ],
    )
    def test_a_wrong_type_is_described_with_the_types_of_json(self, payload: bytes, detail: str) -> None:
        """Producers are not written in Python."""
        with pytest.raises(InvalidEvent) as caught:
            DECODER.decode_response(payload, NOW)
        assert caught.value.detail == detail

    @pytest.mark.parametrize(
        ("payload", "kind", "detail"),
        [
            (_response(items=_items(("a", 0))), "response", "items[0].position: 0, expected 1 to 1000000"),
            (_response(items=_items(("a", 10**30))), "response", "items[0].position: expected 1 to 1000000"),
            (_response(latency_ms=-1), "response", "latency_ms: -1, expected 0 to 86400000"),
            (_response(latency_ms="slow"), "response", "latency_ms: expected 0 to 86400000"),
            (_response(latency_ms=True), "response", "latency_ms: expected 0 to 86400000"),
            (_feedback(score=4.5), "feedback", "score: 4.5, expected 0 to 4 for this kind"),
            (_feedback(score=-0.5), "feedback", "score: -0.5, expected a finite number from 0"),
        ],
    )
    def test_a_number_outside_its_range_is_in_the_message(self, payload: bytes, kind: str, detail: str) -> None:
        """Texts and numbers with more than fifteen digits are not."""
        with pytest.raises(InvalidEvent) as caught:
            getattr(DECODER, f"decode_{kind}")(payload, NOW)
        assert caught.value.detail == detail

    @pytest.mark.parametrize(("reason", "payload", "kind"), REJECTED_EVENTS)
    def test_a_rejection_has_a_reason_and_no_text_of_the_event(
        self, reason: str, payload: bytes | None, kind: str
    ) -> None:
        """The detail contains neither ids nor the student's question."""
        with pytest.raises(InvalidEvent) as caught:
            getattr(DECODER, f"decode_{kind}")(payload, NOW)
        assert caught.value.reason == reason
        assert "student-17" not in str(caught.value)
        assert "how do I" not in str(caught.value)

    def test_every_reason_has_a_case_and_a_line_in_the_documentation(self) -> None:
        """docs/events.md explains all reasons. Other formats than JSON have tests of their own."""
        text = (Path(__file__).parents[3] / "docs/events.md").read_text()
        assert {reason for reason, _, _ in REJECTED_EVENTS} == set(REJECTION_REASONS) - _REASONS_OF_FORMATS
        for reason in REJECTION_REASONS:
            assert f"`{reason}`" in text

    def test_a_timestamp_at_the_limit_of_clock_skew_is_accepted(self) -> None:
        """max_clock_skew is inclusive."""
        assert DECODER.decode_response(_response(timestamp=NOW + 300_000), NOW).timestamp_ms == NOW + 300_000

    def test_a_kind_that_an_experiment_does_not_grade_by_score_has_no_scale(self) -> None:
        """Feedback does not name an experiment, so only scores outside the scales of all experiments are rejected."""
        second_experiment = replace(EXPERIMENT, name="other", grades={"watched": "score"}, max_grade=9.0)
        decoder = EventDecoder(Settings((EXPERIMENT, second_experiment)))
        assert decoder.decode_feedback(_feedback(kind="watched", score=99), NOW).score == 99
        assert decoder.decode_feedback(_feedback(kind="rating", score=99), NOW).score == 99


@pytest.mark.parametrize("count", [2, 8, 9, 40])
@pytest.mark.parametrize("repeats_last_but_one", [0, 1])
def test_a_repeated_item_is_rejected_on_request_in_lists_of_any_length(count: int, repeats_last_but_one: int) -> None:
    """The last item repeats the first item, or the last item but one."""
    decoder = EventDecoder(Settings((EXPERIMENT,), limits=LimitSettings(repeated_items="reject")))
    names = [f"v{number}" for number in range(count)]
    items = _items(*((name, position) for position, name in enumerate(names, 1)))
    decoder.decode_response(_response(items=items), NOW)
    items[-1]["item_id"] = names[repeats_last_but_one * (count - 2)]
    with pytest.raises(InvalidEvent) as caught:
        decoder.decode_response(_response(items=items), NOW)
    assert caught.value.reason == "repeated_item"


@pytest.mark.parametrize(
    ("pairs", "items", "ranks"),
    [
        ([("A", 1), ("B", 2), ("A", 3), ("C", 4)], ("A", "B", "C"), (1, 2, 4)),
        ([("A", 3), ("B", 2), ("A", 1)], ("A", "B"), None),
        ([("A", 1), ("B", 2), ("A", 3)], ("A", "B"), None),
        ([("A", 1), ("A", 1), ("B", 2)], ("A", "B"), None),
        ([("A", 5), ("A", 5), ("A", 7)], ("A",), (5,)),
    ],
)
def test_a_repeated_item_has_its_smallest_position(
    pairs: list[tuple[str, int]], items: tuple[str, ...], ranks: tuple[int, ...] | None
) -> None:
    """All other items keep their positions."""
    decoder = EventDecoder(Settings((EXPERIMENT,)))
    response = decoder.decode_response(_response(items=_items(*pairs)), NOW)
    assert (response.items, response.ranks, response.has_repeated_items) == (items, ranks, True)


def test_a_list_without_repetition_has_no_repeated_items() -> None:
    """Items may be in any order, and positions may have gaps."""
    decoder = EventDecoder(Settings((EXPERIMENT,)))
    response = decoder.decode_response(_response(items=_items(("A", 7), ("B", 2))), NOW)
    assert (response.items, response.ranks, response.has_repeated_items) == (("A", "B"), (7, 2), False)


@pytest.mark.parametrize("pairs", [[("A", 1), ("B", 2), ("A", 2)], [("A", 1), ("A", 3), ("B", 2), ("C", 2)]])
def test_different_items_at_one_position_are_rejected_also_beside_a_repeated_item(
    pairs: list[tuple[str, int]],
) -> None:
    """Even where one of the two is a repetition: the order of the list is unclear."""
    decoder = EventDecoder(Settings((EXPERIMENT,)))
    with pytest.raises(InvalidEvent) as caught:
        decoder.decode_response(_response(items=_items(*pairs)), NOW)
    assert caught.value.reason == "repeated_position"
