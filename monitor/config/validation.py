"""Checks of settings that depend on each other, and of the addresses of servers."""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from monitor.config.settings import HttpSettings, KafkaSettings, SchemaRegistrySettings, StoreSettings
from monitor.config.values import MAX_PORT, VARIABLE_PREFIX, is_host_name
from monitor.errors import ConfigError

CLUSTER_SCHEMES: Final = ("redis+cluster://", "rediss+cluster://")
_SERVER_SCHEMES: Final = ("redis://", "rediss://")
_SOCKET_SCHEME: Final = "unix://"
_EMBEDDED_SCHEME: Final = "embedded:"
_SCHEMES: Final = (*_SERVER_SCHEMES, *CLUSTER_SCHEMES, _SOCKET_SCHEME, _EMBEDDED_SCHEME)
_PORT: Final = re.compile(r"[0-9]{1,5}")
_CERTIFICATE_KEYS: Final = ("ssl_ca_file", "ssl_cert_file", "ssl_key_file")


def check_kafka(kafka: KafkaSettings) -> None:
    """Raise `ConfigError` for equal topics, invalid servers, and credentials without a use."""
    if not kafka.sources and kafka.responses_topic == kafka.feedback_topic:
        expected = "two topics; [[kafka.sources]] can read one topic with both types of events"
        raise ConfigError("kafka.feedback_topic", kafka.feedback_topic, expected)
    if kafka.dead_letter_topic in kafka.topics:
        raise ConfigError("kafka.dead_letter_topic", kafka.dead_letter_topic, "another topic than those of the events")
    for server in kafka.bootstrap_servers.split(","):
        host, _, port = server.strip().rpartition(":")
        if not host or not is_host_name(host) or not _PORT.fullmatch(port) or not 0 < int(port) <= MAX_PORT:
            raise ConfigError(
                "kafka.bootstrap_servers", kafka.bootstrap_servers, "HOST:PORT, or several separated by commas"
            )
    security_protocol = kafka.security_protocol
    if security_protocol.startswith("SASL"):
        for name in ("sasl_mechanism", "sasl_username", "sasl_password"):
            if getattr(kafka, name) is None:
                raise ConfigError(f"kafka.{name}", None, f"a value, because security_protocol is {security_protocol}")
    else:
        # A password alone is accepted, because deployments may share one set of secrets.
        _check_keys_unset(
            "kafka", kafka, ("sasl_mechanism", "sasl_username"), "security_protocol is SASL_SSL or SASL_PLAINTEXT"
        )
    if not security_protocol.endswith("SSL"):
        _check_keys_unset("kafka", kafka, _CERTIFICATE_KEYS, "security_protocol is SSL or SASL_SSL")
    _check_key_pair("kafka.ssl", kafka.ssl_cert_file, kafka.ssl_key_file)


def check_schema_registry(registry: SchemaRegistrySettings) -> None:
    """Raise `ConfigError` for an invalid url, a password in it, and credentials without a use."""
    key, url = "schema_registry.url", registry.url
    if url is None:
        _check_keys_unset("schema_registry", registry, ("username", *_CERTIFICATE_KEYS), f"{key} is set")
        return
    redacted_url = re.sub(r"//[^,]*@", "//…@", url)
    for address in url.split(","):
        scheme, _, rest = address.strip().partition("://")
        server = rest.split("/")[0]
        if "@" in rest:
            expected = f"an address without a user: the keys are username and {VARIABLE_PREFIX}SCHEMA_REGISTRY_PASSWORD"
            raise ConfigError(key, redacted_url, expected)
        if (
            scheme not in {"http", "https"}
            or re.search(r"[?#\s]", rest)
            or server.startswith(":")
            or not server
            or not _is_host_and_port(server)
        ):
            raise ConfigError(
                key, redacted_url, "http://HOST:PORT or https://HOST:PORT, or several separated by commas"
            )
    if registry.username is not None and ":" in registry.username:
        raise ConfigError("schema_registry.username", registry.username, "a name without a colon")
    if registry.username is not None and registry.password is None:
        variable = f"{VARIABLE_PREFIX}SCHEMA_REGISTRY_PASSWORD"
        raise ConfigError("schema_registry.password", None, f"a value in the variable {variable}, for the username")
    if registry.username is not None and registry.token is not None:
        raise ConfigError("schema_registry.token", "…", "no token together with a username")
    if "https://" not in url:
        _check_keys_unset("schema_registry", registry, _CERTIFICATE_KEYS, f"{key} begins with https://")
    _check_key_pair("schema_registry.ssl", registry.ssl_cert_file, registry.ssl_key_file)


