"""The instruction log: what a program did is written so that people read it and `gt replay` does it again, bit for bit.

All of this is in one thread but for the log's own; the tests of processes are in `process/test_replay.py`.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from effort import PROVED, cases
from hypothesis import given
from hypothesis import strategies as st
from ir.test_instruction import network, several
from law.__main__ import case, network_case
from law.networks import train
from law.running import Subject
from typer.testing import CliRunner, Result

import gt
from gt.commands.app import app
from gt.errors import GTError
from gt.instruction_log.reader import LogReader
from gt.instruction_log.text import (
    FetchFault,
    FetchResult,
    KnownTensor,
    LoggedPut,
    LogWriter,
    SessionBegan,
    SessionEnded,
    name,
    print_definition,
    tensor_of,
)
from gt.ir.instruction_bytes import pack_segment
from gt.ir.spec import Spec, spec
from gt.sharding.config import Config
from gt.tools.replay import chain, distance
from gt.wire import messages as m


def replay(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["replay", *map(str, arguments)])


def refused(*arguments: object) -> str:
    """The one line of a replay that was refused."""
    result = replay(*arguments)
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    return line


@pytest.fixture
def logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The next session is logged here, values and all."""
    path = tmp_path / "run.log"
    monkeypatch.setenv("GT_INSTRUCTION_LOG", str(path))
    monkeypatch.setenv("GT_INSTRUCTION_LOG_DATA", "1")
    return path


def training(steps: int = 3) -> list[float]:
    """A small program with puts, seeds, gradients, an optimizer's state and fetches."""
    gt.manual_seed(3)
    weight = gt.nn.Parameter(gt.randn(6, 4))
    optimizer = gt.optim.AdamW([weight], lr=0.1)
    losses = []
    for step in range(steps):
        x = gt.tensor(np.full((8, 6), step + 1, np.float32))
        with gt.signal.context("mlp"):
            loss = gt.nn.functional.dropout((x @ weight).tanh()).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def run(steps: int = 3, **options: Any) -> list[float]:
    gt.connect("inproc", **options)
    try:
        return training(steps)
    finally:
        gt.disconnect()


# lines


@pytest.mark.parametrize("segment", [network(), several()], ids=["network", "every op"])
def test_a_definition_is_read_as_it_was_written(segment: Any) -> None:
    reader = LogReader("a log")
    text = print_definition(7, segment)
    (line,) = reader.read(text.splitlines(keepends=True))
    assert line.record == m.Define(7, pack_segment(segment))


ids = st.integers(0, (1 << 60) - 1)
specs = st.builds(
    spec, st.sampled_from([gt.float32, gt.bfloat16, gt.bool_]), st.lists(st.integers(0, 9), max_size=32).map(tuple)
)
numbers = (
    st.booleans() | st.integers(-(1 << 63), 1 << 63) | st.floats(allow_nan=False) | st.complex_numbers(allow_nan=False)
)
places = st.none() | st.integers(0, 1 << 40)
words = st.text(max_size=5)
records = st.one_of(
    st.builds(LoggedPut, ids, specs, st.lists(words).map(tuple), places),
    st.builds(FetchResult, st.integers(0, 99), specs, st.just("9c1185a5c5e9fc54"), st.none() | numbers, places),
    st.builds(FetchFault, st.integers(0, 99), words, words),
    st.builds(m.Drop, st.integers(0, 99)),
    st.builds(m.Free, st.lists(ids)),
    st.builds(m.Fetch, st.integers(0, 99), ids),
    st.builds(m.Configure, st.integers(0, 99), st.dictionaries(words, st.lists(words))),
    st.builds(m.Options, st.dictionaries(words, st.booleans() | st.floats(allow_nan=False))),
)


@given(st.lists(st.tuples(st.integers(1, 3), records)))
def test_all_other_records_are_read_as_they_were_written(said: list[tuple[int, Any]]) -> None:
    writer, reader = LogWriter("ab12", data=True), LogReader("a log")
    began = [(number, SessionBegan(f"service {number}", number)) for number in (1, 2, 3)]
    text = writer.head("a test") + "".join(writer.line(*each) for each in [*began, *said])
    lines = iter(text.splitlines(keepends=True))
    reader.head(lines)
    assert [(line.session, line.record) for line in reader.read(lines)] == [*began, *said]


