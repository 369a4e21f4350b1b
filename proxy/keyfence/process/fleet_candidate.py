"""The candidate that a store has for the whole fleet, as one keyfence follows it.

Rule: only a candidate that is signed as one, by a key under `trust`, is compared, and none that has gone
comes back. A candidate that is refused changes nothing for the policy in force. What an operator compares on
this keyfence wins; the fleet's candidate waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Literal

from keyfence.config.state_file import last_candidate
from keyfence.fleet.keys import Trust
from keyfence.fleet.manifest import CANDIDATE_FORMAT, Signed
from keyfence.fleet.model import Offer
from keyfence.fleet.signed import Floor, KeptFloor, floor_of, read_signed, signature_path
from keyfence.policy.diagnostics import FileError
from keyfence.policy.source.files import Given, Reading
from keyfence.telemetry.operator_log import warn

from .candidates import Candidates
from .provision import Provision
from .serving.candidate import PackedCandidate
from .serving.jobs import going_on
from .serving.runtime import Runtime

LOOK_SECONDS = 1.0
# loading: it is about to begin. busy: an operator compares something else here. dropped: an operator has
# ended it here.
State = Literal["none", "loading", "comparing", "refused", "busy", "dropped"]


class FleetCandidate:
    """Takes the candidate of the policy's store, and ends its comparison when it has gone."""

    def __init__(self, provision: Provision, runtime: Runtime, candidates: Candidates) -> None:
        self.fault = ""  # why it is refused; "": it is not
        self._provision = provision
        self._runtime = runtime
        self._candidates = candidates
        self._taken: tuple[Offer, Trust | None] = Offer(), None  # what was looked at last, and for which keys
        self._is_dropped = False
        config = provision.origin.config
        self._floor = KeptFloor(last_candidate(config) if config else None)
        self._has_floor = False  # it was read

    @property
    def state(self) -> State:
        if not self._taken[0].signature:
            return "none"
        if self.fault:
            return "refused"
        if self.own is not None:
            return "comparing"
        if self._is_dropped:
            return "dropped"
        return "loading" if self._candidates.current is None else "busy"

    @property
    def own(self) -> PackedCandidate | None:
        """The fleet's candidate, if that is compared."""
        current = self._candidates.current
        return current if current is not None and current.published is not None else None

    @property
    def trouble(self) -> str:
        """Why its number cannot be kept; "": it can."""
        why = self._floor.why_not
        return (
            f"the candidate's number cannot be kept in {self._floor.path} ({why}): after a restart, one "
            "that was withdrawn could be compared again"
            if why
            else ""
        )

    def notes(self) -> list[str]:
        """What operators should know of it."""
        found = [self.trouble] if self.trouble else []
        return [*found, f"the fleet's candidate is refused: {self.fault}"] if self.fault else found

    def drop(self) -> None:
        """An operator ends the comparison. It begins again with another candidate, or after a restart."""
        self._is_dropped = self._is_dropped or self.own is not None

    def again(self) -> None:
        """The configuration was loaded again, which may be what a refused candidate needs."""
        if self.fault:
            self._taken = Offer(), None

    # -- following the store

    def _now(self) -> tuple[Offer, Trust | None] | None:
        """What the store has, and who may have signed it; None: the store has not answered yet."""
        source, trust = self._provision.source, self._runtime.settings.policy_trust
        if source is None or trust is None:
            return Offer(), None
        if source.candidate is None:
            return None
        return source.candidate, trust._replace(form=CANDIDATE_FORMAT)

    @property
    def is_due(self) -> bool:
        """Whether `follow` has something to do."""
        now = self._now()
        return now is not None and (now != self._taken or not self._has_floor or self.state == "loading")

    async def follow_forever(self, loading: asyncio.Lock) -> None:
        """Look each second whether there is something to do. `loading` is held while anything is loaded."""
        while True:
            with going_on():
                if self.is_due:
                    async with loading:
                        await self.follow()
            await asyncio.sleep(LOOK_SECONDS)

    async def follow(self) -> None:
        """Take what the store has now. Called while nothing else is loaded."""
        now = self._now()
        if now is None:
            return
        is_new = now != self._taken or not self._has_floor
        try:
            await self._read_floor()
        except FileError as exc:
            self._refuse(now, exc)
            return
        offer, trust = now
        if is_new:
            self._is_dropped = self._is_dropped and offer == self._taken[0]
            self._taken, self.fault = now, ""
        if trust is None or not offer.signature:
            await self._end()
            if self._floor.known is not None:
                await self._keep_floor(self._floor.known._replace(digest=""))
        elif self.state == "loading" or (is_new and self.state == "comparing"):
            await self._begin(offer, trust)

    async def _begin(self, offer: Offer, trust: Trust) -> None:
        source = self._provision.source
        assert source is not None
        shown = f"the candidate of {source.server.shown}"
        # No such file is there: messages show the name instead.
        file = str(self._provision.path.with_name(f"candidate-{self._provision.path.name}"))
        given = {
            file: Given(offer.content, shown),
            signature_path(file): Given(offer.signature, f"the signature of {shown}"),
        }
        try:
            origin = self._provision.origin.with_policy(file).with_given(given)
            packed = await self._provision.loader.load(origin.signed_by(trust).above(self._floor.known))
        except FileError as exc:
            self._refuse((offer, trust), exc)
            await self._end()
            signed = await asyncio.to_thread(_signature, file, given, trust, self._floor.known)
        else:
            signed = packed.settings.policy_signed
            assert signed is not None
            published = {**signed.status(), "digest": signed.digest}
            name = f"{source.server.shown}, candidate {signed.manifest.sequence}"
            await self._candidates.begin(name, packed, "", published)
            self._runtime.tell(self._candidates.told())
        # A candidate that is signed and does not load has taken the place of the earlier one all the same.
        if signed is not None:
            await self._keep_floor(floor_of(signed))

    def _refuse(self, now: tuple[Offer, Trust | None], exc: FileError) -> None:
        before, self._taken, self.fault = self.fault, now, str(exc.diagnostics[0])
        if before == self.fault:
            return
        for fault in exc.diagnostics:
            warn(str(fault))
        warn("the fleet's candidate is refused, and not compared; the policy in force stays as it was")

    async def _end(self) -> None:
        """End the comparison, if it is the fleet's: the store has another candidate, or none."""
        own = self.own
        if own is not None:
            in_force = self._runtime.policy
            is_promoted = in_force is not None and in_force.revision == own.packed.revision
            await self._candidates.drop("promoted" if is_promoted else "withdrawn")
            self._runtime.tell(f"{own.file} is {'in force' if is_promoted else 'no longer there'}")

    # -- no candidate comes back

    async def _read_floor(self) -> None:
        """Raises FileError."""
        if not self._has_floor:
            await asyncio.to_thread(self._floor.read)
            self._has_floor = True

    async def _keep_floor(self, floor: Floor) -> None:
        before = self.trouble
        if await asyncio.to_thread(self._floor.keep, floor) and not before:
            warn(self.trouble)


def _signature(file: str, given: Mapping[str, Given], trust: Trust, floor: Floor | None) -> Signed | None:
    """What was signed, if the signature is right."""
    try:
        with Reading(given):
            return read_signed(file, trust, floor)
    except FileError:
        return None
