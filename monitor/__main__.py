"""`python -m monitor` is `ab-monitor`."""

from __future__ import annotations

import sys

try:
    from monitor.cli import main
except KeyboardInterrupt:  # Ctrl-C while everything is being loaded
    sys.exit(130)

if __name__ == "__main__":
    sys.exit(main())
