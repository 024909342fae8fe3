"""Whose share of the dispatcher's thread an event counts in."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Hashable

import pytest
from one_dispatcher import Service, started

from gt.dispatcher.membership import LOGGED_RATE
from gt.dispatcher.pacing.thread_shares import NOBODY
from gt.dispatcher.state.events import Lost, Malformed, Received
from gt.wire import messages as m
from gt.wire.principals import USER, Origin, Principal

ORIGIN = Origin(Principal("key b", frozenset({USER})))


def served_by_hello(role: str, **facts: object) -> Hashable:
    """Who is charged for a `Hello`."""
    each = Service(1)
    each.event(Received(b"new", m.Hello(m.VERSION, role, facts), 0, ORIGIN))
    return each.core.service.served


def test_whoever_begins_sessions_is_charged_for_it() -> None:
    assert served_by_hello("client", bulk=b"bulk") == "key b"
    assert served_by_hello("inquirer") == "key b"
    assert served_by_hello("nonsense") == "key b", "also if it is refused"


@pytest.mark.parametrize("role", ["worker", "pulse"])
def test_workers_are_charged_for_nothing(role: str) -> None:
    assert served_by_hello(role, address="ipc:///new", bulk=b"bulk") == NOBODY


def test_whoever_sends_what_is_no_message_is_charged_for_it() -> None:
    each = started()
    principal = each.core.service.clients[b"c"].program.principal
    each.event(Malformed(b"c", "no message"))
    assert each.core.service.served == principal
    each.event(Malformed(b"stranger", "no message"))
    assert each.core.service.served == NOBODY


def test_whoever_leaves_is_charged_for_what_that_takes() -> None:
    each = started()
    principal = each.core.service.clients[b"c"].program.principal
    each.event(Lost(b"c", "its process ended", ended=True))
    assert each.core.service.served == principal
    each.event(Lost(b"stranger", "its process ended", ended=True))
    assert each.core.service.served == NOBODY


def refusals(service: Service) -> list[str]:
    return [line for line in service.log if "refused a message" in line]


def test_messages_that_are_refused_are_logged_now_and_then() -> None:
    """A client that breaks the protocol again and again, in a new session each time, writes no log of thousands of lines; what it
    does later is logged again, with how many were not, and what another one does at once."""
    each = Service(1)

    def breaks(name: str, principal: str) -> None:
        each.origins[name] = Origin(Principal(principal, frozenset({USER})))
        each.client(name)
        each.event(Malformed(name.encode(), "no message"))

    for number in range(60):
        breaks(f"c{number}", "key b")
    at_once, _ = LOGGED_RATE
    assert refusals(each) == ["warning: refused a message of key b: no message"] * at_once
    assert each.core.service.counters.refused == 60
    breaks("other", "key c")
    assert (
        refusals(each)[-1]
        == f"warning: refused a message of key c: no message; {60 - at_once} more, of all, were only counted"
    )
    each.now += 60
    breaks("last", "key b")
    assert refusals(each)[-1] == "warning: refused a message of key b: no message"


def test_what_a_config_needs_is_imported_before_somebody_waits_for_it() -> None:
    program = (
        "import sys; from gt.dispatcher import shell; assert 'gt.sharding.config' not in sys.modules; "
        "shell.import_ahead().join(60); print('gt.sharding.config' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert found.stdout == "True\n"