def check_store(store: StoreSettings, table: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for an invalid url and for a password in the file; no message contains a password."""
    url = store.url
    # The text before the last @, and the text after a ?, may be a password, even in an invalid url.
    redacted_url = re.sub(r"(?s)[?#].*", "?…", re.sub(r"(?s)^([a-z+]+:/+)?.*@", r"\1…@", url))
    if not url.startswith(_SCHEMES) or url in _SCHEMES or "\0" in url:
        raise ConfigError("store.url", redacted_url, f"an address that begins with one of {' '.join(_SCHEMES)}")
    if not url.startswith(_EMBEDDED_SCHEME):
        _check_address(url, redacted_url)
        if "url" in table and re.search(r"//[^/@]*:[^/@]*@", str(table["url"])):
            raise ConfigError(
                "store.url", "redis://…@…", f"the password in {VARIABLE_PREFIX}STORE_PASSWORD, not in the file"
            )
    if not url.startswith("rediss"):
        _check_keys_unset("store", store, _CERTIFICATE_KEYS, "store.url begins with rediss:// or rediss+cluster://")
    _check_key_pair("store.ssl", store.ssl_cert_file, store.ssl_key_file)


def _check_address(url: str, redacted_url: str) -> None:
    """Raise `ConfigError` for an address that redis-py would reject or misread."""
    if re.search(r"[?#]", url):
        raise ConfigError(
            "store.url", redacted_url, "an address without ? and #, because every option is a key of [store]"
        )
    scheme, slashes, rest = url.partition("://")
    authority, _, path = rest.partition("/")
    user, _, addresses = authority.rpartition("@")
    if re.search(r"[\s,\[\]]", user):
        raise ConfigError(
            "store.url",
            redacted_url,
            f"the password in {VARIABLE_PREFIX}STORE_PASSWORD, or percent-encoded, such as %2C for a comma",
        )
    if url.startswith(_SOCKET_SCHEME):
        if addresses or not path:
            raise ConfigError("store.url", redacted_url, "unix:///PATH")
        return
    if url.startswith(_SERVER_SCHEMES) and not re.fullmatch(r"[0-9]{0,9}", path):
        raise ConfigError(
            "store.url", redacted_url, "the number of a database after the last /, such as redis://HOST:6379/0"
        )
    if url.startswith(CLUSTER_SCHEMES) and path not in {"", "0"}:
        raise ConfigError("store.url", redacted_url, "database 0 or none, because a cluster has only database 0")
    first_address, *further_addresses = addresses.split(",")
    is_single_server = url.startswith(_SERVER_SCHEMES)
    if (
        not _is_host_and_port(first_address)
        or not all(_is_host_and_port(address, is_complete=True) for address in further_addresses)
        or (is_single_server and further_addresses)
    ):
        raise ConfigError(
            "store.url", redacted_url, f"{scheme}{slashes}HOST:PORT" + ("" if is_single_server else ",HOST:PORT,…")
        )


def _is_host_and_port(address: str, *, is_complete: bool = False) -> bool:
    """Return whether an address is HOST:PORT; without `is_complete`, host or port may be missing."""
    try:
        url_parts = urlsplit(f"//{address}")
        host, port = url_parts.hostname or "", url_parts.port
    except ValueError:
        return False
    return is_host_name(host) and port != 0 and (not is_complete or bool(host and port))


def check_http(http: HttpSettings) -> None:
    """Raise `ConfigError` for a certificate without a key, a key without a certificate, or unusable files."""
    _check_key_pair("http.tls", http.tls_cert_file, http.tls_key_file)
    if http.tls_cert_file:
        try:
            # Without a password argument, OpenSSL would ask for the password of an encrypted key on the terminal.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(http.tls_cert_file, http.tls_key_file, "")
        except OSError as error:
            raise ConfigError(
                "http.tls_cert_file",
                http.tls_cert_file,
                f"a PEM certificate and its unencrypted key in http.tls_key_file ({error})",
            ) from error


def _check_keys_unset(section: str, record: object, keys: tuple[str, ...], required_setting: str) -> None:
    """Raise `ConfigError` for a key that is set and has no effect without the required setting."""
    for key in keys:
        value = getattr(record, key)
        if value is not None:
            raise ConfigError(f"{section}.{key}", value, f"no value unless {required_setting}")


def _check_key_pair(key_prefix: str, certificate: str | None, private_key: str | None) -> None:
    """Raise `ConfigError` for a certificate file without a private key file, or the reverse."""
    if (certificate is None) != (private_key is None):
        present, missing = ("cert_file", "key_file") if certificate else ("key_file", "cert_file")
        raise ConfigError(
            f"{key_prefix}_{present}", certificate or private_key, f"a value of {key_prefix}_{missing} as well"
        )
