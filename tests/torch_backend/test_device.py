"""Tensors of PyTorch on the device: what programs do with them beside operators."""

from __future__ import annotations

import copy
import io
import pickle
import runpy
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch_models import Pictures, Transformer, assert_same, moved, pictures, texts, trained

import gt
import gt.torch
from gt.torch import operators


def test_tensors_go_there_and_back() -> None:
    """By `.to`, by the name in a factory, and by `.cpu`."""
    x = torch.arange(6.0).reshape(2, 3)
    there = x.to("gtx")
    assert there.device == torch.device("gtx:0")
    assert torch.equal((there + torch.ones(2, 3, device="gtx")).cpu(), x + 1)
    assert torch.equal(there.to("cpu", torch.int64), x.long())
    assert there.tolist() == x.tolist()
    assert torch.equal(torch.arange(5, device="gtx").cpu(), torch.arange(5))
    assert torch.equal(torch.eye(3, device="gtx").cpu(), torch.eye(3))
    assert torch.full((2,), 7, device="gtx").dtype == torch.int64


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16, torch.float64, torch.int8, torch.bool, torch.complex64], ids=str
)
def test_dtypes_are_kept(dtype: Any) -> None:
    x = torch.tensor([[0, 1], [1, 1]]).to(dtype)
    assert torch.equal(x.to("gtx").cpu(), x)
    assert x.to("gtx").dtype == dtype


def test_text_of_a_tensor() -> None:
    """Its values, and where it is."""
    x = torch.tensor([1.5, 2.0], device="gtx")
    assert repr(x) == "tensor([1.5000, 2.0000], device='gtx:0')"
    assert repr(x.requires_grad_()) == "tensor([1.5000, 2.0000], device='gtx:0', requires_grad=True)"
    assert f"{x[0].detach():.3f}" == "1.500"


def test_views_share_their_values() -> None:
    x = torch.zeros(3, 4, device="gtx")
    x.t()[1].add_(2)
    x.view(-1)[0] = 5
    x.detach()[2, 3] = 7
    x[[0, 1], 2] = torch.tensor([8.0, 9.0], device="gtx")
    assert x.tolist() == [[5, 2, 8, 0], [0, 2, 9, 0], [0, 2, 0, 7]]
    assert x.t().stride() == (1, 4)


def test_operators_that_change_a_shape() -> None:
    x = torch.arange(6.0, device="gtx").reshape(2, 1, 3)
    assert x.squeeze_(1).shape == x.shape == (2, 3)
    assert x.t_().shape == (3, 2)
    assert x.unsqueeze_(0).tolist() == [[[0, 3], [1, 4], [2, 5]]]
    out = torch.empty(0, device="gtx")
    torch.add(x, 1, out=out)
    assert out.tolist() == [[[1, 4], [2, 5], [3, 6]]]


def test_gradients_flow_through_views_that_are_written() -> None:
    """PyTorch gives the gradient of a write through a view by the view's operators."""
    w = torch.ones(3, 3, device="gtx", requires_grad=True)
    x = w * 1
    x[:, 0] = torch.zeros(3, device="gtx")
    x.t()[1].mul_(2)
    x.sum().backward()
    assert w.grad is not None
    assert w.grad.tolist() == [[0, 2, 1]] * 3


def test_tensors_of_two_devices_do_not_meet() -> None:
    """But for those without dimensions, as everywhere in PyTorch."""
    x = torch.ones(2, device="gtx")
    with pytest.raises(RuntimeError, match=r"Expected all tensors to be on the same device.*\.to\('gtx'\)"):
        x + torch.ones(2)
    with pytest.raises(RuntimeError, match="takes indices of the CPU"):
        torch.ones(2)[x > 0]
    assert (x + torch.tensor(2.0)).tolist() == [3, 3]
    x.copy_(torch.tensor([4.0, 5.0]))
    assert x[torch.tensor([1])].tolist() == [5]


