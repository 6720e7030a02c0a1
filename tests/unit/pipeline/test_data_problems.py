"""Sentences about events that do not count, and the counts behind them."""

from __future__ import annotations

import json

import pytest

from monitor.clock import HOUR_MS
from monitor.config import MAX_NAME_LENGTH, DiscoverSettings, KafkaSettings
from monitor.engine import EventBatch
from monitor.pipeline.arrival_counter import ArrivalCounter, printable_name
from monitor.pipeline.batch_decoding import DecodedBatch, IgnoredRecord
from monitor.pipeline.data_problems import DataProblem, find_data_problems
from monitor.sources import PartitionRecords, RejectedRecord
from monitor.state import ArrivalCount, ArrivalLog, arrival_field
from tests.support.streams import records_of

NOW = 1_795_000_000_000 // HOUR_MS * HOUR_MS + 30 * 60_000
TOPIC = "acme.answers"
MINUTE_MS = 60_000
_DECLARED = {"ranker-v2": {"control": 0.5, "treatment": 0.5}}


def _log(*counts: tuple[str, str, int], minutes_ago: int = 1, topic: str = TOPIC) -> ArrivalLog:
    """Return a log of (kind, detail, events) that arrived some minutes ago."""
    log = ArrivalLog()
    at_ms = NOW - minutes_ago * MINUTE_MS
    for kind, detail, events in counts:
        count = ArrivalCount(topic, kind, detail)  # type: ignore[arg-type]
        log.add_hour(at_ms // HOUR_MS, {arrival_field(count, at_ms): str(events).encode()})
    return log


def _problems(log: ArrivalLog, removed: tuple[str, ...] = ()) -> list[DataProblem]:
    return find_data_problems(log, _DECLARED, removed, NOW)


def test_a_topic_whose_messages_are_all_rejected_is_reported_with_count_reason_and_command() -> None:
    """The sentence is the same in the log, on the page and in `status`."""
    rejected = [("rejected", "missing_field response_id", 5_000), ("rejected", "wrong_type items", 134)]
    (problem,) = _problems(_log(("received", "", 5_134), *rejected))
    assert problem.text == (
        "last hour: 5 134 of 5 134 messages of acme.answers rejected, mostly missing_field response_id; see "
        "`ab-monitor dead-letters list --config FILE`"
    )
    assert problem.is_ongoing


@pytest.mark.parametrize(
    ("received", "rejected", "is_problem"),
    [(1, 1, True), (100, 9, False), (100, 10, True), (1_000, 9, False), (10_000, 99, False), (10_000, 100, True)],
)
def test_rejected_messages_are_a_problem_from_one_percent_and_ten_messages_on_or_if_all_are(
    received: int, rejected: int, *, is_problem: bool
) -> None:
    """Single rejected messages among many are usual."""
    log = _log(("received", "", received), ("rejected", "invalid_json", rejected))
    assert bool(_problems(log)) == is_problem


def test_a_problem_that_is_over_is_reported_as_over() -> None:
    """The page shows the last hour, but the log only ongoing problems."""
    log = _log(("received", "", 50), ("rejected", "invalid_json", 50), minutes_ago=30)
    (problem,) = _problems(log)
    assert problem.text.endswith("None within the last ten minutes")
    assert not problem.is_ongoing


def test_messages_older_than_an_hour_are_no_problem() -> None:
    """Slots of five minutes leave the period one after the other."""
    assert not _problems(_log(("received", "", 50), ("rejected", "invalid_json", 50), minutes_ago=70))


def test_undeclared_names_are_reported_with_counts_and_the_names_that_were_probably_meant() -> None:
    """Experiments and variants are separate problems."""
    log = _log(
        ("received", "", 1_000),
        ("undeclared", json.dumps(["Ranker V2", ""]), 600),
        ("undeclared", json.dumps(["ranker-v2", "T"]), 300),
        ("undeclared", json.dumps(["ranker-v2", "x"]), 20),
    )
    experiments, variants = _problems(log)
    assert experiments.text == (
        "last hour: 600 of 1 000 (60.0 %) messages of acme.answers skipped: the configuration does not declare their "
        "experiments: 'Ranker V2' (600), did you mean 'ranker-v2'? To count an experiment, see `ab-monitor experiments "
        "adopt NAME --config FILE`"
    )
    assert "'T' of 'ranker-v2' (300), did you mean 'treatment'?" in variants.text
    assert "'x' of 'ranker-v2' (20), declared are control, treatment" in variants.text


def test_events_of_an_experiment_that_was_removed_from_the_configuration_are_no_problem() -> None:
    """The store has the experiment, so it was once declared."""
    log = _log(("received", "", 10), ("undeclared", json.dumps(["explainer", ""]), 10))
    assert _problems(log)
    assert not _problems(log, removed=("explainer",))


def test_the_next_version_of_an_experiment_is_not_taken_for_a_misspelt_name() -> None:
    """The next step is to declare the experiment."""
    (problem,) = _problems(_log(("received", "", 10), ("undeclared", json.dumps(["ranker-v3", ""]), 10)))
    assert "their experiments: 'ranker-v3' (10). To count an experiment, see `ab-monitor experiments" in problem.text


def test_names_that_are_declared_by_now_are_no_problem() -> None:
    """The configuration may have been corrected within the hour."""
    assert not _problems(_log(("received", "", 10), ("undeclared", json.dumps(["ranker-v2", "treatment"]), 10)))


def test_filters_that_no_message_passes_are_reported() -> None:
    """A shared topic has other messages; a mistyped filter lets nothing pass."""
    (problem,) = _problems(_log(("received", "", 60), ("ignored", "filtered", 50), ("ignored", "tombstone", 10)))
    assert problem.kind == "filtered"
    assert "all 50 messages of acme.answers ignored, because none passes `when`" in problem.text
    assert not _problems(_log(("received", "", 60), ("ignored", "filtered", 59)))
    assert not _problems(_log(("received", "", 60), ("ignored", "tombstone", 60)))


def test_ignored_messages_do_not_dilute_the_rejected_ones() -> None:
    """On a topic with other kinds of messages, too."""
    (problem,) = _problems(_log(("received", "", 10_000), ("ignored", "filtered", 9_900), ("rejected", "x", 20)))
    assert "20 of 100 (20.0 %) messages" in problem.text


def test_feedback_whose_responses_never_arrived_is_a_problem_from_ten_percent_on() -> None:
    """Feedback about responses of other bots is usual."""
    assert not _problems(_log(("received", "", 200), ("unmatched", "", 19)))
    (problem,) = _problems(_log(("received", "", 200), ("unmatched", "", 20)))
    assert problem.kind == "unmatched"


def test_names_are_printed_without_control_characters_and_shortened() -> None:
    """Anybody may write any name into a topic."""
    assert printable_name("a\x1b[2J\n\u202eb") == r"a\u001b[2J\n\u202eb"
    assert len(printable_name("x" * 1_000)) == MAX_NAME_LENGTH


def test_only_some_different_names_are_counted_one_by_one() -> None:
    """Anybody may write many names; the store must not grow with them."""
    decoded = DecodedBatch(EventBatch())
    decoded.undeclared_names.update({(f"name {number}", ""): 2 for number in range(80)})
    counts = ArrivalCounter(KafkaSettings(responses_topic=TOPIC, feedback_topic="f")).count_records([], decoded, NOW)
    assert len(counts) == 51
    assert counts[ArrivalCount(TOPIC, "undeclared", '["", ""]')] == 60


def test_undeclared_experiments_whose_names_do_not_match_discover_names_are_counted_without_names() -> None:
    """Names of undeclared variants belong to declared experiments, so they are recorded."""
    decoded = DecodedBatch(EventBatch())
    decoded.undeclared_names.update({("secret", ""): 2, ("ranker-v3", ""): 3, ("declared", "T"): 4})
    kafka = KafkaSettings(responses_topic=TOPIC, feedback_topic="f")
    counts = ArrivalCounter(kafka, DiscoverSettings(names=("ranker-*",))).count_records([], decoded, NOW)
    assert counts == {
        ArrivalCount(TOPIC, "undeclared", '["", ""]'): 2,
        ArrivalCount(TOPIC, "undeclared", '["ranker-v3", ""]'): 3,
        ArrivalCount(TOPIC, "undeclared", '["declared", "T"]'): 4,
    }


def test_rejected_records_are_counted_by_reason_and_field_and_never_by_their_content() -> None:
    """Positions in a list are left out, so that the number of reasons is small."""
    polled = [PartitionRecords(f"{TOPIC}:0", TOPIC, 0, records_of([b"1", b"2", None]), 3)]
    details = ["response_id: expected in every response", "items[17].item_id: expected a string", "expected JSON"]
    rejected = [
        RejectedRecord(f"{TOPIC}:0", offset, b"?", "wrong_type", detail) for offset, detail in enumerate(details)
    ]
    decoded = DecodedBatch(EventBatch(), rejected, ignored_records=[IgnoredRecord(f"{TOPIC}:0", 2, "tombstone")])
    counts = ArrivalCounter(KafkaSettings(responses_topic=TOPIC, feedback_topic="f")).count_records(
        polled, decoded, NOW
    )
    assert counts == {
        ArrivalCount(TOPIC, "received"): 3,
        ArrivalCount(TOPIC, "ignored", "tombstone"): 1,
        ArrivalCount(TOPIC, "rejected", "wrong_type response_id"): 1,
        ArrivalCount(TOPIC, "rejected", "wrong_type items.item_id"): 1,
        ArrivalCount(TOPIC, "rejected", "wrong_type"): 1,
    }


def test_a_name_that_may_be_declared_is_not_cut() -> None:
    """A cut name would not equal the name of a declared or removed experiment."""
    name = "x" * MAX_NAME_LENGTH
    assert printable_name(name) == name
