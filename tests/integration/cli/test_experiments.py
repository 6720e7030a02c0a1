"""`ab-monitor experiments`, on a real store; and services whose file leaves the experiments to commands."""

from __future__ import annotations

import io
import json
import random
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from monitor.cli.command_line import main
from monitor.cli.simulate import send_to_kafka
from monitor.clock import wall_clock
from monitor.config import KafkaSettings, StoreSettings, load_settings, replace_file_experiments
from monitor.simulation.simulator import Scenario, generate_events
from monitor.state import BackfillState, ShardedStore, join_store, read_declared_set, write_backfill
from tests.servers.kafka import KafkaBroker
from tests.servers.process import free_port
from tests.servers.redis import RedisServer
from tests.support.command import (
    EXPERIMENT_TABLE,
    SERVICE_SECTIONS,
    ab_monitor,
    eventually,
    get,
    service,
    write_config,
)
from tests.support.http_client import ask
from tests.unit.events.test_decoding import RESPONSE

BASE = "experiments = []" + SERVICE_SECTIONS
SLASHED = "search/é 1"
TOKEN = "a-token-of-some-length"


def table(name: str, further: str = "") -> str:
    """Return the declaration of an experiment."""
    return EXPERIMENT_TABLE.replace("NAME", name) + further


class Team:
    """A team that runs commands on a store."""

    def __init__(self, directory: Path, server: RedisServer, capsys: pytest.CaptureFixture[str]) -> None:
        self.directory = directory
        self.store_settings = StoreSettings(url=server.url)
        self._capsys = capsys
        self.config = directory / "config.toml"
        values = {"bootstrap": "127.0.0.1:1", "name": "x", "store": server.url, "port": "0"}
        write_config(self.config, BASE, list(values.items()))

    def run(self, *arguments: str, exit_code: int = 0) -> str:
        """Run a command, and return its output; of a failed command the error."""
        self._capsys.readouterr()
        code = main([*arguments, "--config", str(self.config)])
        output = self._capsys.readouterr()
        assert code == exit_code, output
        return output.out if exit_code == 0 else output.err

    def add(self, *tables: str, exit_code: int = 0) -> str:
        """Run `add` with a file that has the tables."""
        path = self.directory / "team.toml"
        path.write_text("".join(tables))
        return self.run("experiments", "add", str(path), exit_code=exit_code)

    def listed(self) -> dict[str, Any]:
        """Return the object of `list --json`."""
        content: dict[str, Any] = json.loads(self.run("experiments", "list", "--json"))
        return content

    def declare_by_file(self, name: str) -> None:
        """Declare an experiment as a worker with a file does; the file of the commands does not have it."""
        path = write_config(self.directory / "service.toml", self.config.read_text().replace("experiments = []", ""))
        path.write_text(path.read_text() + table(name))
        settings = load_settings(path, {})
        with closing(ShardedStore(self.store_settings)) as store:
            join_store(
                store,
                settings,
                lambda current: replace_file_experiments(current, settings.experiments, "file.toml", wall_clock()),
            )

    def replay_undeclared(self, name: str, *variants: str) -> None:
        """Apply two responses of each variant of an undeclared experiment."""
        lines = [
            json.dumps(
                RESPONSE
                | {"response_id": f"{name}-{variant}-{number}", "experiment": name, "variant": variant}
                | {"user_id": f"u-{variant}-{number}"}
            )
            for variant in variants
            for number in range(2)
        ]
        events = self.directory / f"{name}.jsonl"
        events.write_text("\n".join(lines) + "\n")
        self.run("replay", str(events))


