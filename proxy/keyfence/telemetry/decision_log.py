"""The decision log: one JSON line for a violation, or for many alike.

Rule: each decision is told of exactly once: by a line of its own, in `merged` of a later line of its group,
or, where a limit or the disk forbids both, in `dropped` of the next line. So the sum of 1 + merged + dropped
is exact.

A group is (service, rule, entry or shape, command, action). It may write 20 lines at once and one a second
after that; what comes between is merged into its next line, and waits for that 10 seconds at most. No value
is ever written, nor a message that could hold one; with `mask_keys` no key is written either. With several
workers each has groups and limits of its own, and the parent writes the lines of all (`log_relay`).

Times are given by the caller: `now` in seconds of a monotonic clock, `at` in Unix seconds.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import select
import stat
import sys
import time
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime

from keyfence.policy.verdict import Peer, Violation, script_in
from keyfence.shapes.shapes import looks_like_word

from .clients import as_peer, fields_of
from .counters import Counters

GROUP_BURST = 20  # lines
GROUP_RATE = 1.0  # lines per second
MERGE_WAIT = 10.0  # seconds
MAX_GROUPS = 10_000
LINES_PER_SECOND = 1_000
MAX_HELD_KEY = 1_024  # bytes
MAX_BUFFER = 1 << 20  # bytes that a pipe or terminal may owe us

# A write of this size to a pipe that polls as writable can't block (POSIX: PIPE_BUF is 512 at least, 4096 on
# Linux).
_PIPE_CHUNK = min(select.PIPE_BUF, 4096)
# The rules whose message is about names and rights. Others may quote what is being written.
_MESSAGE_ROOMS = ("scope.", "key.", "type.", "slot.", "scan.", "channel.", "database.", "command.forbidden")

Group = tuple[str, str, str, str, str]  # service, rule, entry or shape, command, action


def new_decision_id() -> str:
    return f"d-{os.urandom(4).hex()}"


def mask(key: bytes) -> str:
    """What stands for a key where keys aren't to be shown. Equal keys have equal masks, so a key that is
    known can be found; a short or guessable key can be found out by trying."""
    return "sha256:" + hashlib.sha256(key).hexdigest()[:12]


def masked_hint(violation: Violation) -> str:
    """The hint without the pieces of the key that tell one key from another."""
    hint = violation.hint
    if not hint or not violation.shown or script_in(violation.rule, violation.shape):
        return hint
    hint = hint.replace(violation.shown, "…")
    pieces = [piece for piece in re.split(r"[^\w.@-]+", violation.shown) if piece]
    for index, piece in enumerate(pieces):
        if index == len(pieces) - 1 or not looks_like_word(piece):
            hint = re.sub(rf"(?<![\w.@-]){re.escape(piece)}(?![\w.@-])", "…", hint)
    return hint


def rfc3339(at: float) -> str:
    """Unix seconds as RFC 3339 in UTC with microseconds."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


