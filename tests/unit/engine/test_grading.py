"""Unit tests of the evaluation of response rows by `GradingRules`."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from monitor.config import ExperimentSettings
from monitor.engine.grading import GradingRules
from monitor.engine.response_row import CAPPED_PREFIX, PRE_PERIOD_VARIANT, WITHDRAWN, ResponseRow
from tests.support.streams import EXPERIMENT, HOUR, RICH, START


def test_reactions_after_the_start_do_not_count_for_pre_period_responses() -> None:
    """A variant may have changed how students rate older answers, too."""
    rules = GradingRules(replace(EXPERIMENT, starts_at_ms=START, pre_period_ms=24 * HOUR))
    item = b"123456"
    for arm, after_ms, rated in (
        (PRE_PERIOD_VARIANT, HOUR - 1, True),
        (PRE_PERIOD_VARIANT, HOUR, False),
        (0, HOUR, True),
    ):
        row = ResponseRow(START - HOUR, arm, b"student", item)
        row.reactions = ((row.timestamp_ms + after_ms, "f", b"", item, "rating", 4.0),)
        assert rules.evaluate(row).is_rated == rated


@pytest.mark.parametrize(
    ("after_ms", "item", "score", "reason"),
    [
        (-5001, "video0", 4.0, "before_response"),
        (-5000, "video0", 4.0, None),
        (-1, "video0", 4.0, None),
        (24 * HOUR, "video0", 4.0, None),
        (24 * HOUR + 1, "video0", 4.0, "outside_window"),
        (0, "video0", 4.5, "off_scale"),
        (0, "video9", 4.0, "item_not_shown"),
        (0, "", 4.0, None),
    ],
)
def test_every_reaction_that_does_not_count_has_a_reason(
    after_ms: int, item: str, score: float, reason: str | None
) -> None:
    """Up to the tolerance before the response a reaction counts, because its time is from another clock."""
    row = ResponseRow(START, 0, b"student", b"video0video1")
    row.reactions = ((START + after_ms, "f", b"", item.encode(), "rating", score),)
    contribution = GradingRules(EXPERIMENT).evaluate(row)
    assert contribution.uncounted_reactions == (() if reason is None else ((reason, 1),))
    assert contribution.is_rated == (reason is None and item != "")


def test_the_tolerance_for_clocks_is_a_setting() -> None:
    """A response and its feedback may have times from one clock."""
    row = ResponseRow(START, 0, b"student", b"video0")
    row.reactions = ((START - 2000, "f", b"", b"video0", "rating", 4.0),)
    assert GradingRules(EXPERIMENT).evaluate(row).is_rated
    strict_experiment = replace(EXPERIMENT, feedback_clock_tolerance_ms=1000)
    assert not GradingRules(strict_experiment).evaluate(row).is_rated


@pytest.mark.parametrize("other_kind", [(), ("helpful",)])
@pytest.mark.parametrize(
    ("reactions", "grade", "in_vain"),
    [
        ([(1, "a", 4.0)], 4.0, 0),
        ([(1, "a", 4.0), (2, "a", WITHDRAWN)], None, 0),
        ([(1, "a", 4.0), (2, "a", WITHDRAWN), (3, "b", 2.0)], 2.0, 0),
        ([(1, "a", WITHDRAWN), (1, "b", 4.0)], None, 0),
        ([(1, "a", 4.0), (1, "b", WITHDRAWN)], None, 0),
        ([(1, "a", WITHDRAWN)], None, 1),
        ([(1, "a", WITHDRAWN), (2, "b", WITHDRAWN), (3, "c", 4.0)], 4.0, 2),
        ([(1, "a", 2.0), (1, "b", WITHDRAWN), (1, "c", 4.0), (2, "d", 3.0)], 3.0, 0),
    ],
)
def test_a_withdrawal_takes_earlier_reactions_back(
    reactions: list[tuple[int, str, float]], grade: float | None, in_vain: int, other_kind: tuple[str, ...]
) -> None:
    """At the same time the withdrawal is the later one, whatever the ids; other kinds remain.

    A withdrawal without an earlier reaction is counted as such.
    """
    row = ResponseRow(START, 0, b"student", b"video0")
    row.reactions = tuple(
        sorted(
            [
                *((START + at_ms, name, b"", b"video0", "rating", score) for at_ms, name, score in reactions),
                *((START, "z", b"", b"video1", kind, 1.0) for kind in other_kind),
            ]
        )
    )
    rules = GradingRules(EXPERIMENT)
    assert rules.item_grades(row).get(b"video0") == grade
    contribution = rules.evaluate(row)
    assert contribution.is_rated == (grade is not None)
    expected_counts = {**dict.fromkeys(other_kind, 1), **({} if grade is None else {"rating": 1})}
    assert dict(contribution.reaction_counts) == expected_counts
    assert dict(contribution.uncounted_reactions).get("nothing_to_withdraw", 0) == in_vain


@pytest.mark.parametrize(
    "experiment",
    [
        EXPERIMENT,
        replace(RICH, additive_kinds=()),
        replace(EXPERIMENT, gain={0.0: 0.0, 1.0: 1.0, 2.0: 3.0, 3.0: 7.0, 4.0: 15.0}),
    ],
    ids=["usual", "rich", "gain table"],
)
def test_a_single_reaction_is_evaluated_like_several_reactions(experiment: ExperimentSettings) -> None:
    """A row with two equal reactions under different ids takes the code path for several reactions."""
    rules = GradingRules(experiment)
    for arm, ranks, after_ms, tag, item, kind, score in product(
        (0, PRE_PERIOD_VARIANT),
        (None, (1, 2, 3), (2, 4, 7)),
        (-1, 0, HOUR, 30 * 24 * HOUR),
        (b"", b"taggy1"),
        (b"", b"video0", b"video2", b"nowhere"[:6]),
        ("rating", "helpful", "watched", "escalated", "reviewed"),
        (0.0, 0.3, 0.5, 1.0, 3.0, 4.0, 4.5),
    ):
        row = ResponseRow(START, arm, b"student", b"video0video1video2", ranks, 300)
        reaction = START + after_ms, "f", tag, item, kind, score
        row.reactions = (reaction,)
        single_result = rules.evaluate(row)
        row.reactions = ((START + after_ms, "a", tag, item, kind, score), reaction)
        general_result = rules.evaluate(row)
        # Both reactions are counted if they do not count.
        general_uncounted = {
            reason: count - (reason != "item_not_shown" and not reason.startswith(CAPPED_PREFIX))
            for reason, count in general_result.uncounted_reactions
        }
        assert dict(single_result.uncounted_reactions) == general_uncounted
        for attribute in ("is_rated", "metric_values", "sums", "reaction_counts"):
            assert getattr(single_result, attribute) == getattr(general_result, attribute)
