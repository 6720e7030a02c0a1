"""`ab-monitor plan` as a process: from a store, from assumptions, and its errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.command import ab_monitor

ASSUMPTIONS = (
    "--metric-mean",
    "2.4",
    "--metric-sd",
    "1.5",
    "--responses-per-student",
    "4",
    "--students-per-day",
    "300",
)
CONFIG = """
[store]
url = "embedded:{store}"

[[experiments]]
name = "ranker-v2"
control = "control"
variants = {{ control = 0.5, treatment = 0.5 }}
metrics = ["dcg@5"]
mde = 0.2
min_days = 3
"""


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a configuration whose store has two weeks of simulated events."""
    folder = tmp_path_factory.mktemp("plan")
    path, events = folder / "ab.toml", folder / "events.jsonl"
    path.write_text(CONFIG.format(store=folder / "store"))
    options = ["--responses", "9000", "--students", "3000", "--days", "14", "--out", str(events)]
    assert ab_monitor("simulate", *options).returncode == 0
    assert ab_monitor("replay", "--config", path, events).returncode == 0
    return path


def test_the_plan_of_a_running_experiment_agrees_with_its_verdict(config: Path) -> None:
    """The planned students are the present ones and those of the days that the verdict needs."""
    process = ab_monitor("plan", "ranker-v2", "--config", config, "--json")
    assert (process.returncode, process.stderr) == (0, "")
    plan = json.loads(process.stdout)
    output = ab_monitor("verdict", "ranker-v2", "--config", config, "--json").stdout
    verdict = json.loads(output)["verdict"]["treatment"]
    values = plan["values"]
    assert values["days_to_power"] == verdict["days_to_power"]
    assert values["students"] == [verdict["evidence"]["arms"][name]["units"] for name in ("control", "treatment")]
    even = next(row for row in plan["without_pre_period"] if row["shares"] == {"control": 0.5, "treatment": 0.5})
    planned = even["requirements"][1]["students"]
    per_day = values["assumptions"]["schedule"]["students_per_day"]
    assert planned == pytest.approx(sum(values["students"]) + per_day * verdict["days_to_power"], rel=0.02)
    assert 0.05 < values["correlation"] < 0.5


def test_the_plan_is_readable_in_80_columns(config: Path) -> None:
    """The answer comes first; no line is longer than the terminal."""
    process = ab_monitor("plan", "ranker-v2", "--config", config, environ={"COLUMNS": "80"})
    lines = process.stdout.splitlines()
    assert lines[0] == "Plan of ranker-v2: treatment, dcg@5"
    assert lines[1].startswith("If the treatment gets 50")
    assert max(map(len, lines)) <= 80
    assert "50\u202f% (now)" in process.stdout


def test_assumptions_need_neither_a_configuration_nor_a_store() -> None:
    """With an experiment, its criteria and no store are used."""
    process = ab_monitor("plan", *ASSUMPTIONS, "--correlation", "0.3", "--mde", "3%")
    assert process.returncode == 0
    assert "12\u202f491 students" in process.stdout


def test_assumptions_with_an_experiment_use_its_criteria(tmp_path: Path) -> None:
    """The store does not exist yet."""
    path = tmp_path / "ab.toml"
    path.write_text(CONFIG.format(store=tmp_path / "store"))
    process = ab_monitor("plan", "ranker-v2", "--config", path, *ASSUMPTIONS, "--json")
    assert process.returncode == 0
    values = json.loads(process.stdout)["values"]
    assert (values["assumptions"]["mde"], values["assumptions"]["schedule"]["min_days"]) == (0.2, 3)
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--mde", "3%"), "--metric-sd: got no value, expected the standard deviation"),
        (ASSUMPTIONS, "--mde: got no value, expected the smallest effect of interest"),
        ((*ASSUMPTIONS, "--mde", "x"), "--mde: got 'x', expected a number above 0"),
        ((*ASSUMPTIONS, "--mde", "1", "--alpha", "2"), "--alpha: got '2', expected a number above 0 and up to 0.25"),
        ((*ASSUMPTIONS, "--mde", "1", "--treatments", "1.5"), "--treatments: got '1.5', expected an integer"),
        (
            (*ASSUMPTIONS, "--mde", "1", "--share", "50%", "--treatments", "3"),
            "--share: got 50 %, expected more than 0",
        ),
        (("ranker-v2",), "--config: missing, expected the configuration file"),
        (("--metric-sd", "1", "--mde", "1"), "--students-per-day: got no value, expected the number of new students"),
    ],
)
def test_a_mistake_is_a_line_with_option_value_and_expectation(arguments: tuple[str, ...], message: str) -> None:
    """The exit code is that of wrong usage."""
    process = ab_monitor("plan", *arguments)
    assert process.returncode == 2
    assert process.stderr.startswith(f"ab-monitor: {message}")
    assert len(process.stderr.splitlines()) == 1


def test_an_experiment_with_few_students_cannot_be_planned_from_data(tmp_path: Path) -> None:
    """The message names the number and the alternative."""
    path, events = tmp_path / "ab.toml", tmp_path / "events.jsonl"
    path.write_text(CONFIG.format(store=tmp_path / "store"))
    assert ab_monitor("simulate", "--responses", "50", "--students", "30", "--out", events).returncode == 0
    assert ab_monitor("replay", "--config", path, events).returncode == 0
    process = ab_monitor("plan", "ranker-v2", "--config", path)
    assert process.returncode == 2
    assert "students whose first days are over, expected at least 50" in process.stderr
    assert "plan from assumptions" in process.stderr
    options = ("--variant", "treatmnt")
    assert (
        "--variant: got 'treatmnt', expected one of treatment"
        in ab_monitor("plan", "ranker-v2", "--config", path, *options).stderr
    )
