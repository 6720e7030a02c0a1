"""Rows of students: what responses mean for those who were shown them → changed rows and differences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

from monitor.attribution import BEFORE
from monitor.ingest.cache import Cache
from monitor.ingest.experiment import Experiment
from monitor.store import Commit, RedisStore
from monitor.store.rows import VERSION_BYTES, decode_student
from monitor.students import NEVER, Student
from monitor.tally import Tally

Shown = tuple[int, bytes, int, int, int, tuple[int, ...]]
"""(experiment number, student, ms, variant, category, difference of the student's sums): a response that was shown.

Without a difference it does not stand (another one under its id does), but has been seen.
"""


@final
class Students:
    """The students of one shard."""

    def __init__(self, experiments: Mapping[int, Experiment], store: RedisStore, cached: int) -> None:
        self._experiments = dict(experiments)
        self._store = store
        self._prefixes = {number: store.keys.students(number) for number in experiments}
        self._students: Cache[Student] = Cache(cached)

    def forget(self) -> None:
        """Drop every cached row: the store is what counts."""
        self._students.clear()

    def apply(self, shown: list[Shown], tallies: dict[int, Tally], commit: Commit) -> None:
        """Append to the commit what becomes of the students' rows, and to the tallies what that changes in turn.

        The order of `shown` does not matter. When rows cannot be read (`StoreUnavailable`), the cache knows half of
        it: see `forget`.
        """
        prefixes = self._prefixes
        touched: dict[bytes, list[int]] = {}
        for at, (number, name, _, _, _, _) in enumerate(shown):
            key = prefixes[number] + name
            places = touched.get(key)
            if places is None:
                touched[key] = [at]
            else:
                places.append(at)
        students = self._load(shown, touched)
        for key, places in touched.items():
            number = shown[places[0]][0]
            experiment = self._experiments[number]
            kept_days = experiment.kept_days
            tally = tallies.get(number)
            if tally is None:
                tally = tallies[number] = experiment.tally()
            student = students[key]
            tally.add_student(-1, student)
            for at in places:
                _, _, timestamp_ms, variant, category, difference = shown[at]
                segment = experiment.segment_of(category)
                if difference:
                    student.add(timestamp_ms, variant, segment, difference, kept_days)
                else:
                    student.expose(timestamp_ms, variant, segment, kept_days)
            tally.add_student(1, student)
            commit.versions += student.version.to_bytes(VERSION_BYTES, "big")
            student.version += 1
            commit.rows += (key, student.encode())
        self._students.age()

    def _load(self, shown: list[Shown], touched: dict[bytes, list[int]]) -> dict[bytes, Student]:
        """Return the students, from the cache and, for the rest, from the store; new ones where there is no row."""
        cached = self._students
        students: dict[bytes, Student] = {}
        missing = []
        for key in touched:
            student = cached.get(key)
            if student is None:
                missing.append(key)
            else:
                students[key] = student
        for key, stored in zip(missing, self._store.rows(missing), strict=True):
            width = self._experiments[shown[touched[key][0]][0]].sums_width
            student = Student(NEVER, BEFORE, width) if stored is None else decode_student(stored, width)
            students[key] = student
            cached.put(key, student)
        return students
