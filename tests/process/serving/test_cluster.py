"""A cluster's nodes in one process, with nodes that say what a test wants: what goes wrong is named, and the
rest is served."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import socket
import zlib
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

import hiredis
import pytest

from keyfence.config.loading import load_settings
from keyfence.config.settings import Overrides
from keyfence.config.upstream import AnnounceModel
from keyfence.policy.compiled.tenants import NOBODY, Caller
from keyfence.process.serving import cluster as module
from keyfence.process.serving.cluster import ClusterNodes
from keyfence.process.serving.runtime import Runtime
from keyfence.telemetry.telemetry import Telemetry
from keyfence.upstream.address import UpstreamAddress
from keyfence.upstream.cluster.refresh import Reason
from keyfence.upstream.cluster.troubles import (
    CANNOT_LISTEN,
    KINDS,
    NO_ADDRESS,
    NO_PORT,
    NO_TOPOLOGY,
    SHARED_PORT,
    SLOTS_WITHOUT_NODE,
    UNREACHABLE,
)
from keyfence.upstream.health import Upstream
from tests.process.serving.test_upstreams import in_loop
from tests.servers import first_port, free_port
from tests.upstream.cluster.replies import wire

A, B, C = "a" * 40, "b" * 40, "c" * 40
NO_CLUSTER = b"-ERR This instance has cluster support disabled\r\n"


class FakeNodes:
    """Three nodes, each with a port of its own, which all tell the same."""

    def __init__(self) -> None:
        self.ports: list[int] = []
        self.reply = b""  # to CLUSTER NODES
        self._servers: dict[int, asyncio.Server] = {}  # by port
        self._writers: list[asyncio.StreamWriter] = []

    async def start(self, port: int = 0) -> None:
        """Starts a node, at a new port or the one that it had."""
        server = await asyncio.start_server(self.answer, "127.0.0.1", port)
        started = server.sockets[0].getsockname()[1]
        self._servers[started] = server
        if not port:
            self.ports.append(started)

    def stop(self, *ports: int) -> None:
        """Stops these nodes."""
        for port in ports:
            self._servers.pop(port).close()
        for one in self._writers:
            if one.get_extra_info("sockname")[1] in ports:
                one.close()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests = hiredis.Reader()
        self._writers.append(writer)
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                requests.feed(data)
                while (request := requests.gets()) is not False:
                    writer.write(self._reply_to(request))
        writer.close()

    async def end(self) -> None:
        """Stops all nodes, and closes what keyfence has not closed."""
        self.stop(*self._servers)
        for one in self._writers:
            one.close()
        await asyncio.gather(*(one.wait_closed() for one in self._writers), return_exceptions=True)

    def _reply_to(self, request: Any) -> bytes:
        answers = {b"CLUSTER": self.reply, b"PING": b"+PONG\r\n", b"HELLO": b"-ERR unknown\r\n"}
        return answers.get(request[0].upper(), b"*0\r\n")

    def tell(self, *lines: str) -> None:
        """Tell these nodes: lines of CLUSTER NODES without ends, with {0}, {1}, {2} for the ports."""
        self.reply = wire("".join(f"{line.format(*self.ports)}\n" for line in lines))

    def tell_all(self) -> None:
        self.tell(
            line(A, "{0}", "0-5000", 1), line(B, "{1}", "5001-10000", 2), line(C, "{2}", "10001-16383", 3)
        )


def line(node_id: str, port: str, slots: str = "", epoch: int = 1, flags: str = "master") -> str:
    return f"{node_id} 127.0.0.1:{port}@1 {flags} - 0 0 {epoch} connected {slots}"


class Stage(NamedTuple):
    runtime: Runtime
    nodes: FakeNodes
    cluster: ClusterNodes

    def troubles(self) -> dict[str, int]:
        found = self.cluster.state().troubles_by_kind
        return {kind: number for kind, number in found.items() if number}

    async def until(self, check: Callable[[], object], reason: Reason = Reason.RESET) -> None:
        """Waits for this, and has the topology asked for meanwhile."""
        while not check():
            self.cluster.noticed(reason)
            await asyncio.sleep(0.01)

    def announced(self) -> dict[str, str]:
        return {one.id: one.announced for one in self.cluster.state().nodes if one.announced}

    @property
    def entry(self) -> Upstream:
        """The upstream of the configured listener."""
        return self.runtime.upstreams[0].upstream

    async def up(self) -> None:
        """Waits until all upstreams are up."""
        await self.until(lambda: all(one.upstream.up for one in self.runtime.upstreams))

    def metric(self, kind: str) -> int:
        return self.runtime.telemetry.counters.upstream_cluster_troubles["cluster", kind]


@contextlib.asynccontextmanager
async def following(
    ports: str = "", tell: Callable[[FakeNodes], None] = FakeNodes.tell_all, **named: int
) -> AsyncIterator[Stage]:
    """A runtime that follows the nodes. `named`: the ports of nodes 0 to 2, as n0=PORT."""
    nodes = FakeNodes()
    first = first_port()
    settings = load_settings("", Overrides(listen="127.0.0.1:0"), needs_policy=False)
    runtime = Runtime(settings, None, Telemetry())
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(nodes.end)
        for _ in range(3):
            await nodes.start()
        tell(nodes)
        seeds = (("127.0.0.1", nodes.ports[0]),)
        address = UpstreamAddress("tcp", *seeds[0], shown="cluster", cluster=seeds)
        served = await runtime.reach_upstream(address)
        by_node = {f"127.0.0.1:{nodes.ports[int(name[1:])]}": port for name, port in named.items()}
        announce = AnnounceModel(host="127.0.0.1", ports=ports or f"{first}-{first + 99}", nodes=by_node)
        cluster = ClusterNodes(runtime, served, announce)
        for job in (cluster.follow_forever(), served.upstream.probe_forever()):
            task = asyncio.ensure_future(job)
            stack.push_async_callback(asyncio.wait, [task])
            stack.callback(task.cancel)
        stack.push_async_callback(runtime.close, 0)
        await cluster.found.wait()
        yield Stage(runtime, nodes, cluster)


@in_loop
async def test_a_whole_cluster_has_no_trouble() -> None:
    async with following() as stage:
        await stage.until(lambda: all(one.up for one in stage.cluster.state().nodes))
        assert stage.troubles() == {}
        assert stage.announced().keys() == {A, B, C}
        state = stage.cluster.state()
        assert [one.slots for one in state.nodes] == [5001, 5000, 6383]
        assert state.slots == 16384
        await stage.until(lambda: stage.runtime.telemetry.counters.upstream_cluster_troubles)
        assert {kind: stage.metric(kind) for kind in KINDS} == dict.fromkeys(KINDS, 0)


@in_loop
async def test_a_seed_that_is_no_cluster_is_named_with_the_remedy() -> None:
    async with following(tell=lambda nodes: setattr(nodes, "reply", NO_CLUSTER)) as stage:
        assert stage.troubles() == {NO_TOPOLOGY: 1}
        (trouble,) = stage.cluster.state().troubles
        assert f"127.0.0.1:{stage.nodes.ports[0]}: it is no node of a cluster" in trouble.text
        assert "give its address as url" in trouble.text
        await stage.until(lambda: stage.runtime.telemetry.counters.upstream_cluster_troubles)
        assert stage.metric(NO_TOPOLOGY) == 1
        stage.nodes.tell_all()  # it was made one
        await stage.until(lambda: not stage.troubles())


@in_loop
async def test_a_cluster_without_all_hash_slots_is_served_as_far_as_it_goes() -> None:
    async with following(tell=lambda nodes: nodes.tell(line(A, "{0}", "0-99"), line(B, "{1}"))) as stage:
        assert stage.troubles() == {SLOTS_WITHOUT_NODE: 1}
        assert "16284 hash slots of the cluster have no node" in stage.cluster.state().troubles[0].text
        assert stage.announced().keys() == {A, B}


@in_loop
async def test_a_topology_that_shrinks_to_nothing_does_not_count() -> None:
    async with following() as stage:
        before = stage.announced()
        stage.nodes.tell(line(A, "{0}", "", 9, "myself,master"))
        await stage.until(lambda: NO_TOPOLOGY in stage.troubles())
        assert "it knows no node that has hash slots" in stage.cluster.state().troubles[0].text
        assert stage.announced() == before
        assert stage.cluster.upstream_of(b"a") is not None


@in_loop
async def test_a_node_without_an_address_is_named_and_left_out() -> None:
    def tell(nodes: FakeNodes) -> None:
        lost = f"{B} :0@0 master,noaddr - 0 0 2 disconnected 101-16383"
        nodes.tell(line(A, "{0}", "0-100"), lost, line(C, "0", "", 3))

    async with following(tell=tell) as stage:
        assert stage.troubles() == {NO_ADDRESS: 2}
        texts = [one.text for one in stage.cluster.state().troubles]
        assert f"the node {B}, which has 16283 hash slots, has no address" in texts[0]
        assert stage.announced().keys() == {A}


@in_loop
async def test_a_node_that_cannot_be_reached_keeps_its_address() -> None:
    gone = free_port()
    async with following(
        tell=lambda nodes: nodes.tell(line(A, "{0}", "0-9"), line(B, f"{gone}", "10-16383"))
    ) as stage:
        await stage.until(lambda: stage.troubles() == {UNREACHABLE: 1})
        assert f"127.0.0.1:{gone} is unreachable" in stage.cluster.state().troubles[0].text
        assert stage.announced().keys() == {A, B}
        while not stage.cluster.state().refreshes[Reason.CONNECT]:
            await asyncio.sleep(0.01)


@in_loop
async def test_nodes_without_a_port_are_named_and_the_others_are_served() -> None:
    port = free_port()
    async with following(f"{port}-{port}") as stage:
        assert stage.troubles() == {NO_PORT: 2}
        assert len(stage.announced()) == 1


@in_loop
async def test_two_nodes_that_prefer_one_port_are_named_and_both_are_served() -> None:
    first = first_port()
    first_two = zlib.crc32(A.encode()), zlib.crc32(B.encode())
    ports = next(ports for ports in range(2, 100) if len({one % ports for one in first_two}) == 1)
    async with following(f"{first}-{first + ports - 1}", n2=first + ports) as stage:
        assert stage.announced().keys() == {A, B, C}
        assert len(set(stage.announced().values())) == 3
        assert stage.troubles() == {SHARED_PORT: 1}


@in_loop
async def test_a_port_that_something_else_has_is_named_until_it_is_free() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        async with following(n0=port) as stage:
            assert stage.troubles() == {CANNOT_LISTEN: 1}
            text = stage.cluster.state().troubles[0].text
            assert f"cannot listen on 127.0.0.1:{port}" in text
            assert stage.announced().keys() == {B, C}
            other.close()
            await stage.until(lambda: not stage.troubles())
            assert stage.announced()[A] == f"127.0.0.1:{port}"


@in_loop
async def test_the_configured_listener_leads_to_another_node_if_its_node_goes_and_that_is_no_failover(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with following() as stage:
        await stage.up()
        gone = stage.entry.address.port
        stage.nodes.stop(gone)
        await stage.until(lambda: stage.entry.address.port != gone and stage.entry.up)
        assert stage.runtime.telemetry.counters.upstream_failovers == {}
        assert stage.entry.last_failover is None
    assert "as the cluster says" not in capsys.readouterr().err


@in_loop
async def test_the_configured_listener_stays_where_it_leads_while_all_nodes_are_down() -> None:
    async with following() as stage:
        await stage.up()
        ports = list(stage.nodes.ports)
        stage.nodes.stop(*ports)
        await stage.until(lambda: all(one.upstream.up is False for one in stage.runtime.upstreams))
        moved_at, failures = stage.entry.moved_at, stage.entry.failures
        await stage.until(lambda: stage.entry.failures > failures + 3)
        assert stage.entry.moved_at == moved_at
        back = next(port for port in ports if port != stage.entry.address.port)
        await stage.nodes.start(back)
        await stage.until(lambda: stage.entry.up)
        assert stage.entry.address.port == back


@dataclasses.dataclass(eq=False)
class Named:
    service: str
    caller: Caller = NOBODY

    def is_named(self) -> None:
        pass


@in_loop
async def test_a_connection_id_counts_only_at_the_node_that_has_shown_it() -> None:
    async with following() as stage:
        here, there = (f"127.0.0.1:{port}" for port in stage.nodes.ports[:2])
        context = next(
            one for one in stage.runtime.contexts if one.upstream.address.port == stage.nodes.ports[0]
        )
        context.ids.show(Named("app"), b":7\r\n")
        assert stage.runtime.was_shown("app", here, 7)
        assert not stage.runtime.was_shown("app", there, 7)
        assert not stage.runtime.was_shown("other", here, 7)


@in_loop
async def test_a_node_that_has_left_keeps_its_port_for_a_while() -> None:
    with pytest.MonkeyPatch.context() as patch:
        async with following() as stage:
            port = int(stage.announced()[C].rpartition(":")[2])
            stage.nodes.tell(line(A, "{0}", "0-5000", 4), line(B, "{1}", "5001-16383", 5))
            await stage.until(lambda: C not in stage.announced())
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            patch.setattr(module, "KEPT_SECONDS", 0.0)
            await stage.until(lambda: not _is_open(port))
            writer.close()
            assert len(stage.runtime.upstreams) == 3  # the entry and two nodes


def _is_open(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


@in_loop
async def test_a_node_that_is_down_has_connections_to_its_address_refused_until_it_is_back() -> None:
    async with following() as stage:
        node = next(
            one for one in stage.runtime.upstreams if one.upstream.address.port == stage.nodes.ports[1]
        )
        port = int(stage.announced()[B].rpartition(":")[2])
        assert _is_open(port)
        node.upstream.failed("connection refused")
        assert not _is_open(port)
        with pytest.raises(OSError), socket.socket() as other:
            other.bind(("127.0.0.1", port))
        assert await node.upstream.probe()
        assert _is_open(port)


@pytest.mark.parametrize("is_silent", [True, False], ids=["silent", "answering"])
@in_loop
async def test_what_stands_on_a_node_leaves_it_if_it_is_silent_and_the_cluster_takes_it_for_dead(
    is_silent: bool,
) -> None:
    async with following() as stage:
        node = next(
            one for one in stage.runtime.upstreams if one.upstream.address.port == stage.nodes.ports[1]
        )
        left: list[str] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(stage.cluster, "_leave", lambda _one, why: left.append(why))
            job = stage.cluster._open[B].job
            assert job is not None
            job.cancel()  # its prober gets answers
            await asyncio.wait([job])
            node.upstream.silence.is_silent = is_silent
            stage.nodes.tell(
                line(A, "{0}", "0-10000", 4),
                line(B, "{1}", "", 2, "master,fail"),
                line(C, "{2}", "10001-16383", 3),
            )
            await stage.until(lambda: stage.cluster._open[B].node.is_dead, Reason.SILENT)
        assert bool(left) == is_silent
        assert node.upstream.is_dead == is_silent


@in_loop
async def test_every_sign_at_a_node_has_the_topology_asked_for_by_its_name() -> None:
    async with following() as stage:
        node = stage.runtime.upstreams[1]
        for word in ("READONLY", "CLUSTERDOWN", "MASTERDOWN", "LOADING"):
            reason = Reason(word.lower())
            before = stage.cluster.state().refreshes[reason]
            while stage.cluster.state().refreshes[reason] == before:
                node.upstream.seen(word)
                await asyncio.sleep(0.01)
        while not stage.cluster.state().refreshes[Reason.RESET]:
            node.upstream.lost()
            await asyncio.sleep(0.01)


@in_loop
async def test_redirects_that_disagree_are_signs_and_are_counted_by_node() -> None:
    async with following() as stage:
        node = stage.runtime.upstreams[1]
        counters = stage.runtime.telemetry.counters
        for word, reason in (("MOVED", Reason.MOVED), ("ASK", Reason.ASK)):
            node.upstream.seen(word)
            assert counters.upstream_node_redirects[node.upstream.address.shown, word] == 1
            while not stage.cluster.state().refreshes[reason]:
                stage.cluster.redirect(b"%b 1 10.9.9.9:1" % word.encode())
                await asyncio.sleep(0.01)
        port = stage.nodes.ports[0]
        text = stage.cluster.redirect(b"MOVED 1 127.0.0.1:%d" % port)
        assert text == b"MOVED 1 %b" % stage.announced()[A].encode()
