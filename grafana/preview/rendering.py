"""Draws all boards as PNG files with the data of a Prometheus server."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from grafana.generate import build_boards
from grafana.panels import JSON
from grafana.preview.drawing import DPI, SeriesByPanel, draw_board
from grafana.preview.prometheus import PrometheusClient, Window
from grafana.queries import substitute_variables
from grafana.variables import query_variables

MAX_COLORS = 200
"""Number of colours of a PNG. The most frequent colours are kept, the rest are shades at the edges of letters. A
palette reduces the file to a third."""


def choose_variables(board: JSON, prometheus: PrometheusClient, window: Window) -> dict[str, str]:
    """Return the initial values of a board's variables: the default if that value exists, else the first value."""
    values = window.variables
    for choice in query_variables(board):
        offered_values = prometheus.label_values(substitute_variables(choice["query"]["query"], values), window)
        default = choice.get("current", {}).get("value")
        values[choice["name"]] = default if default in offered_values else next(iter(offered_values), "")
    return values


def query_panels(board: JSON, prometheus: PrometheusClient, values: dict[str, str], window: Window) -> SeriesByPanel:
    """Return the series of the queries of each panel: title → series."""
    return {
        panel["title"]: [
            series for target in panel["targets"] for series in prometheus.query_series(target, values, window)
        ]
        for panel in board["panels"]
        if panel["type"] != "row"
    }


def save_png(figure: Figure, path: Path) -> None:
    """Write a figure as a PNG with a palette."""
    raw = BytesIO()
    figure.savefig(raw, format="png", dpi=DPI)
    image = Image.open(raw).convert("RGB")
    pixels = np.asarray(image, np.uint32) @ np.array([1 << 16, 1 << 8, 1], np.uint32)
    codes, counts = np.unique(pixels, return_counts=True)
    palette = Image.new("P", (1, 1))
    palette.putpalette(
        [int(code) >> shift & 255 for code in codes[np.argsort(-counts)][:MAX_COLORS] for shift in (16, 8, 0)]
    )
    image.quantize(palette=palette, dither=Image.Dither.NONE).save(path, optimize=True)


def render_previews(url: str, end_s: float, shown_s: float, scrape_s: float, out: Path) -> dict[str, list[str]]:
    """Write board-NAME.png for each board; returns the panels without data by board."""
    prometheus, window = PrometheusClient(url), Window(end_s - shown_s, end_s, scrape_s)
    out.mkdir(parents=True, exist_ok=True)
    empty = {}
    for name, board in build_boards().items():
        values = choose_variables(board, prometheus, window)
        series_by_panel = query_panels(board, prometheus, values, window)
        stem = name.removesuffix(".json")
        save_png(draw_board(board, series_by_panel, values, window), out / f"board-{stem}.png")
        empty[stem] = [title for title, series in series_by_panel.items() if not series]
    return empty
