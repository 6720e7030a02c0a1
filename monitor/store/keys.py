"""Names of everything in the store. All of a shard's names share one hash tag, so that one script may touch them.

`abm:{0}:live` is the number of the generation that counts; a rebuild fills the next one beside it. A generation's names
are `abm:{0}:`, its number, a colon, and then
    m                       hash: schema, seq (number of commits), sweeps (number), swept:<e> (ms), closed:<e>,
                            begun, run, hash key
    d                       hash: experiment → its number and definitions, as JSON
    z                       hash: number of an experiment → how long its rows may change (ms)
    o                       hash: topic:partition → next offset to apply
    w                       hash: topic:partition → the rest of its `Position`
    l                       hash: topic:partition → events that Kafka had lost before they could be applied
    r<response>             a response's row
    s<experiment><student>  a student's row
    a:<e>:<v>               all-time sums over responses       (64-bit big-endian integers)
    u:<e>:<v>               sums over students
    c:<e>:<v>:<day>         sums over the students first shown a response that day
    b:<e>:<v>:<decay>:<n>   64 time buckets
    i:<e>:<v>:<decay>       hash: chunk n → number of the commit that last changed it
    y:<e>:<v>               hash: cohort days
    k:<e>:<v>               hash: kind → reactions, and "+" kind → responses with at least one
    t                       hash: <e>:<v>:r, <e>:<v>:e → newest response, newest event (ms)
    x:<e>:<hour>            list: keys of the rows of that hour, to be swept when they can no longer change
    h                       hash: <e>:<hour> → rows noted there
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

ROOT: Final = b"abm:{0}:"
LIVE: Final = ROOT + b"live"


@dataclass(frozen=True, slots=True)
class Keys:
    """The names of one generation."""

    generation: int = 0
    prefix: bytes = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "prefix", b"%b%d:" % (ROOT, self.generation))

    @property
    def meta(self) -> bytes:
        return self.prefix + b"m"

    @property
    def definitions(self) -> bytes:
        return self.prefix + b"d"

    @property
    def horizons(self) -> bytes:
        return self.prefix + b"z"

    @property
    def offsets(self) -> bytes:
        return self.prefix + b"o"

    @property
    def progress(self) -> bytes:
        return self.prefix + b"w"

    @property
    def lost(self) -> bytes:
        return self.prefix + b"l"

    @property
    def latest(self) -> bytes:
        return self.prefix + b"t"

    @property
    def hours(self) -> bytes:
        return self.prefix + b"h"

    def row(self, response: bytes) -> bytes:
        return self.prefix + b"r" + response

    def students(self, experiment: int) -> bytes:
        return self.prefix + b"s" + experiment.to_bytes(2)

    def responses(self, experiment: int, variant: int) -> bytes:
        return b"%ba:%d:%d" % (self.prefix, experiment, variant)

    def units(self, experiment: int, variant: int) -> bytes:
        return b"%bu:%d:%d" % (self.prefix, experiment, variant)

    def cohort(self, experiment: int, variant: int, day: int) -> bytes:
        return b"%bc:%d:%d:%d" % (self.prefix, experiment, variant, day)

    def cohorts(self, experiment: int, variant: int) -> bytes:
        return b"%by:%d:%d" % (self.prefix, experiment, variant)

    def chunk(self, experiment: int, variant: int, decay: str, number: int) -> bytes:
        return b"%bb:%d:%d:%b:%d" % (self.prefix, experiment, variant, decay.encode(), number)

    def chunks(self, experiment: int, variant: int, decay: str) -> bytes:
        return b"%bi:%d:%d:%b" % (self.prefix, experiment, variant, decay.encode())

    def kinds(self, experiment: int, variant: int) -> bytes:
        return b"%bk:%d:%d" % (self.prefix, experiment, variant)

    def hour(self, experiment: str, hour: int) -> bytes:
        return b"%bx:%b:%d" % (self.prefix, experiment.encode(), hour)
