"""The HTTP server without a store: tokens, TLS, and clients that are slow, many or hostile."""

from __future__ import annotations

import gc
import gzip
import http.client
import re
import resource
import socket
import ssl
import threading
import time
from asyncio.sslproto import SSLProtocol
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme
from prometheus_client import CollectorRegistry
from starlette.datastructures import Headers

from deploy.alerting.generate import GROUPS
from monitor.analysis.summary import StoreSummary
from monitor.clock import wall_clock
from monitor.config import DisplaySettings, HttpSettings, ReloadResult
from monitor.errors import CorruptStore, DependencyUnavailable, UsageError
from monitor.export import ServiceHealth
from monitor.web import HttpEndpoints, HttpServer
from monitor.web.access import WriteRule, body_error
from monitor.web.http_connections import MAX_CONNECTIONS
from monitor.web.routes import MAX_CONCURRENT_STORE_READS
from tests.support.command import eventually, get
from tests.support.http_client import ask

TOKEN = "a-token-of-some-length"
AUTHORIZED = {"Authorization": f"Bearer {TOKEN}"}
RELOADED = ReloadResult(is_successful=True, text="reloaded: configuration 3f2a")


def _no_items(path: str, query: Mapping[str, str]) -> dict[str, Any]:
    raise KeyError(path, query)


def _no_store(_as_of_ms: int | None) -> StoreSummary:
    raise DependencyUnavailable("no store here")


@contextmanager
def _server(
    *,
    certificate: trustme.LeafCert | None = None,
    directory: Path | None = None,
    token: str | None = None,
    summary: Callable[[int | None], StoreSummary] = _no_store,
    items: Callable[[str, Mapping[str, str]], dict[str, Any]] = _no_items,
    data_problems: Sequence[str] = (),
    reload_result: ReloadResult = RELOADED,
) -> Iterator[int]:
    """Yield the port of a server without a store; `summary` and `items` are the results of reads."""
    files: dict[str, Any] = {}
    if certificate is not None and directory is not None:
        files = {"tls_cert_file": str(directory / "cert.pem"), "tls_key_file": str(directory / "key.pem")}
        Path(files["tls_cert_file"]).write_bytes(
            b"".join(certificate_pem.bytes() for certificate_pem in certificate.cert_chain_pems)
        )
        Path(files["tls_key_file"]).write_bytes(certificate.private_key_pem.bytes())
    server = HttpServer(
        HttpSettings(port=0, token=token, **files), _endpoints(summary, items, data_problems, reload_result)
    )
    server.start()
    try:
        yield server.port
    finally:
        server.stop()


def _endpoints(
    summary: Callable[[int | None], StoreSummary] = _no_store,
    items: Callable[[str, Mapping[str, str]], dict[str, Any]] = _no_items,
    data_problems: Sequence[str] = (),
    reload_result: ReloadResult = RELOADED,
) -> HttpEndpoints:
    return HttpEndpoints(
        read_summary=summary,
        read_history=lambda _experiment: {},
        read_items=items,
        read_health=lambda: ServiceHealth(0, "", ""),
        read_starts=lambda: 0,
        data_problems=lambda: data_problems,
        process_registry=CollectorRegistry(),
        readiness_problems=lambda: (),
        reload_configuration=lambda: reload_result,
        display=DisplaySettings(),
        clock=wall_clock,
    )


@pytest.fixture(scope="module")
def guarded() -> Iterator[int]:
    """Yield the port of a server that requires a token."""
    with _server(token=TOKEN) as port:
        yield port


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    """Return the certificate authority."""
    return trustme.CA()


