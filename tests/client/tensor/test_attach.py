"""Modules that carry signals by their names, with no word of it in the model's code."""

import gc
from typing import Any

import numpy as np
import pytest
from live_values import without_garbage_collector

import gt
from gt import nn
from gt.client.segment.signature import segment_of
from gt.client.session import sessions
from gt.ir.instruction_bytes import unpack_segment
from gt.sharding.placement import format_layout


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.Linear(4, 4)
        self.act = nn.ReLU()

    def forward(self, x: gt.Tensor) -> gt.Tensor:
        return self.act(self.norm(x)) + x


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Sequential(nn.Linear(4, 2), nn.ReLU())

    def forward(self, x: gt.Tensor) -> gt.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x).sum()


@pytest.fixture
def model(session: Any) -> Model:
    made = Model()
    sessions.builder().flush()
    return made


def paths(*ops: str) -> list[tuple[str, ...]]:
    """The signals of the instructions gathered since the last flush, of these ops."""
    builder = sessions.builder()
    segment = segment_of(builder.record, b"\1" * len(builder.record), len(builder.inputs))
    return [segment.tags[i.tag].signal for i in segment.instructions if i.op in ops]


def test_modules_run_in_signals_of_their_names(model: Model) -> None:
    """Nested, outermost first; a list is around its items though nobody calls it; the root without a name is nothing."""
    gt.signal.attach(model)
    model(gt.ones(3, 4))
    assert paths("matmul", "relu", "sum") == [
        ("blocks", "blocks.0", "blocks.0.norm"),
        ("blocks", "blocks.0", "blocks.0.act"),
        ("blocks", "blocks.1", "blocks.1.norm"),
        ("blocks", "blocks.1", "blocks.1.act"),
        ("head", "head.0"),
        ("head", "head.1"),
        (),
    ]


def test_a_prefix_is_the_root_and_attaching_again_replaces(model: Model) -> None:
    gt.signal.attach(model)
    gt.signal.attach(model, prefix="gpt")
    with gt.signal.context("user"):
        model(gt.ones(3, 4))
    assert paths("matmul", "sum") == [
        ("user", "gpt", "gpt.blocks", "gpt.blocks.0", "gpt.blocks.0.norm"),
        ("user", "gpt", "gpt.blocks", "gpt.blocks.1", "gpt.blocks.1.norm"),
        ("user", "gpt", "gpt.head", "gpt.head.0"),
        ("user", "gpt"),
    ]
    gt.signal.detach(model)
    model(gt.ones(3, 4))
    assert paths("matmul")[3:] == [()] * 3
    with pytest.raises(ValueError, match="a prefix is one name"):
        gt.signal.attach(model, prefix="a/b")


def test_gradients_carry_the_signals_too_and_errors_leave_them(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    gt.signal.attach(model)
    loss = model(gt.ones(3, 4))
    session = loss._value.owner.session
    session.flush()
    sent: list[Any] = []
    monkeypatch.setattr(session, "sink", sent.extend)
    loss.backward()
    monkeypatch.undo()
    session.sink(sent)
    (body,) = [message.body for message in sent if hasattr(message, "body")]
    segment = unpack_segment(body)
    gradients = {segment.tags[i.tag] for i in segment.instructions if i.op == "matmul"}
    assert ("blocks", "blocks.1", "blocks.1.norm") in {tag.signal for tag in gradients if tag.phase == "backward"}
    with pytest.raises(gt.ShapeError):
        model(gt.ones(3, 5))
    assert gt.signal.current() == ()


def test_nothing_else_of_the_model_changes(model: Model) -> None:
    """Its state, its printed form and what it computes are as before; and nothing refers to itself."""
    before, printed = [*model.state_dict()], repr(model)
    value = model(gt.ones(3, 4)).numpy()
    gt.signal.attach(model)
    assert [*model.state_dict()] == before
    assert repr(model) == printed
    assert np.array_equal(model(gt.ones(3, 4)).numpy(), value)
    with without_garbage_collector():
        gt.signal.attach(Model())
        assert gc.collect() == 0, "the model was gone when its last name was"


def test_rules_bind_to_the_names() -> None:
    """A parameter is claimed by the rule of its module at its first use, as with a signal in the program."""
    config = {"mesh": {"model": 2}, "sharding_config": {"head.*": {"strategy": "tensor_parallel", "dimension": 1}}}
    session = gt.connect("inproc", workers=2, config=config)
    gt.manual_seed(0)
    model = Model()
    gt.signal.attach(model)
    gt.flush()
    sharded = model(gt.ones(3, 4)).item()
    (client,) = session.link.fabric.dispatcher.service.clients.values()
    places = {
        name: format_layout(client.table[parameter._value.id].resident.layout)
        for name, parameter in model.named_parameters()
    }
    assert places["head.0.weight"] == "S1"
    assert places["blocks.0.norm.weight"] == "R"
    gt.disconnect()
    gt.connect("inproc", workers=1)
    gt.manual_seed(0)
    assert np.isclose(Model()(gt.ones(3, 4)).item(), sharded)
    gt.disconnect()
