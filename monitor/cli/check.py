"""`ab-monitor check`: validate the configuration, connect to Kafka and the store, and warn about unsafe settings."""

from __future__ import annotations

import argparse
import re
import secrets
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from monitor.analysis import StoreSummary, find_meant_name
from monitor.cli.sample_tables import print_sample_report
from monitor.clock import wall_clock
from monitor.config import (
    DeclaredSet,
    DiscoverSettings,
    Settings,
    describe_set_changes,
    exclusion_warnings,
    experiment_warnings,
    experiments_digest,
    parse_integer,
    replace_file_experiments,
)
from monitor.decoding import RecordDecoder, build_sample_report
from monitor.engine import IdHasher
from monitor.errors import (
    AbMonitorError,
    DependencyUnavailable,
    InputRejected,
    UsageError,
    count_noun,
    setting_text,
)
from monitor.export import format_percent, read_health
from monitor.notify import DeliveryFailed, open_channels, write_test_message
from monitor.sources import (
    TopicInspection,
    check_copartitioning,
    create_consumer,
    inspect_kafka_topics,
    kafka_client_version,
    open_recent_records,
)
from monitor.state import (
    StoreReader,
    open_store_reader,
    read_declared_set,
    read_hash_key,
    read_server_warnings,
    read_skipped_events,
    read_stored_experiments,
)

_MAX_LISTED_EXPERIMENTS: Final = 20
_MAX_SAMPLE: Final = 10_000
_SAMPLE_S: Final = 60.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    parser.add_argument(
        "--sample",
        type=int,
        metavar="N",
        help="also read the last N records of each partition, without the consumer group, and report what the sources "
        f"make of them (1 to {_MAX_SAMPLE})",
    )
    parser.add_argument(
        "--notify", action="store_true", help="also send a test message to each channel of [[notify]], and wait for it"
    )


class _SeveralErrors(AbMonitorError):
    """The store and Kafka both failed; the message has a line for each error."""

    def __init__(self, errors: Sequence[AbMonitorError]) -> None:
        super().__init__("\n".join([f"{len(errors)} checks failed:", *(f"  {error}" for error in errors)]))
        self.exit_code = errors[0].exit_code


def _with_key(key: str, error: AbMonitorError) -> AbMonitorError:
    """Return the error; if a server cannot be reached and the message names no key of the section, with the key."""
    section, _, _ = key.partition(".")
    if isinstance(error, DependencyUnavailable) and not re.search(rf"\b{section}\.[a-z]+_?[a-z]+\b", str(error)):
        return DependencyUnavailable(f"{key}: {error}")
    return error


@contextmanager
def _collect_error(errors: list[AbMonitorError], key: str | None = None) -> Iterator[None]:
    """Collect the error that the block raises, with a key if a server cannot be reached; continue after the block."""
    try:
        yield
    except AbMonitorError as error:
        errors.append(error if key is None else _with_key(key, error))


_REPAIRABLE_CODES: Final = {"guardrail_idle", "anonymous_units", "low_power"}


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    """Print the state of the configuration, the channels, the store, the registry and Kafka; return the exit code.

    With `--sample`, also print what the sources make of the newest records. Raises the error of a check, or an error
    with those of several checks in one message and the exit code of the first.
    """
    if arguments.sample is not None:
        parse_integer("--sample", arguments.sample, 1, _MAX_SAMPLE)
    names = ", ".join(experiment.name for experiment in settings.experiments)
    print(f"configuration  ok: {names or 'no experiments, commands declare them'}")
    _print_warnings([*experiment_warnings(settings.experiments), *exclusion_warnings(settings)])
    shard_count = settings.store.shards or 1
    errors: list[AbMonitorError] = []
    decoder: RecordDecoder | None = None
    inspection: TopicInspection | None = None
    with _collect_error(errors):
        _check_channels(settings, is_test=arguments.notify)
    with _collect_error(errors, "store.url"):
        shard_count = _check_store(settings)
    with _collect_error(errors, "schema_registry.url"):
        decoder = _check_formats(settings)
    with _collect_error(errors, "kafka.bootstrap_servers"):
        inspection = _inspect_kafka(settings)
    if inspection is not None:
        if arguments.sample is not None and decoder is not None:
            with _collect_error(errors):
                _check_sample(settings, decoder, arguments.sample)
        with _collect_error(errors, "kafka.bootstrap_servers"):
            _check_topics(settings, inspection, shard_count)
    if len(errors) > 1:
        raise _SeveralErrors(errors)
    if errors:
        raise errors[0]
    return 0


