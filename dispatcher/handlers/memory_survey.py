"""Surveys of memory, which all workers answer (`gt.memory()`). Workers lost meanwhile are left out of the answer."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from gt.dispatcher.cost.nvlink_groups import groups_of
from gt.dispatcher.state.events import Send
from gt.dispatcher.state.message_state import DONE, WAITING_WORKERS, MessageState
from gt.dispatcher.state.records import ClientRecord, WorkerRecord
from gt.dispatcher.state.shared_state import DispatcherState
from gt.wire import messages as m
from gt.wire.principals import OBSERVER, OPERATOR

MAX_HOLDINGS: Final = 4096
"""The most holdings in one answer, of all workers and clients, so that it fits a frame."""


@dataclass(slots=True)
class MemorySurvey:
    """A question that some workers have not answered yet."""

    client: int
    request: int
    waiting: set[int]
    answers: dict[int, dict[str, Any]] = field(default_factory=dict)


class MemorySurveys:
    """All questions in progress."""

    def __init__(self, service: DispatcherState) -> None:
        self.service = service
        self.numbers = itertools.count(1)
        self.surveys: dict[int, MemorySurvey] = {}

    def ask(self, client: ClientRecord, request: int) -> MessageState:
        """Ask all workers what they hold, after everything that they were sent before, once they have joined."""
        if not self.service.ready(client):
            return WAITING_WORKERS
        workers = self.service.workers
        number = next(self.numbers)
        survey = self.surveys[number] = MemorySurvey(
            client.number, request, {worker.number for worker in workers.values()}
        )
        most = max(2, MAX_HOLDINGS // max(1, len(workers) * len(self.service.clients)))
        if workers:
            self.service.out.append(Send(tuple(workers), m.Survey(number, most)))
        self._answer(number, survey)
        return DONE

    def heard(self, worker: WorkerRecord, said: m.Holdings) -> None:
        """Process a worker's answer."""
        survey = self.surveys.get(said.request)
        if survey is not None and worker.number in survey.waiting:
            survey.waiting.discard(worker.number)
            survey.answers[worker.number] = said.facts
            self._answer(said.request, survey)

    def lost(self, worker: WorkerRecord) -> Iterator[None]:
        """Wait no longer for a worker that is gone, in turns."""
        for number, survey in list(self.surveys.items()):
            if worker.number in survey.waiting:
                survey.waiting.discard(worker.number)
                self._answer(number, survey)
                yield

    def _answer(self, number: int, survey: MemorySurvey) -> None:
        if survey.waiting:
            return
        del self.surveys[number]
        client = self.service.by_number.get(survey.client)
        if client is not None:
            if client.principal.roles.isdisjoint({OPERATOR, OBSERVER}):
                self._hide(survey.answers.values(), client)
            _shorten(survey.answers.values(), client.number)
            facts = {"client": client.number, "workers": [list(each) for each in sorted(survey.answers.items())]}
            self.service.send(client.identity, m.Answer(survey.request, facts))

    def _hide(self, answers: Collection[dict[str, Any]], asking: ClientRecord) -> None:
        """Leave out what sessions of other principals hold, whose names are not for everybody."""
        name = asking.principal.name
        own = {each.number for each in self.service.clients.values() if each.principal.name == name}
        own |= {each.holder for each in self.service.held.values() if each.owner == name}
        for facts in answers:
            held = facts.get("holders")
            facts["holders"] = [each for each in held if each[0] in own] if isinstance(held, list) else []


def _shorten(answers: Collection[dict[str, Any]], client: int) -> None:
    """At most `MAX_HOLDINGS` holdings in all: for each worker those of the asking client first, then the largest."""
    most = MAX_HOLDINGS // max(1, len(answers))
    for facts in answers:
        held = facts.get("holders")
        if isinstance(held, list) and len(held) > most:
            facts["holders"] = sorted(held, key=lambda each: each[0] != client)[:most]


def devices(service: DispatcherState) -> dict[str, Any]:
    """What the workers reported about themselves when they joined, and the health of their GPUs."""
    told = ("kind", "device", "model", "host", "cores", "memory", "host_memory", "speed", "int8_loops")
    groups = groups_of({worker.number: worker.facts for worker in service.workers.values()})
    found = sorted(service.workers.values(), key=lambda worker: worker.number)
    return {
        "workers": [
            [
                worker.number,
                {name: worker.facts[name] for name in told if name in worker.facts}
                | {
                    "group": groups.get(worker.number, ""),
                    "duty": str(worker.duty),
                    **worker.health.facts(service.now),
                },
            ]
            for worker in found
        ]
    }
