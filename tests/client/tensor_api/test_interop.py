"""Tensors to and from other libraries and files: NumPy's functions, DLPack, PyTorch, safetensors, notebooks."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

import gt

X = np.random.default_rng(0).standard_normal((4, 3, 5)).astype(np.float32)
SHARDED: dict[str, Any] = {"mesh": {"data": 3}, "sharding_config": {"net": {"strategy": "data_parallel"}}}


@pytest.fixture(params=[1, 3], autouse=True)
def _session(request: pytest.FixtureRequest) -> Iterator[None]:
    gt.connect("inproc", workers=request.param, config=SHARDED if request.param > 1 else None)
    with gt.signal.context("net"):
        yield
    gt.disconnect()


@pytest.mark.parametrize(
    "of",
    [
        lambda x: np.sum(x), lambda x: np.sum(x, axis=1), lambda x: np.mean(x, axis=(0, 2), keepdims=True), np.exp,
        lambda x: np.add(x, 2), lambda x: np.add(1.5, x), lambda x: np.multiply(x, x), lambda x: np.maximum(x, 0),
        lambda x: np.transpose(x), lambda x: np.transpose(x, (1, 0, 2)), lambda x: np.reshape(x, (12, 5)),
        lambda x: np.concatenate([x, x], axis=1), lambda x: np.stack([x, x]), lambda x: np.clip(x, -1, 1),
        lambda x: np.where(x > 0, x, 0), lambda x: np.var(x, axis=0), lambda x: np.std(x, ddof=1),
        lambda x: np.argmax(x, axis=2), lambda x: np.squeeze(x[:, :1], axis=1), lambda x: np.expand_dims(x, 0),
        lambda x: np.matmul(x, np.swapaxes(x, 1, 2)), lambda x: np.max(x, axis=0), lambda x: np.min(x),
        lambda x: np.tanh(x) ** 2 - np.sqrt(np.abs(x)), lambda x: np.add.reduce(x), lambda x: np.maximum.reduce(x, axis=1),
        lambda x: np.cumsum(x, axis=1), lambda x: np.flip(x, axis=0), lambda x: np.roll(x, 2, axis=2),
        lambda x: np.zeros_like(x), lambda x: np.isfinite(x), lambda x: np.any(x > 1, axis=1), lambda x: np.dot(x[0, 0], x[1, 1]),
        lambda x: np.broadcast_to(x[0, 0], (3, 5)), lambda x: np.sum(x, dtype=np.float64), lambda x: np.moveaxis(x, 0, 2),
        lambda x: np.arange(5, dtype=np.float32) * x, lambda x: np.power(x, 2), lambda x: np.less(x, 0),
        lambda x: np.dot(x[0], x[1].T), lambda x: np.dot(x, x[0].T), lambda x: np.dot(x, np.swapaxes(x, 1, 2)),
        lambda x: np.isclose(x, 0, atol=0.5), lambda x: np.isclose(0.0, x, rtol=0.1, atol=1), lambda x: np.isclose(X[0], x),
        lambda x: np.isclose([0, 1, 2, 3, 4], x), lambda x: np.isclose(b=x, a=0), lambda x: np.dot(x, np.ones(5)),
        lambda x: np.dot(np.float32(2), x), lambda x: np.dot(x[0, 0], x[1].T),
    ],
)  # fmt: skip
def test_numpys_functions_stay_on_the_workers(of: Callable[[Any], Any]) -> None:
    found, expected = of(gt.from_numpy(X)), of(X)
    assert isinstance(found, gt.Tensor)
    assert found.shape == np.shape(expected)
    assert found.numpy().dtype == np.asarray(expected).dtype
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-6)


def test_numpys_other_functions_get_the_values() -> None:
    x = gt.from_numpy(X)
    assert isinstance(np.percentile(x, 30), np.floating)
    np.testing.assert_array_equal(np.histogram(x, 4)[0], np.histogram(X, 4)[0])
    np.testing.assert_array_equal(np.asarray(x), X)
    np.testing.assert_allclose(x, X)
    assert np.shape(x) == X.shape
    with pytest.raises(TypeError, match="out="):
        np.add(X, x, out=X.copy())


@pytest.mark.parametrize("atol", [0.0, 10.0])
def test_numpys_allclose_takes_numbers(atol: float) -> None:
    x = gt.from_numpy(X)
    assert np.allclose(x, 0, atol=atol) == np.allclose(0, x, atol=atol) == np.allclose(X, 0, atol=atol)
    assert np.allclose(x, X)


def test_scipys_output_is_refused() -> None:
    """SciPy would write to a copy, and the tensor would never know."""
    import scipy.ndimage

    x = gt.ones(4, 4)
    with pytest.raises(TypeError, match="leave it out, and use what the function returns"):
        scipy.ndimage.uniform_filter(x, 3, output=gt.zeros(4, 4))
    assert np.array_equal(scipy.ndimage.uniform_filter(x, 3), x.numpy())
    np.asarray(x)[0] = 7  # a copy, to which any other program may write
    assert float(x.sum()) == 16


def test_elements_are_cut_one_by_one() -> None:
    """A loop over a tensor has one of them at a time, however many there are."""
    assert float(next(iter(gt.ones(()).expand(1 << 40)))) == 1


def test_numpys_where_takes_numbers_as_truths() -> None:
    """PyTorch's takes booleans alone."""
    numbers = np.array([0, 2, -1])
    assert np.where(gt.from_numpy(numbers), -1, 0).tolist() == np.where(numbers, -1, 0).tolist()
    assert np.where([True, False, True], gt.from_numpy(numbers), 7).tolist() == [0, 7, -1]
    (places,) = np.where(gt.from_numpy(numbers))
    assert places.tolist() == [1, 2]


