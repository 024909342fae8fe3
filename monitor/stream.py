"""The reading side of the event stream: connects to a service, yields its events, and reconnects when the service returns.

Every wait has a limit. A lost connection (the service stopped, or was silent) is a state, not an error: `status` then says
'reconnecting', and how old the last event is. Only if nothing was ever received, an error says in one line what to do. No
thread is used: the caller calls `read` and decides how long it may take.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from gt.daemon.host import CONNECT_TIMEOUT, host_facts
from gt.daemon.registry import find_service, services
from gt.errors import ConnectionFailed, ProtocolError, SessionError
from gt.wire import addresses, transport
from gt.wire import messages as m
from gt.wire import telemetry as t
from gt.wire.connection import Connection
from gt.wire.faults import error_of
from gt.wire.keys import keys_for
from gt.wire.messages import codec

from .snapshot import CLOSED, CONNECTING, LIVE, RECONNECTING, Status

SILENCE_SECONDS: Final = 3.0
"""The seconds of silence after which the stream reconnects; the service sends a heartbeat every second."""
RETRY_SECONDS: Final = 1.0
"""The seconds between two attempts to connect."""
BATCHES_PER_REPORT: Final = 4
"""After this many batches, the stream reports that they were read; the service sends a few times as many without a report."""
WATCHER: Final = "watcher"
INQUIRER: Final = "inquirer"
"""What a stream can be: an inquirer only asks, and gets no events."""
HEARTBEAT_SECONDS: Final = 2.0
"""The seconds after which the stream sends a heartbeat."""


def discover() -> str:
    """The address of the service of this machine: the one that this user, or a program of theirs, started last, or one for a
    group of theirs. Raises `ConnectionFailed`."""
    found = next((service.address for service in services()), None) or find_service()
    if found is None:
        raise ConnectionFailed("no service runs on this host: start one with `gt up`, or say its address")
    return found


class Stream:
    """One watcher's connection. Without `address`, `discover` finds the service.

    Raises `ConnectionFailed` if nothing answers within `timeout` seconds, `ProtocolError` if the peer is not this version of
    GT.
    """

    def __init__(
        self, address: str | None = None, *, level: int = t.SUMMARY, timeout: float = CONNECT_TIMEOUT,
        keys: transport.CurveKeys | None = None, role: str = WATCHER,
    ) -> None:  # fmt: skip
        self.asked = address
        self.role = role
        self.keys = keys
        self.address = address or discover()
        self.level = level
        self.again = True
        """Whether to reconnect when the service is lost, at its address, or (without one) where `discover` then finds one."""
        self.dropped = 0
        self.capabilities: tuple[str, ...] = ()
        self.joined = 0
        """How many times a service has let it in."""
        self._state = CONNECTING
        self._text = ""
        self._heard: float | None = None
        self._said = self._tried = 0.0
        self._events: list[t.Event] = []
        self._request = 0
        self._answers: dict[int, m.Answer | m.Failed] = {}
        self._poller = transport.poller()
        self._beside: int | None = None
        self._called = False
        """Whether the descriptor given to `listen` has become readable."""
        self._connection: Connection | None = None
        self._listened: transport.Socket | None = None
        """The connection's socket that the poller listens to."""
        deadline = time.monotonic() + timeout
        addresses.await_listener(self.address, timeout)
        self._connect()
        with contextlib.ExitStack() as unless:
            unless.callback(self.close)
            while self._state == CONNECTING:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise ConnectionFailed(
                        f"no dispatcher answered at {self.address} within {timeout:g} s; "
                        f"start one with `gt up --address {self.address}`"
                    )
                self._hear(left)
            unless.pop_all()  # it is connected, and stays so

    @property
    def status(self) -> Status:
        """How the stream is now."""
        age = None if self._heard is None else time.monotonic() - self._heard
        return Status(self._state, self.address, age, self.dropped, self._text, self.capabilities)

    def read(self, timeout: float) -> list[t.Event]:
        """The events that have arrived, as soon as there are some; [] after `timeout` seconds, or when the descriptor given to
        `listen` becomes readable. Reconnects if necessary and allowed (`again`)."""
        deadline = time.monotonic() + timeout
        self._called = False
        while not self._events and self._state != CLOSED and not self._called:
            left = deadline - time.monotonic()
            self._hear(max(0.0, left))
            if left <= 0:
                break
        events, self._events = self._events, []
        return events

    def listen(self, descriptor: int | None) -> None:
        """From now on, `read` returns early when this descriptor is readable; None: no longer."""
        if self._beside is not None:
            self._poller.unregister(self._beside)
        self._beside = descriptor
        if descriptor is not None:
            self._poller.register(descriptor, transport.READABLE)

    def set_level(self, level: int) -> None:
        """Ask for more or less detail."""
        self.level = level
        if self._state == LIVE:
            self._say(m.Watch(level, self._seen))

    def cancel(self, client: int, timeout: float = CONNECT_TIMEOUT) -> dict[str, int]:
        """Drop a client's work that has not begun (docs/events.md). Returns how many `runs`, `puts` and `fetches` were
        dropped.

        Events that arrive meanwhile are kept for `read`. Raises `SessionError` if the service forbids it or has no such
        client, `ConnectionFailed` if it does not answer.
        """
        facts = self._order("cancel", lambda request: m.Cancel(request, client), timeout)
        return {name: count for name, count in facts.items() if type(count) is int}

    def drain(self, worker: int, *, begin: bool, timeout: float = CONNECT_TIMEOUT) -> dict[str, Any]:
        """Have all sessions leave a worker, which then ends (`begin`), or ask how far that is. Returns its `state`, 'leaving' or
        'gone', and in `sessions` pairs of a client that has yet to leave (-1: no client) and what it waits for.

        Raises `SessionError` if the service forbids it, has no such worker, or cannot do without it; `ConnectionFailed` if it
        does not answer.
        """
        return self._order("drain", lambda request: m.Drain(request, worker, begin), timeout)

    def control_session(
        self, client: int, action: str, value: str = "", timeout: float = CONNECT_TIMEOUT
    ) -> dict[str, Any]:
        """Have a session paused ('pause'), go on ('resume') or end ('end'), or give it another class ('priority') or weight
        ('weight'), the `value`. Returns how it is then: its `client`, `priority` and `weight`, and whether it is `paused`.

        Raises `SessionError` if the service forbids it, has no such session, or knows no such value; `ConnectionFailed` if it
        does not answer.
        """
        return self._order(
            "control sessions", lambda request: m.ControlSession(request, client, action, value), timeout
        )

    def reload(self, timeout: float = CONNECT_TIMEOUT) -> None:
        """Have the dispatcher read its config again. Raises `ConfigError` if that is invalid, `SessionError` if the service
        forbids it, `ConnectionFailed` if it does not answer."""
        self._order("reload", m.ReloadConfig, timeout)

    def act(self, action: str, number: int, value: str = "") -> None:
        """Do what an operator has chosen: 'cancel' or 'drain', 'reload', or what `control_session` knows. Raises as these do."""
        if action == "cancel":
            self.cancel(number)
        elif action == "drain":
            self.drain(number, begin=True)
        elif action == "reload":
            self.reload()
        else:
            self.control_session(number, action, value)

    def usage(self, timeout: float = CONNECT_TIMEOUT) -> dict[str, Any]:
        """What all principals have used: the names of `columns`, and `rows` of a principal, a top-level signal and numbers.
        Raises `ConnectionFailed` if the service does not answer."""
        return self._ask("tell what was used", m.AskUsage, timeout)

    def take_over(self, timeout: float = CONNECT_TIMEOUT) -> dict[str, Any]:
        """Have a dispatcher that stands by take the place of the one for which it does. Returns its new `epoch`. Raises as
        `drain` does."""
        return self._order("take over", m.TakeOver, timeout)

    def restart(self, *, begin: bool = False, end: bool = False, timeout: float = CONNECT_TIMEOUT) -> dict[str, Any]:
        """Have the dispatcher take marks of all sessions (`begin`), or `end` so that the next one goes on with them, or ask how
        far the marks are. Returns the number of `sessions`, how many are `marking`, the clients that would be `lost`, and whether
        the dispatcher is `supervised`.

        Raises `SessionError` if the service forbids it or keeps no marks; `ConnectionFailed` if it does not answer.
        """
        return self._order("restart", lambda request: m.HandOver(request, begin, end), timeout)

    def explain_session(self, client: int, timeout: float = CONNECT_TIMEOUT) -> dict[str, Any]:
        """Why a session waits (docs/multi-user.md); of all that this user may know of for client 0. Raises `SessionError` if they
        may not know of it, `ConnectionFailed` if the service does not answer."""
        return self._ask("say why", lambda request: m.ExplainSession(request, client), timeout)

    def _order(self, what: str, message: Callable[[int], m.Message], timeout: float) -> dict[str, Any]:
        """The answer to what only operators may ask."""
        if what not in self.capabilities:
            raise SessionError(
                f"the service at {self.address} is only watched: to {what} needs the role operator (docs/security.md)"
            )
        return self._ask(what, message, timeout)

    def _ask(self, what: str, message: Callable[[int], m.Message], timeout: float) -> dict[str, Any]:
        """The answer to a question or an order."""
        deadline = time.monotonic() + timeout
        self._request += 1
        request = self._request
        if self._state == LIVE:
            self._say(message(request))
        while self._state == LIVE and request not in self._answers and time.monotonic() < deadline:
            self._hear(deadline - time.monotonic())
        answer = self._answers.pop(request, None)
        if answer is None:
            raise ConnectionFailed(
                f"the service at {self.address} did not answer when it was to {what}: {self._text or 'it is silent'}"
            )
        if isinstance(answer, m.Failed):
            raise error_of(answer.kind, answer.text)
        return answer.facts

    def close(self) -> None:
        """End the connection."""
        if self._connection is not None:
            if self._state == LIVE:
                self._say(m.Goodbye("", "it has seen enough"))
            self._drop(linger=200)
        self._state = CLOSED

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # the connection

    def _connect(self) -> None:
        self._connection = Connection(
            self.address, reopened=self._listen_anew, keys=self.keys or keys_for(self.address)
        )
        self._listen_anew()
        self._seen = 0
        self._answers.clear()
        self._tried = time.monotonic()
        self._say(m.Hello(m.VERSION, self.role, host_facts()))

    def _listen_anew(self) -> None:
        """Listen to the socket that the connection has now, if any."""
        if self._listened is not None:
            self._poller.unregister(self._listened)
        self._listened = None if self._connection is None else self._connection.socket
        if self._listened is not None:
            self._poller.register(self._listened, transport.READABLE)

    def _drop(self, linger: int = 0) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self._listen_anew()
            connection.close(linger=linger)

    def _say(self, message: m.Message) -> None:
        assert self._connection is not None, "it is connected"
        self._said = time.monotonic()
        self._connection.send(codec.encode(message))

    def _lose(self, why: str) -> None:
        """Drop a broken connection."""
        if self._state == CONNECTING:
            raise ProtocolError(f"the service at {self.address} refused: {why}")
        self._state, self._text = RECONNECTING if self.again else CLOSED, why
        self._drop()

    def _again(self) -> None:
        """Try to reconnect, at the address or where another service is by now."""
        self._drop()
        if self.asked is None:
            found = [each.address for each in services()]
            if found and self.address not in found:
                self.address = found[0]
        self._connect()

    def _hear(self, timeout: float) -> None:
        """Process what arrives within `timeout` seconds, and do what is due."""
        now = time.monotonic()
        if self._state == RECONNECTING and now - self._tried >= RETRY_SECONDS:
            self._again()
        if self._connection is None:
            timeout = min(timeout, max(0.0, self._tried + RETRY_SECONDS - now))
        ready = self._poller.poll(math.ceil(min(timeout, 0.1 if self._state == CONNECTING else 0.5) * 1000))
        self._called = self._called or any(source == self._beside for source, _ in ready)
        if self._connection is None:
            return
        for frames in self._frames():
            try:
                message = codec.decode(frames)
                self._take(message)
            except ProtocolError as error:
                if self._state == CONNECTING:
                    raise
                self._lose(str(error))
        now = time.monotonic()
        if self._connection is not None:
            self._connection.look()
            if self._connection.failed:
                self._lose(self._connection.failed)
        if self._state == LIVE and self._heard is not None and now - self._heard > SILENCE_SECONDS:
            self._lose(f"nothing was heard for {SILENCE_SECONDS:g} s")
        elif self._state == LIVE and now - self._said > HEARTBEAT_SECONDS:
            self._said = now
            self._connection.send_unnumbered(codec.encode(m.Ping()))

    def _frames(self) -> Iterator[list[Any]]:
        """The messages that have arrived, until there are no more or the connection is dropped."""
        while self._connection is not None:
            frames = self._connection.receive()
            if frames is None:
                return
            yield frames

    def _take(self, message: Any) -> None:
        if isinstance(message, m.Goodbye):
            self._lose(message.text or message.kind)
            return
        self._heard = time.monotonic()
        if isinstance(message, m.Welcome):
            given = message.facts.get("capabilities")
            self.capabilities = tuple(map(str, given)) if isinstance(given, list) else ()
            self._state, self._text = LIVE, ""
            self.joined += 1
            if self.role == WATCHER:
                self._say(m.Watch(self.level, 0))
        elif isinstance(message, (m.Answer, m.Failed)):
            if message.request == self._request:  # of an earlier one nobody wants to know any more
                self._answers[message.request] = message
        elif isinstance(message, m.Events):
            self._seen += 1
            self.dropped += message.dropped
            for raw in message.events:
                if type(raw) is list and raw and type(raw[0]) is int and raw[0] >= len(t.KINDS):
                    continue  # of a younger service
                self._events.append(t.decode_event(raw))
            if self._seen % BATCHES_PER_REPORT == 0:
                self._say(m.Watch(self.level, self._seen))
