"""The example of deploy/proxy: a real nginx in front of a real service."""

from __future__ import annotations

import html
import http.client
import json
import random
import re
import ssl
from base64 import b64encode
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trustme

from tests.servers.browser import ColorScheme, browser_page, overflow_px, serious_problems
from tests.servers.kafka import KafkaBroker
from tests.servers.nginx import PASSWORD, PROXY_SECRET, USER, Nginx, SignInServer, example_with_oauth2_proxy
from tests.servers.process import free_port
from tests.servers.prometheus import PrometheusServer
from tests.servers.redis import RedisServer
from tests.support.command import (
    EXPERIMENT_TABLE,
    SERVICE_SECTIONS,
    ab_monitor,
    eventually,
    get,
    service,
    write_config,
)
from tests.support.http_client import Answer, ask

TOKEN = "a-token-of-some-length"
SHARE_SECRET = "0123456789abcdef0123456789abcdef"
PROXY_ADDRESS = "127.0.0.2"
NAMES = ("ranker", "search/é 1", "ranker/verdict")
VARIABLES = {
    "ABMONITOR_HTTP_TOKEN": TOKEN,
    "ABMONITOR_HTTP_PROXY_SECRET": PROXY_SECRET,
    "ABMONITOR_HTTP_SHARE_SECRET": SHARE_SECRET,
}
ACCESS = f"""
trusted_proxies = ["{PROXY_ADDRESS}"]
user_header = "X-Forwarded-User"
public_url = "https://ab-monitor.example.org"
"""
BROWSER = {"Accept": "text/html,application/xhtml+xml"}


def login(user: str = USER, password: str = PASSWORD) -> dict[str, str]:
    """Return the headers of a browser that has asked for a password."""
    return {"Authorization": f"Basic {b64encode(f'{user}:{password}'.encode()).decode()}", **BROWSER}


class Deployment(NamedTuple):
    """A service and its proxy."""

    port: int
    proxy: Nginx
    config: Path
    authority: trustme.CA

    def ask(self, path: str, headers: Mapping[str, str] | None = None, method: str = "GET") -> Answer:
        """Return the response of the proxy."""
        context = ssl.create_default_context()
        self.authority.configure_trust(context)
        connection = http.client.HTTPSConnection("127.0.0.1", self.proxy.port, timeout=10, context=context)
        try:
            connection.request(method, path, headers=dict(headers or {}))
            answer = connection.getresponse()
            return Answer(answer.status, answer.headers, answer.read())
        finally:
            connection.close()

    def share(self, experiment: str, *options: str) -> str:
        """Return path and query of the link that the command prints."""
        command = ab_monitor("share", experiment, *options, "--config", self.config, environ=VARIABLES)
        assert command.returncode == 0, command.stderr
        address, end = command.stdout[:-1], command.stdout[-1:]
        assert end == "\n"
        assert address.startswith("https://ab-monitor.example.org/experiments/")
        return address.removeprefix("https://ab-monitor.example.org")


@pytest.fixture(scope="module")
def deployment(
    tmp_path_factory: pytest.TempPathFactory, kafka: KafkaBroker, redis_server: RedisServer
) -> Iterator[Deployment]:
    """Yield a service with three experiments behind the proxy, which connects from an address of its own."""
    redis_server.client().flushall()
    directory = tmp_path_factory.mktemp("proxy")
    name, port, authority = f"proxy-{random.randrange(1 << 40):x}", free_port(), trustme.CA()
    for topic in ("responses", "feedback", "dead"):
        kafka.create_topic(f"{name}.{topic}", 1)
    values = [("bootstrap", kafka.bootstrap), ("name", name), ("store", redis_server.url), ("port", str(port))]
    experiments = "".join(EXPERIMENT_TABLE.replace("NAME", experiment) for experiment in NAMES)
    config = write_config(directory / "config.toml", SERVICE_SECTIONS + ACCESS + experiments, values)
    with service(config, directory / "log", environ=VARIABLES), Nginx(port, authority, PROXY_ADDRESS) as proxy:
        eventually("the service is ready", lambda: get(f"http://127.0.0.1:{port}/-/ready")[0] == 200)
        yield Deployment(port, proxy, config, authority)
    log = (directory / "log").read_text()
    for text in (USER, PASSWORD, TOKEN, PROXY_SECRET, SHARE_SECRET, "v1."):
        assert text not in log, "the log of the service names a user or a secret"


