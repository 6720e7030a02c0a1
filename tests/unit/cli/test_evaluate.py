"""`ab-monitor evaluate`: events or runs and qrels in, tables, CSV, JSON and a page out."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
from collections.abc import Callable, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import pytrec_eval

from monitor.cli.command_line import main
from monitor.metrics import DISCOUNT_NAMES, GAIN_NAMES, dcg, ndcg

QRELS = """\
q1 0 d1 2
q1 0 d2 0.5
q1 0 d3 1
q1 0 d9 3
q2 0 d1 1
q2 0 d2 0
q3 0 d1 1
"""
OLD = """\
q1 Q0 d1 1 9.5 old
q1 Q0 d2 2 9.1 old
q1 Q0 dx 3 2 old
q2 Q0 d2 1 3 old
q2 Q0 d1 2 2 old
"""
NEW = """\
q1 Q0 d9 1 9 new
q1 Q0 d3 2 8 new
q2 Q0 d1 1 3 new
q2 Q0 d2 2 2 new
"""


class EvaluationFolder:
    """A working directory in which `evaluate` runs."""

    def __init__(self, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.path = path
        self._capsys = capsys

    def write(self, **files: str) -> None:
        """Write files by name."""
        for name, text in files.items():
            (self.path / name).write_text(text, encoding="utf-8")

    def run(self, *arguments: str, exit_code: int = 0) -> tuple[str, str]:
        """Run `evaluate` and return stdout and stderr."""
        assert main(["evaluate", *arguments]) == exit_code
        captured = self._capsys.readouterr()
        return captured.out, captured.err

    def runs(self, *arguments: str) -> dict[str, Any]:
        """Return the JSON of the runs `old` and `new`."""
        out, _ = self.run("--qrels", "qrels", "--run", "old=old", "--run", "new=new", "--json", *arguments)
        evaluation: dict[str, Any] = json.loads(out)["qrels"]
        return evaluation

    def refusal(self, *arguments: str, exit_code: int) -> str:
        """Run `evaluate` and return the error line."""
        out, err = self.run(*arguments, exit_code=exit_code)
        assert out == ""
        (line,) = err.splitlines()
        return line.removeprefix("ab-monitor: ")


@pytest.fixture
def folder(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> EvaluationFolder:
    """Return a folder with a small experiment in TREC's form."""
    monkeypatch.chdir(tmp_path)
    evaluation_folder = EvaluationFolder(tmp_path, capsys)
    evaluation_folder.write(qrels=QRELS, old=OLD, new=NEW)
    return evaluation_folder


def value(evaluation: dict[str, Any], query: str, variant: str, definition: str) -> float | None:
    """Return a query's mean."""
    (row,) = [
        query_row
        for query_row in evaluation["queries"]
        if (query_row["query_id"], query_row["variant"]) == (query, variant)
    ]
    mean: float | None = row["metrics"][definition]["mean"]
    return mean


