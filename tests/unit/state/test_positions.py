"""Positions of partitions: the log of an offset, and the first offset of the log."""

from __future__ import annotations

from dataclasses import replace

import pytest

from monitor.cli.rebuild_coverage import has_older_record
from monitor.state import LogEpoch, Position

READ = replace(Position.at_log_start("T", 5), next_offset=20)


def test_a_log_keeps_the_first_offset_that_was_to_be_applied() -> None:
    """The first offset does not depend on the records applied since."""
    assert (READ.log.first_offset, READ.log_start().next_offset) == (5, 5)
    assert Position.at_log_start("T", 0).log.first_offset == 0


def test_a_gap_in_a_log_does_not_change_its_first_offset() -> None:
    """The start of the epoch is the offset after the latest gap."""
    after_one_gap = READ.after_reset("T", 30)
    assert (
        after_one_gap.log.first_offset,
        after_one_gap.log.topic_id,
        after_one_gap.sort_key,
        after_one_gap.log_start().next_offset,
    ) == (
        5,
        "T",
        (1, 30),
        30,
    )
    after_two_gaps = replace(after_one_gap, next_offset=40).after_reset("T", 50)
    assert (
        after_two_gaps.log.first_offset,
        after_two_gaps.log.topic_id,
        after_two_gaps.sort_key,
        after_two_gaps.log_start().next_offset,
    ) == (
        5,
        "T",
        (2, 50),
        50,
    )


@pytest.mark.parametrize("after", [READ.after_reset("U", 0), READ.after_reset("U", 30), READ.after_reset("T", 10)])
def test_a_new_or_truncated_log_has_no_first_offset(after: Position) -> None:
    """The offsets of records applied before the reset belong to another log."""
    assert after.log.first_offset is None
    assert after.after_reset(after.log.topic_id, 90).log.first_offset is None


@pytest.mark.parametrize("text", ["", "T", "T#1@7"])
def test_a_stored_log_without_its_first_offset_has_none(text: str) -> None:
    """Files have no log, and a log that was reset has no first offset."""
    assert LogEpoch.parse(text).first_offset is None
    assert str(LogEpoch.parse(text)) == text


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
def test_a_partition_is_older_than_a_time_only_if_the_broker_confirms_an_older_record(
    begin: int, oldest: int, since: int, *, older: bool
) -> None:
    """A broker returns -1 for an unknown offset."""
    assert has_older_record(begin, oldest, since) == older
