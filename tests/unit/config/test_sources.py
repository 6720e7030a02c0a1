"""Unit tests of `[[kafka.sources]]`: each wrong setting is one line that names the key and the expectation."""

from __future__ import annotations

from pathlib import Path as FilePath
from typing import Any

import pytest

from monitor.config import KafkaSettings, Settings, config_digest, load_settings
from monitor.config.loading import parse_settings
from monitor.config.paths import ALL_ELEMENTS, Lookup, parse_path
from monitor.errors import ConfigErrors, UsageError
from tests.unit.decoding.test_mapping import EXPERIMENT, feedback_source, response_source


def _parse(*sources: Any, **kafka: Any) -> Settings:
    return parse_settings({"experiments": [EXPERIMENT], "kafka": {"sources": list(sources), **kafka}}, {})


@pytest.mark.parametrize(
    ("text", "root", "steps"),
    [
        ("a", "value", ("a",)),
        ("a.b-c.@type", "value", ("a", "b-c", "@type")),
        ('"a.b"."c\\"d"', "value", ("a.b", 'c"d')),
        ("a[0][-1].b", "value", ("a", 0, -1, "b")),
        ("[2].b", "value", (2, "b")),
        ("a[*].b[*]", "value", ("a", ALL_ELEMENTS, "b", ALL_ELEMENTS)),
        ('a[key="x.y"].value', "value", ("a", Lookup("key", "x.y"), "value")),
        ("$key", "key", ()),
        ("$key.user.id", "key", ("user", "id")),
        ("$headers.x.y-z", "headers", ("x.y-z",)),
        ('$headers."a b"', "headers", ("a b",)),
        ("$envelope.source.table", "envelope", ("source", "table")),
        ("$element[0]", "element", (0,)),
        ("$value", "value", ()),
        ("$timestamp", "timestamp", ()),
    ],
)
def test_a_path_has_a_root_and_steps(text: str, root: str, steps: tuple[object, ...]) -> None:
    """Names with dots or spaces are quoted."""
    path = parse_path(text)
    assert (path.root, path.steps, path.text) == (root, steps, text)


@pytest.mark.parametrize(
    "text", ["", ".", "a.", ".a", "a..b", "a b", "a[x]", "a[", "a]", 'a["', "a[1", "$", "$nobody", "$timestamp.x",
             "$headers", "$headers.", "$envelope", "$offset[0]", "a[key=x]", '"a', "a$b.", "$.a"]
)  # fmt: skip
def test_a_text_that_is_no_path_is_rejected(text: str) -> None:
    """At the start, and not at the first message."""
    with pytest.raises(
        UsageError, match=r"kafka.sources\[0\].fields.user_id: got .*, expected (a path|one of|the name|nothing)"
    ):
        _parse(response_source(fields={"user_id": text}), feedback_source())


@pytest.mark.parametrize(
    ("source", "key", "expected"),
    [
        (response_source(topics=[]), "topics", "a list of topics"),
        (response_source(topics=["a b"]), "topics", "a topic name"),
        (response_source(event="answer"), "event", "one of response, feedback"),
        (response_source(format="xml"), "format", "one of native, auto, json, avro, protobuf"),
        (response_source(envelope="yes"), "envelope", "one of auto, none"),
        (response_source(tombstones="drop"), "tombstones", "one of ignore, reject"),
        (response_source(wen={}), "", "unknown key wen; did you mean when?"),
        (response_source(when=["a"]), "when", "a table of paths and values"),
        (response_source(when={"a": None}), "when.a", "a value or a list of values"),
        (response_source(when={"a..b": 1}), "when.a..b", "a path such as"),
        (response_source(when={"a[*]": 1}), "when.a[*]", "a path to one value"),
        (response_source(when={"$element.a": 1}), "when", "only in a source with the key each"),
        (response_source(each=3), "each", "a path, which is a string"),
        (response_source(each="$offset"), "each", "a path within the message"),
        (response_source(fields={"user_id": "hits.0.id"}), "fields.user_id", "an index in brackets, as in hits[0]"),
        (response_source(fields={"user_id": "hits.*.id"}), "fields.user_id", "an index in brackets"),
        (response_source(fields={"response_id": {"constant": "x"}}), "fields.response_id", "no constant: every respon"),
        (
            response_source(fields={"items": {"each": "a", "item_id": {"derive": ["b"]}}}),
            "fields.items.item_id",
            "unknown key derive",
        ),
        (response_source(fields={"user_id": "$element.id"}), "fields.user_id", "only in a source with the key each"),
        (response_source(fields={"nmae": "x"}), "fields", "unknown key nmae"),
        (response_source(fields={"user_id": 3}), "fields.user_id", "a path, which is a string"),
        (response_source(fields={"user_id": []}), "fields.user_id", "at least one path"),
        (response_source(fields={"user_id": {"form": "x"}}), "fields.user_id", "did you mean from?"),
        (response_source(fields={"user_id": {}}), "fields.user_id", "one of the keys from, constant and derive"),
        (
            response_source(fields={"user_id": {"from": "a", "constant": "b"}}),
            "fields.user_id",
            "one of the keys from, constant and derive",
        ),
        (
            response_source(fields={"user_id": {"constant": "b", "as": "text"}}),
            "fields.user_id",
            "no other key beside constant",
        ),
        (response_source(fields={"user_id": {"from": "a", "as": "number"}}), "fields.user_id.as", "one of text"),
        (
            response_source(fields={"timestamp": {"from": "a", "as": "minutes"}}),
            "fields.timestamp.as",
            "one of s, ms, us, ns, iso, iso:ZONE",
        ),
        (
            response_source(fields={"timestamp": {"from": "a", "as": "iso:Berlin"}}),
            "fields.timestamp.as",
            "a zone of the IANA database",
        ),
        (response_source(fields={"timestamp": {"constant": 5}}), "fields.timestamp.constant", "a path"),
        (response_source(fields={"variant": {"derive": ["a"]}}), "fields.variant.derive", "the key only for ids"),
        (response_source(fields={"variant": {"constant": 1}}), "fields.variant.constant", "a string that is not blank"),
        (
            response_source(fields={"variant": {"from": "a", "values": {"A": True}}}),
            "fields.variant.values.A",
            "a string that is not blank",
        ),
        (
            response_source(fields={"variant": {"from": "a", "values": {}}}),
            "fields.variant.values",
            "a table such as",
        ),
        (
            response_source(fields={"latency_ms": {"from": "a", "default": -1}}),
            "fields.latency_ms.default",
            "a number from 0",
        ),
        (response_source(fields={"items": {"item_id": "a"}}), "fields.items.each", "the path of the list"),
        (response_source(fields={"items": {"each": "a", "base": 2}}), "fields.items.base", "the key only with the key"),
        (
            response_source(fields={"items": {"each": "a", "position": "p", "base": 2}}),
            "fields.items.base",
            "0 or 1",
        ),
        (response_source(fields={"items": {"each": "a", "item_id": "$key"}}), "fields.items.item_id", "a path within"),
        (response_source(format="native"), "fields", "the key only with another format"),
        (response_source(format="json", avro_schema_file="x"), "avro_schema_file", 'the key only with format = "avro"'),
        (response_source(format="avro", avro_schema_file="absent.avsc"), "avro_schema_file", "a readable file"),
    ],
)
def test_a_mapping_that_cannot_work_is_one_line_with_its_key(source: Any, key: str, expected: str) -> None:
    """The line also has the value."""
    with pytest.raises(UsageError) as caught:
        _parse(source, feedback_source())
    text = str(caught.value)
    assert "\n" not in text
    assert f"kafka.sources[0].{key}".rstrip(".") in text
    assert expected in text


