"""Workers that write beside the script take turns: of two between question and batch, one voids what the other sends.

A turn binds nobody. It ends by itself, and whoever has waited long enough goes on without.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

from monitor.store.connection import Pending

TURN_MS: Final = 100
"""What a worker has for a batch until others no longer wait for it, and what it waits for them."""
POLL_S: Final = 0.002


def take(turn: bytes) -> Sequence[Any]:
    """Return the command that takes a turn, unless another worker has it."""
    return ("SET", turn, b"", "PX", TURN_MS, "NX")


def wait_for(turn: bytes, pending: Pending) -> bool:
    """Wait for a turn over a connection; return whether it has come in time."""
    until = time.monotonic() + TURN_MS / 1000
    while time.monotonic() < until:
        time.sleep(POLL_S)
        pending.send(take(turn))
        if pending.replies()[0]:
            return True
    return False
