"""Ids as the store holds them."""

from __future__ import annotations

from hashlib import blake2b

from monitor.engine.id_hash import IdHasher

KEY = bytes(range(32))
UUID = "3f2b8c1e-52a4-4f0e-9c55-0123456789ab"


def test_hashes_are_what_every_store_of_this_schema_holds() -> None:
    """Others would find nothing again there: they need another schema."""
    identities = IdHasher(KEY)
    assert identities.response(UUID).hex() == "ca03445631debfb4bea870b230f179d5"
    assert identities.student(UUID).hex() == "8391374c179b01cf4c97"
    assert identities.item(UUID).hex() == "6389c80bfbd2"


def test_hashes_are_of_key_and_id_and_use() -> None:
    """Each by itself changes them; a short id of a response is no hash."""
    identities = IdHasher(KEY)
    assert identities.student(UUID) == blake2b(KEY + UUID.encode(), digest_size=10, person=b"student").digest()
    assert identities.student(UUID)[:6] != identities.item(UUID) != identities.response(UUID)[:6]
    assert IdHasher(KEY[::-1]).student(UUID) != identities.student(UUID)
    assert identities.items((UUID, "v")) == identities.item(UUID) + identities.item("v")
    assert identities.response("r" * 15) == b"r" * 15
