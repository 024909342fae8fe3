"""One dispatcher, its peers and a queue for each pair of them, whose order a seed decides; and one run of them all."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter, deque
from typing import Any

from effort import PROVED

from gt.dispatcher.core import DispatcherCore as Dispatcher
from gt.dispatcher.state.events import Due, JobTurn, Lost, Received
from gt.dispatcher.state.multicast import MULTICAST_ABOVE, Accept, Fanout, Withdraw
from gt.sharding.config import Config
from gt.wire import messages as m
from gt.wire.messages import codec

from .clients import Client, Nonsense
from .programs import CONFIGS, DISPATCHER, MONITOR, NEEDS, PUBLISHER
from .workers import WorkerPeer

# peers


class Network:
    """One dispatcher, its peers, and a queue for each pair of them: order is kept within a queue and nowhere else."""

    def __init__(self, seed: int, config: dict[str, Any] | None = None) -> None:
        self.random = random.Random(seed)
        self.codec = seed % 4 == 0
        self.config = config or self.random.choice(CONFIGS[:5])
        self.first = self.random.randint(2 if config else NEEDS[CONFIGS.index(self.config)], 4)
        read = None if self.config is None else Config.from_plain(self.config)
        self.dispatcher = Dispatcher(config=read, workers_expected=self.first, capabilities=("cancel",))
        self.dispatcher.service.delays_credits = True
        tickets = itertools.count()
        self.fanout = Fanout("", lambda: b"%d" % next(tickets), above=MULTICAST_ABOVE if seed % 3 else 1, limit=2)
        self.topics: dict[str, set[bytes]] = {}
        """What each worker hears of that is published."""
        self.published = 0
        self.workers: dict[str, WorkerPeer] = {}
        self.clients: dict[str, Client] = {}
        self.nonsense: dict[str, Nonsense] = {}
        self.queues: dict[tuple[str, str], deque[Any]] = {}
        self.now = 0.0
        """It passes only where somebody waits for it."""
        self.joined = 0
        self.said: Counter[str] = Counter()
        """How many messages each peer has sent to the dispatcher."""
        self.killed_workers = 0
        self.cancelled: set[int] = set()
        """Clients whose work somebody cancelled, at least once."""
        for _ in range(self.first):
            self.join()
        self.settle()
        for n in range(self.random.randint(1, 3)):
            fitting = [config for config, need in zip(CONFIGS, NEEDS, strict=True) if need <= self.first]
            own = self.random.choice(fitting) if self.config is None else None
            self.clients[f"client{n}"] = Client(self, f"client{n}", own)

    def join(self) -> None:
        name = f"worker{self.joined}"
        self.joined += 1
        self.workers[name] = WorkerPeer(self, name)

    def send(self, source: str, target: str, item: Any) -> None:
        self.queues.setdefault((source, target), deque()).append(item)

    def say(self, name: str, message: Any) -> None:
        """A peer speaks to the dispatcher."""
        if self.codec:
            message = codec.decode(codec.encode(message))
        self.said[name] += 1
        self.send(name, DISPATCHER, Received(name.encode(), message))

    def step(self) -> bool:
        """Deliver one message of a random queue; False when there is none."""
        filled = [pair for pair, queue in self.queues.items() if queue and self.hears(*pair)]
        if self.dispatcher.busy and (not filled or self.random.random() < 0.3):
            self.deliver("", DISPATCHER, JobTurn())
            return True
        if not filled:
            return any(worker.report() for worker in list(self.workers.values()))
        pair = self.random.choice(filled)
        self.deliver(*pair, self.queues[pair].popleft())
        return True

    def hears(self, source: str, target: str) -> bool:
        """Whether a peer reads from this queue now."""
        return source != PUBLISHER or target not in self.workers or self.workers[target].switched

    def tell(self, to: tuple[bytes, ...], message: Any) -> None:
        """The dispatcher speaks, one by one or to those who hear a topic."""
        prefixes, peers = self.fanout.routes(to, [message])
        for prefix in prefixes:
            self.published += 1
            for name, heard in self.topics.items():
                if prefix[: m.TOPIC_BYTES] in heard:
                    self.send(PUBLISHER, name, message)
        for peer in peers:
            self.send(DISPATCHER, peer.decode(), message)
        while self.fanout.out:
            peer, message = self.fanout.out.pop(0)
            self.tell((peer,), message)
        self.fanout.check()

    def ticket(self, name: str, ticket: bytes, wanted: bool) -> None:
        """A ticket of a worker arrives at the publisher, or is given back."""
        what = self.fanout.subscribed(ticket) if wanted else self.fanout.unsubscribed(ticket)
        match what:
            case Accept() if name in self.topics:
                self.topics[name].add(what.topic)
                if what.switched:
                    self.send(DISPATCHER, name, m.Switch())
            case Withdraw() if name in self.topics:
                self.topics[name].discard(what.topic)
        self.fanout.keep(self.dispatcher.service.workers)

    def deliver(self, source: str, target: str, item: Any) -> None:
        if target == DISPATCHER:
            if source in self.nonsense:
                self.nonsense[source].pending -= 1
            for send in self.dispatcher.handle(item, self.now):
                message = send.message
                if self.codec:
                    message = codec.decode(codec.encode(message))
                self.tell(send.to, message)
            self.dispatcher.check()
        elif target == PUBLISHER:
            self.ticket(source, *item)
        elif target in self.workers:
            self.workers[target].hear(source, item)
        elif target in self.clients:
            self.clients[target].hear(source, item)
        elif target in self.nonsense and isinstance(item, m.Goodbye):
            self.nonsense[target].greet()

    def kill(self, name: str) -> None:
        """A process ends: what it sent last may be lost, and the dispatcher hears of its end by a way of its own."""
        self.killed_workers += self.workers.pop(name, None) is not None
        self.clients.pop(name, None)
        for (source, target), queue in self.queues.items():
            if source == name:
                while queue and self.random.random() < 0.5:
                    queue.pop()
            if target == name:
                queue.clear()
        self.topics.pop(name, None)
        for ticket, what in list(self.fanout.tickets.items()):
            if what.peer == name.encode() and ticket in self.fanout.heard:
                self.send("system", PUBLISHER, (ticket, False))
        self.send("system", DISPATCHER, Lost(name.encode(), "killed"))
        self.send(name, DISPATCHER, Lost(name.encode(), "silent"))  # it may have been killed before its Hello arrived

    def settle(self) -> None:
        steps = 0
        while self.step() or self.wake():
            steps += 1
            assert steps < 200_000, "messages beget messages without end"

    def wake(self) -> bool:
        """Let time pass until the dispatcher has something to do by itself. Returns whether it has."""
        at = self.dispatcher.wakes_at
        if math.isinf(at):
            return False
        self.now = max(self.now, at)
        self.deliver("", DISPATCHER, Due())
        return True


def simulate(
    seed: int, *, kills: bool = False, nonsense: bool = False, cancels: bool = False, events: int = 200,
    config: dict[str, Any] | None = None,
) -> Network:  # fmt: skip
    """One run: things happen at random, then everything settles, is fetched, and goes away."""
    network = Network(seed, config)
    draw = network.random
    if nonsense:
        network.nonsense = {f"nonsense{n}": Nonsense(network, f"nonsense{n}") for n in range(2)}
    if cancels:
        network.say(MONITOR, m.Hello(m.VERSION, "watcher", {}))
    for _ in range(events):
        for _ in range(draw.randint(0, 6)):
            network.step()
        actors = [*network.clients.values(), *network.nonsense.values()]
        if actors:
            draw.choice(actors).act()
        if kills and draw.random() < 0.02:
            happens(network)
        if cancels and network.clients and draw.random() < 0.03:
            number = draw.choice(list(network.clients.values())).number
            network.cancelled.add(number)
            network.say(MONITOR, m.Cancel(1, number))
    network.settle()
    for client in network.clients.values():
        client.satisfied()
        for tensor in client.values:
            client.fetch(tensor)
    network.settle()
    for client in list(network.clients.values()):
        client.satisfied()
        network.say(client.name, m.Goodbye("", ""))
    if cancels:
        network.say(MONITOR, m.Goodbye("", ""))
    for name in list(network.nonsense):
        network.nonsense.pop(name)
        network.kill(name)
    network.settle()
    empty(network)
    PROVED["whole services under a seeded scheduler"] += 1
    return network


def happens(network: Network) -> None:
    """A worker or a client is killed, or a worker joins."""
    draw = network.random
    what = draw.random()
    if what < 0.4 and network.workers:
        network.kill(draw.choice(list(network.workers)))
    elif what < 0.7 and network.clients:
        network.kill(draw.choice(list(network.clients)))
    else:
        network.join()


def empty(network: Network) -> None:
    """When all clients have left, nothing of them is left on any core."""
    core = network.dispatcher
    service = core.service
    left = (service.clients, service.by_number, service.meshes, service.issued, core.fetches.collections)
    assert left == ({},) * 5
    assert {worker.decode() for worker in service.workers} == set(network.workers)
    for worker in network.workers.values():
        worker.empty()
