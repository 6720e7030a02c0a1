"""Sentences about names of experiments and variants in events that the configuration does not declare."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from monitor.config import Settings, similar_name
from monitor.errors import count_noun, setting_text

_MAX_NAMES: Final = 5


def describe_undeclared_names(name_counts: Mapping[tuple[str, str], int], settings: Settings) -> list[str]:
    """Return a sentence for each undeclared name, the most frequent first, with the most similar declared name.

    `name_counts` has the number of responses by (experiment, variant).
    """
    variants = {experiment.name: experiment.variants for experiment in settings.experiments}
    counts = Counter[tuple[str, str | None]]()
    for (experiment, variant), count in name_counts.items():
        if experiment in variants and variant not in variants[experiment]:
            counts[experiment, variant] += count
        elif experiment not in variants and experiment not in settings.deselected_experiments:
            counts[experiment, None] += count
    sentences = []
    for (experiment, variant_or_none), count in counts.most_common(_MAX_NAMES):
        head = f"{count_noun(count, 'response')} skipped: experiment {_quoted(experiment)}"
        if variant_or_none is None:
            sentences.append(f"{head} is not in the configuration{_suggestion(experiment, variants)}")
        else:
            suggestion = _suggestion(variant_or_none, variants[experiment])
            sentences.append(f"{head} has no variant {_quoted(variant_or_none)}{suggestion}")
    if len(counts) > _MAX_NAMES:
        sentences.append(f"{count_noun(len(counts) - _MAX_NAMES, 'further name')} of skipped responses")
    return sentences


def _suggestion(name: str, declared_names: Iterable[str]) -> str:
    names = list(declared_names)
    similar = similar_name(name, names)
    return (
        f"; declared are {', '.join(map(_quoted, names))}" if similar is None else f", did you mean {_quoted(similar)}?"
    )


def _quoted(name: str) -> str:
    return setting_text(name)
