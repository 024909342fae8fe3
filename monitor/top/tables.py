"""The tables of `gt top`, each a literal list of columns: workers, clients, hot ops and signals, tensors, log, plans."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from rich.cells import cell_len
from rich.text import Text

from gt.instruction_log.text import name
from gt.monitor.snapshot import ClientView, Hot, LogLine, TensorView, WorkerView
from gt.wire.telemetry import PlanDescribed, Waiting

from . import figures
from .ink import GROUP_OF, STATE_ROLES, Ink, fit
from .table import Column, Table

LEVELS: Final = ("debug", "info", "warning", "error")
_LEVEL_STYLES: Final = {"debug": "dim", "info": "", "warning": "warning", "error": "bad"}


def _text_or_none(text: str, ink: Ink, role: str) -> Text:
    return ink.text(text, role) if text else ink.text(ink.none, "dim")


def words(
    name: str, width: int, value: Callable[[Any], str], role: str = "", keep: int = 0, grows: int = 0, most: int = 1000
) -> Column[Any]:
    """A column of texts."""
    return Column(name, width, lambda item, ink, _: _text_or_none(value(item), ink, role), value, keep, grows, most)


def number(
    name: str,
    width: int,
    value: Callable[[Any], float],
    write: Callable[[float], str] = figures.count,
    role: str = "",
    keep: int = 0,
) -> Column[Any]:
    """A column of numbers, to the right, the greatest first."""

    def cell(item: Any, ink: Ink, width: int) -> Text:
        return _text_or_none(write(value(item)), ink, role)

    return Column(name, width, cell, value, keep, right=True, falls=True)


def line_of(value: Callable[[Any], str], keep: int, grows: int = 2, most: int = 40) -> Column[Any]:
    """A column of files and lines."""

    def cell(item: Any, ink: Ink, width: int) -> Text:
        return _text_or_none(figures.place(value(item), width), ink, "dim")

    return Column("site", 10, cell, value, keep, grows, most)


def _number_text(number: float) -> str:
    return f"{number:.0f}"


# workers


def shares(worker: WorkerView) -> dict[str, float]:
    """A worker's split by the names of its parts."""
    split = worker.split
    return {
        "compute": split.compute,
        "communication": split.communication,
        "runtime": split.runtime,
        "waiting": split.waiting,
    }


def _utilisation(worker: WorkerView, ink: Ink, width: int) -> Text:
    return ink.split_bar(shares(worker), width)


def _state(worker: WorkerView, ink: Ink, width: int) -> Text:
    return ink.text(ink.word(worker.state), STATE_ROLES.get(worker.state, ""))


def held_bytes(worker: WorkerView) -> int:
    """Bytes of tensors on a worker."""
    return worker.gauges.held if worker.gauges else 0


