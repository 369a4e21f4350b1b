"""The addresses that a Sentinel listener names.

Rule: an address that the configuration leaves out is that of a listener of this process, with the port that
it was bound to.
"""

from __future__ import annotations

from collections.abc import Sequence

from keyfence.config.models import ListenerModel
from keyfence.config.settings import Settings
from keyfence.net.addresses import Address, Bound
from keyfence.session.sentinel.facts import Primary


def primaries_of(settings: Settings, listener: ListenerModel, bound: Sequence[Bound]) -> list[Primary]:
    """The primaries that a listener names; empty for one that serves Redis' clients. `bound` has the sockets
    of all listeners, in their order."""
    by_default = settings.named_by_default(listener)
    found = []
    for one in listener.primaries:
        address = one.address
        if not address:
            assert by_default is not None  # it is checked with the configuration
            address = bound[settings.listeners.index(by_default)].name
        others = [Address(other).host_port for other in one.others]
        found.append(Primary(one.name, *Address(address).host_port, others))
    return found