@given(ids, st.lists(ids, max_size=5), st.lists(numbers, max_size=5), st.lists(ids, max_size=5))
def test_a_run_is_read_as_it_was_written(base: int, inputs: list[int], scalars: list[Any], freed: list[int]) -> None:
    said = m.Run(4, base, inputs, scalars, list(range(len(inputs))), freed)
    writer, reader = LogWriter("ab12", data=False), LogReader("a log")
    text = "".join(writer.line(1, each) for each in (SessionBegan("", 1), m.Define(4, pack_segment(network())), said))
    *_, line = reader.read(text.splitlines(keepends=True))
    assert line.record == said
    assert list(map(type, line.record.scalars)) == list(map(type, scalars))


@given(ids)
def test_a_tensors_name_says_which_it_is(tensor: int) -> None:
    assert tensor_of(name(tensor)) == tensor


def test_what_the_service_refuses_becomes_a_comment_and_the_log_goes_on() -> None:
    writer = LogWriter("ab12", data=False)
    writer.line(1, SessionBegan("", 1))
    assert writer.line(1, m.Define(1, b"nonsense")).startswith("# no line for this Define: ")
    assert writer.line(1, m.Run(1, 0, [], [], [], [])).startswith("# no line for this Run: ")
    assert writer.line(1, SessionEnded()) == "over\n"


def test_a_later_part_says_again_what_its_lines_rely_on() -> None:
    writer = LogWriter("ab12", data=True)
    writer.head("the first")
    said: list[Any] = [
        SessionBegan("here", 2), m.Configure(1, {"a": []}), LoggedPut(5, spec(gt.float32, (6, 4)), (), None),
        LoggedPut(6, spec(gt.float32, (8, 6)), (), None), m.Define(4, pack_segment(network())), m.Define(5, b""),
        m.Run(4, 100, [6, 5], [0.5, 1, 0.5], [0], []), m.Free([102]),
    ]  # fmt: skip
    for record in said:
        writer.line(1, record)
    lines = iter(writer.head("the second").splitlines(keepends=True))
    reader = LogReader("a log")
    reader.head(lines)
    assert (reader.identity, reader.part, reader.data) == ("ab12", 2, True)
    *again, _ = [line.record for line in reader.read(lines)]
    alive = [record for record in again if isinstance(record, KnownTensor)]
    assert again[:3] == [said[0], said[1], said[4]]
    assert {each.tensor for each in alive} == {5} | {100 + n for n in network().survivors} - {102}
    assert all(isinstance(each.spec, Spec) for each in alive)


# programs


def test_a_program_replays_to_the_bit(logged: Path) -> None:
    losses = run(workers=2, config={"sharding_config": {"mlp": {"strategy": "data_parallel"}}})
    result = replay(logged)
    assert result.exit_code == 0, result.output
    *fetches, last = result.stdout.splitlines()
    assert [line.partition("f32[] ")[2] for line in fetches] == [f"{loss!r}  (same bits)" for loss in losses]
    assert last == f"{_runs(logged)} runs; same bits: 3 fetches"


def _runs(path: Path) -> int:
    return len(re.findall(r"^run ", path.read_text(), re.MULTILINE))


def test_another_config_and_other_workers_give_the_same_values(logged: Path, tmp_path: Path) -> None:
    run()
    config = tmp_path / "tp.yaml"
    config.write_text("mesh: {data: 3}\nsharding_config:\n  mlp: {strategy: data_parallel}\n")
    for arguments in (["--config", config], ["--workers", "3", "--config", config], ["--config", "none"]):
        lines = replay(logged, *arguments).stdout.splitlines()[:-1]
        apart = [float(found[1]) if (found := re.search(r"differs by (\S+)\)", line)) else 0.0 for line in lines]
        assert len(apart) == 3
        assert max(apart) < 1e-5
        assert replay(logged, "--tolerance", "1e-5", *arguments).exit_code == 0


