"""Alerts about the variants: their quality drops, they fall silent, they do harm, or their comparison is not fair.

Drops are watched on decayed means, so they warn; they do not decide. Only the primary metric of an experiment is
watched: every further metric would be a further chance of a false alarm. If lower values of that metric are better, a
rise of the mean is a drop of quality.

Each drop comes twice. The fast one looks at decays of up to three hours and wants a large drop; the slow one looks at
longer decays and is content with a small one. Both want the drop to exceed a number of standard errors, which include
the design effect of several responses per student. The number is the band of a decayed mean over four weeks: a mean
without any change leaves it in 5 % of months (`monitor.stats.decay_band_multiplier`).

Harm, the sample ratio and crossovers are what a verdict goes by: sums over all time, valid at every look. Such sums
stay when an experiment is over, so they are watched until a day after its last response. Each is the newest value of
the last half hour, so that a gap in scrapes ends no alert; a new value does at once.
"""

from __future__ import annotations

from typing import Final

from deploy.alerting.rules import Alert, Recording, queried
from grafana import boards
from monitor.stats import decay_band_multiplier

FAST: Final = 'decay=~"[0-9]+[sm]|[1-3]h"'
SLOW: Final = 'decay!~"[0-9]+[sm]|[1-3]h"'
READABLE_COUNT: Final = 100
"""Effective responses from which on a decayed mean is watched."""
ERRORS: Final = 4
"""For shares of traffic."""
FAST_ERRORS: Final = round(decay_band_multiplier(28 * 24), 2)
"""The band over four weeks of a mean with a half-life of an hour."""
SLOW_ERRORS: Final = round(decay_band_multiplier(28), 2)
"""The band over four weeks of a mean with a half-life of a day."""
LARGE_DROP: Final = 0.15
SMALL_DROP: Final = 0.05
EXPECTED_COUNT: Final = 20
"""Silence means something where this many would have been usual; by Poisson's law chance has a part of e⁻²⁰ in it."""
DUE_COUNT: Final = 30
"""A variant is silent if it sent nothing where this many responses were due; students send several each."""
SILENCE_WINDOWS: Final = ("5m", "15m", "30m", "2h")
"""The shortest in which enough responses were due detects a silent variant."""
MISMATCH: Final = 100
"""The e-value from which on the sample ratio alarms: chance gets there once in 100 experiments, ever."""
MAX_SHOWN_E: Final = 1_000_000
CROSSOVERS: Final = 0.01
"""The share of students above which a verdict is invalid (docs/statistics.md)."""
FEW_CROSSOVERS: Final = 10
"""So many students may share a device or a login."""

_PRIMARY: Final = 'label_replace(abmonitor_experiment_info, "metric", "$1", "primary", "(.+)")'
CONTROL: Final = 'label_replace(abmonitor_experiment_info, "variant", "$1", "control", "(.+)")'
_SERIES: Final = "experiment_variant_metric_decay:abmonitor_primary"
MEAN: Final = f"{_SERIES}_mean:readable"
ERROR: Final = f"{_SERIES}_standard_error:max"
PAST: Final = f"{_SERIES}_mean:past"
CONTROL_MEAN: Final = "experiment_metric_decay:abmonitor_primary_mean:control"
CONTROL_ERROR: Final = "experiment_metric_decay:abmonitor_primary_standard_error:control"
BELOW_PAST: Final = f"{_SERIES}_mean:share_below_past"
BELOW_CONTROL: Final = f"{_SERIES}_mean:share_below_control"
ERRORS_BELOW_PAST: Final = f"{_SERIES}_mean:errors_below_past"
ERRORS_BELOW_CONTROL: Final = f"{_SERIES}_mean:errors_below_control"
NEW_MEAN: Final = "experiment_variant_metric:abmonitor_primary_mean:added15m"
NEW_CONTROL_MEAN: Final = "experiment_metric:abmonitor_primary_mean:added15m_control"
RECOVERED_DROP: Final = LARGE_DROP / 2
"""A decayed mean takes two half-lives to recover. A drop of the mean of new responses below this ends a fast alert."""
DIRECTION: Final = "experiment:abmonitor_primary_direction:sign"
"""1 if higher values of the primary metric are better, −1 if lower values are."""


def _of_control(series: str) -> str:
    return f"""
        max by (experiment, metric, decay) (
          {series}
          and on (experiment, variant)
          {CONTROL}
        )
    """


def _worse_by(fraction: str) -> str:
    """Return a fraction by which a mean is lower than another, as the fraction by which quality is lower."""
    return f"{fraction} * on (experiment) group_left () {DIRECTION}"


