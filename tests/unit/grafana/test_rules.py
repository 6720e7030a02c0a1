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
from deploy.alerting.rules import JSON, SYSTEM, Addresses, Alert
from grafana.generate import build_boards
from tests.support.promql import exported_series, nodes, selectors

ROOT = Path(__file__).parents[3]
RUNBOOK = (ROOT / "docs" / "runbook.md").read_text(encoding="utf-8")
SECTIONS = {section.split("\n")[0]: section for section in RUNBOOK.split("\n## ")[1:]}
SNIPPETS = re.findall(r"```promql\n(.*?)```", RUNBOOK, flags=re.DOTALL)

CONTENT: JSON = yaml.safe_load(RULES.read_text(encoding="utf-8"))
RULES_IN_FILE = [rule for group in CONTENT["groups"] for rule in group["rules"]]
RECORDINGS = [recording for group in GROUPS for recording in group.recordings]
ALERTS = [alert for group in GROUPS for alert in group.alerts]

OF_PROMETHEUS = {"up": set[str](), "process_start_time_seconds": set[str]()}
"""What Prometheus adds itself, and what every client library exports."""
OF_TARGETS = {*SYSTEM, "instance"}


@pytest.fixture(scope="module")
def known_labels() -> dict[str, set[str]]:
    """Return the labels of all series that a rule may use: exported, recorded, or added by Prometheus."""
    recorded = {recording.record: set(recording.labels) for recording in RECORDINGS}
    scraped = {name: labels | OF_TARGETS for name, labels in {**exported_series(), **OF_PROMETHEUS}.items()}
    return {**scraped, **recorded}


def replaced_labels(expr: str) -> set[str]:
    """Return the labels that `label_replace` sets in an expression."""
    calls = [node for node in nodes(expr) if isinstance(node, promql_parser.Call) and node.func.name == "label_replace"]
    return {node.args[1].val for node in calls}


class TestFile:
    """The file in the repository."""

    def test_the_file_equals_the_generated_rules(self) -> None:
        """Rules are changed in the code, never in the file; Prometheus loads no other file."""
        assert RULES.read_text(encoding="utf-8") == rendered(Addresses())
        assert [path.name for path in RULES.parent.iterdir()] == [RULES.name]

    def test_the_command_checks_the_file_and_accepts_other_addresses(self, tmp_path: Path) -> None:
        """Continuous integration runs `--check`; installations have different addresses."""
        command = [sys.executable, "-m", "deploy.alerting.generate"]
        assert subprocess.run([*command, "--check"], cwd=ROOT, check=False).returncode == 0
        rules_file = tmp_path / "rules.yml"
        addresses = ["--grafana", "https://grafana.example.org/", "--runbook", "https://example.org/runbook"]
        subprocess.run([*command, "--out", str(rules_file), *addresses], cwd=ROOT, check=True)
        text = rules_file.read_text(encoding="utf-8")
        assert "dashboard_url: https://grafana.example.org/d/abmonitor-experiment?" in text
        assert "runbook_url: https://example.org/runbook#drop" in text
        assert "localhost" not in text
        check = subprocess.run(
            [*command, "--check", "--out", str(rules_file)], cwd=ROOT, check=False, capture_output=True
        )
        assert check.returncode == 1
        assert check.stderr.count(b"\n") == 1

    def test_rule_names_are_unique(self) -> None:
        """Equal names would hide a rule from tests that select by name."""
        names = [rule.get("alert", rule.get("record")) for rule in RULES_IN_FILE]
        assert len(set(names)) == len(names)


