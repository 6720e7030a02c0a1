"""Do raters agree? Intraclass correlations where everybody graded everything, Krippendorff's alpha where not.

A table of grades has a row per target and a column per rater; None is a missing grade. Grades count as the decimals
that they print as, in exact arithmetic: what does not vary has a variance of exactly 0, and no order of rows or columns
changes a digit. Pure.

References: Shrout & Fleiss, "Intraclass correlations: uses in assessing rater reliability", Psychological Bulletin
86(2), 1979. McGraw & Wong, "Forming inferences about some intraclass correlation coefficients", Psychological Methods
1(1), 1996, with the corrections of 1(4). Cicchetti, "Guidelines, criteria, and rules of thumb for evaluating normed and
standardized assessment instruments in psychology", Psychological Assessment 6(4), 1994. Koo & Li, "A guideline of
selecting and reporting intraclass correlation coefficients for reliability research", Journal of Chiropractic Medicine
15(2), 2016. Krippendorff, "Computing Krippendorff's alpha-reliability", 2011; "Content analysis", 2nd edition, 2004.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from itertools import chain
from typing import Final, Literal, TypeAlias, get_args

Level: TypeAlias = Literal["ordinal", "interval", "nominal"]
LEVELS: Final[tuple[Level, ...]] = get_args(Level)

TargetKind: TypeAlias = Literal["query", "response"]
Target: TypeAlias = tuple[TargetKind, str, str]
"""What is graded: an item shown for a query, or (where there is no query) in a response; the id, then the item's."""
Grades: TypeAlias = Sequence[Sequence[float | None]]

_ALPHA: Final = 0.05
_FEWEST: Final = 2


@dataclass(frozen=True, slots=True)
class Rating:
    """What one rater gave one target in one response; of several for the same target, the latest stands."""

    variant: str
    target: Target
    rater: str
    at_ms: int
    grade: float


@dataclass(frozen=True, slots=True)
class Design:
    """Who graded what: per target the grades that it got, in the raters' order. Nobody's place is kept empty."""

    targets: tuple[Target, ...]
    raters: int
    grades: tuple[tuple[float, ...], ...]

    @classmethod
    def of(cls, ratings: Iterable[Rating]) -> Design:
        """Return everything rated, by everybody who rated anything."""
        latest: dict[tuple[Target, str], tuple[int, float]] = {}
        for rating in ratings:
            key, new = (rating.target, rating.rater), (rating.at_ms, rating.grade)
            latest[key] = max(new, latest.get(key, new))
        given: dict[Target, list[float]] = defaultdict(list)
        for (target, _), (_, grade) in sorted(latest.items()):
            given[target].append(grade)
        return cls(tuple(given), len({rater for _, rater in latest}), tuple(map(tuple, given.values())))


@dataclass(frozen=True, slots=True)
class MeanSquares:
    """The analysis of variance, in squared grades: between targets and raters, what is left, and within targets."""

    targets: float
    raters: float
    error: float
    within: float


@dataclass(frozen=True, slots=True)
class Correlation:
    """One form of the intraclass correlation; None is undefined.

    `p` is that of F under a true correlation of 0; `interval` the 95 % confidence interval. `cicchetti` and `koo_li`
    name the value; Koo & Li ask to read the interval instead, whose ends `koo_li_interval` names.
    """

    name: str
    value: float | None
    f: float | None
    df1: int
    df2: int
    p: float | None
    interval: tuple[float, float] | None

    @property
    def cicchetti(self) -> str | None:
        """Return poor, fair (from 0.40), good (from 0.60) or excellent (from 0.75)."""
        return None if self.value is None else cicchetti(self.value)

    @property
    def koo_li(self) -> str | None:
        """Return poor, moderate (from 0.5), good (from 0.75) or excellent (above 0.9)."""
        return None if self.value is None else koo_li(self.value)

    @property
    def koo_li_interval(self) -> tuple[str, str] | None:
        return None if self.interval is None else (koo_li(self.interval[0]), koo_li(self.interval[1]))

    def to_json(self) -> dict[str, object]:
        named = {"cicchetti": self.cicchetti, "koo_li": self.koo_li, "koo_li_interval": self.koo_li_interval}
        return {**asdict(self), "f": self.f if self.f != math.inf else None, **named}


