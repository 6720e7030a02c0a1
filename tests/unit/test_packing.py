"""Packed commands, against the client's own packer."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st
from redis.connection import PythonRespSerializer
from redis.exceptions import DataError

from monitor.store.packing import Packer

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
