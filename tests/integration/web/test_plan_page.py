"""The page /experiments/NAME/plan of a running demo: the plan and its form, with and without JavaScript."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.servers.browser import browser_page, overflow_px, serious_problems
from tests.servers.process import free_port
from tests.support.command import eventually, get
from tests.support.http_client import ask

PAGE = "/experiments/ranker-v2/plan"


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Yield the port of a demo that has run through its week and stays."""
    chosen = free_port()
    options = ["--speed", "200000", "--responses", "8000", "--port", str(chosen), "--stay"]
    with (tmp_path_factory.mktemp("demo") / "log").open("w") as log:
        demo = subprocess.Popen([sys.executable, "-m", "monitor", "demo", *options], stdout=log, stderr=log)
        try:
            eventually("the demo has enough closed students", lambda: _closed_students(chosen) > 100)
            yield chosen
        finally:
            demo.terminate()
            demo.wait(20)


def _closed_students(port: int) -> int:
    status, text = get(f"http://127.0.0.1:{port}/api/experiments/ranker-v2/verdict")
    if status != 200 or not json.loads(text)["verdict"]:
        return 0
    arms = json.loads(text)["verdict"]["treatment"]["evidence"]["arms"]
    return min(int(arm["units"]) for arm in arms.values())


@pytest.mark.parametrize("javascript", [True, False], ids=["javascript", "no javascript"])
def test_a_reader_plans_with_a_larger_effect(port: int, *, javascript: bool) -> None:
    """Larger effects need fewer students; the form keeps the chosen values."""
    with browser_page(javascript=javascript) as page:
        page.goto(f"http://127.0.0.1:{port}{PAGE}")
        before = page.locator("#plan tbody tr").first.inner_text()
        page.get_by_label("Smallest effect of interest").fill("30%")
        page.get_by_label("Shares of the treatment").fill("10%, 50%")
        page.get_by_role("button", name="Plan").click()
        page.wait_for_url("**?*mde=30*")
        assert page.get_by_label("Smallest effect of interest").input_value() == "30%"
        rows = page.locator("#plan table").first.locator("tbody tr")
        assert rows.count() == 2
        assert rows.first.locator("th").inner_text() == "10\u202f%"
        assert rows.first.inner_text() != before
        assert "30.0\u202f% of the mean" in page.locator("#plan p").first.inner_text()


def test_a_wrong_field_gets_its_error_beside_it(port: int) -> None:
    """The answer is 400; the other fields keep their values."""
    answer = ask(port, f"{PAGE}?mde=%3Cb%3E&power=80%25")
    assert answer.status == 400
    assert b"<b>" not in answer.body.split(b"<main")[1]
    # Chromium logs the status of the page as an error of the console.
    with browser_page(javascript=False) as page:
        page.set_content(answer.body.decode())
        field = page.get_by_label("Smallest effect of interest")
        assert field.get_attribute("aria-invalid") == "true"
        assert "Got '<b>', expected a number above 0" in page.locator("#mde-hint").inner_text()
        assert page.get_by_label("Power").input_value() == "80%"
        assert page.locator("#plan").count() == 0


def test_assumptions_replace_the_data(port: int) -> None:
    """So that a new experiment can be planned before it begins."""
    query = "metric_sd=1.5&metric_mean=2.4&responses_per_student=4&students_per_day=300&mde=3%25"
    text = ask(port, f"{PAGE}?{query}").body.decode()
    assert "12\u202f491 students in total" in text
    assert "(assumed)" in text
    assert "<details open>" in text


@pytest.mark.parametrize("color_scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_the_page_is_usable_on_any_device(port: int, width: int, color_scheme: str) -> None:
    """No serious problem of accessibility, no scrolling sideways."""
    with browser_page(width=width, color_scheme=color_scheme) as page:  # type: ignore[arg-type]
        page.goto(f"http://127.0.0.1:{port}{PAGE}")
        assert serious_problems(page) == []
        assert overflow_px(page) == 0
