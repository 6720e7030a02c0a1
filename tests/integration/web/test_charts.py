"""Charts in a browser: drawn under the policy of the service, and in files; hover, zoom, downloads, phones, print."""

from __future__ import annotations

import csv
import io
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import uvicorn
from playwright.sync_api import Locator, Page, expect
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from monitor.clock import DAY_MS
from monitor.web import pages
from monitor.web.chart_specs import (
    ChartSpec,
    EventMark,
    ForestRow,
    GuardrailBar,
    Line,
    Point,
    ReferenceLine,
    ValueRow,
    forest_plot_spec,
    guardrail_bars_spec,
    interval_bar_spec,
    time_chart_spec,
    value_bars_spec,
)
from tests.servers.browser import ColorScheme, browser_page, overflow_px, serious_problems

START_MS = 1_793_491_200_000  # Sunday, 1 November 2026
PAGE = """\
{% from "charts.html" import chart %}
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Charts</title>
<link rel="stylesheet" href="/static/page.css">
<link rel="stylesheet" href="/static/charts.css">
<script src="/static/charts.js" defer></script>
<script src="/static/page.js" defer></script>
</head>
<body data-refresh-seconds="1">
<header><h1>Charts</h1><span class="state">{{ state }}</span></header>
<main>{% for spec in specs %}<section>{{ chart(spec) }}</section>{% endfor %}</main>
</body>
</html>
"""


def _effect_points(days: int = 18) -> list[Point]:
    return [
        Point(START_MS + day * DAY_MS, 0.1 + day / 1000, 0.1 - 0.5 / (day + 1), 0.1 + 0.5 / (day + 1))
        for day in range(days)
    ]


def _effect_chart(days: int = 18) -> ChartSpec:
    spec = time_chart_spec(
        "Effect of B on dcg@5",
        [Line("effect per student", _effect_points(days))],
        reference_lines=[ReferenceLine(0.0), ReferenceLine(0.05, "smallest effect of interest")],
        events=[EventMark(START_MS + 6 * DAY_MS, "share change")],
        unit="percentage points",
        scale=100,
        signed=True,
        value_title="effect",
    )
    assert spec is not None
    return spec


def _other_charts() -> list[ChartSpec | None]:
    means = [Point(START_MS + hour * 3_600_000, 2 + hour / 1000, 1.8, 2.5) for hour in range(400)]
    return [
        time_chart_spec("Means", [Line("control", means, 0, "dashed"), Line("treatment", means)], value_title="mean"),
        forest_plot_spec("Categories", [ForestRow("algebra", 0.1, 0.0, 0.2), ForestRow("history", None, None, None)]),
        guardrail_bars_spec(
            "Guardrails", [GuardrailBar("escalated", 0.1, 1.4, 0.5, 1.0, "open", "still open", "0 to 1")]
        ),
        interval_bar_spec("Effect of B", (0.1, 0.05, 0.2), (-0.3, 0.3), "good"),
        value_bars_spec(
            "Queries", [ValueRow("q1", [0.2, 0.4], [[0.1], []])], ["old", "new"], value_title="p@1", row_title="query"
        ),
    ]


def _chart_with_events() -> ChartSpec:
    """Return a chart with twelve events in 24 days, some of which are at neighbouring days."""
    days = [1, 2, 4, 5, 8, 9, 11, 13, 14, 18, 20, 22]
    events = [
        EventMark(START_MS + day * DAY_MS, f"event {number}{' left its band' if number == 2 else ''}", number == 2)
        for number, day in enumerate(days)
    ]
    spec = time_chart_spec("Effect of B", [Line("effect", _effect_points(24))], events=events)
    assert spec is not None
    return spec


def _guardrail_chart() -> ChartSpec:
    """Return a chart with bars of every state, two of which are beyond the axis."""
    spec = guardrail_bars_spec(
        "Guardrails",
        [
            GuardrailBar("latency", 4.0, 6.0, 5.0, 1.0, "bad", "failed", "4 to 6"),
            GuardrailBar("escalated", 0.1, 0.8, 0.5, 1.0, "tolerable", "worse, within the margin", "0.1 to 0.8"),
            GuardrailBar("empty", -0.5, 1.4, 0.5, 1.0, "open", "still open", "-0.5 to 1.4"),
            GuardrailBar("thumbs down", -6.0, -4.0, -5.0, 1.0, "good", "holds", "-6 to -4"),
        ],
    )
    assert spec is not None
    return spec


