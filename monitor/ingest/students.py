"""Rows of students: what responses mean for those who were shown them → changed rows and differences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

from librt.vecs import vec
from mypy_extensions import i64

from monitor.attribution import BEFORE
from monitor.ingest.cache import Cache
from monitor.ingest.experiment import Experiment
from monitor.ingest.shown import CATEGORY, EXPERIMENT, MARK, MS, SUMS, VARIANT, Shown
from monitor.store import Commit, RedisStore
from monitor.store.rows import is_unwritten, next_version, read_student, unwritten
from monitor.students import NEVER, Student
from monitor.tally import Tally


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

    def apply(self, shown: Shown, tallies: dict[int, Tally], commit: Commit) -> None:
        """Append to the commit what becomes of the students' rows, and to the tallies what that changes in turn.

        The order of `shown` does not matter. When rows cannot be read (`StoreUnavailable`), the cache knows half of
        it: see `forget`.
        """
        changed, new = commit.rows, commit.new_rows
        numbers, ends = shown.numbers, shown.ends
        following = vec[i64]([-1] * len(shown))
        known: i64 = -1
        for student in self._load(shown, following):
            number = numbers[shown.begin(student.first) + EXPERIMENT]
            if number != known:
                known = number
                experiment = self._experiments[number]
                tally = experiment.tally_in(tallies)
                prefix = self._prefixes[number]
            tally.note(student)
            at = student.first
            while at >= 0:
                begin = shown.begin(at)
                timestamp_ms, variant = numbers[begin + MS], numbers[begin + VARIANT]
                segment = experiment.segment_of(numbers[begin + CATEGORY])
                sums = begin + SUMS
                width = ends[at] - sums
                if width == 0:
                    student.expose(timestamp_ms, variant, segment, experiment.kept_days)
                elif width == experiment.sums_width:
                    student.add(timestamp_ms, variant, segment, numbers, sums, experiment.kept_days)
                else:
                    raise ValueError(f"{width} sums of a response, expected {experiment.sums_width}")
                at = following[at]
            tally.replace(student)
            student.first = -1
            rows = new if is_unwritten(student.version) else changed
            student.version = next_version(student.version)
            rows.append(prefix + student.name)
            rows.append(student.encode())
        self._age()

    def _load(self, shown: Shown, following: vec[i64]) -> list[Student]:
        """Return each student once, from the cache or else from the store; a new one where there is no row.

        Note what is about the same student: the first and the last place there, and in `following` those between.
        """
        found: list[Student] = []
        missing: list[Student] = []
        keys: list[bytes] = []
        known: i64 = -1
        numbers = shown.numbers
        begin: i64 = 0
        for at, name in enumerate(shown.names):
            number, mark = numbers[begin + EXPERIMENT], numbers[begin + MARK]
            begin = shown.ends[at]
            if number != known:
                known = number
                students = self._students[number]
            student = students.get(name)
            if student is None:
                student = Student(NEVER, BEFORE, self._experiments[number].sums_width, unwritten(mark))
                student.name = name
                students.put(name, student)
                missing.append(student)
                keys.append(self._prefixes[number] + name)
            if student.first < 0:
                student.first = at
                found.append(student)
            else:
                following[student.last] = at
            student.last = at
        for student, stored in zip(missing, self._store.rows(keys), strict=True):
            if stored is not None:
                read_student(student, stored)
        return found

    def _age(self) -> None:
        """Begin a new generation of all students together, if there are enough."""
        if sum([len(students) for students in self._students.values()]) > self._limit:
            for students in self._students.values():
                students.age()
