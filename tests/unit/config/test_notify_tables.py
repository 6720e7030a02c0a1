"""`[[notify]]`: channels, their secrets, and what is wrong with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from monitor.config import NOTIFY_EVENTS, NotifySettings, Settings, config_digest, parse_settings
from monitor.config.config_watcher import changed_setting_names
from monitor.errors import ConfigError, ConfigErrors

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
HOOK = "https://example.org/hook"


def parse(*tables: Any, **variables: str) -> tuple[NotifySettings, ...]:
    """Return the channels of a configuration."""
    environ = {f"ABMONITOR_NOTIFY_{name}": value for name, value in variables.items()}
    return parse_settings({"experiments": [], "notify": list(tables)}, environ).notify


def test_secrets_are_read_from_files_and_variables(tmp_path: Path) -> None:
    """Neither an address of Apprise nor the secret of a webhook is in the configuration or in its text form."""
    url_file, secret_file = tmp_path / "url", tmp_path / "secret"
    url_file.write_text("slack://hidden-token\n")
    secret_file.write_text(SECRET)
    channels = parse(
        {"name": "chat", "url_file": str(url_file)},
        {"name": "hook", "webhook": HOOK, "secret_file": str(secret_file), "events": ["harm"], "experiments": "a-*"},
        {"name": "mail"},
        {"name": "other", "webhook": HOOK},
        **{"2_URL": "mailto://hidden-token", "3_SECRET_FILE": str(secret_file)},
    )
    assert channels == (
        NotifySettings("chat", url="slack://hidden-token"),
        NotifySettings("hook", webhook=HOOK, secret=SECRET, events=("harm",), experiments=("a-*",)),
        NotifySettings("mail", url="mailto://hidden-token"),
        NotifySettings("other", webhook=HOOK, secret=SECRET),
    )
    assert "hidden" not in repr(channels)
    assert SECRET not in repr(channels)
    assert HOOK not in repr(channels)


def test_the_address_of_a_webhook_may_be_in_a_file(tmp_path: Path) -> None:
    """Some addresses contain a secret."""
    (tmp_path / "hook").write_text(f"{HOOK}\n")
    table = {"name": "hook", "webhook_file": str(tmp_path / "hook")}
    assert parse(table, **{"0_SECRET": SECRET})[0].webhook == HOOK
    with pytest.raises(ConfigError, match=r'notify\[0\].webhook: got "…", expected only one of this key and'):
        parse({**table, "webhook": HOOK}, **{"0_SECRET": SECRET})
    (tmp_path / "hook").write_text("ftp://hidden-token")
    with pytest.raises(ConfigError, match=r'notify\[0\].webhook_file: got "…", expected an address'):
        parse(table, **{"0_SECRET": SECRET})


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"webhook": HOOK}, "notify[0].name: missing, expected 1 to 100 printable characters"),
        ({"name": "a", "url": "slack://token"}, 'notify[0].url: got "…", expected no secret in the configuration'),
        ({"name": "a", "secret": SECRET}, 'notify[0].secret: got "…", expected no secret in the configuration'),
        ({"name": "a"}, 'notify[0]: got "a", expected either url_file, with an address of Apprise, or webhook'),
        ({"name": "a", "webhook": HOOK}, "notify[0].secret_file: missing, expected a file with the secret"),
        ({"name": "a", "webhook": "ftp://x"}, 'notify[0].webhook: got "…", expected an address that begins with https'),
        ({"name": "a", "url_file": "/none"}, 'notify[0].url_file: got "/none", expected a readable text file'),
        ({"name": "a", "events": ["ship"]}, "expected a list of verdict, harm, sample_ratio"),
        ({"name": "a", "experiments": []}, "notify[0].experiments: got [], expected a pattern"),
        ({"name": "a", "hook": HOOK}, "notify[0]: unknown key hook"),
    ],
)
def test_a_wrong_channel_is_an_error_that_names_the_key(table: dict[str, Any], message: str) -> None:
    """Values that may be secret are left out."""
    with pytest.raises((ConfigError, ConfigErrors)) as error:
        parse(table)
    assert message in str(error.value)
    assert "token" not in str(error.value)


@pytest.mark.parametrize("secret", ["", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_c2hvcnQ=", "whsec_!!", f"{SECRET}é"])
def test_a_wrong_secret_is_an_error_without_the_secret(secret: str) -> None:
    """Standard Webhooks asks for 24 to 64 random bytes."""
    with pytest.raises(ConfigError, match='ABMONITOR_NOTIFY_0_SECRET: got "…", expected whsec_ and 24 to 64'):
        parse({"name": "a", "webhook": HOOK}, **{"0_SECRET": secret})


def test_names_are_unique() -> None:
    """Logs and metrics name channels."""
    with pytest.raises(ConfigError, match=r"notify\[1\].name: got \"a\", expected every name once"):
        parse({"name": "a"}, {"name": "a"}, **{"0_URL": "json://x", "1_URL": "json://x"})


def test_a_variable_of_no_channel_is_an_error() -> None:
    """As every other variable that nothing reads."""
    with pytest.raises(ConfigError, match="unknown variable ABMONITOR_NOTIFY_1_URL"):
        parse({"name": "a"}, **{"0_URL": "json://x", "1_URL": "json://x"})


def test_a_channel_receives_the_chosen_events_and_experiments() -> None:
    """By default, it receives all."""
    assert all(NotifySettings("a").receives(event, "ranker") for event in NOTIFY_EVENTS)
    channel = NotifySettings("a", events=("harm",), experiments=("ranker-*", "search"))
    assert channel.receives("harm", "search")
    assert not channel.receives("end", "search")
    assert not channel.receives("harm", "Ranker-1")


def test_changed_channels_need_a_restart_and_secrets_do_not_count_in_the_digest() -> None:
    """Replicas with different secrets, during their rotation, have the same digest."""
    old, new = (Settings((), notify=(NotifySettings("a", url=url),)) for url in ("json://x", "json://y"))
    assert changed_setting_names(old, new) == ("notify",)
    assert config_digest(old) == config_digest(new)
    assert config_digest(old) != config_digest(Settings(()))


def test_the_public_address_is_without_user_and_query() -> None:
    """It is the beginning of links."""
    document = {"experiments": [], "http": {"public_url": "https://ab.example.org/"}}
    assert parse_settings(document, {}).http.public_url == "https://ab.example.org"
    document["http"] = {"public_url": "ab.example.org"}
    with pytest.raises(ConfigError, match=r"http\.public_url"):
        parse_settings(document, {})
