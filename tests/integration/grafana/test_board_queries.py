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
from deploy.alerting.operations import LATE, REJECTED_LONG, REJECTED_SHORT, SKIPPED_PAST, SKIPPED_SHORT, UNCOUNTED
from deploy.alerting.product import BELOW_PAST, ERRORS_BELOW_CONTROL, ERRORS_BELOW_PAST, PAST
from deploy.alerting.rules import SYSTEM, Addresses, Alert, Group, Recording, rendered_expr
from deploy.alerting.traffic import PAST_SHARE
from grafana.generate import build_boards
from grafana.preview.rendering import render_previews
from grafana.queries import Query, board_queries, substitute_variables
from grafana.variables import query_variables
from tests.servers.kafka import KafkaBroker
from tests.servers.process import free_port
from tests.servers.prometheus import PrometheusServer, promtool
from tests.servers.redis import RedisServer, redis_binary
from tests.support.promql import selectors
from tests.support.rollouts import Asked
from tests.support.rollouts import asked as asked_by_rollouts
from tests.support.scraped import ALWAYS, scraped

ROOT = Path(__file__).parents[3]
BOARDS = build_boards()
BOARD = BOARDS["experiment.json"]
QUERIES = [query for board in BOARDS.values() for query in board_queries(board)]

SYSTEM_VALUES = {"job": "ab-monitor", "cluster": "", "namespace": "", "environment": ""}
WINDOWS = {**SYSTEM_VALUES, "__rate_interval": "10s", "__range": "30s"}
"""Values of the variables that are equal on all boards: of the only system, and of windows."""
SCRAPED_FOR_S = 15
PATIENCE_S = 60.0

NO_END = "simulated traffic has no end that it could be behind of; shown with Kafka"
EMPTY_IN_A_DEMO = {
    "Lag": NO_END,
    "Lag by topic, in time": NO_END,
    "Lag by topic, in events": NO_END,
    "Lost events": "a demo loses nothing; the panel then says none; shown in tests/integration/grafana/test_alerts.py",
    "Dead letters in the shown time range": "no simulated event is rejected; shown with Kafka",
    "Rejected events by reason": "no simulated event is rejected; shown by sending a rejected message to the service",
}

RECORDINGS = [recording for group in GROUPS for recording in group.recordings]
ALERTS = [alert for group in GROUPS for alert in group.alerts]
YOUNG = "a demo has no day before, to compare with; shown in the scenarios of AbMonitorDropFast and in the drill"
RULES_EMPTY_IN_A_DEMO = {
    PAST: YOUNG,
    BELOW_PAST: YOUNG,
    ERRORS_BELOW_PAST: YOUNG,
    PAST_SHARE: "a demo has no day before, to compare with; shown in the scenarios of AbMonitorEmptyAnswers",
    REJECTED_SHORT: "no simulated event is rejected; shown in the scenarios of AbMonitorRejectsSevere",
    REJECTED_LONG: "no simulated event is rejected; shown in the scenarios of AbMonitorRejects",
    LATE: "simulated traffic is not late; shown in the scenarios of AbMonitorLateEvents",
    SKIPPED_SHORT: "no simulated response is skipped; shown in the scenarios of AbMonitorSkipped",
    SKIPPED_PAST: "no simulated response is skipped; shown in the scenarios of AbMonitorSkipped",
    UNCOUNTED: "all simulated reactions count; shown in the scenarios of AbMonitorUncountedFeedback",
    "abmonitor_consumer_lag_seconds": NO_END,
    "abmonitor_backfill_failed": "a demo has no backfill; shown in the scenarios of AbMonitorBackfillFailed",
    "abmonitor_notifications_waiting": "a demo has no channel; shown in the scenarios of AbMonitorMessagesWait",
    "abmonitor_config_info": "a demo reloads no configuration; shown in the scenarios of AbMonitorReplicasDisagree",
    "abmonitor_lost_events_total": "a demo loses nothing; shown in the scenarios of AbMonitorLostEvents",
}
"""Series that rules name; the scenarios are in tests/support/alerts.py, where each alert is seen to fire."""

