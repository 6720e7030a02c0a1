"""The configuration that is written from a sample of topics: it loads, and decodes the sample."""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from typing import Any

import pytest

from monitor.config import Settings
from monitor.config.loading import parse_settings
from monitor.decoding import RecordDecoder, SampleReport, build_sample_report, experiment_sections, source_sections
from monitor.decoding.starting_config import GuessedSource, guess_sources, round_shares, sample_topics
from monitor.engine import EventDecoder
from tests.unit.decoding.test_mapping import EXPERIMENT
from tests.unit.decoding.test_sample_report import SampledMessage

NOW = 1_795_712_400_000
_SETTINGS = parse_settings({"experiments": [{**EXPERIMENT, "grades": {"none": 1}}]}, {})


def _records(topic: str, *messages: object) -> list[SampledMessage]:
    return [SampledMessage(topic, json.dumps(message).encode(), offset=n) for n, message in enumerate(messages)]


def guess_text(records: list[SampledMessage]) -> tuple[list[GuessedSource], str]:
    """Return the sources of the records, and the text of their tables."""
    topics = list(dict.fromkeys(record.topic for record in records))
    samples = sample_topics(records, topics, EventDecoder(_SETTINGS), None, NOW)
    guesses = [guess for sample in samples for guess in guess_sources(sample)]
    kafka_lines, lines = source_sections(samples, guesses)
    return guesses, "\n".join(["[kafka]", *kafka_lines, *lines])


def decode_with(text: str, records: list[SampledMessage]) -> tuple[Settings, SampleReport]:
    """Return the settings of the whole file and the report on the records."""
    document = tomllib.loads(text)
    first = build_sample_report(
        *_decoder({**document, "experiments": [{**EXPERIMENT, "grades": {"none": 1}}]}), records, NOW
    )
    text += "\n" + "\n".join(experiment_sections(first))
    settings, decoder = _decoder(tomllib.loads(text))
    return settings, build_sample_report(settings, decoder, records, NOW)


def _decoder(document: dict[str, Any]) -> tuple[Settings, RecordDecoder]:
    settings = parse_settings(document, {})
    return settings, RecordDecoder(settings)


def _answer(number: int, **fields: Any) -> dict[str, Any]:
    return {
        "type": "answer", "message_id": f"m{number}", "ts": 1_795_712_300 + number, "exp": "ranker-v2",
        "bucket": "base" if number % 2 else "new", "uid": f"u{number}", "results": [{"doc": {"id": "v1"}, "rank": 0}],
        **fields,
    }  # fmt: skip


def _stars(number: int) -> dict[str, Any]:
    return {"type": "stars", "message_id": f"m{number}", "ts": 1_795_712_310, "docId": "v1", "rating": number % 5 + 1}


def test_a_topic_of_several_types_becomes_sources_with_filters() -> None:
    """Types that are neither responses nor feedback are ignored."""
    messages = [
        message for n in range(20) for message in (_answer(n), _stars(n), {"type": "ping", "ts": 1_795_712_300})
    ]
    records = _records("mixed", *messages)
    guesses, text = guess_text(records)
    assert [(guess.event_type, guess.conditions) for guess in guesses] == [
        ("response", [("type", ["answer"])]),
        ("feedback", [("type", ["stars"])]),
    ]
    settings, report = decode_with(text, records)
    assert (report.arms.total(), report.matched) == (20, 20)
    assert [source.ignored.total() for source in report.sources] == [40, 40]
    experiment = settings.experiments[0]
    assert (experiment.name, experiment.control, experiment.variants) == (
        "ranker-v2",
        "base",
        {"base": 0.5, "new": 0.5},
    )
    assert (experiment.grades, experiment.max_grade) == ({"stars": "score"}, 5)


