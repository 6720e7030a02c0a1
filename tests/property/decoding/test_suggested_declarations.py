"""Suggested declarations for any names and counts."""

from __future__ import annotations

import tomllib
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from monitor.analysis import UndeclaredExperiment, auto_adoptable
from monitor.config import DiscoverSettings, parse_settings
from monitor.decoding import suggest_declaration

_NAMES = st.text(max_size=100)
_VARIANTS = st.dictionaries(_NAMES, st.integers(1, 10_000), max_size=20)


def _undeclared(name: str, variants: dict[str, int], other_variant_responses: int = 0) -> UndeclaredExperiment:
    responses = sum(variants.values()) + other_variant_responses
    counts = dict(Counter(variants).most_common())
    return UndeclaredExperiment(name, responses, 0, 1, counts, other_variant_responses)


@given(_NAMES, _VARIANTS, st.integers(0, 3))
def test_a_declaration_is_valid_for_any_names_and_counts(
    name: str, variants: dict[str, int], other_variant_responses: int
) -> None:
    """Producers choose names freely. Every declared variant gets a share."""
    undeclared = _undeclared(name, variants, other_variant_responses)
    if not undeclared.is_declarable:
        return
    (experiment,) = parse_settings(tomllib.loads(suggest_declaration(undeclared)), {}).experiments
    assert experiment.name == name
    assert min(experiment.variants.values()) > 0
    assert set(undeclared.declarable_variants) <= set(experiment.variants)


@given(st.dictionaries(_NAMES, _VARIANTS, max_size=20), st.sets(_NAMES, max_size=5), st.sets(_NAMES), st.integers(1, 9))
def test_adopted_experiments_are_bounded_new_and_have_a_valid_declaration(
    seen: dict[str, dict[str, int]], declared_names: set[str], already_adopted: set[str], limit: int
) -> None:
    """Anybody may write events of any number of experiments."""
    undeclared = {name: _undeclared(name, variants) for name, variants in seen.items()}
    discover = DiscoverSettings(auto_adopt=("*",), auto_adopt_limit=limit)
    names = auto_adoptable(list(undeclared.values()), discover, declared_names, already_adopted)
    assert len(names) <= max(limit - len(already_adopted), 0)
    assert not {*names} & (declared_names | already_adopted)
    for name in names:
        (experiment,) = parse_settings(tomllib.loads(suggest_declaration(undeclared[name])), {}).experiments
        assert set(experiment.variants) == set(undeclared[name].declarable_variants)
