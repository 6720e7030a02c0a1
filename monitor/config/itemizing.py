"""The `items` key of an experiment → `ItemSettings`: a horizon, or a table."""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

from monitor.config.records import ItemSettings
from monitor.config.values import duration_ms, integer, text
from monitor.errors import ConfigError

_KEYS: Final = ("catalogue", "horizon", "most", "one_in")
_DAY_MS: Final = 86_400_000
_LONGEST_DAYS: Final = 365
_MOST: Final = 10_000_000
_MOST_SHARES: Final = 1_000_000


def items_from(key: str, value: object) -> ItemSettings | None:
    """Return what an experiment says about items, None where it says nothing; raises `ConfigError`."""
    if value is None:
        return None
    table: dict[str, Any] = value if isinstance(value, dict) else {"horizon": value}
    for name, given in table.items():
        if name not in _KEYS:
            raise ConfigError(f"{key}.{name}", given, f"one of {', '.join(_KEYS)}")
    horizon_ms = duration_ms(f"{key}.horizon", table.get("horizon"))
    if horizon_ms % _DAY_MS or horizon_ms > _LONGEST_DAYS * _DAY_MS:
        raise ConfigError(f"{key}.horizon", table.get("horizon"), f"whole days, at most {_LONGEST_DAYS}")
    catalogue = None
    if "catalogue" in table:
        catalogue = _catalogue(f"{key}.catalogue", table["catalogue"])
    return ItemSettings(
        horizon_ms // _DAY_MS,
        catalogue=catalogue,
        one_in=integer(f"{key}.one_in", table.get("one_in", 1), 1, _MOST_SHARES),
        most=len(catalogue) if catalogue else integer(f"{key}.most", table.get("most", 10_000), 1, _MOST),
    )


def item_definitions(items: ItemSettings | None) -> dict[str, Any] | None:
    """Return what the stored counts of items depend on, as JSON."""
    if items is None:
        return None
    catalogue = None
    if items.catalogue is not None:
        catalogue = blake2b("\n".join(sorted(items.catalogue)).encode(), digest_size=8).hexdigest()
    return {"days": items.days, "catalogue": catalogue, "one_in": items.one_in, "most": items.most}


def _catalogue(key: str, value: object) -> frozenset[str]:
    path = text(key, value)
    try:
        found = frozenset(filter(None, map(str.strip, Path(path).read_text("utf-8-sig").splitlines())))
    except (OSError, ValueError) as error:
        raise ConfigError(key, path, f"a file of UTF-8 that can be read ({error})") from error
    if not 0 < len(found) <= _MOST:
        raise ConfigError(key, path, f"a file with 1 to {_MOST} ids, one per line")
    return found
