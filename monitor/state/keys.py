"""Key names of the store.

All keys of a shard share one hash tag, so that one script may use them: `abm:{0}:…` on the first shard, see `shard_tag`
for the other shards. `abm:{0}:active` is the number of the active generation; a rebuild fills the next generation.
`abm:{0}:service` is a hash with the starts and the workers of the service, see `monitor.state.service_records`.
`abm:{0}:notified` (hash), `abm:{0}:outbox` (hash) and `abm:{0}:outbox_lease` are those of `monitor.state.outbox`. A key
of a generation is `abm:{TAG}:NUMBER:` and one of the names below. Only rows of responses and students exist in
millions, so only their names are short. No other name begins with r or s, so that a pattern can select the rows.

In the list, e is the number of an experiment, v the variant (its index, plus 128 for excluded responses), and an index
a sorted set whose score is the number of the commit that last changed the member's record.

    meta                            hash, see below
    experiments_set                 the declared experiments as JSON, see `monitor.config.declared_set` (first shard)
    definitions                     hash: experiment → JSON with its number and definitions (first shard)
    horizons                        hash: number of an experiment → how long its rows may change, in ms (first shard)
    positions                       hash: topic:partition → `Position`
    backfill_targets:e              hash: topic:partition → `Position` at which the workers have begun to count e
    backfill_positions:e            hash: topic:partition → `Position` up to which a backfill has applied records to e;
                                    its newest_ms is the time from which on the partition is complete (0: always)
    backfills                       hash: e → JSON, see `monitor.state.backfills` (first shard)
    backfill_lease:e                name of the process that backfills e (first shard)
    events_lost                     hash: topic:partition → events that Kafka deleted before they were applied;
                                    `REBUILD_LOSS_PREFIX` topic:partition → events that a rebuild did not find in Kafka;
                                    experiment/variant → responses that a rebuild did not find
    events_skipped                  hash of counts, see `monitor.state.skip_counts`
    arrivals:hour                   hash of counts of the events that arrived in an hour, see `monitor.state.arrivals`
    arrival_index                   index of hours in arrivals
    experiments_skipped             hash: field of events_skipped → name of the undeclared experiment
    variants_skipped                hash of counts, see `monitor.state.skip_counts`
    feedback_unmatched              hash: kind of feedback → reactions whose response had not arrived when they expired
    newest_times                    hash: e:v:response, e:v:event → time of the newest response or event, in ms; also
                                    times of skipped events, see `monitor.state.skip_counts`
    r<response>                     row of a response
    s<experiment><student>          row of a student
    all_time_sums:e:v               record: sums over all responses
    unit_sums:e:v                   record: sums over students
    cohort_sums:e:v:day             record: sums over students whose first response was on that day
    cohort_index:e:v                index of days in cohort_sums
    bucket_chunk:e:v:decay:n        64 time buckets, see `state.record_reader.decode_chunk`
    bucket_index:e:v:decay          index of chunks n in bucket_chunk
    traffic:e:v                     record: all traffic, see `monitor.metrics.traffic`
    traffic_hour:e:v:hour           record: traffic of one hour
    traffic_hour_index:e:v          index of hours in traffic_hour
    traffic_day:e:v:day             record: responses of a day, items by cell, responses by category
    traffic_day_index:e:v           index of days in traffic_day
    item_counts:e:v:slice:n         hash: item and kind of count, see `monitor.metrics.item_layout` → integer; n is
                                    a bucket
    item_index:e:v                  index of slices in item_counts
    item_ids:e:era:n                hash: item's hash → item's id
    item_id_index:e                 index of eras in item_ids
    bad_answers:e:day:n             hash: item, or index of a category → bad answers
    bad_answer_index:e              index of days in bad_answers
    feedback_kinds:e:v              hash: kind → reactions; + kind → responses with at least one such reaction;
                                    `UNCOUNTED_PREFIX` reason → reactions that do not count
    data_quality:e                  hash of counts, see `monitor.state.quality_counts`
    event_delays:e:v                hash: class of `DELAY_BOUNDS_MS` → events that arrived with such a delay
    expiry_rows:e:hour              list: names of the rows that expire with that hour
    expiry_moved_rows:e:hour        hash: names of rows in that list that have moved to another hour → empty text
    expiry_hours                    hash: e:hour → 1, for each list of expiry_rows
    hourly_snapshots:e              hash: hour → snapshot (`monitor.analysis.snapshots`; first shard)

Names that begin with `expiry_` have `PENDING_FEEDBACK` instead of e for feedback whose response has not arrived. A
record is a string of 64-bit big-endian integers. The fields of meta are

    schema, shards, hash_key, hash_check (the last three on the first shard only)
    experiments_version             version of the set of declared experiments under which events are decoded
    store_id                        random; differs after a reset
    run_id                          run id of the server when its append-only file was last rewritten
    commits, commits_begun          commits applied, and begun: equal unless a commit was applied in part
    expirations                     calls that have deleted rows or moved a boundary
    expired_before:e                rows of responses before this time (ms) are deleted
    student_deletions               number of deletions of an experiment's student rows that have begun
    students_deleting:e, students_deleted:e
                                    students' rows of the experiment are being deleted; are deleted

With more than one shard, a Kafka partition belongs to one shard (`shard_of_partition`). The shard stores the position
of the partition, its rows, and all sums over these rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from itertools import count
from typing import Final

from redis.crc import REDIS_CLUSTER_HASH_SLOTS as SLOTS
from redis.crc import key_slot

from monitor.errors import CorruptStore

FIRST_SHARD_PREFIX: Final = b"abm:{0}:"
ACTIVE_GENERATION_KEY: Final = FIRST_SHARD_PREFIX + b"active"
SERVICE_KEY: Final = FIRST_SHARD_PREFIX + b"service"
NOTIFIED_KEY: Final = FIRST_SHARD_PREFIX + b"notified"
OUTBOX_KEY: Final = FIRST_SHARD_PREFIX + b"outbox"
OUTBOX_LEASE_KEY: Final = FIRST_SHARD_PREFIX + b"outbox_lease"
REBUILD_LOSS_PREFIX: Final = "<"
"""Begins the fields of `StoreKeys.events_lost` that count events which a rebuild did not find in Kafka."""
UNCOUNTED_PREFIX: Final = "++"
"""Begins the fields of `StoreKeys.feedback_kinds` that count reactions which do not count: no kind begins with +."""
PENDING_FEEDBACK: Final = "pending"
"""Stands for the number of an experiment in rows of feedback whose response has not arrived."""
_SLOT_TOLERANCE: Final = 16
"""A tag's slot may be off by one sixteenth of the distance between two shards."""


