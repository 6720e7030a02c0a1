"""The tables of `ab-monitor check --sample`."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from monitor.config import Settings, event_fields
from monitor.decoding import SampleReport, SourceSample, Spread, find_undeclared_name, source_lines
from monitor.export import format_percent, id_text, simple_table, stdout_console

_MAX_ROWS: Final = 20
_SECOND_MS: Final = 1000
_MINUTE_MS: Final = 60 * _SECOND_MS
_HOUR_MS: Final = 60 * _MINUTE_MS
_DAY_MS: Final = 24 * _HOUR_MS


def print_sample_report(report: SampleReport, settings: Settings) -> None:
    """Print the tables of each source, then those of all sources together."""
    console = stdout_console(os.environ)
    for source in report.sources:
        console.print()
        for part in _source_parts(source, settings):
            console.print(part)
    console.print()
    for part in _common_parts(report, settings):
        console.print(part)


def _source_parts(source: SourceSample, settings: Settings) -> Iterator[RenderableType]:
    """Yield the lines and tables about one source."""
    names = f"{source.settings.event_type} of {', '.join(source.settings.topics)}"
    yield Text(f"{source.key}: {names}", style="bold")
    if not source.records:
        yield "no records"
        return
    share = format_percent(source.rejected_share)
    yield (
        f"records    {source.records:,}: {source.accepted:,} with events, {source.ignored.total():,} ignored, "
        f"{source.rejected:,} rejected ({share} of those not ignored; the limit is "
        f"{format_percent(settings.limits.max_rejected_share)})"
    )
    yield f"events     {source.events:,}"
    yield from _counts("framing    ", source.framings)
    if source.headers:
        yield id_text(f"headers    {', '.join(f'{name} ({count:,})' for name, count in source.headers.most_common())}")
    yield from _counts("ignored    ", source.ignored)
    clock = Spread.of(source.clock_differences_ms)
    if clock is not None:
        yield f"clock      event time minus Kafka's time of the record: {_describe_spread(clock)}"
    if source.ignored.total() == source.records:
        yield "warning    every record is ignored: compare the filters (key when) with a message by ab-monitor map"
    if source.rejections:
        yield _rejection_table(source)
    if source.mapped:
        yield _field_table(source, settings.attributes)
    for name in source.empty_optional_fields():
        yield f"warning    the mapped field {name} has no value in the whole sample: compare its path with a message"
    suggestions = source.suggest()
    if suggestions:
        yield Text("Suggestion, from names and values in the sample. Compare each line with a message:", style="bold")
        yield Text("\n".join(source_lines(source.settings, suggestions)))


def _counts(label: str, counts: Counter[str]) -> Iterator[Text]:
    """Yield a line for each counted text."""
    for index, (text, count) in enumerate(counts.most_common(_MAX_ROWS)):
        yield id_text(f"{label if index == 0 else ' ' * len(label)}{count:,} × {text}")


def _rejection_table(source: SourceSample) -> Table:
    columns = ("rejected because", "path", "shape of the value", "detail")
    table = simple_table(columns[0], "records", *columns[1:], left_aligned=columns, overflow="fold")
    for (reason, path, shape, detail), count in source.rejections.most_common(_MAX_ROWS):
        table.add_row(reason, f"{count:,}", id_text(path or "whole message"), shape, id_text(detail))
    return table


def _field_table(source: SourceSample, attributes: Sequence[str]) -> Table:
    """Return a table of the fields, and of the attributes if the source has responses."""
    required, optional = event_fields(source.settings.event_type)
    columns = ("field", "path of the value")
    table = simple_table("field", "filled", "absent", "path of the value", left_aligned=columns, overflow="fold")
    attributes = attributes if source.settings.event_type == "response" else ()
    mapped = {*source.settings.fields, *attributes} | ({"items"} if source.settings.items else set())
    for name in (*required, *optional, *attributes):
        if source.settings.wire_format != "native" and name not in mapped:
            continue
        paths = [
            f"{path} ({count:,})" if count < source.filled[name] else path
            for (field, path), count in source.origins.most_common()
            if field == name
        ]
        absent = source.mapped - source.filled[name]
        style = "bold red" if name in required and absent else ""
        cells = (f"{source.filled[name]:,}", f"{absent:,}" if absent else "–", id_text(", ".join(paths) or "–"))
        table.add_row(Text(name), *cells, style=style)
    unmapped = [name for name in optional if name not in mapped]
    if source.settings.wire_format != "native" and unmapped:
        table.add_row("not mapped", "", "", ", ".join(unmapped))
    return table


def _common_parts(report: SampleReport, settings: Settings) -> Iterator[RenderableType]:
    """Yield the lines and tables about all sources together."""
    yield Text("all sources", style="bold")
    if report.divided:
        yield (
            f"warning    {report.divided:,} records are events of one source, but another source of the topic rejects "
            "them, so the service rejects them: separate the sources by the key when"
        )
    yield from _join_lines(report)
    yield _describe_partitions(report)
    if report.arms:
        yield _arm_table(report, settings)
    if report.kinds:
        yield _kind_table(report, settings)


def _join_lines(report: SampleReport) -> Iterator[str]:
    """Yield sentences on how many feedback events find their response, and how long after it they come."""
    if not report.feedback:
        yield "join       no feedback in the sample"
        return
    share = format_percent(report.matched / report.feedback)
    more = "; a larger sample finds more" if 0 < report.matched < report.feedback else ""
    yield (
        f"join       {report.matched:,} of {report.feedback:,} feedback events ({share}) find their response in the "
        f"sample{more}"
    )
    if not report.matched and "response" in report.id_lengths:
        lengths = " and ".join(
            f"{least} to {greatest} characters in {event_type} events"
            if least < greatest
            else f"{least} characters in {event_type} events"
            for event_type, (least, greatest) in sorted(report.id_lengths.items(), reverse=True)
        )
        yield f"           response_id has {lengths}: compare the paths of response_id in both sources"
    if report.matched and not report.item_feedback:
        yield "           none of these has an item_id, so no feedback grades an item"
    if report.item_feedback:
        yield (
            f"           {report.listed_item_feedback:,} of {report.item_feedback:,} of these with an item_id name an "
            "item of the response"
        )
    delays = Spread.of(report.delays_ms)
    if delays is not None:
        early = sum(delay < 0 for delay in report.delays_ms)
        clock_hint = (
            f"; {early:,} are before their response: two clocks differ, or a unit or zone (key as) is wrong"
            if early
            else ""
        )
        yield f"           time from response to feedback: {_describe_spread(delays)}{clock_hint}"


def _describe_partitions(report: SampleReport) -> str:
    """Return a sentence on whether a user's records are in partitions of one number."""
    if not report.matched and not report.shared_users:
        return (
            f"partitions not compared: no feedback finds its response, and none of {report.users:,} users has both; "
            f"{report.without_user:,} events without user_id"
        )
    facts = []
    if report.matched:
        facts.append(
            f"{report.matched - report.elsewhere:,} of {report.matched:,} matched feedback events are in the partition "
            "with the number of their response"
        )
    if report.shared_users:
        facts.append(
            f"{report.shared_users - report.scattered_users:,} of {report.shared_users:,} users with responses and "
            "feedback are in one partition number"
        )
    if report.elsewhere or report.scattered_users:
        return (
            f"partitions not co-partitioned, so several workers would change the same rows: {'; '.join(facts)}. Give "
            "all topics the same number of partitions, keyed by user_id"
        )
    return f"partitions co-partitioned: {'; '.join(facts)}"