@dataclass(frozen=True, slots=True)
class Icc:
    """The six intraclass correlations of a complete table."""

    targets: int
    raters: int
    mean_squares: MeanSquares
    forms: tuple[Correlation, ...]

    def to_json(self) -> dict[str, object]:
        forms = {form.name: form.to_json() for form in self.forms}
        return {"mean_squares": asdict(self.mean_squares), "forms": forms}


@dataclass(frozen=True, slots=True)
class Alpha:
    """Krippendorff's alpha; None where all pairable grades are the same, or there are none."""

    level: Level
    value: float | None
    units: int
    """Targets with at least two grades."""
    grades: int
    """The grades of those."""

    @property
    def label(self) -> str | None:
        """Return unreliable, tentative (from 0.667) or reliable (from 0.800): Krippendorff 2004, section 11.4."""
        names = ((0.8, "reliable"), (0.667, "tentative"), (-math.inf, "unreliable"))
        return None if self.value is None else next(name for least, name in names if self.value >= least)

    def to_json(self) -> dict[str, object]:
        return {**asdict(self), "label": self.label}


@dataclass(frozen=True, slots=True)
class Agreement:
    """How far the raters of one variant, or of all (None), agree; `refusal` says why there is no `icc`."""

    variant: str | None
    targets: int
    raters: int
    grades: int
    icc: Icc | None
    refusal: str | None
    alphas: tuple[Alpha, ...]

    def to_json(self) -> dict[str, object]:
        return {
            "variant": self.variant,
            "targets": self.targets,
            "raters": self.raters,
            "grades": self.grades,
            "icc": None if self.icc is None else self.icc.to_json(),
            "icc_refused": self.refusal,
            "alpha": {alpha.level: alpha.to_json() for alpha in self.alphas},
        }


def agreements(ratings: Iterable[Rating], variants: Iterable[str]) -> tuple[Agreement, ...]:
    """Return the agreement within each of the variants, in their order, and over all of them."""
    given = list(ratings)
    each = [_agreement(variant, [rating for rating in given if rating.variant == variant]) for variant in variants]
    return (*each, _agreement(None, given))


def _agreement(variant: str | None, ratings: Iterable[Rating]) -> Agreement:
    design = Design.of(ratings)
    found, refusal = None, None
    try:
        names = [f"item {item!r} of {kind} {name!r}" for kind, name, item in design.targets]
        found = icc(design.grades, design.raters, names)
    except ValueError as error:
        refusal = str(error)
    alphas = tuple(krippendorff_alpha(design.grades, level) for level in LEVELS)
    return Agreement(variant, len(design.targets), design.raters, sum(map(len, design.grades)), found, refusal, alphas)


def cicchetti(value: float) -> str:
    """Return the name of a correlation on the scale of Cicchetti 1994 (page 286)."""
    names = ((0.75, "excellent"), (0.6, "good"), (0.4, "fair"))
    return next((name for least, name in names if value >= least), "poor")


def koo_li(value: float) -> str:
    """Return the name of a correlation on the scale of Koo & Li 2016 (page 161)."""
    if value > 0.9:  # noqa: PLR2004  a bound of the scale
        return "excellent"
    names = ((0.75, "good"), (0.5, "moderate"))
    return next((name for least, name in names if value >= least), "poor")


