"""Health of the service on the page, in JSON and on a terminal."""

from __future__ import annotations

import io
import re
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from rich.console import Console

from monitor.errors import StoreUnavailable
from monitor.export import RecentReading, ServiceHealth, render_health
from monitor.export.freshness import Freshness
from monitor.pipeline import DataProblem, ProblemKind
from monitor.state import Delivery, Failure, ServiceRecords, TopicArrivals, WorkerRecord
from monitor.web.pages import PageContent, page_header, render_page
from tests.support.pages import render_experiment, render_list, render_service
from tests.unit.export.test_export import SUMMARY

NOW = 1_795_000_000_000
_ERRORS = ("", "HTTP 403", "HTTP 500")
_RUNBOOK = (Path(__file__).parents[3] / "docs" / "runbook.md").read_text(encoding="utf-8")
_PROBLEM = DataProblem("answers", "rejected", 12, 12, "last hour: 12 of 12 messages of answers rejected", True)  # noqa: FBT003
_WORKER = WorkerRecord("1.0", "abc", NOW - 3_600_000, NOW - 5_000, {}, 7)
_HEALTHY = ServiceHealth(NOW, "redis://store:6379/0", "abc", service=ServiceRecords(3, None, (("host:1", _WORKER),)))


def _with_worker(**changes: Any) -> ServiceHealth:
    fields = {name: getattr(_WORKER, name) for name in _WORKER.__struct_fields__}
    return replace(_HEALTHY, service=ServiceRecords(3, None, (("host:1", WorkerRecord(**{**fields, **changes})),)))


def _page(health: ServiceHealth) -> str:
    return render_service(SUMMARY, health, NOW)


def test_a_healthy_service_is_ready_and_names_version_configuration_and_store() -> None:
    """An operator need not look into files."""
    page = _page(_HEALTHY)
    assert ">ready</a>" in page
    page_of_experiments = render_list(SUMMARY, _HEALTHY, NOW)
    assert ">ready</a>" in page_of_experiments
    assert "The pipeline works, with 7 waiting events" in page_of_experiments
    for text in ("redis://store:6379/0", "abc", "host:1", "events that wait"):
        assert text in page


@pytest.mark.parametrize(
    ("health", "text"),
    [
        (replace(_HEALTHY, data_problems=(_PROBLEM,)), "12 of 12 messages"),
        (replace(_HEALTHY, freshness={"ranker-v2": Freshness(NOW - 600_000, 600_000, 9.7)}), "about 10 responses"),
        (_with_worker(paused={"kafka": "Connection refused"}), "paused reason=kafka: Connection refused"),
        (_with_worker(seen_ms=NOW - 90_000), "no worker has reported"),
        (_with_worker(lag_events=20_000), "20\u202f000 events wait"),
        (
            replace(
                _HEALTHY,
                service=replace(
                    _HEALTHY.service,
                    workers=(("a", _WORKER), ("b", WorkerRecord("1.0", "other", NOW, NOW, {}, None))),
                ),
            ),
            "different configurations",
        ),
        (
            replace(_HEALTHY, service=replace(_HEALTHY.service, last_failure=Failure(4, "too many", NOW - 60_000))),
            "with exit code 4: too many",
        ),
    ],
)
def test_whatever_is_wrong_makes_the_page_amber_and_is_named_everywhere(health: ServiceHealth, text: str) -> None:
    """The process is ready, because a restart would not help."""
    page = _page(health)
    assert "needs attention" in page
    assert "needs attention" in render_list(SUMMARY, health, NOW)
    out = io.StringIO()
    Console(file=out, width=500).print(render_health(health))
    conditions = " ".join(health.to_json()["conditions"])
    assert text in page
    assert text in out.getvalue()
    assert text in conditions


def test_a_failure_is_over_once_a_worker_that_started_afterwards_has_run_for_ten_minutes() -> None:
    """A worker in a loop of restarts starts after each failure, too, and a worker of before proves nothing."""
    failed = replace(_HEALTHY.service, last_failure=Failure(4, "too many", NOW - 900_000))
    for started_ms, sentences in ((NOW - 960_000, 1), (NOW - 60_000, 1), (NOW - 840_000, 0)):
        worker = WorkerRecord("1.0", "abc", started_ms, NOW - 5_000, {}, 7)
        health = replace(_HEALTHY, service=replace(failed, workers=(("host:1", worker),)))
        assert len(health.conditions()) == sentences


def test_a_store_that_no_worker_has_ever_used_lacks_none() -> None:
    """`replay` and `demo` fill a store without a worker of the service."""
    health = replace(_HEALTHY, service=ServiceRecords())
    assert health.conditions() == []
    assert "No worker has reported to this store yet" in render_list(SUMMARY, health, NOW)


