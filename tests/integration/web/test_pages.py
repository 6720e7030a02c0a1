"""The pages / and /service of a real store in a browser."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Page, expect

from monitor.clock import wall_clock
from monitor.config import Settings
from monitor.export import STATE_TITLES
from monitor.state import open_store_reader
from tests.servers.browser import ColorScheme, browser_page, overflow_px, serious_problems
from tests.support.command import get
from tests.support.experiments_store import experiment_name, filled_store, served_store

COUNT = 7
_PATHS = ("/", "/service")


@pytest.fixture(scope="module")
def settings() -> Iterator[Settings]:
    """Yield the settings of a store with seven experiments."""
    with filled_store(COUNT, 4_000, days=12) as store:
        yield store.settings


@pytest.fixture(scope="module")
def url(settings: Settings) -> Iterator[str]:
    """Yield the address of the pages, without the slash at the end."""
    with served_store(settings) as server:
        yield server.url.rstrip("/")


def _names(page: Page) -> list[str]:
    return page.locator("#running tbody th a").all_inner_texts()


class TestForm:
    """What every page must be."""

    @pytest.mark.parametrize("path", _PATHS)
    @pytest.mark.parametrize("width", [360, 1280])
    @pytest.mark.parametrize("scheme", ["light", "dark"])
    def test_a_page_is_accessible_and_fits_the_window(
        self, url: str, path: str, width: int, scheme: ColorScheme
    ) -> None:
        """axe-core finds nothing serious, and nobody has to scroll sideways."""
        with browser_page(width=width, color_scheme=scheme) as page:
            page.goto(url + path)
            assert serious_problems(page) == []
            assert overflow_px(page) == 0

    @pytest.mark.parametrize("path", _PATHS)
    def test_the_first_tab_reaches_a_link_to_the_content(self, url: str, path: str) -> None:
        """A keyboard user need not pass the header on every page."""
        with browser_page() as page:
            page.goto(url + path)
            page.keyboard.press("Tab")
            link = page.locator(":focus")
            assert link.inner_text() == "Skip to the content"
            assert (link.bounding_box() or {"x": -1})["x"] >= 0
            page.keyboard.press("Enter")
            assert page.evaluate("document.activeElement.id") == "main"

    def test_a_printed_page_has_no_navigation_and_all_rows(self, url: str) -> None:
        """Paper has no links."""
        with browser_page() as page:
            page.goto(url)
            page.emulate_media(media="print")
            assert not page.locator("nav").is_visible()
            assert not page.locator("form").is_visible()
            assert page.locator("#running tbody").count() == COUNT

    def test_times_are_in_the_zone_of_the_reader(self, url: str) -> None:
        """The zone is named, and the time in UTC remains as a title. Without a script, the time is in UTC."""
        with browser_page(timezone="Asia/Kolkata") as page:
            page.goto(url)
            time = page.locator("header time")
            assert time.inner_text().endswith("GMT+5:30")
            assert (time.get_attribute("title") or "").endswith("UTC")
        with browser_page(timezone="Asia/Kolkata", javascript=False) as page:
            page.goto(url)
            assert page.locator("header time").inner_text().endswith("UTC")


class TestUpdate:
    """Updates in place."""

    def test_an_update_changes_what_is_new_and_keeps_focus_and_elements(self, url: str) -> None:
        """A reader who is in the middle of the page does not notice it."""
        with browser_page() as page:
            page.goto(url)
            page.locator("#running tbody th a").nth(3).focus()
            page.evaluate("""document.querySelector("td.fact").textContent = "old";
                document.activeElement.mark = 1;
                document.querySelector("#running").append("something")""")
            page.evaluate("update()")
            assert page.evaluate("document.activeElement.mark") == 1
            assert page.locator("td.fact").first.inner_text() != "old"
            assert not page.get_by_text("something").is_visible()

    @pytest.mark.parametrize(("specification", "content"), [("{}", "{} drawn"), ('{"data":1}', '{"data":1}')])
    def test_a_drawn_chart_is_kept_while_its_specification_is_the_same(
        self, url: str, specification: str, content: str
    ) -> None:
        """Otherwise, the chart would lose its zoom every few seconds."""
        with browser_page() as page:
            page.goto(url)
            after = page.evaluate(
                """(specification) => {
                    const parsed = (text) => new DOMParser().parseFromString(`<main><details><summary></summary>
                        <figure class="chart"><script type="application/json">${text}</script></figure>
                        </details></main>`, "text/html").querySelector("main");
                    const old = parsed("{}");
                    old.querySelector("figure").append(" drawn");
                    old.querySelector("details").open = true;
                    morph(old, parsed(specification));
                    return [old.querySelector("details").open, old.textContent.trim()];
                }""",
                specification,
            )
        assert after == [True, content]


class TestList:
    """The list of experiments."""

    def test_everything_is_on_the_page_without_a_script(self, url: str) -> None:
        """Verdict, effect with a bar, students, split, age and freshness of each treatment."""
        with browser_page(javascript=False) as page:
            page.goto(url)
            assert sorted(_names(page)) == [experiment_name(number) for number in range(COUNT)]
            group = page.locator("#running tbody").first
            assert group.locator("tr").count() == 2
            assert set(group.locator(".badge").all_inner_texts()) <= set(STATE_TITLES.values())
            for word in ("plain", "reranked", "as intended", "12\u202fd", "ago"):
                assert word in group.inner_text()
            assert page.locator("svg.bar .interval").count() == 2 * COUNT
            assert page.locator("svg.bar").first.is_visible()

    def test_the_effect_is_that_of_the_verdict(self, url: str, settings: Settings) -> None:
        """One answer to "by how much", and a bar that has the same order as the effects."""
        with open_store_reader(settings, wall_clock) as reader:
            experiment = reader.read_verdicts().experiments[experiment_name(4)]
        assert experiment.analysis is not None
        effect = experiment.analysis.verdicts["reranked"].primary.difference.relative_effect
        assert effect is not None
        with browser_page() as page:
            page.goto(f"{url}/?q=experiment 4")
            numbers = page.locator(".effect .number").all_inner_texts()
            points = [float(circle.get_attribute("cx") or 0) for circle in page.locator("svg.bar circle").all()]
        assert numbers[1].startswith(f"{100 * effect:+.1f} %".replace("-", "\u2212"))
        assert points[1] == max(points) > 100

    def test_a_name_leads_to_the_page_of_the_experiment(self, url: str) -> None:
        """Also a name with a slash and a blank."""
        with browser_page() as page:
            page.goto(url)
            page.get_by_role("link", name=experiment_name(3)).click()
            expect(page.get_by_role("heading", level=1)).to_have_text(experiment_name(3))
            assert page.url.endswith("/experiments/team%2Fexperiment%203")

    def test_filters_work_without_a_script_and_are_in_the_address(self, url: str) -> None:
        """So the address can be sent on."""
        with browser_page(javascript=False) as page:
            page.goto(url)
            page.get_by_role("searchbox", name="Name or owner").fill("MENT 5")
            page.get_by_role("combobox", name="Order").select_option("name")
            page.get_by_role("button", name="Show").click()
            assert _names(page) == [experiment_name(5)]
            assert parse_qs(urlsplit(page.url).query) == {"q": ["MENT 5"], "sort": ["name"]}
            assert page.get_by_role("searchbox", name="Name or owner").input_value() == "MENT 5"
            page.get_by_role("combobox", name="State").select_option("stop_harm")
            page.get_by_role("searchbox", name="Name or owner").fill("nothing of this name")
            page.get_by_role("button", name="Show").click()
            assert f"None of {COUNT} running experiments matches." in page.locator("#running").inner_text()

    def test_filters_take_effect_while_a_reader_types(self, url: str) -> None:
        """The field keeps focus and text."""
        with browser_page() as page:
            page.goto(url)
            page.get_by_role("searchbox", name="Name or owner").press_sequentially("ment 6")
            expect(page.locator("#running tbody")).to_have_count(1)
            assert page.locator(":focus").input_value() == "ment 6"
            assert urlsplit(page.url).query == "q=ment+6&sort=decision"

    def test_the_order_can_be_chosen(self, url: str) -> None:
        """By name, and by the size of the effect."""
        with browser_page() as page:
            page.goto(f"{url}/?sort=name")
            assert _names(page) == [experiment_name(number) for number in range(COUNT)]
            page.goto(f"{url}/?sort=effect")
            lengths = [
                max(abs(float(circle.get_attribute("cx") or 0) - 100) for circle in group.locator("circle").all())
                for group in page.locator("#running tbody").all()
            ]
        assert len(lengths) == COUNT
        assert lengths == sorted(lengths, reverse=True)

    @pytest.mark.parametrize("query", ["state=great", "sort=luck"])
    def test_a_wrong_parameter_is_named_with_the_possible_values(self, url: str, query: str) -> None:
        """In a page, because a person typed the address."""
        status, body = get(f"{url}/?{query}")
        assert status == 400
        assert query.partition("=")[2] in body
        assert "expected one of" in body
        assert "page.css" in body


class TestService:
    """The health of the pipeline."""

    def test_facts_are_on_the_page_without_a_script(self, url: str) -> None:
        """And the list leads there."""
        with browser_page(javascript=False) as page:
            page.goto(url)
            page.locator(".pipeline a").click()
            assert page.url == f"{url}/service"
            for word in ("Events by topic", "Workers and store", "starts of workers"):
                assert word in page.inner_text("main")
