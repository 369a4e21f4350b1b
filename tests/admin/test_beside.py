from __future__ import annotations

import asyncio
import threading
import time

import pytest

from keyfence.admin import beside, bodies
from keyfence.admin.beside import Beside


class Busy:
    """Work that knows how much of it is done at the same time."""

    def __init__(self) -> None:
        self.most = 0
        self._now = 0
        self._lock = threading.Lock()

    def __call__(self, value: object) -> bytes:
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)
        time.sleep(0.01)
        with self._lock:
            self._now -= 1
        return b"%r" % (value,)


def test_one_piece_of_work_is_done_at_a_time() -> None:
    work = Busy()

    async def all_at_once() -> list[bytes]:
        one = Beside("test")
        return await asyncio.gather(*(one.do(work, number) for number in range(8)))

    assert asyncio.run(all_at_once()) == [b"%d" % number for number in range(8)]
    assert work.most == 1


def test_the_loop_goes_on_and_a_fault_reaches_its_asker() -> None:
    async def both() -> None:
        one, release = Beside("test"), threading.Event()
        waiting = asyncio.ensure_future(one.do(release.wait))
        failing = asyncio.ensure_future(one.do(int, "x"))
        await asyncio.sleep(0.01)
        release.set()
        assert await waiting is True
        with pytest.raises(ValueError, match="invalid literal"):
            await failing

    asyncio.run(both())


def test_many_long_answers_take_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each more thread would be one more that the clients of Redis wait for."""
    work = Busy()
    monkeypatch.setattr(bodies, "_written", work)

    async def all_at_once() -> None:
        await asyncio.gather(*(bodies.long_answer(number) for number in range(8)))

    asyncio.run(all_at_once())
    assert work.most == 1


def test_a_scraper_waits_for_no_reader() -> None:
    async def both() -> None:
        release = threading.Event()
        reading = asyncio.ensure_future(beside.answers.do(release.wait))
        assert await beside.metrics.do(int, "1") == 1
        release.set()
        await reading

    asyncio.run(both())
