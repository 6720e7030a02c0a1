"""Simulated traffic with a declared effect.

`simulator` generates the events of a `Scenario`; `simulated_source` is a source of these events for a worker.
"""

from __future__ import annotations

from monitor.simulation.simulated_source import SimulatedSource
from monitor.simulation.simulator import (
    QualityDrop,
    Scenario,
    SimulatedEvent,
    compute_true_means,
    generate_endless_events,
    generate_events,
    render_example_config,
)

__all__ = [
    "QualityDrop",
    "Scenario",
    "SimulatedEvent",
    "SimulatedSource",
    "compute_true_means",
    "generate_endless_events",
    "generate_events",
    "render_example_config",
]
