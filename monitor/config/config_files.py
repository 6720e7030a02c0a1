"""The files of a configuration: one file, or all files `*.toml` of a directory, which form one document together."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

from monitor.config.line_numbers import read_line_numbers
from monitor.errors import UsageError

_EXPERIMENTS: Final = "experiments"
_EXPERIMENT_KEY: Final = re.compile(rf"{_EXPERIMENTS}\[(\d+)\]")
_REFERENCING_KEYS: Final = {"items": ("catalogue",), "drift": ("reference", "items_reference")}
"""Table of an experiment → keys whose value may be the name of a file."""
FILE_KEYS: Final = tuple(key for keys in _REFERENCING_KEYS.values() for key in keys)
"""Keys, in tables of an experiment, whose value may be the name of a file."""
_MAX_READINGS: Final = 10
_DIGEST_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """A configuration file as it was read."""

    path: Path
    content: bytes

    def text(self) -> str:
        """Return the text without a byte order mark. Raises `UsageError` if the file is not UTF-8."""
        try:
            return self.content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise UsageError(
                f"{self.path}: byte {error.start} is not UTF-8; save the configuration file as UTF-8"
            ) from error


@dataclass(frozen=True, slots=True)
class RepeatedDocumentKey:
    """A key that two documents have."""

    key: str
    document_indexes: tuple[int, int]


def read_config_files(path: Path) -> tuple[ConfigFile, ...]:
    """Return the file, or the files `*.toml` of a directory by name; hidden names are ignored, links are followed.

    The files are read until two readings are equal, so that files which are being replaced are never mixed. Raises
    `UsageError` if a file cannot be read.
    """
    files = _read_once(path)
    if not is_readable_again(path):
        return files
    for _ in range(_MAX_READINGS):
        previous_files, files = files, _read_once(path)
        if files == previous_files:
            return files
    raise UsageError(f"{path}: the configuration changed during each of {_MAX_READINGS} readings; try again later")


def is_readable_again(path: Path) -> bool:
    """Return whether the path is a file or a directory; a pipe, as of `--config <(command)`, is read only once."""
    return path.is_dir() or path.is_file() or not path.exists()


def content_digest(files: Sequence[ConfigFile]) -> str:
    """Return hexadecimal digits that differ if names or contents of the files differ."""
    digest = blake2b(digest_size=_DIGEST_BYTES)
    for file in files:
        for part in (file.path.name.encode(errors="surrogateescape"), file.content):
            digest.update(len(part).to_bytes(8))
            digest.update(part)
    return digest.hexdigest()


def merge_documents(documents: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], list[RepeatedDocumentKey]]:
    """Return the document with the keys of all sections and with all experiments, and the keys that are repeated.

    >>> merge_documents([{"kafka": {"start": "latest"}, "experiments": [1]}, {"kafka": {"start": "earliest"}}])[1]
    [RepeatedDocumentKey(key='kafka.start', document_indexes=(0, 1))]
    """
    merged: dict[str, Any] = {}
    first_indexes: dict[str, int] = {}
    repeated_keys = []
    for index, document in enumerate(documents):
        for section, value in document.items():
            is_mergeable = isinstance(value, (dict, list)) and type(merged.get(section, value)) is type(value)
            if section == _EXPERIMENTS and isinstance(value, list) and is_mergeable:
                merged[section] = [*merged.get(section, []), *value]
                first_indexes.setdefault(section, index)
            elif isinstance(value, dict) and is_mergeable:
                table = merged.setdefault(section, {})
                first_indexes.setdefault(section, index)
                for name, member in value.items():
                    key = f"{section}.{name}"
                    if name in table:
                        repeated_keys.append(RepeatedDocumentKey(key, (first_indexes[key], index)))
                    else:
                        table[name] = member
                        first_indexes[key] = index
            elif section in merged:
                repeated_keys.append(RepeatedDocumentKey(section, (first_indexes[section], index)))
            else:
                merged[section] = value
                first_indexes[section] = index
    return merged, repeated_keys


def referenced_files(document: Mapping[str, Any]) -> tuple[Path, ...]:
    """Return the files with contents of experiments' settings: catalogues of items, references of drift.

    >>> referenced_files({"experiments": [{"items": {"catalogue": "items.txt"}, "drift": {"reference": 7}}]})
    (PosixPath('items.txt'),)
    """
    experiments = document.get(_EXPERIMENTS)
    tables = experiments if isinstance(experiments, list) else []
    names = [
        section.get(key)
        for table in tables
        if isinstance(table, dict)
        for section_name, keys in _REFERENCING_KEYS.items()
        if isinstance(section := table.get(section_name), dict)
        for key in keys
    ]
    return tuple(Path(name) for name in names if isinstance(name, str))


def find_places(texts: Sequence[str], documents: Sequence[Mapping[str, Any]]) -> dict[str, tuple[int, int]]:
    """Return key → (index of the file, line) of the merged document; experiments are numbered over all files."""
    places: dict[str, tuple[int, int]] = {}
    first_number = 0
    for index, (text, document) in enumerate(zip(texts, documents, strict=True)):
        for key, line in read_line_numbers(text).items():
            places.setdefault(_renumbered(key, first_number), (index, line))
        experiments = document.get(_EXPERIMENTS)
        first_number += len(experiments) if isinstance(experiments, list) else 0
    return places


def _renumbered(key: str, first_number: int) -> str:
    return _EXPERIMENT_KEY.sub(lambda match: f"{_EXPERIMENTS}[{int(match[1]) + first_number}]", key, count=1)


def _read_once(path: Path) -> tuple[ConfigFile, ...]:
    try:
        if not path.is_dir():
            return (ConfigFile(path, path.read_bytes()),)
        paths = sorted(file for file in path.iterdir() if file.suffix == ".toml" and not file.name.startswith("."))
    except OSError as error:
        raise UsageError(f"{path}: the configuration file cannot be read: {error.strerror}") from error
    if not paths:
        raise UsageError(f"{path}: the directory has no file *.toml; expected at least one configuration file")
    return tuple(map(_read_file_of_directory, paths))


def _read_file_of_directory(path: Path) -> ConfigFile:
    try:
        if path.exists() and not path.is_file():
            raise UsageError(f"{path}: expected a configuration file, because the name ends in .toml; rename it")
        return ConfigFile(path, path.read_bytes())
    except OSError as error:
        raise UsageError(f"{path}: the configuration file cannot be read: {error.strerror}") from error