class TestEvaluationOfRuns:
    """TREC's files."""

    def test_fractional_grades_are_used_unchanged(self, folder: EvaluationFolder) -> None:
        """Fractions count, unjudged documents keep their rank, and the pool is all that was judged."""
        evaluation = folder.runs("--metrics", "dcg@3,ndcg@3")
        for gain in GAIN_NAMES:
            for discount in DISCOUNT_NAMES:
                name = f"{gain}:{discount}"
                assert value(evaluation, "q1", "old", f"dcg@3:{name}") == dcg(
                    [2, 0.5, None], 3, gain=gain, discount=discount
                )
                for ideal, grades in {"shown": None, "constant": [3, 3, 3], "judged": [2, 0.5, 1, 3]}.items():
                    expected_ndcg = ndcg([2, 0.5, None], 3, gain=gain, discount=discount, ideal=grades)
                    assert value(evaluation, "q1", "old", f"ndcg@3:{name}:{ideal}") == expected_ndcg
        (test,) = [test for name, test in evaluation["comparisons"]["new"].items() if name == "dcg@3:linear:log2"]
        assert test["queries"] == 2

    def test_ndcg_equals_that_of_trec_eval(self, folder: EvaluationFolder) -> None:
        """Grades are integers; documents are ordered by score, and equal scores by the larger id."""
        judgements = {"q1": {"d1": 2, "d2": 0, "d3": 1, "d9": 3}, "q2": {"d1": 1, "d2": 0}}
        run = {"q1": {"d2": 1.5, "d1": 1.5, "d3": 7.0, "dx": 1.5}, "q2": {"d2": 2.0, "d1": -1.0}}
        folder.write(
            qrels="".join(f"{q} 0 {d} {grade}\n" for q, judged in judgements.items() for d, grade in judged.items()),
            new="".join(f"{q} Q0 {d} 1 {score} x\n" for q, scored in run.items() for d, score in scored.items()),
        )
        theirs = pytrec_eval.RelevanceEvaluator(judgements, {"ndcg_cut.2,3"}).evaluate(run)
        evaluation = folder.runs("--metrics", "ndcg@2,ndcg@3")
        for query, peer_values in theirs.items():
            for k in (2, 3):
                ours = value(evaluation, query, "new", f"ndcg@{k}:linear:log2:judged")
                assert ours == pytest.approx(peer_values[f"ndcg_cut_{k}"], abs=1e-12)

    def test_mismatches_between_runs_and_qrels_are_reported(self, folder: EvaluationFolder) -> None:
        """Judged queries without a list, lists without judgements, and ranks that contradict scores."""
        folder.write(new=NEW + "q8 Q0 d1 1 2 new\n" + "q3 Q0 d1 2 2 new\nq3 Q0 d2 1 1 new\n")
        _, err = folder.run("--qrels", "qrels", "--run", "old=old", "--run", "new=new")
        assert err.splitlines() == [
            "ab-monitor: old: 1 judged queries are missing in the run, and left out (as in trec_eval without -c)",
            "ab-monitor: new: 1 queries of the run are not judged, and left out",
            "ab-monitor: new: 1 queries have ranks that contradict the scores; the scores decide (as in trec_eval)",
        ]

    @pytest.mark.parametrize(
        ("qrels", "old"),
        [
            ("query_id\titeration\tdoc_id\trelevance\n" + QRELS.replace(" ", "\t"), OLD),
            ("doc_id,relevance,query_id\n" + re.sub(r"(\S+) 0 (\S+) (\S+)", r"\2,\3,\1", QRELS), OLD),
            (
                re.sub(r"(\S+) 0 (\S+) (\S+)", r'{"query_id": "\1", "doc_id": "\2", "relevance": \3}', QRELS),
                re.sub(r"(\S+) Q0 (\S+) \S+ (\S+) old", r'{"query_id": "\1", "doc_id": "\2", "score": \3}', OLD),
            ),
            (
                "\ufeff" + QRELS.replace("\n", "\r\n\r\n"),
                "query_id doc_id score\n" + re.sub(r" Q0 (\S+) \S+ (\S+) old", r" \1 \2", OLD),
            ),
        ],
        ids=["tsv", "csv", "jsonl", "blanks"],
    )
    def test_all_file_formats_give_the_same_result(self, folder: EvaluationFolder, qrels: str, old: str) -> None:
        """A header or JSON with ir_datasets' names says the same as TREC's columns."""
        plain = folder.runs()
        folder.write(qrels=qrels, old=old)
        assert folder.runs() == plain

    def test_gzip_files_give_the_same_result(self, folder: EvaluationFolder) -> None:
        """Gzip is detected by the content; the name of the file does not matter."""
        plain = folder.runs()
        (folder.path / "qrels").write_bytes(gzip.compress(QRELS.encode()))
        assert folder.runs() == plain

    def test_with_raters_each_rater_has_a_pool(self, folder: EvaluationFolder) -> None:
        """The mean of a query is the mean over its raters."""
        folder.write(qrels="q1 ann d1 2\nq1 bob d1 1\nq1 bob d9 4\nq2 ann d1 1\n")
        evaluation = folder.runs("--raters", "--metrics", "ndcg@2", "--gain", "linear", "--discount", "log2")
        name = "ndcg@2:linear:log2:judged"
        raters = [(rater_row["query_id"], rater_row["rater"], rater_row["variant"], rater_row["metrics"][name]["mean"])
                  for rater_row in evaluation["raters"] if rater_row["variant"] == "old"]  # fmt: skip
        alone = ndcg([1, None], 2, ideal=[1, 4])
        assert raters == [("q1", 1, "old", 1.0), ("q1", 2, "old", alone), ("q2", 1, "old", ndcg([None, 1], 2))]
        assert value(evaluation, "q1", "old", name) == pytest.approx((1 + (alone or 0)) / 2)

    def test_zero_grade_lowers_all_grades_and_thresholds(self, folder: EvaluationFolder) -> None:
        """Grades, max_grade, relevant_grade and the pool are reduced; grades below 0 have no gain."""
        evaluation = folder.runs("--zero-grade", "1", "--metrics", "ndcg@2,p@2", "--relevant-grade", "2")
        for ideal, grades in {"shown": None, "constant": [2, 2], "judged": [1, 0, 0, 2]}.items():
            expected_ndcg = ndcg([1, 0], 2, ideal=grades)
            assert value(evaluation, "q1", "old", f"ndcg@2:linear:log2:{ideal}") == expected_ndcg
        assert value(evaluation, "q1", "old", "p@2") == 0.5

    def test_scores_that_are_equal_as_float32_are_ties(self, folder: EvaluationFolder) -> None:
        """trec_eval stores scores in 32 bits; of equal scores, the larger doc_id is first."""
        folder.write(qrels="q1 0 a 1\nq1 0 b 0\n", old="q1 Q0 a 1 1.00000001 x\nq1 Q0 b 2 1.0 x\n")
        folder.write(new="q1 Q0 a 1 1.000001 x\nq1 Q0 b 2 1.0 x\n")
        evaluation = folder.runs("--metrics", "rr@2")
        assert [value(evaluation, "q1", variant, "rr@2") for variant in ("old", "new")] == [0.5, 1.0]

    def test_each_treatment_is_compared_with_the_first_run(self, folder: EvaluationFolder) -> None:
        """Each against the first."""
        out, _ = folder.run("--qrels", "qrels", "--run", "new=new", "--run", "old=old", "--run", "again=new", "--json")
        evaluation = json.loads(out)["qrels"]
        assert evaluation["control"] == "new"
        assert list(evaluation["comparisons"]) == ["old", "again"]
        assert evaluation["comparisons"]["again"]["cg@10:linear"]["differing"] == 0


