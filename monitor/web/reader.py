"""The reader of a request: the person or program that it is from, and what the reader may see."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from starlette.requests import HTTPConnection

READER_STATE: Final = "reader"
"""Key of the reader in the state of a request, which `RequestRules` sets."""


@dataclass(frozen=True, slots=True)
class Reader:
    """The person or program that a request is from; by default nobody, who may see nothing."""

    user: str | None = None
    """Name of a signed-in user for the header of pages, with escaped control characters; never logged or stored."""
    experiment: str | None = None
    """The experiment that the reader of a share link may see."""
    can_see_all: bool = False
    can_change: bool = False

    def can_see(self, experiment: str) -> bool:
        """Return whether the reader may see an experiment."""
        return self.can_see_all or experiment == self.experiment


OPEN_READER: Final = Reader(can_see_all=True)
"""The reader of a service without a token and trusted proxies."""


def request_reader(request: HTTPConnection) -> Reader:
    """Return the reader of a request; nobody, if `RequestRules` has not passed the request on."""
    reader = request.scope.get("state", {}).get(READER_STATE, Reader())
    assert isinstance(reader, Reader)
    return reader
