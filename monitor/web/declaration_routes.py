"""Declared experiments over HTTP: the same reads and changes as those of `ab-monitor experiments`.

Requests that change experiments need a token, which `RequestRules` checks.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from typing import Any, Final

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from monitor.config import parse_declarations
from monitor.errors import ExperimentConflict, UnknownExperiment, UsageError, escape_lines, setting_text
from monitor.pipeline import ExperimentDeclarations

log = logging.getLogger(__name__)
MAX_DECLARATION_BYTES: Final = 262_144
_BODY_TIMEOUT_S: Final = 5.0


class DeclarationEndpoints:
    """The endpoints of declared experiments, below `/api/declarations`."""

    def __init__(self, declarations: ExperimentDeclarations) -> None:
        self._declarations = declarations

    def routes(self, middleware: Sequence[Middleware]) -> list[BaseRoute]:
        """Return the routes, each with the middleware. Starlette runs plain functions in threads, so they may block."""
        collection = "/api/declarations"
        experiment = f"{collection}/{{name:path}}"  # A name may contain slashes.
        return [
            Route(collection, self._list, middleware=middleware),
            Route(collection, self._declare, methods=["PUT"], middleware=middleware),
            Route(f"{experiment}/archive", self._archive, methods=["POST"], middleware=middleware),
            Route(f"{experiment}/adopt", self._adopt, methods=["POST"], middleware=middleware),
            Route(experiment, self._show, middleware=middleware),
            Route(experiment, self._delete, methods=["DELETE"], middleware=middleware),
        ]

    def _list(self, _request: Request) -> Response:
        return JSONResponse(self._declarations.read().to_json())

    def _show(self, request: Request) -> Response:
        return _answer(lambda: self._experiment_json(_name(request)))

    async def _declare(self, request: Request) -> Response:
        """Declare or change the experiments of the request's TOML body."""
        try:
            async with asyncio.timeout(_BODY_TIMEOUT_S):
                body = await request.body()
        except TimeoutError as error:
            raise HTTPException(
                408,
                f"the body did not arrive within {_BODY_TIMEOUT_S:g} s: send the request again",
                {"Connection": "close"},
            ) from error
        return await run_in_threadpool(_answer, lambda: self._declare_text(body, request))

    def _declare_text(self, body: bytes, request: Request) -> dict[str, Any]:
        try:
            text = body.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise UsageError(f"byte {error.start} of the body is not UTF-8: send the TOML text as UTF-8") from error
        experiments = parse_declarations("the request", text, may_name_files=False)
        declared = self._declarations.declare(experiments, _origin(request))
        for experiment in declared:
            _log_change("declared", experiment.name, request)
        declarations = self._declarations.read()
        return {"experiments": list(map(declarations.experiment_json, declared))}

    def _archive(self, request: Request) -> Response:
        def archive() -> dict[str, Any]:
            name = self._declarations.archive(_name(request), _origin(request)).name
            _log_change("archived", name, request)
            return self._experiment_json(name)

        return _answer(archive)

    def _adopt(self, request: Request) -> Response:
        def adopt() -> dict[str, Any]:
            declaration = self._declarations.suggest(_name(request))
            name = self._declarations.adopt(_name(request), declaration, _origin(request)).name
            _log_change("adopted", name, request)
            return self._experiment_json(name)

        return _answer(adopt)

    def _delete(self, request: Request) -> Response:
        name = _name(request)
        confirmation = request.query_params.get("confirm")
        if confirmation != name:
            raise HTTPException(
                400,
                f"confirm: got {setting_text(confirmation)}, expected the experiment's name {setting_text(name)}: add "
                "?confirm=NAME, because the results are deleted for good",
            )

        def delete() -> dict[str, Any]:
            deleted_keys = self._declarations.delete(name, _origin(request))
            _log_change("deleted", name, request)
            return {"name": name, "deleted_keys": deleted_keys}

        return _answer(delete)

    def _experiment_json(self, name: str) -> dict[str, Any]:
        declarations = self._declarations.read()
        return declarations.experiment_json(declarations.declared_set.get(name))


def _answer(read_or_change: Callable[[], dict[str, Any]]) -> Response:
    """Return the JSON response with the result of a function, or with its `UsageError`."""
    try:
        return JSONResponse(read_or_change())
    except UsageError as error:
        return JSONResponse({"error": escape_lines(str(error))}, _status_of(error))


def _status_of(error: UsageError) -> int:
    if isinstance(error, UnknownExperiment):
        return 404
    return 409 if isinstance(error, ExperimentConflict) else 422


def _name(request: Request) -> str:
    return str(request.path_params["name"])


def _origin(request: Request) -> str:
    return f"an HTTP request from {_client_address(request)} to {socket.gethostname()}"


def _client_address(request: Request) -> str:
    return "an unknown address" if request.client is None else request.client.host


def _log_change(action: str, experiment: str, request: Request) -> None:
    log.info("experiment %s experiment=%s client=%s", action, experiment, _client_address(request))
