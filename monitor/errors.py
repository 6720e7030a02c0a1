"""What can go wrong, as one tree.

AbMonitorError                      exit code 1
├── UsageError                      2   the command line or the configuration is wrong, or a server refuses its user
│   │                                   or its certificates
│   └── ConfigError                 2   … and this is the key
├── DependencyUnavailable           3   Kafka or the store is out of reach at start
│   └── StoreUnavailable            3   … the store: while running, a reason to wait
├── InputRefused                    4   more refused input than the limits allow
├── StoreOwned                      5   the store was made under other definitions, or by something else
├── HistoryLost                     6   Kafka no longer holds what has not been applied yet
└── Refusal                         one event is not acceptable; only this one is survivable per record
"""

from __future__ import annotations

import re
from typing import Final

ENDED_BY: Final = 128
"""Plus the signal's number: the exit code of what a signal has ended before it was done, as a shell says it."""
_TLS_REFUSAL: Final = re.compile(
    r"\[(?:SSL|X509)(?:: (?P<name>CERTIFICATE_VERIFY_FAILED|WRONG_VERSION_NUMBER|NO_CERTIFICATE\w*"
    r"|\w*ALERT_\w*(?:CERTIFICATE|UNKNOWN_CA|HANDSHAKE_FAILURE|ACCESS_DENIED|PROTOCOL_VERSION)\w*))\] (?P<text>[^(]+)"
)
"""What OpenSSL says when one side does not accept the other; connections that break say other things."""


class AbMonitorError(Exception):
    """Base of every error that this package raises on purpose."""

    exit_code = 1


class UsageError(AbMonitorError):
    """The command was called in a way that cannot work."""

    exit_code = 2


class ConfigError(UsageError):
    """A configuration value is wrong: names the key, the value and what was expected."""

    def __init__(self, key: str, value: object, expected: str) -> None:
        try:
            shown = repr(value)
        except ValueError:  # Python writes no integer as long as a hexadecimal one may be
            shown = "too many digits"
        super().__init__(f"{key}: got {shown}, expected {expected}")
        self.key = key
        self.value = value
        self.expected = expected


class DependencyUnavailable(AbMonitorError):
    """Kafka or the store could not be reached when the command started."""

    exit_code = 3


class StoreUnavailable(DependencyUnavailable):
    """The store does not answer, or answers that it cannot write; whether the last command took effect is unknown."""


class InputRefused(AbMonitorError):
    """The share or the run length of refused input is over its limit."""

    exit_code = 4


class StoreOwned(AbMonitorError):
    """The store holds aggregates that this configuration must not touch."""

    exit_code = 5


class HistoryLost(AbMonitorError):
    """Events are gone before they could be applied, and the configuration does not accept that."""

    exit_code = 6


class Refusal(AbMonitorError):
    """One event is not acceptable.

    `reason` is one of `monitor.events.REASONS` (a bounded metric label); `detail` says where in the event and what
    was expected, and never quotes user text.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


def tls_refusal(said: str) -> str | None:
    """Return why TLS is refused if that is what an error's text says, without the places in OpenSSL's source."""
    found = _TLS_REFUSAL.search(said)
    if found is None:
        return None
    text = found["text"].strip(" .")
    if "ALERT" in found["name"]:
        return f"the server does not accept this side's certificate, or wants one: {text}"
    if found["name"] == "WRONG_VERSION_NUMBER":
        return f"the server does not speak TLS here: {text}"
    if found["name"].startswith("NO_CERTIFICATE"):
        return f"the authority's file cannot be used: {text}"
    return f"the server's certificate is not accepted: {text.removeprefix('certificate verify failed: ')}"
