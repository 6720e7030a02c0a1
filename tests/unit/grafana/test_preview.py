"""The preview draws every panel of every board, at the grid position and with the configured colours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.text import Text

from grafana.generate import build_boards
from grafana.panels import JSON
from grafana.preview.__main__ import main
from grafana.preview.drawing import draw_board
from grafana.preview.fields import format_number, format_value, series_color, series_settings
from grafana.preview.prometheus import Series, Window
from tests.servers.process import free_port

BOARDS = build_boards()
WINDOW = Window(1_700_000_000, 1_700_000_600, 10)
VALUES = {
    "job": "ab-monitor",
    "cluster": "",
    "namespace": "",
    "environment": "",
    **WINDOW.variables,
    "experiment": "ranker-v2",
    "metric": "dcg@5",
    "decay": "24h",
    "kind": "escalated",
}
LABELS = {
    "experiment": "ranker-v2", "primary": "dcg@5", "control": "control", "variant": "treatment", "topic": "t",
    "category": "fractions",
}  # fmt: skip


def data_panels(board: JSON) -> list[JSON]:
    """Return the panels of a board without row titles."""
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def make_series(target: JSON) -> Series:
    """Return a possible result of a query: values that rise from 0 to 1."""
    times = np.linspace(*WINDOW[:2], 61)
    name = target["legendFormat"].replace("{{variant}}", "treatment").replace("{{", "").replace("}}", "")
    return Series(target["refId"], name, LABELS, times, np.linspace(0, 1, 61).round())


def series_by_panel(board: JSON, *, empty: bool = False) -> dict[str, list[Series]]:
    """Return a result for each query of the board, by panel title."""
    return {
        panel["title"]: [make_series(target) for target in panel["targets"] if not empty]
        for panel in data_panels(board)
    }


def draw_axes(name: str, *, empty: bool = False) -> dict[str, Axes]:
    """Draw a board and return its axes by label."""
    figure = draw_board(BOARDS[name], series_by_panel(BOARDS[name], empty=empty), VALUES, WINDOW)
    figure.draw_without_rendering()
    return {str(axes.get_label()): axes for axes in all_axes(figure)}


def all_axes(figure: Figure) -> Sequence[Any]:
    """Return all axes of a figure, nested axes included."""
    return [nested for axes in figure.axes for nested in (axes, *axes.child_axes)]


def texts(axes: Axes) -> list[str]:
    """Return the texts of a panel."""
    return [child.get_text() for child in axes.get_children() if isinstance(child, Text) and child.get_text()]


@pytest.mark.parametrize("name", BOARDS)
def test_every_panel_is_drawn(name: str) -> None:
    """Each series is a line, a number, a bar or a cell."""
    axes_by_label = draw_axes(name)
    for panel in data_panels(BOARDS[name]):
        axes, count = axes_by_label[panel["title"]], len(panel["targets"])
        if panel["type"] == "timeseries":
            assert len(axes_by_label[f"{panel['title']} plot"].lines) >= count, panel["title"]
        elif panel["type"] == "stat":
            assert len(texts(axes)) == 2 * count, panel["title"]
        elif panel["type"] == "table":
            assert len(texts(axes)) == 2 * len(panel["transformations"][2]["options"]["renameByName"])
        else:
            assert len(axes.patches) >= 2 * count, panel["title"]


@pytest.mark.parametrize("name", BOARDS)
def test_an_empty_panel_has_the_text_for_no_data(name: str) -> None:
    """The text is the reason why there is no data yet."""
    axes_by_label = draw_axes(name, empty=True)
    for panel in data_panels(BOARDS[name]):
        expected_text = panel["fieldConfig"]["defaults"]["noValue"]
        assert [" ".join(text.split()) for text in texts(axes_by_label[panel["title"]])] == [expected_text]


@pytest.mark.parametrize("name", BOARDS)
def test_panels_are_at_their_grid_positions(name: str) -> None:
    """Positions and widths are proportional to the grid."""
    axes_by_label = draw_axes(name)
    positions = {panel["title"]: panel["gridPos"] for panel in data_panels(BOARDS[name])}
    for title, position in positions.items():
        box = axes_by_label[title].get_position()
        assert math.isclose(box.x0, position["x"] / 24, abs_tol=0.01), title
        assert math.isclose(box.width, position["w"] / 24, abs_tol=0.01), title
    order = sorted(
        positions,
        key=lambda title: (-round(axes_by_label[title].get_position().y1, 4), axes_by_label[title].get_position().x0),
    )
    assert order == list(positions)


def test_lines_have_the_colours_of_the_board() -> None:
    """The control is grey, the treatment blue; edges are dashed and not in the legend."""
    title = "$metric, recent ($decay half-life)"
    axes_by_label = draw_axes("experiment.json")
    lines = axes_by_label[f"{title} plot"].lines
    assert [to_hex(line.get_color()) for line in lines] == ["#8e8e8e", "#3274d9"] * 3
    assert [line.is_dashed() for line in lines] == [False] * 2 + [True] * 4
    assert len(texts(axes_by_label[title])) == 2


def test_only_thresholds_within_the_axis_are_drawn() -> None:
    """Other thresholds would flatten the graph."""
    (panel,) = [panel for panel in data_panels(BOARDS["pipeline.json"]) if panel["title"] == "Commit time"]
    plot = draw_axes("pipeline.json")["Commit time plot"]
    assert len(plot.lines) == len(panel["targets"]) + 1
    assert np.array_equal(plot.lines[-1].get_ydata(), [1, 1])


def test_mapped_values_are_displayed_as_texts() -> None:
    """A verdict is a coloured text."""
    (panel,) = [panel for panel in data_panels(BOARDS["experiment.json"]) if panel["title"] == "Verdict"]
    config = series_settings(panel, "A", "treatment")
    assert (format_value(config, 6), series_color(config, "treatment", 6)) == ("Stop", "#f2495c")


@pytest.mark.parametrize(
    ("unit", "value", "decimals", "expected"),
    [
        ("s", 90, None, "1.5 min"),
        ("s", 0.0123, None, "12.3 ms"),
        ("s", 7_200, 0, "2.0 hours"),
        ("s", 12, 0, "12 s"),
        ("percentunit", 0.256, 1, "25.6 %"),
        ("bytes", 3 * 2**20, None, "3.0 MiB"),
        ("short", 12_345, None, "12.3 K"),
        ("short", 0.12345, 3, "0.123"),
        ("short", math.nan, 3, "–"),
        ("d", 4.2, 0, "4 days"),
        ("eps", 1500, 1, "1.5 K eps"),
    ],
)
def test_numbers_are_formatted_with_units(unit: str, value: float, decimals: int | None, expected: str) -> None:
    """Numbers are scaled to a readable size."""
    assert format_number(unit, value, decimals) == expected


@pytest.mark.parametrize("name", BOARDS)
def test_every_value_axis_has_two_to_eight_ticks(name: str) -> None:
    """Also if the board fixes the limits of the axis."""
    for label, axes in draw_axes(name).items():
        if label.endswith(" plot"):
            assert 2 <= len(axes.get_yticks()) <= 8, label


def test_a_gap_divides_the_bar_of_a_timeline() -> None:
    """Adjacent equal values are one period."""
    board: Any = BOARDS["pipeline.json"]
    series_with_gap = make_series(board["panels"][1]["targets"][0])
    series_with_gap.values[:] = 1
    series_with_gap.values[20:30] = np.nan
    panel_series = {**series_by_panel(board), "State": [series_with_gap]}
    figure = draw_board(board, panel_series, VALUES, WINDOW)
    (axes,) = [axes for axes in figure.axes if axes.get_label() == "State"]
    assert len(axes.patches) == 2


def test_an_unreachable_prometheus_is_reported_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The exit code is that of an unavailable dependency."""
    assert main(["--prometheus", f"http://127.0.0.1:{free_port()}", "--out", str(tmp_path)]) == 3
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize(
    "arguments", [["--prometheus", "localhost:9090"], ["--minutes", "0"], ["--minutes", "an hour"]]
)
def test_an_invalid_argument_is_reported_with_the_expected_form(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The message contains flag and value."""
    with pytest.raises(SystemExit) as raised:
        main(arguments)
    assert raised.value.code == 2
    message = capsys.readouterr().err.splitlines()[-1]
    assert arguments[0] in message
    assert arguments[1] in message
    assert "expected" in message
