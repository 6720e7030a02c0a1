"""Missing responses: their test for a difference between the variants, and their effect at worst."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from monitor.stats import DataQuality, ResponseQuality


def _quality(*missing: int, received: int = 5000, responses_per_student: float = 1.0) -> DataQuality:
    """Return the data quality of a control and a treatment with the given numbers of rejected responses."""
    variants = {
        name: ResponseQuality(received - number, {"repeated_item": number})
        for name, number in zip(("control", "treatment"), missing, strict=True)
    }
    return DataQuality(variants, responses_per_student=responses_per_student)


def _difference(quality: DataQuality) -> float | None:
    return quality.missing_share_difference("control", "treatment", 0.01)


@pytest.mark.parametrize(("missing", "difference"), [((0, 450), 0.09), ((450, 0), -0.09), ((450, 450), None)])
def test_a_difference_of_the_missing_shares_is_found(missing: Sequence[int], difference: float | None) -> None:
    """A variant without any missing response, too, has an interval."""
    assert _difference(_quality(*missing)) == pytest.approx(difference)


def test_responses_of_one_student_are_not_independent() -> None:
    """One student with a broken client may send many responses."""
    assert _difference(_quality(0, 60)) is not None
    assert _difference(_quality(0, 60, responses_per_student=60)) is None


def test_no_difference_is_found_by_chance_at_any_of_many_analyses() -> None:
    """The level is 1 %; 100 experiments have at most 5 alarms with a probability of 0.9995."""
    random, alarms = np.random.default_rng(7), 0
    for _ in range(100):
        missing = np.cumsum(random.binomial(200, 0.03, size=(40, 2)), axis=0)
        found = (
            _difference(_quality(*numbers, received=200 * look)) is not None
            for look, numbers in enumerate(missing.tolist(), 1)
        )
        alarms += any(found)
    assert alarms <= 5


def test_the_largest_change_has_the_most_extreme_values_for_all_missing_responses() -> None:
    """By hand: 10 % of the treatment would have the largest value 12 instead of the mean 2."""
    change = _quality(0, 500).largest_effect_change("control", "treatment", (2.0, 2.0), 12.0)
    assert change == pytest.approx(0.1 * (12 - 2))


def test_responses_of_an_undeclared_variant_may_belong_to_either_variant() -> None:
    """By hand: 500 of 5 500 responses of the control, each with the value 0 instead of 2, or of the treatment."""
    variants = {"control": ResponseQuality(5000), "treatment": ResponseQuality(5000)}
    quality = DataQuality(variants, {"T": 500})
    change = quality.largest_effect_change("control", "treatment", (2.0, 2.0), 3.0)
    assert change == pytest.approx(500 / 5500 * 2)
    assert quality.missing_share == pytest.approx(500 / 10_500)


def test_similar_names_of_variants_are_suggested() -> None:
    """The case does not matter, and a beginning of a name is similar."""
    quality = _quality(0, 0)
    names = ("T", "Treatment", "treatmnet", "ctrl", "holdout")
    assert [quality.similar_variant(name) for name in names] == ["treatment"] * 3 + ["control", None]
