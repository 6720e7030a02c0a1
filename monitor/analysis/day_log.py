"""The days of an experiment: responses and the primary metric's mean per variant, with remarks on unusual days.

Remarks are for readers. No verdict depends on them. The store knows the traffic, the verdicts and the changes of the
experiment's declaration, but not the deployments of other programs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from typing import Any, Final, Literal, NamedTuple
from zoneinfo import ZoneInfo

from monitor.analysis.analysis_plan import AnalysisPlan
from monitor.analysis.decision_history import VerdictHistory
from monitor.analysis.summary import format_timestamp
from monitor.clock import DAY_MS, HOUR_MS
from monitor.config import ExperimentSettings, Population
from monitor.days import DayCalendar
from monitor.stats import (
    BAND_ALPHA,
    BAND_DAYS,
    MAX_DAYS_BEFORE,
    DayBand,
    ExperimentHistory,
    SampleMeanStatistic,
    VerdictState,
    format_changes,
    mean_unit,
    predict_day_mean,
)

RemarkKind = Literal[
    "partial", "left_band", "drop", "silence", "share_change", "variants_change", "criteria_change",
    "definition_change", "verdict_change",
]  # fmt: skip
MIN_RESPONSES_PER_DAY: Final = 100
"""Responses with a value from which on a day's mean is compared with other days and variants."""
_LEVEL_DAYS: Final = 3
"""After so many days in a row on the same side of the band, the level has changed, and the band begins anew."""
_DROP_DAYS: Final = 7
_DROP_SHARE: Final = 0.5
"""A day with a smaller share of the responses of the smallest of the `_DROP_DAYS` days before has a drop."""
_MIN_RESPONSES_DUE: Final = 100.0
"""Hours without a response are a silence if so many responses were due: those of a student come in bursts."""
_MAX_STATES: Final = 4
"""States of a day that are named in a remark."""
_CHANGE_KINDS: Final[Mapping[str, RemarkKind]] = {
    "criteria": "criteria_change",
    "variants": "variants_change",
    "definition": "definition_change",
}


class VariantDaySums(NamedTuple):
    """Sums of a variant over the responses of a day."""

    responses: int
    values: SampleMeanStatistic
    """Over the responses with a value of the primary metric, in the population of the verdict."""


@dataclass(frozen=True, slots=True)
class DayReading:
    """Stored sums of an experiment by day, and responses by hour."""

    days: Mapping[int, Mapping[str, VariantDaySums]]
    """Day, ascending and without gaps → variant → sums."""
    hourly_responses: Mapping[str, Mapping[int, int]]
    """Variant → hour since 1970 with responses, from the first day on → number of responses."""
    until_ms: int
    """The days and hours that end until this time are over."""
    is_ended: bool = False
    """Whether the experiment's events do not count any more after `until_ms`."""
    is_cut: bool = False
    """Whether the experiment had earlier days, which retention has deleted or which are too many to display."""


@dataclass(frozen=True, slots=True)
class DayRemark:
    """A remark on a day."""

    kind: RemarkKind
    text: str
    """A phrase without the variant."""
    variant: str | None = None
    """None for a remark on all variants."""
    at_ms: int | None = None
    """Time of a change; None for a remark on the whole day."""


@dataclass(frozen=True, slots=True)
class VariantDay:
    """A variant on a day."""

    responses: int
    count: int
    """Responses behind the mean: those with a value of the primary metric, in the population of the verdict."""
    mean: float | None
    standard_error: float | None
    """With the design effect of several responses per student; None if unknown."""
    band: DayBand | None
    """The usual mean and band from the days before; None with too few responses or days before."""

    @property
    def left_band(self) -> bool:
        """Whether the day's mean is outside its band."""
        return self.mean is not None and self.band is not None and not self.band.contains(self.mean)