class ChartServer:
    """Serves a page with charts, scripts and styles as the service does; `specs` are those of the next response."""

    def __init__(self) -> None:
        self.specs: list[ChartSpec | None] = [_effect_chart(), *_other_charts()]
        self.state = "ready"
        self.url = ""

    def page(self, _request: Request) -> Response:
        """Return the page under the Content-Security-Policy of all pages."""
        text = pages.TEMPLATE_ENVIRONMENT.from_string(PAGE).render(specs=self.specs, state=self.state)
        return HTMLResponse(text, headers={"Content-Security-Policy": pages._CONTENT_SECURITY_POLICY})


@pytest.fixture
def server() -> Iterator[ChartServer]:
    """Yield a running server."""
    charts = ChartServer()
    static = StaticFiles(directory=Path(pages.__file__).with_name("static"))
    application = Starlette(routes=[Route("/", charts.page), Mount("/static", static)])
    uvicorn_server = uvicorn.Server(uvicorn.Config(application, lifespan="off", log_config=None))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        thread = threading.Thread(target=uvicorn_server.run, args=([listener],), daemon=True)
        thread.start()
        charts.url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        yield charts
        uvicorn_server.should_exit = True
        thread.join()


@contextmanager
def _opened(server: ChartServer, *, width: int = 1280, color_scheme: ColorScheme = "light") -> Iterator[Page]:
    """Yield the page in a window that is high enough for all charts, which are then drawn."""
    with browser_page(width=width, height=3000, color_scheme=color_scheme) as page:
        page.goto(server.url)
        expect(page.locator("figure.drawn")).to_have_count(len(server.specs))
        yield page


def _axis_labels(figure: Locator) -> set[str]:
    """Return the labels of both axes, such as "Sun1 Nov"; their order in the document is not that of the axis."""
    return set(figure.locator(".role-axis-label text").all_text_contents())


def _downloaded(page: Page, figure: Locator, button: str) -> tuple[str, bytes]:
    """Return the suggested name and the content of a downloaded file."""
    with page.expect_download() as download:
        figure.locator(".chart-tools button", has_text=button).click()
    return download.value.suggested_filename, download.value.path().read_bytes()


