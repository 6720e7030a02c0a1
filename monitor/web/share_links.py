"""Signed links with which a person without a login reads one experiment until a time.

The signature is HMAC-SHA256 of the experiment, the end and the `as_of` of the link, so a reader can change none of
them. Nothing is stored: a new secret ends all links.
"""

from __future__ import annotations

import hmac
import json
import re
from base64 import urlsafe_b64encode
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias
from urllib.parse import quote, urlencode

SHARE_PARAMETER: Final = "share"
AS_OF_PARAMETER: Final = "as_of"
DEFAULT_SHARE_DAYS: Final = 7
MAX_SHARE_DAYS: Final = 365
_DAY_S: Final = 86_400
_VERSION: Final = "v1"
_SHARE: Final = re.compile(rf"{_VERSION}\.(0|[1-9][0-9]{{0,11}})\.([A-Za-z0-9_-]{{43}})")

LinkState: TypeAlias = Literal["valid", "expired", "wrong"]


@dataclass(frozen=True, slots=True)
class ShareLink:
    """What a link opens, and until when."""

    experiment: str
    expires_at_s: int
    """Seconds since the Unix epoch."""
    as_of: str = ""
    """The query parameter `as_of` of the link, unchanged; empty for the current state."""


def share_path(secret: str, link: ShareLink) -> str:
    """Return path and query of a link.

    >>> share_path("0" * 32, ShareLink("a/b", 1_800_000_000)).partition("1800000000.")[0]
    '/experiments/a%2Fb?share=v1.'
    """
    query = {AS_OF_PARAMETER: link.as_of} if link.as_of else {}
    query[SHARE_PARAMETER] = f"{_VERSION}.{link.expires_at_s}.{_signature(secret, link)}"
    return f"/experiments/{quote(link.experiment, safe='')}?{urlencode(query)}"


def page_share_path(secret: str, experiment: str, as_of: str, now_s: float) -> str:
    """Return path and query of a link that is valid for seven to eight days: until the end of a UTC day.

    So the link on a page is the same for a whole day.
    """
    expires_at_s = (int(now_s) // _DAY_S + DEFAULT_SHARE_DAYS + 1) * _DAY_S
    return share_path(secret, ShareLink(experiment, expires_at_s, as_of))


def check_share(secret: str, share: str, experiment: str, as_of: str, now_s: float) -> LinkState:
    """Return whether the parameter `share` of an address is signed for an experiment and an `as_of`, and not expired.

    Only links with a right signature can be expired.
    """
    parts = _SHARE.fullmatch(share)
    if parts is None:
        return "wrong"
    link = ShareLink(experiment, int(parts[1]), as_of)
    if not hmac.compare_digest(parts[2], _signature(secret, link)):
        return "wrong"
    return "valid" if now_s < link.expires_at_s else "expired"


def _signature(secret: str, link: ShareLink) -> str:
    """Return the signature in URL-safe base64; JSON separates the fields, whatever characters they contain."""
    message = json.dumps(["ab-monitor share", _VERSION, link.experiment, link.expires_at_s, link.as_of])
    digest = hmac.digest(secret.encode(), message.encode("ascii"), "sha256")
    return urlsafe_b64encode(digest).rstrip(b"=").decode("ascii")
