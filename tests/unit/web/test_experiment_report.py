"""The report on an experiment: what is said, what is not, and what may not be in a page."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from monitor.analysis.interim_history import looks, splits
from monitor.analysis.snapshots import DecayedThen, Past, Snapshot, TreatmentThen, VariantThen
from monitor.analysis.summary import DecayedMean, ExperimentSummary, MetricSummary, VariantSummary
from monitor.config import AllocationSettings, ExperimentSettings
from monitor.export.report_data import Account, DecayedAt
from monitor.stats import Adjustment, Comparison, Estimate, State, compare, decide
from monitor.web.charts import Point
from monitor.web.experiment_charts import _mean
from monitor.web.experiment_report import disagreements, figure, moment, render_experiment_report
from tests.support.units import judge
from tests.unit.analysis.test_verdicts import BETTER, FIRST, PARTED, SENSITIVE, UNLIKE, Seen, after, crowd, stored

HOUR = FIRST * 24
VOID = {"meta", "br", "img", "input", "link", "hr"}


class Page(HTMLParser):
    """A page taken apart: its text, its tables, what it would fetch, and whether its elements are closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] not in {"style", "title"}:
            self.texts.append(data)

    @property
    def text(self) -> str:
        """Return what a reader sees, blanks put together."""
        return re.sub(r"\s+", " ", " ".join(self.texts))

    def plots(self) -> list[str]:
        """Return what the plots are of."""
        return [value for tag, name, value in self.attributes if (tag, name) == ("svg", "aria-label")]


def _variant(students: int) -> VariantSummary:
    metrics = {
        metric.name: MetricSummary(
            count=2 * students,
            undefined=0,
            sum=4.0 * students,
            mean=2.0,
            mean_over_all=1.0,
            variance=1.0,
            decayed={decay.name: DecayedMean(2.0, 50.0, 1.0, 90.0, 0.1) for decay in SENSITIVE.decay},
            design_effect=2.0,
        )
        for metric in SENSITIVE.metrics
    }
    return VariantSummary(4 * students, 2 * students, students, 1, {}, {}, 7, 9, metrics)


def told(
    seen: Sequence[Seen],
    at_ms: int,
    experiment: ExperimentSettings = SENSITIVE,
    *,
    past: Past | None = None,
    watched: Sequence[DecayedAt] = (),
    least: int = 1,
) -> Account:
    """Return the account of a store with these students."""
    held = stored(experiment, seen)
    judgement = judge(experiment, held, at_ms)
    variants = {name: _variant(len([each for each in seen if each.variant == name])) for name in experiment.variants}
    return Account(
        settings=experiment,
        summary=ExperimentSummary(experiment.name, experiment.control, experiment.primary, 3, variants, judgement),
        as_of_ms=at_ms,
        judgement=judgement,
        looks=looks(experiment, held, at_ms),
        splits=splits(experiment, held, at_ms),
        watched=tuple(watched),
        past=past or {},
        least_students=least,
    )


def _then(state: State, live: float | None = 0.4) -> Snapshot:
    variants = {"control": VariantThen(40, 10, {}), "treatment": VariantThen(30, 15, {})}
    closed = (0.25, -0.125, 0.625)
    return Snapshot("dcg@5", 4, variants, {"treatment": TreatmentThen(state, closed, (live, 0.1, 0.7))})


def _watched(days: int, *, noted: bool) -> list[DecayedAt]:
    means = {"control": DecayedThen(2.0, 0.1, 50.0), "treatment": DecayedThen(2.5, 0.1, 50.0)}
    return [
        DecayedAt(after(day), noted=noted, means={decay.name: means for decay in SENSITIVE.decay})
        for day in range(days)
    ]


SHIPPED = told(BETTER, after(14), watched=_watched(14, noted=True))


