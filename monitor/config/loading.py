"""Loads `Settings` from TOML files and environment variables.

Every error has the key, the value and the expected values. One run reports all wrong settings.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Final, get_args

from monitor.config.config_files import (
    FILE_KEYS,
    ConfigFile,
    RepeatedDocumentKey,
    find_places,
    merge_documents,
    read_config_files,
    referenced_files,
)
from monitor.config.display_texts import parse_link
from monitor.config.exclusion import find_exclusion_errors
from monitor.config.experiment_tables import MAX_NAME_LENGTH, is_name, parse_experiment
from monitor.config.http_access import (
    find_access_contradictions,
    parse_public_url,
    parse_share_secret,
    parse_token,
    parse_trusted_proxies,
    parse_user_header,
)
from monitor.config.line_numbers import find_line, read_line_numbers
from monitor.config.notify_tables import parse_notify
from monitor.config.settings import (
    DiscoverSettings,
    DisplaySettings,
    ExperimentSettings,
    HttpSettings,
    KafkaClientName,
    KafkaSettings,
    LimitSettings,
    SchemaRegistrySettings,
    Settings,
    StoreSettings,
    Tombstones,
)
from monitor.config.sources import parse_sources, parse_topic
from monitor.config.validation import (
    Contradiction,
    find_http_contradictions,
    find_kafka_contradictions,
    find_schema_registry_contradictions,
    find_store_contradictions,
)
from monitor.config.values import (
    MAX_PORT,
    VARIABLE_PREFIX,
    ConfigProblems,
    check_keys,
    is_host_name,
    parse_boolean,
    parse_choice,
    parse_duration_ms,
    parse_file_name,
    parse_instant_ms,
    parse_integer,
    parse_number,
    parse_text,
    similar_name,
)
from monitor.errors import (
    SINGLE_FILE,
    ConfigError,
    ConfigErrors,
    RepeatedKey,
    RepeatedName,
    UnknownKey,
    UsageError,
)

_SECRETS: Final = {
    "kafka": {"ssl_key_password", "sasl_password"},
    "schema_registry": {"password", "token"},
    "store": {"password", "user_hash_key"},
    "http": {"token", "proxy_secret", "share_secret"},
}
_SECURITY_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_SASL_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_MAX_SHARDS: Final = 256
_MAX_POLL_RECORDS: Final = 200_000
_MAX_EXPERIMENTS: Final = 1000
_MAX_PATTERNS: Final = 100
_EXPERIMENT_VARIABLES: Final = "EXPERIMENTS_"
_YAML_LINE: Final = re.compile(r"(?m)\A(?:\s*#.*\n|\s*\n)*(?:---|[\w.-]+:(?:\s|$))")
_PYTHON_BOOLEAN: Final = re.compile(r"(?m)^[^#\"'\n]*=\s*(True|False|yes|no|on|off)\s*(?:#.*)?$")

Parser = Callable[[str, object], Any]
"""A function (key, value) → setting that raises `ConfigError` for a wrong value."""


def load_settings(path: Path, environ: Mapping[str, str]) -> Settings:
    """Return the settings of a file, or of all files of a directory, overridden by `ABMONITOR_…` variables.

    Raises `UsageError` for a file that cannot be read, `ConfigError` for a wrong value, and `ConfigErrors` for several.
    """
    return parse_config_files(read_config_files(path), environ)


def parse_config_files(files: Sequence[ConfigFile], environ: Mapping[str, str]) -> Settings:
    """Return the settings of files that form one configuration: see `load_settings`."""
    with _limited_nesting(files):
        documents = list(map(_parse_toml, files))
        document, repeated_keys = merge_documents(documents)
        problems = ConfigProblems()
        problems.errors += [_repeated_key_error(files, repeated_key) for repeated_key in repeated_keys]
        with problems.collect():
            settings = parse_settings(document, environ)
        if problems.errors:
            raise _with_lines(problems.errors, files, documents)
    return settings


def find_referenced_files(files: Sequence[ConfigFile]) -> tuple[Path, ...]:
    """Return the files that the experiments of configuration files refer to. Raises `UsageError` for invalid TOML."""
    with _limited_nesting(files):
        return tuple(path for file in files for path in referenced_files(_parse_toml(file)))


@contextmanager
def _limited_nesting(files: Sequence[ConfigFile]) -> Iterator[None]:
    """Raise `UsageError` if values are nested so deeply that the block cannot parse them."""
    try:
        yield
    except RecursionError as error:
        paths = ", ".join(str(file.path) for file in files)
        raise UsageError(f"{paths}: values of the configuration file are nested too deeply") from error


def _repeated_key_error(files: Sequence[ConfigFile], repeated_key: RepeatedDocumentKey) -> RepeatedKey:
    places = []
    for file in (files[index] for index in repeated_key.document_indexes):
        line = find_line(read_line_numbers(file.text()), repeated_key.key)
        places.append(file.path.name if line is None else f"line {line} of {file.path.name}")
    return RepeatedKey(repeated_key.key, places)


def _with_lines(
    errors: Sequence[ConfigError], files: Sequence[ConfigFile], documents: Sequence[Mapping[str, Any]]
) -> ConfigError | ConfigErrors:
    """Return the error, or the errors by file and line, with their lines and, of several files, the files' names."""
    places = find_places([file.text() for file in files], documents)
    names = [file.path.name if len(files) > 1 else SINGLE_FILE for file in files]
    for error in errors:
        place = find_line(places, error.key)
        if place is not None and not isinstance(error, RepeatedKey):
            error.file_name, error.line = names[place[0]], place[1]
        first_place = find_line(places, error.first_key) if isinstance(error, RepeatedName) else None
        if isinstance(error, RepeatedName) and first_place is not None:
            error.first_file_name, error.first_line = names[first_place[0]], first_place[1]
    errors = sorted(errors, key=lambda error: find_line(places, error.key) or (sys.maxsize, 0))
    return errors[0] if len(errors) == 1 else ConfigErrors(errors)


