"""Sessions with the CubeSandbox policy, and helpers for their tests."""

from __future__ import annotations

import dataclasses
import ipaddress
import re
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keyfence.identity.resolver import Resolver, make_resolver
from keyfence.policy.enforcement.modes import ModeRule, Modes
from keyfence.policy.engine.authorizer import Authorizer, InForce
from keyfence.policy.engine.command_evidence import Evidence
from keyfence.policy.engine.counts import Admitted, ViolationCounter
from keyfence.policy.loading.load import load_policy
from keyfence.policy.verdict import Finding
from keyfence.resp import encode, requests
from keyfence.resp.limits import IDENTIFIED, RequestLimits
from keyfence.resp.replies import ReplyFramer
from keyfence.session import session as under_test
from keyfence.session.conversation.context import ClientOrigin, Cluster, SessionContext
from keyfence.session.conversation.conversation import ROOM
from keyfence.session.conversation.observer import Observer, Sent
from keyfence.session.conversation.states import State

if TYPE_CHECKING:  # the fuzzer of sessions imports this module, and needs no pytest
    import pytest

POLICY = Path(__file__).parents[2] / "policies" / "cubesandbox.yaml"
ROUTE = b"cube:v1:shared:sandbox:proxy:7c8f"
USERS = {"master": "CubeMaster", "proxy": "CubeProxy"}

policy = cache(lambda: load_policy(POLICY))


def authorizer_with(*rules: ModeRule) -> Authorizer:
    """Returns an authorizer under these rules; without any, it enforces everything."""
    loaded = policy()
    return Authorizer(loaded, Modes(rules or (ModeRule("enforce"),), loaded.services), clock=lambda: 1e9)


def granting(*rules: ModeRule, command: str = "KEYFENCE") -> Authorizer:
    """As `authorizer_with`, with a policy that allows every service this command."""
    loaded = dataclasses.replace(policy(), allow=frozenset({command}))
    return Authorizer(loaded, Modes(rules or (ModeRule("enforce"),), loaded.services), clock=lambda: 1e9)


def identities() -> Resolver:
    networks = [(ipaddress.ip_network("10.1.0.0/16"), "CubeAPI")]
    return make_resolver(frozenset(policy().services), users=USERS, networks=networks)


class RecordingObserver:
    """Keeps what sessions report. Decision ids count from d-1."""

    def __init__(self) -> None:
        self._commands: list[tuple[str, str, str]] = []
        self._admitted: list[tuple[str, Admitted]] = []
        self._found: list[tuple[str, str, str, str]] = []
        self._repeats: list[ViolationCounter] = []
        self.sessions: list[tuple[str, str]] = []
        self.asked_of: list[tuple[str, Evidence]] = []  # of what was evaluated
        self.at_length: list[str] = []
        self.decisions = 0
        self.timed: list[float] = []  # how long the decisions of the sample took
        self.logins_failed = 0
        self.upstream_errors: list[str] = []
        self.upstream_showed: list[str] = []
        self.hidden: list[str] = []  # where addresses were kept from the client
        self.recorder: Callable[..., None] | None = None

    @property
    def found(self) -> list[tuple[str, str, str, str]]:
        """(service, command, rule, action) of each finding; what was only counted comes behind the rest."""
        self._gather_repeats()
        return self._found

    def _gather_repeats(self) -> None:
        for repeat in self._repeats:
            assert isinstance(repeat.rows, list)
            times, repeat.times = repeat.times, 0
            self._found += repeat.rows * times
            if repeat.refusal is not None:
                service, command, *_ = repeat.rows[0]
                self._commands += [(service, command, "refused")] * times

    @property
    def commands(self) -> list[tuple[str, str, str]]:
        """(service, command, outcome) of each; what was only counted comes behind the rest."""
        self._gather_repeats()
        for service, admitted in self._admitted:
            if admitted.name:  # else it counts evidence only
                self.command(service, admitted.name, "forwarded", admitted.times)
            admitted.times = 0
            admitted.is_gathered = False
        self._admitted.clear()
        return self._commands

    def command(self, service: str, command: str, outcome: str, times: int = 1) -> None:
        self._commands += [(service, command, outcome)] * times

    def gather_from(self, service: str, admitted: Admitted) -> None:
        admitted.is_gathered = True
        self._admitted.append((service, admitted))

    def violations(
        self,
        service: str,
        _client: str,
        command: str,
        findings: Sequence[Finding],
        _revision: str,
        *,
        sent: Sent | None = None,  # noqa: ARG002
    ) -> str:
        self._found += [(service, command, violation.rule, action) for violation, action in findings]
        if not any(action == "refused" for _, action in findings):
            return ""
        self.decisions += 1
        return f"d-{self.decisions}"

    def asked(self, service: str, evidence: Evidence) -> None:
        self.asked_of.append((service, evidence))

    def opaque_ended(self, _service: str) -> None:
        pass

    def repeats(self, service: str, command: str, findings: Sequence[Finding]) -> ViolationCounter:
        repeat = ViolationCounter(
            [(service, command, violation.rule, action) for violation, action in findings]
        )
        self._repeats.append(repeat)
        return repeat

    def final_shape(self, _key: bytes) -> None:
        return None

    def judged_at_length(self, reason: str) -> None:
        self.at_length.append(reason)

    def authorized(self, _service: str, seconds: float) -> None:
        assert seconds >= 0
        self.timed.append(seconds)

    def login_failed(self, _service: str) -> None:
        self.logins_failed += 1

    def upstream_error(self, word: str) -> None:
        self.upstream_errors.append(word)

    def address_hidden(self, where: str) -> None:
        self.hidden.append(where)

    def upstream_shown(self, word: str) -> None:
        self.upstream_showed.append(word)

    def opaque(self, service: str, reason: str) -> None:
        self.sessions.append((service, reason))


