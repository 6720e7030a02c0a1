"""Limits that uvicorn lacks: the number of connections, and the time of a handshake, a request and a response.

uvicorn creates a `LimitedConnection` for each connection, through `ConnectionLimits.create_protocol`; it forwards all
calls to uvicorn's own protocol. `ResponseDeadline` is the outermost ASGI application: it reports when a request has
arrived and when its response has been sent. A slow client occupies a connection, but no thread.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, cast

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

log = logging.getLogger(__name__)
REQUEST_TIMEOUT_S: Final = 10
"""Time for the handshake with the first request head, for each further request head, and for each response."""
MAX_CONNECTIONS: Final = 64
"""asyncio's buffer alone takes 256 KiB per encrypted connection, so 64 connections take 16 MiB."""
_CHUNK_BYTES: Final = 65_536
_CONNECTION_KEY: Final = "connection"


class ConnectionLimits:
    """The open connections of a server. Above the limit, a new connection replaces the longest idle connection."""

    def __init__(self, tls: ssl.SSLContext | None) -> None:
        self.tls = tls
        self._open_connections: set[LimitedConnection] = set()
        self._idle_connections: dict[LimitedConnection, None] = {}
        """Connections without a complete request, in the order in which they became idle."""

    def create_protocol(self, **arguments: Any) -> asyncio.Protocol:
        """Return the protocol object of a new connection, created from the arguments of uvicorn's protocol classes."""
        return LimitedConnection(self, **arguments)

    def register(self, connection: LimitedConnection) -> None:
        """Count a new connection. Above the limit, close the longest idle connection, perhaps the new connection."""
        self._open_connections.add(connection)
        self._idle_connections[connection] = None
        if len(self._open_connections) > MAX_CONNECTIONS:
            next(iter(self._idle_connections)).abort()

    def set_idle(self, connection: LimitedConnection) -> None:
        """Mark the connection as waiting for a request."""
        self._idle_connections[connection] = None

    def set_busy(self, connection: LimitedConnection) -> None:
        """Mark the connection as processing a request."""
        self._idle_connections.pop(connection, None)

    def unregister(self, connection: LimitedConnection) -> None:
        """Remove a closed connection from the count."""
        self._open_connections.discard(connection)
        self._idle_connections.pop(connection, None)

    async def abort_all(self) -> None:
        """Close all connections without waiting for their clients."""
        for connection in list(self._open_connections):
            connection.abort()
        await asyncio.sleep(0)


class LimitedConnection(asyncio.Protocol):
    """A connection with optional TLS and a deadline for each request, in front of uvicorn's protocol."""

    def __init__(self, limits: ConnectionLimits, *, app_state: dict[str, Any], **arguments: Any) -> None:
        self._limits = limits
        # ASGI applications get a copy of `app_state` as scope["state"].
        self._http = H11Protocol(app_state={**app_state, _CONNECTION_KEY: self}, **arguments)
        self._transport: asyncio.Transport | None = None
        self._handshake: asyncio.Task[None] | None = None
        self._early_bytes: bytearray | None = bytearray()
        """Bytes received before uvicorn's protocol has a transport; None afterwards."""
        self._deadline: asyncio.TimerHandle | None = None
        self._between_requests = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._restart_deadline()
        self._limits.register(self)
        if self._limits.tls is None:
            self._establish(self._transport)
        else:
            self._handshake = asyncio.get_running_loop().create_task(self._encrypt(self._transport, self._limits.tls))

    async def _encrypt(self, transport: asyncio.Transport, tls: ssl.SSLContext) -> None:
        """Do the TLS handshake. uvicorn's own handshake would allow 60 s, without counting the connection."""
        if transport.is_closing():
            return
        try:
            encrypted = await asyncio.get_running_loop().start_tls(transport, self, tls, server_side=True)
        except OSError as error:
            log.debug("http handshake failed: %s", error)
            # The traceback would keep the connection's memory until the next garbage collection, which is rare here.
            error.with_traceback(None)
            encrypted = None
        if encrypted is None:
            self.connection_lost(None)
        elif self._transport is not None:
            self._establish(encrypted)

    def _establish(self, transport: asyncio.Transport) -> None:
        """Give the transport, and the bytes received so far, to uvicorn's protocol."""
        self._transport = transport
        early_bytes, self._early_bytes = self._early_bytes, None
        self._http.connection_made(transport)
        if early_bytes:
            self._http.data_received(bytes(early_bytes))

    def data_received(self, data: bytes) -> None:
        if self._between_requests:
            self._between_requests = False
            self._restart_deadline()
        if self._early_bytes is None:
            self._http.data_received(data)
        else:
            self._early_bytes += data

    def eof_received(self) -> None:
        if self._early_bytes is None:
            self._http.eof_received()

    def pause_writing(self) -> None:
        self._http.pause_writing()

    def resume_writing(self) -> None:
        self._http.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  replaced by None below
        if self._transport is None:
            return
        self._transport = None
        self._limits.unregister(self)
        self._cancel_deadline()
        if self._early_bytes is None:
            # If it received the error, uvicorn would keep a timer, which refers to the connection's memory.
            self._http.connection_lost(None)
        del self._http  # breaks a reference cycle

    def abort(self) -> None:
        """Close the connection at once; unsent data is lost."""
        self._limits.unregister(self)
        self._cancel_deadline()
        if self._transport is not None:
            self._transport.abort()

    @contextmanager
    def suspend_deadline(self) -> Iterator[None]:
        """Suspend the deadline within the `with` block, which answers a request; then start a new deadline."""
        self._limits.set_busy(self)
        self._cancel_deadline()
        try:
            yield
        finally:
            if self._transport is not None:
                # A closing connection needs a deadline, too, because its client may not read the rest of the response.
                self._limits.set_idle(self)
                self._between_requests = True
                self._restart_deadline()

    def _restart_deadline(self) -> None:
        self._cancel_deadline()
        self._deadline = asyncio.get_running_loop().call_later(REQUEST_TIMEOUT_S, self.abort)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class ResponseDeadline:
    """ASGI middleware that sends responses in chunks, and closes the connection of a client that reads too slowly."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request of a `LimitedConnection`."""
        connection: LimitedConnection = scope["state"][_CONNECTION_KEY]
        deadline_s: float | None = None

        async def close() -> None:
            connection.abort()
            while (await receive())["type"] != "http.disconnect":
                pass  # skip the messages of the request

        async def send_in_time(message: Message) -> None:
            nonlocal deadline_s
            if deadline_s is None:
                deadline_s = asyncio.get_running_loop().time() + REQUEST_TIMEOUT_S
            try:
                async with asyncio.timeout_at(deadline_s):
                    for chunk in _split_body(message):
                        await send(chunk)
            except TimeoutError:
                log.debug("http response not taken within %d s", REQUEST_TIMEOUT_S)
                await close()

        with connection.suspend_deadline():
            try:
                await self._app(scope, receive, send_in_time)
            except asyncio.CancelledError:
                # uvicorn cancels the requests that a stopping server does not wait for, and reports their number.
                await close()


def _split_body(message: Message) -> Iterator[Message]:
    """Yield a message with the body split into chunks, because uvicorn waits for the client only between messages."""
    body = message.get("body", b"")
    if len(body) <= _CHUNK_BYTES:
        yield message
        return
    for start in range(0, len(body), _CHUNK_BYTES):
        yield {"type": "http.response.body", "body": body[start : start + _CHUNK_BYTES], "more_body": True}
    yield {"type": "http.response.body", "body": b"", "more_body": message.get("more_body", False)}
