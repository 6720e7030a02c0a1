"""Messages on a real store and to real HTTP receivers: one for each change, at least once, under one id."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import jsonschema
import msgspec
import numpy as np
import pytest
from standardwebhooks import Webhook

from monitor.analysis import NotificationMemory
from monitor.clock import HOUR_MS
from monitor.config import NotifySettings
from monitor.errors import ConfigError
from monitor.events import Feedback, Response
from monitor.export import describe_headlines
from monitor.notify import Message, Notifier, observe_store, open_channels, write_test_message
from monitor.notify.channels import DeliveryFailed
from monitor.pipeline import Telemetry
from monitor.state import Delivery, Outbox, ShardedStore, WorkerRecord, write_worker
from monitor.state.generations import (
    activate_generation,
    connect_next_generation,
    delete_all_generations,
    delete_generation,
)
from monitor.state.keys import NOTIFIED_KEY, OUTBOX_KEY, OUTBOX_LEASE_KEY
from tests.servers.message_receiver import MessageReceiver
from tests.servers.redis import RedisServer
from tests.support.oracle import DAY_MS
from tests.support.store_bench import DECISION_EXPERIMENT, StoreBench
from tests.support.streams import HOUR, START

ROOT = Path(__file__).parents[3]
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
NOW_MS = START + 16 * DAY_MS + 60_000
PUBLIC_URL = "https://ab.example.org"


def harmful_traffic(students: int = 400) -> list[Response | Feedback]:
    """Return responses of students over ten days; those of the treatment are rated much lower."""
    chance = np.random.default_rng(3)
    events: list[Response | Feedback] = []
    for student in range(students):
        variant = ("control", "treatment")[student % 2]
        at_ms = START + int(chance.integers(0, 10 * DAY_MS))
        response_id, user_id = f"r-{student}", f"student-{student}"
        score = float(chance.integers(3, 5) if variant == "control" else chance.integers(0, 2))
        events.append(Response(response_id, at_ms, "ranker", variant, ("video-1",), None, user_id))
        events.append(Feedback(f"f-{student}", response_id, at_ms + HOUR, "rating", user_id, "video-1", score))
    last_ms = START + 16 * DAY_MS
    events.append(Response("r-last", last_ms, "ranker", "control", ("video-1",), None, "student-last"))
    return events


class NotifyBench:
    """A store, a receiver, a clock, and any number of processes that notify."""

    def __init__(self, server: RedisServer, receiver: MessageReceiver) -> None:
        self.store = StoreBench(server, DECISION_EXPERIMENT)
        self.receiver = receiver
        self.now_ms = NOW_MS
        self.webhook = NotifySettings("hook", webhook=f"http://{receiver.address}/hook", secret=SECRET)
        self.report_lag(0)

    def report_lag(self, lag_events: int) -> None:
        """Write the record of a worker that has read all but `lag_events` events."""
        write_worker(self.store.store, "w:1", WorkerRecord("1", "d", 0, self.now_ms, {}, lag_events))

    def notifier(self, *channels: NotifySettings, store: ShardedStore | None = None) -> Notifier:
        """Return the notifier of a new process."""
        return Notifier(
            open_channels(channels or [self.webhook]),
            Outbox((store or self.store.store).reconnect()),
            lambda now_ms: observe_store(self.store.reader, now_ms),
            Telemetry(),
            lambda: self.now_ms,
            public_url=PUBLIC_URL,
            min_students=1,
        )

    def deliver(self, notifier: Notifier) -> None:
        """Deliver what is due, as a process does that has the lease or can get the lease."""
        if notifier.renew_lease():
            due = notifier.drop_old_deliveries()
            for channel in notifier._channels:
                notifier.deliver(channel, [each for each in due if each.channel == channel.settings.name])

    def waiting(self) -> Sequence[Delivery]:
        """Return the deliveries in the outbox."""
        return Outbox(self.store.store).read_deliveries()


def count_dropped(notifier: Notifier) -> float | None:
    """Return the number of dropped messages of the channel."""
    labels = {"channel": "hook", "outcome": "dropped"}
    return notifier._telemetry.registry.get_sample_value("abmonitor_notifications_total", labels)


@pytest.fixture
def receiver() -> Iterator[MessageReceiver]:
    """Yield a running receiver."""
    with MessageReceiver() as running_receiver:
        yield running_receiver


@pytest.fixture
def bench(store_server: RedisServer, receiver: MessageReceiver) -> NotifyBench:
    """Return a store whose first states are recorded, and that harmful traffic has reached since."""
    new_bench = NotifyBench(store_server, receiver)
    events = harmful_traffic()
    new_bench.store.apply([events[:2]])
    assert new_bench.notifier().record_changes()
    new_bench.store.apply([events[2:]], worker_count=2, worker_order=[1])
    return new_bench


def test_harm_is_sent_once_with_the_numbers_of_the_page(bench: NotifyBench, receiver: MessageReceiver) -> None:
    """Effect, interval and students are those of the headline at the same moment; the link leads to the page."""
    notifier = bench.notifier()
    assert notifier.record_changes()
    bench.deliver(notifier)
    assert not notifier.record_changes()
    bench.deliver(notifier)
    (request,) = receiver.requests
    body = request.json()
    (headline,) = describe_headlines(bench.store.reader.read_summary().experiments["ranker"])
    assert body["type"] == "experiment.harm"
    assert body["data"]["results"] == [{"treatment": "treatment", "state": "stop_harm", **headline.to_json()}]
    assert body["data"]["results"][0]["upper"] < 0
    assert body["data"]["link"] == f"{PUBLIC_URL}/experiments/ranker"
    assert body["data"]["reasons"]
    assert bench.waiting() == []


def test_a_webhook_is_signed_as_by_standard_webhooks(bench: NotifyBench, receiver: MessageReceiver) -> None:
    """The library of the specification's authors verifies the request; another body is rejected."""
    channel = open_channels([bench.webhook])[0]
    bench.notifier().record_changes()
    (delivery,) = bench.waiting()
    channel.send(write_test_message(NOW_MS, None), delivery.message_id, int(time.time() * 1000))
    (request,) = receiver.requests
    Webhook(SECRET).verify(request.body, request.headers)
    with pytest.raises(Exception, match="No matching signature"):
        Webhook(SECRET).verify(request.body.replace(b"test", b"harm"), request.headers)


