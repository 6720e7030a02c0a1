"""What a row amounts to, where other tests do not say it by their sums."""

from __future__ import annotations

from dataclasses import replace

from monitor.attribution import BEFORE, Row, Rules
from tests.support.streams import EXPERIMENT, HOUR, START


def test_what_is_said_after_the_start_says_nothing_of_before() -> None:
    """A variant may have changed how students rate older answers, too."""
    rules = Rules(replace(EXPERIMENT, starts_at_ms=START, pre_period_ms=24 * HOUR))
    item = b"123456"
    for arm, after_ms, rated in ((BEFORE, HOUR - 1, True), (BEFORE, HOUR, False), (0, HOUR, True)):
        row = Row(START - HOUR, arm, b"student", item)
        row.reactions = ((row.timestamp_ms + after_ms, "f", b"", item, "rating", 4.0),)
        assert rules.evaluate(row).rated == rated
