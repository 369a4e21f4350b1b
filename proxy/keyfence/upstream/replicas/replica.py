"""One replica: its connections, and what is known of how far it is.

Rule: a read goes only to a connection that was open before the last check began, so a replica that has
restarted in between is asked first.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from keyfence.net.host_port import host_port
from keyfence.upstream.handshake import GreetingError, describe
from keyfence.upstream.health import Upstream
from keyfence.upstream.own_commands import INFO
from keyfence.upstream.patience import at_most
from keyfence.upstream.pools import Pools

from .position import LONGEST_REPLY, Position, position_in

LONGEST_LAG = 5.0  # seconds; a replica that is further behind is not used
CHECK_SECONDS = 1.0  # that a node has for its answer
_NEVER = float("-inf")
_NUMBERS = itertools.count(-100, -1)  # the masters of a cluster count up from 0


class Replica:
    """A replica of the upstream."""

    def __init__(self, upstream: Upstream, size: int) -> None:
        """`size`: the maximum number of shared connections of one kind."""
        self.upstream = upstream
        self.pools = Pools(upstream, size, only_checked=True)
        self.trouble = "it was not asked yet"  # why it is not used; "": it is
        self.has_all_of = _NEVER  # what the primary had at this time of the loop has run here too
        self.behind: int | None = None  # bytes that it lacked at the last check; None: not known
        self.readers = 0  # clients that read here
        self.sent = 0  # commands since the last `take_sent`
        self.number = next(_NUMBERS)  # among the nodes of a cluster
        self.has_left = False  # it is a replica of this primary no more

    @property
    def shown(self) -> str:
        return host_port(self.upstream.address.host, self.upstream.address.port)

    def why_not(self, now: float) -> str:
        """Why it is not used; "": it is."""
        if not self.trouble and now - self.has_all_of > LONGEST_LAG:
            return f"it is more than {LONGEST_LAG:.0f} s behind the primary"
        return self.trouble

    def take_sent(self) -> int:
        """The number of commands since the last call."""
        sent, self.sent = self.sent, 0
        return sent

    async def check(self, primary: Iterable[tuple[float, Position]]) -> None:
        """Ask how far it is. `primary`: where the primary was at these times, the newest last."""
        opened = self.pools.begin_check()
        try:
            here = await position_of(self.upstream)
        except (OSError, GreetingError, ValueError) as exc:
            self.doubt(str(exc) if isinstance(exc, ValueError | GreetingError) else describe(exc))
            return
        self.trouble, self.behind = here.trouble, None
        if here.trouble:
            self.doubt(here.trouble)
            return
        for at, there in primary:
            if here.includes(there):
                self.has_all_of = max(self.has_all_of, at)
            if here.history == there.history:
                self.behind = max(there.offset - here.offset, 0)
        if self.behind is None:
            self.doubt("it has another history than the primary")
            return
        self.upstream.try_again()
        self.pools.end_check(opened)

    def doubt(self, why: str) -> None:
        """It is not used until a check has succeeded."""
        self.trouble, self.behind, self.has_all_of = why, None, _NEVER
        self.pools.end_check([])


async def position_of(upstream: Upstream) -> Position:
    """Ask a node how far it is. Raises OSError, GreetingError, and ValueError if it does not say so."""
    async with at_most(CHECK_SECONDS):
        reply = await upstream.ask(upstream.address.login(), [INFO.request("replication")], LONGEST_REPLY)
    return position_in(reply)