RECORDINGS: Final = (
    # An exporter of an earlier version has no label on the direction; then higher values are better.
    Recording(
        DIRECTION,
        """
        -1 * max by (experiment) (abmonitor_experiment_info{lower_is_better="true"})
        or
        max by (experiment) (abmonitor_experiment_info)
        """,
    ),
    # Decayed means that are worth watching: of the primary metric, on enough responses, and of a variant that lives.
    Recording(
        MEAN,
        f"""
        max by (experiment, variant, metric, decay) (abmonitor_metric_mean{{decay!="none"}})
        and on (experiment, metric)
        {_PRIMARY}
        and on (experiment, variant, metric, decay)
        (abmonitor_metric_effective_count >= {READABLE_COUNT})
        and on (experiment, variant)
        (time() - abmonitor_variant_last_event_timestamp_seconds < 3600)
        """,
    ),
    Recording(
        ERROR,
        f"""
        max by (experiment, variant, metric, decay) (abmonitor_metric_standard_error)
        and on (experiment, variant, metric, decay)
        {MEAN}
        """,
    ),
    # What the variant's mean used to be. The last hours are left out, because the mean of now is made of them; the
    # oldest part of the window must be there, or the experiment is too young to have a past.
    Recording(
        PAST,
        f"""
        (
          avg_over_time({MEAN}{{{FAST}}}[1d] offset 3h)
          and
          present_over_time({MEAN}{{{FAST}}}[6h] offset 21h)
        )
        or
        (
          avg_over_time({MEAN}{{{SLOW}}}[4d] offset 2d)
          and
          present_over_time({MEAN}{{{SLOW}}}[1d] offset 5d)
        )
        """,
    ),
    Recording(BELOW_PAST, _worse_by(f"(1 - {MEAN} / ({PAST} > 0))")),
    Recording(ERRORS_BELOW_PAST, _worse_by(f"({PAST} - {MEAN}) / {ERROR}")),
    Recording(CONTROL_MEAN, _of_control(MEAN)),
    Recording(CONTROL_ERROR, _of_control(ERROR)),
    Recording(
        BELOW_CONTROL,
        f"""
        {_worse_by(f"(1 - {MEAN} / on (experiment, metric, decay) group_left () ({CONTROL_MEAN} > 0))")}
        unless on (experiment, variant)
        {CONTROL}
        """,
    ),
    Recording(
        ERRORS_BELOW_CONTROL,
        f"""
        ({MEAN} - on (experiment, metric, decay) group_left () {CONTROL_MEAN})
        / -sqrt({ERROR} ^ 2 + on (experiment, metric, decay) group_left () {CONTROL_ERROR} ^ 2)
        * on (experiment) group_left () {DIRECTION}
        unless on (experiment, variant)
        {CONTROL}
        """,
    ),
    # The mean of the newest ratings, if there are enough.
    Recording(
        NEW_MEAN,
        f"""
        max by (experiment, variant, metric) (
          delta(abmonitor_metric_sum[15m]) / (delta(abmonitor_metric_count[15m]) >= {READABLE_COUNT})
        )
        and on (experiment, metric)
        {_PRIMARY}
        """,
    ),
    Recording(NEW_CONTROL_MEAN, f"max by (experiment, metric) ({NEW_MEAN} and on (experiment, variant) {CONTROL})"),
    # Traffic; a revision or a rebuild may lower the numbers, which is no traffic.
    *(
        Recording(
            f"experiment_variant:{name}:added{window}",
            f"clamp_min(max by (experiment, variant) (delta({name}[{window}])), 0)",
        )
        for name, window in (
            *(("abmonitor_responses", window) for window in (*SILENCE_WINDOWS, "1d")),
            ("abmonitor_rated_responses", "2h"),
            ("abmonitor_rated_responses", "1d"),
        )
    ),
)

_CHECK = "This is a warning from recent responses, not a verdict: check the runbook before you stop an experiment."
_VARIABLES = ("experiment", "metric", "decay")

