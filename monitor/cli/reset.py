"""`ab-monitor reset`: delete all generations from the store."""

from __future__ import annotations

import argparse
from contextlib import closing

from monitor.cli.command_io import is_confirmed
from monitor.config import Settings
from monitor.errors import count_noun
from monitor.state import connect_active_generation, delete_all_generations, read_variant_totals, running_store_server


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    parser.add_argument("--yes", action="store_true", help="delete without a confirmation")


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    """Delete all generations from the store after a confirmation; return the exit code."""
    with (
        running_store_server(settings.store, must_exist=True) as store_settings,
        closing(connect_active_generation(store_settings, any_shard_count=True)) as shards,
    ):
        experiment_totals = read_variant_totals(shards)
        responses = sum(
            variant_totals.responses for variants in experiment_totals.values() for variant_totals in variants.values()
        )
        address = settings.store.url.partition("://")[2].rpartition("@")[2] or settings.store.url
        if not experiment_totals:
            print(f"nothing to delete: the store at {address} has no data of AB Monitor")
            delete_all_generations(shards)
            return 0
        response_count = count_noun(responses, "response")
        content = f"all data of AB Monitor at {address}: {response_count} of {', '.join(experiment_totals)}"
        if not arguments.yes and not is_confirmed("reset", content, "yes"):
            print("nothing was deleted")
            return 0
        print(f"{count_noun(delete_all_generations(shards), 'key')} deleted")
    return 0
