"""Send a response of the bot, and the rating that a student gives to its second video (docs/producer.md)."""

from __future__ import annotations

import json
import os
import uuid
from datetime import UTC, datetime
from typing import Any

from kafka import KafkaProducer


def create_response(user_id: str, variant: str, item_ids: list[str]) -> dict[str, Any]:
    """Return the event of a response that was shown now."""
    return {
        "response_id": str(uuid.uuid4()),
        "timestamp": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "experiment": "ranker-v2",
        "variant": variant,
        "user_id": user_id,
        "items": [{"item_id": item_id, "position": position} for position, item_id in enumerate(item_ids, start=1)],
    }


def create_rating(response_id: str, user_id: str, item_id: str, score: int) -> dict[str, Any]:
    """Return the event of a rating that was given now; its id follows from its content."""
    timestamp = datetime.now(UTC).isoformat(timespec="milliseconds")
    content = {"response_id": response_id, "item_id": item_id, "kind": "rating", "score": score, "timestamp": timestamp}
    feedback_id = str(uuid.uuid5(uuid.NAMESPACE_OID, json.dumps(content, sort_keys=True)))
    return {"feedback_id": feedback_id, "user_id": user_id, **content}


with KafkaProducer(
    bootstrap_servers=os.environ.get("KAFKA_BOOTSTRAP_SERVERS", "localhost:9092"),
    acks="all",
    enable_idempotence=True,
    key_serializer=str.encode,
    value_serializer=lambda event: json.dumps(event).encode(),
) as producer:
    response = create_response("student-17", "treatment", ["video-12", "video-7"])
    rating = create_rating(response["response_id"], "student-17", "video-7", 4)
    # The rating is sent twice, as after a timeout of the application, and counts once.
    for topic, event in (("chatbot.responses", response), ("student.feedback", rating), ("student.feedback", rating)):
        # get() raises an error if the broker does not store the event.
        producer.send(topic, event, key=event["user_id"]).get(timeout=60)
