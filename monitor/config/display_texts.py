"""Texts for readers: labels, units and descriptions of metrics, variants and kinds of feedback, and a link.

No stored number and no verdict depends on these texts, so they may change at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final
from urllib.parse import urlsplit

from monitor.config.values import ConfigProblems, check_keys, is_host_name, rename_misspelt_keys, similar_name
from monitor.errors import ConfigError, escape_controls

MAX_OWNER_LENGTH: Final = 100
MAX_HYPOTHESIS_LENGTH: Final = 1000
_MAX_LABEL_LENGTH: Final = 60
_MAX_UNIT_LENGTH: Final = 20
_MAX_DESCRIPTION_LENGTH: Final = 500
_MAX_LINK_LENGTH: Final = 2000
_TEXT_KEYS: Final = ("label", "description")
_METRIC_TEXT_KEYS: Final = ("label", "unit", "description")
_TABLES: Final[Mapping[str, str]] = {"metrics": "metric", "variants": "variant", "kinds": "kind of feedback"}
"""Key of the table `texts` → noun for a name in the table."""


@dataclass(frozen=True, slots=True)
class DisplayText:
    """The texts of a metric, a variant or a kind of feedback; empty if not configured."""

    label: str = ""
    """Shown instead of the name."""
    unit: str = ""
    """Of a metric: the unit of the metric's values and changes."""
    description: str = ""


@dataclass(frozen=True, slots=True)
class DisplayTexts:
    """The texts of an experiment's metrics, variants and kinds of feedback, by name (`[experiments.texts]`)."""

    metrics: Mapping[str, DisplayText] = field(default_factory=dict)
    variants: Mapping[str, DisplayText] = field(default_factory=dict)
    kinds: Mapping[str, DisplayText] = field(default_factory=dict)

    def variant_label(self, name: str) -> str:
        """Return the label of a variant for readers: its name without a configured label."""
        return _find_text(self.variants, name).label or name

    def kind_label(self, name: str) -> str:
        """Return the label of a kind of feedback for readers: its name without a configured label."""
        return _find_text(self.kinds, name).label or name

    def metric_title(self, name: str) -> str:
        """Return the label of a metric for headings and tables: its name without a configured label."""
        return _find_text(self.metrics, name).label or name

    def metric_text(self, name: str) -> DisplayText:
        """Return the configured texts of a metric; all are empty without a configuration."""
        return _find_text(self.metrics, name)

    def to_json(self) -> dict[str, dict[str, dict[str, str]]]:
        """Return the texts that are not empty, as in the configuration: table → name → key → text."""
        tables = {
            table: {name: table_text for name, text in getattr(self, table).items() if (table_text := _plain(text))}
            for table in _TABLES
        }
        return {table: texts for table, texts in tables.items() if texts}


NO_TEXTS: Final = DisplayTexts()
_NO_TEXT: Final = DisplayText()


def _find_text(texts: Mapping[str, DisplayText], name: str) -> DisplayText:
    return texts.get(name, _NO_TEXT)


def _plain(text: DisplayText) -> dict[str, str]:
    return {key: value for key in _METRIC_TEXT_KEYS if (value := getattr(text, key))}


def parse_optional_line(key: str, value: object, max_length: int) -> str:
    """Return a text of one line of at most `max_length` characters; an absent text is empty."""
    return "" if value is None else _parse_line(key, value, max_length)


def _parse_line(key: str, value: object, max_length: int) -> str:
    if (
        not isinstance(value, str)
        or not 0 < len(value) <= max_length
        or value != value.strip()
        or value != escape_controls(value)
    ):
        expected = f"a text of 1 to {max_length} characters in one line, without control characters and outer blanks"
        raise ConfigError(key, value, expected)
    return value


def parse_link(key: str, value: object) -> str:
    """Return an http or https address; an absent address is empty.

    A password in the address would be shown to all readers, so such an address is an error, whose message has no value.
    """
    if value is None:
        return ""
    expected = (
        "an address that begins with https:// or http://, without spaces, quotes, < and >, such as "
        "https://wiki.example.org/ranker-v2"
    )
    link = _parse_line(key, value, _MAX_LINK_LENGTH)
    try:
        parts = urlsplit(link)
        host, has_password, _ = parts.hostname or "", "@" in parts.netloc, parts.port
    except ValueError as error:
        raise ConfigError(key, value, expected) from error
    if has_password:
        raise ConfigError(
            key, f"{parts.scheme}://…@…", "an address without a user or password, because all readers see it"
        )
    if parts.scheme not in {"http", "https"} or not host or not is_host_name(host) or not _is_address(link):
        raise ConfigError(key, value, expected)
    return link


