"""Settings that contradict each other, and wrong addresses of servers."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from monitor.config.settings import HttpSettings, KafkaSettings, SchemaRegistrySettings, StoreSettings
from monitor.config.values import MAX_PORT, VARIABLE_PREFIX, is_host_name

CLUSTER_SCHEMES: Final = ("redis+cluster://", "rediss+cluster://")
_SERVER_SCHEMES: Final = ("redis://", "rediss://")
_SOCKET_SCHEME: Final = "unix://"
_EMBEDDED_SCHEME: Final = "embedded:"
_SCHEMES: Final = (*_SERVER_SCHEMES, *CLUSTER_SCHEMES, _SOCKET_SCHEME, _EMBEDDED_SCHEME)
_PORT: Final = re.compile(r"[0-9]{1,5}")
_CERTIFICATE_KEYS: Final = ("ssl_ca_file", "ssl_cert_file", "ssl_key_file")


Contradiction = tuple[tuple[str, ...], object, str]
"""(keys, value of the first key, expected values); only valid values of all keys contradict each other."""


def find_kafka_contradictions(kafka: KafkaSettings) -> Iterator[Contradiction]:
    """Yield ambiguous topics, invalid servers, and credentials without a use."""
    yield from _find_topic_contradictions(kafka)
    for server in kafka.bootstrap_servers.split(","):
        host, _, port = server.strip().rpartition(":")
        if not host or not is_host_name(host) or not _PORT.fullmatch(port) or not 0 < int(port) <= MAX_PORT:
            yield ("bootstrap_servers",), kafka.bootstrap_servers, "HOST:PORT, or several separated by commas"
            break
    security_protocol = kafka.security_protocol
    if security_protocol.startswith("SASL"):
        for name in ("sasl_mechanism", "sasl_username", "sasl_password"):
            if getattr(kafka, name) is None:
                expected = f"a value, because security_protocol is {security_protocol}"
                yield (name, "security_protocol"), None, expected
    else:
        # A password alone is accepted, because deployments may share one set of secrets.
        required_setting = "security_protocol is SASL_SSL or SASL_PLAINTEXT"
        yield from _find_useless_keys(kafka, ("sasl_mechanism", "sasl_username"), "security_protocol", required_setting)
    if not security_protocol.endswith("SSL"):
        required_setting = "security_protocol is SSL or SASL_SSL"
        yield from _find_useless_keys(kafka, _CERTIFICATE_KEYS, "security_protocol", required_setting)
    else:
        yield from _find_half_key_pair("kafka", "ssl", kafka.ssl_cert_file, kafka.ssl_key_file)


def _find_topic_contradictions(kafka: KafkaSettings) -> Iterator[Contradiction]:
    """Yield topics that are named twice, and native topics beside sources."""
    if kafka.sources:
        native = KafkaSettings()
        for name in ("responses_topic", "feedback_topic"):
            topic = getattr(kafka, name)
            if topic != getattr(native, name):
                yield (name, "sources"), topic, "no such key beside [[kafka.sources]], which name all topics"
    elif kafka.responses_topic == kafka.feedback_topic:
        expected = "two topics; [[kafka.sources]] can read one topic with both types of events"
        yield ("feedback_topic", "responses_topic"), kafka.feedback_topic, expected
    if kafka.dead_letter_topic in kafka.topics:
        keys = ("dead_letter_topic", "responses_topic", "feedback_topic", "sources")
        yield keys, kafka.dead_letter_topic, "another topic than those of the events"


def find_schema_registry_contradictions(registry: SchemaRegistrySettings) -> Iterator[Contradiction]:
    """Yield an invalid url, a password in it, and credentials without a use."""
    url = registry.url
    if url is None:
        yield from _find_useless_keys(registry, ("username", *_CERTIFICATE_KEYS), "url", "schema_registry.url is set")
        return
    redacted_url = re.sub(r"//[^,]*@", "//…@", url)
    for address in url.split(","):
        scheme, _, rest = address.strip().partition("://")
        server = rest.split("/")[0]
        if "@" in rest:
            expected = f"an address without a user: the keys are username and {VARIABLE_PREFIX}SCHEMA_REGISTRY_PASSWORD"
            yield ("url",), redacted_url, expected
            return
        if (
            scheme not in {"http", "https"}
            or re.search(r"[?#\s]", rest)
            or server.startswith(":")
            or not server
            or not _is_host_and_port(server)
        ):
            yield ("url",), redacted_url, "http://HOST:PORT or https://HOST:PORT, or several separated by commas"
            return
    if registry.username is not None:
        if ":" in registry.username:
            yield ("username",), registry.username, "a name without a colon"
        elif registry.password is None:
            variable = f"{VARIABLE_PREFIX}SCHEMA_REGISTRY_PASSWORD"
            yield ("password", "username"), None, f"a value in the variable {variable}, for the username"
        if registry.token is not None:
            yield ("token", "username"), "…", "no token together with a username"
    if "https://" not in url:
        yield from _find_useless_keys(registry, _CERTIFICATE_KEYS, "url", "schema_registry.url begins with https://")
    else:
        yield from _find_half_key_pair("schema_registry", "ssl", registry.ssl_cert_file, registry.ssl_key_file)


def find_store_contradictions(store: StoreSettings, table: Mapping[str, Any]) -> Iterator[Contradiction]:
    """Yield an invalid url, a password in the file, and certificates without a use; no value contains a password."""
    url = store.url
    # The text before the last @, and the text after a ?, may be a password, even in an invalid url.
    redacted_url = re.sub(r"(?s)[?#].*", "?…", re.sub(r"(?s)^([a-z+]+:/+)?.*@", r"\1…@", url))
    expected = _expected_url(url)
    if expected is not None:
        yield ("url",), redacted_url, expected
        return
    if "url" in table and re.search(r"//[^/@]*:[^/@]*@", str(table["url"])):
        yield ("url",), "redis://…@…", f"the password in {VARIABLE_PREFIX}STORE_PASSWORD, not in the file"
    if not url.startswith("rediss"):
        required_setting = "store.url begins with rediss:// or rediss+cluster://"
        yield from _find_useless_keys(store, _CERTIFICATE_KEYS, "url", required_setting)
    else:
        yield from _find_half_key_pair("store", "ssl", store.ssl_cert_file, store.ssl_key_file)


def _expected_url(url: str) -> str | None:  # noqa: PLR0911  one for each part of an address
    """Return the form that a wrong address of a store should have; None for a correct address."""
    if not url.startswith(_SCHEMES) or url in _SCHEMES or "\0" in url:
        return f"an address that begins with one of {' '.join(_SCHEMES)}"
    if url.startswith(_EMBEDDED_SCHEME):
        return None
    if re.search(r"[?#]", url):
        return "an address without ? and #, because every option is a key of [store]"
    scheme, slashes, rest = url.partition("://")
    authority, _, path = rest.partition("/")
    user, _, addresses = authority.rpartition("@")
    if re.search(r"[\s,\[\]]", user):
        return f"the password in {VARIABLE_PREFIX}STORE_PASSWORD, or percent-encoded, such as %2C for a comma"
    if url.startswith(_SOCKET_SCHEME):
        return "unix:///PATH" if addresses or not path else None
    if url.startswith(_SERVER_SCHEMES) and not re.fullmatch(r"[0-9]{0,9}", path):
        return "the number of a database after the last /, such as redis://HOST:6379/0"
    if url.startswith(CLUSTER_SCHEMES) and path not in {"", "0"}:
        return "database 0 or none, because a cluster has only database 0"
    first_address, *further_addresses = addresses.split(",")
    is_single_server = url.startswith(_SERVER_SCHEMES)
    if (
        not _is_host_and_port(first_address)
        or not all(_is_host_and_port(address, is_complete=True) for address in further_addresses)
        or (is_single_server and further_addresses)
    ):
        return f"{scheme}{slashes}HOST:PORT" + ("" if is_single_server else ",HOST:PORT,…")
    return None


def _is_host_and_port(address: str, *, is_complete: bool = False) -> bool:
    """Return whether an address is HOST:PORT; without `is_complete`, host or port may be missing."""
    try:
        url_parts = urlsplit(f"//{address}")
        host, port = url_parts.hostname or "", url_parts.port
    except ValueError:
        return False
    return is_host_name(host) and port != 0 and (not is_complete or bool(host and port))


def find_http_contradictions(http: HttpSettings) -> Iterator[Contradiction]:
    """Yield a certificate without a key, a key without a certificate, or unusable files."""
    yield from _find_half_key_pair("http", "tls", http.tls_cert_file, http.tls_key_file)
    if http.tls_cert_file and http.tls_key_file:
        try:
            # Without a password argument, OpenSSL would ask for the password of an encrypted key on the terminal.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(http.tls_cert_file, http.tls_key_file, "")
        except OSError as error:
            expected = f"a PEM certificate and its unencrypted key in http.tls_key_file ({error})"
            yield ("tls_cert_file", "tls_key_file"), http.tls_cert_file, expected


def _find_useless_keys(
    record: object, keys: tuple[str, ...], required_key: str, required_setting: str
) -> Iterator[Contradiction]:
    """Yield each key that is set and has no effect without the required setting."""
    for key in keys:
        value = getattr(record, key)
        if value is not None:
            yield (key, required_key), value, f"no value unless {required_setting}"


def _find_half_key_pair(
    section: str, prefix: str, certificate: str | None, private_key: str | None
) -> Iterator[Contradiction]:
    """Yield a certificate file without a private key file, or the reverse."""
    if (certificate is None) != (private_key is None):
        present, missing = ("cert_file", "key_file") if certificate else ("key_file", "cert_file")
        expected = f"a value of {section}.{prefix}_{missing} as well"
        yield (f"{prefix}_{present}", f"{prefix}_{missing}"), certificate or private_key, expected
