"""Losses of a rebuild: detected by the first offsets in Kafka, because new events and definitions change counts."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition

from monitor.config import StoreSettings
from monitor.state import ShardedStore
from monitor.state.generations import connect_active_generation, read_generation_numbers, read_lost_events
from tests.servers.kafka import KafkaBroker
from tests.servers.redis import RedisServer
from tests.support.command import ab_monitor, eventually, service, status, write_config

_CONFIG = """
[kafka]
bootstrap_servers = "<bootstrap>"
responses_topic = "<name>.responses"
feedback_topic = "<name>.feedback"
dead_letter_topic = "<name>.dead"
group_id = "<name>"
<kafka>
[store]
url = "<store>"
[http]
port = 0
[limits]
max_items = <items>
[[experiments]]
name = "<experiment>"
control = "control"
variants = { <variants> }
<more>
"""
_DAY_S = 86_400
_NOON = 20_000 * _DAY_S + _DAY_S // 2
_ARMS = ("control", "treatment")


class RebuildHarness:
    """Kafka topics of a single partition, a store, and a configuration."""

    def __init__(self, directory: Path, broker: KafkaBroker, server: RedisServer) -> None:
        self.directory = directory
        self.broker = broker
        self.server = server
        self.name = f"losses-{time.monotonic_ns():x}"
        self.partition = f"{self.name}.responses:0"
        self.config = self.written()

    def written(self, file: str = "config.toml", **values: str) -> Path:
        """Write a configuration."""
        default_values = {
            "bootstrap": self.broker.bootstrap, "name": self.name, "store": self.server.url, "kafka": "",
            "items": "1000", "experiment": "ranker", "variants": "control = 0.5, treatment = 0.5", "more": "",
        }  # fmt: skip
        return write_config(self.directory / file, _CONFIG, list((default_values | values).items()))

    def create_topics(self, *kinds: str) -> None:
        """Create topics without retention."""
        for kind in kinds or ("responses", "feedback", "dead"):
            self.broker.create_topic(f"{self.name}.{kind}", 1, {"retention.ms": "-1"})

    def write(
        self, first: int, count: int, *, at_s: int = _NOON, record_s: int | None = None, **fields: object
    ) -> None:
        """Write responses of both variants in turn, each of another student."""
        with closing(KafkaProducer(bootstrap_servers=self.broker.bootstrap)) as producer:
            for number in range(first, first + count):
                response: dict[str, Any] = {
                    "response_id": f"r-{number}",
                    "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at_s)),
                    "user_id": f"s-{number}",
                    "experiment": "ranker",
                    "variant": _ARMS[number % 2],
                    "items": [{"item_id": "a", "position": 1}],
                }
                producer.send(
                    f"{self.name}.responses",
                    json.dumps(response | fields).encode(),
                    timestamp_ms=None if record_s is None else record_s * 1000,
                )
            producer.flush()

    def delete(self, before: int) -> None:
        """Delete the responses before an offset from Kafka, as retention does."""
        with KafkaAdminClient(bootstrap_servers=self.broker.bootstrap) as admin:
            admin.delete_records({TopicPartition(f"{self.name}.responses", 0): before})

    def recreate_topic(self) -> None:
        """Delete and recreate the topic of responses."""
        topic = f"{self.name}.responses"
        with KafkaAdminClient(bootstrap_servers=self.broker.bootstrap) as admin:
            admin.delete_topics([topic])
            eventually("the topic is gone", lambda: admin.describe_topics([topic])[0]["error_code"])
        self.create_topics("responses")

    def apply(self, until: int, config: Path | None = None) -> None:
        """Run the service until the responses before an offset are applied."""
        with service(config or self.config, self.directory / "run.log"):
            eventually(f"{until} are applied", lambda: self._has_applied(until))

    def _has_applied(self, until: int) -> bool:
        with self.live() as store:
            position = store.read_positions().get(self.partition)
        return position is not None and position.next_offset >= until

    @contextmanager
    def live(self) -> Iterator[ShardedStore]:
        """Yield the active generation."""
        store = connect_active_generation(StoreSettings(url=self.server.url))
        with closing(store):
            yield store

    def lost(self) -> Mapping[str, int]:
        """Return the active generation's lost events, with P for the name of the partition."""
        with self.live() as store:
            return {name.replace(self.partition, "P"): count for name, count in read_lost_events(store).items()}

    def number(self) -> int:
        """Return the number of the active generation."""
        with self.live() as store:
            return store.active_generation

    def rebuild(self, *options: str, config: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run the command."""
        return ab_monitor("rebuild", "--config", config or self.config, *options)

    def counted(self) -> int:
        """Return the number of responses that the active generation counts."""
        variants = status(self.config)["experiments"]["ranker"]["variants"].values()
        return sum(variant_status["responses"] for variant_status in variants)

    def evidence(self) -> int:
        """Return the lost events in the evidence of the verdict; any lost event makes the verdict invalid."""
        verdict = ab_monitor("verdict", "ranker", "--config", self.config, "--json")
        assert verdict.returncode == 0, verdict.stderr
        return int(json.loads(verdict.stdout)["verdict"]["treatment"]["evidence"]["lost_events"])

    def letters(self) -> int:
        """Return the number of dead letters."""
        with closing(KafkaConsumer(bootstrap_servers=self.broker.bootstrap)) as consumer:
            return int(sum(consumer.end_offsets([TopicPartition(f"{self.name}.dead", 0)]).values()))


@pytest.fixture
def empty_harness(tmp_path: Path, kafka: KafkaBroker, redis_server: RedisServer) -> RebuildHarness:
    """Return a harness without topics."""
    redis_server.client().flushall()
    return RebuildHarness(tmp_path, kafka, redis_server)


@pytest.fixture
def harness(empty_harness: RebuildHarness) -> RebuildHarness:
    """Return a harness with topics and forty applied responses."""
    empty_harness.create_topics()
    empty_harness.write(0, 40)
    empty_harness.apply(40)
    return empty_harness


class TestMissingExperiments:
    """The file lacks an experiment or a variant of the active generation."""

    def test_an_experiment_is_dropped_only_with_drop_missing(self, harness: RebuildHarness) -> None:
        """The name of the experiment may be misspelt in the file."""
        other_config = harness.written("other.toml", experiment="rankr")
        rejected_rebuild = harness.rebuild(config=other_config)
        assert rejected_rebuild.returncode == 2
        assert (
            "other.toml: the file lacks experiments or variants of the active generation: " in rejected_rebuild.stderr
        )
        assert "ranker (40 responses)" in rejected_rebuild.stderr
        assert "--drop-missing" in rejected_rebuild.stderr
        assert rejected_rebuild.stderr.count("\n") == 1
        with harness.live() as store:
            assert read_generation_numbers(store) == {0}
        assert harness.rebuild("--drop-missing", config=other_config).returncode == 0
        assert (harness.number(), harness.lost()) == (1, {})

    def test_a_variant_is_dropped_only_with_drop_missing(self, harness: RebuildHarness) -> None:
        """The experiment is in the file."""
        other_config = harness.written("other.toml", variants="control = 0.5, treatmnt = 0.5")
        rejected_rebuild = harness.rebuild(config=other_config)
        assert rejected_rebuild.returncode == 2
        assert "ranker / treatment (20 responses)" in rejected_rebuild.stderr
        accepted_rebuild = harness.rebuild("--drop-missing", config=other_config)
        assert accepted_rebuild.returncode == 0, accepted_rebuild.stderr
        assert (harness.number(), harness.lost()) == (1, {})

    def test_an_experiment_without_responses_is_dropped_without_a_flag(self, harness: RebuildHarness) -> None:
        """No responses are dropped."""
        more = '[[experiments]]\nname = "later"\ncontrol = "a"\nvariants = { a = 0.5, b = 0.5 }'
        harness.apply(40, harness.written("more.toml", more=more))
        finished_rebuild = harness.rebuild()
        assert finished_rebuild.returncode == 0, finished_rebuild.stderr


class TestMissingOffsets:
    """Kafka's first offset is later than that of the active generation."""

    def test_new_events_do_not_hide_a_loss(self, harness: RebuildHarness) -> None:
        """An accepted loss is counted as lost, and the next rebuild needs no second consent."""
        harness.write(40, 100)
        harness.delete(10)
        rejected_rebuild = harness.rebuild()
        assert rejected_rebuild.returncode == 6
        missing_offsets = (
            "10 offsets that the active generation has read are missing in the new generation, which begins at offset "
            "10 instead of 0"
        )
        expected_line = f"{harness.partition}: {missing_offsets}"
        assert expected_line in rejected_rebuild.stderr
        assert "ranker / control: responses" in rejected_rebuild.stdout
        assert (harness.number(), harness.counted()) == (0, 40)
        accepted_rebuild = harness.rebuild("--accept-loss")
        assert accepted_rebuild.returncode == 0, accepted_rebuild.stderr
        assert expected_line in accepted_rebuild.stdout
        assert (harness.number(), harness.counted(), harness.lost()) == (1, 130, {"<P": 10})
        assert harness.evidence() == 10
        repeated_rebuild = harness.rebuild()
        assert repeated_rebuild.returncode == 0, repeated_rebuild.stderr
        assert harness.lost() == {"<P": 10}
        harness.delete(15)
        rejected_rebuild = harness.rebuild()
        assert rejected_rebuild.returncode == 6
        assert f"{harness.partition}: 5 offsets" in rejected_rebuild.stderr

    def test_fewer_responses_are_explained_by_narrower_definitions(self, harness: RebuildHarness) -> None:
        """The switch needs no consent."""
        harness.write(40, 10, at_s=_NOON + 2 * _DAY_S)
        harness.apply(50)
        start = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(_NOON + _DAY_S))
        other_config = harness.written("other.toml", more=f"starts_at = {start}")
        finished_rebuild = harness.rebuild(config=other_config)
        assert finished_rebuild.returncode == 0, finished_rebuild.stderr
        assert (
            "ranker / control: 20 responses fewer, because definitions have changed: ranker.starts_at: not set in the "
            f"store, {start.replace('Z', '+00:00')} in the file"
        ) in finished_rebuild.stdout
        assert harness.lost() == {}

    def test_fewer_responses_are_not_explained_by_unrelated_definitions(self, harness: RebuildHarness) -> None:
        """Another gain counts the same responses; tighter limits reject responses."""
        other_config = harness.written("other.toml", more='gain = "exp2"', items="1")
        harness.write(40, 10, items=[{"item_id": "a", "position": 1}, {"item_id": "b", "position": 2}])
        harness.apply(50)
        rejected_rebuild = harness.rebuild(config=other_config)
        assert rejected_rebuild.returncode == 6
        assert "ranker / control: 5 responses fewer" in rejected_rebuild.stderr
        assert "lower values of limits or allowed_lateness" in rejected_rebuild.stderr
        assert harness.rebuild("--accept-loss", config=other_config).returncode == 0
        assert harness.lost() == {"ranker/control": 5, "ranker/treatment": 5}
        # By offsets everything is there: what was counted by number is not carried along.
        assert harness.rebuild(config=harness.written("other.toml", more='gain = "exp2"')).returncode == 0
        assert harness.lost() == {}

    def test_a_later_start_in_the_configuration_is_a_loss(self, harness: RebuildHarness) -> None:
        """The rebuild does not read the earlier events, although Kafka still has the events."""
        start = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + _DAY_S))
        harness.written(kafka=f'start = "{start}"')
        rejected_rebuild = harness.rebuild()
        assert rejected_rebuild.returncode == 6
        assert (
            f"{harness.partition}: 40 offsets that the active generation has read are missing"
            in rejected_rebuild.stderr
        )
        assert harness.rebuild("--accept-loss").returncode == 0
        assert harness.lost() == {"<P": 40}

    def test_records_deleted_before_the_start_of_the_experiment_are_no_loss(
        self, empty_harness: RebuildHarness
    ) -> None:
        """A store that has been in use for long began at offsets that retention has deleted."""
        empty_harness.create_topics()
        empty_harness.write(0, 10, experiment="another", at_s=_NOON - 30 * _DAY_S, record_s=_NOON - 30 * _DAY_S)
        empty_harness.write(10, 10, experiment="another", at_s=_NOON - 5 * _DAY_S, record_s=_NOON - 5 * _DAY_S)
        empty_harness.write(20, 10, record_s=_NOON)
        empty_harness.apply(30)
        empty_harness.delete(15)
        finished_rebuild = empty_harness.rebuild()
        assert finished_rebuild.returncode == 0, finished_rebuild.stderr
        assert (empty_harness.number(), empty_harness.counted(), empty_harness.lost()) == (1, 10, {})
        # Now the deleted records may belong to the experiment.
        empty_harness.delete(20)
        rejected_rebuild = empty_harness.rebuild()
        assert rejected_rebuild.returncode == 6
        assert f"{empty_harness.partition}: 5 offsets" in rejected_rebuild.stderr
        assert "which begins at offset 20 instead of 15" in rejected_rebuild.stderr


