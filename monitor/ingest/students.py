"""Rows of students: what responses mean for those who were shown them → changed rows and differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from monitor.attribution import Standing, Student, add_sums, expose, standing
from monitor.ingest.cache import Cache
from monitor.ingest.differences import Changes
from monitor.ingest.experiment import Experiment
from monitor.store import Commit, RedisStore
from monitor.store.rows import VERSION_BYTES, decode_student, encode_student

Shown = tuple[int, bytes, int, int, Sequence[int]]
"""(experiment number, student, ms, variant, difference of the student's sums): a response that was shown to a student.

Without a difference it does not stand (another one under its id does), but has been seen.
"""


class Students:
    """The students of one shard."""

    def __init__(self, experiments: Mapping[int, Experiment], store: RedisStore, cached: int) -> None:
        self._experiments = experiments
        self._store = store
        self._prefixes = {number: store.keys.students(number) for number in experiments}
        self._students: Cache[Student] = Cache(cached)

    def forget(self) -> None:
        """Drop every cached row: the store is what counts."""
        self._students.clear()

    def apply(self, shown: Sequence[Shown], changes: dict[int, Changes], commit: Commit) -> None:
        """Append to the commit what becomes of the students' rows, and to the changes what that changes in turn.

        The order of `shown` does not matter. When rows cannot be read (`StoreUnavailable`), the cache knows half of
        it: see `forget`.
        """
        prefixes, cached = self._prefixes, self._students
        keys = [prefixes[each[0]] + each[1] for each in shown]
        wanted = {key: self._experiments[each[0]] for key, each in zip(keys, shown, strict=True)}
        missing = [key for key in wanted if cached.get(key) is None]
        for key, stored in zip(missing, self._store.rows(missing), strict=True):
            if stored is not None:
                cached.put(key, decode_student(stored, wanted[key].layout.sums_width))
        touched: dict[bytes, tuple[Student, Standing | None]] = {}
        for key, (_, _, timestamp_ms, variant, difference) in zip(keys, shown, strict=True):
            experiment = wanted[key]
            known = touched.get(key)
            student = known[0] if known is not None else self._touch(experiment, key, timestamp_ms, variant, touched)
            days = experiment.settings.exposure_days
            if difference:
                add_sums(student, timestamp_ms, variant, difference, days)
            else:
                expose(student, timestamp_ms, variant, days)
        for number in {each[0] for each in shown} - changes.keys():
            changes[number] = Changes()
        for key, (student, before) in touched.items():
            experiment = wanted[key]
            self._count(changes[experiment.number], experiment, student, before)
            commit.versions += student.version.to_bytes(VERSION_BYTES)
            student.version += 1
            commit.rows += (key, encode_student(student))
        cached.age()

    def _touch(
        self,
        experiment: Experiment,
        key: bytes,
        timestamp_ms: int,
        variant: int,
        touched: dict[bytes, tuple[Student, Standing | None]],
    ) -> Student:
        student = self._students.get(key)
        if student is None:
            student = Student(timestamp_ms, variant, {}, {})
            self._students.put(key, student)
            touched[key] = student, None
        else:
            touched[key] = student, student.standing or standing(student, experiment.layout.sums_width)
        return student

    @staticmethod
    def _count(changes: Changes, experiment: Experiment, student: Student, before: Standing | None) -> None:
        """Replace what the student contributed before the batch by what it contributes now."""
        after = student.standing = standing(student, experiment.layout.sums_width)
        if before is not None and before.unit:
            changes.former_units.append(before.unit)
        if after.unit:
            changes.units.append(after.unit)
        if before is None or before[:3] != after[:3]:
            for sign, each in ((-1, before), (1, after)):
                if each is None:
                    continue
                changes.cohorts[each.first_variant, each.first_day] += sign
                for variant in each.variants:
                    changes.presence[variant, 0] += sign
                if len(each.variants) > 1:
                    changes.presence[each.first_variant, 1] += sign
