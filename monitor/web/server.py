"""The HTTP server: a Starlette application on uvicorn, in a thread of its own."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import threading
from typing import Any, Final, cast

import uvicorn

from monitor.config import HttpSettings
from monitor.errors import UsageError
from monitor.web.http_connections import ConnectionLimits, ResponseDeadline
from monitor.web.routes import Endpoints

log = logging.getLogger(__name__)
_BACKLOG: Final = 128
_MAX_INCOMPLETE_BYTES: Final = 65_536
"""An incomplete head above this is closed as no HTTP (400); a complete one has the lower limit of `RequestRules`."""
_KEEP_ALIVE_S: Final = 5
_STOP_S: Final = 2


class HttpServer:
    """Serves endpoints from a thread with an event loop of its own, between `start` and `stop`."""

    def __init__(self, settings: HttpSettings, endpoints: Endpoints) -> None:
        self._settings = settings
        self._application = ResponseDeadline(endpoints.application(settings.token))
        self.port = settings.port
        """The port on which the server listens; once it does, never 0."""
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """The address of the page for people."""
        scheme = "https" if self._settings.tls_cert_file else "http"
        host = f"[{self._settings.host}]" if ":" in self._settings.host else self._settings.host
        return f"{scheme}://{host}:{self.port}/"

    def start(self) -> None:
        """Listen; raises `UsageError` if the address cannot be used."""
        settings = self._settings
        tls = _tls_context(settings)
        if settings.token is not None and tls is None:
            log.warning("http.token can be read on the way: without http.tls_cert_file nothing is encrypted")
        listening = _listen(settings.host, settings.port)
        self.port = listening.getsockname()[1]
        limits = ConnectionLimits(tls)
        self._server = uvicorn.Server(
            uvicorn.Config(
                self._application,
                loop="asyncio",
                http=cast(Any, limits.protocol),  # uvicorn calls it like a class
                ws="none",
                lifespan="off",
                log_config=None,
                log_level=logging.ERROR,  # anything less is about clients
                access_log=False,
                proxy_headers=False,
                server_header=False,
                backlog=_BACKLOG,
                timeout_keep_alive=_KEEP_ALIVE_S,
                timeout_graceful_shutdown=_STOP_S,
                h11_max_incomplete_event_size=_MAX_INCOMPLETE_BYTES,
            )
        )
        serving = _serve(self._server, listening, limits)
        self._thread = threading.Thread(target=asyncio.run, args=(serving,), name="http", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop listening, and give requests in progress two seconds; one that still reads the store is left alone."""
        if self._server is not None and self._thread is not None:
            self._server.should_exit = True
            self._thread.join(_STOP_S * 2)


async def _serve(server: uvicorn.Server, listening: socket.socket, limits: ConnectionLimits) -> None:
    await server.serve(sockets=[listening])
    await limits.abort_all()


def _listen(host: str, port: int) -> socket.socket:
    """Return a listening socket for the address."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        dual = family == socket.AF_INET6 and address[0] == "::" and socket.has_dualstack_ipv6()
        listening = socket.create_server(address, family=family, backlog=_BACKLOG, dualstack_ipv6=dual)
    except OSError as error:
        raise UsageError(f"http: cannot listen on {host}:{port}: {error}") from error
    # Connections inherit it. uvicorn writes headers and body apart; Nagle's algorithm would delay each body by 40 ms.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def _tls_context(settings: HttpSettings) -> ssl.SSLContext | None:
    """Return the context for the configured certificate, None if connections are not encrypted."""
    if not settings.tls_cert_file or not settings.tls_key_file:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(settings.tls_cert_file, settings.tls_key_file)
    return context
