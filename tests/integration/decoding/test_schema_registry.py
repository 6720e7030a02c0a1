"""The client of the schema registry, and messages that Confluent's serializers have written."""

from __future__ import annotations

import base64
import json
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest
import trustme
from confluent_kafka.schema_registry import (
    Schema,
    SchemaReference,
    SchemaRegistryClient,
    SchemaRegistryError,
    header_schema_id_serializer,
)
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from monitor.config import SchemaRegistrySettings, WireFormat
from monitor.decoding import DocumentParser, Framing, SchemaRegistry
from monitor.errors import DependencyUnavailable, InvalidEvent, UsageError
from tests.servers.process import free_port
from tests.support.certificates import write_authority, write_certificate
from tests.support.schema_registry import SchemaRegistryServer
from tests.support.schemas import ANSWER, ANSWER_FILE, ITEM, avro_bytes, descriptor_text, message_class, parse_file

_VALUE: Final[dict[str, Any]] = {
    "id": "r1",
    "at": datetime(2026, 11, 20, 10, 15, 30, 123000, tzinfo=UTC),
    "arm": "B",
    "student": None,
    "items": [{"id": "v1", "rank": 0}],
}
_BASIC: Final = f"Basic {base64.b64encode(b'reader:hunter2:x').decode()}"


@pytest.fixture
def server() -> Iterator[SchemaRegistryServer]:
    """Yield a registry without schemas."""
    with SchemaRegistryServer() as registry:
        yield registry


def _registry(server: SchemaRegistryServer, **settings: str) -> SchemaRegistry:
    return SchemaRegistry(SchemaRegistrySettings(server.url, **settings))


def _parser(server: SchemaRegistryServer, wire_format: WireFormat = "auto") -> DocumentParser:
    return DocumentParser(wire_format, "auto", _registry(server), None)


def _framed(schema_id: int, data: bytes) -> bytes:
    return b"\x00" + schema_id.to_bytes(4, "big") + data


