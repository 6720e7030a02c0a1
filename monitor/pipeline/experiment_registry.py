"""The experiments of a service: the configuration file and the set of declared experiments in the store, in step."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
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
    change_declared_set,
    delete_experiment,
    is_file_in_use,
    join_store,
    read_experiments_versions,
    read_stored_numbers,
    read_undeclared_experiments,
    record_file_in_use,
)

log = logging.getLogger(__name__)
_SYNCHRONIZATION_INTERVAL_S: Final = 10.0
_STOP_TIMEOUT_S: Final = 2.0
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
        self._metadata: StoreMetadata | None = None
        self.synchronize()

    @property
    def metadata(self) -> StoreMetadata:
        """The metadata of the store as of the last call of a method."""
        assert self._metadata is not None, "set by the constructor"
        return self._metadata

    def synchronize(self) -> StoreMetadata:
        """Compare the file with the stored set, declare newer experiments, and return the metadata.

        Raises `UsageError` if the file is in conflict with another file.
        """
        with self._lock:
            if self._is_up_to_date():
                record_file_in_use(self._store, self.metadata.declared_set.digest, self._clock())
                return self.metadata
            return self._compare(self._settings.experiments)

    def follow(self) -> StoreMetadata:
        """Return the metadata of the stored set, without a comparison with the file."""
        return self.change(lambda current: current)

    def _is_up_to_date(self) -> bool:
        """Return whether the set has the file's experiments, and the store has the same version as at the last call.

        Large sets are then neither read nor compared.
        """
        if self._metadata is None or self._accepted_digest != self._metadata.declared_set.digest:
            return False
        return read_experiments_versions(self._store) == {self.metadata.declared_set.version}

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
                    f"{current.file_origin}, which is in force as version {current.version}. Make the files equal, or "
                    "restart this worker to put its file into force"
                )
            if decision == "follow" and current.version != self._followed_version:
                self._followed_version = current.version
                log.warning(
                    "older file not in force origin=%s: the experiments of %s are in force as version %d, until no "
                    "worker has had that file for five minutes",
                    self._origin,
                    current.file_origin,
                    current.version,
                )
            if decision != "replace":
                return current
            return replace_file_experiments(current, experiments, self._origin, self._clock())

        metadata = self._update(change)
        self._accepted_digest = digest
        record_file_in_use(self._store, digest, self._clock())
        return metadata

    def _update(self, change: Callable[[DeclaredSet], DeclaredSet]) -> StoreMetadata:
        """Change the set; only the first call may create the store."""
        if self._metadata is None:
            self._metadata = join_store(self._store, self._settings, change)
        else:
            self._metadata = change_declared_set(self._store, self._metadata, change)
        return self._metadata

    @contextmanager
    def synchronizing(self) -> Iterator[None]:
        """Synchronize every ten seconds while the block runs, in a thread of its own."""
        block_ended = threading.Event()

        def repeat(*actions: Callable[[], object]) -> None:
            while not block_ended.wait(_SYNCHRONIZATION_INTERVAL_S):
                for action in actions:
                    try:
                        action()
                    except AbMonitorError as error:
                        # The worker reports an outage, and the watcher of the configuration a conflict.
                        log.debug("experiments not synchronized reason=%s", error)
                    except Exception:  # the next attempt may succeed
                        log.exception("experiments not synchronized")

        threads = [
            threading.Thread(target=repeat, args=actions, name="experiments", daemon=True)
            # A deletion may take long, and must not delay the comparison of the file.
            for actions in ((self.synchronize, self._adopt_discovered), (self._delete_unused,))
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            block_ended.set()
            for thread in threads:
                thread.join(_STOP_TIMEOUT_S)

    @property
    def settings(self) -> Settings:
        """The settings with the experiments of the file as it was last declared."""
        return self._settings

    def change(self, change: Callable[[DeclaredSet], DeclaredSet]) -> StoreMetadata:
        """Change the set by a command, and return the metadata. Raises the errors of `change`."""
        with self._lock:
            return self._update(change)

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
            self.change(partial(self._adopt, settings))
            log.info("experiment adopted experiment=%s responses=%d", name, experiment.responses)

    def _adopt(self, settings: Sequence[ExperimentSettings], current: DeclaredSet) -> DeclaredSet:
        """Return the next version of the set, unless somebody has declared the experiment meanwhile."""
        if any(current.find(experiment.name) for experiment in settings):
            return current
        return declare_experiments(current, settings, "discover.auto_adopt", self._clock(), "discovered")

    def _delete_unused(self) -> None:
        """Delete what is stored under numbers that no worker shows or counts, also after an interrupted deletion."""
        declared_set = self.metadata.declared_set
        is_filling = any(experiment.is_filling for experiment in declared_set.counted)
        if is_filling or self._clock() < declared_set.since_ms + _DELETION_DELAY_MS:
            return
        experiments = declared_set.experiments
        used_numbers = {number for each in experiments for number in (each.number, each.served.number)}
        for number in read_stored_numbers(self._store) - used_numbers:
            if number < declared_set.next_number:  # otherwise it belongs to a later version of the set
                keys = delete_experiment(self._store, number)
                log.info("unused aggregates deleted number=%d keys=%d", number, keys)
