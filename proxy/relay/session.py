# cython: annotation_typing=False
"""One client's conversation with Redis: judge each request, keep every answer in its place.

Rule: bytes in, bytes out, no I/O. What goes upstream is exactly what was judged, and the slots decide which
bytes reach the client next. Where the session can't be followed any more it says so and stops judging
(`opaque`) or ends; it never guesses.

The owner (see `client`) feeds `from_client` and `from_upstream` (or `from_shared`), then takes `to_upstream`
and `to_client`. What comes from upstream is sorted in `answers`; which connection a request takes is told by
`route`; commands that do something to the session itself are in `specials`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic, perf_counter
from typing import Protocol

from proxy.commands.model import Command, Streamed, Touches
from proxy.policy.compiled import UNKNOWN, CompiledPolicy
from proxy.policy.glance import Glance, Way
from proxy.policy.judge import Judge
from proxy.policy.repeats import Repeat
from proxy.policy.verdict import PASS, Finding, Ruling
from proxy.relay.answers import ON, Answers, unreachable
from proxy.relay.identity import Identities
from proxy.relay.refusal import around_key, refusal
from proxy.relay.route import SHAREABLE, Route
from proxy.relay.speaker import Speaker
from proxy.relay.specials import LONGEST_SPECIAL, SPECIALS, Special, hang_up, open_transaction
from proxy.relay.transactions import OpenTransaction
from proxy.wire import encode
from proxy.wire.limits import IDENTIFIED, UNIDENTIFIED, ProtocolError, RequestLimits, RequestTooLarge
from proxy.wire.profile import Profile
from proxy.wire.replies import ReplyError
from proxy.wire.requests import HandedOn, RequestReader

# Answers made here that wait for earlier replies. Past this the client's requests are left unread until
# replies come in.
MAX_LOCAL_BYTES = 1024 * 1024
# What is taken in from the client while nothing may be judged. Past this it is left unread.
MAX_BACKLOG = 64 * 1024
# How many requests, and about how many bytes of them, one client may have under way on a shared connection.
MAX_SHARED_REQUESTS = 4096
MAX_SHARED_BYTES = 1024 * 1024
# Larger requests, and clients that get larger replies, take a connection of their own.
LARGEST_SHARED = 64 * 1024
LARGEST_SHARED_REPLY = 256 * 1024

# What a glance may admit: nothing but one reply comes of it, wherever it goes.
PLAIN = SHAREABLE - {name.decode() for name in SPECIALS}

# What a command that isn't in the table is called where names are counted: its own is the client's to word.
OTHER = "other"

# Taking the time costs a tenth of a decision, so one in so many is timed.
TIMED_EACH = 64

# Sent upstream in place of a command that is refused inside MULTI. Its wrong arity makes Redis mark the
# transaction, so that EXEC answers EXECABORT in Redis' own words and runs nothing (server.c, rejectCommand).
POISON = encode.command(b"ECHO")
MULTI = encode.command(b"MULTI")


class Observer(Protocol):
    """What a session tells about itself. Telemetry implements it; none of these may raise."""

    # Is told each command that is judged; None where nobody wants to know.
    recorder: Callable[[CompiledPolicy, str, Sequence[bytes], Touches], None] | None

    def command(self, service: str, command: str, outcome: str, times: int = 1) -> None:
        """A command was `forwarded` or `refused`, or several alike were."""

    def violations(
        self, service: str, client: str, command: str, findings: Sequence[Finding], revision: str
    ) -> str:
        """Violations were found in one command. Returns the decision's id, for the reply."""

    def repeats(self, service: str, command: str, findings: Sequence[Finding]) -> Repeat | None:
        """What further commands with the same findings may be counted by, as long as it lives; None: each is
        to be told of."""

    def decided(self, seconds: float) -> None:
        """A decision took so long; told for a sample of them."""

    def login_failed(self, service: str) -> None:
        """A client, so far this service, gave a wrong password for a user that keyfence itself checks."""

    def opaque(self, service: str, reason: str) -> None:
        """From here on the session is passed unread."""


