"""`gt tune`: finds the batch size and config with which a program is fastest on given workers.

Configs are ranked by what `gt explain` predicts, and the best are measured: the program runs under each for some updates on real
workers. Each prediction and each measurement is made by a process of its own (`gt/tools/tuning_process.py`); what is tried, what
is refused and what is best is decided here, from plain figures alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from gt.errors import GTError

from .config_candidates import NO_CONFIG, Candidate
from .config_search import Score
from .explain_render import size
from .tuning_process import BATCH_PLACE, BATCH_VARIABLE, ProcessFailed

Ask = Callable[[Mapping[str, Any], float], dict[str, Any]]
"""What answers a question in a process of its own, within so many seconds: `tuning_process.ask`."""
UNRELATED: Final = 1e-12
"""The difference between losses that is none, however small they are."""


@dataclass(frozen=True)
class TuningRequest:
    """What `gt tune` is asked. `memory` is what a worker may hold, in bytes (0: no limit); `tries` is how many configs are
    measured besides none, of all batch sizes together."""

    program: str
    arguments: Sequence[str] = ()
    workers: int | None = None
    address: str | None = None
    batches: Sequence[int | None] = (None,)
    memory: int = 0
    tries: int = 6
    warmup: int = 5
    steps: int = 10
    tolerance: float = 1e-3
    timeout: float = 120.0
    values: bool = True
    typical: bool = False
    search: bool = False

    def plain(self) -> dict[str, Any]:
        """What each process is told."""
        return {
            "program": self.program, "arguments": [*self.arguments], "workers": self.workers, "address": self.address,
            "values": self.values, "typical": self.typical, "warmup": self.warmup, "steps": self.steps,
            "search": self.search,
        }  # fmt: skip


@dataclass(frozen=True)
class Measurement:
    """What an update took: seconds, the bytes moved by it, and the most bytes that one worker has held. `losses` are the first
    that the program computed, of the kind that `compared` names."""

    seconds: float
    steps: int
    moved: int
    high_water: int
    compared: str
    losses: tuple[float, ...]


@dataclass
class Trial:
    """One config with one batch size: the prediction, and the measurement, or why there is none or it does not count."""

    batch: int | None
    candidate: Candidate
    measured: Measurement | None = None
    refused: str = ""

    @property
    def expected(self) -> float:
        """The predicted throughput: samples in a second, or updates where no batch size is known."""
        return (self.batch or 1) / max(self.candidate.predicted.seconds, UNRELATED)

    @property
    def throughput(self) -> float:
        """The measured throughput; 0 for a trial that does not count."""
        return 0.0 if self.measured is None or self.refused else (self.batch or 1) / self.measured.seconds


@dataclass
class Tuning:
    """What was tried, in order, and the best of it."""

    request: TuningRequest
    workers: int
    device: str
    trials: list[Trial]
    left_out: int = 0
    """How many further candidates were only predicted."""
    notes: list[str] = field(default_factory=list)

    @property
    def best(self) -> Trial | None:
        """The trial of the highest throughput that was measured."""
        best = max(self.trials, key=lambda trial: trial.throughput, default=None)
        return best if best is not None and best.throughput else None


def tune(request: TuningRequest, ask: Ask, say: Callable[[str], None] = lambda line: None) -> Tuning:
    """Predict, rank, and measure the best. `say` is told what is done next. Raises GTError if nothing can be predicted."""
    answers = []
    for batch in request.batches:
        say(f"explaining {request.program}{_with_batch(batch)}")
        answers.append(ask({"task": "predict", "batch": batch, **request.plain()}, request.timeout))
    predicted = {answer["batch"]: candidates_in(answer) for answer in answers}
    check_batches(predicted)
    trials, left_out = chosen(predicted, request.memory, request.tries)
    result = Tuning(request, int(answers[0]["workers"]), str(answers[0]["device"]), trials, left_out)
    if all(len(found) == 1 for found in predicted.values()) and result.workers > 1:
        result.notes.append(
            "The program names no signals for a config to bind to; say with gt.signal.context('batch'): … around its work, or "
            "gt.signal.attach(model)."
        )
    workers = result.workers if request.address is None else None
    for number, trial in enumerate(trials, 1):
        if not trial.refused:
            say(f"measuring {number} of {len(trials)}: {trial.candidate.name}{_with_batch(trial.batch)}")
            what = {**request.plain(), "task": "measure", "batch": trial.batch, "config": trial.candidate.config}
            try:
                trial.measured = measurement_in(ask({**what, "workers": workers}, request.timeout))
            except ProcessFailed as error:
                trial.refused = str(error)
    for group in by_batch(trials):
        compare_losses(group, request.tolerance)
    if any(trial.measured is not None and not trial.measured.losses for trial in trials):
        result.notes.append("Losses were not compared: the program calls no backward() outside of compiled functions.")
    return result


def candidates_in(answer: Mapping[str, Any]) -> list[Candidate]:
    """The candidates of a prediction's answer."""
    return [
        Candidate(each["name"], each["config"], Score(**each["predicted"])) for each in answer["candidates"]
    ]  # fmt: skip


