"""The report on sampled records, and the mapping that is suggested from them."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from monitor.config.loading import parse_settings
from monitor.decoding import Headers, RecordDecoder, SampleReport, build_sample_report, suggest_fields
from monitor.decoding.mapping import MessageContext
from monitor.decoding.source_toml import source_lines
from monitor.decoding.suggestions import collect_paths
from tests.unit.decoding.test_mapping import EXPERIMENT, feedback_source, response_source

NOW = 1_795_712_400_000
ANSWER = {"payload": {"id": "r1", "asked.at": 1_795_712_348, "arm": "A", "hits": [{"doc": {"id": "v1"}}]}}
CLICK = {"id": "f1", "answer": "r1", "kind": "rating", "user": "u1"}


@dataclass(frozen=True, slots=True)
class SampledMessage:
    topic: str
    value: bytes | None
    partition: int = 0
    timestamp: int | None = NOW - 50_000
    offset: int = 0
    key: bytes | None = None
    headers: Headers = ()


def _record(topic: str, message: object, **fields: Any) -> SampledMessage:
    return SampledMessage(topic, None if message is None else json.dumps(message).encode(), **fields)


def _report(*records: SampledMessage, sources: tuple[Mapping[str, Any], ...] | None = None) -> SampleReport:
    kafka = {"sources": list(sources)} if sources else {}
    settings = parse_settings({"experiments": [EXPERIMENT], "kafka": kafka}, {})
    return build_sample_report(settings, RecordDecoder(settings), records, NOW)


SOURCES = (
    response_source(when={"payload.id": "*"}, fields={"user_id": "$key"}),
    feedback_source(fields={"user_id": "user", "item_id": "doc"}),
)


def test_records_of_a_source_are_events_ignored_or_rejected() -> None:
    """Tombstones and filtered records are ignored, and do not change the share of rejected records."""
    wrong = {"payload": {**ANSWER["payload"], "asked.at": "secret"}}
    report = _report(
        *[_record("answers", message) for message in (ANSWER, ANSWER, ANSWER, wrong, None, {"other": 1})],
        sources=SOURCES,
    )
    source = report.sources[0]
    assert (source.records, source.accepted, source.rejected, source.rejected_share) == (6, 3, 1, 0.25)
    assert source.ignored == {"no value (tombstone)": 1, "filter on payload.id": 1}
    (rejection,) = source.rejections
    assert rejection[:3] == ("wrong_type", 'payload."asked.at"', "a string of 6 characters")
    assert "secret" not in str(rejection)
    assert source.framings == {"JSON": 5, "no value": 1}
    assert report.sources_above(0.2) == [source]
    assert report.sources_above(0.25) == []


def test_rejections_that_differ_only_in_numbers_are_one_group() -> None:
    """Positions in a list and lengths of texts are examples."""
    hits = [{"doc": {"id": "v1"}}, {"doc": {"id": True}}]
    messages = [{"payload": {**ANSWER["payload"], "hits": hits[start:]}} for start in (0, 1)]
    source = _report(*[_record("answers", message) for message in messages], sources=SOURCES).sources[0]
    assert source.rejected == 2
    assert len(source.rejections) == 1


def test_fields_are_counted_with_the_paths_of_their_values() -> None:
    """Absent fields are those without a value."""
    records = [_record("clicks", CLICK), _record("clicks", {**CLICK, "user": None})]
    source = _report(*records, sources=SOURCES).sources[1]
    assert (source.mapped, source.filled["user_id"], source.filled["item_id"]) == (2, 1, 0)
    assert source.origins["timestamp", "$timestamp"] == 2
    assert source.clock_differences_ms == [0, 0]


def test_feedback_is_matched_with_the_responses_of_the_sample() -> None:
    """Items outside the response's list, feedback before the response and other partitions are counted."""
    report = _report(
        _record("answers", ANSWER, key=b"u1"),
        _record("clicks", {**CLICK, "doc": "v1"}),
        _record("clicks", {**CLICK, "doc": "v9"}, partition=1, timestamp=NOW - 60_000),
        _record("clicks", {**CLICK, "answer": "r9"}),
        sources=SOURCES,
    )
    assert (report.feedback, report.matched, report.elsewhere) == (3, 2, 1)
    assert (report.item_feedback, report.listed_item_feedback) == (2, 1)
    assert report.delays_ms == [2_000, -8_000]
    assert (report.shared_users, report.scattered_users) == (1, 1)
    assert report.arms == {("ranker-v2", "control"): 1}
    assert report.kinds == {"rating": 3}


def test_a_record_that_another_source_of_the_topic_rejects_is_no_event() -> None:
    """The service rejects such records as a whole."""
    sources = (response_source(topics=["mixed"]), feedback_source(topics=["mixed"]))
    report = _report(_record("mixed", ANSWER), sources=sources)
    assert [source.accepted for source in report.sources] == [1, 0]
    assert (report.divided, report.arms.total()) == (1, 0)


def test_the_native_format_has_a_report_without_a_mapping() -> None:
    """The framing of messages that are not native is named, too."""
    records = [
        _record("chatbot.responses", {"response_id": "r", "timestamp": NOW - 1000, "experiment": "e"}),
        SampledMessage("chatbot.responses", b"\0\0\0\0\7\2"),
    ]
    source = _report(*records).sources[0]
    assert source.rejected == 2
    assert source.framings == {"JSON": 1, "schema id 7, not readable": 1}
    assert (source.filled["experiment"], source.filled["variant"]) == (1, 0)


def _messages(*documents: dict[str, Any], **metadata: Any) -> list[MessageContext]:
    fields = {"envelope": {}, "headers": (), "key": None, "timestamp": NOW, **metadata}
    return [
        MessageContext(document, topic="t", partition="t:0", offset=index, **fields)
        for index, document in enumerate(documents)
    ]


