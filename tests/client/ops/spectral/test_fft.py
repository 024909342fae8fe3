"""Fourier transforms against PyTorch: samples that nobody here chose, values and gradients, on one worker and on several."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from beside_torch import samples_of
from effort import PROVED, thinned

import gt

torch = pytest.importorskip("torch", reason="PyTorch, the judge of Fourier transforms, is not installed")
op_db = pytest.importorskip("torch.testing._internal.common_methods_invocations").op_db

SHARDED: dict[str, Any] = {"mesh": {"data": 3}, "sharding_config": {"net": {"strategy": "data_parallel"}}}
OPS = [op for op in op_db if op.name.startswith("fft.")]
DTYPES = ("float64", "complex128", "float32", "complex64", "int64")
CASES = thinned([(op, dtype) for op in OPS for dtype in DTYPES if getattr(torch, dtype) in op.dtypes], 60)


@pytest.fixture(params=[1, 3], autouse=True)
def workers(request: pytest.FixtureRequest) -> Iterator[int]:
    gt.connect("inproc", workers=request.param, config=SHARDED if request.param > 1 else None)
    yield request.param
    gt.disconnect()


def close(found: Any, expected: Any, what: Any = "") -> None:
    array = expected.detach().resolve_conj().numpy()
    assert (tuple(found.shape), str(found.dtype)[3:]) == (array.shape, str(array.dtype)), what
    single = array.dtype in (np.float32, np.complex64)
    tolerance = {"rtol": 1e-4, "atol": 1e-3} if single else {"rtol": 1e-9, "atol": 1e-9}
    try:
        np.testing.assert_allclose(found.detach().numpy(), array, **tolerance)
    except AssertionError as error:  # only then, for it takes longer than the comparison
        raise AssertionError(f"{what}\n{error}") from None


def weighted(lib: Any, out: Any) -> Any:
    weight = np.cos(np.arange(out.numel(), dtype=np.float64)).reshape(tuple(out.shape))
    out = out * lib.from_numpy(weight)
    return (out.real - 2 * out.imag if out.dtype.is_complex else out).sum()


@pytest.mark.parametrize(("op", "dtype"), CASES, ids=lambda value: getattr(value, "name", value))
def test_samples_that_nobody_here_chose(op: Any, dtype: str, workers: int) -> None:
    """Values, dtypes and first and second gradients agree."""
    double = dtype in ("float64", "complex128")
    function = getattr(gt.fft, op.name.removeprefix("fft."))
    for sample in thinned(samples_of(op, getattr(torch, dtype), requires_grad=double), 2, workers):
        theirs = sample.input
        ours = gt.from_numpy(theirs.detach().numpy().copy()).requires_grad_(double)
        with gt.signal.context("net"):
            found = function(ours, *sample.args, **sample.kwargs)
        out = op(theirs, *sample.args, **sample.kwargs)
        close(found, out, sample)
        PROVED["samples of PyTorch's Fourier transforms"] += 1
        if not double:
            continue
        (slope,) = torch.autograd.grad(weighted(torch, out.abs() ** 2), theirs, create_graph=True)
        (first,) = gt.autograd.grad(weighted(gt, found.abs() ** 2), [ours], create_graph=True)
        close(first, slope, sample)
        (second,) = torch.autograd.grad((slope.abs() ** 2).sum(), theirs)
        (first.abs() ** 2).sum().backward()
        close(ours.grad, second, sample)


@pytest.mark.parametrize("n", [1, 4, 7])
def test_frequencies(n: int) -> None:
    np.testing.assert_allclose(gt.fft.fftfreq(n, 0.5, dtype=gt.float64).numpy(), np.fft.fftfreq(n, 0.5))
    np.testing.assert_allclose(gt.fft.rfftfreq(n, d=2.0, dtype=gt.float64).numpy(), np.fft.rfftfreq(n, 2.0))
    assert gt.fft.fftfreq(n).dtype is gt.float32


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(gt.ShapeError, match=r"fft: 0 points along dimension 0 of shape \(3,\)"):
        gt.fft.fft(gt.ones(3), 0)
    with pytest.raises(gt.DTypeError, match=r"rfft takes real numbers, not gt.complex64: see fft"):
        gt.fft.rfft(gt.ones(3).to(gt.complex64))
    with pytest.raises(gt.ShapeError, match="one for each, each but once"):
        gt.fft.fftn(gt.ones(3, 3), dim=(0, 0))
    with pytest.raises(ValueError, match="norm is 'backward', 'ortho' or 'forward', not 'both'"):
        gt.fft.ifft(gt.ones(3), norm="both")


WINDOWS = ("hann", "hamming", "blackman", "bartlett", "kaiser")


@pytest.mark.parametrize("name", WINDOWS)
def test_windows_are_those_of_pytorch(name: str) -> None:
    for size in (0, 1, 2, 7, 8):
        for periodic in (True, False):
            made = [getattr(lib, f"{name}_window")(size, periodic, dtype=lib.float64) for lib in (gt, torch)]
            close(*made, what=(name, size, periodic))


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize("kind", ["real", "both halves", "complex"])
def test_spectra_of_stretches_and_back(kind: str, center: bool, normalized: bool) -> None:
    """Values and gradients of signals and windows; what comes back is the signal, where windows overlap."""
    random = np.random.default_rng(4)
    signal = random.standard_normal((2, 40)) + (1j * random.standard_normal((2, 40)) if kind == "complex" else 0)
    options: dict[str, Any] = {
        "hop_length": 3, "win_length": 6, "center": center, "normalized": normalized,
        "onesided": None if kind == "real" else False,
    }  # fmt: skip
    found: list[Any] = []
    for lib in (gt, torch):
        x = lib.tensor(signal, requires_grad=True)
        w = lib.tensor(np.hanning(8)[1:-1].copy(), requires_grad=True)
        with gt.signal.context("net"):
            spectra = lib.stft(x, 8, window=w, return_complex=True, **options)
            back = (
                lib.istft(spectra, 8, window=w, return_complex=kind == "complex", length=36, **options) if center else x
            )
            (weighted(lib, spectra) + weighted(lib, back)).backward()
        found.append((spectra, back, x.grad, w.grad))
    for one, other in zip(*found, strict=True):
        close(one, other, kind)
    np.testing.assert_allclose(found[0][1].detach().numpy()[:, 8:30], signal[:, 8:30], rtol=1e-8)


def test_real_signals_say_how_their_spectra_are_wanted() -> None:
    x = gt.ones(20)
    with pytest.raises(ValueError, match="say return_complex=True"):
        gt.stft(x, 8)
    close(
        gt.stft(x, 8, return_complex=False),
        torch.view_as_real(torch.stft(torch.ones(20), 8, window=torch.ones(8), return_complex=True)),
    )
