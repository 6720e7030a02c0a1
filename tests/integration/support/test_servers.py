"""The parts that the other tests stand on are real and reachable."""

from __future__ import annotations

from pathlib import Path

from kafka import KafkaProducer

from tests.servers.chromium import dom
from tests.servers.kafka import KafkaBroker
from tests.servers.prometheus import PrometheusServer, scraping
from tests.servers.redis import RedisServer


def test_kafka_takes_a_record(kafka: KafkaBroker) -> None:
    """A record is acknowledged by the broker."""
    kafka.create_topic("smoke", 1)
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap, acks="all")
    assert producer.send("smoke", b"hello").get(timeout=20).offset == 0
    producer.close()


def test_both_stores_answer(redis_server: RedisServer, valkey_server: RedisServer) -> None:
    """Redis is Redis and Valkey is Valkey."""
    assert "valkey_version" not in redis_server.client().info("server")
    assert "valkey_version" in valkey_server.client().info("server")


def test_prometheus_answers() -> None:
    """A server without targets still knows what one is."""
    with PrometheusServer(scraping([])) as server:
        assert server.query("1")


def test_chromium_renders(tmp_path: Path) -> None:
    """A page's script runs."""
    page = tmp_path / "page.html"
    page.write_text("<p id=p></p><script>document.getElementById('p').textContent = 6 * 7</script>")
    assert "42" in dom(page.as_uri())
