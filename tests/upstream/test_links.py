"""A client's two links to Redis: events on one do not affect replies due on the other."""

from __future__ import annotations

import asyncio

import pytest

from keyfence.resp.profile import unchanged
from keyfence.upstream.health import Upstream, UpstreamAddress, UpstreamDown
from keyfence.upstream.links import Links, Owner
from keyfence.upstream.pools import Pools
from tests.downstream.test_client import in_loop


class RecordingOwner(Owner):
    """A client that records refusals."""

    def __init__(self) -> None:
        self.refusals: list[str] = []

    def upstream_lost(self, _link: object, reason: str) -> None:
        self.refusals.append(reason)

    def upstream_full(self, _link: object, full: bool) -> None:
        """It sends no more requests."""


@in_loop
async def test_a_connection_that_was_never_open_is_not_tried_again_while_the_client_shares(
    patch: pytest.MonkeyPatch,
) -> None:
    """By then its client may await replies on the shared one."""
    upstream = Upstream(UpstreamAddress("tcp", "127.0.0.1", 1, shown="fake"))
    tries = 0

    async def connect(_protocol: object) -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise UpstreamDown("no")
        await asyncio.sleep(3600)  # the shared connection is being opened

    patch.setattr(upstream, "connect", connect)
    client = RecordingOwner()
    pools = Pools(upstream, 1)
    links = Links(upstream, pools, client)
    links.send_own(unchanged(0), [b"HELLO"])
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert client.refusals == ["no"]
    assert links.may_share(unchanged(0))
    links.send_shared([b"GET"], [1])
    await asyncio.sleep(0)
    links.keep_alive(1e9)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert (tries, client.refusals) == (2, ["no"])
    links.close()
    pools.close()