def test_random_numbers_are_seeded() -> None:
    torch.manual_seed(5)
    first = torch.randn(4, device="gtx").tolist()
    torch.manual_seed(5)
    assert torch.randn(4, device="gtx").tolist() == first
    state = torch.get_device_module("gtx").get_rng_state()
    second = torch.randn(4, device="gtx").tolist()
    torch.get_device_module("gtx").set_rng_state(state)
    assert torch.randn(4, device="gtx").tolist() == second != first
    dropped = nn.functional.dropout(torch.ones(400, device="gtx"), 0.5)
    assert set(dropped.tolist()) == {0.0, 2.0}


def test_parameters_stay_who_they_are() -> None:
    """A model that goes there has the same parameters, so an optimizer made before goes on; tied ones stay tied."""
    model = Transformer()
    before = list(model.parameters())
    model.to("gtx")
    assert all(now is then for now, then in zip(model.parameters(), before, strict=True))
    assert model.head.weight is model.tokens.weight
    assert isinstance(model.head.weight, nn.Parameter)
    assert model.to("cpu").head.weight.device.type == "cpu"


def test_copies_and_files() -> None:
    """`deepcopy`, `pickle` and `state_dict` through `torch.save`."""
    model = nn.Linear(3, 2).to("gtx")
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin.weight.zero_()
    assert isinstance(twin.weight, nn.Parameter)
    assert bool(model.weight.abs().sum() > 0)
    assert torch.equal(pickle.loads(pickle.dumps(model.weight.detach())).cpu(), model.weight.detach().cpu())
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    twin.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(twin.weight.detach().cpu(), model.weight.detach().cpu())


def test_a_file_has_tied_weights_once() -> None:
    model = nn.Sequential(nn.Linear(40, 40, bias=False), nn.Linear(40, 40, bias=False))
    model[1].weight = model[0].weight
    model.to("gtx")
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    assert file.tell() < 2 * 40 * 40 * 4
    file.seek(0)
    found = torch.load(file, map_location="cpu")
    assert found["0.weight"].data_ptr() == found["1.weight"].data_ptr()
    with torch.no_grad():
        model[0].weight.zero_()
    assert not pickle.loads(pickle.dumps(model[1].weight.detach())).any()


def test_there_is_one_device() -> None:
    with pytest.raises(RuntimeError, match="there is one device gtx, and this is gtx:1"):
        torch.ones(2).to("gtx:1")
    for make in (torch.zeros, torch.randn):
        with pytest.raises(RuntimeError, match="there is one device gtx"):
            make(2, device="gtx:1")
    assert torch.ones(2).to("gtx:0").device == torch.zeros(2, device="gtx").device


@pytest.mark.parametrize(
    ("model", "batches"), [(Transformer, texts), (Pictures, pictures)], ids=["transformer", "pictures"]
)
def test_a_model_trains_as_on_the_cpu(model: Any, batches: Any) -> None:
    """Losses, gradients, parameters and running statistics after four steps of AdamW."""
    torch.manual_seed(0)
    here = model()
    there = copy.deepcopy(here).to("gtx")
    expected = trained(here, here, batches(4))
    assert_same(trained(there, there, moved(batches(4))), expected)


