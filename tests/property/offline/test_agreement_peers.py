"""Intraclass correlations equal those of pingouin on random tables, unless pingouin has no value."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pingouin
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from monitor.offline.rater_agreement import intraclass_correlations

pytestmark = pytest.mark.filterwarnings("ignore:The inplace keyword")  # pandas' own business with pingouin
pingouin.options["round.column.CI95"] = 15

Table = list[list[float]]
quarters = st.integers(4, 20).map(lambda number: number / 4)
tables: st.SearchStrategy[Table] = st.tuples(st.integers(3, 9), st.integers(2, 5)).flatmap(
    lambda size: st.lists(
        st.lists(quarters, min_size=size[1], max_size=size[1]), min_size=size[0], max_size=size[0]
    )
)  # fmt: skip
SHROUT_FLEISS: Table = [[9, 2, 5, 8], [6, 1, 3, 2], [8, 4, 6, 8], [7, 1, 2, 6], [10, 5, 6, 9], [6, 2, 4, 7]]


def _check(table: Table) -> None:
    """Compare every form: value, F, degrees of freedom, p, and both ends of the interval."""
    cells = [(row, rater, float(grade)) for row, grades in enumerate(table) for rater, grade in enumerate(grades)]
    long = pd.DataFrame(cells, columns=["target", "rater", "grade"])
    with np.errstate(all="ignore"):
        theirs = pingouin.intraclass_corr(long, "target", "rater", "grade")
    for form, their in zip(intraclass_correlations(table).forms, theirs.to_dict("records"), strict=True):
        assert form.name == their["Type"]
        assert (form.df1, form.df2) == (their["df1"], their["df2"])
        assert (form.f, form.p) == pytest.approx((their["F"], their["pval"]), rel=1e-7, abs=1e-9)
        if form.value is not None:
            assert form.value == pytest.approx(their["ICC"], rel=1e-7, abs=1e-9)
        if form.interval is not None and np.isfinite(their["CI95"]).all():
            assert form.interval == pytest.approx(tuple(their["CI95"]), rel=1e-6, abs=1e-9)


def test_a_published_table_gives_the_results_of_the_peers() -> None:
    """Table 2 of Shrout & Fleiss 1979, where everything is defined."""
    forms = intraclass_correlations(SHROUT_FLEISS).forms
    assert all(form.value is not None and form.interval is not None for form in forms)
    _check(SHROUT_FLEISS)


@settings(max_examples=40)
@given(tables)
def test_random_tables_give_the_results_of_the_peers(table: Table) -> None:
    """Any table with variance between and within targets."""
    assume(len({grade for row in table for grade in row}) > 1)
    squares = intraclass_correlations(table).mean_squares
    assume(squares.error > 1e-6 and squares.targets > 1e-6)
    _check(table)