def parse_settings(document: Mapping[str, Any], environ: Mapping[str, str]) -> Settings:
    """Return the settings of a parsed TOML file, overridden by environment variables: see `load_settings`."""
    problems = ConfigProblems()
    with problems.collect():
        check_keys("", document, {*_SECTIONS, "experiments", "notify"})
    variables: dict[str, str] = {}
    with problems.collect():
        variables = _read_variables(environ)
    experiments: tuple[ExperimentSettings, ...] = ()
    with problems.collect():
        experiments = _parse_experiments(document, variables)
    sections: dict[str, Any] = {}
    with problems.collect():
        sections["notify"] = parse_notify(document, variables)
    for section in _SECTIONS:
        with problems.collect():
            sections[section] = _parse_section(section, document, variables)
    problems.errors += map(_unknown_variable_error, variables)
    problems.raise_errors()
    settings = Settings(experiments=experiments, **sections)
    problems.errors += find_exclusion_errors(settings)
    problems.raise_errors()
    return settings


def parse_declarations(name: str, text: str, *, may_name_files: bool = True) -> tuple[ExperimentSettings, ...]:
    """Return the experiments of a TOML text that has nothing but `[[experiments]]` tables; errors have its name.

    Without `may_name_files`, no file is read: a setting that names a file is wrong. Raises `UsageError` for another
    text, `ConfigError` for a wrong value, and `ConfigErrors` for several.
    """
    file = ConfigFile(Path(name), text.encode())
    with _limited_nesting([file]):
        document = _parse_toml(file)
    if not may_name_files and (errors := list(_named_file_errors(document))):
        raise _with_lines(errors, [file], [document])
    further_keys = document.keys() - {"experiments"}
    if further_keys or not document.get("experiments"):
        found = ", ".join(sorted(further_keys)) or "nothing"
        raise UsageError(f"{name}: got {found}, expected [[experiments]] tables and nothing else")
    return parse_config_files((file,), {}).experiments


def _named_file_errors(document: Mapping[str, Any]) -> Iterator[ConfigError]:
    """Yield an error for each setting that names a file, also under a misspelt key: such a value is parsed, too."""
    experiments = document.get("experiments")
    for index, table in enumerate(experiments if isinstance(experiments, list) else []):
        for table_name, members in table.items() if isinstance(table, dict) else ():
            # The keys of `grades` are kinds of feedback, those of `exclude` fields.
            has_other_keys = table_name in {"grades", "exclude"}
            for key, value in members.items() if isinstance(members, dict) and not has_other_keys else ():
                if isinstance(value, str) and (key in FILE_KEYS or similar_name(key, FILE_KEYS)):
                    yield ConfigError(
                        f"experiments[{index}].{table_name}.{key}",
                        value,
                        "no name of a file: a request cannot use the files of the service. Run `ab-monitor experiments "
                        "add` where the file is",
                    )


