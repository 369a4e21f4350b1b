"""The listening sockets of all workers, which their parent binds and keeps.

Rule: a socket stays open until keyfence drains, because closing one of several sockets with one address
resets the connections in its queue. A worker's successor inherits its sockets, and the waiting connections.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Iterator, Sequence

from keyfence.config.models import ListenerModel
from keyfence.net.addresses import Address, Bound, bind

_ALL = {"0.0.0.0", "::"}  # all addresses of the machine

Place = list[Bound]  # the sockets of one worker: one Bound for each listener


def bind_places(listeners: Sequence[ListenerModel], number: int) -> list[Place]:
    """Bind every address once for each worker. Raises `CannotBind`.

    The kernel distributes the connections of a TCP address among its sockets (SO_REUSEPORT, socket(7)). All
    workers share the one socket of a unix path, and those that a supervisor has passed: the first to accept
    serves.
    """
    with contextlib.ExitStack() as opened:
        places: list[Place] = [[] for _ in range(number)]
        for model in listeners:
            try:
                first = _bind_first(model, shared=number > 1)
                opened.callback(first.close)
                _check_own(first, places[0], shared=number > 1)
                places[0].append(first)
                for place in places[1:]:
                    if model.address.unix_path or first.is_passed:
                        place.append(first)
                        continue
                    place.append(bind(Address(first.name), reuse_port=True))
                    opened.callback(place[-1].close)
            except OSError as exc:
                raise CannotBind(model, exc) from None
        opened.pop_all()
    return places


class CannotBind(Exception):
    """An address cannot be bound; `fault` says why."""

    def __init__(self, model: ListenerModel, fault: OSError) -> None:
        super().__init__(model.listen)
        self.listen = model.listen
        self.fault = fault


def _check_own(bound: Bound, others: Sequence[Bound], *, shared: bool) -> None:
    """Raise OSError if another listener of this keyfence has the address already, as by another name of the
    host. The kernel gives an address to both until one listens, or for good if they are shared."""
    known = [one for other in others for one in _tcp_addresses(other)]
    for family, host, port in _tcp_addresses(bound):
        for other_family, other_host, other_port in known:
            is_same = host == other_host or (not shared and not _ALL.isdisjoint((host, other_host)))
            if is_same and (family, port) == (other_family, other_port):
                raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))


def _tcp_addresses(bound: Bound) -> Iterator[tuple[int, str, int]]:
    for sock in bound.sockets:
        if sock.family != socket.AF_UNIX:
            host, port = sock.getsockname()[:2]
            yield sock.family, host, port


def _bind_first(model: ListenerModel, *, shared: bool) -> Bound:
    """The first socket of an address. It is bound without sharing first, which fails if another process has
    the address, even one that shares it."""
    bound = bind(model.address, unix_mode=model.unix_mode)
    if not shared or model.address.unix_path or bound.is_passed:
        return bound
    bound.close()
    return bind(Address(bound.name), reuse_port=True)
