"""The page of an experiment, live or as of a past time, and its report file for downloading."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from typing import Any, Final
from urllib.parse import quote, urlencode

from monitor.analysis import format_timestamp
from monitor.clock import DAY_MS, Clock
from monitor.config import parse_choice, parse_instant_ms
from monitor.days import DayCalendar
from monitor.errors import ConfigError, UsageError
from monitor.export import REVIEW_NOTE, ReportData, ReportReader, ServiceHealth
from monitor.web.experiment_report import REPORT_TEMPLATE, report_values
from monitor.web.experiment_view import ChartRange, describe_experiment, format_day
from monitor.web.glossary import TermLinks, glossary_sections
from monitor.web.pages import PageContent, experiment_path
from monitor.web.share_links import SHARE_PARAMETER

GLOSSARY_PATH: Final = "/glossary"
_MAX_ITEMS: Final = 100
_DATE_LENGTH: Final = len("2026-11-24")
_CONTENTS: Final = (
    ("verdict", "Verdict"),
    ("effect", "Effect over time"),
    ("metrics", "Metrics"),
    ("guardrails", "Guardrails"),
    ("days", "Days"),
    ("for-whom", "For whom"),
    ("students", "Students"),
    ("recent", "Recent means"),
    ("details", "Details"),
    ("history", "History"),
    ("definition", "Definitions"),
    ("method", "Method"),
)
"""(anchor, title) of the sections of the page."""


class ExperimentPages:
    """The pages of an experiment.

    `read_health` returns a recent health of the service. Pages may raise `UsageError` and `DependencyUnavailable`.
    """

    def __init__(self, reports: ReportReader, read_health: Callable[[], ServiceHealth], clock: Clock) -> None:
        self._reports = reports
        self._read_health = read_health
        self._clock = clock

    def page(self, name: str, query: Mapping[str, str]) -> PageContent:
        """Return the page of an experiment; the query may have `as_of`, `from`, `to` and `difference`."""
        return experiment_page(self._read(name, query), query, self._read_health(), self._clock())

    def report_file(self, name: str, query: Mapping[str, str]) -> PageContent:
        """Return the report file of an experiment; the query may have `as_of`."""
        report = self._read(name, query)
        suffix = f"-{_date_of(report.settings.calendar, report.as_of_ms).isoformat()}" if report.is_past else ""
        values = report_values(report, self._clock())
        return PageContent(REPORT_TEMPLATE, values, file_name=f"{name}{suffix}.html")

    def items(self, name: str, _query: Mapping[str, str]) -> PageContent:
        """Return the page with the items that need review. Raises `UsageError` if the experiment counts no items."""
        entries = self._reports.read_items_for_review(name)
        values = {"name": name, "entries": entries[:_MAX_ITEMS], "total": len(entries), "review_note": REVIEW_NOTE}
        return PageContent("experiment_items.html", values)

    def _read(self, name: str, query: Mapping[str, str]) -> ReportData:
        calendar = self._reports.day_calendar(name)
        return self._reports.read(name, parse_past_time_ms(query.get("as_of"), calendar, self._clock()))


def experiment_page(report: ReportData, query: Mapping[str, str], health: ServiceHealth, now_ms: int) -> PageContent:
    """Return the page of an experiment: see `ExperimentPages.page`."""
    values = describe_experiment(
        report,
        # A share link opens this page alone, so the page lists its terms.
        TermLinks("" if SHARE_PARAMETER in query else GLOSSARY_PATH),
        now_ms=now_ms,
        freshness=health.freshness.get(report.settings.name),
        chart_range=_chart_range(report, query),
        difference=parse_choice("difference", query.get("difference", "relative"), ("relative", "absolute")),
        has_data_problems=bool(health.data_problems),
    )
    return PageContent("experiment_page.html", {**values, **_page_values(report, query, now_ms)})


def glossary_page(_query: Mapping[str, str]) -> PageContent:
    """Return the page with all terms."""
    return PageContent("glossary.html", {"sections": glossary_sections()})


def parse_past_time_ms(text: str | None, calendar: DayCalendar, now_ms: int) -> int | None:
    """Return the time of the parameter `as_of`: an instant, or a date, which means the end of that day.

    None without the parameter, and for the date of today. Raises `UsageError`.
    """
    if text is None:
        return None
    if len(text) == _DATE_LENGTH:
        day = _parse_day("as_of", text)
        today = calendar.day_number(now_ms)
        if day > today:
            raise ConfigError("as_of", text, f"a date up to today, {calendar.date_text(today)}")
        return None if day == today else calendar.end_ms(day) - 1
    try:
        # In a query, an unescaped + means a blank.
        return parse_instant_ms("as_of", text.replace(" ", "+"))
    except UsageError as error:
        raise ConfigError("as_of", text, "a date such as 2026-11-24, or a time such as 2026-11-24T12:00Z") from error


def _parse_day(key: str, text: str) -> int:
    """Return a date as days since 1970."""
    try:
        return (date.fromisoformat(text) - date(1970, 1, 1)).days
    except ValueError as error:
        raise ConfigError(key, text, "a date such as 2026-11-24") from error


def _date_of(calendar: DayCalendar, at_ms: int) -> date:
    """Return the date of a time in the experiment's zone."""
    return datetime.fromtimestamp(calendar.day_number(at_ms) * DAY_MS / 1000, UTC).date()


