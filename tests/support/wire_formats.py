"""The simulator's events in other formats, each with the sources that read it; ids are integers where a format allows.

All formats describe the same events, so that their aggregates must be those of the native format.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from io import BytesIO
from itertools import groupby
from typing import Any, Final, Literal, NamedTuple

import fastavro

from monitor.simulation import SimulatedEvent
from tests.support.schema_registry import SchemaRegistryServer
from tests.support.schemas import descriptor_text, message_class, parse_file

RESPONSES_TOPIC: Final = "chatbot.responses"
FEEDBACK_TOPIC: Final = "student.feedback"
"""The topics in all sources; replace them in the text for other names."""
_IDS_PER_SEGMENT: Final = 10**9
EventType = Literal["response", "feedback"]


class Event(NamedTuple):
    """An event with the fields of the native format."""

    kind: EventType
    key: bytes
    fields: dict[str, Any]


class Message(NamedTuple):
    """A record to write to the topic of an event type."""

    kind: EventType
    key: bytes
    value: bytes | None
    headers: list[tuple[str, bytes]]


@dataclass(frozen=True, slots=True)
class Encoding:
    """A format of messages."""

    name: str
    sources: str
    """The `[[kafka.sources]]` that read the messages; empty for the native format."""
    encode: Callable[[Event], tuple[bytes, list[tuple[str, bytes]]]] = field(repr=False)
    """Returns the value and the headers of an event's message."""

    def messages(self, events: Iterable[Event]) -> list[Message]:
        """Return a message for each event."""
        return [Message(event.kind, event.key, *self.encode(event)) for event in events]


def read_events(events: Iterable[SimulatedEvent]) -> list[Event]:
    """Return the events of the simulator, with digits as ids of responses, students and items."""
    numbered = []
    for event in events:
        fields = json.loads(event.payload)
        for record in (fields, *fields.get("items", ())):
            for name in ("response_id", "user_id", "item_id"):
                if name in record:
                    *_, segment, number = record[name].split("-")
                    first = int(segment) * _IDS_PER_SEGMENT if name == "response_id" else 1
                    record[name] = str(first + int(number) + 1)
        numbered.append(Event(event.kind, fields["user_id"].encode(), fields))
    return numbered


def configure(text: str, encoding: Encoding, registry_url: str) -> str:
    """Return the simulator's configuration with the sources of an encoding."""
    if encoding.sources:
        for name, topic in (("responses", RESPONSES_TOPIC), ("feedback", FEEDBACK_TOPIC)):
            text = text.replace(f'{name}_topic = "{topic}"\n', "")
    sources = f'{encoding.sources}\n[schema_registry]\nurl = "{registry_url}"\n'
    return text.replace("[store]", f"{sources}\n[store]")


def _milliseconds(event: Event) -> int:
    timestamp = event.fields["timestamp"]
    if isinstance(timestamp, int):
        return timestamp
    return round(datetime.fromisoformat(timestamp).timestamp() * 1000)


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


# ------------------------------------------------------------------ nested objects

_ARMS: Final = {"control": "A", "treatment": "B"}
_KINDS: Final = {"rating": "STAR", "escalated": "FLAG"}
_TIME: Final = "<time>"
_NESTED: Final = f"""
[[kafka.sources]]
topics = ["{RESPONSES_TOPIC}"]
event = "response"
when = {{ "type" = ["answer"] }}
[kafka.sources.fields]
response_id = "payload.id"
timestamp = {_TIME}
experiment = {{ constant = "ranker-v2" }}
variant = {{ from = "payload.arm", values = {{ A = "control", B = "treatment" }} }}
user_id = "payload.user.id"
query_id = "payload.query"
category = "payload.topic"
latency_ms = "payload.took"
items = {{ each = "payload.hits", item_id = "doc.id", position = "rank", base = 0 }}

[[kafka.sources]]
topics = ["{FEEDBACK_TOPIC}"]
event = "feedback"
[kafka.sources.fields]
feedback_id = {{ derive = ["answer", "doc", "what", "at"] }}
response_id = "answer"
timestamp = {_TIME.replace("time", "at")}
kind = {{ from = "what", values = {{ STAR = "rating", FLAG = "escalated" }} }}
item_id = "doc"
user_id = "user"
score = "stars"
"""


