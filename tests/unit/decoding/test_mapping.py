"""Unit tests of the mapping: messages of other producers become responses and feedback."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from monitor.config import Settings
from monitor.config.loading import parse_settings
from monitor.decoding import RecordDecoder
from monitor.errors import InvalidEvent
from monitor.events import Feedback, Response
from monitor.sources import PlainRecord

NOW = 1_795_712_400_000
EXPERIMENT = {"name": "ranker-v2", "control": "control", "variants": {"control": 0.5, "treatment": 0.5}}
ANSWER: dict[str, Any] = {
    "payload": {
        "huge": NOW,
        "id": 17,
        "asked.at": 1_795_712_348,
        "arm": "A",
        "hits": [{"doc": {"id": 5}}, {"doc": {"id": 7}}],
    },
    "who": {"ids": ["u-1", "u-2"]},
    "tags": [{"key": "locale", "value": {"text": "de"}}, {"key": "class", "value": {"text": "7b"}}],
}
RESPONSE_FIELDS: dict[str, Any] = {
    "response_id": "payload.id",
    "timestamp": {"from": 'payload."asked.at"', "as": "s"},
    "experiment": {"constant": "ranker-v2"},
    "variant": {"from": "payload.arm", "values": {"A": "control", "*": "treatment"}},
    "items": {"each": "payload.hits[*]", "item_id": "doc.id"},
}
FEEDBACK_FIELDS: dict[str, Any] = {
    "feedback_id": "id",
    "response_id": "answer",
    "timestamp": {"from": "$timestamp", "as": "ms"},
    "kind": "kind",
}


def settings_of(*sources: Mapping[str, Any], **kafka: Any) -> Settings:
    """Return settings with the sources."""
    return parse_settings({"experiments": [EXPERIMENT], "kafka": {"sources": list(sources), **kafka}}, {})


def response_source(**keys: Any) -> dict[str, Any]:
    """Return a source of responses; `fields` are added to those of `ANSWER`."""
    fields = {**RESPONSE_FIELDS, **keys.pop("fields", {})}
    return {"topics": ["answers"], "event": "response", "fields": fields, **keys}


def feedback_source(**keys: Any) -> dict[str, Any]:
    """Return a source of feedback."""
    fields = {**FEEDBACK_FIELDS, **keys.pop("fields", {})}
    return {"topics": ["clicks"], "event": "feedback", "fields": fields, **keys}


def decode(
    message: object,
    *sources: Mapping[str, Any],
    topic: str = "answers",
    key: bytes | None = None,
    headers: Sequence[tuple[str, bytes | None]] = (),
    now_ms: int = NOW,
) -> Any:
    """Return what a message becomes."""
    declared = sources or (response_source(), feedback_source())
    types = {source["event"] for source in declared}
    others = [source for source in (response_source(), feedback_source()) if source["event"] not in types]
    decoder = RecordDecoder(settings_of(*declared, *others))
    value = message if message is None or isinstance(message, bytes) else json.dumps(message).encode()
    record = PlainRecord(41, key, value, NOW - 7, headers)
    return decoder.partition_decoder(topic, f"{topic}:3")(record, now_ms)


def decode_response(message: object = ANSWER, **fields: Any) -> Response:
    """Return the response that a message becomes, with other mappings of some fields."""
    (event,) = decode(message, response_source(fields=fields))
    assert isinstance(event, Response)
    return event


def decode_feedback(message: Mapping[str, Any], **fields: Any) -> Feedback:
    """Return the feedback that a message becomes, with other mappings of some fields."""
    content = {"id": "f", "answer": "r", "kind": "click", **message}
    (event,) = decode(content, feedback_source(fields=fields), topic="clicks")
    assert isinstance(event, Feedback)
    return event


def test_a_nested_message_becomes_a_response() -> None:
    """Integer ids become texts, seconds milliseconds, and the order of a list its positions."""
    assert decode_response() == Response("17", 1_795_712_348_000, "ranker-v2", "control", ("5", "7"))


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("who.ids[0]", "u-1"),
        ("who.ids[-1]", "u-2"),
        (["nobody.there", "who.ids[1]"], "u-2"),
        ('tags[key="class"].value.text', "7b"),
        ('tags["key"="locale"].value.text', "de"),
        ("$key", "the key"),
        ("$headers.User-Id", "h"),
        ("$topic", "answers"),
        ("$partition", "answers:3"),
        ("$offset", "41"),
        ("who.ids[9]", None),
        ("who.ids.name", None),
        ("payload.id.deeper", None),
        ("$headers.absent", None),
        ({"from": "nobody", "default": "someone"}, "someone"),
        ({"from": ["nobody", "who.ids[0]"], "values": {"u-1": "first"}}, "first"),
    ],
)
def test_a_path_reads_a_value_of_the_message_or_its_metadata(path: object, expected: str | None) -> None:
    """A path without a value leaves an optional field out."""
    source = response_source(fields={"user_id": path})
    (event,) = decode(ANSWER, source, key=b"the key", headers=[("User-Id", b"h")])
    assert event.user_id == expected


def test_values_that_a_value_map_lacks_remain_unless_it_has_a_star() -> None:
    """So a map may contain only the names that differ."""
    message = {**ANSWER, "payload": {**ANSWER["payload"], "arm": "treatment"}}
    assert decode_response(message, variant={"from": "payload.arm", "values": {"A": "control"}}).variant == "treatment"
    assert decode_response(message, variant={"from": "payload.arm", "values": {"*": "control"}}).variant == "control"


@pytest.mark.parametrize(
    ("cast", "value", "expected"),
    [
        ("s", 1_795_712_348, 1_795_712_348_000),
        ("s", 1_795_712_348.123, 1_795_712_348_123),
        ("s", "1795712348.9999", 1_795_712_348_999),
        ("ms", 1_795_712_348_123, 1_795_712_348_123),
        ("us", 1_795_712_348_123_999, 1_795_712_348_123),
        ("ns", 1_795_712_348_123_999_999, 1_795_712_348_123),
        ("iso", "2026-11-26T23:59:08Z", 1_795_737_548_000),
        ("iso:Europe/Berlin", "2026-07-01 12:00:00", 1_782_900_000_000),
        ("iso:Europe/Berlin", "2026-07-01T12:00:00Z", 1_782_907_200_000),
        ("iso:Europe/Berlin", "2026-10-25T02:30:00", 1_792_888_200_000),
        (None, "2026-07-01T12:00:00+02:00", 1_782_900_000_000),
        (None, 1_795_712_348_123, 1_795_712_348_123),
    ],
)
def test_times_are_read_in_the_declared_unit_or_zone(cast: str | None, value: object, expected: int) -> None:
    """Fractions of a millisecond are cut off; of an hour that occurs twice, the first counts."""
    mapping = {"from": "at", "as": cast} if cast else "at"
    (event,) = decode({**ANSWER, "at": value}, response_source(fields={"timestamp": mapping}), now_ms=2 * NOW)
    assert event.timestamp_ms == expected


@pytest.mark.parametrize(
    ("mapping", "value", "expected"),
    [
        ("v", 4, 4.0),
        ({"from": "v", "as": "number"}, "4.5", 4.5),
        ({"from": "v", "as": "truthy"}, True, 1.0),
        ({"from": "v", "as": "truthy"}, "no", 0.0),
        ({"from": "v", "as": "truthy"}, "Up", 1.0),
        ({"from": "v", "as": "truthy"}, 1, 1.0),
        ({"from": "v", "values": {"up": 1, "down": 0}}, "down", 0.0),
        ({"from": "v", "values": {"true": 1, "false": 0}}, False, 0.0),
        ({"from": "v", "values": {"1": 3}}, 1.0, 3.0),
        ({"from": "absent", "default": 2}, None, 2.0),
    ],
)
def test_a_score_is_a_number_a_word_or_a_mapped_value(mapping: object, value: object, expected: float) -> None:
    """A score that is declared and absent is rejected: 1 would be an invented rating."""
    with pytest.raises(InvalidEvent, match="missing_field: score: no value at nothing"):
        decode_feedback({"v": value}, score="nothing")
    assert decode_feedback({"v": value}, score=mapping).score == expected


def test_a_withdrawal_may_be_a_number() -> None:
    """Databases have 0 and 1."""
    mapping = {"from": "gone", "as": "truthy"}
    assert decode_feedback({"gone": 1}, withdrawn=mapping).is_withdrawn
    assert not decode_feedback({"gone": 0}, withdrawn=mapping).is_withdrawn


def test_a_latency_in_seconds_becomes_milliseconds() -> None:
    """The cast is that of times."""
    message = {**ANSWER, "took": 0.25}
    assert decode_response(message, latency_ms={"from": "took", "as": "s"}).latency_ms == 250


def test_positions_are_counted_from_the_declared_base() -> None:
    """Positions that are 1, 2, 3 … are stored as none."""
    message = {**ANSWER, "payload": {**ANSWER["payload"], "hits": [{"id": "a", "n": 2}, {"id": "b", "n": 0}]}}
    items = {"each": "payload.hits", "item_id": "id", "position": "n", "base": 0}
    assert decode_response(message, items=items).ranks == (3, 1)
    message["payload"]["hits"][1]["n"] = 1
    assert decode_response(message, items={**items, "base": 1}).ranks == (2, 1)
    message["payload"]["hits"] = [{"id": "a", "n": 0}, {"id": "b", "n": 1}]
    assert decode_response(message, items=items).ranks is None


def test_a_list_of_ids_is_a_ranked_list() -> None:
    """Such as UBI's query_response_hit_ids; nested lists are joined in order."""
    assert decode_response({**ANSWER, "ids": ["a", 2]}, items="ids").items == ("a", "2")
    nested = {**ANSWER, "groups": [{"docs": [{"id": "a"}]}, {"docs": [{"id": "b"}, {"id": "c"}]}]}
    assert decode_response(nested, items={"each": "groups[*].docs[*]", "item_id": "id"}).items == ("a", "b", "c")
    assert decode_response(items={"each": "absent", "default": []}).items == ()


