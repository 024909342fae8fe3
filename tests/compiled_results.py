"""What compiled functions are given, and all that can be seen of what they return."""

from typing import Any

import numpy as np

import gt


def t(*values: float) -> gt.Tensor:
    """A vector of float32."""
    return gt.tensor(np.array(values, np.float32))


def told(value: Any) -> Any:
    """All that a program can see of a result."""
    if isinstance(value, gt.Tensor):
        version = value._version if value._view is None else None  # of a view it counts when it was cut again
        return value.numpy().tolist(), str(value.dtype), value.requires_grad, value.is_leaf, version
    if isinstance(value, (tuple, list)):
        return [told(each) for each in value]
    return {name: told(each) for name, each in value.items()} if isinstance(value, dict) else value
