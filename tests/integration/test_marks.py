"""Rows carry a mark, their partition's: versions are compared only where others have changed rows of the same mark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from monitor.engine.row_codec import is_unwritten, next_version, unwritten
from monitor.events import Feedback, Response
from monitor.ingest.writer import Writer
from monitor.store import Advance, Commit, Position, RedisStore, Status
from tests.integration.test_exactness import MANY, Bench
from tests.servers.redis import RedisServer
from tests.support.dump import dump
from tests.support.streams import START, taken

_KEYS = 6


@dataclass
class _Worker:
    """Commits rows as it remembers them; new ones get its mark."""

    store: RedisStore
    mark: int
    known: dict[int, int] = field(default_factory=dict)

    def recall(self, place: int) -> int:
        """Return the version of a row, read if it is not remembered."""
        if place not in self.known:
            (stored,) = self.store.rows([self.store.keys.row(b"%d" % place)])
            self.known[place] = int.from_bytes(stored[:4]) if stored is not None else unwritten(self.mark)
        return self.known[place]

    def write(self, places: Sequence[int]) -> Status:
        """Write rows anew; whatever is believed is dropped if that was refused."""
        commit = Commit()
        written = {}
        for place in places:
            before = self.recall(place)
            rows = commit.new_rows if is_unwritten(before) else commit.rows
            written[place] = next_version(before)
            rows.add(b"", self.store.keys.row(b"%d" % place), written[place].to_bytes(4) + b"row")
        status = self.store.commit(commit)
        if status == "applied":
            # That a row was not there is known until the next outcome only.
            self.known = {place: each for place, each in self.known.items() if not is_unwritten(each)} | written
        else:
            self.begin()
        return status

    def begin(self) -> None:
        self.known.clear()
        self.store.state()


def _crew(bench: Bench, marks: Sequence[int], many: int = 500) -> list[_Worker]:
    crew = [_Worker(RedisStore(bench.settings.store), mark) for mark in marks]
    for worker in crew:
        worker.store.many = many
        worker.begin()
    return crew


def _compared(bench: Bench) -> int:
    """Return how often rows were read, in a script or by anybody else."""
    told: Mapping[str, Mapping[str, int]] = bench.store.client.info("commandstats")
    return told.get("cmdstat_mget", {}).get("calls", 0)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_commit_is_applied_exactly_if_all_of_its_rows_are_as_they_are_remembered(
    data: st.DataObject, redis_server: RedisServer
) -> None:
    """Whoever wrote them, whether workers give marks of their own or the same, and where counts begin anew."""
    bench = Bench(redis_server)
    marks = data.draw(st.lists(st.integers(1, 3), min_size=2, max_size=3), label="marks")
    crew = _crew(bench, marks, data.draw(MANY, label="many"))
    stored: dict[int, int] = {}
    for place in data.draw(st.sets(st.integers(0, _KEYS - 1)), label="written often"):
        stored[place] = 2 << 24 | (1 << 24) - 2
        bench.store.client.set(bench.store.keys.row(b"%d" % place), stored[place].to_bytes(4) + b"row")
    for _ in range(data.draw(st.integers(1, 25), label="commits")):
        worker = data.draw(st.sampled_from(crew))
        if data.draw(st.integers(0, 9)) == 0:
            worker.begin()
        places = sorted(data.draw(st.sets(st.integers(0, _KEYS - 1), max_size=3)))
        for place in data.draw(st.sets(st.integers(0, _KEYS - 1), max_size=2), label="read besides"):
            worker.recall(place)
        known = {place: worker.recall(place) for place in places}
        expected = all(
            known[place] == stored[place] if place in stored else is_unwritten(known[place]) for place in places
        )
        assert worker.write(places) == ("applied" if expected else "changed")
        if expected:
            stored |= {place: next_version(known[place]) for place in places}


def test_rows_of_ones_own_are_not_compared(store_server: RedisServer) -> None:
    """Two workers with rows of their own take turns: neither has the other's, or its own, read again."""
    bench = Bench(store_server)
    mine, other = _crew(bench, [1, 2])
    for place in (0, 1):
        assert mine.write([place]) == other.write([place + 2]) == "applied"
    before = _compared(bench)
    for _ in range(3):
        assert mine.write([0, 1]) == other.write([2, 3]) == "applied"
    assert _compared(bench) == before
    assert not mine.store.outdated()


