"""Single values of a configuration: a reader returns the value, or raises `ConfigError` with what was expected."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Final, TypeVar

from monitor.errors import ConfigError

PREFIX: Final = "ABMONITOR_"
"""Of the variables that override keys."""

LARGEST_PORT: Final = 65_535
_LONGEST_HOST: Final = 253
_UNITS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION: Final = re.compile(r"([1-9][0-9]{0,8})(ms|s|m|h|d)")
_LATEST_MS: Final = 253_402_300_799_999
_LONGEST_MS: Final = 3650 * 86_400_000
_SHARES_AGREE: Final = 1e-6


Choice = TypeVar("Choice", bound=str)


def check_keys(where: str, table: Mapping[str, object], known: Collection[str]) -> None:
    """Raise `ConfigError` for the first key of a table that is not known, naming the key that was probably meant.

    Its value is not shown: the key may be a misspelt password.
    """
    for name in table:
        if name not in known:
            near = get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"one of {', '.join(sorted(known))}"
            raise ConfigError(f"{where}.{name}".lstrip("."), name, f"a known key: {hint}")


def text(key: str, value: object) -> str:
    """Return a string that is not blank."""
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(key, value, "a string that is not blank")
    return value


def one_of(key: str, value: object, choices: Iterable[Choice]) -> Choice:
    """Return one of the choices."""
    known = tuple(choices)
    for choice in known:
        if choice == value:
            return choice
    raise ConfigError(key, value, f"one of {', '.join(known)}")


def integer(key: str, value: object, least: int, most: int) -> int:
    """Return an integer in a range."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ConfigError(key, value, f"an integer from {least} to {most}")
    return value


def switch(key: str, value: object) -> bool:
    """Return true or false."""
    if not isinstance(value, bool):
        raise ConfigError(key, value, "true or false")
    return value


def number(key: str, value: object, least: float, most: float) -> float:
    """Return a finite number in a range."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
        raise ConfigError(key, value, f"a number from {least:g} to {most:g}")
    return float(value)


def shares(key: str, value: Mapping[str, object]) -> dict[str, float]:
    """Return shares by name, scaled to sum to exactly 1."""
    given = {name: number(f"{key}.{name}", share, 0.0, 1.0) for name, share in value.items()}
    total = sum(given.values())
    if abs(total - 1) > _SHARES_AGREE:
        raise ConfigError(key, value, f"shares that sum to 1 (these sum to {total:g})")
    return {name: share / total for name, share in given.items()}


def duration_ms(key: str, value: object) -> int:
    """Return a duration such as 90s, 15m, 24h or 7d, in milliseconds."""
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    length_ms = int(match[1]) * _UNITS[match[2]] if match else 0
    if not 0 < length_ms <= _LONGEST_MS:
        raise ConfigError(key, value, 'a duration such as "90s", "15m", "24h" or "7d", above 0, at most ten years')
    return length_ms


def parse_instant_ms(key: str, value: object) -> int:
    """Return a TOML offset date-time, or an ISO string with an offset, in milliseconds since the epoch."""
    moment = value
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            moment = None
    if not isinstance(moment, datetime) or moment.tzinfo is None:
        raise ConfigError(key, str(value), "a time with an offset, such as 2026-11-01T00:00:00Z")
    instant = int(moment.timestamp() * 1000)
    if not 0 <= instant <= _LATEST_MS:
        raise ConfigError(key, str(value), "a time from 1970 to 9999")
    return instant


def lines_of(key: str, path: str) -> frozenset[str]:
    """Return the lines of a file, without blanks around them and without empty ones."""
    try:
        return frozenset(filter(None, map(str.strip, Path(path).read_text("utf-8-sig").splitlines())))
    except (OSError, ValueError) as error:
        raise ConfigError(key, path, f"a file of UTF-8 that can be read ({error})") from error


def is_host(name: str) -> bool:
    """Return whether a name can be asked for at all, as far as can be seen: parts of at most 63 characters."""
    try:
        name.encode("idna")
    except UnicodeError:
        return False
    return len(name) <= _LONGEST_HOST and name.isprintable() and " " not in name
