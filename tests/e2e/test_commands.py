"""The command line as a user meets it: the README's examples, exit codes, one readable line for every mistake."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from kafka import KafkaConsumer, KafkaProducer

from monitor.config import StoreSettings
from monitor.state import Keys, served
from monitor.state.redis_connection import connect
from tests.servers.kafka import KafkaBroker
from tests.servers.redis import RedisServer, redis_binary
from tests.support.command import ab_monitor, eventually, get, service, status, write_config
from tests.unit.events.test_decoding import FEEDBACK, RESPONSE

ROOT = Path(__file__).parents[2]
CONFIG = """
[kafka]
bootstrap_servers = "<bootstrap>"
responses_topic = "<name>.responses"
feedback_topic = "<name>.feedback"
dead_letter_topic = "<name>.dead"
group_id = "<name>"
[store]
url = "<store>"
[http]
port = <port>
[limits]
max_refused_run = 20
[[experiments]]
name = "ranker"
control = "control"
variants = { control = 0.5, treatment = 0.5 }
"""


def _config(directory: Path, store: str, bootstrap: str = "127.0.0.1:1", name: str = "none", port: int = 0) -> Path:
    values = [("store", store), ("bootstrap", bootstrap), ("name", name), ("port", str(port))]
    return write_config(directory / "config.toml", CONFIG, values)


class TestReadme:
    """What the README says can be typed."""

    def test_the_examples_run(self, tmp_path: Path) -> None:
        """Every line of the section on your own events ends well, and the last ones show the variants."""
        text = (ROOT / "README.md").read_text()
        (block,) = re.findall(r"## On your own events\n\n```sh\n(.*?)```", text, re.DOTALL)
        script = f'set -e\nab-monitor() {{ {sys.executable} -m monitor "$@"; }}\n{block}'
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "120"},
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("treatment") >= 3

    def test_the_configuration_is_valid(self, tmp_path: Path) -> None:
        """The example of a real Kafka is a configuration: only the cluster is missing."""
        text = (ROOT / "README.md").read_text()
        (block,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
        path = tmp_path / "config.toml"
        path.write_text(block)
        done = ab_monitor("evaluate", "--config", path, "-", stdin=json.dumps(RESPONSE).encode())
        assert done.returncode == 0, done.stderr


def test_a_demo_ends_with_commands_that_can_be_typed() -> None:
    """Also where a shell does not find the program by its name."""
    paths = os.pathsep.join(
        each for each in os.environ["PATH"].split(os.pathsep) if not Path(each, "ab-monitor").exists()
    )
    flags = ("--speed", "100000000", "--responses", "500", "--students", "100", "--port", "0")
    done = ab_monitor("demo", *flags, environ={"PATH": paths})
    assert done.returncode == 0, done.stderr
    proposed = [line.split()[:2] for line in done.stdout.partition("\nNext:\n")[2].splitlines()]
    assert [command for _, command in proposed] == ["demo", "simulate", "check", "run"]
    for program, command in proposed:
        subprocess.run([program, command, "--help"], check=True, capture_output=True, timeout=60)


class TestMistakes:
    """One line, and the exit code that the README promises."""

    def test_a_wrong_configuration_is_2(self, tmp_path: Path) -> None:
        """Key, value, expectation."""
        done = ab_monitor("run", "--config", _config(tmp_path, "redis://127.0.0.1:1/0", port=70_000))
        assert done.returncode == 2
        assert done.stderr == "ab-monitor: http.port: got 70000, expected an integer from 0 to 65535\n"

    @pytest.mark.parametrize("command", ["run", "status", "check"])
    def test_no_store_is_3(self, tmp_path: Path, command: str) -> None:
        """The place is named."""
        done = ab_monitor(command, "--config", _config(tmp_path, "redis://127.0.0.1:1/0"))
        assert done.returncode == 3
        assert done.stderr.splitlines()[-1].startswith("ab-monitor: store at 127.0.0.1:1/0:")

    def test_a_check_says_of_both_what_is_wrong(self, tmp_path: Path) -> None:
        """Whoever sets up a deployment need not mend one to hear of the other."""
        done = ab_monitor("check", "--config", _config(tmp_path, "redis://127.0.0.1:1/0"))
        assert "\nkafka          failed: Kafka at 127.0.0.1:1:" in done.stdout
        assert done.stderr.startswith("ab-monitor: store at 127.0.0.1:1/0:")

    def test_a_check_of_an_empty_store_says_so(self, tmp_path: Path, redis_server: RedisServer) -> None:
        """There is nothing that could agree."""
        redis_server.client().flushall()
        done = ab_monitor("check", "--config", _config(tmp_path, redis_server.url))
        assert "store          ok: reachable, no experiment in it yet\n" in done.stdout

    @pytest.mark.parametrize("flag", ["--responses", "--students"])
    @pytest.mark.parametrize("command", [["simulate", "--out", "-"], ["demo", "--port", "0"]])
    def test_no_machine_simulates_as_many_as_that(self, command: list[str], flag: str) -> None:
        """It is said before memory runs out."""
        done = ab_monitor(*command, flag, "9" * 21)
        assert done.returncode == 2
        assert f"{flag.removeprefix('--')}: got {'9' * 21}, expected 1 to 100000000" in done.stderr
        assert "Traceback" not in done.stderr

    def test_a_rebuild_without_kafka_is_3_at_once(self, tmp_path: Path) -> None:
        """As every other command says it: that nobody listens there."""
        done = ab_monitor("rebuild", "--config", _config(tmp_path, f"embedded:{tmp_path / 'store'}"))
        assert (done.returncode, "Kafka at 127.0.0.1:1: [Errno 111] Connection refused" in done.stderr) == (3, True)

    def test_no_kafka_is_3(self, tmp_path: Path, redis_server: RedisServer) -> None:
        """After ten seconds of trying."""
        redis_server.client().flushall()
        done = ab_monitor("run", "--config", _config(tmp_path, redis_server.url))
        assert done.returncode == 3
        assert done.stderr.splitlines()[-1].startswith("ab-monitor: Kafka at 127.0.0.1:1:")

    def test_a_flood_of_refused_lines_is_4_and_leaves_the_position_before_it(self, tmp_path: Path) -> None:
        """The service stops instead of draining its input."""
        config = _config(tmp_path, f"embedded:{tmp_path / 'store'}")
        lines = tmp_path / "events.jsonl"
        lines.write_text("nonsense\n" * 50)
        done = ab_monitor("replay", "--config", config, lines)
        assert done.returncode == 4
        assert "50 events in a row were refused" in done.stderr
        assert f"{lines}:1: refused" not in done.stderr

    def test_other_definitions_are_5(self, tmp_path: Path) -> None:
        """What differs and what to do."""
        config = _config(tmp_path, f"embedded:{tmp_path / 'store'}")
        assert ab_monitor("replay", "--config", config, "-", stdin=json.dumps(RESPONSE).encode()).returncode == 0
        done = ab_monitor("status", "--config", config, environ={"ABMONITOR_EXPERIMENTS_0_GAIN": "exp2"})
        assert done.returncode == 5
        assert "ranker.gain: the store was made with 'linear', this file says 'exp2'" in done.stderr
        assert "new name" in done.stderr

    def test_a_mistyped_directory_is_not_made_by_looking(self, tmp_path: Path) -> None:
        """Where there is no embedded store, there is nothing to show."""
        config = _config(tmp_path, f"embedded:{tmp_path / 'stroe'}")
        for command in ("status", "audit"):
            done = ab_monitor(command, "--config", config)
            assert (done.returncode, "no embedded store in" in done.stderr) == (2, True)
        assert not (tmp_path / "stroe").exists()

    def test_a_missing_file_and_an_unknown_experiment(self, tmp_path: Path) -> None:
        """Both are usage."""
        config = _config(tmp_path, f"embedded:{tmp_path / 'store'}")
        assert ab_monitor("replay", "--config", config, tmp_path / "nothing.jsonl").returncode == 2
        done = ab_monitor("status", "--config", config, "--experiment", "x")
        assert (done.returncode, "expected one of ranker" in done.stderr) == (2, True)


class TestReplay:
    """Files."""

    def test_refused_lines_are_named_and_the_rest_is_applied(self, tmp_path: Path) -> None:
        """File, line, reason; packed files and stdin work too."""
        config = _config(tmp_path, f"embedded:{tmp_path / 'store'}")
        lines = tmp_path / "events.jsonl"
        bad = {**RESPONSE, "response_id": "r-2", "items": [{"item_id": "a", "position": 0}]}
        lines.write_text("\n".join(map(json.dumps, [FEEDBACK, bad, RESPONSE])))
        subprocess.run(["gzip", "-k", str(lines)], check=True)
        done = ab_monitor("replay", "--config", config, lines)
        assert done.returncode == 0
        assert f"{lines}:2: refused: invalid_position" in done.stderr.replace("\n", "")
        again = ab_monitor("replay", "--config", config, f"{lines}.gz")
        assert "duplicate 2" in again.stderr
        treatment = status(config)["experiments"]["ranker"]["variants"]["treatment"]
        assert (treatment["responses"], treatment["rated_responses"]) == (1, 1)

    def test_a_mark_at_the_beginning_and_blank_lines_are_nothing(self, tmp_path: Path) -> None:
        """Editors write them; they are no events and no mistakes."""
        config = _config(tmp_path, f"embedded:{tmp_path / 'store'}")
        lines = tmp_path / "events.jsonl"
        lines.write_bytes(b"\xef\xbb\xbf" + json.dumps(RESPONSE).encode() + b"\r\n\r\n\n")
        done = ab_monitor("replay", "--config", config, lines)
        assert (done.returncode, "replayed: 1 lines: applied 1" in done.stderr) == (0, True)

    def test_lines_whose_time_cannot_be_read_are_refused_like_others(self, tmp_path: Path) -> None:
        """The merge by event time must not stumble over them."""
        config = _config(tmp_path, f"embedded:{tmp_path / 'store'}")
        lines = tmp_path / "events.jsonl"
        bad = [{**RESPONSE, "timestamp": each} for each in ("2026-13-01T00:00:00Z", "2026-11-10T10:00:00", -1)]
        lines.write_text("\n".join(map(json.dumps, [RESPONSE, *bad, FEEDBACK, {**FEEDBACK, "kind": "watched"}])))
        done = ab_monitor("replay", "--config", config, lines)
        assert done.returncode == 0, done.stderr
        assert "applied 3, rejected 3" in done.stderr

    def test_feedback_whose_response_never_came_is_counted_at_the_end(self, tmp_path: Path) -> None:
        """Once the last lines are later than its window; a short file is no exception."""
        config = _config(tmp_path, f"embedded:{tmp_path / 'store'}")
        lines = tmp_path / "events.jsonl"
        earlier = {**FEEDBACK, "timestamp": "2026-10-01T10:00:00Z"}
        lost = [{**earlier, "feedback_id": f"lost-{number}", "response_id": f"lost-{number}"} for number in range(3)]
        lines.write_text("\n".join(map(json.dumps, [*lost, RESPONSE])))
        assert ab_monitor("replay", "--config", config, lines).returncode == 0
        assert status(config)["unmatched_feedback"][FEEDBACK["kind"]] == 3

    def test_two_at_once_on_a_new_embedded_store_share_one_server(self, tmp_path: Path) -> None:
        """Whoever comes second uses the first one's server; the last one stops it; nothing is counted twice."""
        config = _config(tmp_path, f"embedded:{tmp_path / 'store'}")
        files = []
        for half in range(2):
            files.append(tmp_path / f"{half}.jsonl")
            rows = [json.dumps({**RESPONSE, "response_id": f"r-{n}"}) for n in range(half * 3000, 3000 + half * 3000)]
            files[-1].write_text("\n".join(rows))
        command = [sys.executable, "-m", "monitor", "replay", "--config", str(config)]
        both = [subprocess.Popen([*command, str(file)], stdout=subprocess.DEVNULL) for file in files]
        assert [each.wait(60) for each in both] == [0, 0]
        assert status(config)["experiments"]["ranker"]["variants"]["treatment"]["responses"] == 6000
        assert not (tmp_path / "store/valkey.sock").exists()

    def test_two_at_once_on_the_same_file_count_nothing_twice(self, tmp_path: Path) -> None:
        """Whoever is refused goes back to where the other one is."""
        config = _config(tmp_path, f"embedded:{tmp_path / 'store'}")
        lines = tmp_path / "events.jsonl"
        lines.write_text("\n".join(json.dumps({**RESPONSE, "response_id": f"r-{n}"}) for n in range(30_000)))
        command = [sys.executable, "-m", "monitor", "replay", "--config", str(config), str(lines)]
        both = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for _ in range(2)]
        assert [each.wait(60) for each in both] == [0, 0]
        assert status(config)["experiments"]["ranker"]["variants"]["treatment"]["responses"] == 30_000

    def test_a_stopped_replay_goes_on_where_it_was(self, tmp_path: Path) -> None:
        """Stopped in the middle and started again, it reads the rest and nothing twice."""
        config = _config(tmp_path, f"embedded:{tmp_path / 'store'}")
        lines = tmp_path / "events.jsonl"
        with lines.open("w") as out:
            for number in range(200_000):
                out.write(json.dumps({**RESPONSE, "response_id": f"r-{number}", "experiment": "ranker"}) + "\n")
        process = subprocess.Popen(
            [sys.executable, "-m", "monitor", "replay", "--config", str(config), str(lines)],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
        )
        store = StoreSettings(url=f"embedded:{tmp_path / 'store'}")
        eventually("there is a store", (tmp_path / "store").is_dir, every_s=0.01)
        # Asked by the command, it might have read everything by then.
        with served(store, existing=True) as reached, closing(connect(reached)) as client:
            eventually("a part is applied", lambda: client.exists(Keys().latest), every_s=0.01)
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=30)[1].decode()
        first = re.search(r"(\d+) lines", said)
        assert process.returncode == 130, said
        assert "stopped; the same command goes on from here" in said
        done = ab_monitor("replay", "--config", config, lines)
        rest = re.search(r"(\d+) lines", done.stderr)
        assert first is not None
        assert rest is not None
        assert int(first[1]) + int(rest[1]) == 200_000
        assert status(config)["experiments"]["ranker"]["variants"]["treatment"]["responses"] == 200_000

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_a_replay_that_waits_for_more_on_stdin_stops_in_order(self, tmp_path: Path, number: signal.Signals) -> None:
        """At the first signal, with what was read applied."""
        config = _config(tmp_path, f"embedded:{tmp_path / 'store'}")
        store = StoreSettings(url=f"embedded:{tmp_path / 'store'}")
        command = [sys.executable, "-m", "monitor", "replay", "--config", str(config), "-"]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        ) as process:
            try:
                assert process.stdin is not None
                assert process.stderr is not None
                process.stdin.write(json.dumps(RESPONSE).encode() + b"\n")
                process.stdin.flush()
                eventually("there is a store", (tmp_path / "store").is_dir, every_s=0.01)
                with served(store, existing=True) as reached, closing(connect(reached)) as client:
                    eventually("it is applied", lambda: client.exists(Keys().latest), within_s=30)
                process.send_signal(number)
                assert process.wait(30) == 128 + number
                assert "1 lines: applied 1" in process.stderr.read().decode()
            finally:
                process.kill()
        assert status(config)["experiments"]["ranker"]["variants"]["treatment"]["responses"] == 1
        assert not (tmp_path / "store/valkey.sock").exists()