def _nested_sources(cast: str | None) -> str:
    """Return the sources of nested objects, for times with a cast or without one."""
    text = _NESTED
    for placeholder, path in ((_TIME, "payload.asked_at"), ("<at>", "at")):
        text = text.replace(placeholder, f'"{path}"' if cast is None else f'{{ from = "{path}", as = "{cast}" }}')
    return text


def nested_object(event: Event, time: Callable[[int], object]) -> dict[str, Any]:
    """Return an event as a producer with other names writes it; `time` converts milliseconds."""
    fields, at = event.fields, time(_milliseconds(event))
    if event.kind == "feedback":
        item_id = fields.get("item_id")
        return {
            "answer": int(fields["response_id"]),
            "at": at,
            "what": _KINDS[fields["kind"]],
            "user": int(fields["user_id"]),
            "doc": None if item_id is None else int(item_id),
            "stars": fields["score"],
        }
    return {
        "type": "answer",
        "payload": {
            "id": int(fields["response_id"]),
            "asked_at": at,
            "arm": _ARMS[fields["variant"]],
            "user": {"id": int(fields["user_id"])},
            "query": fields["query_id"],
            "topic": fields["category"],
            "took": fields["latency_ms"],
            "hits": [{"doc": {"id": int(item["item_id"])}, "rank": item["position"] - 1} for item in fields["items"]],
        },
    }


def _seconds(at_ms: int) -> float:
    return at_ms / 1000


def _nested(event: Event) -> tuple[bytes, list[tuple[str, bytes]]]:
    return _json(nested_object(event, _seconds)), []


# ------------------------------------------------------------------ Avro and Protobuf


def _record(name: str, **fields: object) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": key, "type": kind} for key, kind in fields.items()]}


_AVRO_TIME: Final = {"type": "long", "logicalType": "timestamp-millis"}
AVRO_SCHEMAS: Final[dict[EventType, dict[str, Any]]] = {
    "response": _record(
        "Answer",
        type="string",
        payload=_record(
            "Payload",
            id="long",
            asked_at=_AVRO_TIME,
            arm={"type": "enum", "name": "Arm", "symbols": ["A", "B"]},
            user=["null", _record("User", id="long")],
            query=["null", "string"],
            topic="string",
            took=["null", "double"],
            hits={"type": "array", "items": _record("Hit", doc=_record("Document", id="long"), rank="int")},
        ),
    ),
    "feedback": _record(
        "Reaction",
        answer="long",
        at=_AVRO_TIME,
        what={"type": "enum", "name": "What", "symbols": [*_KINDS.values()]},
        user="long",
        doc=["null", "long"],
        stars="double",
    ),
}
_PROTOBUF: Final = """
name: "reactions.proto" syntax: "proto3" dependency: "google/protobuf/timestamp.proto"
message_type {
  name: "Answer"
  field { name: "type" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
  field { name: "payload" number: 2 type: TYPE_MESSAGE type_name: ".Payload" label: LABEL_OPTIONAL }
}
message_type {
  name: "Payload"
  field { name: "id" number: 1 type: TYPE_INT64 label: LABEL_OPTIONAL }
  field { name: "asked_at" number: 2 type: TYPE_MESSAGE type_name: ".google.protobuf.Timestamp" label: LABEL_OPTIONAL }
  field { name: "arm" number: 3 type: TYPE_ENUM type_name: ".Arm" label: LABEL_OPTIONAL }
  field { name: "user" number: 4 type: TYPE_MESSAGE type_name: ".Identity" label: LABEL_OPTIONAL }
  field { name: "query" number: 5 type: TYPE_STRING label: LABEL_OPTIONAL }
  field { name: "topic" number: 6 type: TYPE_STRING label: LABEL_OPTIONAL }
  field { name: "took" number: 7 type: TYPE_DOUBLE label: LABEL_OPTIONAL }
  field { name: "hits" number: 8 type: TYPE_MESSAGE type_name: ".Hit" label: LABEL_REPEATED }
}
message_type {
  name: "Hit"
  field { name: "doc" number: 1 type: TYPE_MESSAGE type_name: ".Identity" label: LABEL_OPTIONAL }
  field { name: "rank" number: 2 type: TYPE_INT32 label: LABEL_OPTIONAL }
}
message_type {
  name: "Identity" field { name: "id" number: 1 type: TYPE_INT64 label: LABEL_OPTIONAL }
}
message_type {
  name: "Reaction"
  field { name: "answer" number: 1 type: TYPE_INT64 label: LABEL_OPTIONAL }
  field { name: "at" number: 2 type: TYPE_MESSAGE type_name: ".google.protobuf.Timestamp" label: LABEL_OPTIONAL }
  field { name: "what" number: 3 type: TYPE_ENUM type_name: ".What" label: LABEL_OPTIONAL }
  field { name: "user" number: 4 type: TYPE_INT64 label: LABEL_OPTIONAL }
  field { name: "doc" number: 5 type: TYPE_INT64 label: LABEL_OPTIONAL proto3_optional: true oneof_index: 0 }
  field { name: "stars" number: 6 type: TYPE_DOUBLE label: LABEL_OPTIONAL }
  oneof_decl { name: "_doc" }
}
enum_type { name: "Arm" value { name: "A" number: 0 } value { name: "B" number: 1 } }
enum_type { name: "What" value { name: "STAR" number: 0 } value { name: "FLAG" number: 1 } }
"""
_MESSAGE_PATHS: Final[dict[EventType, tuple[str, bytes]]] = {
    "response": ("Answer", b"\x00"),
    "feedback": ("Reaction", b"\x02\x08"),
}