class TestRejectionOfWrongInput:
    """An error is a line with the position, the invalid value and the expectation."""

    @pytest.mark.parametrize(
        ("name", "text", "line"),
        [
            ("old", QRELS, "old:1: 4 columns, expected 6: query_id Q0 doc_id rank score run_id"),
            ("qrels", OLD, "qrels:1: 6 columns, expected 4: query_id iteration doc_id relevance"),
            ("qrels", QRELS + "q4 0 d1 high\n", "qrels:8: relevance is 'high', expected a finite number"),
            ("qrels", QRELS + "q4 0 d1 nan\n", "qrels:8: relevance is 'nan', expected a finite number"),
            ("qrels", QRELS + "q4 0 d1 1_0\n", "qrels:8: relevance is '1_0', expected a finite number"),
            ("qrels", QRELS + "q4 0 d1 ٣\n", "qrels:8: relevance is '٣', expected a finite number"),
            ("qrels", QRELS + "q4 0 d1 1e300\n", "qrels: a relevance of 1e+300, expected at most 65536"),
            ("old", OLD + "q2 Q0 d7 3 inf x\n", "old:6: score is 'inf', expected a finite number"),
            ("old", OLD + "q2 Q0 d1 3 1 x\n", "old:6: 'd1' occurs twice in query 'q2', expected once"),
            ("qrels", "\n", "qrels: the file has no data, expected the columns query_id iteration doc_id relevance"),
            ("qrels", "query_id doc_id relevance\n",
             "qrels: the file has no data, expected the columns query_id iteration doc_id relevance"),
            ("old", "query_id,doc_id,score\n",
             "old: the file has no data, expected the columns query_id Q0 doc_id rank score run_id"),
            ("old", '{"query_id": "q1", "doc_id": "d1", "score": null}',
             "old:1: expected an object with query_id, doc_id, score"),
            ("qrels", '{"query_id": "q1", "doc_id": "d1", "relevance": null}',
             "qrels:1: expected an object with query_id, doc_id, relevance"),
            ("qrels", "query_id,doc_id,grade\nq,d,1\n",
             "qrels:1: the column relevance is missing, expected query_id, doc_id, relevance"),
            ("old", '{"query_id": "q1", "score": 1}', "old:1: expected an object with query_id, doc_id, score"),
            ("old", '{"query_id": 1, "doc_id": "d", "score": 1}',
             "old:1: query_id is 1, expected printable text"),
            ("old", OLD + "q\x1b[1m Q0 d1 1 1 x\n", "old:6: query_id is 'q\\x1b[1m', expected printable text"),
            ("old", OLD.replace("q", "x"),
             "old: none of 2 queries is judged; expected the query_ids of the qrels, such as 'q1', got 'x1'"),
            ("qrels", "q1 d1 2 0\nq2 d1 1 0\n",
             "old: none of the documents is judged; expected the doc_ids of the qrels, such as '2', got 'd1'"),
            ("qrels", QRELS + "q1 1 d1 3\n",
             "qrels:8: 'd1' has relevance 3 for query 'q1', but 2 in an earlier line; expected one value, or --raters"),
        ],
    )  # fmt: skip
    def test_an_invalid_file_is_rejected_with_file_and_line(
        self, folder: EvaluationFolder, name: str, text: str, line: str
    ) -> None:
        """Exit code 4."""
        folder.write(**{name: text})
        arguments = ("--qrels", "qrels", "--run", "old=old", "--run", "new=new")
        assert folder.refusal(*arguments, exit_code=4) == line

    def test_a_file_that_is_not_text_is_rejected(self, folder: EvaluationFolder) -> None:
        """Another encoding, or a truncated gzip file."""
        (folder.path / "old").write_bytes(OLD.encode() + b"q2 Q0 \xff 3 1 x\n")
        arguments = ("--qrels", "qrels", "--run", "old=old", "--run", "new=new")
        assert folder.refusal(*arguments, exit_code=4) == "old:6: the line is not UTF-8; save the file as UTF-8"
        (folder.path / "old").write_bytes(gzip.compress(OLD.encode())[:-9])
        assert folder.refusal(*arguments, exit_code=4).startswith("old: the file cannot be read after line 5: ")

    @pytest.mark.parametrize(
        ("arguments", "line"),
        [
            ((), "evaluate: expected EVENTS and --config, or --qrels and --run"),
            (("old",), "evaluate: expected EVENTS and --config, or --qrels and --run"),
            (("--run", "a=old"),
             "evaluate: got both, expected either EVENTS and --config, or --qrels and --run"),
            (("--qrels", "qrels", "--run", "a=old", "--run", "b=new", "--experiment", "e"),
             "evaluate: got both, expected either EVENTS and --config, or --qrels and --run"),
            (("--config", "config", "old", "--raters"),
             "--raters, --max-grade, --relevant-grade: expected only with --qrels; for EVENTS, --config has the scale"),
            (("--qrels", "qrels", "--run", "a=old", "--run", "b=new", "--json", "--csv", "-"),
             "--json, --csv -, --html -: got several, expected at most one output on stdout"),
            (("--qrels", "qrels"), "--run: got 0, expected at least two, the first is the control"),
            (("--qrels", "qrels", "--run", "old"), "--run: got 'old', expected NAME=FILE"),
            (("--qrels", "qrels", "--run", "a=old", "--run", "a=new"),
             "--run: got 'a' twice, expected a different name for each variant"),
            (("--qrels", "none", "--run", "a=old", "--run",
             "b=new"), "none: the file cannot be read: No such file or directory"),
            (("--qrels", ".", "--run", "a=old", "--run", "b=new"), ".: the file cannot be read: Is a directory"),
        ],
    )  # fmt: skip
    def test_contradictory_arguments_are_a_usage_error(
        self, folder: EvaluationFolder, arguments: Sequence[str], line: str
    ) -> None:
        """Exit code 2."""
        folder.write(config=CONFIG)
        assert folder.refusal(*arguments, exit_code=2) == line

    @pytest.mark.parametrize(
        ("arguments", "line"),
        [
            (("--by-query", "ndcg@10", "--metrics", "p@2"), "--by-query: got 'ndcg@10', expected one of p@2"),
            (("--gain", "table"), "--gain: got 'table', expected one of linear, exp2 for qrels"),
            (("--zero-grade", "3"), "--zero-grade: got 3, expected a grade above 0 and below 3"),
            (("--metrics", "map"),
             '--metrics: got "map", expected one of cg@k, dcg@k, ndcg@k, success@k, rr@k, p@k, with k from 1 to 100'),
            (("--csv", "none/x"), "--csv: the file none/x cannot be written: No such file or directory"),
            (("--max-grade", "1e308"), "--max-grade: got 1e+308, expected above 0 and at most 65536"),
        ],
    )  # fmt: skip
    def test_an_unavailable_choice_is_a_usage_error(
        self, folder: EvaluationFolder, arguments: Sequence[str], line: str
    ) -> None:
        """Exit code 2."""
        runs = ("--qrels", "qrels", "--run", "old=new", "--run", "new=new")
        folder.write(qrels=QRELS.replace("q3 0 d1 1\n", ""))
        assert folder.refusal(*runs, *arguments, exit_code=2) == line

    def test_a_file_without_any_event_is_rejected(self, folder: EvaluationFolder) -> None:
        """Exit code 4, because the files may be of another kind; an empty file is accepted."""
        folder.write(config=CONFIG, empty="")
        out, err = folder.run("old", "--config", "config", exit_code=4)
        assert (out, err.splitlines()[-1]) == (
            "",
            "ab-monitor: 5 lines were rejected, and none accepted; docs/events.md has the format of events",
        )
        folder.run("empty", "--config", "config")

    def test_a_grade_above_the_scale_is_rejected(self, folder: EvaluationFolder) -> None:
        """Exit code 4: against a smaller constant ideal, nDCG would exceed 1."""
        folder.write(qrels=QRELS.replace("q3 0 d1 1\n", ""))
        runs = ("--qrels", "qrels", "--run", "old=new", "--run", "new=new", "--max-grade", "2")
        assert folder.refusal(*runs, exit_code=4) == "qrels: grade 3.0 is above max_grade 2.0"