def test_a_value_that_is_not_the_logs_is_exit_status_1_and_one_line_that_says_how_far(logged: Path) -> None:
    losses = run(2)
    text = logged.read_text()
    number = re.search(r"digest [0-9a-f]{16} is (\S+) data \d+", text)
    assert number is not None, text[-2000:]
    assert float(number[1]) == losses[0]
    wrong = text.replace(number[0], f"digest {'0' * 16} is {losses[0] * 2}")
    logged.write_text(wrong)
    result = replay(logged)
    assert result.exit_code == 1
    assert result.stderr == "gt: 1 fetched values differ from the log (by up to 0.5 of their largest element)\n"
    assert "; same bits: 1 fetches; different: 1 fetches" in result.stdout
    assert replay(logged, "--tolerance", "0.4").exit_code == 1
    kind = replay(logged, "--tolerance", "0.5")
    assert kind.exit_code == 0
    assert "which is tolerated" in kind.stdout


def test_minus_nought_is_other_bits_unless_something_is_tolerated(logged: Path) -> None:
    gt.connect("inproc")
    (gt.zeros(1) * -1).item()
    gt.disconnect()
    text = logged.read_text()
    logged.write_text(re.sub(r"digest [0-9a-f]{16} is -0.0 data \d+", f"digest {'0' * 16} is 0.0", text))
    assert logged.read_text() != text
    assert (replay(logged).exit_code, replay(logged, "--tolerance", "1e-9").exit_code) == (1, 0)


@pytest.mark.parametrize(
    ("one", "other", "apart", "share"),
    [
        ([1.0, np.nan], [1.0, np.nan], 0.0, 0.0), ([1.0, 2.0], [1.0, 4.0], 2.0, 0.5), ([np.inf], [np.inf], 0.0, 0.0),
        ([np.nan], [1.0], np.inf, np.inf), ([np.inf], [-np.inf], np.inf, np.inf), ([1.0], [0.0], 1.0, np.inf), ([], [], 0.0, 0.0),
    ],
)  # fmt: skip
def test_how_far_apart_two_values_are(one: list[float], other: list[float], apart: float, share: float) -> None:
    assert distance(np.array(one), np.array(other)) == (apart, share)


def test_compiled_functions_are_logged_as_what_they_run(logged: Path) -> None:
    gt.connect("inproc")
    step = gt.compile(lambda x: (x * 2 + 1).sum())
    x = gt.arange(5, dtype=gt.float32)
    found = [step(x).item() for _ in range(4)]
    gt.disconnect()
    assert found == [25.0] * 4
    assert replay(logged).stdout.count("25.0  (same bits)") == 4


def test_sessions_of_one_process_share_a_log_and_can_be_replayed_apart(logged: Path) -> None:
    first, second = run(1), run(2, workers=2)
    both = replay(logged).stdout
    assert [line.partition(" run ")[0] for line in both.splitlines()[:-1]] == ["after", *["session 2 after"] * 2]
    assert both.splitlines()[-1].endswith("same bits: 3 fetches")
    alone = replay(logged, "--session", "2").stdout
    assert [repr(loss) in alone for loss in second] == [True, True]
    assert len(alone.splitlines()) == 3
    assert len(first) == 1


def test_threads_are_logged_in_the_order_in_which_they_sent(logged: Path) -> None:
    import threading

    gt.connect("inproc")
    made: list[float] = []

    def work(start: int) -> None:
        x = gt.full((4,), float(start))
        for _ in range(20):
            x = x + 1.0
        made.append(x.sum().item())

    threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gt.disconnect()
    assert sorted(made) == [80.0, 84.0, 88.0]
    assert replay(logged).stdout.splitlines()[-1].endswith("same bits: 3 fetches")


def test_a_failed_fetch_fails_again(logged: Path) -> None:
    gt.connect("inproc")
    index = gt.tensor([7])
    with pytest.raises(gt.IndexOutOfRange):
        gt.arange(3)[index].numpy()
    gt.disconnect()
    assert "IndexOutOfRange" in (said := replay(logged).stdout)
    assert "it failed then too" in said


def test_a_replay_stops_before_a_run_and_shows_what_there_is(logged: Path) -> None:
    gt.connect("inproc")
    x = gt.tensor(np.arange(3.0, dtype=np.float32))
    (x * 2).numpy()
    (x * 3).numpy()
    gt.disconnect()
    result = replay(logged, "--until", "2", "--show", "%1p0" if "%1p0" in logged.read_text() else _put(logged))
    assert "stopped before run 2 of session 1" in result.stdout
    assert "= mul $0, #0" in result.stdout
    assert result.stdout.endswith("=\n[0. 1. 2.]\n")


