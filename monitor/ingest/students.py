"""Rows of students: what responses mean for those who were shown them → changed rows and differences."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import final

from librt.vecs import vec
from mypy_extensions import i64

from monitor.attribution import BEFORE
from monitor.ingest.cache import Cache, end_batch
from monitor.ingest.experiment import Experiment
from monitor.ingest.shown import CATEGORY, EXPERIMENT, MARK, MS, SUMS, VARIANT, Shown
from monitor.store import Commit, RedisStore
from monitor.store.rows import is_unwritten, next_version, read_student, unwritten
from monitor.students import NEVER, Student
from monitor.tally import Tally


@final
class Looked:
    """What was shown, and the rows of those whom it was shown to: some are still to be read."""

    __slots__ = ("asked", "following", "found", "missing", "shown")

    def __init__(self, shown: Shown) -> None:
        """Begin with no rows."""
        self.shown = shown
        self.found: list[Student] = []
        """Each of them once; it knows the first and the last place there that is about it."""
        self.following = vec[i64]([-1] * len(shown))
        """Of each place the next one that is about the same student, -1 for none."""
        self.missing: list[Student] = []
        self.asked: Callable[[], list[bytes | None]] = list
        """Waits for the stored rows of those that are missing."""


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

    def look(self, shown: Shown) -> Looked:
        """Find the rows of students, and ask the store for those that are not in the cache; `apply` is next.

        When they cannot be read (`StoreUnavailable`), here or there, the cache knows half of it: see `forget`.
        """
        looked = Looked(shown)
        keys: list[bytes] = []
        known: i64 = -1
        numbers = shown.numbers
        begin: i64 = 0
        following = looked.following
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
                looked.missing.append(student)
                keys.append(self._prefixes[number] + name)
            if student.first < 0:
                student.first = at
                looked.found.append(student)
            else:
                following[student.last] = at
            student.last = at
        looked.asked = self._store.ask_rows(keys)
        return looked

    def apply(self, looked: Looked, tallies: dict[int, Tally], commit: Commit) -> None:
        """Append to the commit what becomes of the students' rows, and to the tallies what that changes in turn.

        The order of what was shown does not matter.
        """
        for student, stored in zip(looked.missing, looked.asked(), strict=True):
            if stored is not None:
                read_student(student, stored)
        shown, following = looked.shown, looked.following
        changed, new = commit.rows, commit.new_rows
        numbers, ends = shown.numbers, shown.ends
        known: i64 = -1
        for student in looked.found:
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
            rows.add(prefix, student.name, student.encode())
        end_batch(list(self._students.values()), self._limit)
