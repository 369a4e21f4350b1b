"""Searches for a way to redirect messages to another service's connection.

Sessions of several services, in several processes, talk to nodes that assign ids, each from its own count.
Whatever they did before: a CLIENT TRACKING that reaches a node names a connection there whose client is of
the same service now, and one that names such a connection reaches the node.
"""

from __future__ import annotations

import random

from keyfence.policy.enforcement.modes import ModeRule
from keyfence.policy.engine.authorizer import InForce
from keyfence.session.conversation.context import ClientOrigin, SessionContext
from keyfence.session.conversation.shown_ids import ShownIds
from tests.adversary.conftest import Search
from tests.session.sessions import (
    RecordingObserver,
    Session,
    at_barrier,
    authorizer_with,
    cmd,
    identities,
    passed,
    sent,
)

SERVICES = ("CubeMaster", "CubeProxy", "unknown")
USERS = {"CubeMaster": "master", "CubeProxy": "proxy"}
SPELLINGS = ("REDIRECT", "redirect", "ReDirect", "REDIRECT\0", "redirect\0NOLOOP")
ENFORCED = InForce(authorizer_with(ModeRule("enforce")))


class Client:
    """A client and its connection to Redis, whose id it may have been shown."""

    def __init__(self, ids: ShownIds, service: str, number: int) -> None:
        self.ids = ids
        self.number = number
        self.is_shown = False
        self.session = Session(
            SessionContext(ENFORCED, identities(), RecordingObserver(), ids=ids),
            ClientOrigin(service, "10.0.0.9:5"),
        )

    def ask(self, request: bytes, reply: bytes) -> None:
        self.session.from_client(request)
        assert at_barrier(self.session) + passed(self.session) == request
        self.session.from_upstream(reply)
        assert sent(self.session) == reply

    def be_shown(self, rng: random.Random) -> None:
        hello = b"$6\r\nserver\r\n$5\r\nredis\r\n$2\r\nid\r\n:%d\r\n" % self.number
        info = b"id=%d addr=1.2.3.4:5 sub=0" % self.number
        way = rng.randrange(5)
        if way == 0:
            self.ask(cmd("HELLO"), b"*4\r\n" + hello)
        elif way == 1:
            self.ask(cmd(rng.choice(("HELLO 2", "HELLO 3"))), b"*4\r\n" + hello)
        elif way == 2:
            self.ask(cmd("CLIENT INFO"), b"$%d\r\n%b\r\n" % (len(info), info))
        elif way == 3:
            self.ask(cmd("MULTI"), b"+OK\r\n")
            self.ask(cmd("CLIENT ID"), b"+QUEUED\r\n")
            self.ask(cmd("EXEC"), b"*1\r\n:%d\r\n" % self.number)
        else:
            self.ask(cmd("CLIENT ID"), b":%d\r\n" % self.number)
        self.is_shown = True

    def become(self, service: str) -> None:
        self.ask(cmd("AUTH", USERS[service], "pw"), b"+OK\r\n")


class World:
    """All processes. `answer` carries questions between them."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        nodes = rng.choice((["a"], ["a"], ["a", "b"]))
        count = rng.choice((1, 1, 3))
        self.processes = [[ShownIds(lambda node=node: node) for node in nodes] for _ in range(count)]
        for ids in self.ids():
            ids.is_all = count == 1
        self.clients: list[Client] = []
        self._numbers = dict.fromkeys(nodes, rng.choice((0, 9, 99_998)))

    def ids(self) -> list[ShownIds]:
        return [ids for process in self.processes for ids in process]

    def step(self) -> None:
        rng, clients = self.rng, self.clients
        kind = rng.randrange(10)
        if kind < 2 or len(clients) < 2:
            ids = rng.choice(self.ids())
            self._numbers[ids.node()] += 1
            clients.append(Client(ids, rng.choice(SERVICES), self._numbers[ids.node()]))
            return
        client = rng.choice(clients)
        if kind == 2:
            clients.remove(client)
            client.session.client.leave()
        elif kind < 5:
            client.be_shown(rng)
        elif kind == 5:
            client.become(rng.choice(tuple(USERS)))
        else:
            self.redirect(client)

    def redirect(self, client: Client) -> None:
        rng = self.rng
        numbers = [rng.randrange(max(self._numbers.values()) + 2) for _ in range(rng.choice((1, 1, 1, 2)))]
        if rng.random() < 0.5:
            numbers[0] = rng.choice(self.clients).number
        more = [rng.choice(("NOLOOP", "OPTIN", "noloop")) for _ in range(rng.randrange(2))]
        words = [word for number in numbers for word in (rng.choice(SPELLINGS), str(number))]
        request = cmd(rng.choice(("CLIENT", "client")), "TRACKING", rng.choice(("ON", "on")), *more, *words)
        client.session.from_client(request)
        self.answer(client)
        upstream = passed(client.session)
        may = all(self.may_name(client, number) for number in numbers)
        if upstream:
            assert upstream == request
            assert may, f"{client.session.service} may name {numbers}"
            client.session.from_upstream(b"+OK\r\n")
        else:
            assert b"[command.forbidden]" in sent(client.session)
            assert not may or len(numbers) > 1, f"{client.session.service} may not name {numbers}"
        sent(client.session)

    def may_name(self, client: Client, number: int) -> bool:
        node = client.ids.node()
        here = (one for one in self.clients if one.ids.node() == node)
        named = next((one for one in here if one.number == number), None)
        if named is None or not named.is_shown:
            return False
        return named is client or named.session.service == client.session.service != "unknown"

    def answer(self, client: Client) -> None:
        question = client.session.question
        if question is not None:
            others = [one for one in self.processes if client.ids not in one]
            answers = [ids.was_shown(*question.content) for one in others for ids in one]
            client.session.answer(any(answers))


def test_no_other_service_s_connection_can_be_named(search: Search) -> None:
    for rng in search:
        world = World(rng)
        for _ in range(100):
            world.step()
        assert sum(len(ids) for ids in world.ids()) == sum(one.is_shown for one in world.clients)