class TestRun:
    """The service on a real broker."""

    def test_refused_messages_are_kept_and_nothing_of_a_student_is_shown(
        self, tmp_path: Path, kafka: KafkaBroker, redis_server: RedisServer
    ) -> None:
        """The dead letter has the bytes as they were, and where and why; logs, metrics and store have no user text."""
        redis_server.client().flushall()
        for topic in ("responses", "feedback", "dead"):
            kafka.create_topic(f"dead-letters.{topic}", 1)
        config = _config(tmp_path, redis_server.url, kafka.bootstrap, "dead-letters", port=0)
        secret = "my-very-own-question-4711"
        producer = KafkaProducer(bootstrap_servers=kafka.bootstrap)
        bad = json.dumps({**RESPONSE, "user_query": secret, "user_id": secret + "-id", "items": 7}).encode()
        good = json.dumps({**RESPONSE, "user_query": secret, "user_id": secret + "-id"}).encode()
        producer.send("dead-letters.responses", bad)
        producer.send("dead-letters.responses", good)
        producer.flush()
        producer.close()
        with service(config, tmp_path / "log"):
            eventually("the good one is applied", lambda: _responses(config) == 1)
            port = re.search(r"127\.0\.0\.1:(\d+)", (tmp_path / "log").read_text())
            assert port is not None
            seen = [get(f"http://127.0.0.1:{port[1]}{path}")[1] for path in ("/", "/metrics", "/metrics/experiments")]
            assert get(f"http://127.0.0.1:{port[1]}/-/ready")[0] == 200
        consumer = KafkaConsumer(
            "dead-letters.dead",
            bootstrap_servers=kafka.bootstrap,
            auto_offset_reset="earliest",
            consumer_timeout_ms=10_000,
        )
        letter = next(consumer)
        consumer.close()
        headers = {name: value.decode() for name, value in letter.headers}
        assert letter.value == bad
        assert (headers["topic"], headers["offset"], headers["reason"]) == ("dead-letters.responses", "0", "wrong_type")
        stored = b"".join(redis_server.client().dump(key) + key for key in redis_server.client().scan_iter())
        for text in (*seen, (tmp_path / "log").read_text(), str(headers), stored.decode("latin-1")):
            assert secret not in text
        assert 'abmonitor_rejected_events_total{reason="wrong_type",topic="dead-letters.responses"} 1.0' in seen[1]

    def test_the_store_may_go_and_come_back(self, tmp_path: Path, kafka: KafkaBroker) -> None:
        """Readiness says so, consumption waits, and everything is applied once it is back."""
        for topic in ("responses", "feedback", "dead"):
            kafka.create_topic(f"outage.{topic}", 2)

        with RedisServer(redis_binary()) as store:
            config = _config(tmp_path, store.url, kafka.bootstrap, "outage")
            producer = KafkaProducer(bootstrap_servers=kafka.bootstrap)
            with service(config, tmp_path / "log"):
                producer.send("outage.responses", json.dumps(RESPONSE).encode()).get(20)
                eventually("the first is applied", lambda: _responses(config) == 1)
                port = re.search(r"127\.0\.0\.1:(\d+)", (tmp_path / "log").read_text())
                assert port is not None
                url = f"http://127.0.0.1:{port[1]}/-/ready"
                store.process.kill()
                producer.send("outage.responses", json.dumps({**RESPONSE, "response_id": "r-2"}).encode()).get(20)
                status_code, reason = eventually(
                    "not ready", lambda: answer if (answer := get(url))[0] == 503 else None
                )
                assert (status_code, "store at" in reason) == (503, True)
                store.start()
                eventually("ready again", lambda: get(url)[0] == 200)
                eventually("the second is applied", lambda: _responses(config) == 2)
            producer.close()

    def test_the_broker_may_go_and_come_back(self, tmp_path: Path, redis_server: RedisServer) -> None:
        """Readiness says so, and what was written before and after is applied once."""
        redis_server.client().flushall()
        with KafkaBroker() as broker:
            for topic in ("responses", "feedback", "dead"):
                broker.create_topic(f"broker.{topic}", 2)
            config = _config(tmp_path, redis_server.url, broker.bootstrap, "broker")
            with service(config, tmp_path / "log"):
                _send(broker, "broker.responses", RESPONSE)
                eventually("the first is applied", lambda: _responses(config) == 1)
                port = re.search(r"127\.0\.0\.1:(\d+)", (tmp_path / "log").read_text())
                assert port is not None
                url = f"http://127.0.0.1:{port[1]}/-/ready"
                broker.process.kill()
                reason = eventually("not ready", lambda: answer[1] if (answer := get(url))[0] == 503 else None)
                assert "Kafka at 127.0.0.1" in reason
                broker.start()
                _send(broker, "broker.responses", {**RESPONSE, "response_id": "r-2"})
                eventually("ready again", lambda: get(url)[0] == 200)
                eventually("the second is applied", lambda: _responses(config) == 2)


def _send(broker: KafkaBroker, topic: str, event: object) -> None:
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap)
    producer.send(topic, json.dumps(event).encode()).get(20)
    producer.close()


def _responses(config: Path) -> int:
    variants = status(config)["experiments"]["ranker"]["variants"]
    return sum(int(each["responses"]) for each in variants.values())