class TestCompression:
    """Rules with shorter times, for drills."""

    def test_compressed_rules_differ_only_in_times(self) -> None:
        """A drill tests the real rules, a hundred times faster."""
        fast = yaml.safe_load(rendered(Addresses(), 100))
        exact = yaml.safe_load(rendered(Addresses()))
        times = re.compile(r"(?<=\[)\d+\w+(?=\])|(?<= offset )\w+")
        duration_keys = ("for", "keep_firing_for")
        for group, real_group in zip(fast["groups"], exact["groups"], strict=True):
            assert group["interval"] == "1000ms"
            for rule, real in zip(group["rules"], real_group["rules"], strict=True):
                durations = [
                    [version.pop(key, "0s") for key in duration_keys] + times.findall(version["expr"])
                    for version in (rule, real)
                ]
                lengths = [[milliseconds(time) for time in version] for version in durations]
                assert [100 * length for length in lengths[0]] == lengths[1]
                assert {**rule, "expr": times.sub("", rule["expr"])} == {**real, "expr": times.sub("", real["expr"])}

    def test_compressed_rules_never_overwrite_the_real_rules(self) -> None:
        """Compressed rules would fire at every fluctuation."""
        command = [sys.executable, "-m", "deploy.alerting.generate", "--compress", "100"]
        result = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
        assert result.returncode == 2
        assert "--compress: got 100" in result.stderr


@pytest.mark.parametrize("rule", RULES_IN_FILE, ids=lambda rule: rule.get("alert", rule.get("record")))
class TestExpressions:
    """Each expression in the rules file."""

    def test_the_rule_uses_only_exported_or_recorded_series(
        self, rule: JSON, known_labels: dict[str, set[str]]
    ) -> None:
        """Metrics and the labels that select them are in the exporter's catalogue, or recorded by a rule before."""
        recorded_before = {
            earlier_rule["record"]
            for earlier_rule in RULES_IN_FILE[: RULES_IN_FILE.index(rule)]
            if "record" in earlier_rule
        }
        for selector in selectors(rule["expr"]):
            assert selector.name in known_labels, selector.name
            assert ":" not in str(selector.name) or selector.name in recorded_before, selector.name
            assert {matcher.name for matcher in selector.matchers.matchers} <= known_labels[str(selector.name)], (
                selector.name
            )

    def test_the_rule_groups_and_matches_by_existing_labels(
        self, rule: JSON, known_labels: dict[str, set[str]]
    ) -> None:
        """A misspelt label would join everything with everything, or nothing."""
        labels = replaced_labels(rule["expr"]) | set(SYSTEM)
        for node in nodes(rule["expr"]):
            if isinstance(node, promql_parser.AggregateExpr) and node.modifier is not None:
                metric_labels = [known_labels[str(selector.name)] for selector in selectors(node.expr.prettify())]
                assert set(node.modifier.labels) <= set().union(*metric_labels)
            if isinstance(node, promql_parser.BinaryExpr) and node.modifier and node.modifier.matching:
                for side in (node.lhs, node.rhs):
                    metric_labels = [known_labels[str(selector.name)] for selector in selectors(side.prettify())]
                    assert set(node.modifier.matching.labels) <= labels.union(*metric_labels)

    def test_the_rule_keeps_the_labels_that_tell_systems_apart(self, rule: JSON) -> None:
        """Otherwise the numbers of two environments with the same experiment would be mixed, or hide each other."""
        for node in nodes(rule["expr"]):
            if isinstance(node, promql_parser.AggregateExpr):
                assert node.modifier is not None, node.prettify()
                assert set(SYSTEM) <= set(node.modifier.labels), node.prettify()
            if isinstance(node, promql_parser.BinaryExpr) and node.modifier and node.modifier.matching:
                labels = set(node.modifier.matching.labels)
                assert labels == {"job"} or set(SYSTEM) <= labels, node.prettify()

    def test_the_rule_takes_rates_only_of_counters(self, rule: JSON) -> None:
        """A revised reaction lowers a sum; `increase()` would take that for a restart."""
        for node in nodes(rule["expr"]):
            if isinstance(node, promql_parser.Call) and node.func.name in {"rate", "increase"}:
                (selector,) = selectors(node.prettify())
                assert str(selector.name).endswith(("_total", "_bucket", "_count"))
                assert not str(selector.name).startswith("abmonitor_metric_")


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
class TestAlerts:
    """The texts and links of alerts."""

    def test_the_alert_has_a_summary_and_a_description(self, alert: Alert) -> None:
        """The summary is a line, the description consists of sentences."""
        assert len(alert.summary) < 160
        assert not alert.summary.endswith(".")
        assert alert.description.endswith(".")
        assert alert.description != alert.summary

    def test_the_alert_links_to_its_runbook_section(self, alert: Alert) -> None:
        """The section begins with the names of its alerts, followed by the parts Means, Check, Do and Over."""
        address = urlsplit(alert.rendered(Addresses())["annotations"]["runbook_url"])
        assert address.path == "/runbook"
        section = SECTIONS[address.fragment]
        assert re.findall(r"\*\*(\w+)\.\*\*", section) == ["Means", "Check", "Do", "Over"]
        head, _, _ = section.partition("**Means.**")
        related_alerts = [related_alert for related_alert in ALERTS if related_alert.concern == alert.concern]
        assert set(re.findall(r"`(\w+)`", head)) == {related_alert.name for related_alert in related_alerts}

    def test_the_alert_links_to_a_board_and_sets_its_variables(self, alert: Alert) -> None:
        """The board exists and has every variable of the link."""
        address = urlsplit(alert.rendered(Addresses())["annotations"]["dashboard_url"])
        (board,) = [board for board in build_boards().values() if address.path == f"/d/{board['uid']}"]
        query = dict(parse_qsl(address.query))
        chosen = {name.removeprefix("var-"): value for name, value in query.items() if name.startswith("var-")}
        assert set(chosen) <= {variable["name"] for variable in board["templating"]["list"]}
        assert all(value == f"{{{{ $labels.{name} | urlquery }}}}" for name, value in chosen.items())
        assert query["to"] == "now"

    def test_related_alerts_differ_in_severity_and_share_a_team(self, alert: Alert) -> None:
        """Alertmanager inhibits the milder alerts of a concern."""
        related_alerts = [related_alert for related_alert in ALERTS if related_alert.concern == alert.concern]
        assert len({related_alert.severity for related_alert in related_alerts}) == len(related_alerts)
        assert {related_alert.team for related_alert in related_alerts} == {alert.team}