@pytest.fixture
def team(
    tmp_path: Path,
    redis_server: RedisServer,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Team:
    """Return a team with an empty store."""
    monkeypatch.setenv("COLUMNS", "160")
    redis_server.client().flushall()
    return Team(tmp_path, redis_server, capsys)


class TestListAndShow:
    """The texts and the JSON of declared experiments."""

    def test_a_new_store_names_the_next_step(self, team: Team) -> None:
        """The JSON has no experiments."""
        assert "no experiment is declared: start `ab-monitor run`" in team.run("experiments", "list")
        assert (team.listed()["version"], team.listed()["experiments"]) == (0, [])

    def test_declared_experiments_are_listed_with_their_source_and_state(self, team: Team) -> None:
        """By a file or by a command."""
        team.declare_by_file("ranker")
        team.add(table(SLASHED))
        text = team.run("experiments", "list")
        assert f"{SLASHED}   command" in text
        assert "ranker       file" in text
        assert "version 2 of the declared experiments" in text
        listed = team.listed()
        assert {each["name"]: each["source"] for each in listed["experiments"]} == {
            "ranker": "file",
            SLASHED: "command",
        }

    def test_the_progress_of_a_backfill_is_listed(self, team: Team) -> None:
        """And why it failed."""
        team.declare_by_file("ranker")
        team.add(table("new"))
        with closing(ShardedStore(team.store_settings)) as store:
            declared = read_declared_set(store).get("new")
            assert declared.is_filling
            state = BackfillState("running", 0, 0, records_done=43, records_total=100)
            write_backfill(store, declared.number, state)
            assert "earlier events: the experiment is 43 % filled" in team.run("experiments", "list")
            write_backfill(store, declared.number, BackfillState("failed", 0, 0, reason="no leader of x-0"))
        assert "earlier events: the experiment could not be filled: no leader of x-0" in team.run(
            "experiments", "show", "new"
        )
        listed = {each["name"]: each["backfill"] for each in team.listed()["experiments"]}
        assert listed == {"ranker": None, "new": {"state": "failed", "share": 1.0, "reason": "no leader of x-0"}}

    def test_settings_are_shown_in_the_words_of_the_configuration_file(self, team: Team) -> None:
        """Durations with units, names of metrics, and the margins of guardrails."""
        further = 'starts_at = "2026-01-01T00:00:00Z"\nfeedback_window = "36h"\nmetrics = ["ndcg@5"]\nmde = 0.1\n'
        team.add(table("ranker", further))
        lines = team.run("experiments", "show", "ranker").splitlines()
        assert lines[0] == "ranker: counted"
        assert 'starts_at = "2026-01-01T00:00:00.000Z"' in lines
        assert 'feedback_window = "36h"' in lines
        assert 'metrics = ["ndcg@5"]' in lines
        assert "mde = 0.1" in lines
        assert 'decay = ["1h", "24h"]' in lines
        assert not any("_ms" in line for line in lines)
        assert json.loads(team.run("experiments", "show", "ranker", "--json"))["settings"]["primary"] == "ndcg@5"

    def test_changes_are_shown_with_their_times(self, team: Team) -> None:
        """A definition gets the next version."""
        team.add(table("ranker"))
        team.add(table("ranker", 'mde = 0.1\ngain = "exp2"\n'))
        text = team.run("experiments", "show", "ranker")
        assert "criteria: mde not set → 0.1" in text
        assert "definition: " in text
        assert "version 2" in team.run("experiments", "list")

    def test_an_experiment_of_the_file_that_no_worker_has_declared_is_explained(self, team: Team) -> None:
        """The next step is to start the service."""
        team.config.write_text(team.config.read_text().replace("experiments = []", "") + table("planned"))
        for action in ("show", "archive", "delete"):
            text = team.run("experiments", action, "planned", exit_code=2)
            assert '"planned" is in the configuration file, but no worker has declared it yet' in text
        assert "planned is in the configuration file" in team.run("experiments", "list")

    @pytest.mark.parametrize("action", ["show", "archive", "delete"])
    def test_an_unknown_experiment_gives_the_similar_name(self, team: Team, action: str) -> None:
        """And all names."""
        team.add(table("ranker"))
        text = team.run("experiments", action, "Ranker", exit_code=2)
        message = 'unknown experiment "Ranker", did you mean "ranker"? Declared: "ranker"'
        assert text == f"ab-monitor: {message}\n"


class TestAdd:
    """Declarations by command."""

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["add"], "experiments add: got nothing, expected a file"),
            (["show"], "experiments show: got nothing, expected an experiment's name"),
            (["list", "ranker"], "experiments list: got ranker, expected no TARGET"),
            (["add", "/nowhere.toml"], "/nowhere.toml: the file cannot be read: No such file"),
        ],
    )
    def test_a_missing_or_wrong_target_is_an_error(self, team: Team, arguments: list[str], message: str) -> None:
        """It names the action."""
        assert message in team.run("experiments", *arguments, exit_code=2)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("name: ranker\n", "this is not TOML"),
            ("", "got nothing, expected [[experiments]] tables and nothing else"),
            (f"[store]\nurl = 'redis://x'\n{table('x')}", "got store, expected [[experiments]] tables"),
            (table("x", "alpha = 9\n"), "experiments.x.alpha: got 9, expected a number from 1e-06 to 0.25 (line 6"),
            (f"a = {'[' * 100_000}", "nested too deeply"),
        ],
        ids=["YAML", "empty", "section", "setting", "nested"],
    )
    def test_a_wrong_file_declares_nothing(self, team: Team, text: str, message: str) -> None:
        """The error has the line."""
        assert message in team.add(text, exit_code=2)
        assert team.listed()["experiments"] == []

    def test_an_experiment_of_a_file_cannot_be_declared(self, team: Team) -> None:
        """Neither one of the commands' file, nor one of a worker's file."""
        team.declare_by_file("ranker")
        assert "is declared in a configuration file (file.toml)" in team.add(table("ranker"), exit_code=2)
        assert "is declared in a configuration file" in team.run("experiments", "archive", "ranker", exit_code=2)
        team.config.write_text(team.config.read_text().replace("experiments = []", "") + table("planned"))
        assert 'the configuration file declares "planned" already' in team.add(table("planned"), exit_code=2)

    def test_a_catalogue_is_read_where_the_command_runs(self, team: Team) -> None:
        """The store gets its items, so the service needs no file."""
        catalogue = team.directory / "catalogue.txt"
        catalogue.write_text("v-1\nv-2\n")
        assert "ranker: counted" in team.add(
            table("ranker", f'items = {{ horizon = "30d", catalogue = "{catalogue}" }}\n')
        )
        catalogue.unlink()
        assert 'catalogue = "2 items"' in team.run("experiments", "show", "ranker")
        assert "ranker" in team.run("status")
        with closing(ShardedStore(team.store_settings)) as store:
            items = read_declared_set(store).get("ranker").settings.items
        assert items is not None
        assert items.catalogue == frozenset({"v-1", "v-2"})


