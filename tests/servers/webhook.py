"""Whoever is told of alerts: an HTTP server that keeps what Alertmanager sends."""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self


class WebhookReceiver:
    """Answers every POST; `told` holds the alerts by the path that they came to, in the order of their arrival."""

    def __init__(self) -> None:
        told: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self.told: Mapping[str, list[dict[str, Any]]] = told

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                told[self.path.strip("/")] += message["alerts"]
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Stay silent."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def address(self, path: str) -> str:
        """Return where to send what is for that path."""
        return f"http://127.0.0.1:{self._server.server_port}/{path}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
