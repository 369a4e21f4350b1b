"""A client's own connections to the nodes of a cluster, without sockets."""

from __future__ import annotations

from typing import Any

import pytest

from keyfence.policy.compiled.hash_slots import hash_slot
from keyfence.resp import encode
from keyfence.resp.profile import Profile
from keyfence.upstream.cluster.joining import UNREACHABLE
from keyfence.upstream.cluster.topology import Node, Topology
from keyfence.upstream.single import own
from keyfence.upstream.single.again import Again
from keyfence.upstream.single.masters import Masters
from keyfence.upstream.single.own import IDLE_SECONDS, OwnConnections
from keyfence.upstream.single.refusals import Refusal

from .model import Later

PROFILE = Profile()
HOST = "10.0.0.1"
# One key in each third of the hash slots, and so at each node.
KEYS = [
    next(b"k%d" % n for n in range(99) if hash_slot(b"k%d" % n) * 3 // 16384 == third) for third in range(3)
]


class Link:
    """A connection that is open, and keeps what is sent."""

    def __init__(self, upstream: Any, owner: Any, settings: Any) -> None:
        self.sent = b""
        self.settings = settings
        self.is_closed = self.is_kept = self.is_held = False
        self.is_open = True
        self.owner = owner
        upstream.links.append(self)

    def send(self, chunks: list[bytes]) -> None:
        self.sent += b"".join(chunks)

    def unsent(self) -> int:
        return 0

    def move(self, reason: str) -> None:
        self.close()
        self.owner.upstream_lost(self, reason)

    def close(self) -> None:
        self.is_closed = True


class Upstream:
    def __init__(self, port: int) -> None:
        self.up = True
        self.is_dead = False
        self.address = type("Address", (), {"host": HOST, "port": port})
        self.links: list[Link] = []


class Stage:
    """A client's own connections to three nodes, and what the client gets."""

    def __init__(self) -> None:
        self.later = Later()
        self.signs: list[object] = []  # that the topology has changed
        self.masters = Masters(1, 1.0, self.signs.append, self.later)
        self.upstreams = [Upstream(7000 + number) for number in range(3)]
        self.has_slots((0, 5461), (5462, 10922), (10923, 16383))
        self.got = b""
        self.lost = self.refused = ""
        self.profile = PROFILE
        self.is_listening = False
        self.awaited: object = None  # the confirmation that is due
        self.settled: list[tuple[bool, int]] = []  # whether a node was full, and how much waited, each time
        self.own = OwnConnections(self, self.masters)  # type: ignore[arg-type]
        self.own.splits = frozenset({b"MGET", b"DEL"})

    def has_slots(self, *ranges: tuple[int, int] | None) -> None:
        nodes = [
            Node(f"n{number}", HOST, 7000 + number, slots=(one,) if one is not None else ())
            for number, one in enumerate(ranges)
        ]
        upstreams: dict[str, Any] = {f"n{number}": one for number, one in enumerate(self.upstreams)}
        self.masters.take(Topology(nodes), upstreams)

    def ask(self, *argv: bytes) -> None:
        self.own.send(PROFILE, [encode.command(*argv)])

    def taken(self, number: int) -> bytes:
        """What a node has got since the last call."""
        link = self.link(number)
        sent, link.sent = link.sent, b""
        return sent

    def link(self, number: int) -> Link:
        return self.upstreams[number].links[-1]

    def answer(self, number: int, *pieces: bytes) -> None:
        for piece in pieces:
            self.own.upstream_data(self.link(number), piece)  # type: ignore[arg-type]

    def dies(self, number: int) -> None:
        """A node does not answer, and the cluster takes it for dead."""
        self.upstreams[number].is_dead = True
        self.masters.died(f"n{number}", "it is dead")
        self.run_all()

    def run_all(self) -> None:
        """Let all pauses pass."""
        while self.later.waiting:
            self.later.run_next()

    # -- as `OwnConnections` uses it

    def upstream_data(self, link: object, data: bytes) -> None:  # noqa: ARG002
        self.got += data

    def upstream_unasked(self, link: object, data: bytes) -> None:  # noqa: ARG002
        raise AssertionError(data)

    def upstream_lost(self, link: object, reason: str) -> None:  # noqa: ARG002
        self.lost = reason

    def upstream_refused(self, link: object, reason: str) -> None:  # noqa: ARG002
        self.refused = reason

    def current_profile(self) -> Profile:
        return self.profile

    def listens(self) -> bool:
        return self.is_listening

    def confirmation(self) -> object:
        return self.awaited

    def upstream_full(self, link: object, full: bool) -> None:  # noqa: ARG002
        self.settled.append((full, self.own.unsent()))


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    monkeypatch.setattr(own, "DedicatedLink", Link)
    return Stage()


def one(value: bytes) -> bytes:
    return b"*1\r\n$%d\r\n%b\r\n" % (len(value), value)


def test_the_parts_of_a_command_go_to_all_nodes_at_once(stage: Stage) -> None:
    stage.ask(b"MGET", *KEYS)
    assert [stage.taken(number) for number in range(3)] == [encode.command(b"MGET", key) for key in KEYS]
    stage.answer(2, one(b"c"))
    stage.answer(0, b"*1\r\n$1", b"\r\na\r\n")
    assert stage.got == b""
    stage.answer(1, one(b"b"))
    assert stage.got == b"*3\r\n$1\r\na\r\n$1\r\nb\r\n$1\r\nc\r\n"


def test_a_request_waits_for_all_parts_of_the_one_before(stage: Stage) -> None:
    stage.ask(b"DEL", *KEYS)
    stage.ask(b"GET", KEYS[0])
    for number in range(3):
        assert stage.taken(number) == encode.command(b"DEL", KEYS[number])
        stage.answer(number, b":1\r\n")
    assert stage.got == b":3\r\n"
    assert stage.taken(0) == encode.command(b"GET", KEYS[0])


def test_only_the_parts_that_a_node_has_not_run_are_sent_again(stage: Stage) -> None:
    stage.ask(b"DEL", *KEYS)
    stage.answer(0, b":1\r\n")
    moved = b"-MOVED %d %b:7000\r\n" % (hash_slot(KEYS[1]), HOST.encode())
    stage.answer(1, moved[:9], moved[9:])
    stage.answer(2, b"-TRYAGAIN Multiple keys request during rehashing of slot\r\n")
    assert stage.got == b""
    stage.taken(0), stage.taken(1), stage.taken(2)
    stage.answer(1, moved)  # the first time it is sent again, keyfence still goes by its own view
    while stage.later.waiting:
        stage.later.run_next()
    assert stage.taken(0) == encode.command(b"DEL", KEYS[1])
    stage.answer(0, b":1\r\n")
    assert stage.taken(2) == encode.command(b"DEL", KEYS[2])
    stage.answer(2, b":1\r\n")
    assert stage.got == b":3\r\n"


def test_a_part_whose_hash_slot_no_node_serves_is_answered_in_the_end(stage: Stage) -> None:
    stage.has_slots((0, 5461), (5462, 10922), None)
    stage.ask(b"MGET", *KEYS)
    stage.answer(0, one(b"a"))
    stage.answer(1, one(b"b"))
    for _ in range(50):
        if stage.later.waiting:
            stage.later.run_next()
    assert stage.got == b"-CLUSTERDOWN Hash slot not served\r\n"
    stage.ask(b"GET", KEYS[0])
    assert stage.taken(0).endswith(encode.command(b"GET", KEYS[0]))


def test_an_error_of_a_part_is_the_answer_without_an_address(stage: Stage) -> None:
    stage.ask(b"MGET", *KEYS)
    stage.answer(0, one(b"a"))
    stage.answer(1, b"-NOPERM no\r\n")
    stage.answer(2, one(b"c"))
    assert stage.got == b"-NOPERM no\r\n"


def test_a_value_that_reads_as_a_refusal_is_none(stage: Stage) -> None:
    """A node's bytes come in any pieces. One may begin within a value, with text that a client wrote."""
    text = b"-TRYAGAIN a value"
    stage.ask(b"GET", KEYS[0])
    stage.answer(0, b"$17\r\n", text + b"\r\n")
    assert stage.got == b"$17\r\n" + text + b"\r\n"
    stage.got = b""
    stage.ask(b"MGET", *KEYS)
    for number in range(3):
        stage.answer(number, b"*1\r\n$17\r\n", text + b"\r\n")
    assert stage.got == b"*3\r\n" + (b"$17\r\n" + text + b"\r\n") * 3


@pytest.mark.parametrize("argv", [[b"DBSIZE"], [b"MGET", *KEYS]])
def test_a_connection_with_a_reply_due_is_not_closed_as_idle(stage: Stage, argv: list[bytes]) -> None:
    stage.ask(*argv)
    for now in (10_000.0, 10_001.0, 10_002.0 + IDLE_SECONDS):
        stage.own.tick(now)
    assert not any(stage.link(number).is_closed for number in range(3))
    for number in range(3):
        stage.answer(number, b":1\r\n" if len(argv) == 1 else one(b"v"))
    assert stage.got
    stage.ask(b"GET", KEYS[0])
    stage.own.tick(10_003.0 + 2 * IDLE_SECONDS)
    assert [stage.link(number).is_closed for number in range(3)] == [False, True, True]


def test_a_lost_connection_ends_the_client_that_waits_for_a_part(stage: Stage) -> None:
    stage.ask(b"MGET", *KEYS)
    stage.answer(1, one(b"b"))
    stage.own.upstream_lost(stage.link(1), "idle")  # type: ignore[arg-type]
    assert stage.lost == ""
    stage.own.upstream_lost(stage.link(2), "gone")  # type: ignore[arg-type]
    assert stage.lost == "gone"


def test_a_node_that_cannot_be_reached_is_answered_for(stage: Stage) -> None:
    stage.ask(b"DBSIZE")
    stage.answer(0, b":1\r\n")
    stage.answer(2, b":")
    stage.own.upstream_lost(stage.link(2), "gone")  # type: ignore[arg-type]
    assert stage.got == b""
    stage.answer(1, b":2\r\n")
    assert stage.got == UNREACHABLE
    assert stage.lost == ""
    stage.ask(b"BLPOP", KEYS[0], b"0")
    assert stage.taken(0).endswith(encode.command(b"BLPOP", KEYS[0], b"0"))


DOWN = b"-CLUSTERDOWN The cluster is down\r\n"
ABORTED = b"-EXECABORT Transaction discarded because of previous errors.\r\n"


def test_an_error_within_a_transaction_is_not_taken_for_that_of_exec(stage: Stage) -> None:
    stage.ask(b"MULTI")
    stage.answer(0, b"+OK\r\n")
    stage.ask(b"SET", KEYS[0], b"x")
    stage.ask(b"EXEC")
    stage.got = b""
    stage.taken(0)
    stage.answer(0, DOWN, ABORTED)
    stage.run_all()
    assert stage.got == DOWN + ABORTED
    assert stage.taken(0) == b""


def test_exec_is_not_sent_again(stage: Stage) -> None:
    stage.ask(b"MULTI")
    stage.ask(b"SET", KEYS[0], b"x")
    stage.answer(0, b"+OK\r\n+QUEUED\r\n")
    stage.ask(b"EXEC")
    stage.got = b""
    stage.taken(0)
    stage.answer(0, DOWN)
    stage.run_all()
    assert stage.got == DOWN
    assert stage.taken(0) == b""


def test_a_transaction_goes_to_the_node_where_watch_has_run(stage: Stage) -> None:
    stage.ask(b"WATCH", KEYS[0])
    stage.answer(0, b"-MOVED %d %b:7001\r\n" % (hash_slot(KEYS[0]), HOST.encode()))
    stage.run_all()
    assert stage.taken(1) == encode.command(b"WATCH", KEYS[0])
    stage.answer(1, b"+OK\r\n")
    stage.ask(b"MULTI")
    assert stage.taken(1) == encode.command(b"MULTI")


def leaves(stage: Stage, number: int) -> None:
    """A node leaves the cluster; the others have its hash slots."""
    halves = ((0, 9000), (9001, 16383))
    left = [one for one in range(3) if one != number]
    nodes = [Node(f"n{one}", HOST, 7000 + one, slots=(half,)) for one, half in zip(left, halves, strict=True)]
    upstreams: dict[str, Any] = {one.id: stage.upstreams[one.port - 7000] for one in nodes}
    stage.masters.take(Topology(nodes), upstreams)


def test_a_client_that_listens_to_a_node_which_leaves_is_closed(stage: Stage) -> None:
    stage.ask(b"SUBSCRIBE", b"news")
    leaves(stage, 0)
    stage.run_all()
    assert "has left" in stage.lost
    assert stage.link(0).is_closed


@pytest.mark.parametrize("command", [(b"SUBSCRIBE", b"news"), (b"BLPOP", KEYS[0], b"0")])
def test_a_client_that_waits_for_a_node_which_has_died_is_closed(
    stage: Stage, command: tuple[bytes, ...]
) -> None:
    stage.ask(*command)
    stage.dies(0)
    assert stage.link(0).is_closed
    assert stage.lost == "its node is dead"


def test_a_client_that_waits_for_another_node_stays(stage: Stage) -> None:
    stage.ask(b"BLPOP", KEYS[0], b"0")
    stage.answer(0, b"*-1\r\n")
    stage.ask(b"BLPOP", KEYS[1], b"0")
    stage.dies(0)
    assert stage.link(0).is_closed
    assert not stage.lost


def test_a_client_that_listens_to_another_node_stays(stage: Stage) -> None:
    stage.ask(b"SUBSCRIBE", b"news")
    leaves(stage, 1)
    stage.run_all()
    assert not stage.lost


def test_what_was_not_sent_to_a_node_that_is_forgotten_goes_to_another_one(stage: Stage) -> None:
    stage.ask(b"BLPOP", KEYS[0], b"0")
    stage.link(0).is_held = True
    leaves(stage, 0)
    stage.masters._nodes.pop(0)
    assert stage.own.is_held
    stage.run_all()
    assert stage.taken(1) == encode.command(b"BLPOP", KEYS[0], b"0")


@pytest.mark.parametrize("name", [b"INFO", b"CLIENT"])
def test_a_command_without_keys_that_waits_for_a_node_goes_to_another_one_once_hash_slots_move(
    stage: Stage, name: bytes
) -> None:
    request = encode.command(name, b"SETINFO", b"LIB-NAME", b"x")
    stage.own.send(PROFILE, [request])
    stage.link(0).is_held = True
    stage.upstreams[0].up = False
    stage.has_slots(None, (0, 10922), (10923, 16383))
    stage.run_all()
    assert stage.link(0).is_closed
    assert stage.taken(1) == request


def test_a_command_without_keys_goes_to_no_node_that_has_left(stage: Stage) -> None:
    stage.ask(b"BLPOP", KEYS[0], b"0")
    stage.answer(0, b"*-1\r\n")
    leaves(stage, 0)
    stage.run_all()
    stage.ask(b"SUBSCRIBE", b"news")
    assert stage.taken(1) == encode.command(b"SUBSCRIBE", b"news")


def test_the_client_is_read_on_once_what_has_waited_is_sent(stage: Stage) -> None:
    large = encode.command(b"SET", KEYS[0], b"x" * 2_000_000)
    stage.own.send(PROFILE, [large, large])
    assert stage.own.unsent() > 2_000_000
    stage.answer(0, b"+OK\r\n")
    assert stage.settled == [(False, 0)]
    stage.own.upstream_full(stage.link(0), True)
    stage.own.send(PROFILE, [large, large])
    stage.answer(0, b"+OK\r\n")
    assert stage.settled[-1] == (True, len(large))


def test_the_client_is_read_on_if_a_transaction_has_begun_anew(stage: Stage) -> None:
    stage.ask(b"MULTI")
    stage.ask(b"SET", KEYS[1], b"x" * 2_000_000)
    for number, reply in ((0, b"+OK\r\n"), (0, b"+OK\r\n"), (1, b"+OK\r\n")):
        assert stage.own.unsent() > 2_000_000
        stage.answer(number, reply)
    assert stage.settled[-1] == (False, 0)


def test_a_redirect_that_is_not_followed_has_the_topology_asked_for(stage: Stage) -> None:
    stage.ask(b"MULTI")
    stage.answer(0, b"+OK\r\n")
    stage.ask(b"SET", KEYS[0], b"1")
    stage.answer(0, moved(KEYS[0], 1))
    assert stage.got.startswith(b"+OK\r\n-TRYAGAIN keyfence: the hash slot moves")
    assert len(stage.signs) == 1


def test_a_script_that_has_waited_for_a_node_words_its_own_errors(stage: Stage) -> None:
    stage.has_slots(None, (5462, 10922), (10923, 16383))
    stage.ask(b"EVAL", b"s", b"1", KEYS[0])
    stage.has_slots((0, 5461), (5462, 10922), (10923, 16383))
    stage.run_all()
    stage.answer(0, b"-TRYAGAIN busy\r\n")
    stage.run_all()
    assert stage.got == b"-TRYAGAIN busy\r\n"
    assert stage.taken(0).count(b"EVAL") == 1


def subscribes(stage: Stage, name: bytes, *, leaves: bool = False) -> None:
    """The client subscribes, or leaves its last channel, and the node confirms it."""
    stage.awaited = object()
    stage.is_listening = not leaves or stage.is_listening
    stage.ask(name, b"news")
    stage.taken(0)
    stage.awaited, stage.is_listening = None, not leaves
    stage.answer(0, b">3\r\n$9\r\nsubscribe\r\n$4\r\nnews\r\n:1\r\n")
    stage.got = b""


def test_what_follows_a_subscription_waits_until_it_is_confirmed(stage: Stage) -> None:
    stage.awaited, stage.is_listening = object(), True
    stage.ask(b"SUBSCRIBE", b"news")
    stage.ask(b"PING")
    assert stage.taken(0) == encode.command(b"SUBSCRIBE", b"news")
    stage.awaited = None
    stage.answer(0, b"*3\r\n$9\r\nsubscribe\r\n$4\r\nnews\r\n:1\r\n")
    assert stage.taken(0) == encode.command(b"PING")


def test_a_client_that_has_left_its_channels_is_served_by_all_nodes(stage: Stage) -> None:
    subscribes(stage, b"SUBSCRIBE")
    stage.ask(b"BLPOP", KEYS[1], b"0")
    assert stage.taken(0) == encode.command(b"BLPOP", KEYS[1], b"0")
    subscribes(stage, b"UNSUBSCRIBE", leaves=True)
    stage.ask(b"BLPOP", KEYS[1], b"0")
    assert stage.taken(1) == encode.command(b"BLPOP", KEYS[1], b"0")


@pytest.mark.parametrize("name", [b"DBSIZE", b"FLUSHALL", b"SCAN", b"SHUTDOWN"])
def test_a_subscriber_gets_no_answer_of_one_node_about_all(stage: Stage, name: bytes) -> None:
    stage.profile = PROFILE._replace(resp=3)
    stage.own.send(stage.profile, [])
    subscribes(stage, b"SUBSCRIBE")
    stage.own.send(stage.profile, [encode.command(name, b"0")])
    assert stage.taken(0) == ABORTS
    stage.answer(0, b">3\r\n$7\r\nmessage\r\n$4\r\nnews\r\n$1\r\nx\r\n", WRONG)
    message, _, error = stage.got.partition(b"x\r\n")
    assert message.startswith(b">3")
    assert error.startswith(b"-ERR %b is not supported" % name)


def test_what_follows_hello_has_the_protocol_that_it_has_chosen(stage: Stage) -> None:
    stage.ask(b"HELLO", b"3")
    stage.ask(b"BLPOP", KEYS[1], b"0")
    stage.profile = PROFILE._replace(resp=3)  # as soon as the session has the reply
    stage.answer(0, b"%0\r\n")
    assert stage.taken(1) == encode.command(b"BLPOP", KEYS[1], b"0")
    assert stage.link(1).settings == [encode.command(b"HELLO", 3)]
    assert stage.own._owns[0].profile.resp == 3


CROSSES = b"-CROSSSLOT Keys in request don't hash to the same slot\r\n"


def moved(key: bytes, number: int) -> bytes:
    return b"-MOVED %d %b:%d\r\n" % (hash_slot(key), HOST.encode(), 7000 + number)


def test_a_watch_at_another_node_than_the_first_one_is_refused(stage: Stage) -> None:
    stage.ask(b"WATCH", KEYS[0])
    stage.answer(0, b"+OK\r\n")
    stage.ask(b"WATCH", KEYS[1])
    stage.answer(0, moved(KEYS[1], 1))
    stage.run_all()
    assert stage.got == b"+OK\r\n" + CROSSES
    stage.taken(0)
    for name in (b"MULTI", b"EXEC"):
        stage.ask(name)
    assert stage.taken(0) == encode.command(b"MULTI") + encode.command(b"EXEC")
    assert not stage.upstreams[1].links


def test_a_first_watch_is_followed_after_another_one_was_refused(stage: Stage) -> None:
    stage.ask(b"WATCH", KEYS[0])
    stage.answer(0, b"+OK\r\n")
    stage.ask(b"WATCH", KEYS[1])
    stage.answer(0, moved(KEYS[1], 1))
    stage.ask(b"UNWATCH")
    stage.answer(0, b"+OK\r\n")
    stage.taken(0)
    stage.ask(b"WATCH", KEYS[0])
    stage.answer(0, moved(KEYS[0], 1))
    stage.run_all()
    assert stage.taken(1) == encode.command(b"WATCH", KEYS[0])


ABORTS = encode.command(b"ECHO")
WRONG = b"-ERR wrong number of arguments for 'echo' command\r\n"


def begins_anew(stage: Stage, *requests: bytes) -> None:
    """A key at the second node comes: the transaction ends at the first one, and these requests begin it at
    the second one."""
    stage.ask(b"SET", KEYS[1], b"1")
    assert stage.taken(0) == encode.command(b"DISCARD")
    stage.answer(0, b"+OK\r\n")
    assert stage.taken(1) == b"".join(requests)


def test_a_transaction_with_a_refused_command_is_aborted_where_it_begins_anew(stage: Stage) -> None:
    stage.ask(b"MULTI")
    stage.answer(0, b"+OK\r\n")
    stage.own.send(PROFILE, [ABORTS])  # what the session sends for a command that the policy refuses
    stage.answer(0, WRONG)
    stage.ask(b"KEYS", b"*")
    stage.answer(0, WRONG)
    assert b"not supported in a transaction" in stage.got
    stage.taken(0)
    begins_anew(stage, encode.command(b"MULTI"), ABORTS, ABORTS)
    stage.got = b""
    stage.answer(1, b"+OK\r\n" + WRONG + WRONG)
    assert stage.taken(1) == encode.command(b"SET", KEYS[1], b"1")
    stage.answer(1, b"+QUEUED\r\n")
    stage.ask(b"EXEC")
    stage.answer(1, b"-EXECABORT x\r\n")
    assert stage.got == b"+QUEUED\r\n-EXECABORT x\r\n"
    assert not stage.lost


def test_a_transaction_that_cannot_begin_at_the_node_of_its_key_ends_the_client(stage: Stage) -> None:
    stage.ask(b"MULTI")
    stage.answer(0, b"+OK\r\n")
    stage.taken(0)
    begins_anew(stage, encode.command(b"MULTI"))
    stage.answer(1, b"-LOADING x\r\n")
    assert "cannot be begun" in stage.lost


@pytest.mark.parametrize("is_pipelined", [False, True])
def test_a_key_whose_hash_slot_has_no_node_aborts_its_transaction(stage: Stage, is_pipelined: bool) -> None:
    stage.has_slots((0, 5461), (5462, 10922), None)
    stage.ask(b"MULTI")
    if not is_pipelined:
        stage.answer(0, b"+OK\r\n")
    stage.ask(b"SET", KEYS[2], b"1")
    stage.run_all()
    if is_pipelined:
        assert stage.got == b""
        stage.answer(0, b"+OK\r\n")
        stage.run_all()
    assert stage.taken(0) == encode.command(b"MULTI") + ABORTS
    stage.answer(0, WRONG)
    assert stage.got == b"+OK\r\n-CLUSTERDOWN Hash slot not served\r\n"
    begins_anew(stage, encode.command(b"MULTI"), ABORTS)


@pytest.mark.parametrize("is_lost_later", [False, True])
def test_what_waits_for_a_node_that_has_left_goes_to_another_one(stage: Stage, is_lost_later: bool) -> None:
    """A client that has only introduced itself waits for its node without end. This one never comes back."""
    introduction = encode.command(b"CLIENT", b"SETINFO", b"LIB-NAME", b"x")
    stage.own.send(PROFILE, [introduction])
    stage.link(0).is_held = not is_lost_later
    leaves(stage, 0)
    stage.run_all()
    if is_lost_later:
        stage.link(0).is_held = True
        stage.own.tick(1.0)
    assert stage.link(0).is_closed
    assert stage.taken(1) == introduction


def test_a_watch_that_was_not_sent_goes_where_its_key_is_now(stage: Stage) -> None:
    stage.run_all()
    stage.ask(b"WATCH", KEYS[0])
    stage.link(0).is_held = True
    stage.has_slots(None, (0, 10922), (10923, 16383))
    stage.upstreams[0].up = False
    stage.masters._nodes.pop(0)
    stage.run_all()
    assert stage.taken(1) == encode.command(b"WATCH", KEYS[0])


def test_the_reply_to_a_redirected_command_is_not_taken_for_that_to_asking(
    stage: Stage,
) -> None:
    stage.run_all()
    stage.ask(b"BLPOP", KEYS[0], b"0")
    stage.answer(0, b"-ASK %d %b:7001\r\n" % (hash_slot(KEYS[0]), HOST.encode()))
    stage.run_all()
    stage.link(1).is_held = True
    stage.upstreams[1].up = False
    stage.has_slots(None, (0, 10922), (10923, 16383))
    stage.run_all()
    assert stage.taken(1) == encode.command(b"ASKING") + encode.command(b"BLPOP", KEYS[0], b"0")
    stage.answer(1, b"+OK\r\n*-1\r\n")
    assert stage.got == b"*-1\r\n"


@pytest.mark.parametrize(
    "commands",
    [
        [[b"SUBSCRIBE", b"news"]],
        [[b"MULTI"]],
        [[b"MULTI"], [b"SET", KEYS[0], b"1"], [b"EXEC"]],
    ],
)
def test_a_client_that_is_bound_to_a_node_which_is_away_is_closed_once_hash_slots_move(
    stage: Stage, commands: list[list[bytes]]
) -> None:
    stage.run_all()
    stage.own.send(PROFILE, [encode.command(*one) for one in commands])
    stage.link(0).is_held = True
    stage.upstreams[0].up = False
    stage.run_all()
    assert not stage.lost
    stage.has_slots(None, (0, 10922), (10923, 16383))
    stage.run_all()
    assert "is away" in stage.lost


@pytest.mark.parametrize("word", ["MOVED", "ASK"])
def test_a_redirect_to_a_node_that_has_left_meanwhile_leads_by_the_topology(stage: Stage, word: str) -> None:
    again = Again([encode.command(b"GET", KEYS[0])], 0, False)
    again.refused(Refusal(word), 1, b"-TRYAGAIN\r\n")
    assert again.node(stage.masters) == 1
    leaves(stage, 1)
    stage.masters._nodes.pop(1)
    assert again.node(stage.masters) == 0
    assert not again.is_asking


def test_what_waits_is_counted_whether_it_comes_or_is_put_back(stage: Stage) -> None:
    stage.ask(b"GET", KEYS[0])
    stage.ask(b"GET", KEYS[1])
    stage.ask(b"GET", KEYS[2])
    request = len(encode.command(b"GET", KEYS[0]))
    assert stage.own.unsent() == 2 * request
    stage.answer(0, moved(KEYS[0], 1))
    assert stage.own.unsent() == 3 * request
    stage.run_all()
    for number in (1, 1, 2):
        stage.answer(number, b"$-1\r\n")
    assert stage.own.unsent() == 0
    assert stage.got == b"$-1\r\n" * 3


@pytest.mark.parametrize("argv", [[b"DBSIZE"], [b"MGET", *KEYS]])
def test_after_a_refused_connection_no_reply_of_another_node_comes(stage: Stage, argv: list[bytes]) -> None:
    """The client gets the error as its reply, and goes on. A late reply would be taken for the next one."""
    stage.ask(*argv)
    links = [stage.link(number) for number in range(3)]
    stage.own.upstream_refused(links[1], "max number of clients reached")
    assert stage.refused == "max number of clients reached"
    assert all(link.is_closed for link in links)
    stage.ask(b"GET", KEYS[0])
    stage.answer(0, b"$1\r\na\r\n")
    assert stage.got == b"$1\r\na\r\n"


def test_reset_ends_a_watch_at_another_node(stage: Stage) -> None:
    stage.ask(b"WATCH", KEYS[0])
    stage.answer(0, b"+OK\r\n")
    stage.ask(b"GET", KEYS[1])
    stage.answer(1, b"$-1\r\n")
    watching = stage.link(0)
    stage.ask(b"RESET")
    stage.answer(1, b"+RESET\r\n")
    assert watching.is_closed
    assert not stage.link(1).is_closed
    stage.ask(b"MULTI")
    assert stage.taken(1).endswith(encode.command(b"MULTI"))


DENIED = b"-NOPERM User u has no permissions to run the 'multi' command\r\n"


@pytest.mark.parametrize("at_once", [True, False])
def test_a_multi_that_a_node_refuses_opens_no_transaction(stage: Stage, at_once: bool) -> None:
    requests = [[b"MULTI"], [b"GET", KEYS[0]], [b"GET", KEYS[1]], [b"DBSIZE"]]
    chunks = [encode.command(*one) for one in requests]
    for piece in [b"".join(chunks)] if at_once else chunks:
        stage.own.send(PROFILE, [piece])
    stage.answer(0, DENIED, b"$1\r\na\r\n")
    stage.answer(1, b"$1\r\nb\r\n")
    for number in range(3):
        stage.answer(number, b":1\r\n")
    assert stage.got == DENIED + b"$1\r\na\r\n$1\r\nb\r\n:3\r\n"


def test_a_transaction_that_comes_as_a_whole_is_sent_as_a_whole(stage: Stage) -> None:
    whole = [encode.command(*one) for one in ([b"MULTI"], [b"SET", KEYS[1], b"1"], [b"PING"], [b"EXEC"])]
    stage.own.send(PROFILE, [b"".join(whole)])
    assert stage.taken(1) == b"".join(whole)


def test_the_keys_of_a_later_transaction_say_nothing_of_an_earlier_one(stage: Stage) -> None:
    """So a pipeline of many transactions without keys is not read again for each."""
    empty = [encode.command(b"MULTI"), encode.command(b"EXEC")]
    stage.own.send(PROFILE, [*empty, *empty, encode.command(b"SET", KEYS[1], b"1")])
    assert stage.taken(0) == b"".join(empty)


def test_a_subscriber_s_multi_opens_no_transaction(stage: Stage) -> None:
    stage.is_listening = True
    stage.ask(b"SUBSCRIBE", b"news")
    stage.ask(b"MULTI")
    stage.ask(b"UNSUBSCRIBE")
    stage.is_listening = False
    stage.ask(b"GET", KEYS[1])
    assert stage.taken(1) == encode.command(b"GET", KEYS[1])


def test_the_client_is_not_read_while_any_node_is_full(stage: Stage) -> None:
    stage.ask(b"DBSIZE")
    for number, full in ((0, True), (1, True), (1, False), (0, False)):
        stage.own.upstream_full(stage.link(number), full)
    assert [full for full, _ in stage.settled] == [True, True, True, False]


def test_a_fault_while_the_cluster_changes_closes_the_client_that_it_concerns(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stage.ask(b"GET", KEYS[0])
    monkeypatch.setattr(stage.masters, "is_dead", lambda _number: 1 // 0)
    stage.has_slots((0, 5460), (5461, 10922), (10923, 16383))
    stage.run_all()
    assert stage.lost == "keyfence has an internal error"
    assert "internal error, please report it" in capsys.readouterr().err
