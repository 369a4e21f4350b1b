"""Explains commands while clients are served: for KEYFENCE EXPLAIN, for `/explain` and for the page.

Rule: there is one explanation at a time. It runs in a thread, so that the loop goes on even while a step is
long, and rests after each piece: clients keep most of the interpreter for any number of people who ask.
Evaluators are not safe to use from two threads, so explanations have their own, which knows the policy and
the modes in force.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Generator, Mapping, Sequence
from typing import Any, TypeVar

from keyfence.policy.compiled.tenants import Caller
from keyfence.policy.engine.asker import Asker
from keyfence.policy.engine.authorizer import Authorizer
from keyfence.policy.engine.counts import Validity
from keyfence.policy.remedies.explain import explain_in_steps, explain_line_in_steps

PIECE_SECONDS = 0.0005  # of work, after which the thread rests at the end of a step
REST_SECONDS = 0.001

_T = TypeVar("_T")
_Steps = Generator[None, None, _T]


class Explainer:
    """The explanations of one process."""

    def __init__(self) -> None:
        self._side_work = SideWork()
        self._twin: tuple[Validity, Authorizer] | None = None  # of the authorizer that was asked last

    async def command(
        self, authorizer: Authorizer, service: str, argv: Sequence[bytes], caller: Caller
    ) -> dict[str, Any]:
        """What the policy says about a command, and what its modes make of that. Raises ValueError if the
        policy lacks the service."""
        return await self._side_work.do(self._command(authorizer, service, argv, caller))

    async def line(self, authorizer: Authorizer, line: Mapping[str, Any]) -> dict[str, Any]:
        """What the policy says about a line of the command log. Raises ValueError as `explain_line`."""
        return await self._side_work.do(self._line(authorizer, line))

    def _command(
        self, authorizer: Authorizer, service: str, argv: Sequence[bytes], caller: Caller
    ) -> _Steps[dict[str, Any]]:
        twin = self._twin_of(authorizer)
        found = yield from explain_in_steps(twin.evaluator, service, argv, caller)
        asker = Asker(twin.number(service), twin.policy.values(caller))
        ruling, _ = yield from twin.rule_in_steps(asker, argv)
        found["actions"] = [{"rule": one.violation.rule, "action": one.action} for one in ruling.findings]
        found["refused"] = ruling.refused_by is not None
        return found

    def _line(self, authorizer: Authorizer, line: Mapping[str, Any]) -> _Steps[dict[str, Any]]:
        return (yield from explain_line_in_steps(self._twin_of(authorizer).evaluator, line))

    def _twin_of(self, authorizer: Authorizer) -> Authorizer:
        """An authorizer that gives the same rulings, and asks Redis nothing. Its tables are made once, which
        takes longer than most explanations."""
        validity = authorizer.evaluator.validity
        if self._twin is None or self._twin[0] is not validity:
            self._twin = validity, Authorizer(authorizer.policy, authorizer.modes, authorizer.glass)
        return self._twin[1]

    def forget(self) -> None:
        """Another policy is in force: keep nothing of the last one."""
        self._twin = None


class SideWork:
    """The order of such work in one process."""

    def __init__(self) -> None:
        self._one_at_a_time = asyncio.Lock()

    async def do(self, steps: Generator[None, None, _T]) -> _T:
        """Does work in steps when its turn comes, and returns its result. If the caller is cancelled, the
        work ends with the step that is under way."""
        async with self._one_at_a_time:
            gone = threading.Event()
            working = asyncio.ensure_future(asyncio.to_thread(_work, steps, gone))
            try:
                return await asyncio.shield(working)
            except asyncio.CancelledError:
                gone.set()
                # What the steps use belongs to this work until they have ended.
                await asyncio.wait([working])
                raise


def _work(steps: Generator[None, None, _T], gone: threading.Event) -> _T:
    began = time.perf_counter()
    while not gone.is_set():
        try:
            next(steps)
        except StopIteration as end:
            result: _T = end.value
            return result
        if time.perf_counter() - began >= PIECE_SECONDS:
            time.sleep(REST_SECONDS)
            began = time.perf_counter()
    raise asyncio.CancelledError