class TestMessages:
    """Messages of Confluent's serializers and by hand."""

    @pytest.mark.parametrize("wire_format", ["auto", "avro"])
    def test_avro_of_the_official_serializer_is_read(
        self, server: SchemaRegistryServer, wire_format: WireFormat
    ) -> None:
        """The serializer registers the schema under the topic's subject."""
        with SchemaRegistryClient({"url": server.url}) as client:
            serializer = AvroSerializer(client, json.dumps(ANSWER))
            value = serializer(_VALUE, SerializationContext("answers", MessageField.VALUE))
            schema_id = client.get_latest_version("answers-value").schema_id
        document = _parser(server, wire_format).parse(value, [])
        assert document.fields == _VALUE
        assert document.framing == Framing("confluent id", "AVRO", schema_id, "bot.Answer")

    @pytest.mark.parametrize("wire_format", ["auto", "protobuf"])
    @pytest.mark.parametrize("name", ["bot.Answer", "bot.Ignored", "bot.Answer.Item"])
    def test_protobuf_of_the_official_serializer_is_read(
        self, server: SchemaRegistryServer, wire_format: WireFormat, name: str
    ) -> None:
        """The path of indexes selects the message type, also a nested one."""
        message = message_class(name, parse_file(ANSWER_FILE))()
        if name != "bot.Ignored":
            message.id = "r1"
        with SchemaRegistryClient({"url": server.url}) as client:
            serializer = ProtobufSerializer(type(message), client)
            value = serializer(message, SerializationContext("answers", MessageField.VALUE))
        document = _parser(server, wire_format).parse(value, [])
        assert document.fields.get("id") == (None if name == "bot.Ignored" else "r1")
        assert (document.framing.format, document.framing.schema_name) == ("PROTOBUF", name)

    def test_a_guid_in_the_header_finds_the_schema(self, server: SchemaRegistryServer) -> None:
        """For Protobuf, the header ends with the path to the message type."""
        message = message_class("bot.Answer.Item", parse_file(ANSWER_FILE))(id="v1")
        headers: dict[str, Any] = {"avro": [], "proto": []}
        with SchemaRegistryClient({"url": server.url}) as client:
            settings = {"schema.id.serializer": header_schema_id_serializer}
            avro = AvroSerializer(client, json.dumps(ANSWER), conf=settings)(
                _VALUE, SerializationContext("answers", MessageField.VALUE, headers["avro"])
            )
            proto = ProtobufSerializer(type(message), client, conf=settings)(
                message, SerializationContext("items", MessageField.VALUE, headers["proto"])
            )
        parser = _parser(server)
        document = parser.parse(avro, headers["avro"])
        assert (document.fields, document.framing.kind) == (_VALUE, "confluent guid")
        assert document.framing.schema_id == str(server.guid(1))
        assert parser.parse(proto, headers["proto"]).fields == {"id": "v1", "rank": 0}
        assert parser.parse(b"\x01" + server.guid(1).bytes + avro, []).fields == _VALUE

    def test_json_with_a_registered_schema_is_read(self, server: SchemaRegistryServer) -> None:
        """The title is the name of a JSON schema."""
        schema_id = server.register("answers-value", '{"title": "Answer", "type": "object"}', "JSON")
        document = _parser(server).parse(_framed(schema_id, b'{"id": "r1"}'), [])
        assert (document.fields, document.framing.schema_name) == ({"id": "r1"}, "Answer")

    def test_references_are_resolved_also_nested(self, server: SchemaRegistryServer) -> None:
        """The official client registers them by subject and version."""
        page = {"type": "record", "name": "Page", "namespace": "bot", "fields": [{"name": "item", "type": "bot.Item"}]}
        fields = [{"name": "page", "type": "bot.Page"}, {"name": "best", "type": "bot.Item"}]
        answer = {"type": "record", "name": "Paged", "namespace": "bot", "fields": fields}
        item_reference, page_reference = SchemaReference("bot.Item", "item", 1), SchemaReference("bot.Page", "page", 1)
        with SchemaRegistryClient({"url": server.url}) as client:
            client.register_schema("item", Schema(json.dumps(ITEM), "AVRO"))
            client.register_schema("page", Schema(json.dumps(page), "AVRO", [item_reference]))
            references = [page_reference, item_reference]
            schema_id = client.register_schema("answers-value", Schema(json.dumps(answer), "AVRO", references))
        item = avro_bytes(ITEM, {"id": "v1", "rank": 1})
        value = {"id": "v1", "rank": 1}
        document = _parser(server).parse(_framed(schema_id, item + item), [])
        assert document.fields == {"page": {"item": value}, "best": value}

    def test_imports_of_protobuf_are_resolved(self, server: SchemaRegistryServer) -> None:
        """Standard files have no reference."""
        base = parse_file(
            'name: "base.proto" message_type { name: "Id" field { name: "id" number: 1 type: TYPE_STRING } }'
        )
        top = parse_file(
            'name: "top.proto" dependency: "base.proto" dependency: "google/protobuf/timestamp.proto" message_type { '
            'name: "Top" field { name: "id" number: 1 type: TYPE_MESSAGE type_name: ".Id" } }'
        )
        server.register("base", descriptor_text(base), "PROTOBUF")
        schema_id = server.register("top", descriptor_text(top), "PROTOBUF", ("base.proto", "base", 1))
        assert _parser(server).parse(_framed(schema_id, b"\x00\x0a\x04\x0a\x02r1"), []).fields == {"id": {"id": "r1"}}

    def test_a_new_version_of_the_schema_is_read_beside_the_old_one(self, server: SchemaRegistryServer) -> None:
        """One field added, one renamed; partitions contain both for days."""
        first = {"type": "record", "name": "A", "fields": [{"name": "id", "type": "string"}]}
        fields = [{"name": "response", "type": "string"}, {"name": "arm", "type": ["null", "string"], "default": None}]
        second = {"type": "record", "name": "A", "fields": fields}
        parser = _parser(server)
        ids = [server.register("answers-value", json.dumps(schema)) for schema in (first, second)]
        assert parser.parse(_framed(ids[0], avro_bytes(first, {"id": "a"})), []).fields == {"id": "a"}
        value = {"response": "b", "arm": "A"}
        assert parser.parse(_framed(ids[1], avro_bytes(second, value)), []).fields == value

    def test_a_schema_is_fetched_once(self, server: SchemaRegistryServer) -> None:
        """Parsing a schema takes longer than reading a hundred messages."""
        schema_id = server.register("answers-value", json.dumps(ANSWER))
        registry = _registry(server)
        for wire_format in ("auto", "avro"):
            parser = DocumentParser("avro" if wire_format == "avro" else "auto", "auto", registry, None)
            for _ in range(3):
                parser.parse(_framed(schema_id, avro_bytes(ANSWER, _VALUE)), [])
        assert len(server.requests) == 1


