"""Parsers of single settings: each returns the value, or raises `ConfigError` with the key and the expected values."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar
from zoneinfo import available_timezones

from monitor.clock import DAY_MS, HOUR_MS
from monitor.days import UTC_ZONE
from monitor.errors import ConfigError, ConfigErrors, UnknownKey

VARIABLE_PREFIX: Final = "ABMONITOR_"
"""Prefix of the environment variables that override keys."""
MAX_PORT: Final = 65_535
_MAX_HOST_LENGTH: Final = 253
_UNITS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": HOUR_MS, "d": DAY_MS}
_DURATION: Final = re.compile(r"([1-9][0-9]{0,8})(ms|s|m|h|d)")
_MAX_INSTANT_MS: Final = 253_402_300_799_999
_MAX_DURATION_MS: Final = 3650 * DAY_MS
_ZONE_OF_COMPUTER: Final = "localtime"
"""The name of a file that some systems have in the directory of the database."""
_SHARE_SUM_TOLERANCE: Final = 1e-6

_SIMILAR_PREFIX_LENGTH: Final = 3
_MAX_LISTED_KEYS: Final = 9

Choice = TypeVar("Choice", bound=str)
Setting = TypeVar("Setting")


class ConfigProblems:
    """Collects the errors of settings, so that one run reports all of them."""

    def __init__(self) -> None:
        self.errors: list[ConfigError] = []

    @contextmanager
    def collect(self) -> Iterator[None]:
        """Collect the errors that the block raises, and continue after the block."""
        try:
            yield
        except ConfigErrors as error:
            self.errors += error.errors
        except ConfigError as error:
            self.errors.append(error)

    def attempt(self, parse: Callable[[str, object], Setting], key: str, value: object, fallback: Setting) -> Setting:
        """Return the parsed value, or the fallback if the value is wrong; the error is collected."""
        try:
            return parse(key, value)
        except ConfigErrors as error:
            self.errors += error.errors
        except ConfigError as error:
            self.errors.append(error)
        return fallback

    def is_wrong(self, key: str) -> bool:
        """Return whether an error of the key, or of a key within its value, has been collected."""
        return any(error.key == key or error.key.startswith((f"{key}.", f"{key}[", f"{key}:")) for error in self.errors)

    def raise_errors(self) -> None:
        """Raise the collected error, or a `ConfigErrors` of several."""
        if len(self.errors) > 1:
            raise ConfigErrors(self.errors)
        if self.errors:
            raise self.errors[0]


def check_keys(table_key: str, table: Mapping[str, object], allowed_keys: Collection[str]) -> None:
    """Raise an error that names the keys of a table that are not allowed, with the most similar allowed keys."""
    problems = ConfigProblems()
    for key in table:
        if key not in allowed_keys:
            similar_key = similar_name(key, allowed_keys)
            if similar_key is not None:
                hint = f"did you mean {similar_key}?"
            elif len(allowed_keys) <= _MAX_LISTED_KEYS:
                hint = f"the keys are {', '.join(sorted(allowed_keys))}"
            else:
                hint = "docs/configuration.md lists all keys"
            problems.errors.append(UnknownKey(table_key, key, hint))
    problems.raise_errors()


def rename_misspelt_keys(table: Mapping[str, Any], allowed_keys: Collection[str]) -> dict[str, Any]:
    """Return the table with the most similar allowed key instead of each key that is not allowed.

    A misspelt key is reported once, by `check_keys`; its value is checked as that of the similar key.

    >>> rename_misspelt_keys({"nmae": "ranker"}, ["name", "control"])
    {'name': 'ranker'}
    """
    return {
        similar_name(key, allowed_keys) or key: value for key, value in table.items() if key not in allowed_keys
    } | {key: value for key, value in table.items() if key in allowed_keys}


def similar_name(name: str, names: Iterable[str]) -> str | None:
    """Return the most similar name, or the only name that `name` abbreviates, or a name with the same first letters.

    None without such a name. Names are compared without case, spaces, hyphens and underscores; three first letters have
    to be the same.

    >>> similar_name("Ranker V2", ["explainer", "ranker-v2"]), similar_name("T", ["control", "treatment"])
    ('ranker-v2', 'treatment')
    """
    plain_name = _plain_name(name)
    candidates = {_plain_name(candidate): candidate for candidate in names}
    matches = get_close_matches(plain_name, candidates, 1)
    if not matches:
        matches = [plain for plain in candidates if plain_name and plain.startswith(plain_name)]
    if len(matches) != 1:
        prefix = plain_name[:_SIMILAR_PREFIX_LENGTH]
        matches = [plain for plain in candidates if len(prefix) == _SIMILAR_PREFIX_LENGTH and plain.startswith(prefix)]
    return candidates[matches[0]] if matches else None


def _plain_name(name: str) -> str:
    return re.sub(r"[\s_-]", "", name.casefold())


def parse_text(key: str, value: object) -> str:
    """Return a string that is not blank."""
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(key, value, "a string that is not blank")
    return value


def parse_choice(key: str, value: object, choices: Iterable[Choice]) -> Choice:
    """Return the choice that equals the value."""
    allowed_values = tuple(choices)
    for choice in allowed_values:
        if choice == value:
            return choice
    similar_value = similar_name(value, allowed_values) if isinstance(value, str) else None
    hint = f"; did you mean {similar_value}?" if similar_value else ""
    raise ConfigError(key, value, f"one of {', '.join(allowed_values)}{hint}")


def parse_integer(key: str, value: object, minimum: int, maximum: int) -> int:
    """Return an integer from `minimum` to `maximum`."""
    if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
        raise ConfigError(key, value, f"an integer from {minimum} to {maximum}")
    return value


def parse_boolean(key: str, value: object) -> bool:
    """Return true or false."""
    if not isinstance(value, bool):
        raise ConfigError(key, value, "true or false")
    return value


def parse_number(key: str, value: object, minimum: float, maximum: float) -> float:
    """Return a finite number from `minimum` to `maximum`."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not minimum <= value <= maximum:
        raise ConfigError(key, value, f"a number from {minimum:g} to {maximum:g}")
    return float(value)


