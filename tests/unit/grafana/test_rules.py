"""The rules are what the code makes, ask only for what is exported, and lead to a runbook and a board that exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import promql_parser
import pytest
import yaml

from deploy.alerting.compression import milliseconds
from deploy.alerting.generate import GROUPS, RULES, rendered
from deploy.alerting.rules import JSON, Addresses, Alert
from grafana.generate import boards
from tests.support.promql import exported_series, nodes, selectors

ROOT = Path(__file__).parents[3]
RUNBOOK = (ROOT / "docs" / "runbook.md").read_text(encoding="utf-8")
SECTIONS = {section.split("\n")[0]: section for section in RUNBOOK.split("\n## ")[1:]}
SNIPPETS = re.findall(r"```promql\n(.*?)```", RUNBOOK, flags=re.DOTALL)

CONTENT: JSON = yaml.safe_load(RULES.read_text(encoding="utf-8"))
WRITTEN = [rule for group in CONTENT["groups"] for rule in group["rules"]]
RECORDINGS = [recording for group in GROUPS for recording in group.recordings]
ALERTS = [alert for group in GROUPS for alert in group.alerts]

OF_PROMETHEUS = {"up": set[str](), "process_start_time_seconds": set[str]()}
"""What Prometheus adds itself, and what every client library exports."""
OF_TARGETS = {"job", "instance"}


@pytest.fixture(scope="module")
def known() -> dict[str, set[str]]:
    """Return the labels of everything that a rule may name: exported, recorded, or made by Prometheus."""
    recorded = {recording.record: set(recording.labels) for recording in RECORDINGS}
    scraped = {name: labels | OF_TARGETS for name, labels in {**exported_series(), **OF_PROMETHEUS}.items()}
    return {**scraped, **recorded}


def made(expr: str) -> set[str]:
    """Return the labels that `label_replace` makes in the expression."""
    calls = [node for node in nodes(expr) if isinstance(node, promql_parser.Call) and node.func.name == "label_replace"]
    return {node.args[1].val for node in calls}


class TestFile:
    """The file in the repository."""

    def test_is_what_the_code_makes(self) -> None:
        """A rule is changed in the code, never in its file; no other file is loaded."""
        assert RULES.read_text(encoding="utf-8") == rendered(Addresses())
        assert [path.name for path in RULES.parent.iterdir()] == [RULES.name]

    def test_the_command_checks_and_takes_other_addresses(self, tmp_path: Path) -> None:
        """`--check` is what continuous integration runs; everybody has an address of their own."""
        command = [sys.executable, "-m", "deploy.alerting.generate"]
        assert subprocess.run([*command, "--check"], cwd=ROOT, check=False).returncode == 0
        own = tmp_path / "rules.yml"
        addresses = ["--grafana", "https://grafana.example.org/", "--runbook", "https://example.org/runbook"]
        subprocess.run([*command, "--out", str(own), *addresses], cwd=ROOT, check=True)
        text = own.read_text(encoding="utf-8")
        assert "dashboard_url: https://grafana.example.org/d/abmonitor-experiment?" in text
        assert "runbook_url: https://example.org/runbook#drop" in text
        assert "localhost" not in text
        done = subprocess.run([*command, "--check", "--out", str(own)], cwd=ROOT, check=False, capture_output=True)
        assert done.returncode == 1
        assert done.stderr.count(b"\n") == 1

    def test_names_are_unique(self) -> None:
        """Two rules of one name would answer for each other."""
        names = [rule.get("alert", rule.get("record")) for rule in WRITTEN]
        assert len(set(names)) == len(names)


class TestCompression:
    """Rules for drills."""

    def test_only_times_are_shorter(self) -> None:
        """What a drill shows is what the real rules say, a hundred times faster."""
        fast = yaml.safe_load(rendered(Addresses(), 100))
        exact = yaml.safe_load(rendered(Addresses()))
        times = re.compile(r"(?<=\[)\d+\w+(?=\])|(?<= offset )\w+")
        held = ("for", "keep_firing_for")
        for group, real_group in zip(fast["groups"], exact["groups"], strict=True):
            assert group["interval"] == "1000ms"
            for rule, real in zip(group["rules"], real_group["rules"], strict=True):
                found = [[each.pop(key, "0s") for key in held] + times.findall(each["expr"]) for each in (rule, real)]
                lengths = [[milliseconds(time) for time in each] for each in found]
                assert [100 * length for length in lengths[0]] == lengths[1]
                assert {**rule, "expr": times.sub("", rule["expr"])} == {**real, "expr": times.sub("", real["expr"])}

    def test_never_overwrite_the_real_ones(self) -> None:
        """A drill's rules would warn of every breath."""
        command = [sys.executable, "-m", "deploy.alerting.generate", "--compress", "100"]
        done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
        assert done.returncode == 2
        assert "--compress: got 100" in done.stderr


