"""Who may read, and who may change: the bearer token, users whom a trusted proxy signs in, and share links.

| reader | reads | changes |
| --- | --- | --- |
| bearer token | everything | yes |
| user signed in by a trusted proxy | everything | no |
| share link | one experiment, until the link expires | no |
| anybody, without token and proxies in the settings | everything | no |

A change needs the header `Authorization`, which browsers do not add by themselves. So a page of another site cannot
use the login of a reader (cross-site request forgery).
"""

from __future__ import annotations

import hmac
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final

from starlette.datastructures import Headers, QueryParams
from starlette.requests import HTTPConnection, Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from monitor.clock import Clock
from monitor.config import PROXY_SECRET_HEADER, HttpSettings
from monitor.errors import escape_controls
from monitor.web.declaration_routes import MAX_DECLARATION_BYTES
from monitor.web.pages import PAGE_TEMPLATES
from monitor.web.reader import OPEN_READER, READER_STATE, Reader
from monitor.web.runbook import STATIC_PAGE_POLICY
from monitor.web.share_links import AS_OF_PARAMETER, SHARE_PARAMETER, check_share

MAX_REQUEST_HEAD_BYTES: Final = 16_384
READ_METHODS: Final = ("GET", "HEAD")
_PUBLIC_PATHS: Final = frozenset({"/-/healthy", "/-/ready", "/runbook"})
"""Paths that everybody may read: for the probes of an orchestrator, and for readers who follow the link of an alert."""
_STATIC_PREFIX: Final = "/static/"
"""Styles and scripts of the pages have no data, and readers of share links need them."""
_PAGE_PREFIX: Final = "/experiments/"
_API_PREFIX: Final = "/api/experiments/"
_SHARED_PAGES: Final = ("", "/report")
_SHARED_OBJECTS: Final = ("/verdict",)
"""What follows the name in the addresses that a share link opens: of pages, and of JSON objects."""
_MAX_USER_LENGTH: Final = 64


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is not answered."""

    status: HTTPStatus
    reason: str


@dataclass(frozen=True, slots=True)
class WriteRule:
    """What a path accepts that changes the service; only with a token. All other paths have only GET and HEAD."""

    path: str
    """The path, or the beginning of several paths if it ends with a slash."""
    methods: tuple[str, ...]
    """All methods of the path, GET and HEAD included if they are allowed."""
    max_body_bytes: int = 0

    def covers(self, path: str) -> bool:
        """Return whether the rule is about a path."""
        return path == self.path or (self.path.endswith("/") and path.startswith(self.path))


_WRITE_RULES: Final = (
    WriteRule("/-/reload", ("POST",)),
    WriteRule("/api/declarations", (*READ_METHODS, "PUT"), MAX_DECLARATION_BYTES),
    WriteRule("/api/declarations/", (*READ_METHODS, "POST", "DELETE")),
)


class RequestRules:
    """ASGI middleware that rejects requests that are too large, from unknown readers, or of a method without a use.

    Paths without a `WriteRule` allow GET and HEAD, without a body. The reader of a
    passed request is in its state: `request_reader`.
    """

    def __init__(self, app: ASGIApp, settings: HttpSettings, clock: Clock) -> None:
        self._app = app
        self._settings = settings
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a valid request on to the application; send an error response to any other request."""
        await (self._error_response(scope) or self._app)(scope, receive, send)

    def _error_response(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        line_bytes = len(scope["method"]) + len(scope["raw_path"]) + len(scope["query_string"])
        head_bytes = line_bytes + sum(len(name) + len(text) + 4 for name, text in headers.raw)
        if head_bytes > MAX_REQUEST_HEAD_BYTES:
            status = 414 if line_bytes > MAX_REQUEST_HEAD_BYTES else 413
            return _text_response(
                f"request line and headers: {head_bytes} bytes, expected at most {MAX_REQUEST_HEAD_BYTES}", status
            )
        if scope["http_version"] not in ("1.0", "1.1"):
            return _text_response("expected HTTP/1.0 or HTTP/1.1", 505)
        reader = identify_reader(HTTPConnection(scope), self._settings, self._clock() / 1000)
        if isinstance(reader, Refusal) and is_public(scope["path"]):
            reader = Reader()
        if isinstance(reader, Refusal):
            return refusal_response(Request(scope), reader)
        scope.setdefault("state", {})[READER_STATE] = reader
        rule = next((rule for rule in _WRITE_RULES if rule.covers(scope["path"])), WriteRule("", READ_METHODS))
        return body_error(headers, rule.max_body_bytes) or self._method_error(scope["method"], rule, reader)

    def _method_error(self, method: str, rule: WriteRule, reader: Reader) -> Response | None:
        if method not in rule.methods:
            return _text_response(f"only {' and '.join(rule.methods)}", 405, {"Allow": ", ".join(rule.methods)})
        if method in READ_METHODS or reader.can_change:
            return None
        if self._settings.token is None:
            return _text_response(
                "a change needs a token, and this service has none: name a file with a token in "
                "ABMONITOR_HTTP_TOKEN_FILE, and restart the service",
                403,
            )
        return _text_response("a change needs the bearer token: signed-in users may only read", 403)


def is_public(path: str) -> bool:
    """Return whether everybody may read a path."""
    return path in _PUBLIC_PATHS or path.startswith(_STATIC_PREFIX)


def identify_reader(request: HTTPConnection, settings: HttpSettings, now_s: float) -> Reader | Refusal:
    """Return the reader of a request by the first credential that is valid: token, login at a proxy, share link."""
    if settings.is_open:
        return OPEN_READER
    if settings.token is not None and has_token(request.headers, settings.token):
        return Reader(can_see_all=True, can_change=True)
    login: Reader | Refusal = Refusal(HTTPStatus.UNAUTHORIZED, "a bearer token is needed here")
    if settings.trusted_proxies:
        client = request.scope.get("client")
        login = identify_user(request.headers, client[0] if client else None, settings)
    if isinstance(login, Reader) or SHARE_PARAMETER not in request.query_params:
        return login
    return identify_link(request.scope["path"], request.query_params, settings.share_secret, now_s)


def has_token(headers: Headers, token: str) -> bool:
    """Return whether a request has the bearer token."""
    scheme, _, text = headers.get("Authorization", "").partition(" ")
    # Starlette decodes headers as Latin-1.
    is_valid = hmac.compare_digest(text.strip().encode("latin-1"), token.encode())
    return is_valid and scheme.lower() == "bearer"


def identify_user(headers: Headers, peer: str | None, settings: HttpSettings) -> Reader | Refusal:
    """Return the user whom a trusted proxy has signed in; `peer` is the address at the other end of the connection.

    Headers such as X-Forwarded-For do not count, because any client can send them.
    """
    alternative = "" if settings.token is None else ", or send a bearer token"
    if not is_trusted(peer, settings.trusted_proxies):
        reason = f"a login is needed here: use the address of the proxy in front of this service{alternative}"
        return Refusal(HTTPStatus.UNAUTHORIZED, reason)
    if settings.proxy_secret is not None:
        secrets = headers.getlist(PROXY_SECRET_HEADER)
        expected = settings.proxy_secret.encode()
        if len(secrets) != 1 or not hmac.compare_digest(secrets[0].encode("latin-1"), expected):
            reason = f"the proxy has not sent its secret in the header {PROXY_SECRET_HEADER}{alternative}"
            return Refusal(HTTPStatus.UNAUTHORIZED, reason)
    names = headers.getlist(settings.user_header or "")
    user = user_name(names[0]) if len(names) == 1 else ""
    if not user:
        fault = "several times" if len(names) > 1 else "without a name" if names else "not at all"
        reason = (
            f"a login is needed here: the proxy has sent the header {settings.user_header} {fault}, "
            f"expected once, with the name of the user{alternative}"
        )
        return Refusal(HTTPStatus.UNAUTHORIZED, reason)
    return Reader(user=user, can_see_all=True)


def is_trusted(peer: str | None, networks: Sequence[IPv4Network | IPv6Network]) -> bool:
    """Return whether the address at the other end of a connection is in one of the networks; None is in none.

    >>> from ipaddress import ip_network
    >>> is_trusted("::ffff:10.1.2.3", [ip_network("10.0.0.0/8")]), is_trusted(None, [ip_network("10.0.0.0/8")])
    (True, False)
    """
    try:
        address: IPv4Address | IPv6Address = ip_address(peer or "")
    except ValueError:
        return False
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return any(address in network for network in networks)


def user_name(header: str) -> str:
    """Return the name in a header as UTF-8 if possible, of at most 64 characters, with escaped control characters.

    >>> user_name("ren" + "é".encode().decode("latin-1")), user_name("a" * 100)[-3:], len(user_name("a" * 100))
    ('rené', 'aa…', 64)
    """
    with suppress(UnicodeDecodeError):
        # Starlette decodes headers as Latin-1; proxies send UTF-8.
        header = header.encode("latin-1").decode()
    name = escape_controls(header.strip())
    return name if len(name) <= _MAX_USER_LENGTH else f"{name[: _MAX_USER_LENGTH - 1]}…"


def identify_link(path: str, query: QueryParams, secret: str | None, now_s: float) -> Reader | Refusal:
    """Return a reader who may see the experiment of a share link, if the link is signed for the path and the `as_of`.

    `path` is decoded. `/experiments/a/report` may be the report of `a` or the page of `a/report`: the signature
    decides which experiment the reader may see, and endpoints find no other one for this reader.
    """
    if secret is None:
        return Refusal(HTTPStatus.FORBIDDEN, "This service has no share links.")
    experiments = list(shared_experiments(path))
    shares, times = query.getlist(SHARE_PARAMETER), query.getlist(AS_OF_PARAMETER)
    if not experiments:
        return Refusal(HTTPStatus.FORBIDDEN, "A share link opens the page of one experiment, and no other page.")
    if len(shares) == 1 and len(times) <= 1:
        for experiment in experiments:
            state = check_share(secret, shares[0], experiment, "".join(times), now_s)
            if state == "valid":
                return Reader(experiment=experiment)
            if state == "expired":
                reason = "This link has expired. Ask the person who sent the link for a new one."
                return Refusal(HTTPStatus.FORBIDDEN, reason)
    return Refusal(
        HTTPStatus.FORBIDDEN,
        "This link is not valid. It may be incomplete, changed, or from before a change of the service's secret. "
        "Ask the person who sent the link for a new one.",
    )


def shared_experiments(path: str) -> Iterator[str]:
    """Yield the experiments whose share links may open a path.

    >>> list(shared_experiments("/experiments/a/report")), list(shared_experiments("/api/experiments/a"))
    (['a/report', 'a'], [])
    """
    for prefix, suffixes in ((_PAGE_PREFIX, _SHARED_PAGES), (_API_PREFIX, _SHARED_OBJECTS)):
        name = path.removeprefix(prefix)
        if name != path:
            yield from (name.removesuffix(suffix) for suffix in suffixes if name.endswith(suffix))


def body_error(headers: Headers, max_bytes: int) -> Response | None:
    """Return the response to a request whose body is too large or of unknown length; the server enforces the length."""
    if max_bytes and "Transfer-Encoding" in headers:
        return _text_response("the length of the body is needed here", 411, {"Connection": "close"})
    length = headers.get("Content-Length", "0").lstrip("0")
    if len(length) > len(str(max_bytes)) or int(length or "0") > max_bytes or "Transfer-Encoding" in headers:
        expected = f"expected a body of at most {max_bytes} bytes" if max_bytes else "a request has no body here"
        return _text_response(expected, 413, {"Connection": "close"})
    return None


def refusal_response(request: Request, refusal: Refusal) -> Response:
    """Return the reason as a page for browsers, as a line of text for programs."""
    headers = {"WWW-Authenticate": "Bearer"} if refusal.status == HTTPStatus.UNAUTHORIZED else {}
    if "text/html" not in request.headers.get("Accept", ""):
        return _text_response(refusal.reason, refusal.status, headers)
    title = "not signed in" if refusal.status == HTTPStatus.UNAUTHORIZED else "no access"
    context = {"title": title, "reason": refusal.reason}
    headers["Content-Security-Policy"] = STATIC_PAGE_POLICY
    return PAGE_TEMPLATES.TemplateResponse(request, "refused.html", context, refusal.status, headers)


def _text_response(text: str, status: int, headers: Mapping[str, str] | None = None) -> Response:
    return PlainTextResponse(f"{text}\n", status, headers)
