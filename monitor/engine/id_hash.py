"""Keyed hashes that replace ids in the store.

All hashes are BLAKE2b (RFC 7693) of one secret key, followed by the id. BLAKE2's keyed mode pads the key to a block of
128 bytes, and takes twice as long for ids of usual length.

Hash lengths follow from the number of ids. The probability that any two hashes are equal is 10⁻²¹ among a billion
responses (16 bytes) and 10⁻¹¹ among ten million students (10 bytes). Items have 6 bytes, because a row stores a hash
for each position of its list. Two of n items have equal hashes with probability n²/2 · 2⁻⁴⁸:

- 4·10⁻¹⁴ in a list of 5 and 2·10⁻⁹ in a list of 1 000; a reaction to the second item would count for the first item;
- 2·10⁻⁷ in a catalogue of 10 000 and 0.2 % in a catalogue of a million; item statistics would count both items as one.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, Final, final

RESPONSE_HASH_BYTES: Final = 16
STUDENT_HASH_BYTES: Final = 10
EXPERIMENT_HASH_BYTES: Final = 10
ITEM_HASH_BYTES: Final = 6
STUDENT_TAG_BYTES: Final = 6
"""Leading bytes of a student's hash, which distinguish the students who react to one response."""

_MAX_PLAIN_BYTES: Final = 15
"""Response ids up to this length are stored without hashing."""
_SESSION_HASH_BYTES: Final = 6
_MAX_CACHED_HASHES: Final = 40_000
"""Cached hashes of students, and of items, at 130 bytes each."""


@final
class IdHasher:
    """Hashes ids with a secret key (32 bytes in a store); hashes of recent students and items are cached."""

    __slots__ = (
        "_cached_excluded_hashes",
        "_cached_item_hashes",
        "_cached_student_hashes",
        "_excluded_hash",
        "_experiment_hash",
        "_item_hash",
        "_response_hash",
        "_session_hash",
        "_student_hash",
    )

    def __init__(self, key: bytes) -> None:
        self._response_hash: Any = blake2b(key, digest_size=RESPONSE_HASH_BYTES, person=b"response")
        self._student_hash: Any = blake2b(key, digest_size=STUDENT_HASH_BYTES, person=b"student")
        self._excluded_hash: Any = blake2b(key, digest_size=STUDENT_HASH_BYTES, person=b"excluded student")
        self._item_hash: Any = blake2b(key, digest_size=ITEM_HASH_BYTES, person=b"item")
        self._session_hash: Any = blake2b(key, digest_size=_SESSION_HASH_BYTES, person=b"session")
        self._experiment_hash: Any = blake2b(key, digest_size=EXPERIMENT_HASH_BYTES, person=b"experiment")
        self._cached_student_hashes: dict[str, bytes] = {}
        self._cached_excluded_hashes: dict[str, bytes] = {}
        self._cached_item_hashes: dict[str, bytes] = {}

    def stored_response_id(self, response_id: str) -> bytes:
        """Return the stored id of a response: an id of at most 15 bytes unchanged, a longer id hashed to 16 bytes."""
        encoded = response_id.encode()
        return encoded if len(encoded) <= _MAX_PLAIN_BYTES else _digest(self._response_hash, encoded)

    def hash_student(self, user_id: str) -> bytes:
        """Return the hash of a student, `STUDENT_HASH_BYTES` long."""
        return _cached_digest(self._cached_student_hashes, self._student_hash, user_id)

    def hash_session(self, session_id: str) -> int:
        """Return the hash of a session, an integer from 0 to 2⁴⁸ − 1."""
        return int.from_bytes(_digest(self._session_hash, session_id.encode()))

    def hash_excluded_student(self, user_id: str) -> bytes:
        """Return the hash of a student in excluded responses: these never share a row with counted responses."""
        return _cached_digest(self._cached_excluded_hashes, self._excluded_hash, user_id)

    def hash_experiment(self, name: str) -> bytes:
        """Return the hash of an experiment's name, `EXPERIMENT_HASH_BYTES` long.

        Names of undeclared experiments are stored hashed, because a client might have sent anything as a name.
        """
        return _digest(self._experiment_hash, name.encode())

    def hash_item(self, item_id: str) -> bytes:
        """Return the hash of an item, `ITEM_HASH_BYTES` long."""
        return _cached_digest(self._cached_item_hashes, self._item_hash, item_id)

    def hash_items(self, item_ids: tuple[str, ...]) -> bytes:
        """Return the concatenated hashes of items, in the order of their ids."""
        return b"".join([self.hash_item(item_id) for item_id in item_ids])


def _digest(keyed_hash: Any, encoded: bytes) -> bytes:
    id_hash = keyed_hash.copy()
    id_hash.update(encoded)
    digest: bytes = id_hash.digest()
    return digest


def _cached_digest(cache: dict[str, bytes], keyed_hash: Any, id_text: str) -> bytes:
    digest = cache.get(id_text)
    if digest is None:
        if len(cache) >= _MAX_CACHED_HASHES:
            cache.clear()
        digest = cache[id_text] = _digest(keyed_hash, id_text.encode())
    return digest
