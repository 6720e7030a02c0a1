"""Plots: round axes, gaps that stay gaps, and nothing that a name could break."""

from __future__ import annotations

import re
from itertools import pairwise
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.web.charts import Level, Line, Point, chart, plain, ticks, time_ticks

DAY = 86_400_000.0


def _drawn(*lines: Line, levels: tuple[Level, ...] = (), percent: bool = False) -> ET.Element:
    plot = chart("a plot", lines, levels, percent=percent)
    assert plot is not None
    return ET.fromstring(plot)  # noqa: S314  our own


def _places(element: ET.Element) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in (place.split(",") for place in element.attrib["points"].split())]


def _line(*values: float | None, half: float | None = None) -> Line:
    points = [
        Point(at * DAY, value, None if half is None or value is None else value - half, value and value + (half or 0.0))
        if half is not None
        else Point(at * DAY, value)
        for at, value in enumerate(values)
    ]
    return Line("line", "v1", points, band=half is not None)


class TestTicks:
    """Where an axis has its numbers."""

    @given(low=st.floats(-1e3, 1e3), span=st.floats(1e-2, 1e4))
    def test_are_round_and_inside(self, low: float, span: float) -> None:
        """A few of them, at the same distance: 1, 2 or 5 times a power of ten."""
        found = ticks(low, low + span)
        assert 2 <= len(found) <= 7
        assert all(low - 1e-6 * span <= value <= low + 1.000001 * span for value in found)
        for one, other in pairwise(found):
            assert f"{other - one:.3e}"[:5] in {"1.000", "2.000", "5.000"}

    @given(first=st.integers(0, 10**12), span=st.integers(3_600_000, 5 * 365 * 86_400_000))
    def test_of_time_are_few_and_inside(self, first: int, span: int) -> None:
        """Full hours or midnights, named differently."""
        found = time_ticks(first, first + span)
        assert len(found) <= 10
        assert all(first <= at_ms <= first + span and at_ms % 3_600_000 == 0 for at_ms, _ in found)

    def test_numbers_have_the_digits_that_tell_them_apart(self) -> None:
        """And a real minus."""
        assert [plain(value, 0.02) for value in (-0.04, 0.5)] == ["−0.04", "0.50"]
        assert plain(12_000, 1_000) == "12\u202f000"


class TestChart:
    """What is drawn."""

    def test_higher_values_stand_higher_and_later_ones_further_right(self) -> None:
        """From edge to edge in time."""
        (line,) = _drawn(_line(1.0, 3.0, 2.0)).iter("polyline")
        (x0, y0), (_, y1), (x2, y2) = _places(line)
        assert y1 < y2 < y0
        assert (x0, x2) == pytest.approx((5, 679), abs=2)

    def test_gaps_stay_gaps(self) -> None:
        """Nothing is drawn across what is not known, and a band is not drawn where it is not."""
        root = _drawn(_line(1.0, 2.0, None, 3.0, 4.0, half=0.5))
        assert [len(_places(each)) for each in root.iter("polyline")] == [2, 2]
        assert [len(_places(each)) for each in root.iter("polygon")] == [4, 4]
        bare = Line("line", "v1", [Point(0, 1.0), Point(DAY, 2.0, 1.0, 3.0), Point(2 * DAY, 2.0, 1.5, 2.5)])
        root = _drawn(bare)
        assert [len(_places(each)) for each in root.iter("polygon")] == [4]

    def test_a_single_point_has_an_error_bar(self) -> None:
        """As high as its bounds, and hardly wide."""
        line = Line("line", "v1", [Point(0, None), Point(DAY, 2.0, 1.0, 3.0)])
        ((x0, y0), (x1, _), _, (_, y3)) = _places(next(_drawn(line).iter("polygon")))
        assert 0 < x1 - x0 < 10
        assert y3 - y0 > 150

    def test_nothing_gives_no_plot(self) -> None:
        """Neither lines nor values."""
        assert chart("a plot", []) is None
        assert chart("a plot", [_line(None, None)], [Level("zero", 0.0)]) is None

    def test_wide_bands_of_the_beginning_do_not_flatten_the_rest(self) -> None:
        """They reach beyond the picture, which is cut there."""
        points = [Point(at * DAY, 0.3, 0.3 - 50 / (at + 1) ** 3, 0.3 + 50 / (at + 1) ** 3) for at in range(12)]
        root = _drawn(Line("effect", "v1", points), levels=(Level("zero", 0.0, "zero"),))
        band = _places(next(root.iter("polygon")))
        assert band[0][1] < -100
        settled = [y for _, y in band[3:12]]
        assert all(0 <= y <= 214 for y in settled)
        (inner,) = [each for each in root if each.tag == "svg"]
        assert (inner.attrib["width"], inner.attrib["height"]) == ("684", "214")

    def test_levels_are_inside(self) -> None:
        """Also those that no value comes near."""
        root = _drawn(_line(1.0, 2.0), levels=(Level("far", -9.0, "zero"),))
        (level,) = [each for each in root.iter("line") if each.attrib["class"] == "zero"]
        assert 0 < float(level.attrib["y1"]) < 214

    def test_names_are_only_text(self) -> None:
        """Of lines, styles and plots."""
        plot = chart('<b>&"', [Line('</svg><script>"', 'v1"><x', [Point(0, 1.0, 0.0, 2.0)])], [Level("<i>", 1.0)])
        assert plot is not None
        root = ET.fromstring(plot)  # noqa: S314  our own
        assert root.attrib["aria-label"] == '<b>&"'
        assert {each.tag for each in root.iter()} <= {"svg", "line", "text", "polygon", "polyline", "circle", "title"}

    @pytest.mark.parametrize("values", [(1.0,), (0.0, 0.0), (2.5, 2.5), (-1e9, 1e9)])
    def test_any_values_can_be_drawn(self, values: tuple[float, ...]) -> None:
        """A single one, all the same, huge ones."""
        text = ET.tostring(_drawn(_line(*values, half=0.0)), encoding="unicode")
        assert not re.search(r"nan|inf", text)

    def test_shares_are_in_per_cent(self) -> None:
        """On the axis and in the dots' titles."""
        root = _drawn(_line(0.48, 0.5, 0.52), percent=True)
        assert (next(root.iter("text")).text or "").endswith("\u202f%")
        assert next(root.iter("title")).text == "line, 01 Jan 00:00: 48.00\u202f%"
