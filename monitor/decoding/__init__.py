"""From records to events: formats, envelopes, and the mapping of fields (docs/sources.md).

- `record_decoder`: `RecordDecoder`, which decodes the records of all topics by their sources
- `record_trace`: what a source makes of a record, and from which paths: for `ab-monitor map` and `check --sample`
- `sample_report`: the report of `check --sample`. `suggestions`, `source_toml`: guesses of a mapping
- `starting_config`: the file that `ab-monitor init` writes. `declarations`: the declaration of an experiment
- `mapping`: the fields of a document → the fields of an event, by the paths of the configuration
- `documents`: the parser of a source's messages, and the detection of their format
- `framing`: schema ids before the data. `envelopes`: CloudEvents, Debezium, Kafka Connect
- `schema_registry`: the client of the registry, with a decoder for each schema
- `avro` with `avro_depth`, `protobuf`, `json_objects`: decoders of data. `extras`: their libraries
"""

from __future__ import annotations

from monitor.decoding.declarations import suggest_declaration
from monitor.decoding.documents import Document, DocumentParser
from monitor.decoding.framing import Framing, Headers
from monitor.decoding.mapping import MessageContext
from monitor.decoding.record_decoder import (
    ANY_TOPIC,
    IGNORED_REASONS,
    IgnoredReason,
    Record,
    RecordDecoder,
)
from monitor.decoding.record_trace import RecordTrace, RecordTracer, event_json
from monitor.decoding.sample_report import (
    SampleReport,
    SourceSample,
    Spread,
    build_sample_report,
    find_undeclared_name,
)
from monitor.decoding.schema_registry import SchemaRegistry
from monitor.decoding.source_toml import source_lines
from monitor.decoding.starting_config import experiment_sections, guess_sources, sample_topics, source_sections
from monitor.decoding.suggestions import suggest_fields, toml_string

__all__ = [
    "ANY_TOPIC",
    "IGNORED_REASONS",
    "Document",
    "DocumentParser",
    "Framing",
    "Headers",
    "IgnoredReason",
    "MessageContext",
    "Record",
    "RecordDecoder",
    "RecordTrace",
    "RecordTracer",
    "SampleReport",
    "SchemaRegistry",
    "SourceSample",
    "Spread",
    "build_sample_report",
    "event_json",
    "experiment_sections",
    "find_undeclared_name",
    "guess_sources",
    "sample_topics",
    "source_lines",
    "source_sections",
    "suggest_declaration",
    "suggest_fields",
    "toml_string",
]