def test_the_body_follows_the_schema_in_the_documentation(bench: NotifyBench, receiver: MessageReceiver) -> None:
    """docs/notifications.schema.json describes every message, the test message included."""
    schema = json.loads((ROOT / "docs" / "notifications.schema.json").read_text())
    notifier = bench.notifier()
    notifier.record_changes()
    bench.deliver(notifier)
    for body in (receiver.requests[0].json(), write_test_message(NOW_MS, None).webhook_json()):
        jsonschema.validate(body, schema, format_checker=jsonschema.FormatChecker())


def test_a_receiver_that_fails_for_an_hour_gets_the_message_once(bench: NotifyBench, receiver: MessageReceiver) -> None:
    """Every attempt has the same id, and the attempts end after the first success."""
    notifier = bench.notifier()
    notifier.record_changes()
    receiver.status = 500
    end_ms = bench.now_ms + HOUR_MS
    while bench.now_ms < end_ms:
        bench.deliver(notifier)
        bench.now_ms += 5_000
    attempts = len(receiver.requests)
    assert 5 <= attempts <= 10
    assert [(each.attempts, each.error) for each in bench.waiting()] == [(attempts, "HTTP 500")]
    receiver.status = 204
    for _ in range(1_000):
        bench.deliver(notifier)
        bench.now_ms += 5_000
    assert len(receiver.accepted()) == 1
    assert len({request.message_id for request in receiver.requests}) == 1
    assert bench.waiting() == []


