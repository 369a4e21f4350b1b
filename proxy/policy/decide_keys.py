"""What is wrong with one access to one key.

Rule: one key has one answer, in one order: rights, then the form and the name, then the value as far as the
command shows it. What only Redis can tell of its time to live is left open, not guessed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from ..commands.model import DELETE, GROUP, READ, WRITE, Access, Streamed
from .budget import Budget
from .compiled import MAX_CONFIRMED, CompiledPolicy, Grant, Target
from .content import Fault, content_faults, fits, ttl_fault, type_fault, types_in
from .masking import standard_key
from .names import NameFault, hash_tag_fault, lowered
from .patterns import REST
from .pending import MAX_KEYS, Pending
from .pending_sizes import Write
from .permissions import selects_name
from .show import printable
from .sizes import answers, asks, late_excess
from .ttl import FAULTS, FINE, QUESTIONS, SIZED, UNSIZED, TtlRule, late_fault, outcome
from .verdict import Found, Violation
from .wording import Wording, said

MAX_PREFIXES = 64
MAX_GRANTS_KNOWN = 10_000  # services and commands: a name that isn't in the table is the client's to word


class KeyDecider(Wording):
    """Judges accesses against one compiled policy."""

    def __init__(self, policy: CompiledPolicy, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._grants_known: dict[tuple[int, str], list[Grant]] = {}
        # What the last command means for times to live and sizes, where that isn't nothing.
        self.left_open: list[tuple[int, Access, Target, TtlRule | None]] = []
        self.not_kept = 0  # keys of it that Redis isn't asked about, since there are too many
        self.budget = Budget()  # of the command that is judged
        self._take(policy)

    def _take(self, policy: CompiledPolicy) -> None:
        """Judge by this policy from now on; what was remembered of another is forgotten."""
        self.policy = policy
        self._grants_known.clear()
        # The files that must grant what is on a key of no file.
        self._unclaimed_by = {number for number, home in enumerate(policy.homes) if not home.claims} or set(
            range(len(policy.homes))
        )
        self._prefixes = _prefixes(policy)

    def _grants_of(self, service: int, name: str) -> list[Grant]:
        known = self._grants_known.get((service, name))
        if known is None:
            grants = self.policy.grants.get(service, ())
            known = [grant for grant in grants if selects_name(grant.selectors, name)]
            if len(self._grants_known) < MAX_GRANTS_KNOWN:
                self._grants_known[service, name] = known
        return known

    def _access(self, service: int, name: str, access: Access, by: str = "") -> Iterator[Found | None]:
        """`by` is the registered script or function that touches the key; "" where the command does."""
        policy = self.policy
        target = policy.target(access.key)
        if isinstance(access.key, Streamed):
            access = access._replace(key=bytes(access.key))  # how it begins, for the message
        if policy.grants and self._granted(service, name, access, target):
            return
        if target is None or target.kind == "stray":
            yield self._unregistered(service, name, access, target)
        elif target.kind == "legacy":
            yield from self._legacy(service, name, access, target)
        else:
            yield from self._standard(service, name, access, target, by)

    def _granted(self, service: int, name: str, access: Access, target: Target | None) -> bool:
        grants = self._grants_of(service, name)
        if not grants:
            return False
        granting = {one.home for one in grants if one.covers(access.key, target)}
        return bool(granting) and (target is not None or granting >= self._unclaimed_by)

    def _standard(
        self, service: int, name: str, access: Access, target: Target, by: str
    ) -> Iterator[Found | None]:
        key = access.key
        if target.kind != "claim":
            yield from self._rights(service, name, access, target, by)
        if target.kind == "malformed":
            yield self._about(
                "key.format",
                access,
                target,
                lambda: (
                    f"{self._shown(key, target)} is not of the form {target.text}",
                    _form_hint(key, target),
                ),
            )
        elif target.kind == "claim":
            yield self._about("key.format", access, target, lambda: self._in_no_scope(service, key, target))
        elif target.kind == "scope" and not target.is_open:
            yield self._about(
                "key.unregistered",
                access,
                target,
                lambda: (
                    f"no entry of the scope {target.name} covers {self._shown(key, target)}",
                    "register the key in the policy first",
                ),
            )
        if not target.names_sure:
            yield from self._named(access, target)
        if target.kind in ("entry", "scope"):
            yield from self._content(name, access, target)

    def _in_no_scope(self, service: int, key: bytes, target: Target) -> tuple[str, str]:
        scopes = sorted(
            {
                one.text
                for one in self.policy.targets
                if one.kind == "scope" and one.home == target.home and not one.is_others(service)
            }
        )
        hint = f"a key begins with one of {', '.join(scopes)}" if scopes else ""
        return f"{self._shown(key, target)} is in no scope of the policy", hint

    def _content(self, name: str, access: Access, target: Target) -> Iterator[Found | None]:
        """What is wrong with the value, as far as the command shows it; the rest is left open."""
        entry = target.entry
        types = self._types(access.key, target)

        def shown() -> str:
            return self._shown(access.key, target)

        is_sized = entry is not None and entry.is_sized
        if not fits(types, access.types):
            yield self._fault(type_fault(name, access, types, shown), access, target)
            is_sized = False
        elif entry is not None and entry.looks_into_values:
            for fault in content_faults(access, entry, shown, self.budget):
                yield None if fault is None else self._fault(fault, access, target)
                is_sized = is_sized and (fault is None or not answers(fault.rule, access))
        if entry is None:
            return
        found = FINE if entry.ttl is None else outcome(entry.ttl, access, self._clock)
        if found in FAULTS and entry.ttl is not None:
            yield self._fault(ttl_fault(found, name, access, entry.ttl, shown), access, target)
        if is_sized and asks(name, access, entry):
            found = SIZED[found]
        if found:
            self._leave_open(found, access, target, entry.ttl)

    def _leave_open(self, found: int, access: Access, target: Target, rule: TtlRule | None) -> None:
        """Keep what is to be asked of Redis, or need no longer be, of as many keys as anybody remembers."""
        if len(self.left_open) < MAX_KEYS:
            self.left_open.append((found, access, target, rule))
        else:
            self.not_kept += found in QUESTIONS or found in UNSIZED

    def _types(self, key: bytes, target: Target) -> Sequence[str]:
        """The types that a key may have, by its entry or else by its words; none: any."""
        if target.entry is not None and target.entry.types:
            return target.entry.types
        return types_in(key, self.policy.home(target).type_words)

    def _fault(self, fault: Fault, access: Access, target: Target) -> Found:
        return self._violation(fault.rule, fault.position, access.key, target, fault.words)

    def late(self, pending: Pending, left: int) -> Violation | None:
        """What is wrong with a key whose PTTL turned out to be `left`; None if nothing is."""
        key = self._shown(pending.key, pending.target)
        found = late_fault(left, pending.everything, pending.rule, pending.command, key)
        if found is None:
            return None
        access = Access(pending.position, pending.key, WRITE)
        words = said(found.message, found.hint)
        return self._about(found.rule, access, pending.target, words).worded()

    def late_size(self, key: bytes, write: Write, size: int) -> Violation | None:
        """What is wrong with a key that is so large after a write."""
        shown = self._shown(key, write.target)
        found = late_excess(write.question, size, write.command, shown)
        if found is None:
            return None
        access = Access(write.position, key, WRITE)
        return self._about(found.rule, access, write.target, said(found.message, found.hint)).worded()

    def _rights(self, service: int, name: str, access: Access, target: Target, by: str) -> Iterator[Found]:
        lacking = set(_lacking(service, access.needs, target))
        writes = access.needs & WRITE and not access.needs & GROUP and WRITE not in lacking

        def refused() -> str:
            return f"{self.who(service)} may not {name} {self._shown(access.key, target)}"

        if writes and not target.is_written_by(by):
            yield self._about(
                "scope.write",
                access,
                target,
                lambda: (
                    f"{refused()}: only scripts write it",
                    f"it is written by {', '.join(sorted(target.written_by))}",
                ),
            )
        newer = target.successor
        if lacking and newer is not None and not any(_lacking(service, access.needs, target, True)):
            text = (target.own_form(service) or newer).text
            yield self._about(
                "key.legacy", access, target, lambda: (f"{refused()}, which is replaced", f"use {text}")
            )
            return
        for right in sorted(lacking):
            rule = "scope.write" if right & WRITE else "scope.read"
            holders = "consumers" if access.needs & GROUP and right == WRITE else _HOLDERS[right]
            yield self._about(
                rule,
                access,
                target,
                lambda holders=holders: (refused(), self._holders_hint(holders, target)),  # type: ignore[misc]
            )

    def _holders_hint(self, holders: str, target: Target) -> str:
        return self._who_may(holders, target.names_with(_RIGHTS[holders], self.policy.services))

    def _unregistered(self, service: int, name: str, access: Access, stray: Target | None) -> Found:
        key = access.key

        def words() -> tuple[str, str, str]:
            who, shown = self.who(service), self._shown(key, stray)
            message = f"{who} may not {name} {shown}: no entry of the policy covers it"
            return shown, message, self._instead(service, access, stray)

        found = self._violation("key.unregistered", access.position, key, stray, said("", ""))
        # No entry's: the report has such keys by their shape.
        return found._replace(entry="", shape="", words=words)

    def _instead(self, service: int, access: Access, stray: Target | None) -> str:
        """What to write in place of a key that no entry covers: what the policy says, or the same key behind
        a scope's prefix where that makes an entry's key that the service may use."""
        key = access.key
        if stray is not None:
            return f"use {standard_key(key, stray, service)}"
        for prefix in self._prefixes if len(key) <= MAX_CONFIRMED else ():
            target = self.policy.target(prefix + key)
            is_entry = target is not None and target.kind == "entry"
            if target is not None and is_entry and not any(_lacking(service, access.needs, target)):
                return f"use {self._shown(prefix + key, target)}"
        claims = " or ".join(self.policy.claims)
        return f"every key begins with {claims}" if claims else "register the key in the policy first"

    def _legacy(self, service: int, name: str, access: Access, target: Target) -> Iterator[Found]:
        """A legacy key has one answer: what its exception allows passes, all else is `key.legacy`."""
        if not any(_lacking(service, access.needs, target)):
            return
        key = access.key

        def words() -> tuple[str, str]:
            message = f"{self.who(service)} may not {name} {self._shown(key, target)}, a deprecated form"
            if target.has_lapsed:
                message += " that was tolerated for a while"
            return message, f"use {standard_key(key, target, service)}"

        yield self._about("key.legacy", access, target, words)

    def _named(self, access: Access, target: Target) -> Iterator[Found]:
        """What is wrong with the name itself, whatever kind of key it is."""
        for fault in self._name_faults(access.key, target):
            found = self._about(
                fault.rule,
                access,
                target,
                lambda fault=fault: self._name_words(fault, access.key, target),  # type: ignore[misc]
            )
            yield found if fault.severity == "must" else found._replace(severity="should")

    def _name_words(self, fault: NameFault, key: bytes, target: Target) -> tuple[str, str]:
        shown = self._shown(key, target)
        return fault.message.replace("{lower}", lowered(shown)).replace("{key}", shown), fault.hint

    def is_well_named(self, key: bytes, target: Target) -> bool:
        """Whether a name keeps all that is asked of it, as far as a glance shows."""
        limit = target.entry.max_length if target.entry is not None else None
        if limit is not None and len(key) > limit.most:
            return False
        if target.hash_tag != "any" and hash_tag_fault(key, target.hash_tag):
            return False
        return self.policy.home(target).names.admits(key)

    def _name_faults(self, key: bytes, target: Target) -> Iterator[NameFault]:
        limit = target.entry.max_length if target.entry is not None else None
        for fault in self.policy.home(target).names.faults(key, limit):
            # What is of no form was told so already, and better.
            if fault.rule != "key.format" or target.kind not in ("malformed", "claim"):
                yield fault
        tag = hash_tag_fault(key, target.hash_tag)
        if tag is not None:
            yield tag


_HOLDERS = {READ: "readers", WRITE: "writers"}
_RIGHTS = {"readers": READ, "writers": WRITE, "consumers": GROUP}


def _lacking(service: int, needs: int, target: Target, all_held: bool = False) -> Iterator[int]:
    """The rights (READ, WRITE) that an access needs and the service doesn't have on a target.

    `all_held`: what its replacement has taken from an entry counts as held.
    """
    held = target.rights[service]
    if not all_held:
        held &= ~target.denied[service]
    elif target.denied_before:
        held &= ~target.denied_before[service]
    if needs & GROUP and held & GROUP:
        needs &= ~WRITE  # a group's books only; what is read with them (XREADGROUP) is read
    if needs & READ and not held & READ:
        yield READ
    if needs & WRITE and not held & WRITE and not (needs & DELETE and held & DELETE):
        yield WRITE
    if not needs and not held:
        yield READ


def _prefixes(policy: CompiledPolicy) -> tuple[bytes, ...]:
    """What may be missing before a key that no entry covers: the prefixes of scopes, so many at most."""
    scopes = [
        one.pattern.literal_prefix for one in policy.targets if one.kind == "scope" and one.pattern.is_prefix
    ]
    return tuple(dict.fromkeys(prefix for prefix in scopes if prefix))[:MAX_PREFIXES]


def _form_hint(key: bytes, target: Target) -> str:
    held = target.pattern.capture(key)
    if held is not None and not held.get(REST):
        return "the part after the prefix is missing"
    return f"for example {printable(target.standard.example(held or {}))}" if target.standard else ""