def test_one_message_may_carry_several_feedback_events() -> None:
    """An id of the whole message gets the index of the element."""
    source = feedback_source(
        each="events",
        fields={"kind": "$element.type", "item_id": "$element.item", "score": {"from": "$element.n", "default": 5}},
    )
    message = {"id": "f", "answer": "r", "events": [{"type": "click", "item": 3}, {"type": "rating", "n": 2}]}
    events = decode(message, source, topic="clicks")
    assert [(e.feedback_id, e.kind, e.item_id, e.score) for e in events] == [
        ("f-0", "click", "3", 5),
        ("f-1", "rating", None, 2),
    ]
    assert decode({**message, "events": []}, source, topic="clicks") == "no_elements"
    own_ids = feedback_source(each="events", fields={"feedback_id": "$element.id", "kind": {"constant": "click"}})
    assert decode({"answer": "r", "events": [{"id": 9}]}, own_ids, topic="clicks")[0].feedback_id == "9"
    filtered = {**source, "when": {"$element.type": "rating"}}
    assert [event.feedback_id for event in decode(message, filtered, topic="clicks")] == ["f-1"]


def test_a_message_with_one_wrong_element_is_rejected_as_a_whole() -> None:
    """The error names the element."""
    source = feedback_source(each="events", fields={"kind": "$element.type"})
    with pytest.raises(InvalidEvent, match=r"kind: no value at \$element.type \(element 1 "):
        decode({"id": "f", "answer": "r", "events": [{"type": "click"}, {}]}, source, topic="clicks")


