"""The HTTP endpoints of a running demo: paths, JSON, metrics under a real Prometheus, page in a browser."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from monitor.export import METRIC_CATALOGUE
from tests.servers.browser import browser_page, overflow_px
from tests.servers.process import free_port
from tests.servers.prometheus import PrometheusServer, promtool, scraping
from tests.support.command import eventually, get
from tests.support.http_client import ask


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Yield the port of a demo that has run through its week and stays."""
    chosen = free_port()
    log = (tmp_path_factory.mktemp("demo") / "log").open("w")
    demo = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "monitor",
            "demo",
            "--speed",
            "200000",
            "--responses",
            "8000",
            "--port",
            str(chosen),
            "--stay",
        ],
        stdout=log,
        stderr=log,
    )
    try:
        eventually("the demo has feedback", lambda: '"rating"' in get(f"http://127.0.0.1:{chosen}/api/experiments")[1])
        yield chosen
    finally:
        demo.terminate()
        demo.wait(20)
        log.close()


class TestPaths:
    """The paths of the server."""

    @pytest.mark.parametrize(
        "path",
        [
            "/",
            "/service",
            "/experiments/ranker-v2",
            "/metrics",
            "/metrics/experiments",
            "/-/healthy",
            "/-/ready",
            "/api/experiments",
        ],
    )
    def test_each_path_answers_get_and_head(self, port: int, path: str) -> None:
        """HEAD has the headers and no body."""
        assert ask(port, path).status == 200
        head = ask(port, path, "HEAD")
        assert (head.status, head.body) == (200, b"")

    @pytest.mark.parametrize(
        "path",
        [
            *("/metricsx", "/metrics/", "/api/declarations", "/favicon.ico", "/../etc/passwd", "/api", "/%00"),
            *("/service/", "/experiments", "/experiments/", "/experiments/nothing", "/experiments/ranker-v2/nothing"),
        ],
    )
    def test_unknown_paths_are_404(self, port: int, path: str) -> None:
        """There are no redirects."""
        assert ask(port, path).status == 404

    def test_other_methods_and_bodies_are_rejected(self, port: int) -> None:
        """405 lists the allowed methods; any body gives 413."""
        response = ask(port, "/", "POST")
        assert (response.status, response.headers["Allow"]) == (405, "GET, HEAD")
        assert ask(port, "/", "GET", b"x" * 10).status == 413

    def test_an_experiment_is_served_as_json(self, port: int) -> None:
        """The object of status --json."""
        answer = ask(port, "/api/experiments/ranker-v2")
        assert set(json.loads(answer.body)["variants"]) == {"control", "treatment"}

    @pytest.mark.parametrize("suffix", ["", "/verdict", "/items", "/attention"])
    def test_an_unknown_experiment_is_answered_with_the_similar_and_all_names(self, port: int, suffix: str) -> None:
        """Control characters and changes of direction in the name are escaped."""
        answer = ask(port, f"/api/experiments/Ranker%20V2%E2%80%AE{suffix}")
        assert answer.status == 404
        assert json.loads(answer.body) == {
            "error": 'unknown experiment "Ranker V2\\u202e", did you mean "ranker-v2"? Expected one of "ranker-v2"'
        }
        assert (
            'unknown experiment "nothing". Expected' in json.loads(ask(port, "/api/experiments/nothing").body)["error"]
        )

    def test_a_verdict_is_served_as_json(self, port: int) -> None:
        """The object of `verdict --json`; the rest of the path is no name."""
        verdict = json.loads(ask(port, "/api/experiments/ranker-v2/verdict").body)
        assert (verdict["experiment"], set(verdict["verdict"])) == ("ranker-v2", {"treatment"})
        assert set(verdict["history"]) == {"treatment"}
        early_verdict = json.loads(ask(port, "/api/experiments/ranker-v2/verdict?as_of=2020-01-01T00:00:00Z").body)
        assert early_verdict["verdict"]["treatment"]["state"] == "insufficient_data"
        for path in ("nothing/verdict", "ranker-v2/verdicts", "ranker-v2/verdict/verdict", "/verdict"):
            assert ask(port, f"/api/experiments/{path}").status == 404

    def test_as_of_selects_a_past_time(self, port: int) -> None:
        """Before the first event no decayed mean is defined; an unreadable time gives 400."""
        experiment = json.loads(ask(port, "/api/experiments/ranker-v2?as_of=2020-01-01T00:00:00Z").body)
        decayed = experiment["variants"]["control"]["metrics"]["dcg@5"]["decayed"]["24h"]
        assert decayed["mean"] is None
        assert ask(port, "/api/experiments?as_of=noon").status == 400


