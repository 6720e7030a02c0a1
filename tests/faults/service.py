"""`ab-monitor` that writes rows beside the script from a few on, as it does for large batches: polls are small here."""

from __future__ import annotations

import sys

from monitor.cli import main
from monitor.store import RedisStore

_MANY = 24
"""Of the rows of polls of 32 records: those of the smaller ones go through the script."""

if __name__ == "__main__":
    RedisStore.many = _MANY
    sys.exit(main())
