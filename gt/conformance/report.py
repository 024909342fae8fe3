"""Runs the checks of a package's ops on a device, and says what they found: a table, and a sentence for each failure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from gt.op_packages.definition import NoGradient
from gt.op_packages.registry import OpPackage, title_of
from gt.worker.base.backend import Backend

from .cases import cases_of
from .checks import CHECKS, Subject

OK, FAILED, SKIPPED = "ok", "FAILED", "-"


class PackageOpReport(NamedTuple):
    """What the checks of one op found: by check a sentence for each failure, and how many calls were tried."""

    title: str
    calls: int
    failures: dict[str, list[str]]
    skipped: frozenset[str] = frozenset()

    def cell(self, check: str) -> str:
        """What the table says of a check."""
        return SKIPPED if check in self.skipped else FAILED if self.failures.get(check) else OK


def check_package(package: OpPackage, backend: Backend) -> Iterator[PackageOpReport]:
    """Check each op of a package. Gradients are computed in the default session, which the caller has."""
    for op in package.ops.values():
        title = title_of(package.name, op)
        try:
            subject = Subject(title, op, backend, cases_of(title, op))
            if not subject.cases:
                raise ValueError("samples= yields nothing")
            results = [case.result for case in subject.cases]
        except Exception as error:  # noqa: BLE001 — whatever the code of a package raises
            said = f"its samples are not legal calls ({type(error).__name__}: {error})"
            yield PackageOpReport(title, 0, {"shapes": [said]}, frozenset(CHECKS) - {"shapes"})
            continue
        skipped = {"gradient"} if op.gradient is None or isinstance(op.gradient, NoGradient) else set()
        yield PackageOpReport(title, len(results), _failures(subject), frozenset(skipped))


def _failures(subject: Subject) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, check in CHECKS.items():
        sentences: list[str] = []
        try:
            sentences.extend(check(subject))
        except Exception as error:  # noqa: BLE001 — whatever the code of a package raises
            sentences.append(f"the check {name!r} ended with {type(error).__name__}: {error}")
        if sentences:
            found[name] = sentences
    return found


def table(reports: Sequence[PackageOpReport]) -> str:
    """The reports in columns: an op in each row, a check in each column."""
    rows = [("op", "calls", *CHECKS)]
    rows += [(each.title, str(each.calls), *(each.cell(name) for name in CHECKS)) for each in reports]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
    return "".join(f"{line}\n" for line in lines)


def sentences(reports: Sequence[PackageOpReport]) -> list[str]:
    """One plain sentence for each failure."""
    return [
        f"{report.title}, {check}: {sentence}"
        for report in reports
        for check, found in report.failures.items()
        for sentence in found
    ]
