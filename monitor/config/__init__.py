"""The settings: frozen records, read from one TOML file and the environment (docs/configuration.md)."""

from __future__ import annotations

from monitor.config.experiments import definition_differences, definitions, metric_specs
from monitor.config.loading import load_settings
from monitor.config.records import (
    DecaySpec,
    Discount,
    DisplaySettings,
    ExperimentSettings,
    Gain,
    GradeRule,
    HttpSettings,
    Ideal,
    KafkaSettings,
    LimitSettings,
    MetricSpec,
    Settings,
    StoreSettings,
)

__all__ = [
    "DecaySpec",
    "Discount",
    "DisplaySettings",
    "ExperimentSettings",
    "Gain",
    "GradeRule",
    "HttpSettings",
    "Ideal",
    "KafkaSettings",
    "LimitSettings",
    "MetricSpec",
    "Settings",
    "StoreSettings",
    "definition_differences",
    "definitions",
    "load_settings",
    "metric_specs",
]
