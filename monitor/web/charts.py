"""Line charts over time and forest plots, as inline SVG.

The SVG is written by hand, because its colours must be CSS variables of the page (light, dark, print). matplotlib would
write fixed colours into every path and add five packages.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from html import escape
from itertools import groupby
from typing import Final

from monitor.clock import DAY_MS, HOUR_MS

_TIME_STEPS_MS: Final = (
    *(hours * HOUR_MS for hours in (1, 3, 6, 12)),
    *(days * DAY_MS for days in (1, 2, 7, 14, 28, 91, 182, 364)),
)
_WIDTH, _HEIGHT = 760, 250
_LEFT_MARGIN, _RIGHT_MARGIN, _TOP_MARGIN, _BOTTOM_MARGIN = 64, 12, 10, 26
_FOREST_ROW_HEIGHT, _FOREST_LABEL_WIDTH, _FOREST_RIGHT_MARGIN, _FOREST_TOP_MARGIN = 26, 150, 16, 8
_MAX_LABEL_CHARACTERS: Final = 20
_MAX_TIME_TICKS: Final = 9
_VALUE_TICKS: Final = 5
_MAX_DOTS: Final = 40
"""Lines with at most this many points also have a dot at each point."""
_POINT_HALF_WIDTH: Final = 0.004
"""Half the width of the band around an isolated point, as a fraction of the time axis."""
_UNSCALED_START: Final = 0.25
"""Fraction of a line's points, from its start, whose bands do not widen the value axis."""


@dataclass(frozen=True, slots=True)
class Point:
    """A value and bounds at a time. A value of None is a gap in the line; a bound of None is a gap in the band."""

    at_ms: float
    value: float | None
    lower: float | None = None
    upper: float | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """A line through points by rising time; `style` is a CSS class."""

    label: str
    style: str
    points: Sequence[Point]
    band: bool = True


@dataclass(frozen=True, slots=True)
class ReferenceLine:
    """A horizontal line at a value; `style` is a CSS class."""

    label: str
    value: float
    style: str = "level"


def value_ticks(low: float, high: float) -> list[float]:
    """Return about five round values from `low` to `high`; their distance is 1, 2 or 5 times a power of ten.

    Heckbert, "Nice numbers for graph labels", Graphics Gems, 1990.

    >>> value_ticks(-0.13, 0.52), value_ticks(3, 3)
    ([0.0, 0.2, 0.4], [3])
    """
    if high <= low:
        return [low]
    rough = (high - low) / _VALUE_TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    return [
        round(number * step, 12) for number in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
    ]


def time_ticks(first_ms: float, last_ms: float) -> list[tuple[float, str]]:
    """Return at most nine (time in ms, label) at full hours or UTC midnights.

    >>> [name for _, name in time_ticks(0, 4 * 86_400_000)]
    ['1 Jan', '12:00', '2 Jan', '12:00', '3 Jan', '12:00', '4 Jan', '12:00', '5 Jan']
    """
    steps = (step for step in _TIME_STEPS_MS if (last_ms - first_ms) / step <= _MAX_TIME_TICKS)
    step = next(steps, _TIME_STEPS_MS[-1])
    numbers = range(math.ceil(first_ms / step), math.floor(last_ms / step) + 1)
    return [(number * step, _format_tick(number * step, hours=step < DAY_MS)) for number in numbers]


def _format_tick(at_ms: float, *, hours: bool) -> str:
    """Return a tick's label: the time of day within a day if `hours`, else the date."""
    timestamp = datetime.fromtimestamp(at_ms / 1000, UTC)
    return f"{timestamp:%H:%M}" if hours and at_ms % DAY_MS else f"{timestamp.day} {timestamp:%b}"


def format_axis_value(value: float, step: float) -> str:
    """Return a number with just enough decimals to differ from the number that is `step` larger."""
    digits = max(0, -math.floor(math.log10(step))) if step > 0 else 0
    return f"{value:,.{digits}f}".replace(",", "\u202f").replace("-", "\u2212")


class _PlotArea:
    """The area of a line chart with two scales: time in ms → x, value → y, both in pixels."""

    def __init__(self, lines: Sequence[Line], reference_lines: Sequence[ReferenceLine]) -> None:
        times = [point.at_ms for line in lines for point in line.points]
        self.first, self.last = min(times), max(times)
        if self.first == self.last:
            self.first, self.last = self.first - HOUR_MS, self.last + HOUR_MS
        self.point_half_width_ms = (self.last - self.first) * _POINT_HALF_WIDTH
        # Without this margin the edge of the area would cut the first and the last dot.
        self.first, self.last = self.first - 2 * self.point_half_width_ms, self.last + 2 * self.point_half_width_ms
        values = [reference_line.value for reference_line in reference_lines] + list(_scaled_values(lines))
        low, high = min(values), max(values)
        margin = 0.06 * (high - low) or 0.5 * abs(high) or 0.5
        self.low, self.high = low - margin, high + margin
        self.width, self.height = _WIDTH - _LEFT_MARGIN - _RIGHT_MARGIN, _HEIGHT - _TOP_MARGIN - _BOTTOM_MARGIN

    def x(self, at_ms: float) -> str:
        return f"{(at_ms - self.first) / (self.last - self.first) * self.width:.1f}"

    def y(self, value: float) -> str:
        # Bounds of a very small sample may be huge; the limits keep coordinates short, and are outside of the area.
        fraction = min(max((self.high - value) / (self.high - self.low), -9.0), 10.0)
        return f"{fraction * self.height:.1f}"


