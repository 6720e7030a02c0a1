"""Rater agreement: published examples, results of pingouin, undefined results, and the command `agreement`."""

from __future__ import annotations

import csv
import json
import random
from collections import defaultdict
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from monitor.cli.command_line import main
from monitor.offline.rater_agreement import (
    MEASUREMENT_LEVELS,
    GradeTable,
    MeasurementLevel,
    Rating,
    cicchetti_label,
    intraclass_correlations,
    koo_li_label,
    krippendorff_alpha,
    measure_agreement,
)

FORMS = ("ICC(1,1)", "ICC(A,1)", "ICC(C,1)", "ICC(1,k)", "ICC(A,k)", "ICC(C,k)")
SHROUT_FLEISS: list[list[float]] = [[9, 2, 5, 8], [6, 1, 3, 2], [8, 4, 6, 8], [7, 1, 2, 6], [10, 5, 6, 9], [6, 2, 4, 7]]
"""Table 2 of Shrout & Fleiss 1979: six targets, four judges."""
FRACTIONS: list[list[float]] = [[4.75, 5, 4.5], [3.2, 3.1, 4], [1, 2.25, 1.5], [4, 4, 4], [2.5, 1, 3.3]]
OPPOSED = [[1, 4], [2, 3], [5, 1], [3, 3], [4, 2]]

PINGOUIN: list[tuple[list[list[float]], list[tuple[float, float, int, int, float, tuple[float, float]]]]] = [
    (
        SHROUT_FLEISS,
        [
            (0.165741768405, 1.794678492239, 5, 18, 0.164768808345, (-0.132932324875, 0.722560062328)),
            (0.289763779528, 11.027247956403, 5, 15, 0.000134566516484, (0.018786513375, 0.761084369649)),
            (0.714840714841, 11.027247956403, 5, 15, 0.000134566516484, (0.342464765034, 0.945858259955)),
            (0.442797133679, 1.794678492239, 5, 18, 0.164768808345, (-0.884442155238, 0.912415420341)),
            (0.620050547599, 11.027247956403, 5, 15, 0.000134566516484, (0.071136815303, 0.927232040168)),
            (0.909315542377, 11.027247956403, 5, 15, 0.000134566516484, (0.675674713816, 0.985891678169)),
        ],
    ),
    (
        FRACTIONS,
        [
            (0.78497360619, 11.951775625504, 4, 10, 0.000795497903859, (0.358256878853, 0.97214486776)),
            (0.783358468297, 10.825733345518, 4, 8, 0.00258757935004, (0.33326558414, 0.972211527023)),
            (0.766095246238, 10.825733345518, 4, 8, 0.00258757935004, (0.275815858793, 0.969761278334)),
            (0.916330423919, 11.951775625504, 4, 10, 0.000795497903859, (0.626135754365, 0.990539269317)),
            (0.91559586154, 10.825733345518, 4, 8, 0.00258757935004, (0.599926824922, 0.990562336843)),
            (0.907627504938, 10.825733345518, 4, 8, 0.00258757935004, (0.533275755452, 0.989713049965)),
        ],
    ),
]
"""What pingouin 0.7.0 says, unrounded: value, F, degrees of freedom, p, interval."""

INCOMPLETE = (
    "incomplete: {} of {} targets lack a grade, the first is {} with {} of {}; expected a grade of every rater for "
    "every target"
)
_: None = None
KRIPPENDORFF: list[list[float | None]] = [
    [1, 1, _, 1], [2, 2, 3, 2], [3, 3, 3, 3], [3, 3, 3, 3], [2, 2, 2, 2], [1, 2, 3, 4], [4, 4, 4, 4], [1, 1, 2, 1],
    [2, 2, 2, 2], [_, 5, 5, 5], [_, _, 1, 1], [_, 3, _, _],
]  # fmt: skip
"""Section C of Krippendorff 2011: twelve units, four observers, seven grades missing."""