def test_a_derived_id_is_the_same_for_the_same_values() -> None:
    """So an event that is sent again stays one."""
    mapping = {"derive": ["answer", "item", "at"]}
    first = decode_feedback({"item": 5, "at": "x"}, feedback_id=mapping).feedback_id
    assert decode_feedback({"at": "x", "item": 5, "other": 1}, feedback_id=mapping).feedback_id == first
    assert decode_feedback({"item": 6, "at": "x"}, feedback_id=mapping).feedback_id != first
    assert len(first) == 32
    with pytest.raises(InvalidEvent, match="missing_field: feedback_id: no value at a or b"):
        decode_feedback({}, feedback_id={"derive": ["a", "b"]})


@pytest.mark.parametrize(
    ("when", "passes"),
    [
        ({"payload.arm": "A"}, True),
        ({"payload": {"arm": ["B", "A"]}}, True),
        ({"payload.arm": "B"}, False),
        ({"payload.id": 17, "$topic": "answers"}, True),
        ({"payload.id": 17, "$topic": "others"}, False),
        ({"$headers.kind": "answer"}, True),
        ({"$headers.kind": "*"}, True),
        ({"$headers.absent": "*"}, False),
        ({"who.ids": "u-1"}, False),
    ],
)
def test_messages_that_do_not_pass_the_filters_are_ignored(when: object, passes: bool) -> None:  # noqa: FBT001
    """Another kind of message on the topic is no mistake."""
    decoded = decode(ANSWER, response_source(when=when), headers=[("kind", b"answer")])
    assert (decoded != "filtered") == passes