class OrderedObserver(RecordingObserver):
    """Gathers each count at once, so that commands are listed in their order."""

    def command(self, service: str, command: str, outcome: str, times: int = 1) -> None:
        self._gather_repeats()  # what was refused before it
        super().command(service, command, outcome, times)

    def gather_from(self, service: str, admitted: Admitted) -> None:
        if admitted.name:
            self.command(service, admitted.name, "forwarded", admitted.times)
        admitted.times = 0


def _at(path: str) -> Any:
    """An attribute that is another one of the same session."""
    *owners, name = path.split(".")

    def owner(one: object) -> object:
        for each in owners:
            one = getattr(one, each)
        return one

    return property(lambda one: getattr(owner(one), name), lambda one, to: setattr(owner(one), name, to))


class Session(under_test.Session):
    """A session, with what tests look at within reach."""

    talk = _at("conversation")
    closing = _at("talk.replies.closing")
    to_client = _at("talk.replies.to_client")
    replies = _at("talk.replies")
    to_upstream = _at("talk.to_upstream")
    counts = _at("talk.counts")
    shapeable = _at("talk.shapeable")
    question = _at("talk.question")
    wants_turn = _at("talk.wants_turn")
    turn_ends = _at("talk.turn_ends")
    route = _at("talk.route")
    reopen = _at("talk.route.reopen")
    profile = _at("talk.profile")
    state = _at("talk.state")
    transaction = _at("talk.transaction")
    reader = _at("talk.reader")
    outstanding = _at("talk.outstanding")
    awaits_more = _at("talk.awaits_more")
    holds_back = _at("talk.holds_back")
    in_transaction = _at("talk.in_transaction")
    waits = _at("talk.waits")
    settle = _at("talk.settle")
    wants_input = _at("talk.wants_input")
    backlog = _at("talk.backlog")
    leave_shared = _at("talk.leave_shared")
    take_own = _at("talk.take_own")
    give_up_own = _at("talk.give_up_own")
    may_ask_on_own = _at("talk.may_ask_on_own")
    tell = _at("talk.replies.tell")
    takes_notices = _at("talk.replies.takes_notices")
    upstream_lost = _at("talk.upstream_lost")
    may_evaluate = _at("talk.may_evaluate")
    service = _at("client.service")
    caller = _at("client.caller")
    context = _at("client.context")
    peer = _at("client.peer")
    can_move = _at("client.can_move")
    asker = _at("client.asker")
    errors_came = _at("client.errors_came")
    current_authorizer = _at("client.current_authorizer")

    @property
    def is_opaque(self) -> bool:
        """Whether every byte passes unread."""
        return bool(self.state == State.OPAQUE)

    @property
    def is_streaming(self) -> bool:
        """Whether a request too large to be held is under way."""
        return bool(self.talk.partly_sent or self.reader.is_large)

    def answer(self, to: Any) -> None:
        """Answer the question that the session asks of its owner."""
        question, self.question = self.question, None
        self.take_answer(question, to)


