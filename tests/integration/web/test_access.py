"""Who may read a running server: raw requests of hostile clients, over IPv4, IPv6 and TLS."""

from __future__ import annotations

import http.client
import logging
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from ipaddress import ip_network
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import trustme
from prometheus_client import CollectorRegistry

from monitor.analysis import StoreSummary
from monitor.clock import wall_clock
from monitor.config import DisplaySettings, HttpSettings, ReloadResult
from monitor.errors import DependencyUnavailable
from monitor.export import ServiceHealth
from monitor.web import HttpEndpoints, HttpServer, PageContent, ShareLink, share_path
from tests.support.http_client import ask

TOKEN = "a-token-of-some-length"
SECRET = "0123456789abcdef0123456789abcdef"
LATER_S = wall_clock() // 1000 + 86_400
NAMES = ("a", "a/report", "a/b", "é 1")
USER = {"X-Forwarded-User": "ann"}


def _no_store(_as_of_ms: int | None) -> StoreSummary:
    raise DependencyUnavailable("no store here")


def _experiment_page(suffix: str, name: str, _query: Mapping[str, str]) -> PageContent:
    return PageContent("problem.html", {"title": "Page", "text": f"[{name}{suffix and ' ' + suffix}]"})


@contextmanager
def _server(**settings: Any) -> Iterator[HttpServer]:
    """Yield a server whose pages of experiments have only its name. It trusts 127.0.0.1 and has no store."""
    endpoints = HttpEndpoints(
        read_summary=_no_store,
        read_verdicts=lambda: _no_store(None),
        read_counts=lambda: _no_store(None),
        read_history=lambda _experiment: {},
        read_items=lambda path, _query: {"path": path},
        read_health=lambda: ServiceHealth(0, "", ""),
        read_starts=lambda: 0,
        data_problems=tuple,
        process_registry=CollectorRegistry(),
        readiness_problems=tuple,
        reload_configuration=lambda: ReloadResult(is_successful=True, text=""),
        display=DisplaySettings(),
        clock=wall_clock,
        experiment_pages={suffix: partial(_experiment_page, suffix) for suffix in ("", "/report", "/plan")},
        experiment_names=lambda: NAMES,
    )
    access: dict[str, Any] = {
        "port": 0,
        "token": TOKEN,
        "trusted_proxies": (ip_network("127.0.0.1"),),
        "user_header": "X-Forwarded-User",
        "share_secret": SECRET,
    }
    server = HttpServer(HttpSettings(**access | settings), endpoints)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="module")
def trusting() -> Iterator[int]:
    """Yield the port of a server that trusts the address of the tests."""
    with _server() as server:
        yield server.port


@pytest.fixture(scope="module")
def other() -> Iterator[int]:
    """Yield the port of a server that trusts another address than that of the tests."""
    with _server(trusted_proxies=(ip_network("127.0.0.2"), ip_network("10.0.0.0/8"))) as server:
        yield server.port