class TestRunbook:
    """The runbook as a whole."""

    def test_every_runbook_section_has_an_alert(self) -> None:
        """A section without an alert is obsolete."""
        assert set(SECTIONS) == {alert.concern for alert in ALERTS}

    def test_runbook_links_lead_to_sections(self) -> None:
        """All anchors are sections of the runbook."""
        assert set(re.findall(r"\]\(#([\w-]+)\)", RUNBOOK)) <= set(SECTIONS)

    def test_quoted_log_lines_exist_in_the_code(self) -> None:
        """A reader searches the log for them; … stands for values."""
        code = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "monitor").rglob("*.py"))
        log_lines = re.findall(r"`([^`]+=…[^`]*|watermark [^`]+)`", RUNBOOK)
        assert len(log_lines) >= 3
        for log_line in log_lines:
            for fragment in log_line.split("…"):
                assert fragment.strip() in code, log_line

    def test_named_panels_exist(self) -> None:
        """Words in italics are titles of panels, or beginnings of titles."""
        titles = [panel["title"] for board in build_boards().values() for panel in board["panels"]]
        for name in set(re.findall(r"(?<!\*)\*([A-Z][^*]+)\*(?!\*)", RUNBOOK)) - {"Status → Targets"}:
            assert any(title.startswith(name) for title in titles), name

    @pytest.mark.parametrize("expr", [line for snippet in SNIPPETS for line in snippet.splitlines()])
    def test_runbook_queries_use_only_known_series(self, expr: str, known_labels: dict[str, set[str]]) -> None:
        """Queries of the runbook work as written."""
        assert {str(selector.name) for selector in selectors(expr)} <= set(known_labels)
