"""HTTP with TLS, with a token, and against requests that are too large or too slow."""

from __future__ import annotations

import http.client
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from monitor.config import DisplaySettings, HttpSettings
from monitor.errors import UsageError
from monitor.export import HttpServer
from monitor.export import http as served
from monitor.summary import Summary
from tests.servers.certificates import Authority

TOKEN = "a-token-of-sixteen-or-more"


@contextmanager
def _server(settings: HttpSettings) -> Iterator[HttpServer]:
    server = HttpServer(
        settings,
        summary=lambda _: Summary(0, {}),
        process_registry=CollectorRegistry(),
        readiness=tuple,
        display=DisplaySettings(),
        clock=lambda: 0,
    )
    server.start()
    try:
        yield server
    finally:
        server.stop()


def _status(port: int, path: str, headers: dict[str, str] | None = None, context: ssl.SSLContext | None = None) -> int:
    connection = (
        http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        if context is None
        else http.client.HTTPSConnection("127.0.0.1", port, timeout=10, context=context)
    )
    try:
        connection.request("GET", path, headers=headers or {})
        return connection.getresponse().status
    finally:
        connection.close()


class TestToken:
    """Who may read."""

    @pytest.mark.parametrize("path", ["/", "/metrics", "/metrics/experiments", "/api/experiments", "/nothing"])
    def test_without_the_token_nothing_is_told(self, path: str) -> None:
        """Not even what there is."""
        with _server(HttpSettings(port=0, token=TOKEN)) as server:
            assert _status(server.port, path) == 401
            for wrong in ("Bearer wrong", TOKEN, f"Basic {TOKEN}", "Bearer \xff"):
                assert _status(server.port, path, {"Authorization": wrong}) == 401
            expected = 404 if path == "/nothing" else 200
            assert _status(server.port, path, {"Authorization": f"Bearer {TOKEN}"}) == expected

    def test_health_needs_none(self) -> None:
        """Orchestrators bring no token."""
        with _server(HttpSettings(port=0, token=TOKEN)) as server:
            assert [_status(server.port, path) for path in ("/-/healthy", "/-/ready")] == [200, 200]


class TestTls:
    """HTTPS only, once there is a certificate."""

    def test_plain_requests_and_old_protocols_are_refused(self, tmp_path: Path) -> None:
        """A client that trusts the authority is served."""
        authority = Authority(tmp_path)
        pair = authority.issue("server")
        settings = HttpSettings(port=0, tls_cert_file=str(pair.certificate), tls_key_file=str(pair.key))
        with _server(settings) as server:
            assert server.url.startswith("https://127.0.0.1:")
            context = ssl.create_default_context(cafile=authority.file)
            assert _status(server.port, "/-/ready", context=context) == 200
            with pytest.raises(ssl.SSLCertVerificationError):
                _status(server.port, "/-/ready", context=ssl.create_default_context())
            with suppress(ConnectionError):
                assert _status(server.port, "/-/ready") == 400
            old = ssl.create_default_context(cafile=authority.file)
            with pytest.warns(DeprecationWarning, match="TLSv1_1"):
                old.maximum_version = ssl.TLSVersion.TLSv1_1
            with pytest.raises((ssl.SSLError, ConnectionError)):
                _status(server.port, "/-/ready", context=old)

    def test_a_certificate_that_is_none_is_a_mistake_of_the_configuration(self, tmp_path: Path) -> None:
        """It is said at the start."""
        (tmp_path / "nonsense").write_text("nonsense")
        place = str(tmp_path / "nonsense")
        with pytest.raises(UsageError, match=r"http\.tls_"), _server(HttpSettings("127.0.0.1", 0, place, place)):
            pass


class TestStrangers:
    """Requests that are too large or too slow."""

    @pytest.mark.parametrize(
        ("request_bytes", "status"),
        [
            (b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", b"414"),
            (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 100_000 + b"\r\n\r\n", b"413"),
            (b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000000\r\n\r\n", b"413"),
            (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc", b"405"),
        ],
        ids=["line", "header", "body", "post"],
    )
    def test_oversized_requests_are_refused(self, request_bytes: bytes, status: bytes) -> None:
        """Without reading them to their end."""
        with _server(HttpSettings(port=0)) as server, socket.create_connection(("127.0.0.1", server.port), 10) as peer:
            peer.sendall(request_bytes)
            assert peer.recv(1000).split(b" ", 2)[1] == status

    def test_slow_ones_are_cut_off_and_keep_nobody_waiting(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """More of them than there are threads."""
        monkeypatch.setattr(served, "_TIMEOUT_S", 1)
        with _server(HttpSettings(port=0)) as server:
            peers = [socket.create_connection(("127.0.0.1", server.port), 30) for _ in range(20)]
            for peer in peers:
                peer.sendall(b"GET / HT")
            assert _status(server.port, "/-/ready") == 200
            for peer in peers:
                with suppress(ConnectionError):
                    # It ends: nothing, or an answer that says so, but no timeout of ours.
                    peer.recv(1000)
                peer.close()
