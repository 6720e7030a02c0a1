"""What the world was like, and which alerts of one name fire at a moment: when each should, and when it should not.

All series have a sample every five minutes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

STEP_MIN = 5
HOUR, DAY = 12, 288
"""In steps."""

Labels = Mapping[str, str]
World = dict[str, str]
"""Values in promtool's notation, by series."""


def lasting(steps: int, value: float, slope: float = 0) -> str:
    """Return that many samples that begin at the value."""
    return f"{value}{slope:+}x{steps - 1}"


def labelled(world: World, labels: str) -> World:
    """Return the world with further labels, in PromQL's notation."""
    return {name.replace("{", "{" + labels + ",", 1): values for name, values in world.items()}


def missing(steps: int) -> str:
    """Return that many scrapes without the series."""
    return f"_x{steps}"


@dataclass(frozen=True)
class Scenario:
    """At step `at` exactly these alerts of that name fire, named by the labels that the alert's rule does not set."""

    alert: str
    story: str
    world: World
    at: int
    firing: Sequence[Labels] = field(default=())

    def __str__(self) -> str:
        """Return the name in a report."""
        return f"{self.alert}: {self.story}"


def up(values: str, instance: str = "m:1", job: str = "ab-monitor") -> World:
    """Return whether a page answers."""
    return {f'up{{job="{job}",instance="{instance}"}}': values}


def store(process: str, experiments: str, instance: str = "m:1") -> World:
    """Return what both pages say of the store."""
    return {
        f'abmonitor_store_up{{job="ab-monitor",instance="{instance}"}}': process,
        f'abmonitor_store_up{{job="ab-monitor-experiments",instance="{instance}"}}': experiments,
    }


def of_process(name: str, values: str, instance: str = "m:1", **labels: str) -> World:
    """Return a series of /metrics."""
    every = {"job": "ab-monitor", "instance": instance, **labels}
    return {name + "{" + ",".join(f'{key}="{value}"' for key, value in every.items()) + "}": values}


def arm(
    variant: str,
    mean: str,
    *,
    decay: str = "1h",
    count: float = 400,
    error: float = 0.05,
    newest: str | None = None,
    steps: int = 8 * DAY,
) -> World:
    """Return the decayed mean of the primary metric of a variant, and what it rests on."""
    labels = f'experiment="e",variant="{variant}",instance="m:1"'
    return {
        'abmonitor_experiment_info{experiment="e",control="control",primary="dcg@5",instance="m:1"}': lasting(steps, 1),
        f'abmonitor_metric_mean{{{labels},metric="dcg@5",decay="{decay}"}}': mean,
        f'abmonitor_metric_effective_count{{{labels},metric="dcg@5",decay="{decay}"}}': lasting(steps, count),
        f'abmonitor_metric_standard_error{{{labels},metric="dcg@5",decay="{decay}"}}': lasting(steps, error),
        f"abmonitor_variant_last_event_timestamp_seconds{{{labels}}}": newest or lasting(steps, 0, 60 * STEP_MIN),
    }


def traffic(name: str, **variants: str) -> World:
    """Return a gauge of each variant that grows with traffic."""
    return {
        f'{name}{{experiment="e",variant="{variant}",instance="m:1"}}': values for variant, values in variants.items()
    }


def new_ratings(variant: str, mean: float) -> World:
    """Return 40 ratings a minute, of which each has this value of the metric."""
    labels = f'experiment="e",variant="{variant}",metric="dcg@5",instance="m:1"'
    per_step = 40 * STEP_MIN
    return {
        f"abmonitor_metric_count{{{labels}}}": lasting(8 * DAY, 0, per_step),
        f"abmonitor_metric_sum{{{labels}}}": lasting(8 * DAY, 0, per_step * mean),
    }


TREATMENT = {"experiment": "e", "variant": "treatment", "metric": "dcg@5"}
FAST, SLOW = {**TREATMENT, "decay": "1h"}, {**TREATMENT, "decay": "24h"}
HALVED = f"{lasting(30 * HOUR, 2)} {lasting(3 * HOUR, 1)}"
SUNK = f"{lasting(7 * DAY, 2)} {lasting(DAY, 1.8)}"
GONE = f"{lasting(30 * HOUR, 2)} {lasting(1, 1)} {missing(3 * HOUR)}"
ENDED = f"{lasting(30 * HOUR, 0, 300)} {lasting(3 * HOUR, 30 * 3600)}"
YOUNG = f"{lasting(5 * HOUR, 2)} {lasting(3 * HOUR, 1)}"


def lower_is_better(world: World) -> World:
    """Return the world with a primary metric of which lower values are better."""
    primary = 'primary="dcg@5"'
    return {
        name.replace(primary, f'{primary},lower_is_better="true"') if "experiment_info" in name else name: values
        for name, values in world.items()
    }


DOUBLED = f"{lasting(30 * HOUR, 2)} {lasting(3 * HOUR, 4)}"
RISEN = f"{lasting(7 * DAY, 2)} {lasting(DAY, 2.2)}"

DROP = [
    Scenario("AbMonitorDropFast", "lower is better: doubled, and the newest values are as bad", lower_is_better(arm("treatment", DOUBLED) | new_ratings("treatment", 4)), 31 * HOUR, [FAST]),
    Scenario("AbMonitorDropFast", "lower is better: doubled, and the newest values are good again", lower_is_better(arm("treatment", DOUBLED) | new_ratings("treatment", 2)), 31 * HOUR),
    Scenario("AbMonitorDropFast", "lower is better: halved", lower_is_better(arm("treatment", HALVED)), 31 * HOUR),
    Scenario("AbMonitorDropSlow", "lower is better: risen by a tenth", lower_is_better(arm("treatment", RISEN, decay="24h", error=0.02)), 7 * DAY + 3 * HOUR, [SLOW]),
    Scenario("AbMonitorDropSlow", "lower is better: sunk by a tenth", lower_is_better(arm("treatment", SUNK, decay="24h", error=0.02)), 7 * DAY + 3 * HOUR),
    Scenario("AbMonitorDropFast", "halved, and the newest ratings are as bad", arm("treatment", HALVED) | new_ratings("treatment", 1), 31 * HOUR, [FAST]),
    Scenario("AbMonitorDropFast", "halved, and the newest ratings are good again", arm("treatment", HALVED) | new_ratings("treatment", 2), 31 * HOUR),
    Scenario("AbMonitorDropFast", "halved", arm("treatment", HALVED), 31 * HOUR, [FAST]),
    Scenario("AbMonitorDropFast", "the control drops, too", arm("control", HALVED), 31 * HOUR, [{**FAST, "variant": "control"}]),
    Scenario("AbMonitorDropFast", "steady", arm("treatment", lasting(33 * HOUR, 2)), 31 * HOUR),
    Scenario("AbMonitorDropFast", "five minutes only", arm("treatment", f"{lasting(30 * HOUR, 2)} {lasting(1, 1)} {lasting(HOUR, 2)}"), 30 * HOUR + 3),
    Scenario("AbMonitorDropFast", "a small drop", arm("treatment", f"{lasting(30 * HOUR, 2)} {lasting(3 * HOUR, 1.8)}", error=0.01), 31 * HOUR),
    Scenario("AbMonitorDropFast", "too few samples", arm("treatment", HALVED, count=99), 31 * HOUR),
    Scenario("AbMonitorDropFast", "within the noise", arm("treatment", HALVED, error=0.3), 31 * HOUR),
    Scenario("AbMonitorDropFast", "young experiment", arm("treatment", YOUNG), 6 * HOUR),
    Scenario("AbMonitorDropFast", "a gap in scrapes", arm("treatment", f"{lasting(30 * HOUR, 2)} {missing(3 * HOUR)} {lasting(HOUR, 2)}"), 31 * HOUR),
    Scenario("AbMonitorDropFast", "a gap in scrapes where its past was", arm("treatment", f"{lasting(2, 2)} {missing(20 * HOUR)} {lasting(10 * HOUR, 2)} {lasting(3 * HOUR, 1)}"), 31 * HOUR),
    Scenario("AbMonitorDropFast", "fires on through a gap in scrapes", arm("treatment", f"{lasting(30 * HOUR, 2)} {lasting(HOUR, 1)} {missing(2)} {lasting(HOUR, 1)}"), 31 * HOUR + 1, [FAST]),
    Scenario("AbMonitorDropFast", "variant ended", arm("treatment", HALVED, newest=ENDED), 32 * HOUR),
    Scenario("AbMonitorDropFast", "variant taken out of the configuration", arm("treatment", GONE), 31 * HOUR),
    Scenario("AbMonitorDropFast", "over when the mean is back", arm("treatment", f"{lasting(30 * HOUR, 2)} {lasting(HOUR, 1)} {lasting(2 * HOUR, 2)}"), 32 * HOUR),
    Scenario("AbMonitorDropFast", "long decays are not its business", arm("treatment", HALVED, decay="24h"), 31 * HOUR),
    Scenario("AbMonitorDropSlow", "sunk by a tenth", arm("treatment", SUNK, decay="24h", error=0.02), 7 * DAY + 3 * HOUR, [SLOW]),
    Scenario("AbMonitorDropSlow", "reciprocal decay", arm("treatment", SUNK, decay="reciprocal-10d", error=0.02), 7 * DAY + 3 * HOUR, [{**SLOW, "decay": "reciprocal-10d"}]),
    Scenario("AbMonitorDropSlow", "steady", arm("treatment", lasting(8 * DAY, 2), decay="24h"), 7 * DAY + 3 * HOUR),
    Scenario("AbMonitorDropSlow", "too few samples", arm("treatment", SUNK, decay="24h", count=99), 7 * DAY + 3 * HOUR),
    Scenario("AbMonitorDropSlow", "within the noise", arm("treatment", SUNK, decay="24h", error=0.06), 7 * DAY + 3 * HOUR),
    Scenario("AbMonitorDropSlow", "young experiment", arm("treatment", f"{lasting(3 * DAY, 2)} {lasting(DAY, 1)}", decay="24h"), 3 * DAY + 3 * HOUR),
    Scenario("AbMonitorDropSlow", "a gap in scrapes", arm("treatment", f"{lasting(7 * DAY, 2)} {missing(DAY)}", decay="24h"), 7 * DAY + 3 * HOUR),
    Scenario("AbMonitorDropSlow", "variant ended", arm("treatment", SUNK, decay="24h", newest=f"{lasting(7 * DAY, 0, 300)} {lasting(DAY, 7 * 86_400)}"), 7 * DAY + 3 * HOUR),
]  # fmt: skip


