"""The lines of keys in a TOML file."""

from __future__ import annotations

import pytest

from monitor.config.line_numbers import find_line, read_line_numbers

TEXT = '''# a comment
[kafka]
"group_id" = """
name = 1
"""
start = 'x' # [http]

[[experiments]]
name = "a.b [c]"
metrics = [
  "dcg@5",
]
[experiments.items]
horizon = "1d"
[[experiments.guardrails]]
metric = "x"
[[experiments.guardrails]]
metric = "y"
[[experiments]]
variants = { control = 0.5, "new ranker" = 0.5 }
grades.rating = "score"
[[experiments]]
name = "a.b [c]"
unit = "group"
'''


@pytest.mark.parametrize(
    ("key", "line"),
    [
        ("kafka", 2),
        ("kafka.group_id", 3),
        ("kafka.start", 6),
        ("kafka.absent", 2),
        ("experiments.a.b [c].name", 9),
        ("experiments.a.b [c].metrics", 10),
        ("experiments.a.b [c].items.horizon", 14),
        ("experiments.a.b [c].guardrails[1].metric", 18),
        ("experiments.a.b [c].guardrails[1].margin", 17),
        ("experiments.a.b [c].control", 8),
        ("experiments[1].variants.new ranker", 20),
        ("experiments[1].grades.rating", 21),
        ("experiments[2].unit", 24),
        ("experiments.a.b [c].unit", 8),
        ("http.port", None),
        ("kafkaesque", None),
    ],
)
def test_a_key_has_its_line_or_that_of_its_table(key: str, line: int | None) -> None:
    """Headers, dotted keys, quoted keys, values over several lines, inline tables, and tables of arrays."""
    assert find_line(read_line_numbers(TEXT), key) == line
