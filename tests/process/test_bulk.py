"""Large puts and fetches among real processes: right with shared memory and without, nothing grows, and who dies harms nobody."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import psutil
import pytest
from daemons import Machine, ends, left_by_kill
from effort import EFFORT

import gt
from gt.bounds import MAX_UNREAD_BULK_BYTES
from gt.wire import messages as m
from gt.wire.bulk import GET, GRANT, MAX_IN_FLIGHT_BYTES, read_header
from gt.wire.connection import Connection
from gt.wire.messages import codec

pytestmark = pytest.mark.process

CUT = {"mesh": {"data": 2}, "sharding_config": {"net": {"strategy": "data_parallel"}}}
COLUMNS = {"mesh": {"data": 2}, "sharding_config": {"net": {"shard": {"axis": 1, "workers": [0, 1]}}}}


@pytest.fixture(autouse=True)
def _no_session() -> Iterator[None]:
    yield
    gt.disconnect()


def numbers(*shape: int) -> np.ndarray[Any, Any]:
    return np.arange(np.prod(shape), dtype=np.float64).reshape(shape)


# values


@pytest.mark.parametrize(
    ("client", "worker"), [("", ""), ("0", ""), ("", "0")], ids=["shared", "client does not share", "workers do not"]
)
def test_values_are_right_with_shared_memory_and_without(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, client: str, worker: str
) -> None:
    """Put whole or cut, fetched as it lies, transposed, expanded or cut; the arrays are the program's own."""
    machine.environment["GT_SHARED_MEMORY"] = worker
    monkeypatch.setenv("GT_SHARED_MEMORY", client)
    address, _, _ = machine.service(2)
    for config in (None, CUT, COLUMNS):
        gt.connect(address, config=config)
        for turn in range(3):
            comes_and_goes(turn)


def comes_and_goes(turn: int) -> None:
    """One large tensor in all ways."""
    array = numbers(300, 400) + turn
    with gt.signal.context("net"):
        x = gt.from_numpy(array)
    array[...] = -1
    expected = numbers(300, 400) + turn
    fetched = x.numpy()
    np.testing.assert_array_equal(fetched, expected)
    fetched[...] = 7
    np.testing.assert_array_equal(x.T.numpy(), expected.T)
    np.testing.assert_array_equal(x[0].expand(300, 400).numpy(), np.broadcast_to(expected[0], (300, 400)))
    np.testing.assert_array_equal(x[10:290, 5:].numpy(), expected[10:290, 5:])
    with gt.signal.context("net"):
        np.testing.assert_array_equal((x * 2).numpy(), expected * 2)
    x += 1
    seen = x.numpy(copy=False)
    np.testing.assert_array_equal(seen, expected + 1)
    assert not seen.flags.writeable


def test_dtypes_cross_in_bulk(machine: Machine) -> None:
    """Every kind of number arrives as it was, also those that NumPy does not know."""
    address, _, _ = machine.service(1)
    gt.connect(address)
    for dtype in (gt.float16, gt.bfloat16, gt.float32, gt.complex64, gt.complex128, gt.int8, gt.int64, gt.bool):
        array = (numbers(200_000) % 100).astype(dtype.numpy)
        x = gt.from_numpy(array)
        assert x.dtype is dtype
        for got in (x.numpy(), x.numpy(copy=False)):
            assert got.dtype == array.dtype
            assert got.tobytes() == array.tobytes()


def test_a_view_of_what_was_put_is_the_workers_memory(machine: Machine) -> None:
    """It copies nothing, cannot be written to, and keeps its values whatever becomes of the tensor and the memory."""
    address, _, (worker,) = machine.service(1)
    gt.connect(address)
    x = gt.from_numpy(numbers(1 << 18))
    seen, again = x.numpy(copy=False), x.numpy(copy=False)
    assert np.shares_memory(seen, again)
    assert not np.shares_memory(seen, x.numpy())
    with pytest.raises(ValueError, match="WRITEABLE"):
        seen.flags.writeable = True
    x.mul_(2)
    x[3:7] = 9
    np.testing.assert_array_equal(seen, numbers(1 << 18))
    assert x[:4].tolist() == [0, 2, 4, 9]
    del x, again
    for _ in range(20):
        gt.from_numpy(np.zeros(1 << 18)).sum().item()
    np.testing.assert_array_equal(seen, numbers(1 << 18))
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    with pytest.raises(gt.WorkerLost):
        gt.ones(3).numpy()
    np.testing.assert_array_equal(seen, numbers(1 << 18))


