"""Refusals of numbers that no formula here is defined for; each names the argument, the value and what was expected."""

from __future__ import annotations

import math


def level(name: str, value: float) -> float:
    """Return a level between 0 and 1; raises ValueError."""
    if not 0 < value < 1:
        raise ValueError(f"{name} is {value!r}, expected a level between 0 and 1")
    return value


def positive(name: str, value: float) -> float:
    """Return a finite number above 0; raises ValueError."""
    if not 0 < value < math.inf:
        raise ValueError(f"{name} is {value!r}, expected a finite number above 0")
    return value


def not_negative(name: str, value: float) -> float:
    """Return a finite number of at least 0; raises ValueError."""
    if not 0 <= value < math.inf:
        raise ValueError(f"{name} is {value!r}, expected a finite number of at least 0")
    return value
