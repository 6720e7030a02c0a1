"""Every query of the boards, and every rule, asks a Prometheus that scraped a running monitor, and gets numbers."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from kafka import KafkaProducer

from deploy.alerting.generate import GROUPS
from deploy.alerting.operations import LATE, REFUSED_LONG, REFUSED_SHORT
from deploy.alerting.product import BELOW_PAST, ERRORS_BELOW_CONTROL, ERRORS_BELOW_PAST, PAST
from deploy.alerting.rules import Addresses, Alert, Group, Recording
from deploy.alerting.traffic import PAST_SHARE
from grafana.generate import boards
from grafana.preview.rendering import preview
from grafana.queries import Query, filled_in, queries
from tests.servers.kafka import KafkaBroker
from tests.servers.process import free_port
from tests.servers.prometheus import PrometheusServer, promtool
from tests.servers.redis import RedisServer, redis_binary
from tests.support.promql import selectors
from tests.support.rollouts import Asked
from tests.support.rollouts import asked as asked_by_rollouts
from tests.support.scraped import ALWAYS, scraped

ROOT = Path(__file__).parents[3]
BOARDS = boards()
BOARD = BOARDS["experiment.json"]
QUERIES = [query for board in BOARDS.values() for query in queries(board)]

WINDOWS = {"__rate_interval": "10s", "__range": "30s"}
SCRAPED_FOR_S = 15
PATIENCE_S = 60.0

NO_END = "simulated traffic has no end that it could be behind of; shown with Kafka"
EMPTY_IN_A_DEMO = {
    "Lag": NO_END,
    "Lag by topic, in time": NO_END,
    "Lag by topic, in events": NO_END,
    "Lost events": "a demo loses nothing; the panel then says none; shown in tests/integration/grafana/test_alerts.py",
    "Dead letters in the shown time range": "nothing refuses a simulated event; shown with Kafka",
    "Refused events by reason": "nothing refuses a simulated event; shown by feeding a refused message to the service",
}

RECORDINGS = [recording for group in GROUPS for recording in group.recordings]
ALERTS = [alert for group in GROUPS for alert in group.alerts]
YOUNG = "a demo has no day before, to compare with; shown in the scenarios of AbMonitorDropFast and in the drill"
RULES_EMPTY_IN_A_DEMO = {
    PAST: YOUNG,
    BELOW_PAST: YOUNG,
    ERRORS_BELOW_PAST: YOUNG,
    PAST_SHARE: "a demo has no day before, to compare with; shown in the scenarios of AbMonitorEmptyAnswers",
    REFUSED_SHORT: "nothing refuses a simulated event; shown in the scenarios of AbMonitorRejectsSevere",
    REFUSED_LONG: "nothing refuses a simulated event; shown in the scenarios of AbMonitorRejects",
    LATE: "simulated traffic is not late; shown in the scenarios of AbMonitorLateEvents",
    "abmonitor_consumer_lag_seconds": NO_END,
    "abmonitor_lost_events_total": "a demo loses nothing; shown in the scenarios of AbMonitorLostEvents",
}
"""Series that rules name; the scenarios are in tests/support/alerts.py, where each alert is seen to fire."""

FILLED = {
    f"{name} {query.panel} {query.ref}": query
    for name, board in BOARDS.items()
    for query in queries(board)
    if query.panel not in EMPTY_IN_A_DEMO
}

SERVICE = """
[kafka]
bootstrap_servers = "{bootstrap}"
responses_topic = "{name}.responses"
feedback_topic = "{name}.feedback"
dead_letter_topic = "{name}.dead"
group_id = "{name}"

[store]
url = "{store}"

[http]
port = {port}