class _PageParser(HTMLParser):
    """Collects the text of a page, its inline scripts, and all tags and attributes that load or run something else."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.text = ""
        self.scripts: list[str] = []
        self.is_script = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.is_script = tag == "script"
        self.loads += [tag for _ in "x" if tag in {"link", "img", "iframe", "object"}]
        self.loads += [f"{tag} {name}" for name, _ in attrs if name in {"src", "href"} or name.startswith("on")]

    def handle_endtag(self, tag: str) -> None:
        self.is_script &= tag != "script"

    def handle_data(self, data: str) -> None:
        if self.is_script:
            self.scripts.append(data)
        else:
            self.text += data


def _charts(page: str) -> list[dict[str, Any]]:
    """Return the specifications of the charts of a page."""
    parser = _PageParser()
    parser.feed(page)
    return [json.loads(script) for script in parser.scripts if script.startswith("{")]


class TestEvaluationOutput:
    """Tables, CSV and the page."""

    def test_csv_contains_every_value(self, folder: EvaluationFolder) -> None:
        """A row per rater, query and variant under every definition, with all digits; undefined values are empty."""
        evaluation = folder.runs("--metrics", "ndcg@2,p@2", "--csv", "out.csv")
        rows = list(csv.DictReader(io.StringIO((folder.path / "out.csv").read_text())))
        names = len(evaluation["definitions"])
        assert [row["level"] for row in rows].count("rater") == 4 * names
        assert [row["level"] for row in rows].count("query") == 4 * names
        assert [row["level"] for row in rows].count("over_queries") == 2 * names
        for row in rows:
            if row["level"] == "query":
                parts = [f"{row['measure']}@{row['k']}", row["gain"], row["discount"], row["ideal"]]
                name = ":".join(part for part in parts if part)
                mean = value(evaluation, row["query_id"], row["variant"], name)
                assert row["value"] == ("" if mean is None else repr(mean))

    def test_page_loads_nothing_and_escapes_texts(self, folder: EvaluationFolder) -> None:
        """The page has no links, and markup in the files is escaped, in charts too."""
        for name in ("qrels", "old", "new"):
            folder.write(**{name: (folder.path / name).read_text().replace("q1", "<b>q1&\"'</b>")})
        folder.runs("--html", "out.html")
        page = (folder.path / "out.html").read_text(encoding="utf-8")
        parsed = _PageParser()
        parsed.feed(page)
        assert parsed.loads == []
        assert "http:" not in parsed.text
        assert "https:" not in parsed.text
        assert "<b>q1" not in page
        assert "<b>q1&\"'</b>" in parsed.text

    def test_page_omits_the_queries_with_the_smallest_differences(self, folder: EvaluationFolder) -> None:
        """The page shows 500 queries and the number of omitted queries."""
        names = [f"q{number:03}" for number in range(502)]
        folder.write(
            qrels="".join(f"{name} 0 d1 1\n{name} 0 d2 0\n" for name in names),
            old="".join(f"{name} Q0 d1 1 1 x\n" for name in names),
            new="".join(f"{name} Q0 d{2 - (name in {'q007', 'q300'})} 1 1 x\n" for name in names),
        )
        folder.runs("--metrics", "cg@1", "--html", "out.html")
        page = (folder.path / "out.html").read_text(encoding="utf-8")
        assert "2 queries that differ less are left out" in page
        assert re.findall(r"q007|q300", page) == []
        assert page.count("q301</th>") == 3

    def test_page_has_a_bar_per_mean_and_a_circle_per_rater(self, folder: EvaluationFolder) -> None:
        """The length of a bar is proportional to the mean; each rater has a circle."""
        folder.write(qrels="q1 ann d1 2\nq1 bob d1 1\nq1 bob d9 4\nq2 ann d1 1\n")
        evaluation = folder.runs("--raters", "--by-query", "ndcg@10:linear:log2:judged", "--html", "out.html")
        page = (folder.path / "out.html").read_text(encoding="utf-8")
        mean = value(evaluation, "q1", "old", "ndcg@10:linear:log2:judged")
        (chart,) = [chart for chart in _charts(page) if "by query" in chart["usermeta"]["title"]]
        (bar,) = [row for row in chart["datasets"]["rows"] if (row["n"], row["s"]) == ("q1", "old")]
        assert bar["v"] == pytest.approx(mean, rel=1e-4)
        circles = [circle for circle in chart["datasets"]["circles"] if (circle["n"], circle["s"]) == ("q1", "old")]
        assert len(circles) == 2

    def test_table_has_means_difference_interval_and_p(
        self, folder: EvaluationFolder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Means, difference, interval and p of every definition; then the queries that differ most."""
        monkeypatch.setenv("COLUMNS", "140")
        runs = ("--qrels", "qrels", "--run", "old=old", "--run", "new=new")
        out, _ = folder.run(*runs, "--metrics", "dcg@2", "--gain", "linear", "--discount", "log2", "--queries", "1")
        assert "old (control): 2 of 2 responses rated, 2 queries" in out
        (row,) = [line.split() for line in out.splitlines() if line.strip().startswith("dcg@2:linear:log2 ")]
        old, new = (2 + 0.5 * 0.6309297535714575 + 0.6309297535714575) / 2, (3 + 0.6309297535714575 + 1) / 2
        assert row[1:4] == [f"{old:.4f}", f"{new:.4f}", f"{new - old:.4f}"]
        assert row[-2:] == ["2", "2"]
        assert "q1" in out
        assert "1 query that differs less is left out" in out

    def test_a_narrow_terminal_cuts_no_number(self, folder: EvaluationFolder, monkeypatch: pytest.MonkeyPatch) -> None:
        """With 80 characters, every row is a line with untruncated numbers; intervals are omitted."""
        monkeypatch.setenv("COLUMNS", "80")
        out, _ = folder.run("--qrels", "qrels", "--run", "old=old", "--run", "new=new", "--metrics", "ndcg@5")
        rows = [line.split() for line in out.splitlines() if line.strip().startswith("ndcg@5:") and "query" not in line]
        assert [len(row) for row in rows] == [6] * 18
        assert all(re.fullmatch(r"-?\d\.\d{4}", cell) for row in rows for cell in row[1:4])
        assert "95 % intervals: in a wider terminal" in out

    def test_page_draws_the_intervals_of_a_unit_in_one_chart(self, folder: EvaluationFolder) -> None:
        """All definitions of the same unit share the axis, and 0 is on it."""
        evaluation = folder.runs("--metrics", "dcg@2", "--gain", "linear", "--html", "out.html")
        page = (folder.path / "out.html").read_text(encoding="utf-8")
        tests = evaluation["comparisons"]["new"]
        (chart,) = [chart for chart in _charts(page) if "against" in chart["usermeta"]["title"]]
        rows = {row["n"]: (row["l"], row["u"]) for row in chart["datasets"]["rows"]}
        assert len(rows) == 3
        for name, test in tests.items():
            assert rows[name.removeprefix("dcg@2:")] == pytest.approx(test["interval"], rel=1e-4)
        parameters = {parameter["name"]: parameter.get("value") for parameter in chart["params"]}
        assert parameters["low"] < 0 < parameters["high"]

    def test_csv_to_stdout_replaces_the_table(self, folder: EvaluationFolder) -> None:
        """The file name - means stdout."""
        out, _ = folder.run("--qrels", "qrels", "--run", "old=old", "--run", "new=new", "--csv", "-")
        assert out.startswith("experiment,level,query_id,")
        assert {len(row) for row in csv.reader(io.StringIO(out))} == {13}