@pytest.fixture(scope="module")
def encrypted(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Yield the port of a server with a certificate for 127.0.0.1."""
    certificate = authority.issue_cert("127.0.0.1")
    with _server(certificate=certificate, directory=tmp_path_factory.mktemp("tls")) as port:
        yield port


@pytest.fixture(scope="module")
def plain() -> Iterator[int]:
    """Yield the port of a server without token and TLS."""
    with _server() as port:
        yield port


@pytest.mark.parametrize(
    "path", ["/", "/service", "/api/experiments", "/api/experiments/ranker/verdict", "/metrics/experiments"]
)
def test_a_corrupt_store_gives_500_with_the_key(path: str) -> None:
    """In a line, without any number; the page has its usual form."""

    def summary(_as_of_ms: int | None) -> StoreSummary:
        raise CorruptStore("abm:{0}:0:unit_sums:1:0 is damaged")

    with _server(summary=summary) as port:
        answer = ask(port, path)
        assert answer.status == 500
        assert b"abm:{0}:0:unit_sums:1:0 is damaged" in answer.body
        assert (answer.body.count(b"\n") == 1) == (path not in {"/", "/service"})


def test_a_service_stays_ready_while_events_do_not_count_and_names_the_problem() -> None:
    """A restart would not help."""
    problem = "last hour: 12 of 12 messages of answers rejected"
    with _server(data_problems=(problem,)) as port:
        answer = ask(port, "/-/ready")
        assert (answer.status, answer.body) == (200, f"ready\n{problem}\n".encode())
    with _server() as port:
        assert ask(port, "/-/ready").body == b"ready\n"


@pytest.mark.parametrize("path", ["/", "/service"])
def test_a_page_without_a_store_has_its_usual_form(path: str) -> None:
    """A person reads this page during an outage."""
    with _server() as port:
        answer = ask(port, path)
        assert answer.status == 503
        assert b"page.css" in answer.body
        assert b"out of reach" in answer.body


class TestStartAndStop:
    """The server as the service starts and stops it."""

    def test_an_address_in_use_is_reported_in_one_line(self, plain: int) -> None:
        """It names the address and the cause."""
        server = HttpServer(HttpSettings(port=plain), _endpoints())
        with pytest.raises(UsageError, match=rf"^http: cannot listen on 127\.0\.0\.1:{plain}: .*in use.*$"):
            server.start()
        server.stop()

    def test_the_server_listens_on_ipv6(self) -> None:
        """The URL has brackets, and can be asked."""
        server = HttpServer(HttpSettings(host="::1", port=0), _endpoints())
        server.start()
        try:
            assert server.url == f"http://[::1]:{server.port}/"
            assert get(f"{server.url}-/healthy") == (200, "healthy\n")
        finally:
            server.stop()

    def test_the_server_stops_within_seconds_despite_slow_clients_and_store(self) -> None:
        """Half a request, a response that nobody reads, and a store that does not answer."""
        request_started, allow_answer = threading.Event(), threading.Event()

        def items(path: str, _query: Mapping[str, str]) -> dict[str, Any]:
            if path.startswith("slow"):
                request_started.set()
                allow_answer.wait(60)
            return {"much": "x" * 8_000_000}

        server = HttpServer(HttpSettings(port=0), _endpoints(items=items))
        server.start()
        request = b"GET /api/experiments/%s/items HTTP/1.1\r\nHost: x\r\n\r\n"
        try:
            with _connections_after_sending(server.port, [b"", b"GET / HT", request % b"large", request % b"slow"]):
                assert request_started.wait(10)
                started = time.monotonic()
                server.stop()
                assert time.monotonic() - started < 6
                with pytest.raises(ConnectionRefusedError):
                    socket.create_connection(("127.0.0.1", server.port))
        finally:
            allow_answer.set()


class TestLog:
    """The log of requests."""

    def test_errors_of_clients_are_not_logged(self, plain: int, caplog: pytest.LogCaptureFixture) -> None:
        """Successful requests are not logged, either."""
        with _connections_after_sending(
            plain, [b"nonsense\r\n\r\n", b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\n\r\n"]
        ) as connections:
            assert all(connection.recv(1024) for connection in connections)
        assert [ask(plain, path).status for path in ("/-/healthy", "/else", "/api/experiments?as_of=x")] == [
            200,
            404,
            400,
        ]
        assert caplog.record_tuples == []

    def test_internal_errors_are_logged_with_a_traceback(self, caplog: pytest.LogCaptureFixture) -> None:
        """The client gets 500, and the server continues."""

        def summary(_as_of_ms: int | None) -> StoreSummary:
            raise ZeroDivisionError

        with _server(summary=summary) as port:
            assert ask(port, "/api/experiments").status == 500
            assert ask(port, "/-/healthy").status == 200
        (record,) = caplog.records
        assert record.exc_info is not None
        assert record.exc_info[0] is ZeroDivisionError


class TestStatic:
    """Static files of the page."""

    def test_static_files_are_served_with_their_types(self, plain: int) -> None:
        """Styles and scripts."""
        assert ask(plain, "/static/page.css").headers.get_content_type() == "text/css"
        assert ask(plain, "/static/page.js").headers.get_content_type() == "text/javascript"

    def test_static_files_are_compressed_and_kept_by_browsers(self, plain: int) -> None:
        """The second page load transfers no script; pages, which have results, are neither kept nor compressed."""
        path, accepted = "/static/charts.js", {"Accept-Encoding": "gzip"}
        first = ask(plain, path, headers=accepted)
        assert first.headers["Cache-Control"] == "no-cache"
        assert first.headers["Content-Encoding"] == "gzip"
        assert gzip.decompress(first.body) == ask(plain, path).body
        second = ask(plain, path, headers={**accepted, "If-None-Match": first.headers["ETag"]})
        assert (second.status, second.body) == (304, b"")
        page = ask(plain, "/", headers=accepted)
        assert page.headers["Cache-Control"] == "no-store"
        assert page.headers["Content-Encoding"] is None

    @pytest.mark.parametrize("path", ["/static", "/static/", "/static/../page.py", "/static/%2e%2e/page.py"])
    def test_only_static_files_are_served(self, plain: int, path: str) -> None:
        """No directory listing, and no file outside of the folder."""
        assert ask(plain, path).status == 404

    def test_static_files_need_no_token(self, guarded: int) -> None:
        """They have no data, and readers of share links need them. Nothing else is below the path."""
        assert ask(guarded, "/static/page.js").status == 200
        assert ask(guarded, "/static/../api/experiments").status == 404


class TestRunbook:
    """The page /runbook, to which alerts link."""

    def test_every_section_of_the_runbook_has_an_anchor(self, plain: int) -> None:
        """An alert links to the section of its concern, such as /runbook#rejects; the server has no store."""
        answer = ask(plain, "/runbook")
        assert (answer.status, answer.headers.get_content_type()) == (200, "text/html")
        concerns = {alert.concern for group in GROUPS for alert in group.alerts}
        assert concerns <= set(re.findall(r'<section id="([\w-]+)">', answer.body.decode()))

    def test_the_runbook_and_its_styles_need_no_token(self, guarded: int) -> None:
        """A browser that follows the link of an alert sends none."""
        page = ask(guarded, "/runbook")
        styles = re.findall(r'href="(/static/[^"]+)"', page.body.decode())
        assert [ask(guarded, path).status for path in styles] == [200, 200]
        assert "script-src" not in page.headers["Content-Security-Policy"]

    def test_links_of_the_runbook_lead_to_its_sections(self, plain: int) -> None:
        """Other pages of the documentation are not served: they are named."""
        text = ask(plain, "/runbook").body.decode()
        links = set(re.findall(r'href="([^"]+)"', text)) - {"/", "/static/page.css", "/static/runbook.css"}
        assert {link.removeprefix("#") for link in links} <= set(re.findall(r'id="([\w-]+)"', text))
        assert "<code>docs/reliability.md</code>" in text
        assert "](" not in text
        assert "<table>" in text


class TestToken:
    """A server with a token."""

    @pytest.mark.parametrize("path", ["/", "/metrics", "/metrics/experiments", "/api/experiments", "/api/x", "/else"])
    @pytest.mark.parametrize(
        "authorization",
        [None, f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", "Bearer", f"Basic {TOKEN}", TOKEN, "Bearer \xe9"],
    )
    def test_without_the_token_every_path_gives_401(self, guarded: int, path: str, authorization: str | None) -> None:
        """Unknown paths included; the response names the scheme."""
        answer = ask(guarded, path, headers={} if authorization is None else {"Authorization": authorization})
        assert (answer.status, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
        assert answer.body == b"a bearer token is needed here\n"

    @pytest.mark.parametrize(
        ("path", "status"), [("/", 503), ("/metrics", 200), ("/api/experiments", 503), ("/else", 404)]
    )
    @pytest.mark.parametrize("scheme", ["Bearer", "bearer"])
    def test_with_the_token_requests_are_answered(self, guarded: int, path: str, status: int, scheme: str) -> None:
        """The server has no store, so some paths give 503."""
        assert ask(guarded, path, headers={"Authorization": f"{scheme} {TOKEN}"}).status == status

    @pytest.mark.parametrize("path", ["/-/healthy", "/-/ready"])
    def test_health_probes_need_no_token(self, guarded: int, path: str) -> None:
        """Orchestrators have no token."""
        assert ask(guarded, path).status == 200

    def test_the_token_is_checked_before_the_method(self, guarded: int) -> None:
        """401, not 405."""
        assert ask(guarded, "/metrics", "POST").status == 401


class TestTls:
    """A server with a certificate."""

    def test_a_client_that_trusts_the_authority_is_served(self, encrypted: int, authority: trustme.CA) -> None:
        """Several requests over one connection."""
        context = ssl.create_default_context()
        authority.configure_trust(context)
        connection = http.client.HTTPSConnection("127.0.0.1", encrypted, timeout=10, context=context)
        for path in ("/-/healthy", "/metrics"):
            connection.request("GET", path)
            answer = connection.getresponse()
            assert (answer.status, bool(answer.read()) or path == "/metrics") == (200, True)
        connection.close()

    def test_the_server_survives_a_client_that_rejects_the_certificate(self, encrypted: int) -> None:
        """The client does not trust the authority."""
        connection = http.client.HTTPSConnection("127.0.0.1", encrypted, timeout=10)
        with pytest.raises(ssl.SSLCertVerificationError):
            connection.request("GET", "/-/healthy")

    def test_versions_below_tls_1_2_are_rejected(self, encrypted: int, authority: trustme.CA) -> None:
        """The server rejects TLS 1.1 and accepts 1.2."""
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            assert _handshake(encrypted, authority, ssl.TLSVersion.TLSv1_1) is None
        assert _handshake(encrypted, authority, ssl.TLSVersion.TLSv1_2) == "TLSv1.2"

    def test_unencrypted_requests_are_closed(self, encrypted: int, authority: trustme.CA) -> None:
        """Other clients are served."""
        with pytest.raises((http.client.HTTPException, OSError)):
            ask(encrypted, "/-/healthy")
        assert _handshake(encrypted, authority, ssl.TLSVersion.TLSv1_3) == "TLSv1.3"

    def test_incomplete_handshakes_do_not_delay_other_clients(self, encrypted: int, authority: trustme.CA) -> None:
        """Connections that send nothing, or stop within the handshake."""
        with _connections_after_sending(encrypted, [b""] * 50 + [b"\x16\x03\x01\x02"] * 8):
            started = time.monotonic()
            assert _handshake(encrypted, authority, ssl.TLSVersion.TLSv1_3) == "TLSv1.3"
            assert time.monotonic() - started < 8

    def test_incomplete_handshakes_are_closed_after_the_timeout(self, encrypted: int) -> None:
        """After ten seconds, as for a request."""
        started = time.monotonic()
        with _connections_after_sending(encrypted, [b"", b"\x16\x03\x01\x02"]) as halves, ThreadPoolExecutor(2) as pool:
            for end in [pool.submit(_drip, half, b"") for half in halves]:
                assert 8 < end.result() - started < 20

    def test_the_memory_of_closed_connections_is_freed_without_garbage_collection(self, encrypted: int) -> None:
        """Each connection takes 256 KiB, and the service rarely collects garbage."""
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
            with _connections_after_sending(encrypted, [b"", b"\x16\x03\x01\x02", b"nonsense"]):
                pass
            eventually(
                "none is left",
                lambda: not [candidate for candidate in gc.get_objects() if isinstance(candidate, SSLProtocol)],
            )
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
def _connections_after_sending(port: int, beginnings: list[bytes]) -> Iterator[list[socket.socket]]:
    """Yield connections; each has sent the given bytes."""
    connections = [socket.create_connection(("127.0.0.1", port), timeout=20) for _ in beginnings]
    for connection, beginning in zip(connections, beginnings, strict=True):
        connection.sendall(beginning)
    try:
        yield connections
    finally:
        for connection in connections:
            connection.close()


class TestHostileClients:
    """Requests that are too large or too slow."""

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
    def test_oversized_and_malformed_requests_are_rejected(self, plain: int, request_bytes: bytes, status: int) -> None:
        """At once, without waiting for the announced body; the next request is served."""
        started = time.monotonic()
        with _connections_after_sending(plain, [request_bytes]) as (connection,):
            assert int(connection.recv(1024).split()[1]) == status
        assert ask(plain, "/-/healthy").status == 200
        assert time.monotonic() - started < 8

    def test_slow_clients_are_closed_and_do_not_delay_other_clients(self, plain: int) -> None:
        """Silent clients, and clients that send a byte per second, are closed after about ten seconds."""
        beginnings = [b""] * 40 + [b"G"] * 4 + [b"GET / HTTP/1.1\r\nX: "] * 4
        started = time.monotonic()
        with _connections_after_sending(plain, beginnings) as slow, ThreadPoolExecutor(len(slow)) as pool:
            ends = [pool.submit(_drip, connection, b"") for connection in slow[:4]]
            ends += [pool.submit(_drip, connection, b"x") for connection in slow[-8:]]
            while time.monotonic() - started < 4:
                request_time = time.monotonic()
                assert ask(plain, "/-/healthy").status == 200
                assert time.monotonic() - request_time < 8
            for end in ends:
                assert 8 < end.result() - started < 60

    @pytest.mark.parametrize("beginning", [b"G", b"GET / HT", b"GET / HTTP/1.1\r\nX: "])
    def test_incomplete_requests_do_not_delay_other_clients(self, plain: int, beginning: bytes) -> None:
        """Even if there are a hundred of them."""
        with _connections_after_sending(plain, [beginning] * 100):
            for path in ("/-/healthy", "/-/ready", "/metrics") * 3:
                request_time = time.monotonic()
                assert ask(plain, path).status == 200
                assert time.monotonic() - request_time < 5

    def test_requests_may_arrive_in_fragments_and_together(self, plain: int) -> None:
        """Each complete request is answered in order."""
        request_bytes = b"GET /-/healthy HTTP/1.1\r\nHost: x\r\n\r\n"
        with _connections_after_sending(plain, [request_bytes + request_bytes + request_bytes[:7]]) as (connection,):
            answers = b""
            while answers.count(b"healthy\n") < 2:
                answers += connection.recv(4096)
            for index in range(7, len(request_bytes)):
                connection.sendall(request_bytes[index : index + 1])
            while answers.count(b"healthy\n") < 3:
                answers += connection.recv(4096)
        assert answers.count(b"HTTP/1.1 200 OK\r\n") == 3

    def test_responses_on_one_connection_are_not_delayed_by_nagle(self, plain: int) -> None:
        """Headers and body are separate writes; Nagle's algorithm would add 40 ms per response."""
        connection = http.client.HTTPConnection("127.0.0.1", plain, timeout=10)
        started = time.monotonic()
        for _ in range(200):
            connection.request("GET", "/-/healthy")
            assert connection.getresponse().read() == b"healthy\n"
        assert time.monotonic() - started < 6
        connection.close()

    def test_a_request_head_below_the_limit_is_accepted(self, plain: int) -> None:
        """16 KiB in all."""
        assert ask(plain, "/-/healthy", headers={"X": "x" * 16_000}).status == 200
        assert ask(plain, "/-/healthy", headers={"X": "x" * 16_400}).status == 413

    def test_a_thousand_idle_connections_do_not_delay_other_clients(self, plain: int) -> None:
        """The server closes the longest idle connections."""
        count = min(1000, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
        with ExitStack() as stack:
            idle = []
            for number in range(count):
                idle.append(stack.enter_context(socket.create_connection(("127.0.0.1", plain), timeout=10)))
                if number % 100 == 0:
                    request_time = time.monotonic()
                    assert ask(plain, "/-/healthy").status == 200
                    assert time.monotonic() - request_time < 5
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


class TestConcurrencyLimit:
    """A slow store, and responses that clients do not read."""

    ITEMS = "/api/experiments/x/items"

    def test_requests_that_wait_for_the_store_do_not_delay_other_requests(self) -> None:
        """Above the limit the response is 503 with Retry-After; health probes are unaffected."""
        request_count, allow_answers = threading.Semaphore(0), threading.Event()

        def slow(_path: str, _query: Mapping[str, str]) -> dict[str, Any]:
            request_count.release()
            allow_answers.wait(60)
            return {}

        with _server(items=slow) as port, ThreadPoolExecutor(MAX_CONCURRENT_STORE_READS) as pool:
            waiting = [pool.submit(ask, port, self.ITEMS) for _ in range(MAX_CONCURRENT_STORE_READS)]
            try:
                assert all(request_count.acquire(timeout=20) for _ in waiting)
                for path in ("/-/healthy", "/-/ready", "/metrics") * 3:
                    assert ask(port, path).status == 200
                for path in ("/", "/metrics/experiments", "/api/experiments", self.ITEMS) * 3:
                    response = ask(port, path)
                    assert (response.status, response.headers["Retry-After"]) == (503, "10")
                    assert b"requests are reading the store" in response.body
            finally:
                allow_answers.set()
            assert {future.result().status for future in waiting} == {200}
            assert {
                ask(port, self.ITEMS, method).status for method in ("GET", "HEAD") * MAX_CONCURRENT_STORE_READS
            } == {200}

    def test_unread_responses_occupy_only_store_slots_until_the_timeout(self, caplog: pytest.LogCaptureFixture) -> None:
        """Such a request counts as a store read until the connection is closed."""
        with _server(items=lambda *_: {"much": "x" * 8_000_000}) as port:
            request = f"GET {self.ITEMS} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
            with _connections_after_sending(port, [request] * MAX_CONCURRENT_STORE_READS * 2) as connections:
                eventually("all turns are taken", lambda: ask(port, self.ITEMS, "HEAD").status == 503)
                for path in ("/-/healthy", "/-/ready", "/metrics"):
                    request_time = time.monotonic()
                    assert ask(port, path).status == 200
                    assert time.monotonic() - request_time < 5
                eventually("they are given up", lambda: ask(port, self.ITEMS, "HEAD").status == 200)
                assert sum(len(chunk) for chunk in iter(lambda: connections[0].recv(1 << 20), b"")) < 8_000_000
        assert caplog.record_tuples == []


class TestReload:
    """`POST /-/reload`: a request that changes the service."""

    def test_a_reload_with_the_token_is_answered_with_its_outcome(self, guarded: int) -> None:
        """One sentence. An empty body is none."""
        answer = ask(guarded, "/-/reload", "POST", b"", AUTHORIZED)
        assert (answer.status, answer.body) == (200, b"reloaded: configuration 3f2a\n")

    def test_an_invalid_configuration_gives_422_with_the_errors(self) -> None:
        """One per line."""
        text = "2 settings are wrong:\n  kafka.start: missing\n  http.port: missing"
        with _server(token=TOKEN, reload_result=ReloadResult(is_successful=False, text=text)) as port:
            answer = ask(port, "/-/reload", "POST", headers=AUTHORIZED)
        assert (answer.status, answer.body.decode()) == (422, f"{text}\n")

    def test_a_service_without_a_token_rejects_changes(self) -> None:
        """Anybody could send them, also a page in a browser. The response names the variable."""
        with _server() as port:
            answer = ask(port, "/-/reload", "POST")
        assert answer.status == 403
        assert b"ABMONITOR_HTTP_TOKEN_FILE" in answer.body

    def test_a_reload_without_the_token_gives_401(self, guarded: int) -> None:
        """As on all other paths."""
        assert ask(guarded, "/-/reload", "POST").status == 401

    @pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE"])
    def test_a_reload_needs_the_method_post(self, guarded: int, method: str) -> None:
        """A link that a browser follows must not change anything."""
        answer = ask(guarded, "/-/reload", method, headers=AUTHORIZED)
        assert (answer.status, answer.headers["Allow"]) == (405, "POST")

    def test_a_reload_has_no_body(self, guarded: int) -> None:
        """Also with a token."""
        assert ask(guarded, "/-/reload", "POST", b"x", AUTHORIZED).status == 413

    def test_other_paths_stay_read_only_with_the_token(self, guarded: int) -> None:
        """405 lists the allowed methods."""
        answer = ask(guarded, "/api/experiments", "POST", headers=AUTHORIZED)
        assert (answer.status, answer.headers["Allow"]) == (405, "GET, HEAD")


class TestBodies:
    """Limits of bodies on paths that accept one."""

    @pytest.mark.parametrize(
        ("headers", "status"),
        [
            ({"Content-Length": "0"}, None),
            ({"Content-Length": "000262144"}, None),
            ({"Content-Length": "262145"}, 413),
            ({"Content-Length": "9" * 5000}, 413),
            ({"Transfer-Encoding": "chunked"}, 411),
        ],
    )
    def test_a_body_has_a_stated_length_up_to_the_limit(self, headers: dict[str, str], status: int | None) -> None:
        """The server closes connections whose body is longer than stated."""
        response = body_error(Headers(headers), 262_144)
        assert (response.status_code if response else None) == status

    def test_a_rule_that_ends_with_a_slash_covers_the_paths_below(self) -> None:
        """Any other rule covers one path."""
        assert WriteRule("/api/experiments/", ("POST",)).covers("/api/experiments/ranker/archive")
        assert not WriteRule("/-/reload", ("POST",)).covers("/-/reload/all")
