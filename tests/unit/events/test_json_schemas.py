"""The published JSON Schemas: they describe the events that the decoder accepts."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from jsonschema import Draft202012Validator

from monitor.cli import demo
from monitor.config import LimitSettings, Settings
from monitor.engine import EventDecoder
from monitor.errors import InvalidEvent
from monitor.events import (
    MAX_KIND_LENGTH,
    MAX_LATENCY_MS,
    MAX_POSITION,
    MAX_TIMESTAMP_MS,
    WireFeedback,
    WireResponse,
)
from monitor.simulation import Scenario, generate_events
from tests.unit.events.test_decoding import FEEDBACK, NOW, RESPONSE

ROOT = Path(__file__).parents[3]
SCHEMAS: Final[Mapping[str, dict[str, Any]]] = {
    kind: json.loads((ROOT / f"docs/schemas/{kind}.schema.json").read_text()) for kind in ("response", "feedback")
}
VALIDATORS: Final = {kind: Draft202012Validator(schema) for kind, schema in SCHEMAS.items()}
STRUCTS: Final[Mapping[str, type[msgspec.Struct]]] = {"response": WireResponse, "feedback": WireFeedback}
VALID: Final = {"response": RESPONSE, "feedback": FEEDBACK}
DECODER = EventDecoder(Settings(()))
LIMITS = LimitSettings()


def rejection_reason(kind: str, event: object) -> str | None:
    """Return the reason for which the decoder rejects an event; None if it accepts the event."""
    decode = DECODER.decode_response if kind == "response" else DECODER.decode_feedback
    try:
        decode(json.dumps(event).encode(), NOW)
    except InvalidEvent as error:
        return error.reason
    return None


def _documented_events() -> list[dict[str, Any]]:
    texts = [(ROOT / name).read_text() for name in ("docs/events.md", "docs/tutorial.md")]
    return [json.loads(block) for text in texts for block in re.findall(r"```json\n(.*?)```", text, re.DOTALL)]


def _kind_of(event: Mapping[str, Any]) -> str:
    return "feedback" if "feedback_id" in event else "response"


def _find_values(schema: object, keyword: str) -> list[Any]:
    """Return all values of a keyword in a schema."""
    if isinstance(schema, dict):
        own = [schema[keyword]] if keyword in schema else []
        return own + [value for part in schema.values() for value in _find_values(part, keyword)]
    return [value for part in schema for value in _find_values(part, keyword)] if isinstance(schema, list) else []


class TestDefinitions:
    """The schemas have the fields and the limits of the code."""

    @pytest.mark.parametrize("kind", SCHEMAS)
    def test_a_schema_is_valid_and_describes_each_field(self, kind: str) -> None:
        """Each field has a title, a description and, unless it is a boolean, examples that fit."""
        schema = SCHEMAS[kind]
        Draft202012Validator.check_schema(schema)
        for field in [schema, *schema["properties"].values()]:
            assert field["title"]
            assert field["description"].endswith(".")
            assert field.get("examples") or field["type"] in {"boolean", "object"}
            for example in field.get("examples", ()):
                Draft202012Validator(field).validate(example)

    @pytest.mark.parametrize("kind", SCHEMAS)
    def test_a_schema_has_the_fields_and_defaults_of_the_decoder(self, kind: str) -> None:
        """The decoder's struct is the reference."""
        fields = msgspec.structs.fields(STRUCTS[kind])
        properties = SCHEMAS[kind]["properties"]
        assert set(properties) == {field.name for field in fields}
        assert SCHEMAS[kind]["required"] == [field.name for field in fields if field.required]
        defaults = {field.name: field.default for field in fields if not field.required}
        assert {name: field["default"] for name, field in properties.items() if "default" in field} == defaults

    def test_the_limits_are_those_of_the_code(self) -> None:
        """Configurable limits have their defaults."""
        response, feedback = SCHEMAS["response"]["properties"], SCHEMAS["feedback"]["properties"]
        timestamp = response["timestamp"]["oneOf"]
        assert timestamp == feedback["timestamp"]["oneOf"]
        assert timestamp[1]["minimum"] == LIMITS.oldest_timestamp_ms
        assert timestamp[1]["maximum"] == MAX_TIMESTAMP_MS
        assert response["items"]["maxItems"] == LIMITS.max_items
        assert response["items"]["items"]["properties"]["position"]["maximum"] == MAX_POSITION
        assert response["latency_ms"]["maximum"] == MAX_LATENCY_MS
        assert feedback["kind"]["maxLength"] == MAX_KIND_LENGTH
        for schema in SCHEMAS.values():
            assert {"", *schema["properties"]["response_id"]["not"]["enum"]} == LIMITS.placeholder_ids
            assert set(_find_values(schema, "maxLength")) - {MAX_KIND_LENGTH, 40} == {LIMITS.max_id_length}


