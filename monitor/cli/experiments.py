"""`ab-monitor experiments`: list, show, declare, archive and delete experiments while the service runs.

The file of a service is the source of its experiments. Commands are the source of further experiments: each of them is
declared by a command only, and the running workers follow within seconds.
"""

from __future__ import annotations

import argparse
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from monitor.analysis import format_timestamp
from monitor.clock import wall_clock
from monitor.config import (
    DeclaredExperiment,
    DeclaredSet,
    ExperimentSettings,
    Settings,
    archive_experiment,
    declare_experiments,
    declared_experiment_json,
    parse_declarations,
    remove_experiment,
    similar_name,
)
from monitor.decoding import suggest_declaration
from monitor.errors import UsageError, count_noun, setting_text
from monitor.export import print_json, simple_table, stdout_console
from monitor.state import (
    ShardedStore,
    connect_active_generation,
    delete_experiment,
    join_store,
    read_declared_set,
    read_undeclared_experiments,
    running_store_server,
)


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
    with _open_store(settings) as store:
        if action == "list":
            _list(read_declared_set(store), as_json=arguments.json)
        elif action == "show":
            _show(_find(read_declared_set(store), target), as_json=arguments.json)
        elif action == "add":
            _add(Path(target), store, settings)
        elif action == "adopt":
            _adopt(target, store, settings, is_applied=arguments.apply)
        elif action == "archive":
            origin = _origin(action)
            join_store(store, settings, lambda current: archive_experiment(current, target, origin, wall_clock()))
            print(f"archived {target}: workers stop to count it within seconds, and its results stay readable")
        else:
            _delete(target, store, settings, is_confirmed=arguments.yes)
    return 0


@contextmanager
def _open_store(settings: Settings) -> Iterator[ShardedStore]:
    with (
        running_store_server(settings.store) as store_settings,
        closing(connect_active_generation(store_settings)) as store,
    ):
        yield store


def _origin(action: str) -> str:
    return f"ab-monitor experiments {action} on {socket.gethostname()}"


def _add(path: Path, store: ShardedStore, settings: Settings) -> None:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UsageError(f"{path}: the file cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: byte {error.start} is not UTF-8") from error
    _declare(parse_declarations(str(path), text), str(path), store, settings)


def _adopt(name: str, store: ShardedStore, settings: Settings, *, is_applied: bool) -> None:
    declared_names = [experiment.name for experiment in read_declared_set(store).experiments]
    undeclared = {each.name: each for each in read_undeclared_experiments(store, declared_names, settings.discover)}
    if name not in undeclared:
        if name in declared_names:
            raise UsageError(f"the experiment {setting_text(name)} is declared already")
        seen_names = ", ".join(map(setting_text, undeclared)) or "none"
        raise UsageError(f"no events of an undeclared experiment {setting_text(name)} were seen. Seen: {seen_names}")
    text = suggest_declaration(undeclared[name], next(iter(settings.experiments), None))
    print(text, end="")
    if is_applied:
        _declare(parse_declarations(name, text), name, store, settings)


def _declare(experiments: Sequence[ExperimentSettings], place: str, store: ShardedStore, settings: Settings) -> None:
    names = [experiment.name for experiment in experiments]
    clashes = sorted({*names} & {experiment.name for experiment in settings.experiments})
    if clashes:
        raise UsageError(f"{place}: the configuration file declares {', '.join(clashes)} already. Change that file")
    metadata = join_store(
        store, settings, lambda current: declare_experiments(current, experiments, _origin("add"), wall_clock())
    )
    for name in names:
        declared = metadata.declared_set.find(name)
        assert declared is not None
        print(f"{name}: {describe_state(declared)}")


def _delete(name: str, store: ShardedStore, settings: Settings, *, is_confirmed: bool) -> None:
    declared = _find(read_declared_set(store), name)
    if not is_confirmed:
        answer = input(f"Delete {name} and all its results? Type the name to confirm: ")
        if answer != name:
            raise UsageError(f"nothing was deleted: got {setting_text(answer)}, expected {setting_text(name)}")
    join_store(store, settings, lambda current: remove_experiment(current, name, _origin("delete"), wall_clock()))
    numbers = {declared.number, *declared.superseded_numbers}
    keys = sum(delete_experiment(store, number) for number in numbers)
    print(f"deleted {name}: {count_noun(keys, 'key')}")


def _find(declared_set: DeclaredSet, name: str) -> DeclaredExperiment:
    declared = declared_set.find(name)
    if declared is None:
        names = [experiment.name for experiment in declared_set.experiments]
        similar = similar_name(name, names)
        hint = f", did you mean {setting_text(similar)}?" if similar else "."
        declared_names = ", ".join(map(setting_text, names)) or "none"
        raise UsageError(f"unknown experiment {setting_text(name)}{hint} Declared: {declared_names}")
    return declared


def describe_state(declared: DeclaredExperiment) -> str:
    """Return the state of a declared experiment in a few words."""
    if declared.archived_ms is not None:
        return f"archived since {format_timestamp(declared.archived_ms)}"
    if declared.is_filling:
        return "counted; earlier events are being filled in from Kafka"
    if declared.complete_since_ms is not None:
        return f"counted; complete since {format_timestamp(declared.complete_since_ms)}"
    return "counted"


def _list(declared_set: DeclaredSet, *, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "version": declared_set.version,
                "origin": declared_set.origin,
                "since": format_timestamp(declared_set.since_ms),
                "experiments": [declared_experiment_json(experiment) for experiment in declared_set.experiments],
            }
        )
        return
    columns = ("experiment", "declared by", "declared at", "definition", "state")
    table = simple_table(*columns, left_aligned=columns)
    for experiment in declared_set.experiments:
        table.add_row(
            experiment.name,
            experiment.source,
            format_timestamp(experiment.declared_ms),
            f"version {experiment.definition_version}",
            describe_state(experiment),
        )
    console = stdout_console(os.environ)
    console.print(table)
    console.print(
        f"version {declared_set.version} of the set, since {format_timestamp(declared_set.since_ms)}, from "
        f"{declared_set.origin or 'nobody yet'}",
        soft_wrap=True,
    )


def _show(declared: DeclaredExperiment, *, as_json: bool) -> None:
    content: dict[str, Any] = declared_experiment_json(declared)
    if as_json:
        print_json(content)
        return
    console = stdout_console(os.environ)
    console.print(f"{declared.name}: {describe_state(declared)}", soft_wrap=True)
    console.print(f"declared by {declared.source}, {format_timestamp(declared.declared_ms)}", soft_wrap=True)
    for change in declared.changes:
        console.print(f"{format_timestamp(change.at_ms)} {change.kind}: {change.text}", soft_wrap=True)
    for key, value in content["settings"].items():
        console.print(f"{key} = {setting_text(value)}", soft_wrap=True)