FILLED = {
    f"{name} {query.panel} {query.ref}": query
    for name, board in BOARDS.items()
    for query in board_queries(board)
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


def label_values(prometheus: PrometheusServer, definition: str) -> list[str]:
    """Return the values of a variable defined as `label_values(selector, label)`."""
    parts = re.fullmatch(r"label_values\((.*), (\w+)\)", definition)
    assert parts is not None, definition
    return sorted({labels[parts[2]] for labels, _ in series(prometheus, parts[1]) if parts[2] in labels})


def wait_for_series(read: Callable[[], Series]) -> Series:
    """Return the first result of `read` that is not empty."""
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
        wait_for_series(lambda: series(prometheus, 'count(abmonitor_metric_mean{decay!="none"}) > 1'))
        time.sleep(SCRAPED_FOR_S)
        # A student's first days must be over.
        closed = 'abmonitor_days_to_resolve and on (variant) abmonitor_effect_lower{estimand="closed"}'
        wait_for_series(lambda: series(prometheus, closed))
        # What ended more than an hour ago is not watched, and the demo began a week ago.
        wait_for_series(lambda: series(prometheus, ERRORS_BELOW_CONTROL))
        yield prometheus


@pytest.fixture(scope="module")
def board_values(scraped_demo: PrometheusServer) -> Mapping[str, str]:
    """Return the initial values of the board's variables: the default if that value exists, else the first value."""
    values: dict[str, str] = dict(WINDOWS)
    for variable in query_variables(BOARD):
        offered_values = label_values(scraped_demo, substitute_variables(variable["query"]["query"], values))
        if variable["name"] in SYSTEM_VALUES:
            assert offered_values == [name for name in [SYSTEM_VALUES[variable["name"]]] if name]
            continue
        assert offered_values, variable["name"]
        default = variable.get("current", {}).get("value")
        values[variable["name"]] = default if default in offered_values else offered_values[0]
    return values


@pytest.mark.parametrize("query", FILLED.values(), ids=FILLED)
def test_every_panel_query_returns_finite_numbers(
    query: Query, scraped_demo: PrometheusServer, board_values: Mapping[str, str]
) -> None:
    """A demo fills the boards, and the series have the labels of the legend."""
    samples = series(scraped_demo, substitute_variables(query.expr, board_values))
    assert samples
    assert [labels for labels, value in samples if not math.isfinite(value)] == []
    legend_labels = set(re.findall(r"{{(\w+)}}", query.legend))
    assert [labels for labels, _ in samples if not legend_labels <= set(labels)] == []


@pytest.mark.parametrize("rule", RECORDINGS, ids=lambda rule: rule.record)
def test_every_recording_has_values(rule: Recording, scraped_demo: PrometheusServer) -> None:
    """With the labels at the start of the name of the recording."""
    samples = series(scraped_demo, rule.record)
    assert bool(samples) != (rule.record in RULES_EMPTY_IN_A_DEMO)
    assert [labels for labels, value in samples if not math.isfinite(value)] == []
    assert {frozenset({*labels, *SYSTEM}) - {"__name__"} for labels, _ in samples} <= {rule.labels}


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_every_alert_has_its_series_and_is_silent(alert: Alert, scraped_demo: PrometheusServer) -> None:
    """A healthy demo fires no alert."""
    # By name alone: at night an hour of simulated traffic has too few responses for the shortest decay.
    named = {selector.prettify().partition(" offset ")[0].partition("{")[0] for selector in selectors(alert.expr)}
    missing = {name for name in named if not series(scraped_demo, name)}
    assert missing <= set(RULES_EMPTY_IN_A_DEMO)
    assert series(scraped_demo, rendered_expr(alert.expr)) == []


def test_verdict_changes_are_annotated(scraped_demo: PrometheusServer, board_values: Mapping[str, str]) -> None:
    """Only at the start of a state, not while the state lasts."""
    (verdicts_annotation,) = [
        annotation for annotation in BOARD["annotations"]["list"] if annotation["name"] == "Verdicts"
    ]
    expr = substitute_variables(verdicts_annotation["expr"], board_values).replace("offset 1m", "offset 1s")
    verdict_changes = series(scraped_demo, f"sum(count_over_time(({expr})[1h:1s]))")
    assert 1 <= verdict_changes[0][1] <= 4
    (shares_annotation,) = [annotation for annotation in BOARD["annotations"]["list"] if annotation["name"] == "Shares"]
    shares = substitute_variables(shares_annotation["expr"], board_values)
    assert series(scraped_demo, shares.partition(" != ")[0])
    assert series(scraped_demo, f"count_over_time(({shares.replace('offset 1m', 'offset 1s')})[1h:1s])") == []


def test_variant_queries_separate_the_control_from_treatments(
    scraped_demo: PrometheusServer, board_values: Mapping[str, str]
) -> None:
    """Without `abmonitor_experiment_info` the query of treatments returns nothing."""
    (control,) = {labels["control"] for labels, _ in series(scraped_demo, "abmonitor_experiment_info")}
    by_name = {(query.panel, query.ref): query.expr for query in board_queries(BOARD)}
    pairs = [
        (expr, by_name[panel, f"{ref}, control"])
        for (panel, ref), expr in by_name.items()
        if (panel, f"{ref}, control") in by_name
    ]
    assert len(pairs) > 8
    for pair in pairs:
        treatment_variants, control_variants = (
            {labels["variant"] for labels, _ in series(scraped_demo, substitute_variables(expr, board_values))}
            for expr in pair
        )
        assert control_variants == {control}
        assert treatment_variants == {"treatment"}
        expr_without_info = substitute_variables(pair[0], board_values).replace("abmonitor_experiment_info", "missing")
        assert series(scraped_demo, expr_without_info) == []


def test_the_table_has_a_row_for_each_experiment(
    scraped_demo: PrometheusServer, board_values: Mapping[str, str]
) -> None:
    """Every column has a value per experiment; the effect equals that of the experiment's board."""
    (panel,) = [panel for panel in BOARDS["experiments.json"]["panels"] if panel["type"] == "table"]
    columns = {
        entry["refId"]: series(scraped_demo, substitute_variables(entry["expr"], board_values))
        for entry in panel["targets"]
    }
    rows = [[labels["experiment"] for labels, _ in samples] for samples in columns.values()]
    assert rows == [[board_values["experiment"]]] * len(columns)
    value = {ref: samples[0][1] for ref, samples in columns.items()}
    assert value["alerts"] == 1
    assert value["lower"] < value["effect"] < value["upper"]
    board_queries_by_ref = {query.ref: query.expr for query in QUERIES if "(decides)" in query.panel}
    for ref, expr in board_queries_by_ref.items():
        assert [
            number
            for _, number in series(scraped_demo, substitute_variables(expr, {**board_values, "metric": "dcg@5"}))
        ] == [value[ref]]


def test_the_table_shows_the_effect_of_the_best_variant(tmp_path: Path) -> None:
    """With the bounds of the same variant, from two replicas."""
    values = {"b": (0.1, -0.3, 0.9), "c": (0.3, 0.2, 0.4)}
    world = {
        f'abmonitor_experiment_info{{experiment="e",control="a",primary="m",instance="{replica}"}}': 1.0
        for replica in "12"
    }
    for variant, numbers in values.items():
        for name, number in zip(("", "_lower", "_upper"), numbers, strict=True):
            labels = f'experiment="e",variant="{variant}"'
            world |= {f'abmonitor_relative_effect{name}{{{labels},instance="{replica}"}}': number for replica in "12"}
    (panel,) = [panel for panel in BOARDS["experiments.json"]["panels"] if panel["type"] == "table"]
    columns = {entry["refId"]: entry["expr"] for entry in panel["targets"]}
    questions = [
        {
            "expr": substitute_variables(columns[ref], {**SYSTEM_VALUES, "job": ""}),
            "eval_time": "0m",
            "exp_samples": [{"labels": '{experiment="e"}', "value": value}],
        }
        for ref, value in zip(("effect", "lower", "upper"), values["c"], strict=True)
    ]
    inputs = [{"series": name, "values": str(value)} for name, value in world.items()]
    test = {"interval": "1m", "input_series": inputs, "promql_expr_test": questions}
    file = tmp_path / "test.yml"
    # JSON is YAML.
    file.write_text(json.dumps({"rule_files": [], "evaluation_interval": "1m", "tests": [test]}), encoding="utf-8")
    result = promtool("test", "rules", str(file))
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_preview_fills_every_panel(scraped_demo: PrometheusServer, tmp_path: Path) -> None:
    """Except panels that a demo leaves empty; the PNG files are small."""
    empty = render_previews(scraped_demo.url, time.time(), SCRAPED_FOR_S, 1, tmp_path)
    assert {f"board-{name}.png" for name in empty} == {path.name for path in tmp_path.iterdir()}
    assert set().union(*empty.values()) <= set(EMPTY_IN_A_DEMO)
    assert [path.name for path in tmp_path.iterdir() if path.stat().st_size > 300_000] == []


def test_share_panels_show_fractions(scraped_demo: PrometheusServer, board_values: Mapping[str, str]) -> None:
    """Rated shares are between 0 and 1, and the shares of students add up to 1."""

    def shares(panel: str) -> list[float]:
        exprs = [
            substitute_variables(query.expr, board_values) for query in board_queries(BOARD) if query.panel == panel
        ]
        return [value for expr in exprs for _, value in series(scraped_demo, expr)]

    assert all(0 < value <= 1 for value in shares("Rated share of responses"))
    assert math.isclose(sum(shares("Share of students")), 1, rel_tol=0.01)


@pytest.mark.parametrize(
    "query",
    [query for query in asked_by_rollouts() if "abmonitor_verdict" in query.expr],
    ids=lambda query: query.example,
)
def test_rollout_queries_return_one_value(query: Asked, scraped_demo: PrometheusServer) -> None:
    """Each query of the examples returns the value of a verdict."""
    ((labels, value),) = series(scraped_demo, query.expr)
    assert labels == {}
    assert value in {-1, 0, 1}


def test_lag_and_rejections_are_shown_with_kafka(kafka: KafkaBroker, tmp_path: Path) -> None:
    """Panels that a demo leaves empty show the lag of a topic, and the reason of a message that is not JSON.

    KEDA's query for the number of replicas has one value, which grows while the store is away.
    """
    name, port, store = "board", free_port(), RedisServer(redis_binary())
    for topic in ("responses", "feedback", "dead"):
        kafka.create_topic(f"{name}.{topic}", 1)
    config = tmp_path / "config.toml"
    config.write_text(SERVICE.format(bootstrap=kafka.bootstrap, name=name, store=store.url, port=port))
    queries_by_panel = {
        query.panel: substitute_variables(query.expr, WINDOWS) for query in QUERIES if query.panel in EMPTY_IN_A_DEMO
    }
    refusals = queries_by_panel.pop("Rejected events by reason")
    letters = queries_by_panel.pop("Dead letters in the shown time range")
    del queries_by_panel["Lost events"]
    (replicas,) = [query.expr for query in asked_by_rollouts() if "lag" in query.expr]
    with (
        store,
        scraped(["run", "--config", str(config)], port, tmp_path) as prometheus,
        KafkaProducer(bootstrap_servers=kafka.bootstrap) as producer,
    ):
        producer.send(f"{name}.feedback", b"not json").get(10)
        wait_for_series(lambda: series(prometheus, "sum(abmonitor_rejected_events_total) > 0"))
        producer.send(f"{name}.feedback", b"still not json").get(10)
        rejections_by_reason = wait_for_series(lambda: series(prometheus, f"({refusals}) > 0"))
        dead_letters_by_topic = {labels["topic"]: value for labels, value in series(prometheus, letters)}
        lags = [series(prometheus, expr) for expr in (*queries_by_panel.values(), replicas)]
        producer.send(f"{name}.feedback", feedback("f-1")).get(10)
        wait_for_series(lambda: series(prometheus, "sum(abmonitor_batch_events_sum) == 3"))
        store.process.stop()
        producer.send(f"{name}.feedback", feedback("f-2")).get(10)
        wait_for_series(lambda: series(prometheus, f"{replicas} > 2 and max(abmonitor_paused) == 1"))
    assert [set(labels) for labels, _ in rejections_by_reason] == [{"reason"}]
    assert dead_letters_by_topic[f"{name}.feedback"] > 0 == dead_letters_by_topic[f"{name}.responses"]
    assert [samples for samples in lags if not samples] == []
    assert [labels for labels, _ in lags[-1]] == [{}]
