"""Proposes a sharding config: plans what a program asked for again under many configs, and keeps the best.

It uses coordinate descent over what each signal may be told on each mesh axis, for every shape of mesh that the workers can
form, with the planner's cost model. The proposal is YAML that says of each rule what it gains. Nothing is computed, and the
program does not run again.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from gt.errors import GTError

from .explain_render import duration, short, size, times
from .shadow_planner import Shadow

if TYPE_CHECKING:
    from gt.sharding.config import Config

    from .explain import Explainer
    from .explanation import Explanation

MAX_TRIALS: Final = 150
"""The most configs that are tried."""
MAX_TIME_RATIO: Final = 0.995
"""A change, and each rule, must reduce the time to less than this share of it to be kept, because rules also have to be read."""
BEST_MESHES: Final = 2
"""How many of the mesh shapes that were tried are searched further."""

Rule = Mapping[str, Any]
BATCH_RULE: Final[Rule] = {"strategy": "data_parallel"}
SHARDED_RULE: Final[Rule] = {"strategy": "fully_sharded"}
COLUMN_RULE: Final[Rule] = {"strategy": "tensor_parallel", "dimension": 0}
ROW_RULE: Final[Rule] = {"strategy": "tensor_parallel", "dimension": 1}
SEQUENCE_RULE: Final[Rule] = {"strategy": "sequence_parallel"}
RULES_BY_AXIS: Final[Mapping[str, tuple[Rule | None, ...]]] = {
    "data": (None, BATCH_RULE, SHARDED_RULE),
    "model": (None, COLUMN_RULE, ROW_RULE, SEQUENCE_RULE),
}
"""What a signal may be told on each axis."""

Choice = dict[tuple[str, str], Rule]
"""By signal and axis."""


@dataclass(frozen=True)
class Score:
    """What one config takes: seconds, bytes moved, and the most bytes that a worker holds."""

    seconds: float
    moved: int
    peak: int


@dataclass
class Proposal:
    """The best config found. `score` is its score, `given` that of the config with which the program was explained."""

    program: str
    workers: int
    mesh: dict[str, int]
    choice: Choice
    score: Score
    given: tuple[str, Score]
    alone: float
    tried: int
    without: dict[str, Score] = field(default_factory=dict)
    """For each signal, the score of the config without its rules."""

    @property
    def yaml(self) -> str:
        """The config as YAML that can be loaded, with the reasons as comments."""
        return "".join(f"{line}\n" for line in self._lines())

    def _lines(self) -> Iterator[str]:
        used = math.prod(self.mesh.values())
        workers = f"{used} of {self.workers} workers" if used < self.workers else f"{used} workers"
        yield f"# For {self.program} on {workers}, the best of {self.tried} configs by prediction:"
        yield f"# {_score_text(self.score)}."
        name, given = self.given
        if given.seconds > self.score.seconds:
            yield f"# {name}: {_score_text(given)}; so this is {times(given.seconds / self.score.seconds)} as fast."
        else:
            yield f"# No better than {name}: {_score_text(given)}."
        if self.alone <= self.score.seconds:
            yield f"# One worker alone takes {duration(self.alone)}: for this much work {workers} do not pay."
        else:
            yield f"# One worker alone takes {duration(self.alone)}, {times(self.alone / self.score.seconds)} as long."
        yield "mesh: {" + ", ".join(f"{axis}: {length}" for axis, length in self.mesh.items()) + "}"
        rules = rules_by_signal(self.choice)
        if not rules:
            yield "sharding_config: {}"
            return
        yield "sharding_config:"
        for signal, each in rules.items():
            without = self.without.get(signal)
            if without is not None:
                slower = without.seconds / self.score.seconds - 1
                more = without.moved - self.score.moved
                traffic = f", {size(abs(more))} {'more' if more > 0 else 'less'} moved" if more else ""
                yield f"  # without it {duration(without.seconds)} ({slower:+.0%}){traffic}"
            shown = [_flow(rule) for rule in each]
            yield f"  {key_text(signal)}: {shown[0] if len(shown) == 1 else '[' + ', '.join(shown) + ']'}"


class Search:
    """One search. `stream` has the program's messages, with None between updates; `limit` is as in `propose`."""

    def __init__(
        self, stream: Sequence[Any], facts: Sequence[Mapping[str, Any]], updates: int, limit: int = 0, link: float = 0.0
    ) -> None:
        self.stream = stream
        self.facts = [{**said, "memory": limit} for said in facts] if limit else facts
        self.link = link
        self.last = max(0, updates - 1)
        self.scores: dict[Any, Score | None] = {}

    def propose(self, program: str, signals: Sequence[str], given: tuple[str, Score], alone: float) -> Proposal:
        """The best config for these signals, which are in order of first use. Raises GTError if every config is refused."""
        found: list[tuple[float, dict[str, int], Choice]] = []
        for mesh in meshes_of(len(self.facts)):
            for choice in self.starts(mesh, signals):
                score = self.score(mesh, choice)
                if score is not None:
                    found.append((score.seconds, mesh, choice))
        if not found:
            raise GTError(f"no config for {program} fits {len(self.facts)} workers; give them more memory, or use more")
        found.sort(key=lambda each: each[0])
        best = found[0]
        seen: list[dict[str, int]] = []
        for _, mesh, choice in found:
            if mesh not in seen and len(seen) < BEST_MESHES:
                seen.append(mesh)
                best = min(best, self.descend(mesh, choice, signals), key=lambda each: each[0])
        _, mesh, choice = best
        mesh = self.smaller(mesh, choice)
        choice, without = self.pruned(mesh, choice)
        score = self.score(mesh, choice)
        assert score is not None, "it was scored before"
        return Proposal(program, len(self.facts), mesh, choice, score, given, alone, len(self.scores), without)

    def starts(self, mesh: Mapping[str, int], signals: Sequence[str]) -> Iterator[Choice]:
        """The starting points: the batch sharded, weights whole or sharded; and layers in pairs of column and row form."""
        bases: list[Choice] = [{}]
        if "data" in mesh:
            who = ((signals[:1], BATCH_RULE), (signals, BATCH_RULE), (signals, SHARDED_RULE))
            bases = [{(signal, "data"): rule for signal in each} for each, rule in who]
        for data in bases:
            yield data
            if "model" in mesh:
                inner = signals[1:] if len(signals) > 1 else signals
                yield data | {(signal, "model"): (COLUMN_RULE, ROW_RULE)[n % 2] for n, signal in enumerate(inner)}

    def descend(
        self, mesh: dict[str, int], choice: Choice, signals: Sequence[str]
    ) -> tuple[float, dict[str, int], Choice]:
        """Change one thing after the other, or two neighbouring ones at once, as long as it helps."""
        score = self.score(mesh, choice)
        assert score is not None, "a start that can be followed"
        best = score.seconds
        improved = True
        while improved and len(self.scores) < MAX_TRIALS:
            improved = False
            for changed in self.neighbours(mesh, choice, signals):
                score = self.score(mesh, changed)
                if score is not None and score.seconds < best * MAX_TIME_RATIO:
                    best, choice, improved = score.seconds, changed, True
                if len(self.scores) >= MAX_TRIALS:
                    break
        return best, mesh, choice

    def neighbours(self, mesh: Mapping[str, int], choice: Choice, signals: Sequence[str]) -> Iterator[Choice]:
        if "model" in mesh:
            for first, second in itertools.pairwise(signals):
                yield choice | {(first, "model"): COLUMN_RULE, (second, "model"): ROW_RULE}
        for signal in signals:
            for axis in mesh:
                for rule in RULES_BY_AXIS[axis]:
                    kept = {key: value for key, value in choice.items() if key != (signal, axis)}
                    if rule != choice.get((signal, axis)):
                        yield kept if rule is None else kept | {(signal, axis): rule}

    def smaller(self, mesh: dict[str, int], choice: Choice) -> dict[str, int]:
        """The mesh without an axis that no rule uses, if that costs nothing: others can use these workers."""
        now = self.score(mesh, choice)
        for axis in mesh:
            rest = {name: length for name, length in mesh.items() if name != axis}
            if now is not None and rest and not any(named == axis for _, named in choice):
                score = self.score(rest, choice)
                if score is not None and score.seconds * MAX_TIME_RATIO <= now.seconds:
                    return rest
        return mesh

    def pruned(self, mesh: dict[str, int], choice: Choice) -> tuple[Choice, dict[str, Score]]:
        """The choice without the rules that gain nothing, and its score without each of the others."""
        without: dict[str, Score] = {}
        for signal in list(rules_by_signal(choice)):
            now = self.score(mesh, choice)
            fewer = {key: rule for key, rule in choice.items() if key[0] != signal}
            score = self.score(mesh, fewer)
            assert now is not None, "it was scored before"
            if score is not None and score.seconds * MAX_TIME_RATIO <= now.seconds:
                choice, without = fewer, {}
        for signal in rules_by_signal(choice):
            score = self.score(mesh, {key: rule for key, rule in choice.items() if key[0] != signal})
            if score is not None:
                without[signal] = score
        return choice, without

    def score(self, mesh: Mapping[str, int], choice: Choice) -> Score | None:
        """The score of a config; None if a service would refuse it."""
        key = (tuple(mesh.items()), tuple(sorted((at, tuple(rule.items())) for at, rule in choice.items())))
        if key not in self.scores:
            self.scores[key] = self.planned(mesh, choice)
        return self.scores[key]

    def planned(self, mesh: Mapping[str, int], choice: Choice) -> Score | None:
        """The score of a choice, by planning; None if a service would refuse it."""
        try:
            return self.score_config(config_of(mesh, choice))
        except GTError:
            return None

    def score_config(self, config: Config | None) -> Score | None:
        """Plan the whole stream again, because memory may be scarcest before the last update; None if a service would refuse
        this."""
        try:
            shadow = Shadow("", config, self.facts, link=self.link)
            for message in self.stream:
                if message is None:
                    shadow.update += 1
                else:
                    shadow.take(message)
        except GTError:
            return None
        return score_of(shadow, self.last)


