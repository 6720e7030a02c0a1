"""The remarks on the days of an experiment: which days are unusual, and which are not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from monitor.analysis import (
    DayLog,
    DayReading,
    RemarkKind,
    StatePeriod,
    VariantDaySums,
    VerdictHistory,
    build_day_log,
)
from monitor.clock import HOUR_MS
from monitor.config import AllocationSettings, DecisionSettings, ExperimentChange, ExperimentSettings, MetricSpec
from monitor.days import day_calendar
from monitor.export.presentation import STATE_TITLES
from monitor.stats import ExperimentHistory, SampleMeanStatistic
from tests.support.streams import EXPERIMENT

FIRST_DAY = 20_767
"""2026-11-10, a Tuesday."""
DAYS = 18
BROKEN_DAY = FIRST_DAY + 14
"""2026-11-24, a Tuesday."""
VARIANTS = ("control", "treatment")
Means = Mapping[tuple[int, str], float]
Counts = Mapping[tuple[int, str], int]


def _sums(mean: float, count: int, deviation: float = 1.3, responses: int | None = None) -> VariantDaySums:
    statistic = SampleMeanStatistic(count, count * mean, count * mean**2 + max(count - 1, 0) * deviation**2)
    return VariantDaySums(3 * count if responses is None else responses, statistic)


def _reading(
    zone: str = "UTC",
    days: int = DAYS,
    means: Means | None = None,
    counts: Counts | None = None,
    usual_count: int = 1200,
) -> DayReading:
    """Return days with a slightly varying mean near 2, from 6 to 22 o'clock; the last day is over."""
    chance, calendar = np.random.default_rng(5), day_calendar(zone)
    sums: dict[int, dict[str, VariantDaySums]] = {}
    hourly: dict[str, dict[int, int]] = {name: {} for name in VARIANTS}
    for day in range(FIRST_DAY, FIRST_DAY + days):
        sums[day] = {}
        for name in VARIANTS:
            count = (counts or {}).get((day, name), usual_count)
            mean = (means or {}).get((day, name), 2.0 + 0.04 * float(chance.normal()))
            sums[day][name] = _sums(mean, count)
            for hour in range(6, 22):
                if count:
                    hourly[name][calendar.hour_start_ms(day, hour) // HOUR_MS] = 3 * count // 16
    return DayReading(sums, hourly, calendar.start_ms(FIRST_DAY + days))


def _log(
    reading: DayReading,
    experiment: ExperimentSettings = EXPERIMENT,
    declaration: ExperimentHistory | None = None,
    verdicts: VerdictHistory | None = None,
) -> DayLog:
    return build_day_log(
        experiment,
        reading,
        declaration or ExperimentHistory(),
        verdicts or {},
        STATE_TITLES,
        dict.fromkeys(VARIANTS, 1.5),
    )


def _remarks(log: DayLog) -> list[tuple[int, RemarkKind, str | None]]:
    """Return (days after the first, kind, variant) of all remarks, except those on incomplete days."""
    return [
        (entry.day - FIRST_DAY, remark.kind, remark.variant)
        for entry in log.days
        for remark in entry.remarks
        if remark.kind != "partial"
    ]


def test_a_broken_tuesday_among_18_days_is_the_only_remark() -> None:
    """The mean falls from 2.0 to 1.2, for one variant; the days after are compared with the intact days."""
    log = _log(_reading(means={(BROKEN_DAY, "treatment"): 1.2}))
    assert _remarks(log) == [(14, "left_band", "treatment")]
    (entry,) = (entry for entry in log.days if entry.day == BROKEN_DAY)
    assert (entry.weekday, entry.date, entry.date_text) == ("Tuesday", "2026-11-24", "24 November")
    (remark,) = entry.remarks
    assert "below its usual band" in remark.text
    assert entry.variants["treatment"].left_band
    assert not entry.variants["control"].left_band


def test_a_second_broken_day_is_found_as_well() -> None:
    """A day out of its band does not widen the bands of later days."""
    means = {(BROKEN_DAY, "treatment"): 1.2, (BROKEN_DAY + 2, "treatment"): 1.3}
    assert _remarks(_log(_reading(means=means))) == [(14, "left_band", "treatment"), (16, "left_band", "treatment")]


def test_a_new_level_is_remarked_for_three_days_only() -> None:
    """Then the days since the change are the usual ones."""
    means = {(FIRST_DAY + number, "treatment"): 2.6 + 0.02 * (number % 3) for number in range(12, 30)}
    remarks = _remarks(_log(_reading(days=30, means=means)))
    assert remarks == [(12, "left_band", "treatment"), (13, "left_band", "treatment"), (14, "left_band", "treatment")]


def test_growth_and_other_weekends_give_no_remark() -> None:
    """Weekends have a third of the responses and a mean that is 5 % lower, and the traffic doubles within a month."""
    means, counts = {}, {}
    chance = np.random.default_rng(7)
    for day in range(FIRST_DAY, FIRST_DAY + 28):
        is_weekend = (day + 3) % 7 >= 5
        for name in VARIANTS:
            means[day, name] = (1.9 if is_weekend else 2.0) + 0.003 * (day - FIRST_DAY) + 0.02 * chance.normal()
            counts[day, name] = int((400 if is_weekend else 1200) * (1 + (day - FIRST_DAY) / 28))
    assert _remarks(_log(_reading(days=28, means=means, counts=counts))) == []


def test_small_samples_give_no_remark() -> None:
    """Below a hundred responses, a day's mean is not judged."""
    log = _log(_reading(means={(BROKEN_DAY, "treatment"): 0.2}, usual_count=99))
    assert _remarks(log) == []
    assert all(variant.band is None for entry in log.days for variant in entry.variants.values())


@pytest.mark.parametrize("share", [0.05, 0.95])
def test_bands_are_within_the_range_of_the_metric(share: float) -> None:
    """A rare share that rises by half of all responses, and a frequent share that falls by so much, are remarked."""
    spec = MetricSpec("share:liked", "share", kind="liked")
    experiment = replace(EXPERIMENT, metrics=(spec,), primary=spec.name)
    reading, changed = _reading(), share + (0.5 if share < 0.5 else -0.5)
    days = {
        day: {name: _liked(changed if (day, name) == (BROKEN_DAY, "treatment") else share) for name in by_variant}
        for day, by_variant in reading.days.items()
    }
    log = _log(replace(reading, days=days), experiment)
    bands = [variant.band for entry in log.days for variant in entry.variants.values() if variant.band is not None]
    assert len(bands) == 2 * (DAYS - 7)
    assert all(0.0 <= band.lower < band.usual < band.upper <= 1.0 for band in bands)
    assert {band.lower for band in bands} == {0.0} if share < 0.5 else {band.upper for band in bands} == {1.0}
    assert _remarks(log) == [(14, "left_band", "treatment")]


def _liked(share: float) -> VariantDaySums:
    return VariantDaySums(200, SampleMeanStatistic(200, 200 * share, 200 * share))


def test_the_first_week_has_no_band() -> None:
    """A band needs seven days before, so that weekends are among them."""
    log = _log(_reading(means={(FIRST_DAY + 6, "treatment"): 1.0}))
    assert _remarks(log) == []
    assert [entry.variants["control"].band is None for entry in log.days] == [True] * 7 + [False] * 11


def test_a_day_that_is_not_over_is_not_judged() -> None:
    """At eight in the evening of the last day, its mean is far too low and its responses are few."""
    last_day = FIRST_DAY + DAYS - 1
    reading = _reading(means={(last_day, "treatment"): 1.0}, counts={(last_day, "treatment"): 110})
    log = _log(replace(reading, until_ms=reading.until_ms - 4 * HOUR_MS))
    assert _remarks(log) == []
    assert [remark.text for remark in log.days[-1].remarks] == ["not over yet: until 20:00"]
    assert not log.days[-1].is_over


def test_the_first_day_and_the_last_day_of_an_ended_experiment_are_partial() -> None:
    """The first day begins with the first response."""
    reading = _reading()
    log = _log(replace(reading, until_ms=reading.until_ms - 2 * HOUR_MS, is_ended=True))
    assert [remark.text for remark in log.days[0].remarks] == ["first day, from 06:00"]
    assert [remark.text for remark in log.days[-1].remarks] == ["last day, until 22:00"]
    assert _log(replace(reading, is_cut=True)).days[0].remarks == ()


def test_fewer_than_half_of_the_responses_of_any_day_of_a_week_are_a_drop() -> None:
    """Half of them are not."""
    counts = {(BROKEN_DAY, "control"): 599, (BROKEN_DAY, "treatment"): 600}
    log = _log(_reading(counts=counts))
    assert _remarks(log) == [(14, "drop", "control")]
    (remark,) = (remark for entry in log.days for remark in entry.remarks if remark.kind == "drop")
    assert remark.text.replace("\u202f", " ") == (
        "only 1 797 responses; there were at least 3 600 on each of the 7 days before"
    )


def _experiment_with_shares(shares_by_day: Mapping[int, Mapping[str, float]]) -> ExperimentSettings:
    """Return an experiment with the equal shares of `EXPERIMENT` before the first day."""
    calendar = day_calendar("UTC")
    allocations = tuple(AllocationSettings(calendar.start_ms(day), shares) for day, shares in shares_by_day.items())
    return replace(EXPERIMENT, decision=DecisionSettings(allocations=allocations))


def test_traffic_that_grows_less_than_a_larger_share_is_no_drop() -> None:
    """Returning students keep their variant, so a share that is five times as large needs days to fill up."""
    shares = {FIRST_DAY: {"control": 0.9, "treatment": 0.1}, BROKEN_DAY: {"control": 0.5, "treatment": 0.5}}
    counts = {(day, "treatment"): 100 if day < BROKEN_DAY else 200 for day in range(FIRST_DAY, FIRST_DAY + DAYS)}
    log = _log(_reading(counts=counts), _experiment_with_shares(shares))
    assert _remarks(log) == [(0, "share_change", None), (14, "share_change", None)]


def test_a_drop_below_the_earlier_traffic_is_found_on_the_first_day_of_a_larger_share() -> None:
    """At least the responses of the days before are due."""
    shares = {FIRST_DAY: {"control": 0.9, "treatment": 0.1}, BROKEN_DAY: {"control": 0.5, "treatment": 0.5}}
    counts = {(day, "treatment"): 400 for day in range(FIRST_DAY, FIRST_DAY + DAYS)} | {(BROKEN_DAY, "treatment"): 199}
    log = _log(_reading(counts=counts), _experiment_with_shares(shares))
    assert (14, "drop", "treatment") in _remarks(log)


def test_a_drop_after_a_smaller_share_states_what_was_due_at_that_share() -> None:
    """The days before had more responses, so their number would not explain the remark."""
    shares = {BROKEN_DAY: {"control": 0.8, "treatment": 0.2}}
    log = _log(_reading(counts={(BROKEN_DAY, "treatment"): 200}), _experiment_with_shares(shares))
    (remark,) = (remark for entry in log.days for remark in entry.remarks if remark.kind == "drop")
    assert (
        remark.text.replace("\u202f", " ")
        == "only 600 responses; at least 1 440 were due at the smaller share of this day"
    )


def test_fewer_responses_for_a_smaller_share_are_no_drop() -> None:
    """The change of the shares is remarked instead, and a variant that gets no students is not silent."""
    calendar = day_calendar("UTC")
    experiment = _experiment_with_shares(
        {BROKEN_DAY: {"control": 0.9, "treatment": 0.1}, BROKEN_DAY + 1: {"control": 1.0}}
    )
    counts = {(BROKEN_DAY, "treatment"): 240, (BROKEN_DAY, "control"): 2160}
    counts |= {(day, "treatment"): 0 for day in range(BROKEN_DAY + 1, FIRST_DAY + DAYS)}
    log = _log(_reading(counts=counts), experiment)
    assert _remarks(log) == [(14, "share_change", None), (15, "share_change", None)]
    (remark,) = next(entry.remarks for entry in log.days if entry.day == BROKEN_DAY)
    assert remark.text == "shares of control, treatment: 0.5, 0.5 → 0.9, 0.1"
    assert remark.at_ms == calendar.start_ms(BROKEN_DAY)


def _without_hours(reading: DayReading, variants: tuple[str, ...], start_ms: int, hours: int) -> DayReading:
    silent = range(start_ms // HOUR_MS, start_ms // HOUR_MS + hours)
    return replace(
        reading,
        hourly_responses={
            name: {hour: count for hour, count in counts.items() if name not in variants or hour not in silent}
            for name, counts in reading.hourly_responses.items()
        },
    )


def test_a_silent_variant_is_found_on_the_first_day_by_the_other_variant() -> None:
    """No history is needed, because the shares are known."""
    start_ms = day_calendar("UTC").hour_start_ms(FIRST_DAY, 9)
    log = _log(_without_hours(_reading(days=1), ("treatment",), start_ms, 2))
    assert _remarks(log) == [(0, "silence", "treatment")]
    assert log.days[0].remarks[1].text == "no responses from 09:00 to 11:00; about 450 were due"


def test_a_silence_of_all_variants_is_one_remark() -> None:
    """The hours of a week before are the usual ones; quiet nights are not silent."""
    start_ms = day_calendar("UTC").hour_start_ms(BROKEN_DAY, 18)
    log = _log(_without_hours(_reading(), VARIANTS, start_ms, 10))
    assert _remarks(log) == [(14, "silence", None)]
    (remark,) = next(entry.remarks for entry in log.days if entry.day == BROKEN_DAY)
    assert remark.text == "no responses from 18:00 to 24:00; about 1\u202f800 were due"


def test_closed_weekends_are_not_silent() -> None:
    """Schools have no responses on Saturdays and Sundays."""
    counts = {(day, name): 0 for day in range(FIRST_DAY, FIRST_DAY + 28) if (day + 3) % 7 >= 5 for name in VARIANTS}
    assert _remarks(_log(_reading(days=28, counts=counts))) == []


@pytest.mark.parametrize(
    ("zone", "changed_day", "hours"),
    [("Europe/Berlin", "2026-03-29", 23), ("Europe/Berlin", "2026-10-25", 25), ("Asia/Kolkata", "2026-03-29", 24)],
)
def test_days_are_dates_of_the_experiments_zone(
    zone: str, changed_day: str, hours: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A day on which the clock is changed has 23 or 25 hours, and its silences are in local time."""
    day = int(np.datetime64(changed_day, "D").astype(int))
    monkeypatch.setattr(f"{__name__}.FIRST_DAY", day - 10)
    experiment, calendar = replace(EXPERIMENT, day_zone=zone), day_calendar(zone)
    reading = _without_hours(_reading(zone), ("treatment",), calendar.hour_start_ms(day, 12), 4)
    log = _log(reading, experiment)
    assert _remarks(log) == [(10, "silence", "treatment")]
    entry = log.days[10]
    assert (entry.date, entry.end_ms - entry.start_ms) == (changed_day, hours * HOUR_MS)
    first, last = ("11:30", "15:30") if zone == "Asia/Kolkata" else ("12:00", "16:00")
    assert entry.remarks[0].text.startswith(f"no responses from {first} to {last};")


def test_changes_of_the_declaration_and_of_verdicts_are_remarks_of_their_days() -> None:
    """Changes of shares come from the allocations; several changes of a verdict on a day are one remark."""
    calendar, no_effect = day_calendar("UTC"), (None, None, None)
    noon_ms = calendar.start_ms(BROKEN_DAY) + 12 * HOUR_MS
    changes = (
        ExperimentChange(noon_ms, "criteria", "mde 0.05 → 0.02"),
        ExperimentChange(noon_ms + 1, "definition", "gain linear → exponential"),
        ExperimentChange(noon_ms + 2, "shares", "shares of control, treatment: 0.5, 0.5 → 0.9, 0.1"),
        ExperimentChange(calendar.start_ms(FIRST_DAY + DAYS) + 1, "criteria", "after the last event"),
    )
    periods = (
        StatePeriod("insufficient_data", calendar.start_ms(FIRST_DAY), noon_ms, no_effect),
        StatePeriod("continue", noon_ms, noon_ms + HOUR_MS, no_effect),
        StatePeriod("ship", noon_ms + HOUR_MS, None, no_effect),
    )
    log = _log(_reading(), declaration=ExperimentHistory(changes=changes), verdicts={"treatment": periods})
    assert _remarks(log) == [
        (14, "criteria_change", None),
        (14, "definition_change", None),
        (14, "verdict_change", "treatment"),
    ]
    remarks = next(entry.remarks for entry in log.days if entry.day == BROKEN_DAY)
    assert remarks[-1].text == "verdict: Too early to decide → Keep running → Ship"
    assert [remark.at_ms for remark in remarks] == [noon_ms, noon_ms + 1, noon_ms + HOUR_MS]


def test_the_standard_error_has_the_design_effect() -> None:
    """Several responses per student increase it; without a design effect it is unknown."""
    log = _log(_reading(days=1))
    assert log.days[0].variants["control"].standard_error == pytest.approx(1.3 * (1.5 / 1200) ** 0.5)
    without = build_day_log(EXPERIMENT, _reading(days=1), ExperimentHistory(), {}, STATE_TITLES, {})
    assert without.days[0].variants["control"].standard_error is None


def test_the_population_of_the_means_is_that_of_the_verdict() -> None:
    """An answer metric is over the responses with a value, whatever the population is."""
    everything = replace(EXPERIMENT, decision=DecisionSettings(population="all"))
    assert (_log(_reading(days=1)).population, _log(_reading(days=1), everything).population) == ("rated", "all")


def test_an_experiment_without_days_has_an_empty_log() -> None:
    """Nothing is stored yet."""
    assert _log(DayReading({}, {}, 0)).days == ()