def test_a_message_is_dropped_after_three_days(bench: NotifyBench, receiver: MessageReceiver) -> None:
    """The drop is counted; until then the message waits, and it waits for at least ten attempts."""
    notifier = bench.notifier()
    notifier.record_changes()
    receiver.status = 500
    bench.now_ms += 3 * DAY_MS
    for _ in range(10):
        assert len(bench.waiting()) == 1
        bench.now_ms += HOUR_MS
        bench.deliver(notifier)
    bench.deliver(notifier)
    assert bench.waiting() == []
    assert len(receiver.requests) == 10
    assert count_dropped(notifier) == 1


def test_a_clock_that_is_days_ahead_drops_and_delays_nothing(bench: NotifyBench, receiver: MessageReceiver) -> None:
    """The replica with the wrong clock fails once; the one with the right clock delivers without waiting for days."""
    bench.notifier().record_changes()
    receiver.status = 500
    bench.now_ms += 20 * DAY_MS
    bench.deliver(bench.notifier())
    receiver.status = 204
    bench.now_ms -= 20 * DAY_MS
    bench.store.store.client.delete(OUTBOX_LEASE_KEY)  # the lease of the first replica has expired
    bench.deliver(bench.notifier())
    assert len(receiver.accepted()) == 1
    assert bench.waiting() == []


def test_messages_of_a_removed_channel_are_dropped_after_three_days(bench: NotifyBench) -> None:
    """They have no attempts."""
    bench.notifier().record_changes()
    bench.now_ms += 3 * DAY_MS + 1
    bench.deliver(bench.notifier(replace(bench.webhook, name="other")))
    assert bench.waiting() == []


def test_a_delivery_in_another_format_is_dropped_and_counted(
    bench: NotifyBench, caplog: pytest.LogCaptureFixture
) -> None:
    """The log has its id and its channel."""
    bench.store.store.client.hset(OUTBOX_KEY, "msg_1 hook", b'{"unknown": 1}')
    notifier = bench.notifier()
    bench.deliver(notifier)
    assert bench.store.store.client.hgetall(OUTBOX_KEY) == {}
    assert count_dropped(notifier) == 1
    assert "message dropped field=msg_1 hook" in caplog.text


def test_a_bad_message_does_not_hold_back_the_next_one(
    bench: NotifyBench, receiver: MessageReceiver, caplog: pytest.LogCaptureFixture
) -> None:
    """The content of the first message is in the format of another version."""
    notifier = bench.notifier()
    notifier.record_changes()
    (delivery,) = bench.waiting()
    bad_delivery = msgspec.structs.replace(delivery, message_id="msg_bad", created_ms=1, message={"event": 1})
    version, _ = Outbox(bench.store.store).read_memory()
    assert Outbox(bench.store.store).record(version, NotificationMemory(), [bad_delivery])
    bench.deliver(notifier)
    assert [request.message_id for request in receiver.requests] == [delivery.message_id]
    (waiting,) = bench.waiting()
    assert (waiting.message_id, waiting.attempts, waiting.error) == ("msg_bad", 1, "defect: ValidationError")
    assert waiting.next_attempt_ms > bench.now_ms
    assert "Traceback" not in caplog.text


class DefectiveChannel:
    """A channel whose library raises an unexpected error with the address in its text."""

    def __init__(self, settings: NotifySettings) -> None:
        self.settings = settings

    def send(self, message: Message, message_id: str, now_ms: int) -> None:  # noqa: ARG002
        """Raise the error."""
        raise ValueError("url slack://hidden-token")


def test_the_text_of_an_unexpected_error_is_neither_logged_nor_stored(
    bench: NotifyBench, caplog: pytest.LogCaptureFixture
) -> None:
    """It may contain the address of the channel."""
    notifier = bench.notifier()
    notifier.record_changes()
    notifier._channels = [DefectiveChannel(bench.webhook)]
    bench.deliver(notifier)
    (waiting,) = bench.waiting()
    assert waiting.error == "defect: ValueError"
    assert "error=defect: ValueError" in caplog.text
    assert "hidden-token" not in caplog.text


