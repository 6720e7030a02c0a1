"""Runs and qrels, the files in which retrieval experiments are exchanged → judged responses.

Three forms, .gz too, told apart by the first line: TREC's columns (qrels: query_id iteration doc_id relevance; run:
query_id Q0 doc_id rank score run_id), a table whose header names the columns, and JSON lines with the same names
(ir_datasets' `TrecQrel` and `GenericScoredDoc`). Grades may be fractions.

A run is ordered as trec_eval orders it: by score, the larger doc_id first among equals; the rank column is not used.
"""

from __future__ import annotations

import csv
import gzip
import math
import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from ctypes import c_float
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from monitor.errors import InputRefused, UsageError
from monitor.offline.metric_definitions import JudgedResponse, Pools

QRELS: Final = ("query_id", "iteration", "doc_id", "relevance")
RUN: Final = ("query_id", "Q0", "doc_id", "rank", "score", "run_id")
_NAMED: Final = {QRELS: ("query_id", "doc_id", "relevance"), RUN: ("query_id", "doc_id", "score")}
_ONE: Final = "1"
"""Who judged, where nobody says so."""

_Row: TypeAlias = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Run:
    """A run: each query's documents, best first."""

    path: str
    documents: Mapping[str, Sequence[str]]
    reordered: int
    """Queries whose rank column says something else than their scores."""

    def remarks(self, pools: Pools) -> list[str]:
        """Return what whoever compares numbers should know."""
        judged = {query for query, _ in pools}
        missing, unjudged = judged - self.documents.keys(), self.documents.keys() - judged
        said = [
            (len(missing), "judged queries are not in it and enter no mean (as in trec_eval without -c)"),
            (len(unjudged), "of its queries are not judged and are left out"),
            (self.reordered, "of its queries are ranked otherwise than scored; scores count (as in trec_eval)"),
        ]
        return [f"{self.path}: {number} {what}" for number, what in said if number]


def read_qrels(path: str, *, raters: bool) -> Pools:
    """Return what was judged; with `raters`, the column iteration names who judged, otherwise it is not used.

    Raises `UsageError` for a file that cannot be opened, `InputRefused` for the first line that is wrong.
    """
    pools: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for line, row in _rows(path, QRELS):
        if raters and not row.get("iteration"):
            raise InputRefused(f"{path}:{line}: no iteration, expected the rater's name there")
        rater = row["iteration"] if raters else _ONE
        grade = _number(path, line, "relevance", row["relevance"])
        pool = pools[row["query_id"], rater]
        if pool.setdefault(row["doc_id"], grade) != grade:
            raise InputRefused(
                f"{path}:{line}: {row['doc_id']!r} has the relevance {grade:g} for query {row['query_id']!r} and had "
                f"{pool[row['doc_id']]:g}, expected one{'' if raters else ' (or --raters)'}"
            )
    return dict(pools)


def read_run(path: str) -> Run:
    """Return a run; raises as `read_qrels` does."""
    scored: dict[str, dict[str, float]] = defaultdict(dict)
    ranked: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for line, row in _rows(path, RUN):
        query, document = row["query_id"], row["doc_id"]
        if document in scored[query]:
            raise InputRefused(f"{path}:{line}: {document!r} stands twice in query {query!r}, expected once")
        # trec_eval keeps scores as C's float: what is the same there is a tie.
        scored[query][document] = c_float(_number(path, line, "score", row["score"])).value
        if row.get("rank"):
            ranked[query].append((_number(path, line, "rank", row["rank"]), document))
    order = {
        query: sorted(documents, key=lambda document: (documents[document], document), reverse=True)
        for query, documents in scored.items()
    }
    reordered = sum([document for _, document in sorted(ranks)] != order[query] for query, ranks in ranked.items())
    return Run(path, order, reordered)


