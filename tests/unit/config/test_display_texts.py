"""Texts for readers in the configuration: accepted values, one line for each wrong value, and changes of texts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from monitor.config import (
    DeclaredSet,
    DisplayText,
    DisplayTexts,
    ExperimentSettings,
    carry_allocations,
    complete_backfill,
    declare_experiments,
    decode_declared_set,
    describe_set_changes,
    encode_declared_set,
    experiments_digest,
    load_settings,
    replace_file_experiments,
)
from monitor.errors import ConfigError, ConfigErrors

_EXPERIMENT = """
[[experiments]]
name = "tutor"
control = "control"
variants = { control = 0.5, treatment = 0.5 }
metrics = ["dcg@5", "share:liked", "score:csat", "per_student:dcg@5"]
ranges = { "score:csat" = [1, 5] }
"""
_GUARDRAILS = """
[[experiments.guardrails]]
metric = "share:escalated"
harmful_direction = "up"
margin = 0.01
"""
_LINE = "in one line, without control characters and outer blanks"
_ADDRESS = "an address that begins with https:// or http://, without spaces, quotes, < and >, such as https://wiki.example.org/ranker-v2"


def _load(tmp_path: Path, lines: str) -> ExperimentSettings:
    path = tmp_path / "config.toml"
    path.write_text(f"{_EXPERIMENT}{lines}\n{_GUARDRAILS}")
    (experiment,) = load_settings(path, {}).experiments
    return experiment


def test_an_experiment_has_an_owner_a_hypothesis_a_link_and_texts(tmp_path: Path) -> None:
    """Texts are of metrics, guardrail metrics and student metrics, of variants, and of kinds of feedback."""
    experiment = _load(
        tmp_path,
        """
        owner = "Ada (ranking)"
        hypothesis = "Newer videos help: dcg@5 rises by 5 %."
        link = "https://wiki.example.org/tutor?v=2#plan"
        [experiments.texts.metrics]
        "dcg@5" = { label = "Answer quality", unit = "points", description = "How useful the videos are." }
        "share:escalated" = { label = "calls for a human" }
        rated_share = { description = "Who rates." }
        "per_student:dcg@5" = { unit = "points" }
        [experiments.texts.variants.treatment]
        label = "New ranker 🧑\u200d🏫"
        [experiments.texts.kinds.escalated]
        label = "asked for a human"
        """,
    )
    assert (experiment.owner, experiment.hypothesis, experiment.link) == (
        "Ada (ranking)",
        "Newer videos help: dcg@5 rises by 5 %.",
        "https://wiki.example.org/tutor?v=2#plan",
    )
    assert experiment.texts == DisplayTexts(
        metrics={
            "dcg@5": DisplayText("Answer quality", "points", "How useful the videos are."),
            "share:escalated": DisplayText("calls for a human"),
            "rated_share": DisplayText(description="Who rates."),
            "per_student:dcg@5": DisplayText(unit="points"),
        },
        variants={"treatment": DisplayText("New ranker 🧑\u200d🏫")},
        kinds={"escalated": DisplayText("asked for a human")},
    )


def test_without_texts_names_are_labels(tmp_path: Path) -> None:
    """All texts are optional."""
    experiment = _load(tmp_path, "")
    assert (experiment.owner, experiment.hypothesis, experiment.link, experiment.texts) == ("", "", "", DisplayTexts())
    assert experiment.texts.variant_label("control") == "control"
    assert experiment.texts.kind_label("liked") == "liked"
    assert experiment.texts.metric_text("dcg@5") == DisplayText()


def test_texts_are_printed_as_they_are_configured(tmp_path: Path) -> None:
    """Without the texts that are not set."""
    lines = 'texts = { metrics = { "dcg@5" = { unit = "points" } }, variants = { control = { label = "Old" } } }'
    assert _load(tmp_path, lines).texts.to_json() == {
        "metrics": {"dcg@5": {"unit": "points"}},
        "variants": {"control": {"label": "Old"}},
    }


@pytest.mark.parametrize(
    ("lines", "key", "value", "expectation"),
    [
        ('owner = ""', "owner", '""', f"a text of 1 to 100 characters {_LINE}"),
        ("owner = 3", "owner", "3", f"a text of 1 to 100 characters {_LINE}"),
        (f'owner = "{"x" * 101}"', "owner", f'"{"x" * 101}"', "a text of 1 to 100 characters"),
        ('owner = " Ada"', "owner", '" Ada"', _LINE),
        (r'hypothesis = "a\nb"', "hypothesis", r'"a\nb"', f"a text of 1 to 1000 characters {_LINE}"),
        (r'hypothesis = "a \u202E b"', "hypothesis", '"a \u202e b"', _LINE),
        ('link = "javascript:alert(1)"', "link", '"javascript:alert(1)"', _ADDRESS),
        ('link = "data:text/html,x"', "link", '"data:text/html,x"', _ADDRESS),
        ('link = "wiki.example.org/x"', "link", '"wiki.example.org/x"', _ADDRESS),
        ('link = "//wiki.example.org/x"', "link", '"//wiki.example.org/x"', _ADDRESS),
        ('link = "https://"', "link", '"https://"', _ADDRESS),
        ('link = "https://wiki:99999/"', "link", '"https://wiki:99999/"', _ADDRESS),
        ('link = "https://[wiki"', "link", '"https://[wiki"', _ADDRESS),
        ('link = "https://wiki/a b"', "link", '"https://wiki/a b"', _ADDRESS),
        ("link = 'https://wiki/\"x'", "link", r'"https://wiki/\"x"', _ADDRESS),
        (r'link = "https://wiki/\u0000"', "link", r'"https://wiki/\u0000"', f"a text of 1 to 2000 characters {_LINE}"),
        (
            'link = "https://ada:secret@wiki.example.org/"',
            "link",
            '"https://…@…"',
            "an address without a user or password, because all readers see it",
        ),
        ('texts = "x"', "texts", '"x"', "a table with the keys metrics, variants, kinds"),
        (
            'texts.metrics = "x"',
            "texts.metrics",
            '"x"',
            'a table: metric → { label = "…" }',
        ),
        (
            'texts.metrics."dcg@10".label = "x"',
            "texts.metrics.dcg@10",
            '"dcg@10"',
            "a metric of the experiment: dcg@5, share:liked, score:csat, share:escalated, per_student:dcg@5, rated_sha",
        ),
        (
            'texts.variants.new.label = "x"',
            "texts.variants.new",
            '"new"',
            "a variant of the experiment: control, treatment",
        ),
        (
            'texts.kinds.clicked.label = "x"',
            "texts.kinds.clicked",
            '"clicked"',
            "a kind of feedback of the experiment: csat, escalated, liked, rating",
        ),
        ('texts.kinds.liked = "x"', "texts.kinds.liked", '"x"', "a table with the keys label, description"),
        ("texts.kinds.liked = {}", "texts.kinds.liked", "{}", "a table with the keys label, description"),
        (
            f'texts.kinds.liked.label = "{"x" * 61}"',
            "texts.kinds.liked.label",
            f'"{"x" * 61}"',
            f"a text of 1 to 60 characters {_LINE}",
        ),
        (
            f'texts.metrics."dcg@5".unit = "{"x" * 21}"',
            "texts.metrics.dcg@5.unit",
            f'"{"x" * 21}"',
            f"a text of 1 to 20 characters {_LINE}",
        ),
        (
            f'texts.metrics."dcg@5".description = "{"x" * 501}"',
            "texts.metrics.dcg@5.description",
            '"xxx',
            f"a text of 1 to 500 characters {_LINE}",
        ),
        (
            'texts.metrics."share:liked".unit = "likes"',
            "texts.metrics.share:liked.unit",
            '"likes"',
            "no unit, because shares are shown in per cent and latencies in ms",
        ),
        (
            'texts.variants.treatment.label = "control"',
            "texts.variants.treatment.label",
            '"control"',
            "a label that is neither the name nor the label of another variant, control",
        ),
        (
            'texts.variants = { control.label = "New", treatment.label = "New" }',
            "texts.variants.treatment.label",
            '"New"',
            "a label that is neither the name nor the label of another variant, control",
        ),
    ],
)
def test_a_wrong_text_is_refused_with_its_place_and_the_expected_values(
    tmp_path: Path, lines: str, key: str, value: str, expectation: str
) -> None:
    """Also addresses that a browser would run as a script."""
    with pytest.raises(ConfigError) as caught:
        _load(tmp_path, lines)
    message = str(caught.value)
    assert message.startswith(f"experiments.tutor.{key}: got {value}"), message
    assert expectation in message
    assert caught.value.line is not None
    assert "secret" not in message


def test_a_misspelt_key_is_named_with_the_similar_one(tmp_path: Path) -> None:
    """Of the table, and of a text. A unit is for metrics only."""
    lines = 'texts = { metric = {}, kinds = { liked = { lable = "x" }, csat = { unit = "x" } } }'
    with pytest.raises(ConfigErrors) as caught:
        _load(tmp_path, lines)
    assert [str(error).partition(" (line")[0] for error in caught.value.errors] == [
        "experiments.tutor.texts: unknown key metric; did you mean metrics?",
        "experiments.tutor.texts.kinds.liked: unknown key lable; did you mean label?",
        "experiments.tutor.texts.kinds.csat: unknown key unit; the keys are description, label",
    ]


def test_a_text_of_a_wrong_metric_is_no_second_error(tmp_path: Path) -> None:
    """The names of the experiment are not known then."""
    path = tmp_path / "config.toml"
    path.write_text(_EXPERIMENT.replace('"dcg@5",', '"dgc@5",') + '[experiments.texts.metrics."dcg@5"]\nlabel = "x"\n')
    with pytest.raises(ConfigErrors) as caught:
        load_settings(path, {})
    assert [error.key for error in caught.value.errors] == ["experiments.tutor.metrics", "experiments.tutor.ranges"]


class TestDeclaredSet:
    """Texts of experiments in the set that all workers follow."""

    _PLAIN = ExperimentSettings("tutor", "control", {"control": 0.5, "treatment": 0.5})
    _LABELED = replace(
        _PLAIN,
        owner="Ada",
        hypothesis="It helps.",
        link="https://wiki.example.org/",
        texts=DisplayTexts(variants={"control": DisplayText("Old"), "treatment": DisplayText("New")}),
    )

    def _file_set(self, *experiments: ExperimentSettings, current: DeclaredSet | None = None) -> DeclaredSet:
        return replace_file_experiments(current or DeclaredSet(), experiments, "a file", 5)

    def test_changed_texts_need_neither_a_definition_nor_a_backfill_nor_a_note(self) -> None:
        """The set has a new version, so that other workers and commands read the texts."""
        before = self._file_set(self._PLAIN)
        after = self._file_set(self._LABELED, current=before)
        experiment = after.get("tutor")
        assert (after.version, experiment.settings) == (2, self._LABELED)
        assert (experiment.number, experiment.is_filling, experiment.changes) == (1, False, ())
        assert describe_set_changes(before, after) == ["tutor: settings without effect on verdicts and sums"]

    def test_a_command_changes_texts(self) -> None:
        """An experiment of a command is changed like one of a file."""
        before = declare_experiments(DeclaredSet(), [self._PLAIN], "a command", 1)
        experiment = declare_experiments(before, [self._LABELED], "a command", 2).get("tutor")
        assert (experiment.settings.owner, experiment.number, experiment.changes) == ("Ada", 1, ())

    def test_texts_are_stored_with_the_set(self) -> None:
        """Workers and commands without the file read them."""
        stored = decode_declared_set(encode_declared_set(self._file_set(self._LABELED)))
        assert stored.get("tutor").settings == self._LABELED

    def test_a_set_that_was_stored_without_texts_is_read(self) -> None:
        """By a version without these keys. Its digest is the same, so an upgrade declares nothing again."""
        content = json.loads(encode_declared_set(self._file_set(self._PLAIN)))
        for key in ("owner", "hypothesis", "link", "texts"):
            del content["experiments"][0]["settings"][key]
        stored = decode_declared_set(json.dumps(content).encode())
        assert stored == self._file_set(self._PLAIN)
        assert self._file_set(self._PLAIN, current=stored) == stored

    def test_the_digest_depends_on_texts_only_if_there_are_any(self) -> None:
        """The digest without texts is that of versions without these keys."""
        assert experiments_digest([self._PLAIN]) == "be89d4fd763e"
        digests = {
            experiments_digest([replace(self._PLAIN, **{key: getattr(self._LABELED, key)})])
            for key in ("owner", "hypothesis", "link", "texts", "name")
        }
        assert len(digests) == 5

    def test_numbers_of_an_earlier_definition_have_the_newest_texts(self) -> None:
        """They are shown until the new definition is filled."""
        second = self._file_set(replace(self._LABELED, gain="exp2"), current=self._file_set(self._PLAIN))
        assert second.get("tutor").served.settings == self._LABELED
        third = self._file_set(replace(self._LABELED, gain="exp2", owner="Bo"), current=second)
        assert (third.get("tutor").number, third.get("tutor").served.settings.owner) == (2, "Bo")
        assert complete_backfill(third, 2, None, 6).get("tutor").served.settings.owner == "Bo"

    def test_a_dropped_variant_keeps_its_label(self) -> None:
        """The file has neither the variant nor its texts any more, and its results are still shown."""
        third = replace(self._LABELED, variants={"control": 0.4, "treatment": 0.4, "third": 0.2})
        dropped = replace(third, variants={"control": 0.5, "third": 0.5}, texts=DisplayTexts())
        assert carry_allocations(third, dropped, 7).texts.variants == {"treatment": DisplayText("New")}

    @pytest.mark.parametrize("texts", [{"third": DisplayText("New")}, {}])
    def test_a_dropped_variant_loses_a_label_that_a_configured_variant_has(
        self, texts: Mapping[str, DisplayText]
    ) -> None:
        """As its label or as its name; otherwise readers could not tell the two apart. The description remains."""
        earlier = replace(self._LABELED, texts=DisplayTexts(variants={"treatment": DisplayText("New", "", "First")}))
        name = "third" if texts else "New"
        successor = replace(earlier, variants={"control": 0.5, name: 0.5}, texts=DisplayTexts(variants=texts))
        carried = carry_allocations(earlier, successor, 7).texts
        assert carried.variants == {"treatment": DisplayText("", "", "First"), **texts}
        assert carried.variant_label("treatment") == "treatment"