def test_a_shared_topic_has_a_source_for_each_type() -> None:
    """A message is an event of each source whose filters it passes."""
    shared = {"topics": ["chat"]}
    sources = (
        {**response_source(when={"type": "answer"}), **shared},
        {**feedback_source(when={"type": "click"}), **shared},
    )
    click = {"type": "click", "id": "f", "answer": "r", "kind": "click"}
    assert isinstance(decode({**ANSWER, "type": "answer"}, *sources, topic="chat")[0], Response)
    assert isinstance(decode(click, *sources, topic="chat")[0], Feedback)
    assert decode({"type": "heartbeat"}, *sources, topic="chat") == "filtered"


def test_a_record_without_a_topic_is_an_event_of_the_first_source_that_accepts_it() -> None:
    """Such as a line of a file; the error names both sources."""
    click = {"id": "f", "answer": "r", "kind": "click"}
    assert isinstance(decode(ANSWER, topic="")[0], Response)
    assert isinstance(decode(click, topic="")[0], Feedback)
    with pytest.raises(InvalidEvent, match=r"as response of answers: .*; as feedback of clicks: "):
        decode({"x": 1}, topic="")


def test_a_source_without_fields_has_the_native_names() -> None:
    """With the casts of a mapping."""
    message = {
        "response_id": 1, "timestamp": NOW, "experiment": "ranker-v2", "variant": "control", "items": [
            {"item_id": 9, "position": 1}
        ],
    }  # fmt: skip
    (event,) = decode(message, {"topics": ["answers"], "event": "response", "format": "json"})
    assert event == Response("1", NOW, "ranker-v2", "control", ("9",))


