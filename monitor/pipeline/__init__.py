"""The pipeline from a source to the store: poll, decode, dead-letter, apply, commit.

- `worker`: the main loop, and the reaction to conflicts and outages
- `batch_decoding`, `batch_applier`, `commit_pipeline`: the steps of a batch
- `watermark`, `watermark_alignment`: late events, and partitions that wait for the slowest partition
- `retention`, `snapshot_writer`, `skipped_events`: deletion of expired data, hourly snapshots, skipped events
- `experiment_registry`: the configuration file and the declared experiments of the store, in step
- `experiment_declarations`: the declared experiments as commands and requests read and change them
- `arrival_counter`, `data_problems`: counts of arriving events, and sentences about events that do not count
- `backfill`, `backfill_runner`: events from before the declaration of an experiment, applied beside the main loop
- `telemetry`, `pauses`, `status_reporter`: metrics of the process, outages, the worker's record in the store
"""

from __future__ import annotations

from monitor.pipeline.arrival_counter import ArrivalCounter
from monitor.pipeline.backfill import BackfillInterrupted, ExperimentBackfill, RemainingRecords
from monitor.pipeline.backfill_runner import BackfillRunner, held_numbers
from monitor.pipeline.commit_pipeline import ShardedWriter
from monitor.pipeline.data_problems import DataProblem, ProblemKind
from monitor.pipeline.experiment_declarations import Declarations, ExperimentDeclarations
from monitor.pipeline.experiment_registry import ExperimentRegistry
from monitor.pipeline.retention import RetentionCleaner
from monitor.pipeline.skipped_events import log_skipped_experiments
from monitor.pipeline.snapshot_writer import SnapshotWriter
from monitor.pipeline.status_reporter import StatusReporter, read_data_problems
from monitor.pipeline.telemetry import PROCESS_METRICS, ExportedMetric, Telemetry
from monitor.pipeline.watermark import WatermarkTracker
from monitor.pipeline.worker import Worker

__all__ = [
    "PROCESS_METRICS",
    "ArrivalCounter",
    "BackfillInterrupted",
    "BackfillRunner",
    "DataProblem",
    "Declarations",
    "ExperimentBackfill",
    "ExperimentDeclarations",
    "ExperimentRegistry",
    "ExportedMetric",
    "ProblemKind",
    "RemainingRecords",
    "RetentionCleaner",
    "ShardedWriter",
    "SnapshotWriter",
    "StatusReporter",
    "Telemetry",
    "WatermarkTracker",
    "Worker",
    "held_numbers",
    "log_skipped_experiments",
    "read_data_problems",
]