def both(mean: str, control: str = lasting(8 * DAY, 2), **rest: object) -> World:
    """Return a control that is steady unless said otherwise, and a treatment."""
    return {**arm("control", control, decay=str(rest.get("decay", "1h"))), **arm("treatment", mean, **rest)}  # type: ignore[arg-type]


WORSE = lasting(4 * DAY, 1.6)
BEHIND = [
    Scenario("AbMonitorBehindControlFast", "a fifth worse, and the newest ratings are as bad", both(WORSE) | new_ratings("control", 2) | new_ratings("treatment", 1.6), 8 * HOUR, [FAST]),
    Scenario("AbMonitorBehindControlFast", "a fifth worse, and the newest ratings are as good as the control's", both(WORSE) | new_ratings("control", 2) | new_ratings("treatment", 2), 8 * HOUR),
    Scenario("AbMonitorBehindControlFast", "a fifth worse", both(WORSE), 8 * HOUR, [FAST]),
    Scenario("AbMonitorBehindControlFast", "lower is better: twice as high", lower_is_better(both(lasting(DAY, 4))), 8 * HOUR, [FAST]),
    Scenario("AbMonitorBehindControlFast", "lower is better: twice as high, and the newest values are as good as the control's", lower_is_better(both(lasting(DAY, 4)) | new_ratings("control", 2) | new_ratings("treatment", 2)), 8 * HOUR),
    Scenario("AbMonitorBehindControlFast", "lower is better: a fifth lower", lower_is_better(both(WORSE)), 8 * HOUR),
    Scenario("AbMonitorBehindControlFast", "as good", both(lasting(DAY, 2)), 8 * HOUR),
    Scenario("AbMonitorBehindControlFast", "better", both(lasting(DAY, 3)), 8 * HOUR),
    Scenario("AbMonitorBehindControlFast", "the control itself is worse than the treatment", both(lasting(DAY, 2), control=lasting(DAY, 1)), 8 * HOUR),
    Scenario("AbMonitorBehindControlFast", "too few samples", both(WORSE, count=99), 8 * HOUR),
    Scenario("AbMonitorBehindControlFast", "within the noise of both", both(WORSE, error=0.09), 8 * HOUR),
    Scenario("AbMonitorBehindControlFast", "young experiment", both(WORSE), 5 * HOUR),
    Scenario("AbMonitorBehindControlFast", "a gap in scrapes", both(f"{lasting(7 * HOUR, 2)} {missing(2 * HOUR)}"), 8 * HOUR),
    Scenario("AbMonitorBehindControlFast", "variant ended", both(WORSE, newest=f"{lasting(6 * HOUR, 0, 300)} {lasting(3 * HOUR, 6 * 3600)}"), 8 * HOUR + 3),
    Scenario("AbMonitorBehindControlFast", "control ended", both(WORSE, control=f"{lasting(7 * HOUR, 2)} {missing(DAY)}"), 9 * HOUR),
    Scenario("AbMonitorBehindControlSlow", "a fifth worse", both(WORSE, decay="24h"), 3 * DAY, [SLOW]),
    Scenario("AbMonitorBehindControlSlow", "as good", both(lasting(4 * DAY, 2), decay="24h"), 3 * DAY),
    Scenario("AbMonitorBehindControlSlow", "too few samples", both(WORSE, decay="24h", count=99), 3 * DAY),
    Scenario("AbMonitorBehindControlSlow", "young experiment", both(WORSE, decay="24h"), DAY),
    Scenario("AbMonitorBehindControlSlow", "a gap in scrapes", both(f"{lasting(3 * DAY, 2)} {missing(DAY)}", decay="24h"), 3 * DAY + 3 * HOUR),
    Scenario("AbMonitorBehindControlSlow", "within the noise of both", both(WORSE, decay="24h", error=0.1), 3 * DAY),
    Scenario("AbMonitorBehindControlSlow", "control ended", both(WORSE, control=f"{lasting(3 * DAY, 2)} {missing(DAY)}", decay="24h"), 3 * DAY + 8 * HOUR),
    Scenario("AbMonitorBehindControlSlow", "variant ended", both(WORSE, decay="24h", newest=lasting(4 * DAY, 0)), 3 * DAY),
]  # fmt: skip

FLOWING = lasting(3 * DAY, 0, 10)
STOPPED = f"{lasting(2 * DAY, 0, 10)} {lasting(DAY, 20 * DAY)}"
VARIANT = {"experiment": "e", "variant": "treatment"}
RESPONSES, RATED = "abmonitor_responses", "abmonitor_rated_responses"


def responses(*, treatment: str, control: str = FLOWING, share: str = lasting(4 * DAY, 0.5)) -> World:
    """Return the responses of both variants, and the declared share of the treatment; the control's is a half."""
    shares = traffic("abmonitor_intended_share", control=lasting(4 * DAY, 0.5), treatment=share)
    return traffic(RESPONSES, control=control, treatment=treatment) | shares


