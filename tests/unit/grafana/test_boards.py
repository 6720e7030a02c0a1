"""The boards are what the code makes, can be read by a person on call, and ask only for what is exported."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args
from urllib.parse import urlsplit

import promql_parser
import pytest

from grafana import decision
from grafana.generate import DASHBOARDS, boards, outdated, rendered
from grafana.panels import DATASOURCE, JSON
from grafana.queries import Query, filled_in, queries
from monitor.stats import State
from tests.support.promql import exported_series, nodes, selectors

ROOT = Path(__file__).parents[3]
LINES_ABOVE_THE_FOLD = 22
"""Grid lines of 38 pixels that a window of 1080 pixels shows below Grafana's own bars."""

VARIABLES = {
    "experiment": "ranker-v2",
    "metric": "dcg@5",
    "decay": "24h",
    "kind": "escalated",
    "__rate_interval": "1m",
    "__range": "1h",
}
BOARDS = boards()
BOARD = BOARDS["experiment.json"]
OF_PROMETHEUS = {
    "ALERTS": {"alertname", "alertstate", "severity", "team", "concern", "experiment", "variant"},
    "process_resident_memory_bytes": {"job", "instance"},
    "process_cpu_seconds_total": {"job", "instance"},
}
"""What Prometheus makes of the rules, and what every client library exports."""
QUERIES = [
    pytest.param(query, id=f"{name} {query.panel} {query.ref}") for name in BOARDS for query in queries(BOARDS[name])
]
PANELS = [
    pytest.param(panel, id=f"{name} {panel['title']}")
    for name, board in BOARDS.items()
    for panel in board["panels"]
    if panel["type"] != "row"
]


def shown(board: JSON) -> list[JSON]:
    """Return the board's panels without its rows."""
    return [panel for panel in board["panels"] if panel["type"] != "row"]


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
        for name, board in BOARDS.items():
            (tmp_path / name).write_text(rendered(board), encoding="utf-8")
        assert outdated() == []
        (tmp_path / "experiment.json").write_text(rendered(BOARD) + " ", encoding="utf-8")
        assert outdated() == ["experiment.json"]

    def test_the_command_checks(self) -> None:
        """`--check` is what continuous integration runs."""
        command = [sys.executable, "-m", "grafana.generate", "--check"]
        assert subprocess.run(command, cwd=ROOT, check=False).returncode == 0


@pytest.mark.parametrize("name", BOARDS)
class TestBoards:
    """What Grafana needs to load each board, and a reader to find the way."""

    def test_has_a_stable_address(self, name: str) -> None:
        """Links and bookmarks hold across versions."""
        board = BOARDS[name]
        stem = name.removesuffix(".json")
        assert (board["uid"], board["title"]) == (f"abmonitor-{stem}", f"AB Monitor: {stem}")
        assert 39 <= board["schemaVersion"] <= 42
        assert "id" not in board

    def test_the_data_source_is_a_variable(self, name: str) -> None:
        """A provisioned file with `__inputs` would show “data source not found”."""
        board = BOARDS[name]
        assert "__inputs" not in board
        assert board["templating"]["list"][0]["name"] == "datasource"
        asked = [entry["datasource"] for panel in shown(board) for entry in (panel, *panel["targets"])]
        asked += [choice["datasource"] for choice in board["templating"]["list"][1:]]
        asked += [marks["datasource"] for marks in board["annotations"]["list"] if "expr" in marks]
        assert all(source == DATASOURCE == {"type": "prometheus", "uid": "${datasource}"} for source in asked)

    def test_leads_to_the_others_from_one_menu(self, name: str) -> None:
        """The menu lists what has the tag, and keeps the time and the choices."""
        (menu,) = BOARDS[name]["links"]
        assert (menu["type"], menu["asDropdown"], menu["includeVars"], menu["keepTime"]) == ("dashboards", *[True] * 3)
        assert menu["tags"] == BOARDS[name]["tags"] == ["ab-monitor"]

    def test_its_links_lead_to_boards_and_their_variables(self, name: str) -> None:
        """A link takes along what the other board asks for."""
        by_uid = {board["uid"]: board for board in BOARDS.values()}
        found = [
            link
            for panel in shown(BOARDS[name])
            for link in panel["fieldConfig"]["defaults"].get("links", [])
            + [
                link
                for override in panel["fieldConfig"]["overrides"]
                for each in override["properties"]
                if each["id"] == "links"
                for link in each["value"]
            ]
        ]
        assert found or name == "pipeline.json"
        for link in found:
            address = urlsplit(link["url"])
            other = by_uid[address.path.removeprefix("/d/")]
            names = {choice["name"] for choice in other["templating"]["list"]}
            assert {each.removeprefix("var-") for each in re.findall(r"var-\w+", address.query)} <= names
            assert "${datasource:queryparam}" in address.query
            assert "${__url_time_range}" in address.query

    def test_panels_do_not_overlap(self, name: str) -> None:
        """Every panel has its own place in the grid of 24 columns and its own id."""
        panels = BOARDS[name]["panels"]
        cells: set[tuple[int, int]] = set()
        for panel in panels:
            at = panel["gridPos"]
            assert at["x"] + at["w"] <= 24
            place = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
            assert not cells & place, panel["title"]
            cells |= place
        assert len({panel["id"] for panel in panels}) == len(panels)

    def test_at_most_five_graphs_are_seen_without_scrolling(self, name: str) -> None:
        """What matters comes first and fits on one screen."""
        kinds = [panel["type"] for panel in shown(BOARDS[name]) if panel["gridPos"]["y"] < LINES_ABOVE_THE_FOLD]
        assert 1 <= len([kind for kind in kinds if kind != "stat"]) <= 5
        ends = [panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in shown(BOARDS[name])]
        assert LINES_ABOVE_THE_FOLD in ends

    def test_titles_are_unique(self, name: str) -> None:
        """Descriptions refer to panels by their titles."""
        titles = [panel["title"] for panel in shown(BOARDS[name])]
        assert len(set(titles)) == len(titles)

    def test_has_no_value_that_json_lacks(self, name: str) -> None:
        """The file is JSON for every reader."""
        assert json.loads(json.dumps(BOARDS[name], allow_nan=False)) == BOARDS[name]


