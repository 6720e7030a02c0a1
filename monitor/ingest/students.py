"""Rows of students: responses that were shown to them → changed rows and differences of sums.

Compiled (deploy/native.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import final

from mypy_extensions import i64

from monitor.engine.accumulator import Accumulator
from monitor.engine.row_codec import encode_student, read_student
from monitor.engine.student import Student
from monitor.ingest.batch import Exposure
from monitor.ingest.cache import Cache, end_batch
from monitor.ingest.experiment import Experiment
from monitor.store import Commit, RedisStore


@final
class Students:
    """The students of one shard."""

    def __init__(
        self, experiments: Mapping[int, Experiment], store: RedisStore, cached: int, first_version: int
    ) -> None:
        self._experiments = dict(experiments)
        self._store = store
        self._prefixes = {number: store.keys.students(number) for number in experiments}
        self._limit = cached
        self._first_version: i64 = first_version
        self._students: dict[int, Cache[Student]] = {number: Cache() for number in experiments}

    def forget(self) -> None:
        """Drop every cached row: the store is what counts."""
        for students in self._students.values():
            students.clear()

    def apply(self, exposures: Sequence[Exposure], tallies: dict[int, Accumulator], commit: Commit) -> None:
        """Append the students' changed rows to the commit, and to the tallies what that changes of sums over students.

        The order of the exposures does not matter. When rows cannot be read (`StoreUnavailable`), the cache holds half
        of the batch: see `forget`.
        """
        changes = self._read(exposures)
        for number, students in changes.items():
            experiment = self._experiments[number]
            tally = experiment.tally_in(tallies)
            prefix, kept_days = self._prefixes[number], experiment.kept_days
            for student, own in students.values():
                old = tally.state_of(student)
                for exposure in own:
                    segment = experiment.segment_of(exposure.category)
                    if exposure.difference:
                        student.add(exposure.timestamp_ms, exposure.variant, segment, exposure.difference, kept_days)
                    else:
                        student.expose(exposure.timestamp_ms, exposure.variant, segment, kept_days)
                tally.replace_student(old, tally.state_of(student))
                is_new = student.version == 0
                student.version = self._first_version if is_new else student.version + 1
                commit.add_row(prefix + student.name, encode_student(student), is_new=is_new)
        end_batch(list(self._students.values()), self._limit)

    def _read(self, exposures: Sequence[Exposure]) -> dict[int, dict[bytes, tuple[Student, list[Exposure]]]]:
        """Return, by experiment number and stored id, each student with the exposures of this batch."""
        changes: dict[int, dict[bytes, tuple[Student, list[Exposure]]]] = {}
        missing: list[Student] = []
        keys: list[bytes] = []
        for exposure in exposures:
            number, name = exposure.experiment, exposure.student
            students = changes.get(number)
            if students is None:
                students = changes[number] = {}
            entry = students.get(name)
            if entry is not None:
                entry[1].append(exposure)
                continue
            student = self._students[number].get(name)
            if student is None:
                student = Student(self._experiments[number].sums_width)
                student.name = name
                self._students[number].put(name, student)
                missing.append(student)
                keys.append(self._prefixes[number] + name)
            students[name] = student, [exposure]
        for student, stored in zip(missing, self._store.rows(keys), strict=True):
            if stored is not None:
                read_student(student, stored)
        return changes
