"""Confidence sequences, what is made of them, and bands: against numeric integration, and looked at all the time."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

from monitor.metrics.record_layout import Floats
from monitor.stats import (
    SHOWN_UNITS,
    Comparison,
    Estimate,
    band_constant,
    compare,
    compare_segments,
    design_effect,
    split_alpha,
)
from monitor.stats.comparison import days_to_resolve, resolving_information
from monitor.stats.segments import e_bh
from monitor.stats.sequences import HalfNormalMixture, NormalMixture, anytime_p, mde_information

_levels = st.floats(0.001, 0.4)
_information = st.floats(1e-3, 1e6)
_effect = st.floats(-3, 3)


def _bounds(comparison: Comparison) -> tuple[float, float]:
    assert comparison.lower is not None
    assert comparison.upper is not None
    return comparison.lower, comparison.upper


def _estimates(effect: float, information: float, units: int = 60) -> tuple[Estimate, Estimate]:
    """Return (control, treatment) whose difference is `effect` with that information."""
    variance = 1 / information / 2
    return Estimate(units, 1.0, variance), Estimate(units, 1.0 + effect, variance)


def _walks(seed: int, runs: int, looks: Floats, drift: float = 0.0) -> Floats:
    """Return Brownian walks at rising informations, runs × looks."""
    steps = np.diff(looks, prepend=0.0)
    noise = np.random.default_rng(seed).standard_normal((runs, len(looks)))
    return np.asarray(np.cumsum(noise * np.sqrt(steps) + drift * steps, axis=1))


class TestMixtures:
    """The two e-processes and their boundaries."""

    @pytest.mark.parametrize(("walk", "information"), [*itertools.product((-9.0, 0.0, 4.0, 21.0), (1.0, 30.0, 900.0))])
    def test_are_averages_of_likelihood_ratios(self, walk: float, information: float) -> None:
        """E is ∫ exp(λS − λ²v/2) dF(λ), F normal or half-normal with variance 1/ρ: the definition, integrated."""
        rho = 12.6
        scale = 1 / math.sqrt(rho)

        def ratio(drift: float) -> float:
            return math.exp(drift * walk - drift * drift * information / 2) * float(stats.norm.pdf(drift, scale=scale))

        above, _ = integrate.quad(ratio, 0, 12 * scale, epsabs=1e-13, epsrel=1e-11)
        below, _ = integrate.quad(ratio, -12 * scale, 0, epsabs=1e-13, epsrel=1e-11)
        assert NormalMixture(rho).log_e(walk, information) == pytest.approx(math.log(above + below), abs=1e-7)
        assert HalfNormalMixture(rho).log_e(walk, information) == pytest.approx(math.log(2 * above), abs=1e-6)

    @given(_information, _levels, _information)
    def test_boundary_is_where_evidence_suffices(self, information: float, alpha: float, optimum: float) -> None:
        """On the boundary e is exactly 1/α, for both."""
        for mixture in (NormalMixture.tuned(optimum, alpha), HalfNormalMixture.tuned(optimum, alpha)):
            on_it = mixture.log_e(mixture.boundary(information, alpha), information)
            assert on_it == pytest.approx(-math.log(alpha), rel=1e-7)

    def test_evidence_far_below_a_one_sided_hypothesis(self) -> None:
        """The far tail continues without a step, as scipy has it, and never fails."""
        mixture = HalfNormalMixture(1.0)
        for z in (-29.999999, -30.000001, -35.0):
            expected = math.log(2) - 0.5 * math.log(101) + z * z / 2 + stats.norm.logcdf(z)
            assert mixture.log_e(z * math.sqrt(101), 100.0) == pytest.approx(expected, abs=1e-9)
        assert mixture.log_e(-1e9, 100.0) < -10

    def test_is_tightest_where_it_was_tuned(self) -> None:
        """Boundaries tuned for less and for more information are wider there."""
        tuned = NormalMixture.tuned(900, 0.05).half_width(900, 0.05)
        for elsewhere in (300, 600, 1350, 2700):
            assert NormalMixture.tuned(elsewhere, 0.05).half_width(900, 0.05) > tuned

    @given(_information, _levels, _levels)
    def test_widens_as_alpha_falls(self, information: float, one: float, other: float) -> None:
        """Being wrong less often costs width."""
        small, large = sorted((one, other))
        for mixture in (NormalMixture(5.0), HalfNormalMixture(5.0)):
            assert mixture.half_width(information, small) >= mixture.half_width(information, large)

    def test_one_sided_is_narrower(self) -> None:
        """Asking about one side only is worth something."""
        one_sided = HalfNormalMixture.tuned(100, 0.05).boundary(100, 0.05)
        assert one_sided < NormalMixture.tuned(100, 0.05).boundary(100, 0.05)

    def test_watched_all_the_time_they_are_rarely_wrong(self) -> None:
        """No drift, 700 looks: with z = 1.96 nearly half of the walks leave at some time, here α at most."""
        looks = np.geomspace(1, 10_000, 700)
        walks = _walks(7, 4000, looks)
        allowed = 0.05 + 3 * math.sqrt(0.05 * 0.95 / 4000)
        two_sided = np.array([NormalMixture.tuned(900, 0.05).boundary(look, 0.05) for look in looks])
        one_sided = np.array([HalfNormalMixture.tuned(900, 0.05).boundary(look, 0.05) for look in looks])
        assert (np.abs(walks) > 1.96 * np.sqrt(looks)).any(axis=1).mean() > 0.4
        assert 0.005 < (np.abs(walks) > two_sided).any(axis=1).mean() < allowed
        assert 0.005 < (walks > one_sided).any(axis=1).mean() < allowed

    @pytest.mark.parametrize(
        ("refused", "message"),
        [
            (lambda: NormalMixture.tuned(0.0, 0.05), "information is 0.0, expected a finite number above 0"),
            (lambda: NormalMixture(1.0).boundary(1.0, 1.0), "alpha is 1.0, expected a level between 0 and 1"),
            (lambda: mde_information(-0.1), "mde is -0.1, expected a finite number above 0"),
            (lambda: split_alpha(0.05, 0), "treatments is 0, expected at least one besides the control"),
        ],
        ids=["information", "alpha", "mde", "treatments"],
    )
    def test_refuses_what_it_is_not_defined_for(self, refused: object, message: str) -> None:
        """In one line that names the argument, the value and what was expected."""
        assert callable(refused)
        with pytest.raises(ValueError, match=message):
            refused()


class TestCompare:
    """One treatment against the control."""

    @given(_effect, _information)
    def test_exchanging_variants_mirrors_the_interval(self, effect: float, information: float) -> None:
        """And leaves the evidence as it is."""
        control, treatment = _estimates(effect, information)
        there = compare(control, treatment, alpha=0.05, mde=0.1)
        back = compare(treatment, control, alpha=0.05, mde=0.1)
        assert _bounds(there) == pytest.approx([-bound for bound in reversed(_bounds(back))])
        assert there.log_e == pytest.approx(back.log_e)

    @given(_effect, st.floats(0.1, 1e5))
    def test_interval_and_p_agree(self, effect: float, information: float) -> None:
        """The interval excludes 0 exactly if p of this look is below alpha."""
        found = compare(*_estimates(effect, information), alpha=0.05, mde=0.1)
        lower, upper = _bounds(found)
        assert found.p is not None
        assert (lower > 0 or upper < 0) == (found.p < 0.05) or found.p == pytest.approx(0.05, abs=1e-9)

    def test_p_keeps_the_best_evidence(self) -> None:
        """A p-value never rises again; the interval is that of this look."""
        control, treatment = _estimates(0.05, 900)
        now = compare(control, treatment, alpha=0.05, mde=0.1)
        kept = compare(control, treatment, alpha=0.05, mde=0.1, largest_log_e=5.0)
        assert kept.p == anytime_p(5.0) == pytest.approx(math.exp(-5))
        assert (kept.lower, kept.log_e) == (now.lower, now.log_e)
        assert anytime_p(-1.0) == 1.0

    def test_is_shown_from_20_students(self) -> None:
        """Below, and where nothing varies, there is an effect and no interval."""
        shown = compare(*_estimates(0.1, 50, SHOWN_UNITS), alpha=0.05, mde=0.1)
        early = compare(*_estimates(0.1, 50, SHOWN_UNITS - 1), alpha=0.05, mde=0.1)
        still = compare(Estimate(99, 1.0, 0.0), Estimate(99, 1.5, 0.0), alpha=0.05, mde=0.1)
        assert shown.lower is not None
        for absent in (early, still):
            assert absent.difference.effect == pytest.approx(absent.treatment.mean - 1.0)  # type: ignore[operator]
            assert {absent.lower, absent.upper, absent.log_e, absent.p} == {None}

    def test_decides_from_50_students_on_closed_units(self) -> None:
        """The live estimand shows and never decides."""
        enough, few = _estimates(0.1, 50, 50), _estimates(0.1, 50, 49)
        assert compare(*enough, alpha=0.05, mde=0.1).decides
        assert not compare(*few, alpha=0.05, mde=0.1).decides
        assert not compare(*enough, alpha=0.05, mde=0.1, estimand="live").decides

    def test_several_treatments_share_alpha(self) -> None:
        """Three treatments get a third each, and so a wider band."""
        assert split_alpha(0.06, 3) == pytest.approx(0.02)
        narrow = compare(*_estimates(0.1, 50), alpha=split_alpha(0.06, 1), mde=0.1)
        wide = compare(*_estimates(0.1, 50), alpha=split_alpha(0.06, 3), mde=0.1)
        assert _bounds(wide)[0] < _bounds(narrow)[0]


class TestDaysToResolve:
    """When the mde will be resolved."""

    def test_is_when_the_band_is_as_narrow_as_the_mde(self) -> None:
        """After that many days at that rate, and not half a day sooner."""
        control, treatment, rates = Estimate(200, 1.0, 1.0 / 200), Estimate(300, 1.0, 2.0 / 300), (40.0, 60.0)
        days = days_to_resolve(control, treatment, rates, alpha=0.05, mde=0.1)
        assert days is not None
        for later, resolved in ((days, True), (days - 0.5, False)):
            information = 1 / (1.0 / (200 + 40 * later) + 2.0 / (300 + 60 * later))
            half = NormalMixture.tuned(mde_information(0.1), 0.05).half_width(information, 0.05)
            assert (half <= 0.1 * (1 + 1e-12)) is resolved

    def test_resolved_never_and_unknown(self) -> None:
        """0 days, and None, and None."""
        narrow, wide, unknown = Estimate(900, 1.0, 1e-5), Estimate(900, 1.0, 1.0), Estimate(1, 1.0, None)
        assert days_to_resolve(narrow, narrow, (0.0, 0.0), alpha=0.05, mde=0.1) == 0.0
        assert days_to_resolve(wide, wide, (0.0, 10.0), alpha=0.05, mde=0.1) is None
        assert days_to_resolve(unknown, wide, (10.0, 10.0), alpha=0.05, mde=0.1) is None

    @given(st.floats(1e-4, 10), _levels)
    def test_resolved_is_when_zero_and_mde_exclude_each_other(self, mde: float, alpha: float) -> None:
        """At that information an observed mde is on the edge of excluding 0."""
        needed = resolving_information(mde, alpha)
        lower, _ = _bounds(compare(*_estimates(mde, needed), alpha=alpha, mde=mde))
        assert lower == pytest.approx(0.0, abs=1e-6 * mde)


class TestSegments:
    """Looking at many parts of the students."""

    @given(st.lists(st.none() | st.floats(-5, 9), max_size=12), _levels)
    def test_e_bh_rejects_the_largest_set_that_it_may(self, log_e: list[float | None], alpha: float) -> None:
        """K·Σ1 ≤ α·k·e holds for all k rejected ones, and for no larger set."""
        rejected = e_bh(log_e, alpha)
        ranked = sorted((math.exp(each) for each in log_e if each is not None), reverse=True)
        sizes = [k for k, e in enumerate(ranked, start=1) if k * e * alpha >= len(log_e)]
        assert sum(rejected) >= max(sizes, default=0)
        assert {each for each, taken in zip(log_e, rejected, strict=True) if taken} <= {
            each for each in log_e if each is not None and sizes and math.exp(each) >= ranked[max(sizes) - 1]
        }

    def test_intervals_of_discoveries_exclude_zero_and_no_others(self) -> None:
        """One verdict per segment: evidence and interval never say different things."""
        random = np.random.default_rng(11)
        parts = {f"topic {n}": _estimates(float(random.normal(0, 0.15)), 800) for n in range(40)}
        found = compare_segments(parts, alpha=0.05, mde=0.1)
        assert 0 < sum(segment.discovered for segment in found) < 40
        for segment in found:
            lower, upper = _bounds(segment.comparison)
            assert segment.discovered == (lower > 0 or upper < 0)

    def test_many_segments_without_effect_fool_nobody(self) -> None:
        """40 segments without an effect, watched at 50 looks, in 200 runs: something is discovered in 5 % at most."""
        looks = np.geomspace(50, 3000, 50)
        walks = _walks(3, 200 * 40, looks).reshape(200, 40, 50)
        mixture = NormalMixture.tuned(mde_information(0.1), 0.05)
        evidence = 0.5 * np.log(mixture.rho / (looks + mixture.rho)) + walks**2 / (2 * (looks + mixture.rho))
        fooled = [any(any(e_bh(run[:, look].tolist(), 0.05)) for look in range(50)) for run in evidence]
        alone = (np.abs(walks) > [mixture.boundary(look, 0.05) for look in looks]).any(axis=(1, 2))
        assert np.mean(fooled) < 0.05
        assert alone.mean() > 0.4

    def test_segments_without_data_count(self) -> None:
        """What was declared was looked at."""
        nobody = Estimate(0, None, None)
        one = {"fractions": _estimates(0.12, 1000)}
        assert [segment.discovered for segment in compare_segments(one, alpha=0.05, mde=0.1)] == [True]
        many = one | {f"empty {n}": (nobody, nobody) for n in range(50)}
        assert not any(segment.discovered for segment in compare_segments(many, alpha=0.05, mde=0.1))


class TestBands:
    """Bands around decayed means."""

    @pytest.mark.parametrize("half_lives", [1, 7, 28, 56, 400])
    def test_cover_a_whole_horizon(self, half_lives: int) -> None:
        """A decayed mean of independent noise, looked at hourly with a half-life of a day, stays inside in 95 %."""
        runs, decay = 2000, 2 ** (-1 / 24)
        random = np.random.default_rng(half_lives)
        value = random.standard_normal(runs)
        left = np.zeros(runs, dtype=bool)
        for _ in range(24 * half_lives):
            value = decay * value + math.sqrt(1 - decay**2) * random.standard_normal(runs)
            left |= np.abs(value) > band_constant(half_lives)
        assert left.mean() < 0.05 + 3 * math.sqrt(0.05 * 0.95 / runs)
        assert left.mean() > 0.02

    def test_constants(self) -> None:
        """The next larger horizon counts, and beyond the last one the band goes on widening."""
        horizons = (0.5, 1, 7, 14, 28, 56, 57, 100, 1000, 100_000)
        constants = [band_constant(each) for each in horizons]
        assert constants[:6] == [2.53, 2.53, 3.29, 3.51, 3.72, 3.92]
        assert constants[1:] == sorted(set(constants))

    def test_the_design_effect(self) -> None:
        """Responses of one student are alike, so the error of a mean over them is larger."""
        assert design_effect(4.0, 1.0) == 4.0
        assert design_effect(0.5, 1.0) == 1.0
        assert design_effect(1.0, 0.0) is None
