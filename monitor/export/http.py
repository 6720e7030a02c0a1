"""The HTTP endpoints, on cheroot: bounded threads, size limits and timeouts; what is not listed is 404."""

from __future__ import annotations

import hmac
import io
import json
import logging
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from http import HTTPStatus
from typing import Any, Final, cast
from urllib.parse import parse_qs, unquote_to_bytes

from cheroot import wsgi
from cheroot.server import HTTPConnection
from cheroot.ssl.builtin import BuiltinSSLAdapter
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from monitor.clock import Clock
from monitor.config import DisplaySettings, HttpSettings
from monitor.config.values import instant_ms
from monitor.errors import DependencyUnavailable, StoreOwned, UsageError
from monitor.export.collectors import ExperimentsCollector
from monitor.export.page import Page
from monitor.summary import Summary

log = logging.getLogger(__name__)
_TIMEOUT_S: Final = 10
_LARGEST_HEADER: Final = 16_384
_LARGEST_BODY: Final = 1
"""Bytes; cheroot takes 0 for no limit. What slips through is refused by `_admit`."""
_END_OF_HEAD: Final = re.compile(rb"\n\r?\n")
_MOST_READING: Final = 16
"""Requests that may wait for the store, and be sent what it says, at the same time."""
_THREADS: Final = _MOST_READING + 8
"""The others are for what does not need the store: probes are answered whatever becomes of it."""
_MOST_CONNECTIONS: Final = 256
_LARGEST_BACKLOG: Final = 64
_OPEN_PATHS: Final = frozenset({"/-/healthy", "/-/ready"})
"""Need no token: whoever restarts containers has none."""
PATHS: Final = (
    "/",
    "/metrics",
    "/metrics/experiments",
    "/-/healthy",
    "/-/ready",
    "/api/experiments",
    "/api/experiments/NAME",
    "/api/experiments/NAME/verdict",
    "/api/experiments/NAME/items",
    "/api/experiments/NAME/attention",
)
_READING: Final = frozenset({"/", "/metrics/experiments", "/api/experiments"})
_VERDICT: Final = "/verdict"
_ITEMS: Final = ("/items", "/attention")

Environ = dict[str, Any]
StartResponse = Callable[[str, list[tuple[str, str]]], object]


