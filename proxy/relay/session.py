"""One client's conversation with Redis: judge each request, keep every answer in its place.

Rule: bytes in, bytes out, no I/O. What goes upstream is exactly what was judged, and the slots decide which
bytes reach the client next. Where the session can't be followed any more it says so and stops judging
(`opaque`) or ends; it never guesses.

The owner (see `server`) feeds `from_client` and `from_upstream`, then takes `to_upstream` and `to_client`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Protocol

from proxy.commands.model import Touches
from proxy.policy.compiled import UNKNOWN
from proxy.policy.decide import Transaction
from proxy.policy.judge import Judge
from proxy.policy.verdict import PASS, Finding, Ruling
from proxy.relay.identity import Identities, auth_user, hello_failed, hello_users
from proxy.relay.refusal import refusal
from proxy.relay.slots import Confirm, Forward, Inspect, Local, Replace, Slots
from proxy.relay.subscriptions import MAX_NAMES, Subscriptions, is_unasked, leading_word
from proxy.wire import encode
from proxy.wire.limits import IDENTIFIED, UNIDENTIFIED, ProtocolError, RequestLimits, RequestTooLarge
from proxy.wire.replies import ReplyError, ReplyFramer
from proxy.wire.requests import RequestReader

# Answers made here that wait for earlier replies. Past this the client's requests are left unread until
# replies come in.
MAX_LOCAL_BYTES = 1024 * 1024
# What is taken in from the client while nothing may be judged. Past this it is left unread.
MAX_BACKLOG = 64 * 1024
# A reply that is looked at (of AUTH, HELLO, RESET) or replaced; longer ones don't exist in Redis.
MAX_INSPECTED = 1024 * 1024

# What a command that isn't in the table is called where names are counted: its own is the client's to word.
OTHER = "other"

# Taking the time costs a tenth of a decision, so one in so many is timed.
TIMED_EACH = 64

# Sent upstream in place of a command that is refused inside MULTI. Its wrong arity makes Redis mark the
# transaction, so that EXEC answers EXECABORT in Redis' own words and runs nothing (server.c, rejectCommand).
POISON = encode.command(b"ECHO")


class Observer(Protocol):
    """What a session tells about itself. Telemetry implements it; none of these may raise."""

    def command(self, service: str, command: str, outcome: str) -> None:
        """A command was `forwarded` or `refused`."""

    def violations(
        self, service: str, client: str, command: str, findings: Sequence[Finding], revision: str
    ) -> str:
        """Violations were found in one command. Returns the decision's id, for the reply."""

    def decided(self, seconds: float) -> None:
        """A decision took so long; told for a sample of them."""

    def opaque(self, service: str, reason: str) -> None:
        """From here on the session is passed unread."""