def judged_runs(runs: Mapping[str, Run], pools: Pools) -> list[JudgedResponse]:
    """Return a response per variant, query and rater who judged the query; `InputRefused` if the ids do not meet."""
    raters: dict[str, list[str]] = defaultdict(list)
    for query, rater in pools:
        raters[query].append(rater)
    found = []
    for variant, run in runs.items():
        if not run.documents.keys() & raters.keys():
            mine, theirs = min(run.documents), min(raters)
            raise InputRefused(
                f"{run.path}: none of its {len(run.documents)} queries is judged (it has {mine!r}, the qrels "
                f"{theirs!r}), expected the same query_ids"
            )
        own = []
        for query, documents in run.documents.items():
            for rater in raters.get(query, ()):
                grades = tuple(map(pools[query, rater].get, documents))
                ranks = tuple(range(1, len(documents) + 1))
                own.append(JudgedResponse(query, rater, variant, tuple(documents), ranks, grades))
        if not any(response.is_rated for response in own):
            mine, theirs = own[0].items[0], next(iter(next(iter(pools.values()))))
            raise InputRefused(
                f"{run.path}: none of its documents is judged (it has {mine!r}, the qrels {theirs!r}), expected the "
                "same doc_ids"
            )
        found += own
    return found


def _rows(path: str, columns: tuple[str, ...]) -> Iterator[tuple[int, _Row]]:
    """Yield each line's number and its columns by name."""
    names: Sequence[str] = columns
    separator: str | None = None
    form, empty = "", True
    for number, text in _lines(path):
        if not form:
            form = "json" if text.startswith("{") else "header" if {"query_id", "doc_id"} <= _cells(text) else "trec"
            if form == "header":
                separator = next((each for each in ("\t", ",") if each in text), None)
                names = _split(text, separator)
                missing = [name for name in _NAMED[columns] if name not in names]
                if missing:
                    raise InputRefused(
                        f"{path}:{number}: no column {missing[0]}, expected {', '.join(_NAMED[columns])}"
                    )
                continue
        empty = False
        if form == "json":
            yield number, _object(path, number, text, columns)
            continue
        cells = _split(text, separator)
        if len(cells) != len(names):
            raise InputRefused(f"{path}:{number}: {len(cells)} columns, expected {len(names)}: {' '.join(names)}")
        row = dict(zip(names, cells, strict=True))
        for name in ("query_id", "doc_id"):
            _check_id(path, number, name, row[name])
        yield number, row
    if empty:
        raise InputRefused(f"{path}: no line, expected {' '.join(columns)}")


def _cells(text: str) -> set[str]:
    return set(text.replace(",", " ").replace('"', " ").split())


def _split(text: str, separator: str | None) -> list[str]:
    if separator is None:
        return text.split()
    return [cell.strip() for cell in next(csv.reader([text], delimiter=separator))]


def _object(path: str, line: int, text: str, columns: tuple[str, ...]) -> _Row:
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InputRefused(f"{path}:{line}: not JSON: {error}") from error
    named = _NAMED[columns]
    if not isinstance(found, dict) or any(found.get(name) is None for name in named):
        raise InputRefused(f"{path}:{line}: expected an object with {', '.join(named)}")
    for name in ("query_id", "doc_id"):
        _check_id(path, line, name, found[name])
    return {name: str(value) for name, value in found.items() if value is not None}


def _check_id(path: str, line: int, name: str, value: object) -> None:
    if not isinstance(value, str) or not value or not value.isprintable():
        raise InputRefused(f"{path}:{line}: {name} is {value!r}, expected printable text")


def _number(path: str, line: int, name: str, text: str) -> float:
    try:
        # Python takes underscores and the digits of all scripts as well.
        value = float(text) if text.isascii() and "_" not in text else math.nan
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputRefused(f"{path}:{line}: {name} is {text!r}, expected a finite number")
    return value


def _lines(path: str) -> Iterator[tuple[int, str]]:
    """Yield the lines that are not blank, with their numbers from 1."""
    try:
        with Path(path).open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            number = 0
            stream = gzip.GzipFile(fileobj=raw) if packed else raw
            try:
                for number, line in enumerate(stream, start=1):
                    text = line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
                    if text:
                        yield number, text
            except UnicodeDecodeError as error:
                raise InputRefused(f"{path}:{number}: not UTF-8") from error
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                raise InputRefused(f"{path}: after line {number}: cannot be read on: {error}") from error
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