def session(
    service: str = "CubeProxy",
    *,
    rules: Sequence[ModeRule] = (),
    in_force: InForce | None = None,
    observer: Observer | None = None,
    limits: RequestLimits = IDENTIFIED,
    greeting: Sequence[bytes] = (),
    sharing: bool = False,
    clock: Callable[[], float] = time.monotonic,
    cluster: Cluster | None = None,
) -> Session:
    """A session of a client that its listener takes for `service`."""
    context = SessionContext(
        in_force or InForce(authorizer_with(*rules)),
        identities(),
        observer or RecordingObserver(),
        limits,
        greeting=lambda: greeting,
        sharing=sharing,
        clock=clock,
        cluster=cluster,
    )
    return Session(context, ClientOrigin(service, "10.0.0.9:5"))


def observed(
    service: str = "CubeProxy", observer: RecordingObserver | None = None, **options: object
) -> Session:
    return session(service, rules=[ModeRule("observe")], observer=observer, **options)  # type: ignore[arg-type]


def cmd(*words: str | bytes | int) -> bytes:
    """A request; one text is split at its spaces."""
    if len(words) == 1 and isinstance(words[0], str):
        words = tuple(words[0].split())
    return encode.command(*words)


REFUSED = cmd("HSET", ROUTE, "HostIP", "10.0.0.1")  # by CubeProxy: scope.write
ADMITTED = cmd("HGETALL", ROUTE)
PUSH = b">2\r\n+invalidate\r\n*1\r\n$1\r\nk\r\n"


def sent(one: Session) -> bytes:
    """What went to the client since the last call."""
    data = b"".join(one.to_client)
    one.to_client.clear()
    return data


def passed(one: Session) -> bytes:
    """What went upstream since the last call."""
    data = b"".join(one.to_upstream)
    one.to_upstream.clear()
    return data


_BARRIER = re.compile(rb"\*3\r\n\$5\r\nHELLO\r\n\$1\r\n2\r\n\$32\r\n([0-9a-f]{32})\r\n")


def at_barrier(one: Session) -> bytes:
    """What went upstream since the last call, without the barriers in it; Redis answers those."""
    data = passed(one)
    for nonce in _BARRIER.findall(data):
        one.from_upstream(b"-ERR Syntax error in HELLO option '%b'\r\n" % nonce)
    return _BARRIER.sub(b"", data)


def replies(data: bytes) -> list[bytes]:
    """Cut a whole stream of replies and pushes into frames."""
    framer = ReplyFramer()
    frames: list[bytes] = []
    at = 0
    while at < len(data):
        end = framer.advance(data, at, 1, stop_after_push=True)
        frames.append(data[at:end])
        at = end
    assert framer.at_boundary, f"ends inside of a reply: {frames[-1][:80]!r}"
    return frames


def is_refusal(reply: bytes, rule: str) -> bool:
    return reply.startswith(f"-NOPERM [{rule}] ".encode()) and reply.endswith(b")\r\n")


def in_multi(one: Session) -> Session:
    """The session, with a MULTI that Redis has accepted."""
    one.from_client(cmd("MULTI"))
    assert passed(one) == cmd("MULTI")
    one.from_upstream(b"+OK\r\n")
    assert sent(one) == b"+OK\r\n"
    return one


def large(monkeypatch: pytest.MonkeyPatch, **options: Any) -> Session:
    """A session for which 100 bytes are a large argument, and 50 too much for a shared connection."""
    monkeypatch.setattr(requests, "LARGE", 100)
    monkeypatch.setattr(ROOM, "shared_request", 50)
    return session(**options)
