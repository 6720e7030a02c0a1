"""`ab-monitor rebuild` and `ab-monitor reset`: a new generation beside the live one, or nothing at all.

A rebuild reads Kafka from its beginning into the next generation, under the definitions of the configuration file,
until it has reached the positions of the live one. Then both are compared, by where they began and by their numbers,
and the live generation is switched in one write; workers of the old one stop (exit code 5) and, started again with the
same file, go on with the new one.
"""

from __future__ import annotations

import argparse
import gc
import logging
import sys
import threading
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Final

from rich.console import Console
from rich.table import Table

from monitor.app import GC_THRESHOLD, Opening, stopped_by_signals, worker_for
from monitor.clock import DAY_MS, wall_clock
from monitor.config import KafkaSettings, Settings, definition_differences
from monitor.errors import ENDED_BY, DependencyUnavailable, HistoryLost, StoreOwned, StoreUnavailable, UsageError
from monitor.export import simple_table
from monitor.pipeline import Telemetry, Worker
from monitor.sources import BEGINNING, KafkaSource, Refused, Topics, unreachable
from monitor.state import (
    BEFORE,
    ArmTotals,
    Opened,
    Position,
    Reader,
    Shards,
    drop,
    drop_everything,
    first_day,
    generation_numbers,
    live_store,
    lost_events,
    next_store,
    open_store,
    served,
    stored_experiments,
    switch,
    totals,
)

log = logging.getLogger(__name__)
_LOOK_S: Final = 1.0
_CLOCKS_MS: Final = 3_600_000
"""How far a record's time may be behind its event's: producers' clocks differ."""
_EVER: Final = 0
_NO_LIMIT: Final = 1_000_000_000
_PERIOD: Final = ("starts_at_ms", "ends_at_ms")
_LOWERS: Final = {
    "responses": _PERIOD,
    "rated responses": (*_PERIOD, "grades", "max_grade", "feedback_window_ms"),
}
"""Definitions that decide how many there are."""