def test_hooks_and_checkpointing() -> None:
    """What surrounds operators is PyTorch's own."""
    from torch.utils.checkpoint import checkpoint

    seen: list[float] = []
    layer = nn.Linear(3, 3).to("gtx")
    layer.weight.register_hook(lambda g: seen.append(g.abs().sum().item()))
    x = torch.ones(2, 3, device="gtx")
    checkpoint(layer, x, use_reentrant=False).sum().backward()
    assert seen == [18.0]


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpointing_draws_the_same_numbers_again(use_reentrant: bool) -> None:
    """In the backward pass as in the forward pass, and what is drawn next is what it would have been."""
    from torch.utils.checkpoint import checkpoint

    model = nn.Sequential(nn.Linear(4, 32), nn.Dropout(0.5), nn.Linear(32, 4)).to("gtx")
    found = []
    for function in (model, lambda x: checkpoint(model, x, use_reentrant=use_reentrant)):
        torch.manual_seed(3)
        x = torch.ones(3, 4, device="gtx", requires_grad=True)
        function(x).sum().backward()
        found.append((x.grad.cpu(), torch.rand(3, device="gtx").cpu()))
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize(
    "layer", [nn.LSTM(3, 4, 2, bidirectional=True), nn.GRU(3, 4), nn.GRU(3, 4, bias=False), nn.LSTMCell(3, 4)]
)
def test_recurrent_layers_are_those_of_the_cpu(layer: Any) -> None:
    """Results and gradients, without an operator that is computed on the CPU."""
    there = copy.deepcopy(layer).to("gtx")
    x = torch.linspace(-2, 2, 12).reshape(2, 2, 3)
    x = x[0] if isinstance(layer, nn.LSTMCell) else x
    found = []
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="gtx has no")
        for each, device in ((layer, "cpu"), (there, "gtx")):
            given = x.clone().to(device).requires_grad_()
            results = torch.utils._pytree.tree_leaves(each(given))
            sum((out * out).sum() * (number + 1) for number, out in enumerate(results)).backward()
            found.append([*results, given.grad, *(weight.grad for weight in each.parameters())])
    for mine, expected in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(mine.cpu(), expected, rtol=1e-4, atol=1e-5)


def test_gradients_that_pytorch_makes_of_zeros() -> None:
    """In a thread of its own, where the program has no line."""
    x = torch.ones(2, 2, device="gtx", requires_grad=True)
    x.unbind()[0].sum().backward()
    assert x.grad.tolist() == [[1, 1], [0, 0]]


def test_tangents_are_computed_on_the_device() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what PyTorch says of itself where it first computes tangents
        warnings.filterwarnings("error", message="gtx has no")
        _, tangent = torch.func.jvp(
            lambda x: x * x, (torch.ones(2, device="gtx"),), (torch.full((2,), 3.0, device="gtx"),)
        )
    assert tangent.tolist() == [6, 6]


def test_an_array_is_made_of_what_was_fetched() -> None:
    x = torch.ones(2, device="gtx")
    with pytest.raises(TypeError, match=r"\.cpu\(\)"):
        x.numpy()
    assert x.numpy(force=True).tolist() == [1, 1]


def test_tensors_of_both_libraries_are_one() -> None:
    """`to_gt` and `from_gt` share values."""
    x = torch.zeros(3, device="gtx")
    mine = gt.torch.to_gt(x)
    mine += 1
    assert x.tolist() == [1, 1, 1]
    assert gt.torch.from_gt(mine * 2).tolist() == [2, 2, 2]
    with pytest.raises(TypeError, match=r"takes a torch\.Tensor, not list"):
        gt.torch.to_gt([1])
    with pytest.raises(TypeError, match=r"takes a gt\.Tensor, not int"):
        gt.torch.from_gt(1)  # type: ignore[arg-type]


def test_what_gt_lacks_is_computed_on_the_cpu_with_a_warning() -> None:
    x = torch.tensor([0.5, 2.0], device="gtx")
    operators._warn_of.cache_clear()  # it may have been said in this process
    with pytest.warns(UserWarning, match=r"gtx has no aten\.special_bessel_y0\.default: it is computed on the CPU"):
        found = torch.special.bessel_y0(x)
    assert found.device.type == "gtx"
    assert torch.equal(found.cpu(), torch.special.bessel_y0(x.cpu()))


def test_an_old_pytorch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from gt.torch.pytorch_internals import check_version

    monkeypatch.setattr(torch, "__version__", "2.11.0+cu130")
    with pytest.raises(ImportError, match=r"need PyTorch 2\.12 or newer, and this is 2\.11\.0\+cu130: upgrade it"):
        check_version()
    monkeypatch.setattr(torch, "__version__", "3.1.0")
    monkeypatch.delattr(torch._C._acc, "create_empty_tensor")
    with pytest.raises(ImportError, match=r"PyTorch 3\.1\.0 has no torch\._C\._acc\.create_empty_tensor"):
        check_version()


