"""Declared experiments over HTTP, on a real store."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from prometheus_client import CollectorRegistry

from monitor.analysis import StoreSummary
from monitor.clock import wall_clock
from monitor.config import (
    DisplaySettings,
    HttpSettings,
    ReloadResult,
    Settings,
    StoreSettings,
    parse_declarations,
    parse_settings,
    replace_file_experiments,
)
from monitor.errors import DependencyUnavailable
from monitor.export import ServiceHealth
from monitor.pipeline import ExperimentDeclarations
from monitor.state import BackfillState, ShardedStore, join_store, write_backfill
from monitor.web import HttpEndpoints, HttpServer
from tests.servers.redis import RedisServer
from tests.support.http_client import Answer, ask

TOKEN = "a-token-of-some-length"
AUTHORIZED = {"Authorization": f"Bearer {TOKEN}"}
COLLECTION = "/api/declarations"
SLASHED = "search/é 1"
TABLE = """
[[experiments]]
name = "NAME"
control = "control"
variants = { control = 0.5, treatment = 0.5 }
"""


def table(name: str, further: str = "") -> str:
    """Return the declaration of an experiment."""
    return TABLE.replace("NAME", name) + further


def path_of(name: str) -> str:
    """Return the path of an experiment."""
    return f"{COLLECTION}/{quote(name, safe='/')}"


def _no_store(_as_of_ms: int | None) -> StoreSummary:
    raise DependencyUnavailable("no summary here")


class Service:
    """A server whose store has the experiment `ranker` of a file."""

    def __init__(self, store: ShardedStore, settings: Settings, token: str | None) -> None:
        self.store = store
        change = partial(join_store, store, settings)
        ranker = parse_declarations("a file", table("ranker"))
        change(lambda current: replace_file_experiments(current, ranker, "a file", wall_clock()))
        endpoints = HttpEndpoints(
            read_summary=_no_store,
            read_verdicts=lambda: _no_store(None),
            read_counts=lambda: _no_store(None),
            read_history=lambda _experiment: {},
            read_items=lambda path, _query: {"path": path},
            read_health=lambda: ServiceHealth(0, "", ""),
            read_starts=lambda: 0,
            data_problems=tuple,
            process_registry=CollectorRegistry(),
            readiness_problems=tuple,
            reload_configuration=lambda: ReloadResult(is_successful=True, text=""),
            display=DisplaySettings(),
            clock=wall_clock,
            declarations=ExperimentDeclarations(store, lambda: settings, wall_clock, change),
        )
        self.server = HttpServer(HttpSettings(port=0, token=token), endpoints)
        self.headers = {} if token is None else AUTHORIZED

    def ask(self, path: str, method: str = "GET", body: str | bytes | None = None) -> Answer:
        """Return the response to a request with the token."""
        body = body.encode() if isinstance(body, str) else body
        return ask(self.server.port, path, method, body, self.headers)

    def put(self, *tables: str) -> Answer:
        """Return the response to a declaration."""
        return self.ask(COLLECTION, "PUT", "".join(tables))

    def states(self) -> dict[str, tuple[str, bool]]:
        """Return experiment → its source, and whether the experiment is archived."""
        listed = json.loads(self.ask(COLLECTION).body)["experiments"]
        return {each["name"]: (each["source"], each["archived_ms"] is not None) for each in listed}


def error(answer: Answer) -> tuple[int, str]:
    """Return the status and the error of a response."""
    content: dict[str, Any] = json.loads(answer.body)
    return answer.status, content["error"]


@pytest.fixture(params=[TOKEN])
def web(request: pytest.FixtureRequest, redis_server: RedisServer) -> Iterator[Service]:
    """Yield a running server, with the token of the parameter."""
    redis_server.client().flushall()
    settings = parse_settings({"experiments": []}, {})
    store_settings = StoreSettings(url=redis_server.url)
    with closing(ShardedStore(store_settings)) as store:
        running = Service(store, settings, request.param)
        running.server.start()
        try:
            yield running
        finally:
            running.server.stop()


class TestDeclare:
    """PUT."""

    def test_experiments_are_declared_changed_and_logged(self, web: Service, caplog: pytest.LogCaptureFixture) -> None:
        """The response has the experiments of the request. The log has the client and no token."""
        with caplog.at_level(logging.INFO):
            answer = web.put(table("one"), table(SLASHED))
        assert answer.status == 200
        assert [each["name"] for each in json.loads(answer.body)["experiments"]] == ["one", SLASHED]
        assert web.states() == {"ranker": ("file", False), "one": ("command", False), SLASHED: ("command", False)}
        assert f"experiment declared experiment={SLASHED} client=127.0.0.1" in caplog.messages
        assert TOKEN not in caplog.text
        (changed,) = json.loads(web.put(table("one", "mde = 0.2\n")).body)["experiments"]
        assert [change["text"] for change in changed["changes"]] == ["mde not set → 0.2"]

    def test_wrong_settings_are_rejected_with_their_lines_and_nothing_is_declared(self, web: Service) -> None:
        """All of them in one response."""
        status, text = error(web.put(table("one", "alpha = 9\n"), table("two", "exposure_days = 0\n")))
        assert status == 422
        assert "experiments.one.alpha: got 9" in text
        assert "(line 6 of the file)" in text
        assert "(line 12 of the file)" in text
        assert list(web.states()) == ["ranker"]

    @pytest.mark.parametrize(
        ("body", "message"),
        [
            (b"", "the request: got nothing, expected [[experiments]] tables and nothing else"),
            (b"name = ", "the request: this is not TOML"),
            (b'{"name": "one"}', "TOML has lines such as"),
            (b"[store]\nurl = 'redis://elsewhere'\n" + table("one").encode(), "got store, expected [[experiments]]"),
            (b"\xff", "byte 0 of the body is not UTF-8"),
            (b"a = " + b"[" * 100_000, "nested too deeply"),
        ],
        ids=["empty", "incomplete", "JSON", "section", "Latin-1", "nested"],
    )
    def test_other_bodies_are_rejected_with_422(self, web: Service, body: bytes, message: str) -> None:
        """The error states what was expected."""
        status, text = error(web.ask(COLLECTION, "PUT", body))
        assert (status, message in text) == (422, True), text

    @pytest.mark.parametrize(
        "setting",
        [
            'items = { horizon = "30d", catalogue = "<path>" }',
            'items = { horizon = "30d", catalog = "<path>" }',
            'itms = { horizon = "30d", catalogue = "<path>" }',
            'drift = { reference = "<path>" }',
            'drift = { items_reference = "<path>" }',
            'Drift = { references = "<path>" }',
        ],
    )
    def test_a_declaration_cannot_name_a_file_of_the_server(self, web: Service, setting: str, tmp_path: Path) -> None:
        """Also not under a misspelt key. Nothing of the file is in the response."""
        path = tmp_path / "secret"
        path.write_text('{"secret words": "x"}')
        status, text = error(web.put(table("one", setting.replace("<path>", str(path)))))
        assert status == 422
        assert "a request cannot use the files of the service" in text
        assert "(line 6 of the file)" in text
        assert "secret words" not in text
        assert list(web.states()) == ["ranker"]

    def test_a_kind_of_feedback_may_have_the_name_of_a_key_with_a_file(self, web: Service) -> None:
        """The values of `grades` are no names of files."""
        assert web.put(table("one", 'grades = { reference = "score" }')).status == 200

    def test_an_experiment_of_a_file_cannot_be_declared(self, web: Service) -> None:
        """The message names the file."""
        status, text = error(web.put(table("ranker", "mde = 0.2\n")))
        assert (status, "is declared in a configuration file (a file)" in text) == (409, True)

    def test_a_body_needs_a_length_below_256_kib(self, web: Service) -> None:
        """The server does not read other bodies."""
        assert web.ask(COLLECTION, "PUT", b"#" * 262_145).status == 413
        chunked = {**AUTHORIZED, "Transfer-Encoding": "chunked"}
        assert ask(web.server.port, COLLECTION, "PUT", b"0\r\n\r\n", chunked).status == 411

    def test_a_body_that_does_not_arrive_is_given_up(self, web: Service, monkeypatch: pytest.MonkeyPatch) -> None:
        """The connection is closed."""
        monkeypatch.setattr("monitor.web.declaration_routes._BODY_TIMEOUT_S", 0.05)
        head = f"PUT {COLLECTION} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 9\r\n\r\n"
        with socket.create_connection(("127.0.0.1", web.server.port), timeout=10) as connection:
            connection.sendall(head.encode())
            reply = b"".join(iter(partial(connection.recv, 4096), b""))
        assert reply.startswith(b"HTTP/1.1 408 ")
        assert b"send the request again" in reply


class TestArchiveAndDelete:
    """POST and DELETE."""

    def test_an_experiment_is_archived_and_then_deleted_after_confirmation(self, web: Service) -> None:
        """The name has a slash, a blank and a letter that is not ASCII."""
        web.put(table(SLASHED))
        path = path_of(SLASHED)
        confirmed = f"{path}?confirm={quote(SLASHED)}"
        status, text = error(web.ask(confirmed, "DELETE"))
        assert (status, "is not archived" in text) == (409, True)
        answer = web.ask(f"{path}/archive", "POST")
        assert (answer.status, json.loads(answer.body)["archived_ms"] is None) == (200, False)
        assert error(web.ask(f"{path}/archive", "POST"))[0] == 409
        for unconfirmed in (path, f"{path}?confirm=yes"):
            answer = web.ask(unconfirmed, "DELETE")
            assert (answer.status, b"expected the experiment's name" in answer.body) == (400, True)
        assert web.ask(confirmed, "DELETE").status == 200
        assert web.states() == {"ranker": ("file", False)}
        assert error(web.ask(confirmed, "DELETE"))[0] == 404

    def test_an_experiment_of_a_file_cannot_be_archived(self, web: Service) -> None:
        """The next synchronization with the file would count it again."""
        assert error(web.ask(f"{COLLECTION}/ranker/archive", "POST"))[0] == 409
        assert web.states() == {"ranker": ("file", False)}

    @pytest.mark.parametrize(
        ("method", "suffix"), [("GET", ""), ("POST", "/archive"), ("DELETE", "?confirm=Ranker%E2%80%AE")]
    )
    def test_an_unknown_experiment_gives_404_with_the_similar_name(
        self, web: Service, method: str, suffix: str
    ) -> None:
        """Control characters are escaped."""
        answer = web.ask(f"{COLLECTION}/Ranker%E2%80%AE{suffix}", method)
        message = 'unknown experiment "Ranker\\u202e", did you mean "ranker"? Declared: "ranker"'
        assert error(answer) == (404, message)

    def test_an_experiment_without_events_cannot_be_adopted(self, web: Service) -> None:
        """A declared one is in conflict."""
        status, text = error(web.ask(f"{COLLECTION}/new/adopt", "POST"))
        assert (status, text) == (404, 'no events of an undeclared experiment "new" were seen. Seen: none')
        assert error(web.ask(f"{COLLECTION}/ranker/adopt", "POST"))[0] == 409


class TestRead:
    """GET."""

    def test_the_progress_of_a_backfill_is_part_of_an_experiment(self, web: Service) -> None:
        """As a share; a failed backfill has a reason."""
        (declared,) = json.loads(web.put(table("one")).body)["experiments"]
        state = BackfillState("running", 0, 0, records_done=43, records_total=100)
        write_backfill(web.store, declared["number"], state)
        one = json.loads(web.ask(f"{COLLECTION}/one").body)
        assert one["backfill"] == {"state": "running", "share": 0.43, "reason": None}
        assert one in json.loads(web.ask(COLLECTION).body)["experiments"]

    @pytest.mark.parametrize("web", [None], indirect=True)
    def test_without_a_token_declarations_can_be_read_and_not_be_changed(self, web: Service) -> None:
        """403 names the variable of the token."""
        assert list(web.states()) == ["ranker"]
        for path, method in [(COLLECTION, "PUT"), (f"{COLLECTION}/x/archive", "POST"), (f"{COLLECTION}/x", "DELETE")]:
            answer = web.ask(path, method)
            assert (answer.status, b"ABMONITOR_HTTP_TOKEN_FILE" in answer.body) == (403, True)
        assert list(web.states()) == ["ranker"]

    @pytest.mark.parametrize("method", ["GET", "PUT", "POST", "DELETE"])
    def test_a_wrong_token_gives_401(self, web: Service, method: str) -> None:
        """Before anything else."""
        assert ask(web.server.port, COLLECTION, method, headers={"Authorization": "Bearer wrong"}).status == 401

    @pytest.mark.parametrize(
        ("path", "method", "allowed"),
        [
            (COLLECTION, "POST", {"GET", "HEAD", "PUT"}),
            (COLLECTION, "DELETE", {"GET", "HEAD", "PUT"}),
            (f"{COLLECTION}/ranker", "PUT", {"GET", "HEAD", "POST", "DELETE"}),
        ],
    )
    def test_other_methods_give_405(self, web: Service, path: str, method: str, allowed: set[str]) -> None:
        """The response lists those of the path."""
        answer = web.ask(path, method)
        assert (answer.status, set(answer.headers["Allow"].split(", "))) == (405, allowed)

    def test_a_post_without_an_action_gives_405(self, web: Service) -> None:
        """Nothing is changed."""
        assert web.ask(f"{COLLECTION}/ranker", "POST").status == 405
