"""One TOML file and the environment → `Settings`; every fault is one line that names key, value and expectation."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any, Final, get_args

from monitor.config.experiments import experiment_from
from monitor.config.settings import (
    Client,
    DisplaySettings,
    ExperimentSettings,
    HttpSettings,
    KafkaSettings,
    LimitSettings,
    Settings,
    StoreSettings,
)
from monitor.config.validation import check_http, check_kafka, check_store
from monitor.config.values import (
    LARGEST_PORT,
    PREFIX,
    check_keys,
    duration_ms,
    integer,
    is_host,
    number,
    one_of,
    parse_instant_ms,
    switch,
    text,
)
from monitor.errors import ConfigError, UsageError

_SECRETS: Final = {
    "kafka": {"ssl_key_password", "sasl_password"},
    "store": {"password", "user_hash_key"},
    "http": {"token"},
}
_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_MOST_SHARDS: Final = 256
_MOST_POLLED: Final = 200_000
_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
_MOST_EXPERIMENTS: Final = 1000
_SHORTEST_TOKEN: Final = 16

Reader = Callable[[str, object], Any]


def load_settings(path: Path, environ: Mapping[str, str]) -> Settings:
    """Return the settings of a file, overridden by `ABMONITOR_…` variables.

    Raises `UsageError` for a file that cannot be read and `ConfigError` for the first value that is wrong.
    """
    try:
        return settings_from(_document(path), environ)
    except RecursionError as error:
        raise UsageError(f"{path}: nested too deeply") from error


def settings_from(document: Mapping[str, Any], environ: Mapping[str, str]) -> Settings:
    """Return the settings of a parsed file; see `load_settings`."""
    check_keys("", document, {*_SECTIONS, "experiments"})
    for section, names in _SECRETS.items():
        for name in names & set(_table(section, document)):
            variable = f"{PREFIX}{section}_{name}".upper()
            raise ConfigError(
                f"{section}.{name}",
                "…",
                f"secrets to come from the environment ({variable}) or a file ({variable}_FILE)",
            )
    overrides = _overrides(environ)
    experiments = _experiments(document, overrides)
    sections = {name: _section(name, document, overrides) for name in _SECTIONS}
    settings = Settings(experiments=experiments, **sections)
    for name in overrides:
        raise _unknown_variable(name)
    check_kafka(settings.kafka)
    check_store(settings.store, _table("store", document))
    check_http(settings.http)
    return settings


def _document(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not UTF-8 at byte {error.start}") from error
    except ValueError as error:
        raise UsageError(f"{path}: not TOML: {error}") from error


def _table(section: str, document: Mapping[str, Any]) -> Mapping[str, Any]:
    table = document.get(section, {})
    if not isinstance(table, dict):
        raise ConfigError(section, table, f"a table: [{section}]")
    return table


def _overrides(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the overriding variables without their prefix; the content of `…_FILE` stands for the variable."""
    found = {name[len(PREFIX) :]: value for name, value in environ.items() if name.startswith(PREFIX)}
    for name, value in found.items():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise ConfigError(PREFIX + name, "…", "UTF-8") from error
    for name in [name for name in found if name.endswith("_FILE")]:
        plain = name.removesuffix("_FILE").lower()
        if any(plain == f"{section}_{secret}" for section, names in _SECRETS.items() for secret in names):
            if plain.upper() in found:
                raise ConfigError(PREFIX + plain.upper(), "…", f"only one of it and {PREFIX}{name}")
            place = found.pop(name)
            try:
                found[plain.upper()] = Path(place).read_text(encoding="utf-8").rstrip("\r\n")
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigError(PREFIX + name, place, "a file that can be read") from error
    return found


def _unknown_variable(name: str) -> ConfigError:
    known = [
        f"{section}_{each.removesuffix('_ms')}".upper()
        for section, (_, readers) in _SECTIONS.items()
        for each in readers
    ]
    near = get_close_matches(name, known, 1)
    hint = f"did you mean {PREFIX}{near[0]}?" if near else "see docs/configuration.md"
    return ConfigError(PREFIX + name, "…", f"the name of a key: {hint}")


def _section(section: str, document: Mapping[str, Any], overrides: dict[str, str]) -> Any:
    """Return one table's record; scalars of the environment are read as TOML values, or else as text."""
    record, readers = _SECTIONS[section]
    table = _table(section, document)
    check_keys(section, table, {name.removesuffix("_ms") for name in readers})
    values: dict[str, object] = {}
    for name, read in readers.items():
        key = name.removesuffix("_ms")
        variable = f"{section}_{key}".upper()
        if variable in overrides:
            given: object = overrides.pop(variable)
            if name not in _SECRETS.get(section, ()):
                given = _from_text(str(given), read)
            values[name] = read(PREFIX + variable, given)
        elif key in table:
            values[name] = read(f"{section}.{key}", table[key])
    return record(**values)


def _from_text(given: str, read: Reader) -> object:
    """Return a variable's value: numbers and booleans as such where the key wants them."""
    if getattr(read, "func", read) in (switch, integer, number):
        with suppress(ValueError, RecursionError):
            return json.loads(given)
    return given


