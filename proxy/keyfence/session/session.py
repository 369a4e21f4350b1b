# cython: annotation_typing=False
"""One client's session: read each request, judge it, send it on or refuse it.

Rule: bytes in, bytes out, no I/O. What goes upstream is exactly what was judged, and an answer made here
waits for its turn. Where the session can't be followed any more it says so and stops judging (`opaque`) or
ends; it never guesses.

The owner (`client`) feeds `from_client` and `from_upstream` (or `from_shared`), and takes what comes of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic

from keyfence.commands.arguments import word
from keyfence.commands.model import MANY, Streamed, Touches
from keyfence.identity.resolver import Identities
from keyfence.policy.budget import TURN_STEPS
from keyfence.policy.engine.authorizer import Authorizer, InForce
from keyfence.policy.engine.decision_cache import DecisionCache
from keyfence.policy.engine.forms import COMMAND, Lookup
from keyfence.policy.verdict import PASS, Ruling
from keyfence.resp.limits import IDENTIFIED, ProtocolError, RequestLimits
from keyfence.resp.profile import unchanged
from keyfence.resp.requests import StreamedBulk
from keyfence.session.handlers.specials import (
    LONGEST_SPECIAL,
    SPECIAL_SUBCOMMANDS,
    SPECIALS,
    TOO_LARGE,
    UNCERTAIN,
    Special,
    hang_up,
    open_transaction,
)
from keyfence.session.handlers.transactions import OpenTransaction

from .actor import OTHER, Actor, Decided
from .cases import Case
from .fastpath import FastPath, exec_follows, is_named
from .observer import Observer
from .refusal import around_key, refusal
from .reply_queue import ON
from .routing import FIXED_SHAPE, SCRIPTS, Route
from .shown_ids import ShownIds


class Session(Actor):
    """The state of one client: who it is, what it may do, and the conversation it has."""

    def __init__(
        self,
        in_force: InForce,
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
        port: int = 0,
        clock: Callable[[], float] = monotonic,
        ids: ShownIds | None = None,
        names: Sequence[str] = (),
    ) -> None:
        """`greeting` are the commands that upstream connections are opened with, one reply each; `database`
        is the one that they select. `sharing`: connections that others use too may be used. `client` says
        where the client comes from, together with `port` if that isn't 0; `ids` are those that the process's
        clients know; `names` are those of the client's certificate."""
        profile = unchanged(database)
        super().__init__(
            in_force,
            identities,
            at_connect,
            client,
            observer,
            limits,
            greeting,
            profile=profile,
            route=Route(sharing, clock),
            selects_later=selects_later,
            port=port,
            ids=ids,
            names=names,
        )
        self._fast = FastPath()
        self._case: Case | None = None  # the long judgement that is under way
        self._steps = 0  # that patterns have taken since the last turn

    # -- from the client

    def from_client(self, data: bytes) -> None:
        if self.answers.closing or self._closing_then:
            return  # as Redis does with what stands behind QUIT
        if self.opaque:
            self.to_upstream.append(data)
        elif self._raw is not None:
            self._raw += data
        else:
            self.reader.feed(data)
            self._read_requests()

    def _read_requests(self) -> None:
        """Decide about every complete request. Admitted ones that stand together leave as one piece."""
        fast = self._fast
        self.settle()
        cache = fast.current_cache(self)
        while self._may_judge():
            try:
                argv = fast.read(self, cache)
            except ProtocolError as exc:
                self._send_run()
                self._protocol_error(exc)
                return
            if argv is None:
                break
            if not argv:  # `*0`, `*-1`, a blank line: no reply is due, so it is not sent on
                self._send_run()
                self.answers.pass_over()
            elif self._decide(cache, argv):
                cache = fast.current_cache(self)
        self._send_run()
        if self.exceeds_share(self.reader.announced(), 0) and self._may_judge():
            self._large_request()
        self.reader.let_go()

    def _decide(self, cache: DecisionCache | None, argv: list[bytes]) -> bool:
        """Decide about a request that the decision cache does not admit. True: the decision was carried out
        at once, and the cache may be another one now."""
        if self.streaming:
            argv = [Streamed(one, one.size) if isinstance(one, StreamedBulk) else one for one in argv]
        elif cache is not None and len(argv) == 1 and self._may_be_whole(cache, argv[0]):
            self._send_run()
            if self._whole_transaction(cache):
                return False
        if self._admits_as_plain(argv):
            self.streaming = False
            self._fast.join(self.reader)
            return False
        self._send_run()
        if self._case is None:
            self._do_otherwise(argv)
        return True

    def _send_run(self) -> None:
        """Send the run of admitted requests upstream."""
        fast = self._fast
        if fast.count:
            count, fast.count = fast.count, 0
            self._to_upstream(self.reader.span(fast.start, fast.end), count)

    # -- transactions in hand as a whole

    def _may_be_whole(self, cache: DecisionCache, name: bytes) -> bool:
        """Whether the request in hand is a MULTI that may go on in one piece with all up to its EXEC."""
        return (
            is_named(name, b"MULTI")
            and self.transaction is None
            and not self.route.watching
            and self.answers.reply == ON
            and cache.admits_transactions
        )

    def _whole_transaction(self, cache: DecisionCache) -> bool:
        """Send what begins with the MULTI in hand up to its EXEC, all of it admitted, as one piece.

        No other client's requests come between those of one piece, so it may go where others are: whatever it
        does to the connection, EXEC undoes. False: it has not come as a whole.
        """
        reader, fast = self.reader, self._fast
        start, end = reader.start, reader.end
        is_here = exec_follows(reader, self.room.shared_request, self.room.shared_requests)
        reader.return_to(start, end)
        if not is_here:
            return False
        fast.counted(self, cache.multi)
        transaction = self.transaction = OpenTransaction(self.current_judge())
        while (argv := fast.read(self, cache)) and not (len(argv) == 1 and is_named(argv[0], b"EXEC")):
            if not self._admits_as_plain(argv):
                self._open_before(transaction, start, end, argv)
                return True
            fast.join(reader)
            if self.wants_turn:
                self._open_before(transaction, start, end, None)
                return True
        self.transaction = None
        self.shapeable = self.shapeable or transaction.is_shapeable
        fast.counted(self, cache.execution)
        count, fast.count = fast.count + 2, 0
        self._to_upstream(reader.span(start, reader.end), count)
        return True

    def _open_before(
        self, transaction: OpenTransaction, start: int, end: int, argv: Sequence[bytes] | None
    ) -> None:
        """Open a transaction in hand, whose MULTI lies from `start` to `end`, on a connection of the client's
        own. The requests of the run were admitted. The one in hand was not; or (`argv` None) it is the last
        of the run, and other clients have their turn."""
        reader, fast = self.reader, self._fast
        multi = reader.span(start, end)
        count, fast.count = fast.count, 0
        admitted = reader.span(fast.start, fast.end) if count else b""
        request, decided = reader.span(reader.start, reader.end), self.decided
        self.transaction = None
        self.route.stay()

        def begin() -> None:
            if self.route.is_shared:
                self._leave_shared()
            open_transaction(self, transaction, multi)
            if count:
                self._to_upstream(admitted, count)
            if argv is not None:
                self.request = request
                self.decided = Decided(decided.handler, decided.refusal, decided.command, True)
                self._do(argv)

        if self.route.is_shared:
            self.when_answered(begin)
        else:
            begin()

    def _admits_as_plain(self, argv: list[bytes]) -> bool:
        """Judge a request. True where it goes upstream as it is and gives exactly one reply.

        Where it doesn't, `_do_otherwise` knows from `decided` what was decided.
        """
        refused = self._fast.take_refusal()
        if refused is not None:
            self.decided = refused
            return False
        name = argv[0]
        special = _special(name)
        if special is hang_up:
            self.decided = Decided(special, None, "", True)
            return False
        judge, number = self.judge_and_number()
        size = self.reader.end - self.reader.start
        if len(argv) > MANY:
            request = self.reader.span(self.reader.start, self.reader.end)
            judged = self.transaction.judged if self.transaction is not None else None
            steps = judge.authorize_in_steps(
                number, argv, judged, self.profile.database, self.peer, self.sender, self.values
            )
            case = Case(judge, number, argv, special, request, steps)
            if not self._goes_on(case):
                return False
            ruling, touches = case.answer
        else:
            ruling, touches = self._authorize(judge, number, argv)
        return self._concludes(judge, number, argv, special, ruling, touches, size, self._fast.lookup)

    def _concludes(
        self,
        judge: Authorizer,
        number: int,
        argv: list[bytes],
        special: Special | None,
        ruling: Ruling,
        touches: Touches,
        size: int,
        lookup: Lookup | None,
    ) -> bool:
        """Tell of a judgement. True where the request, of which `size` bytes are here, goes upstream as it is
        and gives exactly one reply; else `decided` has what was decided."""
        command = touches.command
        if special is None and command is not None:
            special = SPECIAL_SUBCOMMANDS.get(command.name)
        too_large = self.streaming and (special is not None or touches.has_streamed_name)
        recorder = self.observer.recorder
        if recorder is not None and not too_large:
            recorder(judge.policy, self.service, argv, touches)
        self.observer.judged_at_length(self._why_at_length(ruling, special, size))
        label = command.name if command is not None else OTHER
        reply = None
        if ruling is not PASS:
            decision = self._tell(ruling, label, judge)
            if ruling.refused_by is not None:
                reply = refusal(ruling.refused_by, judge.policy.contact, decision)
        if reply is None and too_large:
            special = TOO_LARGE
        fits = reply is not None or self._fits(judge, touches, size)
        if reply is None and special is None and (command is None or command.name not in FIXED_SHAPE):
            self.mark_shapeable(fits)
        if special is None and reply is None and fits:
            self.observer.command(self.service, label, "forwarded")
            if lookup is not None and ruling is not PASS:
                self._remember(judge, number, touches, label, ruling, argv, lookup)
            return True
        if lookup is not None and reply is not None:
            self._remember(judge, number, touches, label, ruling, argv, lookup, reply)
        self.decided = Decided(special, reply, label, fits)
        return False

    def _why_at_length(self, ruling: Ruling, special: Special | None, size: int) -> str:
        """Why a glance wasn't enough for the request in hand: a label of a metric (docs/operations.md)."""
        if ruling.findings:
            return "violation"
        if special is not None:
            return "session"
        if self.streaming or self.exceeds_share(size, 1):
            return "large"
        if self._fast.cache is None or self.observer.recorder is not None:
            return "recorded"
        lookup = self._fast.lookup
        return lookup.reason if lookup is not None else COMMAND

    def _remember(
        self,
        judge: Authorizer,
        number: int,
        touches: Touches,
        label: str,
        ruling: Ruling,
        argv: list[bytes],
        lookup: Lookup,
        reply: bytes = b"",
    ) -> None:
        """What was found wrong, and passed or was refused by `reply`, may be the same for each command like
        this one."""
        if lookup.decision is None:
            return
        parts = None
        if ruling.refused_by is not None:
            parts = around_key(ruling.refused_by, reply)
            if parts is None:
                return
        cache = self._fast.cache
        if cache is None or not ruling.findings:
            return
        found = judge.repeats(number, cache, lookup, argv, touches, ruling)
        if found is None:
            return
        repeat = self.observer.repeats(self.service, label, ruling.findings)
        if repeat is not None:
            repeat.found = found
            repeat.refusal = parts
            cache.remember(lookup, argv, repeat)

    def _fits(self, judge: Authorizer, touches: Touches, size: int) -> bool:
        """Whether a request of `size` bytes may go where the client is now."""
        command, script = touches.command, touches.script
        is_trusted = (
            command is not None
            and command.name in SCRIPTS
            and script is not None
            and judge.policy.shares(script)
        )
        if not self.route.takes(command, is_trusted):
            return False
        if self.route.is_shared and self.exceeds_share(size, 1):
            self.route.stay()
            return False
        return True

    def _authorize(self, judge: Authorizer, number: int, argv: Sequence[bytes]) -> tuple[Ruling, Touches]:
        """Ask the judge."""
        judged = self.transaction.judged if self.transaction is not None else None
        answer = judge.authorize(
            number, argv, judged, self.profile.database, self.peer, self.sender, self.values
        )
        self._fast.end_timing(self)
        self._steps += judge.steps_on_patterns
        if self._steps >= TURN_STEPS:
            self.wants_turn = True  # what is behind is judged later
        return answer

    # -- judgements that take more than one turn

    def _goes_on(self, case: Case) -> bool:
        """Have a turn of a long judgement. True: it has come to its end; else another turn is wanted."""
        is_over = case.goes_on()
        self._case = None if is_over else case
        self.wants_turn = not is_over
        return is_over

    def take_turn(self) -> None:
        self.wants_turn = False
        self._steps = 0
        case = self._case
        if self.closing:
            self._case = None
            return
        if case is not None:
            if not self._goes_on(case):
                return
            before = self._deferred
            if before is None:
                self._end_case(case)
            else:
                self._deferred = lambda: self._end_case(case, before)
        self._read_requests()

    def _end_case(self, case: Case, before: Callable[[], None] | None = None) -> None:
        """Do what a long judgement says about its request, after what was to be done `before`."""
        if before is not None:
            before()
        self.request = case.request
        ruling, touches = case.answer
        judge, number, argv, special = case.judge, case.number, case.argv, case.special
        if self._concludes(judge, number, argv, special, ruling, touches, len(case.request), None):
            self.streaming = False
            self._to_upstream(case.request, 1)
        else:
            self._do(argv)

    def _do_otherwise(self, argv: Sequence[bytes]) -> None:
        """Do what `decided` says about a request that can't just be sent on with others."""
        self.request = self.reader.span(self.reader.start, self.reader.end)
        self._do(argv)

    def become(self, service: str, user: bytes | None = None) -> None:
        self._fast.forget()
        super().become(service, user)


def _special(name: bytes) -> Special | None:
    """How the session carries out a command of this name, if not as most."""
    found = SPECIALS.get(name.upper()) if len(name) <= LONGEST_SPECIAL else None
    return UNCERTAIN if found is None and b"\0" in name and word(name) in SPECIALS else found
