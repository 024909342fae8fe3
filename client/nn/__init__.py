"""Modules: parameters and the functions that use them, as in PyTorch."""

from __future__ import annotations

from gt.client import functional

from . import init
from .containers import ModuleDict, ModuleList, Sequential
from .layers import (
    GELU,
    Dropout,
    Embedding,
    Flatten,
    Identity,
    LayerNorm,
    LeakyReLU,
    Linear,
    LogSoftmax,
    ReLU,
    RMSNorm,
    Sigmoid,
    SiLU,
    Softmax,
    Softplus,
    Tanh,
)
from .losses import CrossEntropyLoss, L1Loss, MSELoss, NLLLoss
from .module import Module
from .parameter import Buffer, Parameter

__all__ = [
    "Module", "Parameter", "Buffer", "Sequential", "ModuleList", "ModuleDict",
    "Linear", "Embedding", "LayerNorm", "RMSNorm", "Flatten", "Identity", "Dropout",
    "ReLU", "LeakyReLU", "Tanh", "Sigmoid", "GELU", "SiLU", "Softplus", "Softmax", "LogSoftmax",
    "CrossEntropyLoss", "MSELoss", "L1Loss", "NLLLoss",
    "functional", "init",
]  # fmt: skip
