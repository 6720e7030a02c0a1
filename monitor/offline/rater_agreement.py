"""Agreement of raters: intraclass correlations of complete tables of grades, and Krippendorff's alpha of any table.

A table has a row per target and a column per rater; None is a missing grade. Grades are used as the decimals that they
print as, in exact arithmetic. So equal grades have a variance of exactly 0, and the order of rows or columns does not
change any digit. All functions are pure.

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

from monitor.errors import count_noun

MeasurementLevel: TypeAlias = Literal["ordinal", "interval", "nominal"]
MEASUREMENT_LEVELS: Final[tuple[MeasurementLevel, ...]] = get_args(MeasurementLevel)

TargetKind: TypeAlias = Literal["query", "response"]
Target: TypeAlias = tuple[TargetKind, str, str]
"""A graded item: kind and id of the query, or of the response if the response has no query, and the id of the item."""
GradeRows: TypeAlias = Sequence[Sequence[float | None]]

_ALPHA: Final = 0.05
_MIN_RATERS_AND_TARGETS: Final = 2
_MIN_PAIRABLE_GRADES: Final = 2


@dataclass(frozen=True, slots=True)
class Rating:
    """A grade of a target by a rater; replaced by a later rating of the same target by the same rater."""

    variant: str
    target: Target
    rater: str
    at_ms: int
    grade: float


@dataclass(frozen=True, slots=True)
class GradeTable:
    """A row of grades for each target, in the order of the raters.

    Missing grades are left out, so a row may be shorter than `rater_count`.
    """

    targets: tuple[Target, ...]
    rater_count: int
    rows: tuple[tuple[float, ...], ...]

    @classmethod
    def from_ratings(cls, ratings: Iterable[Rating]) -> GradeTable:
        """Return the table of all rated targets; of several ratings by a rater for a target, the latest counts."""
        latest_grades: dict[tuple[Target, str], tuple[int, float]] = {}
        for rating in ratings:
            key, timed_grade = (rating.target, rating.rater), (rating.at_ms, rating.grade)
            latest_grades[key] = max(timed_grade, latest_grades.get(key, timed_grade))
        rows: dict[Target, list[float]] = defaultdict(list)
        for (target, _), (_, grade) in sorted(latest_grades.items()):
            rows[target].append(grade)
        return cls(tuple(rows), len({rater for _, rater in latest_grades}), tuple(map(tuple, rows.values())))


@dataclass(frozen=True, slots=True)
class MeanSquares:
    """Mean squares of the analysis of variance, in squared grades: targets, raters, residual, and within targets."""

    targets: float
    raters: float
    error: float
    within: float


@dataclass(frozen=True, slots=True)
class IntraclassCorrelation:
    """A form of the intraclass correlation, with an F test and an interval; None is undefined.

    `p` is the p-value of `f` under a true correlation of 0; `interval` is the 95 % confidence interval.
    """

    name: str
    value: float | None
    f: float | None
    df1: int
    df2: int
    p: float | None
    interval: tuple[float, float] | None

    @property
    def cicchetti_label(self) -> str | None:
        """Return poor, fair (from 0.40), good (from 0.60) or excellent (from 0.75)."""
        return None if self.value is None else cicchetti_label(self.value)

    @property
    def koo_li_label(self) -> str | None:
        """Return poor, moderate (from 0.5), good (from 0.75) or excellent (above 0.9).

        Koo & Li recommend to read the labels of the interval instead (`koo_li_interval_labels`).
        """
        return None if self.value is None else koo_li_label(self.value)

    @property
    def koo_li_interval_labels(self) -> tuple[str, str] | None:
        return None if self.interval is None else (koo_li_label(self.interval[0]), koo_li_label(self.interval[1]))

    def to_json(self) -> dict[str, object]:
        labels = {
            "cicchetti": self.cicchetti_label,
            "koo_li": self.koo_li_label,
            "koo_li_interval": self.koo_li_interval_labels,
        }
        return {**asdict(self), "f": self.f if self.f != math.inf else None, **labels}


@dataclass(frozen=True, slots=True)
class IntraclassCorrelations:
    """The six forms of the intraclass correlation of a complete table."""

    targets: int
    raters: int
    mean_squares: MeanSquares
    forms: tuple[IntraclassCorrelation, ...]

    def to_json(self) -> dict[str, object]:
        forms = {form.name: form.to_json() for form in self.forms}
        return {"mean_squares": asdict(self.mean_squares), "forms": forms}


@dataclass(frozen=True, slots=True)
class Alpha:
    """Krippendorff's alpha; the value is None if all pairable grades are the same, or no grade is pairable."""

    level: MeasurementLevel
    value: float | None
    units: int
    """Targets with at least two grades."""
    grades: int
    """Grades of these targets: the pairable grades."""

    @property
    def label(self) -> str | None:
        """Return unreliable, tentative (from 0.667) or reliable (from 0.800): Krippendorff 2004, section 11.4."""
        names = ((0.8, "reliable"), (0.667, "tentative"), (-math.inf, "unreliable"))
        return None if self.value is None else next(name for minimum, name in names if self.value >= minimum)

    def to_json(self) -> dict[str, object]:
        return {**asdict(self), "label": self.label}


