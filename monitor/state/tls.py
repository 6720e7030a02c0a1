"""Why a server that speaks TLS hung up: its alert is lost when it closes before this side has written its command."""

from __future__ import annotations

import socket
import ssl
from typing import Final
from urllib.parse import urlsplit

from monitor.config import StoreSettings
from monitor.errors import tls_refusal

_LISTEN_S: Final = 1.0
_HUNG_UP: Final = ("EOF", "reset", "Broken pipe", "closed")


def refusal(settings: StoreSettings, error: BaseException) -> str | None:
    """Return which certificate is refused and why, None if that is not what the error is about."""
    said = str(error)
    found = tls_refusal(said)
    if found or not settings.url.startswith("rediss://") or not any(each in said for each in _HUNG_UP):
        return found
    place = urlsplit(settings.url)
    try:
        context = ssl.create_default_context(cafile=settings.ssl_ca_file)
        if settings.ssl_cert_file:
            context.load_cert_chain(settings.ssl_cert_file, settings.ssl_key_file)
        with (
            socket.create_connection((place.hostname or "localhost", place.port or 6379), _LISTEN_S) as plain,
            context.wrap_socket(plain, server_hostname=place.hostname) as wrapped,
        ):
            wrapped.recv(1)
    except OSError as heard:
        return tls_refusal(str(heard))
    return None
