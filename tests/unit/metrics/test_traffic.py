"""Records of traffic: accumulation, revisions, quantiles of latencies, and outputs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from monitor.analysis.drift import measure_day_drift
from monitor.analysis.item_sums import ItemCoverage
from monitor.analysis.summary import TrafficSummary, VariantSummary
from monitor.engine.accumulator import TrafficAccumulator
from monitor.engine.id_hash import ITEM_HASH_BYTES, IdHasher
from monitor.export.presentation import experiment_table_rows
from monitor.metrics.traffic import (
    HOUR_RECORD_WIDTH,
    ITEM_CELL_COUNT,
    LATENCY_BOUNDS_MS,
    DayField,
    TrafficCounts,
    day_record_width,
    item_cell,
)
from tests.unit.export.test_export import CONTROL, EMPTY_VARIANT, SUMMARY, _scrape

HOUR = 3_600_000


def _traffic_counts(*latencies: tuple[int, bool]) -> TrafficCounts:
    """Return the counts of responses with a latency in ms (-1 for none), empty or with items."""
    traffic = TrafficAccumulator(0)
    for latency_ms, empty in latencies:
        traffic.add_response(1, 0, 5 * HOUR, b"" if empty else bytes(8), latency_ms, -1)
    return TrafficCounts.from_record([*traffic.variant_totals()[0]])


class TestAccumulation:
    """Records from responses."""

    def test_a_latency_equal_to_a_bound_is_in_the_bucket_below(self) -> None:
        """Bounds are inclusive, like Prometheus' `le`."""
        for bucket, bound in enumerate(LATENCY_BOUNDS_MS):
            traffic_counts = _traffic_counts((bound, False), (bound + 1, False))
            assert (traffic_counts.latency_buckets[bucket], traffic_counts.latency_buckets[bucket + 1]) == (1, 1)

    def test_a_response_without_latency_is_in_no_bucket(self) -> None:
        """The response is counted, but neither in the buckets nor in the sum."""
        traffic_counts = _traffic_counts((-1, True), (0, False))
        assert (
            traffic_counts.responses,
            traffic_counts.empty_responses,
            traffic_counts.latency_total_ms,
            sum(traffic_counts.latency_buckets),
        ) == (2, 1, 0, 1)

    def test_subtracting_a_response_leaves_zeros(self) -> None:
        """A revision subtracts the same integers that were added."""
        traffic = TrafficAccumulator(2)
        for sign in (1, -1):
            traffic.add_response(sign, 3, 25 * HOUR, bytes(range(24)), latency_ms=700, category=1)
        assert [*map(list, traffic.hour_records.values())] == [[0] * HOUR_RECORD_WIDTH]
        assert [*map(list, traffic.day_records.values())] == [[0] * day_record_width(2)]

    def test_categories_are_counted_only_if_declared(self) -> None:
        """The counts are of two declared categories, of other categories, and of responses without a category."""
        none, some = TrafficAccumulator(0), TrafficAccumulator(2)
        for category in (0, 1, 2, -1, -1):
            none.add_response(1, 0, 25 * HOUR, b"", latency_ms=1, category=category)
            some.add_response(1, 0, 25 * HOUR, b"", latency_ms=1, category=category)
        zeros = [0] * (ITEM_CELL_COUNT + 1)
        assert {cell: [*record] for cell, record in none.day_records.items()} == {1: [5, *zeros]}
        assert {cell: [*record] for cell, record in some.day_records.items()} == {1: [5, *zeros, 1, 1, 1, 2]}

    def test_items_are_counted_in_the_cells_of_the_hashes(self) -> None:
        """The low bits of a hash's last byte select the cell; squared numbers of items are summed, too."""
        traffic = TrafficAccumulator(0)
        for cells in ((3, 63, 3 + ITEM_CELL_COUNT), (63,), ()):
            hashes = b"".join(bytes((255,)) * (ITEM_HASH_BYTES - 1) + bytes((cell,)) for cell in cells)
            traffic.add_response(1, 0, 25 * HOUR, hashes, 1, -1)
        (record,) = traffic.day_records.values()
        assert (record[DayField.RESPONSES], record[DayField.ITEM_COUNT_SQUARES]) == (3, 3**2 + 1)
        cell_counts = record[DayField.ITEM_CELLS : DayField.CATEGORIES]
        cell_totals = {cell: count for cell, count in enumerate(cell_counts) if count}
        assert cell_totals == {3: 2, 63: 2}
        hashes = b"".join(map(IdHasher(b"key").hash_item, ("a", "b", "c")))
        assert [item_cell(hashes[start : start + ITEM_HASH_BYTES]) for start in (0, 6, 12)] == [
            hashes[index] % ITEM_CELL_COUNT for index in (5, 11, 17)
        ]