PAUSING = f"{lasting(2 * DAY, 0, 10)} {missing(2 * HOUR)} {lasting(DAY, 9000, 10)}"
SILENCE = [
    Scenario("AbMonitorVariantSilent", "one of two stops", responses(treatment=STOPPED), 2 * DAY + HOUR, [VARIANT]),
    Scenario("AbMonitorVariantSilent", "it never began", responses(treatment=lasting(DAY, 0)), HOUR, [VARIANT]),
    Scenario("AbMonitorVariantSilent", "seldom used: forty were due in two hours", responses(control=lasting(3 * DAY, 0, 1.7), treatment=f"{lasting(2 * DAY, 0, 1.7)} {lasting(DAY, 979.2)}"), 2 * DAY + 2 * HOUR + 2, [VARIANT]),
    Scenario("AbMonitorVariantSilent", "both go on", responses(treatment=FLOWING), 2 * DAY + HOUR),
    Scenario("AbMonitorVariantSilent", "the experiment ended", responses(control=STOPPED, treatment=STOPPED), 2 * DAY + HOUR),
    Scenario("AbMonitorVariantSilent", "variant ended a day ago", responses(control=lasting(4 * DAY, 0, 10), treatment=f"{lasting(2 * DAY, 0, 10)} {lasting(2 * DAY, 20 * DAY)}"), 3 * DAY + 1),
    Scenario("AbMonitorVariantSilent", "variant taken out of the configuration", responses(treatment=lasting(2 * DAY, 0, 10), share=lasting(2 * DAY, 0.5)), 2 * DAY + HOUR),
    Scenario("AbMonitorVariantSilent", "its share was raised from 0 just now", responses(treatment=lasting(DAY, 0), share=f"{lasting(2 * HOUR, 0)} {lasting(DAY, 0.5)}"), 2 * HOUR + 1),
    Scenario("AbMonitorVariantSilent", "too few: a variant that gets little", responses(treatment=f"{lasting(2 * DAY, 0, 1)} {lasting(DAY, 2 * DAY)}", share=lasting(3 * DAY, 0.05)), 2 * DAY + HOUR),
    Scenario("AbMonitorVariantSilent", "young experiment in its first minutes", responses(treatment=lasting(DAY, 0)), 2),
    Scenario("AbMonitorVariantSilent", "a gap in scrapes", responses(control=PAUSING, treatment=PAUSING), 2 * DAY + 2 * HOUR + 2),
    Scenario("AbMonitorVariantSilent", "over", responses(treatment=f"{lasting(2 * DAY, 0, 10)} {lasting(HOUR, 20 * DAY)} {lasting(HOUR, 20 * DAY, 10)}"), 2 * DAY + HOUR + 2),
    Scenario("AbMonitorFeedbackSilent", "answers, but no ratings", traffic(RESPONSES, treatment=FLOWING) | traffic(RATED, treatment=STOPPED), 2 * DAY + 3 * HOUR, [VARIANT]),
    Scenario("AbMonitorFeedbackSilent", "ratings go on", traffic(RESPONSES, treatment=FLOWING) | traffic(RATED, treatment=FLOWING), 2 * DAY + 3 * HOUR),
    Scenario("AbMonitorFeedbackSilent", "too few: seldom rated anyway", traffic(RESPONSES, treatment=FLOWING) | traffic(RATED, treatment=f"{lasting(2 * DAY, 0, 0.5)} {lasting(DAY, DAY)}"), 2 * DAY + 3 * HOUR),
    Scenario("AbMonitorFeedbackSilent", "variant ended", traffic(RESPONSES, treatment=STOPPED) | traffic(RATED, treatment=STOPPED), 2 * DAY + 3 * HOUR),
    Scenario("AbMonitorFeedbackSilent", "young experiment without ratings yet", traffic(RESPONSES, treatment=FLOWING) | traffic(RATED, treatment=lasting(DAY, 0)), 3 * HOUR),
    Scenario("AbMonitorFeedbackSilent", "a gap in scrapes", traffic(RESPONSES, treatment=f"{lasting(2 * DAY, 0, 10)} {missing(3 * HOUR)}") | traffic(RATED, treatment=f"{lasting(2 * DAY, 0, 10)} {missing(3 * HOUR)}"), 2 * DAY + 3 * HOUR),
]  # fmt: skip

NOW = lasting(2 * DAY, 0, 60 * STEP_MIN)
OVER = f"{lasting(HOUR, 0, 300)} {lasting(2 * DAY, HOUR * 300)}"
"""The newest event of an experiment that goes on, and of one that ended an hour after its start."""
EXPERIMENT = {"experiment": "e"}


def watched(name: str, values: str, newest: str = NOW, **labels: str) -> World:
    """Return what is said of an experiment at one replica, and when its treatment answered last."""
    every = {"experiment": "e", "instance": "m:1", **labels}
    series = name + "{" + ",".join(f'{key}="{value}"' for key, value in every.items()) + "}"
    return {
        series: values,
        'abmonitor_variant_last_event_timestamp_seconds{experiment="e",variant="treatment",instance="m:1"}': newest,
    }


def verdict(state: str, before: str = "", newest: str = NOW) -> World:
    """Return a verdict on the treatment that is continue for two hours and then another; `before` replaces the first."""
    calm, alarmed = before or lasting(2 * HOUR, 0), lasting(2 * DAY, 1)
    return (
        watched("abmonitor_verdict", f"{calm} {alarmed}", newest, variant="treatment", state=state)
        | watched("abmonitor_verdict", f"{lasting(2 * HOUR, 1)} {lasting(2 * DAY, 0)}", newest, variant="treatment", state="continue")
        | ({} if state == "stop_harm" else watched("abmonitor_verdict", lasting(2 * DAY, 0), newest, variant="treatment", state="stop_harm"))
    )  # fmt: skip


def crossovers(values: str, students: float, newest: str = NOW) -> World:
    """Return students who saw both variants, and how many each variant has."""
    both = {f'abmonitor_students{{experiment="e",variant="{variant}",instance="m:1"}}': lasting(2 * DAY, students) for variant in ("control", "treatment")}  # fmt: skip
    return watched("abmonitor_crossover_students", values, newest) | both


CONTROLLED = {'abmonitor_experiment_info{experiment="e",control="control",primary="dcg@5",instance="m:1"}': lasting(3 * DAY, 1)}  # fmt: skip


def empty(per_step: float, *, control: float = 0.5, since: int = 0, responses: float = 50) -> World:
    """Return responses of both variants, and the treatment's empty ones, which come from a step on."""
    flowing = lasting(3 * DAY, 0, responses)
    values = f"{lasting(since + 1, 0, 0)} {lasting(3 * DAY, per_step, per_step)}"
    empties = traffic("abmonitor_empty_responses", control=lasting(3 * DAY, 0, control), treatment=values)
    return CONTROLLED | traffic(RESPONSES, control=flowing, treatment=flowing) | empties


def latencies(fast: float, slow: float, *, since: int = 0, variant: str = "treatment", alone: bool = False) -> World:
    """Return how many answers per step take up to half a second and up to five, the slow ones from a step on."""
    world = dict(CONTROLLED)
    arms = {variant: (fast, slow)} if alone else {"control": (fast + slow, 0.0), variant: (fast, slow)}
    for name, (quick, late) in arms.items():
        up_to = {"0.5": lasting(3 * DAY, 0, quick), "5.0": f"{lasting(since + 1, 0, quick)} {lasting(3 * DAY, quick * since, quick + late)}"}  # fmt: skip
        up_to["+Inf"] = up_to["5.0"]
        for bound, values in up_to.items():
            world |= {f'abmonitor_response_latency_seconds_bucket{{experiment="e",variant="{name}",instance="m:1",le="{bound}"}}': values}  # fmt: skip
        world |= {f'abmonitor_response_latency_seconds_count{{experiment="e",variant="{name}",instance="m:1"}}': up_to["+Inf"]}  # fmt: skip
    return world


def drifted(psi: str, js: str, newest: str = "", of: str = "drift") -> World:
    """Return both distances of the treatment's categories, or items; the thresholds are 0.2 and 0.1."""
    world: World = {}
    for measure, distance, threshold in (("psi", psi, 0.2), ("js", js, 0.1)):
        labels = {"variant": "treatment", "measure": measure}
        world |= watched(f"abmonitor_{of}_threshold", lasting(3 * DAY, threshold), newest or NOW, **labels)
        world |= watched(f"abmonitor_{of}_distance", distance, newest or NOW, **labels)
    return world


