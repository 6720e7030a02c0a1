"""The endpoints of a running demo, for people, for Prometheus and for strangers."""

from __future__ import annotations

import http.client
import json
import re
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trustme
from prometheus_client import CollectorRegistry

from monitor.clock import wall_clock
from monitor.config import DisplaySettings, HttpSettings
from monitor.errors import DependencyUnavailable, StoreOwned
from monitor.export import CATALOGUE, Endpoints, HttpServer
from monitor.export.endpoints import MAX_STORE_READS
from monitor.summary import Summary
from tests.servers.chromium import dom, screenshot
from tests.servers.process import free_port
from tests.servers.prometheus import PrometheusServer, promtool, scraping
from tests.support.command import eventually, get


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Yield the port of a demo that has run through its week and stays."""
    chosen = free_port()
    log = (tmp_path_factory.mktemp("demo") / "log").open("w")
    demo = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "monitor",
            "demo",
            "--speed",
            "200000",
            "--responses",
            "8000",
            "--port",
            str(chosen),
            "--stay",
        ],
        stdout=log,
        stderr=log,
    )
    try:
        eventually("the demo has feedback", lambda: '"rating"' in get(f"http://127.0.0.1:{chosen}/api/experiments")[1])
        yield chosen
    finally:
        demo.terminate()
        demo.wait(20)
        log.close()


class Answer(NamedTuple):
    """What came back."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes


def _ask(
    port: int, path: str, method: str = "GET", body: bytes | None = None, headers: Mapping[str, str] | None = None
) -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path, body=body, headers=dict(headers or {}))
        answer = connection.getresponse()
        return Answer(answer.status, answer.headers, answer.read())
    finally:
        connection.close()


class TestPaths:
    """What answers, and that nothing else does."""

    @pytest.mark.parametrize(
        "path", ["/", "/metrics", "/metrics/experiments", "/-/healthy", "/-/ready", "/api/experiments"]
    )
    def test_each_path_answers_get_and_head(self, port: int, path: str) -> None:
        """HEAD has the headers and no body."""
        assert _ask(port, path).status == 200
        head = _ask(port, path, "HEAD")
        assert (head.status, head.body) == (200, b"")

    @pytest.mark.parametrize("path", ["/metricsx", "/metrics/", "/favicon.ico", "/../etc/passwd", "/api", "/%00"])
    def test_anything_else_is_404(self, port: int, path: str) -> None:
        """Nothing is guessed."""
        assert _ask(port, path).status == 404

    def test_other_methods_and_bodies_are_refused(self, port: int) -> None:
        """405 says what is allowed; a body is too large whatever its length."""
        refused = _ask(port, "/", "POST")
        assert (refused.status, refused.headers["Allow"]) == (405, "GET, HEAD")
        assert _ask(port, "/", "GET", b"x" * 10).status == 413

    def test_one_experiment(self, port: int) -> None:
        """The object of status --json; an unknown name is 404."""
        answer = _ask(port, "/api/experiments/ranker-v2")
        assert set(json.loads(answer.body)["variants"]) == {"control", "treatment"}
        assert _ask(port, "/api/experiments/nothing").status == 404

    def test_a_verdict(self, port: int) -> None:
        """The object of `verdict --json`; the rest of the path is no name."""
        found = json.loads(_ask(port, "/api/experiments/ranker-v2/verdict").body)
        assert (found["experiment"], set(found["verdict"])) == ("ranker-v2", {"treatment"})
        early = json.loads(_ask(port, "/api/experiments/ranker-v2/verdict?as_of=2020-01-01T00:00:00Z").body)
        assert early["verdict"]["treatment"]["state"] == "insufficient_data"
        for path in ("nothing/verdict", "ranker-v2/verdicts", "ranker-v2/verdict/verdict", "/verdict"):
            assert _ask(port, f"/api/experiments/{path}").status == 404

    def test_as_of(self, port: int) -> None:
        """Before the first event no decayed mean is defined; a time that cannot be read is 400."""
        found = json.loads(_ask(port, "/api/experiments/ranker-v2?as_of=2020-01-01T00:00:00Z").body)
        decayed = found["variants"]["control"]["metrics"]["dcg@5"]["decayed"]["24h"]
        assert decayed["mean"] is None
        assert _ask(port, "/api/experiments?as_of=noon").status == 400