def icc(grades: Grades, raters: int | None = None, names: Sequence[str] | None = None) -> Icc:
    """Return ICC(1,1), ICC(A,1), ICC(C,1) and their k forms: McGraw & Wong 1996, tables 4, 7 and 8.

    Shrout & Fleiss 1979 call them (1,1), (2,1), (3,1), (1,k), (2,k), (3,k). 1: every target may have raters of its own;
    A: absolute agreement of the same raters; C: consistency, where a rater may be stricter throughout. The k forms are
    about the mean of the k raters.

    `raters` is how many there are if that is more than a row has grades; `names` are what to call the rows in errors.
    Raises ValueError for a table with fewer than two rows or columns, rows of different lengths, a missing grade, one
    that is not finite, and for grades that are all the same.
    """
    table, scale = _complete(grades, raters, names)
    n, k = len(table), len(table[0])
    mean = Fraction(sum(map(sum, table)) ** 2, n * k)
    between = Fraction(sum(sum(row) ** 2 for row in table), k) - mean
    columns = Fraction(sum(sum(column) ** 2 for column in zip(*table, strict=True)), n) - mean
    total = sum(grade**2 for row in table for grade in row) - mean
    if not total:
        raise ValueError(f"every grade is {table[0][0] / scale:g}: there is no variance to explain")
    df_within, df_error = n * (k - 1), (n - 1) * (k - 1)
    msr, msc = between / (n - 1), columns / (k - 1)
    msw, mse = (total - between) / df_within, (total - between - columns) / df_error
    bias = (msc - mse) / n
    own = _forms("1", _Variance(k, msr, msw, Fraction(0)), n - 1, df_within, df_within)
    agree = _Variance(k, msr, mse, bias)
    absolute = _forms("A", agree, n - 1, df_error, _satterthwaite(agree, n, msc))
    consistent = _forms("C", _Variance(k, msr, mse, Fraction(0)), n - 1, df_error, df_error)
    return Icc(
        targets=n,
        raters=k,
        mean_squares=MeanSquares(*(float(square / scale**2) for square in (msr, msc, mse, msw))),
        forms=tuple(chain.from_iterable(zip(own, absolute, consistent, strict=True))),
    )


@dataclass(frozen=True, slots=True)
class _Variance:
    """What the six forms are made of: k raters, mean squares between targets and below, and the raters' bias."""

    k: int
    targets: Fraction
    below: Fraction
    bias: Fraction

    def correlations(self, q: Fraction) -> tuple[float | None, float | None]:
        """Return both forms if what is below were `q` times as large; None where nothing is left to divide by.

        At q = 1 these are the estimates, at the quantiles of F the ends of the interval.
        """
        above = self.targets - q * self.below
        single = self.targets + q * ((self.k - 1) * self.below + self.k * self.bias)
        return _quotient(above, single), _quotient(above, self.targets + q * self.bias)


def _quotient(above: Fraction, below: Fraction) -> float | None:
    return float(above / below) if below > 0 else None


def _satterthwaite(variance: _Variance, n: int, msc: Fraction) -> float:
    """Return the degrees of freedom of the interval of ICC(A,1): McGraw & Wong 1996, table 7, times 1 - ICC."""
    k, mse = variance.k, variance.below
    df_error = (n - 1) * (k - 1)
    value = variance.correlations(Fraction(1))[0]
    rho = Fraction(0 if value is None else value)
    a, b = k * rho * msc, (n * (1 + (k - 1) * rho) - k * rho) * mse
    spread = a**2 / (k - 1) + b**2 / df_error
    return float((a + b) ** 2 / spread) if spread else float(df_error)


def _forms(
    letter: str, variance: _Variance, df1: int, df2: int, df2_interval: float
) -> tuple[Correlation, Correlation]:
    # Here and not above: a seventh of a second that no other command needs to wait for.
    from scipy.special import fdtrc, fdtri  # noqa: PLC0415

    f, p = None, None
    if variance.below:
        f = float(variance.targets / variance.below)
        p = float(fdtrc(df1, df2, f))
    elif variance.targets:
        f, p = math.inf, 0.0
    quantiles = [float(fdtri(df1, df2_interval, share)) for share in (1 - _ALPHA / 2, _ALPHA / 2)]
    known = all(map(math.isfinite, quantiles))
    estimates = variance.correlations(Fraction(1))
    lower, upper = [variance.correlations(Fraction(q)) if known else (None, None) for q in quantiles]

    def form(which: Literal[0, 1]) -> Correlation:
        value, least, most = estimates[which], lower[which], upper[which]
        interval = None if value is None or least is None or most is None else (least, most)
        return Correlation(f"ICC({letter},{'1k'[which]})", value, f, df1, df2, p, interval)

    return form(0), form(1)


