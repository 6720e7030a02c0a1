"""Settings of who may read over HTTP."""

from __future__ import annotations

from ipaddress import ip_network
from pathlib import Path

import pytest

from monitor.config import HttpSettings, load_settings
from monitor.errors import ConfigError, UsageError

EXPERIMENT = '[[experiments]]\nname = "a"\ncontrol = "c"\nvariants = { c = 0.5, t = 0.5 }\n'
PROXY = 'trusted_proxies = ["10.0.0.0/8"]\nuser_header = "X-User"\n'
SECRET = "0123456789abcdef0123456789abcdef"


def http(tmp_path: Path, text: str = "", **environ: str) -> HttpSettings:
    """Return the settings of a section [http] with variables."""
    path = tmp_path / "config.toml"
    path.write_text(f"[http]\n{text}\n{EXPERIMENT}")
    return load_settings(path, environ).http


def test_everybody_may_read_without_token_and_proxies(tmp_path: Path) -> None:
    """As long as neither is set."""
    assert http(tmp_path).is_open
    assert not http(tmp_path, PROXY).is_open
    assert not http(tmp_path, ABMONITOR_HTTP_TOKEN=SECRET).is_open


def test_proxies_are_addresses_and_networks(tmp_path: Path) -> None:
    """Of both versions; a variable has commas between them."""
    networks = (ip_network("10.0.0.5/32"), ip_network("fd00::/8"))
    text = 'trusted_proxies = ["10.0.0.5", "fd00::/8"]\nuser_header = "X-User"'
    assert http(tmp_path, text).trusted_proxies == networks
    variables = {"ABMONITOR_HTTP_TRUSTED_PROXIES": "10.0.0.5, fd00::/8", "ABMONITOR_HTTP_USER_HEADER": "X-User"}
    assert http(tmp_path, **variables).trusted_proxies == networks


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('trusted_proxies = "10.0.0.5"', "http.trusted_proxies: got"),
        ("trusted_proxies = [5]", "http.trusted_proxies[0]: got 5, expected a list"),
        ('trusted_proxies = ["10.0.0.5", "proxy"]', 'http.trusted_proxies[1]: got "proxy", expected an address'),
        ('trusted_proxies = ["10.0.0.5/8"]', "a network such as 10.1.0.0/16 without bits after the prefix"),
        ('trusted_proxies = ["0.0.0.0/0"]', "any computer in this one could name any user"),
        ('trusted_proxies = ["::/0"]', "any computer in this one could name any user"),
        ('trusted_proxies = ["::ffff:10.0.0.0/104"]', "an IPv4 network in its own form"),
        ('user_header = "X User"', "http.user_header: got"),
        ('user_header = "X_User"', "of letters, digits and hyphens"),
        ('user_header = "X-User:"', "of letters, digits and hyphens"),
        ('user_header = ""', "a string that is not blank"),
        *(
            (f'user_header = "{name}"', "a header without another use")
            for name in (
                "Authorization", "connection", "Proxy-Authorization", "Cookie", "Host", "X-Forwarded-For", "Forwarded",
                "Transfer-Encoding", "Content-Length", "Accept", "Accept-Language", "User-Agent", "Sec-Fetch-Site",
                "X-Proxy-Secret", "If-None-Match",
            )
        ),
        ('public_url = "ab-monitor.example.org"', "https://HOST or https://HOST:PORT, without a path"),
        ('public_url = "https://a.example/monitor"', "without a path"),
        ('public_url = "https://a.example?x=1"', "without a path"),
        ('public_url = "https://user:hunter2@a.example"', 'got "https://…@a.example"'),
        ('public_url = "ftp://a.example"', "https://HOST"),
        ('public_url = "httpx://a.example"', "https://HOST"),
        ('public_url = "https://a.example:x"', "https://HOST"),
        ('public_url = "https://"', "https://HOST"),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_rejected_with_what_was_expected(tmp_path: Path, text: str, message: str) -> None:
    """The message names key and value."""
    with pytest.raises(UsageError) as caught:
        http(tmp_path, text)
    assert message in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "variables", "message"),
    [
        ('trusted_proxies = ["10.0.0.5"]', {}, "http.user_header: missing, expected the header in which"),
        ('user_header = "X-User"', {}, "http.user_header: got"),
        ('trusted_proxies = []\nuser_header = "X-User"', {}, "no value without http.trusted_proxies"),
        ("", {"ABMONITOR_HTTP_PROXY_SECRET": SECRET}, "http.proxy_secret: got"),
        (PROXY, {"ABMONITOR_HTTP_SHARE_SECRET": SECRET[1:]}, "at least 32 visible ASCII characters"),
        (PROXY, {"ABMONITOR_HTTP_PROXY_SECRET": "hunter2"}, "at least 16 visible ASCII characters"),
        (f'{PROXY}share_secret = "{SECRET}"', {}, "http.share_secret: got"),
        (f'{PROXY}proxy_secret = "{SECRET}"', {}, "ABMONITOR_HTTP_PROXY_SECRET_FILE to a file's path"),
    ],
)
def test_half_a_login_and_secrets_without_effect_are_rejected(
    tmp_path: Path, text: str, variables: dict[str, str], message: str
) -> None:
    """No message quotes a secret."""
    with pytest.raises(ConfigError) as caught:
        http(tmp_path, text, **variables)
    assert message in str(caught.value)
    assert SECRET[1:] not in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_secrets_are_read_from_files_and_missing_in_repr(tmp_path: Path) -> None:
    """The variables …_FILE name files."""
    file = tmp_path / "secret"
    file.write_text(f"{SECRET}\n")
    variables = {"ABMONITOR_HTTP_PROXY_SECRET_FILE": str(file), "ABMONITOR_HTTP_SHARE_SECRET_FILE": str(file)}
    settings = http(tmp_path, PROXY, **variables)
    assert settings.proxy_secret == settings.share_secret == SECRET
    assert SECRET not in repr(settings)


def test_the_address_for_readers_is_the_public_one_or_the_one_it_listens_on(tmp_path: Path) -> None:
    """With a slash at the end, and brackets around an IPv6 address."""
    assert http(tmp_path, 'public_url = "https://a.example:8443/"').url == "https://a.example:8443/"
    assert http(tmp_path, 'host = "::1"\nport = 9').url == "http://[::1]:9/"
