"""Names of everything in the store. All of a shard's names share one hash tag, so that one script may touch them.

The first shard's tag is 0; `shard_tag` gives the others'. `abm:{0}:live` is the number of the generation that counts; a
rebuild fills the next one beside it. An index is a sorted set, by the number of the commit that last changed what it
names. A generation's names are `abm:{tag}:`, its number, a colon, and then
    m                       hash: schema, seq (number of commits), sweeps (number), swept:<e> (ms), closings (number),
                            closing:<e>, closed:<e>, begun, run, made (at random); on the first shard also hash key,
                            shards
    d                       hash: experiment → its number and definitions, as JSON (first shard)
    z                       hash: number of an experiment → how long its rows may change (ms; first shard)
    o                       hash: topic:partition → its `Position`
    l                       hash: topic:partition → events that Kafka had lost before they could be applied; with <
                            before it, those that a rebuild had to do without; <experiment>/<variant> → such responses
    S                       hash: r<hash of an experiment's name> or f<e> → events that were skipped, see
                            `monitor.state.skip_counts`
    r<response>             a response's row
    s<experiment><student>  a student's row
    a:<e>:<v>               all-time sums over responses       (64-bit big-endian integers)
    u:<e>:<v>               sums over students
    c:<e>:<v>:<day>         sums over the students first shown a response that day
    b:<e>:<v>:<decay>:<n>   64 time buckets, see `monitor.engine.row_codec`
    i:<e>:<v>:<decay>       index of chunks n
    y:<e>:<v>               index of cohort days
    g:<e>:<v>               traffic over all time, see `monitor.metrics.traffic`
    g:<e>:<v>:<hour>        the same of one hour
    e:<e>:<v>               index of hours
    v:<e>:<v>:<day>         responses of a UTC day, items shown by cell, responses by category (`metrics.traffic`)
    f:<e>:<v>               index of days
    I:<e>:<v>:<slice>:<n>   hash: item and what is counted of it (`metrics.item_layout`) → integer; n is a bucket
    J:<e>:<v>               index of slices
    B:<e>:<day>:<n>         hash: item, or place of a category → bad answers
    D:<e>                   index of days
    N:<e>:<era>:<n>         hash: item → its id
    M:<e>                   index of eras
    k:<e>:<v>               hash: kind → reactions, and "+" kind → responses with at least one
    t                       hash: <e>:<v>:r, <e>:<v>:e → newest response, newest event (ms); +<field of S>,
                            -<field of S> → newest and oldest of what was skipped (ms; the oldest less than 0)
    x:<e>:<hour>            list: keys of the rows of that hour, to be swept when they can no longer change
    X:<e>:<hour>            hash: keys of rows noted there that belonged elsewhere since → nothing
    h                       hash: <e>:<hour> → a number, at least as long as there is such a list
    U                       hash: kind of feedback → reactions whose response had not arrived when they expired
    p:<e>                   hash: hour → what was known then (`monitor.analysis.snapshots`; first shard)

With more than one shard, a Kafka partition belongs to one of them (`shard_of_partition`): its position, its rows and
all that is summed over them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from itertools import count
from typing import Final

from redis.crc import REDIS_CLUSTER_HASH_SLOTS as SLOTS
from redis.crc import key_slot

from monitor.errors import StoreOwned

ROOT: Final = b"abm:{0}:"
LIVE: Final = ROOT + b"live"
BEFORE: Final = "<"
PENDING_CLASS: Final = "p"
"""In the place of an experiment's number: rows of feedback whose response has not arrived."""
_TOLERANCE: Final = 16


@cache
def shard_tag(shard: int, shards: int) -> bytes:
    """Return the hash tag of one of the shards: their slots lie at even distances, so masters get equal shares."""
    wanted = key_slot(b"0") + shard * SLOTS // shards

    def away(tag: int) -> int:
        off = (key_slot(b"%d" % tag) - wanted) % SLOTS
        return min(off, SLOTS - off)

    return b"%d" % next(tag for tag in count() if away(tag) * shards * _TOLERANCE <= SLOTS)


def shard_of_partition(partition: str, shards: int) -> int:
    """Return the shard of `topic:number`: the number modulo the number of shards; 0 for what is no such partition.

    Partitions of one number, of any topic, are on one shard. Files and simulated traffic are on the first.

    >>> shard_of_partition("feedback:5", 3), shard_of_partition("events.jsonl", 3)
    (2, 0)
    """
    number = partition.rpartition(":")[2]
    return int(number) % shards if number.isdecimal() else 0


def live_number(stored: bytes | None) -> int:
    """Return the number of the live generation: the first one's until there was another."""
    if stored is not None and not stored.isdigit():
        raise StoreOwned(f"{LIVE.decode()} is {stored!r}, not the number of a generation")
    return int(stored or 0)


@dataclass(frozen=True, slots=True)
class Keys:
    """The names of one generation on one of its shards."""

    generation: int = 0
    shard: int = 0
    shards: int = 1
    prefix: bytes = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "prefix", b"abm:{%b}:%d:" % (shard_tag(self.shard, self.shards), self.generation))

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
    def positions(self) -> bytes:
        return self.prefix + b"o"

    @property
    def lost(self) -> bytes:
        return self.prefix + b"l"

    @property
    def skipped(self) -> bytes:
        return self.prefix + b"S"

    @property
    def latest(self) -> bytes:
        return self.prefix + b"t"

    @property
    def unmatched(self) -> bytes:
        return self.prefix + b"U"

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

    def traffic(self, experiment: int, variant: int) -> bytes:
        return b"%bg:%d:%d" % (self.prefix, experiment, variant)

    def traffic_hour(self, experiment: int, variant: int, hour: int) -> bytes:
        return b"%bg:%d:%d:%d" % (self.prefix, experiment, variant, hour)

    def traffic_hours(self, experiment: int, variant: int) -> bytes:
        return b"%be:%d:%d" % (self.prefix, experiment, variant)

    def day(self, experiment: int, variant: int, day: int) -> bytes:
        return b"%bv:%d:%d:%d" % (self.prefix, experiment, variant, day)

    def days(self, experiment: int, variant: int) -> bytes:
        return b"%bf:%d:%d" % (self.prefix, experiment, variant)

    def items(self, experiment: int, variant: int, piece: int, bucket: int) -> bytes:
        return b"%bI:%d:%d:%d:%d" % (self.prefix, experiment, variant, piece, bucket)

    def item_slices(self, experiment: int, variant: int) -> bytes:
        return b"%bJ:%d:%d" % (self.prefix, experiment, variant)

    def bad(self, experiment: int, day: int, bucket: int) -> bytes:
        return b"%bB:%d:%d:%d" % (self.prefix, experiment, day, bucket)

    def bad_days(self, experiment: int) -> bytes:
        return b"%bD:%d" % (self.prefix, experiment)

    def item_names(self, experiment: int, era: int, bucket: int) -> bytes:
        return b"%bN:%d:%d:%d" % (self.prefix, experiment, era, bucket)

    def item_eras(self, experiment: int) -> bytes:
        return b"%bM:%d" % (self.prefix, experiment)

    def hour(self, experiment: str, hour: int) -> bytes:
        return b"%bx:%b:%d" % (self.prefix, experiment.encode(), hour)

    def moved(self, experiment: str, hour: int) -> bytes:
        return b"%bX:%b:%d" % (self.prefix, experiment.encode(), hour)

    def history(self, experiment: int) -> bytes:
        return b"%bp:%d" % (self.prefix, experiment)