@dataclass(frozen=True, slots=True)
class DayEntry:
    """A day of an experiment."""

    day: int
    """Days since 1970-01-01, see `DayCalendar`."""
    start_ms: int
    end_ms: int
    is_over: bool
    variants: Mapping[str, VariantDay]
    """The control first."""
    remarks: tuple[DayRemark, ...]

    @property
    def weekday(self) -> str:
        """English name of the day of the week.

        >>> DayEntry(20_786, 0, 0, True, {}, ()).weekday, DayEntry(20_786, 0, 0, True, {}, ()).date
        ('Sunday', '2026-11-29')
        """
        return f"{self._midnight:%A}"

    @property
    def date(self) -> str:
        """Date in ISO 8601."""
        return self._midnight.date().isoformat()

    @property
    def date_text(self) -> str:
        """Date for readers, without the year, such as "24 November"."""
        return f"{self._midnight.day} {self._midnight:%B}"

    @property
    def short_date_text(self) -> str:
        """Date for tables, such as "24 Nov"."""
        return f"{self._midnight.day} {self._midnight:%b}"

    @property
    def _midnight(self) -> datetime:
        return datetime.fromtimestamp(self.day * DAY_MS // 1000, UTC)


@dataclass(frozen=True, slots=True)
class DayLog:
    """The days of an experiment, oldest first."""

    primary: str
    zone: str
    """Name of the time zone whose dates are the days."""
    is_cut: bool
    """Whether the experiment had earlier days."""
    days: tuple[DayEntry, ...]
    population: Population = "rated"
    """Responses behind the means of a ranking metric; an answer metric is over the responses with a value."""

    def to_json(self) -> dict[str, Any]:
        """Return the days as JSON, with times in ISO 8601."""
        return {
            "metric": self.primary,
            "zone": self.zone,
            "earlier_days_missing": self.is_cut,
            "days": [_day_json(entry) for entry in self.days],
        }


def _day_json(entry: DayEntry) -> dict[str, Any]:
    return {
        "date": entry.date,
        "weekday": entry.weekday,
        "start": format_timestamp(entry.start_ms),
        "end": format_timestamp(entry.end_ms),
        "over": entry.is_over,
        "variants": {
            name: {
                "responses": variant.responses,
                "count": variant.count,
                "mean": variant.mean,
                "standard_error": variant.standard_error,
                "band": None if variant.band is None else variant.band._asdict(),
                "left_band": variant.left_band,
            }
            for name, variant in entry.variants.items()
        },
        "remarks": [
            {
                "kind": remark.kind,
                "variant": remark.variant,
                "at": None if remark.at_ms is None else format_timestamp(remark.at_ms),
                "text": remark.text,
            }
            for remark in entry.remarks
        ],
    }


def build_day_log(
    experiment: ExperimentSettings,
    reading: DayReading,
    declaration: ExperimentHistory,
    verdicts: VerdictHistory,
    state_titles: Mapping[VerdictState, str],
    design_effects: Mapping[str, float | None],
) -> DayLog:
    """Return the days of a reading with remarks.

    `state_titles` has the words for states in remarks; `design_effects` has the design effect of each variant.
    """
    calendar, names = experiment.calendar, _control_first(experiment)
    over = [day for day in reading.days if calendar.end_ms(day) <= reading.until_ms]
    bands = {name: _find_bands(experiment, {day: reading.days[day][name].values for day in over}) for name in names}
    total = sum((Counter(counts) for counts in reading.hourly_responses.values()), Counter[int]())
    entries = []
    for day, sums in reading.days.items():
        start_ms, end_ms = calendar.start_ms(day), calendar.end_ms(day)
        variants = {name: _summarize(sums[name], bands[name].get(day), design_effects.get(name)) for name in names}
        remarks = [
            *_partial_remarks(experiment, reading, day),
            *_band_remarks(experiment, variants),
            *(_drop_remarks(experiment, reading, day) if day in over else ()),
            *_silence_remarks(experiment, reading, total, day),
            *_change_remarks(experiment, declaration, start_ms, min(end_ms, reading.until_ms + 1)),
            *_verdict_remarks(verdicts, state_titles, start_ms, min(end_ms, reading.until_ms + 1)),
        ]
        entries.append(DayEntry(day, start_ms, end_ms, day in over, variants, tuple(remarks)))
    population = experiment.population_of(experiment.primary)
    return DayLog(experiment.primary, experiment.day_zone, reading.is_cut, tuple(entries), population)


def _control_first(experiment: ExperimentSettings) -> list[str]:
    return sorted(experiment.variants, key=lambda name: name != experiment.control)


def _summarize(sums: VariantDaySums, band: DayBand | None, design_effect: float | None) -> VariantDay:
    estimate = sums.values.estimate()
    has_error = estimate.variance is not None and design_effect is not None
    error = math.sqrt((estimate.variance or 0.0) * (design_effect or 0.0)) if has_error else None
    return VariantDay(sums.responses, sums.values.units, estimate.mean, error, band)


def _find_bands(experiment: ExperimentSettings, days: Mapping[int, SampleMeanStatistic]) -> dict[int, DayBand]:
    """Return the band of each day that has enough responses and enough days before.

    A day outside of its band is not in the bands of later days, so a broken day does not hide the next one. After
    `_LEVEL_DAYS` days in a row on the same side, the level has changed, and only these days remain. Bands are within
    the range of the metric.
    """
    plan, alpha = AnalysisPlan(experiment), BAND_ALPHA / BAND_DAYS / len(experiment.variants)
    least, most = plan.min_means[experiment.primary], plan.max_means[experiment.primary]
    bands, before, outside = {}, list[SampleMeanStatistic](), list[SampleMeanStatistic]()
    last_side = 0.0
    for day, values in days.items():
        if values.units < MIN_RESPONSES_PER_DAY:
            continue
        band = predict_day_mean(before[-MAX_DAYS_BEFORE:], values, alpha)
        mean = values.total / values.units
        if band is not None:
            bands[day] = band.clip(least, most)
        if band is None or band.contains(mean):
            before.append(values)
            outside = []
            continue
        side = math.copysign(1.0, mean - band.usual)
        outside = [*outside, values] if side == last_side else [values]
        last_side = side
        if len(outside) == _LEVEL_DAYS:
            before, outside = outside, []
    return bands


def _partial_remarks(experiment: ExperimentSettings, reading: DayReading, day: int) -> Iterator[DayRemark]:
    """Yield a remark if the experiment begins on the day, or if the day is not over."""
    hours = [hour for counts in reading.hourly_responses.values() for hour in counts]
    is_first = day == next(iter(reading.days)) and not reading.is_cut
    if is_first and hours and min(hours) * HOUR_MS > experiment.calendar.start_ms(day):
        yield DayRemark("partial", f"first day, from {_clock_time(experiment, min(hours) * HOUR_MS)}")
    if experiment.calendar.end_ms(day) > reading.until_ms:
        time = _clock_time(experiment, reading.until_ms)
        text = f"last day, until {time}" if reading.is_ended else f"not over yet: until {time}"
        yield DayRemark("partial", text)


def _band_remarks(experiment: ExperimentSettings, variants: Mapping[str, VariantDay]) -> Iterator[DayRemark]:
    primary = experiment.primary
    for name, variant in variants.items():
        if variant.left_band and variant.mean is not None and variant.band is not None:
            mean, lower, upper = format_changes(primary, [variant.mean, variant.band.lower, variant.band.upper])
            unit = mean_unit(primary, experiment.texts)
            direction = "below" if variant.mean < variant.band.usual else "above"
            text = f"mean {mean}{unit}, {direction} its usual band of {lower} to {upper}{unit}"
            yield DayRemark("left_band", text, name)


def _drop_remarks(experiment: ExperimentSettings, reading: DayReading, day: int) -> list[DayRemark]:
    """Return remarks on variants with less than half of the responses of any of the seven days before.

    After a smaller share, fewer responses are due. A larger share does not add to the responses that are due: returning
    students keep their variant, so the responses of a larger share grow over days. The experiment's first day does not
    count, because it may be incomplete.
    """
    days = list(reading.days)
    before = [earlier for earlier in range(day - _DROP_DAYS, day) if earlier in reading.days]
    if len(before) < _DROP_DAYS or (before[0] == days[0] and not reading.is_cut):
        return []
    drops = []
    for name in _control_first(experiment):
        share = _share(experiment, name, day)
        least, scale = min(
            (reading.days[earlier][name].responses * scale, scale)
            for earlier in before
            for scale in (min(share / (_share(experiment, name, earlier) or math.inf), 1.0),)
        )
        responses = reading.days[day][name].responses
        if least >= MIN_RESPONSES_PER_DAY and responses < _DROP_SHARE * least:
            due = (
                f"there were at least {_group_digits(least)} on each of the {_DROP_DAYS} days before"
                if scale == 1.0
                else f"at least {_group_digits(least)} were due at the smaller share of this day"
            )
            text = f"only {_group_digits(responses)} responses; {due}"
            drops.append(DayRemark("drop", text, name))
    return drops


def _share(experiment: ExperimentSettings, variant: str, day: int) -> float:
    """Return a variant's smallest intended share at the beginning and at the end of a day."""
    calendar = experiment.calendar
    moments = (calendar.start_ms(day), calendar.end_ms(day) - 1)
    return min(experiment.intended_shares(moment).get(variant, 0.0) for moment in moments)


def _silence_remarks(
    experiment: ExperimentSettings, reading: DayReading, total: Mapping[int, int], day: int
) -> Iterator[DayRemark]:
    """Yield remarks on hours of the day without a response of any variant, then of single variants.

    `total` has the responses of all variants by hour.
    """
    calendar = experiment.calendar
    first_hour = -(-calendar.start_ms(day) // HOUR_MS)
    hours = range(first_hour, min(calendar.end_ms(day), reading.until_ms) // HOUR_MS)
    counts, hours_back = reading.hourly_responses, _hours_back(calendar, day)
    silent_hours: set[int] = set()
    for silence in _empty_runs(total, hours):
        due = _usual_responses(total, silence, hours_back)
        if due >= _MIN_RESPONSES_DUE:
            silent_hours.update(silence)
            yield DayRemark("silence", _describe_silence(experiment, silence, due))
    for name in _control_first(experiment):
        share = _share(experiment, name, day)
        other_share = sum(_share(experiment, other, day) for other in counts if other != name)
        for silence in _empty_runs(counts.get(name, {}), hours):
            if not share or silent_hours.issuperset(silence):
                continue
            of_others = sum(total.get(hour, 0) for hour in silence) * share / other_share if other_share else 0.0
            due = max(of_others, _usual_responses(counts.get(name, {}), silence, hours_back))
            if due >= _MIN_RESPONSES_DUE:
                yield DayRemark("silence", _describe_silence(experiment, silence, due), name)


def _empty_runs(counts: Mapping[int, int], hours: range) -> Iterator[range]:
    """Yield the longest runs of hours without responses."""
    for is_empty, run in groupby(hours, key=lambda hour: not counts.get(hour)):
        run_hours = list(run)
        if is_empty:
            yield range(run_hours[0], run_hours[-1] + 1)


def _hours_back(calendar: DayCalendar, day: int) -> list[int]:
    """Return by how many hours the same time of the clock was earlier on each of the seven days before, newest first.

    On a day on which the clock is changed, this is so from the change on.
    """
    return [(calendar.end_ms(day) - calendar.end_ms(day - days)) // HOUR_MS for days in range(1, 8)]


def _usual_responses(counts: Mapping[int, int], hours: range, hours_back: Sequence[int]) -> float:
    """Return the usual responses of hours: those a week before, or the mean of the seven days before if smaller.

    Hours that are always quiet, such as nights and weekends, have none.
    """
    by_day = [sum(counts.get(hour - back, 0) for hour in hours) for back in hours_back]
    return min(by_day[-1], sum(by_day) / len(by_day))


def _describe_silence(experiment: ExperimentSettings, hours: range, due: float) -> str:
    end_ms = hours.stop * HOUR_MS
    is_day_end = experiment.calendar.is_start(end_ms)
    end = "24:00" if is_day_end else _clock_time(experiment, end_ms)
    start = _clock_time(experiment, hours.start * HOUR_MS)
    return f"no responses from {start} to {end}; about {_group_digits(due)} were due"


def _change_remarks(
    experiment: ExperimentSettings, declaration: ExperimentHistory, start_ms: int, end_ms: int
) -> Iterator[DayRemark]:
    """Yield remarks on new shares and on changes of the declaration in a period."""
    shares = experiment.variants
    for allocation in experiment.decision.allocations:
        if start_ms <= allocation.from_ms < end_ms:
            names = [name for name in experiment.variants if shares.get(name) or allocation.shares.get(name)]
            old, new = (
                ", ".join(f"{period_shares.get(name, 0.0):.4g}" for name in names)
                for period_shares in (shares, allocation.shares)
            )
            labels = ", ".join(map(experiment.texts.variant_label, names))
            yield DayRemark("share_change", f"shares of {labels}: {old} → {new}", at_ms=allocation.from_ms)
        shares = allocation.shares
    for change in declaration.changes:
        kind = _CHANGE_KINDS.get(change.kind)
        if kind is not None and start_ms <= change.at_ms < end_ms:
            yield DayRemark(kind, change.text, at_ms=change.at_ms)


def _verdict_remarks(
    verdicts: VerdictHistory, titles: Mapping[VerdictState, str], start_ms: int, end_ms: int
) -> Iterator[DayRemark]:
    """Yield a remark per treatment whose verdict changed in a period, with all states of the period."""
    for treatment, periods in verdicts.items():
        changes = [number for number, period in enumerate(periods) if number and start_ms <= period.since_ms < end_ms]
        if changes:
            states = [periods[number].state for number in (changes[0] - 1, *changes)]
            text = f"verdict: {_join_states([titles[state] for state in states])}"
            yield DayRemark("verdict_change", text, treatment, periods[changes[-1]].since_ms)


def _join_states(titles: Sequence[str]) -> str:
    """Return the titles with arrows; of many, the first and the last.

    >>> _join_states(["Keep running", "Ship"])
    'Keep running → Ship'
    """
    shown = titles if len(titles) <= _MAX_STATES else (titles[0], "…", titles[-1])
    return " → ".join(shown)


def _group_digits(number: float) -> str:
    """Return a rounded number with narrow spaces between groups of three digits."""
    return f"{number:,.0f}".replace(",", "\u202f")


def _clock_time(experiment: ExperimentSettings, at_ms: int) -> str:
    """Return the time on the clock of the experiment's zone."""
    return f"{datetime.fromtimestamp(at_ms // 1000, ZoneInfo(experiment.day_zone)):%H:%M}"
