"""Sessions that come back from the dispatcher before, in one thread: the files that each dispatcher leaves to the next one, and
what a client says when it comes back."""

from __future__ import annotations

from typing import Any, Final

from marking_dispatcher import IMPROVABLE, improvable, restore
from one_dispatcher import RULES, Service

from gt.dispatcher.state.events import DropSession, ReadSession, SessionRead, SessionWritten, WriteSession
from gt.dispatcher.state.mark_bytes import PackedParts, pack_session, read_card, read_mark
from gt.dispatcher.state.numbers import first_numbers
from gt.wire import messages as m
from gt.wire.bulk import ALL_WORKERS
from gt.wire.principals import Origin, Principal

KEY: Final = bytes(range(16))
ALICE, BOB = (Origin(Principal(name), pid) for name, pid in (("alice", 1), ("bob", 2)))


class Saved:
    """The files of sessions, of one dispatcher after the other, and the numbers that they give."""

    def __init__(self) -> None:
        self.files: dict[tuple[bytes, int], bytes] = {}
        self.numbers = first_numbers()
        self.parts = PackedParts()
        self.done: list[Any] = []

    def dispatcher(self, *workers: dict[str, Any], config: Any = RULES, names: str = "w", **more: Any) -> Service:
        """The next dispatcher, whose workers say these facts."""
        cards = [read_card(data) for data in self.files.values()]
        more = {"expected": len(workers), **more}
        made = Service(0, config=config, cards=cards, numbers=self.numbers, **more)
        self.numbers = self.numbers._replace(order=self.numbers.order + (1 << 42))
        for number, facts in enumerate(workers):
            made.join(f"{names}{number}", marks=True, **facts)
        return made

    def work(self, each: Service) -> list[Any]:
        """Do what the core says, and tell it. Returns that."""
        done = []
        while each.core.marks.file_work:
            work = each.core.marks.file_work.pop(0)
            done.append(work)
            if isinstance(work, WriteSession):
                self.files[work.card.key, work.card.mark] = b"".join(pack_session(work.card, work.state, self.parts))
                if work.card.mark:
                    each.event(SessionWritten(work.card.mark, None, 0))
            elif isinstance(work, DropSession):
                self.files.pop((work.key, work.mark), None)
            else:
                each.event(self.read(work))
        self.done += done
        return done

    def read(self, work: ReadSession) -> SessionRead:
        try:
            return SessionRead(work.client, read_mark(self.files[work.key, work.mark]), None)
        except KeyError:
            return SessionRead(work.client, None, ("SnapshotError", "it is not there"))


def session(each: Service, name: str = "c", key: bytes = KEY, **facts: Any) -> None:
    """A client that resends joins, with tensors 1, 2 and 3, segment 1, and the one for which a better plan is found."""
    each.client(name, resends=True, session_key=key, **facts)
    for tensor in (1, 2, 3):
        each.put(tensor, name, signal=("net",))
    each.define(1, client=name)
    each.define(IMPROVABLE, improvable(), client=name)
    each.done()
    each.hears(name)


def marked(saved: Saved, each: Service, name: str = "c") -> int:
    """A whole mark that the client has settled on."""
    saved.work(each)
    each.say(name, m.RequestMark(True))
    (number,) = {
        told.mark for worker in list(each.core.service.workers) for told in each.hears(worker.decode(), m.TakeMark)
    }
    saved.work(each)
    for worker in [*each.core.service.workers]:
        each.say(worker.decode(), m.MarkTaken(number, [], 0))
    assert [told.mark for told in each.hears(name, m.Durable)] == [number]
    each.say(name, m.Settled(number))
    saved.work(each)
    return int(number)


def comes_back(saved: Saved, each: Service, mark: int, name: str = "c", key: bytes = KEY) -> m.Rewind:
    """The client says hello again, is welcomed, and told to go back."""
    each.hello(name, "client", bulk=b"bulk-" + name.encode(), resends=True, session_key=key, mark=mark)
    if mark:
        assert [type(told) for told in each.told[name]] == [m.Welcome], "the file is read first"
    saved.work(each)
    welcome, rewind = each.hears(name)
    assert (type(welcome), type(rewind)) == (m.Welcome, m.Rewind)
    assert (rewind.session, rewind.lost) == (welcome.number, ALL_WORKERS)
    return rewind


def goes_on(saved: Saved, each: Service, mark: int, name: str = "c", key: bytes = KEY) -> m.Rewind:
    rewind = comes_back(saved, each, mark, name, key)
    each.say(name, m.Resume(rewind.session, mark))
    restore(each, mark)
    return rewind


def left(saved: Saved, mark: bool = True) -> int:
    """A dispatcher that has ended, with a session of Alice; its mark."""
    each = saved.dispatcher({}, {})
    each.origins["c"] = ALICE
    session(each)
    saved.work(each)
    return marked(saved, each) if mark else 0
