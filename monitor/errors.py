"""The exceptions that the package raises on purpose, with the exit codes of commands.

AbMonitorError                      exit code 1
├── UsageError                      2   wrong arguments or settings, or a server that refuses the user or certificates
│   └── ConfigError                 2   a wrong setting; names its key
├── DependencyUnavailable           3   Kafka or the store cannot be reached when a command starts
│   └── StoreUnavailable            3   the store cannot be reached; a running worker waits and tries again
├── InputRejected                   4   too many rejected events, or a judgment file with an invalid line
├── UnusableStore                   5   the store can be reached, but its content cannot be used
│   ├── IncompatibleStore           5   another schema, other definitions, or another generation
│   └── CorruptStore                5   missing or damaged data
├── DataLoss                        6   Kafka has deleted events that were not applied yet
└── InvalidEvent                        one event is rejected; processing continues with the next record
"""

from __future__ import annotations

import re
from typing import Final

SIGNAL_EXIT_CODE_BASE: Final = 128
"""A command that a signal has interrupted exits with this base plus the number of the signal, as shells report it."""
_TLS_FAILURE: Final = re.compile(
    r"\[(?:SSL|X509)(?:: (?P<name>CERTIFICATE_VERIFY_FAILED|WRONG_VERSION_NUMBER|NO_CERTIFICATE\w*"
    r"|\w*ALERT_\w*(?:CERTIFICATE|UNKNOWN_CA|HANDSHAKE_FAILURE|ACCESS_DENIED|PROTOCOL_VERSION)\w*))\] (?P<text>[^(]+)"
)
"""OpenSSL's messages when one side does not accept the other; messages about broken connections do not match."""


class AbMonitorError(Exception):
    """Base class of all errors that the package raises on purpose."""

    exit_code = 1


class UsageError(AbMonitorError):
    """The command was called with arguments or settings that cannot work."""

    exit_code = 2


class ConfigError(UsageError):
    """A setting is wrong; the message names the key, the value and the expected values."""

    def __init__(self, key: str, value: object, expected: str) -> None:
        try:
            printed = repr(value)
        except ValueError:  # Python limits the digits of printed integers; TOML's hexadecimal integers may have more.
            printed = "too many digits"
        super().__init__(f"{key}: got {printed}, expected {expected}")
        self.key = key
        self.value = value
        self.expected = expected


class DependencyUnavailable(AbMonitorError):
    """Kafka or the store could not be reached when the command started."""

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
        return f"the server does not accept this side's certificate, or wants one: {text}"
    if failure["name"] == "WRONG_VERSION_NUMBER":
        return f"the server does not speak TLS here: {text}"
    if failure["name"].startswith("NO_CERTIFICATE"):
        return f"the authority's file cannot be used: {text}"
    return f"the server's certificate is not accepted: {text.removeprefix('certificate verify failed: ')}"