class TestExperiment:
    """The board of one experiment."""

    def test_each_choice_depends_on_the_ones_before(self) -> None:
        """An experiment offers only its own metrics, a metric only its own decays."""
        choices = {choice["name"]: choice for choice in BOARD["templating"]["list"]}
        assert list(choices) == ["datasource", "experiment", "metric", "decay", "kind"]
        assert "$experiment" in choices["kind"]["query"]["query"]
        assert "$experiment" in choices["metric"]["query"]["query"]
        assert "$metric" in choices["decay"]["query"]["query"]
        assert 'decay!="none"' in choices["decay"]["query"]["query"]

    def test_the_control_is_grey_wherever_variants_are_drawn(self) -> None:
        """A reader learns the colours once, whatever the control's name is."""
        drawn = [
            panel
            for panel in shown(BOARD)
            if panel["targets"][0]["legendFormat"] == "{{variant}}"
            and any(target["refId"].endswith(", control") for target in panel["targets"])
            and (panel["type"] == "timeseries" or panel["fieldConfig"]["defaults"]["color"]["mode"] != "thresholds")
        ]
        assert len(drawn) > 9
        for panel in drawn:
            grey = {
                entry["matcher"]["options"]
                for entry in panel["fieldConfig"]["overrides"]
                for each in entry["properties"]
                if each["id"] == "color" and each["value"] == {"mode": "fixed", "fixedColor": "#8e8e8e"}
            }
            assert grey == {target["refId"] for target in panel["targets"] if target["refId"].endswith(", control")}

    @pytest.mark.parametrize("title", ["$metric, decayed ($decay)", "$metric, all time"])
    def test_a_mean_has_its_band(self, title: str) -> None:
        """Two thin edges per arm, without a name in the legend."""
        (panel,) = [panel for panel in shown(BOARD) if panel["title"] == title]
        edges = {target["refId"] for target in panel["targets"] if "standard_error" in target["expr"]}
        assert edges == {"lower", "lower, control", "upper", "upper, control"}
        hidden = {
            entry["matcher"]["options"]
            for entry in panel["fieldConfig"]["overrides"]
            if "custom.hideFrom" in {each["id"] for each in entry["properties"]}
        }
        assert hidden == edges

    def test_marks_name_only_what_is_exported(self) -> None:
        """Start, shares, verdicts; deployments are annotations of Grafana's own, written by whoever deploys."""
        marks = {each["name"]: each for each in BOARD["annotations"]["list"]}
        assert list(marks) == ["Alerts", "Start", "Shares", "Verdicts", "Deployments"]
        exported = exported_series()
        for name in ("Start", "Shares", "Verdicts"):
            expr = marks[name]["expr"]
            assert marks[name]["target"]["expr"] == expr
            found = selectors(expr)
            assert all({each.name for each in one.matchers.matchers} <= exported[one.name or ""] for one in found)
            wanted = set(re.findall(r"{{(\w+)}}", marks[name]["titleFormat"]))
            assert all(wanted <= exported[one.name or ""] for one in found)
        assert marks["Deployments"]["target"]["tags"] == ["deployment"]


def test_every_state_of_a_verdict_has_its_word() -> None:
    """A state without one would be shown as no verdict at all."""
    assert set(decision.STATES) == set(get_args(State))


