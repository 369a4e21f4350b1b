"""What every client does, whatever its library: it writes, subscribes, and checks each reply."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple, Protocol

PAUSE_SECONDS = 0.002  # between a client's rounds
STUCK_SECONDS = 6.0  # after which no library that works waits for a reply any more
RETRY_SECONDS = 0.02  # before a subscriber connects again

Command = tuple[str, ...]


class Route(NamedTuple):
    """How clients find the primary: at keyfence's address, or at the one that the Sentinels name."""

    path: str
    keyfence: tuple[str, int] | None
    sentinels: Sequence[int]


class Failed(Exception):
    """A request failed. The text is the kind of error, as the library names it."""


class Speaker(Protocol):
    """A connection for requests, which never sends one twice."""

    def ask(self, *commands: Command) -> list[object]:
        """Returns the replies in order. Several commands are one pipeline, if the library has pipelines.
        May raise Failed."""

    def close(self) -> None:
        """Ends a process that `ask` waits for in vain, too. May be called again."""


class Hearer(Protocol):
    """A subscription."""

    def heard(self) -> bool:
        """Waits a moment for a message, or a sign that the connection was closed and opened again. Raises
        Failed once the subscription has ended."""

    def close(self) -> None: ...


class Library(Protocol):
    """A client library on one route."""

    def speak(self) -> Speaker: ...

    def hear(self, channel: str) -> Hearer:
        """May raise Failed."""


@dataclasses.dataclass
class Seen:
    """What one client has seen. Times are those of `time.monotonic`."""

    confirmed: list[tuple[str, float]] = dataclasses.field(default_factory=list)  # elements, and when
    wrong: list[str] = dataclasses.field(default_factory=list)  # replies of other requests
    falls: int = 0  # of a value that only rises
    errors: Counter[str] = dataclasses.field(default_factory=Counter)
    signs: list[float] = dataclasses.field(default_factory=list)  # of the subscriber: a message, or the end

    ended: float = 0.0  # when the client was told to end

    def without_service(self) -> float:
        """The longest time without a confirmed write."""
        before, after = self._outage()
        return after - before

    def served_again(self) -> float:
        """When the first write after that time was confirmed; the end, if there was none."""
        return self._outage()[1]

    def is_back(self) -> bool:
        """Whether it wrote again."""
        return self.served_again() < self.ended

    def heard_again(self, since: float, otherwise: float) -> float:
        """How long after this time the subscriber had a sign."""
        return next((at - since for at in self.signs if at >= since), otherwise)

    def _outage(self) -> tuple[float, float]:
        times = [*(at for _, at in self.confirmed), self.ended]
        return max(itertools.pairwise(times), key=lambda two: two[1] - two[0])


class Client:
    """One library on one path: a thread writes in rounds, another subscribes to what it publishes."""

    def __init__(self, name: str, path: str, library: Library) -> None:
        self.name, self.path = name, path
        self.seen = Seen()
        self._prefix = f"app:{path}:{name}".replace(" ", "-")
        self.list = f"{self._prefix}:list"
        self._highest = 0
        self._library = library
        self._speaker: Speaker | None = None
        self._ends = threading.Event()
        self._threads = [
            threading.Thread(target=work, daemon=True) for work in (self._write, self._subscribe)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Has both threads end; `join` waits for it."""
        self.seen.ended = time.monotonic()
        self._ends.set()

    def join(self) -> None:
        for thread in self._threads:
            thread.join(STUCK_SECONDS)
        if self._speaker is not None:
            self._speaker.close()  # of a library that answers no more
        for thread in self._threads:
            thread.join()

    def is_at_work(self, since: float = 0.0) -> bool:
        """Whether it has written since this time, and ever heard something."""
        seen = self.seen
        return bool(seen.signs) and bool(seen.confirmed) and seen.confirmed[-1][1] > since

    def _write(self) -> None:
        with contextlib.closing(self._library.speak()) as speaker:
            self._speaker = speaker
            for number in itertools.count():
                if self._ends.is_set():
                    break
                try:
                    self._round(speaker, f"{self._prefix}:{number}")
                except Failed as exc:
                    self.seen.errors[str(exc)] += 1
                time.sleep(PAUSE_SECONDS)

    def _round(self, speaker: Speaker, nonce: str) -> None:
        self._same([nonce], speaker.ask(("ECHO", nonce)))
        piped = (("ECHO", f"{nonce}:a"), ("GET", f"{self._prefix}:none"), ("ECHO", f"{nonce}:b"))
        self._same([f"{nonce}:a", None, f"{nonce}:b"], speaker.ask(*piped))
        speaker.ask(("RPUSH", self.list, nonce))
        self.seen.confirmed.append((nonce, time.monotonic()))
        [value] = speaker.ask(("INCR", f"{self._prefix}:count"))
        if not isinstance(value, int):
            self.seen.wrong.append(f"{value!r} in place of a number")
            return
        self.seen.falls += value <= self._highest
        self._highest = value
        speaker.ask(("PUBLISH", f"{self._prefix}:news", nonce))

    def _same(self, expected: list[object], replies: list[object]) -> None:
        if replies != expected:
            self.seen.wrong.append(f"{replies!r} in place of {expected!r}")

    def _subscribe(self) -> None:
        """Subscribe, and again whenever the connection ends."""
        while not self._ends.is_set():
            try:
                with contextlib.closing(self._library.hear(f"{self._prefix}:news")) as hearer:
                    while not self._ends.is_set():
                        if hearer.heard():
                            self.seen.signs.append(time.monotonic())
            except Failed:
                self.seen.signs.append(time.monotonic())
                self._ends.wait(RETRY_SECONDS)
