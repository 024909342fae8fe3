"""The words of a language and the style of each kind of text in `gt top`; without colour, signs in place of styles.

Colours are those of Okabe and Ito, told apart by all common kinds of colour vision, in a lighter and a darker set for dark and
light backgrounds. Every colour has a sign of its own, which is all that there is on a terminal without colours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from . import figures
from .words import LANGUAGES

DARK: Final = {
    "compute": "#4fc3a1",
    "communication": "#f0554a",
    "runtime": "#f2c14e",
    "waiting": "#9a8fd1",
    "idle": "#3b4048",
    "memory": "#56b4e9",
    "spill": "#ff9f43",
    "good": "#4fc3a1",
    "warning": "#f2c14e",
    "bad": "bold #f0554a",
    "dim": "#7f8791",
    "strong": "bold",
    "title": "bold #56b4e9",
    "value": "bold",
    "spark": "#56b4e9",
    "element": "#56b4e9",
    "product": "#4fc3a1",
    "reduction": "#f2c14e",
    "movement": "#b7c0cc",
    "random": "#d9a0c7",
    "solver": "#9a8fd1",
    "other": "#8b95a1",
    "plan": "#2f5573",
    "plan2": "#3f6b8f",
    "plan3": "#507fa5",
}
LIGHT: Final = {
    **DARK,
    "compute": "#00805c",
    "communication": "#c43c00",
    "runtime": "#a87400",
    "waiting": "#6a5acd",
    "idle": "#c9ced6",
    "memory": "#0072b2",
    "spill": "#d66a00",
    "good": "#00805c",
    "warning": "#8f6200",
    "bad": "bold #c43c00",
    "dim": "#6b7280",
    "title": "bold #0072b2",
    "spark": "#0072b2",
    "element": "#3a93c9",
    "product": "#00946c",
    "reduction": "#c99000",
    "movement": "#7d8794",
    "random": "#b5659b",
    "solver": "#6a5acd",
    "other": "#8b95a1",
    "plan": "#8fb8d6",
    "plan2": "#a9c9e0",
    "plan3": "#c2daea",
}
PLAIN_STYLES: Final = {"bad": "bold reverse", "warning": "bold", "strong": "bold", "title": "bold", "value": "bold"}
"""Without colour: attributes, and the signs below."""

BLOCK_SIGN: Final = "■"
"""What bars are made of where colours tell their parts apart."""
SIGNS: Final = {"compute": "█", "communication": "▓", "runtime": "▒", "waiting": "░", "idle": " "}
PLAIN_SIGNS: Final = {"compute": "#", "communication": "%", "runtime": "=", "waiting": "-", "idle": " "}
SPLIT_PARTS: Final = ("compute", "communication", "runtime", "waiting")
"""The parts of a utilisation bar, in order."""

OP_GROUPS: Final = {
    "element": ("unary", "binary", "where", "cast", "weight", "fused"),
    "product": (
        "matmul", "int8_product", "conv", "windows", "overlap_add", "max_pool", "max_pool_grad", "attention",
        "attention_grad", "recurrence", "recurrence_grad",
    ),
    "reduction": ("reduction", "arg", "along", "segment_sum", "search"),
    "movement": (
        "reshape", "permute", "expand", "bitcast", "cat", "slice", "update_slice", "gather", "scatter", "scatter_add", "take",
        "compress", "rows", "tag", "follow",
    ),
    "random": ("random", "permutation", "creation"),
    "solver": ("linalg", "solve", "fft"),
}  # fmt: skip
"""Families of ops (`gt/ir/ops.py`, and what is fused) by the colour that the task stream gives them."""
GROUP_OF: Final = {family: group for group, families in OP_GROUPS.items() for family in families}
GROUP_SIGNS: Final = {
    "element": "e", "product": "m", "reduction": "r", "movement": "v", "random": "g", "solver": "s", "other": "o",
    "plan": ":", "plan2": ";", "plan3": ",", "communication": "X", "spill": "S",
}  # fmt: skip
"""What stands for a colour of the task stream where there are no colours."""
STATE_ROLES: Final = {
    "running": "good", "waiting": "waiting", "busy": "runtime", "idle": "dim", "spare": "dim", "leaving": "warning",
    "silent": "warning", "lost": "bad",
    "live": "good", "connecting": "warning", "reconnecting": "warning", "closed": "bad",
}  # fmt: skip
"""The style of a worker's state and of the stream's."""


@dataclass(frozen=True, slots=True)
class Ink:
    """How to write. `unicode` False: nothing but ASCII, for terminals that know no more."""

    language: str = "en"
    color: bool = True
    dark: bool = True
    unicode: bool = True

    def word(self, key: str, **values: object) -> str:
        """A word or sentence, with values put in."""
        text = LANGUAGES[self.language][key]
        return text.format(**values) if values else text

    def style(self, role: str) -> str:
        """The rich style of a role; "" when it has none."""
        return (PLAIN_STYLES if not self.color else DARK if self.dark else LIGHT).get(role, "")

    def text(self, text: str, role: str = "") -> Text:
        """A piece of text in the style of a role."""
        return Text(text, style=self.style(role), no_wrap=True, end="")

    @property
    def none(self) -> str:
        """What stands where nothing is known."""
        return figures.UNKNOWN_TEXT if self.unicode else "-"

    def split_bar(self, shares: dict[str, float], cells: int) -> Text:
        """A bar of `cells` characters, each part in its own colour and sign."""
        drawn = Text(no_wrap=True, end="")
        given = figures.parts([shares[name] for name in SPLIT_PARTS], cells)
        for name, length in zip(SPLIT_PARTS, given, strict=True):
            drawn.append(self.sign(name) * length, self.style(name))
        rest = cells - sum(given)
        drawn.append((BLOCK_SIGN if self.color and self.unicode else " ") * rest, self.style("idle"))
        return drawn

    def sign(self, name: str) -> str:
        """The character of a part of a utilisation bar."""
        if not self.unicode:
            return PLAIN_SIGNS[name]
        return BLOCK_SIGN if self.color else SIGNS[name]

    def bar(self, value: float, cells: int, role: str) -> Text:
        """A bar of one thing, `value` from 0 to 1."""
        full = min(cells, max(1 if value >= 0.005 else 0, round(value * cells)))
        drawn = Text(no_wrap=True, end="")
        block, blank = (
            (BLOCK_SIGN, BLOCK_SIGN) if self.color and self.unicode else ("█", "·") if self.unicode else ("#", ".")
        )
        drawn.append(block * full, self.style(role))
        drawn.append(blank * (cells - full), self.style("idle"))
        return drawn

    def sparkline(self, values: tuple[float, ...], cells: int) -> Text:
        """The last values, newest to the right."""
        bars = figures.BARS if self.unicode else figures.PLAIN_BARS
        return self.text(figures.sparkline(values, cells, bars), "spark")


def fit(text: Text, width: int, right: bool = False) -> Text:
    """A text cut or filled to a width in cells (a Chinese character takes two)."""
    length = cell_len(text.plain)
    if length == width:
        return text
    if length > width:
        cut = text.copy()
        if width > 0:
            cut.truncate(width, overflow="ellipsis")
        else:
            return Text("", no_wrap=True, end="")
        text, length = cut, cell_len(cut.plain)
    blank = " " * (width - length)
    return (
        Text.assemble(blank, text, no_wrap=True, end="") if right else Text.assemble(text, blank, no_wrap=True, end="")
    )


def pad(text: str, width: int) -> str:
    """A plain text cut or filled to a width in cells."""
    return set_cell_size(text, width)