def test_a_put_waits_for_no_worker_unless_too_much_is_ahead_of_it(machine: Machine) -> None:
    """Workers that have borrowed before need not have heard of a put when it returns; of the one before they must."""
    address, _, (worker,) = machine.service(1)
    program = machine.program(
        """
        gt.connect(sys.argv[1])
        array = np.arange(10 << 20) * 1.0
        x = gt.from_numpy(array)
        assert x.sum().item() == array.sum()
        say("ready")
        hear()
        y = gt.from_numpy(array)
        array[...] = 0
        say("one is put")
        z = gt.from_numpy(array)
        array[...] = 1
        say("two are put")
        assert (y - x).abs().sum().item() == z.abs().sum().item() == 0
        say("right")
        """,
        address,
    )
    program.expect("ready")
    worker.signal(signal.SIGSTOP)
    program.say()
    program.expect("one is put")
    program.keeps_silent("two are put", 0.5)
    worker.signal(signal.SIGCONT)
    program.expect("right")
    assert program.wait() == 0


# nothing grows

GROWTH = """
def held(pid):
    status = dict(line.split(":", 1) for line in open(f"/proc/{pid}/status"))
    memory = sum(int(status[name].split()[0]) for name in ("RssAnon", "RssShmem")) / 1024
    return memory, len(os.listdir(f"/proc/{pid}/fd")), len(open(f"/proc/{pid}/maps").readlines())

def turn(number):
    global x, y
    x = gt.from_numpy(array)
    y = (x + number).numpy()
    assert y[5] == array[5] + number
    if number % 3 == 0:
        view = x.numpy(copy=False)
        assert view[7] == array[7]
    if number % 7 == 0:
        kept[number % 4] = y

"""


def test_a_client_that_grants_everything_and_reads_nothing_has_little_kept_for_it(machine: Machine) -> None:
    """Whatever it asks for, the dispatcher holds no more than the bound; and the values are there once it reads."""
    address = f"ipc://{machine.temp}/here"
    dispatcher = machine.command("dispatcher", "--address", address, "--log-level", "info")
    dispatcher.expect("listening")
    machine.worker(address).expect("worker 0")
    greedy = Connection(address)
    greedy.send(codec.encode(m.Hello(m.VERSION, "client", {"bulk": b"b" * 20})))
    welcome = heard(greedy, m.Welcome)
    bulk = Connection(str(welcome.facts["bulk_address"]), identity=b"b" * 20)
    bulk.wait_accepted(5.0)
    size = 8 << 20
    segment = [[], "f", [[[], 0, "a.py:1", []]], [["full", [2], {"shape": [size], "dtype": "f32"}, 0]], [0]]
    for message in (m.Define(1, msgpack.packb(segment)), m.Run(1, 1, [], [1.5], [], [])):
        greedy.send(codec.encode(message))
    memory = psutil.Process(dispatcher.pid)
    before = memory.memory_info().rss
    streams = []
    for request in range(1, 25):
        greedy.send(codec.encode(m.Fetch(request, 1)))
        value = heard(greedy, m.Value)
        streams.append((GET, welcome.number, request, value.worker))
        for granted in range(MAX_IN_FLIGHT_BYTES, 4 * size + 1, MAX_IN_FLIGHT_BYTES):
            bulk.send([bytes(value.sender), msgpack.packb((GRANT, *streams[-1], granted)), b""])
        bulk.send([bytes(value.sender), msgpack.packb((GRANT, *streams[-1], 1 << 60)), b""])
    gt.connect(address)
    assert ((gt.from_numpy(numbers(300, 400)) + 1).numpy() == numbers(300, 400) + 1).all(), "others notice nothing"
    held = memory.memory_info().rss - before
    assert held < 6 * MAX_UNREAD_BULK_BYTES, (
        "a stream and its socket have a copy each; malloc keeps some of what was freed"
    )
    left = dict.fromkeys(streams, 4 * size)
    while left:
        assert bulk.socket.poll(10_000)
        while (frames := bulk.receive()) is not None:
            if len(frames) == 3:
                _, key, _ = read_header(frames[1])
                left[key] -= len(frames[2])
                if not left[key]:
                    del left[key]
    for each in (greedy, bulk):
        each.close()


