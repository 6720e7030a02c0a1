"""The page /experiments/NAME/plan: students and days until an effect is shown, with a form that needs no script."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from monitor.analysis import (
    ExperimentSummary,
    PlanCriteria,
    PlanningValues,
    PlanOptionError,
    PlanOptions,
    assumed_planning_values,
    parse_plan_options,
    parse_response_assumptions,
    plan_experiment,
    stored_planning_values,
)
from monitor.config import DisplaySettings, ExperimentSettings
from monitor.errors import UsageError
from monitor.export import describe_plan
from monitor.web.pages import PageContent

_BAD_REQUEST: Final = 400


@dataclass(frozen=True, slots=True)
class _Field:
    """A field of the form; its name is that of an option of the plan."""

    name: str
    label: str
    hint: str


_FIELDS: Final = (
    _Field("mde", "Smallest effect of interest", "in the metric's unit, or such as 3%"),
    _Field("share", "Shares of the treatment", "such as 10%, 50%"),
    _Field("power", "Power", "such as 50%, 80%, 90%"),
    _Field("students_per_day", "New students per day", "all variants together"),
    _Field("pre_period_correlation", "Correlation with the pre-period", "from 0 to 1"),
)
_ASSUMPTION_FIELDS: Final = (
    _Field("metric_sd", "Standard deviation between responses", "of the primary metric"),
    _Field("metric_mean", "Mean", "for effects in per cent"),
    _Field("responses_per_student", "Responses per student", "in the first days, default 1"),
    _Field("correlation", "Correlation of a student's responses", "from 0 to 1, default 0.3"),
)


def plan_page(
    settings: ExperimentSettings, summary: ExperimentSummary, display: DisplaySettings, query: Mapping[str, str]
) -> PageContent:
    """Return the content of the page; a wrong field gets its error beside it, with status 400.

    Without enough data, the page has only the form, to plan from assumptions.
    """
    errors: dict[str, str] = {}
    problem = texts = None
    try:
        options = parse_plan_options(query)
        values = _planning_values(settings, summary, display, query, options)
        texts = describe_plan(plan_experiment(values, options))
    except PlanOptionError as error:
        errors[error.option] = error.reason
    except UsageError as error:
        problem = str(error)
    treatments = [] if summary.analysis is None else list(summary.analysis.verdicts)
    return PageContent(
        "plan.html",
        {
            "name": summary.name,
            "plan": texts,
            "problem": problem,
            "fields": _FIELDS,
            "assumption_fields": _ASSUMPTION_FIELDS,
            "has_assumptions": problem is not None or any(query.get(field.name) for field in _ASSUMPTION_FIELDS),
            "labels": {field.name: field.label for field in (*_FIELDS, *_ASSUMPTION_FIELDS)},
            "errors": errors,
            "query": query,
            "treatments": treatments if len(treatments) > 1 else [],
            "variant": query.get("variant", ""),
        },
        _BAD_REQUEST if errors else 200,
    )


def _planning_values(
    settings: ExperimentSettings,
    summary: ExperimentSummary,
    display: DisplaySettings,
    query: Mapping[str, str],
    options: PlanOptions,
) -> PlanningValues:
    responses = parse_response_assumptions(query)
    if responses is not None:
        criteria = PlanCriteria.of_experiment(settings)
        return assumed_planning_values(criteria, responses, options.students_per_day, settings)
    values = stored_planning_values(settings, summary, query.get("variant") or None, options.students_per_day)
    if values.students is not None and min(values.students) < display.min_display_students:
        raise UsageError(
            f"Fewer than {display.min_display_students} {values.unit_noun}s of a variant have been counted, so no "
            "numbers are shown (`display.min_display_students`)"
        )
    return values
