"""Sums in two words are replaced as they are subtracted and added again."""

from __future__ import annotations

from itertools import product

import pytest

from monitor.engine.accumulator import MeanSums, WideSum
from monitor.metrics.record_layout import LIMB_BITS

NUMBERS = [0.0, 1.0, 2.0**LIMB_BITS - 1, 2.0**LIMB_BITS, 2.0**62 - 2**9, 2.0**62, 2.0**70, 2.0**71]


def _value(sums: WideSum) -> int:
    return sums.low + (sums.high << LIMB_BITS)


@pytest.mark.parametrize(("old", "new"), [*product(NUMBERS, NUMBERS)])
def test_numbers_of_any_size_are_replaced(old: float, new: float) -> None:
    """The words are the same as those of a subtraction and an addition."""
    replaced, added = WideSum(), WideSum()
    replaced.replace(old, new)
    added.add(-1, old)
    added.add(1, new)
    assert replaced.integers() == added.integers()
    if max(old, new) <= 2**70:
        assert _value(replaced) == int(new) - int(old)


@pytest.mark.parametrize(("old", "new"), [*product([0, 1, 2**LIMB_BITS - 1, 2**LIMB_BITS, 2**61], repeat=2)])
def test_integers_are_replaced(old: int, new: int) -> None:
    """The words are the same as those of a subtraction and an addition."""
    replaced, added = WideSum(), WideSum()
    replaced.replace_integer(old, new)
    added.add_integer(-1, old)
    added.add_integer(1, new)
    assert replaced.integers() == added.integers()
    assert _value(replaced) == new - old


def test_a_mean_is_replaced_with_its_square() -> None:
    """3/4 by 1/2, in 30 bits, squares in 28: 2²⁹ − 3 · 2²⁸, 2²⁶ − 9 · 2²⁴."""
    means = MeanSums()
    means.replace(0.75 * 2**30, 0.5 * 2**30, 2.0**28)
    assert _value(means.total) == 2**29 - 3 * 2**28
    assert _value(means.squares) == 2**26 - 9 * 2**24
