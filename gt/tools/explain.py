"""Runs a program to explain it: one in-memory worker computes its values, while shadows plan for workers that need not exist.

The program's own session is replaced: whatever it passes to `gt.init` or `gt.connect`, its messages go first to the shadows,
which refuse what a service would refuse, and then to a worker in this thread. After enough updates the program is stopped.
`gt/tools/explanation.py` gathers the results. This module belongs to the public face, so it may import components.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gt.daemon.host import CONNECT_TIMEOUT
from gt.errors import GTError, SessionError
from gt.service.in_process import Fabric, InprocLink, NoBulk
from gt.wire import messages as m

from .explanation import Explanation, explanation_of
from .program_run import ProgramError, StopProgram, flush, run_program
from .shadow_planner import Shadow
from .update_counter import UpdateCounter
from .worker_facts import bandwidth_of, facts_of, facts_on_hosts, workers_on_hosts

if TYPE_CHECKING:
    from gt.client.session.session import Session
    from gt.sharding.config import Config

STOP_AFTER_UPDATES: Final = 2
"""The update after which a program is stopped: in the first, weights move to their resident placements; the second is like all
others."""
SPEED_SOURCES: Final = ("measured", "typical")
SHADOWED_MESSAGES: Final = (m.Define, m.Drop, m.Run, m.Put, m.Restore, m.Free)
"""The messages that every shadow receives."""
ASKS_FOR_VALUE: Final = "it asks for a value, and none are computed"


class Explainer:
    """One explanation in progress. `alone` is the shadow for one worker without a config, with which others are compared."""

    def __init__(
        self, *, config: Config | None = None, workers: int | None = None, others: Sequence[tuple[str, Config]] = (),
        steps: int = STOP_AFTER_UPDATES, values: bool = True, speeds: str = "measured", memory: int = 0,
        devices: Sequence[str] = (), hosts: int | Sequence[int] = 1, link: float = 0.0,
    ) -> None:  # fmt: skip
        self.config = config
        self.hosts = hosts
        self.link = link
        self.devices = tuple(devices)
        self.workers = workers
        self.others = others
        self.steps = steps
        self.values = values
        self.speeds = speeds
        self.memory = memory
        self.shadows: list[Shadow] = []
        self.alone: Shadow | None = None
        self.stream: list[Any] = []
        """The program's messages, to be planned again under other configs; None marks the end of an update."""
        self.counter = UpdateCounter()
        self.stopped = ""
        self.refused: GTError | None = None
        self.asked = 1
        """The number of workers that the program itself asked for."""
        self.links: list[_ExplainerLink] = []

    def start(self, config: Config | None, workers: int | None) -> Session:
        """The session that the program gets instead of the one it asked for."""
        from gt.client.session import sessions
        from gt.client.session.session import Session

        sessions.disconnect()
        first = not any(shadow.runs for shadow in self.shadows)
        if first:
            self.asked = workers or 1
            self.plan_for(self.config or config)
        link = _ExplainerLink(self, follows=first)
        self.links.append(link)
        session = Session(link, "explain", idle_flush=False)
        session.open({"bulk": b""}, CONNECT_TIMEOUT)
        session.config = self.config or config
        return sessions.adopt(session)

    def plan_for(self, config: Config | None) -> None:
        """Create the shadows. Raises ConfigError if a config does not fit the workers."""
        named = [(_name(config), config), *self.others]
        configs = [each for _, each in named if each is not None]
        named_workers = len(self.devices) or self.workers or (0 if isinstance(self.hosts, int) else sum(self.hosts))
        count = named_workers or max([self.asked, *(each.workers_needed() for each in configs)])
        try:
            for each in configs:
                each.mesh_for(count)
        except GTError as error:
            self.refused = error
            raise
        facts = facts_on_hosts(workers_on_hosts(self.hosts, count), self.speeds, self.devices)
        if self.memory:
            facts = [{**said, "memory": self.memory} for said in facts]
        self.shadows = [Shadow(name, each, facts, link=self.link) for name, each in named]
        fastest = "cuda" if any(each.startswith("cuda") for each in self.devices) else "cpu"
        self.alone = Shadow("one worker", None, facts_of(1, self.speeds, [fastest] if self.devices else ()))
        self.stream.clear()

    def take(self, message: Any) -> None:
        """Take a message of the program. Raises `StopProgram`, or the error with which a service would refuse it."""
        asks = isinstance(message, m.Run) and bool(message.fetch)
        if isinstance(message, m.Run):
            message = message._replace(fetch=[])  # no shadow has a value
            self.count(message)
        elif isinstance(message, m.Fetch) and not self.values:
            self.stop(ASKS_FOR_VALUE)
        elif isinstance(message, m.Configure):
            self.configure(message)
        if isinstance(message, SHADOWED_MESSAGES):
            self.stream.append(_slim(message))
            try:
                for shadow in self.everyone():
                    shadow.take(self.stream[-1])
            except GTError as error:
                self.refused = error
                raise
        if asks and not self.values:
            self.stop(ASKS_FOR_VALUE)

    def everyone(self) -> list[Shadow]:
        """All shadows."""
        return [*self.shadows, *([self.alone] if self.alone else [])]

    def configure(self, message: m.Configure) -> None:
        """The program loads a config of its own; the one given for the explanation takes precedence."""
        from gt.sharding.config import Config

        if self.config is None:
            config = Config.from_wire(message.config)
            if any(shadow.runs for shadow in self.shadows):
                self.shadows[0].take(message)
            else:
                self.plan_for(config)

    def count(self, run: m.Run) -> None:
        """Notice the end of an update."""
        segment = self.shadows[0].client.segments.get(run.segment)
        if self.counter.ran(tag.phase for tag in getattr(segment, "tags", ())):
            if self.updates >= self.steps:
                self.stop("")
            for shadow in self.everyone():
                shadow.update = self.updates
            self.stream.append(None)

    @property
    def updates(self) -> int:
        """How many updates are complete."""
        return self.counter.updates

    def stop(self, reason: str) -> None:
        """Stop the program."""
        self.stopped = reason or f"it was stopped after {self.updates} updates"
        raise StopProgram(0)

    def result(self, program: str) -> list[Explanation]:
        """The explanations, one for each config."""
        if self.refused is not None:
            raise self.refused
        self.counter.ended()
        assert self.alone is not None
        return [explanation_of(program, shadow, self.alone, self.updates, self.stopped) for shadow in self.shadows]


