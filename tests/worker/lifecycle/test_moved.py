"""A worker that loads its program anew goes to the dispatcher that has taken the place of its first."""

from __future__ import annotations

import pytest

from gt.worker.lifecycle.restart import MOVED_VARIABLE, moved


def test_it_goes_where_it_was_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(MOVED_VARIABLE, raising=False)
    assert moved("tcp://a:1") == ("tcp://a:1", 0, 0)
    monkeypatch.setenv(MOVED_VARIABLE, "7 2 ipc:///with a space")
    assert moved("tcp://a:1") == ("ipc:///with a space", 7, 2)


@pytest.mark.parametrize("said", ["", "tcp://b:1", "2 tcp://b:1", "x 2 tcp://b:1", "7 -2 tcp://b:1"])
def test_what_is_none_of_its_words_counts_for_nothing(monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    monkeypatch.setenv(MOVED_VARIABLE, said)
    assert moved("tcp://a:1") == ("tcp://a:1", 0, 0)
