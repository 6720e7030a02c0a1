"""Where the aggregates live: Redis or Valkey, one atomic write per batch."""

from __future__ import annotations

from monitor.store.embedded import served
from monitor.store.inspection import warnings
from monitor.store.keys import Keys
from monitor.store.opening import Opened, open_store, view_store
from monitor.store.reading import Reader
from monitor.store.redis import Advance, Commit, Position, RedisStore, State, Status

__all__ = [
    "Advance",
    "Commit",
    "Keys",
    "Opened",
    "Position",
    "Reader",
    "RedisStore",
    "State",
    "Status",
    "open_store",
    "served",
    "view_store",
    "warnings",
]
