"""The Starlette application: the pages, metrics and JSON objects served over HTTP.

A new page needs a function that returns its `PageContent`, a template that extends `base.html`, its path in
`HTTP_PATHS`, and an entry in `pages` or `experiment_pages` of `HttpEndpoints` (`monitor.app.serve_http`). Styles and
scripts are files in `static/`, because the Content-Security-Policy forbids inline code. A path that changes the service
needs an entry in `_WRITE_RULES` in `access.py`, too.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from monitor.analysis import ExperimentSummary, StoreSummary, VerdictHistory, history_json
from monitor.clock import Clock
from monitor.config import DisplaySettings, HttpSettings, ReloadResult, parse_instant_ms, similar_name
from monitor.errors import (
    DependencyUnavailable,
    UnknownExperiment,
    UnusableStore,
    UsageError,
    escape_controls,
    escape_lines,
    setting_text,
)
from monitor.export import ExperimentsCollector, ServiceHealth, headlines_json
from monitor.pipeline import ExperimentDeclarations
from monitor.web.access import RequestRules
from monitor.web.declaration_routes import DeclarationEndpoints
from monitor.web.grafana_links import board_address
from monitor.web.list_page import list_page
from monitor.web.pages import ExperimentPage, Page, PageContent, page_header, page_response, problem_page
from monitor.web.reader import request_reader
from monitor.web.runbook import runbook_response
from monitor.web.service_page import service_page
from monitor.web.share_links import page_share_path

log = logging.getLogger(__name__)
MAX_CONCURRENT_STORE_READS: Final = 16
"""Concurrent requests that may read the store; a request counts until its response has been sent."""
_RETRY_AFTER_S: Final = 10
HTTP_PATHS: Final = (
    "/",
    "/experiments/NAME",
    "/experiments/NAME/report",
    "/experiments/NAME/items",
    "/glossary",
    "/experiments/NAME/plan",
    "/service",
    "/metrics",
    "/metrics/experiments",
    "/runbook",
    "/-/healthy",
    "/-/ready",
    "/-/reload",
    "/api/health",
    "/api/experiments",
    "/api/experiments/NAME",
    "/api/experiments/NAME/verdict",
    "/api/experiments/NAME/days",
    "/api/experiments/NAME/items",
    "/api/experiments/NAME/attention",
    "/api/declarations",
    "/api/declarations/NAME",
)
_STATIC_PATH: Final = "/static"
_EXPERIMENT_PAGES: Final = "/experiments/"
_VERDICT_SUFFIX: Final = "/verdict"
_DAYS_SUFFIX: Final = "/days"
_ITEM_SUFFIXES: Final = ("/items", "/attention")
_EXPERIMENT_SUFFIXES: Final = (_VERDICT_SUFFIX, _DAYS_SUFFIX, *_ITEM_SUFFIXES)


class HttpEndpoints:
    """The routes of the application and their endpoints.

    `read_summary`, `read_verdicts`, `read_counts`, `read_history` and `read_items` may block, and may raise
    `DependencyUnavailable`. `read_verdicts` returns recent verdicts, see the methods of `StoreReader`. `read_items`
    takes the path after `/api/experiments/` and the query. It raises `UsageError` for a wrong query and KeyError for an
    unknown experiment. `read_days` returns the days of an experiment up to a time as JSON; without it, there is no such
    path. `read_days` and `read_history` raise `UnknownExperiment` if the experiment was removed after the summary.
    `read_health` returns a recent health of the service. It and `read_starts` may raise `DependencyUnavailable`.
    `reload_configuration` may block. `readiness_problems` returns the reasons why the process is not ready,
    `data_problems` sentences about events that do not count; neither blocks. Without `declarations`, there are no paths
    of declared experiments.

    `pages` has further pages by their path. `experiment_pages` has the pages about an experiment by the end of their
    path: "" for `/experiments/NAME`, "/plan" for `/experiments/NAME/plan`. `experiment_names` returns the names of the
    declared experiments. All of these may block.
    """

    def __init__(
        self,
        *,
        read_summary: Callable[[int | None], StoreSummary],
        read_history: Callable[[ExperimentSummary], VerdictHistory],
        read_items: Callable[[str, Mapping[str, str]], dict[str, Any]],
        read_health: Callable[[], ServiceHealth],
        read_starts: Callable[[], int],
        reload_configuration: Callable[[], ReloadResult],
        process_registry: CollectorRegistry,
        data_problems: Callable[[], Sequence[str]],
        readiness_problems: Callable[[], Sequence[str]],
        display: DisplaySettings,
        clock: Clock,
        declarations: ExperimentDeclarations | None = None,
        pages: Mapping[str, Page] = MappingProxyType({}),
        experiment_pages: Mapping[str, ExperimentPage] = MappingProxyType({}),
        experiment_names: Callable[[], Collection[str]] = tuple,
        read_days: Callable[[ExperimentSummary, int | None], dict[str, Any]] | None = None,
        read_verdicts: Callable[[], StoreSummary] | None = None,
        read_counts: Callable[[], StoreSummary] | None = None,
    ) -> None:
        self._read_summary = read_summary
        self._read_verdicts = read_verdicts or partial(read_summary, None)
        self._read_counts = read_counts or partial(read_summary, None)
        self._read_history = read_history
        self._read_items = read_items
        self._read_days = read_days
        self._process_registry = process_registry
        self._read_health = read_health
        self._reload_configuration = reload_configuration
        self._data_problems = data_problems
        self._readiness_problems = readiness_problems
        self._display = display
        self._clock = clock
        self._declarations = declarations
        self._pages: Mapping[str, Page] = {"/": self._list_page, "/service": self._service_page, **pages}
        self._experiment_pages = experiment_pages
        self._experiment_names = experiment_names
        self._experiments_collector = ExperimentsCollector(
            lambda: read_summary(None), display.min_display_students, read_starts
        )

    def application(self, settings: HttpSettings) -> Starlette:
        """Return the application; the settings state who may read."""
        application = Starlette(
            routes=self._routes(settings.share_secret),
            middleware=[Middleware(DefaultHeaders), Middleware(RequestRules, settings=settings, clock=self._clock)],
            exception_handlers={
                HTTPException: self._http_error,
                DependencyUnavailable: _store_unavailable,
                UnusableStore: self._store_corrupt,
            },
        )
        application.router.redirect_slashes = False
        return application

    def _routes(self, share_secret: str | None) -> list[BaseRoute]:
        """Return the routes. Starlette runs plain functions in threads, so such endpoints may block."""
        store_access = [Middleware(ConcurrencyLimit, slots=asyncio.Semaphore(MAX_CONCURRENT_STORE_READS))]
        return [
            *(Route(path, partial(self._page, page), middleware=store_access) for path, page in self._pages.items()),
            Route(
                f"{_EXPERIMENT_PAGES}{{path:path}}",
                partial(self._experiment_page, share_secret),
                middleware=store_access,
            ),
            Route("/metrics", partial(_metrics_response, self._process_registry)),
            Route(
                "/metrics/experiments", partial(_metrics_response, self._experiments_collector), middleware=store_access
            ),
            Route("/runbook", runbook_response),
            Route("/-/healthy", _healthy),
            Route("/-/ready", self._ready),
            Route("/-/reload", self._reload, methods=["POST"]),
            Route("/api/health", self._health, middleware=store_access),
            Route("/api/experiments", self._all_experiments, middleware=store_access),
            Route("/api/experiments/{path:path}", self._experiment, middleware=store_access),
            *(DeclarationEndpoints(self._declarations).routes(store_access) if self._declarations else ()),
            Mount(
                _STATIC_PATH,
                StaticFiles(directory=Path(__file__).with_name("static")),
                middleware=[Middleware(GZipMiddleware)],
            ),
        ]

    def _page(self, page: Page, request: Request) -> Response:
        """Return the response to a request of a page."""
        try:
            content = _page_content(page, request)
            health = self._read_health()
        except DependencyUnavailable as error:
            return self._page_without_store(request, f"The store is out of reach: {error}", 503)
        header = page_header(health, self._readiness_problems(), self._clock())
        board = board_address(self._display.grafana_url, request.url.path, content.experiment)
        return page_response(request, content, {**header, "board_address": board})

    def _list_page(self, query: Mapping[str, str]) -> PageContent:
        return list_page(self._read_verdicts(), self._read_health(), self._display, self._clock(), query)

    def _service_page(self, _query: Mapping[str, str]) -> PageContent:
        return service_page(self._read_counts(), self._read_health())

    def _experiment_page(self, share_secret: str | None, request: Request) -> Response:
        """Return a page about an experiment. If an experiment is named like the path of another page, it is meant.

        With a secret, readers who may see all experiments get a share link.
        """
        path = request.path_params["path"]
        reader = request_reader(request)

        def page(query: Mapping[str, str]) -> PageContent:
            names = list(filter(reader.can_see, self._experiment_names()))
            for suffix in sorted(self._experiment_pages, key=len):
                name = path[: len(path) - len(suffix)]
                if path.endswith(suffix) and name in names:
                    content = replace(self._experiment_pages[suffix](name, query), experiment=name)
                    if share_secret is None or not reader.can_see_all or "shared_as_of" not in content.values:
                        return content
                    link = page_share_path(share_secret, name, content.values["shared_as_of"], self._clock() / 1000)
                    return replace(content, values={**content.values, "share_path": link})
            text = unknown_experiment_text(path, names)
            return problem_page("No such experiment", f"{text[0].upper()}{text[1:]}.", 404)

        return self._page(page, request)

    def _page_without_store(self, request: Request, problem: str, status: int) -> Response:
        """Return a page with a problem instead of the experiments."""
        content = PageContent("base.html", status=status)
        return page_response(request, content, page_header(None, (problem,), self._clock()))

    def _is_page(self, request: Request) -> bool:
        return request.url.path in self._pages or request.url.path.startswith(_EXPERIMENT_PAGES)

    async def _ready(self, _request: Request) -> Response:
        """Return 200 while the process is ready, with the problems of the events, which a restart would not solve."""
        problems = self._readiness_problems()
        return _text_response("\n".join(problems or ("ready", *self._data_problems())), 503 if problems else 200)

    def _reload(self, _request: Request) -> Response:
        """Return 200 with the outcome of a reload of the configuration, or 422 with the reasons of its failure."""
        result = self._reload_configuration()
        return _text_response(escape_lines(result.text), 200 if result.is_successful else 422)

    async def _http_error(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == HTTPStatus.NOT_FOUND:
            return _text_response(f"nothing here; there is {', '.join(HTTP_PATHS)}", 404)
        if self._is_page(request) and error.status_code == HTTPStatus.SERVICE_UNAVAILABLE:
            return self._page_without_store(request, error.detail, 503)
        return _text_response(error.detail, error.status_code, error.headers)

    async def _store_corrupt(self, request: Request, error: Exception) -> Response:
        """Return 500 with the name of the corrupt key, instead of numbers that may be wrong."""
        log.error("http %s", error)
        if self._is_page(request):
            return self._page_without_store(request, str(error), 500)
        return _text_response(str(error), 500)

    def _health(self, _request: Request) -> Response:
        return _json_response(self._read_health().to_json())

    def _all_experiments(self, request: Request) -> Response:
        summary = self._read_summary(_as_of_ms(request))
        problems = [problem.to_json() for problem in self._read_health().data_problems]
        return _json_response(summary.to_json() | {"problems": problems})

    def _experiment(self, request: Request) -> Response:
        """Return an experiment, a verdict or items as JSON, depending on the end of the path."""
        name = request.path_params["path"]
        if name.endswith(_ITEM_SUFFIXES):
            try:
                return _json_response(
                    self._read_items(name, {key: text for key, text in request.query_params.items() if text})
                )
            except UsageError as error:
                raise HTTPException(400, str(error)) from error
            except KeyError:
                pass
        as_of_ms, reader = _as_of_ms(request), request_reader(request)
        if not reader.can_see_all and self._display.min_display_students > 1:
            raise HTTPException(
                403, "a share link opens no JSON here, because display.min_display_students hides effects on its pages"
            )
        summary = self._read_summary(as_of_ms)
        experiments = summary.experiments
        visible_experiments = {key: experiments[key] for key in experiments if reader.can_see(key)}
        summary = replace(summary, experiments=visible_experiments)
        days_of = summary.experiments.get(name.removesuffix(_DAYS_SUFFIX)) if name.endswith(_DAYS_SUFFIX) else None
        try:
            if self._read_days is not None and days_of is not None and name not in summary.experiments:
                return _json_response(self._read_days(days_of, as_of_ms))
            content = experiment_json(summary, name, self._read_history)
        except UnknownExperiment as error:
            # The configuration was changed after the summary was read.
            return _json_response({"error": str(error)}, 404)
        if content is None:
            return _json_response({"error": unknown_experiment_text(name, summary.experiments)}, 404)
        return _json_response(content)


def _metrics_response(collector: Collector, request: Request) -> Response:
    """Return the metrics of a collector in the text format that the request accepts."""
    encode, content_type = choose_encoder(request.headers.get("Accept", ""))
    return Response(encode(collector), headers={"Content-Type": content_type})


class ConcurrencyLimit:
    """ASGI middleware that limits concurrent requests: if `slots` has no free slot, the response is 503."""

    def __init__(self, app: ASGIApp, slots: asyncio.Semaphore) -> None:
        self._app = app
        self._slots = slots

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Occupy a slot until the response to the request has been sent."""
        if self._slots.locked():
            raise HTTPException(
                503, f"{MAX_CONCURRENT_STORE_READS} requests are reading the store, which is the limit: try again later"
            )
        async with self._slots:
            await self._app(scope, receive, send)


