"""Carries out the requests of the admin listener and of signals to a running keyfence.

Rule: this is the one place that puts a policy, a configuration or a break-glass in force; it hands them to
the backend, which serves the clients. Nothing here ends the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import functools
import os
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from keyfence import __version__
from keyfence.admin import beside
from keyfence.admin.access import Access
from keyfence.admin.acting import act_as
from keyfence.admin.asked import Question, Single
from keyfence.admin.control import Control
from keyfence.admin.token import token_warnings, tokens_of
from keyfence.config.advice import advice
from keyfence.config.settings import Settings
from keyfence.downstream.certificates import certificates_of, renewed
from keyfence.fleet.files import LOOK_SECONDS
from keyfence.fleet.source import PolicySource
from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.policy.compiled.tenants import NOBODY, Caller
from keyfence.policy.diagnostics import FileError, file_error
from keyfence.policy.enforcement.baseline import baseline, row_of_finding, yaml_item
from keyfence.policy.enforcement.modes import ModeRule, advised, mode_faults
from keyfence.policy.enforcement.waivers import due
from keyfence.policy.engine.authorizer import Authorizer
from keyfence.policy.remedies.policy_diffs import with_diffs
from keyfence.policy.units import counted
from keyfence.policy.verdict import Mode
from keyfence.policy.wording.tables import tables
from keyfence.telemetry.operator_log import warn
from keyfence.telemetry.reports.rows import report_rows
from keyfence.telemetry.reports.services import service_rows

from .answers_on_findings import answer
from .candidates import Candidates, check_promoted
from .causes import Causes
from .edits import CannotEdit, Edit
from .findings import FindingsDesk
from .fleet_candidate import FleetCandidate
from .freshness import Freshness
from .glass import Glass
from .looking import Looking
from .provision import Provision
from .refusals import Refusals
from .reporting import Concerns, Reporter
from .serving.answers import SPLICED, explained
from .serving.backend import Backend, WorkerFailed
from .serving.candidate import CLUSTER, REHEARSED
from .serving.jobs import going_on
from .serving.packing import unpack_beside
from .serving.reload import Admits, NotLoaded, Order, admit, admit_all, admit_waiver, changed_settings
from .serving.runtime import Runtime
from .serving.topology_follower import TopologyFollower
from .systemd import READY, Notify, reloading

if TYPE_CHECKING:
    from keyfence.findings.views import Views

_SPLICED = "keyfence runs with --splice: it applies no policy"
MAX_DIFFED = 128 * 1024  # characters of a policy's file that explain shows changes of


class ProcessControl(Control):
    """Controls one keyfence: the runtime of this process, and the backend that serves the clients."""

    def __init__(
        self,
        provision: Provision,
        runtime: Runtime,
        backend: Backend,
        access: Access | None = None,
        notify: Notify = lambda _message: None,
        findings: FindingsDesk | None = None,
        cluster: TopologyFollower[Any] | None = None,
    ) -> None:
        """`provision` is where policy and configuration come from; `access` is the admin listener's, which a
        reload may change; `notify` sends to the supervisor."""
        self.draining = False
        self.admin = ""  # the URL of the admin listener; "": there is none
        self.looking: Looking | None = None
        self._access = access
        self._notify = notify
        self._findings = findings if findings is not None else FindingsDesk()
        self._provision = provision
        self._origin = provision.origin
        self._runtime = runtime
        self._cluster = cluster
        self._backend = backend
        self.candidates = Candidates(backend, self._findings.history.note)
        self._refusals = Refusals(runtime.telemetry.counters, provision.refused_at_start)
        self._glass = Glass(runtime, backend, self._findings.history.note)
        self._freshness = Freshness(self._glass, backend)
        self._fleet_candidate = FleetCandidate(provision, runtime, self.candidates)
        concerns = Concerns(provision, self._refusals, self._freshness, self._fleet_candidate)
        self._reporter = Reporter(runtime, backend, concerns, self._glass, lambda: self.admin)
        self._findings.report_by(self._reporter.report, self._reporter.compared)
        self._reloading = asyncio.Lock()
        self._editing = asyncio.Lock()
        self._tables: tuple[CompiledPolicy, dict[str, Any]] | None = None  # of the policy that was shown last
        self._causes = Causes(None)
        self._certificates = certificates_of(runtime.settings)

    # -- state

    async def ready(self) -> tuple[bool, list[str]]:
        reasons = []
        if self.draining:
            reasons.append("keyfence is ending")
        elif not self._backend.is_open:
            reasons.append("listeners are not open yet")
        upstreams = self._runtime.upstreams[:1]  # of a cluster's nodes, one suffices
        reasons += [one.upstream.state for one in upstreams if not one.upstream.up]
        if not upstreams:
            reasons.append("no upstream yet")
        reasons += self._concerns(is_fatal=True)
        reasons += self._cluster.state().reasons() if self._cluster is not None else []
        reasons += [self._freshness.text] if self._freshness.acts == "refuse" else []
        return not reasons, reasons

    async def warnings(self) -> list[str]:
        troubles = [one.text for one in self._cluster.state().troubles] if self._cluster is not None else []
        about_policy = [*await self.degraded(), *self._provision.notes(), *self._provision.files.unchanging]
        notes = [*self._fleet_candidate.notes(), *self._findings.notes(), *self._reporter.notes()]
        return [*self._concerns(is_fatal=False), *troubles, *about_policy, *notes]

    async def degraded(self) -> list[str]:
        return self._reporter.concerns.degraded()

    def _concerns(self, *, is_fatal: bool) -> list[str]:
        """What is to be known about the upstreams, with or without the effect that keyfence is not ready."""
        return [
            f"upstream {served.upstream.address.shown} {one.text}"
            for served in self._runtime.upstreams
            for one in served.concerns
            if one.is_fatal is is_fatal
        ]

    async def metrics(self) -> bytes:
        # A row takes some 10 µs, and there are thousands: in a thread, so that clients wait for none of it.
        from keyfence.telemetry.metrics.exposition import exposition

        counters = (await self._backend.counters()).copy()
        return await beside.metrics.do(exposition, counters)

    async def report(self) -> Sequence[Mapping[str, Any]]:
        policy = self._runtime.policy
        registers = None if policy is None else policy.registers
        return await beside.answers.do(report_rows, await self._backend.tally(), registers)

    async def workers(self) -> list[dict[str, Any]]:
        return self._backend.listing()

    async def modes(self) -> dict[str, Any]:
        authorizer = self._runtime.authorizer
        if authorizer is None:
            return {"splice": True}
        return {
            "policy": authorizer.policy.name,
            "revision": authorizer.policy.revision,
            "should": sorted(authorizer.policy.should),
            "advised": advised(authorizer.policy),
            "modes": authorizer.modes.matrix(),
            "break_glass": self._glass.listing(),
        }

    async def status(self) -> dict[str, Any]:
        ready, reasons = await self.ready()
        counters, settings = await self._backend.counters(), self._runtime.settings
        clients: dict[str, int] = {}
        for (service, _), number in counters.connections_open.items():
            clients[service] = clients.get(service, 0) + number
        return {
            "version": __version__,
            "environment": settings.environment,
            "pid": os.getpid(),
            "started": self._reporter.started,
            "ready": ready,
            "reasons": reasons,
            "warnings": await self.warnings(),
            "policy": self._reporter.policy(),
            "candidate": self.candidates.described(),
            "upstream": self._upstream_status(),
            "listeners": await self.addresses(),
            "workers": await self.workers(),
            "clients": clients,
            "modes": self._mode_counts(),
            "break_glass": self._glass.listing(),
            "waivers": len(settings.waivers),
            "waivers_due": due(settings.waivers, datetime.datetime.now(datetime.UTC).date()),
            "record": settings.record,
            "admin": self.admin,
        }

    def _upstream_status(self) -> dict[str, Any] | None:
        if not self._runtime.upstreams:
            return None
        found = {**self._runtime.upstreams[0].status(), "split": self._runtime.settings.split}
        if self._cluster is not None:
            found |= {"replicas": self._cluster.replicas(), "cluster": self._cluster.state().as_json()}
        return found

    def _mode_counts(self) -> dict[str, dict[str, int]]:
        """service → mode → number of rules."""
        authorizer = self._runtime.authorizer
        found: dict[str, dict[str, int]] = {}
        for by_service in authorizer.modes.matrix().values() if authorizer is not None else ():
            for service, mode in by_service.items():
                row = found.setdefault(service, {"enforce": 0, "observe": 0, "disabled": 0})
                row[mode] += 1
        return found

    async def waivers(self) -> list[dict[str, Any]]:
        return [one.model_dump(mode="json") for one in self._runtime.settings.waivers]

    async def addresses(self) -> list[dict[str, str]]:
        settings = self._runtime.settings
        rows = []
        for (address, service), model in zip(self._backend.bound, settings.listeners, strict=True):
            rows.append({"address": address, "service": service, "whose": settings.whose(model)})
            if model.primaries:
                rows[-1]["sentinel"] = " ".join(one.name for one in model.primaries)
        return rows

    @property
    def looks(self) -> bool:
        return self.looking is not None

    async def look(self) -> Mapping[str, Any]:
        return {} if self.looking is None else await beside.answers.do(self.looking.seen)

    async def policy(self) -> dict[str, Any]:
        policy = self._evaluating().policy
        known = self._tables
        if known is None or known[0] is not policy:
            known = self._tables = policy, await beside.answers.do(tables, policy)
        return known[1]

    async def traffic(self) -> Sequence[Mapping[str, Any]]:
        return service_rows(await self._backend.counters())

    async def explain_example(self, line: Mapping[str, Any]) -> dict[str, Any]:
        authorizer = self._evaluating()
        found = await self._runtime.explainer.line(authorizer, line)
        return await beside.answers.do(with_diffs, authorizer.policy, found, MAX_DIFFED)

    async def explain(self, service: str, argv: Sequence[bytes], caller: Caller = NOBODY) -> dict[str, Any]:
        policy = self._evaluating().policy
        found = await explained(self._runtime, service, argv, caller)
        return await beside.answers.do(with_diffs, policy, found, MAX_DIFFED)

    # -- findings

    async def ask(self, question: Question) -> Any:
        """The answer of the findings store; without one, that of the report in memory. Raises ValueError."""
        causes, has_store = self._causes_now(), self._findings.has_store
        report = None
        if not has_store:
            self._evaluating()
            report = (await self._backend.tally()).rows()

        def answered(views: Views) -> Any:
            return answer(question, views, causes, in_memory=not has_store, notes=self._findings.notes())

        return await self._findings.ask(answered, report)

    def _causes_now(self) -> Causes:
        if self._causes.policy is not self._runtime.policy:
            self._causes = Causes(self._runtime.policy)
        return self._causes

    async def catch_up(self) -> int:
        counters = await self._backend.counters()
        await self._backend.tick()
        version = await self._findings.write()
        return version if self._findings.has_store else sum(counters.violations.values())

    def reading_seconds(self) -> float:
        return self._findings.reading_seconds

    def _evaluating(self, why_not: str = SPLICED) -> Authorizer:
        """The authorizer in force. Raises ValueError in passthrough, with the reason."""
        authorizer = self._runtime.authorizer
        if authorizer is None:
            raise ValueError(why_not)
        return authorizer

    # -- break-glass

    async def observe(self, seconds: float, rule: str | None, service: str | None) -> dict[str, Any]:
        authorizer = self._evaluating("keyfence runs with --splice: it refuses nothing")
        return await self._glass.open(authorizer, seconds, rule, service)

    async def end_observe(self) -> dict[str, Any]:
        return await self._glass.end()

    def chores(self) -> list[Coroutine[Any, Any, None]]:
        """The background jobs that keep up what is in force."""
        ready_to_load = self._provision.loader.stay_ready(self._policies_come)
        watch = (self.tick_forever(), self.watch_forever(), self.poll_forever(), self._follow_forever())
        return [*watch, ready_to_load]

    def _policies_come(self) -> bool:
        """Whether a policy may come without an operator who asks for it."""
        return self._runtime.settings.reload == "auto" or self._provision.source is not None

    async def tick_forever(self) -> None:
        """Each second: end the break-glasses that are over, look at the policy's age, and call the backend's
        `tick`."""
        while True:
            await asyncio.sleep(1)
            for tick in (self._backend.tick, self._glass.tick, self.check_age):
                with going_on():
                    await tick()

    async def check_age(self) -> None:
        """Act if the policy is older than it may be."""
        counters = self._runtime.telemetry.counters
        self._provision.tick(counters)
        await self._freshness.tick(self._provision.source)
        counters.policy_stale = int(bool(self._freshness.acts))

    # -- reload and restart

    async def reload(self, *, asks: bool = True, admits: Admits = admit_all) -> dict[str, Any]:
        async with self._reloading:
            return await self._reload_as_supervised(Order(asks=asks, admits=admits))

    async def _reload_as_supervised(self, order: Order) -> dict[str, Any]:
        is_ready = self._backend.is_open  # else the end of the reload would be taken for that of the start
        if is_ready:
            self._notify(reloading())
        try:
            server = await asyncio.to_thread(self._origin.policy_server, self._runtime.settings.policy_server)
            source = await self._provision.prepare(server, asks=order.asks)
            done = await self._reload(order, source)
            await self.check_age()
            return done
        except FileError as exc:
            if isinstance(exc, NotLoaded):
                self._provision.files.took(exc.seen)
            self._refusals.add(exc, self._policy_name)
            raise
        finally:
            if is_ready:
                self._notify(READY)

    @property
    def _policy_name(self) -> str:
        return "" if self._runtime.policy is None else self._runtime.policy.name

    async def watch_forever(self) -> None:
        """With `reload: auto`, reload when files have changed."""
        act_as("reload: auto")
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            with going_on():
                is_asked = self._runtime.settings.reload == "auto" and not self.draining
                if is_asked and await self._provision.files.have_changed():
                    await self._reload_changed()

    async def poll_forever(self) -> None:
        """Put in force what the policy's server offers."""
        act_as("the policy's server")
        await self._provision.poll_forever(self._take_offer)

    async def _follow_forever(self) -> None:
        act_as("the policy's server")
        await self._fleet_candidate.follow_forever(self._reloading)

    async def _take_offer(self) -> None:
        async with self._reloading:
            if self._provision.is_due():  # else a reload has put it in force meanwhile
                again = self._provision.put_off
                await self._attempt(self._reload_as_supervised(Order(asks=False, is_offer=True)), again)

    async def _reload_changed(self) -> None:
        await self._attempt(self.reload(asks=False), self._provision.files.failed)

    @staticmethod
    async def _attempt(reload: Awaitable[object], again: Callable[[], None]) -> None:
        """Reload without an order. `again` sees to another try, if this one fails for a reason that is not in
        what was read."""
        try:
            await reload
        except NotLoaded:  # everything was said
            pass
        except Exception as exc:
            again()
            if not isinstance(exc, FileError):
                raise

    async def _reload(self, order: Order, source: PolicySource | None) -> dict[str, Any]:
        """Put the files in force."""
        packed, choice, best, refused = await self._provision.load(source, is_offer=order.is_offer)
        if order.candidate is not None:
            check_promoted(order.candidate, packed)
        before, policy_before = self._runtime.settings, self._runtime.policy
        revision_before = "" if policy_before is None else policy_before.revision
        settings, waiting = await asyncio.to_thread(admit, before, packed.settings, self._origin.config)
        order.admits(before, settings, packed.revision != revision_before)
        self._provision.files.took(packed.seen)
        packed = packed._replace(settings=settings)
        policy = await unpack_beside(packed)
        tokens = tokens_of(settings)
        self._change_log(before, settings)
        now = time.time()
        self._runtime.take(settings, policy, now)  # may still fail, and changes nothing then
        has_new_token = self._access is not None and self._access.take(settings.admin_names, tokens)
        await self._backend.take(packed, now)
        if order.candidate is not None:
            await self.candidates.drop("promoted")
        elif packed.revision != revision_before:
            await self.candidates.begin_again(packed)
        self._fleet_candidate.again()
        self._findings.policy_taken(self._runtime.authorizer, settings)
        revision = "" if policy is None else policy.revision
        changed = ["policy"] if revision != revision_before else []
        changed += changed_settings(before, settings)
        known, self._certificates = self._certificates, await asyncio.to_thread(certificates_of, settings)
        changed += renewed(known, self._certificates)
        changed += ["admin token"] if has_new_token else []
        self._provision.tried(source, best)
        await self._provision.accepted(source, choice.copy, settings.policy_signed)
        if refused is None:
            self._refusals.clear()
        else:
            self._refusals.add(refused, self._policy_name, "the policy stays as it was")
        self._report_reload(settings, policy, changed, waiting)
        return {
            "policy": "" if policy is None else policy.name,
            "revision": revision,
            "changed": changed,
            "needs_restart": waiting,
            **({"refused": [str(fault) for fault in refused.diagnostics]} if refused is not None else {}),
        }

    # -- changes of files

    async def waiver(self, finding: str, owner: str, reason: str, until: datetime.date) -> dict[str, Any]:
        one = await self.ask(Single(finding))
        # Its waived violations count too: the waiver may have gone.
        row = row_of_finding(one) | {"severity": "must", "actions": {}}
        found = baseline([row], owner, reason, until)
        line = found.items[0] if found.items else ""
        return {"line": line, "wide": found.wide, "left": found.left, "file": self._waivers_file}

    async def waive(self, finding: str, owner: str, reason: str, until: datetime.date) -> dict[str, Any]:
        one = await self.waiver(finding, owner, reason, until)
        if not one["line"]:
            raise ValueError(f"no waiver can cover it: {'; '.join(one['left'])}")
        if not self._waivers_file:
            why = "the configuration names no waivers file; set waivers: FILE"
            return one | {"written": False, "why": why}
        admits = functools.partial(admit_waiver, self._access)
        return one | await self._written(self._waivers_file, "waivers", one["line"], admits)

    async def set_mode(self, rule: str, service: str, mode: Mode) -> dict[str, Any]:
        for _, _, fault in mode_faults([ModeRule(mode, rule, service)], self._evaluating().policy.services):
            raise ValueError(fault)
        if self._origin.overrides.mode:
            raise ValueError(
                f"keyfence runs with --mode {self._origin.overrides.mode}, which wins over the file"
            )
        line, file = yaml_item({"rule": rule, "service": service, "mode": mode}), self._origin.config
        if not file:
            why = "keyfence runs without a configuration file"
            return {"line": line, "file": "", "written": False, "why": why}
        return {"line": line} | await self._written(file, "modes", line)

    @property
    def _waivers_file(self) -> str:
        return self._runtime.settings.waivers_file

    async def _written(
        self, file: str, section: str, item: str, admits: Admits = admit_all
    ) -> dict[str, Any]:
        """Add an item to a list in a file and reload. If the file cannot be changed, the answer says why, and
        nothing has changed. Raises FileError if the item is not accepted, and what `admits` raises."""
        async with self._editing:
            try:
                edit = await asyncio.to_thread(Edit, file, section, item)
                await asyncio.to_thread(edit.write)
            except CannotEdit as exc:
                return {"file": file, "written": False, "why": f"{file} cannot be changed: {exc}"}
            before = self._refusals.current
            try:
                await self.reload(asks=False, admits=admits)
            except BaseException:
                try:
                    edit.undo()
                    self._refusals.put(before)  # the file is as it was
                except CannotEdit as exc:
                    warn(f"{file} keeps a line that could not be put in force: {exc}; the line: {item}")
                raise
        return {"file": file, "written": True, "why": ""}

    # -- a candidate policy

    async def candidate(self) -> dict[str, Any]:
        return await self.candidates.show(self._evaluating(_SPLICED).policy)

    async def load_candidate(self, file: str) -> dict[str, Any]:
        async with self._reloading:
            self._evaluating(_SPLICED)
            packed = await self._provision.loader.load(self._origin.with_policy(file))
            found = await self.candidates.begin(file, packed)
        self._runtime.tell(self.candidates.told())
        return found

    async def rehearse(self) -> dict[str, Any]:
        async with self._reloading:
            in_force = self._evaluating(_SPLICED).policy
            if self._cluster is not None:
                raise ValueError("keyfence stands before a cluster already, so there is nothing to rehearse")
            packed = await self._provision.loader.load(self._origin)
            if packed.revision != in_force.revision:
                raise ValueError(
                    f"{packed.settings.policy} has changed since it was put in force (revision "
                    f"{in_force.revision}); run keyfence reload first"
                )
            found = await self.candidates.begin(REHEARSED, packed, CLUSTER)
        self._runtime.tell(self.candidates.told())
        return found

    async def standing(self) -> dict[str, Any]:
        return await self.candidates.standing(self._evaluating(_SPLICED).policy)

    async def drop_candidate(self) -> dict[str, Any]:
        async with self._reloading:
            self._fleet_candidate.drop()
            dropped = await self.candidates.drop()
        if dropped is not None:
            name = "the rehearsal" if dropped["for"] else f"the candidate {dropped['file']}"
            self._runtime.tell(f"{name} was dropped")
        return {"dropped": dropped}

    async def promote_candidate(self) -> dict[str, Any]:
        async with self._reloading:
            candidate = self.candidates.current
            if candidate is None:
                raise ValueError("no candidate is loaded; load one with keyfence candidate load FILE")
            return await self._reload_as_supervised(Order(candidate=candidate))

    def _change_log(self, before: Settings, settings: Settings) -> None:
        """Have the backend write to the decision log of the new settings. Raises FileError."""
        if settings.decision_log == before.decision_log:
            return
        try:
            self._backend.log_to(settings.decision_log)
        except OSError as exc:
            text = f"the decision log {settings.decision_log} cannot be written: {exc.strerror}"
            raise file_error(self._origin.config or "command line", f"{text}; name another one") from None

    def _report_reload(
        self, settings: Settings, policy: CompiledPolicy | None, changed: list[str], waiting: list[str]
    ) -> None:
        """Print what a reload has changed, and what needs a restart."""
        text = f"reloaded: policy {policy.name}, revision {policy.revision}" if policy else "reloaded"
        self._runtime.tell(f"{text}; changed: {', '.join(changed) or 'nothing'}")
        for warning in (*token_warnings(settings), *advice(settings, policy)):
            warn(str(warning))
        for name in waiting:
            warn(f"{name} has changed in the configuration: that needs a restart")

    def reload_on_signal(self) -> asyncio.Task[None]:
        """SIGHUP: open the log file again, as logrotate needs it, and reload everything."""
        self._backend.reopen_log()
        return asyncio.ensure_future(self._quietly_reload())

    async def _quietly_reload(self) -> None:
        with contextlib.suppress(FileError):  # `reload` has printed every fault
            await self.reload()

    async def restart(self) -> dict[str, Any]:
        try:
            restarted = await self._backend.restart()
        except WorkerFailed as exc:
            raise ValueError(str(exc)) from None
        self._runtime.tell(f"restarted {counted(restarted, 'worker')}")
        return {"restarted": restarted}

    def restart_on_signal(self) -> asyncio.Task[None]:
        return asyncio.ensure_future(self._quietly_restart())

    async def _quietly_restart(self) -> None:
        try:
            await self.restart()
        except ValueError as exc:
            warn(f"no rolling restart: {exc}")
