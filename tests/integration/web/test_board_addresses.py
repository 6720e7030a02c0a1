"""Links from served pages to Grafana's boards."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry

from monitor.analysis import StoreSummary
from monitor.clock import wall_clock
from monitor.config import DisplaySettings, HttpSettings, ReloadResult
from monitor.export import ServiceHealth
from monitor.web import HttpEndpoints, HttpServer, PageContent
from tests.servers.process import free_port
from tests.support.http_client import ask

GRAFANA = "https://grafana.example.org"


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """Yield the port of a server with an experiment and the address of a Grafana."""
    endpoints = HttpEndpoints(
        read_summary=lambda _as_of_ms: StoreSummary(0, {}),
        read_verdicts=lambda: StoreSummary(0, {}),
        read_counts=lambda: StoreSummary(0, {}),
        read_history=lambda _experiment: {},
        read_items=lambda _path, _query: {},
        read_health=lambda: ServiceHealth(0, "", ""),
        read_starts=lambda: 0,
        reload_configuration=lambda: ReloadResult(is_successful=True, text=""),
        process_registry=CollectorRegistry(),
        data_problems=tuple,
        readiness_problems=tuple,
        display=DisplaySettings(grafana_url=GRAFANA),
        clock=wall_clock,
        experiment_pages={"": lambda _name, _query: PageContent("base.html")},
        experiment_names=lambda: ["algebra/v2"],
    )
    chosen = free_port()
    server = HttpServer(HttpSettings(port=chosen), endpoints)
    server.start()
    yield chosen
    server.stop()


@pytest.mark.parametrize(
    ("path", "board"),
    [
        ("/", "abmonitor-experiments"),
        ("/service", "abmonitor-pipeline"),
        ("/experiments/algebra%2Fv2", "abmonitor-experiment?var-experiment=algebra%2Fv2"),
    ],
)
def test_a_page_links_to_the_board_about_the_same(port: int, path: str, board: str) -> None:
    """The link is in the footer."""
    text = ask(port, path).body.decode()
    assert f'<a href="{GRAFANA}/d/{board}">Board in Grafana</a>' in text


def test_a_page_without_a_board_has_no_link(port: int) -> None:
    """An unknown experiment has no board."""
    answer = ask(port, "/experiments/nothing")
    assert answer.status == 404
    assert "Board in Grafana" not in answer.body.decode()
