"""Confidence sequences, comparisons, segments and decay bands: against numeric integration and under repeated looks."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

from monitor.metrics import FloatArray
from monitor.stats import (
    MIN_UNITS_FOR_INTERVAL,
    Estimate,
    VariantComparison,
    compare_segments,
    compare_variants,
    decay_band_multiplier,
    design_effect,
    split_alpha,
)
from monitor.stats.comparison import days_to_reach, information_to_hold, information_to_resolve
from monitor.stats.confidence_sequences import HalfNormalMixture, NormalMixture, anytime_p_value, mde_information
from monitor.stats.segments import e_benjamini_hochberg

_levels = st.floats(0.001, 0.4)
_information = st.floats(1e-3, 1e6)
_effect = st.floats(-3, 3)


def _bounds(comparison: VariantComparison) -> tuple[float, float]:
    assert comparison.lower is not None
    assert comparison.upper is not None
    return comparison.lower, comparison.upper


def _estimates(effect: float, information: float, units: int = 60) -> tuple[Estimate, Estimate]:
    """Return (control, treatment) estimates with the difference `effect` and the given information."""
    variance = 1 / information / 2
    return Estimate(units, 1.0, variance), Estimate(units, 1.0 + effect, variance)


def _walks(seed: int, runs: int, informations: FloatArray, drift: float = 0.0) -> FloatArray:
    """Return Brownian motions at increasing informations, as an array runs × informations."""
    steps = np.diff(informations, prepend=0.0)
    noise = np.random.default_rng(seed).standard_normal((runs, len(informations)))
    return np.asarray(np.cumsum(noise * np.sqrt(steps) + drift * steps, axis=1))


class TestMixtures:
    """The two e-processes and their boundaries."""

    @pytest.mark.parametrize(("score", "information"), [*itertools.product((-9.0, 0.0, 4.0, 21.0), (1.0, 30.0, 900.0))])
    def test_e_values_are_averages_of_likelihood_ratios(self, score: float, information: float) -> None:
        """E is the numerically integrated ∫ exp(λS − λ²v/2) dF(λ), with F normal or half-normal of variance 1/ρ."""
        rho = 12.6
        scale = 1 / math.sqrt(rho)

        def ratio(drift: float) -> float:
            return math.exp(drift * score - drift * drift * information / 2) * float(stats.norm.pdf(drift, scale=scale))

        above, _ = integrate.quad(ratio, 0, 12 * scale, epsabs=1e-13, epsrel=1e-11)
        below, _ = integrate.quad(ratio, -12 * scale, 0, epsabs=1e-13, epsrel=1e-11)
        assert NormalMixture(rho).log_e(score, information) == pytest.approx(math.log(above + below), abs=1e-7)
        assert HalfNormalMixture(rho).log_e(score, information) == pytest.approx(math.log(2 * above), abs=1e-6)

    @given(_information, _levels, _information)
    def test_e_is_one_over_alpha_on_the_boundary(self, information: float, alpha: float, optimum: float) -> None:
        """On the boundary of either mixture e is exactly 1/α."""
        for mixture in (NormalMixture.tune(optimum, alpha), HalfNormalMixture.tune(optimum, alpha)):
            boundary_log_e = mixture.log_e(mixture.boundary(information, alpha), information)
            assert boundary_log_e == pytest.approx(-math.log(alpha), rel=1e-7)

    def test_the_asymptotic_normal_tail_agrees_with_scipy(self) -> None:
        """The asymptotic series continues the exact tail without a step, and is defined for any z."""
        mixture = HalfNormalMixture(1.0)
        for z in (-29.999999, -30.000001, -35.0):
            expected = math.log(2) - 0.5 * math.log(101) + z * z / 2 + stats.norm.logcdf(z)
            assert mixture.log_e(z * math.sqrt(101), 100.0) == pytest.approx(expected, abs=1e-9)
        assert mixture.log_e(-1e9, 100.0) < -10

    def test_the_interval_is_tightest_at_the_tuned_information(self) -> None:
        """Mixtures tuned for less or more information have wider intervals at 900."""
        tuned = NormalMixture.tune(900, 0.05).half_width(900, 0.05)
        for other_information in (300, 600, 1350, 2700):
            assert NormalMixture.tune(other_information, 0.05).half_width(900, 0.05) > tuned

    @given(_information, _levels, _levels)
    def test_the_interval_is_wider_for_a_smaller_alpha(self, information: float, first: float, second: float) -> None:
        """A smaller error rate requires a wider interval, for both mixtures."""
        small, large = sorted((first, second))
        for mixture in (NormalMixture(5.0), HalfNormalMixture(5.0)):
            assert mixture.half_width(information, small) >= mixture.half_width(information, large)

    def test_the_one_sided_boundary_is_below_the_two_sided_boundary(self) -> None:
        """A test against positive effects alone needs less evidence at the same level."""
        one_sided = HalfNormalMixture.tune(100, 0.05).boundary(100, 0.05)
        assert one_sided < NormalMixture.tune(100, 0.05).boundary(100, 0.05)

    def test_the_error_rate_over_many_looks_is_at_most_alpha(self) -> None:
        """Without drift, over 700 looks: at z = 1.96 nearly half of the walks cross, at the boundaries at most α."""
        informations = np.geomspace(1, 10_000, 700)
        walks = _walks(7, 4000, informations)
        allowed = 0.05 + 3 * math.sqrt(0.05 * 0.95 / 4000)
        two_sided = np.array(
            [NormalMixture.tune(900, 0.05).boundary(information, 0.05) for information in informations]
        )
        one_sided = np.array(
            [HalfNormalMixture.tune(900, 0.05).boundary(information, 0.05) for information in informations]
        )
        assert (np.abs(walks) > 1.96 * np.sqrt(informations)).any(axis=1).mean() > 0.4
        assert 0.005 < (np.abs(walks) > two_sided).any(axis=1).mean() < allowed
        assert 0.005 < (walks > one_sided).any(axis=1).mean() < allowed

    @pytest.mark.parametrize(
        ("invalid_call", "message"),
        [
            (lambda: NormalMixture.tune(0.0, 0.05), "information is 0.0, expected a finite number above 0"),
            (lambda: NormalMixture(1.0).boundary(1.0, 1.0), "alpha is 1.0, expected a level between 0 and 1"),
            (lambda: mde_information(-0.1), "mde is -0.1, expected a finite number above 0"),
            (lambda: split_alpha(0.05, 0), "treatments is 0, expected at least one besides the control"),
        ],
        ids=["information", "alpha", "mde", "treatments"],
    )
    def test_invalid_arguments_raise_an_error_with_the_value(self, invalid_call: object, message: str) -> None:
        """The message contains the argument, the value and the expectation."""
        assert callable(invalid_call)
        with pytest.raises(ValueError, match=message):
            invalid_call()


class TestCompareVariants:
    """The comparison of a treatment with the control."""

    @given(_effect, _information)
    def test_exchanging_variants_mirrors_the_interval(self, effect: float, information: float) -> None:
        """The bounds change sign and order, and the evidence stays the same."""
        control, treatment = _estimates(effect, information)
        comparison = compare_variants(control, treatment, alpha=0.05, mde=0.1)
        mirrored = compare_variants(treatment, control, alpha=0.05, mde=0.1)
        assert _bounds(comparison) == pytest.approx([-bound for bound in reversed(_bounds(mirrored))])
        assert comparison.log_e == pytest.approx(mirrored.log_e)

    @given(_effect, st.floats(0.1, 1e5))
    def test_the_interval_excludes_zero_exactly_if_p_is_below_alpha(self, effect: float, information: float) -> None:
        """The interval and the p-value of the same look agree."""
        comparison = compare_variants(*_estimates(effect, information), alpha=0.05, mde=0.1)
        lower, upper = _bounds(comparison)
        assert comparison.p is not None
        assert (lower > 0 or upper < 0) == (comparison.p < 0.05) or comparison.p == pytest.approx(0.05, abs=1e-9)

    def test_p_follows_from_the_largest_evidence_so_far(self) -> None:
        """`largest_log_e` determines p, but neither the interval nor ln e."""
        control, treatment = _estimates(0.05, 900)
        without_history = compare_variants(control, treatment, alpha=0.05, mde=0.1)
        with_history = compare_variants(control, treatment, alpha=0.05, mde=0.1, largest_log_e=5.0)
        assert with_history.p == anytime_p_value(5.0) == pytest.approx(math.exp(-5))
        assert (with_history.lower, with_history.log_e) == (without_history.lower, without_history.log_e)
        assert anytime_p_value(-1.0) == 1.0

    def test_the_interval_is_defined_from_20_students_per_variant(self) -> None:
        """With fewer students, or without variation, the effect is defined and the interval is not."""
        sufficient = compare_variants(*_estimates(0.1, 50, MIN_UNITS_FOR_INTERVAL), alpha=0.05, mde=0.1)
        insufficient = compare_variants(*_estimates(0.1, 50, MIN_UNITS_FOR_INTERVAL - 1), alpha=0.05, mde=0.1)
        constant = compare_variants(Estimate(99, 1.0, 0.0), Estimate(99, 1.5, 0.0), alpha=0.05, mde=0.1)
        assert sufficient.lower is not None
        for comparison in (insufficient, constant):
            assert comparison.difference.effect == pytest.approx(comparison.treatment.mean - 1.0)  # type: ignore[operator]
            assert {comparison.lower, comparison.upper, comparison.log_e, comparison.p} == {None}

    def test_only_closed_comparisons_with_50_students_per_variant_decide(self) -> None:
        """A comparison with 49 students, or of the live estimand, does not decide."""
        sufficient, insufficient = _estimates(0.1, 50, 50), _estimates(0.1, 50, 49)
        assert compare_variants(*sufficient, alpha=0.05, mde=0.1).decides
        assert not compare_variants(*insufficient, alpha=0.05, mde=0.1).decides
        assert not compare_variants(*sufficient, alpha=0.05, mde=0.1, estimand="live").decides

    def test_several_treatments_split_alpha_and_have_wider_intervals(self) -> None:
        """Each of three treatments gets a third of alpha and a wider interval."""
        assert split_alpha(0.06, 3) == pytest.approx(0.02)
        narrow = compare_variants(*_estimates(0.1, 50), alpha=split_alpha(0.06, 1), mde=0.1)
        wide = compare_variants(*_estimates(0.1, 50), alpha=split_alpha(0.06, 3), mde=0.1)
        assert _bounds(wide)[0] < _bounds(narrow)[0]


class TestDaysToResolve:
    """The number of days until the mde is resolved."""

    def test_the_half_width_equals_the_mde_after_that_many_days(self) -> None:
        """The mde is resolved after the returned days at the given rate, and not half a day earlier."""
        control, treatment, rates = Estimate(200, 1.0, 1.0 / 200), Estimate(300, 1.0, 2.0 / 300), (40.0, 60.0)
        days = days_to_reach(information_to_resolve(0.1, 0.05), control, treatment, rates)
        assert days is not None
        for elapsed_days, is_resolved in ((days, True), (days - 0.5, False)):
            information = 1 / (1.0 / (200 + 40 * elapsed_days) + 2.0 / (300 + 60 * elapsed_days))
            half = NormalMixture.tune(mde_information(0.1), 0.05).half_width(information, 0.05)
            assert (half <= 0.1 * (1 + 1e-12)) is is_resolved

    def test_days_are_0_if_resolved_and_none_if_unreachable_or_unknown(self) -> None:
        """A small variance, no new students in the control, and an undefined variance."""
        narrow, wide, unknown = Estimate(900, 1.0, 1e-5), Estimate(900, 1.0, 1.0), Estimate(1, 1.0, None)
        information = information_to_resolve(0.1, 0.05)
        assert days_to_reach(information, narrow, narrow, (0.0, 0.0)) == 0.0
        assert days_to_reach(information, wide, wide, (0.0, 10.0)) is None
        assert days_to_reach(information, unknown, wide, (10.0, 10.0)) is None

    @pytest.mark.parametrize("power", [0.5, 0.8, 0.95])
    def test_an_effect_of_mde_is_shown_with_the_declared_power(self, power: float) -> None:
        """Of simulated effects at the information for a power, that share excludes 0."""
        information = information_to_resolve(0.1, 0.05, power)
        half_width = NormalMixture.tune(mde_information(0.1), 0.05).half_width(information, 0.05)
        observed = np.random.default_rng(5).normal(0.1, information**-0.5, 20_000)
        assert np.mean(observed > half_width) == pytest.approx(power, abs=0.01)

    def test_a_harmless_guardrail_is_held_with_the_declared_power(self) -> None:
        """Of simulated harms of 0 at the information for 90 %, nine in ten are held."""
        information = information_to_hold(0.05, 0.05, 0.9, 0.05)
        half_width = HalfNormalMixture.tune(mde_information(0.05), 0.05).half_width(information, 0.05)
        observed = np.random.default_rng(6).normal(0.0, information**-0.5, 20_000)
        assert np.mean(observed + half_width < 0.05) == pytest.approx(0.9, abs=0.01)

    @given(st.floats(1e-4, 10), _levels)
    def test_at_the_resolving_information_an_effect_of_mde_just_excludes_zero(self, mde: float, alpha: float) -> None:
        """With an observed effect of `mde` the lower bound is 0."""
        resolving_information = information_to_resolve(mde, alpha)
        lower, _ = _bounds(compare_variants(*_estimates(mde, resolving_information), alpha=alpha, mde=mde))
        assert lower == pytest.approx(0.0, abs=1e-6 * mde)


class TestSegments:
    """Comparisons within many segments of the students."""

    @given(st.lists(st.none() | st.floats(-5, 9), max_size=12), _levels)
    def test_e_bh_rejects_the_largest_admissible_set(self, log_e: list[float | None], alpha: float) -> None:
        """K ≤ α·k·e is true for all k rejected hypotheses, and for no larger set."""
        rejected = e_benjamini_hochberg(log_e, alpha)
        ranked = sorted((math.exp(value) for value in log_e if value is not None), reverse=True)
        sizes = [k for k, e in enumerate(ranked, start=1) if k * e * alpha >= len(log_e)]
        assert sum(rejected) >= max(sizes, default=0)
        assert {value for value, is_rejected in zip(log_e, rejected, strict=True) if is_rejected} <= {
            value for value in log_e if value is not None and sizes and math.exp(value) >= ranked[max(sizes) - 1]
        }

    def test_exactly_the_intervals_of_discovered_segments_exclude_zero(self) -> None:
        """The mark `discovered` and the interval of a segment never disagree."""
        random = np.random.default_rng(11)
        estimates = {f"topic {n}": _estimates(float(random.normal(0, 0.15)), 800) for n in range(40)}
        segments = compare_segments(estimates, alpha=0.05, mde=0.1)
        assert 0 < sum(segment.discovered for segment in segments) < 40
        for segment in segments:
            lower, upper = _bounds(segment.comparison)
            assert segment.discovered == (lower > 0 or upper < 0)

    def test_segments_without_an_effect_are_seldom_discovered_at_any_time(self) -> None:
        """With 40 segments without an effect and 50 looks, any segment is discovered in less than 5 % of 200 runs."""
        informations = np.geomspace(50, 3000, 50)
        walks = _walks(3, 200 * 40, informations).reshape(200, 40, 50)
        mixture = NormalMixture.tune(mde_information(0.1), 0.05)
        evidence = 0.5 * np.log(mixture.rho / (informations + mixture.rho)) + walks**2 / (
            2 * (informations + mixture.rho)
        )
        any_discovered = [
            any(any(e_benjamini_hochberg(run[:, index].tolist(), 0.05)) for index in range(50)) for run in evidence
        ]
        any_excluded = (np.abs(walks) > [mixture.boundary(information, 0.05) for information in informations]).any(
            axis=(1, 2)
        )
        assert np.mean(any_discovered) < 0.05
        assert any_excluded.mean() > 0.4

    def test_segments_without_data_count_in_the_correction(self) -> None:
        """A segment that is discovered alone is not discovered beside 50 declared segments without students."""
        no_students = Estimate(0, None, None)
        single_segment = {"fractions": _estimates(0.12, 1000)}
        assert [segment.discovered for segment in compare_segments(single_segment, alpha=0.05, mde=0.1)] == [True]
        many_segments = single_segment | {f"empty {n}": (no_students, no_students) for n in range(50)}
        assert not any(segment.discovered for segment in compare_segments(many_segments, alpha=0.05, mde=0.1))


class TestDecayBands:
    """Bands around decayed means, and the design effect."""

    @pytest.mark.parametrize("half_lives", [1, 7, 28, 56, 400])
    def test_the_band_covers_a_whole_horizon_with_95_percent(self, half_lives: int) -> None:
        """In 95 % of runs a decayed mean of noise stays within the band, with hourly looks and a half-life of a day."""
        runs, decay = 2000, 2 ** (-1 / 24)
        random = np.random.default_rng(half_lives)
        value = random.standard_normal(runs)
        has_left_band = np.zeros(runs, dtype=bool)
        for _ in range(24 * half_lives):
            value = decay * value + math.sqrt(1 - decay**2) * random.standard_normal(runs)
            has_left_band |= np.abs(value) > decay_band_multiplier(half_lives)
        assert has_left_band.mean() < 0.05 + 3 * math.sqrt(0.05 * 0.95 / runs)
        assert has_left_band.mean() > 0.02

    def test_the_band_multiplier_increases_with_the_horizon(self) -> None:
        """The multiplier is that of the next larger tabulated horizon, and larger still beyond the table."""
        horizons = (0.5, 1, 7, 14, 28, 56, 57, 100, 1000, 100_000)
        multipliers = [decay_band_multiplier(horizon) for horizon in horizons]
        assert multipliers[:6] == [2.53, 2.53, 3.29, 3.51, 3.72, 3.92]
        assert multipliers[1:] == sorted(set(multipliers))

    def test_the_design_effect_is_the_ratio_of_variances_and_at_least_1(self) -> None:
        """The design effect is None if the variance of independent responses is 0."""
        assert design_effect(4.0, 1.0) == 4.0
        assert design_effect(0.5, 1.0) == 1.0
        assert design_effect(1.0, 0.0) is None
