"""The settings: frozen records, read from one TOML file and the environment (docs/configuration.md)."""

from __future__ import annotations

from monitor.config.decisions import decision_warnings
from monitor.config.experiments import definition_differences, definitions, metric_specs
from monitor.config.loading import load_settings
from monitor.config.records import (
    RATED_SHARE,
    AllocationSettings,
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
    ItemSettings,
    KafkaSettings,
    LimitSettings,
    MetricSpec,
    Population,
    Settings,
    StoreSettings,
)

__all__ = [
    "RATED_SHARE",
    "AllocationSettings",
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
    "ItemSettings",
    "KafkaSettings",
    "LimitSettings",
    "MetricSpec",
    "Population",
    "Settings",
    "StoreSettings",
    "decision_warnings",
    "definition_differences",
    "definitions",
    "load_settings",
    "metric_specs",
]
