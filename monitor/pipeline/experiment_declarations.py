"""Declared experiments as commands and requests read and change them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from monitor.analysis import (
    BackfillProgress,
    ExperimentHistory,
    UndeclaredExperiment,
    format_timestamp,
    undeclared_json,
)
from monitor.clock import Clock
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
)
from monitor.decoding import suggest_declaration
from monitor.errors import (
    ExperimentConflict,
    UnknownExperiment,
    UsageError,
    count_noun,
    escape_controls,
    setting_text,
)
from monitor.state import (
    ShardedStore,
    StoreMetadata,
    delete_experiment,
    experiment_histories,
    read_backfills,
    read_declared_set,
    read_undeclared_experiments,
)

_MIN_VARIANTS: Final = 2


@dataclass(frozen=True, slots=True)
class Declarations:
    """The declared experiments of a store with the progress of their backfills, and the undeclared experiments."""

    declared_set: DeclaredSet
    histories: Mapping[str, ExperimentHistory]
    undeclared: tuple[UndeclaredExperiment, ...]

    def backfill(self, experiment: str) -> BackfillProgress | None:
        """Return the unfinished backfill of an experiment, None without one."""
        history = self.histories.get(experiment)
        return None if history is None else history.backfill

    def experiment_json(self, declared: DeclaredExperiment) -> dict[str, Any]:
        """Return the object of `experiments show --json`."""
        backfill = self.backfill(declared.name)
        progress = (
            None if backfill is None else {"state": backfill.state, "share": backfill.share, "reason": backfill.reason}
        )
        return {**declared_experiment_json(declared), "backfill": progress}

    def to_json(self) -> dict[str, Any]:
        """Return the object of `experiments list --json`."""
        return {
            "version": self.declared_set.version,
            "origin": self.declared_set.origin,
            "since": format_timestamp(self.declared_set.since_ms),
            "experiments": list(map(self.experiment_json, self.declared_set.experiments)),
            "undeclared": list(map(undeclared_json, self.undeclared)),
        }


class ExperimentDeclarations:
    """Reads and changes the declared experiments of a store. Several threads may call the methods.

    All methods may raise `StoreUnavailable` and `UnusableStore`. The parameter `origin` of a method names the command
    or the client: it becomes the origin of the set's next version.
    """

    def __init__(
        self,
        store: ShardedStore,
        current_settings: Callable[[], Settings],
        clock: Clock,
        change: Callable[[Callable[[DeclaredSet], DeclaredSet]], StoreMetadata],
    ) -> None:
        """`current_settings` returns the configuration, of which the names to discover and the metrics are used.

        `change` replaces the stored set by the result of a function of the set, and returns the metadata.
        """
        self._store = store
        self._current_settings = current_settings
        self._clock = clock
        self._change = change

    def read(self) -> Declarations:
        """Return the declared and the undeclared experiments."""
        declared_set = read_declared_set(self._store)
        names = [experiment.name for experiment in declared_set.experiments]
        return Declarations(
            declared_set,
            experiment_histories(declared_set, read_backfills(self._store)),
            read_undeclared_experiments(self._store, names, self._current_settings().discover),
        )

    def declare(self, experiments: Sequence[ExperimentSettings], origin: str) -> list[DeclaredExperiment]:
        """Declare or change experiments, and return them. Raises `ExperimentConflict` if a file declares one."""
        metadata = self._change(lambda current: declare_experiments(current, experiments, origin, self._clock()))
        return [metadata.declared_set.get(experiment.name) for experiment in experiments]

    def suggest(self, name: str) -> str:
        """Return a declaration of an undeclared experiment as TOML, with the metrics of the configuration file.

        Raises `UnknownExperiment` if no events of the experiment were seen, `ExperimentConflict` if the experiment is
        declared.
        """
        return suggest_declaration(self._undeclared(name), next(iter(self._current_settings().experiments), None))

    def _undeclared(self, name: str) -> UndeclaredExperiment:
        declarations = self.read()
        if declarations.declared_set.find(name) is not None:
            raise _already_declared(name)
        undeclared = {experiment.name: experiment for experiment in declarations.undeclared}
        if name not in undeclared:
            seen_names = ", ".join(map(setting_text, undeclared)) or "none"
            raise UnknownExperiment(
                escape_controls(
                    f"no events of an undeclared experiment {setting_text(name)} were seen. Seen: {seen_names}"
                )
            )
        return undeclared[name]

    def adopt(self, name: str, declaration: str, origin: str) -> DeclaredExperiment:
        """Declare an undeclared experiment as `suggest` has returned, and return the experiment.

        Raises the errors of `suggest`, and `UsageError` if less than two variants were seen.
        """
        variants = self._undeclared(name).declarable_variants
        if len(variants) < _MIN_VARIANTS:
            seen = f"events of {count_noun(len(variants), 'variant')} were seen"
            raise UsageError(
                f"the experiment {setting_text(name)} cannot be adopted: {seen}, expected at least {_MIN_VARIANTS}. "
                "Write the declaration that `ab-monitor experiments adopt` prints to a file, name the other variants, "
                "and run `ab-monitor experiments add FILE`"
            )
        experiments = parse_declarations(name, declaration)

        def adopt_undeclared(current: DeclaredSet) -> DeclaredSet:
            if current.find(name) is not None:
                raise _already_declared(name)
            return declare_experiments(current, experiments, origin, self._clock())

        return self._change(adopt_undeclared).declared_set.get(name)

    def archive(self, name: str, origin: str) -> DeclaredExperiment:
        """Stop to count an experiment, and return the experiment. Raises the errors of `archive_experiment`."""
        metadata = self._change(lambda current: archive_experiment(current, name, origin, self._clock()))
        return metadata.declared_set.get(name)

    def check_deletion(self, name: str) -> None:
        """Raise the errors of `remove_experiment`, and change nothing."""
        remove_experiment(read_declared_set(self._store), name, "", self._clock())

    def delete(self, name: str, origin: str) -> int:
        """Delete an archived experiment with its results, and return the number of deleted keys.

        Raises the errors of `remove_experiment`.
        """
        numbers: set[int] = set()

        def remove(current: DeclaredSet) -> DeclaredSet:
            removed_set = remove_experiment(current, name, origin, self._clock())
            declared = current.get(name)
            numbers.update((declared.number, *declared.superseded_numbers))
            return removed_set

        self._change(remove)
        return sum(delete_experiment(self._store, number) for number in sorted(numbers))


def _already_declared(name: str) -> ExperimentConflict:
    return ExperimentConflict(f"the experiment {setting_text(name)} is declared already")