def _scaled_values(lines: Sequence[Line]) -> Iterator[float]:
    """Yield the numbers that the value axis must include: all values, and the bounds except at the start of lines."""
    for line in lines:
        for index, point in enumerate(line.points):
            if point.value is not None:
                yield point.value
            if line.band and index >= _UNSCALED_START * len(line.points):
                yield from (bound for bound in (point.lower, point.upper) if bound is not None)


def line_chart_svg(
    title: str, lines: Sequence[Line], reference_lines: Sequence[ReferenceLine] = (), *, percent: bool = False
) -> str | None:
    """Return a line chart as an SVG element that scales with the container; None if no line has a value.

    Texts are escaped. CSS colours lines by their class, and bands by `band` and the class of their line.
    """
    lines = [line for line in lines if any(point.value is not None for point in line.points)]
    if not lines:
        return None
    area = _PlotArea(lines, reference_lines)
    elements = [
        *_axes(area, percent=percent),
        f'<svg x="{_LEFT_MARGIN}" y="{_TOP_MARGIN}" width="{area.width}" height="{area.height}">',
        *(
            f'<line class="{escape(reference.style)}" x1="0" x2="{area.width}" y1="{area.y(reference.value)}" '
            f'y2="{area.y(reference.value)}"><title>{escape(reference.label)}</title></line>'
            for reference in reference_lines
        ),
        *(
            _band(area, line.style, run)
            for line in lines
            if line.band
            for run in _runs_without_gaps(line.points, bounds=True)
        ),
        *(_path(area, line.style, run) for line in lines for run in _runs_without_gaps(line.points, bounds=False)),
        *(dot for line in lines if len(line.points) <= _MAX_DOTS for dot in _dots(area, line, percent=percent)),
        "</svg>",
    ]
    head = f'<svg class="plot" role="img" viewBox="0 0 {_WIDTH} {_HEIGHT}" aria-label="{escape(title)}">'
    return f"{head}{''.join(elements)}</svg>"


def _runs_without_gaps(points: Sequence[Point], *, bounds: bool) -> Iterator[list[Point]]:
    """Yield the longest sequences of points that all have a value and, if `bounds`, both bounds."""

    def is_complete(point: Point) -> bool:
        return point.value is not None and not (bounds and (point.lower is None or point.upper is None))

    return (list(run) for complete, run in groupby(points, is_complete) if complete)


def _coordinates(area: _PlotArea, values: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{area.x(at_ms)},{area.y(value)}" for at_ms, value in values)


def _path(area: _PlotArea, style: str, points: Sequence[Point]) -> str:
    coordinates = _coordinates(area, ((point.at_ms, point.value or 0.0) for point in points))
    return f'<polyline class="line {escape(style)}" points="{coordinates}"/>'


def _band(area: _PlotArea, style: str, points: Sequence[Point]) -> str:
    if len(points) == 1:
        # The band of an isolated point is a narrow bar.
        points = [replace(points[0], at_ms=points[0].at_ms + side * area.point_half_width_ms) for side in (-1, 1)]
    upper_edge = [(point.at_ms, point.upper or 0.0) for point in points]
    lower_edge = [(point.at_ms, point.lower or 0.0) for point in reversed(points)]
    return f'<polygon class="band {escape(style)}" points="{_coordinates(area, [*upper_edge, *lower_edge])}"/>'


def _dots(area: _PlotArea, line: Line, *, percent: bool) -> Iterator[str]:
    step = (area.high - area.low) / 100
    for point in line.points:
        if point.value is not None:
            timestamp = f"{datetime.fromtimestamp(point.at_ms / 1000, UTC):%d %b %H:%M} UTC"
            tooltip = f"{line.label}, {timestamp}: {_format_value(point.value, step, percent=percent)}"
            if point.lower is not None and point.upper is not None:
                bounds = (_format_value(bound, step, percent=percent) for bound in (point.lower, point.upper))
                tooltip += " ({} to {})".format(*bounds)
            yield (
                f'<circle class="dot {escape(line.style)}" cx="{area.x(point.at_ms)}" cy="{area.y(point.value)}" '
                f'r="2.6"><title>{escape(tooltip)}</title></circle>'
            )


def _format_value(value: float, step: float, *, percent: bool) -> str:
    return f"{format_axis_value(100 * value, 100 * step)}\u202f%" if percent else format_axis_value(value, step)


def _axes(area: _PlotArea, *, percent: bool) -> Iterator[str]:
    values = value_ticks(area.low, area.high)
    step = values[1] - values[0] if len(values) > 1 else area.high - area.low
    right = _LEFT_MARGIN + area.width
    for value in values:
        y = _TOP_MARGIN + float(area.y(value))
        label = escape(_format_value(value, step, percent=percent))
        yield f'<line class="grid" x1="{_LEFT_MARGIN}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>'
        # CSS moves the labels of values into the plot on narrow screens.
        yield f'<text class="value" x="{_LEFT_MARGIN - 8}" y="{y + 4:.1f}" text-anchor="end">{label}</text>'
    ticks = time_ticks(area.first, area.last)
    for index, (at_ms, name) in enumerate(ticks):
        x = _LEFT_MARGIN + float(area.x(at_ms))
        yield f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP_MARGIN}" y2="{_TOP_MARGIN + area.height}"/>'
        anchor = "end" if x > right - 20 else "middle"
        # CSS hides the minor labels on narrow screens; the newest label stays.
        style = ' class="minor"' if (len(ticks) - 1 - index) % 3 else ""
        yield f'<text{style} x="{min(x, right):.1f}" y="{_HEIGHT - 6}" text-anchor="{anchor}">{escape(name)}</text>'


