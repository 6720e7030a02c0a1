"""Lines with bands over time, and effects within parts of the students, as inline SVG.

Made by hand, since colours have to be the page's CSS variables (light, dark, print) and four kinds of text are all that
is needed: matplotlib would write colours into every path and bring five more packages.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from html import escape
from itertools import groupby
from typing import Final

_HOUR_MS: Final = 3_600_000
_DAY_MS: Final = 24 * _HOUR_MS
_TIME_STEPS_MS: Final = (
    *(hours * _HOUR_MS for hours in (1, 3, 6, 12)),
    *(days * _DAY_MS for days in (1, 2, 7, 14, 28, 91, 182, 364)),
)
_WIDTH, _HEIGHT = 760, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 12, 10, 26
_ROW, _LABEL_WIDTH, _FOREST_RIGHT, _FOREST_TOP = 26, 150, 16, 8
_LONGEST_LABEL: Final = 20
_MOST_TIME_TICKS: Final = 9
_VALUE_TICKS: Final = 5
_DOTS_UP_TO: Final = 40
"""Points of a line that are also drawn as dots."""
_SLIVER: Final = 0.004
"""Of the axis: half the width of a band around a single point."""
_SETTLED: Final = 0.25
"""Of a line's points from the beginning: how wide their bands are does not matter for the axis."""


@dataclass(frozen=True, slots=True)
class Point:
    """A value with its bounds at a time; None is a gap in the line, or in the band alone."""

    at_ms: float
    value: float | None
    lower: float | None = None
    upper: float | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """A line by rising time; `style` is a CSS class."""

    label: str
    style: str
    points: Sequence[Point]
    band: bool = True


@dataclass(frozen=True, slots=True)
class Level:
    """A horizontal line."""

    label: str
    value: float
    style: str = "level"


def ticks(low: float, high: float) -> list[float]:
    """Return round values (1, 2 or 5 times a power of ten apart) from `low` to `high`, about five of them.

    Heckbert, "Nice numbers for graph labels", Graphics Gems, 1990.

    >>> ticks(-0.13, 0.52), ticks(3, 3)
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
    """Return full hours or UTC midnights with their names, nine at most.

    >>> [name for _, name in time_ticks(0, 4 * 86_400_000)]
    ['1 Jan', '2 Jan', '3 Jan', '4 Jan', '5 Jan']
    """
    steps = (step for step in _TIME_STEPS_MS if (last_ms - first_ms) / step <= _MOST_TIME_TICKS)
    step = next(steps, _TIME_STEPS_MS[-1])
    numbers = range(math.ceil(first_ms / step), math.floor(last_ms / step) + 1)
    return [(number * step, _moment(number * step, hours=step < _DAY_MS)) for number in numbers]


def _moment(at_ms: float, *, hours: bool) -> str:
    at = datetime.fromtimestamp(at_ms / 1000, UTC)
    return f"{at:%H:%M}" if hours and at_ms % _DAY_MS else f"{at.day} {at:%b}"


def plain(value: float, step: float) -> str:
    """Return a number with the digits that tell it from one that is `step` away."""
    digits = max(0, -math.floor(math.log10(step))) if step > 0 else 0
    return f"{value:,.{digits}f}".replace(",", "\u202f").replace("-", "\u2212")


class _Frame:
    """The plot's area: from times and values to places."""

    def __init__(self, lines: Sequence[Line], levels: Sequence[Level]) -> None:
        times = [point.at_ms for line in lines for point in line.points]
        self.first, self.last = min(times), max(times)
        if self.first == self.last:
            self.first, self.last = self.first - _HOUR_MS, self.last + _HOUR_MS
        self.sliver_ms = (self.last - self.first) * _SLIVER
        # The first and the last dot are whole.
        self.first, self.last = self.first - 2 * self.sliver_ms, self.last + 2 * self.sliver_ms
        values = [level.value for level in levels] + list(_settled(lines))
        low, high = min(values), max(values)
        room = 0.06 * (high - low) or 0.5 * abs(high) or 0.5
        self.low, self.high = low - room, high + room
        self.width, self.height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def x(self, at_ms: float) -> str:
        return f"{(at_ms - self.first) / (self.last - self.first) * self.width:.1f}"

    def y(self, value: float) -> str:
        # Far beyond the area is as good as beyond it; bounds of nothing may be huge.
        place = min(max((self.high - value) / (self.high - self.low), -9.0), 10.0)
        return f"{place * self.height:.1f}"


