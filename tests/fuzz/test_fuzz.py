"""Some thousands of fuzzed inputs at every commit, and every input that ever broke a rule. `make fuzz` tries more."""

from __future__ import annotations

from typing import Any

import pytest
from effort import PROVED, cases
from fuzz.edits import Edit, edited
from fuzz.running import FAILURES, finding, fuzz, samples
from fuzz.targets import TARGETS
from hypothesis import given, settings
from hypothesis import strategies as st

from gt.dispatcher.handlers.runs import RunHandler
from gt.dispatcher.state.records import ClientRecord
from gt.wire.messages import CODES, Free, Put

INPUTS = {name: 30 if name == "service" else 1000 for name in TARGETS}
"""How many inputs of each target are drawn, by the effort."""
KEPT = sorted(FAILURES.glob("*.bin"))

edits = st.lists(st.builds(Edit, st.integers(0, 1 << 24), st.integers(0, 5), st.integers(0, 1 << 24)), max_size=4)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", TARGETS)
def test_no_input_breaks_a_rule(name: str) -> None:
    """Drawn edits of samples: decoders raise nothing but their own errors, and a hostile client harms nobody."""
    known: set[str] = set()
    count = cases(INPUTS[name])
    found = [wrong for seed in range(count) if (wrong := fuzz(name, seed, known)) is not None]
    PROVED["fuzzed inputs, of which none broke a rule"] += count
    assert found == []


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [name for name in TARGETS if name != "service"])
@given(number=st.integers(0, 99), changes=edits)
def test_no_edits_break_a_decoder(name: str, number: int, changes: list[Edit]) -> None:
    """The same, with edits that Hypothesis draws and, where they find something, makes few."""
    assert finding(name, _edited(name, number, changes)) is None


@pytest.mark.filterwarnings("ignore")
@settings(max_examples=cases(20))
@given(number=st.integers(0, 99), changes=edits)
def test_no_edits_of_what_a_client_says_harm_another(number: int, changes: list[Edit]) -> None:
    """The same of a whole session, beside that of an honest client."""
    assert finding("service", _edited("service", number, changes)) is None


def _edited(name: str, number: int, changes: list[Edit]) -> bytes:
    known = samples(name)
    return TARGETS[name].build(edited(known[number % len(known)], changes))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("path", KEPT, ids=lambda path: str(path.stem))
def test_what_once_broke_a_rule_breaks_none(path: Any) -> None:
    """Inputs that fuzzing found, as they are."""
    assert finding(path.stem.partition("-")[0], path.read_bytes()) is None


def test_every_sample_is_sound() -> None:
    """Without edits there is nothing to refuse: samples are what programs send and files hold."""
    for name, target in TARGETS.items():
        for sample in samples(name):
            data = target.build(sample)
            assert len(data) > 1
            assert finding(name, data) is None


def test_harm_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service in which one client frees the tensors of another breaks the rule, so the comparison sees it."""

    def free_of_all(self: RunHandler, client: ClientRecord, tensors: list[int]) -> None:
        for other in self.service.clients.values():
            for tensor in tensors:
                other.table.pop(tensor, None)

    sample = TARGETS["service"].build(samples("service")[0])
    assert finding("service", sample) is None
    with monkeypatch.context() as patch:
        patch.setattr(RunHandler, "free", free_of_all)
        codes = [
            [CODES.index(Free), [message[1] for message in samples("service")[0] if message[0] == CODES.index(Put)]]
        ]
        assert finding("service", TARGETS["service"].build([*samples("service")[0][:3], *codes * 9])) is not None
