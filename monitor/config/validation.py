"""What the keys of a section have to be to each other, and an address to be one that can be asked for."""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from monitor.config.settings import HttpSettings, KafkaSettings, StoreSettings
from monitor.config.values import LARGEST_PORT, PREFIX, is_host
from monitor.errors import ConfigError

CLUSTERS: Final = ("redis+cluster://", "rediss+cluster://")
_SERVERS: Final = ("redis://", "rediss://")
_SOCKET: Final = "unix://"
_EMBEDDED: Final = "embedded:"
_SCHEMES: Final = (*_SERVERS, *CLUSTERS, _SOCKET, _EMBEDDED)
_PORT: Final = re.compile(r"[0-9]{1,5}")
_CERTIFICATES: Final = ("ssl_ca_file", "ssl_cert_file", "ssl_key_file")


def check_kafka(kafka: KafkaSettings) -> None:
    """Raise `ConfigError` for topics that are one, servers that are none, and protection that would not be used."""
    topics = {
        "responses_topic": kafka.responses_topic,
        "feedback_topic": kafka.feedback_topic,
        "dead_letter_topic": kafka.dead_letter_topic,
    }
    for name, topic in topics.items():
        if list(topics.values()).count(topic) > 1:
            raise ConfigError(f"kafka.{name}", topic, "three different topics")
    for server in kafka.bootstrap_servers.split(","):
        host, _, port = server.strip().rpartition(":")
        if not host or not is_host(host) or not _PORT.fullmatch(port) or not 0 < int(port) <= LARGEST_PORT:
            raise ConfigError("kafka.bootstrap_servers", kafka.bootstrap_servers, "host:port, host:port, …")
    protected = kafka.security_protocol
    if protected.startswith("SASL"):
        for name in ("sasl_mechanism", "sasl_username", "sasl_password"):
            if getattr(kafka, name) is None:
                raise ConfigError(f"kafka.{name}", None, f"a value, because security_protocol is {protected}")
    else:
        # A password alone is nothing that is relied on: the same secrets may be handed to every deployment.
        _check_unset(
            "kafka", kafka, ("sasl_mechanism", "sasl_username"), "security_protocol SASL_SSL or SASL_PLAINTEXT"
        )
    if not protected.endswith("SSL"):
        _check_unset("kafka", kafka, _CERTIFICATES, "security_protocol SSL or SASL_SSL")
    _check_pair("kafka.ssl", kafka.ssl_cert_file, kafka.ssl_key_file)


def check_store(store: StoreSettings, table: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for an address that leads nowhere or shows a password in the file; the line never does."""
    url = store.url
    # Whatever stands before the last @ may be a password, even where the address is none; and what follows a ?, too.
    shown = re.sub(r"(?s)[?#].*", "?…", re.sub(r"(?s)^([a-z+]+:/+)?.*@", r"\1…@", url))
    if not url.startswith(_SCHEMES) or url in _SCHEMES or "\0" in url:
        raise ConfigError("store.url", shown, f"one of {' '.join(_SCHEMES)}")
    if not url.startswith(_EMBEDDED):
        _check_address(url, shown)
    if "url" in table and re.search(r"//[^/@]*:[^/@]*@", str(table["url"])):
        raise ConfigError("store.url", "redis://…@…", f"the password in {PREFIX}STORE_PASSWORD, not in the file")
    if not url.startswith("rediss"):
        _check_unset("store", store, _CERTIFICATES, "a url of rediss:// or rediss+cluster://")
    _check_pair("store.ssl", store.ssl_cert_file, store.ssl_key_file)


def _check_address(url: str, shown: str) -> None:
    """Refuse what redis-py would not take, or would take for something else."""
    if re.search(r"[?#]", url):
        raise ConfigError("store.url", shown, "no ?options and no #: whatever can be set has a key of its own")
    scheme, slashes, rest = url.partition("://")
    authority, _, path = rest.partition("/")
    user, _, places = authority.rpartition("@")
    if re.search(r"[\s,\[\]]", user):
        raise ConfigError("store.url", shown, f"the password in {PREFIX}STORE_PASSWORD, or its signs as %2C and so on")
    if url.startswith(_SOCKET):
        if places or not path:
            raise ConfigError("store.url", shown, "unix:///PATH")
        return
    if url.startswith(_SERVERS) and not re.fullmatch(r"[0-9]{0,9}", path):
        raise ConfigError("store.url", shown, "the number of a database after the last /, such as redis://HOST:6379/0")
    if url.startswith(CLUSTERS) and path not in {"", "0"}:
        raise ConfigError("store.url", shown, "no database but 0: a cluster has no other")
    first, *others = places.split(",")
    one = url.startswith(_SERVERS)
    if not _is_place(first) or not all(_is_place(other, whole=True) for other in others) or (one and others):
        raise ConfigError("store.url", shown, f"{scheme}{slashes}HOST:PORT" + ("" if one else ",HOST:PORT,…"))


def _is_place(place: str, *, whole: bool = False) -> bool:
    """Return whether this is HOST:PORT; unless it has to be whole, either may be left out."""
    try:
        parts = urlsplit(f"//{place}")
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return False
    return is_host(host) and port != 0 and (not whole or bool(host and port))


def check_http(http: HttpSettings) -> None:
    """Raise `ConfigError` for a certificate that cannot be used."""
    _check_pair("http.tls", http.tls_cert_file, http.tls_key_file)
    if http.tls_cert_file:
        try:
            # An empty password: OpenSSL would ask the terminal for that of an encrypted key.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(http.tls_cert_file, http.tls_key_file, "")
        except OSError as error:
            raise ConfigError(
                "http.tls_cert_file",
                http.tls_cert_file,
                f"a PEM certificate and its unencrypted key in http.tls_key_file ({error})",
            ) from error


def _check_unset(section: str, record: object, names: tuple[str, ...], needed: str) -> None:
    """Refuse what is given and would have no effect without something else."""
    for name in names:
        value = getattr(record, name)
        if value is not None:
            raise ConfigError(f"{section}.{name}", value, f"{needed} with it")


def _check_pair(start: str, certificate: str | None, key: str | None) -> None:
    if (certificate is None) != (key is None):
        given, missing = ("cert_file", "key_file") if certificate else ("key_file", "cert_file")
        raise ConfigError(f"{start}_{given}", certificate or key, f"{start}_{missing} with it")
