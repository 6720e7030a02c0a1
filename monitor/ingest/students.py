"""Rows of students: what responses mean for those who were shown them → changed rows and differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import final

from monitor.attribution import BEFORE
from monitor.ingest.cache import Cache
from monitor.ingest.experiment import Experiment
from monitor.store import Commit, RedisStore
from monitor.store.rows import VERSION_BYTES, decode_student
from monitor.students import NEVER, Student
from monitor.tally import Tally

Shown = tuple[int, bytes, int, int, int, Sequence[int]]
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

    def apply(self, shown: Sequence[Shown], tallies: dict[int, Tally], commit: Commit) -> None:
        """Append to the commit what becomes of the students' rows, and to the tallies what that changes in turn.

        The order of `shown` does not matter. When rows cannot be read (`StoreUnavailable`), the cache knows half of
        it: see `forget`.
        """
        prefixes, cached = self._prefixes, self._students
        keys = [prefixes[each[0]] + each[1] for each in shown]
        self._load(shown, keys)
        touched: dict[bytes, int] = {}
        for at, (number, _, timestamp_ms, variant, category, difference) in enumerate(shown):
            key = keys[at]
            experiment = self._experiments[number]
            segment = experiment.segment_of(category)
            student = cached.get(key)
            if key not in touched:
                touched[key] = number
                tally = tallies.get(number)
                if tally is None:
                    tally = tallies[number] = experiment.tally()
                if student is None:
                    if variant == BEFORE:
                        student = Student(NEVER, BEFORE, experiment.sums_width)
                    else:
                        student = Student(timestamp_ms, variant, experiment.sums_width, 0, segment)
                    cached.put(key, student)
                else:
                    tally.add_student(-1, student)
            assert student is not None
            if difference:
                student.add(timestamp_ms, variant, segment, difference, experiment.kept_days)
            else:
                student.expose(timestamp_ms, variant, segment, experiment.kept_days)
        for key, number in touched.items():
            student = cached.get(key)
            assert student is not None
            tallies[number].add_student(1, student)
            commit.versions += student.version.to_bytes(VERSION_BYTES)
            student.version += 1
            commit.rows += (key, student.encode())
        cached.age()

    def _load(self, shown: Sequence[Shown], keys: Sequence[bytes]) -> None:
        """Read the rows that are not remembered."""
        missing: dict[bytes, int] = {}
        for at, key in enumerate(keys):
            if self._students.get(key) is None:
                missing[key] = shown[at][0]
        wanted = list(missing)
        for at, stored in enumerate(self._store.rows(wanted)):
            if stored is not None:
                key = wanted[at]
                width = self._experiments[missing[key]].sums_width
                self._students.put(key, decode_student(stored, width))
