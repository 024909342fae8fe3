"""How the app looks: two themes of its own, and the style sheet. `ink.py` has the colours of contents."""

from __future__ import annotations

from typing import Final

from textual.theme import Theme

THEMES: Final = (
    Theme(
        name="gt-dark", dark=True, primary="#56b4e9", secondary="#4fc3a1", accent="#f2c14e", warning="#f2c14e",
        error="#f0554a", success="#4fc3a1", foreground="#d7dce2", background="#12161b", surface="#171c22", panel="#2a313a",
    ),
    Theme(
        name="gt-light", dark=False, primary="#0072b2", secondary="#00805c", accent="#a87400", warning="#a87400",
        error="#c43c00", success="#00805c", foreground="#1f2933", background="#ffffff", surface="#f6f8fa", panel="#d8dee6",
    ),
)  # fmt: skip

SHEET: Final = """
Screen { background: $background; color: $foreground; layers: base over; overflow: hidden hidden; }
ScrollView, VerticalScroll, OptionList { scrollbar-size: 1 1; scrollbar-color: $panel; scrollbar-background: $background;
    scrollbar-color-hover: $primary; scrollbar-color-active: $primary; scrollbar-background-hover: $background;
    scrollbar-background-active: $background; overflow-x: hidden; }
ScrollView { background: $background; }
#header { height: 2; }
#prompt { display: none; height: 1; border: none; padding: 0 1; background: $panel; }
#prompt.open { display: block; }
#prompt:focus { border: none; }
#tabs { height: 1; }
#foot { height: 1; background: $surface; }
#panes { height: 1fr; }
#hot Listing { width: 1fr; }
#hot { layout: horizontal; }
.narrow #hot { layout: vertical; }
.narrow #hot Listing { height: 1fr; width: 100%; }
#small { display: none; layer: over; width: 100%; height: 100%; background: $background; }
.small #small { display: block; }

.framed { border: round $panel; border-title-color: $foreground 70%; border-subtitle-color: $foreground 50%; }
.framed:focus, .framed:focus-within { border: round $primary 60%; border-title-color: $primary; }
.narrow .framed, .narrow .framed:focus, .narrow .framed:focus-within { border: none; }

.listing--head { color: $foreground 60%; text-style: bold; }
.narrow .listing--head { background: $panel; color: $foreground; }
.listing--cursor { background: $primary 32%; }
.listing--still { background: $panel 45%; }
.listing--marked { color: $accent; text-style: bold; }
.listing--group { color: $primary; }

Box { align: center middle; background: $background 60%; }
.box { width: 95%; max-width: 60; min-width: 20; height: auto; max-height: 90%; background: $surface; border: round $primary;
    padding: 0 1; border-title-color: $primary; border-subtitle-color: $foreground 60%; }
.wide { max-width: 90; padding: 1; }
.question { max-width: 64; padding: 1 2; border: round $error; }
.question .small { color: $foreground 70%; margin: 1 0; }
.question OptionList { height: auto; border: none; background: $surface; }
Toast { background: $surface; }
"""
