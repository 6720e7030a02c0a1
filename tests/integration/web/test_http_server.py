"""The HTTP server without a store: tokens, TLS, and clients that are slow, many or hostile."""

from __future__ import annotations

import gc
import http.client
import resource
import socket
import ssl
import threading
import time
from asyncio.sslproto import SSLProtocol
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme
from prometheus_client import CollectorRegistry

from monitor.analysis.summary import Summary
from monitor.clock import wall_clock
from monitor.config import DisplaySettings, HttpSettings
from monitor.errors import DependencyUnavailable, StoreOwned, UsageError
from monitor.web import Endpoints, HttpServer
from monitor.web.http_connections import MAX_CONNECTIONS
from monitor.web.routes import MAX_STORE_READS
from tests.support.command import eventually, get
from tests.support.http_client import ask

TOKEN = "a-token-of-some-length"


def _no_items(path: str, query: Mapping[str, str]) -> dict[str, Any]:
    raise KeyError(path, query)


def _no_store(_as_of_ms: int | None) -> Summary:
    raise DependencyUnavailable("no store here")


@contextmanager
def _server(
    *,
    certificate: trustme.LeafCert | None = None,
    directory: Path | None = None,
    token: str | None = None,
    summary: Callable[[int | None], Summary] = _no_store,
    items: Callable[[str, Mapping[str, str]], dict[str, Any]] = _no_items,
) -> Iterator[int]:
    """Yield the port of a server without a store, but for what `summary` and `items` say."""
    files = {}
    if certificate is not None and directory is not None:
        files = {"tls_cert_file": str(directory / "cert.pem"), "tls_key_file": str(directory / "key.pem")}
        Path(files["tls_cert_file"]).write_bytes(b"".join(each.bytes() for each in certificate.cert_chain_pems))
        Path(files["tls_key_file"]).write_bytes(certificate.private_key_pem.bytes())
    server = HttpServer(HttpSettings(port=0, token=token, **files), _endpoints(summary, items))
    server.start()
    try:
        yield server.port
    finally:
        server.stop()


def _endpoints(
    summary: Callable[[int | None], Summary] = _no_store,
    items: Callable[[str, Mapping[str, str]], dict[str, Any]] = _no_items,
) -> Endpoints:
    return Endpoints(
        summary=summary,
        items=items,
        process_registry=CollectorRegistry(),
        readiness=lambda: (),
        display=DisplaySettings(),
        clock=wall_clock,
    )


@pytest.fixture(scope="module")
def guarded() -> Iterator[int]:
    """Yield the port of a server that wants a token."""
    with _server(token=TOKEN) as port:
        yield port


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    """Return who signs."""
    return trustme.CA()