def _is_address(link: str) -> bool:
    """Return whether a text has none of the characters that end an address or a quotation, and no backslash."""
    return not any(character.isspace() or character in "\"'<>\\`{}|^" for character in link)


def parse_texts(
    key: str,
    value: object,
    metrics: Collection[str] | None,
    variants: Collection[str] | None,
    kinds: Collection[str] | None,
    scaled_metrics: Collection[str],
) -> DisplayTexts:
    """Return the table `texts` of an experiment with its metrics, variants and kinds of feedback.

    `scaled_metrics` are the metrics that are shown in a unit of their own, such as per cent. Raises the errors of all
    wrong names and texts. None instead of names, because some names are wrong themselves, allows every name.
    """
    if not isinstance(value, dict):
        raise ConfigError(key, value, f"a table with the keys {', '.join(_TABLES)}")
    problems = ConfigProblems()
    with problems.collect():
        check_keys(key, value, _TABLES)
    tables = rename_misspelt_keys(value, _TABLES)

    def read_table(
        table: str, names: Collection[str] | None, parse: Callable[[str, object], DisplayText]
    ) -> Mapping[str, DisplayText]:
        parse_table = partial(_parse_table, noun=_TABLES[table], names=names, parse=parse)
        return problems.attempt(parse_table, f"{key}.{table}", tables.get(table, {}), {})

    def parse_metric_text(text_key: str, text: object) -> DisplayText:
        name = text_key.removeprefix(f"{key}.metrics.")
        return _parse_text(text_key, text, _METRIC_TEXT_KEYS, has_own_unit=name in scaled_metrics)

    parse_name_text = partial(_parse_text, keys=_TEXT_KEYS)
    texts = DisplayTexts(
        metrics=read_table("metrics", metrics, parse_metric_text),
        variants=read_table("variants", variants, parse_name_text),
        kinds=read_table("kinds", kinds, parse_name_text),
    )
    problems.raise_errors()
    return texts


def _parse_table(
    key: str, value: object, noun: str, names: Collection[str] | None, parse: Callable[[str, object], DisplayText]
) -> Mapping[str, DisplayText]:
    """Return name → texts; raises the errors of all names and texts, and of labels that two names would share."""
    if not isinstance(value, dict):
        raise ConfigError(key, value, f'a table: {noun} → {{ label = "…" }}')
    problems = ConfigProblems()
    texts: dict[str, DisplayText] = {}
    for name, text in value.items():
        if names is not None and name not in names:
            similar = similar_name(name, names)
            hint = "" if similar is None else f"; did you mean {similar}?"
            expected = f"a {noun} of the experiment: {', '.join(names) or 'it has none'}{hint}"
            problems.errors.append(ConfigError(f"{key}.{name}", name, expected))
            continue
        with problems.collect():
            texts[name] = parse(f"{key}.{name}", text)
    owners = {name: name for name in names or ()}
    for name, text in texts.items():
        owner = owners.setdefault(text.label, name) if text.label else name
        if owner != name:
            expected = f"a label that is neither the name nor the label of another {noun}, {owner}"
            problems.errors.append(ConfigError(f"{key}.{name}.label", text.label, expected))
    problems.raise_errors()
    return texts


def _parse_text(key: str, value: object, keys: Collection[str], *, has_own_unit: bool = False) -> DisplayText:
    if not isinstance(value, dict) or not value:
        raise ConfigError(key, value, f"a table with the keys {', '.join(keys)}")
    problems = ConfigProblems()
    with problems.collect():
        check_keys(key, value, keys)
    table = rename_misspelt_keys(value, keys)

    def read(name: str, max_length: int) -> str:
        parse = partial(parse_optional_line, max_length=max_length)
        return problems.attempt(parse, f"{key}.{name}", table.get(name), "")

    text = DisplayText(
        read("label", _MAX_LABEL_LENGTH), read("unit", _MAX_UNIT_LENGTH), read("description", _MAX_DESCRIPTION_LENGTH)
    )
    if text.unit and has_own_unit:
        expected = "no unit, because shares are shown in per cent and latencies in ms"
        problems.errors.append(ConfigError(f"{key}.unit", text.unit, expected))
    problems.raise_errors()
    return text
