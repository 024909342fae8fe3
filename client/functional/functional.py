"""The names of `gt.nn.functional`: those of this package, and most functions of tensors of `gt.client.ops`.

Nothing is defined here.
"""

from __future__ import annotations

from gt.client.ops import (  # fmt: skip
    arithmetic,
    comparisons,
    complex_numbers,
    contractions,
    elementwise,
    gather_scatter,
    histogram_unique,
    join_and_pad,
    matrix_products,
    numerical_calculus,
    reductions,
    scatter_reductions,
    shape_ops,
    sort_scan,
    statistics,
    triangular,
)
from gt.client.ops.arithmetic import *  # noqa: F403
from gt.client.ops.comparisons import *  # noqa: F403
from gt.client.ops.complex_numbers import *  # noqa: F403
from gt.client.ops.contractions import *  # noqa: F403
from gt.client.ops.elementwise import *  # noqa: F403
from gt.client.ops.gather_scatter import *  # noqa: F403
from gt.client.ops.histogram_unique import *  # noqa: F403
from gt.client.ops.join_and_pad import *  # noqa: F403
from gt.client.ops.linalg.linalg import chain_matmul
from gt.client.ops.linalg.tensor_norm import norm
from gt.client.ops.matrix_products import *  # noqa: F403
from gt.client.ops.numerical_calculus import *  # noqa: F403
from gt.client.ops.reductions import *  # noqa: F403
from gt.client.ops.scatter_reductions import *  # noqa: F403
from gt.client.ops.shape_ops import *  # noqa: F403
from gt.client.ops.sort_scan import *  # noqa: F403
from gt.client.ops.statistics import *  # noqa: F403
from gt.client.ops.triangular import *  # noqa: F403
from gt.client.tensor.operands import cast, clone

from . import (
    activations,
    convolution,
    ctc,
    distances,
    dropout_functions,
    embeddings,
    image_resize,
    losses,
    margin_losses,
    normalization,
    pooling,
    spatial_transformers,
    unpooling,
)
from .activations import *  # noqa: F403
from .attention import scaled_dot_product_attention
from .convolution import *  # noqa: F403
from .ctc import *  # noqa: F403
from .distances import *  # noqa: F403
from .dropout_functions import *  # noqa: F403
from .embeddings import *  # noqa: F403
from .embeddings import embedding
from .image_resize import *  # noqa: F403
from .layer_norms import layer_norm, rms_norm
from .linear import bilinear, linear
from .losses import *  # noqa: F403
from .margin_losses import *  # noqa: F403
from .normalization import *  # noqa: F403
from .pooling import *  # noqa: F403
from .spatial_transformers import *  # noqa: F403
from .unpooling import *  # noqa: F403

__all__ = [
    "bilinear", "embedding",
    "layer_norm", "linear", "rms_norm", "scaled_dot_product_attention",
]  # fmt: skip
__all__ += activations.__all__
__all__ += ctc.__all__
__all__ += arithmetic.__all__
__all__ += join_and_pad.__all__
__all__ += embeddings.__all__
__all__ += numerical_calculus.__all__
__all__ += complex_numbers.__all__
__all__ += convolution.__all__
__all__ += histogram_unique.__all__
__all__ += distances.__all__
__all__ += elementwise.__all__
__all__ += gather_scatter.__all__
__all__ += losses.__all__
__all__ += margin_losses.__all__
__all__ += triangular.__all__
__all__ += normalization.__all__
__all__ += pooling.__all__
__all__ += contractions.__all__
__all__ += reductions.__all__
__all__ += image_resize.__all__
__all__ += spatial_transformers.__all__
__all__ += scatter_reductions.__all__
__all__ += shape_ops.__all__
__all__ += sort_scan.__all__
__all__ += statistics.__all__
__all__ += comparisons.__all__
__all__ += dropout_functions.__all__
__all__ += matrix_products.__all__
__all__ += ["cast", "chain_matmul", "clone", "norm"]
__all__ += unpooling.__all__
