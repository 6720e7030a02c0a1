"""`ab-monitor run`: the service, which applies events from Kafka to the store and publishes results over HTTP."""

from __future__ import annotations

import argparse
import logging
import os
import shlex
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Final

from monitor.app import Service, open_store_connections, serve_http
from monitor.cli.command_io import ACCEPT_REJECTED_VARIABLE, load_command_settings, settings_variables
from monitor.cli.signals import call_on_signal, stop_on_signals
from monitor.clock import wall_clock
from monitor.config import ConfigWatcher, Settings, exclusion_warnings, experiment_warnings, experiments_digest
from monitor.errors import AbMonitorError, ConfigError, InputRejected, StoreUnavailable, UsageError
from monitor.notify import Channel, Notifier, observe_store, open_channels
from monitor.pipeline import ExperimentDeclarations, ExperimentRegistry, Telemetry
from monitor.sources import KafkaSource
from monitor.state import (
    Failure,
    Outbox,
    ShardedStore,
    StoreMetadata,
    count_start,
    read_server_warnings,
    record_failure,
)

log = logging.getLogger(__name__)
_STORE_RETRY_S: Final = 1.0
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

    # The watcher compares the configuration when it starts, so an earlier request to reload needs no action.
    request_reload: Callable[[], object] = tuple

    def handle_reload_request() -> None:
        request_reload()

    with ExitStack() as stack:
        # The settings are loaded here and not by the caller, so that signals are handled already.
        stack.enter_context(stop_on_signals(handle_stop_request))
        stack.enter_context(call_on_signal(signal.SIGHUP, handle_reload_request))
        settings = load_command_settings(arguments)
        channels = open_channels(settings.notify)
        registry: ExperimentRegistry

        def apply_experiments(changed_settings: Settings) -> None:
            registry.replace_file(changed_settings.experiments)
            telemetry.set_config(experiments_digest(changed_settings.experiments))

        watcher = ConfigWatcher(
            arguments.config, settings_variables(), settings, apply_experiments, telemetry.record_reload
        )
        request_reload = watcher.request_reload
        kafka = settings.kafka
        accepts_rejected = arguments.accept_rejected or _is_accept_variable_set()
        connections = stack.enter_context(open_store_connections(settings))
        registry_store = stack.enter_context(closing(connections[0].reconnect()))
        origin = f"{arguments.config} on {socket.gethostname()}:{os.getpid()}"
        registry = ExperimentRegistry(registry_store, settings, origin, wall_clock)
        count_start(registry_store)
        stack.enter_context(_recorded_failure(registry_store))
        setting_warnings = (*experiment_warnings(settings.experiments), *exclusion_warnings(settings))
        for warning in (*setting_warnings, *read_server_warnings(registry_store)):
            log.warning("unsafe setting reason=%s", warning)
        source = KafkaSource(kafka)
        stack.callback(source.close)
        service = Service(
            settings,
            connections,
            source,
            telemetry,
            wall_clock,
            accepts_rejected_backlog=accepts_rejected,
            on_backfill_complete=registry.complete_backfill,
        )
        stack.callback(service.close)
        stop_service = service.stop
        worker = service.replace_worker(registry.metadata)
        server = stack.enter_context(
            serve_http(
                settings,
                lambda: service.reader,
                telemetry,
                service.readiness,
                wall_clock,
                lambda: (*_reload_problem(watcher), *service.data_problems()),
                watcher.request_reload_result,
                ExperimentDeclarations(registry_store, lambda: registry.settings, wall_clock, registry.change),
            )
        )
        telemetry.set_config(experiments_digest(settings.experiments))
        if channels:
            stack.enter_context(_notifying(settings, channels, connections[0], service, telemetry))
        watcher.start()
        stack.callback(watcher.stop)
        stack.enter_context(registry.synchronizing())
        log.info("serving url=%s", server.url)
        with _explained_rejection(arguments.config):
            worker.run()
            while worker.have_experiments_changed:
                worker = service.replace_worker(_read_experiments(registry, service))
                worker.run()
    return 0


@contextmanager
def _notifying(
    settings: Settings, channels: Sequence[Channel], store: ShardedStore, service: Service, telemetry: Telemetry
) -> Iterator[None]:
    """Send messages about changes of experiments while the block runs."""
    with closing(store.reconnect()) as outbox_store:
        notifier = Notifier(
            channels,
            Outbox(outbox_store),
            lambda now_ms: observe_store(service.reader, now_ms),
            telemetry,
            wall_clock,
            public_url=settings.http.public_url,
            min_students=settings.display.min_display_students,
        )
        notifier.start()
        try:
            yield
        finally:
            notifier.stop()


def _reload_problem(watcher: ConfigWatcher) -> tuple[str, ...]:
    return () if watcher.problem is None else (f"the configuration was rejected: {watcher.problem}",)


def _read_experiments(registry: ExperimentRegistry, service: Service) -> StoreMetadata:
    """Return the declared experiments, after waiting for the store; the last known ones if the service stops."""
    while not service.is_stopping:
        try:
            return registry.synchronize()
        except StoreUnavailable as error:
            log.warning("waiting for the store reason=%s", error)
            time.sleep(_STORE_RETRY_S)
        except UsageError as error:
            log.warning("the experiments of the file are not in force reason=%s", error)
            return registry.follow()
    return registry.metadata


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
