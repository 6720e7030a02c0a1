"""A receiver of messages: an HTTP server that stores requests, and answers with a chosen status."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class ReceivedRequest:
    """A request as it arrived."""

    path: str
    headers: dict[str, str]
    """Name in lower case → value."""
    body: bytes
    status: int
    """Status of the answer."""

    @property
    def message_id(self) -> str:
        """The id of the message, as of Standard Webhooks."""
        return self.headers["webhook-id"]

    def json(self) -> Any:
        """Return the body as JSON."""
        return json.loads(self.body)


class MessageReceiver:
    """Stores every POST in `requests`, calls `before_answer`, and answers with `status`; 302 leads to another path."""

    def __init__(self) -> None:
        self.requests: list[ReceivedRequest] = []
        self.status = 204
        self.before_answer: Callable[[], object] = tuple
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                receiver.requests.append(ReceivedRequest(self.path, headers, body, receiver.status))
                receiver.before_answer()
                self.send_response(receiver.status)
                self.send_header("Content-Length", "0")
                if receiver.status == 302:
                    self.send_header("Location", f"http://{receiver.address}/elsewhere")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Stay silent."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self.address = f"127.0.0.1:{self._server.server_port}"

    def accepted(self) -> list[ReceivedRequest]:
        """Return the requests that were answered with success."""
        return [request for request in self.requests if request.status < 300]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