class TestEarlierLosses:
    """The active generation has lost events itself."""

    @pytest.fixture
    def lossy_harness(self, empty_harness: RebuildHarness) -> RebuildHarness:
        """Return a harness with thirty responses: ten applied, ten lost, ten applied."""
        empty_harness.create_topics()
        empty_harness.written(kafka='on_lost_history = "continue"')
        empty_harness.write(0, 10)
        empty_harness.apply(10)
        empty_harness.write(10, 10)
        empty_harness.delete(20)
        empty_harness.write(20, 10)
        empty_harness.apply(30)
        assert (empty_harness.counted(), empty_harness.lost()) == (20, {"P": 10})
        return empty_harness

    def test_earlier_losses_are_added_to_new_losses(self, lossy_harness: RebuildHarness) -> None:
        """Events that the active generation had read before are added."""
        rejected_rebuild = lossy_harness.rebuild()
        assert rejected_rebuild.returncode == 6
        assert f"{lossy_harness.partition}: 10 offsets" in rejected_rebuild.stderr
        accepted_rebuild = lossy_harness.rebuild("--accept-loss")
        assert accepted_rebuild.returncode == 0, accepted_rebuild.stderr
        assert (lossy_harness.counted(), lossy_harness.lost()) == (10, {"<P": 20})
        assert lossy_harness.evidence() == 20

    def test_earlier_losses_alone_need_no_consent(self, empty_harness: RebuildHarness) -> None:
        """The new generation has the same events, and verdicts remain invalid."""
        empty_harness.create_topics()
        empty_harness.written(kafka='on_lost_history = "continue"')
        empty_harness.apply(0)
        empty_harness.write(0, 10)
        empty_harness.delete(10)
        empty_harness.write(10, 10)
        empty_harness.apply(20)
        assert empty_harness.lost() == {"P": 10}
        finished_rebuild = empty_harness.rebuild()
        assert finished_rebuild.returncode == 0, finished_rebuild.stderr
        assert (empty_harness.number(), empty_harness.counted(), empty_harness.lost()) == (1, 10, {"<P": 10})
        assert empty_harness.evidence() == 10

    def test_earlier_losses_remain_in_a_recreated_topic(self, lossy_harness: RebuildHarness) -> None:
        """As after a move to another cluster: counts cannot show whether the new topic has the lost events."""
        lossy_harness.recreate_topic()
        lossy_harness.write(0, 10)
        lossy_harness.write(20, 10)
        finished_rebuild = lossy_harness.rebuild()
        assert finished_rebuild.returncode == 0, finished_rebuild.stderr
        assert (lossy_harness.number(), lossy_harness.counted(), lossy_harness.lost()) == (1, 20, {"<P": 10})
        lossy_harness.recreate_topic()
        lossy_harness.write(0, 30)
        assert lossy_harness.rebuild().returncode == 0
        assert (lossy_harness.number(), lossy_harness.counted(), lossy_harness.lost()) == (2, 30, {"<P": 10})

    def test_a_shorter_log_of_a_recreated_topic_is_not_unread(self, lossy_harness: RebuildHarness) -> None:
        """Offsets of another log do not show unread records."""
        lossy_harness.recreate_topic()
        lossy_harness.write(0, 5)
        rejected_rebuild = lossy_harness.rebuild()
        assert rejected_rebuild.returncode == 6
        assert "ranker / control: 7 responses fewer" in rejected_rebuild.stderr

    def test_a_recreated_topic_is_compared_by_counts(self, lossy_harness: RebuildHarness) -> None:
        """Offsets of another log cannot be compared, and definitions do not explain the difference."""
        lossy_harness.recreate_topic()
        lossy_harness.write(0, 30, variant="control")
        lossy_harness.write(30, 4, variant="treatment")
        other_config = lossy_harness.written("other.toml", more='gain = "exp2"')
        rejected_rebuild = lossy_harness.rebuild(config=other_config)
        assert rejected_rebuild.returncode == 6
        assert "ranker / treatment: 6 responses fewer" in rejected_rebuild.stderr
        assert "another log" in rejected_rebuild.stderr
        assert lossy_harness.rebuild("--accept-loss", config=other_config).returncode == 0
        assert lossy_harness.lost() == {"ranker/treatment": 6, "<P": 10}
        # Further missing responses are added.
        lossy_harness.recreate_topic()
        lossy_harness.write(0, 30, variant="control")
        assert lossy_harness.rebuild("--accept-loss", config=other_config).returncode == 0
        assert lossy_harness.lost() == {"ranker/treatment": 10, "<P": 10}


