"""The experiments of a service: the configuration file and the set of declared experiments in the store, in step."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from monitor.analysis import auto_adoptable
from monitor.clock import Clock
from monitor.config import (
    DeclaredSet,
    ExperimentSettings,
    Settings,
    compare_file,
    complete_backfill,
    declare_experiments,
    experiments_digest,
    parse_declarations,
    replace_file_experiments,
)
from monitor.decoding import suggest_declaration
from monitor.errors import AbMonitorError, UsageError
from monitor.state import (
    ShardedStore,
    StoreMetadata,
    delete_experiment,
    is_file_in_use,
    join_store,
    read_stored_numbers,
    read_undeclared_experiments,
    record_file_in_use,
)

log = logging.getLogger(__name__)
_SYNCHRONIZATION_INTERVAL_S: Final = 10.0
_DELETION_DELAY_MS: Final = 60_000
"""Time after the last change of the set by which all workers follow the set."""


class ExperimentRegistry:
    """Declares the experiments of a file in the store, and follows the changes of other workers and commands.

    Several threads may call the methods. All methods may raise `StoreUnavailable` and `UnusableStore`.
    """

    def __init__(self, store: ShardedStore, settings: Settings, origin: str, clock: Clock) -> None:
        """`origin` names the file and the worker; the connection of `store` is for the registry alone."""
        self._store = store
        self._settings = settings
        self._origin = origin
        self._clock = clock
        self._lock = threading.Lock()
        self._accepted_digest: str | None = None
        """Digest of the file's experiments when they were last compared with the set without a conflict."""
        self._followed_version: int | None = None
        """Version of another file for which the older file of this worker was logged."""
        self.metadata = self.synchronize()

    def synchronize(self) -> StoreMetadata:
        """Compare the file with the stored set, declare newer experiments, and return the metadata.

        Raises `UsageError` if the file is in conflict with another file.
        """
        with self._lock:
            return self._compare(self._settings.experiments)

    def replace_file(self, experiments: tuple[ExperimentSettings, ...]) -> StoreMetadata:
        """Declare the experiments of the changed file, as `synchronize` does; after an error nothing has changed."""
        with self._lock:
            metadata = self._compare(experiments)
            self._settings = replace(self._settings, experiments=experiments)
            return metadata

    def _compare(self, experiments: tuple[ExperimentSettings, ...]) -> StoreMetadata:
        digest = experiments_digest(experiments)
        previous_digest = self._accepted_digest if digest != self._accepted_digest else None

        def change(current: DeclaredSet) -> DeclaredSet:
            is_in_use = current.digest != digest and is_file_in_use(self._store, current.digest, self._clock())
            decision = compare_file(current, digest, previous_digest, is_in_use=is_in_use)
            if decision == "conflict":
                raise UsageError(
                    f"two files replace the same version of the declared experiments: {self._origin} and "
                    f"{current.origin}, which is in force as version {current.version}. Make the files equal, or "
                    "restart this worker to put its file into force"
                )
            if decision == "follow" and current.version != self._followed_version:
                self._followed_version = current.version
                log.warning(
                    "older file not in force origin=%s: the experiments of %s are in force as version %d",
                    self._origin,
                    current.origin,
                    current.version,
                )
            if decision != "replace":
                return current
            return replace_file_experiments(current, experiments, self._origin, self._clock())

        self.metadata = join_store(self._store, self._settings, change)
        self._accepted_digest = digest
        record_file_in_use(self._store, digest, self._clock())
        return self.metadata

    @contextmanager
    def synchronizing(self) -> Iterator[None]:
        """Synchronize every ten seconds while the block runs, in a thread of its own."""
        block_ended = threading.Event()

        def synchronize_regularly() -> None:
            while not block_ended.wait(_SYNCHRONIZATION_INTERVAL_S):
                try:
                    self.synchronize()
                    self._adopt_discovered()
                    self._delete_unused()
                except AbMonitorError as error:
                    # The worker reports an outage, and the watcher of the configuration a conflict.
                    log.debug("experiments not synchronized reason=%s", error)

        thread = threading.Thread(target=synchronize_regularly, name="experiments", daemon=True)
        thread.start()
        try:
            yield
        finally:
            block_ended.set()
            thread.join()

    @property
    def settings(self) -> Settings:
        """The settings with the experiments of the file as it was last declared."""
        return self._settings

    def change(self, change: Callable[[DeclaredSet], DeclaredSet]) -> StoreMetadata:
        """Change the set by a command, and return the metadata. Raises the errors of `change`."""
        with self._lock:
            self.metadata = join_store(self._store, self._settings, change)
            return self.metadata

    def complete_backfill(self, number: int, complete_since_ms: int | None) -> None:
        """Show the numbers of a filled experiment."""
        self.change(lambda current: complete_backfill(current, number, complete_since_ms, self._clock()))

    def _adopt_discovered(self) -> None:
        """Declare undeclared experiments that match `discover.auto_adopt`."""
        discover, declared_set = self._settings.discover, self.metadata.declared_set
        if not discover.auto_adopt:
            return
        names = [experiment.name for experiment in declared_set.experiments]
        adopted = [experiment.name for experiment in declared_set.experiments if experiment.source == "discovered"]
        undeclared = read_undeclared_experiments(self._store, names, discover)
        for name in auto_adoptable(undeclared, discover, names, adopted):
            experiment = next(each for each in undeclared if each.name == name)
            settings = parse_declarations(name, suggest_declaration(experiment))
            self.change(
                lambda current, settings=settings: declare_experiments(  # type: ignore[misc]
                    current, settings, "discover.auto_adopt", self._clock(), "discovered"
                )
            )
            log.info("experiment adopted experiment=%s responses=%d", name, experiment.responses)

    def _delete_unused(self) -> None:
        """Delete what is stored under numbers that no worker shows or counts, also after an interrupted deletion."""
        declared_set = self.metadata.declared_set
        if self._clock() < declared_set.since_ms + _DELETION_DELAY_MS:
            return
        experiments = declared_set.experiments
        used_numbers = {number for each in experiments for number in (each.number, each.served.number)}
        for number in read_stored_numbers(self._store) - used_numbers:
            if number < declared_set.next_number:  # otherwise it belongs to a later version of the set
                keys = delete_experiment(self._store, number)
                log.info("unused aggregates deleted number=%d keys=%d", number, keys)
