"""What a config asks for on the workers that there are: the axes of its mesh, and on a mesh its policy.

Both are worked out in turns, by jobs, and then kept: once for all sessions that have the service's config, which are most, and
once for a session with a config of its own. Pure state; `dispatcher/session_meshes/session_mesh.py` has the jobs done.
"""

from __future__ import annotations

from collections.abc import Generator, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from gt.dispatcher.planner.policy import Policy, resolve_in_turns
from gt.sharding.config_meshes import DevicePins, busiest_last, device_pins, mesh_in_turns
from gt.sharding.placement import Mesh

if TYPE_CHECKING:
    from gt.sharding.config import Config

T = TypeVar("T")
MAX_KEPT: Final = 64
"""The most results that are kept of one config. There are more only after workers have joined and left again and again."""


class SharedComputation(Generic[T]):
    """A computation in turns, for any number of jobs: a turn of each of them is a turn of the computation, until it is over."""

    def __init__(self, turns: Generator[None, None, T]) -> None:
        self._turns: Generator[None, None, T] | None = turns
        self._result: T | None = None
        self._error: Exception | None = None

    @property
    def over(self) -> bool:
        """Whether it has a result or an error."""
        return self._turns is None

    def turns(self) -> Iterator[None]:
        """The turns of a job that waits for it. They raise nothing."""
        while self._turns is not None:
            try:
                next(self._turns)
            except StopIteration as end:
                self._turns, self._result = None, end.value
            except Exception as error:  # noqa: BLE001 — whoever asks for the result has it, whatever it is
                self._turns, self._error = None, error
            else:
                yield

    def result(self) -> T:
        """The result, once it is over. Raises the error that it ended with."""
        if self._error is not None:
            raise self._error.with_traceback(None)
        result: Any = self._result
        return result  # type: ignore[no-any-return]


@dataclass(slots=True, eq=False)
class ConfigResolution:
    """What one config asks for, as far as somebody has asked."""

    config: Config
    _kept: dict[Hashable, SharedComputation[Any]] = field(default_factory=dict)

    def axes(self, workers: int) -> SharedComputation[dict[str, int]]:
        """The axes of its mesh on so many workers."""
        return self._computation(workers, lambda: mesh_in_turns(self.config, workers))

    def busiest_last(self, axes: dict[str, int]) -> SharedComputation[tuple[int, ...] | None]:
        """The places of its mesh's axes in the order of what is exchanged along them."""
        return self._computation(("busiest last", *axes), lambda: busiest_last(self.config, axes))

    def pins(self) -> SharedComputation[DevicePins]:
        """The devices that its rules name."""
        return self._computation("pins", lambda: device_pins(self.config))

    def policy(self, mesh: Mesh, names: Sequence[tuple[str, ...]]) -> SharedComputation[Policy]:
        """Its policy on a mesh of workers of these names, the kind first, of which each session takes a copy."""
        pins = self.pins()
        wanted = pins.result().devices if pins.over else None
        known = tuple((kind, *(each for each in more if wanted is None or each in wanted)) for kind, *more in names)
        key = (mesh.axes, mesh.sizes, mesh.weights, known)
        return self._computation(key, lambda: resolve_in_turns(self.config, mesh, known))

    def _computation(self, key: Hashable, begin: Any) -> SharedComputation[Any]:
        found = self._kept.get(key)
        if found is None:
            if len(self._kept) >= MAX_KEPT:
                del self._kept[next(iter(self._kept))]
            found = self._kept[key] = SharedComputation(begin())
        return found


@dataclass(slots=True, eq=False)
class ConfigChange:
    """What was read for a message that changes a session's config, while the message waits."""

    message: Any
    own: SharedComputation[Config] | None = None
    """The session's own config, if the message has it."""
    base: Config | None = None
    """The config of the service over which `merged` has it."""
    merged: SharedComputation[Config] | None = None