def propose(program: str, explainer: Explainer, given: Explanation, limit: int = 0) -> Proposal:
    """The best config for an explained program under which no worker holds more than `limit` bytes (0: no limit).

    Raises GTError if there is no signal to bind to, or nothing fits.
    """
    shadow = explainer.shadows[0]
    signals = signals_of(shadow.uses)
    if not signals:
        raise GTError(
            f"{program} names no signals for a config to bind to; say with gt.signal.context('batch'): … around its "
            "work, or gt.signal.attach(model)"
        )
    if len(shadow.facts) == 1:
        raise GTError("with one worker there is nothing to search for; say --workers N")
    search = Search(explainer.stream, shadow.facts, explainer.updates, limit, shadow.link)
    score = Score(given.seconds, given.moved, given.memory.peak)
    return search.propose(short(program), signals, (short(given.config), score), given.alone)


def score_of(shadow: Shadow, update: int) -> Score:
    """The score of a shadow's plans for one update."""
    accounts = [ran.estimate for ran in shadow.runs if ran.update == update]
    seconds, moved = sum(each.seconds for each in accounts), sum(each.moved for each in accounts)
    return Score(seconds, moved, shadow.memory.peak)


def signals_of(paths: Iterable[Sequence[str]]) -> list[str]:
    """The names that a config can bind to, outermost first; names that differ only in numbers become one pattern."""
    names = dict.fromkeys(name for path in sorted(paths, key=len) for name in path)
    alike: dict[str, list[str]] = {}
    for name in names:
        alike.setdefault(re.sub(r"\d+", "*", name), []).append(name)
    return [pattern if len(members) > 1 else members[0] for pattern, members in alike.items()]


