"""The store: aggregates, rows and positions in Redis or Valkey, written by an atomic script for each batch.

Writing: `ShardedStore` and its shards (`store_shard`, `sharded_store`), key names (`keys`), records that workers and
the store exchange (`store_records`, `record_deltas`), Lua scripts (`lua/`), schema and experiments (`store_metadata`),
expiry and compaction (`expiry`, `time_buckets`), and generations, which a rebuild switches (`generations`).

Reading: `StoreReader` (`read_model`) and its parts: records (`record_reader`), time buckets, traffic and drift
(`traffic_reader`), items (`item_reader`, `item_coverage`), snapshots (`snapshot_log`), skipped events (`skip_counts`),
missing responses by variant (`quality_counts`), arriving events by topic (`arrivals`), responses by hour
and sums by day (`hourly_responses`, `day_sums`).

Operation: connections and errors (`redis_connection`), the embedded server (`embedded_redis`), warnings about server
settings (`server_warnings`), starts and workers (`service_records`), backfills of single experiments (`backfills`),
messages that wait for delivery (`outbox`), leases of processes (`leases`), and the audit that recomputes aggregates
from rows (`aggregate_audit`).
"""

from __future__ import annotations

from monitor.state.aggregate_audit import AuditFindings, audit_aggregates
from monitor.state.arrivals import (
    SLOT_MS,
    ArrivalCount,
    ArrivalLog,
    TopicArrivals,
    add_arrivals,
    arrival_field,
    expired_arrivals,
    read_arrivals,
)
from monitor.state.backfills import (
    BackfillState,
    read_backfill_targets,
    read_backfills,
    release_backfill_lease,
    renew_backfill_lease,
    write_backfill,
)
from monitor.state.declared_experiments import (
    complete_shards,
    experiment_histories,
    read_declared_set,
    read_experiments_versions,
    update_declared_set,
)
from monitor.state.embedded_redis import running_store_server
from monitor.state.experiment_deletion import delete_experiment, read_stored_numbers
from monitor.state.expiry import (
    delete_expired,
    delete_student_rows,
    read_experiments_without_students,
    read_expiry_hours,
)
from monitor.state.generations import (
    VariantTotals,
    activate_generation,
    connect_active_generation,
    connect_next_generation,
    delete_all_generations,
    delete_generation,
    read_first_response_ms,
    read_generation_numbers,
    read_lost_events,
    read_variant_totals,
)
from monitor.state.hourly_responses import read_hourly_responses
from monitor.state.keys import PENDING_FEEDBACK, REBUILD_LOSS_PREFIX, StoreKeys, shard_of_partition
from monitor.state.outbox import Delivery, Outbox, outbox_channel
from monitor.state.quality_counts import QualityCounter
from monitor.state.read_model import StoreReader, open_store_reader
from monitor.state.record_deltas import add_batch_changes
from monitor.state.server_warnings import read_server_warnings
from monitor.state.service_records import (
    Failure,
    ServiceRecords,
    WorkerRecord,
    count_start,
    is_file_in_use,
    read_service_records,
    record_failure,
    record_file_in_use,
    remove_worker,
    write_worker,
)
from monitor.state.sharded_store import ShardedStore, merge_positions, read_newest_response_ms
from monitor.state.skip_counts import (
    OTHER_EXPERIMENTS_FIELD,
    SkippedFields,
    add_skipped_events,
    add_skipped_name,
    forget_skipped_experiment,
    read_skipped_events,
    read_skipped_fields,
    read_undeclared_experiments,
    skipped_feedback_field,
    skipped_responses_field,
    skipped_variant_field,
)
from monitor.state.snapshot_log import SnapshotLog
from monitor.state.store_metadata import (
    StoreMetadata,
    change_declared_set,
    initialize_store,
    join_store,
    mark_initialized,
    read_hash_key,
    read_shown_experiments,
    read_stored_experiments,
)
from monitor.state.store_records import (
    Commit,
    CommitStatus,
    ExpiredRange,
    LogEpoch,
    Position,
    PositionUpdate,
    RejectionCounts,
    StoreState,
)
from monitor.state.store_shard import StoreShard
from monitor.state.time_buckets import compact_time_buckets

__all__ = [
    "OTHER_EXPERIMENTS_FIELD",
    "PENDING_FEEDBACK",
    "REBUILD_LOSS_PREFIX",
    "SLOT_MS",
    "ArrivalCount",
    "ArrivalLog",
    "AuditFindings",
    "BackfillState",
    "Commit",
    "CommitStatus",
    "Delivery",
    "ExpiredRange",
    "Failure",
    "LogEpoch",
    "Outbox",
    "Position",
    "PositionUpdate",
    "QualityCounter",
    "RejectionCounts",
    "ServiceRecords",
    "ShardedStore",
    "SkippedFields",
    "SnapshotLog",
    "StoreKeys",
    "StoreMetadata",
    "StoreReader",
    "StoreShard",
    "StoreState",
    "TopicArrivals",
    "VariantTotals",
    "WorkerRecord",
    "activate_generation",
    "add_arrivals",
    "add_batch_changes",
    "add_skipped_events",
    "add_skipped_name",
    "arrival_field",
    "audit_aggregates",
    "change_declared_set",
    "compact_time_buckets",
    "complete_shards",
    "connect_active_generation",
    "connect_next_generation",
    "count_start",
    "delete_all_generations",
    "delete_experiment",
    "delete_expired",
    "delete_generation",
    "delete_student_rows",
    "experiment_histories",
    "expired_arrivals",
    "forget_skipped_experiment",
    "initialize_store",
    "is_file_in_use",
    "join_store",
    "mark_initialized",
    "merge_positions",
    "open_store_reader",
    "outbox_channel",
    "read_arrivals",
    "read_backfill_targets",
    "read_backfills",
    "read_declared_set",
    "read_experiments_versions",
    "read_experiments_without_students",
    "read_expiry_hours",
    "read_first_response_ms",
    "read_generation_numbers",
    "read_hash_key",
    "read_hourly_responses",
    "read_lost_events",
    "read_newest_response_ms",
    "read_server_warnings",
    "read_service_records",
    "read_shown_experiments",
    "read_skipped_events",
    "read_skipped_fields",
    "read_stored_experiments",
    "read_stored_numbers",
    "read_undeclared_experiments",
    "read_variant_totals",
    "record_failure",
    "record_file_in_use",
    "release_backfill_lease",
    "remove_worker",
    "renew_backfill_lease",
    "running_store_server",
    "shard_of_partition",
    "skipped_feedback_field",
    "skipped_responses_field",
    "skipped_variant_field",
    "update_declared_set",
    "write_backfill",
    "write_worker",
]