@dataclass(frozen=True, slots=True)
class RaterAgreement:
    """The agreement of the raters of a variant; the variant is None for the raters of all variants together."""

    variant: str | None
    targets: int
    raters: int
    grades: int
    icc: IntraclassCorrelations | None
    icc_undefined_reason: str | None
    """None if `icc` is defined."""
    alphas: tuple[Alpha, ...]

    def to_json(self) -> dict[str, object]:
        return {
            "variant": self.variant,
            "targets": self.targets,
            "raters": self.raters,
            "grades": self.grades,
            "icc": None if self.icc is None else self.icc.to_json(),
            "icc_undefined_reason": self.icc_undefined_reason,
            "alpha": {alpha.level: alpha.to_json() for alpha in self.alphas},
        }


def measure_agreement(ratings: Iterable[Rating], variants: Iterable[str]) -> tuple[RaterAgreement, ...]:
    """Return the agreement within each variant, in the order of `variants`, and over all variants."""
    all_ratings = list(ratings)
    variant_agreements = [
        _measure_variant_agreement(variant, [rating for rating in all_ratings if rating.variant == variant])
        for variant in variants
    ]
    return (*variant_agreements, _measure_variant_agreement(None, all_ratings))


def _measure_variant_agreement(variant: str | None, ratings: Iterable[Rating]) -> RaterAgreement:
    table = GradeTable.from_ratings(ratings)
    correlations, undefined_reason = None, None
    try:
        row_names = [f"item {item!r} of {kind} {name!r}" for kind, name, item in table.targets]
        correlations = intraclass_correlations(table.rows, table.rater_count, row_names)
    except ValueError as error:
        undefined_reason = str(error)
    return RaterAgreement(
        variant=variant,
        targets=len(table.targets),
        raters=table.rater_count,
        grades=sum(map(len, table.rows)),
        icc=correlations,
        icc_undefined_reason=undefined_reason,
        alphas=tuple(krippendorff_alpha(table.rows, level) for level in MEASUREMENT_LEVELS),
    )


def cicchetti_label(value: float) -> str:
    """Return the name of a correlation on the scale of Cicchetti 1994 (page 286)."""
    names = ((0.75, "excellent"), (0.6, "good"), (0.4, "fair"))
    return next((name for minimum, name in names if value >= minimum), "poor")


def koo_li_label(value: float) -> str:
    """Return the name of a correlation on the scale of Koo & Li 2016 (page 161)."""
    if value > 0.9:  # noqa: PLR2004  a bound of the scale
        return "excellent"
    names = ((0.75, "good"), (0.5, "moderate"))
    return next((name for minimum, name in names if value >= minimum), "poor")


