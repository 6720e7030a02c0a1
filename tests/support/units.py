"""Stored records of single students, computed by the service's accumulator, and their analysis."""

from __future__ import annotations

import numpy as np

from monitor.analysis.analyzer import Analysis, Analyzer
from monitor.config import ExperimentSettings
from monitor.engine.accumulator import MetricAccumulator
from monitor.metrics import IntArray, UnitField
from monitor.metrics.record_layout import RecordLayout
from monitor.stats import StoredStudentSums


def student_records(layout: RecordLayout, sums: IntArray) -> IntArray:
    """Return the records over students (n × `unit_width`) of n students with the sums vectors `sums`."""
    records = np.zeros((len(sums), layout.unit_width), dtype=np.int64)
    for record, student_sums in zip(records, sums.tolist(), strict=True):
        accumulator = MetricAccumulator(layout, [])
        accumulator.add_anonymous_response(1, 0, 0, -1, tuple(student_sums))
        record[:] = accumulator.unit_sums[0].integers()
        record[UnitField.ANONYMOUS_RESPONSES] = 0
    return records


def cohort_records(layout: RecordLayout, sums: IntArray, category: int = -1) -> IntArray:
    """Return the cohort records (n × `cohort_width`) of n students with the closed-window sums vectors `sums`.

    All students have the given category, and responses on the day of the first response only.
    """
    records = np.zeros((len(sums), layout.cohort_width), dtype=np.int64)
    for record, student_sums in zip(records, sums.tolist(), strict=True):
        accumulator = MetricAccumulator(layout, [])
        accumulator.add_anonymous_response(1, 0, 0, category, tuple(student_sums))
        for cohort_sums in accumulator.cohort_sums.values():
            record[:] = cohort_sums.integers()
    return records


def analyze(experiment: ExperimentSettings, stored_students: StoredStudentSums, as_of_ms: int) -> Analysis:
    """Return the analysis of an experiment's stored sums at an event time."""
    return Analyzer(experiment).analyze(stored_students, as_of_ms)