def _parse_toml(file: ConfigFile) -> dict[str, Any]:
    text = file.text()
    try:
        return tomllib.loads(text)
    except ValueError as error:
        raise UsageError(f"{file.path}: this is not TOML: {error}.{_toml_hint(text)}") from error


def _toml_hint(text: str) -> str:
    """Return a sentence about the probable reason why a text is not TOML; empty if unknown."""
    if _YAML_LINE.match(text) or text.lstrip().startswith("{"):
        return ' The file looks like YAML or JSON; TOML has lines such as name = "value" and tables such as [kafka]'
    if match := _PYTHON_BOOLEAN.search(text):
        return f" TOML has true and false in lower case, and not {match[1]}"
    return ""


def _section_table(section: str, document: Mapping[str, Any]) -> Mapping[str, Any]:
    table = document.get(section, {})
    if not isinstance(table, dict):
        raise ConfigError(section, table, f"a table, which begins with the line [{section}]")
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
            raise ConfigError(VARIABLE_PREFIX + name, "…", "text in UTF-8") from error
    secret_variables = {f"{section}_{key}".upper() for section, keys in _SECRETS.items() for key in keys}
    for name in [name for name in variables if name.endswith("_FILE")]:
        secret_variable = name.removesuffix("_FILE")
        if secret_variable not in secret_variables:
            continue
        if secret_variable in variables:
            raise ConfigError(
                VARIABLE_PREFIX + secret_variable, "…", f"only one of this variable and {VARIABLE_PREFIX}{name}"
            )
        path = variables.pop(name)
        try:
            variables[secret_variable] = Path(path).read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(VARIABLE_PREFIX + name, path, f"a readable text file in UTF-8 ({error})") from error
    return variables


def _unknown_variable_error(name: str) -> ConfigError:
    known_variables = [
        f"{section}_{field.removesuffix('_ms')}".upper()
        for section, (_, parsers) in _SECTIONS.items()
        for field in parsers
    ]
    similar_variable = similar_name(name, known_variables)
    hint = (
        f"did you mean {VARIABLE_PREFIX}{similar_variable}?" if similar_variable else "docs/configuration.md lists all"
    )
    return UnknownKey("environment", VARIABLE_PREFIX + name, hint, kind="variable")


def _parse_section(section: str, document: Mapping[str, Any], variables: dict[str, str]) -> Any:
    """Return the record of a section, and remove the section's variables from `variables`.

    Raises the errors of all keys. Settings that depend on each other are compared if each of them is valid.
    """
    record_type, parsers = _SECTIONS[section]
    keys = [field.removesuffix("_ms") for field in parsers]
    problems = ConfigProblems()
    table: Mapping[str, Any] = {}
    with problems.collect():
        table = _section_table(section, document)
        check_keys(section, table, keys)
    values: dict[str, object] = {}
    wrong_keys: set[str | None] = set()
    for field, parse in parsers.items():
        key = field.removesuffix("_ms")
        variable = f"{section}_{key}".upper()
        is_secret = field in _SECRETS.get(section, ())
        wrong_keys.add(key)
        with problems.collect():
            if is_secret and key in table:
                name = VARIABLE_PREFIX + variable
                expected = (
                    f"no secret in the file: set the environment variable {name}, or {name}_FILE to a file's path"
                )
                raise ConfigError(f"{section}.{key}", "…", expected)
            if variable in variables:
                text = variables.pop(variable)
                value = text if is_secret else _parse_scalar_variable(text, parse)
                values[field] = parse(VARIABLE_PREFIX + variable, value)
            elif key in table:
                values[field] = parse(f"{section}.{key}", table[key])
            wrong_keys.discard(key)
    wrong_keys |= {similar_name(key, keys) for key in table if key not in keys}
    settings = record_type(**values)
    contradictions: Iterator[Contradiction] = iter(())
    if isinstance(settings, KafkaSettings):
        contradictions = find_kafka_contradictions(settings)
    elif isinstance(settings, SchemaRegistrySettings):
        contradictions = find_schema_registry_contradictions(settings)
    elif isinstance(settings, StoreSettings):
        contradictions = find_store_contradictions(settings, table)
    elif isinstance(settings, HttpSettings):
        contradictions = chain(find_http_contradictions(settings), find_access_contradictions(settings))
    problems.errors += [
        ConfigError(f"{section}.{keys[0]}", value, expected)
        for keys, value, expected in contradictions
        if wrong_keys.isdisjoint(keys)
    ]
    problems.raise_errors()
    return settings