def intraclass_correlations(
    grades: GradeRows, rater_count: int | None = None, row_names: Sequence[str] | None = None
) -> IntraclassCorrelations:
    """Return ICC(1,1), ICC(A,1), ICC(C,1) and the k forms: McGraw & Wong 1996, tables 4, 7 and 8.

    Shrout & Fleiss 1979 call these forms (1,1), (2,1), (3,1), (1,k), (2,k), (3,k). 1: every target may have raters of
    its own. A: absolute agreement of the same raters. C: consistency, so that a rater may be stricter throughout. The k
    forms are about the mean of the k raters.

    `rater_count` is required if no row has a grade of every rater. `row_names` are the names of the rows in errors.
    Raises ValueError for a table with fewer than two rows or columns, for rows of different lengths, for a missing
    grade or a grade that is not finite, and for grades that are all the same.
    """
    table, scale = _complete_integer_table(grades, rater_count, row_names)
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
    one_way_forms = _forms("1", _Variances(k, msr, msw, Fraction(0)), n - 1, df_within, df_within)
    agreement_variances = _Variances(k, msr, mse, bias)
    agreement_df = _satterthwaite_df(agreement_variances, n, msc)
    agreement_forms = _forms("A", agreement_variances, n - 1, df_error, agreement_df)
    consistency_forms = _forms("C", _Variances(k, msr, mse, Fraction(0)), n - 1, df_error, df_error)
    return IntraclassCorrelations(
        targets=n,
        raters=k,
        mean_squares=MeanSquares(*(float(square / scale**2) for square in (msr, msc, mse, msw))),
        forms=tuple(chain.from_iterable(zip(one_way_forms, agreement_forms, consistency_forms, strict=True))),
    )


@dataclass(frozen=True, slots=True)
class _Variances:
    """The terms of the six forms: k raters, the mean squares of the F ratio, and the variance of the raters."""

    k: int
    between_targets: Fraction
    residual: Fraction
    """The denominator of F: the mean square of the error, or in the forms ICC(1,·) that within targets."""
    rater_bias: Fraction
    """Variance due to raters who are stricter than others; 0 in forms without a rater effect."""

    def correlations(self, q: Fraction) -> tuple[float | None, float | None]:
        """Return the single and the k form after a multiplication of `residual` and `rater_bias` by q.

        A form is None if its denominator is 0 or negative. At q = 1 the forms are the estimates. At the quantiles of F
        the forms are the ends of the confidence interval.
        """
        numerator = self.between_targets - q * self.residual
        single_denominator = self.between_targets + q * ((self.k - 1) * self.residual + self.k * self.rater_bias)
        mean_denominator = self.between_targets + q * self.rater_bias
        return _quotient(numerator, single_denominator), _quotient(numerator, mean_denominator)


def _quotient(numerator: Fraction, denominator: Fraction) -> float | None:
    return float(numerator / denominator) if denominator > 0 else None


def _satterthwaite_df(variances: _Variances, n: int, msc: Fraction) -> float:
    """Return the degrees of freedom of the interval of ICC(A,1): McGraw & Wong 1996, table 7, times 1 - ICC."""
    k, mse = variances.k, variances.residual
    df_error = (n - 1) * (k - 1)
    estimate = variances.correlations(Fraction(1))[0]
    rho = Fraction(0 if estimate is None else estimate)
    a, b = k * rho * msc, (n * (1 + (k - 1) * rho) - k * rho) * mse
    spread = a**2 / (k - 1) + b**2 / df_error
    return float((a + b) ** 2 / spread) if spread else float(df_error)


def _forms(
    letter: str, variances: _Variances, df1: int, df2: int, df2_interval: float
) -> tuple[IntraclassCorrelation, IntraclassCorrelation]:
    """Return the single and the k form of ICC(letter, ·), with the F test of `df1` and `df2` degrees of freedom."""
    # Imported here, because the import takes a seventh of a second and no other command needs SciPy.
    from scipy.special import fdtrc, fdtri  # noqa: PLC0415

    f, p = None, None
    if variances.residual:
        f = float(variances.between_targets / variances.residual)
        p = float(fdtrc(df1, df2, f))
    elif variances.between_targets:
        f, p = math.inf, 0.0
    quantiles = [float(fdtri(df1, df2_interval, share)) for share in (1 - _ALPHA / 2, _ALPHA / 2)]
    is_finite = all(map(math.isfinite, quantiles))
    estimates = variances.correlations(Fraction(1))
    lower_ends, upper_ends = [variances.correlations(Fraction(q)) if is_finite else (None, None) for q in quantiles]

    def form(index: Literal[0, 1]) -> IntraclassCorrelation:
        estimate, lower, upper = estimates[index], lower_ends[index], upper_ends[index]
        interval = None if estimate is None or lower is None or upper is None else (lower, upper)
        return IntraclassCorrelation(f"ICC({letter},{'1k'[index]})", estimate, f, df1, df2, p, interval)

    return form(0), form(1)