def _arm_table(report: SampleReport, settings: Settings) -> Table:
    columns = ("experiment", "variant", "in the configuration")
    table = simple_table("experiment", "variant", "responses", "share", columns[2], left_aligned=columns)
    totals: dict[str, int] = {}
    for (experiment, _), count in report.arms.items():
        totals[experiment] = totals.get(experiment, 0) + count
    for (experiment, variant), count in report.arms.most_common(_MAX_ROWS):
        undeclared = find_undeclared_name(experiment, variant, settings.experiments)
        cells = (id_text(experiment), id_text(variant), f"{count:,}", format_percent(count / totals[experiment]))
        table.add_row(*cells, id_text(undeclared or "declared"), style="yellow" if undeclared else "")
    if len(report.arms) > _MAX_ROWS:
        table.add_row(f"and {len(report.arms) - _MAX_ROWS:,} more", "", "", "", "")
    if any(find_undeclared_name(*arm, settings.experiments) for arm in report.arms):
        table.caption = Text(
            "events of undeclared names are skipped: declare the names, or map them, as in "
            'variant = { from = "arm", values = { A = "control" } }'
        )
        table.caption_justify = "left"
    return table


def _kind_table(report: SampleReport, settings: Settings) -> Table:
    column = "in the configuration"
    table = simple_table("kind of feedback", "events", column, left_aligned=(column,))
    for kind, count in report.kinds.most_common(_MAX_ROWS):
        names = [experiment.name for experiment in settings.experiments if kind in experiment.grades]
        use = f"graded in {', '.join(names)}" if names else "no grade (key grades of an experiment)"
        table.add_row(id_text(kind), f"{count:,}", id_text(use))
    if len(report.kinds) > _MAX_ROWS:
        table.add_row(f"and {len(report.kinds) - _MAX_ROWS:,} more", "", "")
    return table


def _describe_spread(spread: Spread) -> str:
    """Return the median and the extremes of times.

    >>> _describe_spread(Spread(-1500, 200, 7_200_000))
    'median +0.2 s, from −1.5 s to +2.0 h'
    """
    median, least, greatest = map(_format_difference, (spread.median_ms, spread.least_ms, spread.greatest_ms))
    return f"median {median}, from {least} to {greatest}"


def _format_difference(difference_ms: float) -> str:
    units = ((_DAY_MS, "d"), (_HOUR_MS, "h"), (_MINUTE_MS, "min"), (_SECOND_MS, "s"))
    size, unit = next((pair for pair in units if abs(difference_ms) >= pair[0]), units[-1])
    return f"{difference_ms / size:+.1f} {unit}".replace("-", "\u2212")