class Session(Speaker):
    """The state of one client: reader, answers, route, identity, transaction."""

    def __init__(
        self,
        judge: Callable[[], Judge],
        identities: Identities,
        at_connect: str,
        client: str,
        observer: Observer,
        limits: RequestLimits = IDENTIFIED,
        greeting: Sequence[bytes] = (),
        *,
        sharing: bool = False,
        database: int = 0,
        selects_later: bool = False,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """`greeting` are the commands that upstream connections are opened with, one reply each; `database`
        is the one that they select. `sharing`: connections that others use too may be used."""
        self.answers = Answers(self._after_slot)
        self.first_profile = Profile(database=database)
        super().__init__(at_connect, self.first_profile, self.answers, Route(sharing, clock))
        self._sender = object()  # tells its commands from those of other connections
        self.at_connect = at_connect
        self.opaque = False
        self.client = client
        self.identities = identities
        self.greeting = greeting
        self.selects_later = selects_later
        self.transaction: OpenTransaction | None = None
        self.request = b""  # the bytes of the request that a special has in hand
        self.is_behind = False  # the own connection has carried nothing since the client last shared
        self.held = False  # a reply must come in before the next request may be judged
        self._current_judge = judge
        self._observer = observer
        self._full_limits = limits
        self._reader = RequestReader(limits)
        self._number_of: tuple[Judge, str, int] | None = None
        self._until_timed = 0
        self._way: Way | None = None  # that the command took which was admitted last at a glance …
        self._known_glance: Glance | None = None
        self._glance_of: Judge | None = None
        self._missed = False  # the glance knows the command in hand, and that it must be judged
        # What `_ruled` is to be where the request in hand is refused as others like it were.
        self._refused: tuple[Special | None, bytes | None, str, bool] | None = None
        self._alike = 0  # … and how many were that nobody was told of yet
        self._raw: bytes | None = None  # what goes upstream unread once every slot is answered
        self._deferred: Callable[[], None] | None = None  # what waits until every slot is answered
        self._closing_then = ""  # why to close once every slot is answered
        self._streaming = False  # a part of the request under way was sent already
        self._shared_bytes = 0  # sent on the shared connection since the last time nothing was due
        self._reply_bytes = 0  # of a reply that comes in on the shared connection
        self._ruled: tuple[Special | None, bytes | None, str, bool] = (None, None, "", True)
        self._apply_limits()

    # -- state that the owner asks for

    @property
    def outstanding(self) -> int:
        return self.answers.slots.awaited

    def wants_input(self) -> bool:
        """A session that waits takes in some bytes more: only who reads notices that the client has gone."""
        if self.answers.closing:
            return False
        return self._may_judge() or self._closing_then != "" or self.backlog() < MAX_BACKLOG

    @property
    def holds_back(self) -> bool:
        return not self._may_judge() and not self._closing_then and not self.closing

    @property
    def awaits_more(self) -> bool:
        return bool(self.answers.slots) or self.opaque or self._raw is not None

    @property
    def is_streaming(self) -> bool:
        """Whether a request is under way that is too large to be held."""
        return self._streaming or self._reader.is_large

    @property
    def in_transaction(self) -> bool:
        return self.transaction is not None

    @property
    def waits(self) -> bool:
        return self.awaits_more or self.answers.monitoring or bool(self.answers.subscriptions)

    def _may_judge(self) -> bool:
        slots = self.answers.slots
        return (
            not self.answers.closing
            and not self._closing_then
            and not self.held
            and self._deferred is None
            and self._raw is None
            and slots.local_bytes < MAX_LOCAL_BYTES
            and (not self.route.is_shared or self._has_room(slots.awaited))
        )

    def _has_room(self, awaited: int) -> bool:
        if not awaited:
            self._shared_bytes = 0
        return awaited < MAX_SHARED_REQUESTS and self._shared_bytes < MAX_SHARED_BYTES

    def backlog(self) -> int:
        held = self._reader.pending()  # a deferred request is of what was read
        return held if self._raw is None else held + len(self._raw)

    @property
    def mid_reply(self) -> bool:
        """A reply has reached the client in part, so that nothing else may be sent to it."""
        return self.opaque or self.answers.mid_reply

    # -- from the client

    def from_client(self, data: bytes) -> None:
        if self.answers.closing or self._closing_then:
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
        self.settle()
        glance = self._glance()
        may_judge = self._may_judge()
        while may_judge:
            glimpsed = glance is not None and not self._streaming and reader.glimpse()
            if glimpsed and glance is not None and self._admits_glimpsed(glance):
                if run and reader.start != run_end:
                    self._send(run_start, run_end, run)
                    run = 0
                    may_judge = self._may_judge()
                if not run:
                    run_start = reader.start
                run_end = reader.end
                run += 1
                continue
            try:
                argv = reader.again() if glimpsed else reader.next()
            except ProtocolError as exc:
                self._send(run_start, run_end, run)
                self._protocol_error(exc)
                return
            if argv is None:
                break
            if not argv:
                if self.answers.reply != ON:
                    self._send(run_start, run_end, run)
                    run = 0
                    self.answers.pass_over()
                    may_judge = self._may_judge()
                continue  # `*0`, `*-1`, a blank line: no reply is due, so it isn't sent on
            if self._streaming:
                argv = [Streamed(one.size) if isinstance(one, HandedOn) else one for one in argv]
            plain = glance is not None and not self._streaming and self._admits_at_a_glance(glance, argv)
            if not plain and len(argv) == 1 and glance is not None and self._may_be_whole(glance, argv[0]):
                self._send(run_start, run_end, run)
                run = 0
                if self._whole_transaction(glance):
                    may_judge = self._may_judge()
                    continue
            plain = plain or self._admits_as_plain(argv)
            if plain:
                self._streaming = False
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
                glance = self._glance()
            may_judge = self._may_judge()  # only what is sent or done changes that
        self._send(run_start, run_end, run)
        if reader.announced() > LARGEST_SHARED and self._may_judge():
            self._large_request()

    def _send(self, start: int, end: int, count: int) -> None:
        """Send the bytes of `count` requests upstream and await their replies."""
        if self._alike:
            self._tell_alike()
        if count:
            self._to_upstream(self._reader.span(start, end), count)

    def _to_upstream(self, request: bytes, count: int) -> None:
        self.to_upstream.append(request)
        if self.transaction is not None:
            self.transaction.queued += count
        if self.route.is_shared:
            self.counts.append(count)
            self._shared_bytes += len(request)
        else:
            self.is_behind = False
        self.answers.forward(count)

    def _glance(self) -> Glance | None:
        """The short way to a yes, where nobody else wants to see the commands."""
        if self._observer.recorder is not None:
            return None
        judge, number = self._judge()
        glance = self._known_glance
        if (
            glance is None
            or self._glance_of is not judge
            or glance.policy is not judge.decider.policy
            or glance.service != number
        ):
            glance = self._known_glance = judge.glance(number, PLAIN)
            self._glance_of = judge
        return glance

    def _admits_glimpsed(self, glance: Glance) -> bool:
        """As `_admits_at_a_glance`, for a request of which nothing was taken out yet."""
        reader = self._reader
        if self._until_timed <= 0 or (self.route.is_shared and reader.end - reader.start > LARGEST_SHARED):
            return False
        way = glance.admits_in(
            reader.data(),
            reader.count,
            reader.name_at,
            reader.name_end,
            reader.key_at,
            reader.key_end,
            reader.options_at,
            reader.end,
        )
        if way is None:
            return False
        self._until_timed -= 1
        if way is not self._way:
            self._begin_alike(way)
        self._alike += 1
        if glance.found:
            self._keep_open(glance, way, reader.span(reader.key_at, reader.key_end))
        return True

    def _admits_at_a_glance(self, glance: Glance, argv: list[bytes]) -> bool:
        """Whether a request surely goes upstream as it is, and gives one reply."""
        if self.route.is_shared and self._reader.end - self._reader.start > LARGEST_SHARED:
            return False
        self._until_timed -= 1
        if self._until_timed < 0:
            way = self._timed(glance, argv)
        else:
            way = glance.admits(argv)
        repeat = None
        if way is None:
            repeat = glance.repeat(argv)
            if repeat is None:
                self._missed = glance.missed is not None
                return False
            if repeat.refusal is not None:
                self._refuse_alike(glance, repeat, argv)
                return False
            repeat.times += 1
            way = glance.missed
        if way is not self._way:
            self._begin_alike(way)
        self._alike += 1
        if repeat is None and way is not None and glance.found:
            self._keep_open(glance, way, argv[way.index])
        return True

    def _begin_alike(self, way: Way | None) -> None:
        """What is admitted from here on is of another kind than what was before."""
        if self._alike:
            self._tell_alike()
        self._way = way
        self.route.begins_work()

    def _keep_open(self, glance: Glance, way: Way, key: bytes) -> None:
        """Keep in mind what a command that was admitted at a glance leaves open."""
        judge, number = self._judge()
        judged = self.transaction.judged if self.transaction is not None else None
        database = self.profile.database
        judge.keep_open(number, glance, way, key, judged, database, self.client, self._sender)

    def _refuse_alike(self, glance: Glance, repeat: Repeat, argv: list[bytes]) -> None:
        """Have a request refused as others like it were, unless break-glass is open."""
        if self.current_judge().glass or glance.missed is None:
            return
        reply = glance.refusal(repeat, argv)
        if reply:
            repeat.times += 1
            self._refused = (None, reply, glance.missed.name, True)

    # -- transactions in hand as a whole

    def _may_be_whole(self, glance: Glance, name: bytes) -> bool:
        """Whether the request in hand is a MULTI that may go on in one piece with all up to its EXEC."""
        return (
            len(name) == 5
            and name.upper() == b"MULTI"
            and not self._streaming
            and self.transaction is None
            and not self.route.watching
            and self.answers.reply == ON
            and glance.admits_transactions
        )

    def _whole_transaction(self, glance: Glance) -> bool:
        """Send what begins with the MULTI in hand up to its EXEC, all of it judged, as one piece.

        In one piece nobody's requests come between, so it may go where others are: what it does to the
        connection it undoes. False: it isn't here as a whole, or something in it acts on the session.
        """
        reader = self._reader
        start, end = reader.start, reader.end
        queued = self._up_to_exec()
        if queued is None:
            reader.return_to(start, end)
            return False
        self._observer.command(self.service, "MULTI", "forwarded")
        transaction = self.transaction = OpenTransaction(self.current_judge())
        for count, argv in enumerate(queued):
            if not (self._admits_at_a_glance(glance, argv) or self._admits_as_plain(argv)):
                self._open_before(transaction, start, end, count)
                return True
        self.transaction = None
        self._send(start, reader.end, len(queued) + 2)
        self._observer.command(self.service, "EXEC", "forwarded")
        return True

    def _up_to_exec(self) -> list[list[bytes]] | None:
        """The requests up to the next EXEC; None where one is a special, or too much, or hasn't come."""
        reader = self._reader
        limit = reader.start + LARGEST_SHARED
        queued: list[list[bytes]] = []
        try:
            while argv := reader.next():
                if reader.end > limit or len(queued) >= MAX_SHARED_REQUESTS:
                    return None
                name = argv[0]
                if len(name) <= LONGEST_SPECIAL and (name := name.upper()) in SPECIALS:
                    return queued if name == b"EXEC" and len(argv) == 1 else None
                queued.append(argv)
        except ProtocolError:
            pass  # it is met again where the requests before it are sent
        return None

    def _open_before(self, transaction: OpenTransaction, start: int, end: int, count: int) -> None:
        """Of a transaction in hand, whose MULTI lies from `start` to `end`, `count` requests were admitted;
        the next one has to be refused, or goes on a connection of its own. So open it there."""
        reader = self._reader
        reader.return_to(start, end)
        for _ in range(count + 1):
            reader.next()
        multi, admitted = reader.span(start, end), reader.span(end, reader.start)
        request, ruled = reader.span(reader.start, reader.end), self._ruled
        self.transaction = None
        self.route.stay()

        def begin() -> None:
            if self.route.is_shared:
                self._leave_shared()
            open_transaction(self, transaction, multi)
            if count:
                self._to_upstream(admitted, count)
            self.request, self._ruled = request, ruled
            if ruled[1] is None:
                self.pass_one()
            else:
                self._refuse(ruled[1])

        if self.route.is_shared:
            self.when_answered(begin)
        else:
            begin()

    def _timed(self, glance: Glance, argv: list[bytes]) -> Way | None:
        """Look, and tell how long it took."""
        self._until_timed = TIMED_EACH - 1
        start = perf_counter()
        way = glance.admits(argv)
        self._observer.decided(perf_counter() - start)
        return way

    def _tell_alike(self) -> None:
        """Tell of a run of commands that were admitted at a glance."""
        if self._way is not None:
            self._observer.command(self.service, self._way.name, "forwarded", self._alike)
        self._alike = 0

    def _admits_as_plain(self, argv: list[bytes]) -> bool:
        """Judge a request. True where it goes upstream as it is and gives exactly one reply.

        Where it doesn't, `_do_otherwise` knows from `_ruled` what was decided.
        """
        missed, self._missed = self._missed, False
        if self._alike:
            self._tell_alike()  # what comes first is told of first
        if self._refused is not None:
            self._ruled, self._refused = self._refused, None
            return False
        name = argv[0]
        special = SPECIALS.get(name.upper()) if len(name) <= LONGEST_SPECIAL else None
        if special is hang_up:
            self._ruled = (special, None, "", True)
            return False
        judge, number = self._judge()
        ruling, touches = self._weigh(judge, number, argv)
        recorder = self._observer.recorder
        if recorder is not None:
            recorder(judge.policy, self.service, argv, touches)
        command = touches.command
        label = command.name if command is not None else OTHER
        reply = None
        if ruling is not PASS:
            decision = self._tell(ruling, label, judge)
            if ruling.refused_by is not None:
                reply = refusal(ruling.refused_by, judge.policy.contact, decision)
        if reply is None and self._streaming and (special is not None or _is_too_large(touches)):
            special = _too_large
        fits = reply is not None or self._fits(command)
        if special is None and reply is None and fits:
            self._observer.command(self.service, label, "forwarded")
            if missed and ruling is not PASS:
                self._remember(judge, number, label, ruling, argv)
            return True
        if missed and reply is not None:
            self._remember(judge, number, label, ruling, argv, reply)
        self._ruled = (special, reply, label, fits)
        return False

    def _remember(
        self, judge: Judge, number: int, label: str, ruling: Ruling, argv: list[bytes], reply: bytes = b""
    ) -> None:
        """What was found wrong, and passed or was refused by `reply`, may be the same for each command like
        this one."""
        parts = None
        if ruling.refused_by is not None:
            parts = around_key(ruling.refused_by, reply)
            if parts is None:
                return
        glance = self._known_glance
        if glance is not None and ruling.findings and judge.repeats(number, glance, argv, ruling):
            repeat = self._observer.repeats(self.service, label, ruling.findings)
            if repeat is not None:
                repeat.refusal = parts
                glance.remember(argv, repeat)

    def _fits(self, command: Command | None) -> bool:
        """Whether the request in hand may go where the client is now."""
        if not self.route.takes(command):
            return False
        if self.route.is_shared and self._reader.end - self._reader.start > LARGEST_SHARED:
            self.route.stay()
            return False
        return True

    def _weigh(self, judge: Judge, number: int, argv: Sequence[bytes]) -> tuple[Ruling, Touches]:
        """Ask the judge; the time it takes is told for a session's first request and then for each 64th."""
        judged = self.transaction.judged if self.transaction is not None else None
        self._until_timed -= 1
        if self._until_timed >= 0:
            return judge.weigh(number, argv, judged, self.profile.database, self.client, self._sender)
        self._until_timed = TIMED_EACH - 1
        start = perf_counter()
        answer = judge.weigh(number, argv, judged, self.profile.database, self.client, self._sender)
        self._observer.decided(perf_counter() - start)
        return answer

    def _do_otherwise(self, argv: Sequence[bytes]) -> None:
        """Do what `_ruled` says about a request that can't just be sent on with others."""
        special, refused, _, stays = self._ruled
        self.request = self._reader.span(self._reader.start, self._reader.end)
        if refused is not None:
            self._refuse(refused)
        elif special is hang_up or stays:
            self._carry_out(special, argv)
        elif special is None or not special.on_shared(self, argv):
            self.when_answered(lambda: self._carry_out_on_own(special, argv))

    def _carry_out(self, special: Special | None, argv: Sequence[bytes]) -> None:
        if special is None:
            self.pass_one()
        elif self._awaits_multi(special):
            self.when_answered(lambda: special.act(self, argv))
        else:
            special.act(self, argv)
        self._streaming = False

    def _awaits_multi(self, special: Special) -> bool:
        """Whether it depends on Redis' answer to MULTI, which isn't in yet, what the command does."""
        transaction = self.transaction
        if transaction is None or transaction.is_confirmed or self._streaming:
            return False
        return special is not SPECIALS[b"EXEC"] and special is not hang_up

    def _carry_out_on_own(self, special: Special | None, argv: Sequence[bytes]) -> None:
        self._leave_shared()
        self._carry_out(special, argv)

    def _tell(self, ruling: Ruling, command: str, judge: Judge) -> str:
        if not ruling.findings:
            return ""
        return self._observer.violations(
            self.service, self.client, command, ruling.findings, judge.policy.revision
        )

    def _judge(self) -> tuple[Judge, int]:
        """The judge for the next request, and the number under which it knows this client's service."""
        judge = self.current_judge()
        known = self._number_of
        if known is None or known[0] is not judge or known[1] != self.service:
            known = self._number_of = (judge, self.service, judge.number(self.service))
        return judge, known[2]

    def current_judge(self) -> Judge:
        """A transaction keeps the one that it began with."""
        return self.transaction.judge if self.transaction is not None else self._current_judge()

    def _refuse(self, reply: bytes) -> None:
        """Refuse the request in hand."""
        self._observer.command(self.service, self._ruled[2], "refused")
        if self._streaming:
            self.held = True
            self.when_answered(lambda: self._refuse_streamed(reply))
        elif self.transaction is not None:
            self.to_upstream.append(POISON)
            self.answers.replace(reply)
        else:
            self.answers.local(reply)

    def _protocol_error(self, exc: ProtocolError) -> None:
        """Say what Redis would say and close; in observe, a request only too large passes unread."""
        if isinstance(exc, RequestTooLarge) and self._may_become_opaque("request too large", OTHER):
            self._splice(b"")
            return
        self.answers.local(encode.error(f"ERR {exc}"))
        self.close_after_answers(f"protocol error: {exc}")

    def close_after_answers(self, reason: str) -> None:
        """Read no more, and close once everything that is due was sent."""
        self._closing_then = reason
        if not self.answers.slots:
            self.closing = reason

    # -- requests that are too large to be held

    def _large_request(self) -> None:
        """A request has come in part. Too large a one goes on in pieces, on a connection of the client's own;
        its end is withheld until it is judged."""
        if self.route.is_shared:
            self.route.stay()
            if self.answers.slots:
                self._deferred = self._leave_shared
                return
            self._leave_shared()
        if self._reader.is_large:
            self._streaming = True
            self.to_upstream.append(self._reader.take_partial())
            if not self._reader.is_large:
                self._read_requests()  # what stands behind the piece may complete the request

    def _leave_shared(self) -> None:
        self.route.is_shared = False
        self.is_behind = True

    def _refuse_streamed(self, reply: bytes) -> None:
        """A part of the refused request is upstream, its end is not: give up that connection.

        Redis has run nothing of it. Where a transaction is open, Redis is to say EXECABORT on the new one.
        """
        self.held = self._streaming = False
        watching = self.route.watching and self.transaction is None  # else EXEC is going to fail anyway
        if self.route.pinned or watching or self.answers.monitoring or self.answers.subscriptions:
            self.answers.local(reply)
            self.close_after_answers("a large request was refused, whose connection can't be made again")
            return
        self.reopen = True
        self.to_upstream.clear()
        if self.transaction is not None:
            self.to_upstream += [MULTI, POISON]
            self.answers.drop()
            self.answers.replace(reply)
        else:
            self.answers.local(reply)

    # -- what specials do

    def pass_one(self) -> None:
        """Send the request in hand upstream and await its one reply."""
        self.told_forwarded()
        self._to_upstream(self.request, 1)

    def told_forwarded(self) -> None:
        self._observer.command(self.service, self._ruled[2], "forwarded")

    def told_login_failed(self) -> None:
        self._observer.login_failed(self.service)

    def inspect(self, seen: Callable[[bytes], None], request: bytes = b"") -> None:
        """Send the request in hand (or another in its place) upstream and have its reply seen on its way to
        the client."""
        self.told_forwarded()
        self.to_upstream.append(request or self.request)
        self.answers.inspect(seen)

    def hold_for(self, seen: Callable[[bytes], None], request: bytes = b"") -> None:
        """The same; nothing more is judged before the reply was seen."""

        def release(reply: bytes) -> None:
            self.held = False
            seen(reply)

        self.inspect(release, request)
        self.held = True

    def effect(self, seen: Callable[[bytes], None]) -> None:
        """Send the request in hand, and have `seen` called with its reply: at once, or after EXEC."""
        if self.transaction is None:
            self.inspect(seen)
        else:
            self.transaction.when_executed(seen)
            self.pass_one()

    def when_answered(self, act: Callable[[], None]) -> None:
        """Carry out the request in hand once every reply is in that is due; until then nothing more is
        judged."""
        if self.answers.slots:
            self._deferred = act
        else:
            act()

    def become(self, service: str) -> None:
        """The client is another service from here on."""
        self.service = service
        self._apply_limits()

    def _apply_limits(self) -> None:
        """Who is refused most things anyway may not fill memory with long requests (as in Redis)."""
        judge, number = self._judge()
        strict = self.service == UNKNOWN and judge.enforces(number)
        self._reader.limits = UNIDENTIFIED if strict else self._full_limits

    # -- sessions that can't be followed

    def opaque_request(self, reason: str) -> None:
        """The request in hand makes the session one that can't be read: pass it and all that follows, where
        the mode admits it; else refuse it."""
        command = self._ruled[2]
        if self._may_become_opaque(reason, command, refuse=True):
            self.told_forwarded()
            self._splice(self.request)

    def _may_become_opaque(self, reason: str, command: str, *, refuse: bool = False) -> bool:
        judge, number = self._judge()
        ruling = judge.opaque(number, command, reason)
        decision = self._tell(ruling, command, judge)
        if ruling.refused_by is None:
            self._observer.opaque(self.service, reason)
            return True
        if refuse:
            self._refuse(refusal(ruling.refused_by, judge.policy.contact, decision))
        return False

    def _splice(self, request: bytes) -> None:
        self._raw = request + self._reader.rest()
        self._splice_when_answered()

    def _splice_when_answered(self) -> None:
        if self._raw is not None and not self.answers.slots:
            self.route.is_shared = False
            self.opaque = True
            self.answers.let_out_captured()
            self.to_upstream.append(self._raw)
            self._raw = None

    # -- which connection

    def take_own(self) -> None:
        """What is in hand, and all that follows, goes on a connection of its own."""
        self.route.pinned = "nothing to share"
        self.route.is_shared = False
        self.counts.clear()

    def settle(self) -> None:
        if self.may_leave_own():
            self.route.is_shared = True

    def may_leave_own(self) -> bool:
        """Whether the client's own connection could be given up now without a difference to it."""
        answers = self.answers
        return (
            not self.route.is_shared
            and self.route.may_share()
            and not answers.slots
            and not self.to_upstream
            and not answers.monitoring
            and not answers.subscriptions
            and not answers.mid_reply
            and answers.reply == ON
            and self.transaction is None
            and not self.held
            and not self.opaque
            and not self._streaming
            and not self.closing
            and not self._closing_then
            and self._raw is None
            and self._reader.announced() <= LARGEST_SHARED
        )

    # -- from upstream

    def from_shared(self, data: bytes, completed: int, whole: bool) -> None:
        if not completed:
            self._reply_bytes += len(data)
            if self._reply_bytes > LARGEST_SHARED_REPLY:
                self.route.stay()
                self._deferred = self._deferred or self._leave_shared
        else:
            self._reply_bytes = 0
        if self.answers.feed_shared(data, completed, whole):
            self._after_slot()
        self._close_when_answered()

    def from_upstream(self, data: bytes) -> None:
        """What Redis can't have meant ends the session."""
        if self.opaque:
            self.to_client.append(data)
            return
        at = 0
        try:
            while at < len(data) and not self.closing:
                if self.opaque:
                    self.to_client.append(data[at:])
                    return
                at = self.answers.feed(data, at)
        except ReplyError as exc:
            self.closing = f"upstream sent what is no reply: {exc}"
        self._close_when_answered()

    def _close_when_answered(self) -> None:
        if self._closing_then and self.answers.slots.head is None and not self.answers.mid_reply:
            self.closing = self.closing or self._closing_then

    def _after_slot(self) -> None:
        """A slot is answered: go on with what was held back."""
        if self._raw is not None:
            self._splice_when_answered()
        if self._deferred is not None and self.answers.slots.head is None:
            self._do_deferred()
        if not self._closing_then and not self.opaque and self._reader.pending():
            self._read_requests()

    def _do_deferred(self) -> None:
        if self._deferred is not None:
            act, self._deferred = self._deferred, None
            act()

    # -- upstream is gone

    def upstream_refused(self, reason: str) -> None:
        """No connection could be had: every request that waits gets an error, and the client stays.

        In the midst of a transaction it goes: what it sends next would run outside of it. So does one whose
        requests weren't read, since no one knows how many answers it waits for; it gets one. And one who has
        sent the beginning of a large request, which would go on as if it were the next one.
        """
        self.answers.fail(reason)
        self.held = False
        self.to_upstream.clear()
        self.counts.clear()
        if self.opaque or self._raw is not None or self._streaming:
            self.to_client.append(unreachable(reason))
            self.closing = reason
        elif self.transaction is not None:
            self.closing = reason
        elif self._closing_then:
            self.closing = self._closing_then
        else:
            self._do_deferred()
            self._read_requests()

    def upstream_lost(self, reason: str) -> None:
        """The connection ended, and with it the client's, as where nothing stands between it and Redis.

        No error takes the place of a reply: a client takes an error for Redis' answer, and a connection that
        ends for what it is, a request that may have run or not.
        """
        if not self.closing:
            self.closing = self._closing_then or reason


def _is_too_large(touches: Touches) -> bool:
    """Whether what decides about a request is in an argument that was handed on.

    A special never goes with one: its beginning is upstream already, so all that may follow is its end.
    """
    named = [access.key for access in touches.accesses] + [channel.name for channel in touches.channels]
    if touches.pattern is not None:
        named.append(touches.pattern.glob)
    if touches.script is not None:
        named.append(touches.script.name)
    return any(isinstance(name, Streamed) for name in named)


_too_large = Special(
    lambda session, _argv: session.opaque_request("what it depends on is too long to be judged")
)
