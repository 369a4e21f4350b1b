# cython: annotation_typing=False
"""One client's session: read each request, judge it, send it on or refuse it.

Rule: bytes in, bytes out, no I/O. What goes upstream is exactly what was judged, and an answer made here
waits for its turn. Where the session can't be followed any more it says so and stops judging (`opaque`) or
ends; it never guesses.

The owner (`client`) feeds `from_client` and `from_upstream` (or `from_shared`), and takes what comes of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic, perf_counter

from keyfence.commands.arguments import word
from keyfence.commands.model import MANY, Streamed, Touches
from keyfence.identity.resolver import Resolver
from keyfence.policy.budget import TURN_STEPS
from keyfence.policy.compiled.tenants import Values
from keyfence.policy.engine.authorizer import Authorizer, InForce
from keyfence.policy.engine.counts import Admitted, Repeat
from keyfence.policy.engine.decision_cache import CommandForm, DecisionCache
from keyfence.policy.verdict import PASS, Ruling
from keyfence.resp.limits import IDENTIFIED, ProtocolError, RequestLimits
from keyfence.resp.profile import unchanged
from keyfence.resp.requests import HandedOn
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

from .actor import OTHER, Actor
from .cases import Case
from .observer import Observer
from .refusal import around_key, refusal
from .reply_queue import ON
from .routing import FIXED_SHAPE, SCRIPTS, SHAREABLE, Route
from .shown_ids import ShownIds

# What a glance may admit: nothing but one reply comes of it, wherever it goes.
PLAIN = SHAREABLE - {name.decode() for name in SPECIALS}

# A glance takes less than 0.1 µs for each argument; what has more of them is judged in several turns.
MOST_GLANCED_AT = 16 * MANY

# Taking the time costs a tenth of a decision, so one in so many is timed.
TIMED_EACH = 64


class Session(Actor):
    """The state of one client: who it is, what it may do, and the conversation it has."""

    def __init__(
        self,
        in_force: InForce,
        identities: Resolver,
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
        self._until_timed = 0
        self._known_cache: DecisionCache | None = None
        self._glance_values: Values = ()  # the client's, by the glance's policy
        self._glance_of: Authorizer | None = None
        self._missed = False  # the glance knows the command in hand, and that it must be judged
        # What `_ruled` is to be where the request in hand is refused as others like it were.
        self._refused: tuple[Special | None, bytes | None, str, bool] | None = None
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
            self._reader.feed(data)
            self._read_requests()

    def _read_requests(self) -> None:
        """Judge every request that is complete; admitted ones that stand together leave as one piece."""
        reader = self._reader
        run_start = run_end = run = 0
        self.settle()
        cache = self._cache()
        may_judge = self._may_judge()
        while may_judge:
            peeked = cache is not None and not self._streaming and reader.peek()
            if peeked and cache is not None and self._admits_peeked(cache):
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
                argv = reader.reparse() if peeked else reader.next()
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
                argv = [Streamed(one, one.size) if isinstance(one, HandedOn) else one for one in argv]
            plain = cache is not None and not self._streaming and self._admits_cached(cache, argv)
            may_open = not plain and len(argv) == 1 and cache is not None and not self._streaming
            if may_open and cache is not None and self._may_be_whole(cache, argv[0]):
                self._send(run_start, run_end, run)
                run = 0
                if self._whole_transaction(cache):
                    may_judge = self._may_judge()
                    continue
            if not plain:
                plain = self._admits_as_plain(argv)
                may_judge = not self.wants_turn
                if self._case is not None:
                    self._send(run_start, run_end, run)
                    run = 0
                    break
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
                cache = self._cache()
            may_judge = self._may_judge()  # only what is sent or done changes that
        self._send(run_start, run_end, run)
        if self._exceeds_share(reader.announced(), 0) and self._may_judge():
            self._large_request()
        reader.let_go()

    def _send(self, start: int, end: int, count: int) -> None:
        """Send the bytes of `count` requests upstream and await their replies."""
        if count:
            self._to_upstream(self._reader.span(start, end), count)

    def _cache(self) -> DecisionCache | None:
        """The short way to a yes, where nobody else wants to see the commands. It counts them under the name
        that the policy has for the service; who is none of the policy's is judged the long way."""
        if self._observer.recorder is not None:
            return None
        judge = self.current_judge()
        cache = self._known_cache
        if cache is None or self._glance_of is not judge or not cache.is_current:
            judge, number = self._judge()
            known = judge.policy.services[number] == self.service
            self._glance_values = self.values
            cache = self._known_cache = judge.cache(number, PLAIN) if known else None
            self._glance_of = judge
        return cache

    def _admits_peeked(self, cache: DecisionCache) -> bool:
        """As `_admits_cached`, for a request of which nothing was taken out yet."""
        reader = self._reader
        if self._until_timed <= 0 or self._needs_its_own():
            return False
        way = cache.admits_in(
            reader.data(),
            reader.count,
            reader.name_at,
            reader.name_end,
            reader.key_at,
            reader.key_end,
            reader.options_at,
            reader.end,
            self._glance_values,
        )
        if way is None:
            repeat = cache.repeat_in(reader.data(), reader.key_at, reader.key_end)
            way = cache.missed
            if repeat is None or way is None:
                return False
            repeat.times += 1
        self._until_timed -= 1
        self._count(way)
        if cache.found:
            self._keep_open(cache, way, reader.span(reader.key_at, reader.key_end))
        return True

    def _admits_cached(self, cache: DecisionCache, argv: list[bytes]) -> bool:
        """Whether a request surely goes upstream as it is, and gives one reply."""
        if self._needs_its_own() or len(argv) > MOST_GLANCED_AT:
            return False
        self._until_timed -= 1
        if self._until_timed < 0:
            way = self._timed(cache, argv)
        else:
            way = cache.admits(argv, self._glance_values)
        if way is None:
            repeat = cache.repeat(argv)
            if repeat is None:
                self._missed = cache.missed is not None
                return False
            if repeat.refusal is not None:
                self._refuse_alike(cache, repeat, argv)
                return False
            repeat.times += 1
            way = cache.missed
        if way is not None:
            self._count(way)
        if way is not None and cache.found:
            for at in range(way.index, len(argv) if way.has_more else way.index + 1):
                self._keep_open(cache, way, argv[at])
        return True

    def _needs_its_own(self) -> bool:
        """Whether the request in hand is too large for a connection that is shared, which it would go on."""
        return self.route.is_shared and self._exceeds_share(self._reader.end - self._reader.start, 1)

    def _count(self, admitted: Admitted) -> None:
        """One more such command has been admitted."""
        admitted.times += 1
        if not admitted.is_gathered:
            self._observer.gather_from(self.service, admitted)
        self.route.begins_work()

    def _keep_open(self, cache: DecisionCache, way: CommandForm, key: bytes) -> None:
        """Keep in mind what a command that was admitted at a glance leaves open."""
        judge = self.current_judge()
        pending = judge.pending
        if pending is not None:
            judged = self.transaction.judged if self.transaction is not None else None
            pending.keep_open(judge, cache, way, key, judged, self.profile.database, self.peer, self.sender)

    def _refuse_alike(self, cache: DecisionCache, repeat: Repeat, argv: list[bytes]) -> None:
        """Have a request refused as others like it were, unless break-glass is open."""
        if self.current_judge().glass or cache.missed is None:
            return
        reply = cache.refusal(repeat, argv)
        if reply:
            repeat.times += 1
            self._refused = (None, reply, cache.missed.name, True)

    # -- transactions in hand as a whole

    def _may_be_whole(self, cache: DecisionCache, name: bytes) -> bool:
        """Whether the request in hand is a MULTI that may go on in one piece with all up to its EXEC."""
        return (
            _is_named(name, b"MULTI")
            and self.transaction is None
            and not self.route.watching
            and self.answers.reply == ON
            and cache.admits_transactions
        )

    def _whole_transaction(self, cache: DecisionCache) -> bool:
        """Send what begins with the MULTI in hand up to its EXEC, all of it judged, as one piece.

        In one piece nobody's requests come between, so it may go where others are: what it does to the
        connection it undoes. False: it isn't here as a whole.
        """
        reader = self._reader
        start, end = reader.start, reader.end
        is_here = self._exec_is_here()
        reader.return_to(start, end)
        if not is_here:
            return False
        self._count(cache.multi)
        transaction = self.transaction = OpenTransaction(self.current_judge())
        count = 0
        while True:
            peeked = reader.peek()
            if not (peeked and self._admits_peeked(cache)):
                argv = reader.reparse() if peeked else reader.next()
                if not argv or (len(argv) == 1 and _is_named(argv[0], b"EXEC")):
                    break
                if not (self._admits_cached(cache, argv) or self._admits_as_plain(argv)):
                    self._open_before(transaction, start, end, count, argv)
                    return True
                if self.wants_turn:
                    self._open_before(transaction, start, end, count + 1, None)
                    return True
            count += 1
        self.transaction = None
        self.shapeable = self.shapeable or transaction.is_shapeable
        self._count(cache.execution)
        self._send(start, reader.end, count + 2)
        return True

    def _exec_is_here(self) -> bool:
        """Whether an EXEC has come behind the MULTI in hand, without too much in between."""
        reader = self._reader
        start = reader.start
        count = 0
        name = b""
        while not _is_named(name, b"EXEC"):
            if reader.peek():
                name = reader.data()[reader.name_at : reader.name_end] if reader.count == 1 else b""
            else:
                try:
                    argv = reader.next()
                except ProtocolError:
                    return False  # it is met again, behind the requests before it
                if not argv or len(argv) > MANY:
                    return False
                name = argv[0] if len(argv) == 1 else b""
            if self._exceeds_share(reader.end - start, count):
                return False
            count += 1
        return True

    def _open_before(
        self, transaction: OpenTransaction, start: int, end: int, count: int, argv: Sequence[bytes] | None
    ) -> None:
        """Of a transaction in hand, whose MULTI lies from `start` to `end`, `count` requests were admitted;
        the one in hand is not as they are, or (`argv` None) is the last of them, and others have their turn.
        So open it on a connection of the client's own."""
        reader = self._reader
        multi = reader.span(start, end)
        admitted = reader.span(end, reader.end if argv is None else reader.start)
        request, ruled = reader.span(reader.start, reader.end), self._ruled
        self.transaction = None
        self.route.stay()

        def begin() -> None:
            if self.route.is_shared:
                self._leave_shared()
            open_transaction(self, transaction, multi)
            if count:
                self._to_upstream(admitted, count)
            if argv is not None:
                self.request, self._ruled = request, (*ruled[:3], True)
                self._do(argv)

        if self.route.is_shared:
            self.when_answered(begin)
        else:
            begin()

    def _timed(self, cache: DecisionCache, argv: list[bytes]) -> CommandForm | None:
        """Look, and tell how long it took."""
        self._until_timed = TIMED_EACH - 1
        start = perf_counter()
        way = cache.admits(argv, self._glance_values)
        self._observer.decided(perf_counter() - start)
        return way

    def _admits_as_plain(self, argv: list[bytes]) -> bool:
        """Judge a request. True where it goes upstream as it is and gives exactly one reply.

        Where it doesn't, `_do_otherwise` knows from `_ruled` what was decided.
        """
        missed, self._missed = self._missed, False
        if self._refused is not None:
            self._ruled, self._refused = self._refused, None
            return False
        name = argv[0]
        special = _special(name)
        if special is hang_up:
            self._ruled = (special, None, "", True)
            return False
        judge, number = self._judge()
        size = self._reader.end - self._reader.start
        if len(argv) > MANY:
            request = self._reader.span(self._reader.start, self._reader.end)
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
        return self._concludes(judge, number, argv, special, ruling, touches, size, missed)

    def _concludes(
        self,
        judge: Authorizer,
        number: int,
        argv: list[bytes],
        special: Special | None,
        ruling: Ruling,
        touches: Touches,
        size: int,
        missed: bool,
    ) -> bool:
        """Tell of a judgement. True where the request, of which `size` bytes are here, goes upstream as it is
        and gives exactly one reply; else `_ruled` has what was decided."""
        command = touches.command
        if special is None and command is not None:
            special = SPECIAL_SUBCOMMANDS.get(command.name)
        too_large = self._streaming and (special is not None or touches.name_a_streamed)
        recorder = self._observer.recorder
        if recorder is not None and not too_large:
            recorder(judge.policy, self.service, argv, touches)
        self._observer.judged_at_length(self._why_at_length(ruling, special, size))
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
            self._observer.command(self.service, label, "forwarded")
            if missed and ruling is not PASS:
                self._remember(judge, number, touches, label, ruling, argv)
            return True
        if missed and reply is not None:
            self._remember(judge, number, touches, label, ruling, argv, reply)
        self._ruled = (special, reply, label, fits)
        return False

    def _why_at_length(self, ruling: Ruling, special: Special | None, size: int) -> str:
        """Why a glance wasn't enough for the request in hand: a label of a metric (docs/operations.md)."""
        if ruling.findings:
            return "violation"
        if special is not None:
            return "session"
        if self._streaming or self._exceeds_share(size, 1):
            return "large"
        cache = self._known_cache
        return "recorded" if cache is None or self._observer.recorder is not None else cache.why

    def _remember(
        self,
        judge: Authorizer,
        number: int,
        touches: Touches,
        label: str,
        ruling: Ruling,
        argv: list[bytes],
        reply: bytes = b"",
    ) -> None:
        """What was found wrong, and passed or was refused by `reply`, may be the same for each command like
        this one."""
        parts = None
        if ruling.refused_by is not None:
            parts = around_key(ruling.refused_by, reply)
            if parts is None:
                return
        cache = self._known_cache
        if cache is None or not ruling.findings:
            return
        found = judge.repeats(number, cache, argv, touches, ruling)
        if found is None:
            return
        repeat = self._observer.repeats(self.service, label, ruling.findings)
        if repeat is not None:
            repeat.found = found
            repeat.refusal = parts
            cache.remember(argv, repeat)

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
        if self.route.is_shared and self._exceeds_share(size, 1):
            self.route.stay()
            return False
        return True

    def _authorize(self, judge: Authorizer, number: int, argv: Sequence[bytes]) -> tuple[Ruling, Touches]:
        """Ask the judge; the time it takes is told for a session's first request and then for each 64th."""
        judged = self.transaction.judged if self.transaction is not None else None
        self._until_timed -= 1
        start = perf_counter() if self._until_timed < 0 else 0.0
        answer = judge.authorize(
            number, argv, judged, self.profile.database, self.peer, self.sender, self.values
        )
        if self._until_timed < 0:
            self._until_timed = TIMED_EACH - 1
            self._observer.decided(perf_counter() - start)
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
        if self._concludes(judge, number, argv, special, ruling, touches, len(case.request), False):
            self._streaming = False
            self._to_upstream(case.request, 1)
        else:
            self._do(argv)

    def _do_otherwise(self, argv: Sequence[bytes]) -> None:
        """Do what `_ruled` says about a request that can't just be sent on with others."""
        self.request = self._reader.span(self._reader.start, self._reader.end)
        self._do(argv)

    def become(self, service: str, user: bytes | None = None) -> None:
        self._known_cache = None
        super().become(service, user)


def _is_named(name: bytes, wanted: bytes) -> bool:
    """Whether a command's name surely is this one, whatever its letters' case: as `words.fold`, but in C."""
    return len(name) == len(wanted) and name.upper() == wanted


def _special(name: bytes) -> Special | None:
    """How the session carries out a command of this name, if not as most."""
    found = SPECIALS.get(name.upper()) if len(name) <= LONGEST_SPECIAL else None
    return UNCERTAIN if found is None and b"\0" in name and word(name) in SPECIALS else found