class TestAccepted:
    """Events that both the schema and the decoder accept."""

    @pytest.mark.parametrize("kind", SCHEMAS)
    def test_the_examples_of_a_schema_are_accepted_by_the_decoder(self, kind: str) -> None:
        """An example is a complete event."""
        assert [rejection_reason(kind, example) for example in SCHEMAS[kind]["examples"]] == [None, None]

    def test_the_documented_events_are_accepted(self) -> None:
        """The examples of docs/events.md and docs/tutorial.md."""
        events = _documented_events()
        assert {_kind_of(event) for event in events} == {"response", "feedback"}
        for event in events:
            VALIDATORS[_kind_of(event)].validate(event)
            assert rejection_reason(_kind_of(event), event) is None

    @pytest.mark.parametrize("source", ["simulate", "demo"])
    def test_simulated_events_fit_the_schemas(self, source: str) -> None:
        """The events of `ab-monitor simulate` and of `ab-monitor demo`."""
        scenario = Scenario(responses=200, students=30, seed=3)
        if source == "demo":
            scenario = demo._create_scenario(argparse.Namespace(responses=200, students=30, days=7, seed=3))
        events = list(generate_events(scenario))
        assert {event.kind for event in events} == {"response", "feedback"}
        for event in events:
            VALIDATORS[event.kind].validate(json.loads(event.payload))

    @pytest.mark.parametrize(
        ("kind", "name", "value"),
        [
            *[
                (kind, "timestamp", timestamp)
                for kind in SCHEMAS
                for timestamp in (
                    1_000_000_000_000,
                    "2026-11-20T10:15:30.123999+00:00",
                    "2026-11-20 10:15:30,5Z",
                    "20261120T121530+0200",
                    "2026-11-20t10:15Z",
                    "2026-11-20T10:15:30-05",
                )
            ],
            *[(kind, name, None) for kind, name in (("response", "group_id"), ("feedback", "item_id"))],
            ("response", "user_id", ""),
            ("response", "user_id", "x" * 256),
            ("response", "latency_ms", 86_400_000),
            ("response", "items", []),
            ("response", "items", [{"item_id": "ü" * 256, "position": 1_000_000, "title": "Fractions"}]),
            ("response", "response_id", "nullable"),
            ("feedback", "kind", "thumb up 👍"),
            ("feedback", "score", 0.1),
            ("feedback", "withdrawn", True),
            ("feedback", "unknown", {"nested": [None]}),
        ],
    )
    def test_all_forms_of_a_field_are_accepted_by_both(self, kind: str, name: str, value: object) -> None:
        """Boundary values and notations."""
        event = {**VALID[kind], name: value}
        VALIDATORS[kind].validate(event)
        assert rejection_reason(kind, event) is None


def _item(**fields: object) -> list[dict[str, object]]:
    item = {"item_id": "video-1", "position": 1, **fields}
    return [{name: value for name, value in item.items() if value is not None}]


