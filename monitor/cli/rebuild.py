"""`ab-monitor rebuild`: fill a new generation of the store from Kafka, compare both generations, and switch.

1. The experiments of the configuration file are compared with the experiments of the active generation (`run`).
2. The next generation is filled from the beginning of the topics up to the positions of the active generation, under
   the definitions of the configuration file (`rebuild_backfill`).
3. Both generations are compared by offsets (`rebuild_coverage`), and by counts and means (`rebuild_comparison`).
4. The active generation is switched in one write. Workers of the old generation stop with exit code 5. Started again
   with the same file, they continue with the new generation.
"""

from __future__ import annotations

import argparse
import gc
import logging
import sys
from contextlib import closing
from dataclasses import replace

from monitor.app import GC_THRESHOLD
from monitor.cli.rebuild_backfill import backfill_generation, open_next_generation
from monitor.cli.rebuild_comparison import compare_generations
from monitor.clock import wall_clock
from monitor.config import Settings, rebuilt_set
from monitor.errors import DependencyUnavailable, IncompatibleStore, UsageError, count_noun
from monitor.sources import ClusterAdmin, kafka_connection_problem
from monitor.state import (
    ShardedStore,
    activate_generation,
    connect_active_generation,
    connect_next_generation,
    delete_generation,
    read_declared_set,
    read_generation_numbers,
    read_variant_totals,
    running_store_server,
)

log = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    parser.add_argument(
        "--accept-loss",
        action="store_true",
        help="switch even if Kafka has deleted events that the active generation has read",
    )
    parser.add_argument(
        "--drop-missing",
        action="store_true",
        help="leave out experiments and variants of the active generation that the file lacks",
    )
    parser.add_argument(
        "--discard", action="store_true", help="delete the unfinished generation of an interrupted rebuild, and exit"
    )


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    """Build the next generation, compare both generations, and switch; return the exit code."""
    gc.set_threshold(GC_THRESHOLD)
    with (
        running_store_server(settings.store) as store_settings,
        closing(connect_active_generation(store_settings, any_shard_count=True)) as active_store,
        closing(connect_next_generation(active_store)) as next_store,
    ):
        for number in read_generation_numbers(active_store) - {active_store.active_generation, next_store.generation}:
            log.info("old generation deleted generation=%d keys=%d", number, delete_generation(active_store, number))
        if arguments.discard:
            key_count = delete_generation(active_store, next_store.generation)
            print(f"{count_noun(key_count, 'key')} of the unfinished rebuild deleted")
            return 0
        active_set = read_declared_set(active_store)
        next_set = rebuilt_set(active_set, settings.experiments, f"rebuild with {arguments.config}", wall_clock())
        settings = replace(settings, experiments=tuple(experiment.settings for experiment in next_set.experiments))
        if not arguments.drop_missing:
            _check_experiments(active_store, settings, arguments.config)
        _check_topics(settings)
        writable_store = open_next_generation(next_store, active_store, settings, next_set)
        signal_exit_code = backfill_generation(active_store, writable_store, settings)
        if signal_exit_code:
            print(
                "stopped. The same command continues from here; with --discard it deletes the unfinished generation",
                file=sys.stderr,
            )
            return signal_exit_code
        lost_counts = compare_generations(active_store, next_store, settings, accept_loss=arguments.accept_loss)
        if read_declared_set(active_store).version != active_set.version:
            raise IncompatibleStore(
                "the declared experiments were changed during the rebuild, and this command has switched nothing: run "
                "`ab-monitor rebuild` again"
            )
        if not activate_generation(active_store, next_store, lost_counts):
            raise IncompatibleStore(
                "another process has switched the active generation during the rebuild. This command has switched "
                "nothing: run `ab-monitor rebuild` again"
            )
        print(f"switched to generation {next_store.generation}")
        old_generation = active_store.active_generation
        key_count = delete_generation(active_store, old_generation)
        print(f"{count_noun(key_count, 'key')} of generation {old_generation} deleted")
    return 0


def _check_experiments(active_store: ShardedStore, settings: Settings, config: object) -> None:
    """Raise `UsageError` if the file lacks an experiment or a variant of which the active generation has responses."""
    configured_variants = {experiment.name: experiment.variants for experiment in settings.experiments}
    missing_responses: dict[str, int] = {}
    for experiment, variants in read_variant_totals(active_store).items():
        for variant, variant_totals in variants.items():
            if variant in configured_variants.get(experiment, ()) or not variant_totals.responses:
                continue
            name = f"{experiment} / {variant}" if experiment in configured_variants else experiment
            missing_responses[name] = missing_responses.get(name, 0) + variant_totals.responses
    if missing_responses:
        raise UsageError(
            f"{config}: the file lacks experiments or variants of the active generation: "
            + ", ".join(
                f"{name} ({count_noun(responses, 'response')})" for name, responses in missing_responses.items()
            )
            + ". Add them to the file, or leave them out with --drop-missing"
        )


def _check_topics(settings: Settings) -> None:
    """Raise `DependencyUnavailable` if a topic does not exist; a service would wait for the topic's creation.

    Raises `UsageError` if Kafka rejects the user.
    """
    kafka = settings.kafka
    if problem := kafka_connection_problem(kafka):
        raise DependencyUnavailable(problem)
    with closing(ClusterAdmin(kafka)) as admin:
        existing_topics = admin.describe_topics(kafka.topics)
    missing_topics = [topic for topic in kafka.topics if topic not in existing_topics]
    if missing_topics:
        raise DependencyUnavailable(
            f"Kafka at {kafka.bootstrap_servers}: topic {', '.join(missing_topics)} does not exist. A rebuild needs "
            f"all event topics: correct {', '.join(map(kafka.topic_key, missing_topics))}, or create the topic"
        )