def _raw(port: int, *lines: bytes) -> tuple[int, bytes]:
    """Return status and whole response of a request of raw lines."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(b"\r\n".join([*lines, b"Host: x", b"Connection: close", b"", b""]))
        answer = b"".join(iter(lambda: connection.recv(65_536), b""))
    return int(answer.split()[1]), answer


class TestPeers:
    """The address at the other end of the connection decides."""

    def test_an_address_counts_whether_the_listener_is_of_ipv4_or_of_both_versions(self) -> None:
        """A listener of both versions reports IPv4 peers as IPv6 addresses."""
        for host in ("127.0.0.1", "::"):
            with _server(host=host) as server:
                assert ask(server.port, "/experiments/a", headers=USER).status == 200

    def test_the_address_counts_over_tls(self, tmp_path: Path) -> None:
        """With a certificate of the service."""
        authority = trustme.CA()
        certificate = authority.issue_cert("127.0.0.1")
        files = {"tls_cert_file": str(tmp_path / "cert.pem"), "tls_key_file": str(tmp_path / "key.pem")}
        certificate.cert_chain_pems[0].write_to_path(files["tls_cert_file"])
        certificate.private_key_pem.write_to_path(files["tls_key_file"])
        context = ssl.create_default_context()
        authority.configure_trust(context)
        for trusted, status in (("127.0.0.1", 200), ("127.0.0.2", 401)):
            with _server(trusted_proxies=(ip_network(trusted),), **files) as server:
                connection = http.client.HTTPSConnection("127.0.0.1", server.port, timeout=10, context=context)
                connection.request("GET", "/experiments/a", headers=USER)
                assert connection.getresponse().status == status
                connection.close()

    @pytest.mark.parametrize(
        "header",
        [
            b"X-Forwarded-For: 10.0.0.1",
            b"X-Forwarded-For: 127.0.0.2, 127.0.0.2",
            b"X-Real-IP: 127.0.0.2",
            b"Forwarded: for=10.0.0.1;by=10.0.0.1",
            b"True-Client-IP: 10.0.0.1",
            b"PROXY TCP4 10.0.0.1 10.0.0.1 1 2: x",
        ],
    )
    def test_no_header_makes_an_address_trusted(self, other: int, header: bytes) -> None:
        """Such headers are not read; a line that is no header gives 400."""
        for path in (b"/", b"/experiments/a", b"/api/experiments", b"/metrics", b"/nothing"):
            status, answer = _raw(other, b"GET " + path + b" HTTP/1.1", b"X-Forwarded-User: ann", header)
            assert status in {400, 401}
            assert b"[a]" not in answer

    def test_the_name_of_a_user_is_never_logged(self, trusting: int, caplog: pytest.LogCaptureFixture) -> None:
        """Neither that of a refused request."""
        with caplog.at_level(logging.DEBUG):
            for path in ("/experiments/a", "/", "/nothing", "/-/reload"):
                ask(trusting, path, headers={"X-Forwarded-User": "a-rare-name"})
                _raw(trusting, f"POST {path} HTTP/1.1".encode(), b"X-Forwarded-User: a-rare-name")
        assert "a-rare-name" not in caplog.text


def test_a_secret_for_links_without_any_login_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    """Everybody may read everything then, with and without a link."""
    with _server(token=None, trusted_proxies=(), user_header=None) as server:
        for address in ("/experiments/a", _shared("/experiments/a/b", "a"), "/experiments/a?share=wrong"):
            assert ask(server.port, address).status == 200
    assert "http.share_secret has no effect" in caplog.text
    assert SECRET not in caplog.text


class TestHeaders:
    """The header of a trusted proxy, as bytes."""

    @pytest.mark.parametrize(
        ("lines", "status"),
        [
            ([b"X-Forwarded-User: ann"], 200),
            ([b"x-FORWARDED-user:ann"], 200),
            ([b"X-Forwarded-User: \xc3\xa9"], 200),
            ([b"X-Forwarded-User: \xff"], 200),
            ([], 401),
            ([b"X-Forwarded-User:"], 401),
            ([b"X-Forwarded-User:  \t "], 401),
            ([b"X-Forwarded-User: ann", b"X-Forwarded-User: ann"], 401),
            ([b"X-Forwarded-User: ann", b"x-forwarded-user:"], 401),
            ([b"X_Forwarded_User: ann"], 401),
            ([b"X-Forwarded_User: ann"], 401),
            ([b"X-Forwarded-User : ann"], 400),
            ([b" X-Forwarded-User: ann"], 400),
            ([b"X-Forwarded-User\x00: ann"], 400),
            ([b"X-Forwarded-User: ann\x00"], 400),
            ([b"X: y\nX-Forwarded-User: mallory", b"X-Forwarded-User: ann"], 401),
        ],
    )
    def test_a_header_names_a_user_only_if_it_is_exactly_one(
        self, trusting: int, lines: list[bytes], status: int
    ) -> None:
        """Underscores are no hyphens; malformed headers are rejected."""
        assert _raw(trusting, b"GET /experiments/a HTTP/1.1", *lines)[0] == status

    def test_the_name_is_escaped_on_the_page(self, trusting: int) -> None:
        """It may contain anything."""
        page = ask(trusting, "/experiments/a", headers={"X-Forwarded-User": "<script>alert(1)</script>"}).body
        assert b"signed in as &lt;script&gt;" in page
        assert b"<script>alert" not in page

    @pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
    def test_a_user_cannot_change_anything(self, trusting: int, method: str) -> None:
        """403 or 405, whatever the path."""
        for path in ("/-/reload", "/api/declarations", "/api/declarations/a", "/experiments/a", "/"):
            assert ask(trusting, path, method, headers=USER).status in {403, 405}


def _shared(path: str, experiment: str = "a", expires_at_s: int = LATER_S) -> str:
    """Return an address with the query of a share link."""
    return f"{path}?{share_path(SECRET, ShareLink(experiment, expires_at_s)).partition('?')[2]}"


class TestShareLinks:
    """Share links at an address without a login."""

    @pytest.mark.parametrize("name", NAMES)
    @pytest.mark.parametrize("method", ["GET", "HEAD"])
    def test_a_link_opens_its_experiment(self, other: int, name: str, method: str) -> None:
        """Also one whose name is the address of another page of another experiment."""
        for end in ("", "/report"):
            answer = ask(other, _shared(f"/experiments/{quote(name, safe='')}{end}", name), method)
            assert answer.status == 200
            text = f"[{name}{end and ' ' + end}]" if method == "GET" else ""
            assert text in answer.body.decode()

    def test_the_address_of_two_experiments_shows_the_one_of_the_link(self, other: int) -> None:
        """`/experiments/a/report` is the report of `a`, or the page of `a/report`."""
        assert b"[a /report]" in ask(other, _shared("/experiments/a/report", "a")).body
        assert b"[a/report]" in ask(other, _shared("/experiments/a/report", "a/report")).body
        page = ask(other, "/experiments/a/report", headers={"Authorization": f"Bearer {TOKEN}"})
        assert b"[a/report]" in page.body

    @pytest.mark.parametrize(
        "path",
        [
            "/", "//", "/service", "/metrics", "/api/experiments", "/api/experiments/a", "/api/experiments/a/items",
            "/experiments/a%2Fb", "/experiments/a/b", "/experiments/a/../b", "/experiments/%2e%2e/experiments/a",
            "/experiments/a/plan", "/experiments/a%2Fplan", "//experiments/a", "/./experiments/a", "/experiments/a%",
            "/experiments/a%ff", "/experiments/a;x", "/experiments/a%3Fx", "/experiments/a%23", "/static",
            "http://x/experiments/b",
        ],
    )  # fmt: skip
    def test_a_link_opens_nothing_else(self, other: int, path: str) -> None:
        """403 for each form of the path; no experiment is shown."""
        for method in ("GET", "HEAD"):
            status, answer = _raw(other, f"{method} {_shared(path)} HTTP/1.1".encode())
            assert status in {400, 403}
            assert b"[a" not in answer

    def test_a_link_to_a_deleted_experiment_lists_no_other_names(self, other: int) -> None:
        """Other readers get the names that were probably meant."""
        answer = ask(other, _shared("/experiments/gone", "gone"))
        assert answer.status == 404
        assert "a/report" not in answer.body.decode()
        assert b"a/report" in ask(other, "/experiments/gone", headers={"Authorization": f"Bearer {TOKEN}"}).body

    def test_a_link_changes_nothing(self, other: int) -> None:
        """Only GET and HEAD."""
        for path in ("/experiments/a", "/api/experiments/a/verdict"):
            assert ask(other, _shared(path), "POST").status == 405
        assert ask(other, _shared("/-/reload"), "POST").status == 403

    def test_an_expired_link_is_refused_with_a_sentence(self, other: int) -> None:
        """As text for programs, as a page for browsers."""
        address = _shared("/experiments/a", expires_at_s=LATER_S - 2 * 86_400)
        assert ask(other, address).body == b"This link has expired. Ask the person who sent the link for a new one.\n"
        page = ask(other, address, headers={"Accept": "text/html"})
        assert (page.status, page.headers.get_content_type()) == (403, "text/html")
        assert page.headers["Content-Security-Policy"].startswith("default-src 'none'")
        assert page.headers["Referrer-Policy"] == "no-referrer"

    def test_the_signature_is_never_logged(self, other: int, caplog: pytest.LogCaptureFixture) -> None:
        """Not even at the level of debugging, and also if the store is out of reach."""
        address = _shared("/api/experiments/a/verdict")
        with caplog.at_level(logging.DEBUG):
            assert ask(other, address).status == 503
            assert ask(other, address[:-1]).status == 403
        assert address[-43:-1] not in caplog.text