def test_a_newer_pytorch_is_used_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    from gt.torch.pytorch_internals import check_version

    monkeypatch.setattr(torch, "__version__", "3.1.0")
    with pytest.warns(UserWarning, match=r"tried with PyTorch 2\.12 and 2\.13; this is 3\.1\.0"):
        check_version()


@pytest.mark.parametrize(("name", "library"), [("torch", "PyTorch"), ("jax", "JAX")])
def test_a_front_end_says_what_is_not_installed(name: str, library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path(gt.__file__).parent / name / "__init__.py"
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ModuleNotFoundError, match=rf"needs {library} .*pip install 'gt-tensor\[{name}\]'"):
        runpy.run_path(str(path), run_name=f"gt.{name}")


def test_autocast_computes_products_in_half_precision() -> None:
    """And sums, softmax and losses in float32, as PyTorch's accelerators do; what meets is computed in the wider dtype."""
    layer = nn.Linear(4, 3).to("gtx")
    x = torch.randn(2, 4, device="gtx")
    with torch.autocast("gtx", dtype=torch.bfloat16):
        out = layer(x)
        assert out.dtype == torch.bfloat16
        assert (out @ out.t()).dtype == torch.bfloat16
        assert out.softmax(-1).dtype == torch.float32
        assert nn.functional.mse_loss(out, torch.zeros_like(out)).dtype == torch.float32
        assert torch.cat([out, x[:, :3]]).dtype == torch.float32
        with torch.autocast("gtx", enabled=False):
            assert layer(x).dtype == torch.float32
        out.float().sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.dtype == torch.float32
    assert layer(x).dtype == torch.float32


