"""The computation per event: a batch of events → changed rows, and changes of the stored sums.

This package, and no other, is compiled with mypyc (deploy/native.py), because every event passes through this package.
Compiled code takes about a third of the time. Without a compiler the same modules run as plain Python. Modules here
import only the core (errors, clock, config, events, metrics). They do no I/O and import neither the store nor a Kafka
client; the processor receives two functions that read stored rows.

| module | content |
| --- | --- |
| decoder | `EventDecoder`: bytes of a message → `Response` or `Feedback` of monitor.events |
| normalizer | `EventNormalizer`: decoded events → `EventBatch`, with hashes instead of ids |
| attributes, exclusion_rules | `AttributeReader`: further fields of native responses; `ExclusionRules`: `exclude` |
| id_hash | `IdHasher`: keyed hashes of ids |
| processor | `BatchProcessor`: `EventBatch` → `BatchChanges`, with a cache of rows |
| batch | `BatchChanges` and its parts |
| response_row | `ResponseRow`: a response and the reactions to the response; merging of events into a row |
| grading | `GradingRules`: evaluation of a response row |
| student | `Student`: the sums of a student by variant and day |
| accumulator | `MetricAccumulator`, `TrafficAccumulator`: changes of stored sums |
| item_counts | `ItemCounter`: the item counts of a response row |
| row_codec | encoding of rows and of changes of stored vectors |
| experiment | `Experiment`: number, variant keys, rules and record layout of an experiment |

The variant of a row or record is a number: the index of its name among the sorted variant names of the experiment, plus
`EXCLUDED_VARIANT_OFFSET` for an excluded response. A variant key is experiment number · 256 + variant.

Exceptions to the style of the rest, for the compiler:

- `@final` classes with `__slots__` and explicit constructors instead of dataclasses: attributes become C fields.
- `i64` (mypy_extensions) for integers in computations: they stay machine integers. Assign an element of a list or tuple
  to an annotated local before computing with the element. In interpreted code `i64` is `int`.
- `while` loops with an `i64` index, and list comprehensions instead of generator expressions, in hot functions.

Sums are plain classes with named `i64` attributes and lists of integers.
"""

from __future__ import annotations

from monitor.engine.accumulator import PERIOD_BITS, MetricAccumulator, ResponseSums, TrafficAccumulator
from monitor.engine.batch import BatchChanges, SkippedEventCount, VariantChanges
from monitor.engine.decoder import EventDecoder, ResponseArm
from monitor.engine.exclusion_rules import ExclusionRules
from monitor.engine.experiment import Experiment
from monitor.engine.grading import GradingRules
from monitor.engine.id_hash import STUDENT_TAG_BYTES, IdHasher
from monitor.engine.item_counts import OTHER_ITEMS_HASH, ItemCounter
from monitor.engine.normalizer import EventBatch, EventNormalizer
from monitor.engine.processor import BatchProcessor
from monitor.engine.response_row import (
    CAPPED_PREFIX,
    EXCLUDED_VARIANT_OFFSET,
    MISSING,
    NO_RESPONSE,
    PRE_PERIOD_VARIANT,
    UNCOUNTED_REACTIONS,
    Contribution,
    ResponseRow,
    merge_reaction,
    merge_response,
    reaction_from_feedback,
    rounded_latency_ms,
)
from monitor.engine.row_codec import decode_response_row, decode_student_row, pack_vector_changes, unpack_vector_changes

__all__ = [
    "CAPPED_PREFIX",
    "EXCLUDED_VARIANT_OFFSET",
    "MISSING",
    "NO_RESPONSE",
    "OTHER_ITEMS_HASH",
    "PERIOD_BITS",
    "PRE_PERIOD_VARIANT",
    "STUDENT_TAG_BYTES",
    "UNCOUNTED_REACTIONS",
    "BatchChanges",
    "BatchProcessor",
    "Contribution",
    "EventBatch",
    "EventDecoder",
    "EventNormalizer",
    "ExclusionRules",
    "Experiment",
    "GradingRules",
    "IdHasher",
    "ItemCounter",
    "MetricAccumulator",
    "ResponseArm",
    "ResponseRow",
    "ResponseSums",
    "SkippedEventCount",
    "TrafficAccumulator",
    "VariantChanges",
    "decode_response_row",
    "decode_student_row",
    "merge_reaction",
    "merge_response",
    "pack_vector_changes",
    "reaction_from_feedback",
    "rounded_latency_ms",
    "unpack_vector_changes",
]
