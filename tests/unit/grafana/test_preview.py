"""A preview shows every panel of every board, where the board puts it, as its overrides say."""

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

from grafana.generate import boards
from grafana.panels import JSON
from grafana.preview.__main__ import main
from grafana.preview.drawing import drawn
from grafana.preview.fields import color, configured, number, text
from grafana.preview.prometheus import Series, Window
from tests.servers.process import free_port

BOARDS = boards()
WINDOW = Window(1_700_000_000, 1_700_000_600, 10)
VALUES = {**WINDOW.variables, "experiment": "ranker-v2", "metric": "dcg@5", "decay": "24h", "kind": "escalated"}
LABELS = {
    "experiment": "ranker-v2", "primary": "dcg@5", "control": "control", "variant": "treatment", "topic": "t",
    "category": "fractions",
}  # fmt: skip


def panels(board: JSON) -> list[JSON]:
    """Return the panels that show something."""
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def series(target: JSON) -> Series:
    """Return what a query might return: numbers that rise from 0 to 1."""
    times = np.linspace(*WINDOW[:2], 61)
    name = target["legendFormat"].replace("{{variant}}", "treatment").replace("{{", "").replace("}}", "")
    return Series(target["refId"], name, LABELS, times, np.linspace(0, 1, 61).round())


def answers(board: JSON, *, empty: bool = False) -> dict[str, list[Series]]:
    """Return an answer to each query of the board."""
    return {panel["title"]: [series(each) for each in panel["targets"] if not empty] for panel in panels(board)}


def picture(name: str, *, empty: bool = False) -> dict[str, Axes]:
    """Return the axes of a drawn board by their labels."""
    figure = drawn(BOARDS[name], answers(BOARDS[name], empty=empty), VALUES, WINDOW)
    figure.draw_without_rendering()
    return {str(axes.get_label()): axes for axes in everything(figure)}


def everything(figure: Figure) -> Sequence[Any]:
    """Return all axes, those inside of others too."""
    return [inner for axes in figure.axes for inner in (axes, *axes.child_axes)]


def words(axes: Axes) -> list[str]:
    """Return the texts of a panel."""
    return [child.get_text() for child in axes.get_children() if isinstance(child, Text) and child.get_text()]


@pytest.mark.parametrize("name", BOARDS)
def test_every_panel_is_drawn(name: str) -> None:
    """Each series is a line, a number, a bar or a cell."""
    found = picture(name)
    for panel in panels(BOARDS[name]):
        axes, count = found[panel["title"]], len(panel["targets"])
        if panel["type"] == "timeseries":
            assert len(found[f"{panel['title']} plot"].lines) >= count, panel["title"]
        elif panel["type"] == "stat":
            assert len(words(axes)) == 2 * count, panel["title"]
        elif panel["type"] == "table":
            assert len(words(axes)) == 2 * len(panel["transformations"][2]["options"]["renameByName"])
        else:
            assert len(axes.patches) >= 2 * count, panel["title"]


@pytest.mark.parametrize("name", BOARDS)
def test_an_empty_panel_says_so(name: str) -> None:
    """In the panel's own words if it has some."""
    found = picture(name, empty=True)
    for panel in panels(BOARDS[name]):
        wanted = panel["fieldConfig"]["defaults"]["noValue"] if panel["type"] == "stat" else "No data"
        assert words(found[panel["title"]]) == [wanted]


@pytest.mark.parametrize("name", BOARDS)
def test_panels_stand_where_the_board_puts_them(name: str) -> None:
    """A panel further right or down on the grid is so in the picture, in proportion."""
    found = picture(name)
    places = {panel["title"]: panel["gridPos"] for panel in panels(BOARDS[name])}
    for title, at in places.items():
        box = found[title].get_position()
        assert math.isclose(box.x0, at["x"] / 24, abs_tol=0.01), title
        assert math.isclose(box.width, at["w"] / 24, abs_tol=0.01), title
    order = sorted(
        places, key=lambda title: (-round(found[title].get_position().y1, 4), found[title].get_position().x0)
    )
    assert order == list(places)


def test_lines_have_the_colours_of_the_board() -> None:
    """The control is grey, the treatment blue, the edges dashed and not in the legend."""
    title = "$metric, decayed ($decay)"
    found = picture("experiment.json")
    lines = found[f"{title} plot"].lines
    assert [to_hex(line.get_color()) for line in lines] == ["#8e8e8e", "#3274d9"] * 3
    assert [line.is_dashed() for line in lines] == [False] * 2 + [True] * 4
    assert len(words(found[title])) == 2


def test_thresholds_are_drawn_where_they_are_in_sight() -> None:
    """The others would flatten the graph."""
    (panel,) = [panel for panel in panels(BOARDS["pipeline.json"]) if panel["title"] == "Commit time"]
    plot = picture("pipeline.json")["Commit time plot"]
    assert len(plot.lines) == len(panel["targets"]) + 1
    assert np.array_equal(plot.lines[-1].get_ydata(), [1, 1])


def test_values_are_words_where_the_board_has_some() -> None:
    """A verdict is a word in its colour."""
    (panel,) = [panel for panel in panels(BOARDS["experiment.json"]) if panel["title"] == "Verdict"]
    config = configured(panel, "A", "treatment")
    assert (text(config, 6), color(config, "treatment", 6)) == ("stop: harm", "#f2495c")


@pytest.mark.parametrize(
    ("unit", "value", "decimals", "shown"),
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
def test_numbers_have_their_units(unit: str, value: float, decimals: int | None, shown: str) -> None:
    """Scaled to a size that a person reads."""
    assert number(unit, value, decimals) == shown


@pytest.mark.parametrize("name", BOARDS)
def test_an_axis_has_few_ticks(name: str) -> None:
    """Also where its ends are given by the board and not by the data."""
    for label, axes in picture(name).items():
        if label.endswith(" plot"):
            assert 2 <= len(axes.get_yticks()) <= 8, label


def test_gaps_stay_gaps() -> None:
    """A time without a value divides a bar, and equal values beside each other are one."""
    board: Any = BOARDS["pipeline.json"]
    gap = series(board["panels"][1]["targets"][0])
    gap.values[:] = 1
    gap.values[20:30] = np.nan
    found = {**answers(board), "State": [gap]}
    figure = drawn(board, found, VALUES, WINDOW)
    (axes,) = [axes for axes in figure.axes if axes.get_label() == "State"]
    assert len(axes.patches) == 2


def test_a_prometheus_that_does_not_answer_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The exit code is that of a missing dependency."""
    assert main(["--prometheus", f"http://127.0.0.1:{free_port()}", "--out", str(tmp_path)]) == 3
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize("wrong", [["--prometheus", "localhost:9090"], ["--minutes", "0"], ["--minutes", "an hour"]])
def test_a_wrong_flag_is_named(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """With what was expected."""
    with pytest.raises(SystemExit) as ended:
        main(wrong)
    assert ended.value.code == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert wrong[0] in said
    assert wrong[1] in said
    assert "expected" in said
