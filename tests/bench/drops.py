"""After how many minutes the real rules say that a variant has lost half of its quality, in simulated traffic.

Usage: python -m tests.bench.drops [--seeds N]

The decayed means, their errors and counts are those that the exporter would show minute by minute, noise and ratings
on their way included (revised ratings as they are in the end); promtool evaluates the rules of the deployment on them
every minute. Alarms of any variant before the drop, and of the control after it, are false ones.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from deploy.alerting.generate import RULES
from monitor.config import DecaySpec
from monitor.config.values import instant_ms
from monitor.decay import Groups, decayed
from monitor.ingest.simulator import HOUR_MS, Drop, Scenario, generate
from monitor.ranking import dcg
from tests.servers.prometheus import promtool

ALERTS: Final = ("AbMonitorDropFast", "AbMonitorBehindControlFast")
DECAYS: Final = (DecaySpec("15m", HOUR_MS // 4), DecaySpec("1h", HOUR_MS))
DROP_HOUR: Final = 39
"""Three in the afternoon of the second day: the day before at this time there was traffic to compare with."""
CALM: Final = Scenario(responses=60_000, students=8_000, days=1.8, effects={})
_MINUTE_MS: Final = 60_000
_REACH: Final = 40
"""Half-lives after which a response weighs nothing."""

Rated = NDArray[np.float64]
"""n × 3 in the order of arrival: when a rated response is known, when it was given, its DCG@5."""


@dataclass(frozen=True, slots=True)
class Found:
    """Minutes at which an alert began to fire, from the drop on, by (alert, variant); and what its mean rested on."""

    began: dict[tuple[str, str], int]
    effective_count: float


def rated(scenario: Scenario) -> dict[str, Rated]:
    """Return the rated responses of each variant."""
    given: dict[str, tuple[str, int, int, dict[str, int]]] = {}
    scores: dict[str, dict[str, float]] = defaultdict(dict)
    known_ms: dict[str, int] = {}
    for event in generate(scenario):
        content = json.loads(event.payload)
        name = content["response_id"]
        if event.kind == "response":
            places = {item["item_id"]: item["position"] for item in content["items"]}
            given[name] = (content["variant"], instant_ms("", content["timestamp"]), event.arrival_ms, places)
        elif content["kind"] == "rating":
            scores[name][content["item_id"]] = content["score"]
            known_ms.setdefault(name, event.arrival_ms)
    rows: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    for name, by_item in scores.items():
        variant, at_ms, arrival_ms, places = given[name]
        shown = [by_item.get(item) for item in sorted(places, key=places.__getitem__)]
        rows[variant].append((max(arrival_ms, known_ms[name]), at_ms, dcg(shown, 5)))
    return {variant: np.array(sorted(found)) for variant, found in rows.items()}


def exported(
    rows: Rated, scenario: Scenario, minutes: int, decay: DecaySpec
) -> Iterator[tuple[str, list[float | None]]]:
    """Yield the name of each series and its values, a minute apart."""
    half_life_ms = decay.half_life_ms or 0
    values: list[list[float | None]] = []
    for minute in range(minutes):
        now_ms = scenario.start_ms + minute * _MINUTE_MS
        seen = rows[: np.searchsorted(rows[:, 0], now_ms, side="right")]
        seen = seen[seen[:, 1] > now_ms - _REACH * half_life_ms]
        moments = decayed(Groups.single(seen[:, 1], seen[:, 2]), now_ms, decay)
        statistics = moments.mean, moments.standard_error, moments.effective_count
        values.append([None if np.isnan(each) else float(each) for each in statistics])
    for name, column in zip(("mean", "standard_error", "effective_count"), zip(*values, strict=True), strict=True):
        yield f"abmonitor_metric_{name}", list(column)


def measured(rows: dict[str, Rated], scenario: Scenario, decay: DecaySpec) -> Found:
    """Return when the alerts of a decay fire."""
    minutes, drop = round(scenario.days * 1440), DROP_HOUR * 60
    world = {'abmonitor_experiment_info{experiment="e",control="control",primary="dcg@5"}': f"1+0x{minutes}"}
    count = 0.0
    for variant, own in rows.items():
        arm = f'experiment="e",variant="{variant}"'
        world[f"abmonitor_variant_last_event_timestamp_seconds{{{arm}}}"] = f"0+60x{minutes}"
        for name, values in exported(own, scenario, minutes, decay):
            notation = " ".join("_" if value is None else f"{value:.6g}" for value in values)
            world[f'{name}{{{arm},metric="dcg@5",decay="{decay.name}"}}'] = notation
            if name.endswith("effective_count"):
                count = values[drop] or 0.0
    firing = asked(world, minutes)
    began = {}
    for alert in ALERTS:
        for variant in rows:
            at = next((minute for minute, found in enumerate(firing) if (alert, variant) in found), None)
            if at is not None:
                began[alert, variant] = at - drop
    return Found(began, count)


def asked(world: dict[str, str], minutes: int) -> list[set[tuple[str, str]]]:
    """Return which alerts of which variants fire, minute by minute: what promtool says against “none”."""
    expr = f'ALERTS{{alertname=~"{"|".join(ALERTS)}", alertstate="firing"}} or vector(1)'
    questions = [{"expr": expr, "eval_time": f"{minute}m", "exp_samples": []} for minute in range(minutes)]
    series = [{"series": name, "values": values} for name, values in world.items()]
    test = {"interval": "1m", "input_series": series, "promql_expr_test": questions}
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "test.yml"
        # JSON is YAML.
        path.write_text(json.dumps({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [test]}))
        done = promtool("test", "rules", str(path))
    answers = re.split(r"\n\s*got:", done.stdout + done.stderr)[1:]
    assert len(answers) == minutes, done.stderr[:1000]
    fired = re.compile(r'alertname="(\w+)".*?variant="(\w+)"')
    return [{(found[1], found[2]) for found in fired.finditer(answer)} for answer in answers]


def main(arguments: list[str]) -> int:
    """Print a line for each seed, decay and alert."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.drops", description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    seeds = parser.parse_args(arguments).seeds
    drop = Drop("treatment", 0.5, CALM.start_ms + DROP_HOUR * HOUR_MS)
    for seed in range(1, seeds + 1):
        scenario = replace(CALM, seed=seed, drop=drop)
        rows = rated(scenario)
        for decay in DECAYS:
            found = measured(rows, scenario, decay)
            for (alert, variant), after in found.began.items():
                rests = f"{found.effective_count:.0f} effective responses"
                print(f"seed {seed}  decay {decay.name:>3}  {alert} {variant}: {after} minutes after the drop, {rests}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
