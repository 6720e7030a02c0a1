"""A chatbot with thumbs only, without items and grades: through Kafka, two workers and a crash to the verdict."""

from __future__ import annotations

import html
import json
import random
import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from monitor.config import ExperimentSettings, load_settings
from monitor.events import Feedback, Response
from monitor.simulation.simulator import SimulatedEvent
from tests.support.command import HASHED, ab_monitor, eventually, get
from tests.support.oracle import DAY_MS, ExpectedResponse, compute_expected_responses
from tests.support.replicas import Replicas
from tests.support.streams import START

EXPERIMENT = """
[[experiments]]
name = "answers"
control = "control"
variants = { control = 0.5, treatment = 0.5 }
metrics = ["share:thumb_up"]
primary = "share:thumb_up"
exclusive_kinds = [["thumb_up", "thumb_down"]]
mde = 0.05
"""
STUDENTS, DAYS = 900, 12
THUMB_UP_RATES = {"control": 0.5, "treatment": 0.6}
THUMB_RATE = 0.8
"""The share of responses with a thumb; the others have none, or only a withdrawn one."""
MINUTE_MS, HOUR_MS = 60_000, 3_600_000
EVENTS_PER_SECOND = 4_000

Event = Response | Feedback


def _thumb(response: Response, number: int, kind: str, *, is_withdrawn: bool = False) -> Feedback:
    """Return a thumb or the withdrawal of one, `number` minutes after a response."""
    feedback_id = f"{response.response_id}-{number}"
    at_ms = response.timestamp_ms + number * MINUTE_MS
    return Feedback(feedback_id, response.response_id, at_ms, kind, response.user_id, is_withdrawn=is_withdrawn)


def _thumbs(chance: random.Random, response: Response) -> list[Feedback]:
    """Return the thumbs of a response: most are final at once, some change from the other one, some are withdrawn."""
    if chance.random() > THUMB_RATE:
        withdrawn = [_thumb(response, 1, "thumb_up"), _thumb(response, 2, "thumb_up", is_withdrawn=True)]
        return withdrawn if chance.random() < 0.3 else []
    is_up = chance.random() < THUMB_UP_RATES[response.variant] / THUMB_RATE
    kind, other_kind = ("thumb_up", "thumb_down") if is_up else ("thumb_down", "thumb_up")
    return [_thumb(response, 1, other_kind)] * (chance.random() < 0.2) + [_thumb(response, 3, kind)]


def make_events() -> list[Event]:
    """Return the events of students who come within twelve days and get some responses in three days each."""
    chance = random.Random(5)
    events: list[Event] = []
    for student in range(STUDENTS):
        variant = chance.choice(list(THUMB_UP_RATES))
        first_ms = START + int(chance.random() * (DAYS - 1) * DAY_MS)
        for number in range(chance.randint(1, 7)):
            at_ms = min(first_ms + int(chance.random() * 3 * DAY_MS), START + DAYS * DAY_MS - HOUR_MS)
            response = Response(f"r-{student}-{number}", at_ms, "answers", variant, (), None, f"student-{student}")
            events += [response, *_thumbs(chance, response)]
    return events


def send_order(events: Sequence[Event]) -> list[SimulatedEvent]:
    """Return the messages in an order that is wrong by up to a day; some messages are sent twice."""
    chance = random.Random(6)
    resent = [event for event in events if chance.random() < 0.1]
    students = {event.response_id: event.user_id or "" for event in events if isinstance(event, Response)}
    messages = []
    for event in [*events, *resent]:
        fields: dict[str, Any] = {"timestamp": event.timestamp_ms, "response_id": event.response_id}
        if isinstance(event, Response):
            fields |= {"experiment": event.experiment, "variant": event.variant, "items": []}
        else:
            fields |= {"feedback_id": event.feedback_id, "kind": event.kind, "withdrawn": event.is_withdrawn}
        payload = json.dumps(fields | {"user_id": event.user_id}).encode()
        arrival_ms = event.timestamp_ms + int(chance.random() * DAY_MS)
        key = students[event.response_id].encode()
        messages.append(
            SimulatedEvent(arrival_ms, "response" if isinstance(event, Response) else "feedback", key, payload)
        )
    return sorted(messages, key=lambda message: message.arrival_ms)