def test_names_with_dots_in_nested_tables_of_a_filter_are_names() -> None:
    """TOML's `payload."doc.id"` is the path `payload."doc.id"`."""
    (condition,) = _parse(response_source(when={"payload": {"doc.id": 1}}), feedback_source()).kafka.sources[0].filters
    assert condition.path.steps == ("payload", "doc.id")


def test_each_field_that_an_event_needs_must_be_mapped() -> None:
    """One line for each."""
    with pytest.raises(ConfigErrors) as caught:
        _parse({"topics": ["a"], "event": "response", "fields": {"response_id": "id"}}, feedback_source())
    lines = str(caught.value).splitlines()[1:]
    assert [line.split(":")[0].strip() for line in lines] == [
        f"kafka.sources[0].fields.{name}" for name in ("timestamp", "experiment", "variant", "items")
    ]


def test_both_types_of_events_need_a_source() -> None:
    """Without feedback there is nothing to compare."""
    with pytest.raises(UsageError, match=r'kafka.sources: .* a source with event = "feedback"'):
        _parse(response_source())


def test_sources_replace_the_two_topics() -> None:
    """Both forms at once would be ambiguous."""
    with pytest.raises(UsageError, match=r"kafka.responses_topic: .* no such key beside \[\[kafka.sources\]\]"):
        _parse(response_source(), feedback_source(), responses_topic="x")
    with pytest.raises(UsageError, match=r"kafka.dead_letter_topic: .* another topic"):
        _parse(response_source(), feedback_source(), dead_letter_topic="clicks")


def test_topics_of_one_type_are_counted_together() -> None:
    """Outcomes are known by type of event, and not by topic."""
    kafka = _parse(response_source(topics=["a", "b"]), feedback_source(topics=["c"]), response_source(topics="d")).kafka
    assert kafka.topics == ("a", "b", "d", "c")
    assert kafka.topic_labels == {"response": "a,b,d", "feedback": "c"}
    assert kafka.topic_label("b") == "a,b,d"
    assert [kafka.topic_key(topic) for topic in ("b", "c", "d")] == [
        "kafka.sources[0].topics", "kafka.sources[1].topics", "kafka.sources[2].topics"
    ]  # fmt: skip


def test_the_native_topics_are_two_sources() -> None:
    """The short form."""
    kafka = KafkaSettings(responses_topic="r", feedback_topic="f")
    assert kafka.topics == ("r", "f")
    assert [source.wire_format for source in kafka.event_sources] == ["native", "native"]


def test_an_error_names_its_line(tmp_path: FilePath) -> None:
    """Also in a table of a table of an array."""
    path = tmp_path / "config.toml"
    path.write_text(
        '[[experiments]]\nname = "e"\ncontrol = "a"\nvariants = { a = 0.5, b = 0.5 }\n'
        '[[kafka.sources]]\ntopics = ["x"]\nevent = "response"\n[kafka.sources.fields]\nresponse_id = "a..b"\n'
    )
    with pytest.raises(ConfigErrors, match=r"fields.response_id: got .* \(line 9 of the file\)"):
        load_settings(path, {})


def test_the_digest_of_the_configuration_covers_the_mapping() -> None:
    """So two workers with different mappings are noticed."""
    first, second = (_parse(response_source(fields={"user_id": path}), feedback_source()) for path in ("a", "a[*]"[:1]))
    other = _parse(response_source(fields={"user_id": 'a[key="b"]'}), feedback_source())
    assert config_digest(first) == config_digest(second) != config_digest(other)
