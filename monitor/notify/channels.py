"""The channels of messages: Apprise for chats and e-mail, and webhooks that are signed as by Standard Webhooks."""

from __future__ import annotations

import importlib
import logging
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final, Protocol

import msgspec

from monitor import __version__
from monitor.config import NotifySettings
from monitor.errors import ConfigError, DependencyUnavailable, UsageError
from monitor.notify.messages import Message

_TIMEOUTS_S: Final = (5.0, 15.0)
"""Timeouts of a request: to connect, and between two parts of the answer."""
_APPRISE_TYPES: Final = {"good": "success", "bad": "warning", "open": "info"}
_STATUS: Final = re.compile(r"error=(\d{3})\b")


class DeliveryFailed(DependencyUnavailable):
    """A channel did not accept a message; the text contains neither the address nor a secret."""


class Channel(Protocol):
    """Sends messages to a receiver."""

    settings: NotifySettings

    def send(self, message: Message, message_id: str, now_ms: int) -> None:
        """Send a message, and wait until the receiver has accepted the message. Raises `DeliveryFailed`."""


class AppriseChannel:
    """Sends messages to an address of Apprise, such as `slack://…` or `mailto://…`."""

    def __init__(self, settings: NotifySettings) -> None:
        """Connect the settings. Raises `UsageError` without the extra `notify`, `ConfigError` for a wrong address."""
        self.settings = settings
        self._apprise = _import_extra("apprise")
        # The log lines of the library may contain parts of the address.
        logging.getLogger("apprise").propagate = False
        asset = self._apprise.AppriseAsset(app_id="AB Monitor", app_desc="AB Monitor", async_mode=False)
        self._sender = self._apprise.Apprise(asset=asset)
        if not self._sender.add(settings.url):
            raise ConfigError(f"notify.{settings.name}.url_file", "…", "an address of Apprise, such as slack://…")

    def send(self, message: Message, message_id: str, now_ms: int) -> None:  # noqa: ARG002
        """Send the message as plain text; Apprise has no place for the id and the time."""
        result = self._sender.notify(
            title=message.title,
            body=message.body,
            notify_type=_APPRISE_TYPES[message.tone],
            body_format=self._apprise.NotifyFormat.TEXT,
        )
        if not result:
            # The result has the log lines of this call alone: all channels share the logger of the library.
            status = _STATUS.search("\n".join(entry.message for entry in result.logs()))
            raise DeliveryFailed("Apprise could not send the message" + (f": HTTP {status[1]}" if status else ""))


class WebhookChannel:
    """Sends messages as JSON in POST requests with the headers of Standard Webhooks."""

    def __init__(self, settings: NotifySettings) -> None:
        """Connect the settings. Raises `UsageError` without the extra `notify`."""
        self.settings = settings
        self._requests = _import_extra("requests")
        self._signer = _import_extra("standardwebhooks").Webhook(settings.secret)

    def send(self, message: Message, message_id: str, now_ms: int) -> None:
        """Send the message; the signature contains the id, the time and the body."""
        body = msgspec.json.encode(message.webhook_json())
        now_s = now_ms // 1000
        signature = self._signer.sign(message_id, datetime.fromtimestamp(now_s, UTC), body.decode())
        headers = {
            "Content-Type": "application/json",
            "User-Agent": f"ab-monitor/{__version__}",
            "webhook-id": message_id,
            "webhook-timestamp": str(now_s),
            "webhook-signature": signature,
        }
        try:
            # The body of the answer is not read, and a redirection is a failure: the request may contain results.
            with self._requests.post(
                self.settings.webhook,
                data=body,
                headers=headers,
                timeout=_TIMEOUTS_S,
                allow_redirects=False,
                stream=True,
            ) as response:
                status = response.status_code
        except self._requests.RequestException as error:
            # The text of the error contains the address.
            raise DeliveryFailed(f"the request failed: {type(error).__name__}") from None
        if not 200 <= status < 300:  # noqa: PLR2004  the statuses of success
            raise DeliveryFailed(f"HTTP {status}")


def open_channels(settings: Sequence[NotifySettings]) -> list[Channel]:
    """Return the channels. Raises `UsageError` without the extra `notify`, `ConfigError` for a wrong address."""
    return [
        WebhookChannel(channel_settings) if channel_settings.url is None else AppriseChannel(channel_settings)
        for channel_settings in settings
    ]


def _import_extra(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UsageError(
            f"[[notify]] needs the extra `notify`, which is not installed ({error}). Install the extra with "
            "`pip install '.[notify]'`, or remove the [[notify]] tables"
        ) from error