def unscraped(world: World, at: int, steps: int) -> World:
    """Return a world in which nothing was scraped for some steps; what is counted went on meanwhile."""
    found = {}
    for name, values in world.items():
        samples: list[str] = []
        for begin, slope, further in re.findall(r"(-?[\d.]+)([+-][\d.]+)x(\d+)", values):
            samples += [f"{float(begin) + float(slope) * step:g}" for step in range(int(further) + 1)]
        samples[at : at + steps] = ["_"] * steps
        found[name] = " ".join(samples)
    return found


ANSWERS = [
    Scenario("AbMonitorEmptyAnswers", "a fifth, and one of a hundred of the control", empty(10), 4 * HOUR, [VARIANT]),
    Scenario("AbMonitorEmptyAnswers", "as many as the control", empty(10, control=10), 4 * HOUR),
    Scenario("AbMonitorEmptyAnswers", "fewer than the control", empty(1, control=10), 4 * HOUR),
    Scenario("AbMonitorEmptyAnswers", "more than the day before, as the control has always had", empty(20, control=20, since=2 * DAY), 2 * DAY + 3 * HOUR, [VARIANT]),
    Scenario("AbMonitorEmptyAnswers", "too few responses", empty(0.5, control=0, responses=3), 4 * HOUR),
    Scenario("AbMonitorEmptyAnswers", "within the noise", empty(0.8, control=0.3, responses=5), 4 * HOUR),
    Scenario("AbMonitorEmptyAnswers", "a gap in scrapes", unscraped(empty(1, control=1), 3 * HOUR, HOUR), 4 * HOUR + 3),
    Scenario("AbMonitorCategoryDrift", "a gap in scrapes", unscraped(drifted(lasting(DAY, 0.1), lasting(DAY, 0.09)), 3 * HOUR, HOUR), 4 * HOUR + 3),
    Scenario("AbMonitorSlowAnswers", "a gap in scrapes", unscraped(latencies(49.5, 0.5), 3 * HOUR, HOUR), 4 * HOUR + 3),
    Scenario("AbMonitorCategoryDrift", "both distances say so", drifted(lasting(DAY, 0.5), lasting(DAY, 0.3)), HOUR, [VARIANT]),
    Scenario("AbMonitorCategoryDrift", "one of them does", drifted(lasting(DAY, 0.5), lasting(DAY, 0.09)), HOUR),
    Scenario("AbMonitorCategoryDrift", "none does", drifted(lasting(DAY, 0.1), lasting(DAY, 0.09)), HOUR),
    Scenario("AbMonitorCategoryDrift", "over the next day", drifted(f"{lasting(DAY, 0.5)} {lasting(DAY, 0.1)}", f"{lasting(DAY, 0.5)} {lasting(DAY, 0.05)}"), DAY + 2 * HOUR),
    Scenario("AbMonitorCategoryDrift", "experiment ended", drifted(lasting(2 * DAY, 0.5), lasting(2 * DAY, 0.3), OVER), 30 * HOUR),
    Scenario("AbMonitorItemDrift", "both distances say so", drifted(lasting(DAY, 0.5), lasting(DAY, 0.3), of="item_drift"), HOUR, [VARIANT]),
    Scenario("AbMonitorItemDrift", "one of them does", drifted(lasting(DAY, 0.19), lasting(DAY, 0.3), of="item_drift"), HOUR),
    Scenario("AbMonitorItemDrift", "only the categories' do", drifted(lasting(DAY, 0.5), lasting(DAY, 0.3)) | drifted(lasting(DAY, 0.1), lasting(DAY, 0.09), of="item_drift"), HOUR),
    Scenario("AbMonitorItemDrift", "over the next day", drifted(f"{lasting(DAY, 0.5)} {lasting(DAY, 0.1)}", f"{lasting(DAY, 0.5)} {lasting(DAY, 0.05)}", of="item_drift"), DAY + 2 * HOUR),
    Scenario("AbMonitorItemDrift", "experiment ended", drifted(lasting(2 * DAY, 0.5), lasting(2 * DAY, 0.3), OVER, of="item_drift"), 30 * HOUR),
    Scenario("AbMonitorItemDrift", "a gap in scrapes", unscraped(drifted(lasting(DAY, 0.1), lasting(DAY, 0.09), of="item_drift"), 3 * HOUR, HOUR), 4 * HOUR + 3),
    Scenario("AbMonitorSlowAnswers", "a tenth takes seconds", latencies(45, 5), 4 * HOUR, [VARIANT]),
    Scenario("AbMonitorSlowAnswers", "one of a hundred", latencies(49.5, 0.5), 4 * HOUR),
    Scenario("AbMonitorSlowAnswers", "too few responses", latencies(4, 1), 4 * HOUR),
    Scenario("AbMonitorSlowAnswers", "the control itself, slower than the day before", latencies(45, 5, since=2 * DAY, variant="control", alone=True), 2 * DAY + 2 * HOUR, [{**VARIANT, "variant": "control"}]),
    Scenario("AbMonitorSlowAnswers", "the control, as slow as ever", latencies(45, 5, variant="control", alone=True), 2 * DAY + 2 * HOUR),
]  # fmt: skip

RATIO = "abmonitor_sample_ratio_log_e"
GAP = f"{lasting(2 * HOUR, 0)} {missing(2 * HOUR)}"
BROKEN = f"{lasting(2 * HOUR, 1)} {lasting(2 * DAY, 7)}"
INTERRUPTED = f"{lasting(2 * HOUR, 7)} {missing(6)} {lasting(HOUR, 7)}"
DECISION = [
    Scenario("AbMonitorHarm", "the verdict turns", verdict("stop_harm"), 3 * HOUR, [VARIANT]),
    Scenario("AbMonitorHarm", "another verdict", verdict("futile"), 3 * HOUR),
    Scenario("AbMonitorHarm", "too few students, or too young, for a verdict", verdict("insufficient_data"), 3 * HOUR),
    Scenario("AbMonitorHarm", "for a moment", watched("abmonitor_verdict", f"{lasting(2 * HOUR, 0)} 1 {lasting(HOUR, 0)}", variant="treatment", state="stop_harm"), 2 * HOUR + 3),
    Scenario("AbMonitorHarm", "a gap in scrapes", watched("abmonitor_verdict", GAP, variant="treatment", state="stop_harm"), 3 * HOUR),
    Scenario("AbMonitorHarm", "fires on through a gap in scrapes", verdict("stop_harm", f"{lasting(HOUR, 1)} {missing(6)}"), HOUR + 4, [VARIANT]),
    Scenario("AbMonitorHarm", "over", watched("abmonitor_verdict", f"{lasting(HOUR, 1)} {lasting(HOUR, 0)}", variant="treatment", state="stop_harm"), HOUR + 1),
    Scenario("AbMonitorHarm", "experiment ended", verdict("stop_harm", newest=OVER), 30 * HOUR),
    Scenario("AbMonitorHarm", "stopped two hours ago: still to be seen", verdict("stop_harm", newest=OVER), 3 * HOUR, [VARIANT]),
    Scenario("AbMonitorSampleRatio", "split otherwise", watched(RATIO, BROKEN), 3 * HOUR, [EXPERIMENT]),
    Scenario("AbMonitorSampleRatio", "as soon as it is a hundred to one", watched(RATIO, lasting(DAY, 4.61)), 3 * HOUR, [EXPERIMENT]),
    Scenario("AbMonitorSampleRatio", "split as intended", watched(RATIO, lasting(DAY, -2)), 3 * HOUR),
    Scenario("AbMonitorSampleRatio", "too few students to say", watched(RATIO, lasting(DAY, 4.6)), 3 * HOUR),
    Scenario("AbMonitorSampleRatio", "for a moment", watched(RATIO, f"{lasting(HOUR, 1)} 7 {lasting(DAY, 1)}"), HOUR + 3),
    Scenario("AbMonitorSampleRatio", "a gap in scrapes", watched(RATIO, GAP), 3 * HOUR),
    Scenario("AbMonitorSampleRatio", "fires on through a gap in scrapes", watched(RATIO, INTERRUPTED), 2 * HOUR + 4, [EXPERIMENT]),
    Scenario("AbMonitorSampleRatio", "experiment ended", watched(RATIO, BROKEN, OVER), 30 * HOUR),
    Scenario("AbMonitorSampleRatio", "experiment taken out of the configuration", watched(RATIO, f"{lasting(3 * HOUR, 7)} {missing(DAY)}"), 6 * HOUR),
    Scenario("AbMonitorCrossovers", "two of a hundred", crossovers(lasting(2 * DAY, 40), 1000), 3 * HOUR, [EXPERIMENT]),
    Scenario("AbMonitorCrossovers", "one of two hundred", crossovers(lasting(2 * DAY, 10), 1000), 3 * HOUR),
    Scenario("AbMonitorCrossovers", "too few: nine of a hundred", crossovers(lasting(2 * DAY, 9), 50), 3 * HOUR),
    Scenario("AbMonitorCrossovers", "no students", crossovers(lasting(2 * DAY, 0), 0), 3 * HOUR),
    Scenario("AbMonitorCrossovers", "a gap in scrapes", crossovers(GAP, 100), 3 * HOUR),
    Scenario("AbMonitorCrossovers", "fires on through a gap in scrapes", crossovers(f"{lasting(HOUR, 40)} {missing(6)} {lasting(HOUR, 40)}", 1000), HOUR + 4, [EXPERIMENT]),
    Scenario("AbMonitorCrossovers", "experiment ended", crossovers(lasting(2 * DAY, 40), 1000, OVER), 30 * HOUR),
]  # fmt: skip

