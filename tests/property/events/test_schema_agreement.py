"""The published JSON Schemas and the decoder accept and reject the same events."""

from __future__ import annotations

from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from tests.unit.events.test_json_schemas import SCHEMAS, VALID, VALIDATORS, rejection_reason

ONLY_IN_THE_DECODER = {
    "invalid_kind",  # JSON Schema has no class of printable characters
    "invalid_timestamp",  # the 30th of February, or separators in one half only
    "implausible_timestamp",  # 2000 and 2001, before limits.oldest_timestamp
    "placeholder_id",  # in capitals
    "repeated_item",
    "repeated_position",
    "timestamp_in_future",
}
"""Reasons for which the decoder may reject an event that fits the schema."""
TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
NUMBERS = (
    st.integers(-(10**16), 10**16)
    | st.sampled_from([0, 1, 10**6, 10**6 + 1, 86_400_000, 10**12 - 1, 10**12, 253_402_300_799_999, 10**15])
    # JSON Schema regards 1.0 as an integer.
    | st.floats(allow_nan=False, allow_infinity=False).filter(lambda number: not number.is_integer())
)
SCALARS = st.none() | st.booleans() | NUMBERS | TEXT
LENGTHS = st.sampled_from([0, 1, 64, 65, 256, 257]).map(lambda length: "é" * length)
TIMES = st.builds(
    "{}{}{}".format,
    st.sampled_from(["2026-11-20", "20261120", "2026-02-30", "2001-09-08", "1999-12-31", "9999-12-31", "2026-11"]),
    st.sampled_from(["", "T10:15", " 10:15:30", "T101530,5", "T10:15:30.123456789", "T24:00", "T10:61"]),
    st.sampled_from(["", "Z", "z", "+02:00", "-0530", "+24:00", "+01:60", "-23:59:59"]),
)
ITEM = st.fixed_dictionaries({}, optional={"item_id": LENGTHS | SCALARS, "position": NUMBERS | SCALARS})
ITEMS = st.lists(ITEM | SCALARS, max_size=3)
NAMES = st.sampled_from(["NULL", "n/a", "0", "+1", "thumb\x00up", "\u2028", "a b"])
VALUES = SCALARS | LENGTHS | TIMES | ITEMS | NAMES | st.dictionaries(TEXT, SCALARS, max_size=2)


@st.composite
def _changed_events(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    kind = draw(st.sampled_from(sorted(SCHEMAS)))
    name = draw(st.sampled_from(sorted(SCHEMAS[kind]["properties"])))
    event = dict(VALID[kind])
    if draw(st.integers(0, 9)) == 0:
        event.pop(name, None)
    else:
        by_name = {"timestamp": TIMES | NUMBERS, "items": ITEMS, "score": NUMBERS, "latency_ms": NUMBERS}
        event[name] = draw(by_name.get(name, LENGTHS | NAMES | TEXT) | VALUES)
    return kind, event


@given(_changed_events())
@example(("response", {**VALID["response"], "timestamp": "2026-11-20T10Z"}))
@example(("feedback", {**VALID["feedback"], "response_id": "NULL"}))
def test_schema_and_decoder_agree_about_an_event_with_one_changed_field(changed: tuple[str, dict[str, Any]]) -> None:
    """A field is removed or has another value."""
    kind, event = changed
    reason = rejection_reason(kind, event)
    if VALIDATORS[kind].is_valid(event):
        assert reason is None or reason in ONLY_IN_THE_DECODER
    else:
        assert reason is not None
