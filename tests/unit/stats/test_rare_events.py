"""Few students who differ from an end of the scale: what an interval may rest on then."""

from __future__ import annotations

import math
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.stats import (
    Arms,
    Comparison,
    Criteria,
    Evidence,
    Guardrail,
    Phase,
    UnitSums,
    compare,
    compare_segments,
    decide,
)
from monitor.stats.estimates import Estimate, effect_of, stratified
from monitor.stats.guardrails import watch
from monitor.stats.sequences import NormalMixture, mde_information

MDE, ALPHA = 0.05, 0.05


def share(students: int, successes: int) -> Estimate:
    """Return the estimate of a proportion."""
    return UnitSums(students, float(successes), float(successes)).estimate()


def compared(control: Estimate, treatment: Estimate, largest: float | None = 1.0) -> Comparison:
    """Return the comparison of two proportions."""
    return compare(control, treatment, alpha=ALPHA, mde=MDE, largest=largest)


def printed_and_read(estimate: Estimate) -> Estimate:
    """Return the estimate that is printed as this one is."""
    return msgspec.json.decode(msgspec.json.encode(estimate), type=Estimate)


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


def test_latencies_are_not_held_before_a_time_out_could_have_been_met() -> None:
    """One student of 200 meets one, in the treatment alone: 146 ms more on average, of which 100 would be tolerable."""
    wrong = {None: 0, 30_000.0: 0}
    for run in range(200):
        chance = np.random.default_rng([3, run])
        seen = np.zeros((2, 3))
        ever = set()
        for _ in range(28):
            for arm, rate in enumerate((0.0, 1 / 200)):
                values = np.where(chance.random(36) < rate, 30_000.0, chance.lognormal(6.6, 0.4, 36))
                seen[arm] += 36, values.sum(), values @ values
            arms = [UnitSums(int(n), total, squares).estimate() for n, total, squares in seen]
            for worst in wrong:
                rail = Guardrail("latency_ms", "up", 100.0, None, worst)
                if watch(rail, *arms, alpha=ALPHA).state == "held":
                    ever.add(worst)
        for worst in ever:
            wrong[worst] += 1
    assert wrong[30_000.0] <= 200 * ALPHA < wrong[None]


def test_time_outs_that_nobody_met_hide_no_harm() -> None:
    """Those of the few in the treatment could only add to it; where lower is bad, they could make it none."""
    rail = Guardrail("latency_ms", "up", 100.0, None, 30_000.0)
    many, slow, fast = (Estimate(n, mean, 400.0**2 / n) for n, mean in ((9000, 2000.0), (200, 2500.0), (200, 1500.0)))
    assert watch(rail, many, slow, alpha=ALPHA).state == "crossed"
    assert watch(rail, many, fast, alpha=ALPHA).state == "open"
    assert watch(replace(rail, bad="down"), many, fast, alpha=ALPHA).state == "open"


def test_phases_meet_time_outs_together() -> None:
    """Twelve phases of 250 students know as much of them as one of 3000."""
    rail = Guardrail("latency_ms", "up", 100.0, None, 30_000.0)
    one = UnitSums(250, 800.0 * 250, (800.0**2 + 300.0**2) * 250)
    all_at_once = UnitSums(3000, 800.0 * 3000, (800.0**2 + 300.0**2) * 3000).estimate()
    parted = watch(rail, *stratified([(one, one)] * 12), alpha=ALPHA)
    assert parted.most_harm == pytest.approx(watch(rail, all_at_once, all_at_once, alpha=ALPHA).most_harm, rel=1e-3)


@pytest.mark.parametrize(("few", "known"), [(10_500, True), (60, False)])
def test_days_are_told_where_hardly_anything_is_lacking(few: int, *, known: bool) -> None:
    """After a day on which 15 of 1500 were treated, none of them with a success."""
    canary = UnitSums(1485, 30.0, 30.0), UnitSums(15, 0.0, 0.0)
    later = [UnitSums(students, 0.02 * students, 0.02 * students) for students in (10_500, few)]
    arms = Arms(*stratified([canary, (later[0], later[1])]))
    phase = Phase({"a": 0.5, "b": 0.5}, {"a": 500, "b": 500})
    evidence = Evidence(
        "a", "b", "success@5", Criteria(0.01, 0.0), arms, 20.0, (100.0, 100.0), (phase,), students=30_000, largest=1.0
    )
    assert (decide(evidence).days_to_resolve is not None) is known


def test_time_outs_that_were_met_or_cannot_be_met_keep_nothing_from_being_held() -> None:
    """By many students with ordinary latencies a guardrail is held; what may be worse than the worst adds nothing."""
    own = Estimate(20_000, 800.0, 400.0**2 / 20_000)
    rail = Guardrail("latency_ms", "up", 50.0, None, 30_000.0)
    assert watch(rail, own, own, alpha=ALPHA).state == "held"
    plain = watch(replace(rail, worst=None), own, own, alpha=ALPHA)
    assert replace(watch(replace(rail, worst=700.0), own, own, alpha=ALPHA), guardrail=plain.guardrail) == plain
    met = Estimate(20_000, 800.0, 30_000.0**2 / 1000 / 20_000)
    varied = watch(replace(rail, worst=None), met, met, alpha=ALPHA)
    assert replace(watch(rail, met, met, alpha=ALPHA), guardrail=varied.guardrail) == varied


