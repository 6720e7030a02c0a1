"""Addresses of the Grafana boards about the same as a page."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

_BOARDS: Final = {"/": "abmonitor-experiments", "/service": "abmonitor-pipeline"}
"""Path of a page → unique id of the board; the boards are those of `grafana/dashboards`."""
_EXPERIMENT_BOARD: Final = "abmonitor-experiment"


def board_address(grafana_url: str | None, path: str, experiment: str = "") -> str | None:
    """Return the address of the board about an experiment, or about the same as the page at `path`.

    None without a Grafana, and for a page without a board.

    >>> board_address("https://grafana.example.org", "/experiments/a%2Fb/plan", "a/b")
    'https://grafana.example.org/d/abmonitor-experiment?var-experiment=a%2Fb'
    """
    if grafana_url is None:
        return None
    if experiment:
        return f"{grafana_url}/d/{_EXPERIMENT_BOARD}?var-experiment={quote(experiment, safe='')}"
    board = _BOARDS.get(path)
    return None if board is None else f"{grafana_url}/d/{board}"
