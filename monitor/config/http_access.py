"""Settings of who may read over HTTP: trusted proxies, the header with the user's name, secrets, the public address."""

from __future__ import annotations

import re
from collections.abc import Iterator
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Final
from urllib.parse import urlsplit

from monitor.config.settings import HttpSettings
from monitor.config.validation import Contradiction
from monitor.config.values import VARIABLE_PREFIX, is_host_name, parse_text
from monitor.errors import ConfigError

PROXY_SECRET_HEADER: Final = "X-Proxy-Secret"  # noqa: S105  the name of a header
"""The header in which a trusted proxy sends `http.proxy_secret`."""
_MAX_NETWORKS: Final = 100
_MIN_TOKEN_LENGTH: Final = 16
_MIN_SHARE_SECRET_LENGTH: Final = 32
_HEADER_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,99}")
_OTHER_USES: Final = re.compile(
    r"connection|keep-alive|te|trailer|transfer-encoding|upgrade|host|authorization|cookie|date|expect|forwarded|from"
    r"|origin|range|referer|user-agent|via|x-real-ip|x-request-id|x-proxy-secret"
    r"|(?:proxy|content|accept|if|sec|access-control|x-forwarded-(?:for|host|port|proto|server|scheme))(?:-.*)?"
)
"""Names, in lower case, of headers with another meaning: browsers or proxies send them without a user's name."""


def parse_trusted_proxies(key: str, value: object) -> tuple[IPv4Network | IPv6Network, ...]:
    """Return the networks of a list, or of a variable with commas between the networks."""
    texts = value.split(",") if key.startswith(VARIABLE_PREFIX) and isinstance(value, str) else value
    expected = f'a list of up to {_MAX_NETWORKS} addresses or networks, such as ["10.0.0.5", "10.1.0.0/16"]'
    if not isinstance(texts, list) or len(texts) > _MAX_NETWORKS:
        raise ConfigError(key, value, expected)
    return tuple(_parse_network(f"{key}[{index}]", text, expected) for index, text in enumerate(texts))


def _parse_network(key: str, value: object, expected: str) -> IPv4Network | IPv6Network:
    if not isinstance(value, str):
        raise ConfigError(key, value, expected)
    try:
        network = ip_network(value.strip())
    except ValueError as error:
        hint = " without bits after the prefix" if "host bits" in str(error) else ""
        raise ConfigError(key, value, f"an address or a network such as 10.1.0.0/16{hint}") from None
    if network.prefixlen == 0:
        raise ConfigError(key, value, "the network of the proxies: any computer in this one could name any user")
    if isinstance(network, IPv6Network) and network.network_address.ipv4_mapped is not None:
        raise ConfigError(key, value, "an IPv4 network in its own form, such as 10.1.0.0/16")
    return network


def parse_user_header(key: str, value: object) -> str:
    """Return the name of a header that has no other use; names with underscores are ambiguous behind proxies."""
    name = parse_text(key, value)
    if not _HEADER_NAME.fullmatch(name):
        raise ConfigError(key, value, 'the name of a header, of letters, digits and hyphens: "X-Forwarded-User"')
    if _OTHER_USES.fullmatch(name.lower()):
        raise ConfigError(key, value, 'a header without another use, such as "X-Forwarded-User"')
    return name


def parse_public_url(key: str, value: object) -> str:
    """Return an address http://HOST[:PORT] or https://HOST[:PORT], without a slash at the end."""
    text = parse_text(key, value).removesuffix("/")
    expected = "https://HOST or https://HOST:PORT, without a path, because the pages link to each other from the root"
    try:
        parts = urlsplit(text)
        is_complete = bool(parts.hostname) and parts.port != 0 and is_host_name(parts.hostname or "")
    except ValueError:
        is_complete = False
    if (
        not is_complete
        or text != f"{parts.scheme}://{parts.netloc}"
        or "@" in text
        or parts.scheme not in {"http", "https"}
    ):
        raise ConfigError(key, re.sub(r"//.*@", "//…@", text), expected)
    return text


def parse_token(key: str, value: object) -> str:
    """Return a token or the secret of a proxy; errors do not quote the value."""
    return _parse_secret(key, value, _MIN_TOKEN_LENGTH)


def parse_share_secret(key: str, value: object) -> str:
    """Return the key of signatures; errors do not quote the value."""
    return _parse_secret(key, value, _MIN_SHARE_SECRET_LENGTH)


def _parse_secret(key: str, value: object, min_length: int) -> str:
    secret = parse_text(key, value)
    if len(secret) < min_length or not re.fullmatch(r"[!-~]+", secret):
        raise ConfigError(key, "…", f"at least {min_length} visible ASCII characters")
    return secret


def find_access_contradictions(http: HttpSettings) -> Iterator[Contradiction]:
    """Yield half of a single sign-on, and a proxy's secret without effect; no value is a secret."""
    if http.trusted_proxies and http.user_header is None:
        expected = "the header in which http.trusted_proxies name the user"
        yield ("user_header", "trusted_proxies"), None, expected
    if http.user_header is not None and not http.trusted_proxies:
        expected = "no value without http.trusted_proxies, because any client could send the header"
        yield ("user_header", "trusted_proxies"), http.user_header, expected
    if http.proxy_secret is not None and not http.trusted_proxies:
        yield ("proxy_secret", "trusted_proxies"), "…", "no value without http.trusted_proxies"
