"""Positions: which log they are of, and where it was begun."""

from __future__ import annotations

from dataclasses import replace

import pytest

from monitor.cli.rebuild import _older
from monitor.state import Position

READ = replace(Position.start("T", 5), next_offset=20)


def test_the_first_offset_of_a_log_is_known() -> None:
    """Where it was begun, whatever was read since."""
    assert (READ.first, READ.entry().next_offset) == (5, 5)
    assert Position.start("T", 0).first == 0


def test_a_gap_in_a_log_leaves_its_first_offset_as_it_is() -> None:
    """However many there are; the entry is the last one's, as before."""
    again = READ.entered("T", 30)
    assert (again.first, again.topic, again.reached, again.entry().next_offset) == (5, "T", (1, 30), 30)
    further = replace(again, next_offset=40).entered("T", 50)
    assert (further.first, further.topic, further.reached, further.entry().next_offset) == (5, "T", (2, 50), 50)


@pytest.mark.parametrize("after", [READ.entered("U", 0), READ.entered("U", 30), READ.entered("T", 10)])
def test_another_log_has_none(after: Position) -> None:
    """The topic was created anew, or its log was cut: what was read before is not in these offsets."""
    assert after.first is None
    assert after.entered(after.topic, 90).first is None


@pytest.mark.parametrize("origin", ["", "T", "T#1@7"])
def test_where_it_was_not_noted_there_is_none(origin: str) -> None:
    """Files, and stores of before."""
    assert Position(20, origin=origin).first is None


@pytest.mark.parametrize(
    ("begin", "oldest", "since", "older"),
    [
        (10, 10, 15, True),
        (10, 10, 10, False),
        (10, 12, 12, False),
        (10, 10, -1, True),
        (10, -1, 15, True),
        (10, -1, 10, False),
        (10, -1, -1, False),
    ],
)
def test_a_record_from_before_a_time(begin: int, oldest: int, since: int, *, older: bool) -> None:
    """Only where a broker says so for certain."""
    assert _older(begin, oldest, since) == older