@pytest.mark.parametrize("rule", WRITTEN, ids=lambda rule: rule.get("alert", rule.get("record")))
class TestExpressions:
    """Each expression, as it is written in the file."""

    def test_asks_only_for_what_there_is(self, rule: JSON, known: dict[str, set[str]]) -> None:
        """Metrics and the labels that select them are in the exporter's catalogue, or recorded by a rule before."""
        before = {each["record"] for each in WRITTEN[: WRITTEN.index(rule)] if "record" in each}
        for selector in selectors(rule["expr"]):
            assert selector.name in known, selector.name
            assert ":" not in str(selector.name) or selector.name in before, selector.name
            assert {matcher.name for matcher in selector.matchers.matchers} <= known[str(selector.name)], selector.name

    def test_groups_and_matches_by_labels_that_exist(self, rule: JSON, known: dict[str, set[str]]) -> None:
        """A misspelt label would join everything with everything, or nothing."""
        labels = made(rule["expr"])
        for node in nodes(rule["expr"]):
            if isinstance(node, promql_parser.AggregateExpr) and node.modifier is not None:
                inside = [known[str(found.name)] for found in selectors(node.expr.prettify())]
                assert set(node.modifier.labels) <= set().union(*inside)
            if isinstance(node, promql_parser.BinaryExpr) and node.modifier and node.modifier.matching:
                for side in (node.lhs, node.rhs):
                    inside = [known[str(found.name)] for found in selectors(side.prettify())]
                    assert set(node.modifier.matching.labels) <= labels.union(*inside)

    def test_takes_no_rate_of_a_gauge(self, rule: JSON) -> None:
        """A revised reaction lowers a sum; `increase()` would take that for a restart."""
        for node in nodes(rule["expr"]):
            if isinstance(node, promql_parser.Call) and node.func.name in {"rate", "increase"}:
                (selector,) = selectors(node.prettify())
                assert str(selector.name).endswith(("_total", "_bucket", "_count"))
                assert not str(selector.name).startswith("abmonitor_metric_")


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
class TestAlerts:
    """What a person gets to see."""

    def test_says_what_is_wrong_and_what_it_rests_on(self, alert: Alert) -> None:
        """A summary is one line, a description is sentences."""
        assert len(alert.summary) < 160
        assert not alert.summary.endswith(".")
        assert alert.description.endswith(".")
        assert alert.description != alert.summary

    def test_leads_to_its_section_of_the_runbook(self, alert: Alert) -> None:
        """The section names the alert and says what it means, how to check, what to do."""
        address = urlsplit(alert.rendered(Addresses())["annotations"]["runbook_url"])
        assert address.path.endswith("/runbook.md")
        section = SECTIONS[address.fragment]
        assert re.findall(r"\*\*(\w+)\.\*\*", section) == ["Means", "Check", "Do"]
        pair = [each for each in ALERTS if each.concern == alert.concern]
        assert len(pair) == 1 or alert.name in section
        (line,) = [line for line in RUNBOOK.splitlines() if line.startswith(f"| [{alert.concern}](#{alert.concern}) |")]
        _, _, names, team, _, _ = (cell.strip() for cell in line.split("|"))
        assert (set(names.split(", ")), team) == ({each.name for each in pair}, alert.team)

    def test_leads_to_a_board_with_its_variables(self, alert: Alert) -> None:
        """The board exists and has every variable that the link fills in from a label."""
        address = urlsplit(alert.rendered(Addresses())["annotations"]["dashboard_url"])
        (board,) = [board for board in boards().values() if address.path == f"/d/{board['uid']}"]
        query = dict(parse_qsl(address.query))
        chosen = {name.removeprefix("var-"): value for name, value in query.items() if name.startswith("var-")}
        assert set(chosen) <= {variable["name"] for variable in board["templating"]["list"]}
        assert all(value == f"{{{{ $labels.{name} | urlquery }}}}" for name, value in chosen.items())
        assert query["to"] == "now"

    def test_those_of_a_concern_differ_in_severity_and_belong_to_one_team(self, alert: Alert) -> None:
        """The severe one silences the milder ones."""
        pair = [each for each in ALERTS if each.concern == alert.concern]
        assert len({each.severity for each in pair}) == len(pair)
        assert {each.team for each in pair} == {alert.team}


class TestRunbook:
    """The runbook beyond its sections."""

    def test_has_no_section_without_an_alert(self) -> None:
        """What can no longer happen is no longer explained."""
        assert set(SECTIONS) == {alert.concern for alert in ALERTS}

    def test_links_lead_somewhere(self) -> None:
        """Anchors are sections."""
        assert set(re.findall(r"\]\(#([\w-]+)\)", RUNBOOK)) <= set(SECTIONS)

    @pytest.mark.parametrize("expr", [line for snippet in SNIPPETS for line in snippet.splitlines()])
    def test_its_queries_ask_for_what_is_exported(self, expr: str, known: dict[str, set[str]]) -> None:
        """At night nobody corrects a query."""
        assert {str(selector.name) for selector in selectors(expr)} <= set(known)
