"""The exceptions that the package raises on purpose, with the exit codes of commands.

AbMonitorError                      exit code 1
├── UsageError                      2   wrong arguments or settings, or a server that rejects the user or certificates
│   ├── ConfigError                 2   a wrong setting; names its key
│   ├── ConfigErrors                2   several wrong settings, one per line
│   ├── UnknownExperiment           2   no experiment of this name is declared, or was seen
│   └── ExperimentConflict          2   the state of an experiment does not allow a change
├── DependencyUnavailable           3   Kafka, the store or the schema registry cannot be reached
│   └── StoreUnavailable            3   the store cannot be reached; a running worker waits and tries again
├── InputRejected                   4   too many rejected events, or a judgment file with an invalid line
├── UnusableStore                   5   the store can be reached, but its content cannot be used
│   ├── IncompatibleStore           5   another schema, other definitions, or another generation
│   └── CorruptStore                5   missing or damaged data
├── DataLoss                        6   Kafka has deleted events that were not applied yet
└── InvalidEvent                        one event is rejected; processing continues with the next record
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from datetime import date, time
from typing import Final

SIGNAL_EXIT_CODE_BASE: Final = 128
"""A command that a signal has interrupted exits with this base plus the number of the signal, as shells report it."""
SINGLE_FILE: Final = "the file"
"""Name, in messages, of a configuration file without others beside it."""
_TLS_FAILURE: Final = re.compile(
    r"\[(?:SSL|X509)(?:: (?P<name>CERTIFICATE_VERIFY_FAILED|WRONG_VERSION_NUMBER|NO_CERTIFICATE\w*"
    r"|\w*ALERT_\w*(?:CERTIFICATE|UNKNOWN_CA|HANDSHAKE_FAILURE|ACCESS_DENIED|PROTOCOL_VERSION)\w*))\] (?P<text>[^(]+)"
)
"""OpenSSL's messages when one side rejects the other; messages about broken connections do not match."""
_MAX_PRINTED_LENGTH: Final = 200
_MAX_JOINED_REASONS: Final = 5
_CONTROL_CATEGORIES: Final = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Unicode's control and format characters, surrogates, and separators of lines and paragraphs."""
_JOINERS: Final = "\u200c\u200d"
_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")


class AbMonitorError(Exception):
    """Base class of all errors that the package raises on purpose."""

    exit_code = 1


class UsageError(AbMonitorError):
    """The command was called with arguments or settings that cannot work."""

    exit_code = 2


class ConfigError(UsageError):
    """A setting is wrong; the message names the key, the value and the expected values."""

    def __init__(self, key: str, value: object, expected: str) -> None:
        problem = "missing" if value is None else f"got {setting_text(value)}"
        super().__init__(f"{key}: {problem}, expected {expected}")
        self.key = key
        self.expected = expected
        self.line: int | None = None
        """Line of the configuration file, if known."""
        self.file_name = SINGLE_FILE
        """Name of the configuration file with the line, if there are several."""

    def __str__(self) -> str:
        return super().__str__() if self.line is None else f"{super().__str__()} (line {self.line} of {self.file_name})"


class UnknownKey(ConfigError):
    """A table has a key that does not exist; the value is left out, because the key may be a misspelt password."""

    def __init__(self, table_key: str, key: str, hint: str, kind: str = "key") -> None:
        table_prefix = f"{table_key}: " if table_key else ""
        AbMonitorError.__init__(self, f"{table_prefix}unknown {kind} {_key_text(key)}; {hint}")
        self.key = f"{table_key}.{key}" if table_key else key
        self.expected = hint
        self.line = None
        self.file_name = SINGLE_FILE


class RepeatedName(ConfigError):
    """An experiment has the name of an earlier experiment; the message names both."""

    def __init__(self, key: str, name: str, first_key: str) -> None:
        super().__init__(key, name, "every name once")
        self.first_key = first_key
        self.first_line: int | None = None
        """Line of the first experiment's name in the configuration file, if known."""
        self.first_file_name = SINGLE_FILE

    def __str__(self) -> str:
        line = "" if self.first_line is None else f" in line {self.first_line}"
        file = "" if self.first_file_name == SINGLE_FILE else f" of {self.first_file_name}"
        return f"{super().__str__()}; {self.first_key}{line}{file} is the same"


class RepeatedKey(ConfigError):
    """Two configuration files set the same key; the message has both places, and no value, which may be a secret."""

    def __init__(self, key: str, places: Sequence[str]) -> None:
        AbMonitorError.__init__(self, f"{key}: set in {' and '.join(places)}; keep one of them")
        self.key = key
        self.expected = "every key in one file"
        self.line = None
        self.file_name = SINGLE_FILE


class ConfigErrors(UsageError):
    """Several settings are wrong; the message has a line for each of `errors`."""

    def __init__(self, errors: Sequence[ConfigError]) -> None:
        super().__init__("\n".join([f"{len(errors)} settings are wrong:", *(f"  {error}" for error in errors)]))
        self.errors = errors


class UnknownExperiment(UsageError):
    """No experiment of this name is declared, or no events of an undeclared experiment of this name were seen."""


