"""Draws a board as a figure: panels at their grid positions, with the configured colours and texts.

A grid line is 38 pixels high, as in Grafana.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch
from matplotlib.ticker import MultipleLocator

from grafana.panels import GRID_COLUMNS, JSON
from grafana.preview.fields import (
    TEXT,
    format_number,
    format_value,
    hex_color,
    series_color,
    series_settings,
    step_color,
    tick_spacing,
    value_mapping,
)
from grafana.preview.prometheus import Series, Window
from grafana.queries import substitute_variables
from grafana.variables import query_variables

IMAGE_WIDTH, GRID_LINE_HEIGHT, HEADER_HEIGHT, PANEL_GAP = 1500, 38, 78, 8
"""Pixels."""
MESSAGE_CHARACTER_WIDTH = 9
DPI = 100
BACKGROUND, PANEL, BORDER, DIM, GRID = "#111217", "#181b1f", "#2c2f36", "#8e9199", "#26292f"
FOOTNOTE = "a preview rendered from the board's own queries, not a screenshot of Grafana"

SeriesByPanel = Mapping[str, Sequence[Series]]
"""Title of a panel → series."""


def draw_board(board: JSON, series_by_panel: SeriesByPanel, values: Mapping[str, str], window: Window) -> Figure:
    """Return the figure of a board. The axes of each panel have the title of the panel as label."""
    lines = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in board["panels"])
    figure_height = HEADER_HEIGHT + lines * GRID_LINE_HEIGHT + PANEL_GAP
    figure = Figure(figsize=(IMAGE_WIDTH / DPI, figure_height / DPI), dpi=DPI, facecolor=BACKGROUND)
    page = _pixel_axes(figure, (0, 0, IMAGE_WIDTH, figure_height), figure_height)
    page.text(16, 26, board["title"], color=TEXT, fontsize=13, va="center", weight="bold")
    page.text(IMAGE_WIDTH - 16, 26, FOOTNOTE, color=DIM, fontsize=8, va="center", ha="right", style="italic")
    _draw_variables(page, board, values, window)
    for panel in board["panels"]:
        position = panel["gridPos"]
        column_width = IMAGE_WIDTH / GRID_COLUMNS
        left, top = (
            position["x"] * column_width + PANEL_GAP / 2,
            HEADER_HEIGHT + position["y"] * GRID_LINE_HEIGHT + PANEL_GAP / 2,
        )
        width, height = position["w"] * column_width - PANEL_GAP, position["h"] * GRID_LINE_HEIGHT - PANEL_GAP
        if panel["type"] == "row":
            page.text(
                left + 8, top + height / 2, f"∨  {panel['title']}", color=TEXT, fontsize=10, va="center", weight="bold"
            )
            continue
        title = substitute_variables(panel["title"], values)
        box = FancyBboxPatch(
            (left, top), width, height, boxstyle="round,pad=0,rounding_size=3", fc=PANEL, ec=BORDER, lw=0.8
        )
        page.add_patch(box)
        page.text(left + 10, top + 17, title, color=TEXT, fontsize=9, va="center")
        axes = _pixel_axes(figure, (left, top + 30, width, height - 30), figure_height, label=panel["title"])
        PAINTERS[panel["type"]](axes, panel, series_by_panel[panel["title"]], window)
    return figure


def _pixel_axes(
    figure: Figure, rectangle: tuple[float, float, float, float], figure_height: float, *, label: str = ""
) -> Axes:
    """Return axes whose coordinates are pixels from the upper left corner of `rectangle` (left, top, width, height)."""
    left, top, width, height = rectangle
    axes = figure.add_axes(
        (left / IMAGE_WIDTH, 1 - (top + height) / figure_height, width / IMAGE_WIDTH, height / figure_height),
        label=label,
    )
    axes.set(xlim=(0, width), ylim=(height, 0))
    axes.axis("off")
    return axes


def _draw_variables(page: Axes, board: JSON, values: Mapping[str, str], window: Window) -> None:
    x = 16.0
    for variable in query_variables(board):
        if not values[variable["name"]]:
            continue
        words = f"{variable['label']}  {values[variable['name']]}"
        page.text(
            x + 8,
            58,
            words,
            color=TEXT,
            fontsize=8.5,
            va="center",
            bbox={"fc": PANEL, "ec": BORDER, "boxstyle": "round,pad=0.45"},
        )
        x += 7.2 * len(words) + 34
    times = (datetime.fromtimestamp(time_s, UTC) for time_s in (window.start_s, window.end_s))
    start, end = (f"{time:%Y-%m-%d %H:%M:%S}" for time in times)
    page.text(IMAGE_WIDTH - 16, 58, f"{start} to {end} UTC", color=DIM, fontsize=8.5, va="center", ha="right")


def _axes_size(axes: Axes) -> tuple[float, float]:
    return axes.get_xlim()[1], axes.get_ylim()[0]


def _draw_message(axes: Axes, words: str, paint: str = DIM) -> None:
    width, axes_height = _axes_size(axes)
    words = textwrap.fill(words, max(int(width / MESSAGE_CHARACTER_WIDTH), 1))
    axes.text(width / 2, axes_height / 2 - 10, words, color=paint, fontsize=13, ha="center", va="center")


def draw_stat(axes: Axes, panel: JSON, series_list: Sequence[Series], _window: Window) -> None:
    """Draw the newest value of each series as large text below the name of the series."""
    defaults = panel["fieldConfig"]["defaults"]
    if not series_list:
        _draw_message(axes, defaults["noValue"])
        return
    width, axes_height = _axes_size(axes)
    part = width / len(series_list)
    for index, series in enumerate(series_list):
        config = series_settings(panel, series.ref, series.name)
        words = format_value(config, series.last)
        size = min(23.0, part * 0.95 / max(len(words), 1), axes_height * 0.3)
        axes.text(
            (index + 0.5) * part, axes_height * 0.2, series.name, color=TEXT, fontsize=8.5, ha="center", va="center"
        )
        paint = series_color(config, series.name, series.last)
        axes.text(
            (index + 0.5) * part,
            axes_height * 0.56,
            words,
            color=paint,
            fontsize=size,
            ha="center",
            va="center",
            weight="bold",
        )


def draw_time_series(axes: Axes, panel: JSON, series_list: Sequence[Series], window: Window) -> None:
    """Draw the series as lines or stacked areas, thresholds as dashes, and a legend with their newest values."""
    width, axes_height = _axes_size(axes)
    if not series_list:
        _draw_message(axes, panel["fieldConfig"]["defaults"]["noValue"])
        return
    legend = _draw_legend(axes, panel, series_list)
    plot = axes.inset_axes(
        (58 / width, (legend + 26) / axes_height, (width - 74) / width, (axes_height - legend - 34) / axes_height)
    )
    plot.set_label(f"{panel['title']} plot")
    defaults = panel["fieldConfig"]["defaults"]
    base = np.zeros(len(series_list[0].times))
    for series in series_list:
        config = series_settings(panel, series.ref, series.name)
        paint = series_color(config, series.name, series.last)
        dashes = config.get("custom.lineStyle", {}).get("dash")
        values = series.values
        if config["custom.stacking"]["mode"] == "normal":
            values = base + np.nan_to_num(values)
            plot.fill_between(series.times, base, values, color=paint, alpha=config["custom.fillOpacity"] / 100, lw=0)
            base = values
        (line,) = plot.plot(series.times, values, color=paint, lw=0.75 * config["custom.lineWidth"])
        if dashes:
            line.set_dashes(dashes)
    _scale_axes(plot, defaults, window)
    if defaults["custom"]["thresholdsStyle"]["mode"] != "off":
        _, top = plot.get_ylim()
        for step in defaults["thresholds"]["steps"]:
            if step["value"] is not None and step["value"] <= top:
                plot.axhline(step["value"], color=hex_color(step["color"]), lw=1, dashes=(6, 4))


def _scale_axes(plot: Axes, defaults: JSON, window: Window) -> None:
    """Set limits, ticks and the unit of the axes of a graph."""
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
    plot.yaxis.set_major_locator(MultipleLocator(tick_spacing(defaults["unit"], top - bottom)))
    for spine in plot.spines.values():
        spine.set_visible(False)
    ticks = np.linspace(window.start_s, window.end_s, 6)[1:-1]
    plot.set_xticks(list(ticks), [f"{datetime.fromtimestamp(tick, UTC):%H:%M:%S}" for tick in ticks])
    plot.yaxis.set_major_formatter(lambda value, _position: format_number(defaults["unit"], value))


def _draw_legend(axes: Axes, panel: JSON, series_list: Sequence[Series]) -> float:
    """Draw names and newest values below a graph; return the height of the legend in pixels."""
    width, axes_height = _axes_size(axes)
    entries = []
    for series in series_list:
        config = series_settings(panel, series.ref, series.name)
        if not config.get("custom.hideFrom", {}).get("legend"):
            entries.append(
                (f"{series.name}  {format_value(config, series.last)}", series_color(config, series.name, series.last))
            )
    lines: list[list[tuple[float, str, str]]] = [[]]
    x = 12.0
    for words, paint in entries:
        entry_width = 6.1 * len(words) + 34
        if x + entry_width > width and lines[-1]:
            lines.append([])
            x = 12.0
        lines[-1].append((x, words, paint))
        x += entry_width
    for number_, line in enumerate(reversed(lines)):
        y = axes_height - 12 - 16 * number_
        for x, words, paint in line:
            axes.plot([x, x + 13], [y, y], color=paint, lw=2.5)
            axes.text(x + 18, y, words, color=TEXT, fontsize=7.5, va="center")
    return 16.0 * len(lines)


def draw_state_timeline(axes: Axes, panel: JSON, series_list: Sequence[Series], window: Window) -> None:
    """Draw each series as a bar, divided into periods with the texts and colours of the values."""
    if not series_list:
        _draw_message(axes, panel["fieldConfig"]["defaults"]["noValue"])
        return
    width, axes_height = _axes_size(axes)
    left = 24 + 6.3 * max(len(series.name) for series in series_list)
    right, row = width - 14, (axes_height - 34) / len(series_list)
    scale = (right - left) / (window.end_s - window.start_s)
    for index, series in enumerate(series_list):
        config = series_settings(panel, series.ref, series.name)
        middle = (index + 0.5) * row
        axes.text(left - 8, middle, series.name, color=TEXT, fontsize=8, ha="right", va="center")
        for start, end, value in _value_periods(series):
            x, paint = left + (start - window.start_s) * scale, series_color(config, series.name, value)
            length = min((end - start) * scale, right - x)
            height = row * panel["options"]["rowHeight"]
            axes.barh(middle, length, height, x, color=paint, alpha=config["custom.fillOpacity"] / 100, lw=0)
            mapped = value_mapping(config, value)
            words = mapped["text"] if mapped is not None else f"{value:g}"
            if length > 6.5 * len(words) + 8:
                axes.text(x + 6, middle, words, color="white", fontsize=8, va="center")
    for tick in np.linspace(window.start_s, window.end_s, 6)[1:-1]:
        time_label = f"{datetime.fromtimestamp(tick, UTC):%H:%M:%S}"
        axes.text(
            left + (tick - window.start_s) * scale, axes_height - 20, time_label, color=DIM, fontsize=7.5, ha="center"
        )


def _value_periods(series: Series) -> list[tuple[float, float, float]]:
    """Return (start, end, value) of the periods of constant value, in seconds; periods without a value are left out."""
    periods: list[tuple[float, float, float]] = []
    step = float(series.times[1] - series.times[0])
    for time, value in zip(series.times, series.values, strict=True):
        if math.isnan(value):
            continue
        start = float(time)
        if periods and periods[-1][2] == value and math.isclose(periods[-1][1], time):
            start = periods.pop()[0]
        periods.append((start, float(time) + step, float(value)))
    return periods


def draw_table(axes: Axes, panel: JSON, series_list: Sequence[Series], _window: Window) -> None:
    """Draw a table with a row for each value of the label by which the panel joins the queries."""
    if not series_list:
        _draw_message(axes, panel["fieldConfig"]["defaults"]["noValue"])
        return
    join, _, order = (transformation["options"] for transformation in panel["transformations"])
    headings: Mapping[str, str] = order["renameByName"]
    rows: dict[str, dict[str, float | str]] = {}
    for series in series_list:
        cells = rows.setdefault(series.labels[join["byField"]], {})
        cells.update({headings[label]: value for label, value in series.labels.items() if label in headings})
        if f"Value #{series.ref}" in headings:
            cells[headings[f"Value #{series.ref}"]] = series.last
    width, _ = _axes_size(axes)
    part = (width - 24) / len(headings)
    for index, name in enumerate(sorted(headings, key=order["indexByName"].__getitem__)):
        heading = headings[name]
        axes.text(14 + index * part, 12, heading, color="#6e9fff", fontsize=9, va="center", weight="bold")
        config = series_settings(panel, "", heading)
        for line, key in enumerate(sorted(rows)):
            words, paint = _format_cell(config, rows[key].get(heading, math.nan))
            axes.text(14 + index * part, 44 + 32 * line, words, color=paint, fontsize=9.5, va="center")
    for line in range(len(rows) + 1):
        axes.plot([8, width - 8], [28 + 32 * line] * 2, color=BORDER, lw=0.8)


def _format_cell(config: JSON, value: float | str) -> tuple[str, str]:
    """Return the text and the colour of a cell."""
    if isinstance(value, str):
        return value, "#6e9fff" if "links" in config else TEXT
    if math.isnan(value):
        return config["noValue"], DIM
    if config["custom.cellOptions"]["type"] != "color-text":
        return format_value(config, value), TEXT
    mapped = value_mapping(config, value)
    paint = hex_color(mapped["color"]) if mapped else step_color(config["thresholds"]["steps"], value)
    return format_value(config, value), paint


PAINTERS = {
    "stat": draw_stat,
    "timeseries": draw_time_series,
    "state-timeline": draw_state_timeline,
    "table": draw_table,
}