class Session:
    """The state of one client: reader, framer, slots, identity, transaction."""

    def __init__(
        self,
        judge: Callable[[], Judge],
        identities: Identities,
        at_connect: str,
        client: str,
        observer: Observer,
        limits: RequestLimits = IDENTIFIED,
        greeting: Sequence[bytes] = (),
    ) -> None:
        """`greeting` are the commands that upstream connections are opened with, one reply each."""
        self.to_client: list[bytes] = []
        self.to_upstream: list[bytes] = []
        self.service = at_connect
        self.closing = ""  # why the client is to be closed once `to_client` is sent; "" while it lives
        self.opaque = False
        self.client = client
        self._current_judge = judge
        self._identities = identities
        self._at_connect = at_connect
        self._observer = observer
        self._full_limits = limits
        self._reader = RequestReader(limits)
        self._framer = ReplyFramer()
        self._slots = Slots()
        self._captured = bytearray()
        self._greeting = greeting
        self._in_multi = False
        self._multis = 0
        self._pinned: Judge | None = None  # the judge that an open transaction began with
        self._transaction: Transaction | None = None
        self._number_of: tuple[Judge, str, int] | None = None
        self._until_timed = 0
        self._held = False  # a reply must come in before the next request may be judged
        self._raw: bytes | None = None  # what goes upstream unread once every slot is answered
        self._resp = 2  # the protocol that HELLO has chosen
        self._subscriptions: Subscriptions | None = None  # None: it never subscribed
        self._deferred: tuple[bytes, Sequence[bytes]] | None = None  # a subscription that waits for replies
        self._frame = (
            _UNDECIDED  # whose the frame is that comes from upstream, once subscriptions are followed
        )
        self._closing_then = ""  # why to close once every slot is answered
        self._ruled: tuple[_Special | None, bytes | None, str] = (None, None, "")
        self._apply_limits()

    # -- state that the owner asks for

    @property
    def outstanding(self) -> int:
        """How many replies the client waits for from upstream."""
        return self._slots.outstanding

    @property
    def wants_input(self) -> bool:
        """Whether reading on from the client makes sense now.

        A session that waits takes in some bytes more: only who reads notices that the client has gone.
        """
        if self.closing:
            return False
        return self._may_judge or bool(self._closing_then) or self.backlog < MAX_BACKLOG

    @property
    def holds_back(self) -> bool:
        """Whether requests that have come wait for replies before they may be judged or sent."""
        return not self._may_judge and not self._closing_then and not self.closing

    @property
    def awaits_more(self) -> bool:
        """Whether something may still come for a client that sends no more."""
        return bool(self._slots) or self.opaque or self._raw is not None

    @property
    def in_transaction(self) -> bool:
        """Whether commands are queued that an EXEC may still run."""
        return self._in_multi

    @property
    def waits(self) -> bool:
        """Whether the client waits: for a reply, or for what may come unasked. Then it isn't idle."""
        return self.awaits_more or bool(self._subscriptions and len(self._subscriptions))

    @property
    def _may_judge(self) -> bool:
        return (
            not self.closing
            and not self._closing_then
            and not self._held
            and self._deferred is None
            and self._raw is None
            and self._slots.local_bytes < MAX_LOCAL_BYTES
        )

    @property
    def backlog(self) -> int:
        """Bytes of requests that have come and went nowhere yet."""
        return self._reader.pending + len(self._raw or b"")  # a deferred request is of what was read

    @property
    def mid_reply(self) -> bool:
        """A reply has reached the client in part, so that nothing else may be sent to it."""
        return self.opaque or not self._framer.at_boundary

    # -- from the client

    def from_client(self, data: bytes) -> None:
        """Take in what the client sent."""
        if self.closing or self._closing_then:
            return  # as Redis does with what stands behind QUIT
        if self.opaque:
            self.to_upstream.append(data)
        elif self._raw is not None:
            self._raw += data
        else:
            self._reader.feed(data)
            self._read_requests()

    def _read_requests(self) -> None:
        """Judge every request that is complete; admitted ones that stand together leave as one piece."""
        reader = self._reader
        run_start = run_end = run = 0
        while self._may_judge:
            try:
                argv = reader.next()
            except ProtocolError as exc:
                self._send(run_start, run_end, run)
                self._protocol_error(exc)
                return
            if argv is None:
                break
            if not argv:
                continue  # `*0`, `*-1`, a blank line: no reply is due, so it isn't sent on
            plain = self._admits_as_plain(argv)
            if plain and (run == 0 or reader.start == run_end):
                run_start = run_start if run else reader.start
                run_end = reader.end
                run += 1
                continue
            self._send(run_start, run_end, run)
            run = 0
            if plain:
                run_start, run_end, run = reader.start, reader.end, 1
            else:
                self._do_otherwise(argv)
        self._send(run_start, run_end, run)

    def _send(self, start: int, end: int, count: int) -> None:
        """Send the bytes of `count` requests upstream and await their replies."""
        if count:
            self.to_upstream.append(self._reader.span(start, end))
            self._slots.forward(count)

    def _admits_as_plain(self, argv: Sequence[bytes]) -> bool:
        """Judge a request. True where it goes upstream as it is and gives exactly one reply.

        Where it doesn't, `_do_otherwise` knows from `_ruled` what was decided.
        """
        name = argv[0]
        special = _SPECIAL.get(name.upper()) if len(name) <= _LONGEST_SPECIAL else None
        if special is _http:
            self._ruled = (special, None, "")
            return False
        judge, number = self._judge()
        ruling, touches = self._weigh(judge, number, argv)
        label = touches.command.name if touches.command is not None else OTHER
        if special is None and ruling is PASS:
            self._observer.command(self.service, label, "forwarded")
            return True
        decision = self._tell(ruling, label, judge)
        refused = ruling.refused_by
        reply = None if refused is None else refusal(refused, judge.policy.contact, decision)
        self._ruled = (special, reply, label)
        if special is None and reply is None:
            self._observer.command(self.service, label, "forwarded")
            return True
        return False

    def _weigh(self, judge: Judge, number: int, argv: Sequence[bytes]) -> tuple[Ruling, Touches]:
        """Ask the judge; the time it takes is told for a session's first request and then for each 64th."""
        self._until_timed -= 1
        if self._until_timed >= 0:
            return judge.weigh(number, argv, self._transaction)
        self._until_timed = TIMED_EACH - 1
        start = perf_counter()
        answer = judge.weigh(number, argv, self._transaction)
        self._observer.decided(perf_counter() - start)
        return answer

    def _do_otherwise(self, argv: Sequence[bytes]) -> None:
        special, refused, _ = self._ruled
        if refused is not None:
            self._refuse(refused)
        elif special is not None:
            special(self, argv)

    def _tell(self, ruling: Ruling, command: str, judge: Judge) -> str:
        if not ruling.findings:
            return ""
        return self._observer.violations(
            self.service, self.client, command, ruling.findings, judge.policy.revision
        )

    def _judge(self) -> tuple[Judge, int]:
        """The judge for the next request, and the number under which it knows this client's service."""
        judge = self._pinned or self._current_judge()
        known = self._number_of
        if known is None or known[0] is not judge or known[1] != self.service:
            known = self._number_of = (judge, self.service, judge.number(self.service))
        return judge, known[2]

    def _refuse(self, reply: bytes) -> None:
        """Refuse the request in hand."""
        self._observer.command(self.service, self._ruled[2], "refused")
        if self._in_multi:
            self.to_upstream.append(POISON)
            self._slots.add(Replace(reply))
        else:
            self._answer(reply)

    def _answer(self, reply: bytes) -> None:
        """Put an answer made here into its place."""
        self._slots.add(Local(reply))
        self._let_out()

    def _let_out(self) -> None:
        """Send the local answers whose turn has come; none may stand inside of a push that came in part."""
        if self._framer.at_boundary:
            self.to_client.extend(self._slots.ready())

    def _protocol_error(self, exc: ProtocolError) -> None:
        """Say what Redis would say and close; in observe, a request only too large passes unread."""
        if isinstance(exc, RequestTooLarge) and self._become_opaque("request too large", OTHER, b""):
            return
        self._answer(encode.error(f"ERR {exc}"))
        self._close_after_answers(f"protocol error: {exc}")

    def _close_after_answers(self, reason: str) -> None:
        self._closing_then = reason
        if not self._slots:
            self.closing = reason

    # -- commands that the slots alone can't carry

    def _pass_one(self) -> None:
        """Send the request in hand upstream and await its one reply."""
        self._observer.command(self.service, self._ruled[2], "forwarded")
        self._send(self._reader.start, self._reader.end, 1)

    def _inspect(self, seen: Callable[[bytes], None]) -> None:
        """Send the request in hand upstream and have its reply seen on its way to the client."""
        self._observer.command(self.service, self._ruled[2], "forwarded")
        self.to_upstream.append(self._reader.span(self._reader.start, self._reader.end))
        self._slots.add(Inspect(seen))

    def _hold_for(self, seen: Callable[[bytes], None]) -> None:
        """The same; nothing more is judged before the reply was seen."""

        def release(reply: bytes) -> None:
            self._held = False
            seen(reply)

        self._inspect(release)
        self._held = True

    def _multi(self, argv: Sequence[bytes]) -> None:
        if len(argv) != 1 or self._in_multi:
            self._pass_one()
            return
        self._pinned = self._judge()[0]
        self._in_multi = True
        self._transaction = Transaction()
        self._multis += 1
        number = self._multis
        self._inspect(lambda reply: self._multi_answered(number, reply))

    def _multi_answered(self, number: int, reply: bytes) -> None:
        """Where Redis refused MULTI (NOAUTH, NOPERM) there is no transaction."""
        if reply.startswith(b"-") and number == self._multis:
            self._leave_multi()

    def _leave_multi(self) -> None:
        self._in_multi = False
        self._pinned = self._transaction = None

    def _end_of_multi(self, argv: Sequence[bytes]) -> None:
        if len(argv) == 1:  # with more arguments Redis refuses it and the transaction stays open
            self._leave_multi()
        self._pass_one()

    def _auth(self, argv: Sequence[bytes]) -> None:
        user = auth_user(argv)
        if user is None:
            self._pass_one()
        elif self._in_multi:
            self._opaque_request(argv, "it authenticates inside MULTI")
        else:
            self._hold_for(lambda reply: self._authenticated(user, reply))

    def _hello(self, argv: Sequence[bytes]) -> None:
        users = hello_users(argv)
        if len(argv) == 1:
            self._pass_one()
        elif self._in_multi:
            self._opaque_request(argv, "it changes the protocol or the user inside MULTI")
        elif not users:
            self._inspect(lambda reply: self._speaks(argv[1], reply))
        else:
            version = argv[1]
            self._hold_for(lambda reply: self._hello_answered(users, version, reply))

    def _speaks(self, version: bytes, reply: bytes) -> None:
        if not reply.startswith(b"-") and version in (b"2", b"3"):
            self._resp = int(version)

    def _hello_answered(self, users: Sequence[bytes], version: bytes, reply: bytes) -> None:
        """Redis takes one option after the other: an error may come after AUTH was carried out."""
        self._speaks(version, reply)
        if not reply.startswith(b"-") or hello_failed(users, reply):
            self._authenticated(users[-1], reply)
        else:
            self.closing = "identity: a HELLO failed that may have authenticated"

    def _authenticated(self, user: bytes, reply: bytes) -> None:
        if not reply.startswith(b"-"):
            self._become(self._identities.of_user(user, self._at_connect))

    def _reset(self, argv: Sequence[bytes]) -> None:
        if len(argv) != 1:
            self._pass_one()
            return
        self._leave_multi()
        self._hold_for(self._was_reset)

    def _was_reset(self, reply: bytes) -> None:
        """The connection is as if new; what keyfence said when it was made is to be said again."""
        if reply.startswith(b"-"):
            return
        self._become(self._at_connect)
        self._resp = 2
        if self._subscriptions is not None:
            self._subscriptions.clear()
        for command in self._greeting:
            self.to_upstream.append(command)
            self._slots.add(Replace(b"", self._greeted))

    def _greeted(self, reply: bytes) -> None:
        if reply.startswith(b"-"):
            self.closing = "upstream refused keyfence's login after RESET"

    def _become(self, service: str) -> None:
        self.service = service
        self._apply_limits()

    def _apply_limits(self) -> None:
        """Who is refused most things anyway may not fill memory with long requests (as in Redis)."""
        judge, number = self._judge()
        strict = self.service == UNKNOWN and judge.enforces(number)
        self._reader.limits = UNIDENTIFIED if strict else self._full_limits

    def _quit(self, _argv: Sequence[bytes]) -> None:
        self._pass_one()
        self._close_after_answers("QUIT")

    def _hang_up(self, _argv: Sequence[bytes]) -> None:
        """Redis takes these for an attack through a browser and closes at once (server.c, processCommand)."""
        self._close_after_answers("HTTP sent to a Redis port")

    def _client_command(self, argv: Sequence[bytes]) -> None:
        if len(argv) == 3 and argv[1].upper() == b"REPLY" and argv[2].upper() in (b"OFF", b"SKIP"):
            self._opaque_request(argv, "replies that are switched off can't be counted")
        else:
            self._pass_one()

    def _subscription(self, argv: Sequence[bytes]) -> None:
        """Follow it, once every reply is in that is due: then what comes next can't be mistaken."""
        subscriptions = self._subscriptions
        if self._in_multi:
            self._opaque_request(argv, "what it subscribes to inside MULTI can't be followed")
        elif subscriptions is not None and len(subscriptions) + len(argv) > MAX_NAMES:
            self._opaque_request(argv, "so many subscriptions can't be followed")
        else:
            self._observer.command(self.service, self._ruled[2], "forwarded")
            self._deferred = self._reader.span(self._reader.start, self._reader.end), argv
            self._subscribe_when_answered()

    def _subscribe_when_answered(self) -> None:
        if self._deferred is None or self._slots:
            return
        request, argv = self._deferred
        self._deferred = None
        if self._subscriptions is None:
            self._subscriptions = Subscriptions()
            self._frame = _UNDECIDED if self._framer.at_boundary else _PASSED
        self.to_upstream.append(request)
        if len(argv) == 1 and argv[0][-11:].upper() != b"UNSUBSCRIBE":
            self._slots.forward(1)  # too few arguments: an error
        else:
            self._slots.add(self._subscriptions.expect(argv))

    def _stream_of_commands(self, argv: Sequence[bytes]) -> None:
        self._opaque_request(argv, "its replies can't be followed")

    # -- sessions that can't be followed

    def _opaque_request(self, _argv: Sequence[bytes], reason: str) -> None:
        request = self._reader.span(self._reader.start, self._reader.end)
        command = self._ruled[2]
        if self._become_opaque(reason, command, request, refuse=True):
            self._observer.command(self.service, command, "forwarded")

    def _become_opaque(self, reason: str, command: str, request: bytes, *, refuse: bool = False) -> bool:
        """Go over to passing bytes unread, where the mode admits it; else refuse, if told to."""
        judge, number = self._judge()
        ruling = judge.opaque(number, command, reason)
        decision = self._tell(ruling, command, judge)
        if ruling.refused_by is not None:
            if refuse:
                self._refuse(refusal(ruling.refused_by, judge.policy.contact, decision))
            return False
        self._observer.opaque(self.service, reason)
        self._raw = request + self._reader.rest()
        self._splice_when_answered()
        return True

    def _splice_when_answered(self) -> None:
        if self._raw is not None and not self._slots:
            self.opaque = True
            if self._captured:  # the beginning of a message
                self.to_client.append(bytes(self._captured))
                self._captured.clear()
            self.to_upstream.append(self._raw)
            self._raw = None

    # -- from upstream

    def from_upstream(self, data: bytes) -> None:
        """Take in what Redis sent. What it can't have meant ends the session."""
        if self.opaque:
            self.to_client.append(data)
            return
        try:
            self._distribute(data)
        except ReplyError as exc:
            self.closing = f"upstream sent what is no reply: {exc}"

    def _distribute(self, data: bytes) -> None:
        at = 0
        while at < len(data) and not self.closing:
            if self.opaque:
                self.to_client.append(data[at:])
                return
            head = self._slots.head
            if self._subscriptions is not None:
                at = self._follow_frame(data, at)
            elif isinstance(head, Forward):
                at = self._forward_replies(data, at, head)
            elif isinstance(head, Inspect | Replace):
                at = self._capture(data, at)
            else:
                at = self._forward_push(data, at)
        if self._closing_then and not self._slots and self._framer.at_boundary:
            self.closing = self.closing or self._closing_then

    def _forward_replies(self, data: bytes, at: int, head: Forward) -> int:
        end = self._framer.advance(data, at, head.count)
        self.to_client.append(data if at == 0 and end == len(data) else data[at:end])
        head.count -= self._framer.completed
        if head.count == 0:
            self._slots.pop()
            self._after_slot()
        return end

    def _forward_push(self, data: bytes, at: int) -> int:
        """With no answer due from upstream, only a push may come."""
        end = self._framer.advance(data, at, 1, stop_after_push=True)
        if self._framer.kind not in (0, _PUSH):
            self.closing = "upstream sent a reply that nothing asked for"
        else:
            self.to_client.append(data[at:end])
            if self._slots and self._framer.at_boundary:
                self._after_slot()  # an answer made here waited for the push's end
        return end

    def _capture(self, data: bytes, at: int) -> int:
        """Collect one reply that is looked at or replaced; pushes that come before it pass."""
        end = self._framer.advance(data, at, 1, stop_after_push=True)
        self._captured += data[at:end]
        if len(self._captured) > MAX_INSPECTED:
            self.closing = "upstream sent an oversized reply"
        elif self._framer.at_boundary:
            reply = bytes(self._captured)
            self._captured.clear()
            if self._framer.push:
                self.to_client.append(reply)
            else:
                self._captured_reply(reply)
        return end

    def _follow_frame(self, data: bytes, at: int) -> int:
        """Take the next frame, or a part of it, of a client that has subscribed: message or answer?"""
        framer = self._framer
        end = framer.advance(data, at, 1, stop_after_push=True)
        piece = data if at == 0 and end == len(data) else data[at:end]
        if self._frame in (_PASSED, _ANSWER):
            self.to_client.append(piece)
        else:
            self._captured += piece
        if self._frame == _UNDECIDED:
            word = leading_word(self._captured)
            if word is None and not framer.at_boundary:
                return end
            self._frame = self._owner_of_frame(word or b"")
            if self._frame in (_PASSED, _ANSWER):
                self.to_client.append(bytes(self._captured))
                self._captured.clear()
        if len(self._captured) > MAX_INSPECTED:
            self.closing = "upstream sent an oversized reply"
        elif framer.at_boundary and not self.closing:
            self._end_frame()
        return end

    def _owner_of_frame(self, word: bytes) -> int:
        """Whose a frame is that begins with `word`: nobody's (it passes), or the head slot's."""
        head = self._slots.head
        kind = self._framer.kind
        assert self._subscriptions is not None
        if isinstance(head, Confirm) and word == head.word:
            return _ANSWER
        if kind == _PUSH:
            return _PASSED
        subscribed = bool(len(self._subscriptions)) or isinstance(head, Confirm)
        if self._resp == 2 and subscribed and is_unasked(word):
            return _PASSED
        if head is None:
            self.closing = "upstream sent a reply that nothing asked for"
        return _ANSWER if isinstance(head, Forward | Confirm) else _WHOLE

    def _end_frame(self) -> None:
        owner, self._frame = self._frame, _UNDECIDED
        head = self._slots.head
        if owner == _WHOLE:
            reply = bytes(self._captured)
            self._captured.clear()
            self._captured_reply(reply)
        elif owner == _ANSWER and isinstance(head, Forward | Confirm):
            head.count -= 1
            failed = isinstance(head, Confirm) and self._framer.kind in _ERRORS
            if head.count == 0 or failed:
                self._slots.pop()
                if isinstance(head, Confirm) and not failed:
                    head.confirmed()
                self._after_slot()
        elif self._slots:
            self._after_slot()  # an answer made here waited for the end of a message

    def _captured_reply(self, reply: bytes) -> None:
        slot = self._slots.pop()
        if isinstance(slot, Replace):
            if slot.data:
                self.to_client.append(slot.data)
            if slot.seen is not None:
                slot.seen(reply)
        elif isinstance(slot, Inspect):
            self.to_client.append(reply)
            slot.seen(reply)
        if not self.closing:
            self._after_slot()

    def _after_slot(self) -> None:
        """A slot is answered: let local answers out, and go on with what was held back."""
        self._let_out()
        self._splice_when_answered()
        self._subscribe_when_answered()
        if not self._closing_then and not self.opaque:
            self._read_requests()

    # -- upstream is gone

    def upstream_refused(self, reason: str) -> None:
        """No connection could be had: every request that waits gets an error, and the client stays.

        In the midst of a transaction it goes: what it sends next would run outside of it. So does one whose
        requests weren't read, since no one knows how many answers it waits for; it gets one.
        """
        self._fail_slots(reason)
        self.to_upstream.clear()
        if self.opaque or self._raw is not None:
            self.to_client.append(_unreachable(reason))
            self.closing = reason
        elif self._in_multi:
            self.closing = reason
        elif self._closing_then:
            self.closing = self._closing_then
        else:
            self._read_requests()

    def upstream_lost(self, reason: str) -> None:
        """The connection ended: what is outstanding gets an error where it still can, and the client goes.

        Its database, its transaction and its watches went with the connection, so going on would be a guess.
        """
        if not self.closing:
            if not self.mid_reply:
                self._fail_slots(reason)
            self.closing = self._closing_then or reason

    def _fail_slots(self, reason: str) -> None:
        sorry = _unreachable(reason)
        while self._slots:
            slot = self._slots.pop()
            if isinstance(slot, Forward):
                self.to_client.append(sorry * slot.count)
            elif isinstance(slot, Inspect | Confirm):
                self.to_client.append(sorry)
            else:
                self.to_client.append(slot.data)
        if self._deferred is not None:
            self._deferred = None
            self.to_client.append(sorry)
        self._captured.clear()
        self._held = False


