"""Measured figures and their budgets, as lines of a terminal and as docs/performance.md."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Final

from tests.servers.redis import redis_binary

_TEMPLATE: Final = Path(__file__).with_name("page.md")
_PAGE: Final = Path(__file__).parents[2] / "docs/performance.md"


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number."""

    name: str
    value: float
    unit: str
    most: float | None = None
    """The budget."""

    @property
    def missed(self) -> bool:
        """Whether the figure is over its budget."""
        return self.most is not None and self.value > self.most

    @property
    def budget(self) -> str:
        return "" if self.most is None else f"≤ {self.most:g}"


def line(figure: Figure) -> str:
    """Return a figure as a line of a terminal."""
    missed = "  MISSED" if figure.missed else ""
    return f"{figure.name:58} {_number(figure.value):>8} {figure.unit:20} {figure.budget:>7}{missed}"


def _number(value: float) -> str:
    return f"{value:,.0f}".replace(",", " ") if abs(value) >= 1000 else f"{value:.3g}"


def _rows(figures: Sequence[Figure]) -> str:
    return "\n".join(
        f"| {figure.name} | {_number(figure.value)} {figure.unit} | {figure.budget}{', missed' * figure.missed} |"
        for figure in figures
    )


def _planned(us_per_event: float) -> str:
    """Return the events a second that a core is planned for: half of what was measured, with two digits."""
    return _number(float(f"{5e5 / us_per_event:.2g}"))


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())


def write_page(figures: Sequence[Figure]) -> None:
    """Write docs/performance.md from the figures of all parts."""
    value: Mapping[str, float] = {each.name: each.value for each in figures}
    redis = subprocess.run([redis_binary(), "--version"], check=True, capture_output=True, text=True).stdout
    _PAGE.write_text(
        _TEMPLATE.read_text().format(
            rows=_rows(figures),
            date=f"{datetime.now(UTC):%Y-%m-%d}",
            cores=os.cpu_count(),
            processor=_processor(),
            python=platform.python_version(),
            kafka_python=version("kafka-python"),
            confluent=version("confluent-kafka"),
            redis=redis.partition("v=")[2].split()[0],
            worker=_planned(max(value["kafka-python: worker"], value["confluent: worker"])),
            server=_planned(max(value["kafka-python: redis-server"], value["confluent: redis-server"])),
            row=_number(value["response row of 5 items"]),
            student=_number(value["row of a student"]),
            memory=_number(value["peak memory, 1 worker"]),
        )
    )