class TestIntraclassCorrelation:
    """Complete designs."""

    def test_the_published_example_is_reproduced(self) -> None:
        """Table 4 of Shrout & Fleiss 1979, to the two digits printed."""
        correlations = intraclass_correlations(SHROUT_FLEISS)
        assert [form.name for form in correlations.forms] == list(FORMS)
        assert [round(form.value or 0, 2) for form in correlations.forms] == [0.17, 0.29, 0.71, 0.44, 0.62, 0.91]
        squares = correlations.mean_squares
        assert [round(square, 2) for square in (squares.targets, squares.within, squares.raters, squares.error)] == [
            11.24, 6.26, 32.49, 1.02,
        ]  # fmt: skip

    @pytest.mark.parametrize(("grades", "expected"), PINGOUIN)
    def test_results_equal_those_of_pingouin(self, grades: list[list[float]], expected: list[Any]) -> None:
        """Values, F tests and intervals."""
        forms = intraclass_correlations(grades).forms
        for form, (value, f, df1, df2, p, interval) in zip(forms, expected, strict=True):
            assert form.value == pytest.approx(value, abs=1e-9)
            assert (form.f, form.p) == pytest.approx((f, p), rel=1e-9)
            assert (form.df1, form.df2) == (df1, df2)
            assert form.interval == pytest.approx(interval, abs=1e-9)

    def test_the_order_of_rows_and_columns_changes_no_digit(self) -> None:
        """The same table shuffled gives the same record."""
        rows = random.Random(1).sample(FRACTIONS, len(FRACTIONS))
        assert intraclass_correlations([[row[2], row[0], row[1]] for row in rows]) == intraclass_correlations(FRACTIONS)

    def test_perfect_agreement_is_1(self) -> None:
        """With no variance below, every form is 1 and F infinite; JSON has no infinity."""
        for form in intraclass_correlations([[0.1, 0.1, 0.1], [0.7, 0.7, 0.7]]).forms:
            assert (form.value, form.interval, form.p) == (1.0, (1.0, 1.0), 0.0)
            assert form.to_json()["f"] is None

    def test_a_stricter_rater_lowers_absolute_agreement_only(self) -> None:
        """Consistency is perfect, agreement is not."""
        forms = {form.name: form.value for form in intraclass_correlations([[1.1, 1.2], [2.1, 2.2], [3.1, 3.2]]).forms}
        assert forms["ICC(C,1)"] == 1.0
        assert forms["ICC(A,1)"] == pytest.approx(1 / 1.005)  # 2 / (2 + 2/3 · 0.015/2)

    def test_forms_without_variance_are_undefined(self) -> None:
        """Where the variance to divide by is not above 0, a form is absent, and not -∞ or above 1."""
        forms = {form.name: (form.value, form.interval) for form in intraclass_correlations(OPPOSED).forms}
        assert forms["ICC(A,k)"] == (None, None)  # -11.67 / -1.67 would be 7
        assert forms["ICC(C,k)"][0] == pytest.approx(-70 / 3)
        same_means = intraclass_correlations([[0.1, 0.3], [0.2, 0.2]]).forms
        assert [form.value for form in same_means] == [-1.0, -1.0, -1.0, None, None, None]

    @pytest.mark.parametrize(
        ("grades", "message"),
        [
            ([], "0 targets and 0 raters, expected at least 2 of each"),
            ([[1, 2]], "1 target and 2 raters, expected at least 2 of each"),
            ([[1], [2]], "2 targets and 1 rater, expected at least 2 of each"),
            (
                [[1, 2, 3], [1, None, 2], [1, 2]],
                INCOMPLETE.format(2, 3, "row 2", 2, 3),
            ),
            ([[1.5, 1.5], [1.5, 1.5]], "every grade is 1.5: there is no variance to explain"),
            ([[1, 2], [float("nan"), 2]], "a grade is nan, expected a finite number (None for a missing one)"),
        ],
    )
    def test_unsuitable_tables_are_rejected(self, grades: list[list[float | None]], message: str) -> None:
        """The message states the value and the expectation."""
        with pytest.raises(ValueError) as caught:  # noqa: PT011  the whole message is compared
            intraclass_correlations(grades)
        assert str(caught.value) == message

    def test_labels_change_at_the_published_bounds(self) -> None:
        """The bounds of Cicchetti 1994 and of Koo & Li 2016."""
        values = (-0.2, 0.399, 0.4, 0.599, 0.6, 0.749, 0.75, 1)
        poor_to_excellent = ["poor", "poor", "fair", "fair", "good", "good", "excellent", "excellent"]
        assert [cicchetti_label(value) for value in values] == poor_to_excellent
        values = (-0.2, 0.499, 0.5, 0.749, 0.75, 0.9, 0.901, 1)
        poor_to_excellent = ["poor", "poor", "moderate", "moderate", "good", "good", "excellent", "excellent"]
        assert [koo_li_label(value) for value in values] == poor_to_excellent