def test_gradients_flow_through_numpys_names() -> None:
    x = gt.from_numpy(X).requires_grad_()
    np.sum(np.square(x)).backward()
    assert x.grad is not None
    np.testing.assert_allclose(x.grad.numpy(), 2 * X)


def test_dlpack_both_ways() -> None:
    x = gt.from_numpy(X)
    np.testing.assert_array_equal(np.from_dlpack(x), X)
    np.testing.assert_array_equal(gt.from_dlpack(X).numpy(), X)
    assert gt.from_dlpack(x) is x
    assert x.__dlpack_device__() == (1, 0)
    with pytest.raises(BufferError, match="copied"):
        gt.from_dlpack(X, copy=False)


@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("versioned", [False, True])
def test_bfloat16_goes_through_dlpack_both_ways(strided: bool, versioned: bool) -> None:
    """NumPy, which makes and takes the capsules, does not know the dtype."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    given = torch.from_numpy(X).mul(3).to(torch.bfloat16)
    given = given[:, ::2] if strided else given
    found = gt.from_dlpack(given)
    assert found.dtype is gt.bfloat16
    assert torch.equal(found.torch(), given)
    back = torch.from_dlpack(found.__dlpack__(max_version=(1, 0)) if versioned else found)
    assert back.dtype is torch.bfloat16
    del found
    assert torch.equal(back, given)


@pytest.mark.parametrize(
    "of",
    [
        lambda x, y: x + y, lambda x, y: y + x, lambda x, y: x @ y, lambda x, y: y @ x, lambda x, y: x == y,
        lambda x, y: y != x, lambda x, y: x.__iadd__(y), gt.add, gt.matmul, gt.maximum, lambda x, y: gt.sum(y),
    ],
)  # fmt: skip
def test_another_librarys_array_is_refused_with_the_way_to_convert_it(of: Callable[[Any, Any], Any]) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    with pytest.raises(TypeError, match=r"takes no torch\.Tensor: convert it with gt\.from_torch\(x\)"):
        of(gt.ones(2, 2), torch.ones(2, 2))


def test_an_index_of_another_library_is_refused_with_the_way_to_convert_it() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    for index in (torch.tensor([0, 1]), torch.tensor([True, False])):
        with pytest.raises(TypeError, match=r"an index takes no torch\.Tensor: convert it with gt\.from_torch\(x\)"):
            gt.ones(2, 2)[index]
    assert gt.ones(2, 3)[torch.tensor(1)].shape == (3,)  # a number is one, whoever holds it


def test_pytorchs_functions_say_how_to_convert_a_tensor() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    x, y = gt.ones(2, 2), torch.ones(2, 2)
    of = [torch.add, torch.matmul, torch.nn.functional.linear, lambda a, b: torch.cat([a, b]), lambda a, b: a.mul_(b)]
    for each in of:
        with pytest.raises(TypeError, match=r"takes no GT tensor: convert it with \.torch\(\)"):
            each(y, x)
    assert torch.equal(torch.as_tensor(x), y)
    assert torch.equal(torch.tensor(x), y)
    assert not torch.is_tensor(x)


def test_arrays_of_libraries_without_a_function_of_their_own_go_through_dlpack() -> None:
    class Array:
        """What JAX's and others' have: an array that says how it is read."""

        def __dlpack__(self, **_: Any) -> Any:
            return X.__dlpack__()

        def __dlpack_device__(self) -> tuple[int, int]:
            return X.__dlpack_device__()

    with pytest.raises(TypeError, match=r"takes no .*\.Array: convert it with gt\.from_dlpack\(x\)"):
        gt.ones(2) * Array()
    np.testing.assert_array_equal(gt.from_dlpack(Array()).numpy(), X)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int64", "uint8", "bool", "complex64"])
def test_pytorch_both_ways(dtype: str) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    given = torch.from_numpy(X).mul(3).to(getattr(torch, dtype))
    found = gt.from_torch(given[:, ::2])
    assert str(found.dtype) == f"gt.{dtype}"
    back = found.torch()
    assert back.dtype == given.dtype
    assert torch.equal(back, given[:, ::2])
    assert gt.from_torch(torch.ones(2, requires_grad=True)).requires_grad


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int64", "uint8", "bool_", "complex64"])
def test_a_state_dict_in_a_file_that_other_libraries_read(dtype: str, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    tensors = {"weight": gt.from_numpy(X * 3).to(getattr(gt, dtype)), "empty": gt.zeros(0, 3), "number": gt.tensor(2.5)}
    gt.save(tensors, path)
    for found in (safetensors.numpy.load_file(path), {name: x.numpy() for name, x in gt.load(path).items()}):
        assert set(found) == set(tensors)
        for name, value in found.items():
            assert value.dtype == tensors[name].numpy().dtype
            np.testing.assert_array_equal(value, tensors[name].numpy())
    assert path.stat().st_mode & 0o777 == 0o666 & ~_umask()
    assert [*tmp_path.iterdir()] == [path]


def _umask() -> int:
    found = os.umask(0)
    os.umask(found)
    return found


def test_a_training_goes_on_from_a_file(tmp_path: Path) -> None:
    """Model and optimizer in one file: the next losses are those of a training that never stopped."""
    path = tmp_path / "checkpoint.safetensors"

    def fresh() -> tuple[Any, Any]:
        model = gt.nn.Sequential(gt.nn.Linear(5, 8), gt.nn.Tanh(), gt.nn.Linear(8, 1))
        return model, gt.optim.Adam(model.parameters(), lr=1e-2, betas=(0.8, 0.99))

    def step(model: Any, optimizer: Any) -> float:
        loss = (model(gt.from_numpy(X)) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return float(loss.item())

    model, optimizer = fresh()
    step(model, optimizer)
    gt.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3, "best": None}, path)
    expected = [step(model, optimizer) for _ in range(3)]
    model, optimizer = fresh()
    saved = gt.load(path)
    assert (saved["epoch"], saved["best"]) == (3, None)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    assert [step(model, optimizer) for _ in range(3)] == pytest.approx(expected, rel=1e-6)


def test_what_cannot_be_saved_says_what_can(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    with pytest.raises(TypeError, match=r"not Linear.*save its state_dict\(\)"):
        gt.save(gt.nn.Linear(2, 2), path)
    with pytest.raises(TypeError, match=r"not object at a\.0"):
        gt.save({"a": [object()]}, path)
    with pytest.raises(gt.DTypeError, match="complex128"):
        gt.save({"a": gt.zeros(2, dtype=gt.complex128)}, path)
    with pytest.raises(FileNotFoundError):
        gt.save({"a": gt.zeros(2)}, tmp_path / "no" / "x")
    assert [*tmp_path.iterdir()] == []
    path.write_bytes(b"\x80\x02}q\x00.")
    with pytest.raises(gt.GTError, match=r"x.safetensors is a pickle, but none of torch.save"):
        gt.load(path)
    with pytest.raises(FileNotFoundError):
        gt.load(tmp_path / "nowhere")
    with pytest.raises(TypeError, match=r"cannot be pickled: send tensor.numpy\(\)"):
        pickle.dumps(gt.zeros(2))


def test_printing_fetches_only_what_it_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[int] = []
    usual = gt.Tensor.fetch
    monkeypatch.setattr(gt.Tensor, "fetch", lambda self: fetched.append(self.numel()) or usual(self))
    large = gt.arange(3_000_000).reshape(1000, 3000)
    shown = repr(large)
    assert shown.splitlines()[0].startswith("tensor([[      0,       1,       2, ...,    2997,    2998,    2999],")
    assert (
        shown
        == "tensor("
        + np.array2string(np.arange(3_000_000).reshape(1000, 3000), 80, separator=", ", prefix="tensor(")
        + ")"
    )
    assert fetched == [36]
    assert "1000 × 3000, int64, 24,000,000 bytes" in large._repr_html_()
    assert "&lt;" in (gt.ones(2, requires_grad=True) * 2)._repr_html_()