class TestThePage:
    """As a whole."""

    def test_stands_alone(self) -> None:
        """No script, no link, nothing that is fetched; its own policy forbids it besides."""
        text = render_experiment_report(SHIPPED)
        page = Page(text)
        assert not [each for each in page.attributes if each[1] in {"href", "src", "srcset", "action"}]
        assert "url(" not in text
        assert "<script" not in text
        assert "http" not in text.replace("http-equiv", "")
        policy = [value for tag, name, value in page.attributes if (tag, name) == ("meta", "content")]
        assert "default-src 'none'; style-src 'unsafe-inline'" in policy

    def test_has_every_part(self) -> None:
        """The plots, by their names, and the headings of what is told without one."""
        page = Page(render_experiment_report(SHIPPED))
        assert page.plots() == [
            "effect of treatment on dcg@5 over time",
            "harm of treatment on rated_share over time",
            "share of students in treatment over time",
            "students over time, by variant",
            "dcg@5, decayed by 1h, by variant",
            "dcg@5, decayed by 24h, by variant",
            "dcg@5, decayed by reciprocal-10d, by variant",
        ]
        for heading in ("Ship it", "Why", "All metrics", "Guardrails", "Method and definitions", "may not be claimed"):
            assert heading in page.text

    def test_names_are_only_text(self) -> None:
        """Whatever a variant or an experiment is called."""
        odd = '<img src=x onerror="1">&'
        renamed = replace(
            SENSITIVE, name=odd, control="control", variants={"control": 0.5, odd: 0.5}, metrics=SENSITIVE.metrics
        )
        seen = [each._replace(variant=odd) if each.variant == "treatment" else each for each in BETTER]
        page = Page(render_experiment_report(told(seen, after(14), renamed)))
        assert "img" not in {tag for tag, _, _ in page.attributes}
        assert odd in page.text


