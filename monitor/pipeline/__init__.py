"""The pipeline from a source to the store: poll, decode, dead-letter, apply, commit.

- `worker`: the main loop, and the reaction to conflicts and outages
- `batch_decoding`, `batch_applier`, `commit_pipeline`: the steps of a batch
- `watermark`, `watermark_alignment`: late events, and partitions that wait for the slowest partition
- `retention`, `snapshot_writer`, `skipped_events`: deletion of expired data, hourly snapshots, skipped events
- `telemetry`: metrics of the process
"""

from __future__ import annotations

from monitor.pipeline.commit_pipeline import ShardedWriter
from monitor.pipeline.retention import RetentionCleaner
from monitor.pipeline.skipped_events import SkippedEventLogger
from monitor.pipeline.snapshot_writer import SnapshotWriter
from monitor.pipeline.telemetry import PROCESS_METRICS, ExportedMetric, Telemetry
from monitor.pipeline.watermark import WatermarkTracker
from monitor.pipeline.worker import Worker

__all__ = [
    "PROCESS_METRICS",
    "ExportedMetric",
    "RetentionCleaner",
    "ShardedWriter",
    "SkippedEventLogger",
    "SnapshotWriter",
    "Telemetry",
    "WatermarkTracker",
    "Worker",
]
