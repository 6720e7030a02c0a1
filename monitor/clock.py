"""Time as an argument: whoever needs the wall clock is handed one of these."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

HOUR_MS: Final = 3_600_000
DAY_MS: Final = 86_400_000

Clock = Callable[[], int]
"""Returns milliseconds since the Unix epoch."""


def wall_clock() -> int:
    """Return the machine's time in milliseconds since the Unix epoch."""
    return time.time_ns() // 1_000_000