class TestTheVerdict:
    """In words."""

    def test_is_a_sentence_with_the_effect_and_its_interval(self) -> None:
        """The same numbers as the verdict's."""
        primary = SHIPPED.judgement.verdicts["treatment"].primary
        text = Page(render_experiment_report(SHIPPED)).text
        assert "treatment: ship – it is better, and nothing speaks against it: ship it." in text
        assert f"a difference of {figure(primary.difference.effect, sign=True)}" in text
        bounds = f"between {figure(primary.lower, sign=True)} and {figure(primary.upper, sign=True)}"
        assert f"With 95\u202f% confidence the true difference is {bounds}" in render_experiment_report(SHIPPED)

    @pytest.mark.parametrize(
        ("seen", "days", "headline"),
        [
            ([*crowd("control", 2.0, 800), *crowd("treatment", 1.5, 800, seed=2)], 14.0, "Stop it"),
            (BETTER, 5.0, "Too early to say"),
            ([*crowd("control", 2.0, 800), *crowd("treatment", 2.5, 400, seed=2)], 14.0, "No fair comparison"),
            ([*crowd("control", 2.0, 800), *crowd("treatment", 2.0, 800, seed=2)], 14.0, "No gain that matters"),
        ],
    )
    def test_of_other_states(self, seen: list[Seen], days: float, headline: str) -> None:
        """A few words first."""
        assert f"<h2>{headline}</h2>" in render_experiment_report(told(seen, after(days)))

    def test_before_the_first_student_there_is_little_to_say(self) -> None:
        """And no plot."""
        page = Page(render_experiment_report(told([], after(1))))
        assert "No student has been shown an answer" in page.text
        assert page.plots() == []

    def test_without_a_treatment_there_is_nothing_to_compare(self) -> None:
        """Students are counted all the same."""
        alone = replace(SENSITIVE, variants={"control": 1.0, "treatment": 0.0})
        page = Page(
            render_experiment_report(told([each for each in BETTER if each.variant == "control"], after(14), alone))
        )
        assert "Nothing to compare" in page.text
        assert page.plots() == ["students over time, by variant"]

    def test_what_it_rests_on_is_said_first(self) -> None:
        """Students and responses, and since when."""
        first = moment(after(0)).partition(",")[0]
        assert (
            f"the newest event: 800 students and 3 200 responses since {first}."
            in Page(render_experiment_report(SHIPPED)).text
        )

    def test_before_the_first_window_is_over_there_is_no_effect(self) -> None:
        """Students are counted already."""
        page = Page(render_experiment_report(told(BETTER, after(3))))
        assert "Nothing is known of dcg@5 yet" in page.text
        assert page.plots()[0] == "share of students in treatment over time"

    def test_where_nothing_varies_nothing_is_said_of_an_interval(self) -> None:
        """Neither that there are too few students, nor that it is narrow enough."""
        seen = [Seen(variant, FIRST, value, alike=100) for variant, value in (("control", 2.0), ("treatment", 2.5))]
        text = Page(render_experiment_report(told(seen, after(14), least=0))).text
        assert "It does not vary between students, so there is no telling how sure that is." in text
        assert "could be told from none is not known." in text
        assert "narrow enough" not in text

    def test_few_students_are_not_shown(self) -> None:
        """Under `min_display_students` a mean would tell of persons."""
        past = {after(13) // 3_600_000: _then("continue")}
        page = Page(render_experiment_report(told(BETTER, after(14), past=past, least=401)))
        assert "Nothing is known of dcg@5 yet" in page.text
        primary = SHIPPED.judgement.verdicts["treatment"].primary
        assert figure(primary.control.mean) not in page.text
        assert "the effect is between" not in page.text
        assert "+0.2500" not in page.text
        assert "+0.2500" in Page(render_experiment_report(told(BETTER, after(14), past=past))).text
        assert "effect of treatment on dcg@5 over time" not in page.plots()

    def test_nothing_is_minus_nothing(self) -> None:
        """What rounds to 0 has no sign of its own."""
        assert (figure(-0.00001), figure(-0.00001, sign=True), figure(-0.25)) == ("0.0000", "+0.0000", "−0.2500")

    def test_every_treatment_has_its_own(self) -> None:
        """With its own level of confidence."""
        three = replace(SENSITIVE, variants={"control": 0.5, "treatment": 0.25, "other": 0.25})
        seen = [*crowd("control", 2.0, 800), *crowd("treatment", 2.5, 400, seed=2), *crowd("other", 1.5, 400, seed=3)]
        text = render_experiment_report(told(seen, after(14), three))
        assert (text.count("97.5\u202f% confidence"), "Ship it" in text, "Stop it" in text) == (2, True, True)


class TestDisagreement:
    """nDCG up while DCG is down."""

    @staticmethod
    def _moved(effect: float, variance: float = 1e-4) -> Comparison:
        return compare(Estimate(500, 2.0, variance), Estimate(500, 2.0 + effect, variance), alpha=0.05, mde=0.1)

    def test_is_said_in_both_directions(self) -> None:
        """With both intervals and the reason; which of them is primary does not matter."""
        for up, down in ((0.3, -0.4), (-0.3, 0.4)):
            compared = {"dcg@5": self._moved(down), "ndcg@3": self._moved(up)}
            ((said, both),) = disagreements(SENSITIVE, compared).items()
            words = ("up", "down") if up > 0 else ("down", "up")
            assert both
            assert said.startswith(f"ndcg@3 and dcg@5 disagree: ndcg@3 is {words[0]} (")
            assert f"dcg@5 is {words[1]} (" in said
            assert "(ideal: shown)" in said

    def test_is_only_a_remark_while_one_is_not_shown(self) -> None:
        """Noise has a direction, too."""
        compared = {"dcg@5": self._moved(-0.4), "ndcg@3": self._moved(0.01)}
        ((said, both),) = disagreements(SENSITIVE, compared).items()
        assert not both
        assert said.startswith("ndcg@3 and dcg@5 do not move together: ndcg@3 is up (")
        assert "so not shown" in said
        assert disagreements(SENSITIVE, {"dcg@5": self._moved(-0.01), "ndcg@3": self._moved(0.01)}) == {}

    def test_is_none_where_both_move_alike(self) -> None:
        """Nor between other metrics."""
        assert disagreements(SENSITIVE, {"dcg@5": self._moved(0.4), "ndcg@3": self._moved(0.4)}) == {}
        assert disagreements(SENSITIVE, {"dcg@5": self._moved(0.4), "success@2": self._moved(-0.4)}) == {}

    def test_of_several_gains_the_primary_one_is_enough(self) -> None:
        """Unless an nDCG is primary: then all of them speak against it."""
        compared = {"dcg@5": self._moved(-0.4), "cg@5": self._moved(-0.4), "ndcg@3": self._moved(0.4)}
        assert len(disagreements(SENSITIVE, compared)) == 1
        found = disagreements(replace(SENSITIVE, primary="ndcg@3"), compared)
        assert [said.partition(":")[0] for said in found] == ["ndcg@3 and dcg@5 disagree", "ndcg@3 and cg@5 disagree"]

    def test_is_explained_by_the_ideal(self) -> None:
        """A constant one is no reason."""
        compared = {"dcg@5": self._moved(0.4), "ndcg@3": self._moved(-0.4)}
        (said,) = disagreements(replace(SENSITIVE, ideal="constant"), compared)
        assert "videos that this answer itself has" not in said

    def test_is_on_the_page(self) -> None:
        """Beside the verdict, whatever that is: with the metrics swapped in a verdict that is real."""
        account = SHIPPED
        verdict = account.judgement.verdicts["treatment"]
        diagnostics = tuple(
            (name, self._moved(-0.4) if name == "ndcg@3" else each) for name, each in verdict.diagnostics
        )
        judgement = replace(account.judgement, verdicts={"treatment": replace(verdict, diagnostics=diagnostics)})
        text = Page(render_experiment_report(replace(account, judgement=judgement))).text
        assert "Metrics disagree. ndcg@3 and dcg@5 disagree: ndcg@3 is down" in text
        assert "Metrics disagree" not in Page(render_experiment_report(account)).text


class TestHistory:
    """What was noted while time passed, and what is said where nothing was."""

    def test_where_there_is_none_the_page_says_so(self) -> None:
        """What can be worked out again is shown all the same."""
        page = Page(render_experiment_report(told(BETTER, after(14), watched=_watched(14, noted=False))))
        assert "There is no history" in page.text
        assert "What was said when" not in page.text
        assert len(page.plots()) == 7

    def test_changes_of_what_was_said_are_told_with_their_times(self) -> None:
        """Each once, with the hour from which on it was said."""
        states: list[State] = ["insufficient_data", "insufficient_data", "continue", "ship", "ship", "continue"]
        past = {HOUR + 30 * number: _then(state) for number, state in enumerate(states)}
        page = Page(render_experiment_report(told(BETTER, after(14), past=past, watched=_watched(14, noted=True))))
        assert "There is no history" not in page.text
        said = page.text[page.text.index("What was said when") :]
        found = re.findall(r"(\d+ \w+ \d{4}, \d\d:00 UTC) (\w+) ", said)
        assert found == [(moment(3_600_000 * (HOUR + 30 * at)), states[at]) for at in (0, 2, 3, 5)]
        assert said.count("+0.2500 −0.1250 +0.6250") == 4

    def test_counts_are_drawn_as_they_were_noted(self) -> None:
        """They cannot be worked out again."""
        past = {HOUR + number: _then("continue") for number in range(6)}
        text = render_experiment_report(told(BETTER, after(14), past=past, watched=_watched(14, noted=True)))
        assert Page(text).plots()[-3:] == [
            "responses so far, by variant",
            "rated responses of those so far, by variant",
            "students who saw more than one variant so far",
        ]
        for name, share in (("control", 25), ("treatment", 50)):
            assert re.search(rf"<title>{name}, [^<]*: {share}\.0+\u202f%</title>", text)
        single = Page(render_experiment_report(told(BETTER, after(14), past={HOUR: _then("continue")})))
        assert "responses so far, by variant" not in single.plots()

    def test_many_changes_are_cut_short(self) -> None:
        """The newest are told, and how many are not."""
        past = {HOUR + number: _then("continue" if number % 2 else "ship") for number in range(130)}
        text = Page(render_experiment_report(told(BETTER, after(14), past=past))).text
        assert "80 earlier changes are left out" in text
        assert moment(3_600_000 * (HOUR + 129)) in text
        assert moment(3_600_000 * (HOUR + 79)) not in text

    def test_the_live_effect_is_drawn_as_it_was_noted(self) -> None:
        """It cannot be worked out again."""
        past = {HOUR + number: _then("continue", None if number == 3 else 0.4) for number in range(6)}
        text = render_experiment_report(told(BETTER, after(14), past=past))
        assert text.count('<polyline class="line live"') == 2
        assert 'class="line live"' not in render_experiment_report(SHIPPED)

    def test_bands_hold_over_the_whole_plot(self) -> None:
        """Thirteen half-lives of a day, 312 of an hour; none where there is no half-life, or no standard error."""
        page = render_experiment_report(SHIPPED)
        assert "Bands: 3.51 standard errors" in page
        assert "Bands: 4.38 standard errors" in page
        assert "Without bands" in page
        unknown = [replace(each, means={"24h": {"control": DecayedThen(2.0, None, 50.0)}}) for each in SHIPPED.watched]
        plain = render_experiment_report(replace(SHIPPED, watched=tuple(unknown)))
        assert 'class="line v0"' in plain
        assert _mean(7, DecayedThen(2.0, 0.1, 50.0), 3.5) == Point(7, 2.0, 1.65, 2.35)
        # With fewer effective responses it would be left far more often than is said.
        assert _mean(7, DecayedThen(2.0, 0.1, 49.0), 3.5) == Point(7, 2.0)
        assert 'class="band v0" points' not in plain


class TestTheSplit:
    """Students, and whether they are split as intended."""

    def test_changing_shares_have_a_phase_each(self) -> None:
        """With the shares that were intended then."""
        change = AllocationSettings(after(5), {"control": 0.25, "treatment": 0.75})
        phased = replace(SENSITIVE, decision=replace(SENSITIVE.decision, allocations=(change,)))
        seen = [*crowd("control", 2.0, 200, 5), *crowd("treatment", 2.0, 200, 5, seed=2)]
        seen += [*crowd("control", 2.0, 100, 5, 3, FIRST + 5), *crowd("treatment", 2.0, 300, 5, 4, FIRST + 5)]
        text = render_experiment_report(told(seen, after(14), phased))
        page = Page(text)
        assert text.count('class="line intended" points') == 2
        assert "phase 1" in page.text
        assert "phase 2" in page.text
        assert "Yes, as far as can be told" in page.text

    def test_an_alarm_is_said(self) -> None:
        """With what it means."""
        seen = [*crowd("control", 2.0, 800), *crowd("treatment", 2.5, 400, seed=2)]
        assert "the split is not the intended one" in Page(render_experiment_report(told(seen, after(14)))).text


class TestParts:
    """For whom, and for how long."""

    def test_have_a_plot_and_a_table_each(self) -> None:
        """What is shown is marked; parts without students stand there all the same."""
        page = Page(render_experiment_report(told(UNLIKE, after(14), PARTED)))
        assert {"effect of treatment by category", "effect of treatment by days since first exposure"} <= {
            *page.plots()
        }
        assert "For whom?" in page.text
        assert "Does it last?" in page.text
        assert re.search(r"fractions 1\.\d+ 2\.\d+ \+0\.\d+ \+0\.\d+ \+\d\.\d+ 300 \+ 300", page.text)
        assert "other – – – – – 0 + 0" in page.text

    def test_are_absent_where_they_are_not_kept(self) -> None:
        """Not even a headline."""
        text = Page(render_experiment_report(SHIPPED)).text
        assert "For whom?" not in text
        assert "Does it last?" not in text

    def test_few_students_are_not_shown(self) -> None:
        """Neither in the table nor in the plot."""
        page = render_experiment_report(told(UNLIKE, after(14), PARTED, least=301))
        assert 'effect of treatment by category"' not in page


class TestAdjustment:
    """By what students were like before."""

    def test_is_said_beside_the_verdict_and_explained(self) -> None:
        """How many students, how much it brought, and what would be said without it."""
        experiment = replace(SENSITIVE, starts_at_ms=after(0), pre_period_ms=7 * 24 * 3_600_000)
        account = told(BETTER, after(14), experiment)
        plain = account.judgement.verdicts["treatment"]
        assert "Adjustment" not in Page(render_experiment_report(account)).text
        evidence = replace(plain.evidence, adjustment=Adjustment(0.5, 321, plain.evidence.arms))
        judgement = replace(account.judgement, verdicts={"treatment": decide(evidence)})
        text = Page(render_experiment_report(replace(account, judgement=judgement))).text
        assert "What students were like in the 7 days before the start" in text
        assert "adjusted for what 321 students were like before" in text
        assert "variance 0.0% smaller; without it the effect is between" in text


class TestDefinitions:
    """What the page says about its method is what was configured."""

    def test_follow_the_configuration(self) -> None:
        """Gain, ideal, population, window."""
        other = replace(
            SENSITIVE,
            gain="exp2",
            ideal="constant",
            exposure_days=5,
            decision=replace(SENSITIVE.decision, population="all", alpha=0.01),
        )
        text = Page(render_experiment_report(told(BETTER, after(14), other))).text
        assert "Gain: exp2." in text
        assert "Ideal of ndcg: constant." in text
        assert "all responses, unrated ones counting 0" in text
        assert "the mean of the first 5 days" in text
        assert "is ever outside is 0.01 at most" in text
        assert "wrong way round" not in text
