"""An example of ops that a package brings to GT. Its entry point, `softops:OPS`, is the list of them."""

from .ops import OPS

__all__ = ["OPS"]
