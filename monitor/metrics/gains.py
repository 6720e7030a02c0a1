"""Gain functions (grade → gain of an item) and discount functions (rank → factor of the gain), by name.

Both are dimensionless. A gain is at least 0; a discount is 1 at rank 1 and never rises with the rank.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias, get_args

from monitor.config import NamedDiscount, NamedGain

GainTable: TypeAlias = Mapping[float, float]
"""grade → gain; finite, at least 0, and not falling as the grade rises."""

GAIN_NAMES: Final[tuple[NamedGain, ...]] = get_args(NamedGain)
DISCOUNT_NAMES: Final[tuple[NamedDiscount, ...]] = get_args(NamedDiscount)


def linear_gain(grade: float) -> float:
    """Return max(g, 0): the grade itself (Järvelin & Kekäläinen 2002); a negative grade gains 0, as in trec_eval.

    >>> linear_gain(3), linear_gain(-1)
    (3.0, 0.0)
    """
    return float(grade) if grade > 0 else 0.0


def exp2_gain(grade: float) -> float:
    """Return 2^g − 1, or 0 for a negative grade (Burges et al. 2005); ValueError if the result exceeds a float.

    >>> exp2_gain(3), exp2_gain(-1)
    (7.0, 0.0)
    """
    if grade <= 0:
        return 0.0
    try:
        return math.pow(2.0, grade) - 1.0
    except OverflowError:
        raise ValueError(f"grade {grade!r} is too large for gain 'exp2'") from None


def table_gain(table: GainTable) -> Callable[[float], float]:
    """Return the function grade → gain of a table; the table is copied.

    Raises ValueError for an empty table, a grade or gain that is not finite, a gain below 0, or a gain that falls as
    the grade rises: then the list sorted by grade would not be ideal. The returned function raises ValueError for a
    grade that is missing in the table.

    >>> table_gain({0: 0, 1: 1, 2: 5})(2)
    5.0
    """
    if not table:
        raise ValueError("gain table is empty")
    gains = {float(grade): float(gain) for grade, gain in table.items()}
    previous_gain = 0.0
    for grade, gain in sorted(gains.items()):
        if not (math.isfinite(grade) and math.isfinite(gain) and gain >= 0):
            raise ValueError(f"gain table: grade {grade!r} has gain {gain!r}, expected finite numbers, gain at least 0")
        if gain < previous_gain:
            raise ValueError(
                f"gain table: grade {grade!r} has gain {gain!r}, less than a lower grade's {previous_gain!r}"
            )
        previous_gain = gain

    def lookup(grade: float) -> float:
        try:
            return gains[grade]
        except KeyError:
            raise ValueError(f"grade {grade!r} is not in the gain table (grades: {sorted(gains)})") from None

    return lookup


def gain_function(gain: NamedGain | GainTable) -> Callable[[float], float]:
    """Return the function grade → gain of a name or a table; the function expects finite grades.

    Raises ValueError for an unknown name or an invalid table (see `table_gain`).
    """
    if isinstance(gain, Mapping):
        return table_gain(gain)
    if gain == "linear":
        return linear_gain
    if gain == "exp2":
        return exp2_gain
    raise ValueError(f"unknown gain {gain!r}, expected one of {', '.join(GAIN_NAMES)}, or a table grade → gain")


def log2_discount(rank: int) -> float:
    """Return 1/log2(r + 1) (Burges et al. 2005; also in trec_eval and scikit-learn).

    >>> [log2_discount(rank) for rank in (1, 3, 7)]
    [1.0, 0.5, 0.3333333333333333]
    """
    return 1.0 / math.log2(rank + 1)


def log2_from_2_discount(rank: int) -> float:
    """Return 1/max(1, log2 r): no discount below rank 2, the base (Järvelin & Kekäläinen 2002, equation 2).

    >>> [log2_from_2_discount(rank) for rank in (1, 2, 4, 8)]
    [1.0, 1.0, 0.5, 0.3333333333333333]
    """
    return 1.0 / max(1.0, math.log2(rank))


def reciprocal_discount(rank: int) -> float:
    """Return 1/r (the Zipfian discount of Wang et al. 2013).

    >>> [reciprocal_discount(rank) for rank in (1, 2, 4)]
    [1.0, 0.5, 0.25]
    """
    return 1.0 / rank


def discount_function(discount: NamedDiscount) -> Callable[[int], float]:
    """Return the function rank (from 1) → discount of a name; ValueError for an unknown name."""
    if discount == "log2":
        return log2_discount
    if discount == "log2-from-2":
        return log2_from_2_discount
    if discount == "reciprocal":
        return reciprocal_discount
    raise ValueError(f"unknown discount {discount!r}, expected one of {', '.join(DISCOUNT_NAMES)}")
