"""The lines of a TOML file on which its keys are, for messages about settings."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeVar

Line = TypeVar("Line")
_EXPERIMENTS: Final = "experiments"


def read_line_numbers(text: str) -> dict[str, int]:
    r"""Return key → line of a text that is valid TOML, with the keys of `ConfigError`; lines are counted from 1.

    An experiment is both `experiments[0]` and, unless an earlier one has the name, `experiments.NAME`. A key within a
    value has the line of the value's key.

    >>> lines = read_line_numbers('[http]\nport = 1\n[[experiments]]\nname = "e"\nvariants = { a = 1 }')
    >>> lines["http.port"], lines["experiments.e.variants.a"], lines["experiments[0].name"]
    (2, 5, 4)
    """
    lines: dict[str, int] = {}
    table_counts: Counter[str] = Counter()
    names: dict[str, str] = {}
    table_key = ""
    for line_number, statement in _statements(text):
        content = tomllib.loads(statement)
        if statement.lstrip().startswith("["):
            table_key = _table_key(content, table_counts, is_array=statement.lstrip().startswith("[["))
            lines.setdefault(table_key, line_number)
            continue
        for key, value in _members(table_key, content):
            lines.setdefault(key, line_number)
            experiment_key, _, last_key = key.rpartition(".")
            if last_key == "name" and experiment_key.startswith(f"{_EXPERIMENTS}[") and isinstance(value, str):
                names.setdefault(value, experiment_key)
    for name, experiment_key in names.items():
        alias = f"{_EXPERIMENTS}.{name}"
        for key, line_number in list(lines.items()):
            if key == experiment_key or key.startswith(f"{experiment_key}."):
                lines.setdefault(alias + key[len(experiment_key) :], line_number)
    return lines


def find_line(lines: Mapping[str, Line], key: str) -> Line | None:
    """Return the line of a key, or else of the innermost table or value that contains the key; None without any."""
    containers = [
        known_key for known_key in lines if key == known_key or key.startswith((f"{known_key}.", f"{known_key}["))
    ]
    return lines[max(containers, key=len)] if containers else None


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """Yield (first line, text) of each header of a table and of each key with its value."""
    statement = ""
    first_line = 1
    for line_number, line in enumerate(text.split("\n"), start=1):
        if not statement:
            first_line = line_number
            if not line.strip() or line.lstrip().startswith("#"):
                continue
        statement += f"{line}\n"
        try:
            tomllib.loads(statement)
        except tomllib.TOMLDecodeError:
            continue  # The value continues on the next line.
        yield first_line, statement
        statement = ""


def _table_key(content: Mapping[str, Any], table_counts: Counter[str], *, is_array: bool) -> str:
    """Return the key of the table that a header opens; tables of an array are numbered from 0."""
    parts: list[str] = []
    table: Any = content
    while isinstance(table, dict) and table:
        ((name, table),) = table.items()
        parts.append(name)
    key = ""
    for index, name in enumerate(parts):
        key = _join(key, name)
        if is_array and index == len(parts) - 1:
            table_counts[key] += 1
        if table_counts[key]:
            key = f"{key}[{table_counts[key] - 1}]"
    return key


def _members(table_key: str, content: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    """Yield (key, value) of all members of a table, its inner tables included."""
    for name, value in content.items():
        key = _join(table_key, name)
        yield key, value
        if isinstance(value, dict):
            yield from _members(key, value)


def _join(table_key: str, name: str) -> str:
    return f"{table_key}.{name}" if table_key else name
