"""What is hashed in C is BLAKE2b, as hashlib has it."""

from __future__ import annotations

from hashlib import blake2b

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from monitor.hashing import Hasher

KEY = bytes(range(64))


@given(st.binary(max_size=64), st.integers(1, 64), st.binary(max_size=16), st.text(max_size=600))
@example(KEY[:32], 16, b"response", "")
@example(KEY[:32], 16, b"response", "a" * 95)
@example(KEY[:32], 16, b"response", "a" * 96)
@example(KEY[:32], 16, b"response", "a" * 97)
@example(KEY[:32], 16, b"response", "a" * 224)
@example(KEY[:32], 16, b"response", "a" * 225)
@example(KEY, 64, b"sixteen bytes ..", "ü😀" * 40)
@example(b"", 1, b"", "a" * 128)
def test_hashes_are_those_of_the_key_and_the_text(key: bytes, size: int, use: bytes, text: str) -> None:
    """Of every length: blocks of 128 bytes that are not full, full, and one byte more."""
    expected = blake2b(key + text.encode(), digest_size=size, person=use).digest()
    hasher = Hasher(key, size, use)
    assert hasher.digest(text) == expected
    assert hasher.digest(text) == expected


@pytest.mark.parametrize(("key", "size", "use"), [(KEY + b"k", 16, b""), (KEY, 0, b""), (KEY, 65, b""), (KEY, 16, KEY)])
def test_lengths_that_nothing_has_are_refused(key: bytes, size: int, use: bytes) -> None:
    """They would be cut, or read beyond their end."""
    with pytest.raises(ValueError, match=r"expected at most|must be|maximum"):
        Hasher(key, size, use)


def test_half_a_character_has_no_hash() -> None:
    """As it has no bytes in UTF-8."""
    with pytest.raises(UnicodeEncodeError):
        Hasher(KEY, 16, b"response").digest("a\ud800")
