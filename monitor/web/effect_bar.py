"""Bars of effects with their intervals, on one scale for all experiments of a list."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from monitor.export import RelativeBounds

WIDTH: Final = 200
"""Width of a bar in units of its drawing; the middle is no effect."""
_SCALE_LIMITS: Final = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5)
"""Possible ends of the scale; an end that lies beyond is drawn as an arrow."""
_UNCUT_SHARE: Final = 0.75
"""Share of the intervals that fit into the scale, so that one young experiment does not make all other bars tiny."""


@dataclass(frozen=True, slots=True)
class EffectBar:
    """Positions of an effect and its interval in units of the drawing, from 0 to `WIDTH`."""

    left: float
    right: float
    effect: float
    is_cut_left: bool
    is_cut_right: bool
    """Whether the interval goes on beyond the scale, or has no bound."""


def choose_scale_limit(all_bounds: Sequence[RelativeBounds]) -> float:
    """Return the largest effect of a scale from minus to plus this fraction, on which all effects are compared.

    >>> choose_scale_limit([(0.16, 0.07, 0.25), (0.01, -0.02, 0.04)])
    0.3
    """
    effects = [abs(effect) for effect, _, _ in all_bounds if effect is not None]
    extents = sorted(
        max(math.inf if bound is None else abs(bound) for bound in bounds)
        for effect, *bounds in all_bounds
        if effect is not None
    )
    if not extents:
        return _SCALE_LIMITS[0]
    needed = max(*effects, extents[math.ceil(_UNCUT_SHARE * len(extents)) - 1])
    return next((limit for limit in _SCALE_LIMITS if limit >= needed), _SCALE_LIMITS[-1])


def effect_bar(bounds: RelativeBounds, limit: float) -> EffectBar | None:
    """Return the bar of an effect on the scale from minus to plus `limit`; None without an effect.

    >>> effect_bar((0.1, -0.1, None), 0.2)
    EffectBar(left=50.0, right=200.0, effect=150.0, is_cut_left=False, is_cut_right=True)
    """
    effect, lower, upper = bounds
    if effect is None:
        return None

    def position(fraction: float) -> float:
        return round(min(max(0.5 + fraction / limit / 2, 0), 1) * WIDTH, 1)

    return EffectBar(
        left=0.0 if lower is None else position(lower),
        right=float(WIDTH) if upper is None else position(upper),
        effect=position(effect),
        is_cut_left=lower is None or lower < -limit,
        is_cut_right=upper is None or upper > limit,
    )
