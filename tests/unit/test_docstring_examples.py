"""Every example in a docstring of monitor/ shows what the code returns."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in (ROOT / "monitor").rglob("*.py")
    if path.name != "__main__.py" and ">>> " in path.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("module", MODULES)
def test_the_examples_in_the_docstrings_of_a_module_hold(module: str) -> None:
    """A compiled module has no source lines for doctest, but keeps its docstrings."""
    results = doctest.testmod(importlib.import_module(module))
    assert results.failed == 0
