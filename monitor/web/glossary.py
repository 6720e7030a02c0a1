"""The page /glossary: the terms of docs/glossary.md, and links to a term with its definition as a tooltip."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Final

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markdown_it.tree import SyntaxTreeNode
from markupsafe import Markup

_SECTION_LEVEL: Final = "h2"


@dataclass(frozen=True, slots=True)
class GlossaryEntry:
    """A term with its definition."""

    names: tuple[str, ...]
    """The term and its other names, as in the text."""
    anchor: str
    definition: str
    """In plain text, beginning with a capital letter."""

    @property
    def title(self) -> str:
        """All names of the term."""
        return ", ".join(self.names)


def glossary_sections() -> Mapping[str, Sequence[GlossaryEntry]]:
    """Return the heading of each section of the glossary with its entries, in the order of the file."""
    return _parsed_glossary()


@cache
def _parsed_glossary() -> dict[str, list[GlossaryEntry]]:
    packaged = files("monitor.web").joinpath("glossary.md")
    in_checkout = Path(__file__).parents[2] / "docs" / "glossary.md"
    return parse_glossary((packaged if packaged.is_file() else in_checkout).read_text(encoding="utf-8"))


def parse_glossary(markdown: str) -> dict[str, list[GlossaryEntry]]:
    r"""Return the heading of each section with its entries, from list items such as `- **term, alias**: Definition.`.

    >>> parse_glossary("## Words\n- **lag**, delay: Number of *waiting* records.")["Words"]
    [GlossaryEntry(names=('lag', 'delay'), anchor='lag', definition='Number of waiting records.')]
    """
    sections: dict[str, list[GlossaryEntry]] = {}
    heading = ""
    for node in SyntaxTreeNode(MarkdownIt("commonmark").parse(markdown)).children:
        if node.tag == _SECTION_LEVEL:
            heading = _plain_text(node.children[0].children)
        elif node.type == "bullet_list":
            texts = [_plain_text(item.children[0].children[0].children) for item in node.children]
            sections.setdefault(heading, []).extend(map(_parse_entry, texts))
    return sections


def _plain_text(nodes: Sequence[SyntaxTreeNode]) -> str:
    parts = []
    for node in nodes:
        token: Token | None = node.token if node.type in {"text", "code_inline"} else None
        parts.append(
            token.content if token is not None else " " if node.type == "softbreak" else _plain_text(node.children)
        )
    return "".join(parts)


def _parse_entry(text: str) -> GlossaryEntry:
    names_text, _, definition = text.partition(": ")
    names = tuple(re.split(r"[,;] (?![^(]*\))", names_text))
    return GlossaryEntry(names, term_anchor(names[0]), definition)


def term_anchor(name: str) -> str:
    """Return the anchor of a term: its letters and digits in lower case, with hyphens between words.

    >>> term_anchor("lower bound (Wilson)")
    'lower-bound-wilson'
    """
    return re.sub(r"[^\w]+", "-", name.lower()).strip("-")


@cache
def _entries_by_name() -> dict[str, GlossaryEntry]:
    entries: dict[str, GlossaryEntry] = {}
    for section in glossary_sections().values():
        for entry in section:
            for name in _spellings(entry.names):
                entries.setdefault(name, entry)
    return entries


def _spellings(names: Sequence[str]) -> Iterator[str]:
    """Yield each name, and its parts outside and inside of parentheses."""
    for name in names:
        yield name
        yield from (part.strip() for part in re.split(r"[(),]", name) if part.strip())


class TermLinks:
    """Writes terms as links to their definitions, with the definition as a tooltip, and remembers the terms.

    `page` is the address of the glossary; empty for a document that lists its terms itself.
    """

    def __init__(self, page: str) -> None:
        self.page = page
        self.used: dict[str, GlossaryEntry] = {}
        """Anchor → entry of each term that was written so far."""

    def __call__(self, name: str, text: str | None = None) -> Markup:
        """Return a term as HTML; `text` is written instead of its name. Raises KeyError for an unknown term."""
        entry = _entries_by_name()[name]
        self.used[entry.anchor] = entry
        return Markup('<a class="term" href="{}#term-{}" data-definition="{}">{}</a>').format(
            self.page, entry.anchor, entry.definition, text or name
        )