@pytest.mark.parametrize("kind", get_args(ProblemKind))
def test_each_problem_on_the_page_leads_to_its_section_of_the_runbook(kind: ProblemKind) -> None:
    """Somebody on call reads the page first."""
    page = _page(replace(_HEALTHY, data_problems=(replace(_PROBLEM, kind=kind),)))
    (section,) = re.findall('<a href="/runbook#([a-z-]+)">what to do</a>', page)
    assert f"\n## {section}\n" in _RUNBOOK
    assert (section == "rejects") == (kind == "rejected")


def test_a_page_that_is_not_ready_leads_to_the_runbook() -> None:
    """The problem alone does not name the next step."""
    header = page_header(_HEALTHY, ("Kafka at k:9092: Connection refused",), NOW)
    assert '<a href="/runbook#paused">' in render_page(PageContent("base.html"), header)


def test_an_experiment_without_events_does_not_promise_any_while_events_are_rejected() -> None:
    """`No events yet` alone would send the reader away."""
    empty = {
        name: replace(variant, last_event_at_ms=None)
        for name, variant in SUMMARY.experiments["ranker-v2"].variants.items()
    }
    summary = replace(SUMMARY, experiments={"ranker-v2": replace(SUMMARY.experiments["ranker-v2"], variants=empty)})
    health = replace(_HEALTHY, data_problems=(_PROBLEM,))
    for shown, words in ((health, "No event has counted yet"), (_HEALTHY, "Results appear here as soon as")):
        assert words in render_experiment(summary, shown, NOW)


def test_names_of_undeclared_experiments_are_text_on_the_page_and_on_the_terminal() -> None:
    """Anybody may write names with markup into a topic."""
    odd = replace(_PROBLEM, text="'<b>[red]x[/nope]' (12)")
    health = replace(_HEALTHY, data_problems=(odd,))
    assert "<b>[red]" not in _page(health)
    out = io.StringIO()
    Console(file=out, width=500).print(render_health(health))
    assert "<b>[red]x[/nope]" in out.getvalue()


def test_counts_of_topics_are_in_json() -> None:
    """By reason, outcome and undeclared name."""
    counts = TopicArrivals(
        5, 2, Counter(tombstone=1), Counter({"invalid_json": 3}), Counter(skipped=1), Counter({("x", ""): 1})
    )
    health = replace(_HEALTHY, last_hour={"answers": counts}, last_day={"answers": counts})
    assert health.to_json()["topics"]["answers"]["last_hour"] == {
        "received": 5,
        "rejected": {"invalid_json": 3},
        "outcomes": {"skipped": 1},
        "unmatched": 2,
        "ignored": {"tombstone": 1},
        "undeclared": [{"experiment": "x", "variant": None, "responses": 1}],
    }
    assert "invalid_json 3" in _page(health)


def test_requests_within_ten_seconds_share_one_reading_of_the_store() -> None:
    """A reading that fails is repeated at the next request."""
    monotonic_s = [100.0]
    readings = iter([None, _HEALTHY, replace(_HEALTHY, now_ms=NOW + 1)])

    def read() -> ServiceHealth:
        reading = next(readings)
        if reading is None:
            raise StoreUnavailable("no route")
        return reading

    health = RecentReading(read, 10.0, lambda: monotonic_s[0])
    with pytest.raises(StoreUnavailable):
        health.read()
    assert health.read() is _HEALTHY
    monotonic_s[0] += 10.0
    assert health.read() is _HEALTHY
    monotonic_s[0] += 0.1
    assert health.read().now_ms == NOW + 1


def test_a_request_during_a_reading_waits_for_its_result() -> None:
    """Sixteen viewers do not read thousands of keys each."""
    readings: list[int] = []
    other_requests: list[Future[int]] = []

    def read() -> int:
        readings.append(1)
        other_requests.append(pool.submit(shared.read))
        with pytest.raises(TimeoutError):
            other_requests[0].result(0.1)
        return 42

    with ThreadPoolExecutor(1) as pool:
        shared = RecentReading(read, 10.0, lambda: 0.0)
        assert shared.read() == 42
        assert other_requests[0].result() == 42
    assert readings == [1]


def test_the_sentence_and_the_json_have_the_same_error_of_a_channel() -> None:
    """That of the oldest message with a failed attempt: an older one may wait for its first attempt."""
    deliveries = [Delivery(f"msg_{number}", "chat", number, {}, error=error) for number, error in enumerate(_ERRORS)]
    health = replace(_HEALTHY, deliveries=deliveries)
    assert health.to_json()["messages"] == {"chat": {"waiting": 3, "error": "HTTP 403"}}
    assert health.message_conditions() == ["3 messages wait for the channel chat: HTTP 403"]
