"""nginx with the example of deploy/proxy, on free ports, with a certificate and a user of its own."""

from __future__ import annotations

import re
import shutil
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

import trustme

from tests.servers.process import Process, answers, free_port, need

_EXAMPLE = Path(__file__).parents[2] / "deploy/proxy/nginx.conf"
USER, PASSWORD = "ann", "hunter2"
PROXY_SECRET = "a-secret-of-the-proxy"
_MAIN = """
daemon off;
master_process off;
pid nginx.pid;
events {}
http {
    client_body_temp_path temporary; proxy_temp_path temporary; fastcgi_temp_path temporary;
    uwsgi_temp_path temporary; scgi_temp_path temporary;
    proxy_bind %s;
    include ab-monitor.conf;
}
"""


def example_with_oauth2_proxy(port: int) -> str:
    """Return the example as changed by its last comment: for logins at an oauth2-proxy on a port of this machine."""
    text, instructions = _EXAMPLE.read_text().split("# With oauth2-proxy (")
    blocks = re.findall(r"(?:^#   +\S.*\n)+", instructions, re.MULTILINE)
    access, locations = (block.replace("#", "").replace("127.0.0.1:4180", f"127.0.0.1:{port}") for block in blocks)
    for pattern, lines in (
        (r"map \$ab_monitor_realm \$ab_monitor_user \{[^}]*\}\n", ""),
        (r" *auth_basic .*\n *auth_basic_user_file .*\n", access),
        (r"(?m)(?=^ *location / \{)", locations),
    ):
        text, count = re.subn(pattern, lines, text)
        assert count == 1, pattern
    return text


class SignInServer:
    """What nginx sees of an oauth2-proxy: /oauth2/auth knows the user of a cookie, /oauth2/sign_in sends elsewhere."""

    COOKIE = "_oauth2_proxy=of-ann"
    USER = "ann@example.org"

    def __init__(self) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path == "/oauth2/auth" and self.headers["Cookie"] == SignInServer.COOKIE:
                    self.send_response(202)
                    self.send_header("X-Auth-Request-Email", SignInServer.USER)
                elif self.path == "/oauth2/auth":
                    self.send_response(401)
                else:
                    self.send_response(302)
                    target = quote(self.headers["X-Auth-Request-Redirect"], safe="")
                    self.send_header("Location", f"https://login.example.org/?rd={target}")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Stay silent."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_port

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()


class Nginx:
    """The proxy in front of the service on a port of this machine; `source` is the address of its connections."""

    def __init__(self, target: int, authority: trustme.CA, source: str = "127.0.0.1", example: str = "") -> None:
        """Write the files that the example names; `example` is a text to use instead of the example's."""
        self.port, self.plain_port = free_port(), free_port()
        self._directory = Path(tempfile.mkdtemp(prefix="abm-nginx-"))
        files = self._directory / "ab-monitor"
        files.mkdir()
        certificate = authority.issue_cert("127.0.0.1")
        certificate.cert_chain_pems[0].write_to_path(str(files / "cert.pem"))
        certificate.private_key_pem.write_to_path(str(files / "key.pem"))
        (files / "users").write_text(f"{USER}:{{PLAIN}}{PASSWORD}\n")
        (files / "secret.conf").write_text(f'set $ab_monitor_secret "{PROXY_SECRET}";\n')
        text = example or _EXAMPLE.read_text()
        for old, new in (
            ("listen 443 ssl", f"listen 127.0.0.1:{self.port} ssl"),
            ("listen 80", f"listen 127.0.0.1:{self.plain_port}"),
            ("http://127.0.0.1:9464", f"http://127.0.0.1:{target}"),
            ("/var/log/nginx", str(self._directory)),
        ):
            assert old in text, old
            text = text.replace(old, new)
        (self._directory / "ab-monitor.conf").write_text(text)
        (self._directory / "nginx.conf").write_text(_MAIN % source)
        command = [need("nginx", "nginx-light"), "-e", "stderr", "-p", str(self._directory), "-c", "nginx.conf"]
        self.process = Process(command, self._directory)

    @property
    def logs(self) -> str:
        """What nginx has written to all of its logs."""
        return "\n".join(path.read_text() for path in sorted(self._directory.glob("*.log")))

    def __enter__(self) -> Self:
        self.process.start(lambda: answers(self.port))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.stop()
        shutil.rmtree(self._directory, ignore_errors=True)
