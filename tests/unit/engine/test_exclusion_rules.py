"""Excluded responses, and units of an attribute, in the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest

from monitor.config import ExperimentSettings
from monitor.engine import BatchChanges, EventNormalizer, ExclusionRules, Experiment, IdHasher
from monitor.engine.row_codec import decode_response_row, decode_student_row
from monitor.events import Feedback, Response
from monitor.metrics import CohortField
from tests.support.oracle import compute_expected_responses
from tests.support.streams import EXPERIMENT, HOUR, RICH, START, changed, normalize_events
from tests.unit.engine.test_processor import StoredRows

_DAY = 24 * HOUR
_RULES = {"user_id": ("test-*",), "role": ("teacher",)}
_EXCLUDING = replace(EXPERIMENT, exclude=_RULES)
_RESPONSE = Response("r0", START, "ranker", "treatment", ("video-1", "video-2"), None, "s1", category="fractions")


def _response(number: int, user_id: str | None, variant: str = "treatment", **attributes: str) -> Response:
    return changed(
        _RESPONSE,
        response_id=f"r{number}",
        timestamp_ms=START + number,
        variant=variant,
        user_id=user_id,
        attributes=tuple(attributes.items()),
    )


def _rating(number: int) -> Feedback:
    return Feedback(f"f{number}", f"r{number}", START + number + HOUR, "rating", None, "video-1", 4.0)


def _rows(settings: ExperimentSettings) -> StoredRows:
    return StoredRows([Experiment(1, settings)])


def _totals(batches: Sequence[BatchChanges]) -> tuple[dict[int, int], dict[int, int], dict[int, int]]:
    """Return variant → responses, students and crossovers, of all batches together."""
    totals: tuple[dict[int, int], dict[int, int], dict[int, int]] = ({}, {}, {})
    for batch in batches:
        for accumulator in batch.metric_accumulators.values():
            for variant, responses in accumulator.response_sums.items():
                totals[0][variant] = totals[0].get(variant, 0) + responses.responses
            for variant, units in accumulator.unit_sums.items():
                totals[1][variant] = totals[1].get(variant, 0) + units.students
                totals[2][variant] = totals[2].get(variant, 0) + units.crossovers
    return totals


@pytest.mark.parametrize(
    ("rules", "fields", "is_excluded"),
    [
        ({"user_id": ("s?",)}, {}, True),
        ({"user_id": ("S1",)}, {}, False),
        ({"user_id": ("s",)}, {}, False),
        ({"user_id": ("test-*", "*1")}, {}, True),
        ({"user_id": ("*",)}, {"user_id": None}, False),
        ({"group_id": ("7[ab]",)}, {"group_id": "7b"}, True),
        ({"group_id": ("7[!ab]",)}, {"group_id": "7b"}, False),
        ({"category": ("fract*",)}, {}, True),
        ({"app_version": ("1.*",)}, {"attributes": (("role", "1.2"), ("app_version", "1.2"))}, True),
        ({"app_version": ("1.*",)}, {"attributes": (("role", "1.2"), ("app_version", "12"))}, False),
        ({"app_version": ("1.*",)}, {}, False),
        ({"role": ("teacher",), "user_id": ("s1",)}, {"attributes": (("role", "student"),)}, True),
        ({}, {}, False),
    ],
)
def test_a_response_is_excluded_if_a_value_matches_any_pattern_of_its_field(
    rules: Mapping[str, tuple[str, ...]], fields: Mapping[str, Any], *, is_excluded: bool
) -> None:
    """Patterns are shell patterns with case, and match whole values."""
    assert ExclusionRules(rules).match(changed(_RESPONSE, **fields)) is is_excluded


def test_excluded_responses_are_counted_beside_those_of_the_variants() -> None:
    """Variant number v becomes 128 + v; ratings count there, too."""
    store = _rows(_EXCLUDING)
    batch = store.apply(
        _response(1, "s1"),
        _response(2, "test-1"),
        _response(3, "s2", "control", role="teacher"),
        _response(4, "s3", "control", role="student"),
        _rating(2),
    )
    assert _totals([batch])[:2] == ({0: 1, 1: 1, 128: 1, 129: 1}, {0: 1, 1: 1, 128: 1, 129: 1})
    assert batch.metric_accumulators[1].response_sums[129].rated_responses == 1


def test_a_student_with_excluded_and_other_responses_is_counted_twice_and_no_crossover() -> None:
    """A teacher may become a student; only the excluded student has seen both variants."""
    store = _rows(_EXCLUDING)
    batch = store.apply(
        _response(1, "s1"),
        _response(2, "s1", "control", role="teacher"),
        _response(3, "s1", "treatment", role="teacher"),
    )
    assert len(store.students) == 2
    assert _totals([batch]) == (
        {1: 1, 128: 1, 129: 1},
        {1: 1, 128: 1, 129: 1},
        {1: 0, 128: 1, 129: 0},
    )


def test_excluded_responses_count_no_items_and_are_not_missing() -> None:
    """Neither is an excluded response that is late, or has a placeholder for the user or an item more than once."""
    store = _rows(_EXCLUDING)
    batch = store.apply(_response(1, "test-1"), _rating(1))
    assert (batch.item_count_changes, batch.item_ids, batch.index_members) == ({}, {}, set())
    late = store.apply(_response(2, "test-1"), _response(3, "s1"), late_before_ms=START + HOUR)
    assert late.late_responses == {1 << 8 | 1: 1}
    normalizer = EventNormalizer([Experiment(1, _EXCLUDING)], IdHasher(b"key"))
    excluded = _response(1, None, role="teacher")
    events = normalize_events(
        normalizer, [changed(excluded, has_placeholder_user=True), changed(excluded, has_repeated_items=True)]
    )
    assert (events.placeholder_users, events.repeated_items) == ({}, {})


def test_excluded_responses_of_the_pre_period_do_not_count() -> None:
    """They would else be results from before the experiment of a student who is not compared."""
    store = _rows(replace(RICH, exclude=_RULES))
    batch = store.apply(changed(_response(1, "test-1"), timestamp_ms=START + 10 * HOUR))
    assert (batch.response_rows, store.students) == ([], {})
    assert store.apply(changed(_response(2, "s1"), timestamp_ms=START + 10 * HOUR)).response_rows


def test_a_rule_of_the_source_excludes_a_response_from_every_experiment() -> None:
    """The decoder has marked the response."""
    other = replace(EXPERIMENT, name="other")
    store = StoredRows([Experiment(1, EXPERIMENT), Experiment(2, other)])
    for number, name in enumerate(("ranker", "other")):
        store.apply(changed(_response(number, "s1"), experiment=name, is_excluded=True))
    assert [decode_response_row(row).variant_key for row in store.responses.values()] == [1 << 8 | 129, 2 << 8 | 129]


def test_the_excluded_responses_of_an_experiment_with_many_variants_are_not_counted() -> None:
    """A source may have rules although a command has declared an experiment with more than 127 variants."""
    variants = {f"v{number:03}": 1 / 128 for number in range(128)}
    store = _rows(replace(EXPERIMENT, control="v000", variants=variants))
    assert store.apply(changed(_response(1, "s1", "v001"), is_excluded=True)).response_rows == []
    store.apply(_response(2, "s1", "v127"))
    assert decode_response_row(store.responses[b"r2"]).variant_key == 1 << 8 | 127


def test_the_order_of_events_does_not_matter_if_copies_of_a_response_differ_in_an_attribute() -> None:
    """The excluded copy is that of a later variant, so the other copy counts; its student was exposed to both."""
    responses = [_response(1, "s1"), _response(1, "s1", role="teacher"), _response(1, "s2", "control")]
    events: list[Response | Feedback] = [*responses, _rating(1)]
    results = []
    for order in permutations(events):
        store = _rows(_EXCLUDING)
        totals = _totals([store.apply(event) for event in (*order, order[0])])
        width = Experiment(1, _EXCLUDING).sums_width
        students = {name: decode_student_row(row, width).blocks for name, row in store.students.items()}
        results.append((*({key: count for key, count in total.items() if count} for total in totals), students))
    assert all(result == results[0] for result in results)
    assert results[0][0] == {0: 1}


def test_the_sums_of_counted_responses_are_those_of_the_same_events_without_the_excluded_ones() -> None:
    """By the oracle, which knows no rules."""
    events: list[Response | Feedback] = [
        *(_response(number, f"{'test' if number % 3 else 's'}-{number % 5}") for number in range(20)),
        *(_rating(number) for number in range(0, 20, 2)),
    ]
    batch = _rows(_EXCLUDING).apply(*events)
    for variant, is_excluded in ((1, False), (129, True)):
        responses = [event for event in events if isinstance(event, Response)]
        selected = [event for event in responses if str(event.user_id).startswith("test-") is is_excluded]
        feedback = [event for event in events if isinstance(event, Feedback)]
        expected = compute_expected_responses(EXPERIMENT, [*selected, *feedback])
        sums = batch.metric_accumulators[1].response_sums[variant]
        assert sums.responses == len(expected)
        assert sums.rated_responses == sum(response.is_rated for response in expected)
        assert batch.metric_accumulators[1].unit_sums[variant].students == len(
            {response.response.user_id for response in expected}
        )


def test_the_classes_of_an_attribute_are_units() -> None:
    """Two classes of three students: each class is one unit; a response without a class is a unit of its own."""
    classes = {"s1": "7a", "s2": "7a", "s3": "7b"}
    store = _rows(replace(EXPERIMENT, unit="class_id"))
    events: list[Response | Feedback] = []
    for number, (user_id, variant) in enumerate((("s1", "control"), ("s2", "control"), ("s3", "treatment")) * 2):
        events.append(_response(number, user_id, variant, class_id=classes[user_id]))
    events += [_response(9, "s4"), _rating(0)]
    batch = store.apply(*events)
    accumulator = batch.metric_accumulators[1]
    units = accumulator.unit_sums
    assert {variant: (sums.students, sums.units, sums.anonymous) for variant, sums in units.items()} == {
        0: (1, 1, 0),
        1: (1, 2, 1),
    }
    assert (units[0].responses, units[1].responses) == (4, 3)
    cohorts = [sums.integers() for sums in accumulator.cohort_sums.values()]
    assert sorted(record[CohortField.EXPOSURES] for record in cohorts) == [1, 1]
    assert len(store.students) == 2
