"""How a program's first operation starts a session: `gt` binds it, so the client need not know services.

The sessions themselves are in `client/session/sessions.py`.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_starters: list[Callable[[], object]] = []


def bind(starter: Callable[[], object]) -> None:
    """Start default sessions by `starter` from now on."""
    _starters[:] = [starter]


def start() -> None:
    """Start the default session; it is current afterwards."""
    _starters[-1]()
