"""The glossary as data: terms, links with tooltips."""

from __future__ import annotations

import pytest

from monitor.web.glossary import TermLinks, glossary_sections, parse_glossary


def test_every_entry_has_a_definition_and_an_anchor_of_its_own() -> None:
    """A link to a term leads to one place."""
    entries = [entry for section in glossary_sections().values() for entry in section]
    assert all(entry.definition and entry.names for entry in entries)
    assert len({entry.anchor for entry in entries}) == len(entries)


def test_a_definition_over_several_lines_with_links_is_one_sentence() -> None:
    """Markup and line breaks disappear."""
    sections = parse_glossary(
        "# Glossary\n\n## Words\n\n- **[late `event`](a.md), straggler**: Came\n  after *the* end.\n"
    )
    (entry,) = sections["Words"]
    assert (entry.names, entry.definition) == (("late event", "straggler"), "Came after the end.")


def test_a_term_is_a_link_with_its_definition() -> None:
    """Under any of its names, also a name in parentheses."""
    term = TermLinks("/glossary")
    link = term("SRM", "wrong <split>")
    assert link.startswith(
        '<a class="term" href="/glossary#term-sample-ratio-mismatch-srm" data-definition="Wrong split'
    )
    assert link.endswith(">wrong &lt;split&gt;</a>")
    assert list(term.used) == ["sample-ratio-mismatch-srm"]


def test_an_unknown_term_is_an_error() -> None:
    """A misspelt term in a template fails its tests."""
    with pytest.raises(KeyError):
        TermLinks("")("confidense sequence")
