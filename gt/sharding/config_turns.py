"""Reading a config a little at a time: how much is done in one turn, and how little of a wrong config has to be looked at.

The dispatcher reads the configs of its clients beside everything else that it does, so no step of that may take long, whatever
they say. Plain Python and no pydantic; `gt/sharding/config.py` checks what is in a config.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final, TypeVar

from gt.bounds import MAX_NAMED_WORKERS

from .strategies import MAX_AXES, MAX_NUMBER, MAX_SIGNAL_RULES, keys_at
from .yaml_document import Key

if TYPE_CHECKING:
    from .config import Rule

T = TypeVar("T")
MAX_SOUGHT_MISTAKES: Final = 32
"""The most mistakes that are looked for in one config."""
WORK_PER_TURN: Final = 64
"""How many rules are read in one turn, if they are short."""
WORKERS_PER_RULE: Final = 8
"""So many workers that a rule names, or more, count as another rule."""
ITEMS_PER_TURN: Final = 512
"""Keys and lines that are looked at in one turn."""
TOP_KEYS: Final = keys_at("")
RULE_KEYS: Final = keys_at("sharding_config.*")
SHARD_KEYS: Final = keys_at("sharding_config.*.shard")


def batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """The items, so many at a time."""
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch


def rules_in_turns(rules: Iterable[tuple[Key, Rule]], workers: int = 0) -> Iterator[list[tuple[Key, Rule]]]:
    """Rules with their keys, as many at a time as one turn's work is. `workers` is how many are looked at for each rule that
    speaks of single ones."""
    batch: list[tuple[Key, Rule]] = []
    work = 0
    for each in rules:
        batch.append(each)
        work += _work_of(each[1], workers)
        if work >= WORK_PER_TURN:
            yield batch
            batch, work = [], 0
    if batch:
        yield batch


def _work_of(rule: Rule, workers: int) -> int:
    if rule.shard is None and rule.stages is None and rule.device is None:
        return 1
    stages = rule.stages or ()
    named = len(stages) + sum(map(len, stages)) + (len(rule.shard.workers) if rule.shard is not None else 0)
    return 1 + (named + workers) // WORKERS_PER_RULE


def plain_in_turns(rules: Mapping[Any, Any]) -> Iterator[tuple[dict[Any, Any], bool]]:
    """The plain rules by signal, a turn's work at a time, and whether that was shortened (`shortened`)."""
    batch: dict[Any, Any] = {}
    work, cut = 0, False
    for signal, given in rules.items():
        batch[signal] = short = shortened(given)
        cut |= short is not given
        work += _plain_work(short)
        if work >= WORK_PER_TURN:
            yield batch, cut
            batch, work, cut = {}, 0, False
    if batch:
        yield batch, cut


def _plain_work(given: object) -> int:
    """About how much there is to check in the rules of a signal."""
    if isinstance(given, list):
        return sum(map(_plain_work, given))
    if not isinstance(given, dict):
        return 1
    shard = given.get("shard")
    workers = shard.get("workers") if isinstance(shard, dict) else None
    named = len(workers) if isinstance(workers, list) else 0
    if isinstance(stages := given.get("stages"), list):
        named += len(stages) + sum(map(len, _lists(stages)))
    return 1 + len(given) // 8 + named // WORKERS_PER_RULE


def shortened(given: Any) -> Any:
    """The rules of a signal as they are given, or, if they are wrong in very many places, as little of them as has the first
    of these mistakes. What has too many entries is only that: they are not looked at."""
    if isinstance(given, list):
        if len(given) > MAX_SIGNAL_RULES:
            return [{}] * (MAX_SIGNAL_RULES + 1)
        rules = [shortened(rule) for rule in given]
        return given if all(a is b for a, b in zip(rules, given, strict=True)) else rules
    if not isinstance(given, dict):
        return given
    changed: dict[str, Any] = {}
    if isinstance(stages := given.get("stages"), list) and (short := _short_stages(stages)) is not stages:
        changed["stages"] = short
    if isinstance(shard := given.get("shard"), dict) and (short_shard := _short_shard(shard)) is not shard:
        changed["shard"] = short_shard
    few = few_keys(given, RULE_KEYS)
    return {**few, **changed} if changed else few


def short_top(given: dict[Any, Any]) -> dict[Any, Any]:
    """The keys at the top of a config, shortened in the same way."""
    few, mesh = few_keys(given, TOP_KEYS), given.get("mesh")
    if isinstance(mesh, dict) and len(mesh) > MAX_AXES:
        return {**few, "mesh": {f"a{number}": 1 for number in range(MAX_AXES + 1)}}
    return few


def few_keys(given: dict[Any, Any], known: Sequence[str]) -> dict[Any, Any]:
    """A mapping with the known keys, and no more others than are looked for."""
    if len(given) <= len(known) + MAX_SOUGHT_MISTAKES:
        return given
    others = ((key, value) for key, value in given.items() if key not in known)
    return {key: given[key] for key in known if key in given} | dict(islice(others, MAX_SOUGHT_MISTAKES))


def _short_shard(shard: dict[Any, Any]) -> dict[Any, Any]:
    few, workers = few_keys(shard, SHARD_KEYS), shard.get("workers")
    short = _short_list(workers) if isinstance(workers, list) else workers
    return few if short is workers else {**few, "workers": short}


def _short_list(numbers: list[Any], wrong: int = 0) -> list[Any]:
    """A list of numbers up to the last mistake that is looked for; `wrong` were found before it."""
    if len(numbers) > MAX_NAMED_WORKERS:
        return [0] * (MAX_NAMED_WORKERS + 1)
    last = next(islice(_wrong_places(numbers), max(0, MAX_SOUGHT_MISTAKES - 1 - wrong), None), None)
    return numbers if last is None else numbers[: last + 1]


def _short_stages(stages: list[Any]) -> list[Any]:
    """Stages up to the last mistake that is looked for. No worker is in two, so together they name no more than a rule may."""
    if max(len(stages), sum(map(len, _lists(stages)))) > MAX_NAMED_WORKERS:
        return [[]] * (MAX_NAMED_WORKERS + 1)
    if {*map(type, stages)} <= {list} and next(_wrong_places([*chain.from_iterable(stages)]), None) is None:
        return stages
    wrong = 0
    for place, stage in enumerate(stages):
        bad = sum(1 for _ in _wrong_places(stage)) if isinstance(stage, list) else 1
        if wrong + bad >= MAX_SOUGHT_MISTAKES:
            return [*stages[:place], _short_list(stage, wrong) if isinstance(stage, list) else stage]
        wrong += bad
    return stages


def _lists(given: list[Any]) -> list[list[Any]]:
    """Those items that are lists."""
    return given if {*map(type, given)} <= {list} else [item for item in given if isinstance(item, list)]


def _wrong_places(numbers: list[Any]) -> Iterator[int]:
    """Where a list has something else than the number of a worker."""
    if {*map(type, numbers)} <= {int} and 0 <= min(numbers, default=0) <= max(numbers, default=0) <= MAX_NUMBER:
        return
    for place, number in enumerate(numbers):
        if type(number) is not int or not 0 <= number <= MAX_NUMBER:
            yield place
