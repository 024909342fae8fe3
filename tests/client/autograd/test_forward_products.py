"""Products of Jacobians with vectors from the right, beside PyTorch's `func`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gt

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.usefixtures("shared"),
    pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning"),
]

X, Y = np.array([0.3, -1.2, 2.0]), np.array([[1.0, 2.0, 0.5], [0.1, 0.2, 0.3]])
U, V = np.array([1.0, 0.5, -1.0]), np.array([[0.2, 0.0, 1.0], [1.0, -1.0, 0.4]])


def both(run: Any) -> None:
    mine, theirs = (run(lib, lambda v, lib=lib: lib.tensor(v)) for lib in (gt, torch))
    for one, other in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(one.detach().numpy(), other.detach().numpy(), rtol=1e-9)


def test_the_product_of_a_jacobian_with_vectors() -> None:
    both(lambda m, t: m.func.jvp(lambda x, y: (y * x.sin()).sum(1) * x[0], (t(X), t(Y)), (t(U), t(V))))
    both(lambda m, t: m.func.jvp(lambda x: (x.exp(), x.sum()), (t(X),), (t(U),))[1])
    out, pushed, more = gt.func.jvp(lambda x: (x * 2, "more"), (gt.tensor(X),), (gt.tensor(U),), has_aux=True)
    assert more == "more"
    np.testing.assert_allclose(pushed.numpy(), 2 * U)
    assert not out.requires_grad


def test_a_function_is_linear_about_a_point() -> None:
    mine, push = gt.func.linearize(lambda x: x.cos() * x, gt.tensor(X))
    for tangent in (U, -3 * U):
        theirs = torch.func.jvp(lambda x: x.cos() * x, (torch.tensor(X),), (torch.tensor(tangent),))
        np.testing.assert_allclose(mine.numpy(), theirs[0].numpy())
        np.testing.assert_allclose(push(gt.tensor(tangent)).numpy(), theirs[1].numpy())


def test_jacobians_from_the_front_are_those_from_the_back() -> None:
    both(lambda m, t: (m.func.jacfwd(lambda x: x.sin() * x.sum())(t(X)),))
    both(lambda m, t: (m.func.jacfwd(m.func.jacrev(lambda x: (x**3).sum()))(t(X)),))
