"""Ids as the store keeps them: short keyed hashes, never the ids themselves.

All hashes are BLAKE2b (RFC 7693) of one secret key, followed by the id. BLAKE2's own keyed mode pads the key to a block
of 128 bytes, and so takes twice as long for ids of usual length. Lengths are chosen for the number of things to tell
apart: two of a billion responses share 16 bytes with probability 10⁻²¹, two of ten million students share 10 bytes with
probability 10⁻¹¹. Items have 6 bytes, because a row stores them for each position of its list: two of n items share
them with probability n²/2 · 2⁻⁴⁸. That is 4·10⁻¹⁴ in a list of 5, 2·10⁻⁹ in a list of 1 000 (a reaction to the second
item would count for the first), 2·10⁻⁷ in a catalogue of 10 000 and 0.2 % in a catalogue of a million (item statistics
would count the two as one).
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, Final, final

RESPONSE_BYTES: Final = 16
STUDENT_BYTES: Final = 10
EXPERIMENT_BYTES: Final = 10
ITEM_BYTES: Final = 6
TAG_BYTES: Final = 6
"""Leading bytes of a student's hash that tell the students of one response apart."""

_MAX_PLAIN_BYTES: Final = 15
_CACHED_IDS: Final = 40_000
"""Students, and items, whose hashes are cached: 130 bytes each."""


@final
class IdHasher:
    """Maps ids to their stored form under `key`, which has 32 bytes in a store; caches recent students and items."""

    __slots__ = ("_experiment", "_item", "_items", "_response", "_student", "_students")

    def __init__(self, key: bytes) -> None:
        self._response: Any = blake2b(key, digest_size=RESPONSE_BYTES, person=b"response")
        self._student: Any = blake2b(key, digest_size=STUDENT_BYTES, person=b"student")
        self._item: Any = blake2b(key, digest_size=ITEM_BYTES, person=b"item")
        self._experiment: Any = blake2b(key, digest_size=EXPERIMENT_BYTES, person=b"experiment")
        self._students: dict[str, bytes] = {}
        self._items: dict[str, bytes] = {}

    def response(self, response_id: str) -> bytes:
        """Return the stored id: a short id unchanged (at most 15 bytes), a longer one as 16 bytes of hash."""
        encoded = response_id.encode()
        return encoded if len(encoded) <= _MAX_PLAIN_BYTES else _digest(self._response, encoded)

    def student(self, user_id: str) -> bytes:
        """Return the student's hash, `STUDENT_BYTES` long."""
        return _cached_digest(self._students, self._student, user_id)

    def experiment(self, name: str) -> bytes:
        """Return the hash of an experiment's name, `EXPERIMENT_BYTES` long; undeclared names may be anything."""
        return _digest(self._experiment, name.encode())

    def item(self, item_id: str) -> bytes:
        """Return the item's hash, `ITEM_BYTES` long."""
        return _cached_digest(self._items, self._item, item_id)

    def items(self, item_ids: tuple[str, ...]) -> bytes:
        """Return the items' hashes, one after another."""
        return b"".join([self.item(item_id) for item_id in item_ids])


def _digest(keyed: Any, encoded: bytes) -> bytes:
    hashing = keyed.copy()
    hashing.update(encoded)
    digest: bytes = hashing.digest()
    return digest


def _cached_digest(cache: dict[str, bytes], keyed: Any, text: str) -> bytes:
    digest = cache.get(text)
    if digest is None:
        if len(cache) >= _CACHED_IDS:
            cache.clear()
        digest = cache[text] = _digest(keyed, text.encode())
    return digest
