"""Sums in two limbs are replaced as they are taken away and added again."""

from __future__ import annotations

from itertools import product

import pytest

from monitor.aggregates import LIMB_BITS
from monitor.cells import add_limbs, replace_limbs, replace_mean, replace_rounded, zeros

NUMBERS = [0.0, 1.0, 2.0**LIMB_BITS - 1, 2.0**LIMB_BITS, 2.0**62 - 2**9, 2.0**62, 2.0**70, 2.0**71, -1.0, -(2.0**31)]


@pytest.mark.parametrize(("old", "new"), [*product(NUMBERS, NUMBERS)])
def test_whole_numbers_of_any_size_are_replaced(old: float, new: float) -> None:
    """Limb by limb the same, also where one of them has to go another way."""
    replaced, added = zeros(2), zeros(2)
    replace_rounded(replaced, 0, old, new)
    add_limbs(added, 0, -1, old)
    add_limbs(added, 0, 1, new)
    assert list(replaced) == list(added)


@pytest.mark.parametrize("number", [each for each in NUMBERS if 0 <= each <= 2**70])
def test_the_limbs_are_the_number(number: float) -> None:
    """Joined, they are what was added."""
    limbs = zeros(2)
    replace_limbs(limbs, 0, 0.0, number)
    assert limbs[0] + (limbs[1] << LIMB_BITS) == number


def test_a_mean_is_replaced_with_its_square() -> None:
    """3/4 by 1/2, in 30 bits, squares in 28: 2²⁹ − 3 · 2²⁸, 2²⁶ − 9 · 2²⁴."""
    limbs = zeros(4)
    replace_mean(limbs, 0, 0.75 * 2**30, 0.5 * 2**30, 2.0**28)
    assert limbs[0] + (limbs[1] << LIMB_BITS) == 2**29 - 3 * 2**28
    assert limbs[2] + (limbs[3] << LIMB_BITS) == 2**26 - 9 * 2**24
