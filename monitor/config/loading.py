"""One TOML file and the environment → `Settings`; every fault is one line that names key, value and expectation."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Mapping
from datetime import datetime
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from monitor.config.checking import check_http, check_kafka, check_store
from monitor.config.experiments import experiment_from
from monitor.config.records import (
    DisplaySettings,
    ExperimentSettings,
    HttpSettings,
    KafkaSettings,
    LimitSettings,
    Settings,
    StoreSettings,
)
from monitor.config.values import (
    LARGEST_PORT,
    PREFIX,
    duration_ms,
    instant_text,
    integer,
    is_host,
    number,
    one_of,
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
    _known_keys("", document, {"kafka", "store", "http", "limits", "display", "experiments"})
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
    store = _section(StoreSettings, "store", document, overrides, _STORE)
    settings = Settings(
        experiments=experiments,
        kafka=_section(KafkaSettings, "kafka", document, overrides, _KAFKA),
        store=store,
        http=_section(HttpSettings, "http", document, overrides, _HTTP),
        limits=_section(LimitSettings, "limits", document, overrides, _LIMITS),
        display=_section(DisplaySettings, "display", document, overrides, _DISPLAY),
    )
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


def _known_keys(section: str, table: Mapping[str, Any], known: set[str]) -> None:
    for name in table:
        if name not in known:
            near = get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"one of {', '.join(sorted(known))}"
            raise ConfigError(f"{section}.{name}" if section else name, table[name], f"a known key: {hint}")


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
        f"{section}_{each}".upper()
        for section, readers in (
            ("kafka", _KAFKA),
            ("store", _STORE),
            ("http", _HTTP),
            ("limits", _LIMITS),
            ("display", _DISPLAY),
        )
        for each in readers
    ]
    near = get_close_matches(name, known, 1)
    hint = f"did you mean {PREFIX}{near[0]}?" if near else "see docs/configuration.md"
    return ConfigError(PREFIX + name, "…", f"the name of a key: {hint}")


def _section(
    record: type[Any],
    section: str,
    document: Mapping[str, Any],
    overrides: dict[str, str],
    readers: Mapping[str, Reader],
) -> Any:
    """Return one table's record; scalars of the environment are read as TOML values, or else as text."""
    table = _table(section, document)
    _known_keys(section, table, {name.removesuffix("_ms") for name in readers})
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
    if read in _SCALARS:
        try:
            return json.loads(given)
        except (ValueError, RecursionError):
            return given
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


def _port(key: str, value: object) -> int:
    return integer(key, value, 0, LARGEST_PORT)


def _share(key: str, value: object) -> float:
    return number(key, value, 0.0, 1.0)


def _count(key: str, value: object) -> int:
    return integer(key, value, 1, 1_000_000_000)


def _polled(key: str, value: object) -> int:
    return integer(key, value, 1, _MOST_POLLED)


def _shards(key: str, value: object) -> int:
    return integer(key, value, 1, _MOST_SHARDS)


def _protocol(key: str, value: object) -> str:
    return one_of(key, value, _PROTOCOLS)


def _lost_history(key: str, value: object) -> str:
    return one_of(key, value, ("stop", "continue"))


def _client(key: str, value: object) -> str:
    return one_of(key, value, ("kafka-python", "confluent"))


def _mechanism(key: str, value: object) -> str:
    return one_of(key, value, _MECHANISMS)


def _topic(key: str, value: object) -> str:
    name = text(key, value)
    if not _TOPIC.fullmatch(name) or name in {".", ".."}:
        raise ConfigError(key, value, "a topic's name: letters, digits, . _ and -, at most 249")
    return name


def _start(key: str, value: object) -> str:
    if isinstance(value, datetime):
        value = value.isoformat()
    if value in ("earliest", "latest"):
        return str(value)
    return instant_text(key, value, "earliest, latest, or an ISO time with an offset")


def _file(key: str, value: object) -> str:
    name = text(key, value)
    try:
        with Path(name).open("rb"):
            return name
    except OSError as error:
        raise ConfigError(key, value, f"a file that can be read ({error.strerror})") from error
    except ValueError as error:
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


_SCALARS: Final = {switch, _port, _share, _count, _polled, _shards}
_KAFKA: Final[Mapping[str, Reader]] = MappingProxyType(
    {
        "bootstrap_servers": text,
        "responses_topic": _topic,
        "feedback_topic": _topic,
        "dead_letter_topic": _topic,
        "group_id": text,
        "group_instance_id": text,
        "start": _start,
        "max_poll_records": _polled,
        "max_drift_ms": duration_ms,
        "on_lost_history": _lost_history,
        "client": _client,
        "security_protocol": _protocol,
        "ssl_ca_file": _file,
        "ssl_cert_file": _file,
        "ssl_key_file": _file,
        "ssl_key_password": text,
        "ssl_check_hostname": switch,
        "sasl_mechanism": _mechanism,
        "sasl_username": text,
        "sasl_password": text,
    }
)
_STORE: Final[Mapping[str, Reader]] = MappingProxyType(
    {
        "url": text,
        "username": text,
        "password": text,
        "ssl_ca_file": _file,
        "ssl_cert_file": _file,
        "ssl_key_file": _file,
        "shards": _shards,
        "user_hash_key": text,
    }
)
_HTTP: Final[Mapping[str, Reader]] = MappingProxyType(
    {"host": _host, "port": _port, "tls_cert_file": _file, "tls_key_file": _file, "token": _token}
)
_LIMITS: Final[Mapping[str, Reader]] = MappingProxyType(
    {
        "max_payload_bytes": _count,
        "max_items": _count,
        "max_id_length": _count,
        "max_clock_skew_ms": duration_ms,
        "max_refused_share": _share,
        "max_refused_run": _count,
        "refused_window": _count,
    }
)
_DISPLAY: Final[Mapping[str, Reader]] = MappingProxyType({"min_display_students": _count})