def _chart_range(report: ReportData, query: Mapping[str, str]) -> ChartRange | None:
    """Return the days of the parameters `from` and `to`, both inclusive; None without both. Raises `UsageError`."""
    if "from" not in query and "to" not in query:
        return None
    calendar = report.settings.calendar
    last_day = calendar.day_number(report.as_of_ms)
    first_day = calendar.day_number(report.daily_splits[0].as_of_ms) if report.daily_splits else last_day
    from_day = _parse_day("from", query["from"]) if "from" in query else first_day
    until_day = _parse_day("to", query["to"]) if "to" in query else last_day
    if from_day > until_day:
        until_text, from_text = calendar.date_text(until_day), calendar.date_text(from_day)
        if "from" in query:
            raise ConfigError("from", from_text, f"a date up to {until_text}")
        raise ConfigError("to", until_text, f"a date from {from_text} on")
    from_ms, until_ms = calendar.start_ms(from_day), calendar.end_ms(until_day)
    text = f"{format_day(from_day * DAY_MS)} to {format_day(until_day * DAY_MS)}"
    return ChartRange(from_ms, until_ms, text)


def _page_values(report: ReportData, query: Mapping[str, str], now_ms: int) -> dict[str, Any]:
    """Return the values of `experiment_page.html` that the report file does not have."""
    calendar, name = report.settings.calendar, report.settings.name
    first_ms = report.daily_splits[0].as_of_ms if report.daily_splits else report.as_of_ms
    as_of = {"as_of": query["as_of"]} if report.is_past else {}
    absent_sections = set() if report.daily_splits else {anchor for anchor, _ in _CONTENTS[1:8]}
    if report.is_past:
        absent_sections.add("details")
    if report.day_log is None or not report.day_log.days:
        absent_sections.add("days")
    effects = report.latest_analysis.subgroup_effects.values()
    if not any(each.segments or each.exposure_ages for each in effects):
        absent_sections.add("for-whom")
    return {
        "contents": [(anchor, title) for anchor, title in _CONTENTS if anchor not in absent_sections],
        "first_date": _date_of(calendar, first_ms).isoformat(),
        "last_date": _date_of(calendar, now_ms).isoformat(),
        "as_of_date": _date_of(calendar, report.as_of_ms).isoformat() if report.is_past else "",
        "as_of_text": query.get("as_of", ""),
        "shared_as_of": query["as_of"] if report.is_past else "",
        "json_query": f"?{urlencode({'as_of': format_timestamp(report.as_of_ms)})}" if report.is_past else "",
        "from_date": query.get("from", ""),
        "to_date": query.get("to", ""),
        "items_page": None
        if report.settings.items is None or SHARE_PARAMETER in query
        else experiment_path(name, "/items"),
        "query": f"?{urlencode(as_of)}" if as_of else "",
        "json_path": f"/api/experiments/{quote(name, safe='')}/verdict",
    }
