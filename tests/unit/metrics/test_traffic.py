"""Traffic: what a response adds, what is taken away again, and how latencies are read."""

from __future__ import annotations

from dataclasses import replace

import pytest

from monitor.analysis.drift import day_drift
from monitor.analysis.item_sums import Coverage
from monitor.analysis.summary import TrafficSummary, VariantSummary
from monitor.engine.accumulator import TrafficAccumulator
from monitor.engine.id_hash import ITEM_BYTES, IdHasher
from monitor.export.presentation import rows
from monitor.metrics.traffic import (
    FIRST_CELL,
    ITEM_CELLS,
    LATENCY_BOUNDS_MS,
    TRAFFIC_WIDTH,
    TrafficCounts,
    cell_of,
    day_width,
)
from tests.unit.export.test_export import CONTROL, NOTHING, SUMMARY, _exposed

HOUR = 3_600_000


def _flow(*latencies: tuple[int, bool]) -> TrafficCounts:
    """Return the flow of one variant's responses: (latency in ms, whether it was empty)."""
    traffic = TrafficAccumulator(0)
    for latency_ms, empty in latencies:
        traffic.add(1, 0, 5 * HOUR, b"" if empty else bytes(8), latency_ms, -1)
    return TrafficCounts.of([*traffic.totals()[0]])


class TestSums:
    """What a worker adds up."""

    def test_a_bound_belongs_to_the_bucket_below(self) -> None:
        """As `le` says."""
        for place, bound in enumerate(LATENCY_BOUNDS_MS):
            flow = _flow((bound, False), (bound + 1, False))
            assert (flow.latencies[place], flow.latencies[place + 1]) == (1, 1)

    def test_what_is_not_known_is_in_no_bucket(self) -> None:
        """A response without latency is a response all the same."""
        flow = _flow((-1, True), (0, False))
        assert (flow.responses, flow.empty, flow.latency_ms, sum(flow.latencies)) == (2, 1, 0, 1)

    def test_what_is_taken_away_leaves_nothing(self) -> None:
        """A revision gives back exactly what was added."""
        traffic = TrafficAccumulator(2)
        for sign in (1, -1):
            traffic.add(sign, 3, 25 * HOUR, bytes(range(24)), latency_ms=700, category=1)
        assert [*map(list, traffic.hours.values())] == [[0] * TRAFFIC_WIDTH]
        assert [*map(list, traffic.days.values())] == [[0] * day_width(2)]

    def test_categories_are_counted_only_where_they_are_declared(self) -> None:
        """Declared ones, others, none; by the UTC day."""
        none, some = TrafficAccumulator(0), TrafficAccumulator(2)
        for category in (0, 1, 2, -1, -1):
            none.add(1, 0, 25 * HOUR, b"", latency_ms=1, category=category)
            some.add(1, 0, 25 * HOUR, b"", latency_ms=1, category=category)
        nothing = [0] * (ITEM_CELLS + 1)
        assert {cell: [*record] for cell, record in none.days.items()} == {1: [5, *nothing]}
        assert {cell: [*record] for cell, record in some.days.items()} == {1: [5, *nothing, 1, 1, 1, 2]}

    def test_items_are_counted_in_the_cells_of_their_hashes(self) -> None:
        """The whole list, each item by the low bits of its hash's last byte; and how long lists are, squared."""
        traffic = TrafficAccumulator(0)
        for cells in ((3, 63, 3 + ITEM_CELLS), (63,), ()):
            hashes = b"".join(bytes((255,)) * (ITEM_BYTES - 1) + bytes((cell,)) for cell in cells)
            traffic.add(1, 0, 25 * HOUR, hashes, 1, -1)
        (record,) = traffic.days.values()
        assert (record[0], record[1]) == (3, 3**2 + 1)
        shown = {cell: record[FIRST_CELL + cell] for cell in range(ITEM_CELLS) if record[FIRST_CELL + cell]}
        assert shown == {3: 2, 63: 2}
        hashes = b"".join(map(IdHasher(b"key").item, ("a", "b", "c")))
        assert [cell_of(hashes[at : at + ITEM_BYTES]) for at in (0, 6, 12)] == [
            hashes[at] % ITEM_CELLS for at in (5, 11, 17)
        ]


class TestFlow:
    """What is read from the sums."""

    @pytest.mark.parametrize(("share", "seconds"), [(0.25, 0.15), (0.5, 0.2), (0.95, 0.29)])
    def test_latencies_lie_evenly_within_a_bucket(self, share: float, seconds: float) -> None:
        """Ten between 0.1 s and 0.2 s, ten between 0.2 s and 0.3 s."""
        assert _flow(*[(150, False)] * 10, *[(250, False)] * 10).latency_s(share) == pytest.approx(seconds)

    def test_nothing_known_is_none_and_the_open_bucket_its_lower_bound(self) -> None:
        """As `histogram_quantile` answers."""
        assert TrafficCounts().latency_s(0.5) is None
        assert TrafficCounts().empty_share is None
        assert _flow((61_000, False)).latency_s(0.5) == 60