def closed_student_means(
    experiment: ExperimentSettings, responses: Sequence[ExpectedResponse], as_of_ms: int
) -> dict[str, list[float]]:
    """Return variant → mean share of each student whose exposure and feedback windows are over."""
    by_student: dict[str, list[ExpectedResponse]] = defaultdict(list)
    for response in responses:
        by_student[response.response.user_id or ""].append(response)
    means: dict[str, list[float]] = defaultdict(list)
    for student_responses in by_student.values():
        first_day = min(response.response.timestamp_ms for response in student_responses) // DAY_MS
        end_ms = (first_day + experiment.exposure_days) * DAY_MS
        if end_ms + experiment.feedback_window_ms <= as_of_ms:
            values = [
                response.metrics["share:thumb_up"] or 0.0
                for response in student_responses
                if response.response.timestamp_ms < end_ms
            ]
            means[student_responses[0].response.variant].append(float(np.mean(values)))
    return means


@pytest.mark.timeout(200)
def test_thumbs_alone_lead_to_a_verdict_with_exact_numbers(replicas: Replicas) -> None:
    """One of two workers is killed during the run, and starts again."""
    events = make_events()
    messages = send_order(events)
    for replica in (1, 2):
        replicas.write(replica, EXPERIMENT)
        replicas.start(replica)
    sender = replicas.send(messages, EVENTS_PER_SECOND)
    eventually("a quarter of the events is applied", lambda: replicas.applied_count() > len(messages) / 4)
    replicas.kill(2)
    replicas.start(2)
    sender.join()
    replicas.wait_until_applied(messages)

    config = replicas.config(1)
    (experiment,) = load_settings(config, {}).experiments
    responses = compute_expected_responses(experiment, events)
    as_of_ms = max(event.timestamp_ms for event in events)
    means = closed_student_means(experiment, responses, as_of_ms)

    process = ab_monitor("verdict", "answers", "--config", config, "--json", environ=HASHED)
    assert process.returncode == 0, process.stderr
    verdict_json = json.loads(process.stdout)
    verdict = verdict_json["verdict"]["treatment"]
    assert verdict["state"] == "ship"
    assert "rated_share_differs" not in {note["code"] for note in verdict["notes"]}
    for variant, estimate in verdict["evidence"]["arms"].items():
        assert estimate["units"] == len(means[variant])
        assert estimate["mean"] == pytest.approx(np.mean(means[variant]), abs=1e-8)
        assert estimate["variance"] == pytest.approx(np.var(means[variant], ddof=1) / len(means[variant]), rel=1e-5)
    status = json.loads(ab_monitor("status", "--config", config, "--json", environ=HASHED).stdout)
    for variant, content in status["experiments"]["answers"]["variants"].items():
        of_variant = [response for response in responses if response.response.variant == variant]
        assert content["responses"] == len(of_variant)
        assert content["rated_responses"] == sum(response.is_rated for response in of_variant)
        assert content["metrics"]["share:thumb_up"]["sum"] == sum(
            response.metrics["share:thumb_up"] or 0.0 for response in of_variant
        )
    text = ab_monitor("verdict", "answers", "--config", config, environ=HASHED).stdout
    url = re.findall(r"serving url=(\S+?)/?\s", replicas.logs_of[1].read_text())[-1]
    pages = [get(f"{url}{path}") for path in ("/", "/experiments/answers")]
    assert [code for code, _ in pages] == [200, 200]
    for content in (text, *(page for _, page in pages)):
        assert "share of responses with feedback" in html.unescape(content).lower()
        assert re.search(r"\bship\b", content, re.IGNORECASE)
        assert re.search(r"\b(n?dcg|rr|cg)@\d", content, re.IGNORECASE) is None
    audit = ab_monitor("audit", "--config", config, environ=HASHED)
    assert audit.returncode == 0, audit.stdout + audit.stderr
    assert "Traceback" not in replicas.logs()
