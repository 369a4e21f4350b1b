"""Errors by which a node of a cluster says that it has not run a command, because another one has the key.

Rule: such an error comes before the command runs, so the command may be sent again. A script can word one
too. So a redirect counts only if it names the hash slot of the command, and in answer to a script also a node
of the topology. TRYAGAIN and CLUSTERDOWN in answer to a script are taken for its own words. No I/O.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from keyfence.upstream.cluster.rewriting import redirect_in

MOVED: Final = "MOVED"
ASK: Final = "ASK"
TRYAGAIN: Final = "TRYAGAIN"
CLUSTERDOWN: Final = "CLUSTERDOWN"
_WORDS: Final = tuple(b"-%b " % one.encode() for one in (MOVED, ASK, TRYAGAIN, CLUSTERDOWN))
# The same of a replica that cannot be read now.
_NOT_READ: Final = (*_WORDS, b"-LOADING ", b"-MASTERDOWN ")
LONGEST = 4096  # bytes of such an error

MOST_HOPS = 6  # so often a command is sent again while its hash slot moves
FIRST_PAUSE, LONGEST_PAUSE = 0.002, 0.1  # seconds, doubled each time
DOWN_PAUSE, LONGEST_DOWN_PAUSE = 0.05, 0.5  # the same while a failover goes on

CROSSSLOT: Final = b"-CROSSSLOT Keys in request don't hash to the same slot\r\n"
# In place of a redirect that is not followed: its address is no client's business.
MOVING: Final = b"-TRYAGAIN keyfence: the hash slot moves to another node; send the command again\r\n"
# In place of MOVED to a client that is held at one node because it has subscribed or monitors.
ELSEWHERE: Final = (
    b"-ERR a key or channel of another node is not supported here: keyfence serves a whole cluster, and a "
    b"client that has subscribed or monitors is served by one node\r\n"
)


class Refusal(NamedTuple):
    """What such an error says."""

    word: str
    slot: int = -1  # of a redirect
    host: str = ""  # "" or "?": that of the node that was asked
    port: int = 0

    @property
    def is_redirect(self) -> bool:
        return self.word in (MOVED, ASK)


def may_begin(reply: bytes) -> bool:
    """Whether a reply with this beginning may be such an error."""
    return reply.startswith(_NOT_READ) or any(one.startswith(reply) for one in _NOT_READ)


def refuses_reading(reply: bytes) -> str:
    """The word of a replica's error that says that it has not read; "": it has, or failed otherwise."""
    return reply[1:].partition(b" ")[0].decode() if reply.startswith(_NOT_READ) else ""


def refusal_in(reply: bytes) -> Refusal | None:
    """What a complete reply says; None: the command has run, or failed for another reason."""
    if not reply.startswith(_WORDS):
        return None
    text = reply[1:].partition(b"\r\n")[0]
    word = text.partition(b" ")[0].decode()
    if word in (TRYAGAIN, CLUSTERDOWN):
        return Refusal(word)
    redirect = redirect_in(text)
    return Refusal(word, redirect.slot, redirect.host, redirect.port) if redirect is not None else None


def pause_before(word: str, hops: int) -> float:
    """Seconds before a command is sent again that was refused `hops` times, the last time with `word`."""
    if word == CLUSTERDOWN:
        return min(DOWN_PAUSE * 2.0 ** (hops - 1), LONGEST_DOWN_PAUSE)
    return 0.0 if word == MOVED and hops == 1 else min(FIRST_PAUSE * 2.0 ** (hops - 1), LONGEST_PAUSE)


def error_for(reply: bytes) -> bytes:
    """What the client gets of such an error: Redis' own words, but no address."""
    refusal = refusal_in(reply)
    return MOVING if refusal is not None and refusal.is_redirect else reply
