"""What commits say of the rows that they make: who comes after them need not look for each of its own new ones.

Where several workers write, a commit leaves in a stream, under its own number, a checksum (CRC-32) of the name of each
row that it makes. A worker has read its own new rows, and found none, after the last commit that it knew of. If all
commits since then have left an entry, and no checksum of theirs is one of its own, these rows are still new. In any
other case (the same checksum by chance, a commit that has left nothing, one that is kept no more) they are looked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Final, final

import numpy as np

from monitor.store.packing import PackedRows

_KEPT: Final = 64
"""Entries."""
_WORTH: Final = 100
"""Rows: looking for so many takes about as long as one entry."""
_CHECKSUM: Final = np.dtype("<u4")
_Checksums = np.ndarray[tuple[int], np.dtype[np.uint32]]


@final
class Made:
    """The rows that one commit makes."""

    def __init__(self, stream: bytes, rows: PackedRows) -> None:
        """Take the rows, of which no more are to come."""
        self._stream = stream
        self._rows = rows

    @cached_property
    def _checksums(self) -> _Checksums:
        return np.frombuffer(self._rows.checksums(), _CHECKSUM)

    def left(self) -> Sequence[int | bytes]:
        """Return how many entries are kept, and what this commit's says."""
        return _KEPT, self._checksums.tobytes()

    def since(self, number: int) -> Sequence[Any]:
        """Return the command that asks for the entries of all commits after the one with this number.

        It brings no more than what takes less than looking for the rows.
        """
        most = min(max(1, self._rows.count // _WORTH), _KEPT)
        return ("XRANGE", self._stream, b"%d-0" % (number + 1), b"+", "COUNT", most)

    def is_new(self, entries: Sequence[Any], after: int, last: int) -> bool:
        """Return whether entries say that no commit after one number, up to the last, has made any of these rows."""
        # They follow each other: as many as that, up to the last, are all.
        if len(entries) != last - after or (entries and entries[-1][0] != b"%d-0" % last):
            return False
        made = b"".join([checksums for _, (_, checksums) in entries])
        if not made:
            return True
        theirs = np.frombuffer(made, _CHECKSUM)
        return np.intersect1d(_once(self._checksums), _once(theirs), assume_unique=True).size == 0


def _once(checksums: _Checksums) -> _Checksums:
    """Return each of some checksums once; sorting takes a tenth of what `numpy.unique` does."""
    ordered = np.sort(checksums)
    once: _Checksums = ordered[np.append(True, ordered[1:] != ordered[:-1])]
    return once
