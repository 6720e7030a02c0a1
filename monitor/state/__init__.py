"""Where the aggregates live: Redis or Valkey, one atomic write per batch."""

from __future__ import annotations

from monitor.state.embedded_redis import served
from monitor.state.expiry import closed_experiments, drop_past, drop_students, noted_hours
from monitor.state.generations import (
    ArmTotals,
    drop,
    drop_everything,
    first_day,
    generation_numbers,
    live_store,
    lost_events,
    next_store,
    switch,
    totals,
)
from monitor.state.inspection import warnings
from monitor.state.keys import BEFORE, PENDING_CLASS, Keys, shard_of_partition
from monitor.state.read_model import Reader
from monitor.state.record_deltas import write_batch
from monitor.state.recount import Findings, audit
from monitor.state.redis_store import RedisStore
from monitor.state.shards import Shards, merge_positions, newest_response_ms
from monitor.state.skip_counts import (
    OTHERS,
    counted,
    newest_field,
    oldest_field,
    reactions_field,
    responses_field,
    skipped_events,
)
from monitor.state.snapshot_log import History
from monitor.state.store_metadata import Opened, open_store, stored_experiments, view_store
from monitor.state.store_records import Advance, Commit, ExpiredRange, Position, Refusals, State, Status
from monitor.state.time_buckets import sum_up

__all__ = [
    "BEFORE",
    "OTHERS",
    "PENDING_CLASS",
    "Advance",
    "ArmTotals",
    "Commit",
    "ExpiredRange",
    "Findings",
    "History",
    "Keys",
    "Opened",
    "Position",
    "Reader",
    "RedisStore",
    "Refusals",
    "Shards",
    "State",
    "Status",
    "audit",
    "closed_experiments",
    "counted",
    "drop",
    "drop_everything",
    "drop_past",
    "drop_students",
    "first_day",
    "generation_numbers",
    "live_store",
    "lost_events",
    "merge_positions",
    "newest_field",
    "newest_response_ms",
    "next_store",
    "noted_hours",
    "oldest_field",
    "open_store",
    "reactions_field",
    "responses_field",
    "served",
    "shard_of_partition",
    "skipped_events",
    "stored_experiments",
    "sum_up",
    "switch",
    "totals",
    "view_store",
    "warnings",
    "write_batch",
]
