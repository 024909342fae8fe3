"""Numbers as people read them, in few characters: bytes, rates, spans of time, bars and sparklines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

NS_PER_SECOND: Final = 1_000_000_000
UNKNOWN_TEXT: Final = "–"
"""What is written where nothing is known."""
_BINARY: Final = "BKMGTPE"
_DECIMAL: Final = ("", "k", "M", "G", "T", "P")
BARS: Final = "▁▂▃▄▅▆▇█"
PLAIN_BARS: Final = "_.-:=+*#"


def size(nbytes: float) -> str:
    """Bytes in at most five characters: 17B, 1.2K, 340M, 1023G."""
    value, unit = float(nbytes), 0
    while value >= 1023.5 and unit < len(_BINARY) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.1f}{_BINARY[unit]}" if unit and value < 9.95 else f"{value:.0f}{_BINARY[unit]}"


def count(value: float) -> str:
    """A number in at most five characters: 7, 940, 1.2k, 35k, 4.1M."""
    unit = 0
    while value >= 999.5 and unit < len(_DECIMAL) - 1:
        value, unit = value / 1000, unit + 1
    if unit == 0:
        return f"{value:.1f}" if 0 < value < 9.95 and value != int(value) else f"{value:.0f}"
    return f"{value:.1f}{_DECIMAL[unit]}" if value < 9.95 else f"{value:.0f}{_DECIMAL[unit]}"


def share(value: float) -> str:
    """A share of 1 in at most four characters; what is not all is never written as 100%."""
    if 0.995 <= value < 1:
        return "99%"
    return f"{value * 100:.0f}%"


def span(nanoseconds: float) -> str:
    """A duration in at most six characters: 3ns, 12µs, 4.5ms, 3.2s, 5m07s, 2h04m, 3d04h."""
    value = float(nanoseconds)
    for unit, scale in (("ns", 1.0), ("µs", 1e3), ("ms", 1e6)):
        if value < 999.5 * scale:
            short = value / scale
            return f"{short:.1f}{unit}" if scale > 1 and short < 9.95 else f"{short:.0f}{unit}"
    seconds = value / NS_PER_SECOND
    if seconds < 59.5:
        return f"{seconds:.1f}s" if seconds < 9.95 else f"{seconds:.0f}s"
    whole = round(seconds)
    if whole >= 100 * 86400:
        return f"{whole // 86400}d"
    for small, big, units in ((60, 3600, "ms"), (3600, 86400, "hm"), (86400, 100 * 86400, "dh")):
        if whole < big:
            rest = whole % small // {"m": 1, "h": 60, "d": 3600}[units[0]]
            return f"{whole // small}{units[0]}{rest:02d}{units[1]}"
    raise AssertionError("each span has a unit")


def uptime(seconds: float) -> str:
    """As clocks show it: 00:01:05, 3d 04:00:09."""
    whole = int(seconds)
    days, rest = divmod(whole, 86400)
    clock = f"{rest // 3600:02d}:{rest % 3600 // 60:02d}:{rest % 60:02d}"
    return f"{days}d {clock}" if days else clock


def parts(shares: Sequence[float], cells: int) -> list[int]:
    """How many of `cells` each share of 1 gets: largest remainders, and what is not nothing is not hidden while there is room."""
    exact = [max(0.0, share) * cells for share in shares]
    total = min(cells, round(sum(exact)))
    given = [int(part) for part in exact]
    order = sorted(range(len(exact)), key=lambda place: (given[place] - exact[place], place))
    for place in order[: max(0, total - sum(given))]:
        given[place] += 1
    for place, part in enumerate(exact):
        most = max(range(len(given)), key=given.__getitem__, default=0)
        if part >= 0.1 and given[place] == 0 and given[most] > 1:
            given[most] -= 1
            given[place] = 1
    return given


def sparkline(values: Sequence[float], width: int, bars: str = BARS) -> str:
    """The last values as bars from 0 to 1, the newest to the right; older than known is blank."""
    known = list(values)[-width:] if width > 0 else []
    drawn = "".join(bars[min(len(bars) - 1, max(0, int(value * len(bars))))] for value in known)
    return drawn.rjust(width)


def place(site: str, width: int) -> str:
    """A file and line, the end of which says most: …/model.py:31."""
    if len(site) <= width:
        return site
    name = site.rpartition("/")[2]
    return name if len(name) <= width else "…" + name[len(name) - width + 1 :] if width > 1 else ""