def _unreachable(reason: str) -> bytes:
    return encode.error(f"ERR keyfence: {reason}")


_PUSH = ord(">")
_ERRORS = b"-!"
# Whose the frame is that comes in, where subscriptions are followed: not known yet; nobody's, as a message;
# the head slot's, and passed on as it comes; the head slot's, and collected.
_UNDECIDED, _PASSED, _ANSWER, _WHOLE = range(4)
_Special = Callable[[Session, Sequence[bytes]], None]
_http: _Special = Session._hang_up

_SPECIAL: dict[bytes, _Special] = {
    b"AUTH": Session._auth,
    b"CLIENT": Session._client_command,
    b"DISCARD": Session._end_of_multi,
    b"EXEC": Session._end_of_multi,
    b"HELLO": Session._hello,
    b"HOST:": _http,
    b"MONITOR": Session._stream_of_commands,
    b"MULTI": Session._multi,
    b"POST": _http,
    b"PSUBSCRIBE": Session._subscription,
    b"PSYNC": Session._stream_of_commands,
    b"PUNSUBSCRIBE": Session._subscription,
    b"QUIT": Session._quit,
    b"REPLCONF": Session._stream_of_commands,
    b"RESET": Session._reset,
    b"SSUBSCRIBE": Session._subscription,
    b"SUBSCRIBE": Session._subscription,
    b"SUNSUBSCRIBE": Session._subscription,
    b"SYNC": Session._stream_of_commands,
    b"UNSUBSCRIBE": Session._subscription,
}
_LONGEST_SPECIAL = max(map(len, _SPECIAL))
