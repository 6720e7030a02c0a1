"""The presets in docs/presets: each is a complete configuration that maps the records of its product to events.

The records in tests/data/presets are our own, with the field names of the public schemas. Expected events are in the
native format. The feedback id "derived" stands for a hash.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
from msgspec import structs

from monitor.config import Settings, load_settings
from monitor.decoding import ANY_TOPIC, IGNORED_REASONS, RecordDecoder
from monitor.engine import EventDecoder
from monitor.errors import InvalidEvent
from monitor.events import Feedback, Response
from monitor.sources import PlainRecord

ROOT: Final = Path(__file__).parents[3]
PRESETS: Final = sorted(path.stem for path in (ROOT / "docs/presets").glob("*.toml"))
NOW: Final = 1_800_000_000_000
HASH: Final = re.compile("[0-9a-f]{32}")


def _read_cases(preset: str) -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = json.loads((ROOT / f"tests/data/presets/{preset}.json").read_text())
    return cases


CASES: Final = [(preset, case) for preset in PRESETS for case in _read_cases(preset)]


@cache
def _load_preset(preset: str) -> Settings:
    return load_settings(ROOT / f"docs/presets/{preset}.toml", {})


def _decode(preset: str, topic: str, record: Mapping[str, Any]) -> Any:
    """Return the events of a record, or the reason for which the record is ignored; raises `InvalidEvent`."""
    decode = RecordDecoder(_load_preset(preset)).partition_decoder(topic, f"{topic}:0")
    return decode(PlainRecord(7, None, json.dumps(record).encode(), NOW), NOW)


def _expected_event(message: Mapping[str, Any], event: Response | Feedback) -> Response | Feedback:
    """Return the event of a native message; a derived id is that of the mapped event, if it is a hash."""
    expected = EventDecoder(Settings(())).decode_event(json.dumps(message).encode(), NOW)
    if isinstance(event, Feedback) and message.get("feedback_id") == "derived":
        assert HASH.fullmatch(event.feedback_id)
        return structs.replace(expected, feedback_id=event.feedback_id)
    return expected


@pytest.mark.parametrize(("preset", "case"), CASES, ids=[f"{preset}: {case['case']}" for preset, case in CASES])
def test_a_record_becomes_the_expected_events(preset: str, case: Mapping[str, Any]) -> None:
    """A record has events, is ignored, or is rejected with a reason."""
    if "rejected" in case:
        with pytest.raises(InvalidEvent) as caught:
            _decode(preset, case["topic"], case["record"])
        assert caught.value.reason == case["rejected"]
    elif "ignored" in case:
        assert _decode(preset, case["topic"], case["record"]) == case["ignored"]
    else:
        events = list(_decode(preset, case["topic"], case["record"]))
        assert len(events) == len(case["events"])
        for message, event in zip(case["events"], events, strict=True):
            assert event == _expected_event(message, event)


@pytest.mark.parametrize(("preset", "case"), CASES, ids=[f"{preset}: {case['case']}" for preset, case in CASES])
def test_a_record_in_a_file_has_the_same_outcome(preset: str, case: Mapping[str, Any]) -> None:
    """A file holds the records of all topics: the sources are found by their conditions."""
    if "rejected" in case:
        with pytest.raises(InvalidEvent):
            _decode(preset, ANY_TOPIC, case["record"])
    elif "ignored" in case:
        assert _decode(preset, ANY_TOPIC, case["record"]) in IGNORED_REASONS
    else:
        assert _decode(preset, ANY_TOPIC, case["record"]) == _decode(preset, case["topic"], case["record"])


@pytest.mark.parametrize("preset", PRESETS)
def test_the_records_of_a_preset_have_every_outcome(preset: str) -> None:
    """Responses, feedback, ignored and rejected records."""
    cases = _read_cases(preset)
    events = [event for case in cases for event in case.get("events", ())]
    assert {"feedback_id" in event for event in events} == {True, False}
    assert any("ignored" in case for case in cases)
    assert any("rejected" in case for case in cases)


@pytest.mark.parametrize("preset", ["ubi", "opentelemetry"])
def test_derived_ids_are_equal_for_equal_reactions_only(preset: str) -> None:
    """A reaction that is sent again, also in another message, stays one; different reactions have different ids."""
    records = [(case["topic"], case["record"]) for case in _read_cases(preset) if "events" in case]
    events = [event for topic, record in records * 2 for event in _decode(preset, topic, record)]
    reactions = {
        (event.feedback_id, event.response_id, event.item_id, event.kind, event.timestamp_ms)
        for event in events
        if isinstance(event, Feedback)
    }
    assert len({reaction[0] for reaction in reactions}) == len({reaction[1:] for reaction in reactions}) > 1


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_reads_no_text_of_a_person(preset: str) -> None:
    """No path names a question, a comment or an explanation."""
    text = (ROOT / f"docs/presets/{preset}.toml").read_text()
    sources = json.dumps(tomllib.loads(text)["kafka"]["sources"])
    assert not re.search(r"user_query|message|comment|explanation|body", sources)
