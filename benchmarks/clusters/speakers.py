"""The libraries, each plain or for clusters, with their default settings.

Rule: the library decides about a redirect, a lost connection or an error. Nothing here tries again.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Sequence
from typing import NamedTuple

import redis
from redis.cluster import RedisCluster

from benchmarks.clusters.work import Command, Failure, Speaker
from benchmarks.failovers.clients import Failed
from benchmarks.failovers.libraries import CliSpeaker, Lines
from tests.servers import PROJECT

NODE = PROJECT / "tests" / "node"


class Target(NamedTuple):
    """Where a client connects to: ports on loopback, and whether nodes of a cluster are there."""

    ports: Sequence[int]
    is_cluster: bool


class RedisPy:
    """redis-py, with one version of the protocol."""

    def __init__(self, target: Target, protocol: int) -> None:
        make: Callable[..., redis.Redis | RedisCluster] = RedisCluster if target.is_cluster else redis.Redis
        port, self._is_cluster = target.ports[0], target.is_cluster
        self._client = make(host="127.0.0.1", port=port, protocol=protocol, decode_responses=True)

    def ask(self, commands: Sequence[Command]) -> list[object]:
        return self._sent(commands, is_transaction=False)

    def transact(self, commands: Sequence[Command]) -> list[object]:
        return self._sent(commands, is_transaction=True)

    def _sent(self, commands: Sequence[Command], *, is_transaction: bool) -> list[object]:
        pipeline = self._client.pipeline(transaction=is_transaction)
        for command in commands:
            pipeline.execute_command(*command)
        try:
            replies = pipeline.execute(raise_on_error=False)
        except redis.RedisError as exc:
            return [_failure(exc)] * len(commands)
        return [_reply(one) for one in replies]

    def close(self) -> None:
        with contextlib.suppress(redis.RedisError):
            self._client.close()


def _reply(one: object) -> object:
    if isinstance(one, Exception):
        return _failure(one)
    return "OK" if one is True else one


def _failure(exc: Exception) -> Failure:
    """The error's first word, if Redis has sent it; redis-py takes it off where the class says the same."""
    name, text = type(exc).__name__, str(exc)
    word, _, _ = text.partition(" ")
    return Failure(word if name == "ResponseError" and word.isupper() else name, text)


class Node:
    """A library of Node, driven by tests/node/cluster_speaker.js."""

    def __init__(self, target: Target, library: str, **options: object) -> None:
        asked = {"library": library, "ports": target.ports, "cluster": target.is_cluster, "options": options}
        self._lines = Lines(["node", str(NODE / "cluster_speaker.js"), json.dumps(asked)])
        # In answer to a transaction whose hash slot moves, a client for clusters shows what Redis says.
        # ioredis shows TRYAGAIN now and then, node-redis 5.9 MOVED for ever. Which of two clients gets it is
        # chance.
        self._transacts = not target.is_cluster

    def ask(self, commands: Sequence[Command]) -> list[object]:
        return self._sent("pipeline", commands)

    def transact(self, commands: Sequence[Command]) -> list[object]:
        return self._sent("transaction" if self._transacts else "pipeline", commands)

    def _sent(self, how: str, commands: Sequence[Command]) -> list[object]:
        answers = json.loads(self._lines.ask(json.dumps({how: commands})))
        return [Failure(*one["error"]) if isinstance(one, dict) else one for one in answers]

    def close(self) -> None:
        self._lines.close()


class RedisCli:
    """redis-cli, which connects again by itself, and with `-c` follows redirects. After an error of its
    connection it is started anew, at another node."""

    def __init__(self, target: Target) -> None:
        self._ports = list(target.ports)
        self._speaker = CliSpeaker(self._address, *(["-c"] if target.is_cluster else []))

    def ask(self, commands: Sequence[Command]) -> list[object]:
        replies = self._speaker.ask_at_once(commands)
        texts = [str(one) for one in replies if isinstance(one, Failed)]
        if not all(map(str.isupper, texts)):  # as Redis' own errors are
            self._speaker.close()
        return [Failure(str(one), str(one)) if isinstance(one, Failed) else one for one in replies]

    def transact(self, commands: Sequence[Command]) -> list[object]:
        return self.ask(commands)  # it shows what EXEC answers as a tree, so no transaction

    def _address(self) -> tuple[str, int]:
        self._ports.append(self._ports.pop(0))
        return ("127.0.0.1", self._ports[0])

    def close(self) -> None:
        self._speaker.close()


LIBRARIES: dict[str, Callable[[Target], Speaker]] = {
    "redis-py 2": lambda target: RedisPy(target, 2),
    "redis-py 3": lambda target: RedisPy(target, 3),
    "ioredis": lambda target: Node(target, "ioredis"),
    "node-redis 2": lambda target: Node(target, "redis"),
    "node-redis 3": lambda target: Node(target, "redis", RESP=3),
    "redis-cli": RedisCli,
}
