"""Undeclared experiments: which variants a declaration contains, and which experiments are adopted automatically."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from monitor.analysis import UndeclaredExperiment, auto_adoptable
from monitor.config import DiscoverSettings

ADOPT_ALL = DiscoverSettings(auto_adopt=("*",))


def _undeclared(
    name: str = "ranker-v3", variants: Mapping[str, int] | None = None, *, other_variants: int = 0
) -> UndeclaredExperiment:
    counts = {"control": 500, "treatment": 500} if variants is None else variants
    return UndeclaredExperiment(name, sum(counts.values()) + other_variants, 1, 2, counts, other_variants)


def test_rare_variants_and_invalid_names_are_not_part_of_a_declaration() -> None:
    """Shares are fractions of all responses with a variant."""
    experiment = _undeclared(variants={"a": 600, "b": 290, " c": 100, "d": 10, "debug": 9}, other_variants=1)
    assert experiment.declarable_variants == {"a": 600, "b": 290}
    assert experiment.share(290) == pytest.approx(290 / 1010)


def test_an_experiment_is_adopted_if_its_name_matches_and_it_has_enough_responses_and_variants() -> None:
    """The result begins with the largest experiment."""
    undeclared = [
        _undeclared("small", {"a": 50, "b": 50}),
        _undeclared("large"),
        _undeclared("too-small", {"a": 50, "b": 49}),
        _undeclared("one-variant", {"a": 1000}),
        _undeclared("one-variant-and-a-test", {"a": 1000, "test": 2}),
        _undeclared("control\ncharacter"),
        _undeclared("x" * 99 + "…"),
    ]
    assert auto_adoptable(undeclared, ADOPT_ALL, [], []) == ["large", "small"]
    assert auto_adoptable(undeclared, DiscoverSettings(auto_adopt=("sm*",)), [], []) == ["small"]


def test_no_experiment_is_adopted_by_default() -> None:
    """Adoption needs a pattern."""
    assert auto_adoptable([_undeclared()], DiscoverSettings(), [], []) == []


def test_another_spelling_of_a_declared_name_is_not_adopted() -> None:
    """It is probably a mistake of a producer. The next version of an experiment is another experiment."""
    undeclared = [_undeclared("Ranker V2"), _undeclared("ranker-v3")]
    assert auto_adoptable(undeclared, ADOPT_ALL, ["ranker-v2"], []) == ["ranker-v3"]


def test_the_number_of_adopted_experiments_is_limited_in_total() -> None:
    """Experiments that were adopted earlier count, also if they were archived since, and are not adopted again."""
    undeclared = [_undeclared(name) for name in "abcd"]
    discover = DiscoverSettings(auto_adopt=("*",), auto_adopt_limit=3)
    assert auto_adoptable(undeclared, discover, [], []) == ["a", "b", "c"]
    assert auto_adoptable(undeclared, discover, ["a"], ["a", "old"]) == ["b"]
    assert auto_adoptable(undeclared, discover, [], ["a"]) == ["b", "c"]
    assert auto_adoptable(undeclared, discover, [], ["v", "w", "x", "y"]) == []
