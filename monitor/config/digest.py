"""The digest of a configuration, by which operators see whether all workers have the same one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import fields, is_dataclass, replace
from hashlib import blake2b
from typing import Any, Final

from monitor.config.display_texts import NO_TEXTS
from monitor.config.settings import ExperimentSettings, HttpSettings, KafkaSettings, Settings

_DIGEST_BYTES: Final = 6
_TEXT_DEFAULTS: Final[Mapping[str, object]] = {"owner": "", "hypothesis": "", "link": "", "texts": NO_TEXTS}
"""Texts of an experiment that do not count while they are absent, as in digests of versions without these keys."""


def config_digest(settings: Settings) -> str:
    """Return 12 hexadecimal digits that differ if the settings differ.

    Secrets do not count, and neither do `kafka.group_instance_id` and `[http]`, which differ between workers.
    """
    common = replace(settings, kafka=replace(settings.kafka, group_instance_id=None), http=HttpSettings())
    text = json.dumps(_plain(common), sort_keys=True)
    return blake2b(text.encode(), digest_size=_DIGEST_BYTES).hexdigest()


def experiments_digest(experiments: Sequence[ExperimentSettings]) -> str:
    """Return hexadecimal digits that differ if the settings of experiments differ; their order does not count."""
    text = json.dumps([_plain(experiment) for experiment in sorted(experiments, key=lambda e: e.name)], sort_keys=True)
    return blake2b(text.encode(), digest_size=_DIGEST_BYTES).hexdigest()


def mapping_digest(kafka: KafkaSettings) -> str:
    """Return hexadecimal digits that differ if `[[kafka.sources]]` differ."""
    text = json.dumps(_plain(kafka.sources), sort_keys=True)
    return blake2b(text.encode(), digest_size=_DIGEST_BYTES).hexdigest()


def _plain(value: Any) -> Any:
    """Return a value of the settings in the types of JSON; fields without `repr` are secrets, and left out."""
    if is_dataclass(value):
        pairs = ((field.name, getattr(value, field.name)) for field in fields(value) if field.repr)
        return {
            name: _plain(member)
            for name, member in pairs
            if name not in _TEXT_DEFAULTS or member != _TEXT_DEFAULTS[name]
        }
    if isinstance(value, Mapping):
        return {str(key): _plain(member) for key, member in value.items()}
    if isinstance(value, AbstractSet):
        return sorted(value)
    return [_plain(member) for member in value] if isinstance(value, tuple) else value
