"""Answers of Redis that name addresses, at which a client would not meet keyfence."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings

from keyfence.policy.enforcement.modes import ModeRule
from keyfence.policy.engine.authorizer import InForce
from keyfence.resp.notices import failing_over, moving
from keyfence.session.conversation.conversation import ABORT_MARKER
from keyfence.session.session import Session
from tests.resp.pieces import CUTS, cut
from tests.session.sessions import (
    ADMITTED,
    PUSH,
    RecordingObserver,
    cmd,
    granting,
    in_multi,
    is_refusal,
    observed,
    passed,
    replies,
    sent,
    session,
)

ADDRESS = b"10.0.0.7:6379"
MOVED = b"-MOVED 866 10.0.0.7:6379\r\n"
ASK = b"-ASK 866 10.0.0.7:6379\r\n"
REDIRECT = b"-REDIRECT 10.0.0.7:6379\r\n"
READ_ONLY = b"-READONLY You can't write against a read only replica.\r\n"
TOPOLOGY = ["CLUSTER SLOTS", "cluster shards", "CLUSTER NODES"]
SLOTS = b"*1\r\n*3\r\n:0\r\n:1\r\n*2\r\n$8\r\n10.0.0.7\r\n:6379\r\n"
NOTICES = cmd("CLIENT MAINT_NOTIFICATIONS ON moving-endpoint-type internal-ip")
RULE = ModeRule("enforce", "redis.address")
UNKNOWN = b"-ERR unknown subcommand 'MAINT_NOTIFICATIONS'. Try CLIENT HELP.\r\n"


def enforced(service: str = "CubeProxy", *, sharing: bool = False) -> tuple[Session, RecordingObserver]:
    observer = RecordingObserver()
    return session(service, rules=[RULE, ModeRule("observe")], observer=observer, sharing=sharing), observer


# -- redirects


@pytest.mark.parametrize("pieces", [[READ_ONLY + MOVED], [READ_ONLY[:20], READ_ONLY[20:] + MOVED]])
def test_a_redirect_behind_another_error_reaches_no_client_in_enforce(pieces: list[bytes]) -> None:
    one, observer = enforced()
    one.from_client(ADMITTED * 2)
    for piece in pieces:
        one.from_upstream(piece)
    first, refusal = replies(sent(one))
    assert first == READ_ONLY
    assert is_refusal(refusal, "redis.address")
    assert [(rule, action) for _, _, rule, action in observer.found] == [("redis.address", "refused")]


@pytest.mark.parametrize("redirect", [MOVED, ASK, REDIRECT])
def test_a_redirect_reaches_no_client_in_enforce(redirect: bytes) -> None:
    one, observer = enforced()
    one.from_client(ADMITTED * 3)
    one.from_upstream(b"$1\r\nx\r\n" + redirect + b"$1\r\ny\r\n")
    first, refusal, last = replies(sent(one))
    assert (first, last) == (b"$1\r\nx\r\n", b"$1\r\ny\r\n")
    assert is_refusal(refusal, "redis.address")
    assert ADDRESS not in refusal
    assert [(rule, action) for _, _, rule, action in observer.found] == [("redis.address", "refused")]
    assert observer.upstream_errors == [redirect[1:].split(b" ")[0].decode()]


def test_a_redirect_passes_in_observe_and_is_a_finding() -> None:
    observer = RecordingObserver()
    one = observed(observer=observer)
    one.from_client(ADMITTED)
    one.from_upstream(MOVED)
    assert sent(one) == MOVED
    assert [(rule, action) for _, _, rule, action in observer.found] == [("redis.address", "observed")]


def test_redirects_that_come_together_are_one_finding_and_all_are_counted() -> None:
    one, observer = enforced()
    one.from_client(ADMITTED * 1000)
    one.from_upstream((MOVED + b"$1\r\nx\r\n") * 500)
    answers = replies(sent(one))
    assert len(answers) == 1000
    assert ADDRESS not in b"".join(answers)
    assert len(observer.found) == 1
    assert observer.upstream_errors == ["MOVED"] * 500


def test_a_redirect_on_a_shared_connection_reaches_no_client_in_enforce() -> None:
    one, _ = enforced(sharing=True)
    one.from_client(ADMITTED * 2)
    data = one.errors_came(MOVED + MOVED, _errors(MOVED + MOVED), 0)
    one.from_shared(data, 2, True)
    first, second = replies(sent(one))
    assert is_refusal(first, "redis.address")
    assert is_refusal(second, "redis.address")


def _errors(data: bytes) -> list[object]:
    from keyfence.resp.replies import ReplyFramer

    framer = ReplyFramer()
    framer.advance(data, 0, 100)
    return framer.take_errors()


@settings(max_examples=200)
@given(CUTS)
def test_no_address_of_a_redirect_passes_in_any_pieces_and_at_any_depth(cuts: list[int]) -> None:
    one, _ = enforced()
    one.from_client(ADMITTED * 5)
    nested = b"*3\r\n+OK\r\n*1\r\n" + MOVED + ASK
    stream = MOVED + nested + READ_ONLY + REDIRECT + b"+OK\r\n"
    for piece in cut(stream, cuts):
        one.from_upstream(piece)
    answers = replies(sent(one))
    assert len(answers) == 5
    out = b"".join(answers)
    assert ADDRESS not in out
    assert not any(line.startswith((b"-MOVED ", b"-ASK ", b"-REDIRECT ")) for line in out.split(b"\r\n"))
    assert answers[2] == READ_ONLY


def test_a_redirect_inside_execs_answer_is_replaced() -> None:
    one, observer = enforced()
    in_multi(one)
    one.from_client(ADMITTED + cmd("EXEC"))
    one.from_upstream(b"+QUEUED\r\n*1\r\n" + MOVED)
    assert ADDRESS not in sent(one)
    assert observer.upstream_errors == ["MOVED"]


def test_errors_of_a_read_only_redis_pass_and_are_counted() -> None:
    one, observer = enforced()
    one.from_client(ADMITTED)
    one.from_upstream(READ_ONLY)
    assert sent(one) == READ_ONLY
    assert observer.upstream_errors == ["READONLY"]
    assert not observer.found


@pytest.mark.parametrize(
    "reply", [b"-MOVEDISH x\r\n", b"-ERR MOVED 1 x\r\n", b"+MOVED 1 x\r\n", b"$8\r\nMOVED 1 \r\n"]
)
def test_other_replies_pass_as_they_are(reply: bytes) -> None:
    one, observer = enforced()
    one.from_client(ADMITTED)
    one.from_upstream(reply)
    assert sent(one) == reply
    assert not observer.upstream_errors


# -- questions for addresses


@pytest.mark.parametrize("words", TOPOLOGY)
def test_the_topology_reaches_no_client_in_enforce(words: str) -> None:
    one, observer = enforced()
    one.from_client(cmd(words) + ADMITTED)
    assert passed(one) == cmd(words)
    one.from_upstream(SLOTS)
    assert is_refusal(sent(one), "redis.address")
    assert passed(one) == ADMITTED
    assert [(rule, action) for _, _, rule, action in observer.found] == [("redis.address", "refused")]
    assert (words.upper(), "refused") in {(command, outcome) for _, command, outcome in observer.commands}


@pytest.mark.parametrize("words", TOPOLOGY)
def test_the_topology_passes_in_observe_and_is_a_finding(words: str) -> None:
    observer = RecordingObserver()
    one = observed(observer=observer)
    one.from_client(cmd(words))
    one.from_upstream(SLOTS)
    assert sent(one) == SLOTS
    assert [(rule, action) for _, _, rule, action in observer.found] == [("redis.address", "observed")]


@pytest.mark.parametrize("words", TOPOLOGY)
def test_a_redis_that_is_no_cluster_answers_itself(words: str) -> None:
    one, observer = enforced()
    one.from_client(cmd(words) + ADMITTED)
    refusal = b"-ERR This instance has cluster support disabled\r\n"
    one.from_upstream(refusal)
    assert sent(one) == refusal
    assert passed(one) == cmd(words) + ADMITTED
    assert not observer.found


def test_the_topology_is_refused_inside_multi_without_asking_redis() -> None:
    one, _ = enforced()
    in_multi(one)
    one.from_client(cmd("CLUSTER SLOTS"))
    assert b"SLOTS" not in passed(one)


# -- notices

MOVING = moving(7, 2)
HELLO_3 = b"%1\r\n$5\r\nproto\r\n:3\r\n"


def with_resp3(mode: str) -> Session:
    one = session(rules=[*([RULE] if mode == "enforce" else ()), ModeRule("observe")])
    one.from_client(cmd("HELLO 3"))
    one.from_upstream(HELLO_3)
    assert (passed(one), sent(one)) == (cmd("HELLO 3"), HELLO_3)
    return one


def naming_notices(*rules: ModeRule) -> InForce:
    """A policy that allows CLIENT MAINT_NOTIFICATIONS by name."""
    return InForce(granting(*rules, command="CLIENT MAINT_NOTIFICATIONS"))


@pytest.mark.parametrize("mode", ["observe", "enforce"])
@pytest.mark.parametrize(
    "words",
    ["CLIENT MAINT_NOTIFICATIONS ON", "client maint_notifications off", "CLIENT MAINT_NOTIFICATIONS\0x ON"],
)
def test_redis_is_not_asked_for_notices(mode: str, words: str) -> None:
    observer = RecordingObserver()
    one = session(rules=[ModeRule(mode)], observer=observer)
    one.from_client(cmd(words) + ADMITTED)
    name = words.split()[1].partition("\0")[0].encode()
    assert sent(one) == b"-ERR unknown subcommand '%b'. Try CLIENT HELP.\r\n" % name
    assert passed(one) == ADMITTED
    assert not observer.found
    assert ("CubeProxy", "CLIENT MAINT_NOTIFICATIONS", "local") in observer.commands


@pytest.mark.parametrize("mode", ["observe", "enforce"])
def test_a_client_with_resp3_gets_notices_of_keyfence(mode: str) -> None:
    one = with_resp3(mode)
    assert not one.tell(MOVING)
    one.from_client(NOTICES + ADMITTED)
    assert (passed(one), sent(one)) == (ADMITTED, b"+OK\r\n")
    one.from_upstream(b"*1\r\n$3\r\nab")
    assert not one.tell(MOVING), "part of a reply has reached the client"
    one.from_upstream(b"c\r\n")
    assert one.tell(MOVING)
    assert sent(one) == b"*1\r\n$3\r\nabc\r\n" + MOVING
    one.from_client(cmd("CLIENT MAINT_NOTIFICATIONS OFF"))
    assert sent(one) == b"+OK\r\n"
    assert not one.tell(MOVING)


def test_notices_may_be_asked_for_in_one_piece_with_hello() -> None:
    """As node-redis does. In RESP2 the command is unknown, so the reply to HELLO decides."""
    one = session(rules=[ModeRule("observe")])
    one.from_client(cmd("HELLO 3") + NOTICES + ADMITTED)
    assert (passed(one), sent(one)) == (cmd("HELLO 3"), b"")
    one.from_upstream(HELLO_3)
    assert (passed(one), sent(one)) == (ADMITTED, HELLO_3 + b"+OK\r\n")
    one.from_upstream(b"*0\r\n")
    assert one.tell(failing_over(7, 2))

    other = session(rules=[ModeRule("observe")])
    other.from_client(cmd("HELLO 3") + NOTICES + ADMITTED)
    other.from_upstream(b"-NOPROTO x\r\n")
    assert sent(other) == b"-NOPROTO x\r\n" + UNKNOWN


@pytest.mark.parametrize(
    ("library", "moves"),
    [
        ("redis-py", True),
        ("node-redis", False),
        ("node-redis(mine)", False),
        ("Node-Redis", False),
        ("", False),
    ],
)
def test_a_client_is_told_to_move_if_its_library_can_do_so_without_an_address(
    library: str, moves: bool
) -> None:
    """node-redis ends its process if it has asked for an address and is given none. If it has not asked, its
    new connection lacks subscriptions and database."""
    one = with_resp3("observe")
    assert not one.can_move
    if library:
        one.from_client(cmd(f"CLIENT SETINFO LIB-NAME {library}"))
        one.from_upstream(b"-ERR unknown subcommand\r\n")  # Redis before 7.2
    assert one.can_move is moves


def test_a_client_that_goes_back_to_resp2_gets_no_more_notices() -> None:
    one = with_resp3("observe")
    one.from_client(NOTICES + cmd("HELLO 2"))
    one.from_upstream(b"*2\r\n$5\r\nproto\r\n:2\r\n")
    assert not one.tell(MOVING)


def test_the_answer_about_notices_waits_for_its_turn() -> None:
    one, _ = enforced()
    one.from_client(ADMITTED + NOTICES + ADMITTED)
    one.from_upstream(b"*0\r\n*0\r\n")
    assert sent(one) == b"*0\r\n" + UNKNOWN + b"*0\r\n"


def test_inside_multi_notices_end_the_transaction_as_any_unknown_subcommand() -> None:
    one, _ = enforced()
    in_multi(one)
    one.from_client(NOTICES + cmd("EXEC"))
    assert passed(one) == ABORT_MARKER + cmd("EXEC")
    one.from_upstream(b"-ERR wrong number of arguments\r\n-EXECABORT x\r\n")
    assert sent(one) == UNKNOWN + b"-EXECABORT x\r\n"


def test_a_client_that_wants_no_replies_gets_none_about_notices() -> None:
    one, _ = enforced()
    one.from_client(cmd("CLIENT REPLY OFF") + NOTICES)
    assert sent(one) == b""


def test_a_policy_that_names_the_command_does_not_help_in_enforce() -> None:
    one = session(in_force=naming_notices(RULE, ModeRule("observe")))
    one.from_client(NOTICES)
    assert (passed(one), sent(one)) == (b"", UNKNOWN)


def test_notices_that_the_policy_names_are_a_finding_in_observe_and_pin_the_connection() -> None:
    observer = RecordingObserver()
    one = session(in_force=naming_notices(ModeRule("observe")), observer=observer)
    one.from_client(NOTICES)
    assert passed(one) == NOTICES
    one.from_upstream(b"+OK\r\n")
    assert sent(one) == b"+OK\r\n"
    assert [rule for _, _, rule, _ in observer.found] == ["redis.address"]
    assert observer.upstream_showed == ["notices"]
    assert one.route.pinned == "CLIENT MAINT_NOTIFICATIONS"


def test_a_redis_without_notices_answers_itself_if_the_policy_names_them() -> None:
    observer = RecordingObserver()
    one = session(in_force=naming_notices(ModeRule("observe")), observer=observer)
    one.from_client(NOTICES)
    one.from_upstream(UNKNOWN)
    assert sent(one) == UNKNOWN
    assert not observer.found
    assert not observer.upstream_showed


# -- pushes of notices


MOVING = b">4\r\n$6\r\nMOVING\r\n:1\r\n:15\r\n$13\r\n" + ADDRESS + b"\r\n"
SHORT_MOVING = b">4\r\n+MOVING\r\n:1\r\n:15\r\n+" + ADDRESS + b"\r\n"
MIGRATED = b">2\r\n$8\r\nMIGRATED\r\n:1\r\n"
HELLO = cmd("HELLO 3")
WELCOME = b"%1\r\n$5\r\nproto\r\n:3\r\n"


def speaking_resp3(one: Session) -> Session:
    one.from_client(HELLO)
    one.from_upstream(WELCOME)
    assert sent(one) == WELCOME
    passed(one)
    return one


def split_up(one: Session, stream: bytes, cuts: list[int]) -> bytes:
    """What the client gets if the stream comes in these pieces."""
    for piece in cut(stream, cuts):
        one.from_upstream(piece)
    assert not one.closing
    return sent(one)


@settings(max_examples=100)
@given(CUTS)
def test_no_notice_passes_between_replies_in_any_pieces(cuts: list[int]) -> None:
    one, observer = enforced()
    speaking_resp3(one).from_client(ADMITTED * 3)
    stream = MOVING + b"*0\r\n" + PUSH + SHORT_MOVING + b"%0\r\n" + MIGRATED + b"*0\r\n" + MOVING
    assert split_up(one, stream, cuts) == b"*0\r\n" + PUSH + b"%0\r\n" + b"*0\r\n"
    assert observer.hidden == ["MOVING", "MOVING", "MIGRATED", "MOVING"]
    assert not observer.found


@settings(max_examples=50)
@given(CUTS)
def test_no_notice_passes_while_nothing_is_due_or_a_reply_is_awaited(cuts: list[int]) -> None:
    one, _ = enforced()
    speaking_resp3(one)
    assert split_up(one, MOVING + PUSH + MOVING, cuts) == PUSH
    one.from_client(HELLO)  # its reply is inspected
    assert split_up(one, MOVING + PUSH + WELCOME + MOVING, cuts) == PUSH + WELCOME
    one.from_client(cmd("CLIENT REPLY SKIP") + ADMITTED)  # its reply is dropped
    one.from_upstream(b"+OK\r\n")
    assert split_up(one, MOVING + PUSH + b"*0\r\n" + PUSH, cuts) == PUSH + PUSH


@settings(max_examples=50)
@given(CUTS)
def test_no_notice_passes_among_messages(cuts: list[int]) -> None:
    one, _ = enforced("CubeMaster")
    speaking_resp3(one).from_client(cmd("SUBSCRIBE cube:v1:shared:sandbox:events"))
    assert passed(one)
    confirmed = b">3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n"
    message = b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$6\r\nMOVING\r\n"
    stream = MOVING + confirmed + MOVING + message + MOVING
    assert split_up(one, stream, cuts) == confirmed + message


@settings(max_examples=50)
@given(CUTS)
def test_no_notice_passes_on_a_kept_connection(cuts: list[int]) -> None:
    one, _ = enforced(sharing=True)
    speaking_resp3(one)
    for piece in cut(MOVING + PUSH + MOVING[:20], cuts):
        one.from_kept(piece)
    assert sent(one) == PUSH
    one.leave_shared()
    assert split_up(one, MOVING[20:] + PUSH, cuts) == PUSH


@settings(max_examples=50)
@given(CUTS)
def test_a_local_answer_waits_for_the_end_of_a_dropped_notice(cuts: list[int]) -> None:
    one, _ = enforced()
    speaking_resp3(one)
    one.from_upstream(MOVING[:20])
    one.from_client(NOTICES)
    assert sent(one) == b""
    assert split_up(one, MOVING[20:] + PUSH, cuts) == b"+OK\r\n" + PUSH


@pytest.mark.parametrize("notice", [MOVING, SHORT_MOVING, MIGRATED])
def test_notices_pass_in_observe(notice: bytes) -> None:
    observer = RecordingObserver()
    one = speaking_resp3(observed(observer=observer))
    one.from_client(ADMITTED)
    one.from_upstream(notice + b"*0\r\n" + notice)
    assert sent(one) == notice + b"*0\r\n" + notice
    assert not observer.hidden


# -- INFO

REPLICATION = (
    b"# Replication\r\nrole:master\r\nconnected_slaves:2\r\n"
    b"slave0:ip=%b,port=%b,state=online,offset=14,lag=0\r\n"
    b"slave1:ip=%b,port=%b,state=online,offset=14,lag=1,type=replica\r\nmaster_replid:10.0.0.7\r\n"
)
OF_REPLICA = b"# Replication\r\nrole:slave\r\nmaster_host:%b\r\nmaster_port:%b\r\nmaster_link_status:up\r\n"
TOLD = [
    (REPLICATION % (b"10.0.0.7", b"6379", b"fd00::7", b"6380"), REPLICATION % (b"?", b"?", b"?", b"?")),
    (OF_REPLICA % (b"redis-0.redis", b"6379"), OF_REPLICA % (b"?", b"?")),
]


def bulk(text: bytes, kind: bytes = b"$") -> bytes:
    return b"%b%d\r\n%b\r\n" % (kind, len(text), text)


@pytest.mark.parametrize(("told", "shown"), TOLD)
@pytest.mark.parametrize("kind", [b"$", b"="])
def test_info_names_no_address_in_enforce(told: bytes, shown: bytes, kind: bytes) -> None:
    one, observer = enforced()
    lead = b"txt:" if kind == b"=" else b""
    requests = cmd("INFO replication") + ADMITTED + cmd("info") + ADMITTED
    one.from_client(requests)
    assert passed(one) == requests  # it holds nothing up
    one.from_upstream((bulk(lead + told, kind) + b"*0\r\n") * 2)
    assert sent(one) == (bulk(lead + shown, kind) + b"*0\r\n") * 2
    assert observer.hidden == ["INFO"] * 2
    assert not observer.found


@pytest.mark.parametrize(
    "reply",
    [
        bulk(b"# Server\r\ntcp_port:6379\r\nlistener0:name=tcp,bind=10.0.0.7,port=6379\r\n"),
        bulk(b"# Keyspace\r\ndb0:keys=1,expires=0,avg_ttl=0\r\nslave_repl_offset:14\r\n"),
        b"-NOPERM no\r\n",
        bulk(b""),
    ],
)
def test_info_without_such_addresses_passes_byte_for_byte(reply: bytes) -> None:
    one, observer = enforced()
    one.from_client(cmd("INFO"))
    one.from_upstream(reply)
    assert sent(one) == reply
    assert not observer.hidden


def test_info_passes_byte_for_byte_in_observe_and_inside_multi() -> None:
    for one in (observed(), in_multi(enforced()[0])):
        one.from_client(cmd("INFO"))
        assert passed(one) == cmd("INFO")
        one.from_upstream(bulk(TOLD[0][0]))
        assert sent(one) == bulk(TOLD[0][0])


def test_a_client_that_wants_no_replies_gets_no_info() -> None:
    one, _ = enforced()
    one.from_client(cmd("CLIENT REPLY SKIP") + cmd("INFO") + ADMITTED)
    one.from_upstream(b"+OK\r\n" + bulk(TOLD[0][0]) + b"*0\r\n")
    assert sent(one) == b"*0\r\n"


# -- before a cluster


class Announced:
    """A cluster whose nodes all have one address of keyfence."""

    def answer(self, command: str, _reply: bytes) -> bytes:
        return f"+keyfence answers {command}\r\n".encode()

    def redirect(self, text: bytes) -> bytes:
        return text.replace(ADDRESS, b"keyfence.example:7200")


def before_a_cluster() -> tuple[Session, RecordingObserver]:
    observer = RecordingObserver()
    rules = [RULE, ModeRule("observe")]
    return session("CubeProxy", rules=rules, observer=observer, cluster=Announced()), observer


@settings(max_examples=200)
@given(CUTS)
def test_before_a_cluster_redirects_name_keyfence_in_any_pieces_and_at_any_depth(cuts: list[int]) -> None:
    one, observer = before_a_cluster()
    one.from_client(ADMITTED * 5)
    stream = MOVED + b"*3\r\n+OK\r\n*1\r\n" + MOVED + ASK + READ_ONLY + ASK + b"+OK\r\n"
    for piece in cut(stream, cuts):
        one.from_upstream(piece)
    assert sent(one) == stream.replace(ADDRESS, b"keyfence.example:7200")
    assert observer.found == []
    assert observer.upstream_errors == ["MOVED", "MOVED", "ASK", "READONLY", "ASK"]


@pytest.mark.parametrize("command", [*TOPOLOGY, "CLUSTER REPLICAS 07c37df"])
def test_before_a_cluster_answers_about_nodes_name_keyfence(command: str) -> None:
    observer = RecordingObserver()
    one = session("CubeMaster", rules=[RULE, ModeRule("observe")], observer=observer, cluster=Announced())
    one.from_client(cmd(command))
    one.from_upstream(SLOTS)
    name = " ".join(command.upper().split()[:2])
    assert sent(one) == f"+keyfence answers {name}\r\n".encode()
    assert "redis.address" not in [rule for _, _, rule, _ in observer.found]


@pytest.mark.parametrize("cut_at", range(1, len(MOVED) + 1))
def test_an_error_that_takes_the_place_of_a_redirect_comes_as_a_whole(cut_at: int) -> None:
    one, _ = before_a_cluster()
    one.client.context.cluster.redirect = lambda _text: b"CLUSTERDOWN unknown node"
    one.from_client(ADMITTED * 2)
    one.from_upstream(MOVED[:cut_at])
    one.from_upstream(MOVED[cut_at:] + b"+OK\r\n")
    assert re.fullmatch(rb"-((M|MO|MOV|MOVE|MOVED): )?CLUSTERDOWN unknown node\r\n\+OK\r\n", sent(one))


EXEC_SLOTS = b"*3\r\n$1\r\nx\r\n" + SLOTS + b"+OK\r\n"


def executed(one: Session, *commands: str) -> bytes:
    """Returns what the client gets for EXEC after these commands, in a transaction that Redis carries out."""
    one.from_client(cmd("MULTI"))
    one.from_upstream(b"+OK\r\n")
    for command in commands:
        one.from_client(cmd(command))
        one.from_upstream(b"+QUEUED\r\n")
    sent(one)
    one.from_client(cmd("EXEC"))
    one.from_upstream(EXEC_SLOTS)
    return sent(one)


@pytest.mark.parametrize("command", TOPOLOGY)
@pytest.mark.parametrize("mode", ["observe", "enforce"])
def test_before_a_cluster_answers_within_exec_name_keyfence(command: str, mode: str) -> None:
    observer = RecordingObserver()
    rules = [ModeRule(mode, "redis.address"), ModeRule("observe")]
    one = session("CubeMaster", rules=rules, observer=observer, cluster=Announced())
    got = executed(one, "GET cube:v1:master:a", command, "SET cube:v1:master:a x")
    assert got == EXEC_SLOTS.replace(SLOTS, f"+keyfence answers {command.upper()}\r\n".encode())
    assert "redis.address" not in [rule for _, _, rule, _ in observer.found]


def test_before_a_cluster_a_transaction_that_did_not_run_has_nothing_to_edit() -> None:
    one = session("CubeMaster", rules=[ModeRule("observe")], cluster=Announced())
    one.from_client(cmd("MULTI") + cmd("CLUSTER SLOTS"))
    one.from_upstream(b"+OK\r\n")
    one.from_upstream(b"+QUEUED\r\n")
    sent(one)
    one.from_client(cmd("EXEC"))
    one.from_upstream(b"-EXECABORT Transaction discarded\r\n")
    assert sent(one) == b"-EXECABORT Transaction discarded\r\n"


def test_before_a_cluster_an_answer_that_text_can_shape_is_ruled_on() -> None:
    """A script's text could take the place of the answer within EXEC's."""
    observer = RecordingObserver()
    one = session("CubeMaster", rules=[RULE, ModeRule("observe")], observer=observer, cluster=Announced())
    one.from_client(cmd("MULTI"))
    one.from_upstream(b"+OK\r\n")
    one.from_client(cmd("EVAL return{} 0"))
    one.from_upstream(b"+QUEUED\r\n")
    sent(one)
    one.from_client(cmd("CLUSTER SLOTS"))
    assert ("redis.address", "refused") in [(rule, action) for _, _, rule, action in observer.found]
