"""Who takes part in collectives of NCCL, by what workers say of themselves."""

from __future__ import annotations

from typing import Any

import pytest

from gt.dispatcher.cost.nccl_cards import cards_of
from gt.service.in_process import Fabric
from gt.sharding.placement import Mesh
from gt.wire import messages as m


def on(bus: str, host: str = "one", nccl: Any = 22501) -> dict[str, Any]:
    return {"host": host, "boot": host, "bus": bus, "nccl": nccl}


@pytest.mark.parametrize(
    ("facts", "cards"),
    [
        ([{"host": "one"}, {"host": "one"}], ()),
        ([on("a"), on("b")], (1, 2)),
        ([on("a"), on("a"), on("b")], (1, 1, 2)),
        ([on("a", "one"), on("a", "two")], (1, 2)),
        ([on("a"), {"host": "one"}, on("b")], (1, 0, 2)),
        ([on("a"), on("b", nccl=22700), on("c", nccl=22700)], (0, 1, 2)),
        ([on("a"), on("b", nccl=22700)], (1, 0)),
        ([on("a", nccl="22501"), on("", nccl=22501), on("b", nccl=0)], ()),
    ],
)
def test_a_card_has_a_number_where_its_worker_takes_part(facts: list[dict[str, Any]], cards: tuple[int, ...]) -> None:
    """Of one version, the commonest; who shares a card shares its number; nothing is believed that makes no sense."""
    assert cards_of(facts) == cards


class Introduced:
    """A service of three workers, two of them in a mesh."""

    def __init__(self) -> None:
        self.fabric = Fabric(3, None)
        self.core = self.fabric.dispatcher
        service = self.core.service
        self.fabric.say(b"client", m.Hello(m.VERSION, "client", {"host": "one", "pid": 1, "bulk": b""}))
        (client,) = service.clients.values()
        record = self.core.meshes.registry.record_of(client, {"a": 2}, (1, 2))
        self.core.meshes.registry.join(record)
        self.mesh: Mesh = record.mesh
        self.fabric.run()

    def said(self, worker: int, message: m.Message) -> list[Any]:
        """Ids and refusals that the dispatcher sends because of it, as (to whom, what)."""
        self.fabric.say(b"worker-%d" % worker, message)
        said = [(target, each) for _, target, each in self.fabric.queue if isinstance(each, (m.UniqueId, m.Goodbye))]
        self.fabric.queue.clear()
        return said


def test_an_id_is_passed_on_to_its_group() -> None:
    service = Introduced()
    number = service.mesh.number
    whole = m.UniqueId(number, [0, 1], 1, bytes(128))
    assert service.said(1, whole) == [(b"worker-1", whole), (b"worker-2", whole)]
    assert service.said(1, whole._replace(mesh=number + 1)) == []


@pytest.mark.parametrize(("worker", "ranks"), [(2, [0, 1]), (0, [0, 1]), (1, [0, 2]), (1, [])])
def test_an_id_of_somebody_else_is_refused(worker: int, ranks: list[int]) -> None:
    """Only the first member of a group names one, and only for members."""
    service = Introduced()
    said = service.said(worker, m.UniqueId(service.mesh.number, ranks, 1, bytes(128)))
    (refusal,) = [each for target, each in said if target == b"worker-%d" % worker]
    assert isinstance(refusal, m.Goodbye)
    assert refusal.kind == "ProtocolError"
