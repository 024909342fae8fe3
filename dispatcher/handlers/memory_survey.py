"""Questions that all workers answer (`gt.memory()`). Workers lost meanwhile are left out of the answer."""

from __future__ import annotations

import itertools
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Final

from gt.dispatcher.cost.nvlink_groups import groups_of
from gt.dispatcher.state.events import Send
from gt.dispatcher.state.message_state import DONE, WAITING_WORKERS, MessageState
from gt.dispatcher.state.records import ClientRecord, WorkerRecord
from gt.dispatcher.state.shared_state import DispatcherState
from gt.wire import messages as m

MOST: Final = 50_000
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
        self.questions: dict[int, MemorySurvey] = {}

    def ask(self, client: ClientRecord, request: int) -> MessageState:
        """Ask all workers what they hold, after everything that they were sent before, once they have joined."""
        if not self.service.ready(client):
            return WAITING_WORKERS
        workers = self.service.workers
        number = next(self.numbers)
        question = self.questions[number] = MemorySurvey(
            client.number, request, {worker.number for worker in workers.values()}
        )
        most = max(8, MOST // max(1, len(workers) * len(self.service.clients)))
        if workers:
            self.service.out.append(Send(tuple(workers), m.Survey(number, most)))
        self._answer(number, question)
        return DONE

    def heard(self, worker: WorkerRecord, said: m.Holdings) -> None:
        """Process a worker's answer."""
        question = self.questions.get(said.request)
        if question is not None and worker.number in question.waiting:
            question.waiting.discard(worker.number)
            question.answers[worker.number] = said.facts
            self._answer(said.request, question)

    def lost(self, worker: WorkerRecord) -> None:
        """Wait no longer for a worker that is gone."""
        for number, question in list(self.questions.items()):
            if worker.number in question.waiting:
                question.waiting.discard(worker.number)
                self._answer(number, question)

    def _answer(self, number: int, question: MemorySurvey) -> None:
        if question.waiting:
            return
        del self.questions[number]
        client = self.service.by_number.get(question.client)
        if client is not None:
            _shorten(question.answers.values(), client.number)
            facts = {"client": client.number, "workers": [list(each) for each in sorted(question.answers.items())]}
            self.service.send(client.identity, m.Answer(question.request, facts))


def _shorten(answers: Collection[dict[str, Any]], client: int) -> None:
    """At most `MOST` holdings in all: for each worker those of the asking client first, then the largest."""
    most = MOST // max(1, len(answers))
    for facts in answers:
        held = facts.get("holders")
        if isinstance(held, list) and len(held) > most:
            facts["holders"] = sorted(held, key=lambda each: each[0] != client)[:most]


def devices(service: DispatcherState) -> dict[str, Any]:
    """What the workers reported about themselves when they joined, and the health of their GPUs."""
    told = ("kind", "device", "model", "host", "cores", "memory", "host_memory", "speed")
    groups = groups_of({worker.number: worker.facts for worker in service.workers.values()})
    found = sorted(service.workers.values(), key=lambda worker: worker.number)
    return {
        "workers": [
            [
                worker.number,
                {name: worker.facts[name] for name in told if name in worker.facts}
                | {"group": groups.get(worker.number, ""), **worker.health.facts(service.now)},
            ]
            for worker in found
        ]
    }
