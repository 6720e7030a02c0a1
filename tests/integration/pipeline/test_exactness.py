"""Exactness on real servers: the aggregates are a pure function of the set of events."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.analysis.summary import VariantSummary
from monitor.config import ExperimentSettings
from monitor.events import Feedback, Response
from monitor.metrics import DayRecord, UnitRecord, day_record_width
from monitor.metrics.record_layout import RecordLayout
from tests.servers.redis import RedisServer
from tests.support.dump import dump
from tests.support.oracle import (
    DAY_MS,
    ExpectedResponse,
    category_index,
    compute_expected_responses,
    expected_decayed_mean,
    item_cell_counts,
    rounded_latency_ms,
    student_sums_by_variant,
)
from tests.support.store_bench import SLOW_HEALTH_CHECKS, StoreBench
from tests.support.streams import (
    ANSWERS_ONLY,
    EXCLUDING,
    EXPERIMENT,
    HOUR,
    RICH,
    RICH_ANSWERS_ONLY,
    WITH_ANSWER_METRICS,
    arrivals,
    streams,
)

Events = Sequence[Response | Feedback]


@pytest.fixture(params=["redis", "valkey"])
def server(request: pytest.FixtureRequest) -> RedisServer:
    """Return a Redis server, then a Valkey server."""
    store_server: RedisServer = request.getfixturevalue(f"{request.param}_server")
    return store_server


@settings(max_examples=40, suppress_health_check=SLOW_HEALTH_CHECKS)
@given(data=st.data())
def test_any_order_duplication_batching_and_sharding_of_events_gives_the_same_integers(
    data: st.DataObject, server: RedisServer
) -> None:
    """Workers with a shuffled stream and duplicates store the same as a single worker with an ordered stream."""
    events = data.draw(streams())
    experiment = data.draw(st.sampled_from([EXPERIMENT, RICH, RICH_ANSWERS_ONLY, EXCLUDING]))
    bench = StoreBench(server, experiment)
    bench.apply([events])
    expected = dump(bench.first_shard)
    shard_count, eager = data.draw(st.integers(1, 3)), data.draw(st.booleans())
    shuffled_bench = StoreBench(server, experiment, shard_count, eager=eager)
    shuffled_bench.apply(
        data.draw(arrivals(events)),
        worker_count=data.draw(st.integers(1, 3)),
        worker_order=data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=7)),
    )
    assert dump(shuffled_bench.store) == expected


@settings(max_examples=40, suppress_health_check=SLOW_HEALTH_CHECKS)
@given(
    events=streams(),
    shards=st.sampled_from([1, 3]),
    experiment=st.sampled_from([EXPERIMENT, WITH_ANSWER_METRICS, ANSWERS_ONLY]),
)
def test_the_summary_agrees_with_an_independent_recomputation(
    events: Events, shards: int, experiment: ExperimentSettings, server: RedisServer
) -> None:
    """Counts, sums, means, variances, decayed means and student sums agree with the oracle."""
    bench = StoreBench(server, experiment, shard_count=shards)
    bench.apply([events])
    judged = compute_expected_responses(experiment, events)
    summary = bench.reader.read_summary()
    for name, variant in summary.experiments["ranker"].variants.items():
        of_variant = [response for response in judged if response.response.variant == name]
        rated = [response for response in of_variant if response.is_rated]
        assert (variant.responses, variant.rated_responses) == (len(of_variant), len(rated))
        assert variant.feedback == _feedback_counts(of_variant)
        for metric in experiment.metrics:
            observed = rated if metric.is_ranking else of_variant
            values = [response.metrics[metric.name] for response in observed]
            defined = [value for value in values if value is not None]
            measured = variant.metrics[metric.name]
            assert (measured.count, measured.undefined) == (len(defined), len(values) - len(defined))
            assert measured.sum == pytest.approx(math.fsum(defined), abs=1e-8)
            if defined:
                assert measured.mean == pytest.approx(np.mean(defined), abs=1e-8)
                all_count = len(of_variant) if metric.is_ranking else len(defined)
                assert measured.mean_over_all == pytest.approx(math.fsum(defined) / all_count, abs=1e-8)
            if len(defined) > 1:
                assert measured.variance == pytest.approx(np.var(defined, ddof=1), abs=1e-7, rel=1e-9)
            for decay in experiment.decay[:2]:
                assert decay.half_life_ms is not None
                _check_decayed(
                    [(response.response.timestamp_ms, response.metrics[metric.name]) for response in observed],
                    summary.as_of_ms,
                    decay.half_life_ms,
                    measured.decayed[decay.name].mean,
                    measured.decayed[decay.name].effective_count,
                )
        users_of_other_variants = {
            response.response.user_id for response in judged if response.response.variant != name
        } - {None}
        responses = [response.response for response in of_variant]
        _check_traffic(bench, name, variant, responses, users_of_other_variants, summary.as_of_ms)
    _check_units(bench, experiment, judged)


def _check_traffic(
    bench: StoreBench,
    variant: str,
    summary: VariantSummary,
    variant_responses: Sequence[Response],
    users_of_other_variants: set[str | None],
    as_of_ms: int,
) -> None:
    """Compare counts, latencies, items and categories of a variant with the oracle's responses."""
    traffic = summary.traffic
    assert traffic is not None
    recent_from_ms = ((as_of_ms + 1) // HOUR - 1) * HOUR
    for counts, responses in (
        (traffic.all_time, variant_responses),
        (traffic.recent, [response for response in variant_responses if response.timestamp_ms >= recent_from_ms]),
    ):
        latencies = [rounded_latency_ms(response) for response in responses if response.latency_ms is not None]
        empty_count = sum(not response.items for response in responses)
        assert (counts.responses, counts.empty_responses) == (len(responses), empty_count)
        assert (counts.latency_total_ms, sum(counts.latency_buckets)) == (sum(latencies), len(latencies))
        for bound_s, count in counts.cumulative_latency_buckets():
            assert count == sum(latency <= bound_s * 1000 for latency in latencies)
    index = sorted(EXPERIMENT.variants).index(variant)
    for day in {response.timestamp_ms // DAY_MS for response in variant_responses}:
        record = np.zeros(day_record_width(len(EXPERIMENT.categories)), dtype=np.int64)
        for shard in bench.store:
            stored = bench.first_shard.client.get(shard.keys.traffic_day(bench.experiment_number, index, day)) or b""
            record[: len(stored) // 8] += np.frombuffer(bytes(stored), dtype=">i8")
        of_day = [response for response in variant_responses if response.timestamp_ms // DAY_MS == day]
        categories = [category_index(EXPERIMENT, response) for response in of_day]
        day_record = DayRecord(record)
        assert day_record.responses == len(of_day)
        assert day_record.item_count_squares == sum(len(response.items) ** 2 for response in of_day)
        assert day_record.item_cells.tolist() == item_cell_counts(bench.metadata.hash_key, of_day)
        assert day_record.categories.tolist() == [categories.count(index) for index in (0, 1, 2, -1)]
    responses_by_student = Counter(
        response.user_id or response.response_id
        for response in variant_responses
        if response.user_id not in users_of_other_variants
    )
    total = sum(responses_by_student.values())
    cluster_size = sum(count**2 for count in responses_by_student.values()) / total if total else 1.0
    _check_drift(bench, summary, variant_responses, cluster_size, as_of_ms // DAY_MS - 1)


def _check_drift(
    bench: StoreBench,
    summary: VariantSummary,
    variant_responses: Sequence[Response],
    student_cluster_size: float,
    day: int,
) -> None:
    """Compare the distributions of the last whole day and of the first day with the oracle's responses."""
    names = [*sorted(EXPERIMENT.categories), "other", "none"]
    first_day = min((response.timestamp_ms // DAY_MS for response in variant_responses), default=day)
    of_last_day, of_first_day = (
        [response for response in variant_responses if response.timestamp_ms // DAY_MS == number]
        for number in (day, first_day)
    )
    if first_day >= day or not of_last_day:
        assert (summary.category_drift, summary.item_drift) == (None, None)
        return
    category_drift, item_drift = summary.category_drift, summary.item_drift
    assert category_drift is not None
    for responses, counts in ((of_last_day, category_drift.counts), (of_first_day, category_drift.reference)):
        categories = [category_index(EXPERIMENT, response) for response in responses]
        expected = [categories.count(index) for index in (0, 1, 2, -1)]
        assert [counts.get(name, 0) for name in names] == expected
    _check_cluster_size(category_drift.cluster_size, student_cluster_size)
    last_cells, first_cells = (
        item_cell_counts(bench.metadata.hash_key, responses) for responses in (of_last_day, of_first_day)
    )
    if not any(last_cells) or not any(first_cells):
        assert item_drift is None
        return
    assert item_drift is not None
    assert (list(item_drift.counts.values()), list(item_drift.reference.values())) == (last_cells, first_cells)
    lengths = [len(response.items) for response in (*of_last_day, *of_first_day)]
    _check_cluster_size(
        item_drift.cluster_size, student_cluster_size * sum(length**2 for length in lengths) / sum(lengths)
    )


def _check_cluster_size(rounded: float, exact: float) -> None:
    """Compare a cluster size that is rounded up, in four steps per doubling."""
    steps = 4 * math.log2(rounded)
    assert steps == pytest.approx(round(steps), abs=1e-9)
    assert exact * (1 - 1e-9) <= rounded < exact * 2**0.25 * (1 + 1e-9)


def _feedback_counts(judged: Sequence[ExpectedResponse]) -> dict[str, int]:
    """Return the number of reactions by kind, sorted by kind."""
    counts: dict[str, int] = {}
    for response in judged:
        for kind, count in response.kinds.items():
            counts[kind] = counts.get(kind, 0) + count
    return dict(sorted(counts.items()))


def _check_decayed(
    values: Sequence[tuple[int, float | None]],
    as_of_ms: int,
    half_life_ms: int,
    mean: float | None,
    count: float | None,
) -> None:
    expected = expected_decayed_mean(
        [(at_ms, value) for at_ms, value in values if value is not None], as_of_ms, half_life_ms
    )
    if expected is None:
        assert mean is None
        return
    assert mean == pytest.approx(expected[0], rel=1e-4, abs=1e-8)
    assert count == pytest.approx(expected[1], rel=1e-4)


def _check_units(bench: StoreBench, experiment: ExperimentSettings, judged: Sequence[ExpectedResponse]) -> None:
    """Compare Q = ΣS², R = ΣS·n, P = Σn² and the counts of units with the oracle's students."""
    sums = student_sums_by_variant(judged)
    layout = RecordLayout.for_experiment(experiment)
    for index, variant in enumerate(sorted(experiment.variants)):
        record = np.zeros(layout.unit_width, dtype=np.int64)
        for shard in bench.store:
            stored = bench.first_shard.client.get(shard.keys.unit_sums(bench.experiment_number, index)) or b""
            record[: len(stored) // 8] += np.frombuffer(bytes(stored), dtype=">i8")
        anonymous = [
            response
            for response in judged
            if response.response.user_id is None and response.response.variant == variant
        ]
        # Students of a single variant; crossovers are left out of comparisons.
        single_variant = [variants[variant] for variants in sums.values() if set(variants) == {variant}]
        unit_record = UnitRecord(record)
        assert unit_record.students == sum(variant in variants for variants in sums.values())
        assert unit_record.units == len(single_variant) + len(anonymous)
        assert unit_record.responses == sum(student.responses for student in single_variant) + len(anonymous)
        for number, metric in enumerate(experiment.metrics):
            values = [response.metrics.get(metric.name) for response in anonymous]
            pairs = [tuple(student.metrics[metric.name]) for student in single_variant] + [
                (int(value is not None), value or 0.0) for value in values
            ]
            metric_sums = unit_record.metric_sums(layout, number)
            assert metric_sums.total == pytest.approx(math.fsum(s for _, s in pairs), abs=1e-8)
            assert metric_sums.squares == pytest.approx(math.fsum(s * s for _, s in pairs), rel=1e-6, abs=1e-6)
            assert metric_sums.defined_products == pytest.approx(math.fsum(n * s for n, s in pairs), abs=1e-6)
            assert metric_sums.defined_squares == sum(n * n for n, _ in pairs)
