"""Packed commands, against the client's own packer."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st
from redis.connection import PythonRespSerializer
from redis.exceptions import DataError

from monitor.store.packing import Packed, PackedRows, Packer

_ARGUMENTS = st.one_of(
    st.binary(max_size=20),
    st.sampled_from([1023, 1024, 70_000]).map(bytes),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    st.integers(-(2**63), 2**64),
    st.floats(),
)


@given(st.sampled_from(["GET", b"GET", "SCRIPT LOAD", b"CONFIG  GET"]), st.lists(_ARGUMENTS, max_size=12))
def test_the_bytes_are_those_of_the_client(command: str | bytes, arguments: list[bytes | str | float]) -> None:
    """Whatever stands in a command, and however long it is."""
    peer: Any = PythonRespSerializer(6000, redis.Redis().get_encoder().encode)
    assert b"".join(Packer().pack(command, *arguments)) == b"".join(peer.pack(command, *arguments))


@pytest.mark.parametrize("argument", [None, True, [b"x"]])
def test_what_is_no_argument_is_refused(argument: object) -> None:
    """As the client refuses it: None is nothing that a server could keep."""
    with pytest.raises(DataError, match=f"type {type(argument).__name__}, expected bytes, text or a number"):
        Packer().pack("SET", "key", argument)


@given(st.lists(st.tuples(st.binary(max_size=20), st.binary(max_size=20), st.binary(min_size=1, max_size=2000))))
def test_rows_are_packed_as_arguments_are(rows: list[tuple[bytes, bytes, bytes]]) -> None:
    """They come back as they were given, and with the first bytes of their values."""
    packed, flat = PackedRows(), []
    for prefix, name, row in rows:
        packed.add(prefix, name, row)
        flat += [prefix + name, row]
    assert packed.flat() == flat
    assert (packed.count, packed.marks) == (len(rows), {row[0] for _, _, row in rows})
    sent = b"".join(Packed("MSET", b"key", rows=[packed, PackedRows(), packed]).parts)
    assert sent == b"".join(Packed("MSET", b"key", *flat, *flat).parts)