def test_a_defect_of_a_text_holds_back_no_message(bench: NotifyBench) -> None:
    """The message is short, and the state is recorded."""
    store_observation = observe_store(bench.store.reader, bench.now_ms)
    assert store_observation is not None
    notifier = bench.notifier()
    notifier._observe = lambda _: replace(store_observation, summary=replace(store_observation.summary, experiments={}))
    assert notifier.record_changes()
    (delivery,) = bench.waiting()
    message = msgspec.convert(delivery.message, Message)
    assert message.title == "[ranker] treatment: harm, stop_harm"
    assert message.tone == "bad"
    schema = json.loads((ROOT / "docs" / "notifications.schema.json").read_text())
    jsonschema.validate(message.webhook_json(), schema, format_checker=jsonschema.FormatChecker())
    assert not notifier.record_changes()


def test_a_change_that_the_store_has_lost_gets_the_same_id_again(bench: NotifyBench) -> None:
    """After a failover, the version of the states is the one before the lost write."""
    client = bench.store.store.client
    states = client.hgetall(NOTIFIED_KEY)
    bench.notifier().record_changes()
    (delivery,) = bench.waiting()
    client.delete(OUTBOX_KEY)
    client.hset(NOTIFIED_KEY, mapping=states)
    bench.now_ms += 5_000
    bench.notifier().record_changes()
    assert [repeated.message_id for repeated in bench.waiting()] == [delivery.message_id]


def test_a_delivery_of_another_process_is_not_sent_again(bench: NotifyBench, receiver: MessageReceiver) -> None:
    """The other process has delivered after the outbox was read."""
    first, second = bench.notifier(), bench.notifier()
    first.record_changes()
    assert first.renew_lease()
    due = first.drop_old_deliveries()
    bench.store.store.client.delete(OUTBOX_LEASE_KEY)  # the lease of the first process has expired
    bench.deliver(second)
    first.deliver(first._channels[0], due)
    assert len(receiver.requests) == 1


