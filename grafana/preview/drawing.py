"""A board as a picture: its panels where the board puts them, in the colours that it asks for.

A grid line is 38 pixels high, as in Grafana.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch
from matplotlib.ticker import MultipleLocator

from grafana.panels import GRID_COLUMNS, JSON
from grafana.preview.fields import TEXT, color, configured, hexadecimal, number, spacing, step_color, text, word
from grafana.preview.prometheus import Series, Window
from grafana.queries import filled_in

WIDTH, LINE, HEAD, GAP = 1500, 38, 78, 8
"""Pixels: of the picture, of a grid line, of the part above the grid, between panels."""
DPI = 100
GROUND, PANEL, BORDER, DIM, GRID = "#111217", "#181b1f", "#2c2f36", "#8e9199", "#26292f"
NOTE = "a preview rendered from the board's own queries, not a screenshot of Grafana"

Answers = Mapping[str, Sequence[Series]]
"""By the panel's title."""


def drawn(board: JSON, answers: Answers, values: Mapping[str, str], window: Window) -> Figure:
    """Return the picture of a board; the axes of each panel are labelled with its title."""
    lines = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in board["panels"])
    height = HEAD + lines * LINE + GAP
    figure = Figure(figsize=(WIDTH / DPI, height / DPI), dpi=DPI, facecolor=GROUND)
    sheet = _axes(figure, (0, 0, WIDTH, height), height)
    sheet.text(16, 26, board["title"], color=TEXT, fontsize=13, va="center", weight="bold")
    sheet.text(WIDTH - 16, 26, NOTE, color=DIM, fontsize=8, va="center", ha="right", style="italic")
    _choices(sheet, board, values, window)
    for panel in board["panels"]:
        at = panel["gridPos"]
        column = WIDTH / GRID_COLUMNS
        left, top = at["x"] * column + GAP / 2, HEAD + at["y"] * LINE + GAP / 2
        wide, high = at["w"] * column - GAP, at["h"] * LINE - GAP
        if panel["type"] == "row":
            sheet.text(
                left + 8, top + high / 2, f"∨  {panel['title']}", color=TEXT, fontsize=10, va="center", weight="bold"
            )
            continue
        title = filled_in(panel["title"], values)
        box = FancyBboxPatch(
            (left, top), wide, high, boxstyle="round,pad=0,rounding_size=3", fc=PANEL, ec=BORDER, lw=0.8
        )
        sheet.add_patch(box)
        sheet.text(left + 10, top + 17, title, color=TEXT, fontsize=9, va="center")
        axes = _axes(figure, (left, top + 30, wide, high - 30), height, label=panel["title"])
        PAINTERS[panel["type"]](axes, panel, answers[panel["title"]], window)
    return figure


def _axes(figure: Figure, place: tuple[float, float, float, float], height: float, *, label: str = "") -> Axes:
    """Return axes in pixels, from their upper left corner."""
    left, top, wide, high = place
    axes = figure.add_axes((left / WIDTH, 1 - (top + high) / height, wide / WIDTH, high / height), label=label)
    axes.set(xlim=(0, wide), ylim=(high, 0))
    axes.axis("off")
    return axes


def _choices(sheet: Axes, board: JSON, values: Mapping[str, str], window: Window) -> None:
    x = 16.0
    for choice in board["templating"]["list"][1:]:
        words = f"{choice['label']}  {values[choice['name']]}"
        sheet.text(
            x + 8,
            58,
            words,
            color=TEXT,
            fontsize=8.5,
            va="center",
            bbox={"fc": PANEL, "ec": BORDER, "boxstyle": "round,pad=0.45"},
        )
        x += 7.2 * len(words) + 34
    ends = (datetime.fromtimestamp(at, UTC) for at in (window.start_s, window.end_s))
    start, end = (f"{at:%Y-%m-%d %H:%M:%S}" for at in ends)
    sheet.text(WIDTH - 16, 58, f"{start} to {end} UTC", color=DIM, fontsize=8.5, va="center", ha="right")


def _size(axes: Axes) -> tuple[float, float]:
    return axes.get_xlim()[1], axes.get_ylim()[0]


def _nothing(axes: Axes, words: str, paint: str = DIM) -> None:
    wide, high = _size(axes)
    axes.text(wide / 2, high / 2 - 10, words, color=paint, fontsize=13, ha="center", va="center")