@dataclass(frozen=True, slots=True)
class ForestRow:
    """A row of a forest plot: a value with bounds, None if undefined."""

    label: str
    value: float | None
    lower: float | None
    upper: float | None
    highlighted: bool = False
    """Whether the value differs from 0 significantly."""


def forest_plot_svg(title: str, rows: Sequence[ForestRow], *, percent: bool = False) -> str | None:
    """Return a forest plot as an SVG element that scales with the container; None if no row has a value or bound.

    Texts are escaped.
    """
    numbers = [number for row in rows for number in (row.value, row.lower, row.upper) if number is not None]
    if not numbers:
        return None
    low, high = min(0.0, *numbers), max(0.0, *numbers)
    margin = 0.05 * (high - low) or 0.5
    low, high = low - margin, high + margin
    plot_width = _WIDTH - _FOREST_LABEL_WIDTH - _FOREST_RIGHT_MARGIN
    height = _FOREST_TOP_MARGIN + _FOREST_ROW_HEIGHT * len(rows) + _BOTTOM_MARGIN

    def x(value: float) -> str:
        return f"{_FOREST_LABEL_WIDTH + (value - low) / (high - low) * plot_width:.1f}"

    ticks = value_ticks(low, high)
    step = ticks[1] - ticks[0] if len(ticks) > 1 else high - low
    plot_bottom = height - _BOTTOM_MARGIN
    elements = []
    for tick in ticks:
        elements.append(
            f'<line class="grid" x1="{x(tick)}" x2="{x(tick)}" y1="{_FOREST_TOP_MARGIN}" y2="{plot_bottom}"/>'
        )
        label = escape(_format_value(tick, step, percent=percent))
        elements.append(f'<text x="{x(tick)}" y="{height - 6}" text-anchor="middle">{label}</text>')
    elements.append(f'<line class="zero" x1="{x(0.0)}" x2="{x(0.0)}" y1="{_FOREST_TOP_MARGIN}" y2="{plot_bottom}"/>')
    for index, row in enumerate(rows):
        y = _FOREST_TOP_MARGIN + _FOREST_ROW_HEIGHT * index + _FOREST_ROW_HEIGHT / 2
        elements += _forest_row(row, y, x, step, percent=percent)
    head = f'<svg class="plot forest" role="img" viewBox="0 0 {_WIDTH} {height}" aria-label="{escape(title)}">'
    return f"{head}{''.join(elements)}</svg>"


def _forest_row(row: ForestRow, y: float, x: Callable[[float], str], step: float, *, percent: bool) -> Iterator[str]:
    label = row.label if len(row.label) <= _MAX_LABEL_CHARACTERS else f"{row.label[: _MAX_LABEL_CHARACTERS - 1]}…"
    yield f'<text x="{_FOREST_LABEL_WIDTH - 8}" y="{y + 4:.1f}" text-anchor="end">{escape(label)}</text>'
    style = "treatment" if row.highlighted else "live"
    if row.lower is not None and row.upper is not None:
        yield f'<line class="line {style}" x1="{x(row.lower)}" x2="{x(row.upper)}" y1="{y:.1f}" y2="{y:.1f}"/>'
    if row.value is not None:
        tooltip = f"{row.label}: {_format_value(row.value, step / 100, percent=percent)}"
        yield (
            f'<circle class="dot treatment" cx="{x(row.value)}" cy="{y:.1f}" r="3.2">'
            f"<title>{escape(tooltip)}</title></circle>"
        )
