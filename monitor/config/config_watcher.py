"""Reloads the configuration of a running service: content that has changed, or a request to reload, is applied.

The content is compared every ten seconds. Notifications of the file system are not used: they miss the replacement of a
link, by which Kubernetes updates a mounted ConfigMap.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final

from monitor.config.config_files import ConfigFile, content_digest, is_readable_again, read_config_files
from monitor.config.digest import experiments_digest
from monitor.config.loading import find_referenced_files, parse_config_files
from monitor.config.settings import Settings
from monitor.errors import AbMonitorError, ConfigErrors, UsageError

log = logging.getLogger(__name__)
POLL_INTERVAL_S: Final = 10.0
SETTLING_S: Final = 1.0
"""Time without a further change after which changed content is loaded: files that are being copied are incomplete."""
_REPLY_TIMEOUT_S: Final = 30.0
_STOP_TIMEOUT_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class ReloadResult:
    """The outcome of a request to reload the configuration."""

    is_successful: bool
    text: str
    """A sentence on what happened, or the errors of the configuration, one per line."""


class ConfigWatcher:
    """Watches a configuration from a background thread, between `start` and `stop`.

    `apply` is called in that thread with the running settings and the experiments of a valid configuration, if these
    differ from those of the last call. An `AbMonitorError` that `apply` raises is a failed reload. Failed reloads are
    tried again at each poll. `record_result` receives the result of each reload.
    """

    def __init__(
        self,
        path: Path,
        environ: Mapping[str, str],
        initial: Settings,
        apply: Callable[[Settings], None],
        record_result: Callable[[ReloadResult], None],
    ) -> None:
        self._path = path
        self._is_watchable = is_readable_again(path)
        self._environ = environ
        self._running_settings = initial
        self._apply = apply
        self._record_result = record_result
        self._loaded_digest: str | None = None
        """Digest of the content of the last successful reload. None at first: the content may have changed since it was
        loaded, before the watcher was created."""
        self._polled_digest: str | None = None
        self._referenced_paths: tuple[Path, ...] = ()
        self._problem: str | None = None
        """Why the last reload failed; None after a successful one."""
        self._changed_settings: tuple[str, ...] = ()
        # A signal handler may interrupt another one; of Python's queues and locks, only SimpleQueue.put allows that.
        self._requests: SimpleQueue[Future[ReloadResult] | None] = SimpleQueue()
        self._is_stopping = False
        self._thread = threading.Thread(target=self._watch, name="configuration", daemon=True)

    @property
    def problem(self) -> str | None:
        """Why the last reload failed; None after a successful one."""
        return self._problem

    def start(self) -> None:
        """Start to watch the configuration."""
        self._thread.start()

    def stop(self) -> None:
        """Stop watching; wait at most 2 s for a reload in progress."""
        self._is_stopping = True
        self._requests.put(None)
        self._thread.join(_STOP_TIMEOUT_S)

    def request_reload(self) -> None:
        """Request a reload without waiting for it. Signal handlers may call this."""
        self._requests.put(None)

    def request_reload_result(self) -> ReloadResult:
        """Request a reload, and return its result."""
        request: Future[ReloadResult] = Future()
        self._requests.put(request)
        if wait([request], _REPLY_TIMEOUT_S).done:
            return request.result()
        text = f"the reload has not ended within {_REPLY_TIMEOUT_S:.0f} s: its result will be in the log"
        log.error("configuration not read yet reason=%s", text)
        result = ReloadResult(is_successful=False, text=text)
        self._record_result(result)
        return result

    def _watch(self) -> None:
        wait_s = 0.0
        while True:
            try:
                request = self._requests.get(timeout=wait_s)
            except Empty:
                wait_s = self.poll()
                continue
            if self._is_stopping:
                return
            result = self.reload()
            if request is not None:
                request.set_result(result)

    def poll(self) -> float:
        """Reload content that has changed, and did not change since the last poll; return the time to the next poll."""
        if not self._is_watchable:
            return POLL_INTERVAL_S
        try:
            digest = self._digest(read_config_files(self._path))
        except UsageError as error:
            digest = str(error)
        is_settled = digest == self._polled_digest
        self._polled_digest = digest
        if digest == self._loaded_digest and self._problem is None:
            return POLL_INTERVAL_S
        if not is_settled:
            return SETTLING_S
        self.reload()
        return POLL_INTERVAL_S

    def reload(self) -> ReloadResult:
        """Load the configuration, apply its experiments if they have changed, and return the result.

        After a failure, the running experiments remain. A problem that is the same as that of the last reload is not
        logged again.
        """
        try:
            result = ReloadResult(is_successful=True, text=self._load())
            self._problem = None
            log.info("configuration read again result=%s", result.text)
        except AbMonitorError as error:
            result = self._reject(error)
        except Exception as error:  # A defect must not end the thread: the configuration would not be watched any more.
            defect = AbMonitorError(f"{type(error).__name__}: the log has the cause")
            if str(defect) != self._problem:
                log.exception("configuration not read because of a defect")
            result = self._reject(defect)
        self._record_result(result)
        return result

    def _load(self) -> str:
        """Load the configuration, apply its experiments if they have changed, and return a sentence on the outcome."""
        if not self._is_watchable:
            raise UsageError(f"{self._path}: this is neither a file nor a directory, so it cannot be read again")
        files = read_config_files(self._path)
        # Before the settings are parsed, so that a file that changes in between is noticed at the next poll.
        self._referenced_paths = find_referenced_files(files)
        content = self._digest(files)
        settings = parse_config_files(files, self._environ)
        digest = experiments_digest(settings.experiments)
        self._warn_of_changed_settings(settings)
        is_changed = settings.experiments != self._running_settings.experiments
        if is_changed:
            new_settings = replace(self._running_settings, experiments=settings.experiments)
            self._apply(new_settings)
            self._running_settings = new_settings
        self._loaded_digest = content
        text = f"{'reloaded' if is_changed else 'unchanged'}: configuration {digest}"
        restart_settings = ", ".join(self._changed_settings)
        return f"{text}; these changes take effect after a restart: {restart_settings}" if restart_settings else text

    def _digest(self, files: tuple[ConfigFile, ...]) -> str:
        """Return the digest of the files and of the files that the loaded configuration refers to."""
        referenced_files = []
        for path in self._referenced_paths:
            with suppress(OSError, ValueError):  # the second is for names that no file can have
                referenced_files.append(ConfigFile(path, path.read_bytes()))
        return content_digest((*files, *referenced_files))

    def _warn_of_changed_settings(self, settings: Settings) -> None:
        """Log the names of settings that differ from those of the running service, unless they are logged already."""
        changed_settings = changed_setting_names(self._running_settings, settings)
        if changed_settings and changed_settings != self._changed_settings:
            log.warning("changed settings take effect after a restart settings=%s", ", ".join(changed_settings))
        self._changed_settings = changed_settings

    def _reject(self, error: AbMonitorError) -> ReloadResult:
        problem = "; ".join(map(str, error.errors)) if isinstance(error, ConfigErrors) else str(error)
        if problem != self._problem:
            log.error("configuration rejected, the running one stays in force reason=%s", problem)
        self._problem = problem
        return ReloadResult(is_successful=False, text=str(error))


def changed_setting_names(old: Settings, new: Settings) -> tuple[str, ...]:
    """Return the keys of all settings that differ, without those of experiments, which need no restart.

    >>> from monitor.config import KafkaSettings
    >>> changed_setting_names(Settings(()), Settings((), kafka=KafkaSettings(start="latest")))
    ('kafka.start',)
    """
    names = tuple(
        f"{section.name}.{setting.name.removesuffix('_ms')}"
        for section in fields(Settings)
        if is_dataclass(old_section := getattr(old, section.name))
        for setting in fields(old_section)
        if getattr(old_section, setting.name) != getattr(getattr(new, section.name), setting.name)
    )
    return names if old.notify == new.notify else (*names, "notify")