def _with(flow: TrafficCounts) -> VariantSummary:
    return replace(CONTROL, traffic=TrafficSummary(flow, flow, 4 * HOUR, 5 * HOUR + HOUR // 2))


class TestOutputs:
    """JSON, metrics and table."""

    def test_json_says_whether_a_variant_is_still_used(self) -> None:
        """Unknown while nobody is."""
        experiment = SUMMARY.experiments["ranker-v2"]
        idle = replace(NOTHING, traffic=TrafficSummary(TrafficCounts(), TrafficCounts(), 4 * HOUR, 5 * HOUR))
        for control, used in ((_with(_flow((150, False), (-1, True))), (True, False)), (idle, (None, None))):
            told = replace(experiment, variants={"treatment": idle, "control": control}).to_json()["variants"]
            assert (told["control"]["traffic"]["used"], told["treatment"]["traffic"]["used"]) == used
        said = _with(_flow((150, False), (-1, True))).traffic
        assert said is not None
        assert said.to_json(others=2) == {
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
        """What `histogram_quantile` asks for."""
        experiment = SUMMARY.experiments["ranker-v2"]
        flow = _flow((150, False), (250, False), (-1, True))
        lines = _exposed(replace(SUMMARY, experiments={"e": replace(experiment, variants={"control": _with(flow)})}))
        of = 'abmonitor_response_latency_seconds_bucket{experiment="ranker-v2",le="%s",variant="control"} %s'
        for bound, count in (("0.1", "0.0"), ("0.2", "1.0"), ("0.3", "2.0"), ("60.0", "2.0"), ("+Inf", "2.0")):
            assert of % (bound, count) in lines
        assert 'abmonitor_response_latency_seconds_sum{experiment="ranker-v2",variant="control"} 0.4' in lines
        assert 'abmonitor_response_latency_seconds_count{experiment="ranker-v2",variant="control"} 2.0' in lines
        assert 'abmonitor_empty_responses{experiment="ranker-v2",variant="control"} 1.0' in lines

    def test_the_table_has_rates_and_latencies(self) -> None:
        """Without a latency anywhere there are no rows of latencies."""
        experiment = SUMMARY.experiments["ranker-v2"]
        three = {"latency p50", "latency p95", "latency p99"}
        for flow, labels in ((_flow((150, False)), three), (_flow((-1, True)), set())):
            found = {row.label: row for row in rows(replace(experiment, variants={"control": _with(flow)}), 0)}
            assert {label for label in found if label.startswith("latency")} == labels
            assert found["responses/s"].values == ("0.000185",)

    def test_what_is_slower_than_the_last_bound_is_said_to_be(self) -> None:
        """The histogram does not know by how much."""
        experiment = replace(SUMMARY.experiments["ranker-v2"], variants={"control": _with(_flow((80_000, False)))})
        found = {row.label: row for row in rows(experiment, 0)}
        assert found["latency p50"].values == ("> 60\u202fs",)

    def test_what_is_recommended_is_told_everywhere(self) -> None:
        """Distances and thresholds, different items and their share: JSON, metrics, table."""
        found = day_drift({0: {"a": 90, "b": 10}, 1: {"a": 10, "b": 90}}, 2, 1, alpha=0.05, alike=2.0)
        assert found is not None
        control = replace(CONTROL, recommended=found, coverage=Coverage(5 * HOUR, 1200, 0.6))
        experiment = replace(SUMMARY.experiments["ranker-v2"], variants={"control": control})
        told = experiment.to_json()["variants"]["control"]
        assert told["coverage"] == {"since": "1970-01-01T05:00:00.000Z", "items": 1200, "share": 0.6}
        recommended = told["recommended"]
        assert {name: recommended[name] for name in ("day", "shown", "reference", "items_per_student")} == {
            "day": "1970-01-02", "shown": 100, "reference": 100, "items_per_student": 2.0
        }  # fmt: skip
        assert recommended["drift"]["js"]["exceeded"]
        assert "categories" not in told
        summary = replace(SUMMARY, experiments={"e": experiment})
        lines = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in _exposed(summary)}
        arm = 'experiment="ranker-v2"'
        assert found.drift.psi is not None
        assert found.drift.js is not None
        for measure, distance in (("psi", found.drift.psi), ("js", found.drift.js)):
            labels = f'{{{arm},measure="{measure}",variant="control"}}'
            assert lines[f"abmonitor_item_drift_distance{labels}"] == distance.value
            assert lines[f"abmonitor_item_drift_threshold{labels}"] == distance.threshold
        assert lines[f'abmonitor_shown_items{{{arm},variant="control"}}'] == 1200
        assert lines[f'abmonitor_catalogue_coverage{{{arm},variant="control"}}'] == 0.6
        assert not [line for line in _exposed(summary, least=121) if "item_drift" in line]
        shown = {row.label: row for row in rows(experiment, 0)}
        assert (shown["item drift"].values, shown["item drift"].details) == (
            (f"{found.drift.js.value:.3f}",),
            ("changed",),
        )
        calm = replace(found.drift, psi=replace(found.drift.psi, exceeded=False))
        half = replace(experiment.variants["control"], recommended=replace(found, drift=calm))
        told = {row.label: row for row in rows(replace(experiment, variants={"control": half}), 0)}
        assert told["item drift"].details == (f"chance < {found.drift.js.threshold:.3f}",)
        assert shown["different items"].details == ("60.0\u202f% of all",)
        assert "category drift" not in shown
