"""Linear algebra, as in PyTorch: the client's, under the name by which programs import it."""

from __future__ import annotations

from gt.client.ops.linalg import ex_variants, least_squares, linalg, lu_factorization, norms
from gt.client.ops.linalg.ex_variants import *  # noqa: F403
from gt.client.ops.linalg.least_squares import *  # noqa: F403
from gt.client.ops.linalg.linalg import *  # noqa: F403
from gt.client.ops.linalg.lu_factorization import *  # noqa: F403  # all of its public names
from gt.client.ops.linalg.norms import *  # noqa: F403
from gt.client.tensor_api.out_argument import all_filling

__all__ = [*ex_variants.__all__, *lu_factorization.__all__, *linalg.__all__, *norms.__all__, *least_squares.__all__]  # noqa: PLE0604  # lists of strings

globals().update(all_filling(__name__, {name: globals()[name] for name in __all__}))  # out=, which PyTorch's take, too
