"""The lines at the top: which service, how the stream is, and the four numbers that people look at first."""

from __future__ import annotations

from typing import Final

from rich.cells import cell_len
from rich.text import Text

from gt.monitor.snapshot import LIVE, Snapshot

from . import figures
from .ink import SPLIT_PARTS, STATE_ROLES, Ink, fit

STALE_SECONDS: Final = 1.5
"""Seconds after which a stream's age is shown; batches come several times a second."""


def title(snapshot: Snapshot, ink: Ink, width: int, paused: bool = False) -> Text:
    """The first line: the service, how long it is up, and how its stream is."""
    left = Text(no_wrap=True, end="")
    left.append(" gt top ", ink.style("title"))
    left.append(" " + (snapshot.status.address or ink.none), ink.style("strong"))
    service = snapshot.service
    if service is not None:
        left.append(f"  {ink.word('uptime')} {figures.uptime(snapshot.uptime)}")
        if width >= 100 and service.version:
            left.append(f"  gt {service.version}", ink.style("dim"))
    right = stream(snapshot, ink, paused, told=width >= 100)
    room = width - cell_len(right.plain) - 2
    return Text.assemble(fit(left, room), " ", right, " ", no_wrap=True, end="")


def stream(snapshot: Snapshot, ink: Ink, paused: bool = False, told: bool = True) -> Text:
    """How the stream is: live, how old what is shown is, how much of it is lost; `told`: and why it is not live."""
    status = snapshot.status
    said = Text(no_wrap=True, end="")
    if paused:
        said.append(ink.word("paused"), ink.style("warning"))
        said.append("  ")
    if status.dropped:
        said.append(f"{figures.count(status.dropped)} {ink.word('dropped')}  ", ink.style("warning"))
    if status.age is not None and (status.age >= STALE_SECONDS or status.state != LIVE):
        said.append(f"{figures.span(status.age * 1e9)} {ink.word('stale')}  ", ink.style("warning"))
    role = STATE_ROLES.get(status.state, "")
    said.append(("● " if ink.unicode else "* ") + ink.word(status.state), ink.style(role))
    if told and status.text and status.state != LIVE:
        said.append(f": {status.text}", ink.style("dim"))
    return said


def numbers(snapshot: Snapshot, ink: Ink, width: int) -> Text:
    """The second line: ops, runs and bytes a second, cache hits, and recoveries if there were any."""
    hits = ink.none if snapshot.hit_rate is None else figures.share(snapshot.hit_rate)
    pairs = [
        (figures.count(snapshot.ops_per_s), "ops"),
        (figures.count(snapshot.runs_per_s), "runs"),
        (figures.size(snapshot.bytes_per_s), "traffic"),
        (hits, "hits"),
    ]
    if snapshot.service is not None and snapshot.service.recoveries:
        pairs.append((figures.count(snapshot.service.recoveries), "recoveries"))
    line = Text(" ", no_wrap=True, end="")
    for value, word in pairs:
        line.append(f"{value:>5} ", ink.style("value"))
        line.append(ink.word(word) + "   ", ink.style("dim"))
    legend = key(ink) if width >= cell_len(line.plain) + cell_len(key(ink).plain) + 1 else Text("")
    room = width - cell_len(legend.plain) - 1
    return Text.assemble(fit(line, room), legend, " ", no_wrap=True, end="")


def key(ink: Ink) -> Text:
    """What the colours of the bars mean."""
    line = Text(no_wrap=True, end="")
    for name in SPLIT_PARTS:
        line.append(ink.sign(name) + " ", ink.style(name))
        line.append(ink.word("wait" if name == "waiting" else name) + "  ", ink.style("dim"))
    line.right_crop(2)
    return line


def lines(snapshot: Snapshot, ink: Ink, width: int, paused: bool = False) -> list[Text]:
    """All of the header."""
    return [title(snapshot, ink, width, paused), numbers(snapshot, ink, width)]
