"""Records out of a batch as Kafka stores them (message format v2), without an object for each of their fields.

Compiled (deploy/native.py). Format: https://kafka.apache.org/documentation/#record
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from monitor.ingest.records import Records
from monitor.varints import Reader

_FEWEST: Final = 7
"""Bytes of a record at least, its length included."""


def records_of(data: bytes, at: i64, count: i64, base_offset: i64) -> Records:
    """Return the records of a batch, which is not compressed and begins at byte `at`; ValueError for anything else."""
    if not 0 <= count * _FEWEST <= len(data) - at:
        raise ValueError(f"{count} records in {len(data) - at} bytes")
    reader = Reader(data, at)
    found = Records()
    while count > 0:
        count -= 1
        length = reader.signed()
        left = reader.left() - length
        reader.byte()
        reader.signed()
        offset = base_offset + reader.signed()
        key = _field(reader)
        key_end = reader.at()
        payload = _field(reader)
        payload_end = reader.at()
        headers = reader.signed()
        if headers < 0:
            raise ValueError(f"{headers} headers")
        while headers > 0:
            headers -= 1
            _field(reader)
            _field(reader)
        if reader.left() != left:
            raise ValueError(f"a record of {length} bytes ends with {reader.left()} bytes left instead of {left}")
        found.append(offset, data, key, key_end, payload, payload_end)
    if reader.left():
        raise ValueError(f"{reader.left()} bytes behind the last record")
    return found


def _field(reader: Reader) -> i64:
    """Pass the next bytes, whose length stands before them; return where they begin, -1 for a length below 0."""
    length = reader.signed()
    if length < 0:
        return -1
    begin = reader.at()
    reader.skip(length)
    return begin
