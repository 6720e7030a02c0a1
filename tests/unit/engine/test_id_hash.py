"""Unit tests of the keyed hashes of ids."""

from __future__ import annotations

from hashlib import blake2b

from monitor.engine.id_hash import IdHasher

KEY = bytes(range(32))
UUID = "3f2b8c1e-52a4-4f0e-9c55-0123456789ab"


def test_hashes_of_this_schema_version_never_change() -> None:
    """With other hashes, workers would not find the rows of existing stores: a new schema version would be needed."""
    ids = IdHasher(KEY)
    assert ids.stored_response_id(UUID).hex() == "ca03445631debfb4bea870b230f179d5"
    assert ids.hash_student(UUID).hex() == "8391374c179b01cf4c97"
    assert ids.hash_item(UUID).hex() == "6389c80bfbd2"


def test_hashes_depend_on_key_and_id_and_kind_of_id() -> None:
    """A response id of at most 15 bytes is stored without hashing."""
    ids = IdHasher(KEY)
    assert ids.hash_student(UUID) == blake2b(KEY + UUID.encode(), digest_size=10, person=b"student").digest()
    assert ids.hash_student(UUID)[:6] != ids.hash_item(UUID) != ids.stored_response_id(UUID)[:6]
    assert IdHasher(KEY[::-1]).hash_student(UUID) != ids.hash_student(UUID)
    assert ids.hash_items((UUID, "v")) == ids.hash_item(UUID) + ids.hash_item("v")
    assert ids.stored_response_id("r" * 15) == b"r" * 15
