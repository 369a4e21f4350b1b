"""Applications that bring keys of their own, such as BullMQ and Celery: found by their shipped policies.

Rule: a shipped policy is proposed only if it admits what was seen of its keys. Its keys get no entries in
the draft."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from keyfence.authoring.replay import verdict_on
from keyfence.commands.model import Script
from keyfence.policy.compiled.policy import CompiledPolicy, Target
from keyfence.policy.compiled.scripts import RUNNING
from keyfence.policy.diagnostics import FileError
from keyfence.policy.engine.evaluator import Evaluator
from keyfence.policy.loading.load import parse_policy
from keyfence.policy.source.yaml_edits import with_lines
from keyfence.policy.units import counted as count
from keyfence.policy.wording.command_log import Recorded

from .seen import MARK, Evidence
from .text import listed, plain, spoken

_MIN_WORDS = 2  # of an application's own, which keys must show
_MOST_REFUSED = 0.02  # the share of its commands that its policy may refuse
_WORD = re.compile("[A-Za-z]{3,}")
_SERVICE = "app"  # the one service of a shipped policy
_LISTS = re.compile(rf"(?m)(?<=: ){_SERVICE}$|\[{_SERVICE}\]")
# A script of another version is no reason to do without the policy. It is listed like everything else.
_OF_VERSIONS = ("script.unregistered",)
_DEFAULT = re.compile("(?m)^(unregistered_scripts: )([a-z_]+)")
_WHY_WORDS = (
    "# Another file lets these services run scripts that it does not know, if all files of the folder do."
)


class Application(NamedTuple):
    """A shipped policy whose keys were seen."""

    name: str
    text: str  # with the services that use its keys
    claims: tuple[str, ...]
    services: tuple[str, ...]
    keys: frozenset[str]
    channels: frozenset[str]
    scripts: frozenset[str]
    times: int
    unregistered: str  # what a scope lets scripts do that it does not know: "report"; "" if no scope does

    def sentence(self, beside: str = "") -> str:
        """Returns what a draft, or the extension of a policy (`beside`), leaves to this policy."""
        where = f" ({spoken(self.claims)})" if self.claims else ""
        who = f" by {spoken(self.services)}" if self.services else ""
        seen = (
            f"{count(len(self.keys), 'key')} of {self.name}{where}, with {count(self.times, 'command')}{who}"
        )
        how = "keyfence draft --output FOLDER/ writes both"
        how = f"keyfence policies applications/{self.name} prints it" if beside else how
        return (
            f"{seen}, are left to the shipped policy applications/{self.name}. Put it into one folder with "
            f"{beside or 'this file'}, with its services in place of app: {how}."
        )


def applications_in(evidence: Evidence, shipped: Mapping[str, str]) -> list[Application]:
    """Returns the applications whose keys were seen. `shipped` are the texts of their policies by name."""
    candidates = []
    for name, text in shipped.items():
        policy = parse_policy(text)
        keys = _keys_of(policy, evidence)
        if keys and _is_seen(policy, keys, evidence):
            candidates.append(_application(name, text, policy, keys, evidence))
    found: list[Application] = []
    for refused, one in sorted(
        candidates, key=lambda one: (one[0], -len(one[1].scripts), -len(one[1].keys), one[1].name)
    ):
        if refused <= _MOST_REFUSED and all(one.keys.isdisjoint(other.keys) for other in found):
            found.append(one)
    return sorted(found, key=lambda one: one.name)


def without(evidence: Evidence, found: Iterable[Application]) -> Evidence:
    """Returns the evidence without what belongs to applications."""
    for one in found:
        evidence = evidence.without(one.keys | one.channels, one.scripts)
    return evidence


def _keys_of(policy: CompiledPolicy, evidence: Evidence) -> dict[str, Target]:
    """Returns the keys that lie in a policy's claims, or that are those of an entry, with their targets."""
    heads = {target.pattern.literal_prefix.decode("utf-8", "replace") for target in policy.targets}
    begun = policy.claims or tuple(head for head in heads if head) + tuple("0123456789abcdef")
    found = {}
    for key in evidence.keys:
        if not key.startswith(begun) or MARK in key:
            continue
        target = policy.target(key.encode("utf-8", "surrogateescape"))
        if target is not None:
            found[key] = target
        elif policy.claims:
            return {}  # another application's keys begin in the same way
    return found


