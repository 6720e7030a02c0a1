"""The settings, from a TOML file and environment variables (docs/configuration.md).

- `settings`: the frozen records. `loading`: `load_settings`, which reads the file and the environment;
  `line_numbers`: the lines of its keys
- `experiments`, `criteria`: parsers of an experiment's table. `definitions`: the settings that stored sums depend on
- `sources`, `paths`: parsers of `[[kafka.sources]]` and of its paths
- `running_changes`: what a changed configuration changes in a running experiment
- `digest`: a digest of all settings
- `values`: parsers of single values. `validation`: checks of settings that depend on each other
"""

from __future__ import annotations

from monitor.config.definitions import aggregate_definitions, definition_differences
from monitor.config.digest import config_digest, mapping_digest
from monitor.config.experiments import MAX_GAIN, MAX_NAME_LENGTH, experiment_warnings, parse_metric_specs
from monitor.config.loading import load_settings, parse_settings
from monitor.config.paths import Lookup, Path, Step, member_text
from monitor.config.running_changes import (
    ChangeKind,
    carry_allocations,
    describe_allocation_changes,
    describe_criteria_changes,
)
from monitor.config.settings import (
    ACTIVITY_METRICS,
    FEEDBACK_METRIC_PREFIX,
    LATENCY_ABOVE_PREFIX,
    LATENCY_METRIC,
    NO_CATEGORY,
    OTHER_CATEGORY,
    RATED_SHARE_METRIC,
    RESPONSES_METRIC,
    RETURN_DAYS_METRIC,
    AllocationSettings,
    DecaySpec,
    DecisionSettings,
    DisplaySettings,
    DriftSettings,
    EnvelopeMode,
    EventType,
    ExperimentSettings,
    FieldMapping,
    FieldValue,
    GradeRule,
    GuardrailSettings,
    HttpSettings,
    ItemSettings,
    ItemsMapping,
    KafkaClientName,
    KafkaSettings,
    LimitSettings,
    MetricSpec,
    NamedDiscount,
    NamedGain,
    NdcgIdeal,
    Population,
    SchemaRegistrySettings,
    Settings,
    SourceSettings,
    StoreSettings,
    WireFormat,
    is_proportion,
)
from monitor.config.sources import event_fields, native_fields, value_text
from monitor.config.values import parse_choice, parse_instant_ms, parse_integer, read_lines, similar_name

__all__ = [
    "ACTIVITY_METRICS",
    "FEEDBACK_METRIC_PREFIX",
    "LATENCY_ABOVE_PREFIX",
    "LATENCY_METRIC",
    "MAX_GAIN",
    "MAX_NAME_LENGTH",
    "NO_CATEGORY",
    "OTHER_CATEGORY",
    "RATED_SHARE_METRIC",
    "RESPONSES_METRIC",
    "RETURN_DAYS_METRIC",
    "AllocationSettings",
    "ChangeKind",
    "DecaySpec",
    "DecisionSettings",
    "DisplaySettings",
    "DriftSettings",
    "EnvelopeMode",
    "EventType",
    "ExperimentSettings",
    "FieldMapping",
    "FieldValue",
    "GradeRule",
    "GuardrailSettings",
    "HttpSettings",
    "ItemSettings",
    "ItemsMapping",
    "KafkaClientName",
    "KafkaSettings",
    "LimitSettings",
    "Lookup",
    "MetricSpec",
    "NamedDiscount",
    "NamedGain",
    "NdcgIdeal",
    "Path",
    "Population",
    "SchemaRegistrySettings",
    "Settings",
    "SourceSettings",
    "Step",
    "StoreSettings",
    "WireFormat",
    "aggregate_definitions",
    "carry_allocations",
    "config_digest",
    "definition_differences",
    "describe_allocation_changes",
    "describe_criteria_changes",
    "event_fields",
    "experiment_warnings",
    "is_proportion",
    "load_settings",
    "mapping_digest",
    "member_text",
    "native_fields",
    "parse_choice",
    "parse_instant_ms",
    "parse_integer",
    "parse_metric_specs",
    "parse_settings",
    "read_lines",
    "similar_name",
    "value_text",
]
