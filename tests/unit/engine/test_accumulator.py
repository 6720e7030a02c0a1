"""Unit tests of the two-word sums and mean sums of the accumulator."""

from __future__ import annotations

from itertools import product

import pytest

from monitor.engine.accumulator import MeanSums, WideSum
from monitor.metrics.record_layout import LOW_WORD_BITS

NUMBERS = [0.0, 1.0, 2.0**LOW_WORD_BITS - 1, 2.0**LOW_WORD_BITS, 2.0**62 - 2**9, 2.0**62, 2.0**70, 2.0**71]


def _value(wide_sum: WideSum) -> int:
    return wide_sum.low + (wide_sum.high << LOW_WORD_BITS)


@pytest.mark.parametrize(("old", "new"), [*product(NUMBERS, NUMBERS)])
def test_replacing_a_float_equals_subtracting_and_adding(old: float, new: float) -> None:
    """Both words equal the words after a subtraction of the old and an addition of the new number."""
    replaced_sum, added_sum = WideSum(), WideSum()
    replaced_sum.replace(old, new)
    added_sum.add(-1, old)
    added_sum.add(1, new)
    assert (replaced_sum.low, replaced_sum.high) == (added_sum.low, added_sum.high)
    if max(old, new) <= 2**70:
        assert _value(replaced_sum) == int(new) - int(old)


@pytest.mark.parametrize(("old", "new"), [*product([0, 1, 2**LOW_WORD_BITS - 1, 2**LOW_WORD_BITS, 2**61], repeat=2)])
def test_replacing_an_integer_equals_subtracting_and_adding(old: int, new: int) -> None:
    """Both words equal the words after a subtraction of the old and an addition of the new number."""
    replaced_sum, added_sum = WideSum(), WideSum()
    replaced_sum.replace_integer(old, new)
    added_sum.add_integer(-1, old)
    added_sum.add_integer(1, new)
    assert (replaced_sum.low, replaced_sum.high) == (added_sum.low, added_sum.high)
    assert _value(replaced_sum) == new - old


def test_replacing_a_mean_also_replaces_its_square() -> None:
    """Replacing 3/4 by 1/2, with 30 fraction bits (28 for squares), adds 2²⁹ − 3 · 2²⁸, 2²⁶ − 9 · 2²⁴."""
    means = MeanSums()
    means.replace(0.75 * 2**30, 0.5 * 2**30, 2.0**28)
    assert _value(means.total) == 2**29 - 3 * 2**28
    assert _value(means.squares) == 2**26 - 9 * 2**24