def test_who_has_touched_a_mark_once_has_it_compared_until_beliefs_are_dropped(store_server: RedisServer) -> None:
    """What else the first one remembers of that mark may be out of date; rows that it writes next are not."""
    bench = Bench(store_server)
    mine, other = _crew(bench, [1, 2])
    assert mine.write([0, 1, 2]) == "applied"
    assert other.write([0]) == "applied"
    for _ in range(70):
        assert mine.write([1]) == "applied"
    assert mine.store.outdated()
    assert mine.write([0]) == "changed"
    assert not mine.store.outdated()
    before = _compared(bench)
    assert mine.write([2, 1]) == "applied"
    # To remember them again, and not in the script.
    assert _compared(bench) == before + 2


def test_a_row_that_was_made_anew_is_another(store_server: RedisServer) -> None:
    """Though it was written as often as the one that is remembered."""
    bench = Bench(store_server)
    mine, other = _crew(bench, [1, 2])
    assert mine.write([0, 1]) == "applied"
    assert [other.recall(1), other.write([1])] == [1 << 24 | 1, "applied"]
    bench.store.client.delete(bench.store.keys.row(b"0"))
    assert other.write([0]) == "applied"
    assert mine.write([0]) == "changed"


def _rated(number: int, score: float) -> Feedback:
    return Feedback(f"f-{number}", "r-0", START + number, "rating", None, "video-1", score)


def _answered(number: int, student: str | None = "student") -> Response:
    return Response(f"r-{number}", START, "ranker", "control", ("video-1",), None, student)


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize(
    ("events", "refused"),
    [
        ([_answered(0, None), _rated(1, 1.0), _rated(2, 5.0), _rated(3, 2.0)], 2),
        ([_answered(0), _answered(1), _answered(2), _answered(3)], 2),
    ],
    ids=["of a response", "of a student"],
)
def test_what_another_partition_brings_is_seen(
    store_server: RedisServer, events: Sequence[Response | Feedback], refused: int, shards: int
) -> None:
    """Workers of two partitions take turns, and each remembers what the other changes then."""
    whole = Bench(store_server, shards=shards)
    whole.feed([[event] for event in events])
    expected = dump(whole.shards)
    bench = Bench(store_server, shards=shards)
    writers = [bench.writer(), bench.writer()]
    seen = 0
    for turn, writer in enumerate(writers):
        writer.state([f"t:{turn}"])
    for number, event in enumerate(events):
        turn = number % 2
        step = Advance(f"t:{turn}", number // 2 or None, Position(number // 2 + 1))
        seen += _apply(bench, writers[turn], step, event, mark=turn + 1)
    assert dump(bench.shards) == expected
    # Students' rows on several shards are applied anew at once.
    assert seen == (refused if shards == 1 or isinstance(events[-1], Feedback) else 0)


def _apply(bench: Bench, writer: Writer, step: Advance, event: Response | Feedback, mark: int) -> int:
    """Apply an event of a partition whose rows get that mark; return how often that was refused."""
    refused = 0
    while writer.begin(taken(bench.intake, [event], mark), bench.late, [step])()[0] != "applied":
        refused += 1
        writer.state([step.partition])
    return refused


def test_comparing_in_vain_ends_the_later_the_less_it_helps(store_server: RedisServer) -> None:
    """What is dropped has to be read again, so where everybody changes everything it is dropped ever less often."""
    bench = Bench(store_server)
    mine, other = _crew(bench, [1, 2])
    assert mine.write([0, 1]) == "applied"
    counts = []
    for _ in range(3):
        assert other.recall(0)
        assert other.write([0]) == "applied"
        commits = 0
        while not mine.store.outdated():
            assert mine.write([1]) == "applied"
            commits += 1
        counts.append(commits)
        mine.begin()
    assert counts[1:] == [2 * counts[0], 4 * counts[0]]


@pytest.mark.parametrize("shards", [1, 3])
def test_a_writer_that_compares_often_says_that_the_state_should_be_read(
    store_server: RedisServer, shards: int
) -> None:
    """The worker does so when it looks around."""
    bench = Bench(store_server, shards=shards)
    writer = bench.writer()
    writer.state(["t:0"])
    _apply(bench, writer, Advance("t:0", None, Position(1)), _answered(0), mark=1)
    for shard in bench.shards:
        other = _Worker(shard, 1)
        other.begin()
        assert [other.write([0]), other.write([0])] == ["applied"] * 2
    assert not writer.look()[1]
    for number in range(1, 80):
        step = Advance("t:0", number, Position(number + 1))
        _apply(bench, writer, step, _rated(number, number % 5 + 0.0), mark=1)
    assert writer.look()[1]
    writer.state(["t:0"])
    assert not writer.look()[1]
