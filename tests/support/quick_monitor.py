"""`python -m tests.support.quick_monitor` is `ab-monitor` with short intervals.

`FAILING_BACKFILL` is the number of an experiment whose backfill raises an error.
"""

from __future__ import annotations

import os
import sys

from monitor.cli import main
from monitor.config import config_watcher
from monitor.notify import notifier
from monitor.pipeline import backfill_runner, experiment_registry
from monitor.pipeline.backfill import ExperimentBackfill, RemainingRecords

config_watcher.POLL_INTERVAL_S = 0.3  # type: ignore[misc]
config_watcher.SETTLING_S = 0.1  # type: ignore[misc]
backfill_runner._LEASE_MS = 3_000  # type: ignore[misc]
backfill_runner._LEASE_RENEWAL_S = 1.0  # type: ignore[misc]
backfill_runner._CHECK_INTERVAL_S = 1.0  # type: ignore[misc]
notifier._STEP_S = 0.3  # type: ignore[misc]
notifier._OBSERVATION_INTERVAL_S = 0.5  # type: ignore[misc]
experiment_registry._SYNCHRONIZATION_INTERVAL_S = 0.5  # type: ignore[misc]
experiment_registry._DELETION_DELAY_MS = 2_000  # type: ignore[misc]

_run_backfill = ExperimentBackfill.run


def _run_or_fail(backfill: ExperimentBackfill) -> RemainingRecords:
    if os.environ.get("FAILING_BACKFILL") == str(backfill._number):
        raise ValueError("a defect")
    return _run_backfill(backfill)


ExperimentBackfill.run = _run_or_fail  # type: ignore[method-assign, assignment]

if __name__ == "__main__":
    sys.exit(main())