@pytest.fixture(scope="module")
def encrypted(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Yield the port of a server with a certificate for 127.0.0.1."""
    certificate = authority.issue_cert("127.0.0.1")
    with _server(certificate=certificate, directory=tmp_path_factory.mktemp("tls")) as port:
        yield port


@pytest.fixture(scope="module")
def plain() -> Iterator[int]:
    """Yield the port of a server for everybody."""
    with _server() as port:
        yield port


@pytest.mark.parametrize("path", ["/", "/api/experiments", "/api/experiments/ranker/verdict", "/metrics/experiments"])
def test_a_store_that_cannot_be_trusted_is_said(path: str) -> None:
    """In a line, and no number with it."""

    def summary(_as_of_ms: int | None) -> Summary:
        raise StoreOwned("abm:{0}:0:b:1:0 is damaged")

    with _server(summary=summary) as port:
        answer = ask(port, path)
        assert (answer.status, answer.body) == (500, b"abm:{0}:0:b:1:0 is damaged\n")


class TestStartAndStop:
    """The server as the service starts and stops it."""

    def test_an_address_in_use_is_an_error_of_one_line(self, plain: int) -> None:
        """It names the address and the cause."""
        server = HttpServer(HttpSettings(port=plain), _endpoints())
        with pytest.raises(UsageError, match=rf"^http: cannot listen on 127\.0\.0\.1:{plain}: .*in use.*$"):
            server.start()
        server.stop()

    def test_ipv6(self) -> None:
        """The URL has brackets, and can be asked."""
        server = HttpServer(HttpSettings(host="::1", port=0), _endpoints())
        server.start()
        try:
            assert server.url == f"http://[::1]:{server.port}/"
            assert get(f"{server.url}-/healthy") == (200, "healthy\n")
        finally:
            server.stop()

    def test_stops_within_seconds_whatever_clients_and_store_do(self) -> None:
        """Half a request, a response that nobody reads, and a store that does not answer."""
        asked, answering = threading.Event(), threading.Event()

        def items(path: str, _query: Mapping[str, str]) -> dict[str, Any]:
            if path.startswith("slow"):
                asked.set()
                answering.wait(60)
            return {"much": "x" * 8_000_000}

        server = HttpServer(HttpSettings(port=0), _endpoints(items=items))
        server.start()
        request = b"GET /api/experiments/%s/items HTTP/1.1\r\nHost: x\r\n\r\n"
        try:
            with _sending(server.port, [b"", b"GET / HT", request % b"large", request % b"slow"]):
                assert asked.wait(10)
                started = time.monotonic()
                server.stop()
                assert time.monotonic() - started < 6
                with pytest.raises(ConnectionRefusedError):
                    socket.create_connection(("127.0.0.1", server.port))
        finally:
            answering.set()


class TestLog:
    """What is logged of requests."""

    def test_mistakes_of_clients_are_not(self, plain: int, caplog: pytest.LogCaptureFixture) -> None:
        """Nor are requests that are answered."""
        with _sending(plain, [b"nonsense\r\n\r\n", b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\n\r\n"]) as both:
            assert all(connection.recv(1024) for connection in both)
        assert [ask(plain, path).status for path in ("/-/healthy", "/else", "/api/experiments?as_of=x")] == [
            200,
            404,
            400,
        ]
        assert caplog.record_tuples == []

    def test_mistakes_of_ours_are_with_a_traceback(self, caplog: pytest.LogCaptureFixture) -> None:
        """The client gets 500, and the server goes on."""

        def summary(_as_of_ms: int | None) -> Summary:
            raise ZeroDivisionError

        with _server(summary=summary) as port:
            assert ask(port, "/api/experiments").status == 500
            assert ask(port, "/-/healthy").status == 200
        (record,) = caplog.records
        assert record.exc_info is not None
        assert record.exc_info[0] is ZeroDivisionError


class TestStatic:
    """Files of the page."""

    def test_are_served(self, plain: int) -> None:
        """With their types."""
        assert ask(plain, "/static/page.css").headers.get_content_type() == "text/css"
        assert ask(plain, "/static/page.js").headers.get_content_type() == "text/javascript"

    @pytest.mark.parametrize("path", ["/static", "/static/", "/static/../page.py", "/static/%2e%2e/page.py"])
    def test_nothing_else_is(self, plain: int, path: str) -> None:
        """No list of files, no file elsewhere."""
        assert ask(plain, path).status == 404

    def test_need_the_token(self, guarded: int) -> None:
        """Like the page."""
        assert ask(guarded, "/static/page.css").status == 401


class TestToken:
    """With a token, only those who have it may read."""

    @pytest.mark.parametrize("path", ["/", "/metrics", "/metrics/experiments", "/api/experiments", "/api/x", "/else"])
    @pytest.mark.parametrize(
        "given", [None, f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", "Bearer", f"Basic {TOKEN}", TOKEN, "Bearer \xe9"]
    )
    def test_without_it_nothing_is_said(self, guarded: int, path: str, given: str | None) -> None:
        """Not even which paths there are; the answer names the scheme."""
        answer = ask(guarded, path, headers={} if given is None else {"Authorization": given})
        assert (answer.status, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
        assert answer.body == b"a bearer token is needed here\n"

    @pytest.mark.parametrize(
        ("path", "status"), [("/", 503), ("/metrics", 200), ("/api/experiments", 503), ("/else", 404)]
    )
    @pytest.mark.parametrize("scheme", ["Bearer", "bearer"])
    def test_with_it_everything_is_as_without(self, guarded: int, path: str, status: int, scheme: str) -> None:
        """There is no store here: 503 is what the page says to everybody who may ask."""
        assert ask(guarded, path, headers={"Authorization": f"{scheme} {TOKEN}"}).status == status

    @pytest.mark.parametrize("path", ["/-/healthy", "/-/ready"])
    def test_probes_need_none(self, guarded: int, path: str) -> None:
        """Whoever restarts containers has no token."""
        assert ask(guarded, path).status == 200

    def test_other_methods_need_it_too(self, guarded: int) -> None:
        """405 comes after 401."""
        assert ask(guarded, "/metrics", "POST").status == 401


class TestTls:
    """With a certificate, nobody on the way can read or change anything."""

    def test_who_trusts_the_authority_can_read(self, encrypted: int, authority: trustme.CA) -> None:
        """Several requests over one connection."""
        context = ssl.create_default_context()
        authority.configure_trust(context)
        connection = http.client.HTTPSConnection("127.0.0.1", encrypted, timeout=10, context=context)
        for path in ("/-/healthy", "/metrics"):
            connection.request("GET", path)
            answer = connection.getresponse()
            assert (answer.status, bool(answer.read()) or path == "/metrics") == (200, True)
        connection.close()

    def test_who_does_not_stops_by_himself(self, encrypted: int) -> None:
        """A server under a strange authority is not talked to, and survives it."""
        connection = http.client.HTTPSConnection("127.0.0.1", encrypted, timeout=10)
        with pytest.raises(ssl.SSLCertVerificationError):
            connection.request("GET", "/-/healthy")

    def test_nothing_older_than_1_2(self, encrypted: int, authority: trustme.CA) -> None:
        """TLS 1.1 is refused by the server, 1.2 is not."""
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            assert _handshake(encrypted, authority, ssl.TLSVersion.TLSv1_1) is None
        assert _handshake(encrypted, authority, ssl.TLSVersion.TLSv1_2) == "TLSv1.2"

    def test_plain_requests_get_nothing(self, encrypted: int, authority: trustme.CA) -> None:
        """They are closed, and others go on."""
        with pytest.raises((http.client.HTTPException, OSError)):
            ask(encrypted, "/-/healthy")
        assert _handshake(encrypted, authority, ssl.TLSVersion.TLSv1_3) == "TLSv1.3"

    def test_half_handshakes_do_not_hold_the_others_up(self, encrypted: int, authority: trustme.CA) -> None:
        """Connections that never say hello, or stop in the middle of it, cost the others nothing."""
        with _sending(encrypted, [b""] * 50 + [b"\x16\x03\x01\x02"] * 8):
            started = time.monotonic()
            assert _handshake(encrypted, authority, ssl.TLSVersion.TLSv1_3) == "TLSv1.3"
            assert time.monotonic() - started < 8

    def test_half_handshakes_are_cut_off(self, encrypted: int) -> None:
        """After the ten seconds that a request has."""
        started = time.monotonic()
        with _sending(encrypted, [b"", b"\x16\x03\x01\x02"]) as halves, ThreadPoolExecutor(2) as pool:
            for end in [pool.submit(_drip, half, b"") for half in halves]:
                assert 8 < end.result() - started < 20

    def test_a_client_that_goes_away_leaves_no_memory_behind(self, encrypted: int) -> None:
        """Each connection takes 256 KiB; the garbage collector, which the service runs seldom, is not needed."""
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        gc.collect()
        gc.disable()
        try:
            for unread in (False, True) * 20:
                connection = http.client.HTTPSConnection("127.0.0.1", encrypted, timeout=10, context=context)
                connection.request("GET", "/-/healthy")
                answer = connection.getresponse()
                if not unread:
                    answer.read()
                connection.sock.close()
                answer.close()
            with _sending(encrypted, [b"", b"\x16\x03\x01\x02", b"nonsense"]):
                pass
            eventually("none is left", lambda: not [each for each in gc.get_objects() if isinstance(each, SSLProtocol)])
        finally:
            gc.enable()


def _handshake(port: int, authority: trustme.CA, version: ssl.TLSVersion) -> str | None:
    """Return the version that was agreed on, None if the server refuses."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority.configure_trust(context)
    # Debian's OpenSSL offers no TLS 1.1 at its usual level.
    context.set_ciphers("DEFAULT@SECLEVEL=0")
    context.minimum_version = context.maximum_version = version
    with socket.create_connection(("127.0.0.1", port), timeout=15) as plain:
        try:
            with context.wrap_socket(plain, server_hostname="127.0.0.1") as wrapped:
                return wrapped.version()
        except ssl.SSLError as error:
            # asyncio closes the connection without sending OpenSSL's alert.
            assert "alert protocol version" in str(error).replace("_", " ").lower() or isinstance(
                error, ssl.SSLEOFError
            )
            return None


@contextmanager
def _sending(port: int, beginnings: list[bytes]) -> Iterator[list[socket.socket]]:
    """Yield connections that have sent just these bytes."""
    connections = [socket.create_connection(("127.0.0.1", port), timeout=20) for _ in beginnings]
    for connection, beginning in zip(connections, beginnings, strict=True):
        connection.sendall(beginning)
    try:
        yield connections
    finally:
        for each in connections:
            each.close()


class TestStrangers:
    """What comes in too big or too slowly."""

    @pytest.mark.parametrize(
        ("request_bytes", "status"),
        [
            (b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 40_000 + b"\r\n\r\n", 413),
            (b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X: y\r\n" * 10_000 + b"\r\n", 413),
            (b"GET /" + b"x" * 40_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 414),
            (b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n", 413),
            (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n", 413),
            (b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx", 413),
            (b"GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 413),
            (b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", 400),
            (b"nonsense\r\n\r\n", 400),
            (b"GET / HTTP/9.9\r\n\r\n", 505),
        ],
        ids=["header", "headers", "line", "body", "post", "byte", "chunks", "negative", "nonsense", "version"],
    )
    def test_oversized_and_malformed_requests_are_refused(self, plain: int, request_bytes: bytes, status: int) -> None:
        """At once, without waiting for what they announce; the next one is served."""
        started = time.monotonic()
        with _sending(plain, [request_bytes]) as (connection,):
            assert int(connection.recv(1024).split()[1]) == status
        assert ask(plain, "/-/healthy").status == 200
        assert time.monotonic() - started < 8

    def test_slow_clients_are_cut_off_and_do_not_hold_the_others_up(self, plain: int) -> None:
        """Silent ones, and those that send a byte now and then: none outlives the timeout of ten seconds by much."""
        beginnings = [b""] * 40 + [b"G"] * 4 + [b"GET / HTTP/1.1\r\nX: "] * 4
        started = time.monotonic()
        with _sending(plain, beginnings) as slow, ThreadPoolExecutor(len(slow)) as pool:
            ends = [pool.submit(_drip, each, b"") for each in slow[:4]]
            ends += [pool.submit(_drip, each, b"x") for each in slow[-8:]]
            while time.monotonic() - started < 4:
                asked = time.monotonic()
                assert ask(plain, "/-/healthy").status == 200
                assert time.monotonic() - asked < 8
            for end in ends:
                assert 8 < end.result() - started < 60

    @pytest.mark.parametrize("beginning", [b"G", b"GET / HT", b"GET / HTTP/1.1\r\nX: "])
    def test_requests_that_stop_in_the_middle_hold_nobody_up(self, plain: int, beginning: bytes) -> None:
        """However many they are: they wait for the rest of it, and nobody for them."""
        with _sending(plain, [beginning] * 100):
            for path in ("/-/healthy", "/-/ready", "/metrics") * 3:
                asked = time.monotonic()
                assert ask(plain, path).status == 200
                assert time.monotonic() - asked < 5

    def test_a_request_may_come_in_pieces_and_with_the_next_one(self, plain: int) -> None:
        """Each is answered in its turn once it is there."""
        whole = b"GET /-/healthy HTTP/1.1\r\nHost: x\r\n\r\n"
        with _sending(plain, [whole + whole + whole[:7]]) as (connection,):
            answers = b""
            while answers.count(b"healthy\n") < 2:
                answers += connection.recv(4096)
            for place in range(7, len(whole)):
                connection.sendall(whole[place : place + 1])
            while answers.count(b"healthy\n") < 3:
                answers += connection.recv(4096)
        assert answers.count(b"HTTP/1.1 200 OK\r\n") == 3

    def test_requests_on_one_connection_do_not_wait_for_acknowledgements(self, plain: int) -> None:
        """Headers and body are sent apart; Nagle's algorithm would take 40 ms for each response."""
        connection = http.client.HTTPConnection("127.0.0.1", plain, timeout=10)
        started = time.monotonic()
        for _ in range(200):
            connection.request("GET", "/-/healthy")
            assert connection.getresponse().read() == b"healthy\n"
        assert time.monotonic() - started < 6
        connection.close()

    def test_a_head_below_the_limit_is_accepted(self, plain: int) -> None:
        """16 KiB in all."""
        assert ask(plain, "/-/healthy", headers={"X": "x" * 16_000}).status == 200
        assert ask(plain, "/-/healthy", headers={"X": "x" * 16_400}).status == 413

    def test_a_thousand_idle_connections_hold_nobody_up(self, plain: int) -> None:
        """The oldest ones are closed, so that there is always room for a new one."""
        count = min(1000, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
        with ExitStack() as stack:
            idle = []
            for number in range(count):
                idle.append(stack.enter_context(socket.create_connection(("127.0.0.1", plain), timeout=10)))
                if number % 100 == 0:
                    asked = time.monotonic()
                    assert ask(plain, "/-/healthy").status == 200
                    assert time.monotonic() - asked < 5
            assert all(connection.recv(1) == b"" for connection in idle[: count - MAX_CONNECTIONS])
            idle[-1].sendall(b"GET /-/healthy HTTP/1.1\r\nHost: x\r\n\r\n")
            assert idle[-1].recv(1024).startswith(b"HTTP/1.1 200")


def _drip(connection: socket.socket, drop: bytes) -> float:
    """Send a drop each second until the connection is closed; return when that was."""
    connection.settimeout(1)
    deadline = time.monotonic() + 40
    while time.monotonic() < deadline:
        try:
            connection.sendall(drop)
            if not connection.recv(1024):
                break
        except TimeoutError:
            continue
        except OSError:
            break
    return time.monotonic()


class TestBusy:
    """A store that does not answer, or answers that nobody takes."""

    ITEMS = "/api/experiments/x/items"

    def test_whoever_waits_for_the_store_does_not_hold_up_the_others(self) -> None:
        """So many may wait for it; the next ones are told to come again, and probes know nothing of it."""
        asked, answering = threading.Semaphore(0), threading.Event()

        def slow(_path: str, _query: Mapping[str, str]) -> dict[str, Any]:
            asked.release()
            answering.wait(60)
            return {}

        with _server(items=slow) as port, ThreadPoolExecutor(MAX_STORE_READS) as pool:
            waiting = [pool.submit(ask, port, self.ITEMS) for _ in range(MAX_STORE_READS)]
            try:
                assert all(asked.acquire(timeout=20) for _ in waiting)
                for path in ("/-/healthy", "/-/ready", "/metrics") * 3:
                    assert ask(port, path).status == 200
                for path in ("/", "/metrics/experiments", "/api/experiments", self.ITEMS) * 3:
                    refused = ask(port, path)
                    assert (refused.status, refused.headers["Retry-After"]) == (503, "10")
                    assert b"read the store already" in refused.body
            finally:
                answering.set()
            assert {each.result().status for each in waiting} == {200}
            assert {ask(port, self.ITEMS, method).status for method in ("GET", "HEAD") * MAX_STORE_READS} == {200}

    def test_answers_that_nobody_takes_hold_up_as_few(self, caplog: pytest.LogCaptureFixture) -> None:
        """Who asks for much and reads nothing of it counts as one that waits, until he is given up."""
        with _server(items=lambda *_: {"much": "x" * 8_000_000}) as port:
            request = f"GET {self.ITEMS} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
            with _sending(port, [request] * MAX_STORE_READS * 2) as connections:
                eventually("all turns are taken", lambda: ask(port, self.ITEMS, "HEAD").status == 503)
                for path in ("/-/healthy", "/-/ready", "/metrics"):
                    asked = time.monotonic()
                    assert ask(port, path).status == 200
                    assert time.monotonic() - asked < 5
                eventually("they are given up", lambda: ask(port, self.ITEMS, "HEAD").status == 200)
                assert sum(len(piece) for piece in iter(lambda: connections[0].recv(1 << 20), b"")) < 8_000_000
        assert caplog.record_tuples == []