class TestDrawing:
    """All kinds of charts, under the Content-Security-Policy; violations fail `browser_page`."""

    def test_every_kind_of_chart_is_drawn_and_accessible(self, server: ChartServer) -> None:
        """Light and dark; the label of a drawing is its description."""
        schemes: tuple[ColorScheme, ...] = ("light", "dark")
        for scheme in schemes:
            with _opened(server, color_scheme=scheme) as page:
                assert page.locator("figure.chart svg").count() == len(server.specs)
                assert serious_problems(page) == []
                label = page.locator(".chart-drawing").first.get_attribute("aria-label")
                assert label is not None
                assert label.startswith("Effect of B on dcg@5, Sun 1 Nov 2026 to Wed 18 Nov 2026. Newest values")

    def test_colors_follow_the_scheme_of_the_reader_at_once(self, server: ChartServer) -> None:
        """Without drawing again; paper is always white."""

        def colors(page: Page) -> tuple[str, str]:
            selectors = "figure.chart .mark-line path", "figure.chart .role-axis-label text"
            return tuple(
                page.locator(selector).first.evaluate("(e) => getComputedStyle(e).stroke + getComputedStyle(e).fill")
                for selector in selectors
            )

        with _opened(server) as page:
            light = colors(page)
            page.emulate_media(color_scheme="dark")
            dark = colors(page)
            assert all(first != second for first, second in zip(light, dark, strict=True))
            page.emulate_media(color_scheme="dark", media="print")
            assert colors(page) == light

    def test_a_phone_shows_the_whole_chart_with_the_newest_day(self, server: ChartServer) -> None:
        """At 360 pixels nothing scrolls sideways; a wider window draws wider charts."""
        with _opened(server, width=360) as page:
            figure = page.locator("figure.chart").first
            assert overflow_px(page) == 0
            narrow = figure.locator("svg").bounding_box()
            assert narrow is not None
            assert narrow["x"] + narrow["width"] <= 360
            assert "Wed18 Nov" in _axis_labels(figure)
            page.set_viewport_size({"width": 1000, "height": 3000})
            expect(figure.locator(".role-axis").filter(has_text="Mon16 Nov").first).to_be_visible()
            wide = figure.locator("svg").bounding_box()
            assert wide is not None
            assert wide["width"] > 800
            assert {"Wed18 Nov", "Mon16 Nov"} <= _axis_labels(figure)

    def test_charts_below_the_window_are_drawn_before_printing(self, server: ChartServer) -> None:
        """They are not drawn before the reader comes near."""
        server.specs = [_effect_chart(days) for days in range(5, 25)]
        with browser_page(height=600) as page:
            page.goto(server.url)
            expect(page.locator("figure.drawn").first).to_be_visible()
            assert page.locator("figure.drawn").count() < 10
            assert len(page.pdf()) > 50_000
            expect(page.locator("figure.drawn")).to_have_count(20)

    def test_without_javascript_a_sentence_describes_the_chart(self, server: ChartServer) -> None:
        """The numbers are in the tables of a page."""
        with browser_page(javascript=False) as page:
            page.goto(server.url)
            expect(page.locator("figure.chart p").first).to_contain_text("Newest values in percentage points")

    def test_a_broken_chart_keeps_its_sentence_and_the_others_are_drawn(self, server: ChartServer) -> None:
        """The console has the error, which fails `browser_page`."""
        broken = {**_effect_chart(), "params": [{"name": "broken", "expr": "'"}]}
        server.specs = [broken, *server.specs]

        def open_page() -> None:
            with browser_page(height=3000) as page:
                page.goto(server.url)
                expect(page.locator("figure.drawn")).to_have_count(len(server.specs) - 1)
                expect(page.locator("figure.chart").first.locator("p")).to_contain_text("Newest values in")

        with pytest.raises(AssertionError, match="chart not drawn"):
            open_page()

    @pytest.mark.parametrize(("width", "least_labels"), [(360, 5), (1280, 12)])
    def test_the_labels_of_many_events_do_not_overlap(self, server: ChartServer, width: int, least_labels: int) -> None:
        """A narrow chart has fewer; the newest and the important ones have priority."""
        server.specs = [_chart_with_events()]
        with _opened(server, width=width) as page:
            labels = page.locator("figure.chart .mark-text text").filter(has_text="event")
            texts = labels.all_text_contents()
            assert len(texts) >= least_labels
            assert "event 11" in texts
            assert "event 2 left its band" in texts
            boxes = sorted((box["x"], box["width"]) for box in map(Locator.bounding_box, labels.all()) if box)
            assert all(first[0] + first[1] <= second[0] for first, second in pairwise(boxes))

    def test_a_failed_guardrail_far_beyond_the_axis_is_visible(self, server: ChartServer) -> None:
        """Its bar ends with an arrow, and each bar has its state in words."""
        server.specs = [_guardrail_chart()]
        with _opened(server, width=360) as page:
            expect(page.locator("figure.chart .mark-text")).to_contain_text(["failedworse, within the marginstill"])
            assert page.locator("figure.chart .mark-symbol path").count() == 2
            bars = page.locator("figure.chart .layer_1_marks path").all()
            assert len(bars) == 4
            assert all(box is not None and box["width"] > 5 for box in map(Locator.bounding_box, bars))

    def test_a_phone_shows_the_name_of_a_row_in_two_lines(self, server: ChartServer) -> None:
        """A wide chart has room for one line."""
        row = ForestRow("Share of rated responses", 0.1, 0.0, 0.2)
        server.specs = [forest_plot_spec("Categories", [row])]
        for width, text in ((360, "Share of ratedresponses"), (1280, "Share of rated responses")):
            with _opened(server, width=width) as page:
                assert text in _axis_labels(page.locator("figure.chart"))


