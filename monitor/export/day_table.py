"""The days of an experiment for readers: a table, the marks of charts, and a sentence for each day out of its band."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from monitor.analysis import (
    MIN_RESPONSES_PER_DAY,
    DayEntry,
    DayLog,
    DayRemark,
    ExperimentSummary,
    RemarkKind,
    VariantDay,
    VerdictHistory,
    build_day_log,
)
from monitor.config import NO_TEXTS, DisplayTexts, is_proportion
from monitor.export.presentation import ABSENT_TEXT, STATE_TITLES, format_count, format_counted
from monitor.state import StoreReader
from monitor.stats import (
    BAND_ALPHA,
    BAND_DAYS,
    MIN_DAYS_BEFORE,
    DayBand,
    format_changes,
    format_level,
    mean_unit,
    metric_label,
)

NEWEST_DAYS: Final = 14
"""Days of the table that are displayed without opening the earlier ones."""
_MAX_SENTENCES: Final = 3
_PER_CENT: Final = 100
_SIGNIFICANT_DIGITS: Final = 3
_MAX_DECIMALS: Final = 4
_SMALLEST_REFERENCE: Final = 5e-5
"""A relative difference from a smaller mean, which is displayed as 0, would be misleading."""
_UNUSUAL_KINDS: Final[frozenset[RemarkKind]] = frozenset({"left_band", "drop", "silence"})


@dataclass(frozen=True, slots=True)
class DayCell:
    """A variant on a day, as texts."""

    mean: str
    """A dash if the mean is undefined or over too few students to display."""
    difference: str
    """Relative difference from the control (of shares: in points); empty for the control and over few responses."""
    count: str
    """Responses behind the mean, of all responses, such as "n = 34 of 78"."""
    is_uncertain: bool
    """Whether the mean is over few responses."""
    is_unusual: bool
    """Whether the mean is outside its band."""


class RemarkText(NamedTuple):
    """A remark of a day."""

    kind: RemarkKind
    text: str
    """Names the variant, if the remark is on a single one."""
    is_unusual: bool
    """Whether the remark is on something unexpected, and not on a change or an incomplete day."""


@dataclass(frozen=True, slots=True)
class DayRow:
    """A row of the table of days."""

    weekday: str
    date_text: str
    """Such as "24 Nov"."""
    date: str
    """In ISO 8601."""
    cells: tuple[DayCell, ...]
    """One per variant, the control first."""
    remarks: tuple[RemarkText, ...]
    is_unusual: bool
    """Whether anything unexpected happened."""


@dataclass(frozen=True, slots=True)
class DayTable:
    """The days of an experiment, newest first."""

    metric: str
    """Label of the primary metric."""
    variants: tuple[str, ...]
    """Labels, the control first."""
    newest_rows: tuple[DayRow, ...]
    earlier_rows: tuple[DayRow, ...]
    sentences: tuple[str, ...]
    """Days out of their band, worst first, then the number of further ones."""
    notes: tuple[str, ...]


class DayMark(NamedTuple):
    """A mark of a chart with a time axis."""

    time_ms: int
    """Time of a change, or the middle of an unusual day."""
    label: str
    kind: RemarkKind


def read_day_log(
    reader: StoreReader, experiment: ExperimentSummary, verdicts: VerdictHistory, as_of_ms: int | None = None
) -> DayLog:
    """Return the days of an experiment with remarks; with `as_of_ms`, up to then.

    The experiment is of a summary of the same time, and the history of verdicts is that of this summary. Raises
    `UnknownExperiment`, `StoreUnavailable` and `UnusableStore`.
    """
    design_effects = {
        name: variant.metrics[experiment.primary].design_effect for name, variant in experiment.variants.items()
    }
    settings = reader.find_experiment(experiment.name)
    reading = reader.read_days(experiment, as_of_ms)
    return build_day_log(settings, reading, experiment.history, verdicts, STATE_TITLES, design_effects)


def build_day_table(log: DayLog, experiment: ExperimentSummary, min_students: int = 1) -> DayTable:
    """Return the table of a log's days; means over fewer than `min_students` students are dashes.

    The students of a day are unknown. So a mean is displayed from `min_students` times the mean number of responses per
    student on.
    """
    min_count = _min_count(experiment, min_students)
    rows = tuple(_day_row(log.primary, entry, min_count, experiment.texts) for entry in reversed(log.days))
    return DayTable(
        metric=metric_label(log.primary, experiment.texts),
        variants=tuple(experiment.texts.variant_label(name) for name, _ in experiment.variants_control_first()),
        newest_rows=rows[:NEWEST_DAYS],
        earlier_rows=rows[NEWEST_DAYS:],
        sentences=tuple(describe_unusual_days(log, experiment, min_students)),
        notes=tuple(_notes(log, experiment.unit_noun)),
    )


def describe_unusual_days(log: DayLog, experiment: ExperimentSummary, min_students: int = 1) -> list[str]:
    """Return a sentence for each period with a mean out of its band, oldest first, and the number of further days.

    A period is of consecutive days on the same side of the band. Of more than three periods, the worst are stated:
    means that are worse for students come first, then the larger deviations relative to the band.
    """
    harm_sign = 1 if log.primary in experiment.lower_is_better else -1
    ranking_metrics = {metric.name for metric in experiment.metric_specs if metric.is_ranking}
    noun = "rated response" if log.primary in ranking_metrics and log.population == "rated" else "response"
    periods = _find_unusual_periods(log, _min_count(experiment, min_students))
    periods.sort(key=lambda period: (harm_sign * period.worst_deviation < 0, -abs(period.worst_deviation)))
    stated = sorted(periods[:_MAX_SENTENCES], key=lambda period: period.days[0].day)
    sentences = [_describe_unusual_period(log.primary, experiment.texts, period, noun) for period in stated]
    stated_days = {entry.day for period in stated for entry in period.days}
    further_days = {entry.day for period in periods for entry in period.days} - stated_days
    if further_days:
        verb = "was" if len(further_days) == 1 else "were"
        sentences.append(f"{format_counted(len(further_days), 'more day')} {verb} outside the usual band.")
    return sentences


@dataclass(frozen=True, slots=True)
class _UnusualPeriod:
    """Consecutive days on which the mean of a variant was on the same side of its band."""

    variant: str
    days: tuple[DayEntry, ...]
    deviations: tuple[float, ...]
    """By day: see `_relative_deviation`."""

    @property
    def worst_deviation(self) -> float:
        """The deviation that is farthest from 0."""
        return max(self.deviations, key=abs)


def _find_unusual_periods(log: DayLog, min_count: float) -> list[_UnusualPeriod]:
    """Return the periods of all variants; days with fewer than `min_count` values are left out."""
    periods: list[_UnusualPeriod] = []
    newest_periods: dict[str, int] = {}
    for entry in log.days:
        for name, variant in entry.variants.items():
            if not variant.left_band or variant.mean is None or variant.band is None or variant.count < min_count:
                continue
            deviation = _relative_deviation(variant.mean, variant.band)
            index = newest_periods.get(name)
            before = None if index is None else periods[index]
            if (
                index is not None
                and before is not None
                and before.days[-1].day == entry.day - 1
                and (before.deviations[-1] < 0) == (deviation < 0)
            ):
                periods[index] = _UnusualPeriod(name, (*before.days, entry), (*before.deviations, deviation))
            else:
                newest_periods[name] = len(periods)
                periods.append(_UnusualPeriod(name, (entry,), (deviation,)))
    return periods


def _relative_deviation(mean: float, band: DayBand) -> float:
    """Return the deviation of a mean outside a band, relative to the band's width on the side of the mean.

    >>> _relative_deviation(0.0, DayBand(4.0, 2.0, 5.0)), _relative_deviation(5.0, DayBand(1.0, 0.0, 3.0))
    (-2.0, 2.0)
    """
    half_width = band.usual - band.lower if mean < band.usual else band.upper - band.usual
    return (mean - band.usual) / (half_width or 1.0)


def _describe_unusual_period(metric: str, texts: DisplayTexts, period: _UnusualPeriod, noun: str) -> str:
    """Return a sentence with the days, their mean, the usual mean of the first day, and the number of responses."""
    days = [entry.variants[period.variant] for entry in period.days]
    band = days[0].band
    assert band is not None
    count = sum(day.count for day in days)
    period_mean = sum((day.mean or 0.0) * day.count for day in days) / count
    mean, usual = format_changes(metric, [period_mean, band.usual])
    change = _format_difference(metric, period_mean, band.usual)
    unit, label = mean_unit(metric, texts), metric_label(metric, texts)
    quantity = f"mean {label}" if label == metric else label
    subject = f"{texts.variant_label(period.variant)}'s {quantity}"
    instead = f"instead of the usual {usual}{unit}{f' ({change})' if change else ''}"
    first, last = (f"{entry.weekday} {entry.date_text}" for entry in (period.days[0], period.days[-1]))
    time = f"On {first}" if len(days) == 1 else f"From {first} to {last}"
    return f"{time}, {subject} was {mean}{unit} {instead}, over {format_counted(count, noun)}."


def read_days_json(reader: StoreReader, experiment: ExperimentSummary, as_of_ms: int | None) -> dict[str, Any]:
    """Return the days of an experiment as JSON, with the sentences on unusual days.

    Raises `UnknownExperiment`, `StoreUnavailable` and `UnusableStore`.
    """
    log = read_day_log(reader, experiment, reader.read_verdict_history(experiment), as_of_ms)
    return {**log.to_json(), "sentences": describe_unusual_days(log, experiment)}


def list_day_marks(
    log: DayLog, experiment: ExperimentSummary, min_students: int = 1, variants: Collection[str] | None = None
) -> list[DayMark]:
    """Return the marks of changes and of unusual days, by ascending time; incomplete days have no mark.

    With `variants`, remarks on single other variants are left out. Means over fewer than `min_students` students have
    no mark, see `build_day_table`. Labels are short: the table of days has the numbers.
    """
    min_count = _min_count(experiment, min_students)
    marks = [
        DayMark(
            (entry.start_ms + entry.end_ms) // 2 if remark.at_ms is None else remark.at_ms,
            _name_variant(_shorten(remark), experiment.texts),
            remark.kind,
        )
        for entry in log.days
        for remark in _displayed_remarks(entry, min_count)
        if remark.kind != "partial" and (variants is None or remark.variant is None or remark.variant in variants)
    ]
    return sorted(marks)


def _shorten(remark: DayRemark) -> DayRemark:
    """Return the remark without numbers if it is on a mean."""
    return replace(remark, text="mean outside its band") if remark.kind == "left_band" else remark


def _name_variant(remark: DayRemark, texts: DisplayTexts) -> str:
    """Return the text of a remark, after the label of the variant if the remark is on a single one."""
    return remark.text if remark.variant is None else f"{texts.variant_label(remark.variant)}: {remark.text}"


def _min_count(experiment: ExperimentSummary, min_students: int) -> float:
    """Return the number of responses from which on a mean is displayed."""
    students = sum(variant.students + variant.responses_without_user for variant in experiment.variants.values())
    responses = sum(variant.responses for variant in experiment.variants.values())
    return min_students * max(responses / students, 1.0) if min_students > 1 and students else 1.0


def _day_row(metric: str, entry: DayEntry, min_count: float, texts: DisplayTexts) -> DayRow:
    control = next(iter(entry.variants.values()))
    remarks = tuple(
        RemarkText(
            remark.kind,
            _name_variant(remark, texts),
            remark.kind in _UNUSUAL_KINDS,
        )
        for remark in _displayed_remarks(entry, min_count)
    )
    cells = tuple(
        _day_cell(metric, texts, variant, None if variant is control else control, min_count)
        for variant in entry.variants.values()
    )
    is_unusual = any(remark.is_unusual for remark in remarks)
    return DayRow(entry.weekday, entry.short_date_text, entry.date, cells, remarks, is_unusual)


def _displayed_remarks(entry: DayEntry, min_count: float) -> Iterator[DayRemark]:
    """Yield the remarks of a day without those that state a mean over fewer than `min_count` responses."""
    for remark in entry.remarks:
        if remark.kind != "left_band" or remark.variant is None or entry.variants[remark.variant].count >= min_count:
            yield remark


def _day_cell(
    metric: str, texts: DisplayTexts, variant: VariantDay, control: VariantDay | None, min_count: float
) -> DayCell:
    """Return the cell of a variant; with both means displayed, the difference from the control."""
    is_uncertain, is_hidden = variant.count < MIN_RESPONSES_PER_DAY, variant.count < min_count
    difference = ""
    if control is not None and min(variant.count, control.count) >= max(MIN_RESPONSES_PER_DAY, min_count):
        assert variant.mean is not None
        assert control.mean is not None
        difference = _format_difference(metric, variant.mean, control.mean)
    return DayCell(
        mean=ABSENT_TEXT if variant.mean is None or is_hidden else _format_level(metric, variant.mean, texts),
        difference=difference,
        count=_count_text(variant),
        is_uncertain=is_uncertain,
        is_unusual=variant.left_band and not is_hidden,
    )


def _count_text(variant: VariantDay) -> str:
    """Return the number of responses with a value, and of all responses if that differs."""
    count = f"n = {format_count(variant.count)}"
    return count if variant.count == variant.responses else f"{count} of {format_count(variant.responses)}"


def _format_level(metric: str, mean: float, texts: DisplayTexts = NO_TEXTS) -> str:
    """Return a mean with its unit: three significant digits, at most four decimals; shares have one decimal.

    >>> [_format_level("dcg@5", mean) for mean in (2.5, 99.96, 0.01234, 0.00001234, -0.5)]
    ['2.50', '100', '0.0123', '0.0000', '−0.500']
    >>> _format_level("latency_ms", 1234.5).replace("\u202f", " "), _format_level("empty", 0.0123)[:3]
    ('1 234 ms', '1.2')
    """
    level = 100 * mean if is_proportion(metric) else mean
    decimals = 1 if is_proportion(metric) else _count_decimals(level)
    number = f"{round(level, decimals) + 0.0:,.{decimals}f}".replace(",", "\u202f").replace("-", "\u2212")
    return f"{number}{mean_unit(metric, texts)}"


def _count_decimals(level: float) -> int:
    """Return the decimals of a number that is rounded to the significant digits."""
    magnitude = math.floor(math.log10(abs(float(f"{level:.{_SIGNIFICANT_DIGITS}g}")))) if level else 0
    return min(max(_SIGNIFICANT_DIGITS - 1 - magnitude, 0), _MAX_DECIMALS)


def _format_difference(metric: str, mean: float, reference: float) -> str:
    """Return a relative difference with a sign; of shares the difference in points. Empty for a reference of 0."""
    if is_proportion(metric):
        (points,) = format_changes(metric, [mean - reference], sign=True)
        return f"{points} points"
    if abs(reference) < _SMALLEST_REFERENCE:
        return ""
    per_cent = round(_PER_CENT * (mean - reference) / abs(reference))
    return f"{per_cent:{'+' if per_cent else ''}d}\u202f%".replace("-", "\u2212")


def _notes(log: DayLog, unit_noun: str) -> Iterator[str]:
    """Yield sentences on the band, the days and what is missing."""
    if not log.days:
        yield "There is no day with responses yet, or every half-life is too long for means of days."
        return
    yield (
        f"A mean is marked if it is outside the band of the days before, of which at least {MIN_DAYS_BEFORE} are "
        f"needed. If nothing changes, {BAND_DAYS} days have no mark with a probability of about "
        f"{format_level(BAND_ALPHA)}. No verdict depends on marks."
    )
    yield (
        f"A day's mean is over the responses of the day. The effect that is judged is over {unit_noun}s with complete "
        "exposure windows. n is the number of responses with a value, of all responses. Below "
        f"{MIN_RESPONSES_PER_DAY}, no difference is displayed."
    )
    yield f"Days are dates of {log.zone}." + (" Earlier days are not available." if log.is_cut else "")
