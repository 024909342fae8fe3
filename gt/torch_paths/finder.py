"""The finder of PyTorch's import paths. `import gt` installs it, so it is small: it reads the table when it is first asked."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

__all__ = ["TorchPathFinder", "install"]


class TorchPathFinder:
    """Finds the paths of the table, and nothing else."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """What `sys.meta_path` asks of a finder."""
        if not fullname.startswith("gt.") or fullname.startswith("gt.torch_paths"):
            return None
        from .loader import spec

        return spec(fullname)


def install() -> None:
    """Puts the finder before that of files, to which a folder of stubs or of stale bytecode is an empty package."""
    if not any(isinstance(finder, TorchPathFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, TorchPathFinder())
