"""Ports for servers of tests: one that is taken a moment after it was chosen fails a test for nothing."""

from __future__ import annotations

import pytest

from tests.servers import process


def test_no_port_is_handed_out_twice() -> None:
    """Whoever has been given one may not listen on it yet."""
    ports = [process.free_port() for _ in range(500)]
    assert len(set(ports)) == len(ports)


def test_processes_side_by_side_have_ports_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them together have all."""
    monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", "3")
    found = []
    for number in range(3):
        monkeypatch.setenv("PYTEST_XDIST_WORKER", f"gw{number}")
        found += process._own_ports()
    assert sorted(found) == list(range(12_000, 22_000))
