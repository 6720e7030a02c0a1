"""Parsers of `[[notify]]`: the channels to which messages about changes of experiments are sent."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from monitor.config.experiment_tables import MAX_NAME_LENGTH, is_name
from monitor.config.settings import NOTIFY_EVENTS, NotifyEvent, NotifySettings
from monitor.config.values import VARIABLE_PREFIX, ConfigProblems, check_keys, parse_text, rename_misspelt_keys
from monitor.errors import ConfigError, RepeatedName

_VARIABLES: Final = "NOTIFY_"
_KEYS: Final = ("name", "url", "url_file", "webhook", "webhook_file", "secret", "secret_file", "events", "experiments")
_SECRET_KEYS: Final = ("url", "secret")
_MAX_CHANNELS: Final = 20
_MAX_PATTERNS: Final = 100
_SECRET_PREFIX: Final = "whsec_"  # noqa: S105  the prefix of all secrets of Standard Webhooks
_MIN_SECRET_BYTES: Final = 24
_MAX_SECRET_BYTES: Final = 64


def parse_notify(document: Mapping[str, Any], variables: dict[str, str]) -> tuple[NotifySettings, ...]:
    """Return the channels, and remove their variables from `variables`. Raises the errors of all keys.

    The variables are `NOTIFY_0_URL` and `NOTIFY_0_SECRET`, or with `_FILE` at the end, for the first channel.
    """
    tables = document.get("notify", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise ConfigError("notify", tables, "[[notify]] in double brackets, because there may be several channels")
    if len(tables) > _MAX_CHANNELS:
        raise ConfigError("notify", len(tables), f"at most {_MAX_CHANNELS} channels")
    problems = ConfigProblems()
    channels: list[NotifySettings] = []
    name_indices: dict[str, int] = {}
    for index, table in enumerate(tables):
        key = f"notify[{index}]"
        with problems.collect():
            channel = _parse_channel(key, table, _take_secrets(index, variables))
            first_index = name_indices.setdefault(channel.name, index)
            if first_index < index:
                raise RepeatedName(f"{key}.name", channel.name, f"notify[{first_index}].name")
            channels.append(channel)
    problems.raise_errors()
    return tuple(channels)


def _take_secrets(index: int, variables: dict[str, str]) -> dict[str, tuple[str, str]]:
    """Return key → (variable, secret) of a channel's variables, and remove them from `variables`."""
    secrets: dict[str, tuple[str, str]] = {}
    for key in _SECRET_KEYS:
        variable = f"{_VARIABLES}{index}_{key.upper()}"
        if variable in variables:
            secrets[key] = VARIABLE_PREFIX + variable, variables.pop(variable)
        if f"{variable}_FILE" in variables:
            name, path = f"{VARIABLE_PREFIX}{variable}_FILE", variables.pop(f"{variable}_FILE")
            if key in secrets:
                raise ConfigError(secrets[key][0], "…", f"only one of this variable and {name}")
            secrets[key] = name, _read_secret(name, path)
    return secrets


def _read_secret(key: str, path: object) -> str:
    name = parse_text(key, path)
    try:
        return Path(name).read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise ConfigError(key, path, f"a readable text file in UTF-8 ({error})") from error


