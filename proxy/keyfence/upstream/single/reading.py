"""One client's shares of the connections to all nodes of a cluster, if its service reads from replicas.

Rule: each master and its replicas are as one Redis with replicas (`upstream.replicas`): of one master's keys,
replies are due at the master or at one replica. What is not a read waits for all reads at replicas.

What a client knows counts for the nodes that it was read from. So it is void once a hash slot has another
node: then all reads are at the masters until checks have shown that the replicas have what the masters had
by then. Whatever a replica does not answer well, its master is asked: it is a read, which may be repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from keyfence.upstream.cluster.splitting import split
from keyfence.upstream.exchange import Share, Sharer
from keyfence.upstream.replicas.replica import Replica
from keyfence.upstream.replicas.sorting import Piece
from keyfence.upstream.replicas.whereabouts import NEVER, Place, Whereabouts

from .cutting import ANY_NODE, NO_NODE, PARTS, Run, arguments, end_of
from .masters import Masters
from .missing import MOST_HELD, is_blank, may_be_blank
from .refusals import refuses_reading
from .shares import ClusterShares, most_at_once
from .sides import Sent, Side, new_sent
from .turns import Turn, new_turn

_CHECKED = ("MOVED", "CLUSTERDOWN", "LOADING", "MASTERDOWN")  # after which a replica is not used for now


class ReplicaSide(Side):
    """A client's share of one replica's connections. Each reply is looked at."""

    def __init__(self, shares: Any, replica: Replica, place: int) -> None:
        super().__init__(shares, replica, place)
        self.replica = replica
        self.refuses = False  # it has refused a read, so none that is due counts
        self.is_too_long = False  # of the next reply so much was held that it does not count

    def send(self, sent: Sent) -> None:
        super().send(sent)
        self.is_looked_at = True


class _Shard:
    """One client's use of one master and its replicas."""

    def __init__(self, where: Whereabouts) -> None:
        self.where = where
        self.until_written = 0  # replies of the master up to the one to the last command that is not a read


