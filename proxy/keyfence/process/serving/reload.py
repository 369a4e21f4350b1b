"""Loads policy and configuration together, and compares them with those in force.

Rule: if anything is wrong, nothing is used and every fault is reported. What is used comes from one state of
all files, never from two.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from keyfence.admin.token import tokens_of
from keyfence.config.loading import load_policy_server, load_settings, named_files
from keyfence.config.settings import Overrides, Settings
from keyfence.downstream.tls import check_tls
from keyfence.fleet.keys import Trust
from keyfence.fleet.manifest import Signed
from keyfence.fleet.model import PolicyServer
from keyfence.fleet.signed import Floor, check_contents, read_signed
from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.policy.diagnostics import Diagnostic, FileError, file_error
from keyfence.policy.enforcement.waivers import waiver_faults
from keyfence.policy.loading.load import load_policy
from keyfence.policy.source.files import Given, Reading, Seen

from .garbage import without_collections
from .packing import Packed, pack

if TYPE_CHECKING:
    from keyfence.admin.access import Access

    from .candidate import PackedCandidate

ATTEMPTS = 10  # at reading files that change meanwhile
ATTEMPT_PAUSE = 0.1  # seconds

_T = TypeVar("_T")

# The settings that a reload puts in force. All others need a restart.
LIVE = frozenset(
    {
        "environment",
        "policy",
        "policy_server",
        "policy_trust",
        "policy_signed",
        "identify",
        "modes",
        "waivers",
        "waivers_file",
        "waivers_source",
        "decision_log",
        "mask_keys",
        "limits",
        "name_services",
        "news",
        "reads",
        "reload",
        "drain",
        "source",
        "admin_names",
        "admin_token_file",
        "admin_tokens",
        "secret_files",
        "split",
    }
)


class NotLoaded(FileError):
    """What was read has faults. `seen` is what was read."""

    def __init__(self, diagnostics: Iterable[Diagnostic], seen: Seen) -> None:
        super().__init__(diagnostics)
        self.seen = seen


class Loaded(NamedTuple):
    """What a start needs. `candidate` is None if there is none."""

    settings: Settings
    policy: CompiledPolicy | None
    candidate: Packed | None
    seen: Seen


def read_once(make: Callable[[], _T], given: Mapping[str, Given] | None = None) -> tuple[_T, Seen]:
    """Returns what is made of one state of all files that are read for it, and which these are. Raises
    NotLoaded, and FileError if they go on changing.

    Each file is read once, and at the end all are compared with what is there then. If none has changed, all
    of them were as read at one time, between the last reading and the comparison.
    """
    for _ in range(ATTEMPTS):
        fault: FileError | None = None
        with Reading(given) as reading:
            try:
                made = make()
            except FileError as exc:
                fault = exc
        seen = reading.seen()
        if seen.look() == seen.digest:
            break
        time.sleep(ATTEMPT_PAUSE)
    else:
        raise load_failed("its files change while they are read; replace them all at once")
    if fault is not None:
        raise NotLoaded(fault.diagnostics, seen)
    return made, seen


def load(settings: Settings) -> CompiledPolicy:
    """The policy that the settings name; both are checked against each other. Raises FileError."""
    with without_collections():
        policy = load_policy(settings.policy, name_services=settings.name_services)
    wrong = waiver_faults(settings.waivers, settings.waivers_source, policy)
    settings.check_against(policy.services, [*wrong, *_database_faults(settings, policy)])
    return policy


def _database_faults(settings: Settings, policy: CompiledPolicy) -> Iterator[Diagnostic]:
    """Every client begins in the database of the upstream, without a command that could be refused."""
    begins = settings.upstream.database if settings.upstream is not None else 0
    if policy.databases is not None and begins not in policy.databases:
        listed = ", ".join(map(str, sorted(policy.databases)))
        message = f"clients begin in database {begins}, and the policy admits {listed} only"
        remedy = f"list {begins} under databases, or let the URL of the upstream end in another one"
        yield settings.fault(
            ("upstream",), f"{message}; {remedy}, as in redis://HOST:PORT/{max(policy.databases)}"
        )


def load_signed(settings: Settings, signed: Signed) -> CompiledPolicy:
    """The same, of the contents that were signed. Raises FileError."""
    with Reading() as reading:
        try:
            return load(settings)
        finally:  # whatever else is wrong: a policy that was changed is not what its author can mend
            check_contents(settings.policy, signed, reading.contents())


@dataclasses.dataclass(frozen=True, slots=True)
class Origin:
    """Where policy and configuration come from: the arguments of `keyfence run`."""

    config: str = ""
    overrides: Overrides = dataclasses.field(default_factory=Overrides)
    spliced: bool = False
    given: Mapping[str, Given] = dataclasses.field(default_factory=dict)  # contents of files, by path
    floor: Floor | None = None  # no signed policy older than this is loaded
    trust: Trust | None = None  # who must have signed the policy; None: as the configuration says

    def load(self) -> tuple[Settings, CompiledPolicy | None]:
        """Read and check everything. Raises FileError."""
        try:
            settings = load_settings(self.config, self.overrides, needs_policy=not self.spliced)
        except FileError as exc:
            raise FileError([*exc.diagnostics, *self._faults_behind(exc.diagnostics)]) from None
        policy, faults = None, []
        try:
            settings, policy = self._load_policy(settings)
        except FileError as exc:
            faults += exc.diagnostics
        for check in (check_tls, tokens_of):
            try:
                check(settings)
            except FileError as exc:
                faults += exc.diagnostics
        if faults:
            raise FileError(faults)
        return settings, policy

    def _load_policy(self, settings: Settings) -> tuple[Settings, CompiledPolicy | None]:
        """The policy, and the settings with its signature. Raises FileError."""
        if self.spliced:
            return settings, None
        trust = self.trust or settings.policy_trust
        if trust is None:
            return settings, load(settings)
        signed = read_signed(settings.policy, trust, self.floor)
        policy = load_signed(settings, signed)
        return dataclasses.replace(settings, policy_signed=signed), policy

    def load_with(self, candidate: str) -> Loaded:
        """The same with the candidate policy in this file ("": there is none). Raises FileError with all
        faults."""
        faults: list[Diagnostic] = []
        loaded, packed = None, None
        try:
            loaded = read_once(self.load, self.given)
        except FileError as exc:
            faults += exc.diagnostics
        try:
            beside = self.with_policy(candidate)
            packed = pack(*read_once(beside.load, self.given)[0]) if candidate else None
        except FileError as exc:
            faults += [fault for fault in exc.diagnostics if fault not in faults]
        if loaded is None or faults:
            raise FileError(faults)
        return Loaded(*loaded[0], packed, loaded[1])

    def with_given(self, given: Mapping[str, Given]) -> Origin:
        """The same, with these contents in place of files."""
        return dataclasses.replace(self, given=given)

    def above(self, floor: Floor | None) -> Origin:
        """The same, with no signed policy that is older than this."""
        return dataclasses.replace(self, floor=floor)

    def policy_server(self, otherwise: PolicyServer | None = None) -> PolicyServer | None:
        """The server that has the policy; None: there is none. If the configuration has a fault, which a load
        reports, it is the other one."""
        try:
            return None if self.spliced else load_policy_server(self.config, self.overrides)
        except FileError:
            return otherwise

    def signed_by(self, trust: Trust) -> Origin:
        """The same, with a policy that one of these keys must have signed."""
        return dataclasses.replace(self, trust=trust)

    def with_policy(self, file: str) -> Origin:
        """The same with another policy, such as a candidate."""
        return dataclasses.replace(self, overrides=dataclasses.replace(self.overrides, policy=file))

    def _faults_behind(self, known: list[Diagnostic]) -> list[Diagnostic]:
        """The faults of the files that a faulty configuration names."""
        policy, faults = named_files(self.config, self.overrides)
        if policy and not self.spliced:
            try:
                load_policy(policy)
            except FileError as exc:
                faults += exc.diagnostics
        return [one for one in faults if one not in known]


def load_failed(why: str) -> FileError:
    """The error that neither policy nor configuration could be loaded."""
    return file_error("keyfence", f"cannot load policy and configuration: {why}")


def changed_settings(before: Settings, after: Settings) -> list[str]:
    """The names of the settings that differ, without the files of policy and waivers and the sources of the
    settings."""
    names = [field.name for field in dataclasses.fields(Settings)]
    apart = ("policy", "policy_signed", "waivers_file", "waivers_source", "source")
    return [name for name in names if name not in apart and getattr(before, name) != getattr(after, name)]


# Takes the settings in force, the new ones, and whether the policy changes. Raises ValueError if who asks
# may not put that in force.
Admits = Callable[[Settings, Settings, bool], None]


def admit_all(_before: Settings, _new: Settings, _changes_policy: bool) -> None:
    """For those who may put the files in force, whatever they say."""


def admit_waiver(access: Access | None, before: Settings, new: Settings, changes_policy: bool) -> None:
    """For those who have added a waiver: they must not put in force what others have written. `access` has
    the admin tokens in use."""
    is_own = new.waivers[1:] == before.waivers
    changed = ["policy"] if changes_policy else []
    changed += [name for name in changed_settings(before, new) if not (is_own and name == "waivers")]
    changed += ["admin token"] if access is not None and access.is_new(tokens_of(new)) else []
    if changed:
        raise ValueError(
            f"the files have other changes that are not in force: {', '.join(changed)}; an operator must "
            "reload first"
        )


class Order(NamedTuple):
    """A reload, as it was asked for."""

    asks: bool = True  # the policy's server is asked first
    is_offer: bool = False  # the server has just offered something
    candidate: PackedCandidate | None = None  # that the files must have as their policy; None: any
    admits: Admits = admit_all


def admit(before: Settings, new: Settings, config: str = "") -> tuple[Settings, list[str]]:
    """The settings to put in force now, and the names of those that need a restart. `config` is the file of
    the configuration. Raises FileError if what stays cannot be used any more."""
    live = LIVE | ({"upstream"} if _only_the_login_changed(before, new) else set())
    waiting = [
        field.name
        for field in dataclasses.fields(Settings)
        if field.name not in live and getattr(before, field.name) != getattr(new, field.name)
    ]
    kept = {name: getattr(before, name) for name in waiting}
    settings = dataclasses.replace(new, **kept)
    if waiting:
        _check_kept(settings, config)
    return settings, waiting


def _check_kept(settings: Settings, config: str) -> None:
    """Raise FileError if what stays names a file for TLS that cannot be used any more: each worker that comes
    reads it again."""
    try:
        check_tls(settings)
    except FileError as exc:
        text = "keyfence needs it until a restart, because listeners and upstream stay as they were"
        raise file_error(config, f"{exc.sentence}; {text}; put it back, or restart keyfence") from None


def _only_the_login_changed(before: Settings, new: Settings) -> bool:
    """Whether the upstream is the same and keyfence has a login there, before and now."""
    old, now = before.upstream, new.upstream
    if old is None or now is None or not old.has_login or not now.has_login:
        return False
    return old.without_login() == now.without_login()
