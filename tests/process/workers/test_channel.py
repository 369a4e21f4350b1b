from __future__ import annotations

import asyncio
import json
import pickle
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from keyfence.process.workers.channel import MAX_FRAME, Channel, to_json, to_pickle
from tests.servers import PATIENCE_SECONDS

Scenario = Callable[["Pair"], Awaitable[None]]


class Pair:
    """Both ends of a channel, the parent's and the worker's, each with the messages it received."""

    def __init__(self) -> None:
        self.heard_by_worker: list[Any] = []
        self.heard_by_parent: list[Any] = []
        self.parent_ended = asyncio.Event()
        self.worker_ended = asyncio.Event()
        self.parent = Channel(to_pickle, json.loads, self.heard_by_parent.append, self.parent_ended.set)
        self.worker = Channel(to_json, pickle.loads, self.heard_by_worker.append, self.worker_ended.set)

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        for channel, sock in zip((self.parent, self.worker), socket.socketpair(), strict=True):
            await loop.create_unix_connection(lambda channel=channel: channel, sock=sock)


def played(scenario: Scenario) -> None:
    async def play() -> None:
        pair = Pair()
        await pair.open()
        await asyncio.wait_for(scenario(pair), PATIENCE_SECONDS)
        pair.parent.close()
        pair.worker.close()
        await asyncio.sleep(0)

    asyncio.run(play())


async def until(check: Callable[[], object]) -> None:
    while not check():
        await asyncio.sleep(0.001)


def test_messages_arrive_whole_and_in_order() -> None:
    async def scenario(pair: Pair) -> None:
        orders = [(1, "take", b"x" * 1_000_000), (2, "count", None), (3, "glass", [])]
        for order in orders:
            pair.parent.send(order)
        pair.worker.send({"re": 1})
        pair.worker.send({"re": 2, "error": "\u00e9"})
        await until(lambda: len(pair.heard_by_worker) == 3 and len(pair.heard_by_parent) == 2)
        assert pair.heard_by_worker == orders
        assert pair.heard_by_parent == [{"re": 1}, {"re": 2, "error": "\u00e9"}]

    played(scenario)


def test_sent_messages_arrive_before_the_end() -> None:
    async def scenario(pair: Pair) -> None:
        pair.worker.send({"last": "x" * 1_000_000})
        pair.worker.close()
        await pair.parent_ended.wait()
        assert len(pair.heard_by_parent) == 1
        pair.parent.send((1, "count", None))  # goes nowhere, and is no error

    played(scenario)


@pytest.mark.parametrize(
    "garbage",
    [struct.pack(">I", MAX_FRAME + 1), struct.pack(">I", 3) + b"{x}", struct.pack(">I", 2) + b"\xff\xff"],
    ids=["too long", "no JSON", "no text"],
)
def test_invalid_frames_end_the_channel(garbage: bytes) -> None:
    async def scenario(pair: Pair) -> None:
        assert pair.worker._transport is not None
        pair.worker._transport.write(garbage)
        await pair.parent_ended.wait()
        assert pair.heard_by_parent == []

    played(scenario)


def test_a_worker_cannot_make_its_parent_execute_anything() -> None:
    with pytest.raises(ValueError):
        json.loads(to_pickle(Channel))


def test_a_channel_is_full_while_the_other_end_does_not_read() -> None:
    async def scenario(pair: Pair) -> None:
        assert pair.worker._transport is not None
        assert pair.parent._transport is not None
        pair.parent._transport.pause_reading()
        pair.worker.send("x" * 4_000_000)
        await until(lambda: pair.worker.is_full)
        pair.parent._transport.resume_reading()
        await until(lambda: not pair.worker.is_full)

    played(scenario)