[[experiments]]
name = "ranker-v2"
control = "control"
variants = {{ control = 0.5, treatment = 0.5 }}
"""


Series = list[tuple[dict[str, str], float]]
"""Labels and value."""


def series(prometheus: PrometheusServer, expr: str) -> Series:
    """Return the labels and the current value of each series of an expression."""
    return [(entry["metric"], float(entry["value"][1])) for entry in prometheus.query(expr)]


def feedback(name: str) -> bytes:
    """Return a reaction of now."""
    now_ms = int(time.time() * 1000)
    event = {"feedback_id": name, "response_id": "r-1", "timestamp": now_ms, "kind": "rating", "score": 4}
    return json.dumps(event).encode()


def offered(prometheus: PrometheusServer, definition: str) -> list[str]:
    """Return what Grafana offers for a variable defined as `label_values(selector, label)`."""
    parts = re.fullmatch(r"label_values\((.*), (\w+)\)", definition)
    assert parts is not None, definition
    return sorted({labels[parts[2]] for labels, _ in series(prometheus, parts[1])})


def until(read: Callable[[], Series]) -> Series:
    """Return what `read` returns as soon as it is not empty."""
    deadline = time.monotonic() + PATIENCE_S
    while not (value := read()):
        assert time.monotonic() < deadline, "nothing came"
        time.sleep(0.5)
    return value


@pytest.fixture(scope="module")
def scraped_demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrometheusServer]:
    """Yield a Prometheus that watched a demo to its end, eight simulated hours a second, and records as deployed."""
    port = free_port()
    command = ["demo", "--speed", "28800", "--stay", "--port", str(port)]
    recorded = {**Group("recorded", recordings=RECORDINGS).rendered(Addresses()), "interval": "1s"}
    with scraped(command, port, tmp_path_factory.mktemp("demo"), (ALWAYS, recorded)) as prometheus:
        until(lambda: series(prometheus, 'count(abmonitor_metric_mean{decay!="none"}) > 1'))
        time.sleep(SCRAPED_FOR_S)
        # A student's first days must be over.
        closed = 'abmonitor_days_to_resolve and on (variant) abmonitor_effect_lower{estimand="closed"}'
        until(lambda: series(prometheus, closed))
        # What ended more than an hour ago is not watched, and the demo began a week ago.
        until(lambda: series(prometheus, ERRORS_BELOW_CONTROL))
        yield prometheus


@pytest.fixture(scope="module")
def chosen(scraped_demo: PrometheusServer) -> Mapping[str, str]:
    """Return the board's variables as a first visit chooses them: the default where it exists, else the first value."""
    values: dict[str, str] = dict(WINDOWS)
    for choice in BOARD["templating"]["list"][1:]:
        found = offered(scraped_demo, filled_in(choice["query"]["query"], values))
        assert found, choice["name"]
        default = choice.get("current", {}).get("value")
        values[choice["name"]] = default if default in found else found[0]
    return values


@pytest.mark.parametrize("query", FILLED.values(), ids=FILLED)
def test_every_panel_shows_numbers(query: Query, scraped_demo: PrometheusServer, chosen: Mapping[str, str]) -> None:
    """A demo fills the boards: each query returns finite numbers, and the legend finds the labels that it names."""
    found = series(scraped_demo, filled_in(query.expr, chosen))
    assert found
    assert [labels for labels, value in found if not math.isfinite(value)] == []
    wanted = set(re.findall(r"{{(\w+)}}", query.legend))
    assert [labels for labels, _ in found if not wanted <= set(labels)] == []


@pytest.mark.parametrize("rule", RECORDINGS, ids=lambda rule: rule.record)
def test_every_recording_has_values(rule: Recording, scraped_demo: PrometheusServer) -> None:
    """As Prometheus evaluated it, with the labels that its name begins with."""
    found = series(scraped_demo, rule.record)
    assert bool(found) != (rule.record in RULES_EMPTY_IN_A_DEMO)
    assert [labels for labels, value in found if not math.isfinite(value)] == []
    assert {frozenset(labels) - {"__name__"} for labels, _ in found} <= {rule.labels}


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_every_alert_finds_what_it_watches_and_is_calm(alert: Alert, scraped_demo: PrometheusServer) -> None:
    """Each series that it names is there, and nothing of a healthy demo makes it fire."""
    # By name alone: at night an hour of simulated traffic has too few responses for the shortest decay.
    named = {selector.prettify().partition(" offset ")[0].partition("{")[0] for selector in selectors(alert.expr)}
    missing = {name for name in named if not series(scraped_demo, name)}
    assert missing <= set(RULES_EMPTY_IN_A_DEMO)
    assert series(scraped_demo, alert.expr) == []