class TestRejections:
    """Messages that no waiting can help."""

    def test_an_unknown_id_is_rejected_until_the_schema_is_registered(self, server: SchemaRegistryServer) -> None:
        """The registry is asked again after 30 s, and not for each message."""
        now_ms = [0]
        registry = SchemaRegistry(SchemaRegistrySettings(server.url), lambda: now_ms[0])
        parser = DocumentParser("auto", "auto", registry, None)
        value = _framed(1, avro_bytes(ANSWER, _VALUE))
        for _ in range(3):
            with pytest.raises(InvalidEvent, match=r"unknown_schema: schema 1: not in the registry"):
                parser.parse(value, [])
        assert len(server.requests) == 1
        server.register("answers-value", json.dumps(ANSWER))
        now_ms[0] = 29_999
        with pytest.raises(InvalidEvent, match="unknown_schema"):
            parser.parse(value, [])
        now_ms[0] = 30_000
        assert parser.parse(value, []).fields == _VALUE

    def test_an_unknown_guid_is_rejected(self, server: SchemaRegistryServer) -> None:
        """The detail has the GUID as the registry writes it."""
        with pytest.raises(InvalidEvent, match=r"unknown_schema: schema 00000000-0000-0000-0000-000000000001"):
            _parser(server).parse(b"\x01" + (1).to_bytes(16, "big") + b"x", [])

    def test_a_registry_without_guids_does_not_stop_the_worker(self, server: SchemaRegistryServer) -> None:
        """Its status 404 has no code of the registry, but its schema types show that the address is right."""
        proxy_path = SchemaRegistrySettings(f"{server.url}/", None)
        parser = DocumentParser("auto", "auto", SchemaRegistry(proxy_path), None)
        with pytest.raises(InvalidEvent, match="unknown_schema"):
            parser.parse(b"\x01" + b"\xff" * 16, [])

    def test_the_type_of_the_schema_must_be_the_format_of_the_source(self, server: SchemaRegistryServer) -> None:
        """The detail names both types."""
        schema_id = server.register("answers-value", "{}", "JSON")
        for wire_format, reason in (("avro", "invalid_avro"), ("protobuf", "invalid_protobuf")):
            parser = _parser(server, "avro" if wire_format == "avro" else "protobuf")
            with pytest.raises(
                InvalidEvent, match=rf"{reason}: schema 1 is of type JSON, expected {wire_format.upper()}"
            ):
                parser.parse(_framed(schema_id, b"{}"), [])

    @pytest.mark.parametrize("wire_format", ["avro", "protobuf"])
    @pytest.mark.parametrize("value", [b'{"a": 1}', b"\x00\x01", b"\xc3\x01" + bytes(9), b"\x03\x00" + bytes(16)])
    def test_a_message_without_a_schema_id_is_invalid_framing(
        self, server: SchemaRegistryServer, wire_format: WireFormat, value: bytes
    ) -> None:
        """Without an id, no schema is known."""
        with pytest.raises(InvalidEvent, match="invalid_framing"):
            _parser(server, wire_format).parse(value, [])

    def test_a_missing_reference_is_an_unknown_schema(self, server: SchemaRegistryServer) -> None:
        """The detail names the subject and the version."""
        server.register("item", json.dumps(ITEM))
        schema = {"type": "record", "name": "A", "fields": [{"name": "item", "type": "bot.Item"}]}
        schema_id = server.register("a", json.dumps(schema), "AVRO", ("bot.Item", "item", 1))
        del server._content.subjects["item"]
        with pytest.raises(
            InvalidEvent, match=r"schema 2: the reference bot\.Item \(subject item, version 1\) is not in"
        ):
            _parser(server).parse(_framed(schema_id, b"\x02x\x02"), [])


