"""The policy that a server has: what is in force of it, what it offers, and how old the former is.

Rule: no I/O. A content is what its bytes are: an ETag only spares the transfer, and is checked now and then.
"""

from __future__ import annotations

import random
from typing import NamedTuple

from .copy import Copy
from .model import Answer, Offer, PolicyServer
from .settling import RETRY_SECONDS

JITTER = 0.2  # of each pause, so that many instances do not ask at once
PUSHED_PAUSE = 0.5  # seconds between two changes, from a server that waits for one
LEAST_WAIT = 1.0  # seconds after which it has waited
WAITED_PAUSE = 0.1  # seconds after it has waited for nothing
MAX_WAIT = 60.0  # seconds for which the server is asked to wait
TRUSTED_ANSWERS = 10  # "not changed" in a row, until the whole policy is asked for


class Request(NamedTuple):
    """What to ask for next."""

    etag: str
    wait: float


class PolicySource:
    """What is known of one server's policy. Times are Unix seconds."""

    def __init__(self, server: PolicyServer, copy: Copy | None) -> None:
        self.server = server
        self.held = copy  # in force, or to be put in force at the start
        self.offered: Copy | None = None  # what the server has, if it is not in force
        self.is_copy = copy is not None  # the server has not confirmed what is in force since the start
        self.trouble = ""  # why the last request has failed; "": it has not
        self.lies = False  # the server has another content with the same ETag
        self.candidate: Offer | None = None  # what the server has as its candidate; None: it was not asked
        # What was tried last, and is in force or has faults; None: the last try says nothing of it.
        self._tried = copy
        self._not_before = 0.0  # for the next try, in seconds of the clock of `is_due`
        self._unchanged = 0  # answers in a row
        self._waits = False  # the server waits for a change if it is asked to
        self._was_asked_to_wait = False  # with the last request
        self._was_new = False  # the last answer had another content, or another candidate

    def request(self) -> Request:
        """The next request. A policy is known by its ETag, and every tenth time by its content."""
        known = self.offered or self.held
        if known is None or not known.etag or self.lies or self._unchanged >= TRUSTED_ANSWERS:
            return Request("", 0.0)
        return Request(known.etag, min(self.server.poll, MAX_WAIT))

    def pause(self, took: float) -> float:
        """Seconds until the next request. `took`: for so long the last one took."""
        seconds = self._seconds(took)
        if self._is_untried:
            seconds = min(seconds, RETRY_SECONDS)
        return seconds * random.uniform(1 - JITTER, 1 + JITTER)

    def _seconds(self, took: float) -> float:
        if self.trouble:
            return self.server.poll
        if not self._was_asked_to_wait:  # it can only say that it waits if it is asked to
            return PUSHED_PAUSE if self.request().wait else self.server.poll
        if self._waits and self._was_new:
            return PUSHED_PAUSE
        # One that says that it waits, and does not, would be asked again and again.
        return WAITED_PAUSE if self._waits and took >= LEAST_WAIT else self.server.poll

    def answered(
        self, answer: Answer, now: float, asked: str | None = None, *, has_asked_to_wait: bool = True
    ) -> None:
        """Take an answer to a request with the ETag `asked`, by default that of the last content."""
        self.trouble, self._was_asked_to_wait = "", has_asked_to_wait
        has_new_candidate = answer.candidate is not None and answer.candidate != self.candidate
        self.candidate = answer.candidate or self.candidate or Offer()
        if has_asked_to_wait:
            self._waits = answer.waits
        self._was_new = has_new_candidate
        known = self.offered or self.held
        if answer.content is None:
            self._unchanged += 1
            # Another request may have been answered meanwhile, so that this one is about an earlier content.
            is_about_it = known is not None and asked in (None, known.etag)
            if self.offered is None and is_about_it:
                self._confirmed(now)
            return
        self._unchanged = 0
        if (
            known is not None
            and answer.etag
            and answer.etag == known.etag
            and not known.is_same(answer.content, answer.signature)
        ):
            self.lies = True
        if self.held is not None and self.held.is_same(answer.content, answer.signature):
            self.offered = None
            self.held = self.held._replace(etag=answer.etag)
            self._confirmed(now)
            return
        is_known = self.offered is not None and self.offered.is_same(answer.content, answer.signature)
        self.offered = Copy(answer.content, answer.etag, now, answer.signature)
        if not is_known:
            self._was_new, self._not_before = True, 0.0

    def _confirmed(self, now: float) -> None:
        self.is_copy = False
        if self.held is not None:
            self.held = self.held._replace(confirmed=now)

    def failed(self, why: str) -> None:
        """There was no answer."""
        self.trouble = why

    # -- what is to be put in force

    @property
    def _is_untried(self) -> bool:
        known = self.offered or self.held
        return known is not None and (
            self._tried is None or not self._tried.is_same(known.content, known.signature)
        )

    def is_due(self, now: float) -> bool:
        """Whether what the server has is to be loaded: it is another version than the one tried last. `now`
        is of a clock that is never set back."""
        return self._is_untried and now >= self._not_before

    def tried(self, copy: Copy) -> None:
        """This is in force now, or has faults."""
        self._tried = copy

    def put_off(self, now: float) -> None:
        """The try has failed for a reason that is not in the policy. It is made again."""
        self._tried, self._not_before = None, now + RETRY_SECONDS

    def accepted(self, copy: Copy) -> bool:
        """This is in force: what was offered, or what was held before. Returns whether it is new."""
        if self.held is not None and self.held.is_same(copy.content, copy.signature):
            return False
        self.held, self.is_copy = copy, False
        if self.offered is not None and self.offered.is_same(copy.content, copy.signature):
            self.held, self.offered = self.offered, None
        return True

    def age(self, now: float) -> float:
        """Seconds since the server has confirmed what is in force. A clock that was set back makes nothing
        older."""
        return max(now - self.held.confirmed, 0.0) if self.held is not None else 0.0

    def is_stale(self, now: float) -> bool:
        """Whether what is in force is older than it may be."""
        return 0 < self.server.stale_after < self.age(now)
