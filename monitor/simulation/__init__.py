"""Simulated traffic with a declared effect."""

from __future__ import annotations

from monitor.simulation.simulated_source import SimulatedSource
from monitor.simulation.simulator import Drop, Scenario, SimulatedEvent, default_config, endless, generate, truth

__all__ = [
    "Drop",
    "Scenario",
    "SimulatedEvent",
    "SimulatedSource",
    "default_config",
    "endless",
    "generate",
    "truth",
]
