"""Limits on what a client may send, and the errors for requests that exceed them or are malformed.

Rule: every length that a client announces is compared with a limit before memory is allocated for it.
"""

from __future__ import annotations

from dataclasses import dataclass

KIB = 1024
MIB = 1024 * KIB

GIB = 1024 * MIB

# Redis' defaults: `proto-max-bulk-len`, PROTO_INLINE_MAX_SIZE, `client-query-buffer-limit`, and the limit on
# arguments in `processMultibulkBuffer` of Redis 6.2 (Redis 7.0 raised it to INT_MAX).
MAX_ARGUMENTS = 1024 * 1024
MAX_BULK = 512 * MIB
MAX_INLINE = 64 * KIB
MAX_REQUEST = GIB


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """The limits of one request. All sizes are in bytes.

    - `max_arguments`: elements of the array, including the command's name.
    - `max_bulk`: one bulk string.
    - `max_inline`: one line, which is an inline command or the header of an array or a bulk string.
    - `max_request`: the whole request as it is on the wire.
    - `max_held`: the request without the bulk strings that are large enough to be streamed. While a request
      is read, this part is held twice, as received and as arguments. So a client costs at most about twice
      `max_held`, plus some 60 bytes for each argument.
    - `authenticated`: chooses the wording of an error, nothing else.
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

# Redis' limits before AUTH if a password is set (since 6.2.6 and 7.0; CVE-2021-32675). Inline commands keep
# their 64 KiB there.
UNIDENTIFIED = RequestLimits(max_arguments=10, max_bulk=16 * KIB, authenticated=False)


class ProtocolError(Exception):
    """The client's bytes are not a request. `str` is Redis' own wording, to be sent after `-ERR `.

    The reader cannot continue on this connection, because the start of the next request is unknown.
    """


class RequestTooLarge(ProtocolError):
    """A well-formed request exceeds `max_request` or `max_held`. Raised as soon as its headers show it."""
