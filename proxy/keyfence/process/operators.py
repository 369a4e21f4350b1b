"""The listeners for operators and scrapers: the admin and the metrics listener of one keyfence.

Rule: their addresses are taken before the ready line, because a fault there must end the start. They answer a
moment after it: importing what they need takes a quarter of the start, and no client should wait for that.
Until then the kernel keeps their connections.
"""

from __future__ import annotations

import errno
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

from keyfence.admin.access import Access
from keyfence.admin.audit import Audit
from keyfence.admin.bounds import Bounds
from keyfence.config.defaults import DEFAULT_ADMIN
from keyfence.config.settings import Settings
from keyfence.downstream.accepting import BACKLOG
from keyfence.net.addresses import Address, Bound, bind, url_at, url_of, why_not

from .control import ProcessControl
from .serving.garbage import without_collections
from .serving.jobs import until_it_works
from .serving.rlimits import admin_room
from .serving.runtime import Runtime, StartError

if TYPE_CHECKING:
    from keyfence.admin.server import Server


class OperatorListeners:
    """Both listeners, those of them that the settings name."""

    def __init__(self, settings: Settings) -> None:
        """Take the addresses. Raises StartError."""
        self._room = admin_room(settings.admin_listeners)
        self._bound: dict[str, Bound] = {}
        self._servers: list[Server] = []
        for name, address in (("admin", settings.admin), ("metrics", settings.metrics)):
            if address is not None:
                try:
                    self._bound[name] = _taken(address)
                except OSError as exc:
                    self._close_bound()
                    raise StartError(f"cannot listen on {address} ({name}): {why_not(exc)}") from None

    def url(self, name: str) -> str:
        """The URL of the listener `admin` or `metrics`; "" for one that is not configured."""
        return url_at(self._bound[name]) if name in self._bound else ""

    async def serve(
        self, control: ProcessControl, access: Access, runtime: Runtime, head: Callable[[], str]
    ) -> None:
        """Answer from now on. Clients are served meanwhile. `head` is the last row of the history."""
        if not self._bound:
            return
        await until_it_works(_import)
        from keyfence.admin.server import start_admin, start_metrics
        from keyfence.web.site import Page

        bounds = Bounds(self._room, count=runtime.telemetry.counters.admin_refused_one)
        if "admin" in self._bound:
            audit = Audit(runtime.settings.admin_audit_log, runtime.tell, head)
            site = functools.partial(Page, control, access, audit)
            bound = self._bound["admin"]
            control.admin = url_of(Address(url_at(bound).removeprefix("http://")))
            self._servers.append(await start_admin(control, access, bound, bounds, audit=audit, site=site))
        if "metrics" in self._bound:
            self._servers.append(await start_metrics(control, self._bound["metrics"], bounds))

    async def close(self) -> None:
        for server in reversed(self._servers):
            await server.close()
        self._close_bound()

    def _close_bound(self) -> None:
        for bound in self._bound.values():
            bound.close()


def _import() -> None:
    with without_collections():
        import keyfence.admin.server
        import keyfence.web.site  # noqa: F401


def _taken(address: Address) -> Bound:
    """Sockets that listen on an address. Raises OSError."""
    try:
        return _listening(bind(address))
    except OSError as exc:
        # This port is only the default, so a second keyfence on the machine takes a free one.
        if address != DEFAULT_ADMIN or exc.errno != errno.EADDRINUSE:
            raise
    return _listening(bind(Address(f"{address.host_port[0]}:0")))


def _listening(bound: Bound) -> Bound:
    try:
        for sock in bound.sockets:
            sock.listen(BACKLOG)
    except OSError:
        bound.close()
        raise
    return bound
