"""Imports the libraries of the extra `schemas`, which plain JSON does not need."""

from __future__ import annotations

import importlib
from typing import Any

from monitor.errors import UsageError


def import_extra(module: str) -> Any:
    """Return a module of the extra `schemas`; raises `UsageError` if the extra is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UsageError(
            "Avro, Protobuf and the schema registry need the extra `schemas`, which is not installed "
            f"({error}). Install the extra with `pip install '.[schemas]'`, or set format to json"
        ) from error
