"""The sharding configs that `gt tune` may try for a program, each with its predicted time, bytes moved and memory.

The program's messages, as `gt explain` recorded them, are planned again under every candidate; nothing is computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gt.errors import GTError

from .config_search import Rule, Score, Search, config_of, meshes_of, rules_by_signal, signals_of

if TYPE_CHECKING:
    from gt.sharding.config import Config

    from .explain import Explainer
    from .explanation import Explanation

MICROBATCHES_PER_STAGE: Final = 2
"""How many microbatches a candidate pipeline has for each stage: enough that its stages are busy for most of the time."""
NO_CONFIG: Final = "no config"
OWN_CONFIG: Final = "the program's own"

PlainConfig = dict[str, Any]
"""A config as `Config.to_plain` spells it."""


@dataclass(frozen=True)
class Candidate:
    """One config, and what an update under it is predicted to take. `config` is None where the program runs without one."""

    name: str
    config: PlainConfig | None
    predicted: Score


def candidates_of(explainer: Explainer, given: Explanation, *, searching: bool = False) -> list[Candidate]:
    """All configs that an explained program may be tried with, each once, without those that a service would refuse.

    The first is no config at all. Then come the config that the program itself asked for, the strategies alone and mixed over
    every mesh of the workers, pipelines, `auto`, and with `searching` what `gt explain --search` proposes, which takes longer.
    """
    shadow = explainer.shadows[0]
    search = Search(explainer.stream, shadow.facts, explainer.updates, link=shadow.link)
    found: dict[str, Candidate] = {}

    def add(name: str, config: Config | None) -> None:
        plain = None if config is None else config.to_plain()
        key = repr(plain)
        if key not in found:
            score = search.score_config(config)
            if score is not None:
                found[key] = Candidate(name, plain, score)

    add(NO_CONFIG, None)
    if shadow.config is not None:
        add(OWN_CONFIG, shadow.config)
    signals, workers = signals_of(shadow.uses), len(shadow.facts)
    if workers > 1 and signals:
        for name, mesh, rules in [*_grids(search, workers, signals), *_pipelines(workers, units_of(shadow.uses))]:
            add(name, _config(mesh, rules))
        add("auto", _config(None, {signal: {"strategy": "auto"} for signal in signals}))
    if workers > 1 and signals and searching:
        score = Score(given.seconds, given.moved, given.memory.peak)
        try:
            proposal = search.propose(given.program, signals, (given.config, score), given.alone)
        except GTError:
            return list(found.values())  # nothing on a mesh fits: what is there is what can be tried
        add("searched", config_of(proposal.mesh, proposal.choice))
    return list(found.values())


def units_of(paths: Iterable[Sequence[str]]) -> list[str]:
    """The signals that a pipeline can deal out to its stages: those right below the one that encloses all others, if there is
    such a one, or else the outermost. Names that differ only in numbers become one pattern."""
    known = [tuple(path) for path in paths if path]
    outermost = {path[0] for path in known}
    depth = 1 if len(outermost) == 1 and any(len(path) > 1 for path in known) else 0
    return signals_of([(path[depth],) for path in known if len(path) > depth])


def _grids(
    search: Search, workers: int, signals: Sequence[str]
) -> Iterator[tuple[str, Mapping[str, int] | None, dict[str, Any]]]:
    """The starting points of the search on every mesh, named by their strategies."""
    for mesh in meshes_of(workers):
        for choice in search.starts(mesh, signals):
            strategies = dict.fromkeys(
                f"{str(rule['strategy']).replace('_', ' ')} {mesh[axis]}" for (_, axis), rule in choice.items()
            )
            rules = {signal: each[0] if len(each) == 1 else each for signal, each in rules_by_signal(choice).items()}
            if rules:
                yield " × ".join(strategies), mesh, rules


def _pipelines(workers: int, units: Sequence[str]) -> Iterator[tuple[str, None, dict[str, Any]]]:
    """Pipelines of two and more stages, each of equally many workers."""
    for count in (n for n in range(2, workers + 1) if workers % n == 0):
        width = workers // count
        stages = [[*range(stage * width, (stage + 1) * width)] for stage in range(count)]
        rule: Rule = {
            "strategy": "pipeline_parallel", "stages": stages, "microbatches": count * MICROBATCHES_PER_STAGE,
        }  # fmt: skip
        yield (
            f"pipeline of {count} × {width}" if width > 1 else f"pipeline of {count}",
            None,
            dict.fromkeys(units, rule),
        )


def _config(mesh: Mapping[str, int] | None, rules: Mapping[str, Any]) -> Config:
    from gt.sharding.config import Config

    return Config.from_plain({**({"mesh": dict(mesh)} if mesh else {}), "sharding_config": dict(rules)})