@pytest.fixture(scope="module")
def behind_login(deployment: Deployment) -> Iterator[Deployment]:
    """Yield the service behind a second proxy, with the variant of the example."""
    with SignInServer() as sign_in:
        example = example_with_oauth2_proxy(sign_in.port)
        with Nginx(deployment.port, deployment.authority, PROXY_ADDRESS, example) as proxy:
            yield deployment._replace(proxy=proxy)


class TestUsers:
    """People who sign in at the proxy."""

    def test_the_proxy_asks_for_a_login(self, deployment: Deployment) -> None:
        """It answers by itself; a wrong password is no login."""
        for headers in (BROWSER, login(password="wrong"), {"X-Forwarded-User": USER}):
            answer = deployment.ask("/", headers)
            assert (answer.status, answer.headers["WWW-Authenticate"]) == (401, 'Basic realm="AB Monitor"')

    def test_a_signed_in_user_sees_the_page_with_the_own_name(self, deployment: Deployment) -> None:
        """And reads the objects of all experiments."""
        page = deployment.ask("/", login())
        assert page.status == 200
        assert f"signed in as {USER}" in page.body.decode()
        assert set(json.loads(deployment.ask("/api/experiments", login()).body)["experiments"]) == set(NAMES)

    @pytest.mark.parametrize("name", ["X-Forwarded-User", "x-forwarded-user", "X_Forwarded_User"])
    def test_the_proxy_replaces_the_header_of_a_client(self, deployment: Deployment, name: str) -> None:
        """The page has the name of the login."""
        page = deployment.ask("/", {**login(), name: "mallory"}).body.decode()
        assert f"signed in as {USER}" in page
        assert "mallory" not in page

    def test_a_signed_in_user_changes_nothing(self, deployment: Deployment) -> None:
        """A change needs the token, also through the proxy."""
        assert deployment.ask("/-/reload", login(), "POST").status == 403
        assert deployment.ask("/-/reload", {"Authorization": f"Bearer {TOKEN}"}, "POST").status == 200

    @pytest.mark.parametrize("path", ["/runbook", "/static/page.css", "/-/healthy", "/?share=x", "/metrics"])
    def test_a_name_without_a_checked_password_does_not_reach_the_service(
        self, deployment: Deployment, path: str
    ) -> None:
        """On paths without a login at the proxy, its name is that of the client."""
        answer = deployment.ask(path, login(password="wrong"))
        assert b"signed in" not in answer.body
        assert answer.status == {"/?share=x": 403, "/metrics": 401}.get(path, 200)

    @pytest.mark.parametrize("secret", [{}, {"X-Proxy-Secret": "another secret"}])
    def test_the_header_is_refused_past_the_proxy(self, deployment: Deployment, secret: dict[str, str]) -> None:
        """Whatever address the client says it has."""
        headers = {"X-Forwarded-User": USER, "X-Forwarded-For": PROXY_ADDRESS, "X-Real-IP": PROXY_ADDRESS, **secret}
        answer = ask(deployment.port, "/", headers={**headers, **BROWSER})
        assert answer.status == 401
        assert b"use the address of the proxy" in answer.body
        assert answer.headers.get_content_type() == "text/html"

    def test_the_address_of_the_proxy_is_not_enough_without_its_secret(self, deployment: Deployment) -> None:
        """Another program on the machine of the proxy has the same address."""
        for secret, status in ((PROXY_SECRET, 200), ("another secret", 401)):
            address = (PROXY_ADDRESS, 0)
            connection = http.client.HTTPConnection("127.0.0.1", deployment.port, timeout=10, source_address=address)
            connection.request("GET", "/", headers={"X-Forwarded-User": USER, "X-Proxy-Secret": secret})
            assert connection.getresponse().status == status
            connection.close()

    def test_unencrypted_requests_are_sent_to_the_encrypted_address(self, deployment: Deployment) -> None:
        """With path and query."""
        answer = ask(deployment.proxy.plain_port, "/experiments/a%2Fb?x=1", headers={"Host": "ab-monitor.example.org"})
        assert answer.status == 308
        assert answer.headers["Location"] == "https://ab-monitor.example.org/experiments/a%2Fb?x=1"


