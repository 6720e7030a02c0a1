"""The formats of messages: bytes and headers of a record → the fields of an event (docs/sources.md).

- `documents`: the parser of a source's messages, and the detection of their format
- `framing`: schema ids before the data. `envelopes`: CloudEvents, Debezium, Kafka Connect
- `schema_registry`: the client of the registry, with a decoder for each schema
- `avro`, `protobuf`, `json_objects`: decoders of data. `extras`: their libraries
"""

from __future__ import annotations

from monitor.decoding.documents import Document, DocumentParser
from monitor.decoding.framing import Framing
from monitor.decoding.schema_registry import SchemaRegistry

__all__ = ["Document", "DocumentParser", "Framing", "SchemaRegistry"]
