"""Publishing: tensors that a program shares on purpose, by name and version, with its other programs, a team or everyone.

What is published never changes. The service keeps it (`gt/snapshot_files/published_folder.py`) until it is replaced or revoked,
whatever becomes of the program. No value passes through either program.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from typing import Any, Final

from gt.bounds import MAX_IDS, MAX_STATE_BYTES
from gt.client.nn.module import Module
from gt.client.session import sessions
from gt.client.tensor import emission_context, grad_mode
from gt.client.tensor.tensor import Tensor
from gt.errors import SnapshotError
from gt.snapshot_files.manifest import Manifest, unpack_manifest
from gt.snapshot_files.published_folder import PublishedInfo, unpack_published
from gt.snapshot_files.snapshot_names import check_name

from .save_load import put_together, taken_apart

MAX_TRIES: Final = 3
"""The most times that the newest version is looked up, when it was replaced before it was read."""


def publish(
    name: str,
    what: Any,
    *,
    to: str | Iterable[str] = (),
    expect: int | None = None,
    keep: int = 1,
    timeout: float | None = None,
) -> int:
    """Publish a tensor, the state of a module, or dicts and lists of tensors under a name. Returns the number of the version.

    The values are those of this line. Your own programs may read them; `to` says who else: 'everyone', a user or key by name,
    or a group that the operator of the service has made; or several of them. Returns when the version is whole and on the disk;
    from then on `gt.subscribe(name)` gives it. With `expect`, it is published only if that is the newest version (0: there is
    none). The last `keep` versions stay readable. They count as yours until they are replaced or revoked, also when this
    program has ended.

    Raises `PublishConflict` if `expect` does not hold, `SnapshotError`, `WorkerLost`, the error of a tensor that could not be
    computed, `TypeError` for what cannot be saved, and `TimeoutError` after `timeout` seconds.
    """
    check_name(name)
    readers = [to] if isinstance(to, str) else list(to)
    if not all(isinstance(reader, str) for reader in readers):
        raise TypeError(f"publish: to= is a name, or several: 'everyone', a user, key or group; not {to!r}")
    if expect is not None and expect < 0:
        raise ValueError(f"publish: expect= is the number of a version, or 0 for none, not {expect}")
    found: dict[str, Tensor] = {}
    form = taken_apart(what.state_dict() if isinstance(what, Module) else what, "", found, "publish")
    if not found:
        raise TypeError(f"publish: {type(what).__name__} holds no tensor")
    body = json.dumps({"keys": list(found), "state": form, "extra": None}, separators=(",", ":")).encode("ascii")
    if len(found) > MAX_IDS or len(body) > MAX_STATE_BYTES:
        raise SnapshotError(
            f"at most {MAX_IDS} tensors are published at a time, and {MAX_STATE_BYTES} bytes besides them"
        )
    with grad_mode.no_grad():
        values = [tensor._current() for tensor in found.values()]
    share = [readers, -1 if expect is None else expect, keep]
    answer = sessions.current().snapshot(name, os.urandom(8).hex(), values, body, share).result(timeout)
    return int(answer["version"])


def subscribe(name: str, *, version: int | None = None, of: str | None = None, timeout: float | None = None) -> Any:
    """Returns what was published under a name: a tensor, or what holds tensors, as it was given to `gt.publish`.

    The newest version, or the one of that number. It lies where it was published if this program runs there, and is not copied
    then; else workers read it from its files. Nothing that anybody publishes later changes it. Your own names come first; `of`
    chooses among several principals who share one ('user 1000', 'alice').

    Raises `SnapshotError` for what is not there or not shared with you, and `TimeoutError` after `timeout` seconds.
    """
    check_name(name)
    here = sessions.current()
    here.flush()
    for left in reversed(range(MAX_TRIES)):
        answer = here.inquire(f"published {version or 0} {name} {of or ''}".rstrip(), timeout)
        manifest = unpack_manifest(bytes(answer["body"]), f"the manifest of {name!r}")
        try:
            tensors = _read(name, answer["owner"], manifest, timeout)
        except SnapshotError:
            if version is not None or not left:
                raise
            continue  # it was replaced at that moment
        try:
            return put_together(manifest.state, tensors)
        except (ValueError, TypeError, KeyError, RecursionError):
            raise SnapshotError(f"the manifest of {name!r} does not say how its tensors belong together") from None
    return None


def published() -> list[PublishedInfo]:
    """All that you may subscribe to, by owner and name: `name`, `owner`, `version` (the newest), `time` (seconds since 1970),
    `nbytes`, `tensors`, and of your own `to`."""
    return unpack_published(sessions.current().ask("published")["body"])


def revoke(name: str) -> None:
    """Withdraw what you have published under a name: nobody can subscribe to it any more. Who has it keeps it, as a copy. Raises
    `SnapshotError` if there is nothing."""
    check_name(name)
    sessions.current().ask(f"revoke {name}")


def _read(name: str, owner: str, manifest: Manifest, timeout: float | None) -> dict[str, Tensor]:
    """The tensors of a version by name. Waits until all are at the workers."""
    here = sessions.current()
    signal = emission_context.current().signal
    shared = manifest.shared or {}
    layouts, sizes = shared.get("layouts", []), shared.get("sizes", [])
    found: dict[str, Tensor] = {}
    for position, (key, known) in enumerate(manifest.tensors.items()):
        source = [owner, position, layouts[position], sizes]
        found[key] = Tensor(here.restore(known, signal, -1, (name, manifest.parts, key), source))
    ids = [tensor._value.id for tensor in found.values()]
    for at in range(0, len(ids), MAX_IDS):
        here.confirm(ids[at : at + MAX_IDS], timeout)
    return found
