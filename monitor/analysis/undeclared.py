"""Undeclared experiments: experiments whose responses are skipped, because the configuration does not contain them."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from monitor.config import MAX_NAME_LENGTH, DiscoverSettings, is_name, similar_name

_CUT_MARK: Final = "…"
_MIN_DECLARED_SHARE: Final = 0.01
"""Smallest share of a variant that a suggested declaration contains. Fewer responses are probably tests, and suggested
shares are hundredths."""
_MIN_ADOPTED_RESPONSES: Final = 100
"""Smallest number of responses of an experiment that is adopted automatically. Below, shares of variants are unclear,
and the experiment may be a single developer's test."""
_MIN_VARIANTS: Final = 2


@dataclass(frozen=True, slots=True)
class UndeclaredExperiment:
    """An experiment that the configuration does not declare, and its skipped responses of all time."""

    name: str
    """At most 100 characters: see `stored_name`."""
    responses: int
    first_ms: int
    """The earliest time of a response."""
    last_ms: int
    """The latest time of a response."""
    variants: Mapping[str, int]
    """Variant → responses, largest number first."""
    other_variant_responses: int = 0
    """Responses of further variants, which are counted together."""
    similar_name: str | None = None
    """A declared experiment with a similar name, which may be meant; None without one, or if none was searched."""

    def share(self, responses: int) -> float:
        """Return a fraction of the responses with a variant, given the responses of one variant."""
        return responses / max(sum(self.variants.values()) + self.other_variant_responses, 1)

    @property
    def is_declarable(self) -> bool:
        """Whether a configuration may contain the name, and the name is not cut."""
        return _is_declarable_name(self.name)

    @property
    def declarable_variants(self) -> dict[str, int]:
        """Variant → responses, of the variants of a declaration: without rare variants and without invalid names."""
        return {
            name: responses
            for name, responses in self.variants.items()
            if _is_declarable_name(name) and self.share(responses) >= _MIN_DECLARED_SHARE
        }


def stored_name(name: str) -> str:
    """Return an undeclared name as stored: longer names are cut to 100 characters, and then end with "…".

    >>> len(stored_name("a" * 200)), stored_name("a" * 200)[-2:]
    (100, 'a…')
    """
    return name if len(name) <= MAX_NAME_LENGTH else f"{name[: MAX_NAME_LENGTH - 1]}{_CUT_MARK}"


def spelling(name: str) -> str:
    """Return a name without case, blanks and punctuation.

    >>> spelling("Ranker V2") == spelling("ranker-v2"), spelling("ranker-v1") == spelling("ranker-v2")
    (True, False)
    """
    return re.sub(r"[\W_]+", "", name).casefold()


def find_meant_name(name: str, declared_names: Collection[str]) -> str | None:
    """Return the declared name that was probably meant by an undeclared name; None without a similar name.

    Names with other digits are not similar: they are usually the next version of an experiment.

    >>> find_meant_name("Ranker V2", ["ranker-v2"]), find_meant_name("ranker-v3", ["ranker-v2"])
    ('ranker-v2', None)
    """
    digits = re.findall(r"\d", name)
    return similar_name(name, [declared for declared in declared_names if re.findall(r"\d", declared) == digits])


def auto_adoptable(
    undeclared: Sequence[UndeclaredExperiment],
    discover: DiscoverSettings,
    declared_names: Collection[str],
    already_adopted: Collection[str],
) -> list[str]:
    """Return the names of the experiments to adopt automatically, those with the most responses first.

    `declared_names` are those of all declared experiments, also of archived ones. `already_adopted` are the experiments
    that were ever adopted automatically; together with the result, they are at most `discover.auto_adopt_limit`.

    A name has to match `discover.auto_adopt`, and must not be another spelling of a declared name. At least 100
    responses and two variants are needed.
    """
    declared_spellings = set(map(spelling, declared_names))
    names = [
        experiment.name
        for experiment in sorted(undeclared, key=lambda experiment: (-experiment.responses, experiment.name))
        if experiment.is_declarable
        and discover.adopts(experiment.name)
        and spelling(experiment.name) not in declared_spellings
        and experiment.name not in already_adopted
        and experiment.responses >= _MIN_ADOPTED_RESPONSES
        and len(experiment.declarable_variants) >= _MIN_VARIANTS
    ]
    return names[: max(discover.auto_adopt_limit - len(already_adopted), 0)]


def _is_declarable_name(name: str) -> bool:
    return is_name(name) and not (len(name) == MAX_NAME_LENGTH and name.endswith(_CUT_MARK))