def test_tombstones_are_ignored_unless_declared_otherwise() -> None:
    """Compacted topics have records without a value."""
    assert decode(None) == "tombstone"
    with pytest.raises(InvalidEvent, match="empty_payload"):
        decode(None, response_source(tombstones="reject"))
    settings = settings_of(response_source(), feedback_source(), tombstones="reject")
    with pytest.raises(InvalidEvent, match="empty_payload"):
        RecordDecoder(settings).partition_decoder("clicks", "clicks:0")(PlainRecord(0, b"k", None), NOW)
    native = RecordDecoder(Settings(settings.experiments)).partition_decoder("student.feedback", "student.feedback:0")
    assert native(PlainRecord(0, b"k", None), NOW) == "tombstone"


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"response_id": "payload.nothing"}, "missing_field: response_id: no value at payload.nothing"),
        ({"response_id": ["a", "b"]}, "missing_field: response_id: no value at a or b"),
        ({"response_id": "payload.hits"}, "wrong_type: response_id: got a list of 2 elements, expected a string or an"),
        ({"user_id": "who"}, "wrong_type: user_id: got an object with 1 members"),
        ({"timestamp": "payload.arm"}, "invalid_timestamp: timestamp: "),
        ({"timestamp": 'payload."asked.at"'}, "implausible_timestamp: timestamp: 1795712348 looks like seconds"),
        ({"timestamp": {"from": "payload.arm", "as": "s"}}, "wrong_type: timestamp: got a string of 1 characters, exp"),
        ({"timestamp": {"from": "payload.huge", "as": "s"}}, "implausible_timestamp: timestamp: not a plausible num"),
        ({"latency_ms": "payload.arm"}, "wrong_type: latency_ms: got a string of 1 characters, expected a number; "),
        ({"items": "payload.arm"}, "wrong_type: items: got a string of 1 characters, expected a list"),
        ({"items": "nothing"}, "missing_field: items: no value at nothing"),
        ({"items": "payload.hits"}, r"wrong_type: items\[0\].item_id: got an object with 1 members"),
        ({"items": {"each": "payload.hits", "item_id": "id"}}, r"missing_field: items\[0\].item_id: no value at id"),
        (
            {"items": {"each": "payload.hits", "item_id": "doc.id", "position": "n"}},
            r"missing_field: items\[0\].position",
        ),
    ],
)
def test_a_value_that_does_not_fit_is_rejected_with_its_path_and_shape(fields: Mapping[str, Any], error: str) -> None:
    """The content of a message is in no error."""
    with pytest.raises(InvalidEvent, match=error) as caught:
        decode_response(**fields)
    assert "u-1" not in str(caught.value)


def test_a_position_from_0_is_rejected_with_the_remedy() -> None:
    """Many lists begin at 0."""
    message = {**ANSWER, "hits": [{"id": "a", "n": 0}]}
    with pytest.raises(InvalidEvent, match=r"invalid_position: items\[0\].position: 0, expected 1 to .* set base = 0"):
        decode_response(message, items={"each": "hits", "item_id": "id", "position": "n"})


def test_a_rejected_response_is_counted_under_its_experiment_and_variant() -> None:
    """Otherwise one variant could lose its worst responses unnoticed."""
    decoder = RecordDecoder(settings_of(response_source(), feedback_source()))
    message = json.dumps({**ANSWER, "payload": {**ANSWER["payload"], "hits": 3}}).encode()
    arms = decoder.read_response_arms("answers", PlainRecord(0, None, message), NOW)
    assert arms == [("ranker-v2", "control", 1_795_712_348_000)]
    assert not decoder.read_response_arms("clicks", PlainRecord(0, None, message), NOW)


def test_a_rejected_message_with_several_responses_is_counted_under_the_variant_of_each() -> None:
    """Also if the message is too large: one variant may have more large messages."""
    fields = {**RESPONSE_FIELDS, "variant": "$element.arm", "response_id": "$element.id"}
    settings = settings_of(response_source(each="answers", fields=fields), feedback_source())
    decoder = RecordDecoder(replace(settings, limits=replace(settings.limits, max_payload_bytes=10)))
    record = PlainRecord(
        0, None, json.dumps({**ANSWER, "answers": [{"arm": "control"}, {"arm": "treatment"}]}).encode()
    )
    with pytest.raises(InvalidEvent, match="payload_too_large"):
        decoder.partition_decoder("answers", "answers:0")(record, NOW)
    assert [variant for _, variant, _ in decoder.read_response_arms("answers", record, NOW)] == ["control", "treatment"]