class ExperimentConflict(UsageError):
    """The state of an experiment does not allow a change, for example because a file declares the experiment."""


class DependencyUnavailable(AbMonitorError):
    """Kafka, the store or the schema registry could not be reached."""

    exit_code = 3


class StoreUnavailable(DependencyUnavailable):
    """The store does not answer or cannot write; whether the last command took effect is unknown."""


class InputRejected(AbMonitorError):
    """The share or the run of rejected events exceeds its limit, or a file of judgments has an invalid line."""

    exit_code = 4


class UnusableStore(AbMonitorError):
    """The store answers, but the stored data cannot be used; waiting does not help."""

    exit_code = 5


class IncompatibleStore(UnusableStore):
    """The stored aggregates have another schema, other definitions, or another generation than this process uses."""


class ExperimentsChanged(UnusableStore):
    """The store has another version of the set of declared experiments than this process uses."""


class CorruptStore(UnusableStore):
    """Stored data is missing or damaged."""


class DataLoss(AbMonitorError):
    """Events were deleted before they were applied, and the settings do not accept the loss."""

    exit_code = 6


class InvalidEvent(AbMonitorError):
    """A single event is rejected; the next record can be processed.

    `reason` is a key of `monitor.events.REJECTION_REASONS`, because it becomes a metric label. `detail` names the field
    and the expected values. It never quotes the event, which may contain a student's words.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


def tls_failure_reason(message: str) -> str | None:
    """Return why a TLS handshake failed, from the message of an OpenSSL error; None for any other message."""
    failure = _TLS_FAILURE.search(message)
    if failure is None:
        return None
    text = failure["text"].strip(" .")
    if "ALERT" in failure["name"]:
        return f"the server rejects the client certificate, or requires one: {text}"
    if failure["name"] == "WRONG_VERSION_NUMBER":
        return f"the server does not use TLS on this port: {text}"
    if failure["name"].startswith("NO_CERTIFICATE"):
        return f"the file of the certificate authority (ssl_ca_file) cannot be used: {text}"
    return f"the certificate of the server is rejected: {text.removeprefix('certificate verify failed: ')}"


def join_reasons(reasons: Sequence[str]) -> str:
    """Return the first five reasons, separated by semicolons, and the number of further reasons.

    >>> join_reasons([f"partition {number}" for number in range(12)])
    'partition 0; partition 1; partition 2; partition 3; partition 4; and 7 more'
    """
    further_count = len(reasons) - _MAX_JOINED_REASONS
    further = [f"and {further_count} more"] if further_count > 0 else []
    return "; ".join([*reasons[:_MAX_JOINED_REASONS], *further])


def escape_controls(text: str) -> str:
    r"""Return a text with its control characters and changes of direction as JSON escapes.

    Ids come from producers, and a terminal obeys control characters. Spaces of any width remain, as do the invisible
    joiners of Persian and of emoji.

    >>> print(escape_controls("a[b] \x1b[2J \u202e"))
    a[b] \u001b[2J \u202e
    """
    if text.isprintable():
        return text
    return "".join(json.dumps(character)[1:-1] if _is_control(character) else character for character in text)


def _is_control(character: str) -> bool:
    return unicodedata.category(character) in _CONTROL_CATEGORIES and character not in _JOINERS


def escape_lines(text: str) -> str:
    """Return a text with control characters as JSON escapes, except line feeds."""
    return "\n".join(map(escape_controls, text.split("\n")))


def count_noun(number: int, singular: str, plural: str | None = None, separator: str = ",") -> str:
    """Return a number with its noun, and its verb if given; `separator` is between groups of three digits.

    >>> count_noun(1, "response"), count_noun(0, "response"), count_noun(1200, "query is", "queries are")
    ('1 response', '0 responses', '1,200 queries are')
    """
    noun = singular if number == 1 else plural or f"{singular}s"
    return f"{number:,} ".replace(",", separator) + noun


def setting_text(value: object) -> str:
    """Return a value in the notation of TOML, of at most 200 characters; None is "missing".

    >>> setting_text({"control": 0.5, "new ranker": True, "name": "e"})
    '{ control = 0.5, "new ranker" = true, name = "e" }'
    """
    if value is None:
        text = "missing"
    elif isinstance(value, bool):
        text = str(value).lower()
    elif isinstance(value, str):
        text = json.dumps(value, ensure_ascii=False)
    elif isinstance(value, (date, time)):
        text = value.isoformat()
    elif isinstance(value, Mapping):
        pairs = ", ".join(f"{_key_text(str(key))} = {setting_text(member)}" for key, member in value.items())
        text = f"{{ {pairs} }}" if pairs else "{}"
    elif isinstance(value, Sequence) and not isinstance(value, str):
        text = f"[{', '.join(map(setting_text, value))}]"
    else:
        try:
            text = repr(value)
        except ValueError:  # Python limits the digits of printed integers; TOML's hexadecimal integers may have more.
            text = "a number with too many digits"
    return text if len(text) <= _MAX_PRINTED_LENGTH else text[: _MAX_PRINTED_LENGTH - 1] + "…"


def _key_text(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else json.dumps(key, ensure_ascii=False)