DROPS: Final = (
    Alert(
        name="AbMonitorDropFast",
        concern="drop",
        severity="critical",
        team="product",
        expr=f"""
        {BELOW_PAST}{{{FAST}}} > {LARGE_DROP}
        and
        {ERRORS_BELOW_PAST} > {FAST_ERRORS}
        unless
        {_worse_by(f"(1 - 1 / {PAST} * on (experiment, variant, metric) group_left () {NEW_MEAN})")} < {RECOVERED_DROP}
        """,
        pending="10m",
        keep="10m",
        summary="{{ $labels.metric }} of {{ $labels.variant }} ({{ $labels.experiment }}) has become worse by"
        " {{ $value | humanizePercentage }} within a day",
        description="The mean of the last hours ({{ $labels.decay }} half-life) is {{ $value | humanizePercentage }}"
        f" worse than the variant's own mean of the day before. The drop is larger than {FAST_ERRORS} standard"
        f" errors. If the control has dropped as well, the variant is not the cause. {_CHECK}",
        board=boards.EXPERIMENT,
        variables=_VARIABLES,
        shown="2d",
    ),
    Alert(
        name="AbMonitorDropSlow",
        concern="drop",
        severity="warning",
        team="product",
        expr=f"""
        {BELOW_PAST}{{{SLOW}}} > {SMALL_DROP}
        and
        {ERRORS_BELOW_PAST} > {SLOW_ERRORS}
        """,
        pending="1h",
        keep="30m",
        summary="{{ $labels.metric }} of {{ $labels.variant }} ({{ $labels.experiment }}) has become worse by"
        " {{ $value | humanizePercentage }} within days",
        description="The recent mean ({{ $labels.decay }} half-life) is {{ $value | humanizePercentage }} worse than"
        f" the variant's own mean of 2 to 6 days ago. The drop is larger than {SLOW_ERRORS} standard errors. {_CHECK}",
        board=boards.EXPERIMENT,
        variables=_VARIABLES,
        shown="7d",
    ),
    Alert(
        name="AbMonitorBehindControlFast",
        concern="behind-control",
        severity="critical",
        team="product",
        expr=f"""
        {BELOW_CONTROL}{{{FAST}}} > {LARGE_DROP}
        and
        {ERRORS_BELOW_CONTROL} > {FAST_ERRORS}
        and
        present_over_time({MEAN}[1h] offset 6h)
        unless on (experiment, variant, metric)
        {_worse_by(f"(1 - {NEW_MEAN} / on (experiment, metric) group_left () {NEW_CONTROL_MEAN})")} < {RECOVERED_DROP}
        """,
        pending="10m",
        keep="10m",
        summary="{{ $labels.metric }} of {{ $labels.variant }} ({{ $labels.experiment }}) is"
        " {{ $value | humanizePercentage }} worse than the control",
        description="The mean of the last hours ({{ $labels.decay }} half-life) is {{ $value | humanizePercentage }}"
        f" worse than the control's. The difference is larger than {FAST_ERRORS} of its standard errors. {_CHECK}",
        board=boards.EXPERIMENT,
        variables=_VARIABLES,
        shown="2d",
    ),
    Alert(
        name="AbMonitorBehindControlSlow",
        concern="behind-control",
        severity="warning",
        team="product",
        expr=f"""
        {BELOW_CONTROL}{{{SLOW}}} > {SMALL_DROP}
        and
        {ERRORS_BELOW_CONTROL} > {SLOW_ERRORS}
        and
        present_over_time({MEAN}[6h] offset 2d)
        """,
        pending="1h",
        keep="30m",
        summary="{{ $labels.metric }} of {{ $labels.variant }} ({{ $labels.experiment }}) stays"
        " {{ $value | humanizePercentage }} worse than the control",
        description="The recent mean ({{ $labels.decay }} half-life) is {{ $value | humanizePercentage }} worse than"
        f" the control's. The difference is larger than {SLOW_ERRORS} of its standard errors. {_CHECK}",
        board=boards.EXPERIMENT,
        variables=_VARIABLES,
        shown="7d",
    ),
)

_ADDED: Final = "experiment_variant:abmonitor_responses:added"


def _due(window: str) -> str:
    """Return the responses that were due in the window, of variants that sent none.

    They are the declared share (the smallest within the window: it may have been raised just now) of the responses
    that the variants with traffic sent.
    """
    share = f"max by (experiment, variant) (min_over_time(abmonitor_intended_share[{window}]))"
    return f"""
          {share}
          / on (experiment) group_left ()
          sum by (experiment) ({share} and {_ADDED}{window} > 0)
          * on (experiment) group_left ()
          sum by (experiment) ({_ADDED}{window})
          > {DUE_COUNT}
          and
          {_ADDED}{window} == 0
    """


def _responses_with(outcome: str, text: str) -> str:
    return queried(
        f'sum(increase(abmonitor_events_total{{outcome="{outcome}",$system}}[30m])'
        ' and on (topic) abmonitor_topic_info{event_type="response"}) > 0',
        f' In the last 30 minutes {{{{ . | value | printf "%.0f" }}}} responses were {outcome}: {text}',
    )


