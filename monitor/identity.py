"""Ids as they are stored: short keyed hashes, never the ids themselves.

All hashes are BLAKE2b (RFC 7693) of one secret key, then the id. BLAKE2's own keyed mode does the same with the key
filled up to a block of 128 bytes, and takes twice as long for ids as short as these. Lengths are chosen for the number
of things they tell apart: two of a billion responses share 16 bytes with probability 10⁻²¹, two of ten million students
10 bytes with 10⁻¹¹. Items have 6, since a row holds them for each place of its list: two of n items share them with
probability n²/2 · 2⁻⁴⁸. Within a list of 5 that is 4·10⁻¹⁴, within one of 1 000 2·10⁻⁹ (a reaction to the second of the
two would be taken for one to the first); in a catalogue of 10 000 it is 2·10⁻⁷, in one of a million 0.2 % (where items
are counted, those two would be counted as one).
"""

from __future__ import annotations

from typing import Final, final

from librt.strings import BytesWriter

from monitor.hashing import Hasher

RESPONSE_BYTES: Final = 16
STUDENT_BYTES: Final = 10
EXPERIMENT_BYTES: Final = 10
ITEM_BYTES: Final = 6
TAG_BYTES: Final = 6
"""Leading bytes of a student's hash that tell the students of one response apart."""

_RAW_LIMIT: Final = 15
_REMEMBERED: Final = 40_000
"""Students, and items, whose hashes are remembered: 130 bytes each, for less time than hashing takes."""


@final
class Identities:
    """Maps ids to their stored form under `key`, which has 32 bytes in a store; remembers recent students and items."""

    __slots__ = ("_experiment", "_item", "_items", "_response", "_student", "_students")

    def __init__(self, key: bytes) -> None:
        self._response = Hasher(key, RESPONSE_BYTES, b"response").digest
        self._student = Hasher(key, STUDENT_BYTES, b"student").digest
        self._item = Hasher(key, ITEM_BYTES, b"item").digest
        self._experiment = Hasher(key, EXPERIMENT_BYTES, b"experiment").digest
        self._students: dict[str, bytes] = {}
        self._items: dict[str, bytes] = {}

    def response(self, response_id: str) -> bytes:
        """Return the stored id: a short id as it is (at most 15 bytes), a longer one as 16 bytes of hash."""
        if len(response_id) <= _RAW_LIMIT:
            raw = response_id.encode()
            if len(raw) <= _RAW_LIMIT:
                return raw
        return self._response(response_id)

    def student(self, user_id: str) -> bytes:
        """Return the student's hash, `STUDENT_BYTES` long."""
        known = self._students.get(user_id)
        if known is None:
            if len(self._students) >= _REMEMBERED:
                self._students.clear()
            known = self._student(user_id)
            self._students[user_id] = known
        return known

    def experiment(self, name: str) -> bytes:
        """Return the hash of an experiment's name, `EXPERIMENT_BYTES` long; undeclared ones may be anything."""
        return self._experiment(name)

    def item(self, item_id: str) -> bytes:
        """Return the item's hash, `ITEM_BYTES` long."""
        known = self._items.get(item_id)
        if known is None:
            if len(self._items) >= _REMEMBERED:
                self._items.clear()
            known = self._item(item_id)
            self._items[item_id] = known
        return known

    def list_of(self, item_ids: tuple[str, ...]) -> bytes:
        """Return the items' hashes, one after another."""
        writer = BytesWriter()
        for item_id in item_ids:
            writer.write(self.item(item_id))
        return writer.getvalue()
