"""Connections to Redis, Valkey or a cluster, and translation of errors of redis-py into errors of `monitor.errors`."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, cast
from urllib.parse import unquote, urlsplit

import redis
import redis.exceptions
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode
from redis.retry import Retry

from monitor.config import StoreSettings
from monitor.errors import IncompatibleStore, StoreUnavailable, UsageError, tls_failure_reason

_TIMEOUT_S: Final = 10.0
_TLS_ALERT_TIMEOUT_S: Final = 1.0
_CLUSTER: Final = "+cluster"


def connect(settings: StoreSettings) -> redis.Redis | redis.RedisCluster:
    """Return a client that never repeats a command by itself.

    A command whose reply was lost may have been executed, so the caller has to decide.

    The map of a cluster is read at once; raises `StoreUnavailable` if the cluster cannot be reached.
    """
    options: dict[str, Any] = {
        "socket_timeout": _TIMEOUT_S,
        "socket_connect_timeout": _TIMEOUT_S,
        "retry": Retry(NoBackoff(), 0),
        "decode_responses": False,
    }
    if settings.username:
        options["username"] = settings.username
    if settings.password:
        options["password"] = settings.password
    clustered = settings.url.partition("://")[0].endswith(_CLUSTER)
    url, *further_addresses = settings.url.replace(_CLUSTER, "", 1).split(",") if clustered else [settings.url]
    if url.startswith("rediss://"):
        options |= {
            "ssl_ca_certs": settings.ssl_ca_file,
            "ssl_certfile": settings.ssl_cert_file,
            "ssl_keyfile": settings.ssl_key_file,
        }
    try:
        if clustered:
            with translating_errors(settings):
                options["startup_nodes"] = [_cluster_node(address) for address in further_addresses]
                # After one error, a transaction reads the map of the cluster again.
                options["reinitialize_steps"] = 1
                return redis.RedisCluster.from_url(url, **options)
        return redis.Redis.from_url(url, **options)
    except ValueError as error:
        raise UsageError(f"store.url: {error}") from error


def hash_from_reply(reply: Sequence[bytes] | dict[bytes, bytes]) -> dict[bytes, bytes]:
    """Return the fields of a hash from a reply; RESP2 replies with a list in which fields and values alternate."""
    return reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))


def _cluster_node(address: str) -> Any:
    host, _, port = address.partition("/")[0].rpartition(":")
    return cast(Any, ClusterNode)(host, int(port))


_ACCESS_ERRORS: Final = (redis.exceptions.AuthenticationError, redis.exceptions.NoPermissionError)
_LOGIN_MESSAGES: Final = (
    "HELLO must be called with the client already authenticated",
    "NOAUTH",
    "Authentication required",
)
_TEMPORARY_ERRORS: Final = (
    redis.exceptions.ConnectionError,
    redis.exceptions.TimeoutError,
    redis.exceptions.ReadOnlyError,
    redis.exceptions.OutOfMemoryError,
    redis.exceptions.ClusterDownError,
    redis.exceptions.ClusterError,
    redis.exceptions.RedisClusterException,
    redis.exceptions.TryAgainError,
    redis.exceptions.MovedError,
    redis.exceptions.AskError,
    # The server has dropped the script between SCRIPT LOAD and EVALSHA.
    redis.exceptions.NoScriptError,
)
_TEMPORARY_ERROR_CODES: Final = ("LOADING", "MASTERDOWN", "MISCONF", "NOREPLICAS", "BUSY", "READONLY", "OOM", "-OOM")
_ERROR_CODES: Final = {
    redis.exceptions.BusyLoadingError: "LOADING",
    redis.exceptions.ClusterDownError: "CLUSTERDOWN",
    redis.exceptions.MasterDownError: "MASTERDOWN",
    redis.exceptions.OutOfMemoryError: "OOM",
    redis.exceptions.ReadOnlyError: "READONLY",
}
"""Codes that redis-py removes from the server's message; the runbook names the next step by the code."""

_CLOSED_CONNECTION_TEXTS: Final = ("EOF", "reset", "Broken pipe", "closed")


@contextmanager
def translating_errors(settings: StoreSettings) -> Iterator[None]:
    """Turn redis-py's errors in the block into `StoreUnavailable`, `UsageError` or `UnusableStore`."""
    address = unquote(settings.url.partition("://")[2].rpartition("@")[2])
    try:
        yield
    except (redis.exceptions.RedisError, redis.exceptions.RedisClusterException) as error:
        raise _translate(settings, f"store at {address}", error) from error