def alpha_by_pairs(grades: list[list[float | None]], level: MeasurementLevel) -> float:
    """Return alpha by the definition in Krippendorff 2011: sums of δ² over pairs of grades."""
    units = [[grade for grade in row if grade is not None] for row in grades]
    units = [row for row in units if len(row) > 1]
    pool = sorted(grade for row in units for grade in row)

    def delta(first_grade: float, second_grade: float) -> float:
        low, high = sorted((first_grade, second_grade))
        if level == "nominal":
            return float(low != high)
        if level == "interval":
            return (high - low) ** 2
        between = sum(low <= grade <= high for grade in pool)
        return (between - (pool.count(low) + pool.count(high)) / 2) ** 2 if low != high else 0.0

    observed = sum(2 * delta(*pair) / (len(row) - 1) for row in units for pair in combinations(row, 2)) / len(pool)
    expected = sum(2 * delta(*pair) for pair in combinations(pool, 2)) / (len(pool) * (len(pool) - 1))
    return 1 - observed / expected


class TestKrippendorffsAlpha:
    """Any design."""

    def test_the_published_example_is_reproduced(self) -> None:
        """Krippendorff 2011: 0.743 nominal, 0.815 ordinal, 0.849 interval; the last unit has a single grade."""
        alphas = {level: krippendorff_alpha(KRIPPENDORFF, level) for level in MEASUREMENT_LEVELS}
        values = {level: round(alpha.value or 0, 3) for level, alpha in alphas.items()}
        assert values == {"nominal": 0.743, "ordinal": 0.815, "interval": 0.849}
        assert {(alpha.units, alpha.grades) for alpha in alphas.values()} == {(11, 40)}
        assert alphas["nominal"].label == "tentative"
        assert alphas["ordinal"].label == "reliable"

    @pytest.mark.parametrize("level", MEASUREMENT_LEVELS)
    def test_alpha_equals_its_definition_by_pairs(self, level: MeasurementLevel) -> None:
        """The closed form equals the sums over all pairs, with holes and fractional grades."""
        chance = random.Random(4)
        grades = [0.5, 1, 1.25, 2, 3.1, 4]
        for _ in range(20):
            table = [[chance.choice([None, *grades]) for _ in range(4)] for _ in range(7)]
            value = krippendorff_alpha(table, level).value
            assert value == pytest.approx(alpha_by_pairs(table, level), abs=1e-12)

    def test_alpha_is_undefined_without_different_pairable_grades(self) -> None:
        """No target has two grades, or all grades are equal: value and label are None."""
        for table in ([], [[1, None], [None, 2]], [[0.3, 0.3], [0.3, 0.3]]):
            for level in MEASUREMENT_LEVELS:
                alpha = krippendorff_alpha(table, level)
                assert (alpha.value, alpha.label) == (None, None)

    def test_grades_that_are_not_finite_are_rejected(self) -> None:
        """At every level."""
        for level in MEASUREMENT_LEVELS:
            with pytest.raises(ValueError, match="a grade is inf, expected a finite number"):
                krippendorff_alpha([[1, float("inf")]], level)


def rating(rater: str, grade: float, item: str = "i", *, at_ms: int = 0, variant: str = "a") -> Rating:
    """Return a rating of an item for the query q."""
    return Rating(variant, ("query", "q", item), rater, at_ms, grade)


class TestGradeTable:
    """From ratings to tables."""

    def test_agreement_is_measured_per_variant_and_over_all(self) -> None:
        """The variants are in the given order; the agreement over all variants is the last."""
        all_ratings = [rating("u", 1), rating("v", 1), rating("w", 4, variant="b"), rating("x", 2, "j", variant="b")]
        agreements = measure_agreement(all_ratings, ["b", "a"])
        counts = [
            (agreement.variant, agreement.targets, agreement.raters, agreement.grades) for agreement in agreements
        ]
        assert counts == [("b", 2, 2, 2), ("a", 1, 2, 2), (None, 2, 4, 4)]

    def test_the_latest_rating_of_a_target_counts(self) -> None:
        """The order of ratings does not matter; of two ratings with the same time, the larger grade counts."""
        ordered_ratings = [
            rating("u", 4, at_ms=1),
            rating("u", 1, at_ms=2),
            rating("v", 1),
            rating("v", 2),
            rating("w", 7, "j"),
        ]
        for ratings in (ordered_ratings, ordered_ratings[::-1]):
            design = GradeTable.from_ratings(ratings)
            assert [item for _, _, item in design.targets] == ["i", "j"]
            assert (design.rater_count, design.rows) == (3, ((1, 2), (7,)))

    def test_equal_numbers_of_grades_are_not_a_complete_table(self) -> None:
        """Targets with different raters have no correlations, but alpha is defined."""
        ratings = [rating("u", 1), rating("v", 2), rating("w", 3, "j"), rating("x", 4, "j")]
        (agreement, _) = measure_agreement(ratings, ["a"])
        assert agreement.icc is None
        assert agreement.icc_undefined_reason == INCOMPLETE.format(2, 2, "item 'i' of query 'q'", 2, 4)
        assert agreement.alphas[1].value == pytest.approx(
            1 - 3 * 2 / 20
        )  # interval: Σ over pairs 1 + 1, and 4·30 - 10²


