"""The pages, metrics and JSON objects that are served over HTTP, as a Starlette application.

A new page is a route in `Endpoints._routes`, a function that returns a response, and a template in `templates/`. Its
style and scripts are files in `static/`: the Content-Security-Policy allows nothing inline.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from monitor.analysis import Summary
from monitor.clock import Clock
from monitor.config import DisplaySettings, parse_instant_ms
from monitor.errors import DependencyUnavailable, StoreOwned, UsageError
from monitor.export import ExperimentsCollector
from monitor.web.pages import page_context, page_response

log = logging.getLogger(__name__)
MAX_STORE_READS: Final = 16
"""Requests that read the store at the same time, each until its response has been sent."""
MAX_HEAD_BYTES: Final = 16_384
_RETRY_AFTER_S: Final = 10
_OPEN_PATHS: Final = frozenset({"/-/healthy", "/-/ready"})
"""Paths without a token: the probes of an orchestrator have none."""
PATHS: Final = (
    "/",
    "/metrics",
    "/metrics/experiments",
    "/-/healthy",
    "/-/ready",
    "/api/experiments",
    "/api/experiments/NAME",
    "/api/experiments/NAME/verdict",
    "/api/experiments/NAME/items",
    "/api/experiments/NAME/attention",
)
_VERDICT: Final = "/verdict"
_ITEMS: Final = ("/items", "/attention")


class Endpoints:
    """The routes of the application, and the functions that answer them.

    `summary` and `items` may block, and may raise `DependencyUnavailable`. `items` takes the path after
    `/api/experiments/` and the query; it raises `UsageError` for a wrong query and KeyError for an unknown experiment.
    `readiness` returns the reasons why the process is not ready, and does not block.
    """

    def __init__(
        self,
        *,
        summary: Callable[[int | None], Summary],
        items: Callable[[str, Mapping[str, str]], dict[str, Any]],
        process_registry: CollectorRegistry,
        readiness: Callable[[], Sequence[str]],
        display: DisplaySettings,
        clock: Clock,
    ) -> None:
        self._summary = summary
        self._items = items
        self._process = process_registry
        self._readiness = readiness
        self._display = display
        self._clock = clock
        self._experiments = ExperimentsCollector(lambda: summary(None), display.min_display_students)

    def application(self, token: str | None) -> Starlette:
        """Return the application; with a token, only who sends it gets anything but the state of the process."""
        application = Starlette(
            routes=self._routes(),
            middleware=[Middleware(DefaultHeaders), Middleware(RequestRules, token=token)],
            exception_handlers={
                HTTPException: _http_error,
                DependencyUnavailable: _store_out_of_reach,
                StoreOwned: _store_damaged,
            },
        )
        application.router.redirect_slashes = False
        return application

    def _routes(self) -> list[BaseRoute]:
        """Return the routes. Starlette calls an endpoint that is no coroutine function in a thread."""
        reading = [Middleware(ConcurrencyLimit, turns=asyncio.Semaphore(MAX_STORE_READS))]
        return [
            Route("/", self._show_page, middleware=reading),
            Route("/metrics", partial(_metrics, self._process)),
            Route("/metrics/experiments", partial(_metrics, self._experiments), middleware=reading),
            Route("/-/healthy", _healthy),
            Route("/-/ready", self._ready),
            Route("/api/experiments", self._all_experiments, middleware=reading),
            Route("/api/experiments/{path:path}", self._experiment, middleware=reading),
            Mount("/static", StaticFiles(directory=Path(__file__).with_name("static"))),
        ]

    def _show_page(self, request: Request) -> Response:
        summary, trouble, status = None, self._readiness(), 200
        try:
            summary = self._summary(None)
        except DependencyUnavailable as error:
            trouble, status = (f"The store is out of reach: {error}",), 503
        return page_response(request, page_context(summary, trouble, self._display, self._clock()), status)

    async def _ready(self, _request: Request) -> Response:
        reasons = self._readiness()
        return _text("\n".join(reasons), 503) if reasons else _text("ready")

    def _all_experiments(self, request: Request) -> Response:
        return _json(self._summary(_as_of_ms(request)).to_json())

    def _experiment(self, request: Request) -> Response:
        """Answer for an experiment, its verdict or its items."""
        name = request.path_params["path"]
        if name.endswith(_ITEMS):
            try:
                return _json(self._items(name, {key: text for key, text in request.query_params.items() if text}))
            except UsageError as error:
                raise HTTPException(400, str(error)) from error
            except KeyError:
                pass
        content = experiment_json(self._summary(_as_of_ms(request)), name)
        return _json({"error": "unknown experiment"}, 404) if content is None else _json(content)


def _metrics(collector: Collector, request: Request) -> Response:
    """Answer with the metrics of a collector, in the format that the request accepts."""
    encode, content_type = choose_encoder(request.headers.get("Accept", ""))
    return Response(encode(collector), headers={"Content-Type": content_type})


class ConcurrencyLimit:
    """ASGI middleware that admits as many requests at a time as `turns` has places, and answers 503 to others."""

    def __init__(self, app: ASGIApp, turns: asyncio.Semaphore) -> None:
        self._app = app
        self._turns = turns

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request; its place is free again when the response has been sent."""
        if self._turns.locked():
            raise HTTPException(503, f"{MAX_STORE_READS} requests read the store already: try again later")
        async with self._turns:
            await self._app(scope, receive, send)


