"""The connections of one client's own to the nodes of a cluster.

Rule: it is used again only if nothing is in doubt about it.
"""

from __future__ import annotations

from collections.abc import Callable

from keyfence.resp.barrier import Barrier, Form
from keyfence.resp.profile import Profile
from keyfence.upstream.dedicated import DedicatedLink

from .cutting import NO_NODE


class KeptLink:
    """A connection to one node, and what is known of it."""

    def __init__(self, link: DedicatedLink, profile: Profile) -> None:
        self.link = link
        self.profile = profile  # which the connection has
        self.used_at = 0.0
        self.is_in_doubt = False  # text of the client might have shaped a reply that is still to come

    def prove(self, failed: Callable[[], object]) -> None:
        """Text of the client might have shaped a reply. If something else than keyfence's own reply comes
        next, the connection is closed, and `failed` is called."""
        barrier = Barrier.draw(Form.HELLO)

        def answered(reply: bytes) -> None:
            if not barrier.is_passed(reply):
                self.link.close()
                failed()

        self.is_in_doubt = not self.link.ask(barrier.request, answered)


class KeptLinks(dict[int, KeptLink]):
    """All of them, by the numbers of their nodes."""

    def number_of(self, link: object) -> int:
        """The node's number; NO_NODE: this connection is none of them any more."""
        return next((number for number, own in self.items() if own.link is link), NO_NODE)

    def drop(self, number: int) -> None:
        """Close this connection, and do without it."""
        self.pop(number).link.close()