@pytest.mark.parametrize("successes", range(8))
def test_a_segment_is_discovered_exactly_if_its_interval_excludes_nothing(successes: int) -> None:
    """At whichever level its interval is in the end."""
    parts = {name: (share(500, 50), share(500, 50)) for name in "abcd"} | {"e": (share(500, 20), share(500, successes))}
    for each in compare_segments(parts, alpha=ALPHA, mde=0.02, largest=1.0):
        assert excludes(each.comparison, 0.0) is each.discovered


@pytest.mark.parametrize(
    ("few", "many", "assumed"),
    [((400, 1.0), (4000, 1.9), 1.0), ((400, 1.0), (4000, 9.0), 4.5), ((400, 9.0), (4000, 1.0), 9.0),
     ((400, 1.0), (400, 9.0), 1.0), ((40_000, 1.0), (400_000, 9.0), 4.5)],
)  # fmt: skip
def test_the_few_are_taken_to_vary_half_as_much_as_the_many_at_least(
    few: tuple[int, float], many: tuple[int, float], assumed: float
) -> None:
    """To the last digit it is the plain interval where they do, where they vary more, and with even shares."""
    control, treatment = (Estimate(units, 5.0, variance / units) for units, variance in (many, few))
    found = compare(control, treatment, alpha=ALPHA, mde=MDE)
    mixture = NormalMixture.tuned(mde_information(MDE), ALPHA)
    variance = (many[1] if assumed == few[1] else assumed) / many[0] + assumed / few[0]
    assert width(found) == pytest.approx(2 * mixture.half_width(1 / variance, ALPHA), rel=1e-12)
    swapped = compare(treatment, control, alpha=ALPHA, mde=MDE)
    assert width(swapped) == pytest.approx(width(found), rel=1e-12)


def test_phases_with_other_shares_are_no_uneven_variances() -> None:
    """10 400 students against 600, most of the control's with a small weight: they vary alike all the same."""
    strata = [
        tuple(UnitSums(units, 2.0 * units, 5.0 * units) for units in shares) for shares in ((9900, 100), (500, 500))
    ]
    control, treatment = stratified([(one, other) for one, other in strata])
    assert (control.units, treatment.units) == (10_400, 600)
    found = compare(control, treatment, alpha=ALPHA, mde=MDE)
    mixture = NormalMixture.tuned(mde_information(MDE), ALPHA)
    assert width(found) == 2 * mixture.half_width(found.difference.information or math.nan, ALPHA)


def test_a_phase_lacks_what_it_lacks_however_little_later_ones_vary() -> None:
    """100 of 10 000 without one of the far values, then days on which nobody has them."""
    far = UnitSums(9900, 0.2 * 9801 + 99.0, 0.04 * 9801 + 99.0), UnitSums(100, 20.1, 4.0402)
    flat = UnitSums(300, 60.0, 12.02)
    control, treatment = stratified([far, (flat, flat)])
    found = compare(control, treatment, alpha=ALPHA, mde=0.01, largest=1.0)
    assert not excludes(found, 0.0)
    half = NormalMixture.tuned(mde_information(0.01), ALPHA).half_width(found.difference.information or 0, ALPHA)
    assert abs(found.difference.effect or 0.0) > half
    assert printed_and_read(control) == control


@pytest.mark.parametrize(
    ("treated", "students", "rates"),
    [
        (0.05, 6000, {0.0: 0.98, 1.0: 0.02}),
        (0.01, 20_000, {0.0: 0.03, 1.0: 0.97}),
        (0.05, 8000, {1.0: 0.33, 3.0: 0.33, 7.0: 0.33, 44.0: 0.01}),
        (0.1, 8000, {0.2: 0.99, 1.0: 0.01}),
    ],
)
def test_looked_at_every_day_it_is_seldom_wrong(treated: float, students: int, rates: dict[float, float]) -> None:
    """Without an effect, 300 experiments of 28 days: 0 is outside at any look in less than one of twenty."""
    wrong = 0
    values = np.array(list(rates))
    for run in range(300):
        chance = np.random.default_rng([2, run])
        seen = np.zeros((2, len(values)), dtype=np.int64)
        ever = False
        for _ in range(28):
            new = chance.poisson(students / 28 * np.array([1 - treated, treated]))
            seen += chance.multinomial(new, list(rates.values()))
            arms = [UnitSums(int(n.sum()), float(n @ values), float(n @ values**2)).estimate() for n in seen]
            found = compare(*arms, alpha=ALPHA, mde=max(rates) / 100, largest=max(rates))
            ever = ever or (found.decides and excludes(found, 0.0))
        wrong += ever
    assert wrong <= 300 * ALPHA
