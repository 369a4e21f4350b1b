"""KEYFENCE: keyfence's own answers in their place among the replies."""

from __future__ import annotations

from typing import Any

import pytest

from keyfence.commands.own import OWN_COMMANDS
from keyfence.policy.enforcement.modes import ModeRule, Modes
from keyfence.policy.engine.authorizer import Authorizer, InForce
from keyfence.policy.loading.load import parse_policy
from keyfence.policy.rules import RULES
from keyfence.resp.values import answer
from keyfence.session.conversation.context import ClientOrigin, SessionContext
from keyfence.session.conversation.owner_questions import Question
from tests.session.sessions import (
    ADMITTED,
    ROUTE,
    RecordingObserver,
    Session,
    cmd,
    granting,
    identities,
    in_multi,
    large,
    observed,
    passed,
    replies,
    sent,
    session,
)

STATS = cmd("KEYFENCE STATS")
FOUND = {"commands": 7}
NOT_IN_MULTI = b"-ERR Command not allowed inside a transaction\r\n"
ASKING = {
    "KEYFENCE FINDINGS": ("findings", ("CubeProxy",)),
    "KEYFENCE READINESS": ("readiness", ("CubeProxy",)),
    "KEYFENCE STATS": ("stats", ("CubeProxy",)),
    "KEYFENCE SHOW CLIENTS": ("clients", ("CubeProxy",)),
    "keyfence upstreams": ("upstreams", ()),
}


def granted(**options: Any) -> Session:
    return session(in_force=InForce(granting()), **options)


def question_of(one: Session) -> Question:
    """The question that the session asks; its owner takes it."""
    question, one.question = one.question, None
    assert question is not None
    return question


def fields_of(reply: bytes) -> dict[bytes, bytes]:
    """The fields of an answer in RESP2 that has only texts."""
    texts = reply.split(b"\r\n")[2:-1:2]
    return dict(zip(texts[::2], texts[1::2], strict=True))


# -- what the session knows itself


def test_whoami_says_who_the_client_is_and_why() -> None:
    one = granted(observer=(observer := RecordingObserver()))
    one.from_client(cmd("KEYFENCE WHOAMI"))
    reply = sent(one)
    assert b"$4\r\nuser\r\n$-1\r\n" in reply
    found = fields_of(reply.replace(b"$4\r\nuser\r\n$-1\r\n", b"$4\r\nuser\r\n$1\r\n-\r\n"))
    assert found[b"service"] == b"CubeProxy"
    assert found[b"identified_by"] == b"nothing"  # nobody has told the session
    assert found[b"address"] == b"10.0.0.9:5"
    assert found[b"policy"] == b"cubesandbox"
    assert found[b"contact"] == b"#cube-redis"
    assert passed(one) == b""
    assert observer.commands == [("CubeProxy", "KEYFENCE WHOAMI", "local")]
    assert observer.asked_of == [], "it is no evidence that a rule was kept"


@pytest.mark.parametrize(
    ("user", "service", "by"), [("master", "CubeMaster", "user"), ("x", "CubeProxy", "network")]
)
def test_whoami_knows_whether_the_user_decides(user: str, service: str, by: str) -> None:
    context = SessionContext(InForce(granting()), identities(), RecordingObserver())
    one = Session(context, ClientOrigin("CubeProxy", "10.1.1.1", known_by="network"))
    one.from_client(cmd("AUTH", user, "right") + cmd("KEYFENCE WHOAMI"))
    passed(one)
    one.from_upstream(b"+OK\r\n")
    ok, reply = replies(sent(one))
    found = fields_of(reply)
    assert ok == b"+OK\r\n"
    assert (found[b"service"], found[b"identified_by"], found[b"user"]) == (
        service.encode(),
        by.encode(),
        user.encode(),
    )


def test_modes_has_each_rule_with_its_mode_for_the_service() -> None:
    authorizer = granting(ModeRule("enforce", "scope.write", "CubeProxy"), ModeRule("disabled", "key.format"))
    one = session(in_force=InForce(authorizer))
    one.from_client(cmd("KEYFENCE MODES"))
    modes = fields_of(sent(one))
    assert list(modes) == [rule.encode() for rule in RULES]
    assert (modes[b"scope.write"], modes[b"key.format"], modes[b"scope.read"]) == (
        b"enforce",
        b"disabled",
        b"observe",
    )


def test_help_lists_every_subcommand() -> None:
    one = granted()
    one.from_client(cmd("keyfence help"))
    reply = sent(one)
    assert all(b"\r\n+" + name.split()[1].encode() in reply for name in OWN_COMMANDS)


