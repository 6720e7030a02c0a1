"""Loads `Settings` from a TOML file and environment variables.

Every error is one line with the key, the value and the expected values.
"""

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

from monitor.config.experiments import parse_experiment
from monitor.config.settings import (
    DisplaySettings,
    ExperimentSettings,
    HttpSettings,
    KafkaClientName,
    KafkaSettings,
    LimitSettings,
    Settings,
    StoreSettings,
)
from monitor.config.validation import check_http, check_kafka, check_store
from monitor.config.values import (
    MAX_PORT,
    VARIABLE_PREFIX,
    check_keys,
    is_host_name,
    parse_boolean,
    parse_choice,
    parse_duration_ms,
    parse_instant_ms,
    parse_integer,
    parse_number,
    parse_text,
)
from monitor.errors import ConfigError, UsageError

_SECRETS: Final = {
    "kafka": {"ssl_key_password", "sasl_password"},
    "store": {"password", "user_hash_key"},
    "http": {"token"},
}
_SECURITY_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_SASL_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_MAX_SHARDS: Final = 256
_MAX_POLL_RECORDS: Final = 200_000
_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
_MAX_EXPERIMENTS: Final = 1000
_MIN_TOKEN_LENGTH: Final = 16

Parser = Callable[[str, object], Any]
"""A function (key, value) → setting that raises `ConfigError` for a wrong value."""


def load_settings(path: Path, environ: Mapping[str, str]) -> Settings:
    """Return the settings of a file, overridden by `ABMONITOR_…` variables.

    Raises `UsageError` for a file that cannot be read and `ConfigError` for the first value that is wrong.
    """
    try:
        return parse_settings(_read_toml(path), environ)
    except RecursionError as error:
        raise UsageError(f"{path}: nested too deeply") from error


def parse_settings(document: Mapping[str, Any], environ: Mapping[str, str]) -> Settings:
    """Return the settings of a parsed TOML file, overridden by environment variables: see `load_settings`."""
    check_keys("", document, {*_SECTIONS, "experiments"})
    for section, names in _SECRETS.items():
        for name in names & set(_section_table(section, document)):
            variable = f"{VARIABLE_PREFIX}{section}_{name}".upper()
            raise ConfigError(
                f"{section}.{name}",
                "…",
                f"secrets to come from the environment ({variable}) or a file ({variable}_FILE)",
            )
    variables = _read_variables(environ)
    experiments = _parse_experiments(document, variables)
    sections = {name: _parse_section(name, document, variables) for name in _SECTIONS}
    settings = Settings(experiments=experiments, **sections)
    for name in variables:
        raise _unknown_variable_error(name)
    check_kafka(settings.kafka)
    check_store(settings.store, _section_table("store", document))
    check_http(settings.http)
    return settings


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not UTF-8 at byte {error.start}") from error
    except ValueError as error:
        raise UsageError(f"{path}: not TOML: {error}") from error


def _section_table(section: str, document: Mapping[str, Any]) -> Mapping[str, Any]:
    table = document.get(section, {})
    if not isinstance(table, dict):
        raise ConfigError(section, table, f"a table: [{section}]")
    return table


def _read_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the `ABMONITOR_…` variables without their prefix.

    A variable `…_FILE` of a secret is replaced by the variable without `_FILE`, with the content of the file.
    """
    variables = {
        name[len(VARIABLE_PREFIX) :]: value for name, value in environ.items() if name.startswith(VARIABLE_PREFIX)
    }
    for name, value in variables.items():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise ConfigError(VARIABLE_PREFIX + name, "…", "UTF-8") from error
    secret_variables = {f"{section}_{key}".upper() for section, keys in _SECRETS.items() for key in keys}
    for name in [name for name in variables if name.endswith("_FILE")]:
        secret_variable = name.removesuffix("_FILE")
        if secret_variable not in secret_variables:
            continue
        if secret_variable in variables:
            raise ConfigError(VARIABLE_PREFIX + secret_variable, "…", f"only one of it and {VARIABLE_PREFIX}{name}")
        path = variables.pop(name)
        try:
            variables[secret_variable] = Path(path).read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(VARIABLE_PREFIX + name, path, "a file that can be read") from error
    return variables


def _unknown_variable_error(name: str) -> ConfigError:
    known_variables = [
        f"{section}_{field.removesuffix('_ms')}".upper()
        for section, (_, parsers) in _SECTIONS.items()
        for field in parsers
    ]
    similar_variables = get_close_matches(name, known_variables, 1)
    hint = (
        f"did you mean {VARIABLE_PREFIX}{similar_variables[0]}?" if similar_variables else "see docs/configuration.md"
    )
    return ConfigError(VARIABLE_PREFIX + name, "…", f"the name of a key: {hint}")


def _parse_section(section: str, document: Mapping[str, Any], variables: dict[str, str]) -> Any:
    """Return the record of a section, and remove the section's variables from `variables`."""
    record_type, parsers = _SECTIONS[section]
    table = _section_table(section, document)
    check_keys(section, table, {field.removesuffix("_ms") for field in parsers})
    values: dict[str, object] = {}
    for field, parse in parsers.items():
        key = field.removesuffix("_ms")
        variable = f"{section}_{key}".upper()
        if variable in variables:
            value: object = variables.pop(variable)
            if field not in _SECRETS.get(section, ()):
                value = _parse_scalar_variable(str(value), parse)
            values[field] = parse(VARIABLE_PREFIX + variable, value)
        elif key in table:
            values[field] = parse(f"{section}.{key}", table[key])
    return record_type(**values)


