"""What a client's requests leave behind at a node: an open transaction, watched keys, and subscriptions.

Rule: the first key of a transaction decides about its node. Until then everything of it is kept, because it
may have to begin anew at another node: also what stands for a refused command, so it is aborted there too. No
I/O.
"""

from __future__ import annotations

from keyfence.resp import encode
from keyfence.upstream.dedicated import Owner

from .cutting import NO_NODE, NO_SLOT
from .waiting import Request

MAX_KEPT = 64 * 1024  # bytes of a transaction without keys so far, which may still go to another node
_DISCARD = encode.command(b"DISCARD")
# In place of a command that cannot be queued. Its wrong arity makes Redis mark the transaction.
_ABORT_MARKER = encode.command(b"ECHO")
_SUBSCRIBES = (b"SUBSCRIBE", b"PSUBSCRIBE", b"SSUBSCRIBE")  # they need a name
_UNSUBSCRIBES = (b"UNSUBSCRIBE", b"PUNSUBSCRIBE", b"SUNSUBSCRIBE")
_NAMES = (b"MULTI", b"EXEC", b"DISCARD", b"WATCH", b"UNWATCH")


class Transaction:
    """The open transaction of one client, and what it watches."""

    def __init__(self) -> None:
        self.is_open = False
        self.slot = NO_SLOT  # of its first key
        self.is_discarded = False  # it begins anew at another node
        self.watches_at = NO_NODE  # the node with watched keys …
        self._watched_slot = NO_SLOT  # … and their hash slot
        self.watches_more = False  # the request under way is a WATCH after another one
        self._kept: list[bytes] | None = None  # what was sent of it, while it has no key …
        self._size = 0  # … and how many bytes that is
        self._is_begun = True  # the first reply to `begun_anew` has come
        self._is_sure = True  # the reply to MULTI has come

    def binds(self, request: Request) -> bool:
        """Whether a request goes to the node where something was left behind."""
        if self.is_open:
            return self._kept is None or request.slot == NO_SLOT or self.watches_at != NO_NODE
        return self.watches_at != NO_NODE and request.name in _NAMES

    def sent(self, request: Request, at: int, *, is_new: bool) -> None:
        """Note a request that is sent to this node. `is_new`: it was not refused before."""
        name, was_open = request.name, self.is_open
        if not was_open:
            self.slot = NO_SLOT
        if name != b"WATCH":
            self.watches_more = False
        if name == b"RESET" or (was_open and (name == b"EXEC" or (name == b"DISCARD" and request.is_bare))):
            self.is_open, self._kept, self.watches_at = False, None, NO_NODE
        elif was_open:
            self._keep(request)
        elif name == b"MULTI" and request.is_bare:
            self._begin(request)
        elif name == b"WATCH":
            self._watch(request, at, is_new)
        elif name == b"UNWATCH":
            self.watches_at = NO_NODE

    def _begin(self, request: Request) -> None:
        is_held = self.watches_at != NO_NODE
        self.is_open, self._is_sure = True, False
        self._kept, self.slot = (None, self._watched_slot) if is_held else ([request.data], NO_SLOT)
        self._size = len(request.data)

    def answered(self, is_error: bool) -> None:
        """A reply has come that the client gets. The first one is that to MULTI, which a node may refuse."""
        if self.is_open and not self._is_sure and is_error:
            self.is_open, self._kept = False, None
        self._is_sure = True

    def may_be_none_for(self, request: Request) -> bool:
        """Whether a request may go to another node if MULTI is refused, which is not known yet."""
        return not self._is_sure and self.slot != NO_SLOT and request.slot not in (NO_SLOT, self.slot)

    def _keep(self, request: Request) -> None:
        if self._kept is not None:
            self._kept.append(request.data)
            self._size += len(request.data)
            if request.slot != NO_SLOT or not request.ends or self._size > MAX_KEPT:
                self._kept, self.slot = None, request.slot

    def abort(self) -> bytes:
        """A command of it cannot be queued. Returns what is sent in its place."""
        if self._kept is not None:
            self._kept.append(_ABORT_MARKER)
            self._size += len(_ABORT_MARKER)
        return _ABORT_MARKER

    def _watch(self, request: Request, at: int, is_new: bool) -> None:
        if is_new:
            self.watches_more = self.watches_at != NO_NODE
        if not self.watches_more:
            self.watches_at, self._watched_slot = at, request.slot

    def is_elsewhere(self, slot: int) -> bool:
        """Whether a redirect for this hash slot, which is not followed, is about another one than the
        transaction or the watched keys have."""
        return (self._watched_slot if self.watches_more else self.slot) not in (NO_SLOT, slot)

    def forget_watch(self) -> None:
        """The WATCH was not sent after all."""
        self.watches_at = NO_NODE

    # -- beginning anew at another node

    def begun_anew(self) -> list[bytes]:
        """The next requests on the way there: first one that ends it where it is, then what was sent of it.
        The client does not see the replies."""
        assert self._kept is not None
        self._is_begun, self.is_discarded = False, not self.is_discarded
        return [_DISCARD] if self.is_discarded else list(self._kept)

    def has_failed(self, is_error: bool) -> bool:
        """Take one of these replies. Returns whether the transaction cannot begin anew. Errors but the first
        one are those that the client got before."""
        is_first, self._is_begun = not self._is_begun, True
        return is_error and is_first


class Subscriptions:
    """Whether a client has subscribed, so that one node serves it with everything."""

    def __init__(self) -> None:
        self.is_held = False
        self._awaited: object = None  # the confirmation that comes before anything else is sent

    def sent(self, request: Request, client: Owner) -> bool:
        """Note a request outside of a transaction. Returns whether it is one about subscriptions, which gets
        confirmations in place of a reply."""
        is_one = request.name in _UNSUBSCRIBES or (request.name in _SUBSCRIBES and not request.is_bare)
        self.is_held = self.is_held or is_one
        if is_one:
            self._awaited = client.confirmation()
        return is_one

    def are_confirmed(self, client: Owner) -> bool:
        """Whether the client has the confirmations, by which it is known whether anything is left."""
        if not self.is_held:
            return True
        if self._awaited is not client.confirmation():
            self._awaited = None
        is_due = self._awaited is not None
        self.is_held = is_due or client.listens()
        return not is_due