def _parse_scalar_variable(text: str, parse: Parser) -> object:
    """Return a variable's value as a number or a boolean if the key needs such a value, otherwise as text."""
    if getattr(parse, "func", parse) in (parse_boolean, parse_integer, parse_number):
        with suppress(ValueError, RecursionError):
            return json.loads(text)
    return text


def _parse_experiments(document: Mapping[str, Any], variables: dict[str, str]) -> tuple[ExperimentSettings, ...]:
    """Return all experiments, and remove the experiments' variables from `variables`.

    Variables of experiments that the file does not have remain.
    """
    tables = document.get("experiments")
    experiment_variables = {
        name: variables.pop(name) for name in list(variables) if name.startswith(_EXPERIMENT_VARIABLES)
    }
    if isinstance(tables, dict):
        expected = "[[experiments]] in double brackets, because a file may have several experiments"
        raise ConfigError("experiments", "[experiments]", expected)
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        expected = "at least one [[experiments]] table, or experiments = [] if commands declare them"
        raise ConfigError("experiments", tables, expected)
    if len(tables) > _MAX_EXPERIMENTS:
        raise ConfigError("experiments", len(tables), f"at most {_MAX_EXPERIMENTS} experiments")
    problems = ConfigProblems()
    experiments = []
    name_indices: dict[str, int] = {}
    for index, table in enumerate(tables):
        prefix = f"{_EXPERIMENT_VARIABLES}{index}_"
        values = dict(table)
        for variable in [variable for variable in experiment_variables if variable.startswith(prefix)]:
            text = experiment_variables.pop(variable)
            with problems.collect():
                values[variable[len(prefix) :].lower()] = _parse_toml_variable(VARIABLE_PREFIX + variable, text)
        name = values.get("name")
        experiment_key = f"experiments[{index}]"
        if is_name(name):
            first_index = name_indices.setdefault(name, index)
            if first_index < index:
                problems.errors.append(RepeatedName(f"{experiment_key}.name", name, f"experiments[{first_index}].name"))
            else:
                experiment_key = f"experiments.{name}"
        with problems.collect():
            experiments.append(parse_experiment(values, experiment_key))
    variables |= experiment_variables
    problems.raise_errors()
    return tuple(experiments)