def _parse_scalar_variable(text: str, parse: Parser) -> object:
    """Return a variable's value as a number or a boolean if the key needs such a value, otherwise as text."""
    if getattr(parse, "func", parse) in (parse_boolean, parse_integer, parse_number):
        with suppress(ValueError, RecursionError):
            return json.loads(text)
    return text


def _parse_experiments(document: Mapping[str, Any], variables: dict[str, str]) -> tuple[ExperimentSettings, ...]:
    """Return all experiments, and remove the experiments' variables from `variables`."""
    tables = document.get("experiments", [])
    if isinstance(tables, dict):
        raise ConfigError("experiments", "[experiments]", "[[experiments]], in double brackets: there may be several")
    if not isinstance(tables, list) or not tables or not all(isinstance(table, dict) for table in tables):
        raise ConfigError("experiments", tables or "nothing", "at least one [[experiments]] table")
    if len(tables) > _MAX_EXPERIMENTS:
        raise ConfigError("experiments", len(tables), f"at most {_MAX_EXPERIMENTS}")
    experiments = []
    for index, table in enumerate(tables):
        prefix = f"EXPERIMENTS_{index}_"
        values = dict(table)
        for name in [name for name in variables if name.startswith(prefix)]:
            values[name[len(prefix) :].lower()] = _parse_toml_variable(VARIABLE_PREFIX + name, variables.pop(name))
        experiments.append(parse_experiment(values, index))
    names = [experiment.name for experiment in experiments]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError("experiments.name", name, "every name once")
    return tuple(experiments)


def _parse_toml_variable(variable: str, text: str) -> object:
    """Return a variable's value as TOML, or as text if the variable is not TOML."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        if text[:1] in "[{":
            raise ConfigError(variable, text, "a TOML value") from None
        return text


def _parse_topic(key: str, value: object) -> str:
    name = parse_text(key, value)
    if not _TOPIC.fullmatch(name) or name in {".", ".."}:
        raise ConfigError(key, value, "a topic's name: letters, digits, . _ and -, at most 249")
    return name


def _parse_start(key: str, value: object) -> str:
    start = value.isoformat() if isinstance(value, datetime) else value
    if start not in ("earliest", "latest"):
        try:
            parse_instant_ms(key, start)
        except ConfigError as error:
            raise ConfigError(key, start, f"earliest, latest, or {error.expected}") from None
    return str(start)


def _parse_file_name(key: str, value: object) -> str:
    name = parse_text(key, value)
    try:
        with Path(name).open("rb"):
            return name
    except (OSError, ValueError) as error:
        raise ConfigError(key, value, f"a file that can be read ({error})") from error


def _parse_host(key: str, value: object) -> str:
    name = parse_text(key, value)
    if not is_host_name(name):
        raise ConfigError(key, value, "a host's name or address")
    return name


def _parse_token(key: str, value: object) -> str:
    token = parse_text(key, value)
    if len(token) < _MIN_TOKEN_LENGTH or not re.fullmatch(r"[!-~]+", token):
        raise ConfigError(key, "…", f"at least {_MIN_TOKEN_LENGTH} visible ASCII characters")
    return token


_parse_count: Final = partial(parse_integer, minimum=1, maximum=1_000_000_000)
_SECTIONS: Final[Mapping[str, tuple[type[Any], Mapping[str, Parser]]]] = {
    "kafka": (
        KafkaSettings,
        {
            "bootstrap_servers": parse_text,
            "responses_topic": _parse_topic,
            "feedback_topic": _parse_topic,
            "dead_letter_topic": _parse_topic,
            "group_id": parse_text,
            "group_instance_id": parse_text,
            "start": _parse_start,
            "max_poll_records": partial(parse_integer, minimum=1, maximum=_MAX_POLL_RECORDS),
            "max_watermark_skew_ms": parse_duration_ms,
            "on_lost_history": partial(parse_choice, choices=("stop", "continue")),
            "client": partial(parse_choice, choices=get_args(KafkaClientName)),
            "security_protocol": partial(parse_choice, choices=_SECURITY_PROTOCOLS),
            "ssl_ca_file": _parse_file_name,
            "ssl_cert_file": _parse_file_name,
            "ssl_key_file": _parse_file_name,
            "ssl_key_password": parse_text,
            "ssl_check_hostname": parse_boolean,
            "sasl_mechanism": partial(parse_choice, choices=_SASL_MECHANISMS),
            "sasl_username": parse_text,
            "sasl_password": parse_text,
        },
    ),
    "store": (
        StoreSettings,
        {
            "url": parse_text,
            "username": parse_text,
            "password": parse_text,
            "ssl_ca_file": _parse_file_name,
            "ssl_cert_file": _parse_file_name,
            "ssl_key_file": _parse_file_name,
            "shards": partial(parse_integer, minimum=1, maximum=_MAX_SHARDS),
            "user_hash_key": parse_text,
        },
    ),
    "http": (
        HttpSettings,
        {
            "host": _parse_host,
            "port": partial(parse_integer, minimum=0, maximum=MAX_PORT),
            "tls_cert_file": _parse_file_name,
            "tls_key_file": _parse_file_name,
            "token": _parse_token,
        },
    ),
    "limits": (
        LimitSettings,
        {
            "max_payload_bytes": _parse_count,
            "max_items": _parse_count,
            "max_id_length": _parse_count,
            "max_clock_skew_ms": parse_duration_ms,
            "max_rejected_share": partial(parse_number, minimum=0.0, maximum=1.0),
            "max_consecutive_rejected": _parse_count,
            "rejection_window": _parse_count,
        },
    ),
    "display": (DisplaySettings, {"min_display_students": _parse_count}),
}
"""Section → type of its record, and field → parser of its key. A key lacks the suffix `_ms` of its field."""
