"""Optimizers and learning-rate schedules: PyTorch's names, arguments and formulas."""

from __future__ import annotations

from . import lr_scheduler
from .adam import Adam, Adamax, AdamW, NAdam, RAdam
from .adaptive import Adadelta, Adagrad, RMSprop
from .factored import ASGD, Adafactor, Muon
from .lbfgs import LBFGS
from .optimizer import Optimizer
from .sgd import SGD, Lion, Rprop

__all__ = [
    "Optimizer", "SGD", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Adagrad", "Adadelta", "Lion", "Rprop",
    "LBFGS", "ASGD", "Adafactor", "Muon", "lr_scheduler",
]  # fmt: skip