class TestPrograms:
    """Programs with the token."""

    def test_prometheus_scrapes_through_the_proxy_and_past_it(self, deployment: Deployment, tmp_path: Path) -> None:
        """With the same token."""
        authority = tmp_path / "ca.pem"
        deployment.authority.cert_pem.write_to_path(str(authority))
        common = {"authorization": {"credentials": TOKEN}, "metrics_path": "/metrics"}
        jobs: list[dict[str, Any]] = [
            {
                **common,
                "job_name": "through",
                "scheme": "https",
                "tls_config": {"ca_file": str(authority)},
                "static_configs": [{"targets": [f"127.0.0.1:{deployment.proxy.port}"]}],
            },
            {**common, "job_name": "past", "static_configs": [{"targets": [f"127.0.0.1:{deployment.port}"]}]},
        ]
        with PrometheusServer({"global": {"scrape_interval": "1s"}, "scrape_configs": jobs}) as server:
            eventually("both are up", lambda: [target["health"] for target in server.targets()] == ["up", "up"])

    def test_a_wrong_token_is_refused_by_the_service(self, deployment: Deployment) -> None:
        """The proxy lets it pass."""
        answer = deployment.ask("/metrics", {"Authorization": "Bearer wrong"})
        assert (answer.status, answer.headers["WWW-Authenticate"]) == (401, "Bearer")


class TestSignInServer:
    """The variant of the example's last comment, with a server that answers like oauth2-proxy."""

    def test_a_user_with_a_session_sees_the_page_with_the_own_name(self, behind_login: Deployment) -> None:
        """Whatever the client says of itself."""
        headers = {"Cookie": SignInServer.COOKIE, "X-Forwarded-User": "mallory", "X-Auth-Request-Email": "mallory"}
        page = behind_login.ask("/", headers)
        assert page.status == 200
        assert f"signed in as {SignInServer.USER}" in page.body.decode()
        assert b"mallory" not in page.body

    @pytest.mark.parametrize("cookie", [{}, {"Cookie": "_oauth2_proxy=wrong"}])
    def test_everybody_else_is_sent_to_the_login_and_back(
        self, behind_login: Deployment, cookie: dict[str, str]
    ) -> None:
        """To the address that the user has asked for."""
        answer = behind_login.ask(
            "/experiments/search%2F1?as_of=x", {**cookie, **login(), "X-Auth-Request-Email": USER}
        )
        assert answer.status == 302
        expected = "https://login.example.org/?rd=%2Fexperiments%2Fsearch%252F1%3Fas_of%3Dx"
        assert answer.headers["Location"] == expected

    def test_links_and_tokens_need_no_session_and_make_no_user(self, behind_login: Deployment) -> None:
        """The service checks them; a session does not count on such requests."""
        assert behind_login.ask(behind_login.share("ranker")).status == 200
        assert behind_login.ask("/metrics", {"Authorization": f"Bearer {TOKEN}"}).status == 200
        for path, headers in (("/?share=x", {}), ("/", {"Authorization": "Bearer wrong"})):
            answer = behind_login.ask(path, {"Cookie": SignInServer.COOKIE, "X-Auth-Request-Email": USER, **headers})
            assert answer.status == (403 if "share" in path else 401)
            assert b"signed in" not in answer.body

    def test_the_address_of_the_check_is_internal(self, behind_login: Deployment) -> None:
        """A client cannot ask it."""
        assert behind_login.ask("/login", {"Cookie": SignInServer.COOKIE}).status == 404