class RequestRules:
    """ASGI middleware that refuses requests that are too large, have no valid token, or are neither GET nor HEAD."""

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass an acceptable request on, and answer any other."""
        await (self._refusal(scope) or self._app)(scope, receive, send)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        line_bytes = len(scope["method"]) + len(scope["raw_path"]) + len(scope["query_string"])
        head_bytes = line_bytes + sum(len(name) + len(text) + 4 for name, text in headers.raw)
        if head_bytes > MAX_HEAD_BYTES:
            status = 414 if line_bytes > MAX_HEAD_BYTES else 413
            return _text(f"request line and headers: {head_bytes} bytes, expected at most {MAX_HEAD_BYTES}", status)
        if scope["http_version"] not in ("1.0", "1.1"):
            return _text("expected HTTP/1.0 or HTTP/1.1", 505)
        if not (scope["path"] in _OPEN_PATHS or self._authorized(headers)):
            return _text("a bearer token is needed here", 401, {"WWW-Authenticate": "Bearer"})
        if headers.get("Content-Length", "0").strip("0") or "Transfer-Encoding" in headers:
            return _text("a request has no body here", 413, {"Connection": "close"})
        if scope["method"] not in ("GET", "HEAD"):
            return _text("only GET and HEAD", 405, {"Allow": "GET, HEAD"})
        return None

    def _authorized(self, headers: Headers) -> bool:
        if self._token is None:
            return True
        scheme, _, token = headers.get("Authorization", "").partition(" ")
        # Starlette decodes headers as Latin-1.
        valid = hmac.compare_digest(token.strip().encode("latin-1"), self._token.encode())
        return valid and scheme.lower() == "bearer"


class DefaultHeaders:
    """ASGI middleware that adds the headers that every response has."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.setdefault("X-Content-Type-Options", "nosniff")
                headers.setdefault("Cache-Control", "no-store")
                if message["status"] == HTTPStatus.SERVICE_UNAVAILABLE:
                    headers.setdefault("Retry-After", str(_RETRY_AFTER_S))
            await send(message)

        await self._app(scope, receive, send_with_headers)


def experiment_json(summary: Summary, path: str) -> dict[str, Any] | None:
    """Return the object of an experiment or, for NAME/verdict, its verdict; None for an unknown experiment.

    An experiment may be named NAME/verdict itself: it comes first.
    """
    if path in summary.experiments:
        return summary.experiments[path].to_json()
    name = path.removesuffix(_VERDICT)
    return summary.verdict_json(name) if name != path and name in summary.experiments else None


async def _healthy(_request: Request) -> Response:
    return _text("healthy")


async def _http_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == HTTPStatus.NOT_FOUND:
        return _text(f"nothing here; there is {', '.join(PATHS)}", 404)
    return _text(error.detail, error.status_code, error.headers)


async def _store_out_of_reach(_request: Request, error: Exception) -> Response:
    return _text(f"the store is out of reach: {error}", 503)


async def _store_damaged(_request: Request, error: Exception) -> Response:
    """Return the name of the damaged key: no number is better than a wrong one."""
    log.error("http %s", error)
    return _text(str(error), 500)


def _text(text: str, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return PlainTextResponse(f"{text}\n", status, headers)


def _json(content: dict[str, Any], status: int = 200) -> Response:
    text = json.dumps(content, ensure_ascii=False, allow_nan=False)
    return Response(text, status, media_type="application/json")


def _as_of_ms(request: Request) -> int | None:
    """Return the time in ?as_of=, None without one."""
    text = request.query_params.get("as_of")
    if not text:
        return None
    try:
        # A + that was not escaped arrives as a blank.
        return parse_instant_ms("as_of", text.replace(" ", "+"))
    except UsageError as error:
        raise HTTPException(400, str(error)) from error
