"""A recording's slices as rows of a picture. Overlapping slices get rows of their own, and slices too fine to be seen are
merged, so that a page stays small however long the recording is. Pure: how it is drawn is not known here."""

from __future__ import annotations

from typing import Final, NamedTuple

from .findings import Findings, TimelineSlice

MAX_SLICES: Final = 20_000
"""The most slices of a timeline."""
MAX_ROWS: Final = 400
"""The most rows of a timeline."""
MAX_LANES: Final = 6
"""The most rows for overlapping slices of one stream; further slices cover others."""
STREAMS: Final = ("fetches", "plans", "instructions", "communication", "transfers", "spills", "waiting")
"""The order of a group's rows; each may be followed by one for aggregated slices."""


class TimelinePiece(NamedTuple):
    """One piece of a row. `many` > 1 marks several slices that are too fine to be drawn; they fill the share `fill` of its
    extent."""

    start: int
    duration: int
    slice: TimelineSlice
    many: int = 1
    fill: float = 1.0


class TimelineRow(NamedTuple):
    """One row: its group ('worker 0'), its name there ('plans'), and its pieces in order of beginning."""

    group: str
    name: str
    pieces: list[TimelinePiece]


def rows(found: Findings, limit: int = MAX_SLICES) -> list[TimelineRow]:
    """The rows of a recording, clients first, with about `limit` pieces in all."""
    out: list[TimelineRow] = []
    for who in ("client", "worker"):
        numbers = sorted({number for kind, number, _ in found.tracks if kind == who})
        for number in numbers:
            for stream in STREAMS:
                for name in (stream, f"{stream} (added up)"):
                    slices = found.tracks.get((who, number, name))
                    if slices:
                        lanes = _lanes(slices, together=name != stream)
                        for lane, pieces in enumerate(lanes):
                            out.append(TimelineRow(f"{who} {number}", f"{name} {lane + 1}" if lane else name, pieces))
    return _thin(out[:MAX_ROWS], found.span, limit)


def _lanes(slices: list[TimelineSlice], *, together: bool) -> list[list[TimelinePiece]]:
    """Slices in rows in which none overlap. `together` puts them into one row, each beginning when there is room."""
    lanes: list[list[TimelinePiece]] = []
    ends: list[int] = []
    for piece in sorted(slices):
        lane = next((at for at, end in enumerate(ends) if end <= piece.start), len(ends))
        if lane == len(ends) and (lane == MAX_LANES or (together and ends)):
            lane -= 1
        elif lane == len(ends):
            lanes.append([])
            ends.append(piece.start)
        start = max(piece.start, ends[lane]) if together else piece.start
        lanes[lane].append(TimelinePiece(start, piece.duration, piece))
        ends[lane] = max(ends[lane], start + piece.duration)
    return lanes


def _thin(found: list[TimelineRow], span: int, limit: int) -> list[TimelineRow]:
    """Merge neighbours that are finer than a grain, which is made coarser until few enough are left."""
    grain = max(1, span // 20_000)
    out = found
    while sum(len(row.pieces) for row in out) > max(limit, len(found)) and grain <= max(1, span):
        out = [row._replace(pieces=_merge(row.pieces, grain)) for row in found]
        grain *= 2
    return out


def _merge(pieces: list[TimelinePiece], grain: int) -> list[TimelinePiece]:
    out: list[TimelinePiece] = []
    group: list[TimelinePiece] = []
    for piece in pieces:
        if group and (piece.duration >= grain or piece.start + piece.duration - group[0].start >= grain):
            out.append(_joined_piece(group))
            group = []
        if piece.duration >= grain:
            out.append(piece)
        else:
            group.append(piece)
    if group:
        out.append(_joined_piece(group))
    return out


def _joined_piece(group: list[TimelinePiece]) -> TimelinePiece:
    """Several pieces as one, with the label of the longest."""
    if len(group) == 1:
        return group[0]
    longest = max(group, key=lambda piece: piece.duration)
    start = group[0].start
    extent = max(piece.start + piece.duration for piece in group) - start
    filled = sum(piece.duration for piece in group)
    return TimelinePiece(
        start, extent, longest.slice, sum(piece.many for piece in group), min(1.0, filled / max(1, extent))
    )
