"""The `drift` table of an experiment → `DriftSettings`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

from monitor.config.records import NONE, OTHER, DriftSettings
from monitor.config.values import integer, number
from monitor.errors import ConfigError

_KEYS: Final = ("alpha", "items_reference", "reference")
_MOST_DAYS: Final = 90
_ALPHAS: Final = (0.001, 0.25)
_MOST_OBSERVATIONS: Final = 10**8


def drift_from(key: str, value: object, categories: Sequence[str]) -> DriftSettings:
    """Return what an experiment says about drift; raises `ConfigError` for the first value that is wrong."""
    if not isinstance(value, dict) or any(name not in _KEYS for name in value):
        raise ConfigError(key, value, f"a table with {', '.join(_KEYS)}")
    default = DriftSettings()
    reference = _days_or_counts(f"{key}.reference", value.get("reference", default.reference), "category → responses")
    if not isinstance(reference, int):
        known = (*categories, OTHER, NONE)
        for name in reference:
            if name not in known:
                place = f"{key}.reference: {value['reference']}"
                raise ConfigError(place, name, f"one of the declared categories: {', '.join(known)}")
    days = reference if isinstance(reference, int) else default.items_reference
    return DriftSettings(
        reference=reference,
        items_reference=_days_or_counts(
            f"{key}.items_reference", value.get("items_reference", days), "item → times shown"
        ),
        alpha=number(f"{key}.alpha", value.get("alpha", default.alpha), *_ALPHAS),
    )


def _days_or_counts(key: str, value: object, what: str) -> int | Mapping[str, int]:
    """Return a number of days, or the counts in a file of one JSON object."""
    if not isinstance(value, str):
        return integer(key, value, 1, _MOST_DAYS)
    path = value
    expected = f"the days of the reference, or a file of one JSON object: {what}, 0 to {_MOST_OBSERVATIONS}"
    try:
        found = json.loads(Path(path).read_text("utf-8"))
    except OSError as error:
        raise ConfigError(key, path, f"a file that can be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(key, path, expected) from error
    if not isinstance(found, dict) or not any(found.values()):
        raise ConfigError(key, path, expected)
    for name in found:
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise ConfigError(f"{key}: {path}", ascii(name), "a name of whole characters") from error
    return MappingProxyType(
        {name: integer(f"{key}: {path}: {name}", count, 0, _MOST_OBSERVATIONS) for name, count in found.items()}
    )
