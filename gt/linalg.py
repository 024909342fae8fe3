"""Linear algebra, as in PyTorch: the client's, under the name by which programs import it."""

from __future__ import annotations

from gt.client import checked, elimination, linalg, norms, pseudoinverse
from gt.client.checked import *  # noqa: F403
from gt.client.elimination import *  # noqa: F403  # all of its public names
from gt.client.linalg import *  # noqa: F403
from gt.client.norms import *  # noqa: F403
from gt.client.outputs import all_filling
from gt.client.pseudoinverse import *  # noqa: F403

__all__ = [*checked.__all__, *elimination.__all__, *linalg.__all__, *norms.__all__, *pseudoinverse.__all__]  # noqa: PLE0604  # lists of strings

globals().update(all_filling(__name__, {name: globals()[name] for name in __all__}))  # out=, which PyTorch's take, too
