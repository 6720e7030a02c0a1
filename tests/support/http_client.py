"""One HTTP request to a server on this machine."""

from __future__ import annotations

import http.client
from collections.abc import Mapping
from typing import NamedTuple


class Answer(NamedTuple):
    """An HTTP response."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes


def ask(
    port: int, path: str, method: str = "GET", body: bytes | None = None, headers: Mapping[str, str] | None = None
) -> Answer:
    """Return the response to a request on a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path, body=body, headers=dict(headers or {}))
        answer = connection.getresponse()
        return Answer(answer.status, answer.headers, answer.read())
    finally:
        connection.close()