class TestShareLinks:
    """Readers without a login."""

    @pytest.mark.parametrize("name", NAMES)
    def test_a_link_opens_its_experiment_through_the_proxy(self, deployment: Deployment, name: str) -> None:
        """Names may contain slashes."""
        path, _, query = deployment.share(name).partition("?")
        answer = deployment.ask(f"/api{path}/verdict?{query}", BROWSER)
        assert (answer.status, json.loads(answer.body)["experiment"]) == (200, name)
        assert answer.headers["Referrer-Policy"] == "no-referrer"
        assert answer.headers["Cache-Control"] == "no-store"

    def test_a_link_opens_no_other_experiment_and_no_list(self, deployment: Deployment) -> None:
        """403 with a sentence, as a page in a browser."""
        query = deployment.share("ranker").partition("?")[2]
        paths = ("/", "/experiments/search%2F%C3%A9%201", "/api/experiments", "/api/experiments/ranker", "/metrics")
        for path in (*paths, "/experiments/ranker/../ranker2", "//experiments/ranker"):
            answer = deployment.ask(f"{path}?{query}", BROWSER)
            assert (answer.status, answer.headers.get_content_type()) == (403, "text/html")
            assert b"Ask the person" in answer.body or b"no other page" in answer.body

    def test_a_link_of_one_experiment_does_not_open_another_with_its_name_as_beginning(
        self, deployment: Deployment
    ) -> None:
        """The address of the verdict of `ranker` is that of the experiment `ranker/verdict` for other readers."""
        path, query = "/api/experiments/ranker/verdict", deployment.share("ranker").partition("?")[2]
        assert json.loads(deployment.ask(f"{path}?{query}").body)["experiment"] == "ranker"
        assert "experiment" not in json.loads(deployment.ask(path, login()).body)

    @pytest.mark.parametrize("name", NAMES)
    def test_the_shared_page_has_no_links_to_other_pages(self, deployment: Deployment, name: str) -> None:
        """But its style, which needs no login."""
        page = deployment.ask(deployment.share(name), BROWSER)
        assert page.status == 200
        links = re.findall(r'href="([^"]*)"', page.body.decode())
        assert "/static/page.css" in links
        assert not [link for link in links if not link.startswith(("/static/", "#"))]
        assert deployment.ask("/static/page.css", BROWSER).status == 200

    def test_a_signed_in_user_finds_a_link_on_the_page_of_an_experiment(self, deployment: Deployment) -> None:
        """It opens the page, with the same time, without a login; its reader finds no link to pass on."""
        name, today = "search%2F%C3%A9%201", datetime.now(UTC).date().isoformat()
        for query in ("", f"?as_of={today}"):
            page = deployment.ask(f"/experiments/{name}{query}", login()).body.decode()
            address = html.unescape(re.findall(r'<a class="share" href="([^"]+)"', page)[0])
            assert (f"as_of={today}" in address) == bool(query)
            shared_page = deployment.ask(address, BROWSER)
            assert shared_page.status == 200
            assert b'class="share"' not in shared_page.body
            assert deployment.ask(f"/experiments/ranker?{address.partition('?')[2]}", BROWSER).status == 403
        assert 'class="share"' not in deployment.ask("/", login()).body.decode()

    def test_the_time_of_a_link_is_fixed(self, deployment: Deployment) -> None:
        """Another time, or none, is refused."""
        path, _, query = deployment.share("ranker", "--as-of", "2026-11-24T13:00:00+01:00").partition("?")
        assert query.startswith("as_of=2026-11-24T12%3A00%3A00Z&share=v1.")
        address = f"/api{path}/verdict?{query}"
        answer = deployment.ask(address)
        assert (answer.status, json.loads(answer.body)["experiment"]) == (200, "ranker")
        assert deployment.ask(address.replace("T12", "T13")).status == 403
        assert deployment.ask(address.partition("?")[0] + "?share" + address.partition("&share")[2]).status == 403

    def test_neither_log_of_the_proxy_has_the_signature(self, deployment: Deployment) -> None:
        """Nor a password, a token, or a secret."""
        path, _, query = deployment.share("ranker").partition("?")
        deployment.ask(f"/api{path}/verdict?{query}", login())
        logs = eventually("the request is logged", lambda: path in deployment.proxy.logs and deployment.proxy.logs)
        for text in ("share=", query[-43:], PASSWORD, TOKEN, PROXY_SECRET):
            assert text not in logs


