"""One poll's records → events, or refusals within their limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from mypy_extensions import i64

from monitor.config import LimitSettings
from monitor.engine.row_codec import MARKS
from monitor.errors import InputRefused, Refusal
from monitor.events import Decoder, Feedback, Response
from monitor.ingest.intake import Events, Intake
from monitor.ingest.records import Records
from monitor.ingest.source import Refused, Slice
from monitor.store import Refusals


@dataclass(slots=True)
class Decoded:
    """One poll's records as events."""

    events: Events
    refused: list[Refused] = field(default_factory=list)
    newest_ms: dict[str, int] = field(default_factory=dict)


def decode(slices: Sequence[Slice], decoder: Decoder, intake: Intake, now_ms: int) -> Decoded:
    """Return what the records are."""
    decoded = Decoded(Events())
    events = decoded.events
    for each in slices:
        kind, records = each.kind, each.records
        newest_ms, mark = -1, _mark(each.partition)
        at, count = i64(-1), i64(len(records))
        while at + 1 < count:
            at += 1
            stored, begin, end = records.stored(at), records.begin(at), records.end(at)
            try:
                if kind == "response":
                    event: Response | Feedback = decoder.response_in(stored, begin, end, now_ms)
                elif kind == "feedback":
                    event = decoder.feedback_in(stored, begin, end, now_ms)
                else:
                    event = decoder.event_in(stored, begin, end, now_ms)
            except Refusal as refusal:
                where, key, payload = records.offset(at), records.key(at), records[at]
                refused = Refused(each.partition, where, payload, refusal.reason, refusal.detail, key)
                decoded.refused.append(refused)
                continue
            newest_ms = max(newest_ms, event.timestamp_ms)
            intake.take(events, event, mark)
        if newest_ms >= 0:
            decoded.newest_ms[each.partition] = newest_ms
    return decoded


def _mark(partition: str) -> int:
    """Return what marks rows whose first event is of this partition: the same for those of one number in all topics."""
    number = partition.rpartition(":")[2]
    return int(number) % MARKS + 1 if number.isdecimal() else 1


def counted(before: Refusals, records: Records, refused: Sequence[Refused], limits: LimitSettings) -> Refusals:
    """Return a partition's refusals after more of its records; raises `InputRefused` beyond the limits.

    The numbers are stored with the position, so a service that is started again and again does not drain a topic into
    the dead letters a little at a time.
    """
    run, seen, bad = before
    seen += len(records)
    bad += len(refused)
    longest = run
    if refused:
        offsets = {each.offset for each in refused}
        for offset in records.offsets:
            run = run + 1 if offset in offsets else 0
            longest = max(longest, run)
        last = refused[-1]
        where = f"last at {last.partition} offset {last.offset}: {last.reason}, {last.detail}"
        if longest > limits.max_refused_run:
            raise InputRefused(
                f"{longest} events in a row were refused (limits.max_refused_run = {limits.max_refused_run}); {where}"
            )
        if seen >= limits.refused_window and bad > limits.max_refused_share * seen:
            raise InputRefused(
                f"{bad} of the last {seen} events were refused "
                f"(limits.max_refused_share = {limits.max_refused_share}); {where}"
            )
    elif len(records):
        run = 0
    if seen >= 2 * limits.refused_window:
        seen, bad = seen // 2, bad // 2
    return Refusals(run, seen, bad)
