"""Attributes that programs give to parameters, by which they sort them for their optimizers."""

import pytest

import gt
from gt import nn

pytestmark = pytest.mark.usefixtures("session")


def test_a_parameter_takes_attributes_of_a_programs_own() -> None:
    layer = nn.Linear(2, 2)
    layer.bias._no_weight_decay = True
    marked = [name for name, each in layer.named_parameters() if getattr(each, "_no_weight_decay", False)]
    assert marked == ["bias"]
    assert not hasattr(nn.Parameter(gt.zeros(1)), "_no_weight_decay")
