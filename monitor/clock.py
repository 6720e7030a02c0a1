"""The clock as an argument: functions that need the current time take a `Clock`, so tests can set the time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

HOUR_MS: Final = 3_600_000
DAY_MS: Final = 86_400_000
HOURS_PER_DAY: Final = 24

Clock = Callable[[], int]
"""A function that returns milliseconds since the Unix epoch."""


def wall_clock() -> int:
    """Return the system time in milliseconds since the Unix epoch."""
    return time.time_ns() // 1_000_000
