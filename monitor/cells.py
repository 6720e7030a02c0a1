"""Records of 64-bit integers by their cells, and sums in two limbs: what is added to them while a batch is worked out.

`monitor.aggregates` says what the integers are, and does with whole arrays what is done here one by one. Compiled
(deploy/native.py).
"""

from __future__ import annotations

from typing import Final, TypeAlias, final

from librt.vecs import extend, vec
from mypy_extensions import i64

from monitor.aggregates import LIMB_BITS
from monitor.ranking import SCALE_BITS

CELL_BITS: Final = 48
"""A bucket, an hour or a day in the low bits of a cell's number, the variant above."""
_REMEMBERED: Final = 16
"""Cells: by the last two bits of the variant and of the bucket, hour or day."""
_LOW: Final = (1 << LIMB_BITS) - 1
_HIGH: Final = 2.0**-LIMB_BITS
_CARRY: Final = 2.0**LIMB_BITS
UNIT: Final = 2.0**-SCALE_BITS
"""One in the last place of a contribution in fixed point."""
_MOST: Final = 2.0**70
_INTEGER: Final = 2.0**62
"""Below this a number becomes a small integer of compiled code at once."""
_WHOLE: Final = 2.0**52
"""From here on every float64 is an integer; below, adding and subtracting it rounds half to even."""

Record: TypeAlias = "vec[i64]"


@final
class Finder:
    """Finds records of one width by their cells, those that were used last without a look into the dictionary."""

    __slots__ = ("_cells", "_last", "_records", "_width")

    def __init__(self, records: dict[int, Record], width: i64) -> None:
        self._records = records
        self._width: i64 = width
        self._cells = vec[i64]([-1] * _REMEMBERED)
        self._last: list[Record] = [vec[i64]()] * _REMEMBERED

    def at(self, cell: i64) -> Record:
        """Return the record of a cell, one of zeros if there is none yet."""
        place = _place(cell)
        if self._cells[place] == cell:
            return self._last[place]
        known = self._records.get(cell)
        if known is None:
            known = zeros(self._width)
            self._records[cell] = known
        self._cells[place] = cell
        self._last[place] = known
        return known


@final
class Beside:
    """Records of one width side by side in one array: for cells so many that an object for each would be dear."""

    __slots__ = ("_cells", "_last", "_nothing", "begins", "numbers", "width")

    def __init__(self, width: i64) -> None:
        self.numbers: Record = vec[i64]()
        self.begins: dict[int, int] = {}
        """Cell → where its record begins."""
        self.width: i64 = width
        self._nothing = zeros(width)
        self._cells = vec[i64]([-1] * _REMEMBERED)
        self._last = vec[i64]([0] * _REMEMBERED)

    def at(self, cell: i64) -> i64:
        """Return where the record of a cell begins, one of zeros if there is none yet."""
        place = _place(cell)
        if self._cells[place] == cell:
            return self._last[place]
        known = self.begins.get(cell)
        begin: i64 = len(self.numbers)
        if known is None:
            self.begins[cell] = begin
            self.numbers = extend(self.numbers, self._nothing)
        else:
            begin = known
        self._cells[place] = cell
        self._last[place] = begin
        return begin

    def records(self) -> dict[int, Record]:
        """Return a copy of each record by its cell."""
        return {cell: self.numbers[begin : begin + self.width] for cell, begin in self.begins.items()}


def _place(cell: i64) -> i64:
    """Return where a cell is remembered."""
    return cell & 3 | (cell >> CELL_BITS & 3) << 2


def zeros(width: i64) -> Record:
    """Return a record of nothing."""
    nothing: i64 = 0  # as it stands, it would be an object
    return vec[i64]([nothing] * width)


def add_mean(record: Record, at: i64, sign: i64, value: float, squares: float) -> None:
    """Add a student's mean, in fixed point, and its square at this scale."""
    whole = rounded(value)
    scaled = whole * UNIT
    add_limbs(record, at, sign, whole)
    add_limbs(record, at + 2, sign, rounded(scaled * scaled * squares))


def mean(total: i64, count: i64) -> float:
    """Return a student's mean, 0 of nothing; of less than nothing too, while shards are brought in line."""
    if total <= 0:
        return 0.0
    return float(total) / float(count) if count > 1 else float(total)


def replace_mean(record: Record, at: i64, old: float, new: float, squares: float) -> None:
    """Replace a student's mean, in fixed point, and its square at this scale."""
    if old != new:
        before, after = rounded(old), rounded(new)
        was, now = before * UNIT, after * UNIT
        replace_rounded(record, at, before, after)
        replace_rounded(record, at + 2, rounded(was * was * squares), rounded(now * now * squares))


def rounded(number: float) -> float:
    """Round a number ≥ 0 half to even. What is below, while shards are brought in line, comes and goes by one rule."""
    return (number + _WHOLE) - _WHOLE if number < _WHOLE else number


def add_whole(record: Record, at: i64, sign: i64, number: i64) -> None:
    """Add an integer in its two limbs; see `monitor.aggregates.limbs`."""
    record[at] += sign * (number & _LOW)
    record[at + 1] += sign * (number >> LIMB_BITS)


def replace_whole(record: Record, at: i64, old: i64, new: i64) -> None:
    """Replace an integer in its two limbs."""
    record[at] += (new & _LOW) - (old & _LOW)
    record[at + 1] += (new >> LIMB_BITS) - (old >> LIMB_BITS)


def replace_limbs(record: Record, at: i64, old: float, new: float) -> None:
    """Replace a number, rounded, in its two limbs."""
    if old != new:
        replace_rounded(record, at, rounded(old), rounded(new))


def replace_rounded(record: Record, at: i64, old: float, new: float) -> None:
    """Replace a whole number in its two limbs, as if it were taken away and added again; see `add_limbs`."""
    if 0.0 <= old < _INTEGER and 0.0 <= new < _INTEGER:
        replace_whole(record, at, i64(old), i64(new))
    else:
        add_limbs(record, at, -1, old)
        add_limbs(record, at, 1, new)


def add_limbs(record: Record, at: i64, sign: i64, number: float) -> None:
    """Add a whole number in its two limbs, at most 2⁷⁰ of it: more would not fit the commit script's float64.

    It is below 0 only while shards are brought in line. Nothing but a million points of one student's comes near: an
    id that many share.
    """
    if 0.0 <= number < _INTEGER:
        add_whole(record, at, sign, i64(number))
        return
    number = min(_MOST, number)
    high = i64(number * _HIGH)
    record[at] += sign * i64(number - float(high) * _CARRY)
    record[at + 1] += sign * high
