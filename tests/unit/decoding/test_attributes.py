"""Attributes of responses: fields that only the configuration names, from messages of every format."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from monitor.cli.sample_tables import print_sample_report
from monitor.config import Settings, parse_settings
from monitor.decoding import RecordDecoder, RecordTracer, build_sample_report
from monitor.errors import InvalidEvent
from monitor.events import Response
from monitor.sources import PlainRecord
from tests.support.schemas import avro_bytes
from tests.unit.decoding.test_sample_report import SampledMessage

_NOW = 1_800_000_000_000
_EXPERIMENT = {"name": "ranker", "control": "a", "variants": {"a": 0.5, "b": 0.5}}
_EVENT: dict[str, Any] = {
    "response_id": "r1",
    "timestamp": "2026-11-20T10:15:30Z",
    "experiment": "ranker",
    "variant": "a",
    "user_id": "s1",
    "items": [],
}
_FIELDS = {name: name for name in ("response_id", "timestamp", "experiment", "variant", "user_id", "items")}
_FEEDBACK_SOURCE = {"topics": ["feedback"], "event": "feedback", "format": "native"}


def _settings(*sources: dict[str, Any], **keys: Any) -> Settings:
    document: dict[str, Any] = {"experiments": [{**_EXPERIMENT, **keys}]}
    if sources:
        document["kafka"] = {"sources": [*sources, _FEEDBACK_SOURCE]}
    return parse_settings(document, {})


def _decode(settings: Settings, value: object) -> Response:
    topic = settings.kafka.topics_of("response")[0]
    content = value if isinstance(value, bytes) else json.dumps(value).encode()
    decode = RecordDecoder(settings).partition_decoder(topic, f"{topic}:0")
    events = decode(PlainRecord(0, None, content), _NOW)
    assert not isinstance(events, str)
    (event,) = events
    assert isinstance(event, Response)
    return event


def _source(**keys: Any) -> dict[str, Any]:
    return {"topics": ["answers"], "event": "response", "format": "json", **keys}


def test_only_the_named_fields_of_a_native_event_are_read() -> None:
    """They are read from the top level or by a path; numbers and booleans are compared as texts."""
    event = {**_EVENT, "role": "teacher", "is_test": True, "app_version": 2.0, "user": {"school": 7}, "more": "text"}
    names = {"role": ["x"], "is_test": ["x"], "app_version": ["x"], "user": {"school": "x"}, "absent": ["x"]}
    expected = (("app_version", "2"), ("is_test", "true"), ("role", "teacher"), ("user.school", "7"))
    settings = _settings(exclude=names)
    assert _decode(settings, event).attributes == expected
    envelope = {"specversion": "1.0", "data_base64": base64.b64encode(json.dumps(event).encode()).decode()}
    assert _decode(settings, envelope).attributes == expected
    assert _decode(_settings(), event).attributes == ()


@pytest.mark.parametrize("value", [None, ""])
def test_an_attribute_without_a_value_is_absent(value: object) -> None:
    """As in mapped sources, an empty text is no value."""
    for sources in ((), (_source(),), (_source(fields={**_FIELDS, "attributes": {"role": "role"}}),)):
        assert _decode(_settings(*sources, exclude={"role": ["*"]}), {**_EVENT, "role": value}).attributes == ()


@pytest.mark.parametrize("value", [["teacher"], {"name": "teacher"}])
def test_an_attribute_that_is_no_single_value_is_rejected(value: object) -> None:
    """Otherwise a rule would have no effect, and nobody would notice."""
    for sources in ((), (_source(fields={**_FIELDS, "attributes": {"role": "role"}}),)):
        with pytest.raises(InvalidEvent, match=r"role: .*expected a string, a number or a boolean") as raised:
            _decode(_settings(*sources, exclude={"role": ["teacher"]}), {**_EVENT, "role": value})
        assert raised.value.reason == "wrong_type"
        assert "teacher" not in str(raised.value)


@pytest.mark.parametrize(
    "value", [b'"\\ud800"', b'"\xff"', b"[" * 5000 + b"]" * 5000, b"1e999", b"123456789012345678901234567890123"]
)
def test_an_attribute_that_cannot_be_read_rejects_the_event(value: bytes) -> None:
    """Without rules, nobody reads the field."""
    content = json.dumps({**_EVENT, "role": 0}).encode().replace(b'"role": 0', b'"role": ' + value)
    with pytest.raises(InvalidEvent):
        _decode(_settings(exclude={"role": ["teacher"]}), content)


def test_a_mapped_source_reads_attributes_by_paths_and_value_maps() -> None:
    """An attribute that the source does not have is absent."""
    attributes = {
        "role": {"from": ["user.role", "$headers.role"], "values": {"T": "teacher"}, "default": "student"},
        "is_test": "flags.test",
        "unused": "user.name",
    }
    source = _source(fields={**_FIELDS, "attributes": attributes})
    settings = _settings(source, exclude={"role": ["x"], "is_test": ["true"]}, unit="class_id")
    event = {**_EVENT, "user": {"role": "T"}, "flags": {"test": False}, "class_id": "7b"}
    assert _decode(settings, event).attributes == (("is_test", "false"), ("role", "teacher"))
    assert _decode(settings, _EVENT).attributes == (("role", "student"),)


def test_without_a_table_of_fields_the_name_of_an_attribute_is_its_path() -> None:
    """Also within the elements of a list."""
    settings = _settings(_source(each="events"), unit="user.class")
    assert _decode(settings, {"events": [{**_EVENT, "user": {"class": 7}}]}).attributes == (("user.class", "7"),)


def test_a_mapped_avro_source_has_attributes(tmp_path: Path) -> None:
    """Booleans and numbers of Avro become texts as in JSON."""
    fields = [
        *[{"name": name, "type": "string"} for name in ("response_id", "experiment", "variant", "user_id")],
        {"name": "timestamp", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "items", "type": {"type": "array", "items": "string"}},
        {"name": "test", "type": "boolean"},
        {"name": "class", "type": "int"},
    ]
    schema = {"type": "record", "name": "Answer", "fields": fields}
    path = tmp_path / "answer.avsc"
    path.write_text(json.dumps(schema))
    attributes = {"is_test": "test", "class_id": "class"}
    source = _source(format="avro", avro_schema_file=str(path), fields={**_FIELDS, "attributes": attributes})
    settings = _settings(source, exclude={"is_test": ["true"]}, unit="class_id")
    value = {**_EVENT, "timestamp": datetime(2026, 11, 20, tzinfo=UTC), "test": True, "class": 7}
    assert _decode(settings, avro_bytes(schema, value)).attributes == (("class_id", "7"), ("is_test", "true"))


@pytest.mark.parametrize("wire_format", ["native", "json"])
def test_the_rules_of_a_source_mark_its_responses_as_excluded(wire_format: str) -> None:
    """From every experiment, by fields and attributes, in the native format and in others."""
    settings = _settings(_source(format=wire_format, exclude={"role": ["teacher"], "user_id": ["test-*"]}))
    event = _EVENT if wire_format == "native" else {**_EVENT, "items": []}
    assert _decode(settings, {**event, "role": "teacher"}).is_excluded
    assert _decode(settings, {**event, "user_id": "test-1"}).is_excluded
    assert not _decode(settings, {**event, "role": "student"}).is_excluded


@pytest.mark.parametrize("sources", [(), (_source(fields={**_FIELDS, "attributes": {"role": "user.role"}}),)])
def test_a_trace_has_the_paths_of_attributes(sources: tuple[dict[str, Any], ...]) -> None:
    """The command `map` prints the trace."""
    decoder = RecordDecoder(_settings(*sources, exclude={"role": ["teacher"]}))
    value = json.dumps({**_EVENT, "role": "teacher", "user": {"role": "teacher"}}).encode()
    trace = RecordTracer(decoder.sources[0], decoder).trace(PlainRecord(0, None, value), "answers", "answers:0", _NOW)
    assert trace.origins[0]["role"] == ("user.role" if sources else "role")


def test_a_sample_counts_the_responses_that_lack_an_attribute(capsys: pytest.CaptureFixture[str]) -> None:
    """The command `check --sample` prints how many responses have no id of their unit."""
    settings = _settings(unit="class_id")
    events = [{**_EVENT, "class_id": "7a"}, _EVENT, {**_EVENT, "class_id": "7b"}]
    records = [
        SampledMessage("chatbot.responses", json.dumps(event).encode(), offset=offset)
        for offset, event in enumerate(events)
    ]
    print_sample_report(build_sample_report(settings, RecordDecoder(settings), records, _NOW), settings)
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["class_id", "2", "1", "class_id"] in rows


@pytest.mark.parametrize("unit", ["group", "class_id"])
def test_a_placeholder_is_no_id_of_a_unit(unit: str) -> None:
    """Otherwise the pupils without a class would be one class of both variants."""
    field = {"group": "group_id"}.get(unit, unit)
    response = _decode(_settings(unit=unit), {**_EVENT, field: "NULL"})
    assert (response.group_id, response.attributes) == (None, ())
    response = _decode(_settings(unit=unit), {**_EVENT, field: "7b"})
    assert (response.group_id, dict(response.attributes)) in (("7b", {}), (None, {"class_id": "7b"}))


@pytest.mark.parametrize("session_id", [17, "", "x" * 300])
def test_a_session_id_is_checked_only_if_sessions_are_counted(session_id: object) -> None:
    """Producers may send any value that nothing needs."""
    event = {**_EVENT, "session_id": session_id}
    assert _decode(_settings(), event).session_id is None
    with pytest.raises(InvalidEvent, match="session_id"):
        _decode(_settings(metrics=["empty", "sessions_per_student"]), event)