def _check_channels(settings: Settings, *, is_test: bool) -> None:
    """Print the channels of messages; with `is_test`, send a test message to each.

    Raises `UsageError` without the extra `notify`, `ConfigError` for a wrong address, and `DeliveryFailed`.
    """
    if is_test and not settings.notify:
        raise UsageError("--notify: the configuration has no [[notify]] table. docs/notifications.md has examples")
    if settings.notify and settings.http.public_url is None:
        print("warning        messages have no links: set http.public_url to the address of the pages")
    failures = []
    for channel in open_channels(settings.notify):
        name = channel.settings.name
        try:
            if is_test:
                message = write_test_message(wall_clock(), settings.http.public_url)
                channel.send(message, f"msg_{secrets.token_hex(12)}", wall_clock())
            print(f"notify         ok: {name}{', test message sent' if is_test else ''}")
        except DeliveryFailed as error:
            failures.append(f"notify.{name}: {error}")
    if failures:
        raise DeliveryFailed("; ".join(failures))


def _check_formats(settings: Settings) -> RecordDecoder:
    """Return the decoder of the sources; raises an error if a library is missing or the registry does not answer."""
    decoder = RecordDecoder(settings)
    if decoder.registry is not None:
        decoder.registry.check_connection()
        print("registry       ok: reachable")
    return decoder


def _check_sample(settings: Settings, decoder: RecordDecoder, count: int) -> None:
    """Print the report on the newest records; raises `InputRejected` if too many records of a source are rejected."""
    with open_recent_records(settings.kafka) as reader:
        partitions = [
            (topic, number)
            for topic, numbers in reader.find_partitions(settings.kafka.topics).items()
            for number in sorted(numbers)
        ]
        report = build_sample_report(settings, decoder, reader.read(partitions, count, _SAMPLE_S), wall_clock())
    print(
        f"sample         the last {count} records of each of {len(partitions)} partitions, without the consumer group"
    )
    if not reader.is_complete:
        print(f"warning        the sample is incomplete: Kafka has not sent all records within {_SAMPLE_S:.0f} s")
    print_sample_report(report, settings)
    rejected = report.sources_above(settings.limits.max_rejected_share)
    if rejected:
        shares = " and ".join(f"{format_percent(source.rejected_share)} of {source.key}" for source in rejected)
        raise InputRejected(
            f"too many records of the sample are rejected: {shares}, more than limits.max_rejected_share = "
            f"{settings.limits.max_rejected_share:g}, so the service stops as soon as limits.rejection_window is full. "
            "Correct the mapping of these sources by the tables above, or leave out other records by the key when "
            "(docs/sources.md)"
        )


def _check_store(settings: Settings) -> int:
    """Print the state of the store, and return the store's number of shards."""
    with open_store_reader(settings, wall_clock, must_exist=False) as reader:
        has_experiments = any(number >= 0 for number in reader.numbers.values())
        shard_count = len(reader.store)
        declared_set = read_declared_set(reader.store)
        if declared_set.is_in_force:
            content = f"version {declared_set.version} of the declared experiments, from {declared_set.origin}"
        else:
            content = "same definitions as the configuration" if has_experiments else "no experiment yet"
        shards = f", {shard_count} shards" if shard_count > 1 else ""
        print(f"store          ok: reachable, {content}{shards}")
        _print_planned_changes(declared_set, settings)
        _print_warnings(read_server_warnings(reader.store))
        if has_experiments:
            summary = reader.read_summary()
            _print_warnings(_find_verdict_problems(summary))
            _print_warnings(_find_undeclared_experiments(reader, settings))
            health = read_health(reader, settings, summary, wall_clock())
            _print_warnings([problem.text for problem in health.data_problems])
        return shard_count


