"""Modules: parameters and the functions that use them, as in PyTorch."""

from __future__ import annotations

from gt.client import functional

from . import init
from .containers import ModuleDict, ModuleList, Sequential
from .convolution import (
    AdaptiveAvgPool1d,
    AdaptiveAvgPool2d,
    AdaptiveAvgPool3d,
    AdaptiveMaxPool1d,
    AdaptiveMaxPool2d,
    AvgPool1d,
    AvgPool2d,
    AvgPool3d,
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
    Fold,
    MaxPool1d,
    MaxPool2d,
    MaxPool3d,
    Unfold,
)
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
    "Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d", "MaxPool1d", "MaxPool2d",
    "MaxPool3d", "AvgPool1d", "AvgPool2d", "AvgPool3d", "AdaptiveAvgPool1d", "AdaptiveAvgPool2d",
    "AdaptiveAvgPool3d", "AdaptiveMaxPool1d", "AdaptiveMaxPool2d", "Unfold", "Fold",
    "ReLU", "LeakyReLU", "Tanh", "Sigmoid", "GELU", "SiLU", "Softplus", "Softmax", "LogSoftmax",
    "CrossEntropyLoss", "MSELoss", "L1Loss", "NLLLoss",
    "functional", "init",
]  # fmt: skip
