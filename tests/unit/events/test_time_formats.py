"""The accepted forms of ISO 8601, which do not depend on the version of Python."""

from __future__ import annotations

import pytest

from monitor.errors import InvalidEvent
from monitor.events import parse_timestamp_ms


@pytest.mark.parametrize(
    "text",
    [
        "2026-11-20T10:15:30.5Z",
        "2026-11-20 10:15:30,5+00:00",
        "20261120T101530.500000Z",
        "2026-11-20T12:15:30.5+02",
        "2026-11-20T05:45:30.5-0430",
    ],
)
def test_extended_and_basic_formats_are_accepted(text: str) -> None:
    """With T or a blank, a point or a comma, and any offset."""
    assert parse_timestamp_ms(text) == 1_795_169_730_500


@pytest.mark.parametrize(
    "text", ["2026-W47-5T10:15Z", "2026-324T10:15Z", "2026-11-20T24:00Z", "2026-11-20x10:15Z", "2026-11-20T10:15z"]
)
def test_forms_that_only_some_versions_of_python_accept_are_rejected(text: str) -> None:
    """An upgrade of Python changes no outcome."""
    with pytest.raises(InvalidEvent, match="invalid_timestamp"):
        parse_timestamp_ms(text)
