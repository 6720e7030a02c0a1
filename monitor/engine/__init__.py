"""The computation per event: a batch of events → changed rows and changes of stored sums.

This package, and no other, is compiled with mypyc (deploy/native.py): every event goes through it, and it takes about a
third of the time when compiled. Without a compiler the same modules run as plain Python. Modules here import only the
core above (errors, clock, config, events, ranking, aggregates, traffic, items). They do no I/O and do not import the
store or Kafka. The processor is given two functions that read stored rows.

- `Decoder`: bytes of a message → `Response` or `Feedback` of monitor.events, or a `Refusal` (decoder)
- `EventNormalizer`: decoded events → `EventBatch`, with hashes instead of ids (normalizer, id_hash)
- `BatchProcessor`: `EventBatch` → `Batch` of changes, with a cache of rows (processor, batch)
- `ResponseRow`: a response and its reactions, evaluated by `GradingRules` (response_row, grading, codec)
- `Student`: the sums of a student by variant and day (student, codec)
- `Accumulator`, `TrafficAccumulator`, `ItemCounts`: changes of stored sums (accumulator, item_counts, codec)
- `Experiment`: an experiment's number, arms, rules and layout (experiment)

Exceptions to the style of the rest, for the compiler:

- `@final` classes with `__slots__` and explicit constructors instead of dataclasses: attributes become C fields.
- `i64` (mypy_extensions) for integers that are computed with: they stay machine integers. Assign to an annotated local
  before computing with an element of a list or tuple. In interpreted code `i64` is `int`.
- `while` loops with an `i64` index, and list comprehensions instead of generator expressions, in hot functions.

Sums are plain classes with named `i64` attributes and lists of integers.
"""

from __future__ import annotations

from monitor.engine.accumulator import CELL_BITS, Accumulator, ResponseSums, TrafficAccumulator
from monitor.engine.batch import ArmChanges, Batch, SkippedEvents
from monitor.engine.decoder import Decoder
from monitor.engine.experiment import Experiment
from monitor.engine.grading import GradingRules
from monitor.engine.id_hash import TAG_BYTES, IdHasher
from monitor.engine.item_counts import OTHERS, ItemCounts
from monitor.engine.normalizer import EventBatch, EventNormalizer
from monitor.engine.processor import BatchProcessor
from monitor.engine.response_row import (
    MISSING,
    NO_RESPONSE,
    PRE_PERIOD,
    ResponseRow,
    latency_of,
    merge_reaction,
    merge_response,
    reaction_of,
)
from monitor.engine.row_codec import decode_response, decode_student, pack_runs, unpack_runs
from monitor.engine.student import Student

__all__ = [
    "CELL_BITS",
    "MISSING",
    "NO_RESPONSE",
    "OTHERS",
    "PRE_PERIOD",
    "TAG_BYTES",
    "Accumulator",
    "ArmChanges",
    "Batch",
    "BatchProcessor",
    "Decoder",
    "EventBatch",
    "EventNormalizer",
    "Experiment",
    "GradingRules",
    "IdHasher",
    "ItemCounts",
    "ResponseRow",
    "ResponseSums",
    "SkippedEvents",
    "Student",
    "TrafficAccumulator",
    "decode_response",
    "decode_student",
    "latency_of",
    "merge_reaction",
    "merge_response",
    "pack_runs",
    "reaction_of",
    "unpack_runs",
]
