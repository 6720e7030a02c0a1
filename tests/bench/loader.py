"""A store that has seen much: rows as the worker writes them, put there without going through events.

Response n was given by student n mod students, 100 000 a day, the newest at `END_MS`; two of five have a rating. Rows
of students are the sums over theirs. Records over responses and students stay as they are.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Final

from monitor.clock import HOUR_MS
from monitor.engine import Experiment
from monitor.engine.id_hash import IdHasher
from monitor.engine.response_row import ResponseRow
from monitor.engine.row_codec import encode_response_row, encode_student_row
from monitor.engine.student import Student
from monitor.state import StoreKeys

END_MS: Final = 1_793_577_600_000
_EVERY_MS: Final = 864
ITEMS: Final = 5
CATALOGUE: Final = 500
_AT_ONCE: Final = 2000


def response_name(number: int) -> str:
    """Return the id of a loaded response."""
    return f"loaded-{number:012d}"


def videos(number: int) -> tuple[str, ...]:
    """Return the items of a loaded response."""
    return tuple(f"v-{(number + rank) % CATALOGUE}" for rank in range(ITEMS))


class Loader:
    """Puts `responses` rows of `students` students of one experiment into a store of one shard."""

    def __init__(
        self, client: Any, keys: StoreKeys, experiment: Experiment, hash_key: bytes, responses: int, students: int
    ) -> None:
        self._client = client
        self._keys = keys
        self._experiment = experiment
        self._identities = IdHasher(hash_key)
        self._responses = responses
        self._students = students
        self._variants = len(experiment.variant_keys)

    def _row(self, number: int) -> tuple[bytes, ResponseRow]:
        name, own = response_name(number), self._identities
        student = number % self._students
        at_ms = END_MS - (self._responses - number) * _EVERY_MS
        shown = videos(number)
        row = ResponseRow(
            at_ms,
            self._experiment.number << 8 | student % self._variants,
            own.hash_student(f"student-{student}"),
            own.hash_items(shown),
            version=1,
        )
        if number % 5 < 2:
            rank = number % ITEMS
            item, score = own.hash_item(shown[rank]), float(number * 7 % 5)
            row.reactions = ((at_ms + 60_000, f"{name}-0", b"", item, "rating", score),)
        return own.stored_response_id(name), row

    def rows(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield a sample of what is stored of responses, keys and values."""
        for number in random.Random(1).sample(range(self._responses), min(2000, self._responses)):
            stored, row = self._row(number)
            yield self._keys.response_row(stored), encode_response_row(row)

    def load_responses(self) -> None:
        """Write the rows of responses and their notes for the sweep."""
        notes: dict[int, list[bytes]] = defaultdict(list)
        batch: dict[bytes, bytes] = {}
        for number in range(self._responses):
            stored, row = self._row(number)
            notes[row.timestamp_ms // HOUR_MS].append(stored)
            batch[self._keys.response_row(stored)] = encode_response_row(row)
            if len(batch) == _AT_ONCE or number == self._responses - 1:
                self._write(batch, notes)
                batch, notes = {}, defaultdict(list)

    def _write(self, batch: dict[bytes, bytes], notes: dict[int, list[bytes]]) -> None:
        number = str(self._experiment.number)
        with self._client.pipeline(transaction=False) as pipeline:
            pipeline.mset(batch)
            for hour, noted in notes.items():
                pipeline.rpush(
                    self._keys.expiry_rows(number, hour), b"".join(bytes((len(key),)) + key for key in noted)
                )
                pipeline.hset(self._keys.expiry_hours, f"{number}:{hour}", 1)
            pipeline.execute()

    def students(self, first: int = 0, last: int | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Yield what is stored of students, keys and values."""
        experiment, prefix = self._experiment, self._keys.student_row_prefix(self._experiment.number)
        for number in range(first, self._students if last is None else last):
            student: Student | None = None
            for response in range(number, self._responses, self._students):
                _, row = self._row(response)
                variant = row.variant_key & 255
                if student is None:
                    student = Student(experiment.sums_width, version=1)
                sums = experiment.rules.evaluate(row).sums
                student.add_difference(row.timestamp_ms, variant, -1, sums, experiment.tracked_days)
            if student is not None:
                yield prefix + self._identities.hash_student(f"student-{number}"), encode_student_row(student)

    def load_students(self) -> None:
        """Write the rows of students."""
        batch: dict[bytes, bytes] = {}
        for key, value in self.students():
            batch[key] = value
            if len(batch) == _AT_ONCE:
                self._client.mset(batch)
                batch = {}
        if batch:
            self._client.mset(batch)