class TestPrometheus:
    """Both endpoints under a real Prometheus and promtool."""

    @pytest.mark.parametrize("path", ["/metrics", "/metrics/experiments"])
    def test_promtool_accepts_the_metrics(self, port: int, path: str) -> None:
        """The only finding is the unit of `abmonitor_days_to_resolve`, which is intended: verdicts take days."""
        result = promtool("check", "metrics", stdin=get(f"http://127.0.0.1:{port}{path}")[1])
        days_finding = 'abmonitor_days_to_resolve use base unit "seconds" instead of "days"'
        assert result.stdout == ""
        assert set(result.stderr.splitlines()) <= {days_finding}

    def test_every_sample_is_in_the_catalogue_and_not_nan(self, port: int) -> None:
        """Every name and label is in the catalogue that boards are checked against."""
        labels_by_name = {metric.name: set(metric.label_names) for metric in METRIC_CATALOGUE}
        for path in ("/metrics", "/metrics/experiments"):
            for line in get(f"http://127.0.0.1:{port}{path}")[1].splitlines():
                if not line.startswith("abmonitor"):
                    continue
                name = re.split(r"[{ ]", line, maxsplit=1)[0]
                if name.endswith("_created"):
                    continue
                base = re.sub(r"_(bucket|sum|count)$", "", name)
                labels = set(re.findall(r'(\w+)="', line)) - {"le"}
                assert labels == labels_by_name[name if name in labels_by_name else base], line
                assert "NaN" not in line

    def test_prometheus_scrapes_both_endpoints(self, port: int) -> None:
        """Both targets are up, and a mean can be queried."""
        targets = [f"127.0.0.1:{port}/metrics", f"127.0.0.1:{port}/metrics/experiments"]
        with PrometheusServer(scraping(targets)) as server:
            eventually("both targets are up", lambda: [entry["health"] for entry in server.targets()] == ["up", "up"])
            means = server.query('abmonitor_metric_mean{metric="dcg@5", decay="24h"}')
            assert {entry["metric"]["variant"] for entry in means} == {"control", "treatment"}
            assert all(1 < float(entry["value"][1]) < 3 for entry in means)
            assert server.query("abmonitor_store_up == 1")

    def test_the_documented_scrape_configuration_is_valid(self, tmp_path: Path) -> None:
        """Promtool accepts the example in docs/http.md, with TLS and token."""
        text = (Path(__file__).parents[3] / "docs/http.md").read_text()
        (block,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
        trustme.CA().cert_pem.write_to_path(str(tmp_path / "ab-monitor-ca.pem"))
        (tmp_path / "ab-monitor-token").write_text("a-token-of-some-length")
        config = tmp_path / "prometheus.yml"
        config.write_text(block.replace("/etc/prometheus", str(tmp_path)))
        result = promtool("check", "config", str(config))
        assert result.returncode == 0, result.stdout + result.stderr


class TestPage:
    """The HTML page in a browser."""

    def test_the_page_shows_variants_under_its_security_policy(self, port: int) -> None:
        """The policy forbids inline styles and scripts; the table is rendered."""
        with browser_page() as page:
            page.goto(f"http://127.0.0.1:{port}/experiments/ranker-v2")
            text = page.inner_text("main")
        for word in (
            "ranker-v2",
            "control",
            "treatment",
            "dcg@5",
            "Share of rated responses",
            "Last days (24 h half-life)",
        ):
            assert word in text
        policy = ask(port, "/").headers["Content-Security-Policy"]
        assert "unsafe" not in policy

    @pytest.mark.parametrize(("width", "height"), [(1400, 1000), (400, 1400)])
    def test_the_page_renders_narrow_and_wide(self, port: int, width: int, height: int) -> None:
        """A screenshot comes out, and is more than an empty page; nothing is wider than the window."""
        with browser_page(width=width, height=height) as page:
            page.goto(f"http://127.0.0.1:{port}/")
            assert len(page.screenshot()) > 20_000
            assert overflow_px(page) == 0