def _settled(lines: Sequence[Line]) -> Iterator[float]:
    """Yield what the axis has to show: all values, and the bounds but for those of the beginning."""
    for line in lines:
        for place, point in enumerate(line.points):
            if point.value is not None:
                yield point.value
            if line.band and place >= _SETTLED * len(line.points):
                yield from (bound for bound in (point.lower, point.upper) if bound is not None)


def chart(title: str, lines: Sequence[Line], levels: Sequence[Level] = (), *, percent: bool = False) -> str | None:
    """Return a plot as HTML, its texts escaped, which scales with its container; None where no line has a value.

    The classes of lines and levels colour them; bands have the class of their line inside `band`.
    """
    lines = [line for line in lines if any(point.value is not None for point in line.points)]
    if not lines:
        return None
    frame = _Frame(lines, levels)
    drawn = [
        *_axes(frame, percent=percent),
        f'<svg x="{_LEFT}" y="{_TOP}" width="{frame.width}" height="{frame.height}">',
        *(
            f'<line class="{escape(level.style)}" x1="0" x2="{frame.width}" y1="{frame.y(level.value)}" '
            f'y2="{frame.y(level.value)}"><title>{escape(level.label)}</title></line>'
            for level in levels
        ),
        *(_band(frame, line.style, part) for line in lines if line.band for part in _parts(line.points, bounds=True)),
        *(_path(frame, line.style, part) for line in lines for part in _parts(line.points, bounds=False)),
        *(dot for line in lines if len(line.points) <= _DOTS_UP_TO for dot in _dots(frame, line, percent=percent)),
        "</svg>",
    ]
    head = f'<svg class="plot" role="img" viewBox="0 0 {_WIDTH} {_HEIGHT}" aria-label="{escape(title)}">'
    return f"{head}{''.join(drawn)}</svg>"


def _parts(points: Sequence[Point], *, bounds: bool) -> Iterator[list[Point]]:

    def known(point: Point) -> bool:
        return point.value is not None and not (bounds and (point.lower is None or point.upper is None))

    return (list(part) for there, part in groupby(points, known) if there)