class TestPrometheus:
    """Both endpoints under a real Prometheus and promtool."""

    @pytest.mark.parametrize("path", ["/metrics", "/metrics/experiments"])
    def test_promtool_finds_nothing_to_say(self, port: int, path: str) -> None:
        """`promtool check metrics` is silent, but for days: verdicts are a matter of days, and their gauge says so."""
        done = promtool("check", "metrics", stdin=get(f"http://127.0.0.1:{port}{path}")[1])
        days = 'abmonitor_days_to_resolve use base unit "seconds" instead of "days"'
        assert done.stdout == ""
        assert set(done.stderr.splitlines()) <= {days}

    def test_no_nan_and_nothing_outside_the_catalogue(self, port: int) -> None:
        """Every name and label is in the catalogue that boards are checked against."""
        known = {each.name: set(each.labels) for each in CATALOGUE}
        for path in ("/metrics", "/metrics/experiments"):
            for line in get(f"http://127.0.0.1:{port}{path}")[1].splitlines():
                if not line.startswith("abmonitor"):
                    continue
                name = re.split(r"[{ ]", line, maxsplit=1)[0]
                if name.endswith("_created"):
                    continue
                base = re.sub(r"_(bucket|sum|count)$", "", name)
                labels = set(re.findall(r'(\w+)="', line)) - {"le"}
                assert labels == known[name if name in known else base], line
                assert "NaN" not in line

    def test_a_real_prometheus_scrapes_both(self, port: int) -> None:
        """Both targets are up and a mean can be asked for."""
        targets = [f"127.0.0.1:{port}/metrics", f"127.0.0.1:{port}/metrics/experiments"]
        with PrometheusServer(scraping(targets)) as server:
            eventually("both targets are up", lambda: [each["health"] for each in server.targets()] == ["up", "up"])
            found = server.query('abmonitor_metric_mean{metric="dcg@5", decay="24h"}')
            assert {each["metric"]["variant"] for each in found} == {"control", "treatment"}
            assert all(1 < float(each["value"][1]) < 3 for each in found)
            assert server.query("abmonitor_store_up == 1")

    def test_the_documented_configuration_is_one(self, tmp_path: Path) -> None:
        """Promtool accepts what docs/http.md says about TLS and the token, files included."""
        text = (Path(__file__).parents[2] / "docs/http.md").read_text()
        (block,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
        trustme.CA().cert_pem.write_to_path(str(tmp_path / "ab-monitor-ca.pem"))
        (tmp_path / "ab-monitor-token").write_text(TOKEN)
        config = tmp_path / "prometheus.yml"
        config.write_text(block.replace("/etc/prometheus", str(tmp_path)))
        done = promtool("check", "config", str(config))
        assert done.returncode == 0, done.stdout + done.stderr


class TestPage:
    """The page for people, in a browser."""

    def test_shows_the_variants_and_survives_its_own_policy(self, port: int) -> None:
        """Style and script are allowed by their hashes; the table is there."""
        document = dom(f"http://127.0.0.1:{port}/")
        for word in ("ranker-v2", "control", "treatment", "dcg@5", "rated share", "decay 24h"):
            assert word in document
        policy = _ask(port, "/").headers["Content-Security-Policy"]
        assert "unsafe" not in policy

    @pytest.mark.parametrize(("width", "height"), [(1400, 1000), (400, 1400)])
    def test_renders_narrow_and_wide(self, port: int, width: int, height: int, tmp_path: Path) -> None:
        """A screenshot comes out, and is more than an empty page."""
        picture = tmp_path / "page.png"
        screenshot(f"http://127.0.0.1:{port}/", picture, width, height)
        assert picture.stat().st_size > 20_000


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
    server = HttpServer(
        HttpSettings(port=0, token=token, **files),
        Endpoints(
            summary=summary,
            items=items,
            process_registry=CollectorRegistry(),
            readiness=lambda: (),
            display=DisplaySettings(),
            clock=wall_clock,
        ),
    )
    server.start()
    try:
        yield server.port
    finally:
        server.stop()


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
        answer = _ask(port, path)
        assert (answer.status, answer.body) == (500, b"abm:{0}:0:b:1:0 is damaged\n")


class TestToken:
    """With a token, only those who have it may read."""

    @pytest.mark.parametrize("path", ["/", "/metrics", "/metrics/experiments", "/api/experiments", "/api/x", "/else"])
    @pytest.mark.parametrize(
        "given", [None, f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", "Bearer", f"Basic {TOKEN}", TOKEN, "Bearer \xe9"]
    )
    def test_without_it_nothing_is_said(self, guarded: int, path: str, given: str | None) -> None:
        """Not even which paths there are; the answer names the scheme."""
        answer = _ask(guarded, path, headers={} if given is None else {"Authorization": given})
        assert (answer.status, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
        assert answer.body == b"a bearer token is needed here\n"

    @pytest.mark.parametrize(
        ("path", "status"), [("/", 503), ("/metrics", 200), ("/api/experiments", 503), ("/else", 404)]
    )
    @pytest.mark.parametrize("scheme", ["Bearer", "bearer"])
    def test_with_it_everything_is_as_without(self, guarded: int, path: str, status: int, scheme: str) -> None:
        """There is no store here: 503 is what the page says to everybody who may ask."""
        assert _ask(guarded, path, headers={"Authorization": f"{scheme} {TOKEN}"}).status == status

    @pytest.mark.parametrize("path", ["/-/healthy", "/-/ready"])
    def test_probes_need_none(self, guarded: int, path: str) -> None:
        """Whoever restarts containers has no token."""
        assert _ask(guarded, path).status == 200

    def test_other_methods_need_it_too(self, guarded: int) -> None:
        """405 comes after 401."""
        assert _ask(guarded, "/metrics", "POST").status == 401


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
            _ask(encrypted, "/-/healthy")
        assert _handshake(encrypted, authority, ssl.TLSVersion.TLSv1_3) == "TLSv1.3"

    def test_half_handshakes_do_not_hold_the_others_up(self, encrypted: int, authority: trustme.CA) -> None:
        """Connections that never say hello, or stop in the middle of it, cost the others nothing."""
        with _sending(encrypted, [b""] * 50 + [b"\x16\x03\x01\x02"] * 8):
            started = time.monotonic()
            assert _handshake(encrypted, authority, ssl.TLSVersion.TLSv1_3) == "TLSv1.3"
            assert time.monotonic() - started < 8


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
        assert _ask(plain, "/-/healthy").status == 200
        assert time.monotonic() - started < 8

    def test_slow_clients_are_cut_off_and_do_not_hold_the_others_up(self, plain: int) -> None:
        """Silent ones, and those that send a byte now and then: none outlives the timeout of ten seconds by much."""
        beginnings = [b""] * 100 + [b"G"] * 4 + [b"GET / HTTP/1.1\r\nX: "] * 4
        started = time.monotonic()
        with _sending(plain, beginnings) as slow, ThreadPoolExecutor(len(slow)) as pool:
            ends = [pool.submit(_drip, each, b"") for each in slow[:4]]
            ends += [pool.submit(_drip, each, b"x") for each in slow[-8:]]
            while time.monotonic() - started < 4:
                asked = time.monotonic()
                assert _ask(plain, "/-/healthy").status == 200
                assert time.monotonic() - asked < 8
            for end in ends:
                assert 8 < end.result() - started < 60

    @pytest.mark.parametrize("beginning", [b"G", b"GET / HT", b"GET / HTTP/1.1\r\nX: "])
    def test_requests_that_stop_in_the_middle_hold_nobody_up(self, plain: int, beginning: bytes) -> None:
        """However many they are: they wait for the rest of it, and nobody for them."""
        with _sending(plain, [beginning] * 100):
            for path in ("/-/healthy", "/-/ready", "/metrics") * 3:
                asked = time.monotonic()
                assert _ask(plain, path).status == 200
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
            waiting = [pool.submit(_ask, port, self.ITEMS) for _ in range(MAX_STORE_READS)]
            try:
                assert all(asked.acquire(timeout=20) for _ in waiting)
                for path in ("/-/healthy", "/-/ready", "/metrics") * 3:
                    assert _ask(port, path).status == 200
                for path in ("/", "/metrics/experiments", "/api/experiments", self.ITEMS) * 3:
                    refused = _ask(port, path)
                    assert (refused.status, refused.headers["Retry-After"]) == (503, "10")
                    assert b"read the store already" in refused.body
            finally:
                answering.set()
            assert {each.result().status for each in waiting} == {200}
            assert {_ask(port, self.ITEMS, method).status for method in ("GET", "HEAD") * MAX_STORE_READS} == {200}

    def test_answers_that_nobody_takes_hold_up_as_few(self) -> None:
        """Who asks for much and reads nothing of it counts as one that waits, until he is given up."""
        with _server(items=lambda *_: {"much": "x" * 8_000_000}) as port:
            request = f"GET {self.ITEMS} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
            with _sending(port, [request] * MAX_STORE_READS * 2):
                eventually("all turns are taken", lambda: _ask(port, self.ITEMS, "HEAD").status == 503)
                for path in ("/-/healthy", "/-/ready", "/metrics"):
                    asked = time.monotonic()
                    assert _ask(port, path).status == 200
                    assert time.monotonic() - asked < 5
            eventually("they are given up", lambda: _ask(port, self.ITEMS, "HEAD").status == 200)
