"""The HTTP server: runs the Starlette application on uvicorn in a background thread."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import threading
from dataclasses import replace
from typing import Any, Final, cast

import uvicorn

from monitor.config import HttpSettings
from monitor.errors import UsageError
from monitor.web.http_connections import ConnectionLimits, ResponseDeadline
from monitor.web.routes import HttpEndpoints

log = logging.getLogger(__name__)
_BACKLOG: Final = 128
_MAX_INCOMPLETE_BYTES: Final = 65_536
"""uvicorn rejects a longer incomplete request head with 400; `RequestRules` has a lower limit for complete heads."""
_KEEP_ALIVE_S: Final = 5
_SHUTDOWN_S: Final = 2


class HttpServer:
    """Serves endpoints from a background thread with a separate event loop, between `start` and `stop`."""

    def __init__(self, settings: HttpSettings, endpoints: HttpEndpoints) -> None:
        self._settings = settings
        self._application = ResponseDeadline(endpoints.application(settings))
        self.port = settings.port
        """The port on which the server listens. A configured port of 0 is replaced by the actual port in `start`."""
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """The URL of the HTML page on this machine."""
        return replace(self._settings, port=self.port, public_url=None).url

    def start(self) -> None:
        """Listen on the configured address and serve requests. Raises `UsageError` if the address cannot be used."""
        settings = self._settings
        tls = _tls_context(settings)
        if settings.token is not None and tls is None:
            log.warning(
                "http.token is sent unencrypted: set http.tls_cert_file and http.tls_key_file, or encrypt in a proxy"
            )
        if settings.share_secret is not None and settings.is_open:
            log.warning("http.share_secret has no effect: without token and trusted_proxies, all can read all")
        listener = _listening_socket(settings.host, settings.port)
        self.port = listener.getsockname()[1]
        limits = ConnectionLimits(tls)
        self._server = uvicorn.Server(
            uvicorn.Config(
                self._application,
                loop="asyncio",
                http=cast(Any, limits.create_protocol),  # uvicorn calls the value like a class
                ws="none",
                lifespan="off",
                log_config=None,
                log_level=logging.ERROR,  # messages of lower levels are about mistakes of clients
                access_log=False,
                proxy_headers=False,
                server_header=False,
                backlog=_BACKLOG,
                timeout_keep_alive=_KEEP_ALIVE_S,
                timeout_graceful_shutdown=_SHUTDOWN_S,
                h11_max_incomplete_event_size=_MAX_INCOMPLETE_BYTES,
            )
        )
        serving = _serve_until_stopped(self._server, listener, limits)
        self._thread = threading.Thread(target=asyncio.run, args=(serving,), name="http", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop listening and wait 2 s for requests in progress. Threads that still read the store are abandoned."""
        if self._server is not None and self._thread is not None:
            self._server.should_exit = True
            self._thread.join(_SHUTDOWN_S * 2)


async def _serve_until_stopped(server: uvicorn.Server, listener: socket.socket, limits: ConnectionLimits) -> None:
    await server.serve(sockets=[listener])
    await limits.abort_all()


def _listening_socket(host: str, port: int) -> socket.socket:
    """Return a listening socket for the address. Raises `UsageError` if the address cannot be used."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        dual = family == socket.AF_INET6 and address[0] == "::" and socket.has_dualstack_ipv6()
        listener = socket.create_server(address, family=family, backlog=_BACKLOG, dualstack_ipv6=dual)
    except OSError as error:
        raise UsageError(f"http: cannot listen on {host}:{port}: {error}") from error
    # Accepted connections inherit TCP_NODELAY. uvicorn writes headers and body separately; without the option, Nagle's
    # algorithm would delay each body by 40 ms.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def _tls_context(settings: HttpSettings) -> ssl.SSLContext | None:
    """Return the context for the configured certificate, None if connections are not encrypted."""
    if not settings.tls_cert_file or not settings.tls_key_file:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(settings.tls_cert_file, settings.tls_key_file)
    return context
