"""What the dispatcher's core does by itself: after each event, what has become possible or due; at each tick, what takes time.

Longer work goes to jobs of the service, which do a little in each turn (`jobs/job_scheduler.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from .state.message_state import WAITING_ANSWERS, WAITING_MARK

if TYPE_CHECKING:
    from .core import DispatcherCore

DISPOSAL: Final = "what is not needed any more"
"""The job that frees it."""
MARKS: Final = "marks that are due"
"""The job that takes them."""
RELEASES: Final = "plans whose turns have come"
"""The job that releases them."""
USAGE: Final = "what sessions have used"
"""The job that adds it up."""
WATCHED: Final = "what watchers are told"
DESCRIBED: Final = "what new watchers are told first"
"""The jobs that find it out."""
LIMITED: Final = "sessions that have other limits"
"""The job that lets them follow."""
ADMITTED: Final = "sessions that wait to begin"
"""The job that lets them begin."""
TURNS_PER_EVENT: Final = 4
"""How many sessions have their turns to release plans in one event; each turn may take some tenths of a millisecond."""


def after_event(core: DispatcherCore, now: float) -> None:
    """Do what any event may have made possible or due."""
    service, drains = core.service, core.drains
    if service.resumed:
        drains.resume()
    if drains.drains or drains.kept_workers:  # which any event may help on
        _advance_drains(core)
    _let_go_on(core, now)
    if service.ending:
        core.membership.end_sessions()
    if service.disposed or service.unsaved or service.recording is not None:
        _go_on(core)


def _advance_drains(core: DispatcherCore) -> None:
    drains = core.drains
    try:
        drains.advance()
    except Exception as error:  # noqa: BLE001 — a bug, for which no session is to blame
        core.service.internal_error("a drain", error)
        drains.drains.clear()
    if drains.kept_workers:
        drains.kept_workers = False
        core.membership.workers_came()


def _let_go_on(core: DispatcherCore, now: float) -> None:
    """Let those go on who have waited for credits, for limits, for their shares or for answers, if there may be some."""
    service = core.service
    if service.credits_due <= now:
        service.give_late_credits()
    if service.rates.due <= now or service.queued.due:
        _look_at_limits(core)
    if service.pacer.due:
        _release(core)
    if core.fetches.freed:
        freed, core.fetches.freed = core.fetches.freed, []
        core.queues.wake(each for each in freed if each.head is WAITING_ANSWERS)


def _look_at_limits(core: DispatcherCore) -> None:
    """Let sessions go on whose principals may issue instructions again, and a job those begin that may."""
    queued = core.service.queued
    queued.due = queued.due and bool(queued.waiting)
    if queued.due:
        core.jobs.work_off(ADMITTED, queued.waiting, core.limits.let_begin)
    try:
        core.limits.go_on()
    except Exception as error:  # noqa: BLE001 — a bug, for which no session is to blame
        core.service.rates.turn = -1
        core.service.internal_error("instructions that a principal may issue again", error)


def _release(core: DispatcherCore) -> None:
    """Let sessions whose turns have come release their plans; a job goes on with the rest."""
    pacer = core.service.pacer
    try:
        for number in pacer.turns(core.service.now, TURNS_PER_EVENT):
            client = core.service.by_number.get(number)
            if client is not None:
                core.queues.pump(client)
    except Exception as error:  # noqa: BLE001 — a bug, for which no session is to blame
        pacer.turn = None
        core.service.internal_error("a turn to release plans", error)
    core.jobs.work_off(RELEASES, (None,) if pacer.due else (), lambda: iter(()))


def _go_on(core: DispatcherCore) -> None:
    """Let jobs of the service do what is left of what it does by itself."""
    service, subscribers = core.service, core.subscribers
    if service.unsaved:
        core.marks.save_cards()
    if service.disposed:
        core.jobs.work_off(DISPOSAL, service.disposed, service.dispose_some)
    recording = service.recording
    if recording is not None:
        core.jobs.work_off(WATCHED, recording.under_way, subscribers.find_out)
        core.jobs.work_off(DESCRIBED, subscribers.describing, subscribers.describe)


def follow_limits(core: DispatcherCore) -> None:
    """Let sessions follow the limits that an operator has changed, in turns."""
    core.jobs.work_off(LIMITED, core.limits.following, core.limits.follow)


def tick(core: DispatcherCore, now: float) -> None:
    """Do what the time asks for: marks, usage, peers that have fallen silent, waits that have an end."""
    service, membership = core.service, core.membership
    core.marks.tick()
    core.jobs.work_off(MARKS, core.marks.due, core.marks.take_due)
    core.returning.tick()
    core.usage.tick()
    core.jobs.work_off(USAGE, (None,) if core.usage.due else (), core.usage.work)
    membership.dropping = True
    failed = core.disconnect.forsake_overdue()
    membership.dropping = False
    for client in failed:
        core.queues.pump(client)
    for client in [each for each in service.clients.values() if each.head is WAITING_MARK]:
        core.queues.pump(client)
    membership.drop_silent(now)
    core.snapshots.tick()
    try:
        core.mover.look()
    except Exception as error:  # noqa: BLE001 — a bug, for which no session is to blame
        service.internal_error("a look at sessions that may move", error)
    if service.is_short and now - service.expected_since > core.patience:
        _stop_waiting_for_workers(core)
    _stop_waiting_for_links(core, now)


def _stop_waiting_for_workers(core: DispatcherCore) -> None:
    """Go on with the workers that there are."""
    service = core.service
    service.log(
        "error",
        f"{len(service.in_service)} of {service.workers_expected} workers joined in {core.patience:g} s; "
        "GT_START_TIMEOUT says how long the dispatcher waits for them",
    )
    service.stop_waiting()
    core.queues.remesh("spares are in service")
    core.membership.workers_came()


def _stop_waiting_for_links(core: DispatcherCore, now: float) -> None:
    """Go on without the links that were not measured in time."""
    late = core.service.measured.overdue(now)
    for one, another in late:
        text = f"the link between hosts {one} and {another} was not measured; workers on both may not reach each other"
        core.service.log("warning", text)
    if late and not core.service.measured.due:
        core.queues.wake_all()
