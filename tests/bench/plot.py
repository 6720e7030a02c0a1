"""Lines over sizes, as SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Final

_WIDTH, _HEIGHT = 640, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 50, 180, 40, 40
_COLOURS: Final = ("#4269d0", "#d9541e", "#3ca951", "#8a63d2")
_STEPS: Final = 5
_FONT: Final = 'font-family="sans-serif" font-size="12" fill="#555"'


@dataclass(frozen=True, slots=True)
class Line:
    """One line: its name and its (size, value) points."""

    name: str
    points: Sequence[tuple[float, float]]


def draw(path: Path, title: str, lines: Sequence[Line]) -> None:
    """Write a plot with a logarithmic axis of sizes, and values from 0 on."""
    sizes = sorted({size for line in lines for size, _ in line.points})
    top = _round_up(max(value for line in lines for _, value in line.points))
    low, high = math.log10(sizes[0]), math.log10(sizes[-1])

    def x(size: float) -> float:
        return _LEFT + (math.log10(size) - low) / ((high - low) or 1) * (_WIDTH - _LEFT - _RIGHT)

    def y(value: float) -> float:
        return _HEIGHT - _BOTTOM - value / top * (_HEIGHT - _TOP - _BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" {_FONT}>',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#fff"/>',
        f'<text x="{_LEFT}" y="20" font-size="13">{escape(title)}</text>',
    ]
    for step in range(_STEPS + 1):
        value = top * step / _STEPS
        parts.append(f'<path d="M{_LEFT} {y(value):.1f}H{_WIDTH - _RIGHT}" stroke="#ddd"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value:g}</text>')
    parts += [f'<text x="{x(size):.1f}" y="{_HEIGHT - 16}" text-anchor="middle">{size:,.0f}</text>' for size in sizes]
    for line, colour in zip(lines, _COLOURS, strict=False):
        path_of = "L".join(f"{x(size):.1f} {y(value):.1f}" for size, value in line.points)
        parts.append(f'<path d="M{path_of}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for size, value in line.points:
            parts.append(f'<circle cx="{x(size):.1f}" cy="{y(value):.1f}" r="3.5" fill="{colour}"/>')
        end = line.points[-1]
        parts.append(
            f'<text x="{x(end[0]) + 10:.1f}" y="{y(end[1]) + 4:.1f}" fill="{colour}">{escape(line.name)}</text>'
        )
    path.write_text("\n".join([*parts, "</svg>"]) + "\n")


def _round_up(value: float) -> float:
    step = 10.0 ** math.floor(math.log10(value))
    return next(step * factor for factor in (1, 2, 2.5, 5, 10) if step * factor >= value)
