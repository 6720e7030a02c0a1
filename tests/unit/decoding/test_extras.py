"""The extra `schemas`: needed by binary formats alone, and its absence is reported at start."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from monitor.config import SchemaRegistrySettings
from monitor.decoding import DocumentParser, SchemaRegistry
from monitor.errors import UsageError
from tests.support.schemas import ITEM

_INSTALL = r"the extra `schemas`, which is not installed .*pip install '\.\[schemas\]'"


def test_an_avro_source_without_the_extra_is_reported_at_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names the command that installs it."""
    path = tmp_path / "item.avsc"
    path.write_text(json.dumps(ITEM))
    monkeypatch.setitem(sys.modules, "fastavro", None)
    with pytest.raises(UsageError, match=_INSTALL):
        DocumentParser("avro", "auto", None, str(path))


@pytest.mark.parametrize("module", ["fastavro", "google.protobuf", "confluent_kafka.schema_registry"])
def test_a_registry_without_the_extra_is_reported_at_start(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All libraries are checked, although the first message may need only one of them."""
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UsageError, match=_INSTALL):
        SchemaRegistry(SchemaRegistrySettings("http://localhost:8081"))


def test_json_needs_no_library_of_the_extra() -> None:
    """Nothing of it is imported, so a worker without the extra starts as before."""
    program = (
        "import sys; from monitor.decoding import DocumentParser; "
        "DocumentParser('auto', 'auto', None, None).parse(b'{}', []); "
        "print(*[name for name in ('fastavro', 'google.protobuf', 'confluent_kafka') if name in sys.modules])"
    )
    finished = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert finished.stdout.strip() == ""
