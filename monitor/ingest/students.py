"""Rows of students: what responses mean for those who were shown them → changed rows and differences."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import final

from mypy_extensions import i64

from monitor.engine.accumulator import Accumulator
from monitor.engine.row_codec import encode_student, is_unwritten, next_version, read_student, unwritten
from monitor.engine.student import Student
from monitor.ingest.cache import Cache, end_batch
from monitor.ingest.experiment import Experiment
from monitor.ingest.shown import CATEGORY, EXPERIMENT, MARK, MS, SUMS, VARIANT, Shown
from monitor.store import Commit, RedisStore


@final
class Looked:
    """What was shown, and the rows of those whom it was shown to: some are still to be read."""

    __slots__ = ("asked", "found", "missing", "shown")

    def __init__(self, shown: Shown) -> None:
        """Begin with no rows."""
        self.shown = shown
        self.found: dict[int, dict[bytes, tuple[Student, list[int]]]] = {}
        """Experiment number → hash of a student → the student, and the places of what is about the student."""
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
        for at, name in enumerate(shown.names):
            number, mark = numbers[begin + EXPERIMENT], numbers[begin + MARK]
            begin = shown.ends[at]
            if number != known:
                known = number
                students = self._students[number]
                found = looked.found.setdefault(number, {})
            pair = found.get(name)
            if pair is not None:
                pair[1].append(at)
                continue
            student = students.get(name)
            if student is None:
                student = Student(self._experiments[number].sums_width, version=unwritten(mark))
                student.name = name
                students.put(name, student)
                looked.missing.append(student)
                keys.append(self._prefixes[number] + name)
            found[name] = student, [at]
        looked.asked = self._store.ask_rows(keys)
        return looked

    def apply(self, looked: Looked, tallies: dict[int, Accumulator], commit: Commit) -> None:
        """Append to the commit what becomes of the students' rows, and to the tallies what that changes in turn.

        The order of what was shown does not matter.
        """
        for student, stored in zip(looked.missing, looked.asked(), strict=True):
            if stored is not None:
                read_student(student, stored)
        shown = looked.shown
        changed, new = commit.rows, commit.new_rows
        numbers, ends = shown.numbers, shown.ends
        for number, found in looked.found.items():
            experiment = self._experiments[number]
            tally = experiment.tally_in(tallies)
            prefix = self._prefixes[number]
            for student, places in found.values():
                old = tally.state_of(student)
                for at in places:
                    begin = shown.begin(at)
                    timestamp_ms, variant = numbers[begin + MS], numbers[begin + VARIANT]
                    segment = experiment.segment_of(numbers[begin + CATEGORY])
                    sums = begin + SUMS
                    width = ends[at] - sums
                    if width == 0:
                        student.expose(timestamp_ms, variant, segment, experiment.kept_days)
                    elif width == experiment.sums_width:
                        difference = tuple([int(numbers[sums + place]) for place in range(width)])
                        student.add(timestamp_ms, variant, segment, difference, experiment.kept_days)
                    else:
                        raise ValueError(f"{width} sums of a response, expected {experiment.sums_width}")
                tally.replace_student(old, tally.state_of(student))
                rows = new if is_unwritten(student.version) else changed
                student.version = next_version(student.version)
                rows.add(prefix, student.name, encode_student(student))
        end_batch(list(self._students.values()), self._limit)