def _parse_toml_variable(variable: str, text: str) -> object:
    """Return a variable's value as TOML, or as text if the variable is not TOML."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        if text[:1] in "[{":
            raise ConfigError(variable, text, "a TOML value") from None
        return text


def _parse_start(key: str, value: object) -> str:
    start = value.isoformat() if isinstance(value, datetime) else value
    if start not in ("earliest", "latest"):
        try:
            parse_instant_ms(key, start)
        except ConfigError as error:
            raise ConfigError(key, start, f"earliest, latest, or {error.expected}") from None
    return str(start)


def _parse_grafana_url(key: str, value: object) -> str:
    """Return an address without a slash at the end."""
    return parse_link(key, value).rstrip("/")


def _parse_host(key: str, value: object) -> str:
    name = parse_text(key, value)
    if not is_host_name(name):
        raise ConfigError(key, value, "a host name or an IP address")
    return name


def _parse_placeholder_ids(key: str, value: object) -> frozenset[str]:
    """Return the texts of a list, or of a variable with commas between the texts, in lower case."""
    texts = value.split(",") if key.startswith(VARIABLE_PREFIX) and isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ConfigError(key, value, 'a list of strings, such as ["", "0", "null"]')
    return frozenset(text.lower() for text in texts)


def _parse_name_patterns(key: str, value: object) -> tuple[str, ...]:
    """Return a pattern, the patterns of a list, or those of a variable with commas between the patterns."""
    patterns = value
    if isinstance(value, str):
        patterns = value.split(",") if key.startswith(VARIABLE_PREFIX) and value else [value]
    if (
        not isinstance(patterns, list)
        or len(patterns) > _MAX_PATTERNS
        or not all(isinstance(pattern, str) and is_name(pattern) for pattern in patterns)
    ):
        expected = (
            f'a pattern such as "ranker-*", or a list of up to {_MAX_PATTERNS} patterns, each of 1 to '
            f"{MAX_NAME_LENGTH} printable characters without blanks around it"
        )
        raise ConfigError(key, value, expected)
    return tuple(patterns)


_parse_count: Final = partial(parse_integer, minimum=1, maximum=1_000_000_000)
_SECTIONS: Final[Mapping[str, tuple[type[Any], Mapping[str, Parser]]]] = {
    "kafka": (
        KafkaSettings,
        {
            "bootstrap_servers": parse_text,
            "responses_topic": parse_topic,
            "feedback_topic": parse_topic,
            "sources": parse_sources,
            "tombstones": partial(parse_choice, choices=get_args(Tombstones)),
            "dead_letter_topic": parse_topic,
            "group_id": parse_text,
            "group_instance_id": parse_text,
            "start": _parse_start,
            "max_poll_records": partial(parse_integer, minimum=1, maximum=_MAX_POLL_RECORDS),
            "max_watermark_skew_ms": parse_duration_ms,
            "on_lost_history": partial(parse_choice, choices=("stop", "continue")),
            "client": partial(parse_choice, choices=get_args(KafkaClientName)),
            "security_protocol": partial(parse_choice, choices=_SECURITY_PROTOCOLS),
            "ssl_ca_file": parse_file_name,
            "ssl_cert_file": parse_file_name,
            "ssl_key_file": parse_file_name,
            "ssl_key_password": parse_text,
            "ssl_check_hostname": parse_boolean,
            "sasl_mechanism": partial(parse_choice, choices=_SASL_MECHANISMS),
            "sasl_username": parse_text,
            "sasl_password": parse_text,
        },
    ),
    "schema_registry": (
        SchemaRegistrySettings,
        {
            "url": parse_text,
            "username": parse_text,
            "password": parse_text,
            "token": parse_text,
            "ssl_ca_file": parse_file_name,
            "ssl_cert_file": parse_file_name,
            "ssl_key_file": parse_file_name,
        },
    ),
    "store": (
        StoreSettings,
        {
            "url": parse_text,
            "username": parse_text,
            "password": parse_text,
            "ssl_ca_file": parse_file_name,
            "ssl_cert_file": parse_file_name,
            "ssl_key_file": parse_file_name,
            "shards": partial(parse_integer, minimum=1, maximum=_MAX_SHARDS),
            "user_hash_key": parse_text,
        },
    ),
    "http": (
        HttpSettings,
        {
            "host": _parse_host,
            "port": partial(parse_integer, minimum=0, maximum=MAX_PORT),
            "tls_cert_file": parse_file_name,
            "tls_key_file": parse_file_name,
            "token": parse_token,
            "trusted_proxies": parse_trusted_proxies,
            "user_header": parse_user_header,
            "proxy_secret": parse_token,
            "share_secret": parse_share_secret,
            "public_url": parse_public_url,
        },
    ),
    "limits": (
        LimitSettings,
        {
            "max_payload_bytes": _parse_count,
            "max_items": _parse_count,
            "max_id_length": _parse_count,
            "max_clock_skew_ms": parse_duration_ms,
            "oldest_timestamp_ms": parse_instant_ms,
            "placeholder_ids": _parse_placeholder_ids,
            "repeated_items": partial(parse_choice, choices=("first", "reject")),
            "max_rejected_share": partial(parse_number, minimum=0.0, maximum=1.0),
            "max_consecutive_rejected": _parse_count,
            "rejection_window": _parse_count,
        },
    ),
    "display": (DisplaySettings, {"min_display_students": _parse_count, "grafana_url": _parse_grafana_url}),
    "discover": (
        DiscoverSettings,
        {
            "names": _parse_name_patterns,
            "limit": partial(parse_integer, minimum=1, maximum=_MAX_EXPERIMENTS),
            "auto_adopt": _parse_name_patterns,
            "auto_adopt_limit": partial(parse_integer, minimum=1, maximum=_MAX_EXPERIMENTS),
        },
    ),
}
"""Section → type of its record, and field → parser of its key. A key lacks the suffix `_ms` of its field."""
