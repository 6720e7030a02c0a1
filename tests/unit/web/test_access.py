"""Who may read: the token, users whom a trusted proxy signs in, and share links, as pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from ipaddress import ip_network
from urllib.parse import quote, unquote

import pytest
from starlette.requests import HTTPConnection

from monitor.config import HttpSettings
from monitor.web.access import Refusal, identify_reader, is_public, is_trusted, user_name
from monitor.web.reader import Reader
from monitor.web.share_links import ShareLink, share_path

TOKEN = "a-token-of-some-length"
PROXY_SECRET = "a-secret-of-the-proxy"
SHARE_SECRET = "0123456789abcdef0123456789abcdef"
PROXY, CLIENT = "10.0.0.5", "10.0.0.6"
NOW_S, END_S = 1_700_000_000.0, 1_800_000_000
LOGIN = HttpSettings(
    token=TOKEN,
    trusted_proxies=(ip_network("10.0.0.5"), ip_network("fd00::5")),
    user_header="X-Forwarded-User",
    share_secret=SHARE_SECRET,
)
WITHOUT_TOKEN = HttpSettings(trusted_proxies=LOGIN.trusted_proxies, user_header=LOGIN.user_header)
WITH_SECRET = HttpSettings(
    trusted_proxies=LOGIN.trusted_proxies, user_header=LOGIN.user_header, proxy_secret=PROXY_SECRET
)
ANN = Reader(user="ann", can_see_all=True)
MACHINE = Reader(can_see_all=True, can_change=True)


def identify(
    settings: HttpSettings,
    *headers: tuple[str, str],
    peer: str | None = PROXY,
    address: str = "/",
    now_s: float = NOW_S,
) -> Reader | Refusal:
    """Return the reader of a request with raw headers and an address of path and query."""
    path, _, query = address.partition("?")
    scope = {
        "type": "http",
        "path": unquote(path),
        "query_string": query.encode(),
        "client": None if peer is None else (peer, 4711),
        "headers": [(name.lower().encode(), text.encode("latin-1")) for name, text in headers],
    }
    return identify_reader(HTTPConnection(scope), settings, now_s)


def refusal(reader: Reader | Refusal, status: HTTPStatus = HTTPStatus.UNAUTHORIZED) -> str:
    """Return the reason why a request was refused."""
    assert isinstance(reader, Refusal)
    assert reader.status == status
    return reader.reason


def test_without_token_and_proxies_everybody_reads_everything_and_nobody_is_named() -> None:
    """No header makes a user."""
    assert identify(HttpSettings(), ("X-Forwarded-User", "ann")) == Reader(can_see_all=True)


class TestToken:
    """The bearer token, with and without a proxy."""

    @pytest.mark.parametrize("settings", [LOGIN, HttpSettings(token=TOKEN)])
    @pytest.mark.parametrize("peer", [PROXY, CLIENT, None])
    def test_the_token_reads_and_changes_from_every_address(self, settings: HttpSettings, peer: str | None) -> None:
        """Prometheus comes past the proxy or through it."""
        assert identify(settings, ("Authorization", f"Bearer {TOKEN}"), peer=peer) == MACHINE

    @pytest.mark.parametrize("authorization", [f"Bearer {TOKEN}x", f"Basic {TOKEN}", TOKEN, "Bearer", "Bearer \xe9"])
    def test_a_wrong_token_is_refused(self, authorization: str) -> None:
        """With and without a proxy."""
        assert "bearer token" in refusal(identify(HttpSettings(token=TOKEN), ("Authorization", authorization)))
        refusal(identify(LOGIN, ("Authorization", authorization), peer=CLIENT))

    def test_a_service_without_a_token_accepts_none(self) -> None:
        """Neither an empty one nor the word None."""
        for text in ("Bearer", "Bearer ", "Bearer None"):
            refusal(identify(WITHOUT_TOKEN, ("Authorization", text), peer=CLIENT))


class TestSingleSignOn:
    """Users whom a trusted proxy names."""

    def test_a_user_of_a_trusted_proxy_may_read_everything_and_change_nothing(self) -> None:
        """The name is that of the header, whatever its case."""
        assert identify(LOGIN, ("x-forwarded-USER", "ann")) == ANN

    @pytest.mark.parametrize("peer", [CLIENT, "127.0.0.1", "::1", None, "", "testclient", "10.0.0.50", "10.0.0.5 "])
    @pytest.mark.parametrize("settings", [LOGIN, WITHOUT_TOKEN])
    def test_the_header_of_any_other_peer_is_refused(self, settings: HttpSettings, peer: str | None) -> None:
        """Also without an address, as over a Unix socket; other headers cannot give one."""
        headers = [("X-Forwarded-User", "ann"), ("X-Forwarded-For", PROXY), ("X-Real-IP", PROXY)]
        headers += [("Forwarded", f"for={PROXY}"), ("Host", PROXY), ("X-Proxy-Secret", PROXY_SECRET)]
        assert "use the address of the proxy" in refusal(identify(settings, *headers, peer=peer))

    @pytest.mark.parametrize(
        ("headers", "fault"),
        [
            ([], "not at all"),
            ([("X-Forwarded-User", "")], "without a name"),
            ([("X-Forwarded-User", " \t ")], "without a name"),
            ([("X-Forwarded-User", "ann"), ("X-Forwarded-User", "bob")], "several times"),
            ([("X-Forwarded-User", "ann"), ("x-forwarded-user", "ann")], "several times"),
            ([("X-Forwarded-User", ""), ("X-Forwarded-User", "ann")], "several times"),
            ([("X_Forwarded_User", "ann")], "not at all"),
            ([("X-Forwarded-User-", "ann")], "not at all"),
            ([("X-Remote-User", "ann"), ("Remote-User", "ann")], "not at all"),
        ],
    )
    def test_a_trusted_proxy_has_to_name_exactly_one_user(self, headers: Sequence[tuple[str, str]], fault: str) -> None:
        """The text names the header and its fault."""
        reason = refusal(identify(LOGIN, *headers))
        assert f"X-Forwarded-User {fault}, expected once" in reason
        assert "bearer token" in reason
        assert "bearer token" not in refusal(identify(WITHOUT_TOKEN, *headers))

    @pytest.mark.parametrize(
        "secrets", [[], [""], [PROXY_SECRET[:-1]], [PROXY_SECRET + "x"], ["\xe9"], [PROXY_SECRET, PROXY_SECRET]]
    )
    def test_a_trusted_address_without_the_secret_is_refused(self, secrets: Sequence[str]) -> None:
        """Other programs on the machine of the proxy have the same address."""
        headers = [("X-Forwarded-User", "ann"), *(("X-Proxy-Secret", secret) for secret in secrets)]
        assert "X-Proxy-Secret" in refusal(identify(WITH_SECRET, *headers))

    def test_the_secret_counts_only_together_with_the_address(self) -> None:
        """Both are needed."""
        headers = [("X-Forwarded-User", "ann"), ("X-Proxy-Secret", PROXY_SECRET)]
        assert identify(WITH_SECRET, *headers) == ANN
        refusal(identify(WITH_SECRET, *headers, peer=CLIENT))

    @pytest.mark.parametrize(
        ("peer", "expected"),
        [
            ("10.0.0.5", True),
            ("::ffff:10.0.0.5", True),
            ("::ffff:a00:5", True),
            ("fd00::5", True),
            ("fd00:0:0:0::5", True),
            ("::ffff:10.0.0.6", False),
            ("::10.0.0.5", False),
            ("010.0.0.5", False),
            ("10.0.0.5:80", False),
            ("10.5", False),
            ("167772165", False),
        ],
    )
    def test_addresses_are_compared_as_numbers(self, peer: str, *, expected: bool) -> None:
        """A listener for both versions reports IPv4 peers as IPv6 addresses."""
        assert is_trusted(peer, LOGIN.trusted_proxies) == expected

    @pytest.mark.parametrize(
        ("header", "name"),
        [
            (" Ann Lee ", "Ann Lee"),
            ("renée".encode().decode("latin-1"), "renée"),
            ("ren\xe9e", "renée"),
            ("a\u202eb".encode().decode("latin-1"), "a\\u202eb"),
            ("x" * 65, "x" * 63 + "…"),
        ],
    )
    def test_the_name_is_readable_and_short(self, header: str, name: str) -> None:
        """UTF-8, or Latin-1; a change of direction is escaped."""
        assert user_name(header) == name


def link(experiment: str, as_of: str = "") -> str:
    """Return the address that a link opens."""
    return share_path(SHARE_SECRET, ShareLink(experiment, END_S, as_of))


def other_path(path: str, experiment: str = "a", as_of: str = "") -> str:
    """Return an address with the query of the link to an experiment."""
    return f"{path}?{link(experiment, as_of).partition('?')[2]}"


class TestShareLinks:
    """Readers without a login."""

    @pytest.mark.parametrize("name", ["a", "a/b", "a/verdict", "a/report", "a/../b", "é %", "/", "a?b"])
    def test_a_link_opens_page_report_and_verdict_of_its_experiment(self, name: str) -> None:
        """And nothing else can be seen or changed."""
        encoded = quote(name, safe="")
        expected = Reader(experiment=name)
        paths = [f"/experiments/{encoded}", f"/experiments/{encoded}/report", f"/api/experiments/{encoded}/verdict"]
        for path in paths:
            assert identify(LOGIN, peer=CLIENT, address=other_path(path, name)) == expected
        assert not expected.can_see(f"{name}/verdict")
        assert not expected.can_see_all

    @pytest.mark.parametrize(
        "path",
        [
            "/",
            "//",
            "/metrics",
            "/metrics/experiments",
            "/service",
            "/glossary",
            "/api/health",
            "/api/experiments",
            "/api/experiments/",
            "/api/experiments/a",
            "/api/experiments/a/items",
            "/api/experiments/a/attention",
            "/api/declarations/a",
            "/-/reload",
            "/experiments",
            "/experiments/",
            "/experiments/b",
            "/experiments/A",
            "/experiments/a/",
            "/experiments/a/plan",
            "/experiments/a/share",
            "/experiments/a/b",
            "/experiments/a%2Fb",
            "/experiments/a/../b",
            "/experiments/b/../a",
            "/experiments/a%00",
            "//experiments/a",
            "/experiments//a",
            "/Experiments/a",
            "/experiments/a/report/report",
            "/experiments/a/verdict",
            "/api/experiments/a/verdict/verdict",
            "/api/experiments/a/report",
        ],
    )
    def test_a_link_opens_nothing_else(self, path: str) -> None:
        """No list, no other experiment, no items, no declarations, no metrics."""
        refusal(identify(LOGIN, peer=CLIENT, address=other_path(path)), HTTPStatus.FORBIDDEN)

    def test_a_path_that_may_mean_two_experiments_opens_the_signed_one(self) -> None:
        """The endpoint compares it with the experiment that it shows."""
        path = "/api/experiments/a/verdict"
        assert identify(LOGIN, peer=CLIENT, address=other_path(path, "a")) == Reader(experiment="a")
        refusal(identify(LOGIN, peer=CLIENT, address=other_path(path, "a/verdict")), HTTPStatus.FORBIDDEN)
        path = "/experiments/a/report"
        assert identify(LOGIN, peer=CLIENT, address=other_path(path, "a")) == Reader(experiment="a")
        assert identify(LOGIN, peer=CLIENT, address=other_path(path, "a/report")) == Reader(experiment="a/report")

    @pytest.mark.parametrize(
        "query",
        [
            "share=",
            "share=x",
            "{share}&share=x",
            "share=x&{share}",
            "{share}&{share}",
            "{share}&as_of=2026-01-01T00:00:00Z",
            "as_of=2026-01-01T00:00:00Z&{share}",
            "{share}x",
            "{share}%00",
            "{share}%C3%A9",
            "{share}%FF",
        ],
    )
    def test_a_changed_query_is_refused(self, query: str) -> None:
        """Also one that has a parameter twice, because programs differ in which of them counts."""
        share = link("a").partition("?")[2]
        address = f"/experiments/a?{query.format(share=share)}"
        assert "not valid" in refusal(identify(LOGIN, peer=CLIENT, address=address), HTTPStatus.FORBIDDEN)

    def test_the_time_of_a_link_cannot_be_changed_or_removed(self) -> None:
        """It is signed."""
        address = link("a", "2026-11-24T12:00:00Z")
        assert identify(LOGIN, peer=CLIENT, address=address) == Reader(experiment="a")
        for changed in (
            address.replace("12%3A", "13%3A"),
            address.replace("as_of=2026-11-24T12%3A00%3A00Z&", ""),
            address.replace("as_of=", "As_of="),
            f"{address}&as_of=2026-11-24T12%3A00%3A00Z",
            f"{address}&as_of=",
        ):
            assert changed != address
            refusal(identify(LOGIN, peer=CLIENT, address=changed), HTTPStatus.FORBIDDEN)

    def test_an_expired_link_is_refused_with_a_sentence(self) -> None:
        """The reader can ask for a new link."""
        reason = refusal(identify(LOGIN, peer=CLIENT, address=link("a"), now_s=END_S), HTTPStatus.FORBIDDEN)
        assert reason == "This link has expired. Ask the person who sent the link for a new one."

    def test_without_a_secret_no_link_opens_anything(self) -> None:
        """Also one that is signed with an empty key."""
        address = share_path("", ShareLink("a", END_S))
        refusal(identify(WITHOUT_TOKEN, peer=CLIENT, address=address), HTTPStatus.FORBIDDEN)

    def test_a_link_does_not_limit_a_reader_with_a_login(self) -> None:
        """The order of credentials: token, login, link."""
        assert identify(LOGIN, ("X-Forwarded-User", "ann"), address=link("a")) == ANN
        assert identify(LOGIN, ("Authorization", f"Bearer {TOKEN}"), address=link("a"), peer=CLIENT) == MACHINE

    def test_a_proxy_that_lets_links_pass_names_no_user(self) -> None:
        """Then the link counts."""
        assert identify(LOGIN, ("X-Forwarded-User", ""), address=link("a")) == Reader(experiment="a")


@pytest.mark.parametrize(
    ("path", "expected"),
    {
        "/-/healthy": True,
        "/-/ready": True,
        "/runbook": True,
        "/static/page.css": True,
        "/-/reload": False,
        "/": False,
        "/runbook/": False,
        "/static": False,
        "//static/page.css": False,
        "/api/../static/page.css": False,
        "/STATIC/page.css": False,
    }.items(),
)
def test_public_paths_are_few(path: str, *, expected: bool) -> None:
    """Health probes, the runbook, and files without data."""
    assert is_public(path) == expected


def test_a_reader_sees_nothing_by_default() -> None:
    """So a page that is rendered without the rules shows no experiment."""
    assert not Reader().can_see("a")
    assert not Reader().can_see("")