def _complete(grades: Grades, raters: int | None, names: Sequence[str] | None) -> tuple[list[list[int]], int]:
    """Return the table as integers, and what they were multiplied by; ValueError as told for `icc`."""
    columns = max(map(len, grades), default=0) if raters is None else raters
    if len(grades) < _FEWEST or columns < _FEWEST:
        raise ValueError(f"{len(grades)} targets and {columns} raters, expected at least {_FEWEST} of each")
    table = [[grade for grade in row if grade is not None] for row in grades]
    short = [at for at, row in enumerate(table) if len(row) != columns]
    if short:
        first = short[0]
        name = f"row {first + 1}" if names is None else names[first]
        raise ValueError(
            f"incomplete: {len(short)} of {len(grades)} targets lack a grade, the first is {name} with "
            f"{len(table[first])} of {columns}; expected a grade of every rater for every target"
        )
    exact, scale = _exact(chain.from_iterable(table))
    return [[exact[grade] for grade in row] for row in table], scale


def _exact(grades: Iterable[float]) -> tuple[dict[float, int], int]:
    """Return grades as integers, the decimals they print as times a scale, and that scale."""
    distinct = {}
    for grade in set(grades):
        if not math.isfinite(grade):
            raise ValueError(f"a grade is {grade!r}, expected a finite number (None for a missing one)")
        distinct[grade] = Fraction(str(grade))
    scale = math.lcm(*(number.denominator for number in distinct.values()))
    return {grade: int(number * scale) for grade, number in distinct.items()}, scale


def krippendorff_alpha(grades: Grades, level: Level) -> Alpha:
    """Return alpha of a table that may have holes: 1 - observed / expected disagreement (Krippendorff 2011).

    A target with one grade says nothing about agreement and is left out. Two grades c and k disagree by (c - k)² at the
    level interval, by 1 at the level nominal, and at the level ordinal by the square of the number of grades between
    them, half of those at either end included: of the difference of their mean ranks, so that the ordinal alpha is the
    interval alpha of mean ranks. Rows may differ in length. Raises ValueError for a grade that is not finite.

    By hand, nominal: of 1 1, 1 2 and 2 2 one pair in three disagrees, of all 15 pairs nine do: 1 - (1/3)/(9/15) = 4/9.

    >>> krippendorff_alpha([[1, 1, None], [1, 2, None], [None, 2, 2], [None, 7, None]], "nominal").value
    0.4444444444444444
    """
    given = [[grade for grade in row if grade is not None] for row in grades]
    units = [row for row in given if len(row) >= _FEWEST]
    pairable = list(chain.from_iterable(units))
    n = len(pairable)
    exact, _ = _exact(pairable)
    worth = _mean_ranks(pairable) if level == "ordinal" else exact
    disagree = _unequal_pairs if level == "nominal" else _squared_pairs
    expected = disagree([worth[grade] for grade in pairable])
    observed = sum(
        (Fraction(disagree([worth[grade] for grade in row]), len(row) - 1) for row in units), start=Fraction(0)
    )
    value = float(1 - (n - 1) * observed / expected) if expected else None
    return Alpha(level, value, len(units), n)


def _mean_ranks(grades: Sequence[float]) -> dict[float, int]:
    """Return twice the mean rank, from 0, that each grade has among all."""
    ranks, below = {}, 0
    for grade, count in sorted(Counter(grades).items()):
        ranks[grade] = 2 * below + count
        below += count
    return ranks


def _squared_pairs(values: Sequence[int]) -> int:
    return len(values) * sum(value**2 for value in values) - sum(values) ** 2


def _unequal_pairs(values: Sequence[int]) -> int:
    """Return twice the number of pairs that differ, which is as much too large above as below."""
    return len(values) ** 2 - sum(count**2 for count in Counter(values).values())
