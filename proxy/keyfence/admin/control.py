"""What the admin listener can ask of the process.

Rule: this is the only declaration of these calls. Handlers (`handlers`) make them, `process.control` carries
them out, and tests replace it with `FakeControl` (tests/admin/test_server.py). What workers may have to
answer is a coroutine.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from keyfence.policy.compiled.tenants import Caller
from keyfence.policy.verdict import Mode

from .asked import Question


class Control(Protocol):
    """One running keyfence. ValueError: the request is wrong (an unknown service); its text is the answer."""

    async def ready(self) -> tuple[bool, list[str]]:
        """Whether clients can be served: listeners are open and the upstream answers. If not, why."""

    async def warnings(self) -> list[str]:
        """What operators should know, although clients can be served: about the upstream, the policy, the
        findings store and removed sockets."""

    async def degraded(self) -> list[str]:
        """The warnings that the policy in force is not what it should be. A strict probe takes them for
        reasons not to be ready."""

    async def metrics(self) -> bytes:
        """The counters of all workers in Prometheus' text format."""

    async def status(self) -> Mapping[str, Any]:
        """What runs, and since when; all times are Unix seconds."""

    async def report(self) -> Sequence[Mapping[str, Any]]:
        """The rows of the tally, of all workers."""

    async def modes(self) -> Mapping[str, Any]:
        """The matrix of rules and services."""

    async def waivers(self) -> Sequence[Mapping[str, Any]]:
        """The waivers in force, as their file has them."""

    async def addresses(self) -> Sequence[Mapping[str, Any]]:
        """Where clients connect: `{"address": "HOST:PORT", "service": …}`; the service may be empty."""

    async def workers(self) -> Sequence[Mapping[str, Any]]:
        """The processes that serve clients: slot, pid, state, start time, revisions, connections."""

    async def catch_up(self) -> int:
        """Have the findings store hold everything that was counted so far. `ask` is answered from the store.
        Returns a number that changes whenever this keyfence has changed findings."""

    def reading_seconds(self) -> float:
        """The processor time that answers from the findings store have taken so far."""

    async def ask(self, question: Question) -> Any:
        """The answer to a question about findings, as plain values. Raises ValueError."""

    async def traffic(self) -> Sequence[Mapping[str, Any]]:
        """What each service has sent since keyfence began (`telemetry.reports.services`)."""

    @property
    def looks(self) -> bool:
        """Whether `keyfence look` has started it."""

    async def look(self) -> Mapping[str, Any]:
        """What `keyfence look` has seen so far (`cli.look.picture`); empty before that, and elsewhere."""

    async def policy(self) -> Mapping[str, Any]:
        """The policy in force, as tables (`policy.wording.tables`). ValueError: there is none."""

    async def explain_example(self, line: Mapping[str, Any]) -> Mapping[str, Any]:
        """The verdict of the policy in force on an example of a finding. Raises ValueError."""

    async def explain(self, service: str, argv: list[bytes], caller: Caller) -> Mapping[str, Any]:
        """How the policy, modes and waivers in force evaluate a command. Raises ValueError."""

    async def observe(self, seconds: float, rule: str | None, service: str | None) -> Mapping[str, Any]:
        """Break-glass: refuse nothing for a while, of one rule, one service, both, or (None) all of them.
        Raises ValueError."""

    async def end_observe(self) -> Mapping[str, Any]:
        """End everything that `observe` began."""

    async def reload(self) -> Mapping[str, Any]:
        """Put policy, configuration and waivers in force as their files are now. FileError: a file is wrong,
        and nothing changes."""

    async def waiver(self, finding: str, owner: str, reason: str, until: datetime.date) -> Mapping[str, Any]:
        """The waiver that would cover a finding: `line` ("": none can), `wide` and `left`
        (see `policy.enforcement.baseline`), and `file`, the waivers file ("": there is none).
        Raises ValueError."""

    async def waive(self, finding: str, owner: str, reason: str, until: datetime.date) -> Mapping[str, Any]:
        """Write this waiver to the waivers file, and reload: as `waiver`, with `written` and, where it is not
        written, `why`. Raises ValueError, and FileError as for `reload`."""

    async def set_mode(self, rule: str, service: str, mode: Mode) -> Mapping[str, Any]:
        """Write a mode to the configuration, before all others, and reload: `line`, `file`, `written`, `why`.
        "" is every rule or service. Raises ValueError, and FileError as for `reload`."""

    async def candidate(self) -> Mapping[str, Any]:
        """The candidate policy, and what it would change. ValueError: there is no policy in force."""

    async def load_candidate(self, file: str) -> Mapping[str, Any]:
        """Compare the policy in this file, or folder, with the one in force from now on. FileError: it is
        faulty, and nothing changes; ValueError as above."""

    async def rehearse(self) -> Mapping[str, Any]:
        """Compare the policy in force with itself as a cluster would have it from now on. ValueError: there
        is no policy in force, or another candidate, or keyfence stands before a cluster."""

    async def standing(self) -> Mapping[str, Any]:
        """Which services would break on a cluster, from the rehearsal. ValueError: there is no policy in
        force."""

    async def drop_candidate(self) -> Mapping[str, Any]:
        """End the comparison."""

    async def promote_candidate(self) -> Mapping[str, Any]:
        """Reload, and put the candidate in force by that. ValueError: there is none, or it is not what the
        policy's own files are; FileError as for `reload`. Nothing changes then."""

    async def restart(self) -> Mapping[str, Any]:
        """Replace the workers one by one. ValueError: there are none, or one does not start."""
