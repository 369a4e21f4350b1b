"""When a cluster's topology is asked for, whom, and which answer counts. Without I/O: the time is given.

Rule: one node is asked at a time, and the next one if it does not answer. What looks like a change has the
topology asked for after a moment, in which more such signs come together.

An answer counts by its epoch: each failover and each hash slot that comes to another node raises it. An
answer that is older, of a node that is cut off or has not heard yet, does not replace a newer one. It counts
only after all nodes were asked: if more than half of the known ones gave one, or if no known node gave one
and a node of the configuration did. Then the cluster was made anew. An answer without hash slots never
counts.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from keyfence.net.host_port import host_port

from .topology import Topology, TopologyError, topology_in

GATHER_SECONDS = 0.1  # after a sign, in which others come together
MOST_SECONDS = 0.5  # while nothing changes, the pause between rounds that signs begin doubles up to this
POLL_SECONDS = 10.0  # on average, between two answers while nothing happens
ANSWER_SECONDS = 0.5  # which one node may take; twice that in the next round if no answer has counted, …
MOST_ANSWER_SECONDS = 2.0  # … up to this, which is also how long it may take before there is a topology
MAX_SHOWN = 4  # nodes in a sentence

Address = tuple[str, int]


class Reason(StrEnum):
    """Why the topology is asked for, as metrics name it."""

    START = "start"
    INTERVAL = "interval"
    CONNECT = "connect"  # a connection to a node cannot be made
    RESET = "reset"  # a node has ended a connection
    SILENT = "silent"  # a node does not answer the prober
    MOVED = "moved"  # it does not agree with the topology
    ASK = "ask"  # it leads to a node that the topology does not name
    READONLY = "readonly"
    CLUSTERDOWN = "clusterdown"
    MASTERDOWN = "masterdown"
    LOADING = "loading"
    RETRY = "retry"  # no answer has counted the last time


class Question(NamedTuple):
    """Whom to ask for the topology. Each question has another number."""

    number: int
    host: str
    port: int
    seconds: float  # which the node may take

    @property
    def address(self) -> Address:
        return self.host, self.port


class Refresh:
    """The topology that counts, and the questions about the next one.

    After `question`, `answered` and `failed`, `topology` may be another one.
    """

    def __init__(self, seeds: Sequence[Address], spread: Callable[[], float] = random.random) -> None:
        """`seeds`: nodes of the configuration. `spread` gives numbers from 0 to 1."""
        self.topology: Topology | None = None
        self.taken_at = -math.inf  # when an answer last counted
        self.reasons: Counter[Reason] = Counter()  # of the rounds that have begun: the first sign of each
        self.trouble = ""  # why no answer of the last round counts; "": one does
        self._seeds = tuple(seeds)
        self._spread = spread
        self._due_at = -math.inf
        self._pause = GATHER_SECONDS  # after the begin of a round, until signs may begin the next one
        self._begun_at = -math.inf  # when the last round began
        self._patience = MOST_ANSWER_SECONDS
        self._sign: Reason | None = None  # the first one since the last round began
        self._asked: Question | None = None
        self._asked_at = 0.0
        self._number = 0
        self._left: list[Address] = []  # whom to ask next in this round
        self._whys: dict[str, str] = {}  # why the answers of this round do not count, by node …
        self._older: dict[Address, Topology] = {}  # … and those that are only too old

    def noticed(self, reason: Reason, now: float) -> None:
        """There is a sign that the topology has changed."""
        if self._sign is None:
            self._sign = reason
            self._due_at = min(self._due_at, max(now + GATHER_SECONDS, self._begun_at + self._pause))

    def sign_in(self, word: str, slot: int, address: Address) -> Reason | None:
        """What it is a sign of that a node has answered MOVED or ASK; None: of nothing, because the topology
        agrees. A client that has an old one is redirected by every node."""
        node = self.topology.node_at(*address) if self.topology is not None else None
        if self.topology is None or node is None:
            return Reason(word.lower())
        is_news = word == "MOVED" and self.topology.owner(slot) is not node
        return Reason.MOVED if is_news else None

    def take(self, topology: Topology, now: float) -> None:
        """This topology counts from now on."""
        if self.topology is None or not topology.same_as(self.topology):
            self._pause = GATHER_SECONDS
        self.topology = topology
        self.taken_at, self.trouble, self._patience = now, "", ANSWER_SECONDS
        self._asked, self._left = None, []
        self._due_at = min(self._due_at, now + POLL_SECONDS * (0.5 + self._spread()))

    def seconds_left(self, now: float) -> float:
        """Seconds until `question` is to be called again."""
        if self._asked is not None:
            return max(0.0, self._asked_at + self._asked.seconds - now)
        return 0.0 if self._left else max(0.0, self._due_at - now)

    def question(self, now: float) -> Question | None:
        """Whom to ask now; None: nobody, or the node that was asked still has time."""
        if self.seconds_left(now) > 0:
            return None
        if self._asked is not None:
            self.failed(self._asked, f"it does not answer within {self._asked.seconds:g} s", now)
            return self.question(now)
        if not self._left:
            self._begin_round(now)
        self._number += 1
        self._asked = Question(self._number, *self._left.pop(0), self._patience)
        self._asked_at = now
        return self._asked

    def answered(self, question: Question, reply: object, now: float) -> None:
        """A node has answered. An answer to a former question does not count."""
        if question != self._asked:
            return
        try:
            topology = topology_in(reply, question.host)
        except TopologyError as exc:
            self.failed(question, str(exc), now)
            return
        if not topology.covered:
            self.failed(question, "it knows no node that has hash slots", now)
        elif self.topology is not None and _newness(topology) < _newness(self.topology):
            self._older[question.address] = topology
            self.failed(question, "its answer is older than another node's", now)
        else:
            self.take(topology, now)

    def failed(self, question: Question, why: str, now: float) -> None:
        """A node has not answered, or its answer does not count."""
        if question != self._asked:
            return
        self._asked = None
        self._whys[host_port(*question.address)] = why
        if self._left:
            return
        nodes = self.topology.nodes if self.topology is not None else ()
        known = {one.address for one in nodes if one.host}
        heard = len(known & self._older.keys())
        if self._older and (2 * heard > len(known) or not heard):
            self.take(max(self._older.values(), key=_newness), now)
            return
        self.trouble = f"no node of the cluster tells its topology ({_few(self._whys)})"
        self._patience = min(2 * self._patience, MOST_ANSWER_SECONDS)
        self._sign = self._sign or Reason.RETRY
        self._due_at = min(self._due_at, now + self._pause * (1 - self._spread() / 2))

    def _begin_round(self, now: float) -> None:
        self._begun_at = now
        self._pause = min(2 * self._pause, MOST_SECONDS) if self._sign is not None else GATHER_SECONDS
        unsigned = Reason.INTERVAL if self.topology is not None else Reason.START
        self.reasons[self._sign or unsigned] += 1
        self._sign = None
        self._due_at = math.inf
        self._left = self._candidates()
        self._whys, self._older = {}, {}

    def _candidates(self) -> list[Address]:
        """All nodes that may know the topology, each once; those that look healthy first, in any order."""
        nodes = [one for one in self.topology.nodes if one.host] if self.topology is not None else []
        begin = int(self._spread() * len(nodes))
        nodes = sorted([*nodes[begin:], *nodes[:begin]], key=lambda one: not one.is_healthy)
        return list(dict.fromkeys([*(one.address for one in nodes), *self._seeds]))


def _newness(topology: Topology) -> tuple[int, int]:
    """What a newer answer has more of. A node that has just joined knows the others only one by one."""
    return topology.epoch, topology.covered


def _few(whys: Mapping[str, str]) -> str:
    shown = [f"{node}: {why}" for node, why in list(whys.items())[:MAX_SHOWN]]
    more = [f"{len(whys) - MAX_SHOWN} more"] if len(whys) > MAX_SHOWN else []
    return "; ".join([*shown, *more])
