"""Optimizers and schedules beside PyTorch's, with the same weights: values, states, and what a loop makes anew."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from beside_torch import needs_torch

import gt
import gt.nn.functional as F
from gt import nn, optim

try:
    import torch
except ImportError:
    torch = None

pytestmark = pytest.mark.usefixtures("session")

R = np.random.default_rng(3)
INPUT = R.standard_normal((16, 6)).astype(np.float32)
LABELS = R.integers(0, 4, 16)


def network(lib: Any) -> Any:
    return lib.Sequential(lib.Linear(6, 10), lib.Tanh(), lib.Linear(10, 8, bias=False), lib.ReLU(), lib.Linear(8, 4))


def pair() -> tuple[nn.Module, Any]:
    """The same network in both libraries, with PyTorch's weights, the same every time: some steps divide by differences."""
    torch.manual_seed(1)
    ours, theirs = network(nn), network(torch.nn)
    ours.load_state_dict({name: value.detach().numpy() for name, value in theirs.state_dict().items()})
    return ours, theirs


def compare(ours: nn.Module, theirs: Any) -> None:
    for name, value in theirs.state_dict().items():
        np.testing.assert_allclose(ours.state_dict()[name].numpy(), value.numpy(), rtol=1e-5, atol=1e-6, err_msg=name)


OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "sgd": ("SGD", {"lr": 0.1}),
    "momentum": ("SGD", {"lr": 0.05, "momentum": 0.9}),
    "dampened": ("SGD", {"lr": 0.05, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.01}),
    "nesterov": ("SGD", {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    "ascent": ("SGD", {"lr": 0.05, "maximize": True}),
    "adam": ("Adam", {"lr": 0.01}),
    "adam-decay": ("Adam", {"lr": 0.01, "weight_decay": 0.1, "betas": (0.8, 0.9), "eps": 1e-5}),
    "adam-amsgrad": ("Adam", {"lr": 0.01, "amsgrad": True, "betas": (0.5, 0.6)}),
    "adam-ascent": ("Adam", {"lr": 0.01, "maximize": True}),
    "adamw": ("AdamW", {"lr": 0.01}),
    "adamw-decay": ("AdamW", {"lr": 0.02, "weight_decay": 0.2, "foreach": False}),
    "adamax": ("Adamax", {"lr": 0.02, "weight_decay": 0.01}),
    "nadam": ("NAdam", {"lr": 0.02, "weight_decay": 0.01}),
    "nadam-decoupled": ("NAdam", {"lr": 0.02, "weight_decay": 0.1, "decoupled_weight_decay": True}),
    "radam": ("RAdam", {"lr": 0.02, "weight_decay": 0.01}),
    "radam-decoupled": ("RAdam", {"lr": 0.02, "weight_decay": 0.1, "decoupled_weight_decay": True}),
    "rmsprop": ("RMSprop", {"lr": 0.01, "weight_decay": 0.01}),
    "rmsprop-centered": ("RMSprop", {"lr": 0.01, "momentum": 0.8, "centered": True}),
    "adagrad": ("Adagrad", {"lr": 0.05, "lr_decay": 0.1, "weight_decay": 0.01, "initial_accumulator_value": 0.1}),
    "rprop": ("Rprop", {"lr": 0.01}),
    "rprop-ascent": ("Rprop", {"lr": 0.01, "etas": (0.4, 1.3), "step_sizes": (1e-4, 0.02), "maximize": True}),
    "asgd": ("ASGD", {"lr": 0.1, "lambd": 0.01, "alpha": 0.5, "t0": 1, "weight_decay": 0.01}),
    "adafactor": ("Adafactor", {"lr": 0.05, "weight_decay": 0.1}),
    "adafactor-ascent": ("Adafactor", {"lr": 0.05, "d": 1.5, "eps": (1e-8, 1e-2), "maximize": True}),
    "adadelta": ("Adadelta", {"lr": 0.5, "rho": 0.8, "weight_decay": 0.01}),
}


def train(
    model: Any, optimizer: Any, lib: Any, loss: Callable[..., Any], steps: int, schedule: Any = None
) -> list[float]:
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        value = loss(model(lib.tensor(INPUT)), lib.tensor(LABELS))
        value.backward()
        optimizer.step()
        if schedule is not None:
            schedule.step()
        losses.append(value.item())
    return losses


def both(name: str, ours: Any, theirs: Any) -> tuple[Any, Any]:
    kind, options = OPTIMIZERS[name]
    return (
        getattr(optim, kind)(ours.parameters(), **options),
        getattr(torch.optim, kind)(theirs.parameters(), **options),
    )


@needs_torch
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_agree_and_states_are_exchanged(name: str) -> None:
    """Eight steps as PyTorch makes them (RAdam finds its root in the sixth); then each goes on from the other's state."""
    ours, theirs = pair()
    mine, other = both(name, ours, theirs)
    cross_entropy = torch.nn.functional.cross_entropy
    np.testing.assert_allclose(
        train(ours, mine, gt, F.cross_entropy, 8), train(theirs, other, torch, cross_entropy, 8), rtol=1e-5
    )
    compare(ours, theirs)
    assert set(mine.state_dict()["param_groups"][0]) == set(other.state_dict()["param_groups"][0])
    again, swapped = both(name, ours, theirs)
    again.load_state_dict(other.state_dict())
    swapped.load_state_dict(in_torch(mine.state_dict()))
    train(ours, again, gt, F.cross_entropy, 2)
    train(theirs, swapped, torch, cross_entropy, 2)
    compare(ours, theirs)


@needs_torch
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_in_double_precision_are_as_exact_as_pytorchs(name: str) -> None:
    """No setting passes through single precision on the way: Rprop's factors did."""
    start = R.standard_normal((3, 5))
    ours, theirs = gt.nn.Parameter(gt.tensor(start)), torch.nn.Parameter(torch.tensor(start))
    kind, options = OPTIMIZERS[name]
    mine, other = getattr(optim, kind)([ours], **options), getattr(torch.optim, kind)([theirs], **options)
    for _ in range(8):
        for parameter, optimizer in ((ours, mine), (theirs, other)):
            optimizer.zero_grad()
            (parameter.sin() * parameter).sum().backward()
            optimizer.step()
    exact = 1e-6 if kind in ("NAdam", "ASGD") else 1e-12  # PyTorch keeps NAdam's and ASGD's numbers in single precision
    np.testing.assert_allclose(ours.detach().numpy(), theirs.detach().numpy(), rtol=exact)


def in_torch(state: dict[str, Any]) -> dict[str, Any]:
    """A state with PyTorch's tensors in place of GT's."""
    kept = {
        place: {k: torch.tensor(v.numpy()) if isinstance(v, gt.Tensor) else v for k, v in entries.items()}
        for place, entries in state["state"].items()
    }
    for entries in kept.values():
        if "mu_product" in entries:
            entries["mu_product"] = torch.tensor(entries["mu_product"])
        if "step" in entries:
            entries["step"] = torch.tensor(float(entries["step"]))
    return {"state": kept, "param_groups": state["param_groups"]}


def test_lion_steps_by_signs() -> None:
    """Three steps by the formula of the paper, in NumPy."""
    start = R.standard_normal(5).astype(np.float32)
    p = nn.Parameter(gt.tensor(start))
    optimizer = optim.Lion([p], lr=0.1, betas=(0.8, 0.9), weight_decay=0.05)
    value, mean = start.astype(np.float64), np.zeros(5)
    for _ in range(3):
        optimizer.zero_grad()
        (p.square() * gt.arange(5)).sum().backward()
        optimizer.step()
        g = 2 * value * np.arange(5)
        value = value - 0.1 * (np.sign(0.8 * mean + 0.2 * g) + 0.05 * value)
        mean = 0.9 * mean + 0.1 * g
    np.testing.assert_allclose(p.numpy(), value, rtol=1e-5)


@needs_torch
def test_groups_have_settings_of_their_own() -> None:
    ours, theirs = pair()
    groups = lambda m: [{"params": m[0].named_parameters()}, {"params": list(m[4].named_parameters()), "lr": 0.01}]  # noqa: E731
    mine, other = optim.SGD(groups(ours), lr=0.1, momentum=0.5), torch.optim.SGD(groups(theirs), lr=0.1, momentum=0.5)
    extra = lambda m: {"params": m[2].parameters(), "lr": 0.02, "momentum": 0.0}  # noqa: E731
    mine.add_param_group(extra(ours) | {"param_names": ["weight"], "params": list(ours[2].named_parameters())})
    other.add_param_group({**extra(theirs), "params": list(theirs[2].named_parameters())})
    train(ours, mine, gt, F.cross_entropy, 3)
    train(theirs, other, torch, torch.nn.functional.cross_entropy, 3)
    compare(ours, theirs)
    assert [group["param_names"] for group in mine.param_groups] == [g["param_names"] for g in other.param_groups]


@needs_torch
def test_optimizers_print_as_in_pytorch() -> None:
    ours, theirs = pair()
    for name in ("nesterov", "adamw", "rmsprop"):
        mine, other = both(name, ours, theirs)
        assert repr(mine).replace("0.0\n", "0\n") == repr(other).replace("0.0\n", "0\n")


SCHEDULES: dict[str, Callable[[Any, Any], Any]] = {
    "step": lambda s, o: s.StepLR(o, 2, gamma=0.5),
    "multistep": lambda s, o: s.MultiStepLR(o, [2, 5, 5], gamma=0.5),
    "constant": lambda s, o: s.ConstantLR(o, 0.25, 4),
    "linear": lambda s, o: s.LinearLR(o, 0.1, 0.9, 6),
    "exponential": lambda s, o: s.ExponentialLR(o, 0.9),
    "polynomial": lambda s, o: s.PolynomialLR(o, 7, 2.0),
    "lambda": lambda s, o: s.LambdaLR(o, lambda n: 1 / (1 + n)),
    "multiplicative": lambda s, o: s.MultiplicativeLR(o, lambda n: 0.9 + 0.01 * n),
    "cosine": lambda s, o: s.CosineAnnealingLR(o, 6, eta_min=0.01),
    "restarts": lambda s, o: s.CosineAnnealingWarmRestarts(o, 3, 2, eta_min=0.01),
    "one-cycle": lambda s, o: s.OneCycleLR(o, 0.5, total_steps=20),
    "one-cycle-three": lambda s, o: s.OneCycleLR(
        o, 0.5, epochs=4, steps_per_epoch=5, three_phase=True, anneal_strategy="linear"
    ),
    "cyclic": lambda s, o: s.CyclicLR(o, 0.01, 0.3, 3, 4),
    "cyclic-half": lambda s, o: s.CyclicLR(o, 0.01, 0.3, 3, mode="triangular2", cycle_momentum=False),
    "cyclic-exp": lambda s, o: s.CyclicLR(o, 0.01, 0.3, 3, mode="exp_range", gamma=0.9),
    "sequential": lambda s, o: s.SequentialLR(
        o, [s.LinearLR(o, 0.1, total_iters=4), s.ExponentialLR(o, 0.9), s.CosineAnnealingLR(o, 5)], [4, 9]
    ),
    "chained": lambda s, o: s.ChainedScheduler([s.ConstantLR(o, 0.5, 3), s.ExponentialLR(o, 0.9), s.StepLR(o, 4)]),
}


@needs_torch
@pytest.mark.parametrize("kind", ["SGD", "Adam"])
@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_agree(name: str, kind: str) -> None:
    """Rates and momenta of two groups over fifteen steps, and going on from a state that was saved in the middle."""
    ours, theirs = network(nn), network(torch.nn)
    more = {"momentum": 0.9} if kind == "SGD" else {}

    def made(lib: Any, model: Any) -> Any:
        return getattr(lib, kind)(
            [{"params": model[0].parameters()}, {"params": model[4].parameters(), "lr": 0.05}], lr=0.2, **more
        )

    mine, other = made(optim, ours), made(torch.optim, theirs)
    a, b = SCHEDULES[name](optim.lr_scheduler, mine), SCHEDULES[name](torch.optim.lr_scheduler, other)
    for step in range(15):
        for optimizer, schedule in ((mine, a), (other, b)):
            optimizer.step()
            schedule.step()
        np.testing.assert_allclose(a.get_last_lr(), b.get_last_lr(), rtol=1e-9, atol=1e-12)
        for group, expected in zip(mine.param_groups, other.param_groups, strict=True):
            key = "momentum" if kind == "SGD" else "betas"
            np.testing.assert_allclose(group[key], expected[key], rtol=1e-9)
        if step == 6:
            saved = copy.deepcopy((a.state_dict(), mine.state_dict()))
    halted = made(optim, ours)
    resumed = SCHEDULES[name](optim.lr_scheduler, halted)
    halted.load_state_dict(saved[1])
    resumed.load_state_dict(saved[0])
    for _ in range(8):
        resumed.step()
    np.testing.assert_allclose(resumed.get_last_lr(), a.get_last_lr(), rtol=1e-9, atol=1e-12)


@needs_torch
@pytest.mark.parametrize("options", [{}, {"mode": "max", "threshold_mode": "abs"}, {"cooldown": 2, "min_lr": 0.03}])
def test_a_plateau_lowers_the_rate_as_in_pytorch(options: dict[str, Any]) -> None:
    ours, theirs = network(nn), network(torch.nn)
    mine, other = optim.SGD(ours.parameters(), lr=0.2), torch.optim.SGD(theirs.parameters(), lr=0.2)
    a = optim.lr_scheduler.ReduceLROnPlateau(mine, factor=0.5, patience=1, **options)
    b = torch.optim.lr_scheduler.ReduceLROnPlateau(other, factor=0.5, patience=1, **options)
    for loss in (3.0, 2.0, 2.0, 2.0, 2.5, 1.9, 1.9, 1.9, 1.9, 1.9, 1.9):
        a.step(gt.tensor(loss))
        b.step(loss)
        assert a.get_last_lr() == pytest.approx(b.get_last_lr())
        assert mine.param_groups[0]["lr"] == other.param_groups[0]["lr"]


@pytest.mark.parametrize("kind", ["SGD", "AdamW", "NAdam", "RAdam", "RMSprop", "Adagrad", "Adadelta", "Adamax", "Lion"])
def test_a_loop_with_a_schedule_makes_no_new_plans(kind: str) -> None:
    """Rates and counts change at every step and are run-time scalars: after the first steps everything repeats."""
    model = network(nn)
    optimizer = getattr(optim, kind)(model.parameters(), lr=0.01, **({"momentum": 0.9} if kind == "SGD" else {}))
    cyclic = kind in ("SGD", "AdamW")
    schedule: Any = (
        optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=40)
        if cyclic
        else optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
    )
    train(model, optimizer, gt, F.cross_entropy, 8, schedule)
    before = gt.stats()
    train(model, optimizer, gt, F.cross_entropy, 8, schedule)
    after = gt.stats()
    assert (after["definitions_made"], after["plans_made"]) == (before["definitions_made"], before["plans_made"])