@cache
def shard_tag(shard: int, shard_count: int) -> bytes:
    """Return the hash tag of a shard. The slots of the shards' tags are equally spaced, so masters get equal shares."""
    ideal_slot = key_slot(b"0") + shard * SLOTS // shard_count

    def distance(tag: int) -> int:
        offset = (key_slot(b"%d" % tag) - ideal_slot) % SLOTS
        return min(offset, SLOTS - offset)

    return b"%d" % next(tag for tag in count() if distance(tag) * shard_count * _SLOT_TOLERANCE <= SLOTS)


def shard_of_partition(partition: str, shard_count: int) -> int:
    """Return the shard of the partition `topic:number`: the number modulo the number of shards.

    Partitions with the same number, of any topic, are on the same shard. Other sources than Kafka have partitions
    without a number; these are on the first shard.

    >>> shard_of_partition("feedback:5", 3), shard_of_partition("events.jsonl", 3)
    (2, 0)
    """
    number = partition.rpartition(":")[2]
    return int(number) % shard_count if number.isdecimal() else 0


def parse_active_generation(stored: bytes | None) -> int:
    """Return the number in a value of `ACTIVE_GENERATION_KEY`; 0 for an absent value."""
    if stored is not None and not stored.isdigit():
        raise CorruptStore(
            f"the store key {ACTIVE_GENERATION_KEY.decode()}: got {stored.decode(errors='replace')!r}, expected the "
            "number of a generation. Set the key to the number of the active generation"
        )
    return int(stored or 0)