def heard(connection: Connection, kind: type[Any]) -> Any:
    """The next message of a kind."""
    while True:
        frames = connection.receive()
        if frames is None:
            assert connection.socket.poll(5000)
        elif len(frames[0]):
            message = codec.decode(frames)
            assert not isinstance(message, (m.Failed, m.Goodbye)), message
            if isinstance(message, kind):
                return message


@pytest.mark.parametrize("shared", ["", "0"] if EFFORT >= 1 else [""], ids=str)
def test_many_turns_leave_nothing(machine: Machine, shared: str) -> None:
    """Memory, descriptors and mappings of all three processes are after 300 puts and fetches what they were after 50."""
    machine.environment |= {"GT_SHARED_MEMORY": shared, "GT_RESEND_BYTES": str(6 << 20)}
    program = machine.program(
        GROWTH
        + """
if True:
    gt.init(workers=1)
    array, kept = np.arange(1 << 18, dtype=np.float64), {}
    for number in range(50):
        turn(number)
    before = [held(pid) for pid in (os.getpid(), *daemons())]
    for number in range(300):
        turn(number)
    after = [held(pid) for pid in (os.getpid(), *daemons())]
    for (memory, descriptors, maps), (more, opened, mapped) in zip(before, after):
        assert more - memory < 12, (before, after)
        assert opened - descriptors <= 1, (before, after)
        assert mapped - maps < 12, (before, after)
    say("the same")
    """
    )
    program.expect("the same", 90)
    assert program.wait() == 0


def test_memory_is_given_up_when_nobody_uses_it(machine: Machine) -> None:
    """Some seconds after the last large array is gone its pages are, on all sides."""
    program = machine.program(
        GROWTH
        + """
if True:
    gt.init(workers=1)
    array = np.ones(1 << 23)
    before = [held(pid)[0] for pid in (os.getpid(), *daemons())]
    x = gt.from_numpy(array)
    y = x.numpy()
    assert held(os.getpid())[0] - before[0] > 100
    del x, y
    gt.flush()
    end = time.monotonic() + 25
    while time.monotonic() < end:
        after = [held(pid)[0] for pid in (os.getpid(), *daemons())]
        if all(now - then < 20 for now, then in zip(after, before)):
            say("given up")
            break
        time.sleep(0.2)
    else:
        say("kept", before, after)
    """
    )
    program.expect("given up", 40)
    assert program.wait() == 0


# who dies


def descriptors(pid: int) -> list[str]:
    """The clients' memory that a process has open."""
    found = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found.append(str(entry.readlink()))
        except OSError:
            pass  # closed meanwhile
    return [name for name in found if "gt-bulk-" in name]


