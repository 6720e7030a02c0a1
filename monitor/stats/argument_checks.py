"""Checks of numeric arguments; the ValueError of a failed check names the argument, the value and the expectation."""

from __future__ import annotations

import math


def check_level(name: str, value: float) -> float:
    """Return `value`; raise ValueError unless 0 < value < 1."""
    if not 0 < value < 1:
        raise ValueError(f"{name} is {value!r}, expected a level between 0 and 1")
    return value


def check_positive(name: str, value: float) -> float:
    """Return `value`; raise ValueError unless 0 < value < ∞."""
    if not 0 < value < math.inf:
        raise ValueError(f"{name} is {value!r}, expected a finite number above 0")
    return value


def check_non_negative(name: str, value: float) -> float:
    """Return `value`; raise ValueError unless 0 ≤ value < ∞."""
    if not 0 <= value < math.inf:
        raise ValueError(f"{name} is {value!r}, expected a finite number of at least 0")
    return value