class TestAdopt:
    """Declarations of experiments that were seen in events."""

    def test_an_undeclared_experiment_is_listed_printed_and_declared(self, team: Team) -> None:
        """Printing changes nothing."""
        team.replay_undeclared("new one", "control", "treatment")
        assert "new one is undeclared, with 4 responses" in team.run("experiments", "list")
        assert "`ab-monitor experiments adopt 'new one' --config FILE`" in team.run("experiments", "list")
        assert [each["name"] for each in team.listed()["undeclared"]] == ["new one"]
        printed = team.run("experiments", "adopt", "new one")
        assert 'name = "new one"' in printed
        assert team.listed()["experiments"] == []
        applied = team.run("experiments", "adopt", "new one", "--apply")
        assert applied.startswith(printed)
        assert applied.splitlines()[-1].startswith("new one: counted")
        assert (team.listed()["experiments"][0]["source"], team.listed()["undeclared"]) == ("command", [])
        text = team.run("experiments", "adopt", "new one", "--apply", exit_code=2)
        assert 'the experiment "new one" is declared already' in text

    def test_an_experiment_without_events_cannot_be_adopted(self, team: Team) -> None:
        """The error lists those that were seen."""
        team.replay_undeclared("seen", "control", "treatment")
        text = team.run("experiments", "adopt", "unseen", exit_code=2)
        assert 'no events of an undeclared experiment "unseen" were seen. Seen: "seen"' in text

    def test_an_experiment_with_one_variant_is_not_declared(self, team: Team) -> None:
        """The printed text names a second variant that nobody has seen, with a remark."""
        team.replay_undeclared("lonely", "control")
        assert "# TODO: less than two variants were seen" in team.run("experiments", "adopt", "lonely")
        assert "events of 1 variant were seen" in team.run("experiments", "adopt", "lonely", "--apply", exit_code=2)
        assert team.listed()["experiments"] == []


