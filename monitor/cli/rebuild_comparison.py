"""The comparison of a rebuilt generation with the active generation: by offsets, and by counts and means.

A rebuild lacks events if Kafka does not have their offsets any more. If offsets do not explain fewer responses, the
definitions of the configuration file may. Otherwise the difference is a loss, which the user has to accept.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from rich.table import Table

from monitor.cli.rebuild_coverage import compare_offset_coverage
from monitor.config import Settings, definition_differences
from monitor.errors import DataLoss, join_reasons
from monitor.export import simple_table, stdout_console
from monitor.state import ShardedStore, VariantTotals, read_stored_experiments, read_variant_totals

_RESPONSE_DEFINITIONS: Final = ("starts_at_ms", "ends_at_ms", "exclude")
_LIMITING_DEFINITIONS: Final = {
    "responses": _RESPONSE_DEFINITIONS,
    "rated responses": (
        *_RESPONSE_DEFINITIONS,
        "grades",
        "max_grade",
        "feedback_window_ms",
        "feedback_clock_tolerance_ms",
    ),
}
"""Definitions that decide how many responses count, by the kind of count."""


class _Shortfall(NamedTuple):
    """A variant of which the new generation counts fewer responses than the active generation."""

    experiment: str
    variant: str
    count_name: str
    """One of `_LIMITING_DEFINITIONS`."""
    missing_count: int


def compare_generations(
    active_store: ShardedStore, next_store: ShardedStore, settings: Settings, *, accept_loss: bool
) -> dict[str, int]:
    """Print the numbers of both generations; return the lost events that the new generation has to count.

    Raises `DataLoss` if the new generation lacks events of the active one and the loss is not accepted. Fewer
    responses are a loss if no definition explains them, or if offsets cannot show whether all events were read.
    """
    coverage = compare_offset_coverage(settings.kafka, active_store, next_store)
    active_totals, next_totals = read_variant_totals(active_store), read_variant_totals(next_store)
    stdout_console(os.environ).print(_build_table(active_totals, next_totals))
    losses = list(coverage.missing_offsets)
    explanation = ""
    lost_responses = dict[str, int]()
    if not losses:
        unread_counts = _count_unread_offsets(active_store, next_store)
        for shortfall in _find_shortfalls(
            active_totals, next_totals, unread_counts, settings.kafka.topics_of("response")
        ):
            experiment, variant, count_name, missing_count = shortfall
            description = f"{experiment} / {variant}: {missing_count:,} {count_name} fewer"
            differences = _limiting_differences(experiment, count_name, active_store, next_store)
            if differences and not coverage.is_incomplete:
                print(f"{description}, because definitions have changed: {'; '.join(differences)}")
                continue
            losses.append(description)
            # Missing rated responses are among the missing responses.
            field = f"{experiment}/{variant}"
            lost_responses[field] = max(missing_count, lost_responses.get(field, 0))
        if losses and coverage.is_incomplete:
            explanation = (
                ". Offsets cannot show the reason: the first offset of the active generation is unknown or belongs to "
                "another log"
            )
        elif losses:
            explanation = (
                ", although Kafka has every offset, and no definition explains the difference. Possible causes are a "
                "compacted topic, another `exclude` of a source, and lower values of limits or allowed_lateness"
            )
    if losses and not accept_loss:
        raise DataLoss(
            f"{join_reasons(losses)}{explanation}. The active generation was not switched. To switch nevertheless and "
            "count the difference as lost events, which makes verdicts invalid, add --accept-loss. To delete the new "
            "generation, add --discard"
        )
    if losses:
        print(f"counted as lost events: {'; '.join(losses)}{explanation}")
    return Counter(coverage.lost_counts) + Counter(lost_responses)


def _limiting_differences(
    experiment: str, count_name: str, active_store: ShardedStore, next_store: ShardedStore
) -> list[str]:
    """Return the differences between both generations' definitions that may explain a smaller count."""
    active_definitions, next_definitions = (
        {
            key: value
            for key, value in read_stored_experiments(generation)[experiment]["definitions"].items()
            if key in _LIMITING_DEFINITIONS[count_name]
        }
        for generation in (active_store, next_store)
    )
    return definition_differences(experiment, active_definitions, next_definitions)


def _find_shortfalls(
    active_totals: Mapping[str, Mapping[str, VariantTotals]],
    next_totals: Mapping[str, Mapping[str, VariantTotals]],
    unread_counts: Counter[str],
    response_topics: Collection[str],
) -> list[_Shortfall]:
    """Return the smaller counts of the variants that both generations have.

    Each offset that the new generation has not read yet may be a response or a rating.
    """
    shortfalls = []
    unread_responses = sum(unread_counts[topic] for topic in response_topics)
    for experiment in {**active_totals, **next_totals}:
        for variant, next_variant in next_totals.get(experiment, {}).items():
            active_variant = active_totals.get(experiment, {}).get(variant)
            if active_variant is None:
                continue
            for count_name, active_count, next_count, unread_count in (
                (
                    "responses",
                    active_variant.responses,
                    next_variant.responses,
                    unread_responses,
                ),
                ("rated responses", active_variant.rated, next_variant.rated, unread_counts.total()),
            ):
                if next_count + unread_count < active_count:
                    shortfalls.append(_Shortfall(experiment, variant, count_name, active_count - next_count))
    return shortfalls


def _count_unread_offsets(active_store: ShardedStore, next_store: ShardedStore) -> Counter[str]:
    """Return topic → number of offsets that only the active generation has read, in the same log."""
    next_positions, unread_counts = next_store.read_positions(), Counter[str]()
    for partition, active_position in active_store.read_positions().items():
        next_position = next_positions.get(partition)
        if next_position is not None and next_position.log.topic_id == active_position.log.topic_id:
            topic_name = partition.rpartition(":")[0]
            unread_counts[topic_name] += max(active_position.next_offset - next_position.next_offset, 0)
    return unread_counts


def _build_table(
    active_totals: Mapping[str, Mapping[str, VariantTotals]], next_totals: Mapping[str, Mapping[str, VariantTotals]]
) -> Table:
    """Return a table with the counts and means of every variant in both generations, side by side."""
    table = simple_table("", "active", "rebuilt")
    for experiment in {**active_totals, **next_totals}:
        active_variants, next_variants = active_totals.get(experiment, {}), next_totals.get(experiment, {})
        for variant in {**next_variants, **active_variants}:
            active_variant = active_variants.get(variant, VariantTotals(0, 0, {}))
            next_variant = next_variants.get(variant, VariantTotals(0, 0, {}))
            _add_row(table, f"{experiment} / {variant}: responses", active_variant.responses, next_variant.responses)
            _add_row(table, "  rated", active_variant.rated, next_variant.rated)
            for metric in {**active_variant.means, **next_variant.means}:
                _add_row(table, f"  {metric}", active_variant.means.get(metric), next_variant.means.get(metric))
    return table


def _add_row(table: Table, name: str, *values: float | None) -> None:
    cells = ["–" if value is None else f"{value:.6f}" if isinstance(value, float) else f"{value:,}" for value in values]
    table.add_row(name, *cells)
