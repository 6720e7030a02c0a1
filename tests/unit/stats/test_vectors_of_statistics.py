"""Published figures from the tests of other implementations, each to the tolerance stored with the figure."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from monitor.config import DecaySpec
from monitor.metrics.decay import ObservationGroups, decayed_moments
from monitor.stats import Estimate, SampleMeanStatistic, split_alpha
from monitor.stats.confidence_sequences import HalfNormalMixture, NormalMixture, anytime_p_value, optimal_rho
from monitor.stats.cuped import CovariateStatistic, adjust_statistic
from monitor.stats.estimates import Effect, RatioStatistic, estimate_effect
from monitor.stats.segments import e_benjamini_hochberg
from monitor.stats.srm import log_bayes_factor, share_confidence_sequence, srm_log_e_value

HOUR = 3_600_000

UNUSED_REASONS = {
    "srm-chi2-53_47": "a test for a single look; the SRM test here is sequential",
    "srm-chi2-unequal_weights": "a test for a single look; the SRM test here is sequential",
    "srm-min-n": "a test for a single look; the SRM test here is sequential",
    "bernoulli-cs-700/1000,a=0.05,t=100": "for independent 0/1 responses; responses of a student are correlated",
    "bernoulli-cs-100/200,a=0.05,t=1": "for independent 0/1 responses; responses of a student are correlated",
    "bayes-normal-flat": "no posterior is computed",
    "power-n": "of a test for a single look; days_to_resolve is for the confidence sequence",
    "cuped-two-arm-sequential": "the inputs are in a vector (cuped-two-arm) that the file does not contain",
    "ndcg-no-relevant-sklearn": "about ranking; the convention here differs and is tested with the ranking metrics",
}

Vector = dict[str, Any]
Figures = dict[str, Any]


def _arms(inputs: Vector) -> tuple[Estimate, Estimate]:
    control, treatment = (
        SampleMeanStatistic(inputs[arm]["n"], inputs[arm]["sum"], inputs[arm]["sum_sq"]).estimate()
        for arm in ("a", "b")
    )
    return control, treatment


def _running_log_e(inputs: Vector) -> list[float]:
    counts = [[int(count) for count in row] for row in np.cumsum(inputs["increments"], axis=0)]
    shares = inputs["null"]
    if "k" in inputs:
        return [srm_log_e_value(row, shares, (inputs["k"],)) for row in counts]
    return [log_bayes_factor(row, shares, inputs["dirichlet_alpha"]) for row in counts]


def _sample_ratio(inputs: Vector) -> Figures:
    log_e = _running_log_e(inputs)
    return {"log_e": log_e, "p": [anytime_p_value(max_log_e) for max_log_e in itertools.accumulate(log_e, max)]}


def _share(inputs: Vector) -> Figures:
    students, other_students = inputs["cumulative_counts"]
    lower, upper = share_confidence_sequence(
        students, other_students, inputs["null"][0], inputs["alpha"], (inputs["k"],)
    )
    return {"lower": lower, "upper": upper}


def _two_sided(inputs: Vector) -> Figures:
    mixture = NormalMixture.tune(inputs["v_opt"], inputs["alpha_opt"])
    return {
        "rho": mixture.rho,
        "bound": mixture.boundary(inputs["v"], inputs["alpha"]),
        "log_mixture_at_s10": mixture.log_e(10, inputs["v"]),
    }


def _one_sided(inputs: Vector) -> Figures:
    mixture = HalfNormalMixture.tune(inputs["v_opt"], inputs["alpha"])
    return {
        "bound": mixture.boundary(inputs["v"], inputs["alpha"]),
        "log_mixture_at_s10": mixture.log_e(10, inputs["v"]),
    }


def _sequence(effect: float, standard_error: float, n: float, tuned_n: float, alpha: float) -> Figures:
    """Return figures of the sequence tuned for `tuned_n` students, converted to the clock of information."""
    information = 1 / standard_error**2
    mixture = NormalMixture.tune(information * tuned_n / n, alpha)
    half_width = mixture.half_width(information, alpha)
    p = anytime_p_value(mixture.log_e(information * effect, information))
    return {"halfwidth": half_width, "ci": [effect - half_width, effect + half_width], "p": p}


def _asymptotic(inputs: Vector) -> Figures:
    n, alpha = inputs["n"], inputs["alpha"]
    return _sequence(0.0, math.sqrt(inputs["s2"] / n), n, inputs["N_star"], alpha)


def _asymptotic_difference(inputs: Vector) -> Figures:
    control, treatment = _arms(inputs)
    effect, standard_error = _defined_effect(estimate_effect(control, treatment))
    students = control.units + treatment.units
    return {
        "diff": effect,
        "se": standard_error,
        **_sequence(effect, standard_error, students, inputs["N_star"], inputs["alpha"]),
    }


def _defined_effect(difference: Effect) -> tuple[float, float]:
    assert difference.effect is not None
    assert difference.standard_error is not None
    return difference.effect, difference.standard_error


def _eppo(inputs: Vector) -> Figures:
    mixture = NormalMixture(optimal_rho(inputs["N_tune"], inputs["alpha"]))
    return {"B": [mixture.boundary(t, inputs["alpha"]) / math.sqrt(t) for t in inputs["t"]]}


def _welch(inputs: Vector) -> Figures:
    effect, standard_error = _defined_effect(estimate_effect(*_arms(inputs)))
    return {"diff": effect, "se": standard_error}


def _cuped(inputs: Vector) -> Figures:
    n, post, pre = inputs["n"], inputs["post"], inputs["pre"]
    paired = CovariateStatistic(n, post["sum"], post["sum_sq"], pre["sum"], pre["sum_sq"], inputs["sum_post_pre"])
    estimate = adjust_statistic(
        SampleMeanStatistic(n, post["sum"], post["sum_sq"]), paired, inputs["theta"], 0.0
    ).estimate()
    return {"mean": estimate.mean, "var": estimate.unit_variance}


def _ratio(inputs: Vector) -> Figures:
    n = 1000
    (m, d), (var_m, var_d) = inputs["mean"].values(), inputs["var"].values()
    squares, counts = (n - 1) * var_m + n * m * m, (n - 1) * var_d + n * d * d
    sums = RatioStatistic(n, n * m, n * d, squares, (n - 1) * inputs["cov"] + n * m * d, counts)
    return {"unit_var": sums.estimate().unit_variance}


def _clusters(inputs: Vector) -> Figures:
    students: dict[str, list[float]] = {}
    for student, value in inputs["events"]:
        students.setdefault(student, []).append(value)
    sums = RatioStatistic()
    for values in students.values():
        s, n = math.fsum(values), len(values)
        sums += RatioStatistic(1, s, n, s * s, s * n, n * n)
    estimate = sums.estimate()
    assert estimate.variance is not None
    error = math.sqrt(estimate.variance)
    return {"mean": estimate.mean, "se_delta": error, "se_cr0": error * math.sqrt(1 - 1 / estimate.units)}


def _decay(inputs: Vector) -> Figures:
    hours = np.array([event[0] for event in inputs["events"]])
    values = np.array([event[2] for event in inputs["events"]])
    spec = DecaySpec("6h", int(inputs["half_life"] * HOUR))
    moments = decayed_moments(ObservationGroups.single(hours * HOUR, values), int(inputs["T"] * HOUR), spec)
    return {
        "mean": moments.mean,
        "n_eff": moments.effective_count,
        "se_hc0_ignoring_clusters": moments.standard_error,
    }


REPRODUCED: dict[str, tuple[Callable[[Vector], Figures], set[str]]] = {
    "ssrm-unit-dir111": (_sample_ratio, {"log_e"}),
    "ssrm-agg-k1000": (_sample_ratio, {"log_e"}),
    "ssrm-two-arm-daily-k100": (_sample_ratio, {"log_e", "p"}),
    "ssrm-ci-two-arm-k1000": (_share, {"lower", "upper"}),
    "nm2-howard-100": (_two_sided, {"rho", "bound", "log_mixture_at_s10"}),
    "nm2-v=5000,a=0.05,vopt=5000": (_two_sided, {"bound"}),
    "nm1-howard-100": (_one_sided, {"bound", "log_mixture_at_s10"}),
    "acs-s2=4,n=1000,N*=1000,a=0.05": (_asymptotic, {"halfwidth"}),
    "acs-diff-abs-N10": (_asymptotic_difference, {"diff", "se", "ci", "p"}),
    "acs-diff-abs-N10000": (_asymptotic_difference, {"diff", "se", "ci", "p"}),
    "eppo-equals-growthbook": (_eppo, {"B"}),
    "welch-abs": (_welch, {"diff", "se"}),
    "cuped-group-theta.31": (_cuped, {"mean", "var"}),
    "ratio-var-aggr": (_ratio, {"unit_var"}),
    "cluster-mean-small": (_clusters, {"mean", "se_cr0", "se_delta"}),
    "decay-cluster": (_decay, {"mean", "n_eff", "se_hc0_ignoring_clusters"}),
}
"""Vector id → (function that computes the figures, names of the expected figures that are compared)."""


@pytest.fixture(name="vectors")
def _vectors(shared: Path) -> dict[str, Vector]:
    vectors = json.loads((shared / "vectors" / "statistics.json").read_text("utf-8"))["vectors"]
    return {vector["id"]: vector for vector in vectors}


def test_every_published_vector_is_reproduced_or_has_a_reason(vectors: dict[str, Vector]) -> None:
    """Each vector of the file is in `REPRODUCED` or in `UNUSED_REASONS`."""
    assert set(vectors) == {*REPRODUCED, "mt", *UNUSED_REASONS}


@pytest.mark.parametrize("name", REPRODUCED)
def test_published_figures_are_reproduced(vectors: dict[str, Vector], name: str) -> None:
    """The statistics functions return the figures that the tests of other implementations expect."""
    vector, (compute_figures, compared_figures) = vectors[name], REPRODUCED[name]
    computed = compute_figures(vector["inputs"])
    assert compared_figures <= set(vector["expected"])
    for figure in compared_figures:
        assert computed[figure] == pytest.approx(vector["expected"][figure], rel=0, abs=vector["tol"]), figure


def test_e_bh_and_split_alpha_reject_like_benjamini_hochberg_and_bonferroni(vectors: dict[str, Vector]) -> None:
    """For e = 1/p, e-BH rejects like Benjamini-Hochberg, and a split α like Bonferroni."""
    p_values, expected = vectors["mt"]["inputs"]["p"], vectors["mt"]["expected"]
    for alpha in (0.004, 0.006, 0.02, 0.04, 0.051, 0.1, 0.19, 0.21):
        assert e_benjamini_hochberg([-math.log(p) for p in p_values], alpha) == [
            adjusted_p <= alpha for adjusted_p in expected["bh"]
        ]
        assert [p <= split_alpha(alpha, len(p_values)) for p in p_values] == [
            adjusted_p <= alpha for adjusted_p in expected["bonferroni"]
        ]


def test_the_bayes_factor_under_a_flat_prior_equals_the_published_figure() -> None:
    """Optimizely's ssrm tests have 60, 63 and 32 units, with the posterior Dirichlet(61, 64, 33)."""
    assert log_bayes_factor((60, 63, 32), (0.4, 0.4, 0.2), (1, 1, 1)) == pytest.approx(-4.1838140, abs=5e-8)