class TestRejectedRecords:
    """Records that the limits of the file reject."""

    def test_unread_rejected_records_get_dead_letters(self, harness: RebuildHarness) -> None:
        """The printed line has the number of records that the active generation has read."""
        harness.write(40, 2, items=[{"item_id": "a", "position": 1}, {"item_id": "b", "position": 2}])
        harness.write(42, 1, variant=7)
        harness.apply(43)
        assert harness.letters() == 1
        harness.write(43, 1, variant=7)
        finished_rebuild = harness.rebuild("--accept-loss", config=harness.written("other.toml", items="1"))
        assert finished_rebuild.returncode == 0, finished_rebuild.stderr
        line = next(line for line in finished_rebuild.stdout.splitlines() if "rejected" in line)
        assert line.startswith("4 records are rejected under this configuration (")
        assert "The active generation has read 3 of these records: " in line
        assert line.endswith("that the active generation has not read, 1 is in the dead-letter topic now.")
        assert harness.letters() == 2


class TestUnfinishedRebuild:
    """The command ends before the switch."""

    def test_a_signal_stops_the_rebuild_with_its_exit_code(self, harness: RebuildHarness) -> None:
        """A second run continues the rebuild."""
        with KafkaAdminClient(bootstrap_servers=harness.broker.bootstrap) as admin:
            admin.delete_topics([f"{harness.name}.dead"])
        # The worker waits, because the dead-letter topic does not exist.
        harness.write(40, 1, variant=7)
        command = [sys.executable, "-m", "monitor", "rebuild", "--config", str(harness.config)]
        log = harness.directory / "rebuild.log"
        for number in (signal.SIGTERM, signal.SIGINT):
            with log.open("wb") as stream, subprocess.Popen(command, stdout=stream, stderr=stream) as process:
                try:
                    eventually("it waits", lambda: "paused reason" in log.read_text())
                    process.send_signal(number)
                    assert process.wait(60) == 128 + number
                finally:
                    process.kill()
            assert "stopped. The same command continues from here" in log.read_text()
        assert harness.number() == 0
        harness.create_topics("dead")
        assert harness.rebuild().returncode == 0
        assert harness.number() == 1

    def test_missing_topics_end_the_rebuild_at_once(self, empty_harness: RebuildHarness) -> None:
        """Without topics the rebuild could not end."""
        empty_harness.create_topics("responses")
        started = time.monotonic()
        finished_rebuild = empty_harness.rebuild()
        assert time.monotonic() - started < 30
        assert finished_rebuild.returncode == 3
        assert (
            f"Kafka at {empty_harness.broker.bootstrap}: topic {empty_harness.name}.feedback does not exist. A rebuild"
            in finished_rebuild.stderr
        )
        assert finished_rebuild.stderr.count("\n") == 1
