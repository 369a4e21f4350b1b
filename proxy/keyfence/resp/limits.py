"""How much a client may send, and what it is told when it sends more or sends nonsense.

Rule: every length that a client announces is held against a limit here before anything is allocated for it.
"""

from __future__ import annotations

from dataclasses import dataclass

KIB = 1024
MIB = 1024 * KIB

GIB = 1024 * MIB

# Redis' defaults: `proto-max-bulk-len`, PROTO_INLINE_MAX_SIZE, `client-query-buffer-limit`, and the bound on
# arguments that Redis 6.2 has in `processMultibulkBuffer` (7.0 lifted it to INT_MAX).
MAX_ARGUMENTS = 1024 * 1024
MAX_BULK = 512 * MIB
MAX_INLINE = 64 * KIB
MAX_REQUEST = GIB


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """What one request may hold at most; all sizes are bytes.

    `max_arguments` bounds an array's elements, the command's name included, `max_bulk` one bulk string, and
    `max_inline` one line: an inline command, or the header of an array or a bulk string. `max_request` bounds
    the whole request as it is on the wire, and `max_held` what it has beside bulk strings so large that they
    are handed on in pieces. While it is read, that part is held as it came and once more as arguments, so a
    client costs at most about twice `max_held`, plus some 60 bytes for every argument. `authenticated` only
    chooses the wording of a refusal.
    """

    max_arguments: int = MAX_ARGUMENTS
    max_bulk: int = MAX_BULK
    max_inline: int = MAX_INLINE
    max_request: int = MAX_REQUEST
    max_held: int = 64 * MIB
    authenticated: bool = True

    def __post_init__(self) -> None:
        for name in ("max_arguments", "max_bulk", "max_inline", "max_request", "max_held"):
            if not 1 <= getattr(self, name) <= 2**40:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be from 1 to 2**40")


IDENTIFIED = RequestLimits()

# What Redis allows before AUTH where a password is set (since 6.2.6 and 7.0; CVE-2021-32675). Inline
# commands keep their 64 KiB there.
UNIDENTIFIED = RequestLimits(max_arguments=10, max_bulk=16 * KIB, authenticated=False)


class ProtocolError(Exception):
    """What the client sent is no request. `str` is Redis' own wording, to be sent after `-ERR `.

    The connection can't be followed any further: no one knows where the next request begins.
    """


class RequestTooLarge(ProtocolError):
    """A well-formed request passes `max_request` or `max_held`. Raised as soon as its headers show it."""