@pytest.mark.parametrize("kind", ["SGD", "Adam", "AdamW", "RMSprop"])
def test_an_optimizer_goes_on_from_its_saved_state(kind: str) -> None:
    options = {"lr": 0.05, **({"momentum": 0.9} if kind == "SGD" else {})}
    straight = network(nn)
    halted = copy.deepcopy(straight)
    train(straight, getattr(optim, kind)(straight.parameters(), **options), gt, F.cross_entropy, 4)
    first = getattr(optim, kind)(halted.parameters(), **options)
    train(halted, first, gt, F.cross_entropy, 2)
    saved = first.state_dict()
    saved["state"] = {
        place: {key: value.numpy() if isinstance(value, gt.Tensor) else value for key, value in state.items()}
        for place, state in saved["state"].items()
    }
    second = getattr(optim, kind)(halted.parameters(), lr=99.0)
    second.load_state_dict(saved)
    train(halted, second, gt, F.cross_entropy, 2)
    for a, b in zip(straight.parameters(), halted.parameters(), strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
    with pytest.raises(gt.GTError, match="groups"):
        optim.SGD([nn.Parameter(gt.zeros(1))]).load_state_dict(saved)


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_states_are_written_in_place(name: str) -> None:
    """Whoever holds an entry of a state sees it change, as in PyTorch; and numbers are asked for without a step."""
    kind, settings = OPTIMIZERS[name]
    p = nn.Parameter(gt.ones(3))
    optimizer = getattr(optim, kind)([p], **settings)
    for _ in range(2):  # a momentum starts as the gradient itself
        p.grad = gt.ones(3)
        optimizer.step()
    before = {key: value for key, value in optimizer.state.get(p, {}).items() if isinstance(value, gt.Tensor)}
    seen = {key: value.numpy() for key, value in before.items()}
    counts = optimizer._counts(optimizer.state.get(p, {}), optimizer.param_groups[0])
    asked = optimizer._numbers(counts, optimizer.param_groups[0])
    assert asked == optimizer._numbers(counts, optimizer.param_groups[0])
    p.grad = gt.full((3,), 2.0)
    optimizer.step()
    after = optimizer.state.get(p, {})
    assert all(after[key] is value for key, value in before.items())
    assert all(not np.array_equal(before[key].numpy(), value) for key, value in seen.items())
    assert {key: after[key] for key in counts} == counts


def test_hooks_surround_a_step() -> None:
    p, seen = nn.Parameter(gt.ones(2)), []
    optimizer = optim.SGD([p], lr=0.5)
    before = optimizer.register_step_pre_hook(lambda o, args, options: seen.append(("before", p.tolist())))
    optimizer.register_step_post_hook(lambda o, args, options: seen.append(("after", p.tolist())))
    p.sum().backward()
    optimizer.step()
    before.remove()
    optimizer.step()
    assert seen == [("before", [1, 1]), ("after", [0.5, 0.5]), ("after", [0, 0])]


def test_a_closure_is_called_with_a_tape() -> None:
    p = nn.Parameter(gt.ones(2))
    optimizer = optim.SGD([p], lr=0.5)

    def closure() -> gt.Tensor:
        optimizer.zero_grad()
        loss = (p * p).sum()
        loss.backward()
        return loss

    with gt.no_grad():
        assert optimizer.step(closure).item() == 2
    assert p.tolist() == [0, 0]


def test_settings_that_make_no_sense_are_refused() -> None:
    p = nn.Parameter(gt.ones(2))
    for wrong in (
        lambda: optim.SGD([]),
        lambda: optim.SGD(p),
        lambda: optim.SGD([p], lr=-1),
        lambda: optim.SGD([p, p]),
        lambda: optim.SGD([p], nesterov=True),
        lambda: optim.Adam([p], betas=(1.0, 0.9)),
        lambda: optim.Adam([p * 2]),
        lambda: optim.Adam([{"params": [p]}, {"params": [p]}]),
    ):
        with pytest.raises((ValueError, TypeError)):
            wrong()


def rosenbrock(lib: Any, start: list[float], **options: Any) -> tuple[list[float], list[float]]:
    """Losses before each of some steps, and where they ended, of a valley that bends."""
    x = lib.tensor(start, dtype=lib.float64, requires_grad=True)
    optimizer = lib.optim.LBFGS([x], **options)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()
        loss.backward()
        return loss

    losses = [optimizer.step(closure).item() for _ in range(4)]
    return losses, x.detach().tolist()


@needs_torch
@pytest.mark.parametrize("history", [2, 100])
def test_steps_by_learnt_curvature_agree(history: int) -> None:
    """Without a search along the line every step is determined."""
    options = {"lr": 0.02, "max_iter": 6, "history_size": history}
    losses, end = rosenbrock(gt, [0.6, 0.5, 0.2], **options)
    expected, expected_end = rosenbrock(torch, [0.6, 0.5, 0.2], **options)
    np.testing.assert_allclose(losses, expected, rtol=1e-8)
    np.testing.assert_allclose(end, expected_end, rtol=1e-8)


def test_a_search_along_the_line_finds_the_bottom_of_a_bent_valley() -> None:
    losses, end = rosenbrock(gt, [-1.2, 1.0, -0.5], max_iter=25, line_search_fn="strong_wolfe")
    assert losses == sorted(losses, reverse=True)
    np.testing.assert_allclose(end, 1.0, atol=1e-5)


def test_learnt_curvature_needs_a_closure_and_one_group() -> None:
    x = gt.ones(2, requires_grad=True)
    with pytest.raises(TypeError, match="needs a closure"):
        gt.optim.LBFGS([x]).step()
    with pytest.raises(ValueError, match="one group of parameters"):
        gt.optim.LBFGS([{"params": [x]}, {"params": [gt.ones(2, requires_grad=True)]}])


@needs_torch
@pytest.mark.parametrize("lib", [gt, torch])
def test_learnt_curvature_goes_on_from_its_saved_state(lib: Any) -> None:
    """Its own or PyTorch's: the lists of what it has learnt are lists again."""

    def run(lib: Any, start: list[float], state: Any, steps: int) -> tuple[list[float], Any]:
        x = lib.tensor(start, dtype=lib.float64, requires_grad=True)
        optimizer = lib.optim.LBFGS([x], lr=0.02, max_iter=4, history_size=3)
        if state is not None:
            optimizer.load_state_dict(state)

        def closure() -> Any:
            optimizer.zero_grad()
            loss = (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()
            loss.backward()
            return loss

        for _ in range(steps):
            optimizer.step(closure)
        return x.detach().tolist(), optimizer.state_dict()

    there, state = run(lib, [0.6, 0.5, 0.2], None, 2)
    np.testing.assert_allclose(run(gt, there, state, 2)[0], run(lib, [0.6, 0.5, 0.2], None, 4)[0], rtol=1e-8)
