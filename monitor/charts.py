"""Small charts for the report, as HTML and SVG text: bars, and memory over time. Colours are names in the style sheet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from typing import Final

from .advice import percent, seconds, share, size
from .findings import Findings

WIDTH, HEIGHT = 920, 240
LEFT, RIGHT, TOP, BOTTOM = 76, 12, 12, 26
MAX_POINTS: Final = 400
"""The most points of a line; of more, the highest of neighbours is drawn."""
MAX_SERIES: Final = 8
"""The most lines with colours of their own."""


def bars(parts: Iterable[tuple[str, float]]) -> str:
    """Shares of one whole, side by side."""
    inner = "".join(f'<i class="c-{name}" style="width:{100 * value:.2f}%"></i>' for name, value in parts if value > 0)
    return f'<span class="bar" aria-hidden="true">{inner}</span>'


def stacked_bar(parts: Mapping[str, int], title: str) -> str:
    """Where time went, as one full bar with a text."""
    whole = sum(parts.values())
    said = ", ".join(f"{name} {percent(share(value, whole))}" for name, value in parts.items())
    inner = "".join(
        f'<i class="c-{name}" style="width:{100 * share(value, whole):.2f}%" title="{name} {percent(share(value, whole))}"></i>'
        for name, value in parts.items()
        if value > 0
    )
    return f'<span class="bar full" role="img" aria-label="{escape(title)}: {escape(said)}">{inner}</span>'


def memory_chart(found: Findings) -> str:
    """Bytes that each worker held, over time."""
    lines = {number: worker.memory for number, worker in sorted(found.workers.items()) if worker.memory}
    most = max((held for line in lines.values() for _, held, _ in line), default=0)
    if not most or not found.span:
        return '<p class="none">Memory: no worker held anything.</p>'
    width, height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    top = _round(most)
    out = []
    for step in range(5):
        y = TOP + height - height * step / 4
        out.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        out.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{escape(size(top * step / 4))}</text>')
        x = LEFT + width * step / 4
        anchor = "end" if step == 4 else "middle" if step else "start"
        out.append(
            f'<text x="{x:.1f}" y="{HEIGHT - 6}" text-anchor="{anchor}">{escape(seconds(found.span * step / 4))}</text>'
        )
    for at, (number, line) in enumerate(lines.items()):
        points = " ".join(
            f"{LEFT + width * min(1.0, max(0.0, (time - found.start) / found.span)):.1f},"
            f"{TOP + height - height * held / top:.1f}"
            for time, held in _thinned(line)
        )
        peak = max(held for _, held, _ in line)
        out.append(
            f'<polyline class="s{at % MAX_SERIES}" points="{points}">'
            f"<title>worker {number}: at most {escape(size(peak))}</title></polyline>"
        )
    legend = "".join(f'<li><i class="s{at % MAX_SERIES}"></i>worker {number}</li>' for at, number in enumerate(lines))
    said = ", ".join(
        f"worker {number} at most {size(max(held for _, held, _ in line))}"
        for number, line in list(lines.items())[:MAX_SERIES]
    )
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="Bytes held over time: {escape(said)}">{"".join(out)}</svg>'
        f'<ul class="legend">{legend}</ul>'
    )


def _thinned(line: list[tuple[int, int, int]]) -> list[tuple[int, int]]:
    step = -(-len(line) // MAX_POINTS)
    return [
        max(((time, held) for time, held, _ in line[at : at + step]), key=lambda each: each[1])
        for at in range(0, len(line), step)
    ]


def _round(top: int) -> float:
    """The next round number of bytes from `top` on that has four round quarters."""
    unit = 1.0
    while unit * 10 <= top:
        unit *= 10
    return next(factor * unit for factor in (1.2, 1.6, 2, 2.4, 3.2, 4, 6, 8, 10) if factor * unit >= top)