SYSTEM = {"job": "ab-monitor"}
PROCESS = {**SYSTEM, "instance": "m:1"}
PAUSED_FROM_1H = f"{lasting(HOUR, 0)} {lasting(2 * HOUR, 1)}"
DOWN_FROM_1H = f"{lasting(HOUR, 1)} {lasting(2 * HOUR, 0)}"
STARTED = "process_start_time_seconds"


def starts(counts: str, job: str = "ab-monitor") -> World:
    """Return the starts of a replica that is counted in the store and that answers the scrapes."""
    return of_process("abmonitor_starts_total", counts, job=job) | up(lasting(DAY, 1))


REACHED = [
    Scenario("AbMonitorDown", "no replica answers", up(DOWN_FROM_1H), HOUR + 2, [SYSTEM]),
    Scenario("AbMonitorDown", "its targets are gone", up(f"{lasting(HOUR, 1)} {missing(HOUR)}"), 2 * HOUR, [SYSTEM]),
    Scenario("AbMonitorDown", "no job scrapes it", of_process(STARTED, lasting(DAY, 1)), HOUR, [{}]),
    Scenario("AbMonitorDown", "one missed scrape", up(f"{lasting(HOUR, 1)} 0 {lasting(HOUR, 1)}"), HOUR + 1),
    Scenario("AbMonitorDown", "one of two answers", up(DOWN_FROM_1H) | up(lasting(DAY, 1), "m:2"), 2 * HOUR),
    Scenario("AbMonitorTargetDown", "one of two does not answer", up(DOWN_FROM_1H) | up(lasting(DAY, 1), "m:2"), HOUR + 2, [PROCESS]),
    Scenario("AbMonitorTargetDown", "neither page of one of two answers", up(DOWN_FROM_1H) | up(DOWN_FROM_1H, job="ab-monitor-experiments") | up(lasting(DAY, 1), "m:2"), HOUR + 2, [PROCESS]),
    Scenario("AbMonitorTargetDown", "only the page of the experiments does not answer", up(lasting(DAY, 1)) | up(DOWN_FROM_1H, job="ab-monitor-experiments"), HOUR + 2, [PROCESS]),
    Scenario("AbMonitorTargetDown", "other jobs are not its business", up(DOWN_FROM_1H, job="node"), 2 * HOUR),
    Scenario("AbMonitorTargetDown", "one missed scrape", up(f"{lasting(HOUR, 1)} 0 {lasting(HOUR, 1)}"), HOUR + 1),
    Scenario("AbMonitorTargetDown", "a replica that is no longer there", up(f"{lasting(HOUR, 1)} {missing(HOUR)}"), 2 * HOUR),
    Scenario("AbMonitorRestarting", "starts that no scrape reached", starts(f"{lasting(HOUR, 7)} {missing(2)} {lasting(HOUR, 11)}"), HOUR + 2, [SYSTEM]),
    Scenario("AbMonitorRestarting", "three starts in half an hour", of_process(STARTED, f"{lasting(HOUR, 1)} 2 3 4 {lasting(HOUR, 4)}"), HOUR + 2, [PROCESS]),
    Scenario("AbMonitorRestarting", "starts in the first minutes of a deployment", starts(f"1 {lasting(HOUR, 5)}"), 1, [SYSTEM]),
    Scenario("AbMonitorRestarting", "starts that some scrapes reached are one alert", starts(f"{lasting(HOUR, 7)} 8 9 11 {lasting(HOUR, 12)}") | of_process(STARTED, f"{lasting(HOUR, 1)} 2 3 4 {lasting(HOUR, 5)}"), HOUR + 3, [SYSTEM]),
    Scenario("AbMonitorRestarting", "starts that no scrape reached, counted on the other page", starts(f"{lasting(HOUR, 7)} {missing(2)} {lasting(HOUR, 11)}", job="ab-monitor-experiments"), HOUR + 2, [SYSTEM]),
    Scenario("AbMonitorRestarting", "a rolling restart of two replicas", starts(f"{lasting(HOUR, 7)} {lasting(HOUR, 9)}") | up(lasting(DAY, 1), "m:2"), HOUR + 1),
    Scenario("AbMonitorRestarting", "an hour after the last start", starts(f"{lasting(HOUR, 7)} {lasting(2 * HOUR, 11)}"), 2 * HOUR),
    Scenario("AbMonitorRestarting", "a rolling restart", of_process(STARTED, f"{lasting(HOUR, 1)} 2 {lasting(HOUR, 2)}"), HOUR + 4),
    Scenario("AbMonitorRestarting", "a gap in scrapes", of_process(STARTED, f"{lasting(HOUR, 1)} {missing(3)} {lasting(HOUR, 1)}"), HOUR + 4),
    Scenario("AbMonitorRestarting", "over", of_process(STARTED, f"{lasting(HOUR, 1)} 2 3 4 {lasting(2 * HOUR, 4)}"), HOUR + 5),
    Scenario("AbMonitorStoreDown", "both pages say so", store(DOWN_FROM_1H, DOWN_FROM_1H), HOUR + 1, [PROCESS]),
    Scenario("AbMonitorStoreDown", "only /metrics is scraped", of_process("abmonitor_store_up", DOWN_FROM_1H), HOUR + 1, [PROCESS]),
    Scenario("AbMonitorStoreDown", "the consumer has not asked yet", store(lasting(DAY, 0), lasting(DAY, 1)), HOUR),
    Scenario("AbMonitorStoreDown", "a gap in scrapes", store(*[f"{lasting(HOUR, 1)} {missing(HOUR)}"] * 2), 2 * HOUR),
    Scenario("AbMonitorStoreDown", "writes are rejected, reads answered", store(DOWN_FROM_1H, lasting(DAY, 1)) | of_process("abmonitor_paused", PAUSED_FROM_1H, reason="store"), HOUR + 1, [PROCESS]),
    Scenario("AbMonitorStoreDown", "paused for Kafka", store(lasting(DAY, 0), lasting(DAY, 1)) | of_process("abmonitor_paused", PAUSED_FROM_1H, reason="kafka"), HOUR + 1),
    Scenario("AbMonitorStoreDown", "back", store(*[f"{lasting(HOUR, 0)} {lasting(HOUR, 1)}"] * 2), HOUR + 2),
]  # fmt: skip

