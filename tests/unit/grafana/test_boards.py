"""The boards are what the code makes, can be read by a person on call, and ask only for what is exported."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import promql_parser
import pytest

from deploy.alerting.rules import SYSTEM
from grafana import decision
from grafana.generate import DASHBOARDS, build_boards, find_outdated_files, render_board
from grafana.panels import DATASOURCE, JSON
from grafana.queries import Query, board_queries, substitute_variables
from grafana.variables import query_variables
from monitor.export.presentation import STATE_TITLES
from monitor.web import HTTP_PATHS
from tests.support.promql import exported_series, nodes, selectors

ROOT = Path(__file__).parents[3]
LINES_ABOVE_THE_FOLD = 22
"""Grid lines of 38 pixels that a window of 1080 pixels shows below Grafana's own bars."""

VARIABLES = {
    "job": "ab-monitor",
    "cluster": "",
    "namespace": "",
    "environment": "production",
    "experiment": "ranker-v2",
    "metric": "dcg@5",
    "decay": "24h",
    "kind": "escalated",
    "__rate_interval": "1m",
    "__range": "1h",
}
BOARDS = build_boards()
BOARD = BOARDS["experiment.json"]
OF_PROMETHEUS = {
    "ALERTS": {"alertname", "alertstate", "severity", "team", "concern", "experiment", "variant", *SYSTEM},
    "process_resident_memory_bytes": {*SYSTEM, "instance"},
    "process_cpu_seconds_total": {*SYSTEM, "instance"},
}
"""What Prometheus makes of the rules, and what every client library exports."""
QUERIES = [
    pytest.param(query, id=f"{name} {query.panel} {query.ref}")
    for name in BOARDS
    for query in board_queries(BOARDS[name])
]
PANELS = [
    pytest.param(panel, id=f"{name} {panel['title']}")
    for name, board in BOARDS.items()
    for panel in board["panels"]
    if panel["type"] != "row"
]


def data_panels(board: JSON) -> list[JSON]:
    """Return the panels of a board without row titles."""
    return [panel for panel in board["panels"] if panel["type"] != "row"]


