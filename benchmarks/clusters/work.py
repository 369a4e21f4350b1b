"""What every client does, whatever its library: it writes rising values, and checks what it reads back."""

from __future__ import annotations

import dataclasses
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

END_SECONDS = 5.0  # after which a library that waits for a reply is left alone
MOST_SHOWN = 20  # of wrong replies and of errors, in full

Command = tuple[str, ...]
Send = Callable[[Sequence[Command]], list[object]]


class Failure(NamedTuple):
    """In place of the reply to a command that failed: the kind of error, as the library names it, and the
    text."""

    kind: str
    text: str


class Speaker(Protocol):
    """A client of one library."""

    def ask(self, commands: Sequence[Command]) -> list[object]:
        """Sends the commands at once, if the library can. Returns their replies in order, with a Failure for
        each that failed."""

    def transact(self, commands: Sequence[Command]) -> list[object]:
        """Returns the replies of EXEC, or a Failure for each command."""

    def close(self) -> None: ...


@dataclasses.dataclass
class Seen:
    """What a client has seen since it was last asked to begin anew. Times are seconds."""

    commands: int = 0
    wrong: list[str] = dataclasses.field(default_factory=list)  # replies that no request of this key can have
    falls: int = 0  # of a value that only rises
    errors: dict[str, int] = dataclasses.field(default_factory=dict)  # how many, by kind
    texts: list[str] = dataclasses.field(default_factory=list)  # of errors, each once
    without_service: float = 0.0  # the longest time between two confirmed writes of one key
    waiting: float = 0.0  # for how long the key that waits longest has been without a confirmed write


class Work:
    """A client at work in a thread, until it is told to end."""

    def __init__(
        self, speaker: Speaker, keys: Sequence[str], tagged: Sequence[str], pause: float, *, in_order: bool
    ) -> None:
        """`in_order`: what is sent at once runs in this order. A client for clusters follows the redirect of
        each command by itself, so a GET may run before the SET that it was sent after."""
        self._speaker = speaker
        self._in_order = in_order
        self._keys = keys
        self._tagged = tagged  # in one hash slot: they are written in a transaction too
        self._pause = pause
        self._confirmed = dict.fromkeys((*keys, *tagged), 0)
        self._at = dict.fromkeys(self._confirmed, time.monotonic())
        self._seen = Seen()
        self._lock = threading.Lock()
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def seen(self, *, anew: bool) -> Seen:
        """What it has seen so far; with `anew` it begins to count again."""
        with self._lock:
            found, now = self._seen, time.monotonic()
            found.waiting = now - min(self._at.values())
            if anew:
                self._seen = Seen()
            return found

    def end(self) -> None:
        """Ends after the round that is under way."""
        self._ends.set()
        self._thread.join(END_SECONDS)

    def _work(self) -> None:
        for number in itertools.count(1):
            if self._ends.wait(self._pause):
                return
            self._round(self._keys, number, self._speaker.ask)
            self._round(self._tagged, number, self._speaker.transact)

    def _round(self, keys: Sequence[str], number: int, send: Send) -> None:
        pairs = [(("SET", key, f"{key}={number}"), ("GET", key)) for key in keys]
        replies = send(list(itertools.chain.from_iterable(pairs)))
        with self._lock:
            self._seen.commands += len(replies)
            for key, done, got in zip(keys, replies[::2], replies[1::2], strict=True):
                self._check(key, number, done, got)

    def _check(self, key: str, number: int, done: object, got: object) -> None:
        """Checks the replies to a SET of this value, and to the GET after it."""
        for reply in (done, got):
            if isinstance(reply, Failure):
                self._failed(reply)
        if not isinstance(got, Failure):
            is_written = done == "OK" and self._in_order
            self._check_value(key, number, got, least=number if is_written else self._confirmed[key])
        if done == "OK":
            now = time.monotonic()
            self._seen.without_service = max(self._seen.without_service, now - self._at[key])
            self._at[key], self._confirmed[key] = now, number
        elif not isinstance(done, Failure):
            self._wrong(f"SET {key}: {done!r}")

    def _check_value(self, key: str, number: int, got: object, *, least: int) -> None:
        if got is None and not least:
            return
        name, _, value = str(got).partition("=")
        if got is None or (name == key and value.isdecimal() and int(value) < least):
            self._seen.falls += 1
        elif name != key or not value.isdecimal() or int(value) > number:
            self._wrong(f"GET {key}: {got!r}, written up to {number}")

    def _failed(self, failure: Failure) -> None:
        self._seen.errors[failure.kind] = self._seen.errors.get(failure.kind, 0) + 1
        if len(self._seen.texts) < MOST_SHOWN and failure.text not in self._seen.texts:
            self._seen.texts.append(failure.text)

    def _wrong(self, text: str) -> None:
        if len(self._seen.wrong) < MOST_SHOWN:
            self._seen.wrong.append(text)