TOPIC = {**SYSTEM, "topic": "feedback"}
EVENTS, REJECTED = "abmonitor_events_total", "abmonitor_rejected_events_total"


def lag(*partitions: str) -> World:
    """Return the lag in seconds of each partition."""
    world: World = {}
    for number, values in enumerate(partitions):
        world |= of_process("abmonitor_consumer_lag_seconds", values, topic="feedback", partition=str(number))
    return world


def topic(values: str) -> World:
    """Return the events of a topic."""
    return of_process(EVENTS, values, topic="feedback", outcome="applied")


def conflicts(commits: float, refused: float) -> World:
    """Return commits that were applied and refused, as many per step."""
    return of_process("abmonitor_commit_seconds_count", lasting(DAY, 0, commits)) | of_process(
        "abmonitor_commit_conflicts_total", lasting(DAY, 0, refused)
    )


def digest(instance: str, name: str, start: int = 0, end: int = DAY) -> World:
    """Return the digest of a replica's experiments from one step to another; a replica has several digests in turn."""
    before = f"{missing(start)} " if start else ""
    return of_process("abmonitor_config_info", f"{before}{lasting(end - start, 1)} stale", instance, digest=name)


WEEK = f"{lasting(8 * DAY, 0, 100)} {lasting(DAY, 800 * DAY)}"
FLOW = [
    Scenario("AbMonitorPaused", "ten minutes", of_process("abmonitor_paused", PAUSED_FROM_1H), HOUR + 2, [PROCESS]),
    Scenario("AbMonitorPaused", "for Kafka, and not for the store", of_process("abmonitor_paused", PAUSED_FROM_1H, reason="kafka") | of_process("abmonitor_paused", lasting(DAY, 0), reason="store"), HOUR + 2, [{**PROCESS, "reason": "kafka"}]),
    Scenario("AbMonitorPaused", "a moment", of_process("abmonitor_paused", f"{lasting(HOUR, 0)} 1 {lasting(HOUR, 0)}"), HOUR + 1),
    Scenario("AbMonitorPaused", "resumed", of_process("abmonitor_paused", f"{lasting(HOUR, 1)} {lasting(HOUR, 0)}"), HOUR + 2),
    Scenario("AbMonitorPaused", "a gap in scrapes", of_process("abmonitor_paused", f"{lasting(HOUR, 0)} {missing(HOUR)}"), 2 * HOUR),
    Scenario("AbMonitorPausedLong", "forty minutes", of_process("abmonitor_paused", PAUSED_FROM_1H), HOUR + 8, [PROCESS]),
    Scenario("AbMonitorPausedLong", "twenty minutes", of_process("abmonitor_paused", PAUSED_FROM_1H), HOUR + 4),
    Scenario("AbMonitorPausedLong", "a gap in scrapes", of_process("abmonitor_paused", f"{lasting(HOUR, 0)} {lasting(4, 1)} {missing(HOUR)}"), HOUR + 8),
    Scenario("AbMonitorLag", "the slowest partition of two", lag(lasting(DAY, 0), lasting(DAY, 200)), HOUR, [TOPIC]),
    Scenario("AbMonitorLag", "a minute", lag(lasting(DAY, 60)), HOUR),
    Scenario("AbMonitorLag", "catching up after a restart", lag(f"{lasting(2, 800)} {lasting(DAY, 0)}"), HOUR),
    Scenario("AbMonitorLag", "a gap in scrapes", lag(f"{lasting(3, 200)} {missing(HOUR)}"), HOUR),
    Scenario("AbMonitorLagSevere", "twenty minutes behind", lag(lasting(DAY, 1200)), 2, [TOPIC]),
    Scenario("AbMonitorLagSevere", "ten minutes behind", lag(lasting(DAY, 600)), HOUR),
    Scenario("AbMonitorLagSevere", "catching up after a restart", lag(f"1200 {lasting(DAY, 0)}"), 1),
    Scenario("AbMonitorLagSevere", "a gap in scrapes", lag(f"1200 stale {missing(HOUR)}"), 1),
    Scenario("AbMonitorTopicSilent", "stops", topic(WEEK), 8 * DAY + HOUR, [TOPIC]),
    Scenario("AbMonitorTopicSilent", "goes on", topic(lasting(9 * DAY, 0, 100)), 8 * DAY + HOUR),
    Scenario("AbMonitorTopicSilent", "too few: little traffic anyway", topic(f"{lasting(8 * DAY, 0, 10)} {lasting(DAY, 80 * DAY)}"), 8 * DAY + HOUR),
    Scenario("AbMonitorTopicSilent", "young", topic(f"{lasting(3 * DAY, 0, 100)} {lasting(DAY, 300 * DAY)}"), 3 * DAY + HOUR),
    Scenario("AbMonitorTopicSilent", "a gap in scrapes", topic(f"{lasting(8 * DAY, 0, 100)} {missing(DAY)}"), 8 * DAY + HOUR),
    Scenario("AbMonitorTopicSilent", "as silent a week ago", topic(f"{lasting(DAY + HOUR, 0)} {lasting(7 * DAY - HOUR, 0, 100)} {lasting(DAY, 700 * DAY)}"), 8 * DAY + 8),
    Scenario("AbMonitorTopicSilent", "ended a day ago", topic(WEEK), 9 * DAY - 1 + HOUR),
    Scenario("AbMonitorCommitConflicts", "a third of the writes", conflicts(40, 20), 2 * HOUR, [SYSTEM]),
    Scenario("AbMonitorCommitConflicts", "a twentieth of the writes", conflicts(100, 5), 2 * HOUR),
    Scenario("AbMonitorCommitConflicts", "over", of_process("abmonitor_commit_seconds_count", lasting(DAY, 0, 40)) | of_process("abmonitor_commit_conflicts_total", f"{lasting(2 * HOUR, 0, 20)} {lasting(HOUR, 40 * HOUR)}"), 2 * HOUR + 3),
    Scenario("AbMonitorCommitConflicts", "too few of few", conflicts(1, 1), 2 * HOUR),
    Scenario("AbMonitorCommitConflicts", "a gap in scrapes", of_process("abmonitor_commit_conflicts_total", f"0 100 {missing(DAY)}"), 2 * HOUR),
    Scenario("AbMonitorBackfillFailed", "an hour", of_process("abmonitor_backfill_failed", f"{lasting(HOUR, 0)} {lasting(HOUR, 1)}", experiment="e"), 2 * HOUR, [{**SYSTEM, "experiment": "e"}]),
    Scenario("AbMonitorBackfillFailed", "complete at the next attempt", of_process("abmonitor_backfill_failed", f"{lasting(HOUR, 1)} {lasting(HOUR, 0)}", experiment="e"), 2 * HOUR),
    Scenario("AbMonitorBackfillFailed", "a gap in scrapes", of_process("abmonitor_backfill_failed", f"{lasting(HOUR, 0)} {missing(HOUR)}", experiment="e"), 2 * HOUR),
    Scenario("AbMonitorMessagesWait", "an hour", of_process("abmonitor_notifications_waiting", f"{lasting(HOUR, 0)} {lasting(HOUR, 2)}", channel="c"), 2 * HOUR, [{**SYSTEM, "channel": "c"}]),
    Scenario("AbMonitorMessagesWait", "a quarter of an hour", of_process("abmonitor_notifications_waiting", f"{lasting(HOUR, 0)} {lasting(15, 2)} {lasting(HOUR, 0)}", channel="c"), 90),
    Scenario("AbMonitorMessagesWait", "a gap in scrapes", of_process("abmonitor_notifications_waiting", f"{lasting(HOUR, 0)} {missing(HOUR)}", channel="c"), 2 * HOUR),
    Scenario("AbMonitorConsumerStalls", "again and again", of_process("abmonitor_consumer_restarts_total", lasting(DAY, 0, 1)), 2 * HOUR, [PROCESS]),
    Scenario("AbMonitorConsumerStalls", "over", of_process("abmonitor_consumer_restarts_total", f"{lasting(HOUR, 0, 1)} {lasting(HOUR, HOUR)}"), HOUR + 5),
    Scenario("AbMonitorConsumerStalls", "once", of_process("abmonitor_consumer_restarts_total", f"{lasting(HOUR, 0)} {lasting(HOUR, 1)}"), 2 * HOUR),
    Scenario("AbMonitorReloadFailed", "ten minutes", of_process("abmonitor_config_last_reload_successful", DOWN_FROM_1H), HOUR + 2, [PROCESS]),
    Scenario("AbMonitorReloadFailed", "a moment", of_process("abmonitor_config_last_reload_successful", f"{lasting(HOUR, 1)} 0 {lasting(HOUR, 1)}"), HOUR + 1),
    Scenario("AbMonitorReloadFailed", "valid again", of_process("abmonitor_config_last_reload_successful", f"{lasting(HOUR, 0)} {lasting(HOUR, 1)}"), HOUR + 2),
    Scenario("AbMonitorReloadFailed", "a gap in scrapes", of_process("abmonitor_config_last_reload_successful", f"{lasting(HOUR, 1)} {missing(HOUR)}"), 2 * HOUR),
    Scenario("AbMonitorReplicasDisagree", "one of two is behind", digest("m:1", "new") | digest("m:2", "old"), HOUR, [SYSTEM]),
    Scenario("AbMonitorReplicasDisagree", "both are new after an hour", digest("m:1", "new") | digest("m:2", "old", end=HOUR) | digest("m:2", "new", start=HOUR), HOUR + 2),
    Scenario("AbMonitorReplicasDisagree", "for a moment", digest("m:1", "old", end=HOUR) | digest("m:1", "new", start=HOUR) | digest("m:2", "old", end=HOUR + 1) | digest("m:2", "new", start=HOUR + 1), HOUR + 1),
    Scenario("AbMonitorReplicasDisagree", "a gap in scrapes", digest("m:1", "new") | digest("m:2", "new", end=HOUR), 2 * HOUR),
    Scenario("AbMonitorConsumerStalls", "a gap in scrapes", of_process("abmonitor_consumer_restarts_total", f"{lasting(HOUR, 0)} {missing(9)} {lasting(HOUR, 0)}"), 2 * HOUR),
]  # fmt: skip


