"""The declared name that a wrong name probably means, for hints in messages."""

from __future__ import annotations

import pytest

from monitor.config import similar_name


@pytest.mark.parametrize(
    ("name", "declared", "expected"),
    [
        ("TREATMENT", ["control", "treatment"], "treatment"),
        ("ranker_v2", ["explainer", "ranker-v2"], "ranker-v2"),
        ("ctrl", ["control", "treatment"], "control"),
        ("t", ["control", "treatment"], "treatment"),
        ("t", ["treatment-1", "treatment-2"], None),
        ("exponential", ["identity", "exp2"], "exp2"),
        ("other", ["control", "treatment"], None),
        ("", ["control"], None),
    ],
)
def test_the_declared_name_is_similar_or_abbreviated_or_there_is_none(
    name: str, declared: list[str], expected: str | None
) -> None:
    """An abbreviation of two names is ambiguous."""
    assert similar_name(name, declared) == expected