CONFIG = """
[[experiments]]
name = "e"
control = "a"
variants = { a = 0.5, b = 0.5 }
max_grade = 5
feedback_window = "1h"
"""


def response(name: str, query: str | None, user: str | None, *items: str) -> dict[str, object]:
    """Return a response event of variant a at 10:00."""
    event: dict[str, object] = {
        "response_id": name, "timestamp": "2026-11-20T10:00:00Z", "experiment": "e", "variant": "a",
        "items": [{"item_id": item, "position": position} for position, item in enumerate(items, start=1)],
    }  # fmt: skip
    return event | ({} if query is None else {"query_id": query}) | ({} if user is None else {"user_id": user})


def feedback(
    name: str, item: str, score: float, *, user: str | None = None, clock_time: str = "10:01"
) -> dict[str, object]:
    """Return a rating of an item of a response."""
    event: dict[str, object] = {
        "feedback_id": f"{name}-{item}-{score}-{user}-{clock_time}", "response_id": name, "kind": "rating",
        "score": score, "timestamp": f"2026-11-20T{clock_time}:00Z", "item_id": item,
    }  # fmt: skip
    return event if user is None else event | {"user_id": user}


def agreement(tmp_path: Path, capsys: pytest.CaptureFixture[str], *events: object) -> list[dict[str, Any]]:
    """Return the JSON of the command for experiment e."""
    (tmp_path / "config.toml").write_text(CONFIG)
    (tmp_path / "events.jsonl").write_text("\n".join(map(json.dumps, events)))
    command = ["agreement", "--json", "--config", str(tmp_path / "config.toml"), str(tmp_path / "events.jsonl")]
    assert main(command) == 0
    agreements: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["e"]
    return agreements


