"""A model of one node of a Redis Cluster, and of its connections.

Rule: it answers by its own view of the cluster, as Redis 7 does (`getNodeByQuery`): MOVED, ASK, TRYAGAIN,
CROSSSLOT and CLUSTERDOWN come before the command is looked at further, and within MULTI they spoil it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from keyfence.policy.compiled.hash_slots import hash_slot
from tests.simulation.cluster.views import Change, View
from tests.simulation.dataset import BIG, OK, WRITES, bulk
from tests.simulation.redis_model import PORT, Argv, Connection, Node

if TYPE_CHECKING:
    from tests.simulation.cluster.shards import Shard

_CROSSSLOT = b"-CROSSSLOT Keys in request don't hash to the same slot\r\n"
_TRYAGAIN = b"-TRYAGAIN Multiple keys request during rehashing of slot\r\n"
_DOWN = b"-CLUSTERDOWN The cluster is down\r\n"
_NOT_SERVED = b"-CLUSTERDOWN Hash slot not served\r\n"
_SELECT = b"-ERR SELECT is not allowed in cluster mode\r\n"
_ONE_KEY = (b"GET", b"SET", b"INCR", b"RPUSH", b"LRANGE", b"LPOP")
_LOOK_SECONDS = 0.1  # after which a node looks whether blocked clients are still right there


def keys_of(argv: Sequence[bytes]) -> Sequence[bytes]:
    """The keys of a command."""
    if argv[0] in _ONE_KEY:
        return argv[1:2]
    if argv[0] == b"MSET":
        return argv[1::2]
    if argv[0] == b"BLPOP":
        return argv[1:-1]
    return argv[1:] if argv[0] in (b"MGET", b"WATCH") else []


class ClusterNode(Node):
    """A node: what it knows, and which hash slots are on their way."""

    mode = b"cluster"

    def __init__(self, name: str, shard: Shard, address: str, view: View) -> None:
        self.shard = shard
        self.view = view
        self.heard: dict[Change, None] = {}  # the changes that are in its view
        self.migrating: dict[int, ClusterNode] = {}  # hash slots that it gives away, and to which node
        self.importing: dict[int, ClusterNode] = {}  # that it gets
        self.has_left = False
        self.is_dead = False  # its process has ended
        super().__init__(name, shard, address)

    @property
    def id(self) -> str:
        return f"{int(self.host.address.rpartition('.')[2]):040x}"

    @property
    def answers(self) -> bool:
        """Whether the other nodes can hear it, and it them."""
        return not (self.host.is_silent or self.host.is_stopped or self.is_dead)

    def accept(self) -> ClusterConnection:
        return ClusterConnection(self)

    def kill(self, *, with_machine: bool) -> None:
        self.is_dead = True
        super().kill(with_machine=with_machine)

    def hear(self, change: Change) -> None:
        """Learn of a change."""
        if change not in self.heard:
            self.heard[change] = None
            self.view = self.shard.cluster.view_after(self.heard)
            for slot in [slot for slot in self.importing if self._owns(slot)]:
                del self.importing[slot]
            for slot in [slot for slot in self.migrating if not self._owns(slot)]:
                del self.migrating[slot]
            loop = self.group.network.loop
            loop.call_later(_LOOK_SECONDS, self._look_at_blocked)

    def _owns(self, slot: int) -> bool:
        return self.view.owner(slot) is self

    def _look_at_blocked(self) -> None:
        for one in list(self.connections):
            one.look_where_it_belongs()

    @property
    def is_down(self) -> bool:
        """Whether it takes the cluster to be down."""
        return self.shard.cluster.is_down_for(self)

    def refusal_of_keys(self, argv: Argv, keys: Sequence[bytes], *, asks: bool, reads: bool) -> bytes:
        """Why it does not run a command with these keys; b"": it does. `asks`: after ASKING. `reads`: after
        READONLY."""
        slots = {hash_slot(key) for key in keys}
        if not slots:
            return b""
        slot = hash_slot(keys[0])
        owner = self.view.owner(slot)
        if owner is None:
            return _NOT_SERVED
        if len(slots) > 1:
            return _CROSSSLOT
        here = [(0, key) in self.data.values for key in keys]
        if self.is_down:
            return _DOWN
        if owner is self and slot in self.migrating and not all(here):
            return _TRYAGAIN if any(here) else _redirect(b"ASK", slot, self.migrating[slot])
        if asks and owner is not self and slot in self.importing:
            return _TRYAGAIN if len(keys) > 1 and not all(here) else b""
        if owner is self:
            return b"" if self.is_primary else _DOWN
        if reads and owner.shard is self.shard and argv[0] not in WRITES:
            return b""
        return _redirect(b"MOVED", slot, owner)

    def nodes_text(self) -> bytes:
        """The reply to CLUSTER NODES."""
        lines, failing = [], self.shard.cluster.failing
        for shard, primary in self.view.primaries.items():
            for one in primary.shard.nodes:
                flags = ["myself"] if one is self else []
                flags.append("master" if one is primary else "slave")
                flags += ["fail"] if one in failing and one is not self else []
                address = f"{one.host.address}:{PORT}@1{PORT}"
                master = "-" if one is primary else primary.id
                slots = self.view.ranges(shard) if one is primary else []
                epoch = self.view.epochs.get(shard, 0)
                lines.append(
                    " ".join([one.id, address, ",".join(flags), master, f"0 0 {epoch} connected", *slots])
                )
        return bulk("".join(f"{line}\n" for line in lines).encode())


def _redirect(word: bytes, slot: int, node: ClusterNode) -> bytes:
    return b"-%b %d %b:%d\r\n" % (word, slot, node.host.address.encode(), PORT)


class ClusterConnection(Connection):
    """One connection to a node."""

    node: ClusterNode

    def __init__(self, node: ClusterNode) -> None:
        super().__init__(node)
        self._is_asking = False
        self._is_reading = False  # after READONLY
        self._runs_transaction = False

    def _answer(self, argv: Argv) -> bytes:
        if self._runs_transaction:
            return super()._answer(argv)
        if argv[0] == b"EXEC" and self._queue is not None:
            reply = self._answer_exec(argv)
        else:
            reply = self._redirected(argv) or self._answer_here(argv)
        if self._queue is None and argv[0] != b"ASKING":
            self._is_asking = False
        return reply

    def _answer_here(self, argv: Argv) -> bytes:
        known = _OF_CLUSTER.get(argv[0])
        if known is not None and self._queue is None:
            return known(self, argv)
        self._note_run(argv)
        return super()._answer(argv)

    def _note_run(self, argv: Argv) -> None:
        for key in keys_of(argv):
            self.node.shard.cluster.ran(key)
            if argv[0] == b"WATCH":
                self.node.shard.cluster.watched_at[key] = self.node
            if not key.startswith(b"sim:"):
                self.node.shard.cluster.journal.breaks(
                    f"{argv!r:.80} reached {self.node.name}, and was refused"
                )

    def _redirected(self, argv: Argv) -> bytes:
        """The error in place of a reply; b"": there is none."""
        node = self.node
        refusal = node.refusal_of_keys(argv, keys_of(argv), asks=self._is_asking, reads=self._is_reading)
        if refusal:
            node.shard.cluster.refused(node, argv, refusal)
            self._is_spoilt = self._is_spoilt or self._queue is not None
            if self._queue is not None and argv[0] == b"SET":
                self._look_where_watch_ran(argv[1])
        return refusal

    def _look_where_watch_ran(self, key: bytes) -> None:
        """In these schedules, SET in a transaction follows WATCH of its key."""
        node = self.node.shard.cluster.watched_at.get(key, self.node)
        if (0, key) not in self._watched and node is not self.node:
            journal = self.node.shard.cluster.journal
            journal.breaks(f"WATCH has run at {node.name}, and MULTI went to {self.node.name}")

    def _answer_exec(self, argv: Argv) -> bytes:
        """EXEC is refused if any of its commands is, before anything has run."""
        queue = self._queue or []
        keys = [key for one in queue for key in keys_of(one)]
        writes = next((one for one in queue if one[0] in WRITES), argv)
        refusal = self.node.refusal_of_keys(writes, keys, asks=self._is_asking, reads=self._is_reading)
        if refusal:
            for one in queue:
                if keys_of(one):
                    self.node.shard.cluster.refused(self.node, one, refusal)
            self._discard(argv)
            return refusal
        self._runs_transaction = True
        try:
            return super()._answer(argv)
        finally:
            self._runs_transaction = False

    def look_where_it_belongs(self) -> None:
        """A blocked client goes where its key is now."""
        if self._blocked is None or self.end.is_closing():
            return
        if any(hash_slot(key) in self.node.importing for key in keys_of(self._blocked)):
            return
        refusal = self._redirected(self._blocked)
        if refusal and not refusal.startswith(b"-ASK"):
            self._answer_blocked(refusal)

    def _asking(self, _argv: Argv) -> bytes:
        self._is_asking = True
        return OK

    def _readonly(self, argv: Argv) -> bytes:
        self._is_reading = argv[0] == b"READONLY"
        return OK

    def _cluster(self, argv: Argv) -> bytes:
        asked = argv[1].upper()
        if asked == b"NODES":
            return self.node.nodes_text()
        return bulk(self.node.id.encode()) if asked == b"MYID" else b"-ERR unknown subcommand\r\n"

    def _select_none(self, argv: Argv) -> bytes:
        return OK if argv[1] == b"0" else _SELECT


_OF_CLUSTER: dict[bytes, Callable[[ClusterConnection, Argv], bytes]] = {
    b"ASKING": ClusterConnection._asking,
    b"READONLY": ClusterConnection._readonly,
    b"READWRITE": ClusterConnection._readonly,
    b"CLUSTER": ClusterConnection._cluster,
    b"SELECT": ClusterConnection._select_none,
}
assert BIG.startswith(b"sim:")