def refused(per_step: float, applied: float, steps: int = 2 * DAY, *, since: int = 0) -> World:
    """Return a topic of which that many events per step are refused from a step on, and as many applied."""
    values = f"{lasting(since + 1, 0)} {lasting(steps, per_step, per_step)}"
    return (
        of_process(REJECTED, values, topic="feedback", reason="json")
        | of_process(EVENTS, values, topic="feedback", outcome="rejected")
        | topic(lasting(since + steps, 0, applied))
    )


FLOOD = f"{lasting(HOUR, 0, 100)} {lasting(DAY, 100 * (HOUR - 1))}"
STOPS = f"{lasting(HOUR, 0, 10)} {lasting(DAY, 10 * HOUR)}"
ONCE = f"{lasting(HOUR, 0)} {lasting(DAY, 1000)}"
LOST = {**TOPIC, "partition": "1"}


def lost(values: str) -> World:
    """Return the lost events of a partition."""
    return of_process("abmonitor_lost_events_total", values, topic="feedback", partition="1")


def late(per_step: float, applied: float) -> World:
    """Return a topic of which that many events per step are late."""
    return of_process(EVENTS, lasting(DAY, 0, per_step), topic="feedback", outcome="late") | topic(
        lasting(DAY, 0, applied)
    )


def unmatched(counts: str, feedback: str, skipped: float = 0, **counts_of_others: str) -> World:
    """Return unmatched ratings, which both of two replicas export, feedback events, and 100 responses per step.

    `skipped` of the responses are of no experiment. Half of all events are applied by each replica.
    """
    world: World = {}
    for instance in ("m:1", "m:2"):
        for kind, values in {"rating": counts, **counts_of_others}.items():
            world |= of_process(
                "abmonitor_unmatched_feedback_total", values, instance, job="ab-monitor-experiments", kind=kind
            )
        for event_type in ("feedback", "response"):
            world |= of_process(
                "abmonitor_topic_info", lasting(10 * DAY, 1), instance, topic=event_type, event_type=event_type
            )
        world |= of_process(EVENTS, feedback, instance, topic="feedback", outcome="applied")
        for outcome, slope in (("applied", 50 - skipped / 2), ("skipped", skipped / 2)):
            responses = lasting(10 * DAY, 0, slope)
            world |= of_process(EVENTS, responses, instance, topic="response", outcome=outcome)
    return world


def skipped(values: str, applied: str) -> World:
    """Return a topic with skipped and applied events."""
    return of_process(EVENTS, values, topic="feedback", outcome="skipped") | topic(applied)


def uncounted(values: str, counted: str | None, reason: str = "before_response") -> World:
    """Return the reactions to a variant that do not count, and those that do."""
    page = {"job": "ab-monitor-experiments", "experiment": "e", "variant": "treatment"}
    world = of_process("abmonitor_uncounted_feedback", values, reason=reason, **page)
    if counted is not None:
        world |= of_process("abmonitor_feedback", counted, kind="rating", **page)
    return world


