"""Summaries of some experiments, or without details, have the same numbers as the whole summary."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from monitor.clock import HOUR_MS, wall_clock
from monitor.state import StoreReader, open_store_reader
from tests.support.experiments_store import experiment_name, filled_store


@pytest.fixture(scope="module")
def reader() -> Iterator[StoreReader]:
    """Yield a reader of a store with three experiments."""
    with filled_store(3, 600, days=12) as store, open_store_reader(store.settings, wall_clock) as reader:
        yield reader


@pytest.mark.parametrize("age_ms", [None, 30 * HOUR_MS])
def test_a_summary_of_one_experiment_has_the_numbers_of_the_whole_summary(
    reader: StoreReader, age_ms: int | None
) -> None:
    """Now and as of a past time; and also again, from the cache."""
    whole = reader.read_summary()
    name, as_of_ms = experiment_name(1), None if age_ms is None else whole.as_of_ms - age_ms
    expected = reader.read_summary(as_of_ms)
    for _ in range(2):
        part = reader.read_summary(as_of_ms, names=[name])
        assert part == replace(expected, experiments={name: expected.experiments[name]})
    assert reader.read_summary() == whole


def test_counts_are_verdicts_without_an_analysis(reader: StoreReader) -> None:
    """The page of the service needs no analysis."""
    counts, verdicts = reader.read_counts(), reader.read_verdicts()
    assert counts.experiments.keys() == verdicts.experiments.keys()
    assert counts.unmatched_feedback == verdicts.unmatched_feedback
    for name, experiment in counts.experiments.items():
        assert experiment == replace(verdicts.experiments[name], analysis=None)


def test_verdicts_are_those_of_the_whole_summary(reader: StoreReader) -> None:
    """Only details are missing."""
    whole, verdicts = reader.read_summary(), reader.read_verdicts()
    assert verdicts.experiments.keys() == whole.experiments.keys()
    for name, experiment in verdicts.experiments.items():
        expected = whole.experiments[name]
        assert experiment.analysis == expected.analysis
        assert experiment.data_quality == expected.data_quality
        for variant, summary in experiment.variants.items():
            assert (summary.responses, summary.students, summary.last_event_at_ms) == (
                expected.variants[variant].responses,
                expected.variants[variant].students,
                expected.variants[variant].last_event_at_ms,
            )
            assert expected.variants[variant].traffic is not None
            assert summary.traffic is None
