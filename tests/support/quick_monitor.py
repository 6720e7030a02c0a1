"""`python -m tests.support.quick_monitor` is `ab-monitor` with short intervals.

`FAILING_BACKFILL` is the name of an experiment whose backfill raises an error.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from monitor.cli import main
from monitor.config import config_watcher
from monitor.pipeline import backfill_runner, experiment_registry

config_watcher.POLL_INTERVAL_S = 0.3  # type: ignore[misc]
config_watcher.SETTLING_S = 0.1  # type: ignore[misc]
backfill_runner._LEASE_MS = 3_000  # type: ignore[misc]
backfill_runner._LEASE_RENEWAL_S = 1.0  # type: ignore[misc]
backfill_runner._CHECK_INTERVAL_S = 1.0  # type: ignore[misc]
experiment_registry._SYNCHRONIZATION_INTERVAL_S = 0.5  # type: ignore[misc]
experiment_registry._DELETION_DELAY_MS = 2_000  # type: ignore[misc]


class _FailingBackfill(backfill_runner.ExperimentBackfill):
    def __init__(self, *, number: int, **arguments: Any) -> None:
        super().__init__(number=number, **arguments)
        names = {experiment.number: experiment.settings.name for experiment in arguments["experiments"]}
        if names[number] == os.environ.get("FAILING_BACKFILL"):
            raise ValueError("a defect")


backfill_runner.ExperimentBackfill = _FailingBackfill  # type: ignore[misc]

if __name__ == "__main__":
    sys.exit(main())
