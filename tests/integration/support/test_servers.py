"""The parts that the other tests stand on are real and reachable."""

from __future__ import annotations

from pathlib import Path

import pytest
from kafka import KafkaProducer

from tests.servers.browser import browser_page, serious_problems
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
    path = tmp_path / "page.html"
    path.write_text("<p id=p></p><script>document.getElementById('p').textContent = 6 * 7</script>")
    with browser_page() as page:
        page.goto(path.as_uri())
        assert page.inner_text("#p") == "42"


def test_serious_problems_of_a_page_are_found(tmp_path: Path) -> None:
    """A picture without a text for those who cannot see it."""
    path = tmp_path / "page.html"
    path.write_text("<html lang=en><title>A page</title><img src=data:,>")
    with browser_page() as page:
        page.goto(path.as_uri())
        assert [problem.split(":")[0] for problem in serious_problems(page)] == ["image-alt"]


def test_a_violation_of_the_content_security_policy_fails_the_test(tmp_path: Path) -> None:
    """A policy that forbids inline scripts, and an inline script."""
    path = tmp_path / "page.html"
    policy = "<meta http-equiv=Content-Security-Policy content=\"script-src 'none'\">"
    path.write_text(f"{policy}<script>document.title = 'changed'</script>")
    with pytest.raises(AssertionError, match="Content Security Policy"), browser_page() as page:
        page.goto(path.as_uri())