class DefaultHeaders:
    """ASGI middleware that adds the common headers to every response."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request with the common headers."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.setdefault("X-Content-Type-Options", "nosniff")
                # Scripts and styles are public: a browser keeps them, and asks with their ETag whether they changed.
                is_static = scope["path"].startswith(f"{_STATIC_PATH}/")
                headers.setdefault("Cache-Control", "no-cache" if is_static else "no-store")
                headers.setdefault("Referrer-Policy", "no-referrer")
                if message["status"] == HTTPStatus.SERVICE_UNAVAILABLE:
                    headers.setdefault("Retry-After", str(_RETRY_AFTER_S))
            await send(message)

        await self._app(scope, receive, send_with_headers)


def experiment_json(
    summary: StoreSummary, path: str, read_history: Callable[[ExperimentSummary], VerdictHistory]
) -> dict[str, Any] | None:
    """Return the JSON object of an experiment or, for NAME/verdict, of the verdict; None for an unknown experiment.

    Both have the headlines and the history of the verdicts. If an experiment itself is named NAME/verdict, its object
    is returned.
    """
    name = path if path in summary.experiments else path.removesuffix(_VERDICT_SUFFIX)
    experiment = summary.experiments.get(name)
    if experiment is None:
        return None
    content = experiment.to_json() if name == path else summary.verdict_json(name)
    return {**content, "headline": headlines_json(experiment), "history": history_json(read_history(experiment))}


def unknown_experiment_text(path: str, names: Collection[str]) -> str:
    """Return why an address has no experiment, with the similar one of the declared names and all of these.

    >>> unknown_experiment_text("Ranker V2/verdict", ["explainer", "ranker-v2"])
    'unknown experiment "Ranker V2", did you mean "ranker-v2"? Expected one of "explainer", "ranker-v2"'
    """
    name = next((path.removesuffix(suffix) for suffix in _EXPERIMENT_SUFFIXES if path.endswith(suffix)), path)
    similar = similar_name(name, names)
    hint = "." if similar is None else f", did you mean {setting_text(similar)}?"
    declared = ", ".join(map(setting_text, names))
    expected = f"Expected one of {declared}" if names else "No experiment is declared"
    return escape_controls(f"unknown experiment {setting_text(name)}{hint} {expected}")


async def _healthy(_request: Request) -> Response:
    return _text_response("healthy")


async def _store_unavailable(_request: Request, error: Exception) -> Response:
    return _text_response(f"the store is out of reach: {error}", 503)


def _page_content(page: Page, request: Request) -> PageContent:
    """Return the content of a page for a request, or the text of the error if a parameter of the query is wrong."""
    try:
        return page({key: text for key, text in request.query_params.items() if text})
    except UnknownExperiment as error:
        # The configuration was changed after the names were read.
        return problem_page("No such experiment", f"{error}.", 404)
    except UsageError as error:
        return problem_page("Not understood", str(error), 400)


def _text_response(text: str, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return PlainTextResponse(f"{text}\n", status, headers)


def _json_response(content: dict[str, Any], status: int = 200) -> Response:
    text = json.dumps(content, ensure_ascii=False, allow_nan=False)
    return Response(text, status, media_type="application/json")


def _as_of_ms(request: Request) -> int | None:
    """Return the time in the query parameter `as_of`, None without the parameter."""
    text = request.query_params.get("as_of")
    if not text:
        return None
    try:
        # In a query, an unescaped + means a blank.
        return parse_instant_ms("as_of", text.replace(" ", "+"))
    except UsageError as error:
        raise HTTPException(400, str(error)) from error
