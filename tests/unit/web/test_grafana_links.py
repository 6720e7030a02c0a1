"""Links from pages to Grafana's boards."""

from __future__ import annotations

import pytest

from grafana import boards
from monitor.config import parse_settings
from monitor.errors import ConfigError
from monitor.web.grafana_links import board_address

GRAFANA = "https://grafana.example.org/grafana"


@pytest.mark.parametrize(
    ("path", "experiment", "board"),
    [
        ("/", "", boards.EXPERIMENTS),
        ("/service", "", boards.PIPELINE),
        ("/experiments/a%2Fb", "a/b", f"{boards.EXPERIMENT}?var-experiment=a%2Fb"),
    ],
)
def test_a_page_links_to_the_board_about_the_same(path: str, experiment: str, board: str) -> None:
    """Ids of boards are those of the generated boards."""
    assert board_address(GRAFANA, path, experiment) == f"{GRAFANA}/d/{board}"


def test_there_is_no_link_without_a_grafana_or_a_board() -> None:
    """The key `display.grafana_url` is optional."""
    assert board_address(None, "/") is None
    assert board_address(GRAFANA, "/glossary") is None


def test_the_address_of_grafana_is_a_setting() -> None:
    """A script would be executed by readers, so only http and https are allowed."""
    assert (
        parse_settings({"experiments": [], "display": {"grafana_url": f"{GRAFANA}/"}}, {}).display.grafana_url
        == GRAFANA
    )
    with pytest.raises(ConfigError, match=r"display.grafana_url: got \"javascript:alert\(1\)\", expected an address"):
        parse_settings({"experiments": [], "display": {"grafana_url": "javascript:alert(1)"}}, {})
