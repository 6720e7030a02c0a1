"""An experiment's settings in the words of the configuration file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Final

from monitor.analysis import format_timestamp
from monitor.config import ExperimentSettings, GuardrailSettings, describe_duration

_INSTANTS: Final = ("starts_at", "ends_at", "from")
_SUFFIX: Final = "_ms"
_TEXT_KEYS: Final = ("owner", "hypothesis", "link", "texts")


def describe_settings(experiment: ExperimentSettings) -> dict[str, Any]:
    """Return key of the configuration file → value, without absent values; a catalogue is the number of its items."""
    settings = _table(experiment)
    decision = settings.pop("decision")
    settings |= _metric_tables(experiment)
    settings |= {"texts": experiment.texts.to_json()}
    settings = {key: value for key, value in settings.items() if key not in _TEXT_KEYS or value}
    settings["decay"] = [decay.name for decay in experiment.decay]
    if experiment.items is not None:
        items = settings["items"]
        settings["items"] = {"horizon": f"{items.pop('horizon_days')}d", **items}
    guardrails = list(map(_guardrail_table, experiment.decision.guardrails))
    return {**settings, **decision, "guardrails": guardrails}


def _metric_tables(experiment: ExperimentSettings) -> dict[str, Any]:
    """Return the keys of the configuration file that define metrics; those of answer metrics only if there are any."""
    tables: dict[str, Any] = {"metrics": [metric.name for metric in experiment.metrics if not metric.is_guardrail_only]}
    if experiment.answer_metrics:
        tables["ranges"] = {
            metric.name: [metric.least, metric.most]
            for metric in experiment.answer_metrics
            if metric.is_capped or metric.measure == "score"
        }
        tables["silence"] = {
            metric.name: metric.silence for metric in experiment.answer_metrics if metric.silence is not None
        }
        tables["lower_is_better"] = [metric.name for metric in experiment.answer_metrics if metric.lower_is_better]
    return tables


def _table(record: Any) -> dict[str, Any]:
    """Return the fields of a record as keys of the configuration file."""
    pairs = ((field.name, getattr(record, field.name)) for field in fields(record))
    return dict(_entry(name, value) for name, value in pairs if value is not None)


def _entry(name: str, value: Any) -> tuple[str, Any]:
    key = name.removesuffix(_SUFFIX)
    if key == name:
        return name, _plain(value)
    return key, format_timestamp(value) if key in _INSTANTS else describe_duration(value)


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return _table(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(member) for key, member in value.items()}
    if isinstance(value, frozenset):
        return f"{len(value)} items"
    return [_plain(member) for member in value] if isinstance(value, tuple) else value


def _guardrail_table(guardrail: GuardrailSettings) -> dict[str, Any]:
    margin_key = "relative_margin" if guardrail.is_relative else "margin"
    table = {
        "metric": guardrail.metric,
        "harmful_direction": guardrail.harmful_direction,
        margin_key: guardrail.margin,
        "timeout_ms": guardrail.timeout_ms,
    }
    return {key: value for key, value in table.items() if value is not None}
