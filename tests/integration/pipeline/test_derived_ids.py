"""Events without ids of their own: the derived ids make events that are sent again count once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType

from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.clock import wall_clock
from monitor.config import ItemsMapping, Path, Settings, SourceSettings
from monitor.config.paths import parse_path
from monitor.config.settings import FieldMapping
from monitor.decoding import RecordDecoder
from monitor.events import Feedback, Response
from monitor.sources.source import PlainRecord
from tests.servers.redis import RedisServer
from tests.support.dump import dump
from tests.support.store_bench import SLOW_HEALTH_CHECKS, StoreBench
from tests.support.streams import SETTINGS, streams

_TOPIC = "reactions"
Events = Sequence[Response | Feedback]


def _paths(*texts: str) -> tuple[Path, ...]:
    return tuple(parse_path(text) for text in texts)


def _settings() -> Settings:
    """Return a source of lists of feedback, whose ids are hashes of the response, the item, the kind and the time."""
    fields = {
        "feedback_id": FieldMapping(_paths("answer", "$element.doc", "$element.what", "$element.at"), is_derived=True),
        "response_id": FieldMapping(_paths("answer")),
        "timestamp": FieldMapping(_paths("$element.at")),
        "kind": FieldMapping(_paths("$element.what")),
        "item_id": FieldMapping(_paths("$element.doc")),
        "user_id": FieldMapping(_paths("$element.user")),
        "score": FieldMapping(_paths("$element.stars")),
    }
    feedback = SourceSettings((_TOPIC,), "feedback", elements=parse_path("list"), fields=MappingProxyType(fields))
    response = SourceSettings(
        ("other",),
        "response",
        fields=MappingProxyType({}),
        items=ItemsMapping(parse_path("items"), FieldMapping(_paths("$value"))),
    )
    return replace(SETTINGS, kafka=replace(SETTINGS.kafka, sources=(feedback, response)))


def _message(reactions: Sequence[Feedback]) -> bytes:
    """Return a message of all reactions to one response, without their ids."""
    return json.dumps(
        {
            "answer": reactions[0].response_id,
            "list": [
                {
                    "at": reaction.timestamp_ms,
                    "doc": reaction.item_id,
                    "what": reaction.kind,
                    "user": reaction.user_id,
                    "stars": reaction.score,
                }
                for reaction in reactions
            ],
        }
    ).encode()


def _distinct(events: Events) -> list[list[Feedback]]:
    """Return the reactions by response; of several with one derived id, the first."""
    by_id: dict[tuple[object, ...], Feedback] = {}
    for event in events:
        if isinstance(event, Feedback):
            by_id.setdefault((event.response_id, event.item_id, event.kind, event.timestamp_ms), event)
    by_response: dict[str, list[Feedback]] = {}
    for reaction in by_id.values():
        by_response.setdefault(reaction.response_id, []).append(reaction)
    return [*by_response.values()]


@settings(max_examples=40, suppress_health_check=SLOW_HEALTH_CHECKS)
@given(data=st.data())
def test_sending_messages_again_in_any_order_changes_no_aggregate(
    data: st.DataObject, redis_server: RedisServer
) -> None:
    """The derived ids depend neither on the offset or the partition, nor on the place in the list."""
    events = data.draw(streams())
    responses = [event for event in events if isinstance(event, Response)]
    groups = _distinct(events)
    decoder = RecordDecoder(_settings())

    def deliver(messages: Sequence[bytes], partition: str, first_offset: int) -> list[list[Response | Feedback]]:
        decode = decoder.partition_decoder(_TOPIC, partition)
        batches = []
        for offset, message in enumerate(messages, first_offset):
            decoded = decode(PlainRecord(offset, None, message, offset), wall_clock())
            assert not isinstance(decoded, str)
            batches.append([*decoded])
        return batches

    bench = StoreBench(redis_server)
    bench.apply([responses, *deliver([_message(group) for group in groups], f"{_TOPIC}:0", 0)])
    expected = dump(bench.first_shard)
    again = data.draw(st.lists(st.sampled_from(groups), max_size=6)) if groups else []
    messages = [_message(data.draw(st.permutations(group))) for group in data.draw(st.permutations([*groups, *again]))]
    bench = StoreBench(redis_server)
    bench.apply([*deliver(messages, f"{_TOPIC}:1", 1000), responses, responses])
    assert dump(bench.first_shard) == expected