class _History(KafkaSource):
    """Both topics from their beginning, by a group of its own.

    Dead letters are written of what the live generation has not read: the rest has them already.
    """

    def __init__(self, settings: Settings, generation: int, read: Mapping[str, Position]) -> None:
        kafka = settings.kafka
        super().__init__(
            replace(
                kafka,
                group_id=f"{kafka.group_id}.rebuild-{generation}",
                group_instance_id=None,
                start="earliest" if kafka.start == "latest" else kafka.start,
            )
        )
        self.read = read
        """How far the live generation is."""
        self.refused: Counter[str] = Counter()
        self.kept = 0

    def keep_refused(self, refused: Sequence[Refused]) -> None:
        unread = [each for each in refused if each.offset not in self._read_by_live(each.partition)]
        if unread:
            super().keep_refused(unread)
        self.refused.update(each.reason for each in refused)
        self.kept += len(unread)

    def _read_by_live(self, partition: str) -> range:
        held, topic = self.read.get(partition), self._described.get(partition.rpartition(":")[0])
        if held is None or topic is None or held.topic != topic.identity:
            return range(0)
        return range(held.first or 0, held.next_offset)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of `rebuild`."""
    parser.add_argument(
        "--accept-loss",
        action="store_true",
        help="switch even if Kafka no longer holds what the live generation has read",
    )
    parser.add_argument(
        "--leave-out", action="store_true", help="leave behind experiments and variants that the file does not have"
    )
    parser.add_argument("--discard", action="store_true", help="delete what an earlier rebuild has left, and stop")


def rebuild(arguments: argparse.Namespace, settings: Settings) -> int:
    """Build the next generation, compare it with the live one, and switch."""
    gc.set_threshold(GC_THRESHOLD)
    with (
        served(settings.store) as reached,
        closing(live_store(reached, as_stored=True)) as live,
        closing(next_store(live)) as building,
    ):
        for number in generation_numbers(live) - {live.live, building.generation}:
            log.info("old generation deleted number=%d keys=%d", number, drop(live, number))
        if arguments.discard:
            print(f"{drop(live, building.generation)} keys of an unfinished rebuild deleted")
            return 0
        if not arguments.leave_out:
            _check_names(live, settings, arguments.config)
        _check_topics(settings)
        opening = _opening(building, live, settings)
        ended = _filled(live, opening, settings)
        if ended:
            print("stopped; the same command goes on from here, --discard deletes what there is", file=sys.stderr)
            return ended
        lost = _compare(live, building, settings, accept_loss=arguments.accept_loss)
        if not switch(live, building, lost):
            raise StoreOwned("somebody else has switched the store meanwhile; nothing was changed")
        print(f"switched to generation {building.generation}")
        print(f"{drop(live, live.live)} keys of generation {live.live} deleted")
    return 0


def _check_names(live: Shards, settings: Settings, config: object) -> None:
    """Raise `UsageError` if the file leaves out what the live generation has responses of."""
    wanted = {each.name: each.variants for each in settings.experiments}
    left: dict[str, int] = {}
    for name, arms in totals(live).items():
        for variant, arm in arms.items():
            place = name if name not in wanted else "" if variant in wanted[name] else f"{name} / {variant}"
            if place and arm.responses:
                left[place] = left.get(place, 0) + arm.responses
    if left:
        raise UsageError(
            f"{config}: expected the live generation's experiments and variants, but it does not have "
            + ", ".join(f"{place} ({responses:,} responses)" for place, responses in left.items())
            + ". Correct it, or leave them out with --leave-out"
        )


def _check_topics(settings: Settings) -> None:
    """Raise `DependencyUnavailable` if there is nothing to read: a service would wait for its topics to be created.

    Raises `UsageError` if Kafka refuses who asks.
    """
    kafka = settings.kafka
    if trouble := unreachable(kafka):
        raise DependencyUnavailable(trouble)
    wanted = [kafka.responses_topic, kafka.feedback_topic]
    with closing(Topics(kafka)) as topics:
        found = topics.describe(wanted)
    missing = [topic for topic in wanted if topic not in found]
    if missing:
        raise DependencyUnavailable(
            f"Kafka at {kafka.bootstrap_servers}: no topic {', '.join(missing)}; a rebuild reads what is there"
        )


def _opening(building: Shards, live: Shards, settings: Settings) -> Opening:
    """Return the next generation, taken up where an interrupted rebuild left it if that had the same definitions."""
    try:
        held = _taken_up(building, settings)
    except StoreOwned as error:
        log.info("an earlier rebuild is deleted reason=%s", error)
        drop(live, building.generation)
        held = open_store(building, settings)
    return Opening(building, Reader(building, settings, held.numbers, wall_clock), held)


def _taken_up(building: Shards, settings: Settings) -> Opened:
    """Return the generation taken possession of; raises `StoreOwned` if it was begun with other experiments, too."""
    begun, wanted = set(stored_experiments(building)), {each.name for each in settings.experiments}
    if begun and begun != wanted:
        raise StoreOwned(f"it was begun with other experiments: {', '.join(sorted(begun ^ wanted))}")
    return open_store(building, settings)


def _filled(live: Shards, opening: Opening, settings: Settings) -> int:
    """Read history until the live positions are reached; return the exit code if a signal came before that, else 0."""
    source = _History(settings, opening.store.generation, live.positions())
    topics = {"response": settings.kafka.responses_topic, "feedback": settings.kafka.feedback_topic}
    limits = replace(settings.limits, max_refused_share=1.0, max_refused_run=_NO_LIMIT)
    try:
        worker = worker_for(replace(settings, limits=limits), opening, source, Telemetry(), topics, wall_clock)
        # The worker's own connection is for its thread alone.
        watched = opening.store.again()
        with stopped_by_signals(worker.stop) as signals, _watched(worker, live, watched, source, set(topics.values())):
            worker.run()
    except HistoryLost as error:
        raise HistoryLost(f"{error}. --discard deletes what was built; the command then begins anew") from error
    finally:
        source.close()
    if source.refused:
        print(_said_of_refused(source.refused, source.kept))
    return ENDED_BY + signals[0] if signals else 0


def _said_of_refused(refused: Counter[str], kept: int) -> str:
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in refused.most_common())
    said = f"{refused.total():,} messages are refused under this file ({reasons})."
    read = refused.total() - kept
    if read:
        said += (
            f" The live generation has read {read:,} of them: those that it refused, too, have their dead letters; "
            "any that it counted have none and count no more."
        )
    return said + (f" {kept:,} that it has not read have dead letters now." if kept else "")


@contextmanager
def _watched(worker: Worker, live: Shards, building: Shards, source: _History, topics: set[str]) -> Iterator[None]:
    """Stop the worker once it has reached the live positions, or the ends if those are behind them."""
    done = threading.Event()

    def look() -> None:
        while not done.wait(_LOOK_S):
            # A store that does not answer is the worker's to wait for.
            with suppress(StoreUnavailable):
                source.read = live.positions()
                target, own = _of_topics(source.read, topics), building.positions()
                behind = any(own[name].next_offset < each.next_offset for name, each in target.items() if name in own)
                if worker.waiting == 0 or (target and not behind and target.keys() <= own.keys()):
                    worker.stop()
                    return

    thread = threading.Thread(target=look, name="rebuild", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        building.close()


def _of_topics(positions: Mapping[str, Position], topics: set[str]) -> dict[str, Position]:
    return {name: each for name, each in positions.items() if name.rpartition(":")[0] in topics}


def _compare(live: Shards, building: Shards, settings: Settings, *, accept_loss: bool) -> dict[str, int]:
    """Print both generations side by side; return what the new one has to count as lost.

    Raises `HistoryLost` if it lacks what the live one has and nobody has accepted that. Fewer responses are such a lack
    if definitions do not explain them, or if offsets cannot tell.
    """
    found = losses(settings.kafka, live, building)
    fewer, counted = _table(live, building, settings), dict[str, int]()
    said = list(found.missing)
    if not said:
        for (arm, what), count in fewer.items():
            text = f"{' / '.join(arm)}: {count:,} {what} fewer"
            why = _explained(arm[0], what, live, building)
            if why and not found.unknown:
                print(f"{text}: these definitions count less: {'; '.join(why)}")
                continue
            said.append(text)
            # Of responses that are missing, some were rated.
            counted["/".join(arm)] = max(count, counted.get("/".join(arm), 0))
        if said and found.unknown:
            said[-1] += ", and where the live generation began is not known, or in another log: offsets cannot tell why"
        elif said:
            said[-1] += (
                ", although Kafka holds every offset and no definition says so: was the topic compacted, or are limits "
                "or allowed_lateness tighter?"
            )
    if said and not accept_loss:
        raise HistoryLost(
            f"{'; '.join(said)}. Nothing was switched; --accept-loss switches all the same and counts them as "
            "lost events, which makes verdicts invalid; --discard deletes what was built"
        )
    if said:
        print(f"counted as lost events: {'; '.join(said)}")
    return Counter(found.lost) + Counter(counted)


def _explained(experiment: str, what: str, live: Shards, building: Shards) -> list[str]:
    """Return the definitions that may count less of something than those of the live generation did."""
    before, after = (stored_experiments(each)[experiment]["definitions"] for each in (live, building))
    keys = _LOWERS[what]
    return definition_differences(
        experiment, *({key: value for key, value in each.items() if key in keys} for each in (before, after))
    )


def _table(live: Shards, building: Shards, settings: Settings) -> dict[tuple[tuple[str, str], str], int]:
    """Print the numbers of both; return, of what both have, (experiment, variant) and what → how many fewer."""
    before, after = totals(live), totals(building)
    newer = _newer(live, building)
    responses = newer[settings.kafka.responses_topic]
    table = simple_table("", "live", "rebuilt")
    fewer: dict[tuple[tuple[str, str], str], int] = {}
    for experiment, arms in {**before, **after}.items():
        for variant in {**arms, **before.get(experiment, {})}:
            old = before.get(experiment, {}).get(variant, ArmTotals(0, 0, {}))
            new = after.get(experiment, {}).get(variant, ArmTotals(0, 0, {}))
            _row(table, f"{experiment} / {variant}: responses", old.responses, new.responses)
            _row(table, "  rated", old.rated, new.rated)
            for metric in {**old.means, **new.means}:
                _row(table, f"  {metric}", old.means.get(metric), new.means.get(metric))
            if variant not in after.get(experiment, {}):
                # Left out, and that was asked for.
                continue
            for what, held, found, unread in (
                ("responses", old.responses, new.responses, responses),
                ("rated responses", old.rated, new.rated, newer.total()),
            ):
                if found + unread < held:
                    fewer[(experiment, variant), what] = held - found
    Console().print(table)
    return fewer


def _newer(live: Shards, building: Shards) -> Counter[str]:
    """Return, by topic, how many offsets the live generation has read beyond the new one, of the same log."""
    own, found = building.positions(), Counter[str]()
    for name, each in live.positions().items():
        if name in own and own[name].topic == each.topic:
            found[name.rpartition(":")[0]] += max(each.next_offset - own[name].next_offset, 0)
    return found


def _row(table: Table, name: str, *values: float | None) -> None:
    cells = ["–" if value is None else f"{value:.6f}" if isinstance(value, float) else f"{value:,}" for value in values]
    table.add_row(name, *cells)


@dataclass(frozen=True, slots=True)
class Losses:
    """What a rebuilt generation lacks of the live one, by the offsets where both began.

    Counts cannot say that: new events and wider definitions hide what is missing, narrower ones look like a loss.
    """

    missing: list[str]
    """What the live generation has read and the new one has not, or may not have: a sentence for each partition."""
    lost: Mapping[str, int]
    """What the new generation has to count as lost (see `Keys`) besides what it has lost itself."""
    unknown: bool
    """Whether the live one has read something that offsets say nothing of: another log, files, an older store."""


def losses(settings: KafkaSettings, live: Shards, building: Shards) -> Losses:
    """Compare where both generations began; raises `DependencyUnavailable`."""
    held, own = live.positions(), building.positions()
    same = {
        name: (first, begin)
        for name, each in held.items()
        if name in own and each.topic and each.topic == own[name].topic
        for first, begin in [(each.first, own[name].first)]
        if first is not None and begin is not None
    }
    lost, crossed = lost_events(live), lost_events(building)
    older = _older_partitions(settings, same, _first_ms(live, building))
    missing, counted = [], Counter[str]()
    for name, (first, begin) in same.items():
        before = lost.get(BEFORE + name, 0)
        gone, known = begin - first + before, lost.get(name, 0) + before
        # Where nothing that counts is gone, nobody knows that of what was lost.
        counted[BEFORE + name] = min(gone, known) if name in older else gone
        offsets = min(begin, held[name].next_offset) - first - lost.get(name, 0)
        if offsets > 0 and name not in older:
            missing.append(
                f"{name}: {offsets} offsets that the live generation has read are not there: it began at {first}, a "
                f"rebuild begins at {begin}"
            )
        if name in crossed:
            missing.append(f"{name}: {crossed[name]} offsets went while the new generation was read")
    unknown = bool(own.keys() - held.keys()) or any(
        name not in same and (each.next_offset != each.first or name in lost) for name, each in held.items()
    )
    experiments = stored_experiments(building)
    for field, count in lost.items():
        name, arm = field.removeprefix(BEFORE), "/" in field
        # Responses that were missing by their number are missing no more where offsets tell everything.
        if (unknown and name.rpartition("/")[0] in experiments) if arm else name not in same:
            counted[BEFORE + name if name in held else field] += count
    return Losses(missing, {name: count for name, count in counted.items() if count > 0}, unknown)


def _first_ms(live: Shards, building: Shards) -> int | None:
    """Return a time before the first event that counts in the live one, of what both have; None if there is none."""
    stored, wanted = stored_experiments(live), stored_experiments(building)
    definitions = [each["definitions"] for name, each in stored.items() if name in wanted]
    times = [each["starts_at_ms"] - each["pre_period_ms"] for each in definitions if each.get("pre_period_ms")]
    day = first_day(live, wanted.keys())
    times += [] if day is None else [day * DAY_MS]
    return max(min(times) - _CLOCKS_MS, _EVER) if times else None


def _older_partitions(settings: KafkaSettings, partitions: Collection[str], since_ms: int | None) -> Collection[str]:
    """Return the partitions that still have a record from before that time: retention took nothing that is as late."""
    if since_ms is None:
        return partitions
    with closing(Topics(settings)) as topics:
        begins, oldest, since = (topics.offsets(partitions, at) for at in (BEGINNING, _EVER, since_ms))
    return {name for name in partitions if _older(begins[name], oldest[name], since[name])}


def _older(begin: int, oldest: int, since: int) -> bool:
    """Return whether a record lies before the first one since a time, of which there may be none (-1).

    Brokers say -1, too, where that would be in what was deleted of a segment: then they do not find the oldest either.
    """
    return since > max(begin, oldest) or (since < 0 <= oldest)


def reset(arguments: argparse.Namespace, settings: Settings) -> int:
    """Delete everything, after asking."""
    with served(settings.store, existing=True) as reached, closing(live_store(reached, as_stored=True)) as store:
        held = totals(store)
        responses = sum(arm.responses for arms in held.values() for arm in arms.values())
        place = settings.store.url.partition("://")[2].rpartition("@")[2] or settings.store.url
        if not held:
            print(f"there is nothing of AB Monitor at {place}")
            drop_everything(store)
            return 0
        what = f"everything that AB Monitor holds at {place}: {responses:,} responses of {', '.join(held)}"
        if not arguments.yes:
            if not sys.stdin.isatty():
                raise UsageError(f"reset deletes {what}. Without a terminal to ask on, it needs --yes")
            if _answer(f"This deletes {what}. Type yes to go on: ") != "yes":
                print("nothing was deleted")
                return 0
        print(f"{drop_everything(store)} keys deleted")
    return 0


def _answer(question: str) -> str:
    try:
        return input(question).strip()
    except EOFError:
        print()
        return ""
