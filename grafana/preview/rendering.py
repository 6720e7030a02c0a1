"""Every board as a PNG, from what a Prometheus has."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from grafana.generate import boards
from grafana.panels import JSON
from grafana.preview.drawing import DPI, Answers, drawn
from grafana.preview.prometheus import Prometheus, Window
from grafana.queries import filled_in

COLORS = 200
"""Of a picture, the most frequent ones; the others are shades at the edges of letters. A third of the bytes."""


def chosen(board: JSON, prometheus: Prometheus, window: Window) -> dict[str, str]:
    """Return the board's variables as a first visit chooses them: the default where it exists, else the first value."""
    values = window.variables
    for choice in board["templating"]["list"][1:]:
        found = prometheus.offered(filled_in(choice["query"]["query"], values), window)
        default = choice.get("current", {}).get("value")
        values[choice["name"]] = default if default in found else next(iter(found), "")
    return values


def answered(board: JSON, prometheus: Prometheus, values: dict[str, str], window: Window) -> Answers:
    """Return what the queries of each panel return."""
    return {
        panel["title"]: [series for target in panel["targets"] for series in prometheus.answer(target, values, window)]
        for panel in board["panels"]
        if panel["type"] != "row"
    }


def save(figure: Figure, path: Path) -> None:
    """Write a picture as a small PNG."""
    raw = BytesIO()
    figure.savefig(raw, format="png", dpi=DPI)
    picture = Image.open(raw).convert("RGB")
    pixels = np.asarray(picture, np.uint32) @ np.array([1 << 16, 1 << 8, 1], np.uint32)
    codes, counts = np.unique(pixels, return_counts=True)
    palette = Image.new("P", (1, 1))
    palette.putpalette(
        [int(code) >> shift & 255 for code in codes[np.argsort(-counts)][:COLORS] for shift in (16, 8, 0)]
    )
    picture.quantize(palette=palette, dither=Image.Dither.NONE).save(path, optimize=True)


def preview(url: str, end_s: float, shown_s: float, scrape_s: float, out: Path) -> dict[str, list[str]]:
    """Write board-NAME.png for each board; returns the panels without data by board."""
    prometheus, window = Prometheus(url), Window(end_s - shown_s, end_s, scrape_s)
    out.mkdir(parents=True, exist_ok=True)
    empty = {}
    for name, board in boards().items():
        values = chosen(board, prometheus, window)
        answers = answered(board, prometheus, values, window)
        stem = name.removesuffix(".json")
        save(drawn(board, answers, values, window), out / f"board-{stem}.png")
        empty[stem] = [title for title, found in answers.items() if not found]
    return empty