def _places(frame: _Frame, values: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{frame.x(at_ms)},{frame.y(value)}" for at_ms, value in values)


def _path(frame: _Frame, style: str, part: Sequence[Point]) -> str:
    places = _places(frame, ((point.at_ms, point.value or 0.0) for point in part))
    return f'<polyline class="line {escape(style)}" points="{places}"/>'


def _band(frame: _Frame, style: str, part: Sequence[Point]) -> str:
    if len(part) == 1:
        # A single point has an error bar.
        part = [replace(part[0], at_ms=part[0].at_ms + side * frame.sliver_ms) for side in (-1, 1)]
    there = [(point.at_ms, point.upper or 0.0) for point in part]
    back = [(point.at_ms, point.lower or 0.0) for point in reversed(part)]
    return f'<polygon class="band {escape(style)}" points="{_places(frame, [*there, *back])}"/>'


def _dots(frame: _Frame, line: Line, *, percent: bool) -> Iterator[str]:
    step = (frame.high - frame.low) / 100
    for point in line.points:
        if point.value is not None:
            at = f"{datetime.fromtimestamp(point.at_ms / 1000, UTC):%d %b %H:%M}"
            said = f"{line.label}, {at}: {_value(point.value, step, percent=percent)}"
            if point.lower is not None and point.upper is not None:
                bounds = (_value(bound, step, percent=percent) for bound in (point.lower, point.upper))
                said += " ({} to {})".format(*bounds)
            yield (
                f'<circle class="dot {escape(line.style)}" cx="{frame.x(point.at_ms)}" cy="{frame.y(point.value)}" '
                f'r="2.6"><title>{escape(said)}</title></circle>'
            )


def _value(value: float, step: float, *, percent: bool) -> str:
    return f"{plain(100 * value, 100 * step)}\u202f%" if percent else plain(value, step)


def _axes(frame: _Frame, *, percent: bool) -> Iterator[str]:
    values = ticks(frame.low, frame.high)
    step = values[1] - values[0] if len(values) > 1 else frame.high - frame.low
    right = _LEFT + frame.width
    for value in values:
        y = _TOP + float(frame.y(value))
        said = escape(_value(value, step, percent=percent))
        yield f'<line class="grid" x1="{_LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{said}</text>'
    for at_ms, name in time_ticks(frame.first, frame.last):
        x = _LEFT + float(frame.x(at_ms))
        yield f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{_TOP + frame.height}"/>'
        anchor = "end" if x > right - 20 else "middle"
        yield f'<text x="{min(x, right):.1f}" y="{_HEIGHT - 6}" text-anchor="{anchor}">{escape(name)}</text>'


@dataclass(frozen=True, slots=True)
class Bar:
    """One part: a value with its bounds, None where they are not known."""

    label: str
    value: float | None
    lower: float | None
    upper: float | None
    marked: bool = False
    """Whether it is shown to differ from 0."""


def forest(title: str, bars: Sequence[Bar]) -> str | None:
    """Return a plot as HTML, its texts escaped, which scales with its container; None where nothing is known."""
    known = [number for bar in bars for number in (bar.value, bar.lower, bar.upper) if number is not None]
    if not known:
        return None
    low, high = min(0.0, *known), max(0.0, *known)
    room = 0.05 * (high - low) or 0.5
    low, high = low - room, high + room
    inner = _WIDTH - _LABEL_WIDTH - _FOREST_RIGHT
    height = _FOREST_TOP + _ROW * len(bars) + _BOTTOM

    def x(value: float) -> str:
        return f"{_LABEL_WIDTH + (value - low) / (high - low) * inner:.1f}"

    marks = ticks(low, high)
    step = marks[1] - marks[0] if len(marks) > 1 else high - low
    floor = height - _BOTTOM
    drawn = []
    for mark in marks:
        drawn.append(f'<line class="grid" x1="{x(mark)}" x2="{x(mark)}" y1="{_FOREST_TOP}" y2="{floor}"/>')
        drawn.append(f'<text x="{x(mark)}" y="{height - 6}" text-anchor="middle">{escape(plain(mark, step))}</text>')
    drawn.append(f'<line class="zero" x1="{x(0.0)}" x2="{x(0.0)}" y1="{_FOREST_TOP}" y2="{floor}"/>')
    for place, bar in enumerate(bars):
        drawn += _bar(bar, _FOREST_TOP + _ROW * place + _ROW / 2, x, step)
    head = f'<svg class="plot" role="img" viewBox="0 0 {_WIDTH} {height}" aria-label="{escape(title)}">'
    return f"{head}{''.join(drawn)}</svg>"


def _bar(bar: Bar, y: float, x: Callable[[float], str], step: float) -> Iterator[str]:
    label = bar.label if len(bar.label) <= _LONGEST_LABEL else f"{bar.label[: _LONGEST_LABEL - 1]}…"
    yield f'<text x="{_LABEL_WIDTH - 8}" y="{y + 4:.1f}" text-anchor="end">{escape(label)}</text>'
    style = "treatment" if bar.marked else "live"
    if bar.lower is not None and bar.upper is not None:
        yield f'<line class="line {style}" x1="{x(bar.lower)}" x2="{x(bar.upper)}" y1="{y:.1f}" y2="{y:.1f}"/>'
    if bar.value is not None:
        said = f"{bar.label}: {plain(bar.value, step / 100)}"
        yield (
            f'<circle class="dot treatment" cx="{x(bar.value)}" cy="{y:.1f}" r="3.2">'
            f"<title>{escape(said)}</title></circle>"
        )