@pytest.mark.parametrize("text", ["9e999999", "sNaN", "1_0", "٣", "0x1", "", "1" * 50, "nan", "inf"])
@pytest.mark.parametrize(("field", "cast"), [("score", "number"), ("timestamp", "s")])
def test_a_text_that_is_no_decimal_number_is_rejected(field: str, cast: str, text: str) -> None:
    """Whatever Python's own parser accepts."""
    with pytest.raises(InvalidEvent):
        decode_feedback({"v": text}, **{field: {"from": "v", "as": cast}})


def test_thumbs_of_minus_one_are_not_truthy() -> None:
    """A thumb down must not count as a thumb up."""
    with pytest.raises(InvalidEvent, match=r"wrong_type: score: got an integer, .*`values` maps others"):
        decode_feedback({"v": -1}, score={"from": "v", "as": "truthy"})
    assert decode_feedback({"v": -1}, score={"from": "v", "values": {"-1": 0, "1": 1}}).score == 0


@pytest.mark.parametrize("key", [b"\0\0\0\0\x07alice", b"\x00\x11", b"\xff", b'{"a":1}\n', b'"\\ud800"'])
def test_a_key_that_is_an_encoding_is_no_id(key: bytes) -> None:
    """Its bytes would differ from the id in the other topic."""
    with pytest.raises(InvalidEvent, match=r"wrong_type: \$key: got \d+ bytes, expected text"):
        decode(ANSWER, response_source(fields={"user_id": "$key"}), key=key)


def test_a_key_may_be_json() -> None:
    """A string, or an object with the id."""
    (event,) = decode(ANSWER, response_source(fields={"user_id": "$key"}), key=b'"alice"')
    assert event.user_id == "alice"
    (event,) = decode(ANSWER, response_source(fields={"user_id": "$key.id"}), key=b'{"id": 5}')
    assert event.user_id == "5"


def test_the_time_of_the_record_is_a_fallback_for_a_time_in_any_unit() -> None:
    """It is in milliseconds, whatever the cast of the other path is."""
    mapping = {"from": ["nothing", "$timestamp"], "as": "s"}
    assert decode_response(timestamp=mapping).timestamp_ms == NOW - 7


def test_empty_texts_are_no_values_in_filters_and_derived_ids() -> None:
    """As in fields."""
    assert decode({**ANSWER, "q": ""}, response_source(when={"q": "*"})) == "filtered"
    with pytest.raises(InvalidEvent, match="missing_field: feedback_id"):
        decode_feedback({"a": ""}, feedback_id={"derive": ["a", "b"]})
    with pytest.raises(InvalidEvent, match="wrong_type: feedback_id: got an object with 0 members, expected a text"):
        decode_feedback({"a": {}}, feedback_id={"derive": ["a"]})


def test_a_group_without_the_inner_list_has_no_items() -> None:
    """Some formats omit empty lists."""
    message = {**ANSWER, "groups": [{"docs": [{"id": "a"}]}, {}, {"docs": []}]}
    assert decode_response(message, items={"each": "groups[*].docs", "item_id": "id"}).items == ("a",)


def test_a_deletion_of_another_table_is_filtered() -> None:
    """Even where deletions are rejected."""
    source = response_source(when={"$envelope.source.table": "answers"}, tombstones="reject")
    for table, expected in (("users", "filtered"), ("answers", None)):
        change = {"op": "d", "before": {"id": 1}, "after": None, "source": {"table": table}}
        if expected is None:
            with pytest.raises(InvalidEvent, match="empty_payload"):
                decode(change, source)
        else:
            assert decode(change, source) == expected


def test_a_value_that_a_value_map_lacks_and_no_cast_reads_is_rejected_with_both_remedies() -> None:
    """Such as a new category of a score."""
    with pytest.raises(
        InvalidEvent, match=r"score: got a string of 4 characters, expected .*, or a value of the table"
    ):
        decode_feedback({"v": "good"}, score={"from": "v", "values": {"bad": 0}})