def stat(axes: Axes, panel: JSON, found: Sequence[Series], _window: Window) -> None:
    """Draw the newest values as large words, each under its name."""
    defaults = panel["fieldConfig"]["defaults"]
    if not found:
        _nothing(axes, defaults["noValue"])
        return
    wide, high = _size(axes)
    part = wide / len(found)
    for at, series in enumerate(found):
        config = configured(panel, series.ref, series.name)
        words = text(config, series.last)
        size = min(23.0, part * 0.95 / max(len(words), 1), high * 0.3)
        axes.text((at + 0.5) * part, high * 0.2, series.name, color=TEXT, fontsize=8.5, ha="center", va="center")
        paint = color(config, series.name, series.last)
        axes.text(
            (at + 0.5) * part, high * 0.56, words, color=paint, fontsize=size, ha="center", va="center", weight="bold"
        )


def timeseries(axes: Axes, panel: JSON, found: Sequence[Series], window: Window) -> None:
    """Draw the series as lines or stacked areas, thresholds as dashes, and a legend with their newest values."""
    wide, high = _size(axes)
    if not found:
        _nothing(axes, "No data")
        return
    legend = _legend(axes, panel, found)
    plot = axes.inset_axes((58 / wide, (legend + 26) / high, (wide - 74) / wide, (high - legend - 34) / high))
    plot.set_label(f"{panel['title']} plot")
    defaults = panel["fieldConfig"]["defaults"]
    base = np.zeros(len(found[0].times))
    for series in found:
        config = configured(panel, series.ref, series.name)
        paint = color(config, series.name, series.last)
        dashes = config.get("custom.lineStyle", {}).get("dash")
        values = series.values
        if config["custom.stacking"]["mode"] == "normal":
            values = base + np.nan_to_num(values)
            plot.fill_between(series.times, base, values, color=paint, alpha=config["custom.fillOpacity"] / 100, lw=0)
            base = values
        (line,) = plot.plot(series.times, values, color=paint, lw=0.75 * config["custom.lineWidth"])
        if dashes:
            line.set_dashes(dashes)
    _scaled(plot, defaults, window)
    if defaults["custom"]["thresholdsStyle"]["mode"] != "off":
        _, top = plot.get_ylim()
        for step in defaults["thresholds"]["steps"]:
            if step["value"] is not None and step["value"] <= top:
                plot.axhline(step["value"], color=hexadecimal(step["color"]), lw=1, dashes=(6, 4))


def _scaled(plot: Axes, defaults: JSON, window: Window) -> None:
    """Give a graph its limits, its ticks and the units of its values."""
    bottom, top = plot.get_ylim()
    if top - bottom < 1e-9 * max(abs(top), 1):
        bottom, top = bottom - 1, top + 1
    bottom, top = defaults.get("min", bottom), defaults.get("max", top)
    plot.set_ylim(bottom, top)
    plot.set_xlim(window.start_s, window.end_s)
    plot.set_facecolor(PANEL)
    plot.set_axisbelow(True)
    plot.grid(visible=True, color=GRID, lw=0.8)
    plot.tick_params(colors=DIM, labelsize=7.5, length=0)
    plot.yaxis.set_major_locator(MultipleLocator(spacing(defaults["unit"], top - bottom)))
    for spine in plot.spines.values():
        spine.set_visible(False)
    ticks = np.linspace(window.start_s, window.end_s, 6)[1:-1]
    plot.set_xticks(list(ticks), [f"{datetime.fromtimestamp(tick, UTC):%H:%M:%S}" for tick in ticks])
    plot.yaxis.set_major_formatter(lambda value, _at: number(defaults["unit"], value))


def _legend(axes: Axes, panel: JSON, found: Sequence[Series]) -> float:
    """Draw names and newest values under a graph; returns the height in pixels."""
    wide, high = _size(axes)
    entries = []
    for series in found:
        config = configured(panel, series.ref, series.name)
        if not config.get("custom.hideFrom", {}).get("legend"):
            entries.append((f"{series.name}  {text(config, series.last)}", color(config, series.name, series.last)))
    lines: list[list[tuple[float, str, str]]] = [[]]
    x = 12.0
    for words, paint in entries:
        room = 6.1 * len(words) + 34
        if x + room > wide and lines[-1]:
            lines.append([])
            x = 12.0
        lines[-1].append((x, words, paint))
        x += room
    for number_, line in enumerate(reversed(lines)):
        y = high - 12 - 16 * number_
        for x, words, paint in line:
            axes.plot([x, x + 13], [y, y], color=paint, lw=2.5)
            axes.text(x + 18, y, words, color=TEXT, fontsize=7.5, va="center")
    return 16.0 * len(lines)


