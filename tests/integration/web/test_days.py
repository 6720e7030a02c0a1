"""The days of an experiment over HTTP, from a real store, and their table in a browser."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from monitor.analysis import StoreSummary
from monitor.clock import DAY_MS, wall_clock
from monitor.config import DisplaySettings, HttpSettings, ReloadResult
from monitor.events import Feedback, Response
from monitor.export import ServiceHealth, build_day_table, read_day_log, read_days_json
from monitor.web import HttpEndpoints, HttpServer
from monitor.web.pages import TEMPLATE_ENVIRONMENT
from tests.servers.browser import ColorScheme, browser_page, overflow_px, serious_problems
from tests.servers.redis import RedisServer
from tests.support.http_client import ask
from tests.support.store_bench import StoreBench
from tests.support.streams import EXPERIMENT

FIRST_DAY = 20_767
BROKEN_DAY = FIRST_DAY + 14
"""Tuesday, 2026-11-24."""
STYLE = Path(__file__).parents[3] / "monitor" / "web" / "static" / "page.css"
PAGE = """<!doctype html><html lang="en"><head><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Days</title><style>{{ style }}</style></head><body><main><h1>Days</h1><section><h2>What happened</h2>
{% from "days.html" import day_table, day_sentences %}{{ day_sentences(days) }}{{ day_table(days) }}
</section></main></body></html>"""


@pytest.fixture
def bench(valkey_server: RedisServer) -> StoreBench:
    """Return a store with 18 days, of which the treatment is broken on one, and of which the last is not over."""
    chance, events = np.random.default_rng(4), list[Response | Feedback]()
    for day in range(FIRST_DAY, FIRST_DAY + 18):
        for number in range(500 if day < FIRST_DAY + 17 else 60):
            variant, at_ms = ("control", "treatment")[number % 2], day * DAY_MS + number * 150_000
            is_broken = day == BROKEN_DAY and variant == "treatment"
            grade = float(chance.choice([0, 1] if is_broken else [1, 2, 3, 4]))
            name = f"{day}-{number}"
            events.append(Response(f"r-{name}", at_ms, "ranker", variant, ("v-1",), None, f"s-{name}"))
            events.append(Feedback(f"f-{name}", f"r-{name}", at_ms + 1, "rating", f"s-{name}", "v-1", grade))
    filled = StoreBench(valkey_server, replace(EXPERIMENT, items=None))
    filled.apply([events])
    return filled


@pytest.fixture
def port(bench: StoreBench) -> Iterator[int]:
    """Yield the port of a server with the store's experiment, and one that is declared no more after the summary."""
    reader = bench.reader

    def read_summary(as_of_ms: int | None) -> StoreSummary:
        summary = reader.read_summary(as_of_ms)
        removed = replace(summary.experiments["ranker"], name="removed")
        return replace(summary, experiments={**summary.experiments, "removed": removed})

    endpoints = HttpEndpoints(
        read_summary=read_summary,
        read_verdicts=reader.read_verdicts,
        read_counts=reader.read_counts,
        read_history=reader.read_verdict_history,
        read_items=lambda path, _query: {"path": path},
        read_days=lambda experiment, as_of_ms: read_days_json(reader, experiment, as_of_ms),
        read_health=lambda: ServiceHealth(0, "", ""),
        read_starts=lambda: 0,
        data_problems=tuple,
        process_registry=CollectorRegistry(),
        readiness_problems=tuple,
        reload_configuration=lambda: ReloadResult(is_successful=True, text=""),
        display=DisplaySettings(),
        clock=wall_clock,
    )
    server = HttpServer(HttpSettings(port=0), endpoints)
    server.start()
    try:
        yield server.port
    finally:
        server.stop()


def test_the_days_of_an_experiment_are_served_as_json(port: int) -> None:
    """The broken Tuesday is stated; an unknown experiment gives 404."""
    content = json.loads(ask(port, "/api/experiments/ranker/days").body)
    assert (content["metric"], content["zone"], len(content["days"])) == ("dcg@5", "UTC", 18)
    tuesday = content["days"][14]
    assert (tuesday["date"], tuesday["weekday"], tuesday["over"]) == ("2026-11-24", "Tuesday", True)
    assert [(remark["kind"], remark["variant"]) for remark in tuesday["remarks"]] == [("left_band", "treatment")]
    assert content["sentences"][0].startswith("On Tuesday 24 November, treatment's mean dcg@5 was ")
    assert not content["days"][-1]["over"]
    assert ask(port, "/api/experiments/nothing/days").status == 404
    assert ask(port, "/api/experiments/ranker/days/days").status == 404


@pytest.mark.parametrize("path", ["removed/days", "removed/verdict"])
def test_an_experiment_that_a_reload_removed_after_the_summary_gives_404(port: int, path: str) -> None:
    """The answer names no other experiment, because the reader may not see all of them."""
    answer = ask(port, f"/api/experiments/{path}")
    expected = {"error": 'unknown experiment "removed": the configuration does not declare it'}
    assert (answer.status, json.loads(answer.body)) == (404, expected)


def test_days_as_of_a_past_time_end_then(port: int) -> None:
    """On the Tuesday, the day is not over yet, and nothing is stated."""
    content = json.loads(ask(port, "/api/experiments/ranker/days?as_of=2026-11-24T12:00Z").body)
    assert content["days"][-1]["date"] == "2026-11-24"
    assert not content["days"][-1]["over"]
    assert content["sentences"] == []


@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("color_scheme", ["light", "dark"])
def test_the_table_of_days_fits_the_window(
    bench: StoreBench, tmp_path: Path, width: int, color_scheme: ColorScheme
) -> None:
    """Wide and narrow; axe-core finds no serious problem; the earlier days open on a click."""
    experiment = bench.reader.read_summary().experiments["ranker"]
    table = build_day_table(read_day_log(bench.reader, experiment, {}), experiment)
    file = tmp_path / "days.html"
    file.write_text(TEMPLATE_ENVIRONMENT.from_string(PAGE).render(days=table, style=STYLE.read_text()))
    with browser_page(width=width, color_scheme=color_scheme) as page:
        page.goto(file.as_uri())
        assert overflow_px(page) == 0
        assert serious_problems(page) == []
        tuesday = page.get_by_role("row", name="Tuesday 24 Nov")
        assert tuesday.locator("mark").count() == 1
        earliest = page.get_by_role("row", name="Tuesday 10 Nov")
        assert not earliest.is_visible()
        page.get_by_text("4 earlier days").click()
        assert earliest.is_visible()
        assert overflow_px(page) == 0
        region = page.get_by_role("region", name="The newest days")
        assert region.evaluate("(element) => element.scrollWidth - element.clientWidth") <= 0
        page.screenshot(path=tmp_path / "days.png", full_page=True)