def test_a_client_that_is_killed_takes_its_memory_with_it(machine: Machine) -> None:
    """In the middle of puts and fetches: the worker goes on, lets the client's memory go, and serves others."""
    address, dispatcher, (worker,) = machine.service(1)
    for number in range(3):
        program = machine.program(
            """
            gt.connect(sys.argv[1])
            array, kept = np.ones((1 << 20)), []
            x = gt.from_numpy(array)
            x.numpy()
            say("begun")
            while True:
                kept = [*kept[-3:], gt.from_numpy(array)]
                kept[-1].numpy()
            """,
            address,
        )
        program.expect("begun")
        assert len(descriptors(worker.pid)) == 1
        program.signal(signal.SIGKILL)
        assert ends(program.pid)
        dispatcher.expect(f"client {2 * number + 1} left")
        gt.connect(address)
        array = numbers(1 << 17)
        np.testing.assert_array_equal((gt.from_numpy(array) + 1).numpy(), array + 1)
        assert len(descriptors(worker.pid)) == 1, "that of this program"
        gt.disconnect()
        dispatcher.expect(f"client {2 * number + 2} left")


def test_workers_that_are_killed_while_they_write(machine: Machine) -> None:
    """What was fetched before and after is right, and so is what was on its way."""
    address, _, workers = machine.service(3)
    gt.connect(address, config={"sharding_config": {"net": {"strategy": "data_parallel"}}})
    expected = numbers(3, 1 << 19)
    with gt.signal.context("net"):
        x = gt.from_numpy(expected)
    kept, future = x.numpy(), [x.fetch() for _ in range(4)]
    workers[1].signal(signal.SIGKILL)
    for each in future:
        np.testing.assert_array_equal(each.result(60), expected)
    np.testing.assert_array_equal(kept, expected)
    for _ in range(4):
        with gt.signal.context("net"):
            y = gt.from_numpy(expected + 1)
        np.testing.assert_array_equal(y.numpy(), expected + 1)
    np.testing.assert_array_equal(kept, expected)
    gt.disconnect()
    left_by_kill(machine, workers[1])


def test_a_worker_that_was_thought_dead_writes_to_nothing_new(machine: Machine) -> None:
    """A stopped worker is lost; when it goes on, it may write where it was once told to: nobody looks there any more."""
    machine.environment["GT_LEASE"] = "4"
    address, dispatcher, (worker, _) = machine.service(2)
    gt.connect(address)
    x = gt.from_numpy(numbers(1 << 19))
    kept = x.numpy()
    worker.signal(signal.SIGSTOP)
    future = x.fetch()
    with pytest.raises(gt.WorkerLost):
        future.result(60)
    dispatcher.expect("worker 0 was lost")
    y = gt.from_numpy(-numbers(1 << 19))
    mine = [y.numpy() for _ in range(3)]
    worker.signal(signal.SIGCONT)
    worker.expect("joins anew")
    for each in mine:
        np.testing.assert_array_equal(each, -numbers(1 << 19))
    np.testing.assert_array_equal(kept, numbers(1 << 19))


# forks


def test_a_forked_child_has_arrays_of_its_own(machine: Machine) -> None:
    """What was fetched or put before a fork is both sides', as with ordinary memory; the parent's session goes on."""
    program = machine.program(
        """
        gt.init(workers=1)
        x = gt.from_numpy(np.arange(1 << 18) * 1.0)
        y, view = x.numpy(), x.numpy(copy=False)
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            y[0] = 77
            os.read(read, 1)
            right = y[1] == 1 and y[0] == 77 and (view == np.arange(1 << 18)).all()
            os._exit(0 if right else 1)
        y[1] = 88
        del x, view
        for turn in range(30):
            z = gt.from_numpy(np.full(1 << 18, turn * 1.0))
            assert (z.numpy() == turn).all()
        assert y[0] == 0 and y[1] == 88
        os.write(write, b"x")
        say("child", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        """
    )
    program.expect("child 0")
    assert program.wait() == 0


def test_arrays_outlive_their_session(machine: Machine) -> None:
    """What was fetched is the program's, also when session and service are gone."""
    address, dispatcher, _ = machine.service(1)
    gt.connect(address)
    x = gt.from_numpy(numbers(1 << 18))
    fetched, view = x.numpy(), x.numpy(copy=False)
    gt.disconnect()
    dispatcher.signal(signal.SIGTERM)
    assert dispatcher.wait() == 0
    fetched[0] = 5
    assert fetched[1:].sum() == view.sum() == numbers(1 << 18).sum()
