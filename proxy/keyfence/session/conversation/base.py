# cython: annotation_typing=False
"""What a client's connection knows of its session: a `Session`, or a `Passthrough`, which reads nothing.

Rule: it is the same for both, and all of it that is asked for each time that bytes come is a plain attribute
or a method here, so that compiled modules reach it without a look-up by name.
"""

from __future__ import annotations

from keyfence.policy.compiled.tenants import NOBODY
from keyfence.resp.profile import Profile

from .routing import Route
from .shown_ids import Question


class Outlet:
    """What goes to the client next."""

    def __init__(self) -> None:
        self.to_client: list[bytes] = []  # whoever takes it puts an empty list in its place
        self.closing = ""  # why the client is to be closed once that is sent; "" while it lives


class SessionBase:
    """One client's side of the conversation with Redis: bytes in, bytes out."""

    def __init__(self, service: str, profile: Profile, outlet: Outlet, route: Route) -> None:
        self.service = service  # who the client is taken for
        self.caller = NOBODY  # what more is known of it
        self.profile = profile  # what its connection to Redis must be like
        self.outlet = outlet
        self.route = route  # which connection `to_upstream` is for
        self.to_upstream: list[bytes] = []
        self.counts: list[int] = []  # how many replies each piece of it gets, on a shared connection
        self.shapeable = False  # the client's text might shape one of these replies
        self.question: Question | None = None  # for other processes; nothing more is judged until the answer
        self.reopen = False  # the own connection must be made anew before anything is sent on it
        self.wants_turn = False  # a long judgement is under way, which goes on in `take_turn`

    @property
    def to_client(self) -> list[bytes]:
        return self.outlet.to_client

    @to_client.setter
    def to_client(self, chunks: list[bytes]) -> None:
        self.outlet.to_client = chunks

    @property
    def closing(self) -> str:
        return self.outlet.closing

    @closing.setter
    def closing(self, reason: str) -> None:
        self.outlet.closing = reason

    # -- bytes

    def from_client(self, data: bytes) -> None:
        """Take in what the client sent."""
        raise NotImplementedError

    def from_upstream(self, data: bytes) -> None:
        """Take in what Redis sent on the client's own connection."""
        raise NotImplementedError

    def from_shared(self, data: bytes, completed: int, whole: bool) -> None:
        """Take in what a shared connection has cut for this client: so many replies end in it, and `whole`
        says that none has only begun."""
        raise NotImplementedError

    def from_kept(self, data: bytes) -> None:
        """Take in what Redis sent on the client's own connection while the client shares another."""
        self.from_upstream(data)

    def upstream_refused(self, reason: str) -> None:
        """No connection could be had, so nothing was sent."""
        raise NotImplementedError

    def upstream_lost(self, reason: str) -> None:
        """The connection ended."""
        raise NotImplementedError

    def take_turn(self) -> None:
        """Go on with what was broken off so that other clients could have their turn."""

    # -- which connection

    def settle(self) -> None:
        """Go back to sharing where nothing keeps the client on its own connection any more."""

    def take_own(self, *, for_good: bool) -> None:
        """There is nothing to share, now or ever."""

    # -- what is asked

    def wants_input(self) -> bool:
        """Whether reading on from the client makes sense now."""
        return True

    def backlog(self) -> int:
        """Bytes of requests that have come and went nowhere yet."""
        return 0

    @property
    def outstanding(self) -> int:
        """How many replies the client waits for from upstream."""
        raise NotImplementedError

    @property
    def holds_back(self) -> bool:
        """Whether requests that have come wait for replies before they may be judged or sent."""
        return False

    @property
    def awaits_more(self) -> bool:
        """Whether something may still come for a client that sends no more."""
        return True

    @property
    def in_transaction(self) -> bool:
        """Whether commands are queued that an EXEC may still run."""
        return False

    @property
    def waits(self) -> bool:
        """Whether the client waits: for a reply, or for what may come unasked. Then it isn't idle."""
        return True