def test_a_gradient_scaler_skips_steps_with_infinite_gradients() -> None:
    layer = nn.Linear(2, 1).to("gtx")
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("gtx", init_scale=8.0, growth_interval=1)
    before = layer.weight.detach().cpu().clone()
    scales = []
    for value in (float("inf"), 1.0):
        optimizer.zero_grad()
        scaler.scale(layer(torch.full((1, 2), value, device="gtx")).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        if value == float("inf"):
            assert torch.equal(layer.weight.detach().cpu(), before)
    assert scales == [4.0, 8.0]
    torch.testing.assert_close(layer.weight.detach().cpu(), before - 0.1)


def test_an_error_names_the_programs_line_and_not_pytorchs() -> None:
    x = torch.ones(3, device="gtx").index_select(0, torch.tensor([7], device="gtx"))
    with pytest.raises(gt.IndexOutOfRange, match=r"test_device\.py:\d+"):
        nn.functional.relu(x).tolist()
    layer = nn.Linear(3, 2).to("gtx")
    assert "test_device.py" in str(gt.why(gt.torch.to_gt(layer(torch.ones(1, 3, device="gtx")))))


def test_inference_mode_gives_what_no_grad_gives() -> None:
    """There PyTorch hands operators to the device whole that it takes apart elsewhere: losses with their own arguments, moves."""
    scores, classes = torch.randn(6, 5), torch.tensor([1, 2, -100, 0, 4, -100])
    with torch.inference_mode():
        there = scores.to("gtx")
        found = nn.functional.cross_entropy(there, classes.to("gtx"), ignore_index=-100, reduction="sum")
        assert there.to("cpu", torch.float64).device.type == "cpu"
        assert nn.functional.linear(there, there).shape == (6, 6)
    assert found.item() == pytest.approx(nn.functional.cross_entropy(scores, classes, reduction="sum").item())


def test_a_loader_may_pin_its_batches() -> None:
    """As trainers ask for where there is an accelerator; it costs no copy."""
    data = torch.arange(6.0)
    batches = list(torch.utils.data.DataLoader(data, batch_size=3, pin_memory=True))  # type: ignore[arg-type]
    assert [each.to("gtx", non_blocking=True).tolist() for each in batches] == [[0, 1, 2], [3, 4, 5]]
    assert data.pin_memory().data_ptr() == data.data_ptr()


def test_operators_that_write_to_an_argument_have_the_arguments_of_their_own_overload() -> None:
    assert nn.init.eye_(torch.empty(2, 3, device="gtx")).tolist() == [[1, 0, 0], [0, 1, 0]]


VIEWS: dict[str, Any] = {
    "select": lambda x: x[0], "slice": lambda x: x[1:], "transpose": lambda x: x.transpose(0, 1), "view": lambda x: x.view(-1),
    "reshape": lambda x: x.reshape(-1), "expand": lambda x: x.expand(2, 2, 3), "split": lambda x: x.split(1)[0],
    "detach": lambda x: x.detach(), "diagonal": lambda x: x.diagonal(),
    "narrow": lambda x: x.narrow(0, 0, 1), "chunk": lambda x: x.chunk(2)[1],
}  # fmt: skip


@pytest.mark.parametrize("name", VIEWS)
def test_views_in_inference_mode_are_what_their_tensors_are(name: str) -> None:
    """Of tensors from outside of it they are tensors as others, to which one may write."""
    for place in ("cpu", "gtx"):
        x, w = torch.zeros(2, 3, device=place), torch.zeros(2, 3, device=place, requires_grad=True)
        with torch.inference_mode():
            view = VIEWS[name](x)
            assert not view.is_inference()
            assert VIEWS[name](torch.zeros(2, 3, device=place)).is_inference()
            assert VIEWS[name](torch.zeros(2, 3, device=place)).tolist() == VIEWS[name](w).tolist()
            if name != "expand":
                view.add_(1)
        expected = torch.zeros(2, 3)
        if name != "expand":
            VIEWS[name](expected).add_(1)
        assert x.tolist() == expected.tolist()


def test_integers_to_negative_powers_are_those_of_the_cpu() -> None:
    x, powers = torch.tensor([2, 1, -1, -1, 3, 0, 5]), torch.tensor([-1, -3, -3, -2, 2, -1, 0])
    for function in (
        torch.pow,
        lambda x, e: 2**e,
        lambda x, e: (-1) ** e,
        lambda x, e: x.clone().pow_(e),
        lambda x, e: 1.5**e,
    ):
        found, expected = function(x.to("gtx"), powers.to("gtx")), function(x, powers)
        assert found.dtype == expected.dtype
        assert found.tolist() == pytest.approx(expected.tolist())


@pytest.mark.filterwarnings("ignore:gtx has no")
def test_conjugates_are_heeded_where_the_cpu_computes() -> None:
    """In PyTorch's own operators, whose parts are lazily conjugated, and in what is copied to the device."""
    x = torch.tensor([[1 + 2j, 3 - 1j], [1j, 2.0]])
    torch.testing.assert_close(torch.linalg.pinv(x.to("gtx")).cpu(), torch.linalg.pinv(x))
    assert x.conj().to("gtx").tolist() == x.conj().tolist()
    assert x.conj().imag.to("gtx").tolist() == x.conj().imag.tolist()


def test_backward_passes_run_in_the_thread_that_asks() -> None:
    """PyTorch has a thread for each device that it knew at the first backward pass of the process, and this may come later."""
    threads: list[int | None] = []
    x = torch.ones(2, device="gtx", requires_grad=True)
    x.register_hook(lambda gradient: threads.append(threading.get_ident()))
    loss = x.sum()
    torch.autograd.grad(loss, x, retain_graph=True)
    expected: list[int | None] = [threading.get_ident()]
    for ask in (torch.Tensor.backward, lambda loss: torch.autograd.grad(loss, x), torch.autograd.backward):
        other = threading.Thread(target=ask, args=(x.sum(),))
        other.start()
        other.join(60)
        expected.append(other.ident)
    assert threads == expected
