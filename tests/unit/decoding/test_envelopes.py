"""Envelopes around the fields of an event."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from monitor.config import EnvelopeMode
from monitor.decoding import Document, DocumentParser
from monitor.errors import InvalidEvent

_EVENT = {"response_id": "r1", "items": []}
_TEXT = json.dumps(_EVENT)
_CLOUD = {"specversion": "1.0", "id": "1", "source": "/bot", "type": "answer"}
_SOURCE = {"connector": "postgresql", "table": "answers"}
_STRUCT = {"type": "struct", "fields": [{"type": "string", "field": "response_id"}], "name": "Answer"}
_OUTBOX = {"id": "7", "aggregatetype": "answer", "aggregateid": "r1", "type": "created"}
_CLOUD_HEADERS: list[tuple[str, bytes | None]] = [
    ("ce_specversion", b"1.0"),
    ("ce_id", b"1"),
    ("ce_type", "réponse".encode()),
    ("ce_empty", None),
    ("content-type", b"application/json"),
]


def _parse(
    message: object, headers: list[tuple[str, bytes | None]] | None = None, mode: EnvelopeMode = "auto"
) -> Document:
    return DocumentParser("json", mode, None, None).parse(json.dumps(message).encode(), headers or [])


@pytest.mark.parametrize(
    ("message", "attributes", "kinds"),
    [
        ({**_CLOUD, "data": _EVENT}, _CLOUD, ("CloudEvents",)),
        ({**_CLOUD, "data": _TEXT}, _CLOUD, ("CloudEvents",)),
        ({**_CLOUD, "data_base64": base64.b64encode(_TEXT.encode()).decode()}, _CLOUD, ("CloudEvents",)),
        ({"schema": _STRUCT, "payload": _EVENT}, {}, ("Kafka Connect",)),
        ({"schema": None, "payload": _EVENT}, {}, ("Kafka Connect",)),
        ({"schema": {"type": "string", "optional": False}, "payload": _TEXT}, {}, ("Kafka Connect",)),
        (
            {"before": None, "after": _EVENT, "source": _SOURCE, "op": "c", "ts_ms": 5, "transaction": None},
            {"source": _SOURCE, "op": "c", "ts_ms": 5, "transaction": None},
            ("Debezium",),
        ),
        ({"after": _EVENT, "source": _SOURCE, "op": "r"}, {"source": _SOURCE, "op": "r"}, ("Debezium",)),
        ({"before": {}, "after": _EVENT, "source": _SOURCE, "op": "u"}, {"source": _SOURCE, "op": "u"}, ("Debezium",)),
        ({"after": _TEXT, "source": _SOURCE, "op": "u"}, {"source": _SOURCE, "op": "u"}, ("Debezium",)),
        (
            {"schema": _STRUCT, "payload": {"after": _EVENT, "source": _SOURCE, "op": "c"}},
            {"source": _SOURCE, "op": "c"},
            ("Kafka Connect", "Debezium"),
        ),
        (
            {**_CLOUD, "data": {"schema": _STRUCT, "payload": {"after": _EVENT, "source": _SOURCE, "op": "c"}}},
            {**_CLOUD, "source": _SOURCE, "op": "c"},
            ("CloudEvents", "Kafka Connect", "Debezium"),
        ),
        ({**_OUTBOX, "payload": _TEXT}, _OUTBOX, ("outbox",)),
        (
            {"after": {**_OUTBOX, "payload": _TEXT}, "source": _SOURCE, "op": "c"},
            {"source": _SOURCE, "op": "c", **_OUTBOX},
            ("Debezium", "outbox"),
        ),
        (_TEXT, {}, ("outbox",)),
    ],
)
def test_the_fields_are_found_in_the_envelope(
    message: object, attributes: dict[str, Any], kinds: tuple[str, ...]
) -> None:
    """The attributes of the envelope are available beside the fields."""
    document = _parse(message)
    assert (document.fields, document.envelope, document.is_deletion) == (_EVENT, attributes, False)
    assert document.framing.envelopes == kinds


@pytest.mark.parametrize(
    "message",
    [
        {**_CLOUD, "data": None},
        {**_CLOUD, "data_base64": None},
        {"before": _EVENT, "after": None, "source": _SOURCE, "op": "d"},
        {"before": None, "after": None, "source": _SOURCE, "op": "t"},
        {"schema": _STRUCT, "payload": None},
        {"schema": _STRUCT, "payload": {"before": _EVENT, "after": None, "source": _SOURCE, "op": "d"}},
    ],
)
def test_an_envelope_without_data_is_a_deletion(message: object) -> None:
    """The worker treats it as a tombstone."""
    document = _parse(message)
    assert (document.fields, document.is_deletion) == ({}, True)


@pytest.mark.parametrize(
    "message",
    [
        {"data": {"a": 1}, "type": "answer"},
        {"data": {"a": 1}, "id": "1", "source": "/bot", "type": "answer"},
        {"specversion": 1, "data": {"a": 1}},
        {"specversion": "1.0", "kind": "answer"},
        {"payload": {"a": 1}},
        {"payload": _TEXT, "type": "answer"},
        {"schema": "v2", "payload": {"a": 1}},
        {"schema": {"version": 2}, "payload": {"a": 1}},
        {"schema": {"type": "answer"}, "payload": {"a": 1}},
        {"schema": {"type": {"of": "struct"}}, "payload": {"a": 1}},
        {"schema": _STRUCT, "payload": {"a": 1}, "id": 1},
        {"op": "c", "after": {"a": 1}},
        {"op": "click", "after": {"a": 1}, "source": _SOURCE},
        {"op": {"c": 1}, "after": {"a": 1}, "source": _SOURCE},
        {"op": "c", "source": {"page": "home"}, "score": 1},
        {"op": "d", "source": {"page": "home"}},
        {**_OUTBOX, "payload": "not an object"},
        {**_OUTBOX, "payload": {"a": 1}},
        {"aggregatetype": "answer", "payload": _TEXT},
    ],
)
def test_an_ordinary_message_with_the_same_field_names_remains_as_it_is(message: dict[str, Any]) -> None:
    """One mark alone is no envelope."""
    document = _parse(message)
    assert (document.fields, document.envelope, document.is_deletion) == (message, {}, False)
    assert document.framing.envelopes == ()


@pytest.mark.parametrize(
    ("message", "headers", "reason"),
    [
        ({**_CLOUD, "specversion": "0.3", "data": _EVENT}, [], "invalid_envelope"),
        ({**_CLOUD, "data": [_EVENT]}, [], "invalid_envelope"),
        ({**_CLOUD, "data": "secret"}, [], "invalid_envelope"),
        ({**_CLOUD, "data_base64": "secret"}, [], "invalid_envelope"),
        ({**_CLOUD, "data_base64": 5}, [], "invalid_envelope"),
        ({**_CLOUD, "data_base64": base64.b64encode(b"[]").decode()}, [], "invalid_envelope"),
        (_EVENT, [("content-type", b"application/cloudevents+json")], "invalid_envelope"),
        ([_EVENT], [("content-type", b"application/cloudevents-batch+json")], "invalid_envelope"),
        ({"schema": _STRUCT, "payload": [1]}, [], "invalid_envelope"),
        ({"schema": {"type": "string"}, "payload": "secret"}, [], "invalid_envelope"),
        ({"after": None, "source": _SOURCE, "op": "u"}, [], "invalid_envelope"),
        ([_EVENT], _CLOUD_HEADERS, "not_an_object"),
        ("secret", [], "not_an_object"),
        ('"{}"', [], "not_an_object"),
    ],
)
def test_an_envelope_without_usable_data_is_rejected(
    message: object, headers: list[tuple[str, bytes | None]], reason: str
) -> None:
    """The detail names the part of the envelope, and no content."""
    with pytest.raises(InvalidEvent) as error:
        _parse(message, headers)
    assert error.value.reason == reason
    assert "secret" not in error.value.detail


def test_the_headers_of_a_cloud_event_in_binary_mode_are_its_attributes() -> None:
    """The value is the data alone."""
    document = _parse(_EVENT, _CLOUD_HEADERS)
    assert document.fields == _EVENT
    assert document.envelope == {
        "specversion": "1.0", "id": "1", "type": "réponse", "datacontenttype": "application/json",
    }  # fmt: skip
    assert document.framing.envelopes == ("CloudEvents (binary)",)


def test_headers_without_a_version_are_no_cloud_event() -> None:
    """A header of the same prefix alone is no envelope."""
    assert _parse(_EVENT, [("ce_id", b"1")]).envelope == {}


@pytest.mark.parametrize(
    "content_type", [b"application/cloudevents+json", b"Application/CloudEvents+JSON; charset=UTF-8"]
)
def test_the_content_type_declares_the_structured_mode(content_type: bytes) -> None:
    """Without data, the event is a deletion even if nothing else shows the envelope."""
    headers: list[tuple[str, bytes | None]] = [("Content-Type", content_type)]
    assert _parse({**_CLOUD, "data": _EVENT}, headers).fields == _EVENT
    assert _parse(_CLOUD, headers).is_deletion


@pytest.mark.parametrize("message", [{**_CLOUD, "data": _EVENT}, {"schema": _STRUCT, "payload": _EVENT}])
def test_no_envelope_is_removed_where_the_source_says_so(message: dict[str, Any]) -> None:
    """`envelope = "none"`: paths begin at the outermost object."""
    document = _parse(message, _CLOUD_HEADERS, mode="none")
    assert (document.fields, document.envelope) == (message, {})