def _translate(settings: StoreSettings, store: str, error: Exception) -> Exception:
    """Return the error of `monitor.errors` for an error of redis-py; the same error if a defect caused the error."""
    cause: BaseException = error
    if isinstance(error, redis.exceptions.RedisClusterException) and error.__cause__ is not None:
        # No node has returned the map of the cluster; the cause is the error of the last node.
        cause = error.__cause__
    message, translation = str(cause), error
    settings_problem = _find_settings_problem(settings, cause, error)
    if settings_problem is not None:
        translation = UsageError(f"{store}{settings_problem}")
    elif isinstance(cause, redis.exceptions.InvalidResponse):
        # For example a proxy that replies while the store is down.
        translation = StoreUnavailable(
            f"{store}: the server at this address does not use the Redis protocol ({message})"
        )
    elif isinstance(cause, (redis.exceptions.AskError, redis.exceptions.TryAgainError)):
        translation = StoreUnavailable(f"{store}: keys are being moved from one master to another ({message})")
    elif isinstance(cause, _TEMPORARY_ERRORS) or message.startswith(_TEMPORARY_ERROR_CODES):
        code = _ERROR_CODES.get(type(cause), "")
        translation = StoreUnavailable(f"{store}: {'' if message.startswith(code) else f'{code} '}{message}")
    elif "WRONGTYPE" in message:
        translation = IncompatibleStore(
            f"{store}: a key with the prefix abm: has another type than AB Monitor writes ({message}). Another program "
            "may use the keys: point store.url at another database"
        )
    return translation


def _find_settings_problem(settings: StoreSettings, cause: BaseException, error: Exception) -> str | None:
    """Return the end of a sentence about a problem that only other settings can solve; None for other errors."""
    message, tls_problem = str(cause), _find_tls_problem(settings, cause)
    needs_login = message.startswith(_LOGIN_MESSAGES)
    is_cluster_node = isinstance(cause, redis.exceptions.MovedError) and _CLUSTER not in settings.url
    problems = [
        (needs_login and not settings.password, " requires a password: set ABMONITOR_STORE_PASSWORD"),
        (
            needs_login or isinstance(cause, _ACCESS_ERRORS),
            (
                f" rejects the user {settings.username or 'default'}: {message}. Check store.username, "
                "ABMONITOR_STORE_PASSWORD and the permissions in docs/security.md"
            ),
        ),
        (
            "DB index is out of range" in message or "invalid DB index" in message,
            " has no database of this number: correct the number after the last / of store.url",
        ),
        (tls_problem is not None, f": {tls_problem}"),
        (
            "Cluster mode is not enabled" in str(error),
            (
                " is not a cluster, or the user lacks the permission cluster|slots: set redis:// instead of "
                "redis+cluster://, or grant the permission"
            ),
        ),
        (is_cluster_node, " is a node of a cluster: set redis+cluster:// instead of redis://"),
    ]
    return next((text for applies, text in problems if applies), None)


def _find_tls_problem(settings: StoreSettings, error: BaseException) -> str | None:
    """Return which certificate was rejected and why; None if TLS is not the cause of an error.

    If the server closes the connection before the client has written its command, the server's TLS alert is lost. Then
    a second handshake reads the alert.
    """
    message = str(error)
    reason = tls_failure_reason(message)
    is_closed = any(text in message for text in _CLOSED_CONNECTION_TEXTS)
    if reason or not settings.url.startswith("rediss://") or not is_closed:
        return reason
    address = urlsplit(settings.url)
    try:
        context = ssl.create_default_context(cafile=settings.ssl_ca_file)
        if settings.ssl_cert_file:
            context.load_cert_chain(settings.ssl_cert_file, settings.ssl_key_file)
        endpoint = (address.hostname or "localhost", address.port or 6379)
        with (
            socket.create_connection(endpoint, _TLS_ALERT_TIMEOUT_S) as plain_socket,
            context.wrap_socket(plain_socket, server_hostname=address.hostname) as tls_socket,
        ):
            tls_socket.recv(1)
    except OSError as handshake_error:
        return tls_failure_reason(str(handshake_error))
    return None
