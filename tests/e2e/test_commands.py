"""The command line: the examples of the README, exit codes, and an error line for every mistake."""

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
from monitor.state import StoreKeys, running_store_server
from monitor.state.redis_connection import connect
from tests.servers.kafka import KafkaBroker
from tests.servers.redis import RedisServer, redis_binary
from tests.support.command import ab_monitor, eventually, get, run_commands, service, status, write_config
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
max_consecutive_rejected = 20
[[experiments]]
name = "ranker"
control = "control"
variants = { control = 0.5, treatment = 0.5 }
"""


def _config(directory: Path, store: str, bootstrap: str = "127.0.0.1:1", name: str = "none", port: int = 0) -> Path:
    values = [("store", store), ("bootstrap", bootstrap), ("name", name), ("port", str(port))]
    return write_config(directory / "config.toml", CONFIG, values)


class TestReadmeExamples:
    """The examples of the README."""

    def test_the_commands_of_the_readme_run(self, tmp_path: Path) -> None:
        """Every line of the section on files succeeds, and the last lines print the variants."""
        text = (ROOT / "README.md").read_text()
        (block,) = re.findall(r"## Five minutes: evaluate files offline\n\n```sh\n(.*?)```", text, re.DOTALL)
        assert run_commands(block, tmp_path).count("treatment") >= 3

    def test_the_configuration_of_the_readme_is_valid(self, tmp_path: Path) -> None:
        """The example for a real Kafka cluster."""
        text = (ROOT / "README.md").read_text()
        (block,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
        path = tmp_path / "config.toml"
        path.write_text(block)
        response = {**RESPONSE, "experiment": "ranker-v2"}
        process = ab_monitor("evaluate", "--config", path, "-", stdin=json.dumps(response).encode())
        assert process.returncode == 0, process.stderr


def test_the_demo_ends_with_commands_that_exist() -> None:
    """The program is not on the search path of the shell."""
    paths = os.pathsep.join(
        directory for directory in os.environ["PATH"].split(os.pathsep) if not Path(directory, "ab-monitor").exists()
    )
    flags = ("--speed", "100000000", "--responses", "500", "--students", "100", "--port", "0")
    process = ab_monitor("demo", *flags, environ={"PATH": paths})
    assert process.returncode == 0, process.stderr
    proposed = [line.split()[:2] for line in process.stdout.partition("\nNext:\n")[2].splitlines()]
    assert [command for _, command in proposed] == ["demo", "simulate", "check", "run"]
    for program, command in proposed:
        subprocess.run([program, command, "--help"], check=True, capture_output=True, timeout=60)


class TestCommandErrors:
    """An error is a line, and the exit code is that of the README."""

    def test_a_wrong_configuration_exits_with_2(self, tmp_path: Path) -> None:
        """The line has the key, the value and the expectation."""
        process = ab_monitor("run", "--config", _config(tmp_path, "redis://127.0.0.1:1/0", port=70_000))
        assert process.returncode == 2
        message = "ab-monitor: http.port: got 70000, expected an integer from 0 to 65535 (line "
        assert process.stderr.startswith(message)

    @pytest.mark.parametrize("command", ["run", "status", "check"])
    def test_an_unreachable_store_exits_with_3(self, tmp_path: Path, command: str) -> None:
        """The line has the address of the store."""
        process = ab_monitor(command, "--config", _config(tmp_path, "redis://127.0.0.1:1/0"))
        assert process.returncode == 3
        assert "store at 127.0.0.1:1/0: " in process.stderr.splitlines()[-2 if command == "check" else -1]

    def test_check_reports_the_errors_of_both_kafka_and_the_store(self, tmp_path: Path) -> None:
        """Both errors are reported at once, so that both can be corrected at once."""
        process = ab_monitor("check", "--config", _config(tmp_path, "redis://127.0.0.1:1/0"))
        first_line, store_line, kafka_line = process.stderr.splitlines()
        assert first_line == "ab-monitor: 2 checks failed:"
        assert store_line.startswith("  store.url: store at 127.0.0.1:1/0: ")
        assert kafka_line.startswith("  kafka.bootstrap_servers: Kafka at 127.0.0.1:1: ")
        assert process.returncode == 3

    def test_check_reports_an_empty_store(self, tmp_path: Path, redis_server: RedisServer) -> None:
        """An empty store has no definitions."""
        redis_server.client().flushall()
        process = ab_monitor("check", "--config", _config(tmp_path, redis_server.url))
        assert "store          ok: reachable, no experiment yet\n" in process.stdout

    @pytest.mark.parametrize("flag", ["--responses", "--students"])
    @pytest.mark.parametrize("command", [["simulate", "--out", "-"], ["demo", "--port", "0"]])
    def test_a_number_beyond_the_memory_of_any_machine_is_rejected(self, command: list[str], flag: str) -> None:
        """The command fails before memory runs out."""
        process = ab_monitor(*command, flag, "9" * 21)
        assert process.returncode == 2
        assert f"{flag.removeprefix('--')}: got {'9' * 21}, expected 1 to 100000000" in process.stderr
        assert "Traceback" not in process.stderr

    def test_a_rebuild_without_kafka_exits_with_3_at_once(self, tmp_path: Path) -> None:
        """The reason is that of other commands: the connection is refused."""
        process = ab_monitor("rebuild", "--config", _config(tmp_path, f"embedded:{tmp_path / 'store'}"))
        assert (process.returncode, "Kafka at 127.0.0.1:1: [Errno 111] Connection refused" in process.stderr) == (
            3,
            True,
        )

    def test_an_unreachable_kafka_exits_with_3(self, tmp_path: Path, redis_server: RedisServer) -> None:
        """The command tries for ten seconds."""
        redis_server.client().flushall()
        process = ab_monitor("run", "--config", _config(tmp_path, redis_server.url))
        assert process.returncode == 3
        assert process.stderr.splitlines()[-1].startswith("ab-monitor: Kafka at 127.0.0.1:1:")

    def test_too_many_rejected_lines_exit_with_4_and_keep_the_position(self, tmp_path: Path) -> None:
        """The command stops instead of skipping the whole input."""
        config = _config(tmp_path, f"embedded:{tmp_path / 'store'}")
        lines = tmp_path / "events.jsonl"
        lines.write_text("nonsense\n" * 50)
        process = ab_monitor("replay", "--config", config, lines)
        assert process.returncode == 4
        assert (
            "50 consecutive events were rejected (limits.max_consecutive_rejected = 20), the last at " in process.stderr
        )
        assert "Correct the lines, then run the command again" in process.stderr
        assert "--accept-rejected" not in process.stderr
        assert f"{lines}:1: rejected" not in process.stderr

    def test_other_definitions_exit_with_5(self, tmp_path: Path) -> None:
        """The error names the difference and the remedy."""
        config = _config(tmp_path, f"embedded:{tmp_path / 'store'}")
        assert ab_monitor("replay", "--config", config, "-", stdin=json.dumps(RESPONSE).encode()).returncode == 0
        process = ab_monitor("status", "--config", config, environ={"ABMONITOR_EXPERIMENTS_0_GAIN": "exp2"})
        assert process.returncode == 5
        assert "ranker.gain: linear in the store, exp2 in the file" in process.stderr
        assert "new name" in process.stderr

    def test_reading_commands_do_not_create_an_embedded_store(self, tmp_path: Path) -> None:
        """The directory of the store may be mistyped."""
        config = _config(tmp_path, f"embedded:{tmp_path / 'stroe'}")
        for command in ("status", "audit"):
            process = ab_monitor(command, "--config", config)
            assert (process.returncode, "no embedded store in" in process.stderr) == (2, True)
        assert not (tmp_path / "stroe").exists()

    def test_a_missing_file_and_an_unknown_experiment_exit_with_2(self, tmp_path: Path) -> None:
        """Both are usage errors."""
        config = _config(tmp_path, f"embedded:{tmp_path / 'store'}")
        assert ab_monitor("replay", "--config", config, tmp_path / "nothing.jsonl").returncode == 2
        process = ab_monitor("status", "--config", config, "--experiment", "x")
        assert (process.returncode, "expected one of ranker" in process.stderr) == (2, True)


class TestReplayCommand:
    """The command `replay`."""

    def test_rejected_lines_are_reported_and_other_lines_are_applied(self, tmp_path: Path) -> None:
        """The report has file, line and reason; gzip files and stdin are accepted."""
        config = _config(tmp_path, f"embedded:{tmp_path / 'store'}")
        lines = tmp_path / "events.jsonl"
        bad = {**RESPONSE, "response_id": "r-2", "items": [{"item_id": "a", "position": 0}]}
        lines.write_text("\n".join(map(json.dumps, [FEEDBACK, bad, RESPONSE])))
        subprocess.run(["gzip", "-k", str(lines)], check=True)
        process = ab_monitor("replay", "--config", config, lines)
        assert process.returncode == 0
        assert f"{lines}:2: rejected: invalid_position" in process.stderr.replace("\n", "")
        repeated_process = ab_monitor("replay", "--config", config, f"{lines}.gz")
        assert "duplicate 2" in repeated_process.stderr
        treatment = status(config)["experiments"]["ranker"]["variants"]["treatment"]
        assert (treatment["responses"], treatment["rated_responses"]) == (1, 1)

    def test_equal_rejections_are_summarised(self, tmp_path: Path) -> None:
        """The first lines of each reason are listed; the others are counted before the results."""
        config = _config(tmp_path, f"embedded:{tmp_path / 'store'}")
        lines = tmp_path / "events.jsonl"
        bad = [{**RESPONSE, "response_id": ""}, *({**FEEDBACK, "kind": "+"} for _ in range(8))]
        good = [{**RESPONSE, "response_id": f"r-{number}"} for number in range(10)]
        lines.write_text("\n".join(map(json.dumps, [*good, *bad])))
        process = ab_monitor("replay", "--config", config, lines)
        assert process.returncode == 0, process.stderr
        assert process.stderr.count(": rejected: invalid_kind: ") == 3
        assert process.stderr.count("rejected: invalid_id: ") == 1
        (line,) = [line for line in process.stderr.splitlines() if line.startswith("5 more lines rejected: ")]
        assert line.startswith("5 more lines rejected: invalid_kind: kind: expected 1 to 64 printable characters")
        assert line.endswith("(in all 8)")

    def test_a_byte_order_mark_and_blank_lines_are_ignored(self, tmp_path: Path) -> None:
        """Some editors write a byte order mark."""
        config = _config(tmp_path, f"embedded:{tmp_path / 'store'}")
        lines = tmp_path / "events.jsonl"
        lines.write_bytes(b"\xef\xbb\xbf" + json.dumps(RESPONSE).encode() + b"\r\n\r\n\n")
        process = ab_monitor("replay", "--config", config, lines)
        assert (process.returncode, "replayed: 1 line: applied 1" in process.stderr) == (0, True)

    def test_lines_with_an_invalid_time_are_rejected(self, tmp_path: Path) -> None:
        """The merge of files by event time skips invalid times."""
        config = _config(tmp_path, f"embedded:{tmp_path / 'store'}")
        lines = tmp_path / "events.jsonl"
        bad = [
            {**RESPONSE, "timestamp": timestamp} for timestamp in ("2026-13-01T00:00:00Z", "2026-11-10T10:00:00", -1)
        ]
        lines.write_text("\n".join(map(json.dumps, [RESPONSE, *bad, FEEDBACK, {**FEEDBACK, "kind": "watched"}])))
        process = ab_monitor("replay", "--config", config, lines)
        assert process.returncode == 0, process.stderr
        assert "applied 3, rejected 3" in process.stderr

    def test_feedback_without_a_response_is_counted_at_the_end(self, tmp_path: Path) -> None:
        """The last lines are later than the feedback window."""
        config = _config(tmp_path, f"embedded:{tmp_path / 'store'}")
        lines = tmp_path / "events.jsonl"
        earlier = {**FEEDBACK, "timestamp": "2026-10-01T10:00:00Z"}
        lost = [{**earlier, "feedback_id": f"lost-{number}", "response_id": f"lost-{number}"} for number in range(3)]
        lines.write_text("\n".join(map(json.dumps, [*lost, RESPONSE])))
        assert ab_monitor("replay", "--config", config, lines).returncode == 0
        assert status(config)["unmatched_feedback"][FEEDBACK["kind"]] == 3

    def test_two_replays_into_a_new_embedded_store_share_a_server(self, tmp_path: Path) -> None:
        """The second replay uses the server of the first, the last replay stops the server; events count once."""
        config = _config(tmp_path, f"embedded:{tmp_path / 'store'}")
        files = []
        for half in range(2):
            files.append(tmp_path / f"{half}.jsonl")
            rows = [json.dumps({**RESPONSE, "response_id": f"r-{n}"}) for n in range(half * 3000, 3000 + half * 3000)]
            files[-1].write_text("\n".join(rows))
        command = [sys.executable, "-m", "monitor", "replay", "--config", str(config)]
        processes = [subprocess.Popen([*command, str(file)], stdout=subprocess.DEVNULL) for file in files]
        assert [process.wait(60) for process in processes] == [0, 0]
        assert status(config)["experiments"]["ranker"]["variants"]["treatment"]["responses"] == 6000
        assert not (tmp_path / "store/valkey.sock").exists()

    def test_two_replays_of_the_same_file_count_events_once(self, tmp_path: Path) -> None:
        """After a conflict, a replay continues at the position of the other replay."""
        config = _config(tmp_path, f"embedded:{tmp_path / 'store'}")
        lines = tmp_path / "events.jsonl"
        lines.write_text("\n".join(json.dumps({**RESPONSE, "response_id": f"r-{n}"}) for n in range(30_000)))
        command = [sys.executable, "-m", "monitor", "replay", "--config", str(config), str(lines)]
        processes = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for _ in range(2)]
        assert [process.wait(60) for process in processes] == [0, 0]
        assert status(config)["experiments"]["ranker"]["variants"]["treatment"]["responses"] == 30_000

    def test_a_stopped_replay_continues_at_its_position(self, tmp_path: Path) -> None:
        """The second run reads only the lines that the first run has not read."""
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
        # Polling by commands would be slow: the replay might end before.
        with running_store_server(store, must_exist=True) as store_settings, closing(connect(store_settings)) as client:
            eventually("a part is applied", lambda: client.exists(StoreKeys().newest_times), every_s=0.01)
        process.send_signal(signal.SIGINT)
        output = process.communicate(timeout=30)[1].decode()
        first_lines = re.search(r"([\d,]+) lines", output)
        assert process.returncode == 130, output
        assert "stopped; the same command continues from here" in output
        second_process = ab_monitor("replay", "--config", config, lines)
        remaining_lines = re.search(r"([\d,]+) lines", second_process.stderr)
        assert first_lines is not None
        assert remaining_lines is not None
        assert sum(int(lines[1].replace(",", "")) for lines in (first_lines, remaining_lines)) == 200_000
        assert status(config)["experiments"]["ranker"]["variants"]["treatment"]["responses"] == 200_000

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_a_replay_that_waits_for_stdin_stops_on_a_signal(self, tmp_path: Path, number: signal.Signals) -> None:
        """The events that were read are applied."""
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
                with (
                    running_store_server(store, must_exist=True) as store_settings,
                    closing(connect(store_settings)) as client,
                ):
                    eventually("it is applied", lambda: client.exists(StoreKeys().newest_times), within_s=30)
                process.send_signal(number)
                assert process.wait(30) == 128 + number
                assert "1 line: applied 1" in process.stderr.read().decode()
            finally:
                process.kill()
        assert status(config)["experiments"]["ranker"]["variants"]["treatment"]["responses"] == 1
        assert not (tmp_path / "store/valkey.sock").exists()


class TestService:
    """The command `run` with a real broker."""

    def test_rejected_records_are_kept_and_user_text_is_not_published(
        self, tmp_path: Path, kafka: KafkaBroker, redis_server: RedisServer
    ) -> None:
        """The dead letter has the original bytes, position and reason; logs, metrics and store have no user text."""
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
            pages = [get(f"http://127.0.0.1:{port[1]}{path}")[1] for path in ("/", "/metrics", "/metrics/experiments")]
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
        for text in (*pages, (tmp_path / "log").read_text(), str(headers), stored.decode("latin-1")):
            assert secret not in text
        assert 'abmonitor_rejected_events_total{reason="wrong_type",topic="dead-letters.responses"} 1.0' in pages[1]
        listing = ab_monitor("dead-letters", "--config", config, "list")
        assert listing.returncode == 0, listing.stderr
        assert re.search(r"dead-letters\.responses\s+wrong_type\s+1\s", listing.stdout)
        assert secret not in listing.stdout

    def test_the_service_survives_a_restart_of_the_store(self, tmp_path: Path, kafka: KafkaBroker) -> None:
        """Without the store, the service is not ready and does not read; afterwards every event is applied."""
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

    def test_the_service_survives_a_restart_of_the_broker(self, tmp_path: Path, redis_server: RedisServer) -> None:
        """Without the broker, the service is not ready; events before and after the restart are applied once."""
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
    return sum(int(variant["responses"]) for variant in variants.values())
