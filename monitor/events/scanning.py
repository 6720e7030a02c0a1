"""Events that are in order in every respect, as nearly all are, read in one pass over their bytes.

This is what is there when nothing is compiled: it leaves every event to the slow way (`monitor.events.decoder`). The
other form, scanning.c, does the same with what is wrong, and with what is right but unusual: escapes in what is used,
names of fields and kinds beyond ASCII, ids that are longer than the limit in bytes alone, null as a score, fields that
are there twice, positions that are not 1, 2, 3 …, lists of more than 64, exponents, numbers of more than 15 digits,
texts of times without Z or with one or two decimals, nested fields that nobody asks for, CloudEvents envelopes.
"""

from __future__ import annotations

from typing import TypeAlias

ScannedResponse: TypeAlias = tuple[
    str, int, str, str, tuple[str, ...], str | None, str | None, str | None, float | None
]
"""(response id, event time in ms, experiment, variant, item ids, user id, query id, category, latency in ms)."""

ScannedFeedback: TypeAlias = tuple[str, str, int, str, str | None, str | None, float]
"""(feedback id, response id, event time in ms, kind, user id, item id, score)."""


def scan_response(stored: bytes, begin: int, end: int, max_id: int, max_items: int) -> ScannedResponse | None:
    """Return the fields of a response with ids and a list of at most such lengths; None if it is not that usual.

    It stands among bytes, from the place `begin` on, up to `end`.
    """
    del stored, begin, end, max_id, max_items
    return None


def scan_feedback(stored: bytes, begin: int, end: int, max_id: int) -> ScannedFeedback | None:
    """Return the fields of a reaction, as `scan_response` does; that its kind may have a scale is not known here."""
    del stored, begin, end, max_id
    return None