class _ExplainerLink(NoBulk):
    """The client's link: messages go to the shadows, then to the worker that computes (without values, to the dispatcher
    alone)."""

    def __init__(self, explainer: Explainer, *, follows: bool) -> None:
        super().__init__()
        self.explainer = explainer
        self.follows = follows
        self.closed = False
        self.real = InprocLink(Fabric(1, None)) if explainer.values or not follows else None
        self.heard: list[Any] = []

    def send(self, message: m.Message) -> None:
        """Plan for a message, then act on it."""
        if self.closed:
            return
        if self.explainer.stopped and isinstance(message, (m.Run, m.Put, m.Restore, m.Fetch)):
            raise StopProgram(0)
        if self.follows:
            self.explainer.take(message)
        if isinstance(message, m.Configure):
            self.heard.append(m.Answer(message.request, {}))
        elif self.real is not None:
            self.real.send(message)
        else:
            shadow = self.explainer.shadows[0]
            if isinstance(message, m.Ask):
                shadow.take(message)
            self.heard += shadow.answers
            shadow.answers.clear()

    def receive(self) -> list[m.Message]:
        """The answers so far."""
        heard, self.heard = self.heard, []
        return heard + (self.real.receive() if self.real else [])

    def wait(self, timeout: float) -> None:
        """Does nothing: every answer is there at once."""

    def alive(self) -> str | None:
        """Why waiting is pointless: whatever was going to be answered has been."""
        return "every message was delivered and none answers this"

    def close(self) -> None:
        """Does nothing."""
        self.closed = True


@contextlib.contextmanager
def in_place(explainer: Explainer) -> Iterator[None]:
    """A context in which new sessions are the explainer's; the session before is restored afterwards."""
    from gt.client.session import sessions
    from gt.service import session as face

    before = sessions.swap(None)
    face.substitutes.append(explainer.start)
    try:
        yield
    finally:
        face.substitutes.pop()
        for link in explainer.links:
            link.closed = True
        sessions.disconnect()
        sessions.swap(before)


