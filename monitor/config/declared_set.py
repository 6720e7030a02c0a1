"""The set of declared experiments: a versioned record in the store, which all workers follow.

The functions are pure: each returns the next version of a set. `monitor.state.declared_experiments` stores a set.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

import msgspec

from monitor.config.definitions import aggregate_definitions, definition_differences
from monitor.config.digest import experiments_digest
from monitor.config.exclusion import MAX_VARIANTS_WITH_EXCLUDE
from monitor.config.experiment_tables import MAX_VARIANTS
from monitor.config.running_changes import (
    ChangeKind,
    carry_allocations,
    describe_allocation_changes,
    describe_criteria_changes,
)
from monitor.config.settings import ExperimentSettings
from monitor.config.values import similar_name
from monitor.errors import ExperimentConflict, UnknownExperiment, UsageError, escape_controls, setting_text

ExperimentSource = Literal["file", "command", "discovered"]
"""Who has declared an experiment: the configuration file, a command, or a service because of `discover.auto_adopt`."""
_MAX_SUPERSEDED: Final = 100


@dataclass(frozen=True, slots=True)
class ExperimentChange:
    """A change of a running experiment."""

    at_ms: int
    kind: ChangeKind
    text: str
    """A phrase with the old and the new value, such as "mde 0.05 → 0.02"."""


@dataclass(frozen=True, slots=True)
class Definition:
    """The settings of an experiment with the number under which the store keeps the aggregates."""

    number: int
    settings: ExperimentSettings


@dataclass(frozen=True, slots=True)
class DeclaredExperiment:
    """An experiment of the set."""

    number: int
    """Number under which live events count."""
    settings: ExperimentSettings
    since_version: int
    """Version of the set that has introduced the number."""
    declared_ms: int
    definition_since_ms: int
    definition_version: int = 1
    source: ExperimentSource = "file"
    is_filling: bool = False
    """Whether the number lacks events that were read before the number was introduced.

    A backfill counts them, unless the experiment was archived before.
    """
    previous: Definition | None = None
    """The definition whose numbers are shown while the backfill runs; None without an earlier definition."""
    superseded_numbers: tuple[int, ...] = ()
    """Numbers of earlier definitions: their rows count as blank."""
    archived_ms: int | None = None
    complete_since_ms: int | None = None
    """Kafka no longer had the events before this time when the backfill ran; None if nothing is missing."""
    changes: tuple[ExperimentChange, ...] = ()

    @property
    def name(self) -> str:
        return self.settings.name

    @property
    def served(self) -> Definition:
        """The definition whose numbers are shown."""
        return self.previous or Definition(self.number, self.settings)


@dataclass(frozen=True, slots=True)
class DeclaredSet:
    """The declared experiments in a version."""

    version: int = 0
    digest: str = ""
    """Digest of the file's experiments; empty if no file has declared any."""
    origin: str = ""
    """Where the version comes from, such as a file on a host."""
    since_ms: int = 0
    next_number: int = 1
    experiments: tuple[DeclaredExperiment, ...] = ()
    superseded: tuple[str, ...] = ()
    """Digests of the files of earlier versions, oldest first."""
    file_origin: str = ""
    """Where the file comes from whose experiments are in force."""
    removed: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Name of a deleted experiment → its numbers: events were counted under these, and rows may remain for a while."""

    @property
    def counted(self) -> tuple[DeclaredExperiment, ...]:
        """The experiments that are not archived."""
        return tuple(experiment for experiment in self.experiments if experiment.archived_ms is None)

    @property
    def is_in_force(self) -> bool:
        """Whether a service follows the set. A store that was filled from files follows the file of each command."""
        return bool(self.digest) or any(experiment.source != "file" for experiment in self.experiments)

    def find(self, name: str) -> DeclaredExperiment | None:
        """Return the experiment of a name, or None."""
        return next((experiment for experiment in self.experiments if experiment.name == name), None)

    def get(self, name: str) -> DeclaredExperiment:
        """Return the experiment of a name. Raises `UnknownExperiment` with a similar name, and all declared names."""
        declared = self.find(name)
        if declared is None:
            names = [experiment.name for experiment in self.experiments]
            similar = similar_name(name, names)
            hint = "." if similar is None else f", did you mean {setting_text(similar)}?"
            declared_names = ", ".join(map(setting_text, names)) or "none"
            raise UnknownExperiment(
                escape_controls(f"unknown experiment {setting_text(name)}{hint} Declared: {declared_names}")
            )
        return declared


def encode_declared_set(declared_set: DeclaredSet) -> bytes:
    """Return a set as JSON."""
    return msgspec.json.encode(declared_set, enc_hook=dict)


def decode_declared_set(text: bytes) -> DeclaredSet:
    """Return the set of a JSON text. Raises `ValueError` for another text."""
    return msgspec.json.decode(text, type=DeclaredSet)


FileDecision = Literal["unchanged", "follow", "replace", "conflict"]


def compare_file(
    current: DeclaredSet, digest: str, previous_digest: str | None = None, *, is_in_use: bool = True
) -> FileDecision:
    """Return what a worker has to do about a file whose experiments have a digest.

    - "unchanged": the set has the experiments of the file.
    - "replace": the file is newer, so its experiments replace those of the set.
    - "follow": the file is older, so the worker follows the set.
    - "conflict": the file has changed from an older content to a new one, and another file has changed the set since.

    `previous_digest` is the digest of the file's earlier content, if the file has changed since the worker has started.
    `is_in_use` tells whether a running worker has the file of the set.
    """
    if digest == current.digest:
        return "unchanged"
    if previous_digest in (None, current.digest):
        is_older = digest in current.superseded and previous_digest is None
        return "follow" if is_older and is_in_use else "replace"
    if not is_in_use:
        return "replace"
    return "follow" if digest in current.superseded else "conflict"


def replace_file_experiments(
    current: DeclaredSet, experiments: Sequence[ExperimentSettings], origin: str, now_ms: int
) -> DeclaredSet:
    """Return the next version of a set, with the experiments of a file.

    An experiment of the set that the file lacks is archived, if a file has declared it. The file may take over a
    discovered experiment. Raises `UsageError` if the file has an experiment that a command has declared.
    """
    names = {experiment.name for experiment in experiments}
    clashes = [
        declared.name
        for declared in current.experiments
        if declared.source == "command" and declared.archived_ms is None and declared.name in names
    ]
    if clashes:
        raise UsageError(
            f"{origin}: the experiment {', '.join(map(setting_text, clashes))} was declared by a command. Remove it "
            "from the file, or archive it with `ab-monitor experiments archive NAME`"
        )
    builder = _SetBuilder(current, origin, now_ms)
    for declared in current.experiments:
        if declared.name not in names and declared.source == "file":
            builder.archive(declared)
    for experiment in experiments:
        builder.declare(experiment, "file")
    digest = experiments_digest(experiments)
    superseded = [other for other in (*current.superseded, current.digest) if other and other != digest]
    return builder.build(digest, tuple(dict.fromkeys(superseded))[-_MAX_SUPERSEDED:])


def add_file_experiments(
    current: DeclaredSet, experiments: Sequence[ExperimentSettings], origin: str, now_ms: int
) -> DeclaredSet:
    """Return the next version of a set, with further experiments that are not filled, for stores of files."""
    builder = _SetBuilder(current, origin, now_ms)
    for experiment in experiments:
        builder.declare(experiment, "file", fills=False)
    return builder.build()


def describe_set_changes(current: DeclaredSet, new: DeclaredSet) -> list[str]:
    """Return a sentence for each experiment that differs between two versions of a set."""
    sentences = []
    for experiment in new.experiments:
        before = current.find(experiment.name)
        if before == experiment:
            continue
        if before is None:
            action = "added, and earlier events are filled in from Kafka"
        elif experiment.archived_ms is not None:
            action = "archived: its events do not count any more, its results stay readable"
        else:
            texts = [change.text for change in experiment.changes[len(before.changes) :]]
            action = "; ".join(texts) or "settings without effect on verdicts and sums"
            if experiment.number != before.number:
                action += (
                    ". The changed definition is filled in from Kafka, and the present numbers are shown until then. "
                    "Events that Kafka no longer has are lost for it: to keep the present numbers, declare the changed "
                    "experiment under a new name"
                )
        sentences.append(f"{experiment.name}: {action}")
    return sentences


def rebuilt_set(
    active: DeclaredSet, file_experiments: Sequence[ExperimentSettings], origin: str, now_ms: int
) -> DeclaredSet:
    """Return the first set of a generation that is filled from the beginning of Kafka's log.

    The set has the experiments of a file, and those that commands have declared in the active generation.
    """
    names = {experiment.name for experiment in file_experiments}
    others = [each for each in active.counted if each.source != "file" and each.name not in names]
    experiments = []
    for number, settings in enumerate((*file_experiments, *(each.settings for each in others)), 1):
        before = active.find(settings.name)
        if before is not None and before.archived_ms is None and settings is not before.settings:
            kept_variants = {*settings.variants, *dropped_variants(before.settings, now_ms)}
            settings = carry_allocations(  # noqa: PLW2901
                _with_variants(before.settings, kept_variants), settings, now_ms
            )
        experiments.append(
            DeclaredExperiment(
                number=number,
                settings=settings,
                since_version=1,
                declared_ms=now_ms if before is None else before.declared_ms,
                definition_since_ms=now_ms if before is None else before.definition_since_ms,
                source="file" if before is None or number <= len(file_experiments) else before.source,
                changes=() if before is None else before.changes,
            )
        )
    digest = experiments_digest(file_experiments) if active.is_in_force else ""
    superseded = tuple(other for other in (*active.superseded, active.digest) if other and other != digest)
    return DeclaredSet(
        1, digest, origin, now_ms, len(experiments) + 1, tuple(experiments), superseded, file_origin=origin
    )


def dropped_variants(experiment: ExperimentSettings, at_ms: int) -> set[str]:
    """Return the variants that have no share any more."""
    shares = experiment.intended_shares(at_ms)
    return {variant for variant in experiment.variants if not shares.get(variant)}


def _with_variants(experiment: ExperimentSettings, variants: Collection[str]) -> ExperimentSettings:
    """Return an experiment without its other variants."""

    def select(shares: Mapping[str, float]) -> dict[str, float]:
        return {variant: share for variant, share in shares.items() if variant in variants}

    allocations = tuple(replace(each, shares=select(each.shares)) for each in experiment.decision.allocations)
    return replace(
        experiment,
        variants=select(experiment.variants),
        decision=replace(experiment.decision, allocations=allocations),
    )


def declare_experiments(
    current: DeclaredSet,
    experiments: Sequence[ExperimentSettings],
    origin: str,
    now_ms: int,
    source: ExperimentSource = "command",
) -> DeclaredSet:
    """Return the next version of a set, with experiments that a command declares or changes, or a service discovers.

    Raises `ExperimentConflict` if a file declares one of the experiments.
    """
    builder = _SetBuilder(current, origin, now_ms)
    for experiment in experiments:
        declared = current.find(experiment.name)
        if declared is not None:
            _check_source(current, declared)
        builder.declare(experiment, source)
    return builder.build()


def archive_experiment(current: DeclaredSet, name: str, origin: str, now_ms: int) -> DeclaredSet:
    """Return the next version of a set, in which an experiment is archived.

    Raises `UnknownExperiment` if the set lacks the experiment, `ExperimentConflict` if a file declares the experiment,
    or if the experiment is archived already.
    """
    declared = current.get(name)
    _check_source(current, declared)
    if declared.archived_ms is not None:
        raise ExperimentConflict(f"the experiment {setting_text(name)} is archived already")
    builder = _SetBuilder(current, origin, now_ms)
    builder.archive(declared)
    return builder.build()


def remove_experiment(current: DeclaredSet, name: str, origin: str, now_ms: int) -> DeclaredSet:
    """Return the next version of a set without an archived experiment.

    Raises `UnknownExperiment` if the set lacks the experiment, `ExperimentConflict` if the experiment is not archived.
    """
    if current.get(name).archived_ms is None:
        raise ExperimentConflict(
            f"the experiment {setting_text(name)} is not archived. Archive the experiment first: remove it from the "
            "configuration file, or run `ab-monitor experiments archive NAME`"
        )
    builder = _SetBuilder(current, origin, now_ms)
    builder.remove(name)
    return builder.build()


def complete_backfill(current: DeclaredSet, number: int, complete_since_ms: int | None, now_ms: int) -> DeclaredSet:
    """Return the next version of a set, in which the numbers of a filled experiment are shown.

    Return the set itself if it has no such number to fill any more.
    """
    builder = _SetBuilder(current, current.origin, now_ms)
    declared = next((each for each in current.experiments if each.number == number and each.is_filling), None)
    if declared is None:
        return current
    builder.put(replace(declared, is_filling=False, previous=None, complete_since_ms=complete_since_ms))
    return builder.build()


def _check_source(current: DeclaredSet, declared: DeclaredExperiment) -> None:
    if declared.source == "file" and declared.archived_ms is None:
        raise ExperimentConflict(
            f"the experiment {setting_text(declared.name)} is declared in a configuration file "
            f"({current.file_origin}). Change the file: running workers read it within seconds"
        )


class _SetBuilder:
    """Collects the changes of a version."""

    def __init__(self, current: DeclaredSet, origin: str, now_ms: int) -> None:
        self._current = current
        self._origin = origin
        self._now_ms = now_ms
        self._version = current.version + 1
        self._next_number = current.next_number
        self._experiments = {experiment.name: experiment for experiment in current.experiments}
        self._removed = dict(current.removed)

    def build(self, digest: str | None = None, superseded: tuple[str, ...] | None = None) -> DeclaredSet:
        """Return the next version, or the current one if nothing differs."""
        current, experiments = self._current, tuple(self._experiments.values())
        if experiments == current.experiments and digest in (None, current.digest):
            return current
        return DeclaredSet(
            version=self._version,
            digest=current.digest if digest is None else digest,
            origin=self._origin,
            since_ms=self._now_ms,
            next_number=self._next_number,
            experiments=experiments,
            superseded=current.superseded if superseded is None else superseded,
            file_origin=current.file_origin if digest is None else self._origin,
            removed=self._removed,
        )

    def put(self, declared: DeclaredExperiment) -> None:
        self._experiments[declared.name] = declared

    def remove(self, name: str) -> None:
        declared = self._experiments.pop(name)
        numbers = {*self._removed.get(name, ()), *declared.superseded_numbers, declared.number, declared.served.number}
        self._removed[name] = tuple(sorted(numbers))

    def archive(self, declared: DeclaredExperiment) -> None:
        """Stop to count an experiment; the numbers that are shown remain, complete or not."""
        if declared.archived_ms is not None:
            return
        served = declared.served
        superseded = declared.superseded_numbers
        if served.number != declared.number:
            superseded = (*superseded, declared.number)
        self.put(
            replace(
                declared,
                number=served.number,
                settings=served.settings,
                superseded_numbers=tuple(number for number in superseded if number != served.number),
                previous=None,
                is_filling=declared.is_filling and declared.previous is None,
                archived_ms=self._now_ms,
            )
        )

    def declare(self, configured: ExperimentSettings, source: ExperimentSource, *, fills: bool = True) -> None:
        """Add an experiment, or change it: other aggregate definitions get a new number."""
        declared = self._experiments.get(configured.name)
        if declared is None:
            removed_numbers = self._removed.pop(configured.name, ())
            self.put(
                DeclaredExperiment(
                    number=self._take_number(),
                    settings=configured,
                    since_version=self._version,
                    declared_ms=self._now_ms,
                    definition_since_ms=self._now_ms,
                    source=source,
                    is_filling=fills and self._current.version > 0,
                    superseded_numbers=removed_numbers,
                )
            )
            return
        carried = carry_allocations(declared.settings, configured, self._now_ms)
        max_variants = MAX_VARIANTS_WITH_EXCLUDE if carried.exclude else MAX_VARIANTS
        if len(carried.variants) > max_variants:
            raise UsageError(
                f"experiment {setting_text(configured.name)}: {len(carried.variants)} variants with the dropped ones, "
                f"expected at most {max_variants}. Declare a new experiment"
            )
        if declared.archived_ms is not None:
            again = self._with_new_definition(declared, carried, source, "counted again after it was archived")
            # The numbers that are shown until then end with the archiving.
            self.put(replace(again, definition_since_ms=declared.archived_ms))
            return
        if declared.previous is not None:
            declared = replace(declared, previous=_with_texts(declared.previous, carried))
        changes = [*describe_allocation_changes(declared.settings, carried, self._now_ms)]
        changes += [("criteria", text) for text in describe_criteria_changes(declared.settings, configured)]
        declared = replace(
            declared,
            changes=(*declared.changes, *(ExperimentChange(self._now_ms, kind, text) for kind, text in changes)),
        )
        differences = definition_changes(declared.settings, carried)
        if differences:
            self.put(self._with_new_definition(declared, carried, source, "; ".join(differences)))
        else:
            self.put(replace(declared, settings=carried, source=source))

    def _with_new_definition(
        self, declared: DeclaredExperiment, configured: ExperimentSettings, source: ExperimentSource, text: str
    ) -> DeclaredExperiment:
        return replace(
            declared,
            number=self._take_number(),
            settings=configured,
            since_version=self._version,
            definition_since_ms=self._now_ms,
            definition_version=declared.definition_version + 1,
            source=source,
            is_filling=True,
            previous=declared.previous
            or (
                None if declared.is_filling else _with_texts(Definition(declared.number, declared.settings), configured)
            ),
            superseded_numbers=(*declared.superseded_numbers, declared.number),
            archived_ms=None,
            complete_since_ms=None,
            changes=(*declared.changes, ExperimentChange(self._now_ms, "definition", text)),
        )

    def _take_number(self) -> int:
        number = self._next_number
        self._next_number += 1
        return number


def _with_texts(definition: Definition, configured: ExperimentSettings) -> Definition:
    """Return a definition, shown until the next one is filled, with the configured texts for readers."""
    settings = replace(
        definition.settings,
        owner=configured.owner,
        hypothesis=configured.hypothesis,
        link=configured.link,
        texts=configured.texts,
    )
    return replace(definition, settings=settings)


def definition_changes(previous: ExperimentSettings, configured: ExperimentSettings) -> list[str]:
    """Return a phrase for each setting that stored sums depend on and that differs."""
    stored, new = (json.loads(json.dumps(aggregate_definitions(settings))) for settings in (previous, configured))
    return definition_differences(configured.name, stored, new)


def declared_experiment_json(declared: DeclaredExperiment) -> dict[str, Any]:
    """Return an experiment as a JSON object; a catalogue is the number of its items."""
    content: dict[str, Any] = msgspec.to_builtins(declared, enc_hook=dict, str_keys=True)
    items = content["settings"]["items"]
    if items is not None and items["catalogue"] is not None:
        items["catalogue"] = len(items["catalogue"])
    content.pop("previous")
    return {"name": declared.name, **content}


def definitions_json(declared: DeclaredExperiment) -> str:
    """Return the value of the store's hash `definitions` for an experiment."""
    fields: dict[str, Any] = {"definitions": aggregate_definitions(declared.settings), "number": declared.number}
    return json.dumps(fields, sort_keys=True)
