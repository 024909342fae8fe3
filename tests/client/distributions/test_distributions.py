"""Distributions beside PyTorch: densities, moments, entropies, divergences and gradients; and samples by tests of SciPy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.stats

import gt
import gt.distributions as D

torch = pytest.importorskip("torch")
T = torch.distributions

pytestmark = pytest.mark.usefixtures("shared")

A, B, C = [0.5, 1.5, 3.0], [2.0, 0.7, 1.2], [0.2, 0.5, 0.9]
ROWS = [[0.2, 0.3, 0.5], [1.0, 2.0, 3.0]]
SPREAD = [[2.0, 0.3, 0.1], [0.3, 1.0, 0.2], [0.1, 0.2, 1.5]]
POSITIVE, UNIT, REAL, COUNTS = [0.3, 1.1, 4.0], [0.1, 0.5, 0.8], [-1.0, 0.4, 2.5], [0.0, 1.0, 3.0]
SIMPLEX, LINES = [[0.2, 0.3, 0.5], [0.1, 0.1, 0.8]], [[0.1, -1.0, 2.0], [1.0, 1.0, 1.0]]

CASES: dict[str, tuple[str, list[Any], dict[str, Any], Any]] = {
    "Normal": ("Normal", [REAL, A], {}, REAL),
    "Normal of numbers": ("Normal", [0.5, 2.0], {}, REAL),
    "HalfNormal": ("HalfNormal", [A], {}, POSITIVE),
    "Uniform": ("Uniform", [[0.0, -1.0, 2.0], [1.0, 3.0, 3.0]], {}, [0.5, 4.0, 2.5]),
    "Exponential": ("Exponential", [A], {}, POSITIVE),
    "Laplace": ("Laplace", [REAL, A], {}, POSITIVE),
    "Cauchy": ("Cauchy", [REAL, A], {}, POSITIVE),
    "HalfCauchy": ("HalfCauchy", [A], {}, POSITIVE),
    "Gumbel": ("Gumbel", [REAL, A], {}, POSITIVE),
    "Pareto": ("Pareto", [A, [3.5, 1.5, 0.5]], {}, [4.0, 5.0, 6.0]),
    "Weibull": ("Weibull", [A, B], {}, POSITIVE),
    "Kumaraswamy": ("Kumaraswamy", [A, B], {}, UNIT),
    "Gamma": ("Gamma", [A, B], {}, POSITIVE),
    "Chi2": ("Chi2", [A], {}, POSITIVE),
    "InverseGamma": ("InverseGamma", [A, B], {}, POSITIVE),
    "Beta": ("Beta", [A, B], {}, UNIT),
    "Dirichlet": ("Dirichlet", [ROWS], {}, SIMPLEX),
    "StudentT": ("StudentT", [A, REAL, B], {}, REAL),
    "FisherSnedecor": ("FisherSnedecor", [[3.0, 4.0, 1.0], [5.0, 3.0, 1.0]], {}, POSITIVE),
    "Bernoulli of probabilities": ("Bernoulli", [C], {}, [0.0, 1.0, 1.0]),
    "Bernoulli of logits": ("Bernoulli", [], {"logits": REAL}, [0.0, 1.0, 1.0]),
    "Geometric": ("Geometric", [C], {}, COUNTS),
    "Binomial": ("Binomial", [4, C], {}, COUNTS),
    "NegativeBinomial": ("NegativeBinomial", [4.0, C], {}, COUNTS),
    "Poisson": ("Poisson", [A], {}, COUNTS),
    "Categorical": ("Categorical", [ROWS], {}, [0, 2]),
    "Categorical of logits": ("Categorical", [], {"logits": LINES}, [1, 2]),
    "OneHotCategorical": ("OneHotCategorical", [ROWS], {}, [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]),
    "Multinomial": ("Multinomial", [3, ROWS], {}, [[1.0, 1.0, 1.0], [0.0, 3.0, 0.0]]),
    "MultivariateNormal": ("MultivariateNormal", [REAL, SPREAD], {}, LINES),
    "MultivariateNormal of a precision": ("MultivariateNormal", [REAL], {"precision_matrix": SPREAD}, LINES),
    "LowRankMultivariateNormal": ("LowRankMultivariateNormal", [REAL, [[1.0], [0.5], [0.2]], A], {}, LINES),
    "LogNormal": ("LogNormal", [REAL, A], {}, POSITIVE),
    "LogisticNormal": ("LogisticNormal", [[0.1, -0.5], [1.0, 2.0]], {}, SIMPLEX),
    "RelaxedBernoulli": ("RelaxedBernoulli", [[0.7], C], {}, UNIT),
    "RelaxedOneHotCategorical": ("RelaxedOneHotCategorical", [[0.7], ROWS], {}, SIMPLEX),
    "ContinuousBernoulli": ("ContinuousBernoulli", [C], {}, UNIT),
}


def made(
    module: Any, tensor: Callable[..., Any], name: str, args: list[Any], named: dict[str, Any]
) -> tuple[Any, list[Any]]:
    """The distribution, and those of its arguments that require grad."""
    inputs = []

    def given(value: Any) -> Any:
        if not isinstance(value, list):
            return value
        inputs.append(tensor(value).requires_grad_())
        return inputs[-1]

    first = [given(value) for value in args]
    return getattr(module, name)(*first, **{key: given(value) for key, value in named.items()}), inputs


def pair(case: str) -> tuple[Any, list[Any], Any, list[Any]]:
    name, args, named, _ = CASES[case]
    mine, my_inputs = made(D, lambda v: gt.tensor(v, dtype=gt.float64), name, args, named)
    theirs, their_inputs = made(T, lambda v: torch.tensor(v, dtype=torch.float64), name, args, named)
    return mine, my_inputs, theirs, their_inputs


def close(mine: Any, theirs: Any, **options: Any) -> None:
    np.testing.assert_allclose(
        mine.detach().numpy(), theirs.detach().numpy(), **{"rtol": 1e-6, "atol": 1e-9, **options}
    )


@pytest.mark.parametrize("case", CASES)
def test_densities_and_their_gradients_are_pytorchs(case: str) -> None:
    mine, my_inputs, theirs, their_inputs = pair(case)
    value = CASES[case][3]
    dtype = (
        ("int64", torch.int64) if "Categorical" in case and isinstance(value[0], int) else ("float64", torch.float64)
    )
    checked = T.Distribution._validate_args
    theirs._validate_args = False
    first = mine.log_prob(gt.tensor(value, dtype=dtype[0]))
    second = theirs.log_prob(torch.tensor(value, dtype=dtype[1]))
    assert checked is not None
    assert first.shape == tuple(second.shape)
    close(first, second)
    if not my_inputs:
        return
    finite = np.isfinite(second.detach().numpy())
    first.where(gt.tensor(finite), 0.0).sum().backward()
    second.where(torch.tensor(finite), torch.zeros((), dtype=torch.float64)).sum().backward()
    for x, y in zip(my_inputs, their_inputs, strict=True):
        if y.grad is not None:
            if (
                "matrix" in str(CASES[case][2]) or case == "MultivariateNormal"
            ):  # triangles: PyTorch's are made symmetric
                continue
            close(x.grad, y.grad)


@pytest.mark.parametrize("case", CASES)
def test_moments_and_entropies_are_pytorchs(case: str) -> None:
    mine, _, theirs, _ = pair(case)
    assert mine.batch_shape == tuple(theirs.batch_shape)
    assert mine.event_shape == tuple(theirs.event_shape)
    theirs._validate_args = False
    for what in ("mean", "variance", "mode", "stddev"):
        if what == "mode" and case in (
            "Kumaraswamy",
            "Weibull",
        ):  # of some that have one PyTorch says that they have none
            continue
        try:
            expected = getattr(theirs, what)
        except (NotImplementedError, RuntimeError):
            continue
        close(getattr(mine, what), expected)
    try:
        expected = theirs.entropy()
    except NotImplementedError:
        return
    close(mine.entropy(), expected)


@pytest.mark.parametrize("case", [case for case in CASES if hasattr(getattr(T, CASES[case][0]), "cdf")])
def test_cumulative_probabilities_are_pytorchs(case: str) -> None:
    mine, _, theirs, _ = pair(case)
    theirs._validate_args = False
    for what, values in (("cdf", CASES[case][3]), ("icdf", [0.1, 0.5, 0.9])):
        try:
            expected = getattr(theirs, what)(torch.tensor(values, dtype=torch.float64))
        except (NotImplementedError, RuntimeError, ValueError):
            continue
        close(getattr(mine, what)(gt.tensor(values, dtype=gt.float64)), expected)


SAMPLED = [
    case
    for case in CASES
    if case not in ("Cauchy", "HalfCauchy", "Pareto", "StudentT", "FisherSnedecor", "InverseGamma")
]


@pytest.mark.parametrize("case", SAMPLED)
def test_samples_have_the_moments_that_are_told(case: str) -> None:
    gt.manual_seed(1)
    mine, _, _, _ = pair(case)
    drawn = mine.sample((4000,))
    assert drawn.shape == (4000, *mine.batch_shape, *mine.event_shape)
    assert not drawn.requires_grad
    if "Relaxed" in case or "Logistic" in case or (case.startswith("Categorical")):
        return
    mean, spread = (np.asarray(getattr(mine, what).detach().numpy()) for what in ("mean", "stddev"))
    far = np.abs(drawn.numpy().mean(0) - mean)
    assert (far <= 5 * spread / math.sqrt(4000)).all(), far


KNOWN: dict[str, tuple[Any, Any]] = {
    "gamma, small": (lambda: D.Gamma(0.3, 2.0), scipy.stats.gamma(0.3, scale=0.5)),
    "gamma, large": (lambda: D.Gamma(40.0, 2.0), scipy.stats.gamma(40.0, scale=0.5)),
    "beta": (lambda: D.Beta(0.5, 2.0), scipy.stats.beta(0.5, 2.0)),
    "t": (lambda: D.StudentT(3.0), scipy.stats.t(3.0)),
    "F": (lambda: D.FisherSnedecor(3.0, 5.0), scipy.stats.f(3.0, 5.0)),
    "inverse gamma": (lambda: D.InverseGamma(2.0, 3.0), scipy.stats.invgamma(2.0, scale=3.0)),
    "cauchy": (lambda: D.Cauchy(1.0, 2.0), scipy.stats.cauchy(1.0, 2.0)),
    "pareto": (lambda: D.Pareto(2.0, 3.0), scipy.stats.pareto(3.0, scale=2.0)),
    "laplace": (lambda: D.Laplace(1.0, 2.0), scipy.stats.laplace(1.0, 2.0)),
    "gumbel": (lambda: D.Gumbel(1.0, 2.0), scipy.stats.gumbel_r(1.0, 2.0)),
}


@pytest.mark.parametrize("name", KNOWN)
def test_samples_are_distributed_as_scipys(name: str) -> None:
    gt.manual_seed(2)
    make, reference = KNOWN[name]
    drawn = make().sample((3000,)).numpy()
    assert scipy.stats.kstest(drawn, reference.cdf).pvalue > 1e-3


def test_gamma_numbers_are_the_inverse_of_their_distribution() -> None:
    from gt.client.distributions.inverse_cdf_samplers import _InverseGammaCDF

    shape, share = np.meshgrid(
        [1.0, 1.3, 2.0, 7.5, 40.0, 1e3, 1e6], [1e-15, 1e-6, 0.01, 0.3, 0.5, 0.9, 0.999, 1 - 1e-12]
    )
    x = gt.tensor(shape, requires_grad=True)
    drawn = _InverseGammaCDF.apply(x, gt.tensor(share))
    np.testing.assert_allclose(drawn.detach().numpy(), scipy.stats.gamma.ppf(share, shape), rtol=1e-9)
    drawn.sum().backward()
    step = 1e-5 * shape
    slope = (scipy.stats.gamma.ppf(share, shape + step) - scipy.stats.gamma.ppf(share, shape - step)) / (2 * step)
    np.testing.assert_allclose(x.grad.numpy(), slope, rtol=1e-4)


def test_poisson_numbers_are_the_inverse_of_their_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    from gt.client.distributions import inverse_cdf_samplers

    rate, share = np.meshgrid([1e-3, 0.5, 1.0, 5.0, 30.0, 1e3, 1e5], [1e-15, 1e-6, 0.2, 0.5, 0.9, 1 - 1e-6, 1 - 1e-14])
    monkeypatch.setattr(inverse_cdf_samplers, "_unit", lambda size, generator: gt.tensor(share))
    drawn = inverse_cdf_samplers.poisson(gt.tensor(rate)).numpy()
    np.testing.assert_array_equal(drawn, scipy.stats.poisson.ppf(share, rate))


def test_gradients_flow_through_samples() -> None:
    gt.manual_seed(3)
    loc, scale = gt.tensor(1.0, requires_grad=True), gt.tensor(2.0, requires_grad=True)
    drawn = D.Normal(loc, scale).rsample((2000,))
    drawn.square().mean().backward()  # of E x² = loc² + scale²
    assert abs(loc.grad.item() - 2.0) < 0.3
    assert abs(scale.grad.item() - 4.0) < 0.6
    for small in (0.4, 3.0):
        shape = gt.tensor(small, dtype=gt.float64, requires_grad=True)
        D.Gamma(shape, 1.0).rsample((4000,)).mean().backward()  # of E x = shape
        assert abs(shape.grad.item() - 1.0) < 0.15
    with pytest.raises(NotImplementedError, match="no samples through which"):
        D.Poisson(1.0).rsample()


def test_samples_are_the_same_on_any_number_of_workers() -> None:
    def drawn() -> list[Any]:
        gt.manual_seed(5)
        with gt.signal.context("samples"):
            rate = gt.tensor([0.3, 2.0, 9.0, 30.0, 1.0, 0.1])
            return [
                D.Gamma(rate, 1.0).sample((4,)).numpy(), D.Poisson(rate).sample((4,)).numpy(),
                D.Categorical(rate).sample((7,)).numpy(), D.Dirichlet(rate).sample((3,)).numpy(),
                D.Binomial(5, probs=rate / 31).sample((2,)).numpy(),
            ]  # fmt: skip

    gt.disconnect()
    try:
        results = []
        config = {"mesh": {"data": 3}, "sharding_config": {"samples": {"strategy": "data_parallel"}}}
        for workers in (1, 3):
            gt.connect("inproc", workers=workers, config=config if workers > 1 else None)
            results.append(drawn())
            gt.disconnect()
    finally:
        gt.connect("inproc")
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)


DIVERGENCES: list[tuple[str, list[Any], str, list[Any]]] = [
    ("Normal", [REAL, A], "Normal", [A, B]),
    ("HalfNormal", [A], "HalfNormal", [B]),
    ("Uniform", [[0.0, 0.5, 0.0], [1.0, 1.0, 2.0]], "Uniform", [[0.0, 0.0, 0.0], [1.0, 2.0, 1.0]]),
    ("Exponential", [A], "Exponential", [B]),
    ("Laplace", [REAL, A], "Laplace", [A, B]),
    ("Cauchy", [REAL, A], "Cauchy", [A, B]),
    ("Gumbel", [REAL, A], "Gumbel", [A, B]),
    ("Pareto", [A, B], "Pareto", [[0.2, 0.4, 4.0], A]),
    ("Gamma", [A, B], "Gamma", [B, A]),
    ("Beta", [A, B], "Beta", [B, A]),
    ("Dirichlet", [ROWS], "Dirichlet", [SIMPLEX]),
    ("MultivariateNormal", [REAL, SPREAD], "MultivariateNormal", [A, np.eye(3).tolist()]),
    ("Bernoulli", [C], "Bernoulli", [UNIT]),
    ("Binomial", [3, C], "Binomial", [3, UNIT]),
    ("Geometric", [C], "Geometric", [UNIT]),
    ("Poisson", [A], "Poisson", [B]),
    ("Categorical", [ROWS], "Categorical", [SIMPLEX]),
    ("OneHotCategorical", [ROWS], "OneHotCategorical", [SIMPLEX]),
    ("LogNormal", [REAL, A], "LogNormal", [A, B]),
    ("Uniform", [[0.0, 0.5, 0.0], [1.0, 1.0, 2.0]], "Normal", [REAL, A]),
    ("Exponential", [A], "Gamma", [A, B]),
    ("Gamma", [A, B], "Exponential", [A]),
    ("Laplace", [REAL, A], "Normal", [A, B]),
    ("Chi2", [A], "Gamma", [A, B]),
]


@pytest.mark.parametrize("case", DIVERGENCES, ids=lambda case: f"{case[0]} {case[2]}")
def test_divergences_are_pytorchs(case: tuple[str, list[Any], str, list[Any]]) -> None:
    def both(module: Any, tensor: Any) -> Any:
        p, q = (made(module, tensor, case[at], case[at + 1], {})[0] for at in (0, 2))
        return module.kl_divergence(p, q)

    close(both(D, lambda v: gt.tensor(v, dtype=gt.float64)), both(T, lambda v: torch.tensor(v, dtype=torch.float64)))


def test_a_divergence_without_a_formula_can_be_given_one() -> None:
    class Mine(D.Normal):
        pass

    with pytest.raises(NotImplementedError, match="no divergence of Poisson"):
        D.kl_divergence(D.Poisson(1.0), D.Normal(0.0, 1.0))
    D.register_kl(Mine, Mine)(lambda p, q: p.loc * 0.0 + 7.0)
    assert D.kl_divergence(Mine(0.0, 1.0), Mine(0.0, 1.0)).item() == 7.0


TRANSFORMS: dict[str, tuple[Callable[[Any, Any], Any], Any]] = {
    "exp": (lambda m, t: m.ExpTransform(), LINES),
    "sigmoid": (lambda m, t: m.SigmoidTransform(), LINES),
    "tanh": (lambda m, t: m.TanhTransform(), LINES),
    "softplus": (lambda m, t: m.SoftplusTransform(), LINES),
    "affine": (lambda m, t: m.AffineTransform(1.0, -2.0), LINES),
    "affine of tensors": (lambda m, t: m.AffineTransform(t(REAL), t(A), event_dim=1), LINES),
    "power": (lambda m, t: m.PowerTransform(t([2.0, -1.0, 0.5])), ROWS),
    "stick": (lambda m, t: m.StickBreakingTransform(), LINES),
    "composed": (lambda m, t: m.ComposeTransform([m.AffineTransform(1.0, 2.0), m.ExpTransform()]), LINES),
    "composed of events": (lambda m, t: m.ComposeTransform([m.TanhTransform(), m.StickBreakingTransform()]), LINES),
    "independent": (lambda m, t: m.IndependentTransform(m.ExpTransform(), 1), LINES),
    "inverse": (lambda m, t: m.ExpTransform().inv, ROWS),
    "reshaped": (lambda m, t: m.ReshapeTransform((2, 3), (6,)), LINES),
    "stacked": (lambda m, t: m.StackTransform([m.ExpTransform(), m.TanhTransform()], 0), LINES),
    "joined": (lambda m, t: m.CatTransform([m.ExpTransform(), m.TanhTransform()], 1, [1, 2]), LINES),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_are_pytorchs(name: str) -> None:
    make, value = TRANSFORMS[name]
    results = []
    for module, tensor in (
        (D, lambda v: gt.tensor(v, dtype=gt.float64)),
        (T, lambda v: torch.tensor(v, dtype=torch.float64)),
    ):
        transform, x = make(module, tensor), tensor(value)
        y = transform(x)
        results.append((y, transform.inv(y), transform.log_abs_det_jacobian(x, y)))
    for mine, theirs in zip(*results, strict=True):
        assert mine.shape == tuple(theirs.shape)
        close(mine, theirs)


def test_transformed_distributions_are_pytorchs() -> None:
    results = []
    for module, tensor in (
        (D, lambda v: gt.tensor(v, dtype=gt.float64)),
        (T, lambda v: torch.tensor(v, dtype=torch.float64)),
    ):
        base = module.Normal(tensor(REAL), tensor(A))
        falling = module.TransformedDistribution(base, [module.AffineTransform(1.0, -2.0), module.SigmoidTransform()])
        x = tensor(UNIT)
        results.append([falling.log_prob(x), falling.cdf(x), falling.icdf(x), falling.expand((2, 3)).log_prob(x)])
    for mine, theirs in zip(*results, strict=True):
        close(mine, theirs)


def test_mixtures_and_independent_dimensions_are_pytorchs() -> None:
    results = []
    for module, tensor in (
        (D, lambda v: gt.tensor(v, dtype=gt.float64)),
        (T, lambda v: torch.tensor(v, dtype=torch.float64)),
    ):
        parts = module.Independent(module.Normal(tensor(LINES), tensor(ROWS)), 1)
        mixed = module.MixtureSameFamily(module.Categorical(tensor([0.3, 0.7])), parts)
        line = module.MixtureSameFamily(module.Categorical(tensor(ROWS[0])), module.Normal(tensor(REAL), tensor(A)))
        results.append([
            parts.log_prob(tensor(LINES)), parts.entropy(), parts.mean, mixed.log_prob(tensor(REAL)), mixed.mean,
            mixed.variance, line.cdf(tensor(REAL)), line.log_prob(tensor(REAL)),
        ])  # fmt: skip
    for mine, theirs in zip(*results, strict=True):
        close(mine, theirs)
    assert D.MixtureSameFamily(D.Categorical(gt.ones(3)), D.Normal(gt.zeros(3), 1.0)).sample((5, 2)).shape == (5, 2)


@pytest.mark.parametrize("case", CASES)
def test_a_larger_batch_of_the_same(case: str) -> None:
    mine, _, _, _ = pair(case)
    larger = mine.expand((2, *mine.batch_shape))
    assert larger.batch_shape == (2, *mine.batch_shape)
    assert larger.sample().shape == (2, *mine.batch_shape, *mine.event_shape)


def test_values_are_checked_when_asked() -> None:
    assert D.Normal(0.0, -1.0).log_prob(0.0).isnan().item()
    with pytest.raises(ValueError, match="the parameter scale"):
        D.Normal(0.0, -1.0, validate_args=True)
    with pytest.raises(ValueError, match="not in the support"):
        D.Exponential(1.0, validate_args=True).log_prob(gt.tensor(-1.0))
    with pytest.raises(ValueError, match="either probs or logits"):
        D.Bernoulli()
    with pytest.raises(ValueError, match="one of covariance_matrix"):
        D.MultivariateNormal(gt.zeros(2))


def test_all_values_of_what_has_few() -> None:
    assert D.Bernoulli(gt.tensor([0.1, 0.2])).enumerate_support().tolist() == [[0.0, 0.0], [1.0, 1.0]]
    assert D.Categorical(gt.ones(3)).enumerate_support().tolist() == [0, 1, 2]
    assert D.OneHotCategorical(gt.ones(2)).enumerate_support().tolist() == [[1.0, 0.0], [0.0, 1.0]]


def test_constraints_say_what_lies_in_them() -> None:
    c = D.constraints
    assert c.positive.check(gt.tensor([-1.0, 0.0, 1.0])).tolist() == [False, False, True]
    assert c.simplex.check(gt.tensor(SIMPLEX)).tolist() == [True, True]
    assert c.positive_definite.check(gt.tensor(SPREAD)).item()
    assert c.lower_cholesky.check(gt.eye(2)).item()
    assert c.integer_interval(0, 3).check(gt.tensor([0.0, 1.5, 4.0])).tolist() == [True, False, False]
    assert c.independent(c.unit_interval, 1).check(gt.tensor([[0.5, 2.0], [0.1, 0.2]])).tolist() == [False, True]