class TestUnavailable:
    """Failures after which the same message can be parsed."""

    def test_a_registry_that_is_down_for_a_while_rejects_nothing(self, server: SchemaRegistryServer) -> None:
        """The worker calls again with the same message."""
        schema_id = server.register("answers-value", json.dumps(ANSWER))
        value = _framed(schema_id, avro_bytes(ANSWER, _VALUE))
        parser = _parser(server)
        server.stop()
        for _ in range(2):
            with pytest.raises(DependencyUnavailable, match=f"the schema registry at {server.url} cannot be used"):
                parser.parse(value, [])
        server.start()
        assert parser.parse(value, []).fields == _VALUE
        server.stop()
        assert parser.parse(value, []).fields == _VALUE

    @pytest.mark.parametrize(
        ("status", "body", "message"),
        [
            (500, b'{"error_code": 50001, "message": "secret"}', "HTTP status 500"),
            (503, b"<html>secret</html>", "HTTP status 503"),
            (429, b"", "HTTP status 429"),
            (404, b"<html>secret</html>", r"HTTP status 404 .*check the path in schema_registry\.url"),
            (400, b"", "HTTP status 400"),
            (401, b"{}", r"HTTP status 401: check schema_registry\.username and the password, or the token"),
            (403, b"{}", "HTTP status 403: the user or token of schema_registry may not read schemas"),
            (302, b"", r"HTTP status 302, a redirect: set schema_registry\.url to the final address"),
            (200, b"<html>secret</html>", r"not that of a schema registry: check schema_registry\.url"),
            (200, b"{}", "not that of a schema registry"),
            (200, b"[]", "not that of a schema registry"),
        ],
    )
    def test_any_other_reply_means_to_wait(
        self, server: SchemaRegistryServer, status: int, body: bytes, message: str
    ) -> None:
        """Only the registry's own code for an unknown schema rejects a message."""
        parser = _parser(server)
        server.failure, server.body = status, body
        with pytest.raises(DependencyUnavailable, match=message) as error:
            parser.parse(_framed(1, b"x"), [])
        assert "secret" not in str(error.value)
        server.failure = None
        server.register("answers-value", json.dumps(ANSWER))
        assert parser.parse(_framed(1, avro_bytes(ANSWER, _VALUE)), []).fields == _VALUE

    def test_a_connection_that_breaks_means_to_wait(self, server: SchemaRegistryServer) -> None:
        """No reply at all."""
        server.silent.set()
        with pytest.raises(DependencyUnavailable):
            _parser(server).parse(_framed(1, b"x"), [])

    def test_a_registry_that_does_not_answer_in_time_means_to_wait(
        self, server: SchemaRegistryServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The client tries twice, and the worker goes on trying."""
        monkeypatch.setattr("monitor.decoding.schema_registry._TIMEOUT_S", 0.1)
        server.silent.set()
        with pytest.raises(DependencyUnavailable, match=r"no answer within 0\.1 s"):
            _parser(server).parse(_framed(1, b"x"), [])
        assert len(server.requests) == 2

    def test_the_second_address_is_used_while_the_first_is_down(self, server: SchemaRegistryServer) -> None:
        """Addresses are separated by commas."""
        server.register("answers-value", json.dumps(ANSWER))
        registry = SchemaRegistry(SchemaRegistrySettings(f"http://localhost:{free_port()}, {server.url}"))
        parser = DocumentParser("auto", "auto", registry, None)
        assert parser.parse(_framed(1, avro_bytes(ANSWER, _VALUE)), []).fields == _VALUE

    def test_the_connection_can_be_checked_before_the_first_message(self, server: SchemaRegistryServer) -> None:
        """`ab-monitor check` does."""
        registry = _registry(server)
        registry.check_connection()
        server.stop()
        with pytest.raises(DependencyUnavailable):
            registry.check_connection()
        registry.close()


class TestAuthentication:
    """Basic, bearer and certificates."""

    def test_a_password_is_sent_and_never_shown(self) -> None:
        """It may contain colons."""
        with SchemaRegistryServer(credentials=_BASIC) as server:
            _registry(server, username="reader", password="hunter2:x").check_connection()
            for settings in ({"username": "reader", "password": "wrong"}, {}):
                with pytest.raises(DependencyUnavailable, match="HTTP status 401") as error:
                    _registry(server, **settings).check_connection()
                assert "wrong" not in str(error.value)

    def test_a_token_is_sent(self) -> None:
        """As `Authorization: Bearer`."""
        with SchemaRegistryServer(credentials="Bearer abc.def") as server:
            _registry(server, token="abc.def").check_connection()
            with pytest.raises(DependencyUnavailable, match="or the token") as error:
                _registry(server, token="other").check_connection()
            assert "other" not in str(error.value)

    def test_certificates_are_checked_in_both_directions(self, tmp_path: Path) -> None:
        """A server of another authority is not used, and a server may require a client certificate."""
        authority = trustme.CA()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("localhost").configure_cert(context)
        authority.configure_trust(context)
        context.verify_mode = ssl.CERT_REQUIRED
        ca_file = str(write_authority(tmp_path, "ca", authority))
        client = write_certificate(tmp_path, "client", authority.issue_cert("reader"))
        certificates = {"ssl_cert_file": str(client.cert_file), "ssl_key_file": str(client.key_file)}
        with SchemaRegistryServer(tls=context) as server:
            _registry(server, ssl_ca_file=ca_file, **certificates).check_connection()
            with pytest.raises(DependencyUnavailable, match="certificate of the server is rejected"):
                _registry(server, **certificates).check_connection()
            with pytest.raises(DependencyUnavailable):
                _registry(server, ssl_ca_file=ca_file).check_connection()

    def test_an_unusable_certificate_file_is_reported_at_start(self, tmp_path: Path) -> None:
        """Before the first message."""
        file = tmp_path / "ca.pem"
        file.write_text("no certificate")
        with pytest.raises(UsageError, match="schema_registry: the settings cannot be used"):
            SchemaRegistry(SchemaRegistrySettings("https://localhost:1", ssl_ca_file=str(file)))


class TestServer:
    """The server of these tests keeps the contract that the official client expects."""

    def test_the_client_finds_what_it_has_registered(self, server: SchemaRegistryServer) -> None:
        """Ids by schema, versions by subject."""
        with SchemaRegistryClient({"url": server.url}) as client:
            first = client.register_schema("a", Schema('{"type": "object"}', "JSON"))
            second = client.register_schema("a", Schema(json.dumps(ITEM), "AVRO"))
            assert client.register_schema("b", Schema('{"type": "object"}', "JSON")) == first != second
            assert client.get_subjects() == ["a", "b"]
            assert client.get_versions("a") == [1, 2]
            assert client.get_version("a", 1).schema.schema_type == "JSON"
            assert client.lookup_schema("a", Schema(json.dumps(ITEM), "AVRO")).version == 2

    @pytest.mark.parametrize(
        ("request_schema", "status", "code"),
        [
            (lambda client: client.get_schema(9), 404, 40403),
            (lambda client: client.get_schema_by_guid("00000000-0000-0000-0000-000000000000"), 404, 40403),
            (lambda client: client.get_latest_version("missing"), 404, 40401),
            (lambda client: client.get_version("a", 5), 404, 40402),
            (lambda client: client.register_schema("a", Schema("{", "AVRO")), 422, 42201),
        ],
    )
    def test_errors_have_the_codes_of_the_registry(
        self, server: SchemaRegistryServer, request_schema: Any, status: int, code: int
    ) -> None:
        """The codes of Confluent's documentation."""
        server.register("a", json.dumps(ITEM))
        with SchemaRegistryClient({"url": server.url}) as client, pytest.raises(SchemaRegistryError) as error:
            request_schema(client)
        assert (error.value.http_status_code, error.value.error_code) == (status, code)
