"""How a backlog shrinks, and when it will be gone."""

from __future__ import annotations

import logging
import time
from typing import Final

log = logging.getLogger(__name__)
_EVERY_S: Final = 10.0
_BACKLOG: Final = 10_000
"""Events waiting from which on it is worth a line."""


class CatchingUp:
    """Says every ten seconds how many events are waiting, and when there will be none."""

    def __init__(self) -> None:
        self._at = time.monotonic()
        self._waiting: int | None = None
        self._said = False

    def report(self, waiting: int, applied: int) -> None:
        """Note how many events wait (for all workers) and how many this worker has applied so far."""
        now = time.monotonic()
        if now - self._at < _EVERY_S and self._waiting is not None:
            return
        if waiting >= _BACKLOG:
            rate = (self._waiting - waiting) / (now - self._at) if self._waiting is not None else 0.0
            end = "unknown yet" if self._waiting is None else "not at this pace"
            if rate > 0:
                end = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + waiting / rate))
            log.info(
                "catching up waiting=%d less_per_second=%d applied_here=%d expected_end=%s", waiting, rate, applied, end
            )
            self._said = True
        elif self._said:
            log.info("caught up waiting=%d applied_here=%d", waiting, applied)
            self._said = False
        self._at, self._waiting = now, waiting
