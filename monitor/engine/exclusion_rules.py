"""Rules of exclusion, applied to responses (`exclude` in the settings)."""

from __future__ import annotations

import re
from fnmatch import translate
from typing import Any, Final, final

from monitor.config import FieldPatterns
from monitor.events import Response


def response_field(response: Response, name: str) -> str | None:
    """Return the value of a field that is known before the student is assigned; None without a value."""
    if name == "user_id":
        return response.user_id
    if name == "group_id":
        return response.group_id
    if name == "category":
        return response.category
    for attribute, value in response.attributes:
        if attribute == name:
            return value
    return None


@final
class ExclusionRules:
    """The rules of an experiment or of a source."""

    __slots__ = ("_matchers",)

    def __init__(self, rules: FieldPatterns) -> None:
        self._matchers: Final[list[tuple[str, Any]]] = [
            (field, re.compile("|".join([translate(pattern) for pattern in patterns])).match)
            for field, patterns in rules.items()
        ]
        """(field, function that matches a value with any of the field's patterns)."""

    def match(self, response: Response) -> bool:
        """Return whether a value of the response matches a pattern of its field."""
        for field, match in self._matchers:
            value = response_field(response, field)
            if value is not None and match(value) is not None:
                return True
        return False
