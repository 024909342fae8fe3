"""Make a failing case small: drop steps, repetitions, rules and signals as long as it still fails in the same way.

Programs are data, so this needs to know nothing of what they mean: a step goes together with all that reads its results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from .networks import Network
from .places import Place
from .programs import Program, Step

Fails = Callable[[Any, Place], bool]


def reduced(subject: Any, place: Place, fails: Fails) -> tuple[Any, Place]:
    """The smallest case that greedy steps find, of which `fails` still says so; `subject` is a program or a network."""
    going = True
    while going:
        going = False
        for smaller in (_smaller_network if isinstance(subject, Network) else _smaller)(subject, place):
            if fails(*smaller):
                subject, place = smaller
                going = True
                break
    return subject, place


def _smaller_network(network: Network, place: Place) -> Iterator[tuple[Network, Place]]:
    """Simpler networks: fewer layers and steps, and nothing on the way that is out of the ordinary."""
    layers = network.layers
    for number in range(len(layers) if len(layers) > 1 else 0):
        yield replace(network, layers=layers[:number] + layers[number + 1 :]), place
    plain = {"tied": False, "attached": False, "peek": False, "nudge": False, "ragged": False, "regression": False}
    for name, value in {**plain, "outer": None, "optimizer": "SGD", "parts": 1, "sequence": 0}.items():
        if getattr(network, name) != value:
            yield replace(network, **{name: value}), place
    if network.steps > 1:
        yield replace(network, steps=network.steps - 1), place
    for simpler in _simpler_places(place):
        yield network, simpler
    for number, layer in enumerate(layers):
        for less in (replace(layer, backward=None), replace(layer, signal=None, backward=None)):
            if less != layer:
                yield replace(network, layers=(*layers[:number], less, *layers[number + 1 :])), place


def _smaller(program: Program, place: Place) -> Iterator[tuple[Program, Place]]:
    """Simpler cases, the boldest first."""
    if program.repeats > 1:
        yield replace(program, repeats=program.repeats - 1), place
    count = len(program.body)
    for size in (count // 2, count // 4, 1):
        for start in range(0, count, size) if size else ():
            yield replace(program, body=_without(program.body, range(start, start + size))), place
    for number, step in enumerate(program.setup):
        setup = _without(program.setup, range(number, number + 1))
        gone = set(step.outs) | {out for other in program.setup if other not in setup for out in other.outs}
        yield replace(program, setup=setup, body=_living(program.body, gone)), place
    for simpler in _simpler_places(place):
        yield program, simpler
    for name in ("setup", "body"):
        steps: tuple[Step, ...] = getattr(program, name)
        for number, step in enumerate(steps):
            if step.signal is not None:
                plain = replace(step, signal=None, backward=None)
                yield replace(program, **{name: (*steps[:number], plain, *steps[number + 1 :])}), place


def _simpler_places(place: Place) -> Iterator[Place]:
    for name, value in (("reload", None), ("codec", False), ("speeds", ())):
        if getattr(place, name) != value:
            yield place._replace(**{name: value})
    config = place.config or {}
    rules = config.get("sharding_config", {})
    for name, rule in rules.items():
        yield place._replace(config={**config, "sharding_config": {k: v for k, v in rules.items() if k != name}})
        for key in rule if isinstance(rule, dict) else ():
            less = {k: v for k, v in rule.items() if k != key}
            yield place._replace(config={**config, "sharding_config": {**rules, name: less}})


def _without(steps: tuple[Step, ...], numbers: range) -> tuple[Step, ...]:
    gone = {out for number in numbers if number < len(steps) for out in steps[number].outs}
    return _living(tuple(step for number, step in enumerate(steps) if number not in numbers), gone)


def _living(steps: tuple[Step, ...], gone: set[int]) -> tuple[Step, ...]:
    """The steps that read nothing of what is gone; optimizers and fetches read what is left."""
    kept = []
    for step in steps:
        left = tuple(i for i in step.ins if i not in gone)
        if len(left) < len(step.ins):
            if step.op not in ("optimizer", "fetch") or not left:
                gone = gone | set(step.outs)
                continue
            step = replace(step, ins=left)
        kept.append(step)
    return tuple(kept)