def _experiments(document: Mapping[str, Any], overrides: dict[str, str]) -> tuple[ExperimentSettings, ...]:
    tables = document.get("experiments", [])
    if isinstance(tables, dict):
        raise ConfigError("experiments", "[experiments]", "[[experiments]], in double brackets: there may be several")
    if not isinstance(tables, list) or not tables or not all(isinstance(table, dict) for table in tables):
        raise ConfigError("experiments", tables or "nothing", "at least one [[experiments]] table")
    if len(tables) > _MOST_EXPERIMENTS:
        raise ConfigError("experiments", len(tables), f"at most {_MOST_EXPERIMENTS}")
    experiments = []
    for index, table in enumerate(tables):
        start = f"EXPERIMENTS_{index}_"
        given = dict(table)
        for name in [name for name in overrides if name.startswith(start)]:
            given[name[len(start) :].lower()] = _toml_value(PREFIX + name, overrides.pop(name))
        experiments.append(experiment_from(given, index))
    names = [experiment.name for experiment in experiments]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError("experiments.name", name, "every name once")
    return tuple(experiments)


def _toml_value(variable: str, given: str) -> object:
    """Return a variable's value as it would stand in the file: TOML or, failing that, text."""
    try:
        return tomllib.loads(f"value = {given}")["value"]
    except (ValueError, RecursionError):
        if given[:1] in "[{":
            raise ConfigError(variable, given, "a TOML value") from None
        return given


def _topic(key: str, value: object) -> str:
    name = text(key, value)
    if not _TOPIC.fullmatch(name) or name in {".", ".."}:
        raise ConfigError(key, value, "a topic's name: letters, digits, . _ and -, at most 249")
    return name


def _start(key: str, value: object) -> str:
    start = value.isoformat() if isinstance(value, datetime) else value
    if start not in ("earliest", "latest"):
        try:
            parse_instant_ms(key, start)
        except ConfigError as error:
            raise ConfigError(key, start, f"earliest, latest, or {error.expected}") from None
    return str(start)


def _file(key: str, value: object) -> str:
    name = text(key, value)
    try:
        with Path(name).open("rb"):
            return name
    except (OSError, ValueError) as error:
        raise ConfigError(key, value, f"a file that can be read ({error})") from error


def _host(key: str, value: object) -> str:
    name = text(key, value)
    if not is_host(name):
        raise ConfigError(key, value, "a host's name or address")
    return name


def _token(key: str, value: object) -> str:
    token = text(key, value)
    if len(token) < _SHORTEST_TOKEN or not re.fullmatch(r"[!-~]+", token):
        raise ConfigError(key, "…", f"at least {_SHORTEST_TOKEN} visible ASCII characters")
    return token


_COUNT: Final = partial(integer, least=1, most=1_000_000_000)
_SECTIONS: Final[Mapping[str, tuple[type[Any], Mapping[str, Reader]]]] = {
    "kafka": (
        KafkaSettings,
        {
            "bootstrap_servers": text,
            "responses_topic": _topic,
            "feedback_topic": _topic,
            "dead_letter_topic": _topic,
            "group_id": text,
            "group_instance_id": text,
            "start": _start,
            "max_poll_records": partial(integer, least=1, most=_MOST_POLLED),
            "max_drift_ms": duration_ms,
            "on_lost_history": partial(one_of, choices=("stop", "continue")),
            "client": partial(one_of, choices=get_args(Client)),
            "security_protocol": partial(one_of, choices=_PROTOCOLS),
            "ssl_ca_file": _file,
            "ssl_cert_file": _file,
            "ssl_key_file": _file,
            "ssl_key_password": text,
            "ssl_check_hostname": switch,
            "sasl_mechanism": partial(one_of, choices=_MECHANISMS),
            "sasl_username": text,
            "sasl_password": text,
        },
    ),
    "store": (
        StoreSettings,
        {
            "url": text,
            "username": text,
            "password": text,
            "ssl_ca_file": _file,
            "ssl_cert_file": _file,
            "ssl_key_file": _file,
            "shards": partial(integer, least=1, most=_MOST_SHARDS),
            "user_hash_key": text,
        },
    ),
    "http": (
        HttpSettings,
        {
            "host": _host,
            "port": partial(integer, least=0, most=LARGEST_PORT),
            "tls_cert_file": _file,
            "tls_key_file": _file,
            "token": _token,
        },
    ),
    "limits": (
        LimitSettings,
        {
            "max_payload_bytes": _COUNT,
            "max_items": _COUNT,
            "max_id_length": _COUNT,
            "max_clock_skew_ms": duration_ms,
            "max_refused_share": partial(number, least=0.0, most=1.0),
            "max_refused_run": _COUNT,
            "refused_window": _COUNT,
        },
    ),
    "display": (DisplaySettings, {"min_display_students": _COUNT}),
}
"""Each table's record, and what reads each of its keys."""
