"""`ab-monitor run`: the service, which applies events from Kafka to the store and publishes results over HTTP."""

from __future__ import annotations

import argparse
import logging
import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

from monitor.app import create_worker, open_writable_store, serve_http
from monitor.cli.command_io import ACCEPT_REJECTED_VARIABLE, load_command_settings, settings_variables
from monitor.cli.signals import call_on_signal, stop_on_signals
from monitor.clock import wall_clock
from monitor.config import ConfigWatcher, Settings, experiment_warnings, experiments_digest
from monitor.errors import AbMonitorError, ConfigError, InputRejected
from monitor.pipeline import Telemetry
from monitor.sources import KafkaSource
from monitor.state import Failure, ShardedStore, count_start, read_server_warnings, record_failure

log = logging.getLogger(__name__)
_ACCEPT_VALUES: Final = {"": False, "0": False, "false": False, "1": True, "true": True}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    parser.add_argument(
        "--accept-rejected",
        action="store_true",
        help="do not stop at rejected records that are in the topics already: the limits apply again once the backlog "
        f"is consumed; in a container set {ACCEPT_REJECTED_VARIABLE}=1 instead",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the service until a signal arrives; return the exit code."""
    telemetry = Telemetry()
    # Before the worker exists, a signal exits at once, and the stack closes all open resources. Afterwards, a signal
    # lets the worker finish its batch.
    stop_service: Callable[[], object] = sys.exit

    def handle_stop_request() -> None:
        stop_service()

    with ExitStack() as stack:
        # The settings are loaded here and not by the caller, so that signals are handled already.
        stack.enter_context(stop_on_signals(handle_stop_request))
        settings = load_command_settings(arguments)
        watcher = ConfigWatcher(
            arguments.config, settings_variables(), settings, _apply_settings, telemetry.record_reload
        )
        stack.enter_context(call_on_signal(signal.SIGHUP, watcher.request_reload))
        kafka = settings.kafka
        accepts_rejected = arguments.accept_rejected or _is_accept_variable_set()
        store = stack.enter_context(open_writable_store(settings, wall_clock))
        count_start(store.shards)
        stack.enter_context(_recorded_failure(store.shards))
        for warning in (*experiment_warnings(settings.experiments), *read_server_warnings(store.shards)):
            log.warning("unsafe setting reason=%s", warning)
        source = KafkaSource(kafka)
        stack.callback(source.close)
        worker = create_worker(
            settings,
            store,
            source,
            telemetry,
            kafka.topic_labels,
            wall_clock,
            belongs_to_service=True,
            accepts_rejected_backlog=accepts_rejected,
        )
        stop_service = worker.stop
        server = stack.enter_context(
            serve_http(
                settings,
                store.reader,
                telemetry,
                worker.readiness,
                wall_clock,
                worker.data_problems,
                watcher.request_reload_result,
            )
        )
        telemetry.set_config(experiments_digest(settings.experiments))
        watcher.start()
        stack.callback(watcher.stop)
        log.info("serving url=%s", server.url)
        with _explained_rejection(arguments.config):
            worker.run()
    return 0


def _apply_settings(settings: Settings) -> None:
    log.info("configuration changed digest=%s", experiments_digest(settings.experiments))


def _is_accept_variable_set() -> bool:
    """Return whether the environment asks to accept rejected records. Raises `ConfigError` for other values."""
    text = os.environ.get(ACCEPT_REJECTED_VARIABLE, "")
    if text not in _ACCEPT_VALUES:
        raise ConfigError(ACCEPT_REJECTED_VARIABLE, text, "1, or 0 as without the variable")
    return _ACCEPT_VALUES[text]


@contextmanager
def _recorded_failure(store: ShardedStore) -> Iterator[None]:
    """Record the error that ends the block in the store, if the store can be reached."""
    try:
        yield
    except AbMonitorError as error:
        with suppress(AbMonitorError):
            record_failure(store, Failure(error.exit_code, str(error), wall_clock()))
        raise


@contextmanager
def _explained_rejection(config_path: Path) -> Iterator[None]:
    """Add the way past the rejected records to an `InputRejected` that ends the block."""
    try:
        yield
    except InputRejected as error:
        config = f"--config {shlex.quote(str(config_path))}"
        raise InputRejected(
            f"{error}. Correct the producer, then start once with `ab-monitor run {config} --accept-rejected` (in a "
            f"container: {ACCEPT_REJECTED_VARIABLE}=1). This start reads past the rejected records that are already in "
            "the topic, and loses nothing: it writes them to the dead-letter topic. Until then "
            f"`ab-monitor dead-letters list {config}` lacks the last of them. docs/runbook.md#rejects has the steps"
        ) from error