def _parse_channel(key: str, table: Mapping[str, Any], secrets: Mapping[str, tuple[str, str]]) -> NotifySettings:
    problems = ConfigProblems()
    with problems.collect():
        check_keys(key, table, _KEYS)
    table = rename_misspelt_keys(table, _KEYS)
    name = ""
    with problems.collect():
        name = _parse_name(f"{key}.name", table.get("name"))
    values: dict[str, tuple[str, str] | None] = {}
    for secret_key in _SECRET_KEYS:
        with problems.collect():
            values[secret_key] = _find_secret(key, secret_key, table, secrets)
    webhook = None
    with problems.collect():
        webhook = _find_webhook(key, table)
    events = NOTIFY_EVENTS
    experiments: tuple[str, ...] = ("*",)
    with problems.collect():
        if "events" in table:
            events = _parse_events(f"{key}.events", table["events"])
    with problems.collect():
        if "experiments" in table:
            experiments = _parse_patterns(f"{key}.experiments", table["experiments"])
    problems.raise_errors()
    url, secret = values["url"], values["secret"]
    if (url is None) == (webhook is None):
        raise ConfigError(key, name, "either url_file, with an address of Apprise, or webhook")
    if webhook is None and secret is not None:
        raise ConfigError(secret[0], "…", "the secret only for a webhook")
    if webhook is not None and secret is None:
        raise ConfigError(f"{key}.secret_file", None, "a file with the secret that signs the requests of the webhook")
    return NotifySettings(
        name,
        url=None if url is None else parse_text(url[0], url[1] or None),
        webhook=webhook,
        secret=None if secret is None else _parse_webhook_secret(*secret),
        events=events,
        experiments=experiments,
    )


def _parse_name(key: str, value: object) -> str:
    if not is_name(value):
        expected = f"1 to {MAX_NAME_LENGTH} printable characters without blanks around them, for logs and metrics"
        raise ConfigError(key, value, expected)
    return value


def _find_secret(
    key: str, secret_key: str, table: Mapping[str, Any], secrets: Mapping[str, tuple[str, str]]
) -> tuple[str, str] | None:
    """Return (name of the setting, secret), from the environment or from a file; None without the secret."""
    file_key = f"{secret_key}_file"
    if secret_key in table:
        raise ConfigError(f"{key}.{secret_key}", "…", f"no secret in the configuration: set {file_key} to a file")
    if file_key not in table:
        return secrets.get(secret_key)
    if secret_key in secrets:
        raise ConfigError(secrets[secret_key][0], "…", f"only one of this variable and {key}.{file_key}")
    return f"{key}.{file_key}", _read_secret(f"{key}.{file_key}", table[file_key])


def _find_webhook(key: str, table: Mapping[str, Any]) -> str | None:
    """Return the address of a webhook, from the configuration or from a file; None without an address."""
    if "webhook_file" not in table:
        return _parse_webhook(f"{key}.webhook", table["webhook"]) if "webhook" in table else None
    if "webhook" in table:
        raise ConfigError(f"{key}.webhook", "…", f"only one of this key and {key}.webhook_file")
    file_key = f"{key}.webhook_file"
    return _parse_webhook(file_key, _read_secret(file_key, table["webhook_file"]))


def _parse_webhook(key: str, value: object) -> str:
    address = parse_text(key, value)
    try:
        parts = urlsplit(address)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        is_valid = False
    if not is_valid or not address.isprintable() or " " in address:
        raise ConfigError(key, "…", "an address that begins with https:// or http://")
    return address


def _parse_webhook_secret(key: str, secret: str) -> str:
    """Return a secret of Standard Webhooks: `whsec_` and 24 to 64 bytes in Base64."""
    text = secret.removeprefix(_SECRET_PREFIX)
    try:
        content = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        content = b""
    if not secret.startswith(_SECRET_PREFIX) or not _MIN_SECRET_BYTES <= len(content) <= _MAX_SECRET_BYTES:
        expected = f"{_SECRET_PREFIX} and {_MIN_SECRET_BYTES} to {_MAX_SECRET_BYTES} random bytes in Base64"
        raise ConfigError(key, "…", expected)
    return secret


def _parse_events(key: str, value: object) -> tuple[NotifyEvent, ...]:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not names or not all(name in NOTIFY_EVENTS for name in names):
        raise ConfigError(key, value, f"a list of {', '.join(NOTIFY_EVENTS)}")
    return tuple(event for event in NOTIFY_EVENTS if event in names)


def _parse_patterns(key: str, value: object) -> tuple[str, ...]:
    patterns = [value] if isinstance(value, str) else value
    if not isinstance(patterns, list) or not 0 < len(patterns) <= _MAX_PATTERNS or not all(map(is_name, patterns)):
        raise ConfigError(key, value, f'a pattern such as "ranker-*", or a list of up to {_MAX_PATTERNS} patterns')
    return tuple(patterns)
