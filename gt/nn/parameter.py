"""Parameters and buffers, under the name by which programs import them."""

from gt.client.nn.parameter import Buffer, Parameter

__all__ = ["Buffer", "Parameter"]