class Sink:
    """Where the lines go: a file opened for appending, standard output ("-"), or a descriptor of a pipe.

    Lines are collected until the end of the event loop's turn if `schedule` is given (`loop.call_soon`), else
    written at once. A failing write loses its lines, counts, and is told of on stderr once. A pipe or
    terminal that isn't read never blocks the proxy: the lines wait, up to MAX_BUFFER, and are lost beyond.
    """

    def __init__(
        self,
        target: str | int,
        counters: Counters,
        schedule: Callable[[Callable[[], None]], object] | None = None,
    ) -> None:
        """Raises OSError where the file can't be opened: that belongs to the start."""
        self._target = target
        self._counters = counters
        self._schedule = schedule
        self._scheduled = False
        # Each with the decisions that it is the first to tell of, and those that it tells of as dropped.
        self._lines: list[tuple[bytes, int, int]] = []
        self._size = 0
        self._torn = False  # the last write ended inside a line
        self._told = False
        self._lost = 0  # decisions
        self._fd = -1
        self._may_block = False
        self._open()

    def _open(self) -> None:
        if self._target == "-":
            fd = 1
        elif isinstance(self._target, int):
            fd = os.dup(self._target)
        else:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
            fd = os.open(self._target, flags, 0o640)
        self._may_block = not stat.S_ISREG(os.fstat(fd).st_mode)
        self._poll = select.poll()
        self._poll.register(fd, select.POLLOUT)
        self._fd = fd

    def take_lost(self) -> int:
        """The decisions lost with their lines since this was last asked."""
        lost, self._lost = self._lost, 0
        return lost

    def write(self, line: bytes, fresh: int, retold: int) -> None:
        """`line` ends with its newline. It tells of `fresh` decisions, and of `retold` that were dropped
        before."""
        if self._size + len(line) > MAX_BUFFER:
            self.flush()
        if self._size + len(line) > MAX_BUFFER or self._fd < 0:
            self._lose([(line, fresh, retold)])
            return
        self._lines.append((line, fresh, retold))
        self._size += len(line)
        if self._schedule is None:
            self.flush()
        elif not self._scheduled:
            self._scheduled = True
            self._schedule(self.flush)

    def flush(self) -> None:
        """Write what is collected. Never raises."""
        self._scheduled = False
        if not self._lines or self._fd < 0:
            return
        data = b"".join(line for line, _, _ in self._lines)
        if self._torn:
            data = b"\n" + data
        written, failure = self._write(data)
        self._settle(written - self._torn if written else 0, failure, started=written > 0)

    def _write(self, data: bytes) -> tuple[int, OSError | None]:
        view = memoryview(data)
        written = 0
        try:
            while written < len(view):
                chunk = view[written:]
                if self._may_block:
                    if not self._poll.poll(0):
                        break
                    chunk = chunk[:_PIPE_CHUNK]
                written += os.write(self._fd, chunk)
        except BlockingIOError:
            pass
        except OSError as failure:
            return written, failure
        return written, None

    def _settle(self, written: int, failure: OSError | None, *, started: bool) -> None:
        """Take the lines that went out from the front, and lose the rest if the write failed."""
        done = 0
        while done < len(self._lines) and written >= len(self._lines[done][0]):
            written -= len(self._lines[done][0])
            self._size -= len(self._lines[done][0])
            self._counters.log_lines += 1
            done += 1
        rest = self._lines[done:]
        if failure is not None:
            self._torn = written > 0 or (self._torn and not started)
            self._lose(rest)
            self._tell(failure)
            rest = []
            self._size = 0
        else:
            self._torn = False if started else self._torn
            if written:  # a pipe took a part of a line, and gets the other part next time
                line, fresh, retold = rest[0]
                rest[0] = (line[written:], fresh, retold)
                self._size -= written
        self._lines = rest

    def _lose(self, lines: list[tuple[bytes, int, int]]) -> None:
        for _, fresh, retold in lines:
            self._lost += fresh + retold
            self._counters.log_dropped += fresh
            self._counters.log_write_failures += 1

    def _tell(self, failure: OSError) -> None:
        if not self._told:
            self._told = True
            name = "standard output" if self._target == "-" else str(self._target)
            with contextlib.suppress(OSError, ValueError):
                print(
                    f"keyfence: {_now()} can't write the decision log to {name}: "
                    f"{failure.strerror or failure}; lines are being lost and counted "
                    "(keyfence_log_write_failures_total)",
                    file=sys.stderr,
                    flush=True,
                )

    def reopen(self) -> None:
        """Open the file anew by its name, after logrotate has moved it. If that fails the old one stays in
        use."""
        self.flush()
        self._told = False
        if self._target == "-" or isinstance(self._target, int):
            return
        before = self._fd
        try:
            self._open()
        except OSError as failure:
            self._tell(failure)
            return
        self._torn = False
        if before >= 0:
            os.close(before)

    def close(self) -> None:
        self.flush()
        self._lose(self._lines)
        self._lines = []
        self._size = 0
        if self._fd > 1:
            os.close(self._fd)
        self._fd = -1


class _Merging:
    """A group: its allowance, and the decisions that it hasn't told of yet."""

    __slots__ = (
        "at",
        "client",
        "last_id",
        "merged",
        "promised",
        "reckoned",
        "revision",
        "shape",
        "since",
        "tokens",
        "violation",
    )

    def __init__(self, violation: Violation, now: float) -> None:
        self.tokens = float(GROUP_BURST)
        self.reckoned = now
        self.merged = 0  # decisions that wait for a line
        self.since = 0.0  # when the first of them came
        self.last_id = ""  # of the last line
        self.promised = ""  # the id that the next line must carry, since a reply carries it
        # Of the last decision:
        self.violation = violation
        self.client = Peer("")
        self.revision = ""
        self.shape = ""
        self.at = 0.0