def _memory(worker: WorkerView, ink: Ink, width: int) -> Text:
    """The share of the machine's or device's memory that the worker has taken, and its bytes."""
    gauges = worker.gauges
    if gauges is None:
        return ink.text(ink.none)
    used = max(gauges.process, gauges.held)
    role = "spill" if gauges.spilled else "memory"
    words = f"{figures.size(used)}/{figures.size(gauges.limit)}" if gauges.limit else figures.size(used)
    if not gauges.limit or width < 14:
        return ink.text(words.partition("/")[0].rjust(min(5, width)), "spill" if gauges.spilled else "")
    cells = width - 12
    bar = ink.bar(used / gauges.limit, cells, role)
    if gauges.pool:  # where its tensors' limit is: beyond it they go to a file
        mark = min(cells - 1, gauges.pool * cells // gauges.limit)
        bar = Text.assemble(bar[:mark], ("┃" if ink.unicode else "!", ink.style("spill")), bar[mark + 1 :])
    return Text.assemble(bar, " ", words.rjust(11), no_wrap=True, end="")


OF_GPUS: Final = frozenset({"temperature", "power"})
"""Columns that are there only where a GPU tells of itself."""


def _heat(worker: WorkerView) -> int:
    return worker.gpu.temperature if worker.gpu else -1


def _temperature(worker: WorkerView, ink: Ink, width: int) -> Text:
    """Degrees; marked where it slows the GPU down."""
    if worker.gpu is None or worker.gpu.temperature < 0:
        return ink.text(ink.none, "dim")
    hot = any("temperature" in reason for reason in worker.gpu.slowed)
    return ink.text(f"{worker.gpu.temperature}°C" + "!" * hot, "bad" if hot else "")


def _draw(worker: WorkerView) -> int:
    return worker.gpu.power if worker.gpu else -1


def _power(worker: WorkerView, ink: Ink, width: int) -> Text:
    """Watts, of those that it may take; marked where they slow the GPU down."""
    gpu = worker.gpu
    if gpu is None or gpu.power < 0:
        return ink.text(ink.none, "dim")
    most = f"/{gpu.power_limit / 1000:.0f}" if gpu.power_limit > 0 and width >= 8 else ""
    return ink.text(f"{gpu.power / 1000:.0f}{most}W", "warning" if "power cap" in gpu.slowed else "")


def _history(worker: WorkerView, ink: Ink, width: int) -> Text:
    return ink.sparkline(tuple(split.used for split in worker.history), width)


def peers_named(peers: list[int], ink: Ink) -> str:
    """'worker 3', 'workers 1, 2'."""
    if len(peers) == 1:
        return ink.word("peer", number=peers[0])
    shown = ", ".join(map(str, peers[:8])) + (" …" if len(peers) > 8 and ink.unicode else "")
    return ink.word("peers", numbers=shown)


def waits_for(waiting: Waiting | None, ink: Ink) -> str:
    """In a few words what is waited for, and since when it goes on."""
    if waiting is None:
        return ""
    words = ink.word(
        f"short {waiting.what}", kind=waiting.kind, peers=peers_named(waiting.peers, ink), plan=waiting.plan
    )
    since = figures.span(max(0, waiting.time - waiting.since))
    return f"{words}, {since}" if since != "0ns" else words


def _why(worker: WorkerView, ink: Ink, width: int) -> Text:
    return ink.text(waits_for(worker.waiting, ink), "waiting")


def _memory_order(worker: WorkerView) -> int:
    return max(worker.gauges.process, worker.gauges.held) if worker.gauges else 0


WORKERS: Final[Table[WorkerView]] = Table(
    "workers",
    (
        Column("number", 4, lambda w, ink, _: ink.text(str(w.number), "strong"), lambda w: w.number, right=True),
        words("host", 8, lambda w: w.host, keep=9, grows=1, most=20),
        words("device", 6, lambda w: w.device, keep=6),
        number("pid", 7, lambda w: w.pid, _number_text, "dim", keep=12),
        number("cores", 5, lambda w: w.cores, keep=11),
        Column("state", 7, _state, lambda w: w.state),
        number("used", 4, lambda w: w.split.used, figures.share, "value"),
        Column("utilisation", 12, _utilisation, lambda w: w.split.used, grows=4, most=60, falls=True),
        Column("memory", 6, _memory, _memory_order, keep=2, grows=2, most=34, falls=True),
        Column("temperature", 6, _temperature, _heat, keep=1, right=True, falls=True),
        Column("power", 5, _power, _draw, keep=4, grows=1, most=9, right=True, falls=True),
        number("held", 7, held_bytes, figures.size, keep=7),
        number("queue", 5, lambda w: w.queue, keep=4),
        number("done", 8, lambda w: w.counters.plans if w.counters else 0, _number_text, keep=10),
        number("sent", 6, lambda w: w.bytes_per_s, figures.size, keep=3),
        Column("history", 12, _history, lambda w: w.split.used, keep=5, grows=2, most=40, falls=True),
        Column("why", 9, _why, lambda w: waited_ns(w.waiting), keep=8, grows=3, most=60, falls=True),
    ),
    key=lambda w: w.number,
    empty="no workers",
    sort="number",
    words=lambda w: f"{w.number} {w.host} {w.device} {w.kind} {w.state} {w.pid}",
)


def waited_ns(waiting: Waiting | None) -> int:
    """For how long something has waited, in nanoseconds."""
    return waiting.time - waiting.since if waiting else -1


# clients


def _counter_of(name: str) -> Callable[[ClientView], int]:
    return lambda client: getattr(client.state, name) if client.state else 0


def client_hits(client: ClientView) -> float:
    """The share of a client's runs that found their plan, of all since it came; -1 where nothing has run."""
    state = client.state
    return state.plan_hits / state.runs if state and state.runs else -1.0


def _age(nanoseconds: float) -> str:
    return figures.span(nanoseconds) if nanoseconds >= 0 else ""


def _known_share(value: float) -> str:
    return figures.share(value) if value >= 0 else ""


OF_RECOVERY: Final = frozenset({"recovery"})
"""Columns that are there only while a session recovers from the loss of a worker."""
OF_RECOVERIES: Final = frozenset({"recovered"})
"""Columns that are there only where a session has recovered."""
OF_MARKS: Final = frozenset({"marks", "mark age", "mark took"})
"""Columns that are there only where a session has marks."""


def recovering(client: ClientView, ink: Ink, *, whole: bool = True) -> str:
    """How far a session is with its recovery, as a sentence or (`whole` False) without its beginning; '' if there is none."""
    state = client.state
    if state is None or not state.phase:
        return ""
    said = ink.word(f"recovering {state.phase}", restored=state.restored, members=state.members)
    return ink.word("recovering", how=said) if whole else said


def _recovery(client: ClientView, ink: Ink, width: int) -> Text:
    said = recovering(client, ink)
    if not said:
        return ink.text(ink.none, "dim")
    return ink.text(said if cell_len(said) <= width else recovering(client, ink, whole=False), "warning")


def _recovered(client: ClientView, ink: Ink, width: int) -> Text:
    """How many recoveries it had, and how long the last one took."""
    state = client.state
    if state is None or not state.recoveries:
        return ink.text(ink.none, "dim")
    return ink.text(f"{state.recoveries}×, {figures.span(max(0, state.recovery_duration))}")


def _is_recovering(client: ClientView) -> bool:
    return client.state is not None and client.state.phase != ""


def _mark_took(client: ClientView) -> float:
    return client.state.mark_duration if client.state else -1


def _why_client(client: ClientView, ink: Ink, width: int) -> Text:
    return ink.text(waits_for(client.waiting, ink), "waiting")


def _class(client: ClientView, ink: Ink, width: int) -> Text:
    """The class of a session, and its weight where that is not 1; or that an operator has paused it."""
    state = client.state
    if state is None:
        return ink.text(ink.none, "dim")
    if state.paused:
        return ink.text(ink.word("session paused"), "warning")
    weight = f" ×{state.weight / 1000:g}" if state.weight != 1000 else ""
    if not state.priority:
        return ink.text(ink.none, "dim")
    if cell_len(state.priority + weight) > width:  # the class is cut, and never its weight
        return Text.assemble(
            fit(ink.text(state.priority), width - cell_len(weight)),
            weight.lstrip() if cell_len(weight) >= width else weight,
        )
    return ink.text(state.priority + weight)


CLIENTS: Final[Table[ClientView]] = Table(
    "clients",
    (
        Column("number", 3, lambda c, ink, _: ink.text(str(c.number), "strong"), lambda c: c.key, right=True),
        words("program", 10, lambda c: figures.place(c.program, 28), grows=2, most=28),
        words("host", 8, lambda c: c.host, keep=7, grows=1, most=20),
        number("pid", 7, lambda c: c.pid, _number_text, "dim", keep=9),
        words("principal", 9, lambda c: c.principal, keep=4),
        number("live tensors", 7, _counter_of("tensors")),
        number("bytes", 6, _counter_of("nbytes"), figures.size, "value"),
        number("client runs", 6, lambda c: c.runs_per_s, role="value"),
        number("client hits", 4, client_hits, _known_share, keep=5),
        Column("priority", 6, _class, lambda c: c.state.priority if c.state else "", keep=8, grows=1, most=14),
        Column("recovery", 24, _recovery, _is_recovering, keep=1, grows=8, most=36, falls=True),
        Column("recovered", 9, _recovered, _counter_of("recoveries"), keep=2, falls=True),
        number("inflight", 6, _counter_of("inflight"), keep=4),
        number("queued", 6, _counter_of("queued"), keep=3),
        words("signal", 8, lambda c: c.state.signal if c.state else "", "title", keep=2, grows=2, most=40),
        line_of(lambda c: c.state.site if c.state else "", keep=6),
        number("marks", 5, _counter_of("marks"), keep=11),
        number("mark age", 6, lambda c: c.mark_age, _age, keep=10),
        number("mark took", 6, _mark_took, _age, keep=12),
        Column("why", 9, _why_client, lambda c: waited_ns(c.waiting), keep=8, grows=2, most=60, falls=True),
    ),
    key=lambda c: c.key,
    empty="no clients",
    sort="number",
    words=lambda c: f"{c.number} {c.host} {c.pid} {c.program} {c.state.signal if c.state else ''}",
)


# what takes time


def _share_bar(hot: Hot, ink: Ink, width: int) -> Text:
    if width < 12:
        return ink.text(figures.share(hot.share).rjust(4), "value")
    role = GROUP_OF.get(hot.family, "other") if hot.family else "memory"
    return Text.assemble(
        ink.bar(hot.share, width - 5, role), " ", (figures.share(hot.share).rjust(4), ink.style("value")), no_wrap=True, end=""
    )  # fmt: skip


def _mean(hot: Hot) -> float:
    return hot.duration / max(1, hot.times)


def _hot(title: str) -> tuple[Column[Hot], ...]:
    return (
        words(title, 10, lambda h: h.name, "strong", grows=3, most=40),
        Column("share", 4, _share_bar, lambda h: h.share, grows=3, most=40, falls=True),
        number("time", 6, lambda h: h.duration, figures.span),
        number("times", 5, lambda h: h.times, keep=1),
        number("mean", 6, _mean, figures.span, keep=2),
        line_of(lambda h: h.site, keep=3),
    )


HOT_OPS: Final[Table[Hot]] = Table(
    "ops", _hot("op"), lambda h: h.name, "no hot", "share", lambda h: f"{h.name} {h.family} {h.site}"
)
HOT_SIGNALS: Final[Table[Hot]] = Table(
    "signals", _hot("signal"), lambda h: h.name, "no hot", "share", lambda h: f"{h.name} {h.site}"
)

# tensors


def _name(tensor: TensorView, ink: Ink, width: int) -> Text:
    """Its name; where that has no room, the end of it, which tells tensors of one program apart."""
    whole = name(tensor.tensor)
    if len(whole) > width:
        whole = ("…" if ink.unicode else "~") + whole[len(whole) - width + 1 :]
    return ink.text(whole)


TENSORS: Final[Table[TensorView]] = Table(
    "tensors",
    (
        number("bytes", 6, lambda t: t.nbytes, figures.size, "value"),
        Column("tensor", 8, _name, lambda t: t.tensor, keep=7, grows=1, most=14),
        words("spec", 12, lambda t: t.spec, "strong", grows=1, most=24),
        words("layout", 6, lambda t: t.layout, keep=2, grows=1, most=20),
        number("client", 6, lambda t: t.client, keep=4),
        number("age", 6, lambda t: t.age, _age),
        words("signal", 8, lambda t: t.signal, "title", grows=2, most=40),
        line_of(lambda t: t.site, keep=1, most=48),
    ),
    key=lambda t: (t.client, t.tensor),
    empty="no tensors",
    sort="bytes",
    words=lambda t: f"{name(t.tensor)} {t.spec} {t.layout} {t.signal} {t.site}",
)

# the log


Entry = tuple[int, LogLine]
"""A line of the log and its age."""


def _level(entry: Entry, ink: Ink, width: int) -> Text:
    return ink.text(entry[1].level, _LEVEL_STYLES.get(entry[1].level, ""))


def _message(entry: Entry, ink: Ink, width: int) -> Text:
    line = entry[1]
    many = f"  ×{figures.count(line.times)}" if line.times > 1 else ""
    return ink.text(" ".join(line.text.split()) + many, _LEVEL_STYLES.get(line.level, ""))


def level(line: LogLine) -> int:
    """How grave a line is; what no level is known of counts as 'info'."""
    return LEVELS.index(line.level) if line.level in LEVELS else 1


LOG: Final[Table[Entry]] = Table(
    "log",
    (
        Column("age", 6, lambda e, ink, _: ink.text(_age(max(0, e[0])), "dim"), lambda e: e[0], right=True),
        Column("level", 7, _level, lambda e: level(e[1]), keep=2, falls=True),
        words("source", 10, lambda e: e[1].source),
        words("what", 9, lambda e: e[1].what, "strong", keep=3),
        Column("text", 20, _message, lambda e: e[1].text, grows=4),
        line_of(lambda e: e[1].site, keep=1, grows=1, most=30),
    ),
    key=lambda e: (e[1].time, e[1].source, e[1].what, e[1].text),
    empty="no log",
    sort="age",
    words=lambda e: f"{e[1].level} {e[1].source} {e[1].what} {e[1].text} {e[1].site}",
)

# plans


def _moves(plan: PlanDescribed) -> str:
    kinds: dict[str, int] = {}
    for kind, nbytes, *_ in plan.moves:
        if kind:  # else nobody needs what another has
            kinds[kind] = kinds.get(kind, 0) + nbytes
    return ", ".join(f"{kind} {figures.size(nbytes)}" for kind, nbytes in kinds.items())


def _most(plan: PlanDescribed) -> str:
    return ", ".join(f"{name}×{times}" if times > 1 else name for name, times in plan.ops[:4])


def _members(plan: PlanDescribed) -> str:
    return ",".join(map(str, plan.members[:8])) + ("…" if len(plan.members) > 8 else "")


PLANS: Final[Table[PlanDescribed]] = Table(
    "plans",
    (
        number("plan", 5, lambda p: p.plan, _number_text, "strong"),
        number("client", 6, lambda p: p.client, _number_text, keep=4),
        number("segment", 7, lambda p: p.segment, _number_text, keep=6),
        words("reason", 10, lambda p: p.reason),
        number("instructions", 5, lambda p: p.instructions),
        words("members", 6, _members, keep=5, grows=1, most=16),
        words("op", 12, _most, keep=3, grows=2, most=40),
        words("moves", 12, _moves, "communication", grows=2, most=40),
        words("signal", 8, lambda p: ", ".join(filter(None, p.signals)), "title", keep=1, grows=2, most=40),
        line_of(lambda p: p.sites[0] if p.sites else "", keep=2, grows=1, most=30),
    ),
    key=lambda p: p.plan,
    empty="no plans",
    sort="plan",
    words=lambda p: f"{p.plan} {p.reason} {' '.join(p.signals)} {' '.join(p.sites)} {_most(p)} {_moves(p)}",
)

TABLES: Final[dict[str, Table[Any]]] = {
    table.name: table for table in (WORKERS, CLIENTS, HOT_OPS, HOT_SIGNALS, TENSORS, LOG, PLANS)
}