@pytest.mark.parametrize(
    ("document", "suggestions"),
    [
        (
            {"payload": {"id": 17, "askedAt": 1_795_712_348, "arm": "A", "userId": "u", "hits": ["v1", "v2"]}},
            {
                "response_id": '"payload.id"',
                "timestamp": '{ from = "payload.askedAt", as = "s" }',
                "variant": '"payload.arm"',
                "items": '"payload.hits"',
                "user_id": '"payload.userId"',
            },
        ),
        (
            {"trace_id": "t", "created": "2026-11-28T10:00:00", "exp": "e", "bucket": "b",
             "results": [{"rank": 0, "doc": {"id": 5}}, {"rank": 1, "doc": {"id": 7}}]},
            {
                "response_id": '"trace_id"',
                "timestamp": '{ from = "created", as = "iso:UTC" }',
                "experiment": '"exp"',
                "variant": '"bucket"',
                "items": '{ each = "results", item_id = "doc.id", position = "rank", base = 0 }',
            },
        ),
        (
            {"attributes": [{"key": "flag.variant", "value": {"stringValue": "b"}}]},
            {
                "timestamp": '{ from = "$timestamp", as = "ms" }',
                "variant": "'attributes[key=\"flag.variant\"].value.stringValue'",
            },
        ),
    ],
)  # fmt: skip
def test_paths_with_close_names_and_fitting_values_are_suggested(
    document: dict[str, Any], suggestions: dict[str, str]
) -> None:
    """Nested paths, synonyms, units of times, the base of positions, and pairs of keys and values."""
    assert suggest_fields("response", _messages(document)) == suggestions


def test_lists_are_recognized_by_the_names_of_their_members() -> None:
    """The list's own name may be any; lists of other objects are no items."""
    message = {"used": [{"videoId": "v1"}], "tags": [{"color": "red"}], "words": ["a", "b"]}
    assert suggest_fields("response", _messages(message))["items"] == '{ each = "used", item_id = "videoId" }'
    assert "items" not in suggest_fields("response", _messages({"tags": message["tags"], "words": message["words"]}))


def test_sentences_are_no_ids_and_no_names() -> None:
    """A user's words never become an id, whatever the member's name is."""
    message = {"query_id": "how do plants make sugar from light", "user_query": "short", "id": "r1"}
    assert suggest_fields("response", _messages(message))["response_id"] == '"id"'
    assert "query_id" not in suggest_fields("response", _messages(message))


@pytest.mark.parametrize(
    ("value", "text"),
    [(4, '"thumb"'), ("4", '{ from = "thumb", as = "number" }'), ("up", '{ from = "thumb", as = "truthy" }')],
)
def test_scores_get_the_cast_of_their_values(value: object, text: str) -> None:
    """Numbers, numbers in texts, and votes."""
    assert suggest_fields("feedback", _messages({"thumb": value}))["score"] == text


def test_feedback_without_an_id_gets_a_derived_one() -> None:
    """From the path of the response, the item, the kind and the time."""
    message = {"answer_id": "r", "doc": "v", "action": "click", "at": "2026-11-28T10:00:00Z", "stars": "4"}
    suggestions = suggest_fields("feedback", _messages({**message, "created_at": message["at"]}))
    assert suggestions["feedback_id"] == '{ derive = ["answer_id", "doc", "action", "created_at"] }'
    assert suggestions["score"] == '{ from = "stars", as = "number" }'


def test_suggested_paths_read_the_values_that_they_were_found_at() -> None:
    """Names with dots, quotes and spaces become valid paths, in valid TOML."""
    document = {'a."b': {"response_id": "r1"}, "time stamp": 1_795_712_348_000}
    lines = source_lines(
        parse_settings({"experiments": [EXPERIMENT]}, {}).kafka.event_sources[0],
        {**suggest_fields("response", _messages(document)), "experiment": '"e"', "variant": '"v"', "items": '"i"'},
    )
    text = "\n".join(lines).replace('"chatbot.responses"', '"answers"')
    source = tomllib.loads(text)["kafka"]["sources"][0]
    report = _report(_record("answers", document), sources=(source, feedback_source()))
    assert (report.sources[0].filled["response_id"], report.sources[0].filled["timestamp"]) == (1, 1)


def test_only_mapped_fields_without_values_cause_suggestions() -> None:
    """A source that works has none; otherwise, optional fields are suggested as well."""
    assert _report(_record("answers", ANSWER, key=b"u1"), sources=SOURCES).sources[0].suggest() == {}
    broken = (response_source(fields={"variant": "payload.branch"}), feedback_source())
    suggestions = _report(_record("answers", ANSWER), sources=broken).sources[0].suggest()
    assert suggestions == {"variant": '"payload.arm"'}


def test_mapped_optional_fields_without_any_value_are_named() -> None:
    """A mistyped path of an optional field rejects nothing, so nothing else would show it."""
    source = _report(_record("clicks", {**CLICK, "doc": "v1"}), sources=SOURCES).sources[1]
    assert source.empty_optional_fields() == []
    mistyped = (SOURCES[0], feedback_source(fields={"item_id": "dok", "user_id": "user"}))
    source = _report(_record("clicks", {**CLICK, "doc": "v1"}), sources=mistyped).sources[1]
    assert source.empty_optional_fields() == ["item_id"]
    assert "item_id" in source.suggest()


def test_headers_and_envelopes_have_paths() -> None:
    """Headers of schemas and of CloudEvents are not offered again."""
    messages = _messages({}, envelope={"id": "1"}, headers=[("x.y", b"v"), ("ce_id", b"1"), ("__value_schema_id", b"")])
    assert list(collect_paths(messages)) == ["$envelope.id", '$headers."x.y"']