class DecisionLog:
    """Merges, limits and words the lines. A refusal's id is always that of a line that is, or will be,
    written; only a group dropped for want of room, or a failing disk, can break this."""

    def __init__(
        self,
        sink: Sink,
        counters: Counters,
        *,
        mask_keys: bool = False,
        new_id: Callable[[], str] = new_decision_id,
    ) -> None:
        self._sink = sink
        self._counters = counters
        self._mask_keys = mask_keys
        self._new_id = new_id
        # The group whose last line is the oldest comes first, and is dropped first.
        self._groups: OrderedDict[Group, _Merging] = OrderedDict()
        self._waiting: OrderedDict[Group, _Merging] = OrderedDict()  # groups with merges, by `since`
        self._allowance = float(LINES_PER_SECOND)
        self._reckoned = 0.0
        self._dropped = 0

    def record(
        self,
        group: Group,
        violation: Violation,
        *,
        client: Peer | str,
        revision: str,
        now: float,
        at: float,
        shape: str = "",
        times: int = 1,
    ) -> str:
        """Log `times` decisions alike. `shape` is given where no entry covers the key. Returns the id under
        which the log tells of them: that of a line written now, or of the group's last line, or of its coming
        one."""
        merging = self._groups.get(group)
        if merging is None:
            merging = self._add(group, violation, now)
        merging.violation = self._slim(violation)
        merging.client = as_peer(client)
        merging.revision = revision
        merging.shape = shape
        merging.at = at
        if merging.merged and now - merging.reckoned < (1.0 - merging.tokens) / GROUP_RATE:
            # The usual case under load: nothing has been earned yet.
            merging.merged += times
        elif self._may_write(merging, now):
            merging.merged += times
            return self._write(group, merging)
        else:
            if not merging.merged:
                merging.since = now
                self._waiting[group] = merging
            merging.merged += times
        if not merging.last_id and not merging.promised:
            merging.promised = self._new_id()
        return merging.last_id or merging.promised

    def repeat(self, group: Group, times: int, now: float) -> None:
        """Merge `times` decisions more like the group's last one; of a group that had to go they are
        dropped."""
        merging = self._groups.get(group)
        if merging is None:
            self._dropped += times
            self._counters.log_dropped += times
            return
        if not merging.merged:
            merging.since = now
            self._waiting[group] = merging
        merging.merged += times

    def flush(self, now: float) -> None:
        """Write the lines of merges that have waited long enough. To be called each second."""
        while self._waiting:
            group, merging = next(iter(self._waiting.items()))
            if now - merging.since < MERGE_WAIT or not self._may_write(merging, now):
                break
            self._write(group, merging)
        self._sink.flush()

    def mask(self, mask_keys: bool) -> None:
        """Whether keys are masked, from now on; what waits to be written is worded so too."""
        self._mask_keys = mask_keys

    def reopen(self) -> None:
        self._sink.reopen()

    def close(self) -> None:
        """Write all that waits, whatever the limits say, and close the file."""
        while self._waiting:
            self._write(*next(iter(self._waiting.items())))
        self._sink.close()

    def _add(self, group: Group, violation: Violation, now: float) -> _Merging:
        if len(self._groups) >= MAX_GROUPS:
            oldest, dropped = self._groups.popitem(last=False)
            self._counters.log_groups_evicted += 1
            if dropped.merged:
                if self._may_write(dropped, now):
                    self._write(oldest, dropped)
                else:
                    del self._waiting[oldest]
                    self._dropped += dropped.merged
                    self._counters.log_dropped += dropped.merged
        merging = self._groups[group] = _Merging(violation, now)
        return merging

    def _may_write(self, merging: _Merging, now: float) -> bool:
        """Take one line from the group's allowance and from the overall one, or neither."""
        merging.tokens = min(float(GROUP_BURST), merging.tokens + (now - merging.reckoned) * GROUP_RATE)
        merging.reckoned = now
        earned = (now - self._reckoned) * LINES_PER_SECOND
        self._allowance = min(float(LINES_PER_SECOND), self._allowance + earned)
        self._reckoned = now
        if merging.tokens < 1.0 or self._allowance < 1.0:
            return False
        merging.tokens -= 1.0
        self._allowance -= 1.0
        return True

    def _write(self, group: Group, merging: _Merging) -> str:
        """A line for the last of the decisions that wait, with the others merged into it."""
        violation, merged = merging.violation, merging.merged - 1
        decision = merging.promised or self._new_id()
        merging.last_id, merging.promised, merging.merged = decision, "", 0
        self._waiting.pop(group, None)
        if group in self._groups:
            self._groups.move_to_end(group)
        retold = self._dropped + self._sink.take_lost()
        self._dropped = 0
        self._counters.log_merged += merged
        service, rule, _, command, action = group
        line: dict[str, object] = {
            "time": rfc3339(merging.at),
            "decision": decision,
            "revision": merging.revision,
            "service": service,
            "client": merging.client.address,
            **fields_of(merging.client),
            "command": command,
            "rule": rule,
            "severity": violation.severity,
        }
        if violation.entry:
            line["entry"] = violation.entry
        if merging.shape:
            line["script" if script_in(rule, merging.shape) else "shape"] = merging.shape
        line |= self._words(violation)
        line |= {"position": violation.position, "action": action, "merged": merged, "dropped": retold}
        self._sink.write(json.dumps(line, separators=(",", ":")).encode("ascii") + b"\n", 1 + merged, retold)
        return decision

    def _slim(self, violation: Violation) -> Violation:
        """The violation without its key where that is long: a group holds on to its last violation."""
        if violation.key is None or len(violation.key) <= MAX_HELD_KEY:
            return violation
        if self._mask_keys:
            hint = masked_hint(violation)
            return violation._replace(key=None, shown=mask(violation.key), hint=hint, message="")
        return violation._replace(key=None)

    def _words(self, violation: Violation) -> dict[str, object]:
        """What a line says of the key. Where keys are masked there is no message, since it quotes the key."""
        if script_in(violation.rule, violation.shape):
            line = "" if self._mask_keys else violation.shown
            return {"key": "", "script_line": line, "hint": violation.hint}
        if self._mask_keys:
            key = violation.shown if violation.key is None else mask(violation.key)
            return {"key": key, "hint": masked_hint(violation)}
        words: dict[str, object] = {"key": violation.shown, "hint": violation.hint}
        if violation.rule.startswith(_MESSAGE_ROOMS):
            words["message"] = violation.message
        return words
