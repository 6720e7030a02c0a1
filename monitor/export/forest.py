"""Effects within parts of the students as inline SVG: a line for each part, its interval a bar beside no difference."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from monitor.export.plots import plain, ticks

_WIDTH, _ROW, _TOP, _BOTTOM = 760, 26, 8, 26
_LEFT, _RIGHT = 150, 16
_LONGEST: Final = 20


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
    inner = _WIDTH - _LEFT - _RIGHT
    height = _TOP + _ROW * len(bars) + _BOTTOM

    def x(value: float) -> str:
        return f"{_LEFT + (value - low) / (high - low) * inner:.1f}"

    marks = ticks(low, high)
    step = marks[1] - marks[0] if len(marks) > 1 else high - low
    floor = height - _BOTTOM
    drawn = []
    for mark in marks:
        drawn.append(f'<line class="grid" x1="{x(mark)}" x2="{x(mark)}" y1="{_TOP}" y2="{floor}"/>')
        drawn.append(f'<text x="{x(mark)}" y="{height - 6}" text-anchor="middle">{escape(plain(mark, step))}</text>')
    drawn.append(f'<line class="zero" x1="{x(0.0)}" x2="{x(0.0)}" y1="{_TOP}" y2="{floor}"/>')
    for place, bar in enumerate(bars):
        drawn += _drawn(bar, _TOP + _ROW * place + _ROW / 2, x, step)
    head = f'<svg class="plot" role="img" viewBox="0 0 {_WIDTH} {height}" aria-label="{escape(title)}">'
    return f"{head}{''.join(drawn)}</svg>"


def _drawn(bar: Bar, y: float, x: Callable[[float], str], step: float) -> Iterator[str]:
    label = bar.label if len(bar.label) <= _LONGEST else f"{bar.label[: _LONGEST - 1]}…"
    yield f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{escape(label)}</text>'
    style = "treatment" if bar.marked else "live"
    if bar.lower is not None and bar.upper is not None:
        yield f'<line class="line {style}" x1="{x(bar.lower)}" x2="{x(bar.upper)}" y1="{y:.1f}" y2="{y:.1f}"/>'
    if bar.value is not None:
        said = f"{bar.label}: {plain(bar.value, step / 100)}"
        yield (
            f'<circle class="dot treatment" cx="{x(bar.value)}" cy="{y:.1f}" r="3.2">'
            f"<title>{escape(said)}</title></circle>"
        )
