"""`ab-monitor experiments`: list, show, declare, archive and delete experiments while the service runs.

The file of a service is the source of its experiments. Commands are the source of further experiments: each of them is
declared by a command only, and the running workers follow within seconds.
"""

from __future__ import annotations

import argparse
import os
import shlex
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

from monitor.analysis import format_timestamp
from monitor.cli.command_io import is_confirmed
from monitor.clock import wall_clock
from monitor.config import DeclaredExperiment, ExperimentSettings, Settings, parse_declarations
from monitor.errors import ExperimentConflict, UnknownExperiment, UsageError, count_noun, setting_text
from monitor.export import describe_settings, id_text, print_json, simple_table, stdout_console
from monitor.pipeline import Declarations, ExperimentDeclarations
from monitor.state import connect_active_generation, join_store, running_store_server


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    parser.add_argument(
        "action",
        choices=["list", "show", "add", "adopt", "archive", "delete"],
        help="list: print all declared experiments with their state; show: print the settings and changes of the "
        "experiment TARGET; add: declare or change the experiments of the TOML file TARGET, which has nothing but "
        "[[experiments]] tables; adopt: print a declaration of the undeclared experiment TARGET, of which events were "
        "seen; archive: stop to count the experiment TARGET, whose results stay readable; delete: "
        "delete the archived experiment TARGET with its results",
    )
    parser.add_argument("target", nargs="?", metavar="TARGET", help="an experiment's name; with add, a file")
    parser.add_argument("--json", action="store_true", help="with list and show: print one JSON object")
    parser.add_argument("--apply", action="store_true", help="with adopt: declare the experiment")
    parser.add_argument("--yes", action="store_true", help="with delete: delete without a question")


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    """Run an action; return the exit code."""
    action, target = arguments.action, arguments.target
    if (target is None) != (action == "list"):
        expected = "no TARGET" if action == "list" else "a file" if action == "add" else "an experiment's name"
        raise UsageError(f"experiments {action}: got {target or 'nothing'}, expected {expected}")
    origin = f"ab-monitor experiments {action} on {socket.gethostname()}"
    # Only a declaration may create the store.
    with _open_declarations(settings, must_exist=action != "add") as declarations:
        if action == "list":
            _list(declarations.read(), settings, as_json=arguments.json)
        elif action == "show":
            _show(target, declarations.read(), settings, as_json=arguments.json)
        elif action == "add":
            _add(Path(target), declarations, settings, origin)
        elif action == "adopt":
            _adopt(target, declarations, origin, is_applied=arguments.apply)
        elif action == "archive":
            with _explained(target, settings):
                declarations.archive(target, origin)
            print(f"archived {target}: workers stop to count it within seconds, and its results stay readable")
        else:
            _delete(target, declarations, settings, origin, is_certain=arguments.yes)
    return 0


@contextmanager
def _open_declarations(settings: Settings, *, must_exist: bool) -> Iterator[ExperimentDeclarations]:
    with (
        running_store_server(settings.store, must_exist=must_exist) as store_settings,
        closing(connect_active_generation(store_settings)) as store,
    ):
        yield ExperimentDeclarations(store, lambda: settings, wall_clock, partial(join_store, store, settings))


@contextmanager
def _explained(name: str, settings: Settings) -> Iterator[None]:
    """Add to an `UnknownExperiment` that the configuration file has the experiment, if that is the case."""
    try:
        yield
    except UnknownExperiment as error:
        if name not in _configured_names(settings):
            raise
        raise UnknownExperiment(
            f"the experiment {setting_text(name)} is in the configuration file, but no worker has declared it yet. "
            "Start `ab-monitor run` with this file"
        ) from error


def _configured_names(settings: Settings) -> list[str]:
    return [experiment.name for experiment in settings.experiments]


def _add(path: Path, declarations: ExperimentDeclarations, settings: Settings, origin: str) -> None:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UsageError(f"{path}: the file cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: byte {error.start} is not UTF-8; save the file as UTF-8") from error
    experiments = parse_declarations(str(path), text)
    _check_configured(experiments, path, settings)
    for experiment in declarations.declare(experiments, origin):
        _print_state(experiment, declarations.read())


