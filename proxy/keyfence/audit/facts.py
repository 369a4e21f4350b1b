"""Asks Redis about keys: type, time to live, memory, idle time, fields and size, in pipelines.

Rule: only commands that read are sent, and no value is kept. What Redis does not answer is left out, and said
once. A key whose hash slot moves is left out and counted: one server lists it, and another one answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from redis.exceptions import ResponseError

from keyfence.policy.compiled.sizes import Question
from keyfence.policy.compiled.ttl import GONE, NO_TTL

from .judge import Facts, Judge, Look, type_name
from .servers.links import SLOT_MOVES, CannotAsk, Link, Request
from .servers.nodes import Server, leave_idle_times

MAX_FIELDS = 100  # of a hash
# A hash may hold long values, and before Redis 7.4 HSCAN brings them with the fields.
MANY_BYTES = 1024 * 1024
FEW_FIELDS = 10  # of a hash with more memory than this
NOVALUES = (7, 4)  # of Redis: HSCAN may leave out the values

_Take = Callable[[Facts, Any], Facts]  # the facts with what a reply says

NO_IDLE = "idle times are not known: Redis' maxmemory-policy counts accesses (LFU) instead"
NO_IDLE_IN_FILES = "idle times are not known: a file does not keep them"


class Asker:
    """Asks one server."""

    def __init__(self, link: Link, server: Server, judge: Judge, notes: dict[str, None]) -> None:
        """`notes` gets what Redis does not answer, as sentences for people."""
        self._link = link
        self._server = server
        self._judge = judge
        self._notes = notes
        self._asks_memory = True
        self._asks_idle = server.tracks_idle
        self._asks_fields = True
        self.moving = 0  # keys that were left out, because their hash slots move
        leave_idle_times(link, server)

    def ask(self, looks: Sequence[tuple[bytes, Look]]) -> list[Facts | None]:
        """The facts about each key; None for one that has gone, or whose hash slot moves."""
        memory, idle = self._asks_memory, self._asks_idle
        commands: list[Request] = [(b"TYPE",), (b"PTTL",)]
        commands += [(b"MEMORY", b"USAGE")] if memory else []
        commands += [(b"OBJECT", b"IDLETIME")] if idle else []
        replies = self._link.ask([(*command, key) for key, _ in looks for command in commands])
        found = [
            self._facts(replies[at : at + len(commands)], memory=memory, idle=idle)
            for at in range(0, len(replies), len(commands))
        ]
        self._ask_more(looks, found)
        return found

    def _facts(self, replies: Sequence[Any], *, memory: bool, idle: bool) -> Facts | None:
        """The facts about a key in the replies about it."""
        if any(isinstance(reply, SLOT_MOVES) for reply in replies):
            self.moving += 1
            return None
        kind, ttl = self._sure(replies[0]), self._sure(replies[1])
        size = self._number(replies[2], "memory") if memory else 0
        since = self._number(replies[-1], "idle") if idle else -1
        if kind == b"none" or ttl == GONE:
            return None
        return Facts(type_name(kind.decode("utf-8", "replace")), ttl, size, since)

    def _ask_more(self, looks: Sequence[tuple[bytes, Look]], found: list[Facts | None]) -> None:
        """Asks for fields and sizes where the policy limits them, and once more for a time to live that is
        missing: an EXPIRE may just have followed the write."""
        requests: list[Request] = []
        asked: list[tuple[int, _Take]] = []
        for at, ((key, look), facts) in enumerate(zip(looks, found, strict=True)):
            if facts is None:
                continue
            if self._asks_fields and self._judge.has_fields(look.target, facts.type):
                few = FEW_FIELDS if facts.size > MANY_BYTES else MAX_FIELDS
                requests.append(fields_request(key, self._server, few))
                asked.append((at, self._with_fields))
            if facts.ttl == NO_TTL and self._judge.requires_ttl(look.target):
                requests.append((b"PTTL", key))
                asked.append((at, _with_ttl))
            for question in self._judge.questions(key, look.target, facts.type):
                requests.append((question.command, key))
                asked.append((at, partial(_with_size, question)))
        for (at, take), reply in zip(asked, self._link.ask(requests) if requests else (), strict=True):
            facts = found[at]
            assert facts is not None
            found[at] = take(facts, reply)

    def _with_fields(self, facts: Facts, reply: Any) -> Facts:
        if isinstance(reply, ResponseError):
            # The key may be another one by now, or elsewhere.
            if not (isinstance(reply, SLOT_MOVES) or str(reply).startswith("WRONGTYPE")):
                self._asks_fields = False
                self._notes[f"fields are not known: Redis says {str(reply)!r}"] = None
            return facts
        return facts._replace(fields=fields_in(reply, self._server))

    def _sure(self, reply: Any) -> Any:
        if isinstance(reply, ResponseError):
            raise CannotAsk(f"{self._link.shown} refuses what an audit needs: {reply}")
        return reply

    def _number(self, reply: Any, what: str) -> int:
        if isinstance(reply, int):
            return reply
        if isinstance(reply, ResponseError) and "no such key" not in str(reply):
            if what == "memory":
                self._asks_memory = False
                self._notes[f"bytes are not known: Redis says {str(reply)!r}"] = None
            else:
                self._asks_idle = False
                text = (
                    NO_IDLE if "LFU" in str(reply) else f"idle times are not known: Redis says {str(reply)!r}"
                )
                self._notes[text] = None
        return 0 if what == "memory" else -1


def fields_request(key: bytes, server: Server, few: int) -> Request:
    """Asks for the first fields of a hash: for `few` where a server brings the values with them."""
    if server.version >= NOVALUES:
        return (b"HSCAN", key, 0, b"COUNT", MAX_FIELDS, b"NOVALUES")
    return (b"HSCAN", key, 0, b"COUNT", few)


def fields_in(reply: Any, server: Server) -> tuple[bytes, ...]:
    """The fields in the reply to this request."""
    names = reply[1] if server.version >= NOVALUES else reply[1][::2]
    return tuple(names[:MAX_FIELDS])


def _with_ttl(facts: Facts, reply: Any) -> Facts:
    return facts._replace(ttl=reply) if isinstance(reply, int) and reply >= 0 else facts


def _with_size(question: Question, facts: Facts, reply: Any) -> Facts:
    if not isinstance(reply, int):
        return facts
    return facts._replace(sizes=(*facts.sizes, (question, reply)))