class TestRejected:
    """Events with a single fault that both the schema and the decoder reject."""

    @pytest.mark.parametrize(
        ("kind", "name"), [(kind, name) for kind, schema in SCHEMAS.items() for name in schema["required"]]
    )
    def test_a_missing_field_is_rejected_by_both(self, kind: str, name: str) -> None:
        """Each required field."""
        event = {field: value for field, value in VALID[kind].items() if field != name}
        assert not VALIDATORS[kind].is_valid(event)
        assert rejection_reason(kind, event) == "missing_field"

    @pytest.mark.parametrize(
        ("kind", "name", "value", "reason"),
        [
            ("response", "response_id", 7, "wrong_type"),
            ("response", "response_id", "", "invalid_id"),
            ("response", "response_id", "x" * 257, "invalid_id"),
            ("response", "response_id", "null", "placeholder_id"),
            ("response", "timestamp", 1.5, "wrong_type"),
            ("response", "timestamp", True, "wrong_type"),
            ("response", "timestamp", 1_795_169_730, "implausible_timestamp"),
            ("response", "timestamp", 1_795_169_730_123_000, "implausible_timestamp"),
            ("response", "timestamp", "1795169730123", "invalid_timestamp"),
            ("response", "timestamp", "1999-11-20T10:15:30Z", "implausible_timestamp"),
            ("response", "timestamp", "2026-11-20T10:15:30", "timestamp_without_offset"),
            ("response", "timestamp", "2026-11-20", "timestamp_without_offset"),
            ("response", "timestamp", "2026-W47-5T10:15:30Z", "invalid_timestamp"),
            ("response", "timestamp", "2026-11-20T24:00:00Z", "invalid_timestamp"),
            ("response", "timestamp", "2026-13-20T10:15:30Z", "invalid_timestamp"),
            ("response", "timestamp", "2026-11-20T10:15:30." + "1" * 40 + "Z", "invalid_timestamp"),
            ("response", "experiment", None, "wrong_type"),
            ("response", "variant", "", "invalid_id"),
            ("response", "items", None, "wrong_type"),
            ("response", "items", ["video-1"], "wrong_type"),
            ("response", "items", _item(item_id=17), "wrong_type"),
            ("response", "items", _item(item_id=""), "invalid_id"),
            ("response", "items", _item(item_id="x" * 257), "invalid_id"),
            ("response", "items", _item(item_id=None), "missing_field"),
            ("response", "items", _item(position=None), "missing_field"),
            ("response", "items", _item(position=0), "invalid_position"),
            ("response", "items", _item(position=1_000_001), "invalid_position"),
            ("response", "items", _item(position=1.5), "wrong_type"),
            ("response", "items", _item(position="1"), "wrong_type"),
            ("response", "items", [_item(item_id=f"v-{n}", position=n)[0] for n in range(1, 1002)], "list_too_long"),
            ("response", "user_id", 17, "wrong_type"),
            ("response", "user_id", "x" * 257, "invalid_id"),
            ("response", "query_id", "", "invalid_id"),
            ("response", "group_id", "x" * 257, "invalid_id"),
            ("response", "category", ["fractions"], "wrong_type"),
            ("response", "latency_ms", -1, "invalid_latency"),
            ("response", "latency_ms", 86_400_001, "invalid_latency"),
            ("response", "latency_ms", "412", "invalid_latency"),
            ("feedback", "feedback_id", "", "invalid_id"),
            ("feedback", "response_id", "undefined", "placeholder_id"),
            ("feedback", "timestamp", None, "wrong_type"),
            ("feedback", "kind", "", "invalid_kind"),
            ("feedback", "kind", "x" * 65, "invalid_kind"),
            ("feedback", "kind", "+1", "invalid_kind"),
            ("feedback", "kind", "thumb\tup", "invalid_kind"),
            ("feedback", "item_id", 12, "wrong_type"),
            ("feedback", "item_id", "", "invalid_id"),
            ("feedback", "score", -1, "invalid_score"),
            ("feedback", "score", True, "wrong_type"),
            ("feedback", "score", None, "wrong_type"),
            ("feedback", "withdrawn", 1, "wrong_type"),
        ],
    )
    def test_a_single_fault_is_rejected_by_both(self, kind: str, name: str, value: object, reason: str) -> None:
        """The decoder states the reason of the fault."""
        event = {**VALID[kind], name: value}
        assert not VALIDATORS[kind].is_valid(event)
        assert rejection_reason(kind, event) == reason

    @pytest.mark.parametrize("event", [[], "text", 7, None])
    def test_a_message_that_is_no_object_is_rejected_by_both(self, event: object) -> None:
        """Any other JSON."""
        for kind, validator in VALIDATORS.items():
            assert not validator.is_valid(event)
            assert rejection_reason(kind, event) == "not_an_object"
