"""Linear algebra of PyTorch programs: gradients from factors of A or Aᵀ, in graphs too, and matrices that have no inverse."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import gt.torch

SINGULAR = torch.stack([torch.eye(2), torch.ones(2, 2)])


def determinants(a: Any) -> Any:
    """Of matrices whose strides differ: PyTorch computes gradients from factors of A or Aᵀ by them."""
    turned = a.mT * 2
    return (
        torch.linalg.det(a)
        + torch.linalg.slogdet(turned)[1]
        + torch.linalg.det(turned[..., ::2, ::2])
        + torch.linalg.slogdet(a)[1]
    )


def systems(a: Any) -> Any:
    rows = a[..., :2]
    return (
        torch.linalg.solve(a.mT, rows).square().sum()
        + torch.linalg.solve(a, rows.mT, left=False).sum()
        + torch.linalg.inv(a).square().sum()
        + torch.linalg.cholesky(a @ a.mT).sum()
    )


def gradient_of(function: Any, x: Any) -> tuple[Any, Any]:
    out = function(x)
    (found,) = torch.autograd.grad(out.sum(), x)
    return out.detach().cpu(), found.cpu()


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("function", [determinants, systems])
def test_gradients_of_matrices_with_any_strides(function: Any, compiled: bool) -> None:
    """By operators, and by a graph, which is traced with strides that the device's tensors do not have."""
    torch._dynamo.reset()
    there = torch.compile(function, backend=gt.torch.backend) if compiled else function
    a = torch.tensor([[4.0, 1.0, 0.5], [0.2, 3.0, -1.0], [1.0, 0.3, 5.0]])
    expected = gradient_of(function, a.clone().requires_grad_())
    x = a.to("gtx").requires_grad_()
    for _ in range(3 if compiled else 1):  # the third call is a program
        torch.testing.assert_close(gradient_of(there, x), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (torch.linalg.inv, "linalg.inv: the matrix is singular"),
        (lambda x: torch.linalg.solve(x, torch.ones(2, 1, device="gtx")), "solve: the matrix is singular"),
        (torch.linalg.cholesky, "not positive definite"),
        (torch.linalg.lu_factor, "singular"),
    ],
)
def test_a_matrix_without_inverse_raises_where_it_is_computed(function: Any, says: str) -> None:
    with pytest.raises(torch.linalg.LinAlgError, match=says):
        function(SINGULAR.to("gtx"))
    function(torch.eye(2, device="gtx"))


def test_a_matrix_without_inverse_is_nan_where_the_program_asks_for_info() -> None:
    """And the others of the stack are what they are."""
    for function in (torch.linalg.inv_ex, torch.linalg.cholesky_ex):
        found, info = function(SINGULAR.to("gtx"))
        assert (info.cpu() != 0).tolist() == [False, True]
        assert found[0].tolist() == [[1, 0], [0, 1]]
        assert math.isnan(found[1, 0, 0].item())


def test_no_factors_are_returned_that_were_not_asked_for() -> None:
    a = torch.arange(6.0).reshape(3, 2)
    u, s, vh = torch.ops.aten._linalg_svd(a.to("gtx"), False, False)
    assert (u.numel(), vh.numel()) == (0, 0)
    torch.testing.assert_close(s.cpu(), torch.linalg.svdvals(a))


def test_gradients_of_complex_factors_are_those_of_the_cpu() -> None:
    """PyTorch halves the real parts of a diagonal in place, which is a view of a view of them."""
    torch.manual_seed(0)
    x = torch.randn(4, 3, dtype=torch.complex64)
    found = []
    for a in (x.clone().requires_grad_(), x.to("gtx").requires_grad_()):
        q, r = torch.linalg.qr(a)
        found.append(torch.autograd.grad(q.abs().sum() + r.abs().sum(), a)[0].cpu())
    torch.testing.assert_close(found[1], found[0], rtol=1e-3, atol=1e-3)