class TestBrowser:
    """Pages in a browser, past the proxy: browsers allow a clipboard on addresses of their own machine."""

    def test_a_copied_link_opens_the_page_without_a_login(self, deployment: Deployment) -> None:
        """The shared page has its style and runs its script, and names no other page."""
        url = f"http://127.0.0.1:{deployment.port}"
        with browser_page(headers={"Authorization": f"Bearer {TOKEN}"}) as page:
            page.context.grant_permissions(["clipboard-read", "clipboard-write"])
            page.goto(f"{url}/experiments/ranker")
            page.click("a.share")
            page.wait_for_selector("text=Link copied")
            copied = page.evaluate("navigator.clipboard.readText()")
        assert copied.startswith(f"{url}/experiments/ranker?share=v1.")
        with browser_page(width=360) as page:
            page.goto(copied)
            assert page.inner_text("header .state") == "shared page"
            assert page.locator("nav a:not([href^='#']), footer a").count() == 0
            assert page.evaluate("getComputedStyle(document.querySelector('.brand')).fontWeight") == "650"
            assert overflow_px(page) == 0
            assert serious_problems(page) == []

    @pytest.mark.parametrize("color_scheme", ["light", "dark"])
    def test_a_refused_link_gets_a_readable_page(self, deployment: Deployment, color_scheme: ColorScheme) -> None:
        """With the reason and what to do."""
        address = deployment.share("ranker").replace("/ranker?", "/ranker2?")
        with browser_page(width=360, color_scheme=color_scheme) as page:
            # Chromium reports the status 403 as an error of the page.
            page.route("**/experiments/**", lambda route: route.fulfill(response=route.fetch(), status=200))
            page.goto(f"http://127.0.0.1:{deployment.port}{address}")
            assert "Ask the person who sent the link for a new one." in page.inner_text("main")
            assert overflow_px(page) == 0
            assert serious_problems(page) == []


class TestShareCommand:
    """`ab-monitor share`."""

    @pytest.mark.parametrize(
        ("arguments", "variables", "message"),
        [
            (("ranker",), {"ABMONITOR_HTTP_TOKEN": TOKEN}, "ABMONITOR_HTTP_SHARE_SECRET_FILE"),
            (("Ranker",), VARIABLES, "did you mean ranker?"),
            (("ranker", "--days", "0"), VARIABLES, "--days: got 0, expected an integer from 1 to 365"),
            (("ranker", "--as-of", "noon"), VARIABLES, '--as-of: got "noon"'),
        ],
    )
    def test_a_wrong_call_names_what_was_expected(
        self, deployment: Deployment, arguments: tuple[str, ...], variables: dict[str, str], message: str
    ) -> None:
        """Exit code 2, and one line."""
        command = ab_monitor("share", *arguments, "--config", deployment.config, environ=variables)
        assert (command.returncode, command.stdout) == (2, "")
        assert message in command.stderr
        assert SHARE_SECRET not in command.stderr