class TestAgreementCommand:
    """From files of events."""

    def test_raters_and_targets_come_from_the_events(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """Raters are the users of feedback; targets are the items of a query in any response."""
        (of_a, of_b, of_all) = agreement(
            tmp_path,
            capsys,
            response("r1", "q", "u1", "i", "j"),
            response("r2", "q", "u2", "j", "i"),
            feedback("r1", "i", 1),
            feedback("r1", "j", 4, user="u1"),
            feedback("r1", "hidden", 5),
            feedback("r1", "i", 5, clock_time="11:01"),
            feedback("r2", "i", 2),
            feedback("r2", "j", 5.5),
            feedback("r2", "j", 4),
            feedback("r2", "j", 3, user="u3"),
        )
        assert (of_a["targets"], of_a["raters"], of_a["grades"]) == (2, 3, 5)
        assert of_a["icc_undefined_reason"].startswith("incomplete: 1 of 2 targets lack a grade, the first is item 'i'")
        assert of_a["alpha"]["interval"]["grades"] == 5
        assert of_a["alpha"]["interval"]["value"] == pytest.approx(alpha_by_pairs([[1, 2], [4, 4, 3]], "interval"))
        assert of_b["icc_undefined_reason"] == "0 targets and 0 raters, expected at least 2 of each"
        assert {**of_all, "variant": "a"} == of_a

    def test_a_complete_table_has_intraclass_correlations(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """All raters have rated all targets."""
        (of_a, _, _) = agreement(
            tmp_path,
            capsys,
            response("r1", "q", "u1", "i", "j"),
            *(feedback("r1", item, score) for item, score in (("i", 1), ("j", 4.5))),
            *(feedback("r1", item, score, user="u2") for item, score in (("i", 2), ("j", 4))),
        )
        forms = intraclass_correlations([[1, 2], [4.5, 4]]).forms
        assert of_a["icc"]["forms"]["ICC(A,1)"]["value"] == forms[1].value
        assert of_a["icc_undefined_reason"] is None

    def test_responses_without_query_or_user_have_their_own_target_or_rater(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Without a query, the target is an item of the response; without a user, the response has its own rater."""
        (of_a, _, _) = agreement(
            tmp_path,
            capsys,
            response("r1", None, None, "i"),
            response("r2", None, None, "i"),
            response("r3", "q", None, "i"),
            response("r4", "q", None, "i"),
            *(feedback(name, "i", 3) for name in ("r1", "r2", "r3", "r4")),
        )
        assert (of_a["targets"], of_a["raters"]) == (3, 4)
        assert of_a["alpha"]["nominal"]["units"] == 1

    def test_the_reason_without_icc_is_a_line_without_student_ids(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The line is not wrapped in a narrow terminal."""
        agreement(tmp_path, capsys, response("r1", "q", "u-secret", "i"), feedback("r1", "i", 3))
        monkeypatch.setenv("COLUMNS", "40")
        assert main(["agreement", "--config", str(tmp_path / "config.toml"), str(tmp_path / "events.jsonl")]) == 0
        output = capsys.readouterr().out
        assert "No intraclass correlation (ICC): 1 target and 1 rater, expected at least 2 of each\n" in output
        assert "u-secret" not in output


class TestAgreementInTheSurvey:
    """A real survey: 75 items, 3 raters, in two variants."""

    @pytest.fixture
    def survey(self, shared: Path) -> Path:
        """Return the survey's folder; skip the test if the folder does not exist."""
        folder = shared / "data" / "airbnb"
        if not folder.is_dir():
            pytest.skip("the survey (../shared/data/airbnb) is not here")
        return folder

    @pytest.fixture
    def expected(self, survey: Path) -> dict[str, Any]:
        """Return the survey's tables."""
        published_icc: dict[str, Any] = json.loads((survey / "expected.json").read_text("utf-8"))["icc"]
        return published_icc

    @pytest.mark.parametrize("variant", ["text_only", "combined"])
    @pytest.mark.parametrize("kind", ["ratings_as_given", "notebook_int_x10"])
    def test_published_tables_are_reproduced(
        self, survey: Path, expected: dict[str, Any], variant: str, kind: str
    ) -> None:
        """With the original ratings, and with ratings truncated as in the published notebook."""
        table: dict[tuple[str, str], list[float]] = defaultdict(list)
        with (survey / "ratings.csv").open(encoding="utf-8") as lines:
            for line in sorted(csv.DictReader(lines), key=lambda line: line["rater"]):
                if line["variant"] == variant:
                    grade = float(line["relevance"])
                    scaled_grade = grade if kind == "ratings_as_given" else int(grade * 10)
                    table[line["query_id"], line["listing_id"]].append(scaled_grade)
        correlations = intraclass_correlations(list(table.values()))
        published = expected[f"{variant}|{kind}"]
        names = ("ICC1", "ICC2", "ICC3", "ICC1k", "ICC2k", "ICC3k")
        for name, form in zip(names, correlations.forms, strict=True):
            way = "oneway" if name.startswith("ICC1") else "twoway"
            assert form.value == pytest.approx(published["icc"][name], abs=1e-9)
            assert (form.f, form.p) == pytest.approx((published["F"][f"F_{way}"], published["F"][f"p_{way}"]), abs=1e-9)
            assert (form.df1, form.df2) == (published["F"]["df1"], published["F"][f"df2_{way}"])
            assert form.interval == pytest.approx(published["ci95"][name], abs=0.005 + 1e-9)
        squares = correlations.mean_squares
        given_squares = {"MSB": squares.targets, "MSW": squares.within, "MSJ": squares.raters, "MSE": squares.error}
        assert given_squares == pytest.approx(published["mean_squares"], abs=1e-9)

    def test_published_values_are_reproduced_from_events(
        self, survey: Path, expected: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """The same values come out of the survey's events."""
        config = CONFIG.replace('"e"', '"airbnb-recommender"').replace('"a"', '"text_only"')
        (tmp_path / "config.toml").write_text(config.replace("a = 0.5, b = 0.5", "text_only = 0.5, combined = 0.5"))
        files = [str(survey / name) for name in ("responses.jsonl", "feedback.jsonl")]
        assert main(["agreement", "--json", "--config", str(tmp_path / "config.toml"), *files]) == 0
        for of_variant in json.loads(capsys.readouterr().out)["airbnb-recommender"][:2]:
            published_icc = expected[f"{of_variant['variant']}|ratings_as_given"]["icc"]
            values = [form["value"] for form in of_variant["icc"]["forms"].values()]
            assert values == pytest.approx(list(published_icc.values()), abs=1e-9)