def _check_configured(experiments: tuple[ExperimentSettings, ...], path: Path, settings: Settings) -> None:
    configured_names = _configured_names(settings)
    clashes = [experiment.name for experiment in experiments if experiment.name in configured_names]
    if clashes:
        names = ", ".join(map(setting_text, clashes))
        raise ExperimentConflict(
            f"{path}: the configuration file declares {names} already. Change that file: running workers read it "
            "within seconds"
        )


def _adopt(name: str, declarations: ExperimentDeclarations, origin: str, *, is_applied: bool) -> None:
    declaration = declarations.suggest(name)
    print(declaration, end="")
    if is_applied:
        _print_state(declarations.adopt(name, declaration, origin), declarations.read())


def _delete(
    name: str, declarations: ExperimentDeclarations, settings: Settings, origin: str, *, is_certain: bool
) -> None:
    with _explained(name, settings):
        declarations.check_deletion(name)
    if not is_certain and not is_confirmed(
        "experiments delete", f"the experiment {setting_text(name)} with all its results", name
    ):
        print("nothing was deleted")
        return
    keys = declarations.delete(name, origin)
    print(f"deleted {name}: {count_noun(keys, 'key')}")


def _print_state(declared: DeclaredExperiment, declarations: Declarations) -> None:
    print(f"{declared.name}: {describe_state(declared, declarations)}")


def describe_state(declared: DeclaredExperiment, declarations: Declarations) -> str:
    """Return the state of a declared experiment in a few words."""
    if declared.archived_ms is not None:
        return f"archived since {format_timestamp(declared.archived_ms)}"
    backfill = declarations.backfill(declared.name)
    if backfill is not None:
        shown = f"; shown until then: version {declared.definition_version - 1}" if declared.previous else ""
        return f"earlier events: the experiment {backfill.describe()}{shown}"
    if declared.complete_since_ms is not None:
        return f"counted; complete since {format_timestamp(declared.complete_since_ms)}"
    return "counted"


def _list(declarations: Declarations, settings: Settings, *, as_json: bool) -> None:
    if as_json:
        print_json(declarations.to_json())
        return
    console = stdout_console(os.environ)
    declared_set = declarations.declared_set
    if declared_set.experiments:
        columns = ("experiment", "declared by", "declared at", "definition", "state")
        table = simple_table(*columns, left_aligned=columns)
        for experiment in declared_set.experiments:
            table.add_row(
                id_text(experiment.name),
                experiment.source,
                format_timestamp(experiment.declared_ms),
                f"version {experiment.definition_version}",
                describe_state(experiment, declarations),
            )
        console.print(table)
        console.print(
            f"version {declared_set.version} of the declared experiments, since "
            f"{format_timestamp(declared_set.since_ms)}, from {declared_set.origin}",
            soft_wrap=True,
        )
    else:
        console.print(
            "no experiment is declared: start `ab-monitor run` with a file that has experiments, or declare some with "
            "`ab-monitor experiments add FILE`",
            soft_wrap=True,
        )
    for name in _configured_names(settings):
        if declared_set.find(name) is None:
            console.print(
                id_text(f"{name} is in the configuration file, but no worker has declared it yet"), soft_wrap=True
            )
    for undeclared in declarations.undeclared:
        command = f"ab-monitor experiments adopt {shlex.quote(undeclared.name)} --config FILE"
        responses = count_noun(undeclared.responses, "response")
        next_step = f": `{command}` prints a declaration" if undeclared.is_declarable else ""
        console.print(id_text(f"{undeclared.name} is undeclared, with {responses}{next_step}"), soft_wrap=True)


def _show(name: str, declarations: Declarations, settings: Settings, *, as_json: bool) -> None:
    with _explained(name, settings):
        declared = declarations.declared_set.get(name)
    if as_json:
        print_json(declarations.experiment_json(declared))
        return
    console = stdout_console(os.environ)
    lines = [
        f"{declared.name}: {describe_state(declared, declarations)}",
        f"declared by {declared.source}, {format_timestamp(declared.declared_ms)}",
        *(f"{format_timestamp(change.at_ms)} {change.kind}: {change.text}" for change in declared.changes),
        *(f"{key} = {setting_text(value)}" for key, value in describe_settings(declared.settings).items()),
    ]
    for line in lines:
        console.print(id_text(line), soft_wrap=True)
