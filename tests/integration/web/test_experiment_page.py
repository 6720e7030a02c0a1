"""The page of an experiment in a browser, with the traffic of 18 days: what a product manager does with it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from monitor.app import serve_http
from monitor.clock import wall_clock
from monitor.config import load_settings
from monitor.pipeline import Telemetry
from monitor.state import open_store_reader
from tests.servers.browser import browser_page, overflow_px, serious_problems
from tests.servers.redis import RedisServer
from tests.support.command import ab_monitor, write_config
from tests.support.http_client import ask

NAME = "ranker/v2"
ADDRESS = "/experiments/ranker%2Fv2"
CONFIG = """
[store]
url = "<store>"
[http]
port = 0
[[experiments]]
name = "ranker/v2"
owner = "Team Answers"
hypothesis = "A new order of the videos helps students."
link = "https://wiki.example.org/ranker-v2"
control = "control"
variants = { control = 0.5, treatment = 0.5 }
metrics = ["dcg@5", "ndcg@5", "share:escalated"]
mde = 0.1
novelty = true
items = "30d"
decay = ["1h", "24h"]
categories = ["fractions", "geometry", "algebra"]
guardrails = [
  { metric = "share:escalated", margin = 0.01, harmful_direction = "up" },
  { metric = "rated_share", margin = 0.05, harmful_direction = "down" },
]
[experiments.grades]
rating = "score"
[experiments.texts.metrics]
"dcg@5" = { label = "Answer quality" }
"share:escalated" = { label = "Escalations" }
"""
FIRST_DAY, PAST_DAY = "2026-10-06", "2026-10-18"
_TRAFFIC = ("--responses=20000", "--students=5000", "--days=18", "--effect=treatment=0.4", "--escalated=treatment=0.05")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, redis_server: RedisServer) -> Iterator[tuple[int, Path]]:
    """Yield the port of a service after 18 days of traffic, and its configuration."""
    redis_server.client().flushall()
    directory = tmp_path_factory.mktemp("experiment")
    events = directory / "events.jsonl"
    start = f"--start={FIRST_DAY}T00:00:00Z"
    assert ab_monitor("simulate", *_TRAFFIC, start, "--out", events).returncode == 0
    text = events.read_text(encoding="utf-8").replace("ranker-v2", NAME)
    events.write_text(text, encoding="utf-8")
    config = write_config(directory / "config.toml", CONFIG, [("store", redis_server.url)])
    result = ab_monitor("replay", "--config", config, events)
    assert result.returncode == 0, result.stderr
    settings = load_settings(config, os.environ)
    with (
        open_store_reader(settings, wall_clock) as reader,
        serve_http(settings, lambda: reader, Telemetry(), tuple, wall_clock) as server,
    ):
        yield server.port, config


def _open(page: Page, port: int, address: str = ADDRESS) -> None:
    page.goto(f"http://127.0.0.1:{port}{address}")


def _text(port: int, address: str = ADDRESS) -> str:
    """Return a page as text without elements."""
    answer = ask(port, address)
    assert answer.status == 200, answer.body
    without_scripts = re.sub(r"<(script|style).*?</\1>", " ", answer.body.decode(), flags=re.DOTALL)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", without_scripts)).replace("&#39;", "'")


class TestReading:
    """What a product manager reads."""

    def test_the_list_leads_to_the_verdict(self, service: tuple[int, Path]) -> None:
        """The name of the experiment contains a slash."""
        port, _ = service
        with browser_page() as page:
            _open(page, port, "/")
            page.get_by_role("link", name=NAME).first.click()
            expect(page.locator("h1")).to_have_text(NAME)
            verdict = page.locator("#verdict")
            expect(verdict.locator(".effect b")).to_have_text(
                re.compile(r"^\+\d+\.\d % \(\+\d+\.\d % to \+\d+\.\d %\)$")
            )
            assert verdict.locator("dt").all_inner_texts() == ["Known", "Blocks", "Next"]

    def test_owner_hypothesis_and_link_come_from_the_configuration(self, service: tuple[int, Path]) -> None:
        """A reader knows whom to ask."""
        with browser_page() as page:
            _open(page, service[0])
            assert "Owner: Team Answers." in page.inner_text("main")
            assert "A new order of the videos helps students." in page.inner_text("main")
            expect(page.get_by_role("link", name="https://wiki.example.org/ranker-v2")).to_be_visible()

    def test_each_section_has_an_address(self, service: tuple[int, Path]) -> None:
        """A copied link shows the section at once."""
        with browser_page() as page:
            _open(page, service[0])
            for link in page.locator("nav.contents a").all():
                anchor = link.get_attribute("href") or ""
                assert page.locator(anchor).count() == 1
            _open(page, service[0], f"{ADDRESS}#guardrails")
            expect(page.locator("#guardrails h2")).to_be_in_viewport()

    def test_the_effect_of_a_day_appears_under_the_pointer(self, service: tuple[int, Path]) -> None:
        """With the weekday and the interval."""
        with browser_page() as page:
            _open(page, service[0])
            drawing = page.locator("#effect figure.chart svg").first
            expect(drawing).to_be_visible()
            drawing.hover()
            expect(page.locator("#vg-tooltip-element")).to_contain_text(re.compile(r"(Mon|Tue|Wed|Thu|Fri|Sat|Sun)"))

    def test_the_difference_switches_without_a_script(self, service: tuple[int, Path]) -> None:
        """Between per cent and the unit of the metric."""
        with browser_page(javascript=False) as page:
            _open(page, service[0])
            cell = page.locator("tr.primary td").first
            assert cell.inner_text().endswith("%")
            page.get_by_label("absolute").check()
            assert not cell.inner_text().endswith("%")
            _open(page, service[0], f"{ADDRESS}?difference=absolute")
            assert not cell.inner_text().endswith("%")

    def test_verdict_and_tables_need_no_script(self, service: tuple[int, Path]) -> None:
        """The chart is described by a sentence, and its numbers are in a table."""
        with browser_page(javascript=False) as page:
            _open(page, service[0])
            expect(page.locator("#verdict .effect")).to_be_visible()
            expect(page.locator("#metrics table")).to_be_visible()
            page.locator("#effect details summary").click()
            assert page.locator("#effect tbody tr").count() > 10
            assert re.match("(Mon|Tue|Wed|Thu|Fri|Sat|Sun) ", page.locator("#effect tbody th").first.inner_text())

    def test_a_term_shows_its_definition_on_focus(self, service: tuple[int, Path]) -> None:
        """By keyboard, and in the glossary."""
        with browser_page() as page:
            _open(page, service[0])
            term = page.locator("#effect a.term").first
            term.focus()
            shown = term.evaluate("(link) => getComputedStyle(link, '::after').content")
            assert "Intervals that all contain the true effect" in shown
            term.press("Enter")
            expect(page.locator("#term-confidence-sequence")).to_be_in_viewport()


class TestPast:
    """The state as of a past day."""

    def test_the_date_leads_to_the_past_state_and_back(self, service: tuple[int, Path]) -> None:
        """The page is frozen, and a banner names the time."""
        with browser_page(javascript=False) as page:
            _open(page, service[0])
            present = page.locator("#verdict .effect b").inner_text()
            page.get_by_label("Past day").fill(PAST_DAY)
            page.get_by_role("button", name="Show").first.click()
            expect(page.locator(".banner")).to_contain_text("18 Oct 2026, 23:59 UTC")
            assert page.locator("#verdict .effect b").inner_text() != present
            assert page.locator("body[data-refresh-seconds]").count() == 0
            page.get_by_role("link", name="Show the present").click()
            assert page.locator("#verdict .effect b").inner_text() == present

    def test_no_present_number_is_under_a_past_date(self, service: tuple[int, Path]) -> None:
        """Counts over all time are known for the present only."""
        port, _ = service
        past = _text(port, f"{ADDRESS}?as_of={PAST_DAY}")
        responses = sum(
            variant["responses"] for variant in json.loads(ask(port, f"/api{ADDRESS}").body)["variants"].values()
        )
        assert f"{responses:,}".replace(",", " ") in _text(port)
        assert f"{responses:,}".replace(",", " ") not in past
        assert "Traffic, latency" not in past
        assert "All metrics over all responses" not in past

    def test_a_past_effect_is_that_of_the_effect_over_time(self, service: tuple[int, Path]) -> None:
        """The row of the same day in the table of the present page."""
        port, _ = service
        with browser_page(javascript=False) as page:
            _open(page, port)
            rows = {row.split("\t")[0]: row for row in page.locator("#effect tbody tr").all_text_contents()}
            (cells,) = [
                row for row in page.locator("#effect tbody tr").all() if "Sun 18 Oct" in (row.text_content() or "")
            ]
            effect = cells.locator("td").first.text_content()
            _open(page, port, f"{ADDRESS}?as_of={PAST_DAY}")
            assert rows
            assert page.locator("#verdict .effect b").inner_text().startswith(f"{effect} (")

    @pytest.mark.parametrize(
        ("query", "words"),
        [
            ("as_of=yesterday", "as_of: got &#34;yesterday&#34;, expected a date such as 2026-11-24"),
            ("as_of=2026-13-01", "expected a date such as 2026-11-24"),
            ("as_of=2026-10-01", "no student had seen a response by then"),
            ("as_of=2026-10-29T00:00Z", "expected a time up to the newest event"),
            ("from=2026-10-20&to=2026-10-10", "expected a date up to 2026-10-10"),
            ("difference=both", "expected one of relative, absolute"),
        ],
    )
    def test_a_wrong_parameter_gives_a_page_with_the_reason(
        self, service: tuple[int, Path], query: str, words: str
    ) -> None:
        """Status 400."""
        answer = ask(service[0], f"{ADDRESS}?{query}")
        assert answer.status == 400
        assert answer.headers["Content-Type"].startswith("text/html")
        assert words in answer.body.decode()

    def test_a_time_range_moves_charts_and_no_number(self, service: tuple[int, Path]) -> None:
        """The page says so."""
        port, _ = service
        query = "?from=2026-10-12&to=2026-10-15"
        text = _text(port, f"{ADDRESS}{query}")
        assert "Charts show Mon 12 Oct 2026 to Thu 15 Oct 2026. The verdict and all tables are over the whole" in text
        with browser_page(javascript=False) as page:
            numbers = []
            for address in (ADDRESS, f"{ADDRESS}{query}"):
                _open(page, port, address)
                numbers.append([page.locator(part).first.text_content() for part in ("#verdict", "#metrics")])
                numbers[-1] += page.locator("#effect tbody").all_text_contents()
            assert numbers[0] == numbers[1]
        charts = [
            json.loads(text)
            for text in re.findall(
                '<script type="application/json">(.*?)</script>', ask(port, f"{ADDRESS}{query}").body.decode()
            )
        ]
        effect = next(chart for chart in charts if chart["usermeta"]["title"].startswith("effect of treatment on"))
        assert len([row for row in effect["datasets"]["rows"] if "l" in row]) == 4


class TestAgreement:
    """The numbers of one moment agree wherever they are shown."""

    @pytest.mark.parametrize("query", ["", f"?as_of={PAST_DAY}T12:00:00Z"])
    def test_page_json_and_report_have_the_same_effect(self, service: tuple[int, Path], query: str) -> None:
        """The headline, the bounds, the students."""
        port, _ = service
        verdict = json.loads(ask(port, f"/api{ADDRESS}/verdict{query}").body)
        relative = verdict["verdict"]["treatment"]["relative"]
        effect, lower, upper = (f"{100 * relative[key]:+.1f} %" for key in ("effect", "lower", "upper"))
        primary = verdict["comparisons"]["treatment"]["dcg@5"]["closed"]
        students = " + ".join(f"{primary[arm]['units']:,}".replace(",", " ") for arm in ("control", "treatment"))
        for address in (f"{ADDRESS}{query}", f"{ADDRESS}/report{query}"):
            text = _text(port, address)
            assert f"{effect} ({lower} to {upper})" in text
            assert f"{students} students" in text
            for guardrail in verdict["guardrails"]["treatment"]:
                mean = f"{100 * guardrail['treatment']['mean']:.2f} %"
                assert f"{mean} with treatment" in text

    def test_page_report_command_and_metrics_agree(self, service: tuple[int, Path], tmp_path: Path) -> None:
        """The downloaded file has the sections of the written one."""
        port, config = service
        written = tmp_path / "report.html"
        assert ab_monitor("report", NAME, "--config", config, "--html", written).returncode == 0
        downloaded = ask(port, f"{ADDRESS}/report")
        assert downloaded.headers["Content-Disposition"] == "attachment; filename*=UTF-8''ranker%2Fv2.html"

        def sections(html: str) -> str:
            return html.partition('id="verdict"')[2].partition('<section id="details">')[0]

        assert sections(downloaded.body.decode()) == sections(written.read_text(encoding="utf-8")) != ""
        metrics = ask(port, "/metrics/experiments").body.decode()
        (line,) = re.findall(r"^abmonitor_effect\{[^}]*metric=\"dcg@5\"[^}]*\} (\S+)$", metrics, re.MULTILINE)[:1]
        verdict = json.loads(ask(port, f"/api{ADDRESS}/verdict").body)
        difference = verdict["comparisons"]["treatment"]["dcg@5"]["closed"]["difference"]["effect"]
        assert float(line) == pytest.approx(difference, rel=1e-6)


class TestForm:
    """The page as a web page."""

    @pytest.mark.parametrize("color_scheme", ["light", "dark"])
    @pytest.mark.parametrize("width", [1280, 360])
    def test_the_page_is_accessible_and_fits(self, service: tuple[int, Path], width: int, color_scheme: str) -> None:
        """In both colour schemes, with all details open and closed."""
        with browser_page(width=width, color_scheme="dark" if color_scheme == "dark" else "light") as page:
            _open(page, service[0])
            page.locator("#effect figure").first.scroll_into_view_if_needed()
            expect(page.locator("#effect figure.drawn").first).to_be_visible()
            assert serious_problems(page) == []
            assert overflow_px(page) == 0
            page.evaluate("for (const details of document.querySelectorAll('details')) details.open = true")
            assert serious_problems(page) == []
            assert overflow_px(page) == 0

    def test_a_phone_shows_difference_interval_and_rule_of_each_metric(self, service: tuple[int, Path]) -> None:
        """Nothing of these is outside of the window."""
        with browser_page(width=360) as page:
            _open(page, service[0])
            for row in page.locator(".metrics tbody tr").all():
                for cell in [row.locator("th"), *row.locator("td").all()[:3]]:
                    box = cell.bounding_box()
                    assert box is not None
                    assert 0 <= box["x"] <= box["x"] + box["width"] <= 360

    def test_a_printed_page_has_no_controls(self, service: tuple[int, Path]) -> None:
        """Verdict, tables and charts remain."""
        with browser_page() as page:
            _open(page, service[0])
            page.emulate_media(media="print")
            expect(page.locator("#verdict .effect")).to_be_visible()
            expect(page.locator("#metrics table")).to_be_visible()
            for control in (".actions", ".contents", ".range", ".switch"):
                expect(page.locator(control)).to_be_hidden()

    def test_items_for_review_are_a_table(self, service: tuple[int, Path]) -> None:
        """Linked from the details."""
        with browser_page() as page:
            _open(page, service[0])
            page.locator("#details-review summary").click()
            page.get_by_role("link", name="Items that need review").click()
            expect(page.locator("h1")).to_have_text("Items that need review")
            assert page.locator("tbody tr").count() > 1
            assert serious_problems(page) == []

    def test_the_glossary_has_every_term(self, service: tuple[int, Path]) -> None:
        """With an anchor each."""
        with browser_page() as page:
            _open(page, service[0], "/glossary")
            assert page.locator("dt[id]").count() > 80
            assert serious_problems(page) == []