def _is_seen(policy: CompiledPolicy, keys: Mapping[str, Target], evidence: Evidence) -> bool:
    """Whether these keys are those of the application, and not others that look alike."""
    entries = {target.name: target for target in keys.values() if target.kind == "entry"}
    words = {
        word for target in entries.values() for word in _WORD.findall(re.sub("<[^>]*>", " ", target.text))
    }
    runs = any(_is_registered(policy, name) for name in evidence.scripts)
    return len(words) + runs >= _MIN_WORDS and bool(words)


def _is_registered(policy: CompiledPolicy, name: str) -> bool:
    return policy.registration(Script("sha1", 0, name.encode("utf-8", "surrogateescape"), (), ())) is not None


def _application(
    name: str, text: str, policy: CompiledPolicy, keys: Mapping[str, Target], evidence: Evidence
) -> tuple[float, Application]:
    """Returns the application, and the share of its commands that its policy refuses."""
    channels = frozenset(
        channel
        for channel in evidence.channels
        if any(one.pattern.matches(channel.encode("utf-8", "surrogateescape")) for one in policy.channels)
    )
    lines = [one for one in evidence.lines if _is_about(one, keys.keys() | channels)]
    called = [one.touches.script for one in lines if one.touches.script is not None]
    scripts = {
        script.name.decode("utf-8", "replace").lower() for script in called if policy.registration(script)
    }
    uses = [evidence.keys[key].uses for key in keys] + [evidence.channels[one] for one in channels]
    services = tuple(sorted({service for use in uses for service in use}))
    changed = with_services(text, services)
    times = sum(one.times for one in lines)
    refused = 0
    try:
        evaluator = Evaluator(parse_policy(changed))
        for one in lines:
            rules = {violation.rule for violation in verdict_on(evaluator, one).violations}
            refused += one.times * bool(rules.difference(_OF_VERSIONS))
    except FileError:
        refused = times + 1
    found = Application(
        name,
        changed,
        tuple(policy.claims),
        services,
        frozenset(keys),
        channels,
        frozenset(scripts),
        times,
        next((one.unregistered_scripts for one in policy.targets if one.unregistered_scripts in RUNNING), ""),
    )
    return refused / max(times, 1), found


def _is_about(one: Recorded, names: Iterable[str]) -> bool:
    """Whether a command names keys and channels of an application, and no others."""
    touched = [access.key for access in one.touches.accesses] + [
        channel.name for channel in one.touches.channels
    ]
    return bool(touched) and all(name.decode("utf-8", "surrogateescape") in names for name in touched)


def in_one_folder(name: str, text: str, found: Iterable[Application]) -> dict[str, str]:
    """Returns the texts of a draft and of applications by name, as they work together in one folder. A script
    that one of them lets run can touch the keys of all, so each of them must let it run."""
    applications = list(found)
    texts = {name: text} | {one.name: one.text for one in applications}
    for of_file in texts:
        words = {
            service: one.unregistered
            for one in applications
            for service in one.services
            if one.unregistered and one.name != of_file
        }
        if words:
            texts[of_file] = _with_words(texts[of_file], words)
    return texts


def _with_words(text: str, words: Mapping[str, str]) -> str:
    """Returns a policy that lets services do this with scripts that are not registered."""
    text = with_lines(text, {"services": sorted(words)})
    services = f"services: {{{', '.join(f'{plain(service)}: {word}' for service, word in words.items())}}}"
    text, times = _DEFAULT.subn(rf"\1{{default: \2, {services}}}", text)
    return text if times else f"{text}\n{_WHY_WORDS}\nunregistered_scripts: {{{services}}}\n"


def with_services(text: str, services: Iterable[str]) -> str:
    """Returns a shipped policy for these services in place of its own."""
    names = list(services)
    return _LISTS.sub(lambda _: listed(names), text) if names else text