class TestFiles:
    """The files in the repository."""

    def test_the_files_equal_the_generated_boards(self) -> None:
        """Boards are changed in the code, never in the files."""
        assert find_outdated_files() == []

    def test_every_provisioned_file_is_generated(self) -> None:
        """A file without code would never be updated."""
        assert {path.name for path in DASHBOARDS.iterdir()} == set(build_boards())

    def test_a_changed_file_is_outdated(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The check compares the whole text."""
        monkeypatch.setattr("grafana.generate.DASHBOARDS", tmp_path)
        for name, board in BOARDS.items():
            (tmp_path / name).write_text(render_board(board), encoding="utf-8")
        assert find_outdated_files() == []
        (tmp_path / "experiment.json").write_text(render_board(BOARD) + " ", encoding="utf-8")
        assert find_outdated_files() == ["experiment.json"]

    def test_the_check_command_succeeds(self) -> None:
        """Continuous integration runs `--check`."""
        command = [sys.executable, "-m", "grafana.generate", "--check"]
        assert subprocess.run(command, cwd=ROOT, check=False).returncode == 0


@pytest.mark.parametrize("name", BOARDS)
class TestBoards:
    """Requirements of Grafana and of readers on each board."""

    def test_the_board_has_a_stable_uid_and_title(self, name: str) -> None:
        """Links and bookmarks stay valid across versions."""
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
        sources = [entry["datasource"] for panel in data_panels(board) for entry in (panel, *panel["targets"])]
        sources += [variable["datasource"] for variable in query_variables(board)]
        sources += [marks["datasource"] for marks in board["annotations"]["list"] if "expr" in marks]
        assert all(source == DATASOURCE == {"type": "prometheus", "uid": "${datasource}"} for source in sources)

    def test_a_menu_links_to_all_boards(self, name: str) -> None:
        """The menu lists boards with the tag, and keeps time range and variables."""
        _, menu = BOARDS[name]["links"]
        assert (menu["type"], menu["asDropdown"], menu["includeVars"], menu["keepTime"]) == ("dashboards", *[True] * 3)
        assert menu["tags"] == BOARDS[name]["tags"] == ["ab-monitor"]

    def test_a_link_leads_to_the_page_of_ab_monitor_about_the_same(self, name: str) -> None:
        """Operators set the address of AB Monitor as a hidden variable, or when they generate the boards."""
        page, _ = BOARDS[name]["links"]
        path = page["url"].removeprefix("${ab_monitor_url:raw}")
        assert path.replace("${experiment:percentencode}", "NAME") in HTTP_PATHS
        board = build_boards("https://monitor.example")[name]
        (address,) = [choice for choice in board["templating"]["list"] if choice["name"] == "ab_monitor_url"]
        assert (address["type"], address["hide"]) == ("constant", 2)
        assert address["query"] == address["current"]["value"] == "https://monitor.example"

    def test_links_lead_to_boards_and_set_their_variables(self, name: str) -> None:
        """A link passes the variables that the target board has."""
        by_uid = {board["uid"]: board for board in BOARDS.values()}
        links = [
            link
            for panel in data_panels(BOARDS[name])
            for link in panel["fieldConfig"]["defaults"].get("links", [])
            + [
                link
                for override in panel["fieldConfig"]["overrides"]
                for setting in override["properties"]
                if setting["id"] == "links"
                for link in setting["value"]
            ]
        ]
        assert links or name == "pipeline.json"
        for link in links:
            if link["url"].startswith("${ab_monitor_url:raw}/"):
                path = re.sub(r"\$\{\w+(\.raw)?:percentencode\}", "NAME", link["url"].partition("}")[2])
                assert path in HTTP_PATHS
                continue
            address = urlsplit(link["url"])
            target_board = by_uid[address.path.removeprefix("/d/")]
            names = {choice["name"] for choice in target_board["templating"]["list"]}
            assert {setting.removeprefix("var-") for setting in re.findall(r"var-\w+", address.query)} <= names
            assert "${datasource:queryparam}" in address.query
            assert "${__url_time_range}" in address.query

    def test_the_variables_choose_one_of_several_systems(self, name: str) -> None:
        """Production and staging may be in one Prometheus; each label offers the values of the labels before."""
        choices = {choice["name"]: choice for choice in BOARDS[name]["templating"]["list"]}
        assert list(choices)[: 1 + len(SYSTEM)] == ["datasource", *SYSTEM]
        for position, label in enumerate(SYSTEM):
            query = choices[label]["query"]["query"]
            assert [earlier for earlier in SYSTEM if f"${earlier}" in query] == list(SYSTEM[:position])

    def test_panels_do_not_overlap(self, name: str) -> None:
        """Every panel has its own place in the grid of 24 columns and its own id."""
        panels = BOARDS[name]["panels"]
        cells: set[tuple[int, int]] = set()
        for panel in panels:
            position = panel["gridPos"]
            assert position["x"] + position["w"] <= 24
            panel_cells = {
                (x, y)
                for x in range(position["x"], position["x"] + position["w"])
                for y in range(position["y"], position["y"] + position["h"])
            }
            assert not cells & panel_cells, panel["title"]
            cells |= panel_cells
        assert len({panel["id"] for panel in panels}) == len(panels)

    def test_at_most_five_graphs_are_visible_without_scrolling(self, name: str) -> None:
        """What matters comes first and fits on one screen."""
        kinds = [panel["type"] for panel in data_panels(BOARDS[name]) if panel["gridPos"]["y"] < LINES_ABOVE_THE_FOLD]
        assert 1 <= len([kind for kind in kinds if kind != "stat"]) <= 5
        ends = [panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in data_panels(BOARDS[name])]
        assert LINES_ABOVE_THE_FOLD in ends

    def test_panel_titles_are_unique(self, name: str) -> None:
        """Descriptions refer to panels by their titles."""
        titles = [panel["title"] for panel in data_panels(BOARDS[name])]
        assert len(set(titles)) == len(titles)

    def test_the_board_is_valid_json(self, name: str) -> None:
        """No NaN, and no types that JSON lacks."""
        assert json.loads(json.dumps(BOARDS[name], allow_nan=False)) == BOARDS[name]


class TestExperiment:
    """The board "AB Monitor: experiment"."""

    def test_each_variable_depends_on_the_variables_before(self) -> None:
        """The metrics offered are those of the experiment, the decays those of the metric."""
        choices = {choice["name"]: choice for choice in BOARD["templating"]["list"]}
        assert list(choices) == ["datasource", *SYSTEM, "experiment", "metric", "decay", "kind", "ab_monitor_url"]
        assert "$experiment" in choices["kind"]["query"]["query"]
        assert "$experiment" in choices["metric"]["query"]["query"]
        assert "$metric" in choices["decay"]["query"]["query"]
        assert 'decay!="none"' in choices["decay"]["query"]["query"]

    def test_the_control_is_grey_in_all_panels_by_variant(self) -> None:
        """Colours are equal in all panels, under any name of the control."""
        variant_panels = [
            panel
            for panel in data_panels(BOARD)
            if panel["targets"][0]["legendFormat"] == "{{variant}}"
            and any(target["refId"].endswith(", control") for target in panel["targets"])
            and (panel["type"] == "timeseries" or panel["fieldConfig"]["defaults"]["color"]["mode"] != "thresholds")
        ]
        assert len(variant_panels) > 9
        for panel in variant_panels:
            grey_refs = {
                entry["matcher"]["options"]
                for entry in panel["fieldConfig"]["overrides"]
                for setting in entry["properties"]
                if setting["id"] == "color" and setting["value"] == {"mode": "fixed", "fixedColor": "#8e8e8e"}
            }
            assert grey_refs == {
                target["refId"] for target in panel["targets"] if target["refId"].endswith(", control")
            }

    @pytest.mark.parametrize("title", ["$metric, recent ($decay half-life)", "$metric, all time"])
    def test_a_mean_has_a_band_of_standard_errors(self, title: str) -> None:
        """Two thin edges per variant, hidden in the legend."""
        (panel,) = [panel for panel in data_panels(BOARD) if panel["title"] == title]
        edges = {target["refId"] for target in panel["targets"] if "standard_error" in target["expr"]}
        assert edges == {"lower", "lower, control", "upper", "upper, control"}
        hidden_refs = {
            entry["matcher"]["options"]
            for entry in panel["fieldConfig"]["overrides"]
            if "custom.hideFrom" in {setting["id"] for setting in entry["properties"]}
        }
        assert hidden_refs == edges

    def test_annotations_use_only_exported_metrics(self) -> None:
        """Deployments are annotations of Grafana, created by the deployment process."""
        annotations = {matcher["name"]: matcher for matcher in BOARD["annotations"]["list"]}
        assert list(annotations) == ["Alerts", "Start", "Shares", "Verdicts", "Deployments"]
        exported = {name: labels | set(SYSTEM) for name, labels in exported_series().items()}
        for name in ("Start", "Shares", "Verdicts"):
            expr = annotations[name]["expr"]
            assert annotations[name]["target"]["expr"] == expr
            metric_selectors = selectors(expr)
            assert all(
                {matcher.name for matcher in selector.matchers.matchers} <= exported[selector.name or ""]
                for selector in metric_selectors
            )
            title_labels = set(re.findall(r"{{(\w+)}}", annotations[name]["titleFormat"]))
            assert all(title_labels <= exported[selector.name or ""] for selector in metric_selectors)
        assert annotations["Deployments"]["target"]["tags"] == ["deployment"]


def test_verdict_states_have_the_texts_of_page_and_terminal() -> None:
    """A state has one name everywhere; a state without a text would be displayed as no verdict."""
    assert {state: text for state, (text, _) in decision.VERDICT_STATES.items()} == STATE_TITLES


class TestExperiments:
    """The board "AB Monitor: experiments"."""

    def test_the_table_columns_are_those_of_the_queries(self) -> None:
        """Grafana silently omits columns that no query returns."""
        (panel,) = [panel for panel in data_panels(BOARDS["experiments.json"]) if panel["type"] == "table"]
        join, names, order = (transformation["options"] for transformation in panel["transformations"])
        assert join["byField"] == "experiment"
        info, *rest = panel["targets"]
        assert all(target["format"] == "table" and target["instant"] for target in panel["targets"])
        labels = reduced_to(promql_parser.parse(info["expr"])) or set()
        offered = labels | {f"Value #{target['refId']}" for target in rest}
        assert set(names["include"]["names"]) == set(order["renameByName"]) == set(order["indexByName"])
        assert set(order["renameByName"]) == offered - {"control"}
        for target in rest:
            assert result_labels(promql_parser.parse(target["expr"])) == {"experiment"}
        headings = set(order["renameByName"].values())
        assert {entry["matcher"]["options"] for entry in panel["fieldConfig"]["overrides"]} <= headings


@pytest.mark.parametrize("panel", PANELS)
def test_every_panel_has_a_description_and_a_unit(panel: JSON) -> None:
    """The description explains the values and what to do."""
    assert panel["description"].count(". ") >= 1
    assert panel["description"].endswith((".", "!"))
    assert panel["type"] == "state-timeline" or panel["fieldConfig"]["defaults"]["unit"]
    assert len({entry["refId"] for entry in panel["targets"]}) == len(panel["targets"])


def test_descriptions_refer_to_existing_panels() -> None:
    """Quoted words are titles of panels or links, states, or sections of the runbook."""
    runbook = (ROOT / "docs" / "runbook.md").read_text(encoding="utf-8")
    words = (
        {text for text, _ in decision.VERDICT_STATES.values()}
        | {
            "paused",
            "not yet",
            "no data",
            "active",
            "quiet",
            "ended",
            "none",
            "Control mean",
            "Largest effect",
            "reason",
            "note",
        }
        | set(re.findall(r"^## ([\w-]+)$", runbook, re.MULTILINE))
        | {link["title"] for board in BOARDS.values() for link in board["links"]}
    )
    titles = [panel["title"] for board in BOARDS.values() for panel in data_panels(board)]
    for board in BOARDS.values():
        for panel in data_panels(board):
            for quoted in set(re.findall(r"“([^”]+)”", panel["description"])) - words:
                assert any(title.startswith(quoted) for title in titles), (panel["title"], quoted)


@pytest.fixture(scope="module")
def exported() -> dict[str, set[str]]:
    """Return the labels of all exported series by name."""
    return {name: labels | {*SYSTEM, "instance"} for name, labels in exported_series().items()} | OF_PROMETHEUS


MASKS = {"and", "unless"}


def operands(expr: promql_parser.Expr) -> list[promql_parser.Expr]:
    """Return the operands of the outermost operators, without the right sides of `and` and `unless`."""
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


def result_labels(expr: promql_parser.Expr) -> set[str]:
    """Return the labels of the result of an expression."""
    return set[str]().union(*(reduced_to(part) or set() for part in operands(expr)))


def replaced_labels(expr: promql_parser.Expr) -> set[str]:
    """Return the labels that `label_replace` sets in an expression."""
    calls = [node for node in nodes(expr.prettify()) if isinstance(node, promql_parser.Call)]
    return {call.args[1].val for call in calls if call.func.name == "label_replace"}


@pytest.mark.parametrize("query", QUERIES)
class TestQueries:
    """Each query of the boards."""

    def test_the_query_uses_only_variables_of_the_board(self, query: Query) -> None:
        """After substitution the query is a valid expression."""
        expr = substitute_variables(query.expr, VARIABLES)
        assert "$" not in expr.replace('"$1"', "")
        promql_parser.parse(expr)

    def test_the_query_reads_only_the_chosen_system(self, query: Query) -> None:
        """Otherwise a panel would mix production and staging."""
        for selector in selectors(substitute_variables(query.expr, VARIABLES)):
            assert set(SYSTEM) <= {matcher.name for matcher in selector.matchers.matchers}, selector.name

    def test_the_query_uses_only_exported_metrics_and_labels(self, query: Query, exported: dict[str, set[str]]) -> None:
        """The catalogue of the exporter contains all of them."""
        for selector in selectors(substitute_variables(query.expr, VARIABLES)):
            assert selector.name in exported, selector.name
            assert {matcher.name for matcher in selector.matchers.matchers} <= exported[selector.name], selector.name

    def test_the_query_groups_by_labels_of_its_metrics(self, query: Query, exported: dict[str, set[str]]) -> None:
        """Grouping by a misspelt label gives one nameless series instead of an error."""
        for node in nodes(substitute_variables(query.expr, VARIABLES)):
            if isinstance(node, promql_parser.AggregateExpr) and node.modifier is not None:
                metric_labels = [exported[str(selector.name)] for selector in selectors(node.expr.prettify())]
                assert set(node.modifier.labels) <= set().union(*metric_labels) | replaced_labels(node.expr)

    def test_the_query_aggregates_over_replicas(self, query: Query) -> None:
        """Several replicas are scraped; a panel draws each variant, topic or reason once."""
        parts = operands(promql_parser.parse(substitute_variables(query.expr, VARIABLES)))
        assert [part.prettify() for part in parts if reduced_to(part) is None] == []

    def test_the_legend_uses_labels_of_the_result(self, query: Query) -> None:
        """A legend of a label that was aggregated away would be empty."""
        legend_labels = {part.split("}}")[0] for part in query.legend.split("{{")[1:]}
        assert legend_labels <= result_labels(promql_parser.parse(substitute_variables(query.expr, VARIABLES)))

    def test_the_query_takes_rates_only_of_counters(self, query: Query) -> None:
        """A revised reaction lowers a sum; `rate()` would take that for a restart and add the whole sum again."""
        for node in nodes(substitute_variables(query.expr, VARIABLES)):
            if isinstance(node, promql_parser.Call) and node.func.name in {"rate", "increase"}:
                (selector,) = selectors(node.prettify())
                assert str(selector.name).endswith(("_total", "_bucket", "_sum", "_count"))
                assert not str(selector.name).startswith("abmonitor_metric_")
