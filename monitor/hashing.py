"""Short keyed hashes of texts: BLAKE2b (RFC 7693) of a key, then the text.

This is what is there when nothing is compiled. hashing.c does the same: of what hashlib takes for a hash as short as
these, nearly half is for objects and calls.
"""

from __future__ import annotations

from hashlib import blake2b


class Hasher:
    """Hashes of `size` bytes (1 to 64), each use of the key with a name of its own (at most 16 bytes)."""

    def __init__(self, key: bytes, size: int, use: bytes) -> None:
        """Take in the key, of at most 64 bytes; raises ValueError for other lengths."""
        if len(key) > 64:  # noqa: PLR2004
            raise ValueError(f"a key of {len(key)} bytes, expected at most 64")
        self._begun = blake2b(key, digest_size=size, person=use)

    def digest(self, text: str) -> bytes:
        """Return the hash of a text; raises UnicodeEncodeError if it has half of a character."""
        hashing = self._begun.copy()
        hashing.update(text.encode())
        return hashing.digest()
