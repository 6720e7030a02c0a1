"""Pauses of a worker: the dependencies for which the worker waits, and why."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final, Literal, get_args

log = logging.getLogger(__name__)
Dependency = Literal["store", "kafka", "dead_letters", "schema_registry"]
DEPENDENCIES: Final[tuple[Dependency, ...]] = get_args(Dependency)
"""The words by which the metric `abmonitor_paused`, alerts and log lines name a dependency."""


class Pauses:
    """The dependencies for which a worker waits; the beginning and the end of each outage are logged once."""

    def __init__(self, set_paused: Callable[[Dependency, int], object]) -> None:
        """`set_paused` is called with 1 when a pause begins, and with 0 when a pause ends."""
        self._set_paused = set_paused
        self._reasons: Mapping[str, str] = {}

    def reasons(self) -> Mapping[str, str]:
        """Return dependency → why the worker waits; empty while it reads events. Any thread may call this."""
        return self._reasons

    def begin(self, dependency: Dependency, reason: str) -> None:
        """Note the reason of an outage; log the first reason, and further reasons for debugging."""
        if dependency not in self._reasons:
            log.warning("paused reason=%s error=%s", dependency, reason)
            self._set_paused(dependency, 1)
        elif self._reasons[dependency] != reason:
            log.debug("still paused reason=%s error=%s", dependency, reason)
        self._reasons = {**self._reasons, dependency: reason}

    def end_all(self) -> None:
        """End all pauses."""
        for dependency in get_args(Dependency):
            self.end(dependency)

    def end(self, dependency: Dependency) -> None:
        """End a pause, if there is one."""
        if dependency in self._reasons:
            log.info("resumed reason=%s", dependency)
            self._set_paused(dependency, 0)
            self._reasons = {name: reason for name, reason in self._reasons.items() if name != dependency}
