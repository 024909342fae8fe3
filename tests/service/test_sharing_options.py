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


def test_a_config_says_it_where_program_and_environment_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the beginning of a session and when another config is loaded; the service is told, and so is the next dispatcher."""
    session = gt.connect("inproc", config={"priority": "batch", "weight": 2})
    core = session.link.fabric.dispatcher
    known = core.service.by_number[session.facts["number"]]

    def says() -> tuple[object, ...]:
        return session.said["priority"], session.said["weight"], str(known.priority), known.weight

    assert says() == ("batch", 2.0, "batch", 2.0)
    gt.load_config({"weight": 5})
    assert says() == ("batch", 5.0, "batch", 5.0)
    gt.load_config({"priority": "normal"})
    assert says() == ("normal", 5.0, "normal", 5.0)
    monkeypatch.setenv("GT_WEIGHT", "3")
    session = gt.connect("inproc", config={"priority": "batch", "weight": 2}, priority="interactive")
    core = session.link.fabric.dispatcher
    known = core.service.by_number[session.facts["number"]]
    gt.ones(1).numpy()
    assert says() == ("interactive", 3.0, "interactive", 3.0)
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
