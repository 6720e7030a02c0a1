"""The configuration that is written from any messages loads."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.decoding.test_sample_report import SampledMessage
from tests.unit.decoding.test_starting_config import decode_with, guess_text

_FIELDS = """
    id type kind ts time exp variant arm items hits doc rank user response_id feedback_id score key value
"""
_NAMES = st.sampled_from(_FIELDS.split()) | st.text(max_size=4)
_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.integers(1_795_712_300, 1_795_712_310)
    | st.sampled_from(["A", "B", "2026-11-01T10:00:00", "2026-11-01T10:00:00Z"])
    | st.text(max_size=5)
)
_VALUES = st.recursive(
    _SCALARS,
    lambda values: st.lists(values, max_size=3) | st.dictionaries(_NAMES, values, max_size=4),
    max_leaves=10,
)
_MESSAGES = st.lists(st.dictionaries(_NAMES, _VALUES, max_size=6), min_size=1, max_size=5)


@settings(max_examples=150)
@given(_MESSAGES, _MESSAGES)
def test_a_file_from_any_messages_loads_and_decodes(first: list[dict[str, Any]], second: list[dict[str, Any]]) -> None:
    """Names of members become quoted paths; what cannot be guessed is a TODO."""
    records = [
        SampledMessage(topic, json.dumps(message).encode())
        for topic, messages in (("a", first), ("b", second))
        for message in messages
    ]
    _, text = guess_text(records)
    decode_with(text, records)
