"""Connections to Redis, Valkey or a cluster of them, and what its errors mean."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, cast

import redis
import redis.exceptions
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode
from redis.retry import Retry

from monitor.config import StoreSettings
from monitor.errors import StoreOwned, StoreUnavailable, UsageError
from monitor.state.tls import refusal

_TIMEOUT_S: Final = 10.0
_CLUSTER: Final = "+cluster"


def connect(settings: StoreSettings) -> redis.Redis | redis.RedisCluster:
    """Return a client that never sends a command twice by itself: a lost reply is for the caller to judge.

    Raises `StoreUnavailable` for a cluster that cannot be reached: its map is read at once.
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
    url, *others = (settings.url.replace(_CLUSTER, "", 1) if clustered else settings.url).split(",")
    if url.startswith("rediss://"):
        options |= {
            "ssl_ca_certs": settings.ssl_ca_file,
            "ssl_certfile": settings.ssl_cert_file,
            "ssl_keyfile": settings.ssl_key_file,
        }
    try:
        if clustered:
            with unavailable(settings):
                options["startup_nodes"] = [_node(place) for place in others]
                # A transaction looks for another master only after so many errors of its own.
                options["reinitialize_steps"] = 1
                return redis.RedisCluster.from_url(url, **options)
        return redis.Redis.from_url(url, **options)
    except ValueError as error:
        raise UsageError(f"store.url: {error}") from error


def pairs(reply: Sequence[bytes] | dict[bytes, bytes]) -> dict[bytes, bytes]:
    """Return the fields of a hash, which only the newer protocol says are pairs."""
    return reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))


def _node(place: str) -> Any:
    host, _, port = place.partition("/")[0].rpartition(":")
    return cast(Any, ClusterNode)(host, int(port))


_REFUSED: Final = (redis.exceptions.AuthenticationError, redis.exceptions.NoPermissionError)
_NO_USER: Final = ("HELLO must be called with the client already authenticated", "NOAUTH", "Authentication required")
_WAIT: Final = (
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
    # Scripts were dropped again between loading one and running it.
    redis.exceptions.NoScriptError,
)
_WAIT_CODES: Final = ("LOADING", "MASTERDOWN", "MISCONF", "NOREPLICAS", "BUSY", "READONLY", "OOM", "-OOM")


@contextmanager
def unavailable(settings: StoreSettings) -> Iterator[None]:
    """Turn what the store says when it cannot serve into `StoreUnavailable`; what it refuses, `UsageError`."""
    place = settings.url.partition("://")[2].rpartition("@")[2]
    try:
        yield
    except (redis.exceptions.RedisError, redis.exceptions.RedisClusterException) as error:
        raise _meaning(settings, f"store at {place}", error) from error


def _meaning(settings: StoreSettings, store: str, error: Exception) -> Exception:
    """Return what an error means to whoever runs the service; the error itself if it is a defect of ours."""
    cause: BaseException = error
    if isinstance(error, redis.exceptions.RedisClusterException) and error.__cause__ is not None:
        # The map of the cluster could not be read from any of its nodes: the last one said why.
        cause = error.__cause__
    said, meaning, mistake = str(cause), error, _mistake(settings, cause, error)
    if mistake is not None:
        meaning = UsageError(f"{store}{mistake}")
    elif isinstance(cause, redis.exceptions.InvalidResponse):
        # Perhaps what answers for a store that is away: that of a proxy, say.
        meaning = StoreUnavailable(f"{store}: what answers there does not speak the Redis protocol ({said})")
    elif isinstance(cause, (redis.exceptions.AskError, redis.exceptions.TryAgainError)):
        meaning = StoreUnavailable(f"{store}: keys are moving from one master to another ({said})")
    elif isinstance(cause, _WAIT) or said.startswith(_WAIT_CODES):
        meaning = StoreUnavailable(f"{store}: {said}")
    elif "WRONGTYPE" in said:
        meaning = StoreOwned(f"{store} holds something else under the prefix abm: ({said})")
    return meaning


def _mistake(settings: StoreSettings, cause: BaseException, error: Exception) -> str | None:
    """Return what is wrong with the settings, None if an error does not say that: waiting would not mend it."""
    said, refused = str(cause), refusal(settings, cause)
    no_user = said.startswith(_NO_USER)
    elsewhere = isinstance(cause, redis.exceptions.MovedError) and _CLUSTER not in settings.url
    found = [
        (no_user and not settings.password, " asks for a password: set ABMONITOR_STORE_PASSWORD"),
        (no_user or isinstance(cause, _REFUSED), f" refuses this user: {said}"),
        ("DB index is out of range" in said or "invalid DB index" in said, " has no database of this number"),
        (refused is not None, f": {refused}"),
        (
            "Cluster mode is not enabled" in str(error),
            " is not a cluster, or this user may not see its map (cluster|slots)",
        ),
        (elsewhere, " is a node of a cluster: say redis+cluster:// instead of redis://"),
    ]
    return next((text for holds, text in found if holds), None)
