"""Whether Kafka takes this side in, and if not why: a client tries in silence until its time is over, whatever it is.

It cannot be asked either: a broker that refuses a user answers and hangs up, and the client forgets an answer that
arrives together with the end of the connection.
"""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, Final

from kafka.errors import KafkaError, SaslAuthenticationFailedError, UnsupportedSaslMechanismError, for_code
from kafka.net.sasl import get_sasl_mechanism

from monitor.config import KafkaSettings
from monitor.errors import AbMonitorError, DependencyUnavailable, UsageError, tls_refusal

_PROBE_S: Final = 2.0
"""For each step of one server, the first of which does not answer."""
_MOST_SERVERS: Final = 3
_API_VERSIONS: Final = 18
_SASL_HANDSHAKE: Final = 17
_SASL_AUTHENTICATE: Final = 36
_LARGEST_REPLY: Final = 1_000_000


class _Refused(Exception):
    """The broker does not accept this user."""


def explained(settings: KafkaSettings, options: dict[str, Any], error: Exception) -> AbMonitorError:
    """Return what to raise for a client that could not start: connect once more, and look why not.

    `UsageError` if a server refuses the user, or either side the other's certificate: waiting does not mend that.
    `DependencyUnavailable` for everything else, with the cause if there is one.
    """
    found: AbMonitorError = DependencyUnavailable(f"Kafka at {settings.bootstrap_servers}: {error}")
    for cause in _causes(settings, options):
        found = cause or found
        if isinstance(found, UsageError):
            break
    return found


def check_admission(settings: KafkaSettings, options: dict[str, Any]) -> None:
    """Raise `UsageError` as above, unless some server lets this side in first: no client has to try for that."""
    for cause in _causes(settings, options):
        if cause is None:
            return
        if isinstance(cause, UsageError):
            raise cause


def _causes(settings: KafkaSettings, options: dict[str, Any]) -> Iterator[AbMonitorError | None]:
    """Yield why each server does not let this side in, None if it does, until one does not answer at all."""
    for server in settings.bootstrap_servers.split(",")[:_MOST_SERVERS]:
        place = server.strip()
        try:
            _come_in(place, options)
        except _Refused as refused:
            yield UsageError(f"Kafka at {place} refuses the user {settings.sasl_username}: {refused}")
        except (EOFError, struct.error):
            said = f"hangs up. Does it speak kafka.security_protocol = {settings.security_protocol}?"
            yield DependencyUnavailable(f"Kafka at {settings.bootstrap_servers}: {said}")
        except (OSError, KafkaError) as cause:
            refusal = tls_refusal(str(cause))
            if refusal is None:
                yield DependencyUnavailable(f"Kafka at {settings.bootstrap_servers}: {cause}")
            else:
                yield UsageError(f"Kafka at {place}: {refusal}")
            if isinstance(cause, TimeoutError):
                return
        else:
            yield None


def _come_in(place: str, options: dict[str, Any]) -> None:
    """Connect, and ask one question that every broker answers; authenticate first if that is configured."""
    host, _, port = place.rpartition(":")
    host = host.strip("[]")
    with ExitStack() as stack:
        connection = stack.enter_context(socket.create_connection((host, int(port)), _PROBE_S))
        context: ssl.SSLContext | None = options.get("ssl_context")
        if context is not None:
            connection = stack.enter_context(context.wrap_socket(connection, server_hostname=host))
        if "sasl_mechanism" in options:
            _authenticate(connection, host, options)
        else:
            _ask(connection, _API_VERSIONS, 0, b"")


def _authenticate(connection: socket.socket, host: str, options: dict[str, Any]) -> None:
    name = options["sasl_mechanism"].encode()
    reply = _ask(connection, _SASL_HANDSHAKE, 1, struct.pack(">h", len(name)) + name)
    if struct.unpack_from(">h", reply)[0] == UnsupportedSaslMechanismError.errno:
        raise _Refused(f"it does not offer {options['sasl_mechanism']}")
    mechanism = get_sasl_mechanism(options["sasl_mechanism"])(host=host, **options)
    while not mechanism.is_done():
        token = mechanism.auth_bytes()
        reply = _ask(connection, _SASL_AUTHENTICATE, 0, struct.pack(">i", len(token)) + token)
        code, length = struct.unpack_from(">hh", reply)
        end = 4 + max(length, 0)
        if code == SaslAuthenticationFailedError.errno:
            raise _Refused(reply[4:end].decode("utf-8", "replace"))
        if code:
            raise KafkaError(for_code(code).__name__)
        (size,) = struct.unpack_from(">i", reply, end)
        mechanism.receive(reply[end + 4 : end + 4 + size])


def _ask(connection: socket.socket, key: int, version: int, body: bytes) -> bytes:
    """Return a reply's body; raises `EOFError` if the connection ends before it."""
    request = struct.pack(">hhih", key, version, 1, -1) + body
    connection.sendall(struct.pack(">i", len(request)) + request)
    (size,) = struct.unpack(">i", _read(connection, 4))
    if not 4 <= size <= _LARGEST_REPLY:  # noqa: PLR2004  the number of the request
        raise EOFError
    return _read(connection, size)[4:]


def _read(connection: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        part = connection.recv(size - len(found))
        if not part:
            raise EOFError
        found += part
    return found
