"""`ab-monitor run`: the service, which applies events from Kafka to the store and publishes results over HTTP."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable
from contextlib import ExitStack

from monitor.app import create_worker, open_writable_store, serve_http
from monitor.cli.command_io import load_command_settings
from monitor.cli.signals import stop_on_signals
from monitor.clock import wall_clock
from monitor.config import experiment_warnings
from monitor.pipeline import Telemetry
from monitor.sources import KafkaSource
from monitor.state import read_server_warnings

log = logging.getLogger(__name__)


def add_arguments(_parser: argparse.ArgumentParser) -> None:
    """Declare no flags: the command has only `--config`."""


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
        kafka = settings.kafka
        store = stack.enter_context(open_writable_store(settings, wall_clock))
        for warning in (*experiment_warnings(settings.experiments), *read_server_warnings(store.shards)):
            log.warning("unsafe setting reason=%s", warning)
        source = KafkaSource(kafka)
        stack.callback(source.close)
        topics = {"response": kafka.responses_topic, "feedback": kafka.feedback_topic}
        worker = create_worker(settings, store, source, telemetry, topics, wall_clock)
        stop_service = worker.stop
        server = stack.enter_context(serve_http(settings, store.reader, telemetry, worker.readiness, wall_clock))
        log.info("serving url=%s", server.url)
        worker.run()
    return 0
