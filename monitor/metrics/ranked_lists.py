"""The fixed-point metrics of many responses at once; see `monitor.metrics.fixed_point` for what they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

IntArray: TypeAlias = NDArray[np.int64]
BoolArray: TypeAlias = NDArray[np.bool_]
FloatArray: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Batch:
    """n responses of up to m items; methods take the cut k and the fixed-point value of 1, and return n integers."""

    terms: IntArray
    """What each distinct grade is worth undiscounted and at rank 1, 2, …; grades rise, row 0 is an unjudged item's."""
    row: IntArray
    """n × m: the item's row in `terms`."""
    depth: IntArray
    """n × m: the item's rank; for an unjudged one, a rank beyond every cut."""
    relevant: BoolArray
    """n × m: whether the item is judged relevant."""

    def cg(self, k: int, _scale: int) -> IntArray:
        """Return the sums of undiscounted terms."""
        return self._sums(np.where(self.depth <= k, self.terms[self.row, 0], 0))

    def dcg(self, k: int, _scale: int) -> IntArray:
        """Return the sums of terms at the items' ranks."""
        counts = self.depth <= k
        return self._sums(np.where(counts, self.terms[self.row, np.where(counts, self.depth, 0)], 0))

    def ideal_dcg(self, k: int) -> IntArray:
        """Return the sums of terms of the responses' own grades, sorted."""
        ordered = -np.sort(-self.row, axis=1)[:, :k]
        return self._sums(self.terms[ordered, np.arange(1, ordered.shape[1] + 1)])

    def ndcg(self, k: int, scale: int, ideal: IntArray) -> IntArray:
        """Return the quotients of `dcg` and `ideal`; 0 where the ideal is 0."""
        quotients = self.dcg(k, scale) / np.where(ideal > 0, ideal, 1)
        return _integers(np.where(ideal > 0, np.minimum(np.rint(quotients * scale), scale), 0))

    def success(self, k: int, scale: int) -> IntArray:
        """Return `scale` where an item up to k is relevant."""
        return _integers((self.relevant & (self.depth <= k)).any(axis=1)) * scale

    def rr(self, k: int, scale: int) -> IntArray:
        """Return `scale` over the first relevant rank."""
        never = k + 1
        first = np.where(self.relevant, self.depth, never).min(axis=1, initial=never)
        return _integers(np.where(first <= k, np.rint(scale / first), 0))

    def p(self, k: int, scale: int) -> IntArray:
        """Return `scale` times the relevant items up to k, over k."""
        hits = (self.relevant & (self.depth <= k)).sum(axis=1)
        return _integers(np.rint(scale * hits / k))

    @staticmethod
    def _sums(terms: IntArray) -> IntArray:
        return _integers(terms.sum(axis=1))


def _integers(values: ArrayLike) -> IntArray:
    return np.asarray(values, dtype=np.int64)