class TestQuantiles:
    """Quantiles of latencies from counts in buckets."""

    @pytest.mark.parametrize(("share", "seconds"), [(0.25, 0.15), (0.5, 0.2), (0.95, 0.29)])
    def test_quantiles_assume_uniform_latencies_within_a_bucket(self, share: float, seconds: float) -> None:
        """Ten latencies are between 0.1 s and 0.2 s, ten between 0.2 s and 0.3 s."""
        assert _traffic_counts(*[(150, False)] * 10, *[(250, False)] * 10).latency_quantile_s(share) == pytest.approx(
            seconds
        )

    def test_quantile_is_none_without_latencies_and_the_lower_bound_in_the_open_bucket(self) -> None:
        """Prometheus' `histogram_quantile` does the same."""
        assert TrafficCounts().latency_quantile_s(0.5) is None
        assert TrafficCounts().empty_share is None
        assert _traffic_counts((61_000, False)).latency_quantile_s(0.5) == 60


def _variant_with(traffic_counts: TrafficCounts) -> VariantSummary:
    return replace(CONTROL, traffic=TrafficSummary(traffic_counts, traffic_counts, 4 * HOUR, 5 * HOUR + HOUR // 2))


class TestOutputs:
    """Traffic in JSON, in Prometheus metrics and in the table."""

    def test_json_has_whether_a_variant_is_in_use(self) -> None:
        """The value is null while no variant has recent responses."""
        experiment = SUMMARY.experiments["ranker-v2"]
        idle = replace(EMPTY_VARIANT, traffic=TrafficSummary(TrafficCounts(), TrafficCounts(), 4 * HOUR, 5 * HOUR))
        for control, used in (
            (_variant_with(_traffic_counts((150, False), (-1, True))), (True, False)),
            (idle, (None, None)),
        ):
            variants = replace(experiment, variants={"treatment": idle, "control": control}).to_json()["variants"]
            assert (variants["control"]["traffic"]["used"], variants["treatment"]["traffic"]["used"]) == used
        traffic = _variant_with(_traffic_counts((150, False), (-1, True))).traffic
        assert traffic is not None
        assert traffic.to_json(experiment_responses=2) == {
            "since": "1970-01-01T04:00:00.000Z",
            "until": "1970-01-01T05:30:00.000Z",
            "responses": 2,
            "responses_per_second": 2 / 5400,
            "used": True,
            "empty_share": 0.5,
            "empty_responses": 1,
            "latency": {"count": 1, **{f"p{p}": pytest.approx(0.1 + p / 1000) for p in (50, 95, 99)}},
        }

    def test_a_histogram_is_cumulative_and_has_sum_and_count(self) -> None:
        """Prometheus' `histogram_quantile` needs cumulative buckets."""
        experiment = SUMMARY.experiments["ranker-v2"]
        traffic_counts = _traffic_counts((150, False), (250, False), (-1, True))
        lines = _scrape(
            replace(
                SUMMARY, experiments={"e": replace(experiment, variants={"control": _variant_with(traffic_counts)})}
            )
        )
        of = 'abmonitor_response_latency_seconds_bucket{experiment="ranker-v2",le="%s",variant="control"} %s'
        for bound, count in (("0.1", "0.0"), ("0.2", "1.0"), ("0.3", "2.0"), ("60.0", "2.0"), ("+Inf", "2.0")):
            assert of % (bound, count) in lines
        assert 'abmonitor_response_latency_seconds_sum{experiment="ranker-v2",variant="control"} 0.4' in lines
        assert 'abmonitor_response_latency_seconds_count{experiment="ranker-v2",variant="control"} 2.0' in lines
        assert 'abmonitor_empty_responses{experiment="ranker-v2",variant="control"} 1.0' in lines

    def test_the_table_has_rates_and_latencies(self) -> None:
        """Without any latency the table has no rows of latencies."""
        experiment = SUMMARY.experiments["ranker-v2"]
        three = {"Latency, median", "Latency, 95 % below", "Latency, 99 % below"}
        for traffic_counts, labels in ((_traffic_counts((150, False)), three), (_traffic_counts((-1, True)), set())):
            rows = {
                row.label: row
                for row in experiment_table_rows(
                    replace(experiment, variants={"control": _variant_with(traffic_counts)}), 0
                )
            }
            assert {label for label in rows if label.startswith("Latency")} == labels
            assert rows["Responses per second"].values == ("0.000185",)

    def test_the_table_marks_latencies_above_the_last_bound(self) -> None:
        """The last bucket has no upper bound, so the table prints >."""
        experiment = replace(
            SUMMARY.experiments["ranker-v2"], variants={"control": _variant_with(_traffic_counts((80_000, False)))}
        )
        rows = {row.label: row for row in experiment_table_rows(experiment, 0)}
        assert rows["Latency, median"].values == ("> 60\u202fs",)

    def test_item_drift_and_coverage_are_in_all_outputs(self) -> None:
        """JSON, metrics and table have distances, thresholds, the number of items and the share of the catalogue."""
        item_drift = measure_day_drift(
            {0: {"a": 90, "b": 10}, 1: {"a": 10, "b": 90}}, 2, 1, alpha=0.05, cluster_size=2.0
        )
        assert item_drift is not None
        control = replace(CONTROL, item_drift=item_drift, coverage=ItemCoverage(5 * HOUR, 1200, 0.6))
        experiment = replace(SUMMARY.experiments["ranker-v2"], variants={"control": control})
        variant_json = experiment.to_json()["variants"]["control"]
        assert variant_json["coverage"] == {"since": "1970-01-01T05:00:00.000Z", "items": 1200, "share": 0.6}
        recommended = variant_json["recommended"]
        assert {name: recommended[name] for name in ("day", "shown", "reference", "items_per_student")} == {
            "day": "1970-01-02", "shown": 100, "reference": 100, "items_per_student": 2.0
        }  # fmt: skip
        assert recommended["drift"]["js"]["exceeded"]
        assert "categories" not in variant_json
        summary = replace(SUMMARY, experiments={"e": experiment})
        lines = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in _scrape(summary)}
        arm = 'experiment="ranker-v2"'
        assert item_drift.drift.psi is not None
        assert item_drift.drift.js is not None
        for measure, distance in (("psi", item_drift.drift.psi), ("js", item_drift.drift.js)):
            labels = f'{{{arm},measure="{measure}",variant="control"}}'
            assert lines[f"abmonitor_item_drift_distance{labels}"] == distance.value
            assert lines[f"abmonitor_item_drift_threshold{labels}"] == distance.threshold
        assert lines[f'abmonitor_shown_items{{{arm},variant="control"}}'] == 1200
        assert lines[f'abmonitor_catalogue_coverage{{{arm},variant="control"}}'] == 0.6
        assert not [line for line in _scrape(summary, min_students=121) if "item_drift" in line]
        rows = {row.label: row for row in experiment_table_rows(experiment, 0)}
        limit = f"limit {item_drift.drift.js.threshold:.3f}"
        assert (rows["Change of items shown"].values, rows["Change of items shown"].details) == (
            (f"{item_drift.drift.js.value:.3f}",),
            (f"changed, {limit}",),
        )
        calm = replace(item_drift.drift, psi=replace(item_drift.drift.psi, exceeded=False))
        half = replace(experiment.variants["control"], item_drift=replace(item_drift, drift=calm))
        unchanged_rows = {
            row.label: row for row in experiment_table_rows(replace(experiment, variants={"control": half}), 0)
        }
        assert unchanged_rows["Change of items shown"].details == (f"usual, {limit}",)
        assert rows["Distinct items shown"].details == ("60.0\u202f% of the catalogue",)
        assert "Change of categories" not in rows
