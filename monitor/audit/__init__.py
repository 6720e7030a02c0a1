"""Whether the stored aggregates are what the stored rows say."""

from __future__ import annotations

from monitor.audit.command import add_arguments, run
from monitor.audit.recount import Difference, Findings, audit

__all__ = ["Difference", "Findings", "add_arguments", "audit", "run"]