def test_resp3_has_maps() -> None:
    one = granted()
    one.from_client(cmd("HELLO 3") + cmd("KEYFENCE MODES"))
    passed(one)
    one.from_upstream(b"%1\r\n+proto\r\n:3\r\n")
    assert replies(sent(one))[1].startswith(b"%%%d\r\n" % len(RULES))


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("KEYFENCE", b"-ERR wrong number of arguments for 'keyfence' command\r\n"),
        ("KEYFENCE WHOAMI x", b"-ERR wrong number of arguments for 'keyfence|whoami' command\r\n"),
        ("KEYFENCE EXPLAIN", b"-ERR wrong number of arguments for 'keyfence|explain' command\r\n"),
        ("KEYFENCE SHOW", b"-ERR wrong number of arguments for 'keyfence|show' command\r\n"),
        ("KEYFENCE SHOW KEYS", b"-ERR unknown argument 'KEYS'. Try KEYFENCE HELP.\r\n"),
        ("KEYFENCE NOSUCH", b"-ERR unknown subcommand 'NOSUCH'. Try KEYFENCE HELP.\r\n"),
    ],
)
def test_a_wrong_call_gets_an_error_as_redis_words_it(call: str, error: bytes) -> None:
    one = granted()
    one.from_client(cmd(call))
    assert (sent(one), passed(one), one.question) == (error, b"", None)


# -- what the session asks


@pytest.mark.parametrize("call", ASKING)
def test_what_the_session_does_not_know_it_asks_and_the_answer_is_the_reply(call: str) -> None:
    one = granted()
    one.from_client(cmd(call))
    question = question_of(one)
    assert (question.kind, question.content) == ASKING[call]
    assert one.awaits_more
    assert sent(one) == b""
    one.take_answer(question, FOUND)
    assert sent(one) == answer(FOUND, 2)
    assert not one.awaits_more


def test_explain_asks_for_the_caller_and_runs_nothing() -> None:
    one = granted()
    one.from_client(cmd("KEYFENCE EXPLAIN DEL") + b"")
    question = question_of(one)
    assert question.content == ("CubeProxy", (b"DEL",), one.caller)
    one.take_answer(question, {"verdict": "allow"})
    assert passed(one) == b""


def test_replies_keep_the_order_of_their_requests() -> None:
    one = granted()
    one.from_client(ADMITTED + STATS + cmd("KEYFENCE HELP") + cmd("GET", "nobody's") + ADMITTED + STATS)
    assert passed(one) == ADMITTED
    assert one.question is None, "it waits for the reply that is due"
    one.from_upstream(b"*1\r\n+first\r\n")
    one.take_answer(question_of(one), FOUND)
    assert passed(one) == ADMITTED
    one.from_upstream(b"*1\r\n+last\r\n")
    one.take_answer(question_of(one), FOUND)
    first, found, usage, refused, last, again = replies(sent(one))
    assert (first, last) == (b"*1\r\n+first\r\n", b"*1\r\n+last\r\n")
    assert found == again == answer(FOUND, 2)
    assert usage.startswith(b"*")
    assert refused.startswith(b"-NOPERM")


def test_an_answer_comes_between_messages() -> None:
    """A push that has come in part is not interrupted."""
    one = granted()
    one.from_client(ADMITTED + STATS)
    passed(one)
    one.from_upstream(b"*0\r\n>2\r\n+invalidate\r\n:")
    one.take_answer(question_of(one), FOUND)
    assert sent(one) == b"*0\r\n>2\r\n+invalidate\r\n:"
    one.from_upstream(b"1\r\n")
    assert sent(one) == b"1\r\n" + answer(FOUND, 2)


def test_no_answer_in_time_is_an_error_reply_and_the_session_goes_on() -> None:
    one = granted()
    one.from_client(STATS + ADMITTED)
    one.take_answer(question_of(one), None)
    assert sent(one).startswith(b"-ERR keyfence: no answer in time")
    assert passed(one) == ADMITTED


def test_an_answer_may_be_an_error() -> None:
    one = granted()
    one.from_client(cmd("KEYFENCE EXPLAIN GET x"))
    one.take_answer(question_of(one), {"error": "'CubeProxy' is not a service of the policy"})
    assert sent(one) == b"-ERR keyfence: 'CubeProxy' is not a service of the policy\r\n"


def test_an_answer_that_comes_twice_or_too_late_does_nothing() -> None:
    one = granted()
    one.from_client(STATS)
    question = question_of(one)
    one.take_answer(question, FOUND)
    one.take_answer(question, FOUND)
    assert sent(one) == answer(FOUND, 2)
    one.from_client(STATS)
    question = question_of(one)
    one.upstream_lost("gone")
    one.take_answer(question, FOUND)
    assert sent(one) == b""


def test_on_a_shared_connection_nothing_is_left_behind() -> None:
    one = granted(sharing=True)
    one.from_client(STATS)
    one.take_answer(question_of(one), FOUND)
    one.from_client(cmd("KEYFENCE HELP") + ADMITTED)
    assert one.route.is_shared
    assert not one.route.pinned
    assert one.counts == [1]


# -- where it is not answered


