"""Few students who differ from an end of the scale: what an interval may rest on then."""

from __future__ import annotations

import math

import numpy as np
import pytest

from monitor.inference import Comparison, Guardrail, UnitSums, compare, watch
from monitor.inference.estimates import Estimate
from monitor.inference.sequences import NormalMixture, mde_information

MDE, ALPHA = 0.05, 0.05


def share(students: int, successes: int) -> Estimate:
    """Return the estimate of a proportion."""
    return UnitSums(students, float(successes), float(successes)).estimate()


def compared(control: Estimate, treatment: Estimate, largest: float | None = 1.0) -> Comparison:
    """Return the comparison of two proportions."""
    return compare(control, treatment, alpha=ALPHA, mde=MDE, largest=largest)


def excludes(found: Comparison, effect: float) -> bool:
    """Return whether an effect is outside of the interval."""
    assert found.lower is not None
    assert found.upper is not None
    return not found.lower <= effect <= found.upper


@pytest.mark.parametrize(("ordinary", "none"), [((1200, 24), (63, 0)), ((1200, 1164), (63, 63))])
def test_a_few_without_any_exception_decide_nothing(ordinary: tuple[int, int], none: tuple[int, int]) -> None:
    """With one success in fifty, or one failure in thirty, 63 students without one are a matter of chance."""
    found = compared(share(*ordinary), share(*none))
    assert not excludes(found, 0.0)
    assert found.log_e is not None
    assert found.log_e < math.log(1 / ALPHA)
    assert found.difference.standard_error == pytest.approx(math.sqrt(share(*ordinary).variance or 0.0))


def test_what_is_broken_shows_all_the_same() -> None:
    """Sixty students without a success where sixty in a hundred have one."""
    assert excludes(compared(share(1200, 720), share(60, 0)), 0.0)


def test_from_twenty_on_it_is_the_plain_interval() -> None:
    """Robbins' mixture at 1/se², to the last digit; with one student less it is wider."""
    control = share(2000, 200)
    for successes, plain in ((20, True), (380, True), (19, False), (381, False)):
        found = compared(control, share(400, successes))
        assert (found == compared(control, share(400, successes), None)) is plain
        mixture = NormalMixture.tuned(mde_information(MDE), ALPHA)
        half = mixture.half_width(found.difference.information or math.nan, ALPHA)
        assert found.upper is not None
        assert found.lower is not None
        width = (found.upper - found.lower) / 2
        assert width == pytest.approx(half) if plain else width > half


def test_a_variant_in_which_nothing_varies_is_taken_to_vary_as_the_other() -> None:
    """Whatever the value is that all of them have, and where the scale has no end."""
    control, still = UnitSums(400, 600.0, 1300.0).estimate(), UnitSums(100, 200.0, 400.0).estimate()
    found = compare(control, still, alpha=ALPHA, mde=MDE)
    alike = Estimate(still.units, still.mean, (control.unit_variance or 0.0) / still.units)
    expected = compare(control, alike, alpha=ALPHA, mde=MDE)
    assert found.lower == pytest.approx(expected.lower)


def test_a_guardrail_is_not_held_by_those_who_have_seen_too_little() -> None:
    """Fifty students without an escalation say little where two in a hundred have one."""
    rail = Guardrail("feedback:escalated", "up", 0.01, 1.0)
    assert watch(rail, share(5000, 100), share(50, 0), alpha=ALPHA).state == "open"
    assert watch(rail, share(20_000, 400), share(20_000, 300), alpha=ALPHA).state == "held"


@pytest.mark.parametrize(("treated", "students", "rate"), [(0.05, 6000, 0.02), (0.01, 20_000, 0.97)])
def test_looked_at_every_day_it_is_seldom_wrong(treated: float, students: int, rate: float) -> None:
    """Without an effect, 300 experiments of 28 days: 0 is outside at any look in less than one of twenty."""
    wrong = 0
    for run in range(300):
        chance = np.random.default_rng([2, run])
        seen = np.zeros((2, 2), dtype=np.int64)
        ever = False
        for _ in range(28):
            new = chance.poisson(students / 28 * np.array([1 - treated, treated]))
            seen += np.stack([new, chance.binomial(new, rate)], axis=1)
            control, treatment = (share(int(n), int(k)) for n, k in seen)
            found = compared(control, treatment)
            ever = ever or (found.decides and excludes(found, 0.0))
        wrong += ever
    assert wrong <= 300 * ALPHA
