"""What a rebuilt generation lacks: told by where Kafka begins, not by counts, which new events and definitions move."""

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
from monitor.state import Shards
from monitor.state.generations import generation_numbers, live_store, lost_events
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


class Ground:
    """Topics of one partition each, a store, and a configuration."""

    def __init__(self, directory: Path, broker: KafkaBroker, server: RedisServer) -> None:
        self.directory = directory
        self.broker = broker
        self.server = server
        self.name = f"losses-{time.monotonic_ns():x}"
        self.partition = f"{self.name}.responses:0"
        self.config = self.written()
        self._said = 0

    def written(self, file: str = "config.toml", **values: str) -> Path:
        """Write a configuration."""
        known = {
            "bootstrap": self.broker.bootstrap, "name": self.name, "store": self.server.url, "kafka": "",
            "items": "1000", "experiment": "ranker", "variants": "control = 0.5, treatment = 0.5", "more": "",
        }  # fmt: skip
        return write_config(self.directory / file, _CONFIG, list((known | values).items()))

    def create_topics(self, *kinds: str) -> None:
        """Create topics that keep what is old."""
        for kind in kinds or ("responses", "feedback", "dead"):
            self.broker.create_topic(f"{self.name}.{kind}", 1, {"retention.ms": "-1"})

    def write(
        self, first: int, count: int, *, at_s: int = _NOON, record_s: int | None = None, **fields: object
    ) -> None:
        """Write responses, of both variants in turn and each of a student of its own."""
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
        """Have Kafka delete responses, as retention does."""
        with KafkaAdminClient(bootstrap_servers=self.broker.bootstrap) as admin:
            admin.delete_records({TopicPartition(f"{self.name}.responses", 0): before})

    def create_anew(self) -> None:
        """Delete the topic of responses and create it."""
        topic = f"{self.name}.responses"
        with KafkaAdminClient(bootstrap_servers=self.broker.bootstrap) as admin:
            admin.delete_topics([topic])
            eventually("the topic is gone", lambda: admin.describe_topics([topic])[0]["error_code"])
        self.create_topics("responses")

    def apply(self, until: int, config: Path | None = None) -> None:
        """Run the service until it has applied the responses before an offset."""
        with service(config or self.config, self.directory / "run.log"):
            eventually(f"{until} are applied", lambda: self._reached(until))

    def _reached(self, until: int) -> bool:
        with self.live() as store:
            held = store.positions().get(self.partition)
        return held is not None and held.next_offset >= until

    @contextmanager
    def live(self) -> Iterator[Shards]:
        """Yield the live generation."""
        store = live_store(StoreSettings(url=self.server.url))
        with closing(store):
            yield store

    def lost(self) -> Mapping[str, int]:
        """Return the live generation's lost events, without the topic's name."""
        with self.live() as store:
            return {name.replace(self.partition, "P"): count for name, count in lost_events(store).items()}

    def number(self) -> int:
        """Return the number of the live generation."""
        with self.live() as store:
            return store.live

    def rebuild(self, *options: str, config: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run the command."""
        return ab_monitor("rebuild", "--config", config or self.config, *options)

    def counted(self) -> int:
        """Return the responses that the live generation counts."""
        variants = status(self.config)["experiments"]["ranker"]["variants"].values()
        return sum(each["responses"] for each in variants)

    def evidence(self) -> int:
        """Return the lost events that verdicts go by: any make them invalid."""
        done = ab_monitor("verdict", "ranker", "--config", self.config, "--json")
        assert done.returncode == 0, done.stderr
        return int(json.loads(done.stdout)["verdict"]["treatment"]["evidence"]["lost_events"])

    def letters(self) -> int:
        """Return the number of dead letters."""
        with closing(KafkaConsumer(bootstrap_servers=self.broker.bootstrap)) as consumer:
            return int(sum(consumer.end_offsets([TopicPartition(f"{self.name}.dead", 0)]).values()))


@pytest.fixture
def bare(tmp_path: Path, kafka: KafkaBroker, redis_server: RedisServer) -> Ground:
    """Return a ground without topics."""
    redis_server.client().flushall()
    return Ground(tmp_path, kafka, redis_server)


@pytest.fixture
def ground(bare: Ground) -> Ground:
    """Return one with topics and forty responses applied."""
    bare.create_topics()
    bare.write(0, 40)
    bare.apply(40)
    return bare


class TestNames:
    """The file leaves something out that there are responses of."""

    def test_an_experiment_is_asked_for(self, ground: Ground) -> None:
        """A misspelt name would drop it."""
        other = ground.written("other.toml", experiment="rankr")
        refused = ground.rebuild(config=other)
        assert refused.returncode == 2
        assert "other.toml: expected the live generation's experiments" in refused.stderr
        assert "ranker (40 responses)" in refused.stderr
        assert "--leave-out" in refused.stderr
        assert refused.stderr.count("\n") == 1
        with ground.live() as store:
            assert generation_numbers(store) == {0}
        assert ground.rebuild("--leave-out", config=other).returncode == 0
        assert (ground.number(), ground.lost()) == (1, {})

    def test_a_variant_is_asked_for(self, ground: Ground) -> None:
        """Of an experiment that stays."""
        other = ground.written("other.toml", variants="control = 0.5, treatmnt = 0.5")
        refused = ground.rebuild(config=other)
        assert refused.returncode == 2
        assert "ranker / treatment (20 responses)" in refused.stderr
        accepted = ground.rebuild("--leave-out", config=other)
        assert accepted.returncode == 0, accepted.stderr
        assert (ground.number(), ground.lost()) == (1, {})

    def test_what_has_no_responses_goes_without_a_question(self, ground: Ground) -> None:
        """Nothing is left out."""
        more = '[[experiments]]\nname = "later"\ncontrol = "a"\nvariants = { a = 0.5, b = 0.5 }'
        ground.apply(40, ground.written("more.toml", more=more))
        done = ground.rebuild()
        assert done.returncode == 0, done.stderr


class TestOffsets:
    """Kafka begins later than the live generation did."""

    def test_new_events_hide_no_loss(self, ground: Ground) -> None:
        """What is accepted counts as lost, is remembered by the next rebuild, and is not asked for again."""
        ground.write(40, 100)
        ground.delete(10)
        refused = ground.rebuild()
        assert refused.returncode == 6
        gone = "10 offsets that the live generation has read are not there: it began at 0, a rebuild begins at 10"
        said = f"{ground.partition}: {gone}"
        assert said in refused.stderr
        assert "ranker / control: responses" in refused.stdout
        assert (ground.number(), ground.counted()) == (0, 40)
        accepted = ground.rebuild("--accept-loss")
        assert accepted.returncode == 0, accepted.stderr
        assert said in accepted.stdout
        assert (ground.number(), ground.counted(), ground.lost()) == (1, 130, {"<P": 10})
        assert ground.evidence() == 10
        again = ground.rebuild()
        assert again.returncode == 0, again.stderr
        assert ground.lost() == {"<P": 10}
        ground.delete(15)
        refused = ground.rebuild()
        assert refused.returncode == 6
        assert f"{ground.partition}: 5 offsets" in refused.stderr

    def test_definitions_that_count_less_are_explained(self, ground: Ground) -> None:
        """Nothing is missing: it needs no consent."""
        ground.write(40, 10, at_s=_NOON + 2 * _DAY_S)
        ground.apply(50)
        start = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(_NOON + _DAY_S))
        other = ground.written("other.toml", more=f"starts_at = {start}")
        done = ground.rebuild(config=other)
        assert done.returncode == 0, done.stderr
        assert (
            "ranker / control: 20 responses fewer: these definitions count less: ranker.starts_at_ms: the store was "
            "made with None, this file says"
        ) in done.stdout
        assert ground.lost() == {}

    def test_definitions_that_do_not_decide_how_many_explain_nothing(self, ground: Ground) -> None:
        """Another gain counts the same responses: it is the limits that do not let them in."""
        other = ground.written("other.toml", more='gain = "exp2"', items="1")
        ground.write(40, 10, items=[{"item_id": "a", "position": 1}, {"item_id": "b", "position": 2}])
        ground.apply(50)
        refused = ground.rebuild(config=other)
        assert refused.returncode == 6
        assert "ranker / control: 5 responses fewer" in refused.stderr
        assert "are limits or allowed_lateness tighter?" in refused.stderr
        assert ground.rebuild("--accept-loss", config=other).returncode == 0
        assert ground.lost() == {"ranker/control": 5, "ranker/treatment": 5}
        # By offsets everything is there: what was counted by number is not carried along.
        assert ground.rebuild(config=ground.written("other.toml", more='gain = "exp2"')).returncode == 0
        assert ground.lost() == {}

    def test_where_the_file_begins_later_is_a_loss(self, ground: Ground) -> None:
        """Nobody has read it, whether Kafka has it or not."""
        start = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + _DAY_S))
        ground.written(kafka=f'start = "{start}"')
        refused = ground.rebuild()
        assert refused.returncode == 6
        assert f"{ground.partition}: 40 offsets that the live generation has read are not there" in refused.stderr
        assert ground.rebuild("--accept-loss").returncode == 0
        assert ground.lost() == {"<P": 40}

    def test_what_retention_took_before_the_experiment_began_is_no_loss(self, bare: Ground) -> None:
        """A store that has long been in use began where Kafka has nothing any more."""
        bare.create_topics()
        bare.write(0, 10, experiment="another", at_s=_NOON - 30 * _DAY_S, record_s=_NOON - 30 * _DAY_S)
        bare.write(10, 10, experiment="another", at_s=_NOON - 5 * _DAY_S, record_s=_NOON - 5 * _DAY_S)
        bare.write(20, 10, record_s=_NOON)
        bare.apply(30)
        bare.delete(15)
        done = bare.rebuild()
        assert done.returncode == 0, done.stderr
        assert (bare.number(), bare.counted(), bare.lost()) == (1, 10, {})
        # Now the first ones may have been the experiment's.
        bare.delete(20)
        refused = bare.rebuild()
        assert refused.returncode == 6
        assert f"{bare.partition}: 5 offsets" in refused.stderr
        assert "it began at 15, a rebuild begins at 20" in refused.stderr


class TestLostBefore:
    """The live generation had lost events itself."""

    @pytest.fixture
    def lossy(self, bare: Ground) -> Ground:
        """Return a ground of thirty responses: ten applied, ten lost, ten applied."""
        bare.create_topics()
        bare.written(kafka='on_lost_history = "continue"')
        bare.write(0, 10)
        bare.apply(10)
        bare.write(10, 10)
        bare.delete(20)
        bare.write(20, 10)
        bare.apply(30)
        assert (bare.counted(), bare.lost()) == (20, {"P": 10})
        return bare

    def test_they_stay_lost_where_kafka_does_not_have_them(self, lossy: Ground) -> None:
        """Those that it had read before come on top."""
        refused = lossy.rebuild()
        assert refused.returncode == 6
        assert f"{lossy.partition}: 10 offsets" in refused.stderr
        accepted = lossy.rebuild("--accept-loss")
        assert accepted.returncode == 0, accepted.stderr
        assert (lossy.counted(), lossy.lost()) == (10, {"<P": 20})
        assert lossy.evidence() == 20

    def test_they_alone_need_no_consent(self, bare: Ground) -> None:
        """The rebuilt generation has what the live one has, and no verdict becomes valid by it."""
        bare.create_topics()
        bare.written(kafka='on_lost_history = "continue"')
        bare.apply(0)
        bare.write(0, 10)
        bare.delete(10)
        bare.write(10, 10)
        bare.apply(20)
        assert bare.lost() == {"P": 10}
        done = bare.rebuild()
        assert done.returncode == 0, done.stderr
        assert (bare.number(), bare.counted(), bare.lost()) == (1, 10, {"<P": 10})
        assert bare.evidence() == 10

    def test_they_stay_lost_in_a_topic_created_anew(self, lossy: Ground) -> None:
        """As after a move to another cluster: whether what it has are those, numbers cannot say."""
        lossy.create_anew()
        lossy.write(0, 10)
        lossy.write(20, 10)
        done = lossy.rebuild()
        assert done.returncode == 0, done.stderr
        assert (lossy.number(), lossy.counted(), lossy.lost()) == (1, 20, {"<P": 10})
        lossy.create_anew()
        lossy.write(0, 30)
        assert lossy.rebuild().returncode == 0
        assert (lossy.number(), lossy.counted(), lossy.lost()) == (2, 30, {"<P": 10})

    def test_a_shorter_log_is_not_taken_for_one_that_is_still_being_read(self, lossy: Ground) -> None:
        """Offsets of another log say nothing of how far it is."""
        lossy.create_anew()
        lossy.write(0, 5)
        refused = lossy.rebuild()
        assert refused.returncode == 6
        assert "ranker / control: 7 responses fewer" in refused.stderr

    def test_a_log_that_offsets_say_nothing_of_is_compared_by_counts(self, lossy: Ground) -> None:
        """Whatever the definitions are."""
        lossy.create_anew()
        lossy.write(0, 30, variant="control")
        lossy.write(30, 4, variant="treatment")
        other = lossy.written("other.toml", more='gain = "exp2"')
        refused = lossy.rebuild(config=other)
        assert refused.returncode == 6
        assert "ranker / treatment: 6 responses fewer" in refused.stderr
        assert "another log" in refused.stderr
        assert lossy.rebuild("--accept-loss", config=other).returncode == 0
        assert lossy.lost() == {"ranker/treatment": 6, "<P": 10}
        # What is missing besides comes on top.
        lossy.create_anew()
        lossy.write(0, 30, variant="control")
        assert lossy.rebuild("--accept-loss", config=other).returncode == 0
        assert lossy.lost() == {"ranker/treatment": 10, "<P": 10}


class TestRefused:
    """Messages that the file's limits do not let in."""

    def test_the_line_says_who_has_read_them(self, ground: Ground) -> None:
        """And those that nobody has get their dead letters: the switch goes past them."""
        ground.write(40, 2, items=[{"item_id": "a", "position": 1}, {"item_id": "b", "position": 2}])
        ground.write(42, 1, variant=7)
        ground.apply(43)
        assert ground.letters() == 1
        ground.write(43, 1, variant=7)
        done = ground.rebuild("--accept-loss", config=ground.written("other.toml", items="1"))
        assert done.returncode == 0, done.stderr
        line = next(line for line in done.stdout.splitlines() if "refused" in line)
        assert line.startswith("4 messages are refused under this file (")
        assert "The live generation has read 3 of them" in line
        assert line.endswith("1 that it has not read have dead letters now.")
        assert ground.letters() == 2


class TestEnds:
    """How the command ends when it is not done."""

    def test_a_signal_is_no_success(self, ground: Ground) -> None:
        """It goes on afterwards."""
        with KafkaAdminClient(bootstrap_servers=ground.broker.bootstrap) as admin:
            admin.delete_topics([f"{ground.name}.dead"])
        # Without a place for the dead letter it waits.
        ground.write(40, 1, variant=7)
        command = [sys.executable, "-m", "monitor", "rebuild", "--config", str(ground.config)]
        log = ground.directory / "rebuild.log"
        for number in (signal.SIGTERM, signal.SIGINT):
            with log.open("wb") as stream, subprocess.Popen(command, stdout=stream, stderr=stream) as process:
                try:
                    eventually("it waits", lambda: "paused reason" in log.read_text())
                    process.send_signal(number)
                    assert process.wait(60) == 128 + number
                finally:
                    process.kill()
            assert "stopped; the same command goes on from here" in log.read_text()
        assert ground.number() == 0
        ground.create_topics("dead")
        assert ground.rebuild().returncode == 0
        assert ground.number() == 1

    def test_topics_that_do_not_exist_are_not_waited_for(self, bare: Ground) -> None:
        """Nothing would ever come."""
        bare.create_topics("responses")
        started = time.monotonic()
        done = bare.rebuild()
        assert time.monotonic() - started < 30
        assert done.returncode == 3
        assert f"Kafka at {bare.broker.bootstrap}: no topic {bare.name}.feedback; a rebuild reads" in done.stderr
        assert done.stderr.count("\n") == 1
