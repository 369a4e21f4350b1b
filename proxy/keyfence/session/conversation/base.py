# cython: annotation_typing=False
"""The session base: the part of a `Session` or a `Passthrough` that the owner of a client's connection uses.

Rule: the owner uses nothing else. All that it needs whenever bytes arrive is a plain attribute or a method of
these classes, so that compiled modules reach it without a look-up by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter

from keyfence.net.closures import STAYS_OPEN, Reason
from keyfence.policy.compiled.tenants import NOBODY
from keyfence.resp.profile import Profile
from keyfence.resp.replies import ErrorPart

from .questions import Question
from .routing import Route

# How long one client may keep the process's loop busy before other clients have their turn. All work for a
# client draws from this: it ends between two requests, or at a pause within a long one.
TURN_SECONDS = 0.002


class Outlet:
    """The next output to the client, and whether its connection is closed after it."""

    def __init__(self) -> None:
        self.to_client: list[bytes] = []  # its taker empties it
        self.closing = STAYS_OPEN  # why to close the client once that is sent


class SessionBase:
    """One client's side of the conversation with Redis: bytes in, bytes out."""

    def __init__(self, service: str, profile: Profile, outlet: Outlet, route: Route) -> None:
        self.service = service  # the client's service
        self.caller = NOBODY  # the client's other known attributes
        self.profile = profile  # the state that its connection to Redis must have
        self.outlet = outlet
        self.route = route  # which connection `to_upstream` is for
        self.to_upstream: list[bytes] = []
        self.counts: list[int] = []  # the replies that each piece of it gets, on a shared connection
        self.shapeable = False  # the client's text might shape one of those replies
        self.question: Question | None = None  # for the owner; nothing is evaluated until its answer
        self.reopen = False  # the dedicated connection must be replaced before anything is sent on it
        self.opaque_as = ""  # the service under which it is counted as opaque; "": it is not
        self.wants_turn = False  # other clients have their turn first; then `take_turn` goes on
        # When the client's turn in this round of the loop is over (`perf_counter`); 0.0: it has not begun.
        # The owner sets it back when the next round begins.
        self.turn_ends = 0.0

    @property
    def to_client(self) -> list[bytes]:
        return self.outlet.to_client

    @to_client.setter
    def to_client(self, chunks: list[bytes]) -> None:
        self.outlet.to_client = chunks

    @property
    def closing(self) -> Reason:
        return self.outlet.closing

    @closing.setter
    def closing(self, reason: Reason) -> None:
        self.outlet.closing = reason

    # -- bytes

    def from_client(self, data: bytes) -> None:
        """Take in bytes from the client."""
        raise NotImplementedError

    def from_upstream(self, data: bytes) -> None:
        """Take in bytes from Redis on the client's dedicated connection."""
        raise NotImplementedError

    def from_shared(self, data: bytes, completed: int, whole: bool) -> None:
        """Take in this client's part of the bytes from Redis on a shared connection. `completed` replies end
        in `data`. `whole`: the last of them ends with it."""
        raise NotImplementedError

    def errors_came(self, data: bytes, errors: Sequence[ErrorPart], at: int) -> bytes:
        """A part of the bytes from Redis for this client has noted errors. `data` began at `at` of the bytes
        in which these were found. Returns the bytes that the client gets in place of `data`."""
        del errors, at  # a session that reads nothing has none
        return data

    def hides_notice(self, word: bytes) -> bool:
        """Redis sends a notice that begins with this word, one of `commands.addresses.NOTICE_WORDS`. Returns
        whether the client must not get it."""
        del word  # a session that reads nothing finds none
        return False

    def from_kept(self, data: bytes) -> None:
        """Take in bytes from Redis on the client's dedicated connection while the client uses a shared
        one."""
        self.from_upstream(data)

    def upstream_refused(self, reason: str) -> None:
        """No connection could be made, so nothing was sent."""
        raise NotImplementedError

    def upstream_lost(self, reason: str) -> None:
        """The connection ended."""
        raise NotImplementedError

    def ask_beside(self, request: bytes, answered: Callable[[bytes], None]) -> bool:
        """Have a request of the owner's sent to Redis on the client's dedicated connection; `answered` gets
        the reply, which the client never sees. Returns False if that is not possible now."""
        del request, answered
        return False

    def turn_is_over(self) -> bool:
        """Whether the client has used up its turn. The first question of a turn begins it."""
        now = perf_counter()
        if not self.turn_ends:
            self.turn_ends = now + TURN_SECONDS
            return TURN_SECONDS <= 0.0
        return now >= self.turn_ends

    def take_turn(self) -> None:
        """Go on with the evaluation that was interrupted for other clients."""

    def forget_policy(self) -> None:
        """Another policy is in force. Without this, an idle client would keep the earlier one in memory."""

    def tell(self, notice: bytes) -> bool:
        """Send the client a maintenance notification. Returns False if it has not asked for such, or cannot
        get one now."""
        del notice
        return False

    # -- which connection

    def settle(self) -> None:
        """Return to a shared connection if nothing keeps the client on its dedicated one any more."""

    def give_up_own(self) -> bool:
        """Have the dedicated connection replaced by a new one, if the client would not notice. Returns
        whether it is."""
        return False

    def may_ask_on_own(self) -> bool:
        """Whether keyfence may send a request of its own on the dedicated connection now."""
        return False

    def take_own(self, *, for_good: bool) -> None:
        """Leave the shared connection, because there is none for this client now, or ever (`for_good`)."""

    # -- what the owner asks

    def wants_input(self) -> bool:
        """Whether the client's socket is worth reading now."""
        return True

    def backlog(self) -> int:
        """The number of received bytes of requests that were not sent on yet."""
        return 0

    @property
    def outstanding(self) -> int:
        """How many replies from upstream are due."""
        raise NotImplementedError

    @property
    def holds_back(self) -> bool:
        """Whether received requests wait for replies before they may be evaluated or sent."""
        return False

    @property
    def awaits_more(self) -> bool:
        """Whether something may still arrive for a client that sends no more."""
        return True

    @property
    def in_transaction(self) -> bool:
        """Whether commands are queued that an EXEC may still run."""
        return False

    @property
    def waits(self) -> bool:
        """Whether the client waits for a reply or for messages, so that it is not idle."""
        return True