class ReadingShares(ClusterShares):
    """The shares of one client."""

    def __init__(self, client: Sharer, masters: Masters, after_write: float) -> None:
        """`after_write`: how long reads stay at a master, in seconds."""
        super().__init__(client, masters)
        assert masters.replicas is not None
        self._replicas = masters.replicas
        self._after_write = after_write
        self._shards: dict[int, _Shard] = {}  # by the number of the master
        self._heard_of: dict[int, float] = {}  # the same, of masters without replicas: the last reply
        self._knows_of = NEVER  # all that any master had at this time may be known
        self._seen_version = self._version

    # -- as `Links` uses it

    def send(self, chunks: list[bytes], counts: list[int], shapeable: bool) -> None:
        """Send chunks with `counts` requests each. `shapeable`: the client's text might shape a reply."""
        sorter = self._replicas.sorter
        for chunk, count in zip(chunks, counts, strict=True):
            pieces = [Piece(chunk, count, False)] if shapeable else sorter.pieces(chunk, count)
            self._queue.extend((piece, shapeable) for piece in pieces)
        self._go_on()

    def works_elsewhere(self) -> None:
        """The client has used connections of its own."""
        self._void(stays=True)

    def tick(self) -> None:
        """Give up reads at replicas of which a check has shown that they do not serve."""
        for side in self._away():
            if side.due and side.replica.trouble and not side.is_partial:
                self._read_elsewhere(side)

    def close(self) -> None:
        for shard in self._shards.values():
            shard.where.close()
        self._shards.clear()
        super().close()

    # -- sending

    def _go_on(self) -> None:
        while self._queue and self._client is not None and self._may_send():
            if self._version != self._seen_version:
                self._seen_version = self._version
                self._void()
            elif not self.due and any(one.master.has_left for one in self._places):
                self._leave_gone()
            piece, shapeable = self._queue[0]
            most = most_at_once(self._size, self.due)
            if piece.replies > most and (end := end_of(piece.data, most)) < len(piece.data):
                rest = Piece(piece.data[end:], piece.replies - most, piece.reads)
                piece = Piece(piece.data[:end], most, piece.reads)
                self._queue[0] = (rest, shapeable)
                self._queue.appendleft((piece, shapeable))
            if not self._send_piece(piece, shapeable):
                return

    def _send_piece(self, piece: Piece, shapeable: bool) -> bool:
        """Send the first piece of the queue. Returns whether that was possible now."""
        runs = self._cutter.cut(piece.data, piece.replies) if piece.reads else []
        if runs and all(run.node not in (ANY_NODE, NO_NODE) for run in runs):
            return self._send_reads(piece, runs)
        if any(side.due for side in self._away()):
            return False
        self._queue.popleft()
        due = {number: self._due_at(number) for number in self._shards}
        for shard in self._shards.values():
            shard.where.stop_waiting()
        self._send(piece.data, piece.replies, shapeable)
        for number, shard in self._shards.items():
            if self._due_at(number) != due[number]:
                shard.until_written = self._due_at(number)
        return True

    def _send_reads(self, piece: Piece, runs: Sequence[Run]) -> bool:
        """The same for requests that only read."""
        left = piece.replies
        self._hand_over()
        for run in runs:
            request = piece.data[run.begin : run.end]
            is_sent = self._read_parts(request) if run.node == PARTS else self._read(run, request)
            if not is_sent:
                if left < piece.replies:
                    self._queue[0] = (Piece(piece.data[run.begin :], left, True), False)
                return False
            left -= run.count
        self._queue.popleft()
        return True

    def _read(self, run: Run, requests: bytes) -> bool:
        """Send reads of keys that one master has. Returns whether that was possible now."""
        side = self._side_of_read(run.node)
        if side is None:
            return False
        self._went(run.node, side, run.count)
        turn = new_turn(side, run.count, self.number, True, False)
        self._order.add(turn)
        side.expect(turn)
        self.number += run.count
        self.due += run.count
        self.send_to(side, new_sent(requests, run.count, False, None))
        return True

    def _read_parts(self, request: bytes) -> bool:
        """The same for one command in parts, each of which may be read somewhere else."""
        cut = split(arguments(request))
        assert cut is not None
        assert self._splits is not None
        sides: dict[int, Side] = {}
        nodes = [self._masters.of_slot(part.slot) for part in cut.parts]
        for node in {*nodes} - {NO_NODE}:
            side = self._side_of_read(node)
            if side is None:
                return False
            sides[node] = side
        for node, side in sides.items():
            self._went(node, side, nodes.count(node))
        self._splits.send(request, True, False, sides)
        return True

    def _side_of_read(self, master: int) -> Side | None:
        """The side that takes the next reads of keys that this master has; None: they have to wait."""
        shard = self._shard(master)
        if shard is None:
            return self.side(master)
        due_here, where = self._due_at(master), shard.where
        due_away = self._due_at(where.replica.number) if where.replica is not None else 0
        place = Place.PRIMARY
        if not (shard.until_written and due_here):
            due = bool(due_away if where.is_away else due_here)
            place = where.of_read(self._masters.clock(), due=due)
        if place is Place.LATER or (due_away if place is Place.PRIMARY else due_here):
            return None
        if place is Place.PRIMARY:
            return self.side(master)
        assert where.replica is not None
        return self._side_at(where.replica)

    def _went(self, master: int, side: Side, count: int) -> None:
        """So many reads go to this side."""
        shard = self._shards.get(master)
        if shard is not None:
            replica = side.replica if isinstance(side, ReplicaSide) else None
            shard.where.is_away = replica is not None
            shard.where.replicas.count_reads(replica, count)

    def _due_at(self, node: int) -> int:
        side = self._sides.get(node)
        return side.due if side is not None else 0

    def _away(self) -> list[ReplicaSide]:
        return [one for one in self._places if isinstance(one, ReplicaSide)]

    def _side_at(self, replica: Replica) -> ReplicaSide:
        side = self._sides.get(replica.number)
        if side is None:
            side = self._sides[replica.number] = ReplicaSide(self, replica, len(self._places))
            self._places.append(side)
        assert isinstance(side, ReplicaSide)
        return side

    def _is_ready(self, replica: Replica) -> bool:
        """Whether this client has a connection to a replica that it may use."""
        assert self._profile is not None
        side = self._side_at(replica)
        return side.may_share(self._profile) and side.link is not None and side.link.is_ready

    # -- what the client knows

    def _shard(self, master: int) -> _Shard | None:
        """A master and its replicas; None: it has no replicas to read from."""
        replicas = self._replicas.of(master)
        shard = self._shards.get(master)
        if shard is not None and shard.where.replicas is replicas:
            return shard
        if shard is not None:
            self._forget(master)
        if replicas is None:
            return None
        where = Whereabouts(replicas, self._after_write, self._masters.later, self._is_ready, self._go_on)
        where.knows_of = max(self._knows_of, self._heard_of.pop(master, NEVER))
        shard = self._shards[master] = _Shard(where)
        shard.until_written = self._due_at(master)  # it is not known what for
        return shard

    def _forget(self, master: int) -> None:
        where = self._shards.pop(master).where
        self._heard_of[master] = self._masters.clock()
        where.close()

    def _void(self, *, stays: bool = False) -> None:
        """Whatever the masters have now may be known. `stays`: reads stay there for a while."""
        now = self._knows_of = self._masters.clock()
        self._heard_of.clear()
        for number, shard in list(self._shards.items()):
            shard.where.stop_waiting()
            shard.where.knows_of, shard.where.is_away = now, False
            if stays:
                shard.where.wrote(now)
            if number not in self._masters:
                self._forget(number)

    # -- replies

    def came(self, side: Side, data: bytes, completed: int, whole: bool) -> None:
        """A side has received bytes, in which so many replies end."""
        if isinstance(side, ReplicaSide):
            super().came(side, data, completed, whole)
            return
        number, now = side.number, self._masters.clock()
        shard = self._shards.get(number)
        if shard is None:
            self._heard_of[number] = now
            super().came(side, data, completed, whole)
            return
        if not self.sends_again:  # else `_take` gets each reply, and says so
            shard.where.heard(now)
        if shard.until_written:
            shard.until_written = max(shard.until_written - completed, 0)
            if not shard.until_written:
                shard.where.wrote(now)
        super().came(side, data, completed, whole)

    def _take(self, side: Side, turn: Turn, piece: bytes, done: int, looks: bool) -> None:
        """Take in replies of a turn, or a part of one."""
        if isinstance(side, ReplicaSide):
            if looks and self._is_kept(side, piece, bool(done)):
                return
        elif self.sends_again:
            again = side.sent.again if side.sent is not None else None
            is_known = again is not None and done and again.confirms == piece
            if not is_known and side.number in self._shards:
                self._shards[side.number].where.heard(self._masters.clock())
        super()._take(side, turn, piece, done, looks)

    def _is_kept(self, side: ReplicaSide, piece: bytes, is_end: bool) -> bool:
        """Whether the client does not get this of a replica's reply, of which it has nothing yet."""
        # A read of a key that is read again: the client would see what was there before, after what is there.
        follows = self.sends_again and self.retries.is_behind(side.next_request())
        if not is_end:
            is_dropped = side.refuses or side.is_too_long
            if not (is_dropped or follows or may_be_blank(piece, side.next_request)):
                return False
            side.is_too_long = side.is_too_long or len(piece) > MOST_HELD
            side.part = piece[:1] if is_dropped or side.is_too_long else piece
            return True
        why = refuses_reading(piece)
        if why:
            side.refuses = True
            if why in _CHECKED:
                self._doubt(side.replica, f"it answered {why}")
        if not (side.refuses or side.is_too_long or follows or is_blank(piece, side.next_request)):
            return False
        is_whole = not side.is_too_long and (bool(why) or not side.refuses)
        side.is_too_long = False
        self.retries.read_again(side, piece if is_whole else b"")
        side.refuses = side.refuses and side.due > 0
        return True

    def _doubt(self, replica: Replica, why: str) -> None:
        replica.doubt(why)
        for shard in self._shards.values():
            if shard.where.replica is replica:
                shard.where.replicas.look_again()

    # -- replicas that go

    def _read_elsewhere(self, side: ReplicaSide) -> None:
        """Ask the masters for what is due at a replica."""
        self._hand_over()
        side.refuses = side.is_too_long = False
        self.retries.pull_back(side)
        self._masters.later(0.0, self.after_replies)

    def lost(self, link: Share, reason: str) -> None:
        for side in self._away():
            if side.link is link and not side.is_partial:
                self._read_elsewhere(side)
                return
        super().lost(link, reason)

    def refused(self, side: Side, reason: str) -> None:
        """A node refuses the connection: nothing was sent there."""
        if isinstance(side, ReplicaSide):
            self._read_elsewhere(side)
        else:
            super().refused(side, reason)
