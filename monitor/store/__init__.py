"""Where the aggregates live: Redis or Valkey, one atomic write per batch."""

from __future__ import annotations

from monitor.store.buckets import sum_up
from monitor.store.embedded import served
from monitor.store.forgetting import closed_experiments, drop_past, drop_students, noted_hours
from monitor.store.generations import live_store
from monitor.store.history import History
from monitor.store.inspection import warnings
from monitor.store.keys import Keys
from monitor.store.opening import Opened, open_store, view_store
from monitor.store.reading import Reader
from monitor.store.records import Advance, Commit, Past, Position, Refusals, State, Status
from monitor.store.redis import RedisStore
from monitor.store.shards import Shards

__all__ = [
    "Advance",
    "Commit",
    "History",
    "Keys",
    "Opened",
    "Past",
    "Position",
    "Reader",
    "RedisStore",
    "Refusals",
    "Shards",
    "State",
    "Status",
    "closed_experiments",
    "drop_past",
    "drop_students",
    "live_store",
    "noted_hours",
    "open_store",
    "served",
    "sum_up",
    "view_store",
    "warnings",
]