class TestExperiments:
    """The board of all experiments."""

    def test_the_columns_are_what_the_queries_return(self) -> None:
        """A column that no query returns would be missing without a word."""
        (panel,) = [panel for panel in shown(BOARDS["experiments.json"]) if panel["type"] == "table"]
        join, names, order = (each["options"] for each in panel["transformations"])
        assert join["byField"] == "experiment"
        info, *rest = panel["targets"]
        assert all(target["format"] == "table" and target["instant"] for target in panel["targets"])
        labels = reduced_to(promql_parser.parse(info["expr"])) or set()
        offered = labels | {f"Value #{target['refId']}" for target in rest}
        assert set(names["include"]["names"]) == set(order["renameByName"]) == set(order["indexByName"])
        assert set(order["renameByName"]) == offered - {"control"}
        for target in rest:
            assert kept(promql_parser.parse(target["expr"])) == {"experiment"}
        headings = set(order["renameByName"].values())
        assert {entry["matcher"]["options"] for entry in panel["fieldConfig"]["overrides"]} <= headings


@pytest.mark.parametrize("panel", PANELS)
def test_every_panel_explains_itself(panel: JSON) -> None:
    """A description says what is shown and what to do; a unit says what the numbers are."""
    assert panel["description"].count(". ") >= 1
    assert panel["description"].endswith((".", "!"))
    assert panel["type"] == "state-timeline" or panel["fieldConfig"]["defaults"]["unit"]
    assert len({entry["refId"] for entry in panel["targets"]}) == len(panel["targets"])


def test_descriptions_refer_to_panels_that_exist() -> None:
    """What is between quotes is a panel's title, a state, or a section of the runbook."""
    runbook = (ROOT / "docs" / "runbook.md").read_text(encoding="utf-8")
    words = (
        {text for text, _ in decision.STATES.values()}
        | {"paused", "no data", "quiet", "over", "none", "Control", "Effect", "because", "note"}
        | set(re.findall(r"^## ([\w-]+)$", runbook, re.MULTILINE))
    )
    titles = [panel["title"] for board in BOARDS.values() for panel in shown(board)]
    for board in BOARDS.values():
        for panel in shown(board):
            for quoted in set(re.findall(r"“([^”]+)”", panel["description"])) - words:
                assert any(title.startswith(quoted) for title in titles), (panel["title"], quoted)


@pytest.fixture(scope="module")
def exported() -> dict[str, set[str]]:
    """Return the labels of every series that there is, by the series' name."""
    return {name: labels | {"job", "instance"} for name, labels in exported_series().items()} | OF_PROMETHEUS


MASKS = {"and", "unless"}


def operands(expr: promql_parser.Expr) -> list[promql_parser.Expr]:
    """Return what the outermost operators combine, from left to right; what only selects is not shown."""
    if isinstance(expr, promql_parser.ParenExpr):
        return operands(expr.expr)
    if isinstance(expr, promql_parser.BinaryExpr):
        return operands(expr.lhs) + ([] if str(expr.op) in MASKS else operands(expr.rhs))
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


def kept(expr: promql_parser.Expr) -> set[str]:
    """Return the labels of what an expression returns."""
    return set[str]().union(*(reduced_to(part) or set() for part in operands(expr)))


def made(expr: promql_parser.Expr) -> set[str]:
    """Return the labels that `label_replace` makes in the expression."""
    calls = [node for node in nodes(expr.prettify()) if isinstance(node, promql_parser.Call)]
    return {call.args[1].val for call in calls if call.func.name == "label_replace"}


@pytest.mark.parametrize("query", QUERIES)
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
                assert set(node.modifier.labels) <= set().union(*inside) | made(node.expr)

    def test_adds_up_or_merges_replicas(self, query: Query) -> None:
        """Several replicas are scraped; the board draws each variant, topic or reason once."""
        parts = operands(promql_parser.parse(filled_in(query.expr, VARIABLES)))
        assert [part.prettify() for part in parts if reduced_to(part) is None] == []

    def test_names_its_series_by_labels_that_it_keeps(self, query: Query) -> None:
        """A legend of a label that was aggregated away would be empty."""
        wanted = {part.split("}}")[0] for part in query.legend.split("{{")[1:]}
        assert wanted <= kept(promql_parser.parse(filled_in(query.expr, VARIABLES)))

    def test_takes_no_rate_of_a_gauge(self, query: Query) -> None:
        """A revised reaction lowers a sum; `rate()` would take that for a restart and add the whole sum again."""
        for node in nodes(filled_in(query.expr, VARIABLES)):
            if isinstance(node, promql_parser.Call) and node.func.name in {"rate", "increase"}:
                (selector,) = selectors(node.prettify())
                assert str(selector.name).endswith(("_total", "_bucket", "_sum", "_count"))
                assert not str(selector.name).startswith("abmonitor_metric_")
