"""Snapshots: the state of models and optimizers, which the workers write to files in parallel, each what it holds.

No value passes through the program. The service keeps the files, in a folder of each principal
(`gt/snapshot_files/snapshot_folder.py`); a snapshot is there whole or not at all, and can be restored on another number of
workers, or under another config.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, Final

from gt.bounds import MAX_IDS, MAX_STATE_BYTES
from gt.client.nn.module import Module
from gt.client.optim.optimizer import Optimizer
from gt.client.session import sessions
from gt.client.tensor import emission_context, grad_mode
from gt.client.tensor.tensor import Tensor
from gt.errors import SnapshotError, StateError
from gt.ir.spec import Spec
from gt.snapshot_files.manifest import Manifest, unpack_manifest
from gt.snapshot_files.snapshot_folder import SnapshotInfo, unpack_list
from gt.snapshot_files.snapshot_names import check_name

from .save_load import put_together, taken_apart

MAX_SHOWN: Final = 8
"""The most differences that an error names."""


def snapshot(name: str, *objects: Any, extra: Any = None, wait: bool = True, timeout: float | None = None) -> Any:
    """Write the state of modules, optimizers and dicts of tensors to a snapshot, which replaces one of the same name.

    The state is that of this line; what follows need not wait, because values never change. Returns None when the snapshot is
    whole and on the disk, or with `wait=False` at once a future, whose `result()` waits for that. `extra` is anything that
    JSON can hold. If something fails, an earlier snapshot of this name stays as it was.

    Raises `SnapshotError`, `WorkerLost`, the error of a tensor that could not be computed, `TypeError` for what cannot be
    saved, and `TimeoutError` after `timeout` seconds, when it is still being written.
    """
    check_name(name)
    if not objects and extra is None:
        raise TypeError("snapshot: say what is to be saved: modules, optimizers, dicts of tensors")
    try:
        json.dumps(extra)
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(f"snapshot: extra is what JSON can hold: {error}") from None
    found: dict[str, Tensor] = {}
    saved = []
    for kind, prefix, thing in _named(objects):
        saved.append(
            {"kind": kind, "name": prefix, "form": taken_apart(_state_of(thing, kind), prefix, found, "snapshot")}
        )
    body = json.dumps({"keys": list(found), "state": saved, "extra": extra}, separators=(",", ":")).encode("ascii")
    if len(found) > MAX_IDS:
        raise SnapshotError(f"a snapshot holds at most {MAX_IDS} tensors, not {len(found)}: save them in several")
    if len(body) > MAX_STATE_BYTES:
        raise SnapshotError(f"a snapshot holds at most {MAX_STATE_BYTES} bytes besides its tensors, not {len(body)}")
    with grad_mode.no_grad():
        values = [tensor._current() for tensor in found.values()]
    future = sessions.current().snapshot(name, os.urandom(8).hex(), values, body)
    if not wait:
        return future
    future.result(timeout)
    return None


def snapshots() -> list[SnapshotInfo]:
    """The snapshots that the service keeps for you, by name: `name`, `time` (seconds since 1970), `nbytes` and `tensors`; of
    one that cannot be read `error` says why."""
    return unpack_list(sessions.current().ask("snapshots")["body"])


def restore(name: str, *objects: Any, timeout: float | None = None) -> Any:
    """Read a snapshot. With `objects`, loads them in place and returns the `extra` that was saved; without, returns a
    `SavedSnapshot`.

    Objects are matched with saved ones of the same kind (modules, optimizers, dicts, …) in order. Each worker reads the parts
    that it needs. Raises `StateError` for names, shapes or dtypes that do not fit, and `SnapshotError`, which names the file,
    for what is missing or damaged, and `TimeoutError` if workers take longer than `timeout` seconds to read it; then no object
    has changed.
    """
    check_name(name)
    here = sessions.current()
    here.flush()
    answer = here.inquire(f"snapshot {name}", timeout)
    found = SavedSnapshot(name, unpack_manifest(answer["body"], f"the manifest of the snapshot {name!r}"))
    if not objects:
        return found
    found.load_into(*objects, timeout=timeout)
    return found.extra


class SavedSnapshot:
    """A snapshot that can be restored, wholly or in part."""

    def __init__(self, name: str, manifest: Manifest) -> None:
        self.name = name
        self.time = manifest.time
        """When it was written, in seconds since 1970."""
        self.extra = manifest.extra
        """The JSON value that `gt.snapshot` was given as `extra`."""
        self._manifest = manifest

    def __repr__(self) -> str:
        return f"SavedSnapshot({self.name!r}, {len(self._manifest.tensors)} tensors, {self._manifest.nbytes} bytes)"

    def names(self) -> list[str]:
        """The names of the tensors, such as 'model.0.weight'."""
        return list(self._manifest.tensors)

    def tensor(self, name: str, timeout: float | None = None) -> Tensor:
        """One tensor. Raises `KeyError` if there is none of this name, `SnapshotError`, and `TimeoutError`."""
        if name not in self._manifest.tensors:
            raise KeyError(name)
        return self._read({name: None}, timeout)[name]

    def load_into(self, *objects: Any, timeout: float | None = None) -> None:
        """Load modules, optimizers and dicts of tensors in place, as `gt.restore` does."""
        pairs = self._matched(objects)
        wrong = [line for (kind, _, thing), form in pairs for line in self._differences(kind, thing, form)]
        if wrong:
            more = [f"and {len(wrong) - MAX_SHOWN} more"] if len(wrong) > MAX_SHOWN else []
            listed = "\n\t".join([*wrong[:MAX_SHOWN], *more])
            raise StateError(f"the snapshot {self.name!r} does not fit, and nothing was loaded:\n\t{listed}")
        places: dict[str, Tensor | None] = {}
        for (kind, _, thing), form in pairs:
            places.update(_places(kind, thing, form))
        found = self._read(places, timeout)
        for (kind, _, thing), form in pairs:
            _load(kind, thing, form, found)

    def _matched(self, objects: tuple[Any, ...]) -> list[tuple[tuple[str, str, Any], Any]]:
        """Each object with the form of the saved one of its kind."""
        try:
            saved = [(str(each["kind"]), each["form"]) for each in self._manifest.state]
            if not {name for _, form in saved for name in _names_in(form)} <= self._manifest.tensors.keys():
                raise ValueError
        except (TypeError, KeyError, ValueError, RecursionError):
            raise SnapshotError(f"the manifest of the snapshot {self.name!r} is malformed") from None
        pairs = []
        for kind, prefix, thing in _named(objects):
            at = next((at for at, (other, _) in enumerate(saved) if other == kind), None)
            if at is None:
                left = ", ".join(other for other, _ in saved) or "nothing"
                raise StateError(
                    f"the snapshot {self.name!r} has no (further) {kind} for the {type(thing).__name__}: it has {left} left"
                )
            pairs.append(((kind, prefix, thing), saved.pop(at)[1]))
        return pairs

    def _differences(self, kind: str, thing: Any, form: Any) -> Iterator[str]:
        """The reasons, one line each, why a saved form cannot be loaded into an object; none if it can."""
        if kind == OPTIMIZER:
            sizes = [len(group["params"]) for group in thing.param_groups]
            groups = put_together(form, dict.fromkeys(_names_in(form)))["param_groups"]
            if [len(group["params"]) for group in groups] != sizes:
                yield f"the optimizer has groups of {sizes} parameters, the saved one {[len(g['params']) for g in groups]}"
            return
        if kind == STATEFUL:
            return
        known = self._manifest.tensors
        current: dict[str, Tensor] = {}
        own = dict(_leaves(taken_apart(_state_of(thing, kind), "", current, "restore")))
        saved = dict(_leaves(form))
        for place in (place for place in own if place not in saved):
            yield f"{place or kind} is missing in the snapshot"
        for place in (place for place in saved if place not in own):
            yield f"{place or kind} is in the snapshot, and not in the {type(thing).__name__}"
        for place in (place for place in saved if place in own):
            name, mine = saved[place], own[place]
            if (name is None) != (mine is None):
                yield f"{place or kind} is a tensor on one side only"
            elif name is not None and mine is not None and known.get(name) is not current[mine]._value.spec:
                yield f"{place or kind} is {known.get(name)} in the snapshot, and {current[mine]._value.spec} here"

    def _read(self, places: Mapping[str, Tensor | None], timeout: float | None) -> dict[str, Tensor]:
        """The tensors of these names, each placed like another one, if one is given. Waits until all are at the workers."""
        here = sessions.current()
        signal = emission_context.current().signal
        with grad_mode.no_grad():
            like = {name: None if other is None else other._current() for name, other in places.items()}
        here.flush()
        found: dict[str, Tensor] = {}
        for name, other in like.items():
            spec: Spec | None = self._manifest.tensors.get(name)
            if spec is None:
                raise SnapshotError(f"the manifest of the snapshot {self.name!r} lacks the tensor {name!r}")
            number = -1 if other is None else other.id
            found[name] = Tensor(here.restore(spec, signal, number, (self.name, self._manifest.parts, name)))
        ids = [tensor._value.id for tensor in found.values()]
        for at in range(0, len(ids), MAX_IDS):
            here.confirm(ids[at : at + MAX_IDS], timeout)
        return found


MODULE, OPTIMIZER, STATEFUL, TENSOR, TENSORS = "module", "optimizer", "state", "tensor", "tensors"
_PREFIXES: Final = {MODULE: "model", OPTIMIZER: "optimizer", STATEFUL: "state", TENSOR: "tensor", TENSORS: "tensors"}


def _kind_of(thing: Any) -> str:
    if isinstance(thing, Module):
        return MODULE
    if isinstance(thing, Optimizer):
        return OPTIMIZER
    if isinstance(thing, Tensor):
        return TENSOR
    if isinstance(thing, MutableMapping):
        return TENSORS
    if callable(getattr(thing, "state_dict", None)) and callable(getattr(thing, "load_state_dict", None)):
        return STATEFUL
    raise TypeError(
        f"a snapshot holds modules, optimizers, tensors, dicts of tensors and what has a state_dict(), not "
        f"{type(thing).__name__}"
    )


def _named(objects: tuple[Any, ...]) -> Iterator[tuple[str, str, Any]]:
    """Each object with its kind and the prefix of the names of its tensors."""
    count: dict[str, int] = {}
    for thing in objects:
        kind = _kind_of(thing)
        number = count[kind] = count.get(kind, 0) + 1
        yield kind, _PREFIXES[kind] + (str(number) if number > 1 else ""), thing


def _state_of(thing: Any, kind: str) -> Any:
    return thing if kind in (TENSOR, TENSORS) else thing.state_dict()


def _names_in(form: Any) -> Iterator[str]:
    """The names of all tensors of a form."""
    kind, content = form
    if kind == "tensor":
        yield content
    elif kind == "dict":
        for _, inner in content:
            yield from _names_in(inner)
    elif kind != "value":
        for inner in content:
            yield from _names_in(inner)


def _leaves(form: Any, place: str = "") -> Iterator[tuple[str, str | None]]:
    """The leaves of a saved form: the path of each, such as `state.0.exp_avg`, and the name of its tensor; None for
    a leaf that is no tensor."""
    kind, content = form
    if kind == "dict":
        for key, inner in content:
            yield from _leaves(inner, f"{place}.{key}" if place else str(key))
    elif kind in ("list", "tuple"):
        for at, inner in enumerate(content):
            yield from _leaves(inner, f"{place}.{at}" if place else str(at))
    else:
        yield place, content if kind == "tensor" else None


def _places(kind: str, thing: Any, form: Any) -> dict[str, Tensor | None]:
    """The tensors of a saved form by name, each with the tensor as which it is to be placed, if one is known."""
    if kind == OPTIMIZER:
        saved = put_together(form, {name: name for name in _names_in(form)})
        params = [p for group in thing.param_groups for p in group["params"]]
        order = [place for group in saved["param_groups"] for place in group["params"]]
        owner = dict(zip(order, params, strict=True))
        found: dict[str, Tensor | None] = dict.fromkeys(_names_in(form))
        for place, entry in saved["state"].items():
            found |= {name: owner.get(place) for name in entry.values() if isinstance(name, str) and name in found}
        return found
    if kind == STATEFUL:
        return dict.fromkeys(_names_in(form))
    current: dict[str, Tensor] = {}
    own = dict(_leaves(taken_apart(_state_of(thing, kind), "", current, "restore")))
    return {
        name: current[mine] for place, name in _leaves(form) if name is not None and (mine := own[place]) is not None
    }


def _load(kind: str, thing: Any, form: Any, found: Mapping[str, Tensor]) -> None:
    """Load a saved form, which fits, into an object."""
    state = put_together(form, found)
    if kind in (MODULE, OPTIMIZER, STATEFUL):
        thing.load_state_dict(state)
    else:
        with grad_mode.no_grad():
            _fill(thing, state)


def _fill(target: Any, state: Any) -> Any:
    """Write tensors into those of a dict, list or tuple, in place; what is no tensor replaces what is there."""
    if isinstance(target, Tensor):
        target.copy_(state)
    elif isinstance(target, MutableMapping):
        for key, value in state.items():
            target[key] = _fill(target[key], value)
    elif isinstance(target, list):
        target[:] = [_fill(mine, value) for mine, value in zip(target, state, strict=True)]
    elif isinstance(target, tuple):
        return tuple(_fill(mine, value) for mine, value in zip(target, state, strict=True))
    else:
        return state
    return target
