"""The keys of `gt top`, as in htop: one literal table, from which come bindings, help, the bottom line and docs/top.md."""

from __future__ import annotations

from typing import Final, NamedTuple


class Key(NamedTuple):
    """`keys` as Textual names them; `shown` as people do; the `action` of the app; its words' key behind 'help ', and behind
    'key ' in the bottom line ('' : not there). `scope`: 'app', or 'table' for what works while a table has the focus."""

    keys: str
    shown: str
    action: str
    words: str
    foot: str = ""
    scope: str = "app"


KEYS: Final = (
    Key("f1,h,question_mark", "F1 h ?", "help", "help", "help"),
    Key("f2,S", "F2 S", "setup", "setup", "setup"),
    Key("f3,slash", "F3 /", "search", "search", "search"),
    Key("f4,backslash", "F4 \\", "filter", "filter", "filter"),
    Key("f5,t", "F5 t", "tree", "tree", "tree"),
    Key("f6,s,greater_than_sign", "F6 s >", "sort", "sort", "sort"),
    Key("f9,a", "F9 a", "act", "act", "act"),
    Key("f10,q,ctrl+c", "F10 q Ctrl-C", "quit", "quit", "quit"),
    Key("k", "k", "cancel", "cancel"),
    Key("n", "n", "find_next", "next"),
    Key("I", "I", "invert", "invert"),
    Key("P", "P", "sort_workers('used')", "by use"),
    Key("M", "M", "sort_workers('memory')", "by memory"),
    Key("T", "T", "sort_time", "by time"),
    Key("space", "Space", "mark", "mark"),
    Key("U", "U", "unmark", "unmark"),
    Key("u", "u", "only", "only"),
    Key("p,Z", "p Z", "pause", "pause", "pause"),
    Key("e", "e", "export", "export", "export"),
    Key("w", "w", "why", "why", "why"),
    Key("l", "l", "level", "level"),
    Key("minus", "-", "window(1)", "longer"),
    Key("plus,equals_sign", "+", "window(-1)", "shorter"),
    Key("tab", "Tab", "app.focus_next", "focus"),
    Key("shift+tab", "Shift-Tab", "app.focus_previous", "focus back"),
    Key("1,2,3,4,5,6,7", "1 … 7", "pane", "pane"),
    Key("left,left_square_bracket", "← [", "pane_step(-1)", "pane left"),
    Key("right,right_square_bracket", "→ ]", "pane_step(1)", "pane right"),
    Key("escape", "Esc", "close", "close"),
    Key("up", "↑", "move(-1)", "up", scope="table"),
    Key("down", "↓", "move(1)", "down", scope="table"),
    Key("pageup", "PgUp", "page(-1)", "page up", scope="table"),
    Key("pagedown", "PgDn", "page(1)", "page down", scope="table"),
    Key("home", "Home", "edge(-1)", "home", scope="table"),
    Key("end", "End", "edge(1)", "end", scope="table"),
    Key("enter", "Enter", "select", "select", scope="table"),
)


def first(key: Key) -> str:
    """The name that stands in the bottom line: F1, p."""
    return key.shown.split()[0]