def state_timeline(axes: Axes, panel: JSON, found: Sequence[Series], window: Window) -> None:
    """Draw each series as a bar whose parts have the words and colours of its values."""
    if not found:
        _nothing(axes, "No data")
        return
    wide, high = _size(axes)
    left = 24 + 6.3 * max(len(series.name) for series in found)
    right, row = wide - 14, (high - 34) / len(found)
    scale = (right - left) / (window.end_s - window.start_s)
    for at, series in enumerate(found):
        config = configured(panel, series.ref, series.name)
        middle = (at + 0.5) * row
        axes.text(left - 8, middle, series.name, color=TEXT, fontsize=8, ha="right", va="center")
        for start, end, value in _stretches(series):
            x, paint = left + (start - window.start_s) * scale, color(config, series.name, value)
            length = min((end - start) * scale, right - x)
            height = row * panel["options"]["rowHeight"]
            axes.barh(middle, length, height, x, color=paint, alpha=config["custom.fillOpacity"] / 100, lw=0)
            mapped = word(config, value)
            words = mapped["text"] if mapped is not None else f"{value:g}"
            if length > 6.5 * len(words) + 8:
                axes.text(x + 6, middle, words, color="white", fontsize=8, va="center")
    for tick in np.linspace(window.start_s, window.end_s, 6)[1:-1]:
        when = f"{datetime.fromtimestamp(tick, UTC):%H:%M:%S}"
        axes.text(left + (tick - window.start_s) * scale, high - 20, when, color=DIM, fontsize=7.5, ha="center")


def _stretches(series: Series) -> list[tuple[float, float, float]]:
    """Return when each value began and ended, equal neighbours merged, without the times when there was none."""
    found: list[tuple[float, float, float]] = []
    step = float(series.times[1] - series.times[0])
    for time, value in zip(series.times, series.values, strict=True):
        if math.isnan(value):
            continue
        start = float(time)
        if found and found[-1][2] == value and math.isclose(found[-1][1], time):
            start = found.pop()[0]
        found.append((start, float(time) + step, float(value)))
    return found


def table(axes: Axes, panel: JSON, found: Sequence[Series], _window: Window) -> None:
    """Draw a row for each value of the label that the queries are joined by, under the columns' headings."""
    if not found:
        _nothing(axes, "No data")
        return
    join, _, order = (each["options"] for each in panel["transformations"])
    headings: Mapping[str, str] = order["renameByName"]
    rows: dict[str, dict[str, float | str]] = {}
    for series in found:
        cells = rows.setdefault(series.labels[join["byField"]], {})
        cells.update({headings[label]: value for label, value in series.labels.items() if label in headings})
        if f"Value #{series.ref}" in headings:
            cells[headings[f"Value #{series.ref}"]] = series.last
    wide, _ = _size(axes)
    part = (wide - 24) / len(headings)
    for at, name in enumerate(sorted(headings, key=order["indexByName"].__getitem__)):
        heading = headings[name]
        axes.text(14 + at * part, 12, heading, color="#6e9fff", fontsize=9, va="center", weight="bold")
        config = configured(panel, "", heading)
        for line, key in enumerate(sorted(rows)):
            words, paint = _cell(config, rows[key].get(heading, math.nan))
            axes.text(14 + at * part, 44 + 32 * line, words, color=paint, fontsize=9.5, va="center")
    for line in range(len(rows) + 1):
        axes.plot([8, wide - 8], [28 + 32 * line] * 2, color=BORDER, lw=0.8)


def _cell(config: JSON, value: float | str) -> tuple[str, str]:
    """Return the words of a cell and their colour."""
    if isinstance(value, str):
        return value, "#6e9fff" if "links" in config else TEXT
    if math.isnan(value):
        return config["noValue"], DIM
    if config["custom.cellOptions"]["type"] != "color-text":
        return text(config, value), TEXT
    mapped = word(config, value)
    paint = hexadecimal(mapped["color"]) if mapped else step_color(config["thresholds"]["steps"], value)
    return text(config, value), paint


PAINTERS = {"stat": stat, "timeseries": timeseries, "state-timeline": state_timeline, "table": table}
