"""Avro and Protobuf schemas of an answer with its items, for tests of formats."""

from __future__ import annotations

import base64
import json
from io import BytesIO
from typing import Any, Final

import fastavro
from google.protobuf import text_format
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

ITEM: Final = {
    "type": "record",
    "name": "Item",
    "namespace": "bot",
    "fields": [{"name": "id", "type": "string"}, {"name": "rank", "type": "int"}],
}
ANSWER: Final = {
    "type": "record",
    "name": "Answer",
    "namespace": "bot",
    "fields": [
        {"name": "id", "type": "string"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "arm", "type": {"type": "enum", "name": "Arm", "symbols": ["A", "B"]}},
        {"name": "student", "type": ["null", "string"]},
        {"name": "items", "type": {"type": "array", "items": ITEM}},
    ],
}


def avro_bytes(schema: Any, value: object) -> bytes:
    """Return a value as Avro, without framing."""
    stream = BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(json.loads(json.dumps(schema))), value)
    return stream.getvalue()


ANSWER_FILE: Final = """
name: "bot/answer.proto" package: "bot" syntax: "proto3"
dependency: "google/protobuf/timestamp.proto" dependency: "google/protobuf/wrappers.proto"
dependency: "google/protobuf/struct.proto" dependency: "google/protobuf/duration.proto"
message_type {
  name: "Ignored"
  nested_type { name: "Inner" field { name: "x" number: 1 type: TYPE_INT64 label: LABEL_OPTIONAL } }
}
message_type {
  name: "Answer"
  field { name: "id" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
  field { name: "at" number: 2 type: TYPE_MESSAGE type_name: ".google.protobuf.Timestamp" label: LABEL_OPTIONAL }
  field { name: "arm" number: 3 type: TYPE_ENUM type_name: ".bot.Arm" label: LABEL_OPTIONAL }
  field { name: "student" number: 4 type: TYPE_STRING label: LABEL_OPTIONAL proto3_optional: true oneof_index: 1 }
  field { name: "items" number: 5 type: TYPE_MESSAGE type_name: ".bot.Answer.Item" label: LABEL_REPEATED }
  field { name: "score" number: 6 type: TYPE_DOUBLE label: LABEL_OPTIONAL }
  field { name: "big" number: 7 type: TYPE_INT64 label: LABEL_OPTIONAL }
  field { name: "done" number: 8 type: TYPE_BOOL label: LABEL_OPTIONAL }
  field { name: "raw" number: 9 type: TYPE_BYTES label: LABEL_OPTIONAL }
  field { name: "text" number: 10 type: TYPE_STRING label: LABEL_OPTIONAL oneof_index: 0 }
  field { name: "number" number: 11 type: TYPE_INT32 label: LABEL_OPTIONAL oneof_index: 0 }
  field { name: "latency" number: 12 type: TYPE_MESSAGE type_name: ".google.protobuf.Int64Value" label: LABEL_OPTIONAL }
  field { name: "extra" number: 13 type: TYPE_MESSAGE type_name: ".google.protobuf.Struct" label: LABEL_OPTIONAL }
  field { name: "tags" number: 14 type: TYPE_STRING label: LABEL_REPEATED }
  field { name: "arms" number: 15 type: TYPE_ENUM type_name: ".bot.Arm" label: LABEL_REPEATED }
  field { name: "sizes" number: 16 type: TYPE_MESSAGE type_name: ".bot.Answer.SizesEntry" label: LABEL_REPEATED }
  field { name: "by_id" number: 17 type: TYPE_MESSAGE type_name: ".bot.Answer.ByIdEntry" label: LABEL_REPEATED }
  field { name: "parent" number: 18 type: TYPE_MESSAGE type_name: ".bot.Answer" label: LABEL_OPTIONAL }
  field { name: "took" number: 19 type: TYPE_MESSAGE type_name: ".google.protobuf.Duration" label: LABEL_OPTIONAL }
  nested_type {
    name: "Item"
    field { name: "id" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
    field { name: "rank" number: 2 type: TYPE_INT32 label: LABEL_OPTIONAL }
  }
  nested_type {
    name: "SizesEntry" options { map_entry: true }
    field { name: "key" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
    field { name: "value" number: 2 type: TYPE_INT32 label: LABEL_OPTIONAL }
  }
  nested_type {
    name: "ByIdEntry" options { map_entry: true }
    field { name: "key" number: 1 type: TYPE_INT32 label: LABEL_OPTIONAL }
    field { name: "value" number: 2 type: TYPE_MESSAGE type_name: ".bot.Answer.Item" label: LABEL_OPTIONAL }
  }
  oneof_decl { name: "payload" } oneof_decl { name: "_student" }
}
enum_type { name: "Arm" value { name: "A" number: 0 } value { name: "B" number: 1 } }
"""
"""A file with every kind of field; the path of `Answer` is [1]."""


def parse_file(text: str) -> FileDescriptorProto:
    """Return a file in the text format of descriptors."""
    return text_format.Parse(text, FileDescriptorProto())


def descriptor_text(file: FileDescriptorProto) -> str:
    """Return a file as the registry returns it with `format=serialized`."""
    return base64.b64encode(file.SerializeToString()).decode()


def message_class(name: str, *files: FileDescriptorProto) -> Any:
    """Return the class of a message; files are in the order of their imports."""
    from google.protobuf import duration_pb2, struct_pb2, timestamp_pb2, wrappers_pb2  # noqa: PLC0415  here alone

    pool = DescriptorPool()
    for module in (duration_pb2, struct_pb2, timestamp_pb2, wrappers_pb2):
        pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    for file in files:
        pool.AddSerializedFile(file.SerializeToString())
    return GetMessageClass(pool.FindMessageTypeByName(name))