def explain(
    fn: Callable[..., Any], *args: Any, config: Any = None, workers: int | None = None, compare: Sequence[Any] = (),
    steps: int = STOP_AFTER_UPDATES, values: bool = True, speeds: str = "measured", memory: int = 0, devices: Sequence[str] = (),
    hosts: int | Sequence[int] = 1, link: float | str = 0,
) -> Any:  # fmt: skip
    """Show how `fn(*args)` would be sharded, what moves and what it costs: an `Explanation`, or a list with
    `compare`.

    The call runs in a session of its own, so `fn` must create its own models and tensors. One worker in this process
    computes its values (none with `values=False`), and the call stops after `steps` updates.

    * `config`: a path, a mapping or a `gt.Config`; default: the file named by GT_CONFIG.
    * `workers`: their number; default: as many as the config needs.
    * `speeds`: 'measured' on this machine, or 'typical'.
    * `devices`: the device of each worker (['cuda:0', 'cpu']); kinds that this machine lacks get typical speeds.
    * `memory`: the bytes that each worker may hold.
    * `hosts`: on how many hosts the workers are, or how many each of them has ([4, 2]).
    * `link`: the bytes that a host gets from others in a second, as a number or '1.25GB'; default: ten-gigabit Ethernet.

    Raises `ConfigError` and `OutOfMemory` as a service would.
    """
    explainer = _explainer(
        config, workers, compare, steps=steps, values=values, speeds=speeds, memory=memory, devices=devices, hosts=hosts,
        link=bandwidth_of(link),
    )  # fmt: skip
    with in_place(explainer), contextlib.suppress(StopProgram):
        _start_session(explainer)
        fn(*args)
        flush()
    found = explainer.result(getattr(fn, "__name__", "the program"))
    return found if compare else found[0]


def explain_program(
    program: Path, arguments: Sequence[str] = (), *, config: Any = None, workers: int | None = None,
    compare: Sequence[Any] = (), steps: int = STOP_AFTER_UPDATES, values: bool = True, speeds: str = "measured", memory: int = 0,
    devices: Sequence[str] = (), hosts: int | Sequence[int] = 1, link: float | str = 0,
) -> tuple[Explainer, list[Explanation]]:  # fmt: skip
    """Run a program as `python program arguments…` would and explain it. What it prints goes to stderr.

    Raises `ProgramError` with the program's own traceback when it fails by itself, and errors as `explain` does.
    """
    explainer = _explainer(
        config, workers, compare, steps=steps, values=values, speeds=speeds, memory=memory, devices=devices, hosts=hosts,
        link=bandwidth_of(link),
    )  # fmt: skip
    try:
        with in_place(explainer):
            run_program(program, arguments)
    except ProgramError:
        if explainer.refused is not None:
            raise explainer.refused from None
        raise
    if not explainer.shadows:
        raise GTError(f"{program} computes nothing with gt: there is nothing to explain")
    return explainer, explainer.result(str(program))


def _explainer(config: Any, workers: int | None, compare: Sequence[Any], **options: Any) -> Explainer:
    from gt.service.session import _read
    from gt.worker.base.backend import is_device

    for device in options["devices"]:
        if not is_device(device):
            raise SessionError(f"no device is called {device!r}: say 'cpu', 'cuda:0', 'torch:cpu', …")
    if options["devices"] and workers not in (None, len(options["devices"])):
        raise SessionError(f"{len(options['devices'])} devices are that many workers, not {workers}")
    hosts, many = options["hosts"], len(options["devices"]) or workers
    if many is not None or not isinstance(hosts, int):
        workers_on_hosts(hosts, sum(hosts) if many is None else many)
    if options["speeds"] not in SPEED_SOURCES:
        raise ValueError(f"speeds are {' or '.join(SPEED_SOURCES)}, not {options['speeds']!r}")
    read = _read(config)
    others = [(_name(each), each) for each in map(_read, compare) if each is not None]
    return Explainer(config=read, workers=workers, others=others, **options)


def _start_session(explainer: Explainer) -> None:
    """Start the session at once, so that a config that does not fit is refused before the program runs."""
    explainer.start(None, None)


def _name(config: Config | None) -> str:
    """The name of a config: that of its file."""
    if config is None:
        return "no config"
    lines = [config.mesh_where, *(rule.where for _, rule in config.each())]
    return lines[-1].rpartition(":")[0] or lines[-1]


def _slim(message: Any) -> Any:
    """A message without the values of a put: they are replaced by zeros, whose memory is never touched and so takes none."""
    if isinstance(message, m.Put):
        import numpy as np

        zeros: Any = np.zeros(len(message.data), np.uint8).data
        return message._replace(data=zeros)
    if isinstance(message, m.Restore):
        import numpy as np

        from gt.ir.spec import unpack_spec

        zeros = np.zeros(unpack_spec(message.spec).nbytes, np.uint8).data
        return m.Put(message.tensor, message.spec, message.signal, False, zeros)
    return message