def test_feedback_on_answers_becomes_answer_metrics() -> None:
    """Without feedback about items, grades would rate nothing."""
    responses = [
        {"response_id": f"r{n}", "timestamp": NOW, "experiment": "e", "variant": "AB"[n % 2], "items": []}
        for n in range(10)
    ]
    reactions = [
        {"feedback_id": f"{kind}{n}", "response_id": f"r{n}", "timestamp": NOW, "kind": kind, "score": score}
        for n in range(10)
        for kind, score in (("csat", 1 + n % 5), ("thumb_up", 1))
    ]
    records = [*_records("answers", *responses), *_records("thumbs", *reactions)]
    _, text = guess_text(records)
    settings, report = decode_with(text, records)
    assert report.matched == 20
    experiment = settings.experiments[0]
    assert [metric.name for metric in experiment.metrics] == ["share:thumb_up", "score:csat"]
    assert experiment.primary == "share:thumb_up"
    score = experiment.find_metric("score:csat")
    assert (score.least, score.most) == (1, 5)


def test_feedback_without_a_response_is_left_out_by_a_filter() -> None:
    """Such as UBI events without a query_id."""
    events = [{"query_id": f"q{n}" if n % 4 else None, "action_name": "click", "timestamp": NOW} for n in range(20)]
    guesses, _ = guess_text(_records("events", *events))
    assert [guess.conditions for guess in guesses] == [[("query_id", ["*"])]]


def test_two_native_topics_get_the_short_form() -> None:
    """No sources are needed."""
    items = [{"item_id": "v1", "position": 1}]
    response = {"response_id": "r1", "timestamp": NOW, "experiment": "e", "variant": "A", "items": items}
    feedback = {"feedback_id": "f1", "response_id": "r1", "timestamp": NOW, "kind": "rating", "score": 5}
    records = [*_records("answers", response), *_records("ratings", feedback)]
    _, text = guess_text(records)
    assert "sources" not in tomllib.loads(text)["kafka"]
    settings, report = decode_with(text, records)
    assert settings.kafka.topics == ("answers", "ratings")
    assert report.matched == 1


@pytest.mark.parametrize(
    "records",
    [
        [],
        _records("other", {"a": 1}),
        _records("answers", {"id": 1, "results": ["v1"]}),
        [SampledMessage("avro", b"\0\0\0\0\7\2")],
        [SampledMessage("gone", None)],
    ],
)
def test_the_file_loads_whatever_is_missing(records: list[SampledMessage]) -> None:
    """Each missing part is a TODO; messages of unused topics are described by their paths."""
    _, text = guess_text(records)
    settings, _ = decode_with(text, records)
    assert "TODO" in text
    assert {source.event_type for source in settings.kafka.event_sources} == {"response", "feedback"}


def test_unreadable_framing_is_a_hint_at_the_registry() -> None:
    """The schema id is named."""
    _, text = guess_text([SampledMessage("avro", b"\0\0\0\0\7\2")])
    assert "# topic avro: schema id 7, not readable (1)" in text
    assert "# TODO: set schema_registry.url" in text


def test_names_with_control_characters_and_quotes_stay_valid_toml() -> None:
    """Producers choose names freely."""
    answers = [_answer(n, bucket=f'it\'s "{n % 2}"', **{"line\nbreak": "x", 'q"': {"a.b": "y"}}) for n in range(4)]
    records = _records("topic", *answers)
    _, text = guess_text(records)
    settings, report = decode_with(text, records)
    assert set(settings.experiments[0].variants) == {'it\'s "0"', 'it\'s "1"'}
    assert report.sources[0].rejected == 0


def test_unequal_shares_are_rounded_to_a_sum_of_one() -> None:
    """Equal ones are assumed unless the counts contradict."""
    for counts in (Counter(a=333, b=333, c=334), Counter(a=900, b=61, c=39), Counter(a=1, b=100_000)):
        shares = round_shares(counts)
        assert sum(shares.values()) == pytest.approx(1, abs=1e-6)
    assert round_shares(Counter(a=900, b=61, c=39)) == {"a": 0.9, "b": 0.06, "c": 0.04}
