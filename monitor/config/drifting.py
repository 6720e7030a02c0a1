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

_KEYS: Final = ("alpha", "reference")
_MOST_DAYS: Final = 90
_ALPHAS: Final = (0.001, 0.25)
_MOST_RESPONSES: Final = 10**8


def drift_from(key: str, value: object, categories: Sequence[str]) -> DriftSettings:
    """Return what an experiment says about drift; raises `ConfigError` for the first value that is wrong."""
    if not isinstance(value, dict) or any(name not in _KEYS for name in value):
        raise ConfigError(key, value, f"a table with {' and '.join(_KEYS)}")
    default = DriftSettings()
    reference = value.get("reference", default.reference)
    return DriftSettings(
        reference=_counts(f"{key}.reference", reference, (*categories, OTHER, NONE))
        if isinstance(reference, str)
        else integer(f"{key}.reference", reference, 1, _MOST_DAYS),
        alpha=number(f"{key}.alpha", value.get("alpha", default.alpha), *_ALPHAS),
    )


def _counts(key: str, path: str, known: Sequence[str]) -> Mapping[str, int]:
    """Return the counts by category in a file of one JSON object."""
    expected = f"the days of the reference, or a file of one JSON object: category → responses, 0 to {_MOST_RESPONSES}"
    try:
        found = json.loads(Path(path).read_text("utf-8"))
    except OSError as error:
        raise ConfigError(key, path, f"a file that can be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(key, path, expected) from error
    if not isinstance(found, dict) or not any(found.values()):
        raise ConfigError(key, path, expected)
    counts = {name: integer(f"{key}: {path}: {name}", count, 0, _MOST_RESPONSES) for name, count in found.items()}
    for name in counts:
        if name not in known:
            raise ConfigError(f"{key}: {path}", name, f"one of the declared categories: {', '.join(known)}")
    return MappingProxyType(counts)
