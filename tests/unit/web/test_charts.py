"""Line charts: round ticks, gaps at missing values, escaped texts."""

from __future__ import annotations

import re
from itertools import pairwise
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.web.charts import Line, Point, ReferenceLine, format_axis_value, line_chart_svg, time_ticks, value_ticks

DAY = 86_400_000.0


def _chart_element(*lines: Line, reference_lines: tuple[ReferenceLine, ...] = (), percent: bool = False) -> ET.Element:
    plot = line_chart_svg("a plot", lines, reference_lines, percent=percent)
    assert plot is not None
    return ET.fromstring(plot)  # noqa: S314  our own


def _coordinates(element: ET.Element) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in (pair.split(",") for pair in element.attrib["points"].split())]


def _line(*values: float | None, half: float | None = None) -> Line:
    points = [
        Point(
            day * DAY, value, None if half is None or value is None else value - half, value and value + (half or 0.0)
        )
        if half is not None
        else Point(day * DAY, value)
        for day, value in enumerate(values)
    ]
    return Line("line", "v1", points, band=half is not None)


class TestTicks:
    """Ticks of the value axis and the time axis."""

    @given(low=st.floats(-1e3, 1e3), span=st.floats(1e-2, 1e4))
    def test_value_ticks_are_round_and_within_the_range(self, low: float, span: float) -> None:
        """Two to seven ticks at equal distances of 1, 2 or 5 times a power of ten."""
        ticks = value_ticks(low, low + span)
        assert 2 <= len(ticks) <= 7
        assert all(low - 1e-6 * span <= value <= low + 1.000001 * span for value in ticks)
        for lower, upper in pairwise(ticks):
            assert f"{upper - lower:.3e}"[:5] in {"1.000", "2.000", "5.000"}

    @given(first=st.integers(0, 10**12), span=st.integers(3_600_000, 5 * 365 * 86_400_000))
    def test_time_ticks_are_few_and_within_the_range(self, first: int, span: int) -> None:
        """At most ten ticks, at full hours."""
        ticks = time_ticks(first, first + span)
        assert len(ticks) <= 10
        assert all(first <= at_ms <= first + span and at_ms % 3_600_000 == 0 for at_ms, _ in ticks)

    def test_axis_values_have_enough_digits_to_differ(self) -> None:
        """Negative numbers have a typographic minus."""
        assert [format_axis_value(value, 0.02) for value in (-0.04, 0.5)] == ["−0.04", "0.50"]
        assert format_axis_value(12_000, 1_000) == "12\u202f000"


class TestChart:
    """The elements of a line chart."""

    def test_y_falls_with_the_value_and_x_grows_with_time(self) -> None:
        """The line extends over the whole width."""
        (line,) = _chart_element(_line(1.0, 3.0, 2.0)).iter("polyline")
        (x0, y0), (_, y1), (x2, y2) = _coordinates(line)
        assert y1 < y2 < y0
        assert (x0, x2) == pytest.approx((5, 679), abs=2)

    def test_missing_values_are_gaps_in_lines_and_bands(self) -> None:
        """Neither a line nor a band crosses a missing value; a point without bounds has no band."""
        root = _chart_element(_line(1.0, 2.0, None, 3.0, 4.0, half=0.5))
        assert [len(_coordinates(element)) for element in root.iter("polyline")] == [2, 2]
        assert [len(_coordinates(element)) for element in root.iter("polygon")] == [4, 4]
        bare = Line("line", "v1", [Point(0, 1.0), Point(DAY, 2.0, 1.0, 3.0), Point(2 * DAY, 2.0, 1.5, 2.5)])
        root = _chart_element(bare)
        assert [len(_coordinates(element)) for element in root.iter("polygon")] == [4]

    def test_an_isolated_point_has_a_narrow_band(self) -> None:
        """The band is as high as the bounds and less than 10 pixels wide."""
        line = Line("line", "v1", [Point(0, None), Point(DAY, 2.0, 1.0, 3.0)])
        ((x0, y0), (x1, _), _, (_, y3)) = _coordinates(next(_chart_element(line).iter("polygon")))
        assert 0 < x1 - x0 < 10
        assert y3 - y0 > 150

    def test_without_values_there_is_no_chart(self) -> None:
        """Neither without lines nor with lines of missing values."""
        assert line_chart_svg("a plot", []) is None
        assert line_chart_svg("a plot", [_line(None, None)], [ReferenceLine("zero", 0.0)]) is None

    def test_wide_bands_at_the_start_do_not_widen_the_value_axis(self) -> None:
        """Such bands extend beyond the plot area, which clips them."""
        points = [Point(day * DAY, 0.3, 0.3 - 50 / (day + 1) ** 3, 0.3 + 50 / (day + 1) ** 3) for day in range(12)]
        root = _chart_element(Line("effect", "v1", points), reference_lines=(ReferenceLine("zero", 0.0, "zero"),))
        band = _coordinates(next(root.iter("polygon")))
        assert band[0][1] < -100
        later_upper_bounds = [y for _, y in band[3:12]]
        assert all(0 <= y <= 214 for y in later_upper_bounds)
        (plot_area,) = [element for element in root if element.tag == "svg"]
        assert (plot_area.attrib["width"], plot_area.attrib["height"]) == ("684", "214")

    def test_reference_lines_are_within_the_value_axis(self) -> None:
        """Even if all values are far away."""
        root = _chart_element(_line(1.0, 2.0), reference_lines=(ReferenceLine("far", -9.0, "zero"),))
        (level,) = [element for element in root.iter("line") if element.attrib["class"] == "zero"]
        assert 0 < float(level.attrib["y1"]) < 214

    def test_names_and_styles_are_escaped(self) -> None:
        """Markup in labels, styles and titles stays text."""
        plot = line_chart_svg(
            '<b>&"', [Line('</svg><script>"', 'v1"><x', [Point(0, 1.0, 0.0, 2.0)])], [ReferenceLine("<i>", 1.0)]
        )
        assert plot is not None
        root = ET.fromstring(plot)  # noqa: S314  our own
        assert root.attrib["aria-label"] == '<b>&"'
        assert {element.tag for element in root.iter()} <= {
            "svg",
            "line",
            "text",
            "polygon",
            "polyline",
            "circle",
            "title",
        }

    @pytest.mark.parametrize("values", [(1.0,), (0.0, 0.0), (2.5, 2.5), (-1e9, 1e9)])
    def test_equal_and_huge_values_give_finite_coordinates(self, values: tuple[float, ...]) -> None:
        """A single value, equal values, and values of ±1e9."""
        text = ET.tostring(_chart_element(_line(*values, half=0.0)), encoding="unicode")
        assert not re.search(r"nan|inf", text)

    def test_fractions_are_labelled_in_percent(self) -> None:
        """On the axis and in the tooltips of dots."""
        root = _chart_element(_line(0.48, 0.5, 0.52), percent=True)
        assert (next(root.iter("text")).text or "").endswith("\u202f%")
        assert next(root.iter("title")).text == "line, 01 Jan 00:00 UTC: 48.00\u202f%"
