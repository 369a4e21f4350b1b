"""What `keyfence look` prints in its course: the keys that are there, news while clients work, a summary.

Rule: lines are only added, a few at a time. Only on a terminal the last one changes: it counts.
"""

from __future__ import annotations

import shlex
import sys
import threading
import time
from pathlib import Path

from keyfence.admin.client import AskError, ask
from keyfence.audit.judge import Judge
from keyfence.audit.servers.links import CannotAsk, LinkError
from keyfence.audit.servers.nodes import Server
from keyfence.cli.rollout.served import Serving
from keyfence.cli.terminal.output import say
from keyfence.net.addresses import Address
from keyfence.telemetry.reports.by_command import rows_from_snapshot

from .kinds import Seen
from .picture import Picture
from .shown import news, services_text, there_text, totals
from .there import keys_there
from .used import Service, services_of

RECORD = "commands.log"  # in the session's folder
SEEN = "seen.json"  # there too, for the page
_SECONDS = 2.0  # between two looks at what clients did


class Session:
    """What was seen so far, and what is printed of it."""

    def __init__(
        self, url: str, server: Server, running: Serving, folder: Path, *, tls: bool = False
    ) -> None:
        """`url`: of the Redis, for the command that goes on; "" if it is not shown. `tls`: clients connect
        with it."""
        self._url = url
        self._running = running
        self._folder = folder
        self._services: list[Service] = []
        self._seen = Seen()
        (address,) = running.addresses.values()
        client = _client(Address(address), server.endpoint.address.database, tls)
        self._picture = Picture(server.shown, address, client)
        self._known: set[tuple[str, str]] = set()  # services and shapes that were printed
        self._counts = ""  # the last line of a terminal

    def begin(self, server: Server, judge: Judge, come: threading.Event) -> None:
        """Prints the addresses, and the keys that are there; the latter until the event comes."""
        picture = self._picture
        self._show()
        say(f"The page is at {self._running.admin}/ (each use is a finding: no policy allows it yet)")
        say(f"Clients connect to {picture.address} in place of the Redis. Try:")
        say(f"  {picture.client}")
        say("")
        try:
            there = picture.there = keys_there(server, judge, come.is_set)
        except (LinkError, CannotAsk) as exc:
            picture.why_not = str(exc)
            say(f"The keys cannot be looked at: {exc}")
        else:
            self._seen = there.seen
            self._say(there_text(server.shown, there))
        self._show()
        say("")
        say("Who uses what, as clients connect (Ctrl-C ends it):")

    def follow(self, come: threading.Event, seconds: float | None) -> None:
        """Prints what clients do, until the event comes, these seconds are over, or keyfence has ended."""
        end = float("inf") if seconds is None else time.monotonic() + seconds
        while self._running.process.poll() is None:
            ended = come.wait(max(0.0, min(_SECONDS, end - time.monotonic()))) or time.monotonic() >= end
            try:
                rows = rows_from_snapshot(ask(self._running.admin, "/report"))
            except AskError:
                continue  # it may be busy; if it has ended, the loop ends
            self._services = services_of(rows, self._seen)
            self._show()
            self._say(news(self._known, self._services))
            self._count(totals(self._services) if self._services else "no client yet")
            if ended:
                break
        self._count("")

    def end(self) -> bool:
        """Prints the summary, and how to go on. Returns whether anything is kept for that."""
        (self._folder / SEEN).unlink(missing_ok=True)
        if not self._is_worth_keeping:
            say("No client has used a key, so nothing is kept.")
            if draft := self._draft():
                say(f"To draft a policy of the keys that are there:\n  {draft}")
            return False
        self._say(list(services_text(self._services)))
        say("")
        say(f"{totals(self._services)}. What was seen is kept in {self._folder},")
        say("without values and passwords. To draft a policy of it:")
        say(f"  {self._draft()}")
        return True

    @property
    def _is_worth_keeping(self) -> bool:
        """Whether clients have used keys."""
        return bool(self._services) and (self._folder / RECORD).stat().st_size > 0

    def _draft(self) -> str:
        """The command that drafts a policy of what was seen, and of the keys that are there; "" if there is
        neither."""
        record = [str(self._folder / RECORD)] if self._is_worth_keeping else []
        sources = [*record, *([self._url] if self._url else [])]
        return shlex.join(["keyfence", "draft", *sources, "-o", "policy.yaml"]) if sources else ""

    def _show(self) -> None:
        """Shows the page what was seen."""
        picture = self._picture
        picture.services, picture.draft = self._services, self._draft()
        picture.is_kept = self._is_worth_keeping
        picture.write(self._folder / SEEN)

    def _say(self, lines: list[str]) -> None:
        if lines:
            self._count("")
        for line in lines:
            say(line)

    def _count(self, text: str) -> None:
        """Shows the last line of a terminal; "" removes it."""
        if not sys.stdout.isatty() or text == self._counts:
            return
        self._counts = text
        sys.stdout.write(f"\r\x1b[K{text}")
        sys.stdout.flush()


def _client(address: Address, database: int, tls: bool) -> str:
    """The command that connects to the address."""
    path = address.unix_path
    where = ["-s", path] if path else ["-p", str(address.host_port[1])]
    how = ["--tls", "--insecure"] if tls else []
    return shlex.join(["redis-cli", *how, *where, *(["-n", str(database)] if database else [])])
