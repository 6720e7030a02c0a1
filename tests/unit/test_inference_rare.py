"""Few students who differ from an end of the scale: what an interval may rest on then."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.inference import Comparison, Guardrail, UnitSums, compare, compare_segments, watch
from monitor.inference.estimates import Estimate, effect_of
from monitor.inference.sequences import NormalMixture, mde_information

MDE, ALPHA = 0.05, 0.05


def share(students: int, successes: int) -> Estimate:
    """Return the estimate of a proportion."""
    return UnitSums(students, float(successes), float(successes)).estimate()


def compared(control: Estimate, treatment: Estimate, largest: float | None = 1.0) -> Comparison:
    """Return the comparison of two proportions."""
    return compare(control, treatment, alpha=ALPHA, mde=MDE, largest=largest)


def width(found: Comparison) -> float:
    """Return how wide the interval is."""
    assert found.lower is not None
    assert found.upper is not None
    return found.upper - found.lower


def excludes(found: Comparison, effect: float) -> bool:
    """Return whether an effect is outside of the interval."""
    assert found.lower is not None
    assert found.upper is not None
    return not found.lower <= effect <= found.upper


@pytest.mark.parametrize(
    ("ordinary", "seldom"), [((5000, 100), (200, 0)), ((5000, 100), (320, 1)), ((5000, 4850), (70, 70))]
)
def test_a_few_with_hardly_an_exception_decide_nothing(ordinary: tuple[int, int], seldom: tuple[int, int]) -> None:
    """With one success in fifty, none among 200 happens by chance, though the plain interval excludes 0."""
    control, treatment = share(*ordinary), share(*seldom)
    found = compared(control, treatment)
    assert not excludes(found, 0.0)
    assert found.log_e is not None
    assert found.log_e < math.log(1 / ALPHA)
    assert found.difference == effect_of(control, treatment)
    half = NormalMixture.tuned(mde_information(MDE), ALPHA).half_width(found.difference.information or math.nan, ALPHA)
    assert abs(found.difference.effect or 0.0) > half


def test_what_is_broken_shows_all_the_same() -> None:
    """Sixty students without a success where sixty in a hundred have one."""
    assert excludes(compared(share(1200, 720), share(60, 0)), 0.0)


def test_from_twenty_on_it_is_the_plain_interval() -> None:
    """To the last digit; with one student less it is a little wider."""
    control = share(2000, 200)
    for successes, plain in ((20, True), (380, True), (19, False), (381, False)):
        found, unbounded = (compared(control, share(400, successes), largest) for largest in (1.0, None))
        assert (found == unbounded) is plain
        assert width(unbounded) <= width(found) < 1.02 * width(unbounded)


@given(st.integers(50, 500), st.floats(0.01, 0.99), st.floats(0.05, 1.0))
def test_one_student_more_makes_little_difference(students: int, mean: float, unlike: float) -> None:
    """Of any metric from 0 to 10: the interval neither jumps nor becomes many times the plain one."""
    spread = unlike * mean * (1 - mean) * 100
    halves = []
    for units in (students, students + 1):
        own = Estimate(units, 10 * mean, spread / units)
        found, unbounded = (compare(own, own, alpha=ALPHA, mde=1.0, largest=largest) for largest in (10.0, None))
        halves.append(width(found))
        assert width(unbounded) <= width(found)
    assert 0.9 < halves[1] / halves[0] <= 1.0


def test_few_students_with_ordinary_values_are_hardly_rare() -> None:
    """NDCG of 0.6 ± 0.25: of 27 students 19.4 differ from 1, effectively, and the interval is a little wider."""
    own = Estimate(27, 0.6, 0.0625 / 27)
    assert width(compared(own, own)) < 1.02 * width(compared(own, own, None))


def test_a_variant_in_which_nothing_varies_is_taken_to_vary_as_the_other() -> None:
    """Whatever the value is that all of them have, and where the scale has no end."""
    control, still = UnitSums(400, 600.0, 1300.0).estimate(), UnitSums(100, 200.0, 400.0).estimate()
    found = compare(control, still, alpha=ALPHA, mde=MDE)
    alike = Estimate(still.units, still.mean, (control.unit_variance or 0.0) / still.units)
    expected = compare(control, alike, alpha=ALPHA, mde=MDE)
    assert found.lower == pytest.approx(expected.lower)


def test_a_guardrail_is_not_held_by_those_who_have_seen_too_little() -> None:
    """One escalation among 250 students says little where two in a hundred have one."""
    rail = Guardrail("feedback:escalated", "up", 0.01, 1.0)
    control, treatment = share(5000, 100), share(250, 1)
    assert watch(rail, control, treatment, alpha=ALPHA).state == "open"
    assert watch(replace(rail, largest=None), control, treatment, alpha=ALPHA).state == "held"
    assert watch(rail, share(20_000, 400), share(20_000, 300), alpha=ALPHA).state == "held"


@pytest.mark.parametrize("successes", range(8))
def test_a_segment_is_discovered_exactly_if_its_interval_excludes_nothing(successes: int) -> None:
    """At whichever level its interval is in the end."""
    parts = {name: (share(500, 50), share(500, 50)) for name in "abcd"} | {"e": (share(500, 20), share(500, successes))}
    for each in compare_segments(parts, alpha=ALPHA, mde=0.02, largest=1.0):
        assert excludes(each.comparison, 0.0) is each.discovered


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