def test_a_stop_while_a_message_is_sent_keeps_the_lease(
    bench: NotifyBench, receiver: MessageReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise another process would send the same message at the same time."""
    monkeypatch.setattr("monitor.notify.notifier._STOP_TIMEOUT_S", 0.05)
    is_sending, may_answer = threading.Event(), threading.Event()

    def wait_for_permission() -> None:
        is_sending.set()
        may_answer.wait()

    receiver.before_answer = wait_for_permission
    notifier = bench.notifier()
    notifier.start()
    try:
        assert is_sending.wait(60)
        notifier.stop()
        assert not bench.notifier().renew_lease()
    finally:
        may_answer.set()
    notifier._channel_threads["hook"].join()
    notifier.stop()
    assert bench.waiting() == []
    assert bench.notifier().renew_lease()


def test_three_processes_write_and_send_one_message(bench: NotifyBench, receiver: MessageReceiver) -> None:
    """All of them see the change at the same moment."""
    notifiers = [bench.notifier() for _ in range(3)]
    barrier = threading.Barrier(3)
    written = []

    def take_part(notifier: Notifier) -> None:
        barrier.wait()
        written.append(notifier.record_changes())
        barrier.wait()
        bench.deliver(notifier)

    threads = [threading.Thread(target=take_part, args=(notifier,)) for notifier in notifiers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(written) == [False, False, True]
    assert len(receiver.requests) == 1


SENDER = """
import sys
from monitor.config import NotifySettings, StoreSettings
from monitor.notify import Notifier, open_channels
from monitor.pipeline import Telemetry
from monitor.state import Outbox, ShardedStore
store_url, webhook, secret, now_ms = sys.argv[1:]
channels = open_channels([NotifySettings("hook", webhook=webhook, secret=secret)])
outbox = Outbox(ShardedStore(StoreSettings(url=store_url)))
notifier = Notifier(
    channels, outbox, lambda _: None, Telemetry(), lambda: int(now_ms), public_url=None, min_students=1
)
assert notifier.renew_lease()
print("started", flush=True)
notifier.deliver(channels[0], notifier.drop_old_deliveries())
"""


def test_a_kill_between_sending_and_removing_repeats_the_message_under_the_same_id(
    bench: NotifyBench, receiver: MessageReceiver
) -> None:
    """The receiver kills the sending process while it waits for the answer."""
    bench.notifier().record_changes()
    assert bench.webhook.webhook is not None
    arguments = [bench.store.settings.store.url, bench.webhook.webhook, SECRET, str(bench.now_ms)]
    command = [sys.executable, "-c", SENDER, *arguments]

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})

    with start() as process:
        receiver.before_answer = lambda: process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    assert len(bench.waiting()) == 1
    bench.store.store.client.delete(OUTBOX_LEASE_KEY)  # the lease of the killed process has expired
    receiver.before_answer = tuple
    with start() as process:
        assert process.wait() == 0
    first, second = receiver.requests
    assert first.message_id == second.message_id
    assert first.body == second.body
    assert bench.waiting() == []


def test_a_store_that_fails_after_sending_repeats_nothing(bench: NotifyBench, receiver: MessageReceiver) -> None:
    """The process remembers what a receiver has accepted, until the outbox is written again."""
    notifier = bench.notifier()
    notifier.record_changes()
    (delivery,) = bench.waiting()
    assert notifier.renew_lease()
    notifier._accepted_fields.add(delivery.outbox_field)  # as after an error of the store in `remove`
    bench.deliver(notifier)
    assert receiver.requests == []
    assert bench.waiting() == []


def test_only_the_owner_of_the_lease_delivers(bench: NotifyBench, receiver: MessageReceiver) -> None:
    """The other process takes over once the lease is free."""
    first, second = bench.notifier(), bench.notifier()
    first.record_changes()
    assert first.renew_lease()
    bench.deliver(second)
    assert receiver.requests == []
    first.stop()
    bench.deliver(second)
    assert len(receiver.requests) == 1


def test_a_failing_channel_does_not_delay_another_one(bench: NotifyBench, receiver: MessageReceiver) -> None:
    """Each channel has its own deliveries, under the same id."""
    dead = replace(bench.webhook, name="dead", webhook="http://127.0.0.1:1/secret-path")
    notifier = bench.notifier(dead, bench.webhook)
    notifier.record_changes()
    bench.deliver(notifier)
    assert len(receiver.accepted()) == 1
    (waiting,) = bench.waiting()
    assert waiting.channel == "dead"
    assert waiting.message_id == receiver.requests[0].message_id
    assert waiting.error == "the request failed: ConnectionError"


def test_channels_choose_events_and_experiments(bench: NotifyBench, receiver: MessageReceiver) -> None:
    """A message that no channel wants is not stored, and not sent later."""
    notifier = bench.notifier(
        replace(bench.webhook, name="a", events=("end",)), replace(bench.webhook, name="b", experiments=("search-*",))
    )
    assert notifier.record_changes()
    assert bench.waiting() == []
    assert not bench.notifier().record_changes()
    assert receiver.requests == []


def test_nothing_is_observed_during_a_backlog(bench: NotifyBench) -> None:
    """The states of a backlog are those of past hours."""
    bench.report_lag(50_000)
    assert not bench.notifier().record_changes()
    bench.report_lag(0)
    bench.now_ms += 120_000  # the worker has not reported since
    assert not bench.notifier().record_changes()
    bench.report_lag(0)
    assert bench.notifier().record_changes()


class TestGenerations:
    """A rebuild neither loses nor repeats messages; a reset forgets all."""

    def test_messages_and_states_outlive_a_generation(self, bench: NotifyBench, receiver: MessageReceiver) -> None:
        """The new generation has the same verdict, so nothing is reported again."""
        bench.notifier().record_changes()
        old = bench.store.store
        new = connect_next_generation(old)
        new.client.hset(new.first_shard.keys.meta, "schema", 1)
        assert activate_generation(old, new, {})
        delete_generation(new, old.generation)
        assert len(bench.waiting()) == 1
        active = ShardedStore(old.settings, new.generation)
        _version, memory = Outbox(active).read_memory()
        assert memory is not None
        assert memory.experiments["ranker"].treatments["treatment"].state == "stop_harm"
        bench.deliver(bench.notifier(store=active))
        assert len(receiver.requests) == 1

    def test_a_process_of_an_old_generation_writes_nothing(self, bench: NotifyBench) -> None:
        """The script compares the active generation, and the generation that is being deleted."""
        old = bench.store.store
        version, _ = Outbox(old).read_memory()
        new = connect_next_generation(old)
        assert activate_generation(old, new, {})
        assert not Outbox(old).record(version, NotificationMemory(), [])
        assert not Outbox(ShardedStore(old.settings, new.generation)).record(version, NotificationMemory(), [])

    def test_a_reset_deletes_messages_and_states(self, bench: NotifyBench) -> None:
        """Afterwards, the first observation only records the states."""
        bench.notifier().record_changes()
        delete_all_generations(bench.store.store)
        assert bench.waiting() == []
        assert Outbox(bench.store.store).read_memory() == (0, None)


class TestApprise:
    """Chats and e-mail by an address of Apprise."""

    def test_a_message_has_title_and_body(self, bench: NotifyBench, receiver: MessageReceiver) -> None:
        """Apprise's own JSON shows both texts."""
        notifier = bench.notifier(NotifySettings("chat", url=f"json://{receiver.address}/chat"))
        notifier.record_changes()
        bench.deliver(notifier)
        (request,) = receiver.requests
        content = request.json()
        assert content["title"] == "[ranker] treatment: Stop"
        assert "Students: " in content["message"]
        assert content["message"].endswith(f"{PUBLIC_URL}/experiments/ranker")
        assert content["type"] == "warning"

    def test_a_failure_is_reported_without_the_address(self, bench: NotifyBench, receiver: MessageReceiver) -> None:
        """The address of a chat contains the secret."""
        receiver.status = 503
        settings = NotifySettings("chat", url=f"json://{receiver.address}/hidden-token")
        notifier = bench.notifier(settings)
        notifier.record_changes()
        bench.deliver(notifier)
        (waiting,) = bench.waiting()
        assert waiting.error == "Apprise could not send the message: HTTP 503"
        assert "hidden-token" not in repr(settings)

    def test_the_status_belongs_to_the_channel(self, receiver: MessageReceiver) -> None:
        """Two channels of Apprise fail at the same moment."""
        barrier = threading.Barrier(2)
        errors = {}

        def send(name: str, address: str) -> None:
            (channel,) = open_channels([NotifySettings(name, url=f"json://{address}")])
            with pytest.raises(DeliveryFailed) as error:
                channel.send(write_test_message(0, None), "msg_1", 0)
            errors[name] = str(error.value)

        with MessageReceiver() as other_receiver:
            receiver.status, other_receiver.status = 503, 404
            receiver.before_answer = other_receiver.before_answer = barrier.wait
            addresses = {"a": receiver.address, "b": other_receiver.address}
            threads = [threading.Thread(target=send, args=channel) for channel in addresses.items()]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        prefix = "Apprise could not send the message: HTTP"
        assert errors == {"a": f"{prefix} 503", "b": f"{prefix} 404"}

    def test_an_address_that_apprise_does_not_accept_is_an_error(self) -> None:
        """The error names the channel, and not the address."""
        with pytest.raises(ConfigError, match=r"^notify\.chat\.url_file: .*expected an address of Apprise"):
            open_channels([NotifySettings("chat", url="slak://token")])


def test_a_redirection_is_a_failure(receiver: MessageReceiver) -> None:
    """A message may contain results, so it goes nowhere else."""
    receiver.status = 302
    channel = open_channels([NotifySettings("hook", webhook=f"http://{receiver.address}/", secret=SECRET)])[0]
    with pytest.raises(DeliveryFailed, match=r"^HTTP 302$"):
        channel.send(write_test_message(0, None), "msg_1", 0)


class TestContents:
    """Every event of a real store gives a message that readers understand, and that follows the schema."""

    def waiting_messages(self, bench: NotifyBench) -> dict[str, Message]:
        """Return event → message in the outbox, after checking the bodies for webhooks against the schema."""
        messages = {each.message["event"]: msgspec.convert(each.message, Message) for each in bench.waiting()}
        schema = json.loads((ROOT / "docs" / "notifications.schema.json").read_text())
        for message in messages.values():
            jsonschema.validate(message.webhook_json(), schema, format_checker=jsonschema.FormatChecker())
        return messages

    def test_a_message_has_reason_effect_students_and_time(self, bench: NotifyBench) -> None:
        """In plain sentences, with the texts of the headline."""
        bench.notifier().record_changes()
        harm = self.waiting_messages(bench)["harm"]
        (headline,) = describe_headlines(bench.store.reader.read_summary().experiments["ranker"])
        assert harm.title == "[ranker] treatment: Stop"
        assert headline.effect is not None
        assert headline.effect in harm.body
        lines = harm.body.split("\n")
        assert lines[:2] == [headline.finding, harm.data["reasons"][0]]
        assert headline.next_step in lines
        assert f"Students: {headline.students[0]} (control) and {headline.students[1]} (treatment)." in lines
        assert "As of 17 Jan 2026, 00:00 UTC." in lines

    def test_silence_is_reported(self, bench: NotifyBench) -> None:
        """By the clock: an hour without the responses that were due."""
        bench.notifier().record_changes()
        bench.now_ms += 9 * DAY_MS
        bench.report_lag(0)
        bench.notifier().record_changes()
        silent = self.waiting_messages(bench)["silent"]
        assert silent.title == "[ranker] no more responses arrive"
        assert silent.body.startswith("The newest event is 9\u202fd old; about 42 responses were due since.")

    def test_a_mismatch_of_the_split_is_reported_when_it_has_held(
        self, store_server: RedisServer, receiver: MessageReceiver
    ) -> None:
        """Once for the experiment, without a message that the verdict is invalid."""
        bench = NotifyBench(store_server, receiver)
        events = harmful_traffic()
        bench.store.apply([events[:2]])
        bench.notifier().record_changes()
        assigned = [event for number, event in enumerate(events[2:-1]) if number % 8 not in (2, 3)]
        later = [
            msgspec.structs.replace(
                events[-1], response_id=f"r-later-{hours}", timestamp_ms=events[-1].timestamp_ms + hours * HOUR_MS
            )
            for hours in (0, 3)
        ]
        bench.store.apply([[], assigned, [], [later[0]]], worker_count=4, worker_order=[0, 1, 2, 3])
        bench.notifier().record_changes()
        assert bench.waiting() == []
        bench.now_ms += 3 * HOUR_MS
        bench.report_lag(0)
        bench.store.apply([[], [], [later[1]]], worker_count=3, worker_order=[0, 1, 2])
        bench.notifier().record_changes()
        messages = self.waiting_messages(bench)
        assert messages.keys() == {"sample_ratio"}
        assert messages["sample_ratio"].title == "[ranker] sample ratio mismatch: the variants cannot be compared"
        assert messages["sample_ratio"].data["results"][0]["effect"] is None


def test_the_documented_rights_of_the_store_suffice(bench: NotifyBench, receiver: MessageReceiver) -> None:
    """docs/security.md lists the commands that the service may send."""
    client = bench.store.store.client
    (line,) = re.findall(r"^(ACL SETUSER ab-monitor .*)$", (ROOT / "docs" / "security.md").read_text(), re.MULTILINE)
    client.execute_command(*shlex.split(line))
    try:
        limited = replace(bench.store.settings.store, username="ab-monitor", password="PASSWORD")
        notifier = bench.notifier(store=ShardedStore(limited))
        assert notifier.record_changes()
        receiver.status = 500
        bench.deliver(notifier)
        receiver.status = 204
        bench.now_ms += HOUR_MS
        bench.deliver(notifier)
        notifier.stop()
        assert len(receiver.accepted()) == 1
        assert bench.waiting() == []
    finally:
        client.execute_command("ACL", "DELUSER", "ab-monitor")