@dataclass(frozen=True, slots=True)
class StoreKeys:
    """Keys of a generation on a shard; the docstring of the module describes the values."""

    generation: int = 0
    shard: int = 0
    shard_count: int = 1
    prefix: bytes = field(init=False)

    def __post_init__(self) -> None:
        prefix = b"abm:{%b}:%d:" % (shard_tag(self.shard, self.shard_count), self.generation)
        object.__setattr__(self, "prefix", prefix)

    @property
    def meta_of_old_schema(self) -> bytes:
        """Return the key of `meta` in schemas 2 to 13, which is read to report the schema."""
        return self.prefix + b"m"

    @property
    def meta(self) -> bytes:
        return self.prefix + b"meta"

    @property
    def experiments_set(self) -> bytes:
        return self.prefix + b"experiments_set"

    @property
    def definitions(self) -> bytes:
        return self.prefix + b"definitions"

    @property
    def horizons(self) -> bytes:
        return self.prefix + b"horizons"

    @property
    def positions(self) -> bytes:
        return self.prefix + b"positions"

    def backfill_targets(self, experiment: int) -> bytes:
        return b"%bbackfill_targets:%d" % (self.prefix, experiment)

    def backfill_positions(self, experiment: int) -> bytes:
        return b"%bbackfill_positions:%d" % (self.prefix, experiment)

    @property
    def backfills(self) -> bytes:
        return self.prefix + b"backfills"

    def backfill_lease(self, experiment: int) -> bytes:
        return b"%bbackfill_lease:%d" % (self.prefix, experiment)

    @property
    def events_lost(self) -> bytes:
        return self.prefix + b"events_lost"

    @property
    def events_skipped(self) -> bytes:
        return self.prefix + b"events_skipped"

    @property
    def arrival_index(self) -> bytes:
        return self.prefix + b"arrival_index"

    def arrivals(self, hour: int) -> bytes:
        return b"%barrivals:%d" % (self.prefix, hour)

    @property
    def experiments_skipped(self) -> bytes:
        return self.prefix + b"experiments_skipped"

    @property
    def variants_skipped(self) -> bytes:
        return self.prefix + b"variants_skipped"

    @property
    def feedback_unmatched(self) -> bytes:
        return self.prefix + b"feedback_unmatched"

    @property
    def newest_times(self) -> bytes:
        return self.prefix + b"newest_times"

    @property
    def expiry_hours(self) -> bytes:
        return self.prefix + b"expiry_hours"

    def response_row(self, response: bytes) -> bytes:
        return self.prefix + b"r" + response

    def student_row_prefix(self, experiment: int) -> bytes:
        """Return the beginning of the keys of an experiment's student rows; the student's hash follows."""
        return self.prefix + b"s" + experiment.to_bytes(2)

    def all_time_sums(self, experiment: int, variant: int) -> bytes:
        return b"%ball_time_sums:%d:%d" % (self.prefix, experiment, variant)

    def unit_sums(self, experiment: int, variant: int) -> bytes:
        return b"%bunit_sums:%d:%d" % (self.prefix, experiment, variant)

    def cohort_sums(self, experiment: int, variant: int, day: int) -> bytes:
        return b"%bcohort_sums:%d:%d:%d" % (self.prefix, experiment, variant, day)

    def cohort_index(self, experiment: int, variant: int) -> bytes:
        return b"%bcohort_index:%d:%d" % (self.prefix, experiment, variant)

    def bucket_chunk(self, experiment: int, variant: int, decay: str, number: int) -> bytes:
        return b"%bbucket_chunk:%d:%d:%b:%d" % (self.prefix, experiment, variant, decay.encode(), number)

    def bucket_index(self, experiment: int, variant: int, decay: str) -> bytes:
        return b"%bbucket_index:%d:%d:%b" % (self.prefix, experiment, variant, decay.encode())

    def traffic(self, experiment: int, variant: int) -> bytes:
        return b"%btraffic:%d:%d" % (self.prefix, experiment, variant)

    def traffic_hour(self, experiment: int, variant: int, hour: int) -> bytes:
        return b"%btraffic_hour:%d:%d:%d" % (self.prefix, experiment, variant, hour)

    def traffic_hour_index(self, experiment: int, variant: int) -> bytes:
        return b"%btraffic_hour_index:%d:%d" % (self.prefix, experiment, variant)

    def traffic_day(self, experiment: int, variant: int, day: int) -> bytes:
        return b"%btraffic_day:%d:%d:%d" % (self.prefix, experiment, variant, day)

    def traffic_day_index(self, experiment: int, variant: int) -> bytes:
        return b"%btraffic_day_index:%d:%d" % (self.prefix, experiment, variant)

    def item_counts(self, experiment: int, variant: int, slice_number: int, bucket: int) -> bytes:
        return b"%bitem_counts:%d:%d:%d:%d" % (self.prefix, experiment, variant, slice_number, bucket)

    def item_index(self, experiment: int, variant: int) -> bytes:
        return b"%bitem_index:%d:%d" % (self.prefix, experiment, variant)

    def item_ids(self, experiment: int, era: int, bucket: int) -> bytes:
        return b"%bitem_ids:%d:%d:%d" % (self.prefix, experiment, era, bucket)

    def item_id_index(self, experiment: int) -> bytes:
        return b"%bitem_id_index:%d" % (self.prefix, experiment)

    def bad_answers(self, experiment: int, day: int, bucket: int) -> bytes:
        return b"%bbad_answers:%d:%d:%d" % (self.prefix, experiment, day, bucket)

    def bad_answer_index(self, experiment: int) -> bytes:
        return b"%bbad_answer_index:%d" % (self.prefix, experiment)

    def feedback_kinds(self, experiment: int, variant: int) -> bytes:
        return b"%bfeedback_kinds:%d:%d" % (self.prefix, experiment, variant)

    def event_delays(self, experiment: int, variant: int) -> bytes:
        return b"%bevent_delays:%d:%d" % (self.prefix, experiment, variant)

    def data_quality(self, experiment: int) -> bytes:
        return b"%bdata_quality:%d" % (self.prefix, experiment)

    def expiry_rows(self, experiment: str, hour: int) -> bytes:
        return b"%bexpiry_rows:%b:%d" % (self.prefix, experiment.encode(), hour)

    def expiry_moved_rows(self, experiment: str, hour: int) -> bytes:
        return b"%bexpiry_moved_rows:%b:%d" % (self.prefix, experiment.encode(), hour)

    def hourly_snapshots(self, experiment: int) -> bytes:
        return b"%bhourly_snapshots:%d" % (self.prefix, experiment)