CONFIG = """
[[experiments]]
name = "airbnb-recommender"
control = "text_only"
variants = { text_only = 0.5, combined = 0.5 }
metrics = ["ndcg@5"]
primary = "ndcg@5"
max_grade = 5
relevant_grade = 4
"""
NAMES = {
    "log2(r+1)": "log2",
    "log2 from rank 2": "log2-from-2",
    "1/r": "reciprocal",
    "pooled": "judged",
    "shown": "shown",
}


class TestEvaluationOfTheSurvey:
    """The results of a real survey, computed from events."""

    @pytest.fixture
    def evaluated(self, shared: Path, folder: EvaluationFolder) -> Callable[..., dict[str, Any]]:
        """Return the command on the survey, or skip where that is absent."""
        survey = shared / "data" / "airbnb"
        if not survey.is_dir():
            pytest.skip("the survey (../shared/data/airbnb) is not here")
        folder.write(config=CONFIG)

        def run(*arguments: str) -> dict[str, Any]:
            files = (str(survey / "responses.jsonl"), str(survey / "feedback.jsonl"))
            evaluation: dict[str, Any] = json.loads(folder.run("--config", "config", *files, "--json", *arguments)[0])
            return evaluation["airbnb-recommender"]  # type: ignore[no-any-return]

        return run

    def test_all_24_published_combinations_are_reproduced(
        self, shared: Path, evaluated: Callable[..., dict[str, Any]]
    ) -> None:
        """Two calls have all combinations: with the original grades, and with grades from 1."""
        published_rows = json.loads((shared / "data" / "airbnb" / "sensitivity.json").read_text("utf-8"))
        evaluations = {"": evaluated(), " of v-1": evaluated("--zero-grade", "1")}
        assert len(published_rows) == 24
        for published in published_rows:
            gain, lowered, _ = published["gain"].partition(" of v-1")
            discount, ideal = NAMES[published["discount"]], NAMES.get(published["ideal"], published["ideal"])
            name = f"ndcg@{published['k']}:{gain}:{discount}:{ideal}"
            test = evaluations[lowered]["comparisons"]["combined"][name]
            assert (test["control"], test["treatment"], test["difference"], test["p"]) == pytest.approx(
                (
                    published["text_only"],
                    published["combined"],
                    published["diff"],
                    published["paired_t_p"],
                ),
                abs=1e-9,
            )
            assert (test["queries"], test["df"]) == (15, 14)

    def test_all_published_rater_values_are_reproduced(
        self, shared: Path, evaluated: Callable[..., dict[str, Any]]
    ) -> None:
        """The values of every query, variant and rater."""
        published_queries = json.loads((shared / "data" / "airbnb" / "expected.json").read_text("utf-8"))["per_query"]
        queries = {f"q{rater_row['query_id']:02}": rater_row for rater_row in published_queries}
        raters = evaluated()["raters"]
        assert len(raters) == 15 * 3 * 2
        for rater_row in raters:
            for ours, theirs in {
                "ndcg@5:exp2:log2:shown": "ndcg5_exp_shown", "ndcg@5:exp2:log2:judged": "ndcg5_exp_pooled",
                "ndcg@5:linear:log2:shown": "ndcg5_lin_shown", "ndcg@5:linear:log2:judged": "ndcg5_lin_pooled",
                "dcg@5:exp2:log2": "dcg5_exp", "dcg@5:linear:log2": "dcg5_lin",
            }.items():  # fmt: skip
                expected = queries[rater_row["query_id"]][f"{rater_row['variant']}|rater_{rater_row['rater']}|{theirs}"]
                assert rater_row["metrics"][ours]["mean"] == pytest.approx(expected, abs=1e-9)