SILENCES: Final = (
    Alert(
        name="AbMonitorVariantSilent",
        concern="variant-silent",
        severity="critical",
        team="operations",
        # A variant that sent nothing for a day was switched off; one that never sent anything was never on.
        expr=f"""
        (
          {" or ".join(_due(window).strip() for window in SILENCE_WINDOWS)}
        )
        and
        (
          {_ADDED}1d > 0
          or
          max by (experiment, variant) (abmonitor_responses) == 0
        )
        """,
        pending="1m",
        keep="2m",
        summary="{{ $labels.variant }} ({{ $labels.experiment }}) sends no responses, while other variants do",
        description='By the declared shares, about {{ $value | printf "%.0f" }} responses were due since its last one.'
        + _responses_with("skipped", "see “skipped” in the runbook.")
        + _responses_with("rejected", "see `ab-monitor dead-letters list --config FILE`.")
        + " Its bot or its routing may have stopped; then its students get no response.",
        board=boards.EXPERIMENT,
        variables=("experiment",),
    ),
    Alert(
        name="AbMonitorFeedbackSilent",
        concern="feedback-silent",
        severity="warning",
        team="operations",
        # As many of the new responses as are usually rated.
        expr=f"""
        experiment_variant:abmonitor_rated_responses:added1d
        / (experiment_variant:abmonitor_responses:added1d > 0)
        * experiment_variant:abmonitor_responses:added2h
        > {EXPECTED_COUNT}
        and
        experiment_variant:abmonitor_rated_responses:added2h == 0
        """,
        pending="15m",
        keep="5m",
        summary="{{ $labels.variant }} ({{ $labels.experiment }}) has received no rating for 2 hours",
        description='The variant sends responses, and about {{ $value | printf "%.0f" }} rated ones would have been'
        " usual. Without ratings its means do not change, so they cannot warn of a drop. The rating widget or its topic"
        " has probably stopped.",
        board=boards.EXPERIMENT,
        variables=("experiment",),
    ),
)

_GOES_ON: Final = (
    "(time() - max by (experiment) (last_over_time(abmonitor_variant_last_event_timestamp_seconds[30m])) < 86400)"
)

DECISIONS: Final = (
    Alert(
        name="AbMonitorHarm",
        concern="harm",
        severity="critical",
        team="product",
        expr=f"""
        max by (experiment, variant) (last_over_time(abmonitor_verdict{{state="stop_harm"}}[30m])) == 1
        and on (experiment)
        {_GOES_ON}
        """,
        pending="10m",
        summary="Stop {{ $labels.variant }} ({{ $labels.experiment }}): harm is shown",
        description="For 10 minutes the verdict has been stop_harm: the loss on the primary metric exceeds the declared"
        " margin, or a guardrail has failed. Unlike the alerts on recent means, this is a statistical decision. It is"
        " valid however often somebody looks.",
        board=boards.EXPERIMENT,
        variables=("experiment",),
        shown="7d",
    ),
    Alert(
        name="AbMonitorSampleRatio",
        concern="sample-ratio",
        severity="warning",
        team="product",
        expr=f"""
        clamp_max(exp(max by (experiment) (last_over_time(abmonitor_sample_ratio_log_e[30m]))), {MAX_SHOWN_E})
        >= {MISMATCH}
        and on (experiment)
        {_GOES_ON}
        """,
        pending="10m",
        summary="Students of {{ $labels.experiment }} are not split as intended",
        description="With the declared split, chance produces numbers as uneven as these in at most 1 of"
        ' {{ $value | printf "%.0f" }} experiments. The assignment, a redirect or the logging is broken. The verdict is'
        " invalid, because the variants' students are not comparable.",
        board=boards.EXPERIMENT,
        variables=("experiment",),
        shown="7d",
    ),
    Alert(
        name="AbMonitorCrossovers",
        concern="crossovers",
        severity="warning",
        team="product",
        expr=f"""
        (max by (experiment) (last_over_time(abmonitor_crossover_students[30m])) >= {FEW_CROSSOVERS})
        / (sum by (experiment) (max by (experiment, variant) (last_over_time(abmonitor_students[30m]))) > 0)
        > {CROSSOVERS}
        and on (experiment)
        {_GOES_ON}
        """,
        pending="10m",
        summary="{{ $value | humanizePercentage }} of the students of {{ $labels.experiment }} saw several variants",
        description=f"Above {CROSSOVERS:.0%} the verdict is invalid. Crossovers are left out of the comparison, and"
        " they are no random sample. The assignment does not keep students in their variant.",
        board=boards.EXPERIMENT,
        variables=("experiment",),
        shown="7d",
    ),
)

ALERTS: Final = (*DROPS, *SILENCES, *DECISIONS)
