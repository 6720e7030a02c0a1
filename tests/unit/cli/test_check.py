"""`ab-monitor check` without Kafka: problems with their keys, and experiments that the file lacks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from monitor.cli.command_line import main
from tests.unit.events.test_decoding import RESPONSE

CONFIG = """
[store]
url = "{url}"
[kafka]
bootstrap_servers = "127.0.0.1:1"
[[experiments]]
name = "{name}"
control = "control"
variants = {{ control = 0.5, treatment = 0.5 }}
"""


def _configure(folder: Path, name: str, url: str = "embedded:store") -> None:
    (folder / "config.toml").write_text(CONFIG.format(name=name, url=url), encoding="utf-8")


def test_both_problems_are_in_one_list_with_the_keys_to_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The store is checked although Kafka is down, and the reverse."""
    monkeypatch.chdir(tmp_path)
    _configure(tmp_path, "ranker-v2", "redis://127.0.0.1:1")
    assert main(["check", "--config", "config.toml"]) == 3
    first_line, *problems = capsys.readouterr().err.splitlines()
    assert first_line == "ab-monitor: 2 checks failed:"
    assert [problem.strip().partition(": ")[0] for problem in problems] == ["store.url", "kafka.bootstrap_servers"]


def test_experiments_and_responses_that_the_file_lacks_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An experiment of the store, other spellings of a declared experiment, and unknown experiments."""
    monkeypatch.chdir(tmp_path)
    names = ["Ranker V2", "Ranker V2", "RANKER_V2", "unknown", "old"]
    events = [{**RESPONSE, "response_id": f"r{number}", "experiment": name} for number, name in enumerate(names)]
    (tmp_path / "events").write_text("".join(json.dumps(event) + "\n" for event in events), encoding="utf-8")
    (tmp_path / "no-events").write_text("", encoding="utf-8")
    _configure(tmp_path, "old")
    assert main(["replay", "--config", "config.toml", "no-events"]) == 0
    _configure(tmp_path, "ranker-v2")
    assert main(["replay", "--config", "config.toml", "events"]) == 0
    capsys.readouterr()
    assert main(["check", "--config", "config.toml"]) == 3
    output = capsys.readouterr()
    assert [line.removeprefix("warning").strip()[:95] for line in output.out.splitlines() if "warning" in line] == [
        'experiments: the store has the experiment "old", which the file lacks; 1 response was skipped. ',
        'experiments: the file lacks the experiment "Ranker V2", so 2 responses were skipped; did you me',
        'experiments: the file lacks the experiment "RANKER_V2", so 1 response was skipped; did you mean',
        'experiments: the file lacks the experiment "unknown", so 1 response was skipped; see `ab-monito',
    ]
    assert output.out.count('did you mean "ranker-v2"?') == 2
    assert output.err.startswith("ab-monitor: kafka.bootstrap_servers: Kafka at 127.0.0.1:1: ")


def test_a_format_that_needs_a_registry_is_reported_with_the_other_problems(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without --sample, too: the service would stop at its start."""
    monkeypatch.chdir(tmp_path)
    _configure(tmp_path, "ranker-v2")
    sources = "".join(
        f'[[kafka.sources]]\ntopics = ["t"]\nevent = "{event}"\nformat = "avro"\n' for event in ("response", "feedback")
    )
    with (tmp_path / "config.toml").open("a", encoding="utf-8") as file:
        file.write(sources)
    assert main(["check", "--config", "config.toml"]) == 2
    problems = capsys.readouterr().err.splitlines()
    assert problems[1].strip().startswith('kafka.sources[0].format: got "avro", which needs schema_registry.url')
    assert problems[2].strip().startswith("kafka.bootstrap_servers: ")


@pytest.mark.parametrize("count", ["0", "10001"])
def test_the_number_of_sampled_records_has_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], count: str
) -> None:
    """The expectation is in the error."""
    monkeypatch.chdir(tmp_path)
    _configure(tmp_path, "ranker-v2")
    assert main(["check", "--config", "config.toml", "--sample", count]) == 2
    assert f"--sample: got {count}, expected an integer from 1 to 10000" in capsys.readouterr().err
