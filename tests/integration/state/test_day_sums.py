"""Sums by day from the time buckets of a real store, compared with the events."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest

from monitor.analysis import DayReading
from monitor.clock import DAY_MS
from monitor.config import DecaySpec, ExperimentSettings
from monitor.errors import UnknownExperiment
from monitor.events import Feedback, Response
from monitor.export import describe_unusual_days, read_day_log, read_days_json
from monitor.stats import SampleMeanStatistic
from tests.servers.redis import RedisServer
from tests.support.oracle import compute_expected_responses, local_day, local_time_ms
from tests.support.store_bench import StoreBench
from tests.support.streams import EXPERIMENT, HOUR

Events = list[Response | Feedback]
HOURLY, DAILY = EXPERIMENT.decay[:2]
FIRST_DAY = {"UTC": 20_767, "Europe/Berlin": 20_538, "Asia/Kolkata": 20_767}
"""In Berlin, the clock is changed on the fourth day."""


def _traffic(zone: str, days: int, per_day: int = 60) -> Events:
    """Return responses by day, some within minutes of midnight, of which two thirds are rated."""
    chance, events = np.random.default_rng(11), Events()
    for day in range(FIRST_DAY[zone], FIRST_DAY[zone] + days):
        for number in range(per_day):
            hour, minute = ((23, 58), (0, 1), (int(chance.integers(4, 24)), int(chance.integers(60))))[number % 3]
            at_ms = local_time_ms(zone, day, hour, minute)
            variant = ("control", "treatment")[number % 2]
            response = Response(
                f"r-{day}-{number}", at_ms, "ranker", variant, ("v-1", "v-2"), None, f"s-{number}-{day // 3}"
            )
            events.append(response)
            if chance.random() < 2 / 3:
                grade = float(chance.integers(5))
                rating = Feedback(
                    f"f-{day}-{number}", response.response_id, at_ms + 60_000, "rating", response.user_id, "v-1", grade
                )
                events.append(rating)
    return events


def _expected(
    experiment: ExperimentSettings, events: Events, until_ms: int | None = None
) -> Mapping[int, Mapping[str, tuple[int, list[float]]]]:
    """Return day → variant → (responses, values of the primary metric)."""
    days: dict[int, dict[str, tuple[int, list[float]]]] = defaultdict(
        lambda: {name: (0, []) for name in experiment.variants}
    )
    for expected in compute_expected_responses(experiment, events):
        response = expected.response
        if until_ms is not None and response.timestamp_ms >= until_ms:
            continue
        by_variant = days[local_day(experiment.day_zone, response.timestamp_ms)]
        responses, values = by_variant[response.variant]
        if expected.is_rated or experiment.decision.population == "all":
            values.append(expected.metrics.get("dcg@5") or 0.0)
        by_variant[response.variant] = responses + 1, values
    return days


def _assert_days(reading: DayReading, expected: Mapping[int, Mapping[str, tuple[int, list[float]]]]) -> None:
    assert list(reading.days) == list(range(min(expected), max(expected) + 1))
    for day, by_variant in reading.days.items():
        for name, (responses, statistic) in by_variant.items():
            count, values = expected[day][name]
            assert (responses, statistic.units) == (count, len(values))
            assert statistic.total == pytest.approx(sum(values), abs=1e-6)
            assert statistic.sum_of_squares == pytest.approx(sum(value**2 for value in values), abs=1e-5)


@pytest.mark.parametrize(
    ("zone", "decays", "population", "shards"),
    [
        ("UTC", (HOURLY, DAILY), "rated", 1),
        ("UTC", (DAILY,), "all", 3),
        ("Europe/Berlin", (HOURLY,), "rated", 1),
        ("Asia/Kolkata", (HOURLY,), "rated", 1),
    ],
)
def test_sums_by_day_equal_those_of_the_events(
    redis_server: RedisServer,
    zone: str,
    decays: tuple[DecaySpec, ...],
    population: Literal["rated", "all"],
    shards: int,
) -> None:
    """With all events of the day, by dates of the zone, also where the clock is changed."""
    experiment = replace(
        EXPERIMENT, day_zone=zone, decay=decays, decision=replace(EXPERIMENT.decision, population=population)
    )
    events = _traffic(zone, days=5)
    bench = StoreBench(redis_server, experiment, shards)
    bench.apply([events[100:], events[:100]])
    reading = bench.reader.read_days(bench.reader.read_summary().experiments["ranker"])
    (settings,) = bench.settings.experiments
    _assert_days(reading, _expected(settings, events))
    assert not reading.is_cut
    hours: dict[str, Counter[int]] = defaultdict(Counter)
    for event in events:
        if isinstance(event, Response):
            hours[event.variant][event.timestamp_ms // HOUR] += 1
    if zone != "Asia/Kolkata":  # There, a day begins within an hour, whose responses before midnight do not count.
        assert reading.hourly_responses == hours


def test_without_fitting_buckets_only_the_minutes_around_midnight_may_count_elsewhere(
    redis_server: RedisServer,
) -> None:
    """Buckets of 22.5 minutes, and days of a zone an hour ahead of UTC."""
    experiment = replace(EXPERIMENT, day_zone="Europe/Berlin", decay=(DAILY,))
    events = [
        event for event in _traffic("Europe/Berlin", days=3) if local_minutes_from_midnight(event.timestamp_ms) > 12
    ]
    bench = StoreBench(redis_server, experiment)
    bench.apply([events])
    reading = bench.reader.read_days(bench.reader.read_summary().experiments["ranker"])
    _assert_days(reading, _expected(bench.settings.experiments[0], events))


def local_minutes_from_midnight(at_ms: int) -> float:
    """Return the distance of a time from the nearest midnight in Berlin before the clock is changed."""
    of_day = (at_ms + HOUR) % DAY_MS
    return min(of_day, DAY_MS - of_day) / 60_000


def test_a_past_reading_contains_only_what_was_over_then(redis_server: RedisServer) -> None:
    """At noon of the third day; a day that is not over is not over in the log either."""
    bench, events = StoreBench(redis_server), _traffic("UTC", days=5)
    bench.apply([events])
    as_of_ms = (FIRST_DAY["UTC"] + 2) * DAY_MS + 12 * HOUR
    summary = bench.reader.read_summary(as_of_ms).experiments["ranker"]
    reading = bench.reader.read_days(summary, as_of_ms)
    _assert_days(reading, _expected(bench.settings.experiments[0], events, as_of_ms))
    assert max(max(hours) for hours in reading.hourly_responses.values()) * HOUR < as_of_ms
    log = read_day_log(bench.reader, summary, {}, as_of_ms)
    assert [entry.is_over for entry in log.days] == [True, True, False]


def test_days_that_retention_has_deleted_in_part_are_left_out(redis_server: RedisServer) -> None:
    """Three days are kept, so the earliest of them is no whole day."""
    bench, events = StoreBench(redis_server, replace(EXPERIMENT, retention_ms=3 * DAY_MS)), _traffic("UTC", days=6)
    bench.apply([events])
    reading = bench.reader.read_days(bench.reader.read_summary().experiments["ranker"])
    assert [day - FIRST_DAY["UTC"] for day in reading.days] == [3, 4, 5]
    assert reading.is_cut


def test_the_days_of_an_ended_experiment_end_with_the_day_of_its_end(redis_server: RedisServer) -> None:
    """The end is the beginning of a day; a past time at the beginning of a day belongs to the day before, too."""
    end_ms = (FIRST_DAY["UTC"] + 3) * DAY_MS
    bench = StoreBench(redis_server, replace(EXPERIMENT, ends_at_ms=end_ms))
    events = _traffic("UTC", days=3)
    response = next(event for event in reversed(events) if isinstance(event, Response))
    late = Feedback("late", response.response_id, end_ms + HOUR, "rating", response.user_id, "v-2", 1.0)
    bench.apply([[*events, late]])
    summary = bench.reader.read_summary().experiments["ranker"]
    log = read_day_log(bench.reader, summary, {})
    assert [(entry.day - FIRST_DAY["UTC"], entry.is_over) for entry in log.days] == [(0, True), (1, True), (2, True)]
    assert log.days[-1].remarks == ()
    as_of_ms = end_ms - DAY_MS
    past = read_day_log(bench.reader, bench.reader.read_summary(as_of_ms).experiments["ranker"], {}, as_of_ms)
    assert [(entry.day - FIRST_DAY["UTC"], entry.is_over) for entry in past.days] == [(0, True), (1, True)]


def test_an_empty_store_and_long_half_lives_have_no_days(redis_server: RedisServer) -> None:
    """A bucket of a half-life of 30 days is longer than 11 hours."""
    bench = StoreBench(redis_server)
    assert bench.reader.read_days(bench.reader.read_summary().experiments["ranker"]).days == {}
    bench = StoreBench(redis_server, replace(EXPERIMENT, decay=(DecaySpec("30d", 30 * DAY_MS),)))
    bench.apply([_traffic("UTC", days=2)])
    assert bench.reader.read_days(bench.reader.read_summary().experiments["ranker"]).days == {}


def test_a_broken_tuesday_is_stated(redis_server: RedisServer) -> None:
    """18 days with 300 rated responses of each variant, and one day on which the treatment's grades are low."""
    bench, chance, events = StoreBench(redis_server), np.random.default_rng(4), Events()
    broken_day = FIRST_DAY["UTC"] + 14
    for day in range(FIRST_DAY["UTC"], FIRST_DAY["UTC"] + 19):
        for number in range(600 if day < FIRST_DAY["UTC"] + 18 else 2):
            variant, at_ms = ("control", "treatment")[number % 2], day * DAY_MS + number * 60_000
            is_broken = day == broken_day and variant == "treatment"
            grade = float(chance.choice([0, 1] if is_broken else [1, 2, 3, 4]))
            name = f"{day}-{number}"
            events.append(Response(f"r-{name}", at_ms, "ranker", variant, ("v-1",), None, f"s-{name}"))
            events.append(Feedback(f"f-{name}", f"r-{name}", at_ms + 1, "rating", f"s-{name}", "v-1", grade))
    bench.apply([events])
    experiment = bench.reader.read_summary().experiments["ranker"]
    log = read_day_log(bench.reader, experiment, {})
    unusual = [(entry.day, name) for entry in log.days for name, day in entry.variants.items() if day.left_band]
    assert unusual == [(broken_day, "treatment")]
    (sentence,) = describe_unusual_days(log, experiment)
    assert sentence.startswith("On Tuesday 24 November, treatment's mean dcg@5 was 0.5")
    assert sentence.endswith("over 300 rated responses.")
    content = read_days_json(bench.reader, experiment, None)
    assert content["sentences"] == [sentence]
    assert content["days"][14]["variants"]["treatment"]["left_band"]


def test_an_experiment_that_a_reload_removed_is_unknown(redis_server: RedisServer) -> None:
    """The summary is from a reader before the reload, and the days from the reader after."""
    bench = StoreBench(redis_server)
    removed = replace(bench.reader.read_summary().experiments["ranker"], name="removed")
    for read in (bench.reader.read_days, bench.reader.read_verdict_history):
        with pytest.raises(
            UnknownExperiment, match=r'^unknown experiment "removed": the configuration does not declare it$'
        ):
            read(removed)
    with pytest.raises(UnknownExperiment, match="removed"):
        read_days_json(bench.reader, removed, None)


def test_the_sum_of_the_days_is_that_of_all_time(redis_server: RedisServer) -> None:
    """In a young experiment."""
    bench = StoreBench(redis_server)
    bench.apply([_traffic("UTC", days=4)])
    experiment = bench.reader.read_summary().experiments["ranker"]
    days = bench.reader.read_days(experiment).days.values()
    for name, variant in experiment.variants.items():
        total = sum((sums[name].values for sums in days), SampleMeanStatistic())
        assert total.units == variant.metrics["dcg@5"].count
        assert total.total == pytest.approx(variant.metrics["dcg@5"].sum)