class _Answer(Exception):
    """An answer other than the page that was asked for."""

    def __init__(self, status: HTTPStatus, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


class _Body(list[bytes]):
    """What is sent as an answer; cheroot calls `close` once it is, or cannot be."""

    def __init__(self, body: bytes, held: ExitStack) -> None:
        super().__init__([body])
        self.close = held.close


class _Head(io.BytesIO):
    """The head of one request, which is all of it; `followed` says whether the next one is here, too."""

    def __init__(self, head: bytes, *, followed: bool) -> None:
        super().__init__(head)
        self._followed = followed

    def has_data(self) -> bool:
        """Return whether the connection is to be looked at again at once."""
        return self._followed


class _Connection(HTTPConnection):
    """A connection that takes what is here and waits for nothing, so that slow clients hold no thread.

    Its handshake and each request must be here within `_TIMEOUT_S`, not just each next byte.
    """

    def __init__(self, server: Any, sock: socket.socket, makefile: Any) -> None:
        super().__init__(server, sock, makefile)
        self._received = bytearray()
        self._began: float | None = None
        self._last_used: float | None = None

    @property
    def last_used(self) -> float | None:
        """Since when nothing has come of it: cheroot closes it by that."""
        return self._began or self._last_used

    @last_used.setter
    def last_used(self, now: float | None) -> None:
        self._last_used = now

    def communicate(self) -> bool:
        """Answer the next request if it is here; return whether to go on."""
        now = time.time()
        self._began = self._began or now
        try:
            whole = self._receive()
        except OSError as error:
            log.debug("http lost %s: %s", self.remote_addr, error)
            return False
        if not whole:
            return now < self._began + _TIMEOUT_S
        self._began = None
        return bool(cast(Any, super()).communicate())

    def _receive(self) -> bool:
        """Take what is here; return whether that is a whole request, or too much of one. Raises `OSError` at its end.

        A piece has room for a whole record of TLS, so that none lies in a buffer where nobody would see it.
        """
        self.socket.settimeout(0)
        try:
            if isinstance(self.socket, ssl.SSLSocket):
                self.socket.do_handshake()
            while (end := _END_OF_HEAD.search(self._received)) is None and len(self._received) <= _LARGEST_HEADER:
                piece = self.socket.recv(_LARGEST_HEADER)
                if not piece:
                    raise ConnectionResetError("closed in the middle of a request")
                self._received += piece
        except (BlockingIOError, ssl.SSLWantReadError):
            return False
        finally:
            self.socket.settimeout(_TIMEOUT_S)
        length = len(self._received) if end is None else end.end()
        head = bytes(self._received[:length])
        del self._received[:length]
        self.rfile = _Head(head, followed=_END_OF_HEAD.search(self._received) is not None)
        return True


class _Tls(BuiltinSSLAdapter):
    """TLS whose handshakes are left to the connections: cheroot's own would be made by the thread that accepts."""

    def __init__(self, certificate: str, key: str) -> None:
        super().__init__(certificate, key)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2

    def wrap(self, sock: socket.socket) -> tuple[ssl.SSLSocket, dict[str, str]]:
        wrapped = self.context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        return wrapped, {"wsgi.url_scheme": "https"}


class _Server(wsgi.Server):
    """A server that gives a connection a thread only when something has arrived on it."""

    ConnectionClass = _Connection

    def process_conn(self, conn: Any) -> None:
        waiting = cast(Any, self)._connections  # noqa: SLF001  its own, but untyped
        if conn.last_used is not None:
            super().process_conn(conn)
        elif waiting._num_connections < _MOST_CONNECTIONS:  # noqa: SLF001  cheroot has no other count
            waiting.put(conn)
        else:
            conn.close()


class HttpServer:
    """Serves the endpoints from a thread of its own.

    `summary` and `items` may raise `DependencyUnavailable`. `items` takes what follows `/api/experiments/` and the
    query; it raises `UsageError` for a wrong one and KeyError for an unknown experiment. `readiness` returns why the
    process is not ready, nothing when it is.
    """

    def __init__(
        self,
        settings: HttpSettings,
        *,
        summary: Callable[[int | None], Summary],
        items: Callable[[str, Mapping[str, str]], dict[str, Any]],
        process_registry: CollectorRegistry,
        readiness: Callable[[], Sequence[str]],
        display: DisplaySettings,
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._summary = summary
        self._items = items
        self._process = process_registry
        self._readiness = readiness
        self._page = Page(clock, display)
        self._turns = threading.Semaphore(_MOST_READING)
        self._experiments = ExperimentsCollector(lambda: summary(None), display.min_display_students)
        self._server = _Server(
            (settings.host, settings.port),
            self._answer,
            numthreads=_THREADS,
            timeout=_TIMEOUT_S,
            request_queue_size=_LARGEST_BACKLOG,
            shutdown_timeout=1,
        )
        self._server.max_request_header_size = _LARGEST_HEADER
        self._server.max_request_body_size = _LARGEST_BODY
        if settings.tls_cert_file and settings.tls_key_file:
            self._server.ssl_adapter = _Tls(settings.tls_cert_file, settings.tls_key_file)
        log_line: Any = lambda msg="", level=20, traceback=False: log.log(level, "http %s", msg)  # noqa: ARG005, E731
        cast(Any, self._server).error_log = log_line
        self._thread: threading.Thread | None = None

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self._server.bind_addr[1])

    @property
    def url(self) -> str:
        """Where it is."""
        scheme = "https" if self._settings.tls_cert_file else "http"
        return f"{scheme}://{self._settings.host}:{self.port}/"

    def start(self) -> None:
        """Listen; raises `UsageError` if the address cannot be used."""
        try:
            self._server.prepare()
        except OSError as error:
            raise UsageError(f"http: cannot listen on {self._settings.host}:{self._settings.port}: {error}") from error
        if self._settings.token is not None and self._settings.tls_cert_file is None:
            log.warning("http.token can be read on the way: without http.tls_cert_file nothing is encrypted")
        self._thread = threading.Thread(target=self._server.serve, name="http", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop listening and wait for requests in progress."""
        self._server.stop()
        if self._thread is not None:
            self._thread.join()

    def _answer(self, environ: Environ, start: StartResponse) -> Iterable[bytes]:
        with ExitStack() as held:
            status, body, headers = self._answered(environ, held)
            start(f"{status.value} {status.phrase}", [*headers, ("Content-Length", str(len(body)))])
            # Only what is sent can be counted on to be closed.
            return _Body(body, held.pop_all()) if body and environ["REQUEST_METHOD"] != "HEAD" else []

    def _answered(self, environ: Environ, held: ExitStack) -> tuple[HTTPStatus, bytes, list[tuple[str, str]]]:
        """Return status, body and headers of an answer, and in `held` what it holds until it is sent."""
        path = environ.get("PATH_INFO", "")
        headers = [("X-Content-Type-Options", "nosniff"), ("Cache-Control", "no-store")]
        try:
            self._authorize(path, environ)
            _admit(environ)
            if path in _READING or path.startswith("/api/experiments/"):
                self._take_turn(held)
            status, kind, body = self._route(path, environ)
        except _Answer as answer:
            status, kind, body = answer.status, "text/plain; charset=utf-8", answer.text.encode() + b"\n"
            if status == HTTPStatus.METHOD_NOT_ALLOWED:
                headers.append(("Allow", "GET, HEAD"))
            if status == HTTPStatus.UNAUTHORIZED:
                headers.append(("WWW-Authenticate", "Bearer"))
        except DependencyUnavailable as error:
            status, kind = HTTPStatus.SERVICE_UNAVAILABLE, "text/plain; charset=utf-8"
            body = f"the store is out of reach: {error}\n".encode()
        except StoreOwned as error:
            # No number is better than a wrong one.
            log.error("http %s", error)  # noqa: TRY400  a line is enough
            status, kind = HTTPStatus.INTERNAL_SERVER_ERROR, "text/plain; charset=utf-8"
            body = f"{error}\n".encode()
        if status == HTTPStatus.SERVICE_UNAVAILABLE:
            headers.append(("Retry-After", str(_TIMEOUT_S)))
        if kind.startswith("text/html"):
            headers.append(("Content-Security-Policy", self._page.policy))
        return status, body, [*headers, ("Content-Type", kind)]

    def _take_turn(self, held: ExitStack) -> None:
        if not self._turns.acquire(blocking=False):
            raise _Answer(HTTPStatus.SERVICE_UNAVAILABLE, f"{_MOST_READING} requests wait for the store already")
        held.callback(self._turns.release)

    def _authorize(self, path: str, environ: Environ) -> None:
        if self._settings.token is None or path in _OPEN_PATHS:
            return
        scheme, _, given = environ.get("HTTP_AUTHORIZATION", "").partition(" ")
        # WSGI hands headers over decoded as Latin-1.
        known = hmac.compare_digest(given.strip().encode("latin-1"), self._settings.token.encode())
        if scheme.lower() != "bearer" or not known:
            raise _Answer(HTTPStatus.UNAUTHORIZED, "a bearer token is needed here")

    def _route(self, path: str, environ: Environ) -> tuple[HTTPStatus, str, bytes]:
        if path in ("/metrics", "/metrics/experiments"):
            return HTTPStatus.OK, *self._scrape(path, environ.get("HTTP_ACCEPT", ""))
        if path == "/-/healthy":
            return HTTPStatus.OK, "text/plain; charset=utf-8", b"healthy\n"
        if path == "/-/ready":
            reasons = self._readiness()
            if reasons:
                raise _Answer(HTTPStatus.SERVICE_UNAVAILABLE, "\n".join(reasons))
            return HTTPStatus.OK, "text/plain; charset=utf-8", b"ready\n"
        if path == "/":
            return self._show_page()
        if path == "/api/experiments":
            return _json(self._summary(_as_of(environ)).to_json())
        if path.startswith("/api/experiments/"):
            # WSGI hands the path over decoded as Latin-1.
            name = unquote_to_bytes(path.removeprefix("/api/experiments/").encode("latin-1")).decode("utf-8", "replace")
            return self._of_items(name, environ) or _experiment(self._summary(_as_of(environ)), name)
        raise _Answer(HTTPStatus.NOT_FOUND, f"nothing here; there is {', '.join(PATHS)}")

    def _scrape(self, path: str, accept: str) -> tuple[str, bytes]:
        """Return the content type and the text of the process's metrics or of the experiments'."""
        encode, kind = choose_encoder(accept)
        return kind, encode(self._experiments if path == "/metrics/experiments" else self._process)

    def _of_items(self, name: str, environ: Environ) -> tuple[HTTPStatus, str, bytes] | None:
        """Answer for an experiment's items or what to look at first; None for any other path."""
        if not name.endswith(_ITEMS):
            return None
        asked = {key: values[-1] for key, values in parse_qs(environ.get("QUERY_STRING", "")).items()}
        try:
            return _json(self._items(name, asked))
        except UsageError as error:
            raise _Answer(HTTPStatus.BAD_REQUEST, str(error)) from error
        except KeyError:
            return None

    def _show_page(self) -> tuple[HTTPStatus, str, bytes]:
        try:
            summary, trouble = self._summary(None), tuple(self._readiness())
        except DependencyUnavailable as error:
            page = self._page.render(None, (f"The store is out of reach: {error}",))
            return HTTPStatus.SERVICE_UNAVAILABLE, "text/html; charset=utf-8", page
        return HTTPStatus.OK, "text/html; charset=utf-8", self._page.render(summary, trouble)


def _admit(environ: Environ) -> None:
    """Refuse what is neither GET nor HEAD, and any body."""
    if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
        raise _Answer(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD")
    if int(environ.get("CONTENT_LENGTH") or 0) != 0 or environ.get("HTTP_TRANSFER_ENCODING"):
        raise _Answer(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "a request has no body here")


def _experiment(summary: Summary, name: str) -> tuple[HTTPStatus, str, bytes]:
    """Answer for an experiment or its verdict; an experiment whose name ends like that path comes first."""
    if name in summary.experiments:
        return _json(summary.experiments[name].to_json())
    if name.endswith(_VERDICT) and name.removesuffix(_VERDICT) in summary.experiments:
        return _json(summary.verdict_json(name.removesuffix(_VERDICT)))
    return _json({"error": "unknown experiment"}, HTTPStatus.NOT_FOUND)


def _json(found: dict[str, Any], status: HTTPStatus = HTTPStatus.OK) -> tuple[HTTPStatus, str, bytes]:
    return status, "application/json", json.dumps(found, ensure_ascii=False, allow_nan=False).encode()


def _as_of(environ: Environ) -> int | None:
    """Return the time in ?as_of=, None without one."""
    given = parse_qs(environ.get("QUERY_STRING", "")).get("as_of")
    if given is None:
        return None
    try:
        # A + that was not escaped arrives as a blank.
        return instant_ms("as_of", given[-1].replace(" ", "+"))
    except UsageError as error:
        raise _Answer(HTTPStatus.BAD_REQUEST, str(error)) from error
