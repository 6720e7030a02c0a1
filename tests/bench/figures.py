"""Figures, the aims they are held to, and what was recorded of them the last time."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

RECORDED: Final = Path(__file__).with_name("recorded.json")
_DOCUMENT: Final = Path(__file__).parents[2] / "docs/performance.md"
_BEGIN, _END = "<!-- figures -->\n", "<!-- /figures -->\n"


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number."""

    name: str
    value: float
    unit: str
    most: float | None = None
    """The aim, where less is better."""
    least: float | None = None
    """The aim, where more is better."""

    @property
    def missed(self) -> bool:
        """Whether there is an aim and the figure falls short of it."""
        too_much = self.most is not None and self.value > self.most
        return too_much or (self.least is not None and self.value < self.least)

    @property
    def aim(self) -> str:
        """The aim in words."""
        if self.most is not None:
            return f"≤ {self.most:.3g}"
        return "" if self.least is None else f"≥ {self.least:g}"


def recorded() -> Mapping[str, float]:
    """Return the figures recorded last, by name."""
    found: dict[str, float] = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    return found


def record(figures: Sequence[Figure]) -> None:
    """Put the figures before those of other names that are recorded, also in the table of docs/performance.md."""
    known = {each.name: float(f"{each.value:.4g}") for each in figures}
    known = {**known, **{name: value for name, value in recorded().items() if name not in known}}
    RECORDED.write_text(json.dumps(known, indent=1, ensure_ascii=False) + "\n")
    text = _DOCUMENT.read_text()
    before, _, rest = text.partition(_BEGIN)
    held, _, after = rest.partition(_END)
    rows = ["| what | measured | aim | |", "| --- | ---: | ---: | --- |"]
    for each in figures:
        met = "" if not each.aim else "**missed**" if each.missed else "met"
        rows.append(f"| {each.name} | {shown(each.value)} {each.unit} | {each.aim} | {met} |")
    names = {each.name for each in figures}
    rows += [line for line in held.splitlines()[2:] if line.split(" | ")[0].removeprefix("| ") not in names]
    _DOCUMENT.write_text(before + _BEGIN + "\n".join(rows) + "\n" + _END + after)


def shown(value: float) -> str:
    """Return a number with three digits, and thousands set apart."""
    return f"{value:,.0f}".replace(",", " ") if abs(value) >= 1000 else f"{value:.3g}"


def line(figure: Figure, known: Mapping[str, float]) -> str:
    """Return a figure as a line of the table on a terminal, with the change since it was recorded."""
    last = known.get(figure.name)
    change = f"{figure.value / last - 1:+.0%} from {shown(last)}" if last else "not recorded before"
    missed = "  MISSED" if figure.missed else ""
    return f"{figure.name:62} {shown(figure.value):>9} {figure.unit:14} {figure.aim:>8}  {change}{missed}"
