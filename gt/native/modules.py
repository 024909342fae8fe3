"""The modules that have a compiled form, and where that lies."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

MODULES: Final = (
    "gt.client.segment.value",
    "gt.client.segment.signature",
    "gt.client.segment.open_segment",
    "gt.client.segment.definition_cache",
    "gt.client.segment.early_fetch",
    "gt.client.segment.builder",
    "gt.client.tensor.emission_context",
    "gt.client.tensor.tensor",
    "gt.client.tensor.tape",
    "gt.client.tensor.emission",
    "gt.client.tensor.operands",
    "gt.client.tensor.deferred_gradients",
    "gt.client.tensor.backward_pass",
    "gt.client.tensor.broadcasting",
    "gt.client.autograd.rules.gradient_table",
    "gt.client.optim.optimizer",
    "gt.client.optim.sgd",
    "gt.client.optim.adam",
    "gt.client.compile.guards",
    "gt.client.compile.capture",
    "gt.client.compile.output_templates",
    "gt.client.compile.trace",
    "gt.client.ops.arithmetic",
    "gt.client.ops.matrix_products",
    "gt.client.functional.linear",
    "gt.client.functional.losses",
    "gt.client.tensor_api.tape_methods",
    "gt.client.nn.module",
    "gt.worker.element_loops.int8_products",
    "gt.worker.element_loops.lstm",
    "gt.worker.element_loops.max_pool",
    "gt.worker.element_loops.piecewise",
)
"""What an instruction, its gradient and a compiled step cost the client is spent here; and loops of the worker over elements,
which have no other form."""

PACKAGES: Final = ("gt.client.", "gt.worker.element_loops.")
"""What the names of modules begin with."""
MANIFEST: Final = "manifest.json"
"""The file beside compiled modules that says from which sources, and for which Python, they were built."""
FOLDERS: Final = (Path(__file__).parent / "built", Path(__file__).parents[2] / "build" / "native")
"""Where compiled modules may lie: in a wheel; in a checkout, from `make native`."""


def source(module: str, root: Path) -> Path:
    """The source of a module, under the folder that has those of client and worker."""
    return root.joinpath(*module.split(".")[1:]).with_suffix(".pyx" if module.startswith(PACKAGES[1]) else ".py")


def digests(root: Path) -> dict[str, str]:
    """The hash of each source, and of the declarations beside it, by its path under the same folder."""
    paths = [source(module, root) for module in MODULES]
    folders = {path.parent for path in paths}
    paths += sorted(path for folder in folders for path in folder.glob("*.pxd"))
    return {str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}