class TestArchiveAndDelete:
    """Removal."""

    def test_only_an_archived_experiment_is_deleted(self, team: Team) -> None:
        """And archived only once."""
        team.add(table(SLASHED))
        assert "is not archived" in team.run("experiments", "delete", SLASHED, "--yes", exit_code=2)
        assert "its results stay readable" in team.run("experiments", "archive", SLASHED)
        assert "is archived already" in team.run("experiments", "archive", SLASHED, exit_code=2)
        assert "archived since" in team.run("experiments", "list")
        assert f"deleted {SLASHED}: " in team.run("experiments", "delete", SLASHED, "--yes")
        assert team.listed()["experiments"] == []

    def test_a_deletion_without_a_terminal_needs_the_flag(self, team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
        """The error names the flag, and nothing is deleted."""
        team.add(table("ranker"))
        team.run("experiments", "archive", "ranker")
        monkeypatch.setattr("sys.stdin", io.StringIO())
        text = team.run("experiments", "delete", "ranker", exit_code=2)
        assert text == (
            'ab-monitor: experiments delete would delete the experiment "ranker" with all its results. There is no '
            "terminal for a confirmation: add --yes to delete\n"
        )
        assert [each["name"] for each in team.listed()["experiments"]] == ["ranker"]

    @pytest.mark.parametrize(("typed", "remaining"), [("ranker", 0), ("yes", 1), ("", 1)])
    def test_at_a_terminal_the_name_confirms_a_deletion(
        self, team: Team, monkeypatch: pytest.MonkeyPatch, typed: str, remaining: int
    ) -> None:
        """Any other text, and the end of the input, cancels the deletion."""
        team.add(table("ranker"))
        team.run("experiments", "archive", "ranker")
        terminal = io.StringIO(typed)
        monkeypatch.setattr(terminal, "isatty", lambda: True)
        monkeypatch.setattr("sys.stdin", terminal)
        text = team.run("experiments", "delete", "ranker")
        assert ("nothing was deleted" in text) == bool(remaining)
        assert len(team.listed()["experiments"]) == remaining


def test_commands_work_without_any_declared_experiment(team: Team) -> None:
    """With a new store, and with the store of a service that waits for its first experiment."""
    for _ in range(2):
        assert "No event" in team.run("status")
        assert 'got "x", and no experiment is declared yet' in team.run("verdict", "x", exit_code=2)
        assert "all are equal" in team.run("audit")
        with closing(ShardedStore(team.store_settings)) as store:
            join_store(store, load_settings(team.config, {}), lambda current: current)


def test_a_service_without_experiments_adopts_one_over_http_and_keeps_it_in_a_rebuild(
    tmp_path: Path, kafka: KafkaBroker, redis_server: RedisServer
) -> None:
    """The events that were read before the adoption count, too."""
    redis_server.client().flushall()
    name, port = f"commands-{random.randrange(1 << 40):x}", free_port()
    for topic in ("responses", "feedback", "dead"):
        kafka.create_topic(f"{name}.{topic}", 1)
    values = {"bootstrap": kafka.bootstrap, "name": name, "store": redis_server.url, "port": str(port)}
    config = write_config(tmp_path / "config.toml", BASE, list(values.items()))
    settings = KafkaSettings(kafka.bootstrap, responses_topic=f"{name}.responses", feedback_topic=f"{name}.feedback")
    send_to_kafka(generate_events(Scenario(experiment="ranker", responses=200, students=50, days=2)), settings)
    headers = {"Authorization": f"Bearer {TOKEN}"}
    log, path = tmp_path / "log", "/api/declarations"

    def responses() -> int:
        content = json.loads(ask(port, "/api/experiments", headers=headers).body)["experiments"]
        return sum(each["responses"] for each in content["ranker"]["variants"].values()) if content else 0

    checked = ab_monitor("check", "--config", config)
    assert checked.returncode == 0, checked.stderr
    assert "configuration  ok: no experiments, commands declare them" in checked.stdout
    with service(config, log, environ={"ABMONITOR_HTTP_TOKEN": TOKEN}):
        eventually("the service is ready", lambda: get(f"http://127.0.0.1:{port}/-/ready")[0] == 200)
        eventually("the experiment was seen", lambda: b'"ranker"' in ask(port, path, headers=headers).body)
        assert ask(port, f"{path}/ranker/adopt", "POST", headers=headers).status == 200
        eventually("all responses count", lambda: responses() == 200)
        changed = ask(port, path, "PUT", table("ranker", "mde = 0.1").encode(), headers)
        assert (changed.status, b"mde not set" in changed.body) == (200, True)
        assert ask(port, f"{path}/other/archive", "POST", headers=headers).status == 404
    for action in ("adopted", "declared"):
        assert f"experiment {action} experiment=ranker client=127.0.0.1" in log.read_text()
    assert "Traceback" not in log.read_text()
    rebuilt = ab_monitor("rebuild", "--config", config)
    assert rebuilt.returncode == 0, rebuilt.stderr
    status = json.loads(ab_monitor("status", "--config", config, "--json").stdout)
    assert sum(each["responses"] for each in status["experiments"]["ranker"]["variants"].values()) == 200
