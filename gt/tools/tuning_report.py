"""How `gt tune` tells what it found: a table for a terminal, and the best config as YAML with what was measured as comments."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from rich.table import Table
from rich.text import Text

from .config_search import key_text
from .explain_render import duration, short, size, times

if TYPE_CHECKING:
    from .tuning import Trial, Tuning

MAX_REASON_LINES: Final = 3
"""How many lines of a failed process's last words are shown."""


def table(tuning: Tuning) -> Table:
    """What was tried, the best marked."""
    batches = tuning.request.batches != (None,)
    rate = "samples/s" if batches else "updates/s"
    shown = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    columns = [
        *(["batch"] if batches else []),
        "config",
        "predicted",
        "measured",
        rate,
        "memory",
        "held",
        "moved",
        "measured",
    ]
    for column in columns:
        shown.add_column(column, justify="left" if column == "config" else "right", no_wrap=True)
    best = tuning.best
    for trial in tuning.trials:
        cells = [trial.candidate.name, *_figures(trial)]
        if batches:
            cells.insert(0, str(trial.batch))
        shown.add_row(*cells, style="bold green" if trial is best else "dim" if trial.refused else "")
    return shown


def _figures(trial: Trial) -> list[str]:
    predicted, measured = trial.candidate.predicted, trial.measured
    mark = "refused" if trial.refused else ""
    return [
        duration(predicted.seconds),
        duration(measured.seconds) if measured else mark,
        mark or rate_text(trial.throughput),
        size(predicted.peak),
        size(measured.high_water) if measured else "",
        size(predicted.moved),
        size(measured.moved) if measured else "",
    ]


def lines_below(tuning: Tuning) -> Iterator[Text]:
    """What is said below the table: why trials do not count, notes, and the best."""
    for trial in tuning.trials:
        if trial.refused:
            reason = trial.refused.splitlines()
            some = reason if len(reason) <= MAX_REASON_LINES else [reason[0], *reason[-MAX_REASON_LINES + 1 :]]
            yield Text(f"{_label(trial)}: " + "\n  ".join(some), "yellow")
    for note in tuning.notes:
        yield Text(note)
    if tuning.left_out:
        yield Text(f"{tuning.left_out} more were predicted to be slower, and not run (--tries).", "dim")
    yield Text(f"predicted for {tuning.device}", "dim")
    best = tuning.best
    if best is not None:
        yield Text(f"best: {_label(best)}, {_measured(best)}{_compared(tuning, best)}", "bold")


def yaml(tuning: Tuning, best: Trial) -> str:
    """The best config as YAML that can be loaded."""
    return "".join(f"{line}\n" for line in _yaml_lines(tuning, best))


def _yaml_lines(tuning: Tuning, best: Trial) -> Iterator[str]:
    assert best.measured is not None, "it was measured"
    count = sum(trial.measured is not None for trial in tuning.trials)
    at = f", batch size {best.batch}" if best.batch is not None else ""
    yield f"# For {short(tuning.request.program)} on {_workers(tuning.workers)}{at}: the best of {count} that gt tune measured."
    yield f"# {best.candidate.name}: {_measured(best)}{_compared(tuning, best)}."
    yield (
        f"# Each update moved {size(best.measured.moved)}; predicted were {duration(best.candidate.predicted.seconds)}, "
        f"{size(best.candidate.predicted.moved)} moved and at most {size(best.candidate.predicted.peak)} on one worker."
    )
    config = best.candidate.config or {}
    for name, value in config.items():
        if name != "sharding_config" and value is not None:
            yield f"{name}: {flow(value)}"
    rules = config.get("sharding_config") or {}
    if not rules:
        yield "sharding_config: {}"
        return
    yield "sharding_config:"
    for signal, rule in rules.items():
        yield f"  {key_text(signal)}: {flow(rule)}"


def flow(value: Any) -> str:
    """A plain value in YAML's flow style."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key_text(str(key))}: {flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(flow, value)) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    return key_text(value) if isinstance(value, str) else str(value)


def rate_text(rate: float) -> str:
    """'12,345' or '1.23'."""
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def _label(trial: Trial) -> str:
    return trial.candidate.name if trial.batch is None else f"batch size {trial.batch}, {trial.candidate.name}"


def _measured(trial: Trial) -> str:
    """'12.1 ms an update, 5290 samples/s, over 10 updates'."""
    assert trial.measured is not None, "it was measured"
    if not trial.measured.steps:
        return f"{duration(trial.measured.seconds)} for the whole program"
    rate = "" if trial.batch is None else f", {rate_text(trial.throughput)} samples/s"
    return f"{duration(trial.measured.seconds)} an update{rate}, over {trial.measured.steps} updates"


def _compared(tuning: Tuning, best: Trial) -> str:
    """How much better than no config the best is, at the same batch size."""
    plain = [trial for trial in tuning.trials if trial.candidate.config is None and trial.batch == best.batch]
    if not plain or plain[0] is best or not plain[0].throughput:
        return ""
    return f"; {times(best.throughput / plain[0].throughput)} as fast as without a config"


def _workers(count: int) -> str:
    return f"{count} workers" if count > 1 else "one worker"