def measurement_in(answer: Mapping[str, Any]) -> Measurement:
    """The measurement of a process's answer."""
    return Measurement(**{**answer, "losses": tuple(answer["losses"])})


def check_batches(predicted: Mapping[int | None, Sequence[Candidate]]) -> None:
    """Raise GTError if the program computes the same whatever its batch size is said to be."""
    scores = {batch: found[0].predicted for batch, found in predicted.items() if found}
    if not scores:
        raise GTError("no config fits these workers; give them more memory, or use more")
    if len(scores) > 1 and len(set(scores.values())) == 1:
        raise GTError(
            f"the program computes the same for all batch sizes: have it read the environment variable {BATCH_VARIABLE}, or say "
            f"{BATCH_PLACE} among its arguments, as in -- --batch {BATCH_PLACE}"
        )


def chosen(predicted: Mapping[int | None, Sequence[Candidate]], memory: int, tries: int) -> tuple[list[Trial], int]:
    """What is measured, in order, and how many candidates are left out.

    Of all batch sizes those configs are taken from which most samples a second are expected, and before each the run without a
    config of that batch size, with whose losses its own are compared. One whose prediction exceeds the memory limit stays in the
    list, refused, if it would have been taken. Of configs with the very same prediction only the first is taken.
    """
    ranked, seen = [], set()
    for batch, found in predicted.items():
        for candidate in found:
            key = (batch, candidate.predicted)
            if candidate.name == NO_CONFIG or key not in seen:
                seen.add(key)
                ranked.append(Trial(batch, candidate))
    ranked.sort(key=lambda trial: -trial.expected)
    for trial in ranked:
        if memory and trial.candidate.predicted.peak > memory:
            trial.refused = f"needs {size(trial.candidate.predicted.peak)}, over the limit of {size(memory)}"
    plain = [trial for trial in ranked if trial.candidate.name == NO_CONFIG]
    others = [trial for trial in ranked if trial.candidate.name != NO_CONFIG]
    fitting = [trial for trial in others if not trial.refused][:tries]
    last = others.index(fitting[-1]) if len(fitting) == tries and fitting else len(others)
    taken = [trial for trial in others[: last + 1] if trial.refused or trial in fitting]
    taken = [*plain, *taken]
    return [trial for group in by_batch(taken) for trial in group], len(ranked) - len(taken)


def by_batch(trials: Iterable[Trial]) -> list[list[Trial]]:
    """The trials of each batch size, those without a config first."""
    groups: dict[int | None, list[Trial]] = {}
    for trial in trials:
        groups.setdefault(trial.batch, []).append(trial)
    return [
        sorted(groups[key], key=lambda trial: trial.candidate.name != NO_CONFIG)
        for key in sorted(groups, key=lambda b: b or 0)
    ]


def compare_losses(trials: Sequence[Trial], tolerance: float) -> None:
    """Refuse trials of one batch size whose losses are not those of the first, to within a relative tolerance."""
    counted = [trial for trial in trials if trial.measured is not None and not trial.refused]
    if not counted:
        return
    reference = counted[0]
    assert reference.measured is not None, "it is counted"
    expected = reference.measured.losses
    for trial in counted[1:]:
        assert trial.measured is not None, "it is counted"
        got = trial.measured.losses
        same = len(got) == len(expected) and all(
            math.isclose(a, b, rel_tol=tolerance, abs_tol=UNRELATED) or (math.isnan(a) and math.isnan(b))
            for a, b in zip(got, expected, strict=True)
        )
        if not same:
            trial.refused = (
                f"other values: {_losses(trial.measured)}, and {_losses(reference.measured)} with {reference.candidate.name}; "
                "a config must not change them: is the program's seed fixed (gt.manual_seed), or --tolerance too low?"
            )


def _losses(measured: Measurement) -> str:
    """'first losses 2.31, 2.29'."""
    shown = ", ".join(f"{loss:.6g}" for loss in measured.losses)
    kind = "losses" if measured.compared == "loss" else "fetched numbers"
    return f"first {kind} {shown}" if shown else "no numbers"


def _with_batch(batch: int | None) -> str:
    return "" if batch is None else f" with batch size {batch}"
