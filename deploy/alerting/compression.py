"""Rules in which time runs faster, for drills: an hour of history takes seconds, so that a test can wait for it.

Windows, offsets, pending and keeping times are divided; names, thresholds and texts stay. Rules are evaluated once a
second at most, so windows that become shorter than a few seconds see nothing.
"""

from __future__ import annotations

import re
from typing import Final

from deploy.alerting.rules import JSON

_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_IN_EXPRESSIONS: Final = re.compile(r"(?<=\[)\d+[smhd](?=\])|(?<=\boffset )\d+[smhd]\b")
_LEAST_INTERVAL_MS: Final = 1000


def milliseconds(duration: str) -> int:
    """Return the length of a duration such as 30s or 1d."""
    number, unit = re.fullmatch(r"(\d+)(ms|[smhd])", duration).groups()  # type: ignore[union-attr]
    return int(number) * _MS[unit]


def compressed(duration: str, factor: int, least_ms: int = 1) -> str:
    """Return the duration divided by the factor.

    >>> compressed("1d", 1800), compressed("30s", 1800)
    ('48000ms', '17ms')
    """
    return f"{max(round(milliseconds(duration) / factor), least_ms)}ms"


def compressed_group(group: JSON, factor: int) -> JSON:
    """Return a rendered group of rules whose times are divided by the factor."""
    rules = []
    for rule in group["rules"]:
        expr = _IN_EXPRESSIONS.sub(lambda found: compressed(found[0], factor), rule["expr"])
        times = {key: compressed(rule[key], factor) for key in ("for", "keep_firing_for") if key in rule}
        rules.append({**rule, "expr": expr, **times})
    return {**group, "interval": compressed(group["interval"], factor, _LEAST_INTERVAL_MS), "rules": rules}
