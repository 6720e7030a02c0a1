"""Paths of the field mapping, such as `payload.hits[0].id` or `$headers.type`: text → steps."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, cast, get_args

PathRoot = Literal[
    "value", "element", "index", "envelope", "headers", "key", "timestamp", "topic", "partition", "offset"
]
"""Where a path begins; in the text with a $, and "value" (the message's own fields) if there is none."""


@dataclass(frozen=True, slots=True)
class Lookup:
    """The first object of a list whose member `key` is the text `value`, as in `attributes[key="name"]`."""

    key: str
    value: str


@dataclass(frozen=True, slots=True)
class AllElements:
    """All elements of a list, written `[*]`."""


ALL_ELEMENTS: Final = AllElements()
Step: TypeAlias = "str | int | Lookup | AllElements"
"""The name of a member, the index of an element (negative from the end), a lookup, or every element."""


@dataclass(frozen=True, slots=True)
class Path:
    """A place in a message or in its metadata."""

    text: str
    """The path as in the configuration."""
    root: PathRoot
    steps: tuple[Step, ...] = ()

    @property
    def has_every(self) -> bool:
        """Whether the path has several values."""
        return ALL_ELEMENTS in self.steps

    @property
    def depends_on_element(self) -> bool:
        """Whether the value differs between the elements of `each`."""
        return self.root in ("element", "index")


_ROOTS: Final = get_args(PathRoot)
_ROOTS_WITHOUT_STEPS: Final = frozenset({"index", "timestamp", "topic", "partition", "offset"})
_NAME: Final = r'[^\s."\[\]=$][^\s."\[\]=]*'
_QUOTED: Final = r'"(?:[^"\\]|\\.)*"'
_ROOT: Final = re.compile(r"\$([a-z]+)")
_MEMBER: Final = re.compile(rf"{_NAME}|{_QUOTED}")
_BRACKET: Final = re.compile(
    rf"\[(?:(?P<index>-?[0-9]{{1,6}})|(?P<every>\*)|(?P<key>{_NAME}|{_QUOTED})=(?P<value>{_QUOTED}))\]"
)


def parse_path(text: str) -> Path:
    """Return the path; raises ValueError with the expectation if the text is not a path.

    >>> parse_path('payload."doc.id"[0]').steps
    ('payload', 'doc.id', 0)
    >>> parse_path("$headers.ce_type")
    Path(text='$headers.ce_type', root='headers', steps=('ce_type',))
    """
    root_match = _ROOT.match(text)
    if root_match is None:
        return Path(text, "value", _parse_steps(text, 0, is_first=True))
    root = root_match[1]
    if root not in _ROOTS:
        raise ValueError(f"one of {', '.join(f'${name}' for name in _ROOTS)} after the $")
    if root == "headers":
        name = text[root_match.end() :]
        if len(name) < len(".x") or name[0] != ".":
            raise ValueError("the name of a header, as in $headers.NAME")
        return Path(text, "headers", (_unquote(name[1:]),))
    steps = _parse_steps(text, root_match.end(), is_first=False)
    if steps and root in _ROOTS_WITHOUT_STEPS:
        raise ValueError(f"nothing after ${root}")
    if root == "envelope" and not steps:
        raise ValueError("the name of an attribute, as in $envelope.NAME")
    return Path(text, cast(PathRoot, root), steps)


def member_text(name: str) -> str:
    r"""Return the name of a member as in a path, in quotes if necessary.

    >>> print(member_text("id"), member_text("doc.id"))
    id "doc.id"
    """
    if re.fullmatch(_NAME, name):
        return name
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _parse_steps(text: str, position: int, *, is_first: bool) -> tuple[Step, ...]:
    steps: list[Step] = []
    while position < len(text) or is_first:
        bracket = _BRACKET.match(text, position)
        if bracket is not None:
            position = bracket.end()
            if bracket["index"] is not None:
                steps.append(int(bracket["index"]))
            elif bracket["every"] is not None:
                steps.append(ALL_ELEMENTS)
            else:
                steps.append(Lookup(_unquote(bracket["key"]), _unquote(bracket["value"])))
        else:
            has_dot = text.startswith(".", position)
            member = _MEMBER.match(text, position + has_dot) if has_dot != is_first else None
            if member is None:
                raise ValueError(_PATH_FORM)
            position = member.end()
            if member[0].isdecimal() or member[0] == "*":
                raise ValueError(f"an index in brackets, as in hits[{member[0]}], or the name in quotes")
            steps.append(_unquote(member[0]))
        is_first = False
    return tuple(steps)


_PATH_FORM: Final = 'a path such as payload.id, "name.with.dots".id, hits[0].id, attributes[key="name"].value or $key'


def is_plain_name(name: str) -> bool:
    """Return whether a path may contain the name of a member without quotes."""
    return re.fullmatch(_NAME, name) is not None and not name.isdecimal() and name != "*"


def dotted_members(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (path, value) of all members of a table: an unquoted key with dots is a table in a table.

    >>> list(dotted_members({"user": {"role": ["teacher"]}}))
    [('user.role', ['teacher'])]
    """
    for name, value in table.items():
        step = name if not prefix or is_plain_name(name) else json.dumps(name, ensure_ascii=False)
        if isinstance(value, dict) and value:
            yield from dotted_members(value, f"{prefix}{step}.")
        else:
            yield prefix + step, value


def _unquote(text: str) -> str:
    r"""Return a name without its quotes: `"a\"b"` → `a"b`."""
    return re.sub(r"\\(.)", r"\1", text[1:-1]) if text.startswith('"') and text.endswith('"') and text != '"' else text
