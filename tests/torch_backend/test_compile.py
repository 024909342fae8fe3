"""`torch.compile` with GT's backend: values and gradients are those of the CPU, modules are signals, lines are the program's."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch_models import Pictures, Transformer, assert_same, moved, pictures, texts, trained

import gt
import gt.torch
from gt.torch.graph import module_path, signals_of

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")


@pytest.fixture(autouse=True)
def nothing_compiled() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("place", ["cpu", "gtx"])
@pytest.mark.parametrize(
    ("model", "batches"), [(Transformer, texts), (Pictures, pictures)], ids=["transformer", "pictures"]
)
def test_a_compiled_model_trains_as_an_eager_one(model: Any, batches: Any, place: str) -> None:
    """Also where its parameters are on the CPU, and with running statistics, which graphs write."""
    torch.manual_seed(0)
    here = model()
    there = copy.deepcopy(here)
    expected = trained(here, here, batches(4))
    there.to(place)
    data = moved(batches(4)) if place == "gtx" else batches(4)
    assert_same(trained(there, torch.compile(there, backend=gt.torch.backend, fullgraph=True), data), expected)


def test_results_stay_on_the_workers() -> None:
    """What a program has on the device stays there; what it has on the CPU comes back."""
    for place in ("cpu", "gtx"):
        layer = torch.compile(nn.Linear(3, 2).to(place), backend=gt.torch.backend)
        assert layer(torch.ones(1, 3, device=place)).device.type == place


def test_a_graph_that_runs_again_is_one_message() -> None:
    """From the third call on: known programs cost a run each."""
    model = Transformer().to("gtx")
    compiled = torch.compile(model, backend=gt.torch.backend)
    batch = moved(texts(1))[0]
    with torch.no_grad():
        for _ in range(4):
            compiled(*batch).item()
        before = gt.stats()
        compiled(*batch).item()
    now = gt.stats()
    assert now["plans_made"] == before["plans_made"]
    assert now["definitions_made"] == before["definitions_made"]
    assert now["service"]["runs"] - before["service"]["runs"] <= 2  # the graph, and its loss as a number


def test_shapes_that_change() -> None:
    """The second shape makes a graph for any, whose programs are one for each shape."""
    layer = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).to("gtx")
    compiled = torch.compile(layer, backend=gt.torch.backend)
    for rows in (2, 3, 5, 7, 5):
        x = torch.randn(rows, 3, device="gtx")
        assert torch.allclose(compiled(x), layer(x), atol=1e-6)


def test_constants_of_a_graph_go_to_the_workers_once() -> None:
    """And again in another session."""

    def function(x: Any) -> Any:
        return x * torch.tensor([5.0, 6.0, 7.0])

    compiled = torch.compile(function, backend=gt.torch.backend, fullgraph=True)
    for _ in range(2):
        for _ in range(4):
            assert compiled(torch.ones(3)).tolist() == [5, 6, 7]
        before = gt.stats()["service"]["puts"]
        compiled(torch.ones(3)).tolist()
        assert gt.stats()["service"]["puts"] == before + 1
        gt.disconnect()
        gt.connect("inproc", workers=1)


def test_dropout_draws_anew_each_time() -> None:
    compiled = torch.compile(lambda x: nn.functional.dropout(x, 0.5), backend=gt.torch.backend)
    x = torch.ones(256, device="gtx")
    drawn = [tuple(compiled(x).tolist()) for _ in range(5)]
    assert len(set(drawn)) == 5
    assert set(drawn[-1]) == {0.0, 2.0}


def test_code_between_graphs() -> None:
    """A graph break leaves tensors on the device, where operators go on one by one."""

    def function(x: Any) -> Any:
        y = x * 2
        if y.sum().item() > 0:
            return y + 1
        return y - 1

    compiled = torch.compile(function, backend=gt.torch.backend)
    for value in (1.0, -1.0, 2.0):
        x = torch.full((3,), value, device="gtx")
        assert compiled(x).tolist() == function(x).tolist()


def test_an_optimizer_is_compiled_too() -> None:
    torch.manual_seed(0)
    here = nn.Linear(3, 2)
    there = copy.deepcopy(here).to("gtx")
    for model in (here, there):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        step = torch.compile(optimizer.step, backend=gt.torch.backend) if model is there else optimizer.step
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.ones(2, 3, device=model.weight.device)).square().sum().backward()
            step()
    torch.testing.assert_close(there.weight.detach().cpu(), here.weight.detach())


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("L['self'].transformer.h.0.attn", "transformer.h.0.attn"), ("L['self']", ""),
        ("L['self']._modules['h']._modules['0']", "h.0"), ("L['model'].layers[3].mlp", "layers.3.mlp"),
        ("L['args'][0].model.layers[3]", "model.layers.3"), ("L['args'][0]", ""),
    ],
)  # fmt: skip
def test_module_paths(text: str, path: str) -> None:
    assert module_path(text) == path


def test_signals_are_dotted_names_outermost_first() -> None:
    node = SimpleNamespace(meta={"nn_module_stack": {"a": ("L['self'].h", None), "b": ("L['self'].h.0.up", None)}})
    assert signals_of(node) == ("h", "h.0", "h.0.up")
    assert signals_of(SimpleNamespace(meta={})) == ()


def test_an_unmodified_model_is_sharded_by_a_config() -> None:
    """Four workers, data and tensor parallel by the names of modules: the same losses, and a weight in four pieces."""
    torch.manual_seed(0)
    model = Transformer()
    alone = copy.deepcopy(model).to("gtx")
    expected = trained(alone, torch.compile(alone, backend=gt.torch.backend), moved(texts(3)))
    gt.disconnect()
    torch._dynamo.reset()
    rules: list[dict[str, Any]] = [{"strategy": "data_parallel"}, {"strategy": "tensor_parallel", "dimension": 0}]
    gt.connect("inproc", workers=4, config={"mesh": {"data": 2, "model": 2}, "sharding_config": {"h.*": rules}})
    model.to("gtx")
    found = trained(model, torch.compile(model, backend=gt.torch.backend), moved(texts(3)))
    assert_same(found, expected)
    said = gt.why(gt.torch.to_gt(model.h[0].up.weight))
    assert "h.0.up" in said.text if hasattr(said, "text") else "h.0.up" in str(said)
    assert "R|S0 on the mesh {data: 2, model: 2}" in str(said)
    assert "worker 3: 2,048 bytes" in str(said)
    assert "/torch/_" not in str(said)


def test_an_error_names_the_programs_line() -> None:
    """What the workers refuse is raised where a value is asked for, with the line that PyTorch traced."""

    def function(x: Any, places: Any) -> Any:
        return x.index_select(0, places)

    compiled = torch.compile(function, backend=gt.torch.backend)
    with pytest.raises(gt.IndexOutOfRange, match=r"test_compile\.py:\d+"):
        compiled(torch.ones(3, device="gtx"), torch.tensor([7], device="gtx")).tolist()


VIEWS: dict[str, Any] = {
    "turned": lambda x, n: x[: 6 * n].view(2 * n, 3).t(), "from the second": lambda x, n: x[: 6 * n].view(2 * n, 3)[:, 1:],
    "expanded": lambda x, n: x[:3].expand(n + 2, 3), "permuted": lambda x, n: x[: 6 * n].view(n, 2, 3).permute(2, 0, 1),
    "every second": lambda x, n: x[: 6 * n : 2], "later": lambda x, n: x[3 : 3 + 2 * n],
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # of PyTorch, on any device
@pytest.mark.parametrize(("name", "dynamic"), [*((name, True) for name in VIEWS), ("permuted", None), ("later", None)])
def test_views_are_inputs_of_graphs(name: str, dynamic: bool | None) -> None:
    """With any strides and offsets, two graphs at most, also where gradients flow through them."""
    view = VIEWS[name]

    def function(x: Any) -> Any:
        return x * x.sin()

    counters.clear()
    compiled = torch.compile(function, backend=gt.torch.backend, dynamic=dynamic)
    for n in (2, 3, 4):
        w, v = (torch.arange(24.0, device="gtx").requires_grad_() for _ in range(2))
        found, expected = compiled(view(w, n)), function(view(v, n))
        torch.testing.assert_close(found.cpu(), expected.cpu())
        found.sum().backward()
        expected.sum().backward()
        torch.testing.assert_close(w.grad.cpu(), v.grad.cpu())
    assert counters["stats"]["unique_graphs"] <= 2


def test_tensors_of_one_value_are_inputs_of_the_same_graph() -> None:
    """Which are made later in modules alone."""
    counters.clear()
    compiled = torch.compile(lambda x: x + 1, backend=gt.torch.backend, dynamic=True)
    for make in (torch.zeros, torch.ones, torch.zeros, torch.rand):
        assert compiled(make(4, device="gtx")).shape == (4,)
    assert counters["stats"]["unique_graphs"] == 1


def test_checkpointing_in_a_graph_draws_once() -> None:
    """Gradients are those without checkpointing, dropout included."""
    from torch.utils.checkpoint import checkpoint

    layers = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.5), nn.Linear(16, 4)).to("gtx")
    found = []
    for function in (layers, lambda x: checkpoint(layers, x, use_reentrant=False)):
        torch.manual_seed(3)
        x = torch.rand(3, 4).to("gtx").requires_grad_()
        torch.compile(function, backend=gt.torch.backend)(x).square().sum().backward()
        found.append(x.grad.cpu())
    torch.testing.assert_close(found[1], found[0])


def test_a_graph_writes_to_a_view_that_it_is_given() -> None:
    compiled = torch.compile(lambda x: x.add_(1).sum(), backend=gt.torch.backend, dynamic=True)
    for n in (2, 3):
        x = torch.zeros(4 * n, device="gtx").view(2, 2 * n)
        compiled(x[:, 1:])
        assert x.tolist() == [[0.0] + [1.0] * (2 * n - 1)] * 2


@pytest.mark.parametrize("numbers", [[2.0, 3.0], [4.0], []])
def test_tensors_that_a_graph_makes_of_numbers(numbers: list[float]) -> None:
    """As caches of keys and values begin, with none."""

    def function(x: Any) -> Any:
        return torch.cat([torch.tensor(numbers, dtype=x.dtype, device=x.device), x])

    compiled = torch.compile(function, backend=gt.torch.backend, fullgraph=True)
    for _ in range(4):
        assert compiled(torch.ones(2, device="gtx")).tolist() == [*numbers, 1, 1]


@pytest.mark.parametrize(
    "make",
    [
        lambda x: torch.tensor(2.0, device="gtx"), lambda x: torch.as_tensor(True, device=x.device),
        lambda x: x.new_tensor(3), lambda x: torch.tensor(x.shape[0], device=x.device),
        lambda x: torch.tensor([[1j]], device=x.device),
    ],
)  # fmt: skip
def test_tensors_that_a_graph_makes_of_one_number(make: Any) -> None:
    compiled = torch.compile(lambda x: x * make(x), backend=gt.torch.backend, fullgraph=True)
    x = torch.ones(2, device="gtx")
    for _ in range(4):
        assert compiled(x).tolist() == (x * make(x)).tolist()
        assert compiled(x).dtype == (x * make(x)).dtype


def test_what_a_graph_brings_to_the_cpu_is_there() -> None:
    compiled = torch.compile(lambda x: (x.cpu() + 1, x + 1), backend=gt.torch.backend, fullgraph=True)
    assert [each.device.type for each in compiled(torch.ones(2, device="gtx"))] == ["cpu", "gtx"]


def test_a_tensor_of_numbers_of_the_device() -> None:
    x = torch.tensor([1.0, 2.0], device="gtx")
    assert torch.tensor([x[1], x[0]], device="gtx").tolist() == [2, 1]
