"""The finder of compiled modules: it imports them in place of their sources, or where they have none in Python, where they were
built from these.

`import gt` installs it, so it is small: what it needs it imports with the client. All modules are taken, or none, since they know
each other's layout. `GT_NATIVE=0` leaves them aside.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from pathlib import Path
    from types import ModuleType

__all__ = ["NativeChoice", "NativeFinder", "choice", "choose", "install"]


class NativeChoice:
    """Which form of the modules is imported: `files` are the compiled ones, none where the sources are; `reason` says why."""

    __slots__ = ("files", "reason", "stale")

    def __init__(self, files: dict[str, Path], reason: str, *, stale: bool = False) -> None:
        self.files = files
        self.reason = reason
        self.stale = stale


def choose(folders: Sequence[Path], root: Path, wanted: str) -> NativeChoice:
    """Which form to import. `root` is the folder of client and worker, `wanted` the value of GT_NATIVE."""
    import json
    from importlib.machinery import EXTENSION_SUFFIXES

    from .modules import MANIFEST, digests

    if wanted == "0":
        return NativeChoice({}, "sources, as GT_NATIVE=0 says")
    for folder in folders:
        try:
            manifest = json.loads((folder / MANIFEST).read_text())
        except FileNotFoundError:
            continue
        if manifest["suffix"] != EXTENSION_SUFFIXES[0]:  # another Python's
            continue
        now = digests(root)
        changed = [path for path, digest in manifest["sources"].items() if now.get(path, digest) != digest]
        if changed:
            return NativeChoice({}, f"sources: those compiled in {folder} are from another {changed[0]}", stale=True)
        files = {module: folder / f"{module}{manifest['suffix']}" for module in manifest["modules"]}
        return NativeChoice(files, f"compiled, from {folder}")
    return NativeChoice({}, "sources: no compiled ones are built for this Python")


_chosen: list[NativeChoice] = []
"""The choice of this process, once it is made; a list, since a cache of `functools` would be imported for it."""


def choice() -> NativeChoice:
    """The form that this process imports."""
    if not _chosen:
        _chosen.append(_choice())
    return _chosen[0]


def _choice() -> NativeChoice:
    import logging
    from importlib.util import find_spec
    from pathlib import Path

    from .modules import FOLDERS

    client = find_spec("gt.client")
    assert client is not None, "it is a package of GT"
    root = Path((client.submodule_search_locations or [""])[0]).parent
    made = choose(FOLDERS, root, os.environ.get("GT_NATIVE", ""))
    if made.stale:
        logging.getLogger("gt").warning("%s; `make native` compiles them anew", made.reason)
    return made


class NativeFinder:
    """Finds the compiled modules of client and worker, and nothing else."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """What `sys.meta_path` asks of a finder."""
        if not fullname.startswith(("gt.client.", "gt.worker.element_loops.")):
            return None
        file = choice().files.get(fullname)
        if file is None:
            return None
        from importlib.machinery import ExtensionFileLoader
        from importlib.util import spec_from_file_location

        return spec_from_file_location(fullname, file, loader=ExtensionFileLoader(fullname, str(file)))


def install() -> None:
    """Puts the finder before that of files."""
    if not any(isinstance(finder, NativeFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, NativeFinder())
