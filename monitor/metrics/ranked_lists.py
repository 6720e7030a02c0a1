"""The fixed-point metrics of many responses at once: see `monitor.metrics.fixed_point`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

IntArray: TypeAlias = NDArray[np.int64]
BoolArray: TypeAlias = NDArray[np.bool_]
FloatArray: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RankedListBatch:
    """n responses of up to m items; methods take the cutoff k and the fixed-point value of 1, and return n integers."""

    terms: IntArray
    """Row 0 for unjudged items, then a row for each grade, ascending: the gain undiscounted and at rank 1, 2, …"""
    row: IntArray
    """n × m: the item's row in `terms`."""
    depth: IntArray
    """n × m: the item's rank; for an unjudged item, a rank beyond every cutoff."""
    relevant: BoolArray
    """n × m: whether the item is judged relevant."""

    def cumulative_gain(self, k: int) -> IntArray:
        """Return the sums of undiscounted terms."""
        return self._sums(np.where(self.depth <= k, self.terms[self.row, 0], 0))

    def dcg(self, k: int) -> IntArray:
        """Return the sums of terms at the items' ranks."""
        is_counted = self.depth <= k
        return self._sums(np.where(is_counted, self.terms[self.row, np.where(is_counted, self.depth, 0)], 0))

    def ideal_dcg(self, k: int) -> IntArray:
        """Return the sums of terms of the responses' own grades, sorted."""
        ordered = -np.sort(-self.row, axis=1)[:, :k]
        return self._sums(self.terms[ordered, np.arange(1, ordered.shape[1] + 1)])

    def ndcg(self, k: int, scale: int, ideal: IntArray) -> IntArray:
        """Return the quotients of `dcg` and `ideal`; 0 for an ideal of 0."""
        quotients = self.dcg(k) / np.where(ideal > 0, ideal, 1)
        return _integers(np.where(ideal > 0, np.minimum(np.rint(quotients * scale), scale), 0))

    def success(self, k: int, scale: int) -> IntArray:
        """Return `scale` for responses with a relevant item up to k, 0 for the rest."""
        return _integers((self.relevant & (self.depth <= k)).any(axis=1)) * scale

    def reciprocal_rank(self, k: int, scale: int) -> IntArray:
        """Return `scale` divided by the rank of the first relevant item; 0 without a relevant item up to k."""
        beyond_k = k + 1
        first_rank = np.where(self.relevant, self.depth, beyond_k).min(axis=1, initial=beyond_k)
        return _integers(np.where(first_rank <= k, np.rint(scale / first_rank), 0))

    def precision(self, k: int, scale: int) -> IntArray:
        """Return `scale` times the number of relevant items up to k, divided by k."""
        hits = (self.relevant & (self.depth <= k)).sum(axis=1)
        return _integers(np.rint(scale * hits / k))

    @staticmethod
    def _sums(terms: IntArray) -> IntArray:
        return _integers(terms.sum(axis=1))


def _integers(values: ArrayLike) -> IntArray:
    return np.asarray(values, dtype=np.int64)
