"""From poll to commit: the loop of a worker and its parts."""

from __future__ import annotations

from monitor.pipeline.commit_pipeline import ShardedWriter
from monitor.pipeline.retention import Sweeper
from monitor.pipeline.skipped_events import SkipsSaid
from monitor.pipeline.snapshot_writer import Historian
from monitor.pipeline.telemetry import PROCESS_METRICS, Exported, Telemetry
from monitor.pipeline.watermark import Progress
from monitor.pipeline.worker import Worker

__all__ = [
    "PROCESS_METRICS",
    "Exported",
    "Historian",
    "Progress",
    "ShardedWriter",
    "SkipsSaid",
    "Sweeper",
    "Telemetry",
    "Worker",
]