ANSWERS_CONFIG = """\
[[experiments]]
name = "thumbs"
control = "a"
variants = { a = 0.5, b = 0.5 }
metrics = ["share:thumb_up", "score:csat"]
exclusive_kinds = [["thumb_up", "thumb_down"]]
ranges = { "score:csat" = [1, 5] }
"""


def answers(*reactions: tuple[str, str, float]) -> str:
    """Return JSON lines of responses r1 to r3 of `a` and r4 of `b`, and of reactions (response, kind, score)."""
    lines: list[dict[str, object]] = [
        {
            "type": "response",
            "response_id": f"r{number}",
            "experiment": "thumbs",
            "variant": "b" if number > 3 else "a",
            "user_id": f"s{number}",
            "timestamp": "2026-01-01T00:00:00Z",
            "items": [],
        }
        for number in range(1, 5)
    ]
    lines += [
        {
            "type": "feedback",
            "feedback_id": f"f{number}",
            "response_id": response,
            "timestamp": f"2026-01-01T00:00:{number:02}Z",
            "kind": kind,
            "score": score,
        }
        for number, (response, kind, score) in enumerate(reactions)
    ]
    return "".join(json.dumps(line) + "\n" for line in lines)


class TestAnswerMetrics:
    """The means of an experiment's answer metrics, from event files."""

    @pytest.fixture
    def events(self, folder: EvaluationFolder) -> EvaluationFolder:
        """Return a folder with the known answers of docs/metrics.md."""
        reactions = [("r1", "thumb_up", 1.0), ("r1", "thumb_down", 1.0), ("r4", "thumb_up", 1.0)]
        reactions += [("r1", "csat", 5.0), ("r3", "csat", 1.0)]
        folder.write(config=ANSWERS_CONFIG, events=answers(*reactions))
        return folder

    def test_each_variant_has_a_mean_over_its_responses(self, events: EvaluationFolder) -> None:
        """A thumb up, then down, is a thumb down; a response without a score is in no mean of scores."""
        out, _ = events.run("events", "--config", "config", "--json")
        variants = json.loads(out)["thumbs"]["variants"]
        assert variants["a"]["answers"] == {
            "share:thumb_up": {"count": 3, "undefined": 0, "mean": 0.0},
            "score:csat": {"count": 2, "undefined": 1, "mean": 3.0},
        }
        assert variants["b"]["answers"]["share:thumb_up"]["mean"] == 1.0

    def test_silence_is_a_score(self, events: EvaluationFolder) -> None:
        """Scores of 5, none and 1, with a silence of 1."""
        events.write(config=ANSWERS_CONFIG + 'silence = { "score:csat" = 1 }\n')
        out, _ = events.run("events", "--config", "config", "--json")
        assert json.loads(out)["thumbs"]["variants"]["a"]["answers"]["score:csat"]["mean"] == pytest.approx(7 / 3)

    def test_without_ranking_metrics_the_comparison_by_query_is_replaced_by_a_sentence(
        self, events: EvaluationFolder
    ) -> None:
        """In the terminal and on the page."""
        out, _ = events.run("events", "--config", "config", "--html", "page")
        page = (events.path / "page").read_text()
        for text in (out, page):
            assert "100.00 %" in text
            assert "The experiment has no ranking metric, so there is no comparison by query." in text
            assert "rated" not in text.replace("operated", "")
        line = events.refusal("events", "--config", "config", "--by-query", "dcg@5", exit_code=2)
        assert line.endswith("expected no such option, because the experiment has no ranking metric")
