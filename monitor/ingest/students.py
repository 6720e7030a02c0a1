"""Rows of students: what responses mean for those who were shown them → changed rows and differences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

from monitor.attribution import BEFORE
from monitor.ingest.cache import Cache
from monitor.ingest.experiment import Experiment
from monitor.store import Commit, RedisStore
from monitor.store.keys import shard_of
from monitor.store.rows import read_student
from monitor.students import NEVER, Student
from monitor.tally import Tally

Shown = tuple[int, bytes, int, int, int, tuple[int, ...]]
"""(experiment number, student, ms, variant, category, difference of the student's sums): a response that was shown.

Without a difference it does not stand (another one under its id does), but has been seen.
"""


def parcels(shown: list[Shown], count: int) -> dict[int, list[Shown]]:
    """Return what was shown to the students of each of so many shards, where there are any."""
    found: dict[int, list[Shown]] = {}
    for each in shown:
        shard = shard_of(each[1], count)
        parcel = found.get(shard)
        if parcel is None:
            found[shard] = [each]
        else:
            parcel.append(each)
    return found


@final
class Students:
    """The students of one shard."""

    def __init__(self, experiments: Mapping[int, Experiment], store: RedisStore, cached: int) -> None:
        self._experiments = dict(experiments)
        self._store = store
        self._prefixes = {number: store.keys.students(number) for number in experiments}
        self._limit = cached
        self._students: dict[int, Cache[Student]] = {number: Cache() for number in experiments}

    def forget(self) -> None:
        """Drop every cached row: the store is what counts."""
        for students in self._students.values():
            students.clear()

    def apply(self, shown: list[Shown], tallies: dict[int, Tally], commit: Commit) -> None:
        """Append to the commit what becomes of the students' rows, and to the tallies what that changes in turn.

        The order of `shown` does not matter. When rows cannot be read (`StoreUnavailable`), the cache knows half of
        it: see `forget`.
        """
        found = self._load(shown)
        touched: list[Student] = []
        numbers: list[int] = []
        for at, student in enumerate(found):
            number, _, timestamp_ms, variant, category, difference = shown[at]
            experiment = self._experiments[number]
            if not student.touched:
                student.touched = True
                touched.append(student)
                numbers.append(number)
                experiment.tally_in(tallies).add_student(-1, student)
            segment = experiment.segment_of(category)
            if difference:
                student.add(timestamp_ms, variant, segment, difference, experiment.kept_days)
            else:
                student.expose(timestamp_ms, variant, segment, experiment.kept_days)
        rows = commit.rows
        for at, student in enumerate(touched):
            number = numbers[at]
            student.touched = False
            tallies[number].add_student(1, student)
            student.version += 1
            rows.append(self._prefixes[number] + student.name)
            rows.append(student.encode())
        self._age()

    def _load(self, shown: list[Shown]) -> list[Student]:
        """Return the student of each, from the cache or else from the store; a new one where there is no row."""
        found: list[Student] = []
        missing: list[Student] = []
        keys: list[bytes] = []
        for number, name, _, _, _, _ in shown:
            students = self._students[number]
            student = students.get(name)
            if student is None:
                student = Student(NEVER, BEFORE, self._experiments[number].sums_width)
                student.name = name
                students.put(name, student)
                missing.append(student)
                keys.append(self._prefixes[number] + name)
            found.append(student)
        for student, stored in zip(missing, self._store.rows(keys), strict=True):
            if stored is not None:
                read_student(student, stored)
        return found

    def _age(self) -> None:
        """Begin a new generation of all students together, if there are enough."""
        if sum([len(students) for students in self._students.values()]) > self._limit:
            for students in self._students.values():
                students.age()
