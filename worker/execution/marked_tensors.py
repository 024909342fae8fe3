"""Which tensors look at bytes that an earlier mark had already, so that those are neither read nor written again.

A client's tensor is the same value as long as it exists, and its number is never used again. Only a plan that gives it another
resident placement gives this worker another part of it (`changed`), and only the next mesh of a session gives it other parts of
everything. So a tensor that looks at its buffer as it did at the last mark looks at the same bytes, wherever they are by now: in
memory, pinned memory or the file of spilled values. All of the buffer is the same then, since nobody writes to memory at which
a stored tensor looks (`worker/device/exclusive_array.py`), and it is evicted and comes back whole. No memory is kept for this.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from gt.worker.base.events import MarkContents, MarkedView
from gt.worker.device.buffers import BufferView


class Content:
    """Stands for the bytes of a buffer of a mark."""

    __slots__ = ()


class MarkedTensor(NamedTuple):
    """How a tensor looked at its buffer in the last mark, and what stood for the bytes."""

    view: BufferView
    content: Content


class MarkedTensors:
    """What the last mark of each client had: the mesh, and the tensors."""

    def __init__(self) -> None:
        self.clients: dict[int, tuple[int, dict[int, MarkedTensor]]] = {}

    def identify(self, client: int, mesh: int, contents: MarkContents) -> tuple[MarkContents, set[int]]:
        """The contents of the next mark of a client, in which the bytes that the last one had have the same `content`, and the
        numbers of the buffers with others."""
        before, known = self.clients.get(client, (mesh, {}))
        if before != mesh:
            known = {}
        found = _contents(contents, known)
        made = {
            tensor: MarkedTensor(value.view, found[value.buffer])
            for tensor, value in contents.tensors.items()
            if isinstance(value, MarkedView)
        }
        self.clients[client] = mesh, made
        earlier = {marked.content for marked in known.values()}
        new = {number for number, content in enumerate(found) if content not in earlier}
        buffers = [buffer._replace(content=each) for buffer, each in zip(contents.buffers, found, strict=True)]
        return contents._replace(buffers=buffers), new

    def changed(self, client: int, tensor: int) -> None:
        """Note that this worker has another part of a tensor now."""
        marked = self.clients.get(client)
        if marked is not None:
            marked[1].pop(tensor, None)

    def forget(self, client: int) -> None:
        """Forget a client."""
        self.clients.pop(client, None)


def _contents(contents: MarkContents, known: Mapping[int, MarkedTensor]) -> list[Content]:
    """What stands for the bytes of each buffer: something new where it is not certain that they are the same."""
    seen: dict[int, set[Content]] = {}
    for tensor, value in contents.tensors.items():
        if isinstance(value, MarkedView):
            marked = known.get(tensor)
            if marked is not None and marked.view == value.view:
                seen.setdefault(value.buffer, set()).add(marked.content)
    given: set[Content] = set()
    found = []
    for number in range(len(contents.buffers)):
        candidates = seen.get(number, set())
        content = next(iter(candidates)) if len(candidates) == 1 else Content()
        if content in given:
            content = Content()
        given.add(content)
        found.append(content)
    return found
