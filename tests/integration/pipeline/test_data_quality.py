"""Data quality by variant: events that do not count, from the records to the outputs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from monitor.analysis import StoreSummary
from monitor.app import create_worker, open_writable_store
from monitor.clock import wall_clock
from monitor.config import LimitSettings, Settings, StoreSettings
from monitor.errors import StoreUnavailable
from monitor.export import (
    ExperimentsCollector,
    experiment_footnotes,
    experiment_table_rows,
    undeclared_rows,
)
from monitor.pipeline.telemetry import Telemetry
from monitor.state import Commit, CommitStatus, StoreShard
from tests.servers.redis import RedisServer
from tests.support.files import file_source
from tests.support.streams import EXPERIMENT, HOUR, START

_ITEMS = [{"item_id": "video-1", "position": 1}]
_REJECTING = LimitSettings(repeated_items="reject")
_REPEATED_ITEMS = [*_ITEMS, {"item_id": "video-1", "position": 2}]
Fields = dict[str, Any]


def _response(number: int, variant: str = "control", **changes: object) -> Fields:
    return {
        "response_id": f"r-{number}",
        "timestamp": START + number,
        "experiment": "ranker",
        "variant": variant,
        "user_id": f"student-{number}",
        "items": _ITEMS,
        **changes,
    }


def _rating(number: int, after_ms: int = HOUR, **changes: object) -> Fields:
    return {
        "feedback_id": f"f-{number}",
        "response_id": f"r-{number}",
        "timestamp": START + number + after_ms,
        "kind": "rating",
        "item_id": "video-1",
        "score": 3,
        **changes,
    }


EVENTS = [
    *[_response(number) for number in range(1, 5)],
    *[_response(number, "treatment", items=_REPEATED_ITEMS) for number in range(5, 8)],
    _response(8, "treatment", timestamp=1_767_225_600),
    _response(9, "T"),
    _response(10, "T", items=_REPEATED_ITEMS),
    _response(11, user_id="undefined"),
    *[_response(number, experiment="Ranker") for number in (12, 13)],
    _rating(1),
    _rating(2, -HOUR),
    _rating(3, item_id="video-9"),
    _rating(4, score=3.5),
    _rating(4, HOUR + 1, feedback_id="f-4b", withdrawn=True),
]


def _run(server: RedisServer, paths: list[Path], shards: int = 1, limits: LimitSettings = _REJECTING) -> StoreSummary:
    """Run a worker to the end of the files, and return the summary."""
    store = StoreSettings(url=server.url, user_hash_key="a key", shards=shards)
    settings = Settings((EXPERIMENT,), store=store, limits=limits)
    source = file_source(paths, report=lambda _: None)
    topics = {"response": "file", "feedback": "file"}
    with open_writable_store(settings, wall_clock) as opening:
        create_worker(settings, opening, source, Telemetry(), topics, wall_clock).run()
        summary = opening.reader.read_summary()
    source.close()
    return summary


def _write(directory: Path, name: str, events: list[Fields]) -> Path:
    path = directory / f"{name}.jsonl"
    path.write_text("".join(json.dumps(event) + "\n" for event in events))
    return path


@pytest.mark.parametrize("shards", [1, 3])
def test_events_that_do_not_count_are_counted_once_by_variant_and_reason(
    redis_server: RedisServer, tmp_path: Path, shards: int
) -> None:
    """A worker that starts again at the stored positions counts no event twice."""
    redis_server.client().flushall()
    path = _write(tmp_path, "events", EVENTS)
    for _ in range(2):
        summary = _run(redis_server, [path], shards)
        quality = summary.to_json()["experiments"]["ranker"]["data_quality"]
        assert quality["undeclared_variants"] == {"T": 2}
        assert quality["other_spellings"] == {"Ranker": 2}
        control, treatment = quality["variants"]["control"], quality["variants"]["treatment"]
        assert treatment["rejected"] == {"implausible_timestamp": 1, "repeated_item": 3}
        assert (treatment["responses"], treatment["missing_share"]) == (0, 1.0)
        assert control["rejected"] == {}
        assert (control["responses"], control["placeholder_users"]) == (5, 1)
        assert control["uncounted_reactions"] == {"before_response": 1, "item_not_shown": 1}
        assert summary.experiments["ranker"].variants["control"].rated_responses == 1
        (undeclared,) = summary.to_json()["undeclared"]
        assert (undeclared["name"], undeclared["responses"], undeclared["similar_name"]) == ("Ranker", 2, "ranker")


def test_events_that_do_not_count_are_in_all_outputs(redis_server: RedisServer, tmp_path: Path) -> None:
    """Names of undeclared variants are not labels of metrics: anybody may write new names."""
    redis_server.client().flushall()
    summary = _run(redis_server, [_write(tmp_path, "events", EVENTS)])
    experiment = summary.experiments["ranker"]
    rows = {row.label: row.values for row in experiment_table_rows(experiment, START) if row.group == "quality"}
    assert rows == {
        "Rejected, implausible_timestamp": ("0", "1"),
        "Rejected, repeated_item": ("0", "3"),
        "Placeholder user ids": ("1", "0"),
        "Reactions before the response": ("1", "0"),
        "Reactions to items not shown": ("1", "0"),
    }
    footnote = (
        "Responses of variants that the configuration does not declare, which do not count: 'T' 2 (did you mean "
        "treatment?)."
    )
    assert footnote in experiment_footnotes(experiment, START)
    ((name, responses, *_),) = undeclared_rows(summary)
    assert (name, responses) == ("Ranker (did you mean ranker?)", "2")
    registry = CollectorRegistry()
    registry.register(ExperimentsCollector(lambda: summary, 1))
    metrics: str = generate_latest(registry).decode()
    for line in (
        'abmonitor_missing_responses_total{experiment="ranker",reason="repeated_item",variant="treatment"} 3.0',
        'abmonitor_missing_responses_total{experiment="ranker",reason="late",variant="control"} 0.0',
        'abmonitor_undeclared_variant_responses_total{experiment="ranker"} 2.0',
        'abmonitor_placeholder_user_responses_total{experiment="ranker",variant="control"} 1.0',
        'abmonitor_uncounted_feedback{experiment="ranker",reason="before_response",variant="control"} 1.0',
    ):
        assert line in metrics
    assert '"T"' not in metrics


@pytest.mark.parametrize("shards", [1, 3])
def test_responses_with_repeated_items_count_and_are_in_all_outputs(
    redis_server: RedisServer, tmp_path: Path, shards: int
) -> None:
    """A worker that starts again at the stored positions counts no response twice."""
    redis_server.client().flushall()
    path = _write(tmp_path, "events", EVENTS)
    for _ in range(2):
        summary = _run(redis_server, [path], shards, LimitSettings())
    quality = summary.to_json()["experiments"]["ranker"]["data_quality"]["variants"]["treatment"]
    assert (quality["responses"], quality["repeated_items"]) == (3, 3)
    assert quality["rejected"] == {"implausible_timestamp": 1}
    rows = {row.label: row.values for row in experiment_table_rows(summary.experiments["ranker"], START)}
    assert rows["Responses with repeated items"] == ("0", "3")
    registry = CollectorRegistry()
    registry.register(ExperimentsCollector(lambda: summary, 1))
    metrics: str = generate_latest(registry).decode()
    assert 'abmonitor_repeated_item_responses_total{experiment="ranker",variant="treatment"} 3.0' in metrics


def test_the_number_of_undeclared_variants_with_a_count_is_limited(redis_server: RedisServer, tmp_path: Path) -> None:
    """Further variants are counted together, also by a worker that starts again."""
    redis_server.client().flushall()
    paths = []
    for batch in range(2):
        events = [_response(1000 * batch + number, f"variant-{batch}-{number}") for number in range(15)]
        paths.append(_write(tmp_path, str(batch), events))
        summary = _run(redis_server, paths)
    quality = summary.experiments["ranker"].data_quality
    assert quality is not None
    assert len(quality.undeclared_variants) == 21
    assert quality.undeclared_variants["(others)"] == 10
    assert sum(quality.undeclared_variants.values()) == 30


def test_a_commit_whose_reply_was_lost_counts_rejected_responses_once(
    redis_server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The counts are in the same commit as the positions."""
    redis_server.client().flushall()
    commit, lost_replies = StoreShard.commit, ["first"]

    def commit_and_lose_reply(shard: StoreShard, changes: Commit) -> CommitStatus:
        status = commit(shard, changes)
        if changes.counter_increments and lost_replies:
            lost_replies.clear()
            raise StoreUnavailable("no reply")
        return status

    monkeypatch.setattr(StoreShard, "commit", commit_and_lose_reply)
    quality = _run(redis_server, [_write(tmp_path, "events", EVENTS)]).experiments["ranker"].data_quality
    assert not lost_replies
    assert quality is not None
    assert quality.variants["treatment"].missing == 4


def test_rejections_of_one_variant_are_found_however_diluted(redis_server: RedisServer, tmp_path: Path) -> None:
    """9 % of the responses of one variant are rejected; most other events are feedback."""
    redis_server.client().flushall()
    events = []
    for number in range(1200):
        is_rejected = number % 2 and number % 11 == 0
        variant = "treatment" if number % 2 else "control"
        events.append(_response(number, variant, items=_REPEATED_ITEMS if is_rejected else _ITEMS))
        events += [_rating(number, HOUR + again, feedback_id=f"f-{number}-{again}") for again in range(10)]
    analysis = _run(redis_server, [_write(tmp_path, "events", events)]).experiments["ranker"].analysis
    assert analysis is not None
    verdict = analysis.verdicts["treatment"]
    assert "uneven_rejections" in {reason.code for reason in (*verdict.reasons, *verdict.notes)}
