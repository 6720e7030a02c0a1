"""The extra `notify`: needed by channels alone, and its absence is reported at start."""

from __future__ import annotations

import subprocess
import sys

import pytest

from monitor.config import NotifySettings
from monitor.errors import UsageError
from monitor.notify import open_channels
from monitor.notify.messages import page_address

WEBHOOK = NotifySettings("hook", webhook="https://example.org", secret="whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
CHAT = NotifySettings("chat", url="json://example.org")


@pytest.mark.parametrize(
    ("settings", "module"), [(WEBHOOK, "standardwebhooks"), (WEBHOOK, "requests"), (CHAT, "apprise")]
)
def test_a_channel_without_the_extra_is_an_error_that_names_the_extra(
    settings: NotifySettings, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the command that installs the extra."""
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UsageError, match=r"the extra `notify`, which is not installed .*pip install '\.\[notify\]'"):
        open_channels([settings])


def test_a_service_without_channels_imports_no_library_of_the_extra() -> None:
    """A worker without the extra starts as before."""
    code = (
        "import sys, monitor.cli\nfrom monitor.notify import open_channels\nassert open_channels([]) == []\n"
        "assert not {'apprise', 'standardwebhooks', 'requests'} & sys.modules.keys()"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_link_keeps_every_name_in_one_part_of_the_path() -> None:
    """A name may contain anything."""
    assert page_address("https://ab.example.org", "a/b ?#é") == (
        "https://ab.example.org/experiments/a%2Fb%20%3F%23%C3%A9"
    )
    assert page_address(None, "a") is None
