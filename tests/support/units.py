"""What single students add to the stored records, as the service adds it, and what follows from these."""

from __future__ import annotations

import numpy as np

from monitor.analysis.verdicts import Judge, Judgement
from monitor.config import ExperimentSettings
from monitor.engine.accumulator import Accumulator
from monitor.metrics.record_layout import Ints, Layout
from monitor.stats import StoredStudents


def unit_terms(layout: Layout, sums: Ints) -> Ints:
    """Return the records over students (n × unit_width) of n units with sums vectors (n × sums_width)."""
    terms = np.zeros((len(sums), layout.unit_width), dtype=np.int64)
    for term, row in zip(terms, sums.tolist(), strict=True):
        tally = Accumulator(layout, [])
        tally.add_anonymous(1, 0, 0, -1, tuple(row))
        term[:] = tally.units[0].integers()
        term[2] = 0
    return terms


def cohort_terms(layout: Layout, sums: Ints, category: int = -1) -> Ints:
    """Return the records of a cohort (n × cohort_width) of n units with closed-window sums vectors (n × sums_width).

    All of them are of one category, and of the day of their first response.
    """
    terms = np.zeros((len(sums), layout.cohort_width), dtype=np.int64)
    for term, row in zip(terms, sums.tolist(), strict=True):
        tally = Accumulator(layout, [])
        tally.add_anonymous(1, 0, 0, category, tuple(row))
        for record in tally.cohorts.values():
            term[:] = record.integers()
    return terms


def judge(experiment: ExperimentSettings, stored: StoredStudents, at_ms: int) -> Judgement:
    """Return what the stored sums of an experiment say at an event time."""
    return Judge(experiment).judge(stored, at_ms)
