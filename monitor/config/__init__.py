"""The settings: frozen records, read from one TOML file and the environment (docs/configuration.md)."""

from __future__ import annotations

from monitor.config.decisions import decision_warnings
from monitor.config.experiments import definition_differences, definitions, metric_specs
from monitor.config.loading import load_settings
from monitor.config.records import (
    FEEDBACK,
    LATENCY,
    RATED_SHARE,
    AllocationSettings,
    Client,
    DecaySpec,
    DecisionSettings,
    Discount,
    DisplaySettings,
    DriftSettings,
    ExperimentSettings,
    Gain,
    GradeRule,
    GuardrailSettings,
    HttpSettings,
    Ideal,
    KafkaSettings,
    LimitSettings,
    MetricSpec,
    Population,
    Settings,
    StoreSettings,
    is_share,
)

__all__ = [
    "FEEDBACK",
    "LATENCY",
    "RATED_SHARE",
    "AllocationSettings",
    "Client",
    "DecaySpec",
    "DecisionSettings",
    "Discount",
    "DisplaySettings",
    "DriftSettings",
    "ExperimentSettings",
    "Gain",
    "GradeRule",
    "GuardrailSettings",
    "HttpSettings",
    "Ideal",
    "KafkaSettings",
    "LimitSettings",
    "MetricSpec",
    "Population",
    "Settings",
    "StoreSettings",
    "decision_warnings",
    "definition_differences",
    "definitions",
    "is_share",
    "load_settings",
    "metric_specs",
]
