"""One poll's records → events, or refusals within their limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from monitor.config import LimitSettings
from monitor.engine import Decoder, EventBatch, EventNormalizer
from monitor.errors import InputRefused, Refusal
from monitor.events import Feedback, Response
from monitor.sources import Record, Refused, Slice
from monitor.state import Refusals


@dataclass(slots=True)
class Decoded:
    """One poll's records as events."""

    events: EventBatch
    refused: list[Refused] = field(default_factory=list)
    newest_ms: dict[str, int] = field(default_factory=dict)


def decode(slices: Sequence[Slice], decoder: Decoder, normalizer: EventNormalizer, now_ms: int) -> Decoded:
    """Return the events of the records, and the rejected records."""
    decoded = Decoded(EventBatch())
    events = decoded.events
    for each in slices:
        kind = each.kind
        newest_ms = -1
        for record in each.records:
            payload = record.value
            try:
                if kind == "response":
                    event: Response | Feedback = decoder.response(payload, now_ms)
                elif kind == "feedback":
                    event = decoder.feedback(payload, now_ms)
                else:
                    event = decoder.event(payload, now_ms)
            except Refusal as refusal:
                decoded.refused.append(
                    Refused(each.partition, record.offset, payload, refusal.reason, refusal.detail, record.key)
                )
                continue
            newest_ms = max(newest_ms, event.timestamp_ms)
            normalizer.append(events, event)
        if newest_ms >= 0:
            decoded.newest_ms[each.partition] = newest_ms
    return decoded


def counted(before: Refusals, records: Sequence[Record], refused: Sequence[Refused], limits: LimitSettings) -> Refusals:
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
        for record in records:
            run = run + 1 if record.offset in offsets else 0
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
    elif records:
        run = 0
    if seen >= 2 * limits.refused_window:
        seen, bad = seen // 2, bad // 2
    return Refusals(run, seen, bad)