def _complete_integer_table(
    grades: GradeRows, rater_count: int | None, row_names: Sequence[str] | None
) -> tuple[list[list[int]], int]:
    """Return the grades as integers and the scale by which the grades were multiplied.

    Raises ValueError for a table that is too small or incomplete; see `intraclass_correlations`.
    """
    column_count = max(map(len, grades), default=0) if rater_count is None else rater_count
    if len(grades) < _MIN_RATERS_AND_TARGETS or column_count < _MIN_RATERS_AND_TARGETS:
        raise ValueError(
            f"{count_noun(len(grades), 'target')} and {count_noun(column_count, 'rater')}, expected at least "
            f"{_MIN_RATERS_AND_TARGETS} of each"
        )
    table = [[grade for grade in row if grade is not None] for row in grades]
    incomplete_rows = [index for index, row in enumerate(table) if len(row) != column_count]
    if incomplete_rows:
        first_index = incomplete_rows[0]
        name = f"row {first_index + 1}" if row_names is None else row_names[first_index]
        raise ValueError(
            f"incomplete: {len(incomplete_rows)} of {len(grades)} targets lack a grade, the first is {name} with "
            f"{len(table[first_index])} of {column_count}; expected a grade of every rater for every target"
        )
    integers, scale = _scale_to_integers(chain.from_iterable(table))
    return [[integers[grade] for grade in row] for row in table], scale


def _scale_to_integers(grades: Iterable[float]) -> tuple[dict[float, int], int]:
    """Return grade → integer, and the scale: an integer is the decimal that the grade prints as, times the scale."""
    decimals = {}
    for grade in set(grades):
        if not math.isfinite(grade):
            raise ValueError(f"a grade is {grade!r}, expected a finite number (None for a missing one)")
        decimals[grade] = Fraction(str(grade))
    scale = math.lcm(*(number.denominator for number in decimals.values()))
    return {grade: int(number * scale) for grade, number in decimals.items()}, scale


def krippendorff_alpha(grades: GradeRows, level: MeasurementLevel) -> Alpha:
    """Return alpha of a table with missing grades: 1 - observed / expected disagreement (Krippendorff 2011).

    A target with a single grade is left out, because the grade has no pair. Two grades c and k disagree by (c - k)² at
    the level interval, by 1 at the level nominal, and at the level ordinal by the squared difference of their mean
    ranks. So the ordinal alpha is the interval alpha of mean ranks. Rows may differ in length. Raises ValueError for a
    grade that is not finite.

    By hand, nominal: of 1 1, 1 2 and 2 2 one pair in three disagrees, of all 15 pairs nine do: 1 - (1/3)/(9/15) = 4/9.

    >>> krippendorff_alpha([[1, 1, None], [1, 2, None], [None, 2, 2], [None, 7, None]], "nominal").value
    0.4444444444444444
    """
    rows = [[grade for grade in row if grade is not None] for row in grades]
    units = [row for row in rows if len(row) >= _MIN_PAIRABLE_GRADES]
    pairable_grades = list(chain.from_iterable(units))
    n = len(pairable_grades)
    integers, _ = _scale_to_integers(pairable_grades)
    level_values = _double_mean_ranks(pairable_grades) if level == "ordinal" else integers
    disagreement = _sum_unequal_pairs if level == "nominal" else _sum_squared_differences
    expected = disagreement([level_values[grade] for grade in pairable_grades])
    observed = sum(
        (Fraction(disagreement([level_values[grade] for grade in row]), len(row) - 1) for row in units),
        start=Fraction(0),
    )
    alpha = float(1 - (n - 1) * observed / expected) if expected else None
    return Alpha(level, alpha, len(units), n)


def _double_mean_ranks(grades: Sequence[float]) -> dict[float, int]:
    """Return grade → twice the mean rank, from 0, of the grade among all grades."""
    double_ranks, lower_count = {}, 0
    for grade, count in sorted(Counter(grades).items()):
        double_ranks[grade] = 2 * lower_count + count
        lower_count += count
    return double_ranks


def _sum_squared_differences(values: Sequence[int]) -> int:
    """Return the sum of squared differences over all unordered pairs of values."""
    return len(values) * sum(value**2 for value in values) - sum(values) ** 2


def _sum_unequal_pairs(values: Sequence[int]) -> int:
    """Return twice the number of unordered pairs that differ.

    Alpha is not affected by the factor 2, because both the observed and the expected disagreement contain the factor.
    """
    return len(values) ** 2 - sum(count**2 for count in Counter(values).values())
