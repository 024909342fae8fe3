"""A recording's timeline as a picture (PNG), for papers and issues: drawn with matplotlib, if it is there.

What is drawn is `timeline.py`'s business. Raises `GTError` where matplotlib is missing; nothing else in the room needs it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from gt.errors import GTError

from .findings import Findings
from .timeline import rows

MAX_SLICES: Final = 20_000
"""The most slices that are drawn."""
SLICE_COLOURS: Final = {
    "plan": "#86b3e6",
    "products": "#2f77c8",
    "element-wise": "#27998b",
    "reductions": "#8159c9",
    "indexing": "#b3881b",
    "rearranging": "#7d8899",
    "collective": "#d9534f",
    "transfer": "#c65b9b",
    "spill": "#b5531c",
    "waiting": "#e8a33d",
}
"""As in the report."""


def save(found: Findings, path: Path, title: str) -> None:
    """Draw the timeline into a PNG file, whatever its name. Raises `GTError` without matplotlib, and `OSError`."""
    try:
        from matplotlib.colors import to_rgba
        from matplotlib.figure import Figure
        from matplotlib.patches import Patch
    except ImportError:
        raise GTError("--png draws with matplotlib: pip install 'gt-tensor[report]'") from None
    drawn = rows(found, MAX_SLICES)[::-1]
    figure = Figure(figsize=(12, 1.4 + 0.26 * max(1, len(drawn))), layout="constrained")
    axes = figure.add_subplot()
    scale, unit = next((each for each in ((1e9, "s"), (1e6, "ms"), (1e3, "µs")) if found.span >= each[0]), (1.0, "ns"))
    for at, row in enumerate(drawn):
        for what, colour in SLICE_COLOURS.items():
            pieces = [piece for piece in row.pieces if piece.slice.what == what]
            spans = [
                ((piece.start - found.start) / scale, max(piece.duration / scale, found.span / scale / 4000))
                for piece in pieces
            ]
            if spans:
                faces = [to_rgba(colour, 1.0 if piece.many == 1 else 0.25 + 0.75 * piece.fill) for piece in pieces]
                axes.broken_barh(spans, (at - 0.4, 0.8), facecolors=faces, linewidth=0)
    axes.set_yticks(range(len(drawn)), [_plain(f"{row.group}: {row.name}") for row in drawn], fontsize=8)
    axes.set_ylim(-0.6, max(1, len(drawn)) - 0.4)
    axes.set_xlim(0, max(found.span, 1) / scale)
    axes.set_xlabel(f"time ({unit})")
    axes.set_title(_plain(title), fontsize=11, loc="left")
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color="#e1e5ec", linewidth=0.6)
    axes.set_axisbelow(True)
    seen = {piece.slice.what for row in drawn for piece in row.pieces}
    if seen:
        figure.legend(
            handles=[Patch(color=colour, label=what) for what, colour in SLICE_COLOURS.items() if what in seen],
            loc="outside lower center", ncols=len(SLICE_COLOURS), fontsize=8, frameon=False,
        )  # fmt: skip
    figure.savefig(path, format="png", dpi=130)


def _plain(text: str) -> str:
    """A text in which matplotlib reads nothing as a formula."""
    return text.replace("$", r"\$")
