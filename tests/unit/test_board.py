"""The boards are what the code makes, can be read by a person on call, and ask only for what is exported."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import promql_parser
import pytest

from grafana.generate import DASHBOARDS, boards, outdated, rendered
from grafana.panels import DATASOURCE, JSON
from grafana.queries import Query, filled_in, queries
from tests.support.promql import exported_series, nodes, selectors

ROOT = Path(__file__).parents[2]
LINES_ABOVE_THE_FOLD = 22
"""Grid lines of 38 pixels that a window of 1080 pixels shows below Grafana's own bars."""

VARIABLES = {
    "experiment": "ranker-v2",
    "metric": "dcg@5",
    "decay": "24h",
    "__rate_interval": "1m",
    "__range": "1h",
}
BOARD = boards()["experiment.json"]
QUERIES = list(queries(BOARD))
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]


def named(query: Query) -> str:
    """Return the name of a query in a test report."""
    return f"{query.panel} {query.ref}"


class TestFiles:
    """The files in the repository."""

    def test_are_what_the_code_makes(self) -> None:
        """A board is changed in the code, never in its file."""
        assert outdated() == []

    def test_no_other_file_is_provisioned(self) -> None:
        """A board that no code makes would be shown and never updated."""
        assert {path.name for path in DASHBOARDS.iterdir()} == set(boards())

    def test_a_changed_file_is_noticed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The check compares the whole text."""
        monkeypatch.setattr("grafana.generate.DASHBOARDS", tmp_path)
        (tmp_path / "experiment.json").write_text(rendered(BOARD).replace('"1h"', '"2h"') + " ", encoding="utf-8")
        assert outdated() == ["experiment.json"]

    def test_the_command_checks(self) -> None:
        """`--check` is what continuous integration runs."""
        command = [sys.executable, "-m", "grafana.generate", "--check"]
        assert subprocess.run(command, cwd=ROOT, check=False).returncode == 0


class TestBoard:
    """What Grafana needs to load the board, and a reader to understand it."""

    def test_has_a_stable_address(self) -> None:
        """Links and bookmarks hold across versions."""
        assert (BOARD["uid"], BOARD["title"]) == ("abmonitor-experiment", "AB Monitor: experiment")
        assert 39 <= BOARD["schemaVersion"] <= 42
        assert "id" not in BOARD

    def test_the_data_source_is_a_variable(self) -> None:
        """A provisioned file with `__inputs` would show “data source not found”."""
        assert "__inputs" not in BOARD
        assert BOARD["templating"]["list"][0]["name"] == "datasource"
        asked = [entry["datasource"] for panel in PANELS for entry in (panel, *panel["targets"])]
        asked += [choice["datasource"] for choice in BOARD["templating"]["list"][1:]]
        assert all(source == DATASOURCE == {"type": "prometheus", "uid": "${datasource}"} for source in asked)

    def test_each_choice_depends_on_the_ones_before(self) -> None:
        """An experiment offers only its own metrics, a metric only its own decays."""
        choices = {choice["name"]: choice for choice in BOARD["templating"]["list"]}
        assert list(choices) == ["datasource", "experiment", "metric", "decay"]
        assert "$experiment" in choices["metric"]["query"]["query"]
        assert "$metric" in choices["decay"]["query"]["query"]
        assert 'decay!="none"' in choices["decay"]["query"]["query"]

    def test_panels_do_not_overlap(self) -> None:
        """Every panel has its own place in the grid of 24 columns and its own id."""
        cells: set[tuple[int, int]] = set()
        for panel in BOARD["panels"]:
            at = panel["gridPos"]
            assert at["x"] + at["w"] <= 24
            place = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
            assert not cells & place, panel["title"]
            cells |= place
        assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])

    def test_five_graphs_are_seen_without_scrolling(self) -> None:
        """The comparison comes first and fits on one screen."""
        seen = [panel for panel in PANELS if panel["gridPos"]["y"] + panel["gridPos"]["h"] <= LINES_ABOVE_THE_FOLD]
        assert len([panel for panel in seen if panel["type"] == "timeseries"]) == 5

    def test_has_a_row_for_each_reader(self) -> None:
        """The experiment comes before the pipeline that counts it."""
        rows = [panel["title"] for panel in BOARD["panels"] if panel["type"] == "row"]
        assert rows == ["Experiment", "Pipeline"]

    @pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
    def test_every_panel_explains_itself(self, panel: JSON) -> None:
        """A description says what is shown and what to do; a unit says what the numbers are."""
        assert panel["description"].count(". ") >= 1
        assert panel["description"].endswith((".", "!"))
        assert panel["type"] == "state-timeline" or panel["fieldConfig"]["defaults"]["unit"]
        assert len({entry["refId"] for entry in panel["targets"]}) == len(panel["targets"])

    def test_titles_are_unique(self) -> None:
        """Descriptions refer to panels by their titles."""
        titles = [panel["title"] for panel in PANELS]
        assert len(set(titles)) == len(titles)

    def test_the_control_is_grey_wherever_variants_are_drawn(self) -> None:
        """A reader learns the colours once."""
        drawn = [
            panel
            for panel in PANELS
            if panel["targets"][0]["legendFormat"].startswith("{{variant}}")
            and (panel["type"] == "timeseries" or panel["fieldConfig"]["defaults"]["color"]["mode"] != "thresholds")
        ]
        assert len(drawn) > 8
        for panel in drawn:
            fixed = {entry["matcher"]["options"]: entry["properties"] for entry in panel["fieldConfig"]["overrides"]}
            (color,) = fixed["/^control(,|$)/"]
            assert color["value"] == {"mode": "fixed", "fixedColor": "#8e8e8e"}, panel["title"]

    def test_has_no_value_that_json_lacks(self) -> None:
        """The file is JSON for every reader."""
        assert json.loads(json.dumps(BOARD, allow_nan=False)) == BOARD


@pytest.fixture(scope="module")
def exported() -> dict[str, set[str]]:
    """Return the labels of every series that the exporter's catalogue declares, by the series' name."""
    return exported_series()


def operands(expr: promql_parser.Expr) -> list[promql_parser.Expr]:
    """Return what the outermost arithmetic and comparisons of the expression combine, from left to right."""
    if isinstance(expr, promql_parser.ParenExpr):
        return operands(expr.expr)
    if isinstance(expr, promql_parser.BinaryExpr):
        return operands(expr.lhs) + operands(expr.rhs)
    return [expr]


def reduced_to(operand: promql_parser.Expr) -> set[str] | None:
    """Return the labels that an operand keeps, or None if it is one series per replica."""
    if isinstance(operand, promql_parser.NumberLiteral):
        return set()
    if isinstance(operand, promql_parser.AggregateExpr):
        return set(operand.modifier.labels) if operand.modifier is not None else set()
    if isinstance(operand, promql_parser.Call) and operand.func.name == "time":
        return set()
    if isinstance(operand, promql_parser.Call) and operand.func.name == "histogram_quantile":
        inner = reduced_to(operand.args[1])
        return None if inner is None else inner - {"le"}
    return None


@pytest.mark.parametrize("query", QUERIES, ids=named)
class TestQueries:
    """Each expression of the board."""

    def test_leaves_no_variable_open(self, query: Query) -> None:
        """What the board asks can be filled in from its own variables, and is then an expression."""
        expr = filled_in(query.expr, VARIABLES)
        assert "$" not in expr.replace('"$1"', "")
        promql_parser.parse(expr)

    def test_asks_only_for_what_is_exported(self, query: Query, exported: dict[str, set[str]]) -> None:
        """Metrics and the labels that select them are in the exporter's catalogue."""
        for selector in selectors(filled_in(query.expr, VARIABLES)):
            assert selector.name in exported, selector.name
            assert {matcher.name for matcher in selector.matchers.matchers} <= exported[selector.name], selector.name

    def test_groups_by_labels_that_its_metrics_have(self, query: Query, exported: dict[str, set[str]]) -> None:
        """Grouping by a misspelt label gives one nameless series instead of an error."""
        for node in nodes(filled_in(query.expr, VARIABLES)):
            if isinstance(node, promql_parser.AggregateExpr) and node.modifier is not None:
                inside = [exported[str(found.name)] for found in selectors(node.expr.prettify())]
                assert set(node.modifier.labels) <= set().union(*inside)

    def test_adds_up_or_merges_replicas(self, query: Query) -> None:
        """Several replicas are scraped; the board draws each variant, topic or reason once."""
        parts = operands(promql_parser.parse(filled_in(query.expr, VARIABLES)))
        assert [part.prettify() for part in parts if reduced_to(part) is None] == []

    def test_names_its_series_by_labels_that_it_keeps(self, query: Query) -> None:
        """A legend of a label that was aggregated away would be empty."""
        wanted = {part.split("}}")[0] for part in query.legend.split("{{")[1:]}
        parts = operands(promql_parser.parse(filled_in(query.expr, VARIABLES)))
        assert wanted <= set().union(*(reduced_to(part) or set() for part in parts))

    def test_takes_no_rate_of_a_gauge(self, query: Query) -> None:
        """A revised reaction lowers a sum; `rate()` would take that for a restart and add the whole sum again."""
        for node in nodes(filled_in(query.expr, VARIABLES)):
            if isinstance(node, promql_parser.Call) and node.func.name in {"rate", "increase"}:
                (selector,) = selectors(node.prettify())
                assert str(selector.name).endswith(("_total", "_bucket", "_sum", "_count"))
                assert not str(selector.name).startswith("abmonitor_metric_")
