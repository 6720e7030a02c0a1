"""Judged responses from TREC's runs and qrels, the file formats of retrieval experiments.

The first line decides between three formats, each of which may be compressed by gzip:

- TREC's columns: query_id iteration doc_id relevance (qrels), query_id Q0 doc_id rank score run_id (runs)
- a table with a header that names the columns
- JSON lines with the names of the columns (ir_datasets' `TrecQrel` and `GenericScoredDoc`)

Grades may be fractions. Runs are ordered as in trec_eval: by score, and equal scores by doc_id in descending order. The
rank column is not used.
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
from typing import Final, Literal, TypeAlias

import msgspec

from monitor.errors import InputRejected, UsageError
from monitor.offline.metric_definitions import JudgedResponse, JudgementPools

QRELS_COLUMNS: Final = ("query_id", "iteration", "doc_id", "relevance")
RUN_COLUMNS: Final = ("query_id", "Q0", "doc_id", "rank", "score", "run_id")
_REQUIRED_COLUMNS: Final = {
    QRELS_COLUMNS: ("query_id", "doc_id", "relevance"),
    RUN_COLUMNS: ("query_id", "doc_id", "score"),
}
_DEFAULT_RATER: Final = "1"
"""The rater of qrels without raters."""

_Row: TypeAlias = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Run:
    """A TREC run: the documents of each query, best first."""

    path: str
    documents: Mapping[str, Sequence[str]]
    reordered: int
    """Queries whose rank column contradicts the scores."""

    def describe_mismatches(self, pools: JudgementPools) -> list[str]:
        """Return a sentence for each difference from the judged queries, and a sentence if ranks contradict scores."""
        judged_queries = {query for query, _ in pools}
        missing_queries, unjudged_queries = (
            judged_queries - self.documents.keys(),
            self.documents.keys() - judged_queries,
        )
        counted_mismatches = [
            (len(missing_queries), "judged queries are missing in the run, and left out (as in trec_eval without -c)"),
            (len(unjudged_queries), "queries of the run are not judged, and left out"),
            (self.reordered, "queries have ranks that contradict the scores; the scores decide (as in trec_eval)"),
        ]
        return [f"{self.path}: {count} {description}" for count, description in counted_mismatches if count]


def read_qrels(path: str, *, raters: bool) -> JudgementPools:
    """Return the judgements of a qrels file; with `raters`, the column iteration contains the name of the rater.

    Raises `UsageError` for a file that cannot be opened, `InputRejected` for the first invalid line.
    """
    pools: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for line, row in _read_rows(path, QRELS_COLUMNS):
        if raters and not row.get("iteration"):
            raise InputRejected(f"{path}:{line}: the column iteration is empty, expected the name of the rater")
        rater = row["iteration"] if raters else _DEFAULT_RATER
        grade = _parse_number(path, line, "relevance", row["relevance"])
        pool = pools[row["query_id"], rater]
        if pool.setdefault(row["doc_id"], grade) != grade:
            raise InputRejected(
                f"{path}:{line}: {row['doc_id']!r} has relevance {grade:g} for query {row['query_id']!r}, but "
                f"{pool[row['doc_id']]:g} in an earlier line; expected one value"
                f"{'' if raters else ', or --raters'}"
            )
    return dict(pools)


def read_run(path: str) -> Run:
    """Return the documents of a run file by query.

    Raises `UsageError` for a file that cannot be opened, `InputRejected` for the first invalid line.
    """
    scored: dict[str, dict[str, float]] = defaultdict(dict)
    ranked: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for line, row in _read_rows(path, RUN_COLUMNS):
        query, document = row["query_id"], row["doc_id"]
        if document in scored[query]:
            raise InputRejected(f"{path}:{line}: {document!r} occurs twice in query {query!r}, expected once")
        # trec_eval stores scores as C's float, so scores that are equal as float are a tie.
        scored[query][document] = c_float(_parse_number(path, line, "score", row["score"])).value
        if row.get("rank"):
            ranked[query].append((_parse_number(path, line, "rank", row["rank"]), document))
    order = {
        query: sorted(documents, key=lambda document: (documents[document], document), reverse=True)
        for query, documents in scored.items()
    }
    reordered = sum([document for _, document in sorted(ranks)] != order[query] for query, ranks in ranked.items())
    return Run(path, order, reordered)


def judge_runs(runs: Mapping[str, Run], pools: JudgementPools) -> list[JudgedResponse]:
    """Return a response for each variant, query and rater of the query; `runs` maps variants to runs.

    Raises `InputRejected` if a run and the judgements have no query or no document in common.
    """
    raters: dict[str, list[str]] = defaultdict(list)
    for query, rater in pools:
        raters[query].append(rater)
    responses = []
    for variant, run in runs.items():
        if not run.documents.keys() & raters.keys():
            run_query, judged_query = min(run.documents), min(raters)
            raise InputRejected(
                f"{run.path}: none of {len(run.documents)} queries is judged; expected the query_ids of the qrels, "
                f"such as {judged_query!r}, got {run_query!r}"
            )
        variant_responses = []
        for query, documents in run.documents.items():
            for rater in raters.get(query, ()):
                grades = tuple(map(pools[query, rater].get, documents))
                ranks = tuple(range(1, len(documents) + 1))
                variant_responses.append(JudgedResponse(query, rater, variant, tuple(documents), ranks, grades))
        if not any(response.is_rated for response in variant_responses):
            run_document, judged_document = variant_responses[0].items[0], next(iter(next(iter(pools.values()))))
            raise InputRejected(
                f"{run.path}: none of the documents is judged; expected the doc_ids of the qrels, such as "
                f"{judged_document!r}, got {run_document!r}"
            )
        responses += variant_responses
    return responses


def _read_rows(path: str, columns: tuple[str, ...]) -> Iterator[tuple[int, _Row]]:
    """Yield the number of each line and the values of the columns by name."""
    names: Sequence[str] = columns
    separator: str | None = None
    file_format, is_empty = "", True
    for number, text in _read_lines(path):
        if not file_format:
            file_format = _detect_format(text)
            if file_format == "header":
                separator = next((character for character in ("\t", ",") if character in text), None)
                names = _split_cells(text, separator)
                missing_names = [name for name in _REQUIRED_COLUMNS[columns] if name not in names]
                if missing_names:
                    raise InputRejected(
                        f"{path}:{number}: the column {missing_names[0]} is missing, expected "
                        f"{', '.join(_REQUIRED_COLUMNS[columns])}"
                    )
                continue
        is_empty = False
        if file_format == "json":
            yield number, _parse_json_row(path, number, text, columns)
            continue
        cells = _split_cells(text, separator)
        if len(cells) != len(names):
            raise InputRejected(f"{path}:{number}: {len(cells)} columns, expected {len(names)}: {' '.join(names)}")
        row = dict(zip(names, cells, strict=True))
        for name in ("query_id", "doc_id"):
            _check_id(path, number, name, row[name])
        yield number, row
    if is_empty:
        raise InputRejected(f"{path}: the file has no data, expected the columns {' '.join(columns)}")


def _detect_format(first_line: str) -> Literal["json", "header", "trec"]:
    if first_line.startswith("{"):
        return "json"
    words = set(first_line.replace(",", " ").replace('"', " ").split())
    return "header" if {"query_id", "doc_id"} <= words else "trec"


def _split_cells(text: str, separator: str | None) -> list[str]:
    """Return the cells of a line; without a separator, the cells are separated by white space."""
    if separator is None:
        return text.split()
    return [cell.strip() for cell in next(csv.reader([text], delimiter=separator))]


def _parse_json_row(path: str, line: int, text: str, columns: tuple[str, ...]) -> _Row:
    try:
        json_object = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InputRejected(f"{path}:{line}: the line is not JSON: {error}") from error
    required_columns = _REQUIRED_COLUMNS[columns]
    if not isinstance(json_object, dict) or any(json_object.get(name) is None for name in required_columns):
        raise InputRejected(f"{path}:{line}: expected an object with {', '.join(required_columns)}")
    for name in ("query_id", "doc_id"):
        _check_id(path, line, name, json_object[name])
    return {name: str(value) for name, value in json_object.items() if value is not None}


def _check_id(path: str, line: int, name: str, value: object) -> None:
    if not isinstance(value, str) or not value or not value.isprintable():
        raise InputRejected(f"{path}:{line}: {name} is {value!r}, expected printable text")


def _parse_number(path: str, line: int, name: str, text: str) -> float:
    try:
        # Python's float() also accepts underscores and the digits of other scripts.
        value = float(text) if text.isascii() and "_" not in text else math.nan
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputRejected(f"{path}:{line}: {name} is {text!r}, expected a finite number")
    return value


def _read_lines(path: str) -> Iterator[tuple[int, str]]:
    """Yield number (from 1) and text of each line that is not blank."""
    try:
        with Path(path).open("rb") as raw:
            is_gzip = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            number = 0
            stream = gzip.GzipFile(fileobj=raw) if is_gzip else raw
            try:
                for number, line in enumerate(stream, start=1):
                    text = line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
                    if text:
                        yield number, text
            except UnicodeDecodeError as error:
                raise InputRejected(f"{path}:{number}: the line is not UTF-8; save the file as UTF-8") from error
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                raise InputRejected(f"{path}: the file cannot be read after line {number}: {error}") from error
    except OSError as error:
        raise UsageError(f"{path}: the file cannot be read: {error.strerror}") from error
