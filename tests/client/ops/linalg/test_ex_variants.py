"""Linear algebra that says in numbers whether it went well."""

from __future__ import annotations

import numpy as np
import pytest

import gt

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.usefixtures("shared")

MATRICES = np.array([[[2.0, 1.0], [1.0, 3.0]], [[1.0, 2.0], [2.0, 4.0]], [[0.0, 1.0], [1.0, -5.0]]])


def test_what_went_wrong_is_told_where() -> None:
    mine, theirs = gt.tensor(MATRICES), torch.tensor(MATRICES)
    for name in ("inv_ex", "lu_factor_ex"):
        ours, yours = getattr(gt.linalg, name)(mine), getattr(torch.linalg, name)(theirs)
        assert ours.info.tolist() == yours.info.tolist() == [0, 2, 0]
        np.testing.assert_allclose(ours[0][::2].numpy(), yours[0][::2].numpy())
        assert ours._fields == type(yours)._fields if hasattr(type(yours), "_fields") else True
    found = gt.linalg.cholesky_ex(mine)
    assert [info != 0 for info in found.info.tolist()] == [False, True, True]
    np.testing.assert_allclose(found.L[0].numpy(), np.linalg.cholesky(MATRICES[0]))
    right = gt.tensor([[1.0], [2.0]], dtype=gt.float64)
    solved = gt.linalg.solve_ex(mine, right)
    assert solved.info.tolist() == [0, 2, 0]
    np.testing.assert_allclose(solved.result[2].numpy(), np.linalg.solve(MATRICES[2], right.numpy()))


def test_errors_are_raised_when_asked() -> None:
    for name in ("inv_ex", "cholesky_ex", "lu_factor_ex"):
        with pytest.raises(gt.linalg.LinAlgError, match="a matrix is"):
            getattr(gt.linalg, name)(gt.tensor(MATRICES), check_errors=True)
    with pytest.raises(gt.linalg.LinAlgError):
        gt.linalg.inv(gt.tensor(MATRICES)).numpy()


def test_gradients_flow_to_what_went_well() -> None:
    x = gt.tensor(MATRICES[:1], requires_grad=True)
    gt.linalg.inv_ex(x).inverse.sum().backward()
    y = torch.tensor(MATRICES[:1], requires_grad=True)
    torch.linalg.inv_ex(y).inverse.sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), y.grad.numpy())
