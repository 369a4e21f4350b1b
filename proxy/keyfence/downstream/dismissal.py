"""Ends the connection of a client that gets no more replies.

Rule: the client receives all replies that were written for it. Closing a socket with unread requests resets
the connection, and a reset overtakes replies that the client has not received. So the client is sent the end
of the stream first, and the socket is closed once the client's system has received everything.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import socket
import termios

# How long a client has to notice the end of the stream before it is checked whether all bytes have arrived.
NOTICE_SECONDS = 0.2


def end_then_close(transport: asyncio.Transport) -> None:
    """Send the end of the stream, and close the transport once all bytes have arrived.

    The caller must keep reading and drop what it reads. With TLS, which has no such end, the transport closes
    as soon as all bytes are sent.
    """
    if transport.can_write_eof():
        transport.write_eof()
        _look_later(transport)
    else:
        transport.close()


def _look_later(transport: asyncio.Transport) -> None:
    asyncio.get_running_loop().call_later(NOTICE_SECONDS, _look, transport)


def _look(transport: asyncio.Transport) -> None:
    if transport.is_closing():
        return
    if _holds_bytes(transport):
        _look_later(transport)
    else:
        transport.close()


def _holds_bytes(transport: asyncio.Transport) -> bool:
    """Whether bytes that were written have not arrived at the other side."""
    if transport.get_write_buffer_size():
        return True
    sock = transport.get_extra_info("socket")
    try:
        left = fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4))
    except OSError:  # this kind of socket cannot tell
        return False
    return any(left)


def send_with_end(transport: asyncio.BaseTransport) -> None:
    """Have TCP send the next bytes together with the end of the connection (TCP_CORK, tcp(7)).

    Both then reach the peer in one segment, so a peer that checks for the end before it sends again finds it.
    """
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6) and hasattr(socket, "TCP_CORK"):
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