def test_a_change_of_the_verdict_is_marked(scraped_demo: PrometheusServer, chosen: Mapping[str, str]) -> None:
    """Where a state begins to apply, and not while it goes on."""
    (mark,) = [each for each in BOARD["annotations"]["list"] if each["name"] == "Verdicts"]
    expr = filled_in(mark["expr"], chosen).replace("offset 1m", "offset 1s")
    marked = series(scraped_demo, f"sum(count_over_time(({expr})[1h:1s]))")
    assert 1 <= marked[0][1] <= 4
    (start,) = [each for each in BOARD["annotations"]["list"] if each["name"] == "Shares"]
    shares = filled_in(start["expr"], chosen)
    assert series(scraped_demo, shares.partition(" != ")[0])
    assert series(scraped_demo, f"count_over_time(({shares.replace('offset 1m', 'offset 1s')})[1h:1s])") == []


def test_arms_are_divided_into_control_and_others(scraped_demo: PrometheusServer, chosen: Mapping[str, str]) -> None:
    """The query for the control returns only it, its sibling the others; none while nobody says which one it is."""
    (control,) = {labels["control"] for labels, _ in series(scraped_demo, "abmonitor_experiment_info")}
    by_name = {(query.panel, query.ref): query.expr for query in queries(BOARD)}
    pairs = [
        (expr, by_name[panel, f"{ref}, control"])
        for (panel, ref), expr in by_name.items()
        if (panel, f"{ref}, control") in by_name
    ]
    assert len(pairs) > 8
    for pair in pairs:
        others, own = (
            {labels["variant"] for labels, _ in series(scraped_demo, filled_in(expr, chosen))} for expr in pair
        )
        assert own == {control}
        assert others == {"treatment"}
        unknown = filled_in(pair[0], chosen).replace("abmonitor_experiment_info", "missing")
        assert series(scraped_demo, unknown) == []


def test_the_table_has_a_row_for_each_experiment(scraped_demo: PrometheusServer, chosen: Mapping[str, str]) -> None:
    """Every column has one value for every experiment, and the effect is that of the experiment's own board."""
    (panel,) = [panel for panel in BOARDS["experiments.json"]["panels"] if panel["type"] == "table"]
    columns = {entry["refId"]: series(scraped_demo, entry["expr"]) for entry in panel["targets"]}
    rows = [[labels["experiment"] for labels, _ in found] for found in columns.values()]
    assert rows == [[chosen["experiment"]]] * len(columns)
    value = {ref: found[0][1] for ref, found in columns.items()}
    assert value["alerts"] == 1
    assert value["lower"] < value["effect"] < value["upper"]
    of_its_own = {query.ref: query.expr for query in QUERIES if "(decides)" in query.panel}
    for ref, expr in of_its_own.items():
        assert [at for _, at in series(scraped_demo, filled_in(expr, {**chosen, "metric": "dcg@5"}))] == [value[ref]]


def test_the_effect_of_several_variants_is_that_of_the_best(tmp_path: Path) -> None:
    """With the bounds of that very variant, on the primary metric, over closed students; from two replicas."""
    values = {"b": (0.1, -0.3, 0.9), "c": (0.3, 0.2, 0.4)}
    world = {f'abmonitor_experiment_info{{experiment="e",control="a",primary="m",instance="{at}"}}': 1.0 for at in "12"}
    for variant, numbers in values.items():
        for name, number in zip(("", "_lower", "_upper"), numbers, strict=True):
            for metric, estimand, more in (("m", "closed", 0), ("other", "closed", 1), ("m", "live", 2)):
                labels = f'experiment="e",variant="{variant}",metric="{metric}",estimand="{estimand}"'
                world |= {f'abmonitor_effect{name}{{{labels},instance="{at}"}}': number + more for at in "12"}
    (panel,) = [panel for panel in BOARDS["experiments.json"]["panels"] if panel["type"] == "table"]
    columns = {entry["refId"]: entry["expr"] for entry in panel["targets"]}
    questions = [
        {"expr": columns[ref], "eval_time": "0m", "exp_samples": [{"labels": '{experiment="e"}', "value": value}]}
        for ref, value in zip(("effect", "lower", "upper"), values["c"], strict=True)
    ]
    inputs = [{"series": name, "values": str(value)} for name, value in world.items()]
    test = {"interval": "1m", "input_series": inputs, "promql_expr_test": questions}
    file = tmp_path / "test.yml"
    # JSON is YAML.
    file.write_text(json.dumps({"rule_files": [], "evaluation_interval": "1m", "tests": [test]}), encoding="utf-8")
    done = promtool("test", "rules", str(file))
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_preview_shows_every_panel(scraped_demo: PrometheusServer, tmp_path: Path) -> None:
    """Only panels that a demo leaves empty are so in the pictures, which are small enough for a repository."""
    empty = preview(scraped_demo.url, time.time(), SCRAPED_FOR_S, 1, tmp_path)
    assert {f"board-{name}.png" for name in empty} == {path.name for path in tmp_path.iterdir()}
    assert set().union(*empty.values()) <= set(EMPTY_IN_A_DEMO)
    assert [path.name for path in tmp_path.iterdir() if path.stat().st_size > 300_000] == []


