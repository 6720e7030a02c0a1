"""Unit tests of the evaluation of response rows by `GradingRules`."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from monitor.config import ExperimentSettings
from monitor.engine.grading import GradingRules
from monitor.engine.response_row import PRE_PERIOD_VARIANT, ResponseRow
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
    "experiment",
    [EXPERIMENT, RICH, replace(EXPERIMENT, gain={0.0: 0.0, 1.0: 1.0, 2.0: 3.0, 3.0: 7.0, 4.0: 15.0})],
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
        for attribute in ("is_rated", "metric_values", "sums", "reaction_counts", "last_reaction_ms"):
            assert getattr(single_result, attribute) == getattr(general_result, attribute)
