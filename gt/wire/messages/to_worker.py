"""What the dispatcher says to a worker of meshes, plans and tensors.

Marks, snapshots and multicast are modules of their own.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class DefineMesh(NamedTuple):
    """A mesh gets a number, and its members learn how to reach each other.

    From dispatcher to worker.

    * `mesh`: the number.
    * `body`: [axes, sizes, members, weights, cards]: the names and sizes of its axes; the worker at each rank; along each axis
      the weight of each position; and for each rank the number of a GPU that takes part in collectives of a library, else 0. On
      several hosts two more follow: for each rank the number of its host; and [bytes/s, nanoseconds] of the slowest link between
      two of them.
    * `addresses`: that of each member's socket for pieces, by rank.
    """

    mesh: int
    body: list[Any]
    addresses: list[str]


class DropMesh(NamedTuple):
    """No plan on this mesh will come any more.

    From dispatcher to worker.

    * `mesh`: its number.
    """

    mesh: int


class UniqueId(NamedTuple):
    """The members of a group of a mesh find each other by this id, for NCCL. The first member makes it.

    From worker to dispatcher; from dispatcher to worker.

    * `mesh`: the number of the mesh.
    * `ranks`: the group.
    * `generation`: the communicator that it is for (`worker/nccl/communicators.py`).
    * `unique_id`: what NCCL made.
    """

    mesh: int
    ranks: list[int]
    generation: int
    unique_id: bytes


class Meet(NamedTuple):
    """Workers on other hosts are to be measured: how fast the links to them are.

    From dispatcher to worker.

    * `workers`: their numbers.
    * `addresses`: their sockets for pieces.
    """

    workers: list[int]
    addresses: list[str]


class DefinePlan(NamedTuple):
    """A plan gets a number, by which it is executed from now on.

    From dispatcher to worker.

    * `plan`: the number.
    * `body`: the plan, the same bytes for all members of its mesh.
    """

    plan: int
    body: bytes


class DropPlan(NamedTuple):
    """A plan will not be executed again before its number is defined anew.

    From dispatcher to worker.

    * `plan`: the number.
    """

    plan: int


class Execute(NamedTuple):
    """A plan is to be executed.

    From dispatcher to worker.

    * `order`: its number in the one order of all plans and puts.
    * `plan`: the number of its definition.
    * `client`: whose tensors it reads and makes.
    * `base`: as in `Run`.
    * `inputs`: as in `Run`.
    * `scalars`: as in `Run`.
    * `dying`: as in `Run`.
    * `freed`: as in `Run`.
    * `fetch`: [], or [request, output]: the receiver sends the values of that survivor as soon as it has them, as by a `Collect`
      of this request behind the plan. They are few enough to go with a `Part`.
    """

    order: int
    plan: int
    client: int
    base: int
    inputs: list[int]
    scalars: list[Any]
    dying: list[int]
    freed: list[int]
    fetch: list[int] = []  # noqa: RUF012 — no message is ever changed


class Store(NamedTuple):
    """The receiver keeps its part of a tensor that a client puts.

    From dispatcher to worker.

    * `order`: its number in the one order of all plans and puts.
    * `client`: whose it is.
    * `tensor`: its id.
    * `spec`: its dtype and shape.
    * `mesh`: the mesh on which it is placed.
    * `layout`: how, as `gt/sharding/placement.py` prints it.
    * `signal`: the path of signals in which the program put it.
    * `sender`: the bulk name from which the part comes; empty if it is in `data`.
    * `data`: the whole tensor, or empty.
    """

    order: int
    client: int
    tensor: int
    spec: list[Any]
    mesh: int
    layout: str
    signal: list[str]
    sender: bytes
    data: bytes


class Release(NamedTuple):
    """Tensors are to be freed.

    From dispatcher to worker.

    * `client`: whose they are.
    * `tensors`: their ids.
    """

    client: int
    tensors: list[int]


class Forget(NamedTuple):
    """A client is gone, and everything of it is to be freed.

    From dispatcher to worker.

    * `client`: its number.
    """

    client: int


class Collect(NamedTuple):
    """The receiver sends its part of a tensor. Answered by `Part`.

    From dispatcher to worker.

    * `request`: a number for the answer.
    * `reply`: the client's own request, which names the bulk stream.
    * `client`: whose tensor it is.
    * `tensor`: its id.
    * `silent`: whether only to say that the part is sound.
    * `receiver`: the client's bulk name; nobody else is given the part.
    """

    request: int
    reply: int
    client: int
    tensor: int
    silent: bool
    receiver: bytes


class ChargeMemory(NamedTuple):
    """What a client's tensors take is charged to its principal, together with that of the principal's other clients. Said after
    the `DefineMesh` of a client's mesh, and again when limits change; without it the memory is the owner's of the service.

    From dispatcher to worker.

    * `mesh`: the mesh; when it is dropped, this holds no longer.
    * `client`: the client.
    * `principal`: the name of its principal.
    * `live_bytes`: the most bytes of live tensors that the principal may have on this worker; 0: as many as there is room for.
    * `weight`: a thousand times what the principal weighs: whoever has more than their share is put out of memory first.
    """

    mesh: int
    client: int
    principal: str
    live_bytes: int
    weight: int


class Survey(NamedTuple):
    """The receiver says who holds what of its memory. Answered by `Holdings`, in its turn.

    From dispatcher to worker.

    * `request`: a number for the answer.
    * `most`: how many holders to list of each client, the largest.
    """

    request: int
    most: int
