"""The computation per event: a batch of events → changed rows and changes of stored sums.

This package, and no other, is compiled with mypyc (deploy/native.py): every event goes through it, and it takes about a
third of the time when compiled. Without a compiler the same modules run as plain Python. Modules here import only the
core above (config, events, ranking, aggregates): they do no I/O and do not import the store or Kafka.

Exceptions to the style of the rest, for the compiler:

- `@final` classes with `__slots__` and explicit constructors instead of dataclasses: attributes become C fields.
- `i64` (mypy_extensions) for integers that are computed with: they stay machine integers. Assign to an annotated local
  before computing with an element of a list or tuple. In interpreted code `i64` is `int`.
- `while` loops with an `i64` index, and list comprehensions instead of generator expressions, in hot functions.

Sums are plain classes with named `i64` attributes and lists of integers: no arrays, and no containers of librt.
"""