def frame(schema_id: int, data: bytes) -> bytes:
    """Return data with Confluent's prefix."""
    return b"\x00" + schema_id.to_bytes(4, "big") + data


def date_of(at_ms: int) -> datetime:
    """Return milliseconds as a date and time in UTC."""
    return datetime.fromtimestamp(at_ms // 1000, UTC).replace(microsecond=at_ms % 1000 * 1000)


def _avro(registry: SchemaRegistryServer) -> Encoding:
    ids = {kind: registry.register(f"{kind}-value", json.dumps(schema)) for kind, schema in AVRO_SCHEMAS.items()}
    schemas = {kind: fastavro.parse_schema(schema) for kind, schema in AVRO_SCHEMAS.items()}

    def encode(event: Event) -> tuple[bytes, list[tuple[str, bytes]]]:
        stream = BytesIO()
        fastavro.schemaless_writer(stream, schemas[event.kind], nested_object(event, date_of))
        return frame(ids[event.kind], stream.getvalue()), []

    return Encoding("avro", _nested_sources(None), encode)


def _protobuf(registry: SchemaRegistryServer) -> Encoding:
    file = parse_file(_PROTOBUF)
    schema_id = registry.register("reactions", descriptor_text(file), "PROTOBUF")
    classes = {kind: message_class(name, file) for kind, (name, _) in _MESSAGE_PATHS.items()}

    def encode(event: Event) -> tuple[bytes, list[tuple[str, bytes]]]:
        message = classes[event.kind](**nested_object(event, date_of))
        return frame(schema_id, _MESSAGE_PATHS[event.kind][1] + message.SerializeToString()), []

    return Encoding("protobuf", _nested_sources(None), encode)


# ------------------------------------------------------------------ native fields in envelopes

_NATIVE_FIELDS: Final = f"""
[[kafka.sources]]
topics = ["{RESPONSES_TOPIC}"]
event = "response"
[[kafka.sources]]
topics = ["{FEEDBACK_TOPIC}"]
event = "feedback"
"""
_BINARY: Final = (
    _NATIVE_FIELDS
    + """
when = { "$envelope.type" = ["reaction"] }
[kafka.sources.fields]
feedback_id = "$envelope.id"
response_id = "response_id"
timestamp = { from = "$envelope.time", as = "iso" }
kind = "kind"
item_id = "item_id"
user_id = "$key"
score = "score"
"""
)


def _attributes(event: Event) -> dict[str, str]:
    return {
        "specversion": "1.0",
        "id": event.fields["feedback_id" if event.kind == "feedback" else "response_id"],
        "source": "/bot",
        "type": "reaction" if event.kind == "feedback" else "answer",
        "time": date_of(_milliseconds(event)).isoformat().replace("+00:00", "Z"),
    }


def _structured(event: Event) -> tuple[bytes, list[tuple[str, bytes]]]:
    headers = [("content-type", b"application/cloudevents+json; charset=UTF-8")]
    return _json({**_attributes(event), "data": event.fields}), headers


def _binary(event: Event) -> tuple[bytes, list[tuple[str, bytes]]]:
    headers = [(f"ce_{name}", text.encode()) for name, text in _attributes(event).items()]
    return _json(event.fields), [*headers, ("content-type", b"application/json"), ("traceparent", b"00-1-2-01")]


def _debezium(event: Event) -> tuple[bytes, list[tuple[str, bytes]]]:
    change = {"before": None, "after": event.fields, "source": {"db": "bot"}, "op": "c", "ts_ms": 1}
    return _json({"schema": {"type": "struct", "fields": []}, "payload": change}), []


def encodings(registry: SchemaRegistryServer) -> dict[str, Encoding]:
    """Return the encodings by name; their schemas are registered."""
    json_id = registry.register("events-value", '{"title": "Event", "type": "object"}', "JSON")
    found = [
        Encoding("native", "", lambda event: (_json(event.fields), [])),
        Encoding("nested", _nested_sources("s"), _nested),
        Encoding("framed", _NATIVE_FIELDS, lambda event: (frame(json_id, _json(event.fields)), [])),
        _avro(registry),
        _protobuf(registry),
        Encoding("structured", _NATIVE_FIELDS, _structured),
        Encoding("binary", _BINARY, _binary),
        Encoding("debezium", _NATIVE_FIELDS, _debezium),
    ]
    return {encoding.name: encoding for encoding in found}


# ------------------------------------------------------------------ one topic for everything

_REACTIONS: Final = f"""
[[kafka.sources]]
topics = ["{RESPONSES_TOPIC}"]
event = "feedback"
when = {{ "type" = "reactions" }}
each = "reactions"
[kafka.sources.fields]
feedback_id = {{ derive = ["answer.id", "$element.doc", "$element.what", "$element.at"] }}
response_id = "answer.id"
timestamp = {{ from = "$element.at", as = "s" }}
kind = {{ from = "$element.what", values = {{ STAR = "rating", FLAG = "escalated" }} }}
item_id = "$element.doc"
user_id = "user"
score = "$element.stars"
"""
_OTHER_TYPES: Final = (
    {"type": "login", "user": 7},
    {"type": "page_view", "payload": ["home", 3]},
    {"type": "session", "payload": {"id": 4, "arm": "A"}, "reactions": None},
)


def shared_encoding() -> Encoding:
    """Return the encoding of `shared_messages`."""
    (answers, _) = _nested_sources("s").split(f'[[kafka.sources]]\ntopics = ["{FEEDBACK_TOPIC}"]')
    return Encoding("shared", answers + _REACTIONS, _nested)


def shared_messages(events: Iterable[Event]) -> Iterator[Message]:
    """Yield one topic's messages: answers, lists of reactions to one answer, and three other types."""

    def identity(event: Event) -> tuple[str, str]:
        return event.kind, event.fields["response_id"]

    for number, ((kind, response_id), group) in enumerate(groupby(sorted(events, key=identity), key=identity)):
        members = list(group)
        if kind == "response":
            for event in members:
                yield Message("response", event.key, *_nested(event))
        else:
            reactions = [nested_object(event, _seconds) for event in members]
            message = {
                "type": "reactions",
                "answer": {"id": int(response_id)},
                "user": reactions[0]["user"],
                "reactions": reactions,
            }
            yield Message("response", members[0].key, _json(message), [])
        yield Message("response", members[0].key, _json(_OTHER_TYPES[number % len(_OTHER_TYPES)]), [])
