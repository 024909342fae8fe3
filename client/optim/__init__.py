"""Optimizers and learning-rate schedules: PyTorch's names, arguments and formulas."""

from __future__ import annotations

from . import lr_scheduler
from .adafactor_muon import ASGD, Adafactor, Muon
from .adagrad_rmsprop import Adadelta, Adagrad, RMSprop
from .adam import Adam, Adamax, AdamW, NAdam, RAdam
from .lbfgs import LBFGS
from .optimizer import Optimizer
from .sgd import SGD, Lion, Rprop

__all__ = [
    "Optimizer", "SGD", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Adagrad", "Adadelta", "Lion", "Rprop",
    "LBFGS", "ASGD", "Adafactor", "Muon", "lr_scheduler",
]  # fmt: skip
