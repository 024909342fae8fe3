"""GT, a tensor service: programs say what to compute, a YAML file says where.

This is the public face: every name of `gt.public_api` is imported from the module that defines it at its first use, so that
`import gt` stays light. The names are PyTorch's wherever PyTorch has one. Nothing is computed here.
"""

from __future__ import annotations

from gt.native.finder import install as _install_native
from gt.torch_paths.finder import install as _install

from . import default_session

TYPE_CHECKING = False  # as `typing` has it, whose import takes longer than all that is here
if TYPE_CHECKING:
    from typing import Any, Final

    from gt.declared_types.names import *  # noqa: F403

    from . import accelerator as accelerator
    from . import amp as amp
    from . import ao as ao
    from . import array_api as array_api
    from . import autograd as autograd
    from . import backends as backends
    from . import compiler as compiler
    from . import config as config
    from . import cuda as cuda
    from . import data as data
    from . import distributed as distributed
    from . import distributions as distributions
    from . import fft as fft
    from . import func as func
    from . import fx as fx
    from . import hub as hub
    from . import jax as jax
    from . import jit as jit
    from . import linalg as linalg
    from . import masked as masked
    from . import multiprocessing as multiprocessing
    from . import nn as nn
    from . import onnx as onnx
    from . import ops as ops
    from . import optim as optim
    from . import random as random
    from . import signal as signal
    from . import special as special
    from . import testing as testing
    from . import torch as torch
    from . import utils as utils
    from . import version as version

_SUBMODULES: Final = (
    "accelerator",
    "amp",
    "ao",
    "array_api",
    "autograd",
    "backends",
    "compiler",
    "config",
    "cuda",
    "data",
    "distributed",
    "distributions",
    "fft",
    "func",
    "fx",
    "hub",
    "jax",
    "jit",
    "linalg",
    "masked",
    "multiprocessing",
    "nn",
    "onnx",
    "ops",
    "optim",
    "random",
    "signal",
    "special",
    "testing",
    "torch",
    "utils",
    "version",
)

_FRONT_ENDS: Final = frozenset({"jax", "torch"})
"""Submodules that are there where the library of the same name is installed, in a version that will do. `from gt import *` takes
none of them, since it would load the library."""


def _start_session() -> None:
    from gt.service import session

    session.init()


default_session.bind(_start_session)
_install_native()  # the finder of compiled modules, where they were built
_install()  # the finder of PyTorch's import paths: `gt.nn` and most other submodules have no file


def __getattr__(name: str) -> Any:
    import importlib

    from gt.public_api.constants import CONSTANTS
    from gt.public_api.name_table import definitions, taking_out

    if name in definitions():
        module, inner = definitions()[name]
        value = getattr(importlib.import_module(module), inner)
        if name in taking_out():
            from gt.client.tensor_api.out_argument import filling

            value = filling(value, __name__, taking_out()[name])
    elif name in CONSTANTS:
        value = CONSTANTS[name]
    elif name in _SUBMODULES:
        try:
            value = importlib.import_module(f".{name}", __name__)
        except ImportError as error:
            if name not in _FRONT_ENDS:
                raise
            # whoever looks through all modules, as compilers do, asks by `hasattr`
            raise AttributeError(f"module 'gt' has no attribute {name!r} here: {error}") from error
    elif name == "__all__":
        value = [*(each for each in _SUBMODULES if each not in _FRONT_ENDS), *CONSTANTS, *definitions()]
    elif name == "__version__":
        from importlib.metadata import version

        value = version("gt-tensor")
    else:
        from gt.torch_paths.instead import INSTEAD

        advice = f": {INSTEAD[name]}" if name in INSTEAD else ""
        raise AttributeError(f"module 'gt' has no attribute {name!r}{advice}")
    globals()[name] = value  # the next look-up finds it at once
    return value


def __dir__() -> list[str]:
    from importlib.util import find_spec

    return sorted({*globals(), *__getattr__("__all__"), *(each for each in _FRONT_ENDS if find_spec(each) is not None)})
