"""Why a worker waits: for what, since when, because of which line; and what those do that it waits for. A pure function."""

from __future__ import annotations

from rich.text import Text

from gt.monitor.snapshot import ClientView, Snapshot, WorkerView
from gt.wire.telemetry import Graphs, Waiting

from . import figures
from .ink import STATE_ROLES, Ink
from .tables import peers_named, recovering
from .view import ViewState


def reason(waiting: Waiting, ink: Ink) -> str:
    """What is waited for, as a sentence."""
    return ink.word(
        f"why {waiting.what}", missing=waiting.missing, nbytes=figures.size(waiting.nbytes), kind=waiting.kind or "move",
        peers=peers_named(waiting.peers, ink), order=waiting.order, plan=waiting.plan,
    )  # fmt: skip


def selected_worker(snapshot: Snapshot, view: ViewState) -> WorkerView | None:
    """The worker that is spoken of: the selected one, else the one that has waited longest, else the first."""
    by_number = {worker.number: worker for worker in snapshot.workers}
    if view.worker in by_number:
        return by_number[view.worker]
    waiting = [worker for worker in snapshot.workers if worker.waiting is not None]
    if waiting:
        return min(waiting, key=lambda worker: worker.waiting.since if worker.waiting else 0)
    return snapshot.workers[0] if snapshot.workers else None


def chain(snapshot: Snapshot, worker: WorkerView) -> list[WorkerView]:
    """Whom a worker waits for, and whom that one waits for, and so on, until one that does not wait or was named already."""
    by_number = {each.number: each for each in snapshot.workers}
    found = [worker]
    while found[-1].waiting is not None:
        peers = [by_number[peer] for peer in found[-1].waiting.peers if peer in by_number]
        fresh = [peer for peer in peers if peer not in found]
        if not fresh:
            break
        found.append(min(fresh, key=lambda peer: peer.waiting is not None))
    return found


def lines(snapshot: Snapshot, view: ViewState, ink: Ink, width: int, height: int) -> list[Text]:
    """The page about one worker, and the clients that wait."""
    worker = selected_worker(snapshot, view)
    made = [ink.text(" " + ink.word("no workers"), "dim")] if worker is None else about(worker, snapshot, ink)
    held_up = [each for each in snapshot.waiting if each.worker < 0 and each.client >= 0 and each.what != "busy"]
    if held_up:
        made += [Text(""), ink.text(" " + ink.word("why clients"), "strong")]
        for one in held_up[:20]:
            line = ink.text("   " + ink.word("the client", number=one.client) + ": ")
            line.append(lasting(one, ink), ink.style("waiting"))
            made.append(line)
    sessions = [(each, said) for each in snapshot.clients if (said := recovery(each, ink))]
    if sessions:
        made += [Text(""), ink.text(" " + ink.word("why sessions"), "strong")]
        for client, said in sessions[:20]:
            made.append(ink.text("   " + ink.word("the client", number=client.number)))
            made += [ink.text(f"     {each}") for each in said]
    return made


def recovery(client: ClientView, ink: Ink) -> list[str]:
    """How far a session is with its recovery, its marks, and its earlier recoveries, as far as it has had any of these."""
    state, said = client.state, [recovering(client, ink)]
    if state is not None and state.marks:
        age, took = figures.span(max(0, client.mark_age)), figures.span(max(0, state.mark_duration))
        said.append(ink.word("why marks", count=state.marks, age=age, took=took))
    if state is not None and state.recoveries:
        took = figures.span(max(0, state.recovery_duration))
        said.append(ink.word("why recovered", count=state.recoveries, took=took))
    return [each for each in said if each]


def about(worker: WorkerView, snapshot: Snapshot, ink: Ink) -> list[Text]:
    """What a worker waits for, and what those do."""
    state = ink.word(worker.state)
    title = ink.word("why worker", number=worker.number, device=f"{worker.host} {worker.device}", state=state)
    made = [ink.text(f" {title}", STATE_ROLES.get(worker.state, "") if worker.state != "idle" else "strong"), Text("")]
    waiting = worker.waiting
    if waiting is None:
        made.append(ink.text("   " + ink.word("why idle" if worker.state == "idle" else "why nothing")))
    else:
        made += reason_lines(waiting, ink)
        row = chain(snapshot, worker)
        if len(row) > 1:
            made += [Text(""), ink.text("   " + ink.word("why peers"), "strong")]
            for each in row[1:]:
                doing = reason(each.waiting, ink) if each.waiting else activity(each, ink)
                name = ink.word("peer", number=each.number)
                line = ink.text(f"     {name}: ", "")
                line.append(f"{ink.word(each.state)}  ", ink.style(STATE_ROLES.get(each.state, "")))
                line.append(doing)
                made.append(line)
    if worker.gpu is not None and worker.gpu.slowed:
        made += [Text(""), ink.text("   " + ink.word("why slowed", reasons=", ".join(worker.gpu.slowed)), "warning")]
    if worker.graphs is not None and (worker.graphs.launched or worker.graphs.reasons):
        made += [Text(""), ink.text("   " + graphs(worker.graphs, ink))]
    return made


def graphs(event: Graphs, ink: Ink) -> str:
    """What was launched as CUDA graphs, and what was not, and why."""
    said = ink.word(
        "why graphs", captured=event.captured, launched=figures.count(event.launched), nbytes=figures.size(event.held)
    )
    reasons = [f"{reason} ({figures.count(count)})" for reason, count in zip(event.reasons, event.counts, strict=False)]
    return f"{said} {ink.word('why no graph', reasons=', '.join(reasons[:4]))}" if reasons else said


def reason_lines(waiting: Waiting, ink: Ink) -> list[Text]:
    """A reason, its plan, signal and line."""
    made = [ink.text(f"   {lasting(waiting, ink)}", "waiting")]
    if waiting.order >= 0:
        made.append(
            ink.text("   " + ink.word("why order", order=waiting.order, plan=waiting.plan, client=waiting.client))
        )
    for word, text in (("why signal", waiting.signal), ("why line", waiting.site)):
        if text:
            made.append(Text.assemble("   ", (f"{ink.word(word)}  ", ink.style("dim")), (text, ink.style("title"))))
    return made


def lasting(waiting: Waiting, ink: Ink) -> str:
    """A reason, and for how long it goes on."""
    passed = figures.span(max(0, waiting.time - waiting.since))
    return reason(waiting, ink).rstrip(".。") + ink.word("why since", since=passed)


def activity(worker: WorkerView, ink: Ink) -> str:
    """What a worker that does not wait did last."""
    if not worker.recent:
        return ""
    last = worker.recent[-1]
    return " ".join(filter(None, (last.name, last.signal if last.signal != last.name else "", last.site)))