class TestInteraction:
    """Hover, zoom and downloads."""

    def test_hovering_shows_the_nearest_value_with_its_interval(self, server: ChartServer) -> None:
        """Anywhere in the plot, not only on a dot."""
        with _opened(server) as page:
            page.locator("figure.chart svg").first.hover(position={"x": 700, "y": 120})
            tooltip = page.locator("#vg-tooltip-element")
            expect(tooltip).to_be_visible()
            expect(tooltip).to_contain_text("effect per student")
            expect(tooltip).to_contain_text("Nov 2026, 00:00")
            expect(tooltip).to_contain_text("percentage points")
            page.mouse.move(5, 5)
            expect(tooltip).not_to_be_visible()

    @pytest.mark.parametrize("unit", ["user's", "a\\b", "' + x + '"])
    def test_a_unit_is_a_text_of_the_tooltip(self, server: ChartServer, unit: str) -> None:
        """Any text can be configured; none is part of an expression. A small loss is not minus zero."""
        points = [Point(START_MS + day * DAY_MS, value) for day, value in enumerate([4.0, -0.0001, -0.0001])]
        server.specs = [
            time_chart_spec("Effect", [Line("effect", points)], unit=unit, signed=True),
            forest_plot_spec("Categories", [ForestRow("algebra", 4.2, 0.0, 8.0)], unit=unit, value_title="a \"b\" 'c'"),
        ]
        with _opened(server) as page:
            tooltip = page.locator("#vg-tooltip-element")
            page.locator("figure.chart svg").nth(0).hover(position={"x": 1000, "y": 200})
            expect(tooltip).to_contain_text(f"value0 {unit}")
            page.locator("figure.chart").nth(1).locator(".mark-symbol path").first.hover()
            expect(tooltip).to_contain_text(f"+4.2 {unit}")

    def test_zoom_keeps_the_newest_day_and_survives_an_update(self, server: ChartServer) -> None:
        """An update replaces only charts with other data; the wheel alone scrolls the page."""
        with _opened(server) as page:
            figure = page.locator("figure.chart").first
            whole = _axis_labels(figure)
            page.mouse.move(600, 150)
            page.mouse.wheel(0, -200)
            assert _axis_labels(figure) == whole
            figure.locator(".chart-tools button", has_text="+").click()
            zoomed = _axis_labels(figure)
            assert zoomed != whole
            assert "Wed18 Nov" in zoomed
            server.state = "needs attention"
            expect(page.locator(".state")).to_have_text("needs attention")
            assert _axis_labels(figure) == zoomed
            figure.locator(".chart-tools button", has_text="All").click()
            assert _axis_labels(figure) == whole

    def test_an_update_draws_new_data(self, server: ChartServer) -> None:
        """The newest day appears without reloading."""
        with _opened(server) as page:
            server.specs = [_effect_chart(19), *server.specs[1:]]
            expect(page.locator("figure.chart").first).to_contain_text("19 Nov")
            expect(page.locator("figure.drawn")).to_have_count(len(server.specs))

    def test_charts_are_downloaded_as_png_svg_and_csv(self, server: ChartServer) -> None:
        """Pictures have a title and fixed colours; the CSV file has the numbers with units."""
        with _opened(server, color_scheme="dark") as page:
            figure = page.locator("figure.chart").first
            name, png = _downloaded(page, figure, "PNG")
            assert name == "effect-of-b-on-dcg-5.png"
            assert png.startswith(b"\x89PNG")
            assert len(png) > 10_000
            name, svg = _downloaded(page, figure, "SVG")
            assert name == "effect-of-b-on-dcg-5.svg"
            texts = [element.text for element in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]  # noqa: S314
            assert "Effect of B on dcg@5" in texts
            assert b"var(" not in svg
            name, text = _downloaded(page, figure, "CSV")
            assert name == "effect-of-b-on-dcg-5.csv"
        rows = list(csv.DictReader(io.StringIO(text.decode())))
        assert len(rows) == 18
        assert rows[0] == {
            "time (UTC)": "2026-11-01T00:00:00",
            "line": "effect per student",
            "effect (percentage points)": "10",
            "lower bound (percentage points)": "-40",
            "upper bound (percentage points)": "60",
        }

    def test_a_spreadsheet_executes_no_name_in_a_csv_file(self, server: ChartServer) -> None:
        """A name that begins with = is a text; quotes and commas stay in their cell."""
        names = ['=1+1,"a"', "b"]
        server.specs = [forest_plot_spec("Categories", [ForestRow(name, -0.1, -0.2, 0.0) for name in names])]
        with _opened(server) as page:
            _, text = _downloaded(page, page.locator("figure.chart"), "CSV")
        rows = list(csv.DictReader(io.StringIO(text.decode())))
        assert [(row["group"], row["effect"]) for row in rows] == [('\'=1+1,"a"', "-0.1"), ("b", "-0.1")]