def test_shares_are_shares(scraped_demo: PrometheusServer, chosen: Mapping[str, str]) -> None:
    """Rated shares lie between 0 and 1, and the shares of students add up to 1."""

    def shares(panel: str) -> list[float]:
        exprs = [filled_in(query.expr, chosen) for query in queries(BOARD) if query.panel == panel]
        return [value for expr in exprs for _, value in series(scraped_demo, expr)]

    assert all(0 < value <= 1 for value in shares("Rated share"))
    assert math.isclose(sum(shares("Share of students")), 1, rel_tol=0.01)


@pytest.mark.parametrize(
    "query",
    [query for query in asked_by_rollouts() if "abmonitor_verdict" in query.expr],
    ids=lambda query: query.example,
)
def test_rollouts_get_an_answer(query: Asked, scraped_demo: PrometheusServer) -> None:
    """Each query of the examples for rollouts has one value, that of a verdict."""
    ((labels, value),) = series(scraped_demo, query.expr)
    assert labels == {}
    assert value in {-1, 0, 1}


def test_lag_and_refusals_are_seen_with_kafka(kafka: KafkaBroker, tmp_path: Path) -> None:
    """Panels that a demo leaves empty show the lag of a topic, and the reason of a message that is not JSON.

    KEDA's query for the number of replicas has one value, which grows while the store is away.
    """
    name, port, store = "board", free_port(), RedisServer(redis_binary())
    for topic in ("responses", "feedback", "dead"):
        kafka.create_topic(f"{name}.{topic}", 1)
    config = tmp_path / "config.toml"
    config.write_text(SERVICE.format(bootstrap=kafka.bootstrap, name=name, store=store.url, port=port))
    asked = {query.panel: filled_in(query.expr, WINDOWS) for query in QUERIES if query.panel in EMPTY_IN_A_DEMO}
    refusals = asked.pop("Refused events by reason")
    letters = asked.pop("Dead letters in the shown time range")
    del asked["Lost events"]
    (replicas,) = [query.expr for query in asked_by_rollouts() if "lag" in query.expr]
    with (
        store,
        scraped(["run", "--config", str(config)], port, tmp_path) as prometheus,
        KafkaProducer(bootstrap_servers=kafka.bootstrap) as producer,
    ):
        producer.send(f"{name}.feedback", b"not json").get(10)
        until(lambda: series(prometheus, "sum(abmonitor_rejected_events_total) > 0"))
        producer.send(f"{name}.feedback", b"still not json").get(10)
        seen = until(lambda: series(prometheus, f"({refusals}) > 0"))
        kept = {labels["topic"]: value for labels, value in series(prometheus, letters)}
        lags = [series(prometheus, expr) for expr in (*asked.values(), replicas)]
        producer.send(f"{name}.feedback", feedback("f-1")).get(10)
        until(lambda: series(prometheus, "sum(abmonitor_batch_events_sum) == 3"))
        store.process.stop()
        producer.send(f"{name}.feedback", feedback("f-2")).get(10)
        until(lambda: series(prometheus, f"{replicas} > 2 and max(abmonitor_paused) == 1"))
    assert [set(labels) for labels, _ in seen] == [{"reason"}]
    assert kept[f"{name}.feedback"] > 0 == kept[f"{name}.responses"]
    assert [found for found in lags if not found] == []
    assert [labels for labels, _ in lags[-1]] == [{}]
