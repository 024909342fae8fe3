"""The screens that open over the view: help, a menu, and a question before an action."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import Any, ClassVar, Final

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from .ink import OP_GROUPS, SPLIT_PARTS, Ink, pad
from .keys import KEYS
from .table import Table
from .tasks import sign_of

BARE_SHARE_WIDTH: Final = 11
"""Cells in which a share is a number without a bar."""


def help_text(ink: Ink, version: str, absent: frozenset[str]) -> Text:
    """All keys that do something here, and what colours and signs mean."""
    text = Text()
    for key in KEYS:
        if key.action not in absent:
            text.append(f"  {pad(key.shown, 14)}", ink.style("title"))
            text.append(ink.word(f"help {key.words}") + "\n")
    text.append(f"\n  {ink.word('help mouse')}\n\n")
    text.append(f"  {ink.word('help colours')}\n", ink.style("strong"))
    for part in (*SPLIT_PARTS, "idle"):
        plain = Ink(color=False, unicode=ink.unicode)
        text.append(f"    {ink.sign(part)}{ink.sign(part)} ", ink.style(part))
        text.append(pad(ink.word("wait" if part == "waiting" else part), 16))
        text.append(f"{ink.word('help signs')}: {plain.sign(part)}\n" if part != "idle" else "\n", ink.style("dim"))
    about = {role: ink.word(f"help {role}") for role in ("plan", "communication", "spill")}
    about |= {group: ", ".join(families) for group, families in OP_GROUPS.items()}
    text.append(f"\n  {ink.word('pane tasks')}\n", ink.style("strong"))
    for role, told in about.items():
        text.append(f"    {sign_of(role, ink) * 2} ", ink.style(role))
        text.append(pad(ink.word(role if role == "spill" else f"group {role}"), 16))
        text.append(f"\n{' ' * 23}".join(wrap(told, 46)) + "\n", ink.style("dim"))
    text.append("\n  " + ink.word("help version", version=version), ink.style("dim"))
    return text


def row_text(table: Table[Any], item: Any, ink: Ink) -> Text:
    """All that a row says, column by column, with nothing cut off."""
    text = Text()
    for column in table.columns:
        title = ink.word(column.name)
        text.append(f"  {pad(title, 12)} ", ink.style("title"))
        text.append_text(column.cell(item, ink, BARE_SHARE_WIDTH if column.name == "share" else 1 << 16))
        text.append("\n")
    text.right_crop(1)
    return text


class Box(ModalScreen[Any]):
    """A box in the middle, which Escape closes."""

    BINDINGS: ClassVar = [Binding("escape,q", "dismiss", show=False)]

    def __init__(self, title: str, hint: str) -> None:
        super().__init__()
        self.box_title, self.hint = title, hint

    def framed(self, box: Any) -> Any:
        """A box with its title above and what to press below."""
        box.border_title, box.border_subtitle = self.box_title, self.hint
        return box


class Help(Box):
    """The keys."""

    BINDINGS: ClassVar = [Binding("f1,h,question_mark,f10,enter", "dismiss", show=False)]

    def __init__(self, text: Text, title: str, hint: str) -> None:
        super().__init__(title, hint)
        self.text = text

    def compose(self) -> ComposeResult:
        """A text that scrolls."""
        with self.framed(VerticalScroll(classes="box wide")):
            yield Static(self.text)


class Menu(Box):
    """Things to choose from; the result is the id of the chosen one. A thing without an id is a title."""

    BINDINGS: ClassVar = [Binding("f10", "dismiss", show=False), Binding("space", "choose", show=False)]

    def __init__(self, title: str, hint: str, things: Sequence[tuple[str, str]], chosen: str = "") -> None:
        super().__init__(title, hint)
        self.things, self.chosen = things, chosen

    def compose(self) -> ComposeResult:
        """A list with a cursor."""
        options = [Option(text, id=name or None, disabled=not name) for name, text in self.things]
        yield self.framed(OptionList(*options, classes="box", markup=False))

    def on_mount(self) -> None:
        """Begin at the one that is chosen now."""
        names = [name for name, _ in self.things]
        listing = self.query_one(OptionList)
        first = next((place for place, name in enumerate(names) if name), 0)
        listing.highlighted = names.index(self.chosen) if self.chosen and self.chosen in names else first

    def action_choose(self) -> None:
        """Space does as Enter."""
        self.query_one(OptionList).action_select()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """One was chosen."""
        _ = self.dismiss(event.option_id)


class Confirm(Box):
    """A question; the result is whether it was answered with yes."""

    BINDINGS: ClassVar = [Binding("y", "answer(True)", show=False), Binding("n", "answer(False)", show=False)]

    def __init__(self, question: str, hint: str, yes: str, no: str) -> None:
        super().__init__("", "")
        self.question, self.small, self.yes, self.no = question, hint, yes, no

    def compose(self) -> ComposeResult:
        """The question, what follows from a yes, and the two answers; no is the first."""
        with Vertical(classes="box question"):
            yield Static(Text(self.question, style="bold"))
            yield Static(Text(self.small), classes="small")
            yield OptionList(Option(self.no, id="no"), Option(self.yes, id="yes"), markup=False)

    def action_answer(self, yes: bool) -> None:
        """y or n."""
        _ = self.dismiss(yes)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """An answer was chosen."""
        _ = self.dismiss(event.option_id == "yes")
