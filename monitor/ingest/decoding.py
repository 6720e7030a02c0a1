"""One poll's records → events, or refusals within their limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from mypy_extensions import i64

from monitor.config import LimitSettings
from monitor.errors import InputRefused, Refusal
from monitor.events import Decoder, Feedback, Response
from monitor.ingest.intake import Events, Intake
from monitor.ingest.source import Refused, Slice
from monitor.ingest.unpacking import Records
from monitor.store import Refusals
from monitor.store.rows import MARKS


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
        kind, payloads = each.kind, each.payloads
        newest_ms, mark = -1, _mark(each.partition)
        records = payloads if isinstance(payloads, Records) else None
        apart = [] if records is not None else list(payloads)
        at, count = i64(-1), i64(len(payloads))
        while at + 1 < count:
            at += 1
            begin: i64 = 0
            end: i64 = 0
            if records is not None:
                stored, begin, end = records.stored(at), records.begin(at), records.end(at)
            else:
                stored = apart[at]
                end = 0 if stored is None else len(stored)
            try:
                if kind == "response":
                    event: Response | Feedback = decoder.response_in(stored, begin, end, now_ms)
                elif kind == "feedback":
                    event = decoder.feedback_in(stored, begin, end, now_ms)
                else:
                    event = decoder.event_in(stored, begin, end, now_ms)
            except Refusal as refusal:
                payload = None if stored is None else stored[begin:end]
                decoded.refused.append(
                    Refused(each.partition, each.offsets[at], payload, refusal.reason, refusal.detail)
                )
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


def counted(before: Refusals, records: Slice, refused: Sequence[Refused], limits: LimitSettings) -> Refusals:
    """Return a partition's refusals after more of its records; raises `InputRefused` beyond the limits.

    The numbers are stored with the position, so a service that is started again and again does not drain a topic into
    the dead letters a little at a time.
    """
    run, seen, bad = before
    seen += len(records.offsets)
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
    elif records.offsets:
        run = 0
    if seen >= 2 * limits.refused_window:
        seen, bad = seen // 2, bad // 2
    return Refusals(run, seen, bad)
