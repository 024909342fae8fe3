"""What a program says of its share of the workers' time when it begins a session."""

from __future__ import annotations

import pytest

import gt


def test_a_session_says_its_priority_and_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    """By argument, or else by environment variable; both are told to the dispatcher whenever the session joins one."""
    monkeypatch.setenv("GT_PRIORITY", "batch")
    monkeypatch.setenv("GT_WEIGHT", "2.5")
    said = gt.connect("inproc").said
    assert (said["priority"], said["weight"]) == ("batch", 2.5)
    said = gt.connect("inproc", priority="interactive", weight=3).said
    assert (said["priority"], said["weight"]) == ("interactive", 3.0)
    gt.disconnect()


@pytest.mark.parametrize(
    "wrong", [{"priority": "urgent"}, {"weight": 0}, {"weight": "much"}, {"weight": float("nan")}, {"weight": 1000}]
)
def test_what_is_not_allowed_is_refused_before_anything_is_started(wrong: dict[str, object]) -> None:
    """With what is allowed."""
    with pytest.raises(ValueError, match=r"is not one of auto, interactive|is no number from 0.01 to 100"):
        gt.connect("inproc", **wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"is not one of auto, interactive|is no number from 0.01 to 100"):
        gt.init(**wrong)  # type: ignore[arg-type]