def _print_planned_changes(declared_set: DeclaredSet, settings: Settings) -> None:
    """Print what running workers change when they read the configuration."""
    if not declared_set.is_in_force or experiments_digest(settings.experiments) == declared_set.digest:
        return
    new_set = replace_file_experiments(declared_set, settings.experiments, "the configuration", wall_clock())
    for sentence in describe_set_changes(declared_set, new_set):
        print(f"change         {sentence}")


def _find_undeclared_experiments(reader: StoreReader, settings: Settings) -> list[str]:
    """Return a sentence for each experiment that the file lacks and that is in the store or has skipped responses."""
    declared_names = [experiment.name for experiment in (*settings.experiments, *reader.experiments)]
    totals = read_skipped_events(reader.store)
    counts = totals.responses_by_name()
    stored_names = read_stored_experiments(reader.store).keys() - {*declared_names}
    sentences = [
        f"experiments: the store has the experiment {setting_text(name)}, which the file lacks; "
        f"{count_noun(counts.pop(name, 0), 'response was', 'responses were')} skipped. If the experiment was not "
        "removed on purpose, add it to the file"
        for name in sorted(stored_names)
    ]
    for name in declared_names:
        counts.pop(name, None)
    listed_counts = counts.most_common(_MAX_LISTED_EXPERIMENTS)
    for name, count in listed_counts:
        similar = find_meant_name(name, declared_names)
        hint = (
            f"see `ab-monitor experiments adopt {shlex.quote(name)}`"
            if similar is None
            else f"did you mean {setting_text(similar)}?"
        )
        sentences.append(
            f"experiments: the file lacks the experiment {setting_text(name)}, so "
            f"{count_noun(count, 'response was', 'responses were')} skipped; {hint}"
        )
    unlisted_count = counts.total() - sum(count for _, count in listed_counts)
    if totals.events:
        id_hasher = IdHasher(read_hash_key(reader.store, settings))
        unlisted_count += totals.unnamed_responses([*declared_names, *stored_names], DiscoverSettings(), id_hasher)
    if unlisted_count:
        sentences.append(
            "experiments: the file lacks further experiments, so "
            f"{count_noun(unlisted_count, 'response was', 'responses were')} skipped. "
            "Compare the field experiment of the events with experiments.name"
        )
    return sentences


def _find_verdict_problems(summary: StoreSummary) -> list[str]:
    """Return the findings on stored results that the configuration or the producers have to repair."""
    return [
        f"experiments.{name}, {treatment}: {reason.text}"
        for name, experiment in summary.experiments.items()
        if experiment.analysis is not None
        for treatment, verdict in experiment.analysis.verdicts.items()
        for reason in (*verdict.reasons, *verdict.notes)
        if reason.code in _REPAIRABLE_CODES
    ]


def _inspect_kafka(settings: Settings) -> TopicInspection:
    """Print the state of the Kafka cluster and of the configured topics; return it."""
    print(f"kafka          client {kafka_client_version(settings.kafka)}")
    inspection = inspect_kafka_topics(settings.kafka)
    for line in inspection.lines:
        print(f"kafka          {line}")
    _print_warnings(inspection.warnings)
    return inspection


def _check_topics(settings: Settings, inspection: TopicInspection, shard_count: int) -> None:
    """Raise `DependencyUnavailable` if a topic does not exist, `UsageError` if the store needs other topics."""
    if inspection.missing_topics:
        raise DependencyUnavailable(
            f"Kafka at {settings.kafka.bootstrap_servers}: {'. '.join(inspection.missing_topics)}"
        )
    if settings.kafka.client == "confluent":
        # kafka-python has made the checks above, because its errors are clearer. librdkafka has to accept the same
        # settings.
        create_consumer(settings.kafka).close({})
    if shard_count > 1:
        copartitioning = check_copartitioning(settings, shard_count)
        if copartitioning is not None:
            print(f"kafka          {copartitioning}")


def _print_warnings(problems: Sequence[str]) -> None:
    for problem in problems:
        print(f"warning        {problem}")
