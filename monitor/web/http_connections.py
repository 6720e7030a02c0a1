"""Limits that uvicorn does not have: how many connections, and how long a handshake, a request and a response may take.

`ConnectionLimits.protocol` is the protocol that uvicorn creates for each connection; it passes everything on to
uvicorn's own. `ResponseDeadline` is the outermost ASGI application: it reports when a request has arrived and when its
response has been sent. A slow client costs no thread, only its connection.
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
TIMEOUT_S: Final = 10
"""For a handshake with the head of the first request, for the head of each further request, and for each response."""
MAX_CONNECTIONS: Final = 64
"""An encrypted connection takes 256 KiB for a buffer of asyncio alone."""
_PIECE_BYTES: Final = 65_536
_STATE_KEY: Final = "connection"


class ConnectionLimits:
    """The open connections of one server. A new one above the limit replaces the one that has been idle longest."""

    def __init__(self, tls: ssl.SSLContext | None) -> None:
        self.tls = tls
        self._open: set[LimitedConnection] = set()
        self._idle: dict[LimitedConnection, None] = {}
        """Connections without a complete request, the oldest first."""

    def protocol(self, **arguments: Any) -> asyncio.Protocol:
        """Return the protocol of a new connection; the arguments are those of uvicorn's protocols."""
        return LimitedConnection(self, **arguments)

    def add(self, connection: LimitedConnection) -> None:
        """Count a new connection. If there are too many, close the oldest idle one, or the new one if all are busy."""
        self._open.add(connection)
        self._idle[connection] = None
        if len(self._open) > MAX_CONNECTIONS:
            next(iter(self._idle)).abort()

    def set_idle(self, connection: LimitedConnection) -> None:
        """Note that the connection waits for a request."""
        self._idle[connection] = None

    def set_busy(self, connection: LimitedConnection) -> None:
        """Note that the connection has a request in progress."""
        self._idle.pop(connection, None)

    def remove(self, connection: LimitedConnection) -> None:
        """Count the connection no longer."""
        self._open.discard(connection)
        self._idle.pop(connection, None)

    async def abort_all(self) -> None:
        """Close all connections without waiting for their clients."""
        for connection in list(self._open):
            connection.abort()
        await asyncio.sleep(0)


class LimitedConnection(asyncio.Protocol):
    """One connection: TLS if there is a context for it, a deadline for each request, then uvicorn's protocol."""

    def __init__(self, limits: ConnectionLimits, *, app_state: dict[str, Any], **arguments: Any) -> None:
        self._limits = limits
        # ASGI applications get a copy of `app_state` as scope["state"].
        self._http = H11Protocol(app_state={**app_state, _STATE_KEY: self}, **arguments)
        self._transport: asyncio.Transport | None = None
        self._handshake: asyncio.Task[None] | None = None
        self._early: bytearray | None = bytearray()
        """Data that arrive before uvicorn's protocol has its transport; None afterwards."""
        self._deadline: asyncio.TimerHandle | None = None
        self._between_requests = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._restart_deadline()
        self._limits.add(self)
        if self._limits.tls is None:
            self._establish(self._transport)
        else:
            self._handshake = asyncio.get_running_loop().create_task(self._encrypt(self._transport, self._limits.tls))

    async def _encrypt(self, transport: asyncio.Transport, tls: ssl.SSLContext) -> None:
        """Shake hands. uvicorn itself would give a client 60 s for that, and would not count its connection."""
        if transport.is_closing():
            return
        try:
            encrypted = await asyncio.get_running_loop().start_tls(transport, self, tls, server_side=True)
        except OSError as error:
            log.debug("http handshake failed: %s", error)
            # The traceback would keep the connection's memory until a garbage collection, and the service runs few.
            error.with_traceback(None)
            encrypted = None
        if encrypted is None:
            self.connection_lost(None)
        elif self._transport is not None:
            self._establish(encrypted)

    def _establish(self, transport: asyncio.Transport) -> None:
        """Hand the transport, and what has arrived on it, to uvicorn's protocol."""
        self._transport = transport
        early, self._early = self._early, None
        self._http.connection_made(transport)
        if early:
            self._http.data_received(bytes(early))

    def data_received(self, data: bytes) -> None:
        if self._between_requests:
            self._between_requests = False
            self._restart_deadline()
        if self._early is None:
            self._http.data_received(data)
        else:
            self._early += data

    def eof_received(self) -> None:
        if self._early is None:
            self._http.eof_received()

    def pause_writing(self) -> None:
        self._http.pause_writing()

    def resume_writing(self) -> None:
        self._http.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  see below
        if self._transport is None:
            return
        self._transport = None
        self._limits.remove(self)
        self._cancel_deadline()
        if self._early is None:
            # After an error uvicorn would keep a timer, and with it the memory until a garbage collection.
            self._http.connection_lost(None)
        del self._http  # it refers to this object

    def abort(self) -> None:
        """Close the connection at once, whatever has not been sent yet."""
        self._limits.remove(self)
        self._cancel_deadline()
        if self._transport is not None:
            self._transport.abort()

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Suspend the deadline while the block answers a request; afterwards one for the next request begins."""
        self._limits.set_busy(self)
        self._cancel_deadline()
        try:
            yield
        finally:
            if self._transport is not None:
                # Also for a connection that is closing: its client may not take the rest of the response.
                self._limits.set_idle(self)
                self._between_requests = True
                self._restart_deadline()

    def _restart_deadline(self) -> None:
        self._cancel_deadline()
        self._deadline = asyncio.get_running_loop().call_later(TIMEOUT_S, self.abort)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class ResponseDeadline:
    """ASGI middleware that sends responses in pieces, and closes the connection of a client that takes too long."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request of a `LimitedConnection`."""
        connection: LimitedConnection = scope["state"][_STATE_KEY]
        deadline_s: float | None = None

        async def close() -> None:
            connection.abort()
            while (await receive())["type"] != "http.disconnect":
                pass  # the request itself comes first

        async def send_in_time(message: Message) -> None:
            nonlocal deadline_s
            if deadline_s is None:
                deadline_s = asyncio.get_running_loop().time() + TIMEOUT_S
            try:
                async with asyncio.timeout_at(deadline_s):
                    for piece in _pieces(message):
                        await send(piece)
            except TimeoutError:
                log.debug("http response not taken within %d s", TIMEOUT_S)
                await close()

        with connection.answering():
            try:
                await self._app(scope, receive, send_in_time)
            except asyncio.CancelledError:
                # uvicorn cancels the requests that a stopping server does not wait for, and reports their number.
                await close()


def _pieces(message: Message) -> Iterator[Message]:
    """Yield a message in pieces: uvicorn waits for the client before each one, but never in the middle of one."""
    body = message.get("body", b"")
    if len(body) <= _PIECE_BYTES:
        yield message
        return
    for start in range(0, len(body), _PIECE_BYTES):
        yield {"type": "http.response.body", "body": body[start : start + _PIECE_BYTES], "more_body": True}
    yield {"type": "http.response.body", "body": b"", "more_body": message.get("more_body", False)}