def _put(path: Path) -> str:
    found = re.search(r"^put (\S+)", path.read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


def test_a_tensor_from_a_snapshot_is_a_put_without_values(
    logged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No program sees them, so a replay draws others."""
    monkeypatch.setenv("GT_SNAPSHOTS", str(tmp_path / "snapshots"))
    gt.connect("inproc", workers=1)
    state = {"x": gt.arange(4.0)}
    gt.snapshot("a", state)
    gt.restore("a", state)
    assert (state["x"] * 2).tolist() == [0, 2, 4, 6]
    gt.disconnect()
    result = replay(logged)
    assert result.exit_code == 0
    assert "drawn" in result.stdout


def test_a_tensor_that_does_not_live_there_is_an_error(logged: Path) -> None:
    run(1)
    assert "%999.1 does not live here; " in refused(logged, "--show", "%999.1")
    assert replay(logged, "--show", "x").exit_code == 2


def test_without_values_inputs_are_drawn_from_a_seed_and_it_says_so(
    logged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GT_INSTRUCTION_LOG_DATA")
    run(2)
    assert not logged.with_name("run.log.data").exists()
    one, again, other = (replay(logged, "--seed", seed).stdout for seed in (1, 1, 2))
    assert one == again != other
    assert "(not compared, as inputs were drawn)" in one
    assert one.splitlines()[-1].endswith("2 inputs drawn from seed 1, as the log does not have their values")


def test_a_program_without_inputs_is_compared_even_without_values(
    logged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GT_INSTRUCTION_LOG_DATA")
    gt.connect("inproc")
    gt.manual_seed(1)
    gt.randn(5, 5).det().item()
    gt.disconnect()
    assert "(same bits)" in replay(logged).stdout


def test_random_programs_replay_to_the_bit(logged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs and configs of the law: every op's lines, reloads, hints, bfloat16, faults, on one to eight workers."""
    for seed in range(cases(24)):
        path = logged.with_name(f"program-{seed}.log")
        monkeypatch.setenv("GT_INSTRUCTION_LOG", str(path))
        program, (place, *_) = case(seed)
        subject = Subject(None)
        try:
            gt.connect("inproc", workers=place.workers, config=place.config)
            subject.run(program)
            subject.results()
        except GTError:
            pass  # what was refused is refused again
        finally:
            gt.disconnect()
        _same(path, f"program {seed} at {place}")
        PROVED["random programs, logged and replayed to the bit"] += 1


def test_trained_networks_replay_to_the_bit(logged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(cases(6)):
        path = logged.with_name(f"network-{seed}.log")
        monkeypatch.setenv("GT_INSTRUCTION_LOG", str(path))
        net, (place, *_) = network_case(seed)
        try:
            gt.connect("inproc", workers=place.workers, config=place.config)
            train(net)
        except GTError:
            pass
        finally:
            gt.disconnect()
        _same(path, f"network {seed} at {place}")


def _same(path: Path, what: str) -> None:
    result = replay(path)
    assert result.exit_code == 0, f"{what}: {result.output}"
    for word in ("different", "not compared", "other outcome", "the log has no value"):
        assert word not in result.stdout, f"{what}: {result.stdout}"


# files


def test_a_size_that_is_none_is_refused_with_one_that_is(logged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GT_INSTRUCTION_LOG_SIZE", "much")
    with pytest.raises(
        gt.SessionError, match=r"^GT_INSTRUCTION_LOG_SIZE=much is no number.* GT_INSTRUCTION_LOG_SIZE=268435456$"
    ):
        run(1)


def test_a_long_log_goes_on_in_parts_that_replay_as_one(logged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GT_INSTRUCTION_LOG_SIZE", "6000")
    run(6)
    parts = chain(logged)
    assert len(parts) > 1
    assert replay(logged).stdout.splitlines()[-1].endswith("same bits: 6 fetches")
    # without the first part the rest says what it needs
    parts[0].unlink()
    result = replay(logged)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith(f"the parts before {parts[1]} are gone")
    assert "inputs drawn from seed 0" in result.stdout


def test_what_is_no_log_is_refused_in_one_line(tmp_path: Path, logged: Path) -> None:
    run(1)
    whole = logged.read_text()
    lines = whole.splitlines(keepends=True)
    bad = tmp_path / "bad"
    (tmp_path / "bad.data").write_bytes((tmp_path / "run.log.data").read_bytes())
    for text, said in [
        ("", "is no instruction log"),
        ("nonsense\n", "is no instruction log"),
        (whole.replace("log 1\n", "log 9\n", 1), "of version 9, this gt reads 1: update it"),
        ("".join([*lines[:8], "nonsense\n", *lines[8:]]), "bad:9: this line cannot be read"),
        ("".join([*lines[:8], *lines[9:]]), "bad:"),
        (re.sub(r" = (\w+) %0", " = nothing %0", whole, count=1), "there is no op 'nothing'"),
        (re.sub(r"\nrun 1 .*\n", "\n", whole, count=1), "where 1 was due"),
        (re.sub(r"data \d+\n", "data 999999\n", whole, count=1), "bad.data does not have the values"),
    ]:
        bad.write_text(text)
        assert said in refused(bad)
    bad.write_bytes(bytes(range(256)))
    assert "is no instruction log" in refused(bad)
    assert "cannot be read: No such file" in refused(tmp_path / "none.log")
    assert "cannot be read: Is a directory" in refused(tmp_path)


def test_what_the_service_refuses_is_said_with_its_line(logged: Path) -> None:
    run(1)
    logged.write_text(re.sub(r"\nrun 1 segment 1 ", "\nrun 1 segment 77 ", logged.read_text()))
    result = replay(logged)
    assert result.exit_code == 1
    assert result.stderr == "gt: 1 fetches failed on one side alone\n"
    assert re.search(r"run.log:\d+: the service refuses this: segment 77 is not defined", result.stdout)
    assert "then it had a value" in result.stdout
    assert "refused: 1 lines" in result.stdout


def test_a_log_replays_up_to_where_it_was_cut(logged: Path, tmp_path: Path) -> None:
    """A killed process leaves whole lines, but for the last; wherever that is, what stands before it is replayed."""
    run(2)
    whole = logged.read_bytes()
    head = whole.index(b"session")
    for size in range(head, len(whole), 211):
        logged.write_bytes(whole[:size])
        result = replay(logged)
        assert result.exit_code == 0, result.output
        assert "different" not in result.stdout
        at_an_end = whole[:size].endswith(b"\n")
        assert at_an_end or "replayed up to there" in result.stdout


def test_an_unwritable_path_and_another_file_are_one_warning_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    mine = tmp_path / "notes.txt"
    mine.write_text("dear diary")
    for path, why in [(tmp_path / "no" / "run.log", "No such file"), (mine, "is there and is no instruction log")]:
        caplog.clear()
        monkeypatch.setenv("GT_INSTRUCTION_LOG", str(path))
        assert len(run(1)) == 1
        (record,) = caplog.records
        assert record.levelno == logging.WARNING
        assert "no instruction log is written" in record.getMessage()
        assert why in record.getMessage()
    assert mine.read_text() == "dear diary"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_ends_the_log_with_one_warning(logged: Path, caplog: pytest.LogCaptureFixture) -> None:
    import os

    gt.connect("inproc")
    file = gt.client.session.sessions.current().link._file  # type: ignore[attr-defined]
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, file.text)
    os.close(full)
    assert len(training(3)) == 3
    gt.disconnect()
    (record,) = caplog.records
    assert "ends here, the program goes on without it" in record.getMessage()
    assert "No space left" in record.getMessage()


def test_without_the_variable_nothing_of_it_is_loaded() -> None:
    import subprocess
    import sys

    code = "import sys, gt; gt.connect('inproc'); gt.ones(3).sum().item(); print('gt.client.session.logging_link' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_a_services_config_comes_with_its_clients() -> None:
    config = Config.from_plain({"sharding_config": {"a": {"strategy": "data_parallel"}}})
    writer, reader = LogWriter("ab12", data=False), LogReader("a log")
    began = SessionBegan("client 1", 4, config.to_wire())
    (line,) = reader.read(writer.line(1, began).splitlines(keepends=True))
    assert Config.from_wire(line.record.config).to_wire() == config.to_wire()
