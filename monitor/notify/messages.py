"""Messages about changes: title, body and JSON, from the same summary and headlines as the pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal
from urllib.parse import quote

import msgspec

from monitor.analysis import (
    Change,
    ExperimentSummary,
    UndeclaredExperiment,
    format_timestamp,
    list_harms,
    list_sample_ratio_mismatches,
)
from monitor.export import (
    STATE_TITLES,
    Freshness,
    Headline,
    describe_headlines,
    format_count,
    format_counted,
    format_time,
)
from monitor.stats import VerdictState

Tone = Literal["good", "bad", "open"]
_TITLES: Final = {
    ("sample_ratio", "mismatch"): "sample ratio mismatch: the variants cannot be compared",
    ("sample_ratio", "ok"): "the sample ratio mismatch is over",
    ("silent", "silent"): "no more responses arrive",
    ("silent", "receiving"): "responses arrive again",
    ("backfill", "complete"): "earlier events are counted",
    ("end", "ended"): "the planned end is reached",
}


class Message(msgspec.Struct, frozen=True):
    """A message as it is stored in the outbox; the names of the fields are JSON keys."""

    event: str
    """A `NotifyEvent`, or "test"."""
    title: str
    body: str
    """Plain text, with a line for each fact."""
    tone: Tone
    timestamp: str
    """Event time of the change in ISO 8601."""
    data: dict[str, Any]
    """Facts for programs, with the keys of docs/notifications.md."""

    def webhook_json(self) -> dict[str, Any]:
        """Return the body of the request to a webhook, as recommended by Standard Webhooks."""
        return {"type": f"experiment.{self.event}", "timestamp": self.timestamp, "data": self.data}


def page_address(public_url: str | None, experiment: str) -> str | None:
    """Return the address of the page of an experiment; None without `public_url`.

    >>> page_address("https://ab.example.org", "ranker/v2")
    'https://ab.example.org/experiments/ranker%2Fv2'
    """
    return None if public_url is None else f"{public_url.rstrip('/')}/experiments/{quote(experiment, safe='')}"


def write_message(
    change: Change,
    experiment: ExperimentSummary,
    *,
    freshness: Freshness | None,
    public_url: str | None,
    min_students: int,
) -> Message:
    """Return the message about a change of a declared experiment with an analysis.

    Effects over fewer than `min_students` are left out, as on the pages.
    """
    analysis = experiment.analysis
    assert analysis is not None
    headlines = [
        headline
        for headline in describe_headlines(experiment, min_students)
        if change.treatment is None or headline.treatment == change.treatment
    ]
    reasons = _list_reasons(change, experiment, freshness)
    if change.treatment is None:
        title, tone = _TITLES[change.event, change.state], _condition_tone(change)
    else:
        title, tone = f"{headlines[0].label}: {headlines[0].title}", headlines[0].tone
        if change.event == "harm":
            title, tone = f"{headlines[0].label}: {STATE_TITLES['stop_harm']}", "bad"
    link = page_address(public_url, experiment.name)
    # The judged effect is the first number of every message on a treatment.
    lines = [*([] if change.treatment is None else [headlines[0].finding]), *reasons]
    for headline in headlines:
        lines += _headline_lines(headline, experiment, has_name=change.treatment is None)
    lines = list(dict.fromkeys(lines))
    if change.treatment is not None:
        lines.append(f"Before: {STATE_TITLES[_verdict_state(change.previous_state)]}.")
    if experiment.owner:
        lines.append(f"Owner: {experiment.owner}.")
    lines.append(f"As of {format_time(analysis.as_of_ms)}.")
    data = {
        "experiment": experiment.name,
        "event": change.event,
        "treatment": change.treatment,
        "state": change.state,
        "previous_state": change.previous_state,
        "title": title,
        "owner": experiment.owner or None,
        "reasons": list(reasons),
        "metric": experiment.primary,
        "results": [_result_json(headline) for headline in headlines],
        "as_of": format_timestamp(analysis.as_of_ms),
        "link": link,
    }
    return _create_message(change.event, experiment.name, title, lines, tone, analysis.as_of_ms, data)


def write_discovery(experiment: UndeclaredExperiment, public_url: str | None) -> Message:
    """Return the message about an experiment whose events arrive, but which is not declared."""
    title = "events of an undeclared experiment arrive"
    hint = (
        "Declare the experiment, or adopt it with `ab-monitor experiments adopt`."
        if experiment.similar_name is None
        else f"Did the producer mean {experiment.similar_name}?"
    )
    variants = ", ".join(f"{name} {format_count(responses)}" for name, responses in experiment.variants.items())
    reasons = [f"{format_counted(experiment.responses, 'response')} do not count ({variants})."]
    link = None if public_url is None else f"{public_url.rstrip('/')}/"
    data: dict[str, Any] = {
        "experiment": experiment.name,
        "event": "discovered",
        "treatment": None,
        "state": "discovered",
        "previous_state": "unknown",
        "title": title,
        "owner": None,
        "reasons": reasons,
        "metric": None,
        "results": [],
        "as_of": format_timestamp(experiment.last_ms),
        "link": link,
    }
    return _create_message("discovered", experiment.name, title, [*reasons, hint], "open", experiment.last_ms, data)


def write_short_message(change: Change, as_of_ms: int, public_url: str | None) -> Message:
    """Return a message with the event and the state alone, for a change whose full message cannot be written."""
    subject = "" if change.treatment is None else f"{change.treatment}: "
    title = f"{subject}{change.event}, {change.state}"
    data: dict[str, Any] = {
        "experiment": change.experiment,
        "event": change.event,
        "treatment": change.treatment,
        "state": change.state,
        "previous_state": change.previous_state,
        "title": title,
        "owner": None,
        "reasons": [],
        "metric": None,
        "results": [],
        "as_of": format_timestamp(as_of_ms),
        "link": page_address(public_url, change.experiment),
    }
    tone: Tone = "bad" if change.event == "harm" else _condition_tone(change)
    lines = [
        f"Before: {change.previous_state}.",
        "The numbers are missing because of a defect, which the log of the service describes. The page has them.",
    ]
    return _create_message(change.event, change.experiment, title, lines, tone, as_of_ms, data)


def write_test_message(now_ms: int, public_url: str | None) -> Message:
    """Return a message by which an operator tests a channel."""
    title = "test of a channel"
    link = None if public_url is None else f"{public_url.rstrip('/')}/"
    data: dict[str, Any] = {
        "experiment": None,
        "event": "test",
        "treatment": None,
        "state": "test",
        "previous_state": "test",
        "title": title,
        "owner": None,
        "reasons": [],
        "metric": None,
        "results": [],
        "as_of": format_timestamp(now_ms),
        "link": link,
    }
    lines = ["`ab-monitor check --notify` has sent this message. No experiment has changed."]
    return _create_message("test", "AB Monitor", title, lines, "open", now_ms, data)


def _create_message(
    event: str, subject: str, title: str, lines: Sequence[str], tone: Tone, at_ms: int, data: dict[str, Any]
) -> Message:
    body = "\n".join([*lines, *([data["link"]] if data["link"] else [])])
    return Message(event, f"[{subject}] {title}", body, tone, format_timestamp(at_ms), data)


def _list_reasons(change: Change, experiment: ExperimentSummary, freshness: Freshness | None) -> Sequence[str]:
    """Return sentences on the cause of a change."""
    assert experiment.analysis is not None
    verdicts = experiment.analysis.verdicts
    if change.treatment is not None:
        verdict = verdicts[change.treatment]
        return [reason.text for reason in (list_harms(verdict) if change.event == "harm" else verdict.reasons)]
    if change.event == "sample_ratio" and change.state == "mismatch":
        texts = (reason.text for verdict in verdicts.values() for reason in list_sample_ratio_mismatches(verdict))
        return list(dict.fromkeys(texts))
    if change.event == "silent" and freshness is not None:
        sentence = freshness.describe()
        return [f"{sentence[0].upper()}{sentence[1:]}."]
    return []


def _condition_tone(change: Change) -> Tone:
    return "bad" if change.state in ("mismatch", "silent") else "open"


def _verdict_state(state: str) -> VerdictState:
    verdict_state: VerdictState = msgspec.convert(state, VerdictState)
    return verdict_state


def _headline_lines(headline: Headline, experiment: ExperimentSummary, *, has_name: bool) -> list[str]:
    prefix = f"{headline.label}: {headline.title}. " if has_name else ""
    control_students, treatment_students = headline.students
    students = (
        f"Students: {format_count(control_students)} ({experiment.texts.variant_label(experiment.control)}) and "
        f"{format_count(treatment_students)} ({experiment.texts.variant_label(headline.treatment)})."
    )
    return [f"{prefix}{headline.finding}", *filter(None, [headline.obstacle, headline.next_step]), students]


def _result_json(headline: Headline) -> dict[str, Any]:
    return {"treatment": headline.treatment, "state": headline.state, **headline.to_json()}
