"""nginx with the example of deploy/proxy, on free ports, with a certificate and a user of its own."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

import trustme

from tests.servers.process import Process, answers, free_port, need

EXAMPLE = Path(__file__).parents[2] / "deploy/proxy/nginx.conf"
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
        text = example or EXAMPLE.read_text()
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