def parse_shares(key: str, value: Mapping[str, object]) -> Mapping[str, float]:
    """Return shares by name, scaled so that their sum is exactly 1; raises the errors of all shares."""
    problems = ConfigProblems()
    parse_share = partial(parse_number, minimum=0.0, maximum=1.0)
    shares = {name: problems.attempt(parse_share, f"{key}.{name}", share, 0.0) for name, share in value.items()}
    problems.raise_errors()
    total = sum(shares.values())
    if abs(total - 1) > _SHARE_SUM_TOLERANCE:
        raise ConfigError(key, value, f"shares that sum to 1 (these sum to {total:g})")
    return {name: share / total for name, share in shares.items()}


def parse_duration_ms(key: str, value: object) -> int:
    """Return a duration such as 90s, 15m, 24h or 7d, in milliseconds."""
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    duration_ms = int(match[1]) * _UNITS_MS[match[2]] if match else 0
    if not 0 < duration_ms <= _MAX_DURATION_MS:
        raise ConfigError(key, value, 'a duration such as "90s", "15m", "24h" or "7d", above 0 and up to "3650d"')
    return duration_ms


def parse_instant_ms(key: str, value: object) -> int:
    """Return a TOML offset date-time or an ISO 8601 string with an offset, in milliseconds since the Unix epoch."""
    time = value
    if isinstance(value, str):
        try:
            time = datetime.fromisoformat(value)
        except ValueError:
            time = None
    if not isinstance(time, datetime) or time.tzinfo is None:
        raise ConfigError(key, value, "a time with an offset from UTC, such as 2026-11-01T00:00:00Z")
    instant_ms = int(time.timestamp() * 1000)
    if not 0 <= instant_ms <= _MAX_INSTANT_MS:
        raise ConfigError(key, value, "a time from 1970 to 9999")
    return instant_ms


def parse_zone(key: str, value: object) -> str:
    """Return the name of a time zone of the IANA database, which is the same zone on every computer."""
    if value == UTC_ZONE:
        return UTC_ZONE
    zones = available_timezones() - {_ZONE_OF_COMPUTER}
    if isinstance(value, str) and value in zones:
        return value
    zones_by_city = {zone.rpartition("/")[2]: zone for zone in sorted(zones)}
    city = similar_name(value.rpartition("/")[2], zones_by_city) if isinstance(value, str) else None
    hint = "" if city is None else f"; did you mean {zones_by_city[city]}?"
    raise ConfigError(key, value, f"the name of a time zone of the IANA database, such as Europe/Berlin{hint}")


def read_lines(key: str, path: str) -> frozenset[str]:
    """Return the stripped lines of a UTF-8 file without empty lines."""
    try:
        return frozenset(filter(None, map(str.strip, Path(path).read_text("utf-8-sig").splitlines())))
    except (OSError, ValueError) as error:
        raise ConfigError(key, path, f"a readable text file in UTF-8 ({error})") from error


def parse_file_name(key: str, value: object) -> str:
    """Return the name of a file that can be read."""
    name = parse_text(key, value)
    try:
        with Path(name).open("rb"):
            return name
    except (OSError, ValueError) as error:
        raise ConfigError(key, value, f"a readable file ({error})") from error


def is_host_name(name: str) -> bool:
    """Return whether a name has the form of a host name: labels of at most 63 characters, no blanks."""
    try:
        name.encode("idna")
    except UnicodeError:
        return False
    return len(name) <= _MAX_HOST_LENGTH and name.isprintable() and " " not in name