@pytest.mark.parametrize("call", ["KEYFENCE WHOAMI", "KEYFENCE", "keyfence stats"])
def test_without_a_grant_it_is_an_unknown_command(call: str) -> None:
    one = session()
    one.from_client(cmd(call))
    assert sent(one).startswith(b"-NOPERM [command.unknown] ")
    observer = RecordingObserver()
    one = observed(observer=observer, sharing=True)
    one.from_client(cmd(call))
    assert passed(one) == cmd(call)
    assert one.route.pinned == "an unknown command"
    assert observer.commands == [("CubeProxy", "other", "forwarded")]
    assert [rule for _, _, rule, _ in observer.found] == ["command.unknown"]


def test_inside_multi_it_is_refused_and_the_transaction_aborts() -> None:
    one = in_multi(granted(observer=(observer := RecordingObserver())))
    one.from_client(STATS)
    assert passed(one) == cmd("ECHO")
    one.from_upstream(b"-ERR wrong number of arguments for 'echo' command\r\n")
    assert sent(one) == NOT_IN_MULTI
    assert observer.commands[-1] == ("CubeProxy", "KEYFENCE", "refused")


def test_a_whole_transaction_with_it_is_not_sent_as_one_piece() -> None:
    one = granted(sharing=True)
    one.from_client(cmd("MULTI") + ADMITTED + STATS + cmd("EXEC"))
    assert not one.route.is_shared
    one.from_upstream(b"+OK\r\n+QUEUED\r\n")
    assert passed(one) == cmd("MULTI") + ADMITTED + cmd("ECHO") + cmd("EXEC")
    one.from_upstream(b"-ERR wrong number\r\n-EXECABORT\r\n")
    assert replies(sent(one)) == [b"+OK\r\n", b"+QUEUED\r\n", NOT_IN_MULTI, b"-EXECABORT\r\n"]


def test_a_subscriber_of_resp2_may_not_use_it_as_in_redis() -> None:
    one = session(in_force=InForce(granting(ModeRule("observe"))))
    one.from_client(cmd("SUBSCRIBE news") + STATS)
    confirmed = b"*3\r\n$9\r\nsubscribe\r\n$4\r\nnews\r\n:1\r\n"
    one.from_upstream(confirmed)
    assert sent(one).startswith(confirmed + b"-ERR Can't execute 'keyfence': only ")
    one.from_client(cmd("UNSUBSCRIBE news") + STATS)
    one.from_upstream(b"*3\r\n$11\r\nunsubscribe\r\n$4\r\nnews\r\n:0\r\n")
    assert question_of(one).kind == "stats"


def test_client_reply_off_and_skip_silence_it() -> None:
    one = granted()
    one.from_client(cmd("CLIENT REPLY SKIP") + STATS + cmd("KEYFENCE HELP"))
    passed(one)
    one.from_upstream(b"+OK\r\n")
    one.take_answer(question_of(one), FOUND)
    assert sent(one).startswith(b"*19\r\n+KEYFENCE ")
    one.from_client(cmd("CLIENT REPLY OFF") + STATS)
    one.from_upstream(b"+OK\r\n")
    one.take_answer(question_of(one), FOUND)
    one.from_client(cmd("KEYFENCE HELP") + cmd("CLIENT REPLY ON"))
    assert sent(one) == b""


def test_a_command_too_long_to_explain_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    one = large(monkeypatch, in_force=InForce(granting()))
    data = cmd("KEYFENCE", "EXPLAIN", "SET", ROUTE, b"x" * 500)
    for at in range(0, len(data), 100):
        one.from_client(data[at : at + 100])
    assert sent(one).startswith(b"-ERR keyfence: this command is too long to be explained")
    assert one.reopen, "the connection that has the beginning of it"
    one.from_client(ADMITTED)
    assert passed(one) == ADMITTED
    one = granted()
    for arguments in (["k"] * 100, ["k" * 1_000] * 66):
        one.from_client(cmd("KEYFENCE", "EXPLAIN", "DEL", *arguments))
        assert sent(one).startswith(b"-ERR keyfence: this command is too long to be explained")


# -- tenants

TENANTS = """
policy: saas
services: [api, ops]
claims: ["saas:"]
placeholders: {tenant: "[a-z]+", id: "[0-9]+"}
bind: {tenant: {from: user, pattern: "tenant-(.*)", across: [ops]}}
keys: {cart: {key: "saas:<tenant>:cart:<id>", writers: [api, ops]}}
commands: {allow: [KEYFENCE]}
"""


@pytest.mark.parametrize("call", ["KEYFENCE FINDINGS", "KEYFENCE SHOW CLIENTS"])
def test_a_tenant_does_not_see_others_keys_and_clients(call: str) -> None:
    loaded = parse_policy(TENANTS)
    in_force = InForce(Authorizer(loaded, Modes((), loaded.services)))
    tenant, ops = session("api", in_force=in_force), session("ops", in_force=in_force)
    for one in (tenant, ops):
        one.from_client(cmd(call))
    assert sent(tenant).startswith(b"-ERR keyfence: this would show other tenants' keys")
    assert tenant.question is None
    assert question_of(ops).content == ("ops",)
    tenant.from_client(STATS)
    assert question_of(tenant).kind == "stats"