WRONG_CLOCK = {**SYSTEM, "experiment": "e", "reason": "before_response"}
BEGINS = f"{lasting(2 * DAY, 0)} {lasting(DAY, 0, 100)}"
ENDS_THEN = f"{lasting(2 * DAY, 0, 100)} {lasting(DAY, 200 * DAY)}"
NO_RESPONSES = {
    name: values
    for name, values in unmatched(lasting(2 * DAY, 0, 10), lasting(2 * DAY, 0, 50)).items()
    if 'topic="response"' not in name
}
STEADY, ENDING = lasting(10 * DAY, 0, 50), f"{lasting(4 * DAY, 0, 50)} {lasting(4 * DAY, 4 * DAY * 50, 0.1)}"
LOSSES = [
    Scenario("AbMonitorRejectsSevere", "half of them", refused(50, 50), HOUR, [TOPIC]),
    Scenario("AbMonitorRejectsSevere", "a flood that ended ten minutes ago", of_process(REJECTED, FLOOD, topic="feedback", reason="json") | topic(lasting(2 * DAY, 0, 90)), HOUR + 2),
    Scenario("AbMonitorRejectsSevere", "a tenth", refused(10, 90), HOUR),
    Scenario("AbMonitorRejectsSevere", "too few: half of them", refused(5, 5), HOUR),
    Scenario("AbMonitorRejectsSevere", "a gap in scrapes", of_process(REJECTED, f"0 100 {missing(DAY)}", topic="feedback", reason="json") | topic(f"0 100 {missing(DAY)}"), HOUR),
    Scenario("AbMonitorRejects", "a twentieth for hours", refused(5, 95), 8 * HOUR, [TOPIC]),
    Scenario("AbMonitorRejects", "one in a thousand", refused(1, 999), 8 * HOUR),
    Scenario("AbMonitorRejects", "it was, and is over", of_process(REJECTED, STOPS, topic="feedback", reason="json") | topic(lasting(2 * DAY, 0, 90)), 3 * HOUR),
    Scenario("AbMonitorRejects", "a flood that ended 25 minutes ago", of_process(REJECTED, FLOOD, topic="feedback", reason="json") | topic(lasting(2 * DAY, 0, 90)), HOUR + 5),
    Scenario("AbMonitorRejects", "too few", refused(0.1, 1), 8 * HOUR),
    Scenario("AbMonitorRejects", "a gap in scrapes", of_process(REJECTED, INTERRUPTED, topic="feedback", reason="json") | topic(INTERRUPTED), 3 * HOUR),
    Scenario("AbMonitorSkipped", "all of them, under another name", skipped(BEGINS, ENDS_THEN), 2 * DAY + 3, [TOPIC]),
    Scenario("AbMonitorSkipped", "all of them, since the first event", skipped(lasting(DAY, 0, 100), lasting(DAY, 0)), 4, [TOPIC]),
    Scenario("AbMonitorSkipped", "as many as ever, of other experiments", skipped(lasting(3 * DAY, 0, 100), lasting(3 * DAY, 0, 100)), 2 * DAY),
    Scenario("AbMonitorSkipped", "too few", skipped(f"{lasting(2 * DAY, 0)} {lasting(DAY, 15)}", lasting(3 * DAY, 0, 100)), 2 * DAY + 3),
    Scenario("AbMonitorSkipped", "corrected twenty minutes ago", skipped(f"{lasting(2 * DAY, 0)} {lasting(6, 0, 100)} {lasting(DAY, 600)}", lasting(3 * DAY, 0, 100)), 2 * DAY + 9),
    Scenario("AbMonitorSkipped", "a gap in scrapes", skipped(f"0 100 {missing(DAY)}", f"0 100 {missing(DAY)}"), HOUR),
    Scenario("AbMonitorUncountedFeedback", "a clock goes wrong", uncounted(BEGINS, ENDS_THEN), 2 * DAY + 4, [WRONG_CLOCK]),
    Scenario("AbMonitorUncountedFeedback", "no feedback has ever counted", uncounted(lasting(DAY, 0, 100), None), 5, [WRONG_CLOCK]),
    Scenario("AbMonitorUncountedFeedback", "as usual", uncounted(lasting(3 * DAY, 0, 50), lasting(3 * DAY, 0, 100), "item_not_shown"), 2 * DAY),
    Scenario("AbMonitorUncountedFeedback", "a twentieth", uncounted(f"{lasting(2 * DAY, 0)} {lasting(DAY, 0, 50)}", lasting(3 * DAY, 0, 1000)), 2 * DAY + 4),
    Scenario("AbMonitorUncountedFeedback", "the clock is right again", uncounted(f"{lasting(2 * DAY, 0)} {lasting(6, 0, 100)} {lasting(DAY, 600)}", lasting(3 * DAY, 0, 100)), 2 * DAY + 12),
    Scenario("AbMonitorUncountedFeedback", "a gap in scrapes", uncounted(f"0 100 {missing(DAY)}", f"0 100 {missing(DAY)}"), HOUR),
    Scenario("AbMonitorDeadLetters", "one", refused(1, 999), 2 * HOUR, [TOPIC]),
    Scenario("AbMonitorDeadLetters", "for two reasons", refused(1, 999) | of_process(REJECTED, lasting(2 * DAY, 0, 1), topic="feedback", reason="late"), 2 * HOUR, [TOPIC]),
    Scenario("AbMonitorDeadLetters", "a flood, which is another alert", refused(50, 50), HOUR),
    Scenario("AbMonitorDeadLetters", "twenty minutes ago", of_process(REJECTED, ONCE, topic="feedback", reason="json"), HOUR + 4),
    Scenario("AbMonitorDeadLetters", "none", refused(0, 999), 2 * HOUR),
    Scenario("AbMonitorDeadLetters", "they were yesterday", of_process(REJECTED, ONCE, topic="feedback", reason="json"), 12 * HOUR),
    Scenario("AbMonitorDeadLetters", "a gap in scrapes", of_process(REJECTED, f"{lasting(HOUR, 7)} {missing(6)} {lasting(HOUR, 7)}", topic="feedback", reason="json"), 2 * HOUR),
    Scenario("AbMonitorLostEvents", "the first ones, with the series", lost(f"{missing(HOUR)} {lasting(DAY, 1000)}"), HOUR + 1, [LOST]),
    Scenario("AbMonitorLostEvents", "further ones", lost(f"{lasting(8 * HOUR, 1000)} {lasting(DAY, 2000)}"), 8 * HOUR + 1, [LOST]),
    Scenario("AbMonitorLostEvents", "they were two hours ago", lost(f"{missing(HOUR)} {lasting(DAY, 1000)}"), 3 * HOUR + 1),
    Scenario("AbMonitorLostEvents", "they were half a day ago", lost(f"{missing(HOUR)} {lasting(DAY, 1000)}"), 13 * HOUR),
    Scenario("AbMonitorLostEvents", "a gap in scrapes after it", lost(f"{missing(HOUR)} {lasting(8 * HOUR, 1000)} {missing(HOUR)} {lasting(DAY, 1000)}"), 16 * HOUR),
    Scenario("AbMonitorLostEvents", "none", topic(lasting(DAY, 0, 10)), 2 * HOUR),
    Scenario("AbMonitorLateEvents", "a tenth", late(10, 90), 3 * HOUR, [TOPIC]),
    Scenario("AbMonitorLateEvents", "over", of_process(EVENTS, FLOOD, topic="feedback", outcome="late") | topic(lasting(DAY, 0, 90)), HOUR + 4),
    Scenario("AbMonitorLateEvents", "one in a thousand", late(1, 999), 3 * HOUR),
    Scenario("AbMonitorLateEvents", "too few", late(1, 1), 3 * HOUR),
    Scenario("AbMonitorLateEvents", "a gap in scrapes", of_process(EVENTS, f"0 100 {missing(DAY)}", topic="feedback", outcome="late"), 3 * HOUR),
    Scenario("AbMonitorUnmatchedFeedback", "a tenth", unmatched(lasting(2 * DAY, 0, 10), STEADY), DAY + HOUR, [SYSTEM]),
    Scenario("AbMonitorUnmatchedFeedback", "all of it, after two hours", unmatched(f"{lasting(DAY, 0)} {lasting(DAY, 0, 100)}", STEADY), DAY + 2 * HOUR, [SYSTEM]),
    Scenario("AbMonitorUnmatchedFeedback", "no responses at all", NO_RESPONSES, DAY, [SYSTEM]),
    Scenario("AbMonitorUnmatchedFeedback", "a kind that is not configured begins with many", unmatched(lasting(2 * DAY, 0), STEADY, seen=f"{missing(DAY)} {lasting(DAY, 3000)}"), DAY + HOUR // 2, [SYSTEM]),
    Scenario("AbMonitorUnmatchedFeedback", "three of a hundred, which two replicas export", unmatched(lasting(2 * DAY, 0, 3), STEADY), DAY + HOUR),
    Scenario("AbMonitorUnmatchedFeedback", "too few", unmatched(lasting(2 * DAY, 0, 0.05), lasting(2 * DAY, 0, 0.05)), DAY + HOUR),
    Scenario("AbMonitorUnmatchedFeedback", "a tenth, until a day ago", unmatched(f"{lasting(DAY, 0, 10)} {lasting(2 * DAY, 10 * DAY)}", STEADY), 2 * DAY + 2 * HOUR),
    Scenario("AbMonitorUnmatchedFeedback", "a fifth of the responses are of no experiment", unmatched(lasting(2 * DAY, 0, 20), STEADY, 20), DAY + HOUR),
    Scenario("AbMonitorUnmatchedFeedback", "half of it, and a fifth of the responses are of no experiment", unmatched(lasting(2 * DAY, 0, 50), STEADY, 20), DAY + HOUR, [SYSTEM]),
    Scenario("AbMonitorUnmatchedFeedback", "feedback of a busy week expires when there is little left", unmatched(lasting(8 * DAY, 0, 3), ENDING), 8 * DAY - 1),
    Scenario("AbMonitorUnmatchedFeedback", "a rebuild counts fewer", unmatched(f"{lasting(DAY, 100_000)} {lasting(DAY, 90_000)}", STEADY), DAY + HOUR),
    Scenario("AbMonitorUnmatchedFeedback", "a gap in scrapes", unmatched(f"{lasting(DAY, 0, 3)} {missing(6 * HOUR)} {lasting(DAY, 3 * (DAY + 6 * HOUR), 3)}", STEADY), DAY + 8 * HOUR),
]  # fmt: skip

SCENARIOS = [*DROP, *BEHIND, *SILENCE, *ANSWERS, *DECISION, *REACHED, *FLOW, *LOSSES]
