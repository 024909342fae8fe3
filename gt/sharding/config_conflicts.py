"""Finds contradictions in a sharding config between keys that are valid by themselves.

`gt/sharding/config.py` checks each value by its type; this is what types cannot say. Where a rule contradicts the mesh is
`gt/sharding/config_meshes.py`'s.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Final

from gt.bounds import MAX_PATTERNS, MAX_RULES

from . import config_meshes
from .config_turns import batches, rules_in_turns
from .signal_patterns import is_pattern
from .spelling import did_you_mean, nearest_in_turns
from .strategies import ALLOWED_TEXTS, HINT_KEYS, STRATEGIES, allowed_at, rule_key
from .yaml_document import Key, Mistake, show

if TYPE_CHECKING:
    from .config import Config, Rule


NAMES_PER_TURN: Final = 256
"""Names of rules that are looked at in one turn."""
STAGES_PER_TURN: Final = 64  # or rules without them
SIGNALS_PER_TURN: Final = 16
"""Signals of which all rules are looked at in one turn."""


def contradictions(config: Config) -> Iterator[Mistake | None]:
    """All contradictions in a config, in no particular order, and None after each turn of the search for them."""
    if config.blocks is not None and config.blocks & (config.blocks - 1):
        yield Mistake(("blocks",), f"{config.blocks} is not a power of two", ALLOWED_TEXTS["blocks"])
    if config.blocks is not None and not config.deterministic:
        yield Mistake(("blocks",), "given without deterministic: true", "deterministic: true beside it")
    yield from config_meshes.several_auto(config.mesh or {})
    for rules in rules_in_turns(config.each()):
        for key, rule in rules:
            yield from _of_rule(config, key, rule)
        yield None
    patterns = 0
    for names in batches(config.rules, NAMES_PER_TURN):
        patterns += sum(map(is_pattern, names))
        yield None
    if patterns > MAX_PATTERNS:
        text = f"has {patterns} names that are patterns"
        yield Mistake(
            ("sharding_config",), text, f"at most {MAX_PATTERNS}, and any number of other names up to {MAX_RULES}"
        )
    for few in batches(config.rules.items(), SIGNALS_PER_TURN):
        for signal, each in few:
            if not each:
                yield Mistake(("sharding_config", signal), "is empty", allowed_at(("sharding_config", signal)))
            yield from _one_axis_each(signal, each)
        yield None
    yield from _one_pipeline(config)


def _of_rule(config: Config, key: Key, rule: Rule) -> Iterator[Mistake | None]:
    if config.deterministic and (rule.microbatches or 1) > 1:
        text = f"{rule.microbatches} are added up apart, which beside deterministic: true no value may depend on"
        yield Mistake((*key, "microbatches"), text, "1, or no deterministic: true")
    given = [name for name in type(rule).model_fields if name in rule.model_fields_set]
    if not given:
        yield Mistake(key, "the rule is empty", allowed_at(key))
    for name in given:
        if getattr(rule, name) is None:
            yield Mistake((*key, name), "nothing is given", allowed_at((*key, name)))
    workers = rule.shard.workers if rule.shard else None
    if workers is not None and (not workers or len({*workers}) < len(workers)):
        at = (*key, "shard", "workers")
        yield Mistake(at, "names a worker twice" if workers else "is empty", allowed_at(at))
    if rule.backward is not None and rule.backward not in config.rules:
        yield (yield from _unknown_rule((*key, "backward"), rule.backward, config))
    yield from _misplaced_options(key, rule, given)
    yield from _wrong_stages(key, rule)
    if config.mesh is not None:
        yield from config_meshes.contradictions(key, rule, config.mesh)


def _unknown_rule(key: Key, name: str, config: Config) -> Generator[None, None, Mistake]:
    near = yield from nearest_in_turns(name, config.rules)
    return Mistake(key, f"there is no rule {show(name)}{did_you_mean(near)}", ", ".join(config.rules))


def _misplaced_options(key: Key, rule: Rule, given: list[str]) -> Iterator[Mistake]:
    if rule.strategy and rule.shard:
        yield Mistake((*key, "shard"), f"given beside the strategy {rule.strategy}", "either strategy or shard")
        return
    form = (
        f"the strategy {rule.strategy}" if rule.strategy else "the explicit form" if rule.shard else "a rule of hints"
    )
    takes = STRATEGIES[rule.strategy].options if rule.strategy else ()
    for name in given:
        if name in ("strategy", "shard", *HINT_KEYS, *takes):
            continue
        owners = [strategy for strategy, (_, options) in STRATEGIES.items() if name in options]
        take = (
            f"{'strategies' if len(owners) > 1 else 'strategy'} {' and '.join(owners)} take{'s' * (len(owners) == 1)}"
        )
        allowed = ", ".join((*takes, *HINT_KEYS)) + f" (the {take} {name})"
        yield Mistake((*key, name), f"{form} does not take it", allowed)
    if rule.max_plan is not None and rule.strategy == "pipeline_parallel":
        text = "given beside the strategy pipeline_parallel, whose plans are not cut: their stages take turns"
        yield Mistake((*key, "max_plan"), text, "either max_plan or pipeline_parallel")
    if rule.device and (rule.shard or rule.stages):
        names = "stages" if rule.stages else "shard.workers"
        yield Mistake((*key, "device"), f"given beside {names}, which names the workers", f"either device or {names}")


def _wrong_stages(key: Key, rule: Rule) -> Iterator[Mistake | None]:
    if rule.strategy == "pipeline_parallel" and "stages" not in rule.model_fields_set:
        yield Mistake((*key, "stages"), "is missing", allowed_at((*key, "stages")))
    stages = rule.stages
    if stages is None:
        return
    if not stages or not all(stages):
        at = (*key, "stages", *(index for index, stage in enumerate(stages) if not stage))[: len(key) + 2]
        yield Mistake(at, "is empty", allowed_at(at))
    seen: dict[int, int] = {}
    for index, stage in enumerate(stages):
        if index and not index % STAGES_PER_TURN:
            yield None
        at = (*key, "stages", index)
        if len(stage) != len(stages[0]):
            text = f"has {len(stage)} workers, the first stage {len(stages[0])}"
            yield Mistake(at, text, allowed_at(at))
        times = Counter(stage)
        again = [worker for worker in stage if worker in seen or times[worker] > 1]
        if again:
            where = f", as does stage {seen[again[0]]}: stages do not overlap" if again[0] in seen else " twice"
            yield Mistake(at, f"names worker {again[0]}{where}", allowed_at((*key, "stages")))
        seen.update(dict.fromkeys(stage, index))


def _one_axis_each(signal: str, rules: tuple[Rule, ...]) -> Iterator[Mistake]:
    """Of several rules for one signal each speaks of a mesh axis of its own."""
    if len(rules) < 2:
        return
    axes: dict[str, int] = {}
    hints: dict[str, int] = {}
    for index, rule in enumerate(rules):
        key = rule_key(signal, len(rules), index)
        if rule.axis is None or rule.strategy is None:
            form = rule.strategy or ("the explicit form" if rule.shard else "a rule of hints")
            allowed = "strategies that speak of one mesh axis each, their own or mesh_axis"
            yield Mistake(key, f"{form} speaks of no one mesh axis, beside other rules", allowed)
        elif rule.axis in axes:
            text = f"speaks of the mesh axis {rule.axis}, as does {signal}[{axes[rule.axis]}]"
            yield Mistake(key, text, "one rule for each mesh axis")
        else:
            axes[rule.axis] = index
        for hint in ("backward", "compile", "device", "max_plan"):
            if getattr(rule, hint) is not None and hints.setdefault(hint, index) != index:
                yield Mistake((*key, hint), f"also given at {signal}[{hints[hint]}]", "once in a list of rules")


def _one_pipeline(config: Config) -> Iterator[Mistake | None]:
    """A session has one order of its stages' work: pipelines agree in their axis, microbatches and schedule."""
    first: tuple[Key, Rule] | None = None
    for rules in batches(config.each(), STAGES_PER_TURN):
        pipelines = [each for each in rules if each[1].strategy == "pipeline_parallel"]
        if pipelines and first is None:
            first = pipelines[0]
        for key, rule in pipelines:
            assert first is not None
            yield from _other_pipeline(key, rule, *first)
        yield None


def _other_pipeline(key: Key, rule: Rule, first: Key, other: Rule) -> Iterator[Mistake]:
    """In what a pipeline differs from the first one."""
    for name, mine, theirs in (
        ("mesh_axis", rule.axis, other.axis),
        ("microbatches", rule.microbatches or 1, other.microbatches or 1),
        ("schedule", rule.schedule or "1f1b", other.schedule or "1f1b"),
    ):
        if mine != theirs:
            text = f"{mine} contradicts {theirs} of {'.'.join(map(str, first))} ({other.where})"
            yield Mistake((*key, name), text, f"{theirs}: all pipelines of a session run in one order")