def config_of(mesh: Mapping[str, int], choice: Choice) -> Config:
    """The config for a choice."""
    from gt.sharding.config import Config

    rules = {signal: each[0] if len(each) == 1 else each for signal, each in rules_by_signal(choice).items()}
    return Config.from_plain({"mesh": dict(mesh), "sharding_config": rules})


def meshes_of(workers: int) -> Iterator[dict[str, int]]:
    """Every grid of data and model; an axis of one worker is left out."""
    for model in (n for n in range(1, workers + 1) if workers % n == 0):
        mesh = {axis: length for axis, length in (("data", workers // model), ("model", model)) if length > 1}
        yield mesh or {"data": 1}


def rules_by_signal(choice: Choice) -> dict[str, list[dict[str, Any]]]:
    """The rules of each signal, one for each axis."""
    found: dict[str, list[dict[str, Any]]] = {}
    for (signal, _), rule in choice.items():
        found.setdefault(signal, []).append(dict(rule))
    return found


def _score_text(score: Score) -> str:
    return f"{duration(score.seconds)}, {size(score.moved)} moved, {size(score.peak)} at most on one worker"


def _flow(rule: Rule) -> str:
    return "{" + ", ".join(f"{key}: {value}" for key, value in rule.items()) + "}"


def key_text(signal: str) -> str:
    """A signal as a key of YAML, in quotes where it needs them."""
    return signal if re.fullmatch(r"[A-Za-z_][\w./-]*", signal) else f'"{signal}"'
