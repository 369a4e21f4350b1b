"""What the decision cache asks the evaluator, once for each command, kind of key and set of kinds.

Rule: an answer is kept only if it holds for all commands of the same form whose keys have the same targets,
and at any time. `checks.Standing` says what of a key the evaluator's answer leaves in doubt; each doubt is
resolved by a check that the cache makes in each call, or the cache gives up.

The evaluator is asked about a command with one key of each target. If that command breaks no rule, one with
more keys of these targets breaks none either, but for hash slots, which the cache compares.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from functools import partial

from keyfence.commands import cache_forms
from keyfence.commands.call_layouts import CALL_LAYOUTS
from keyfence.commands.extract import KEYLESS, ONE_KEY, extract
from keyfence.commands.model import Access, Touches
from keyfence.policy.budget import Budget, driven
from keyfence.policy.compiled.named import TypeWords
from keyfence.policy.compiled.policy import Entry, Target
from keyfence.policy.compiled.scripts import Registration
from keyfence.policy.compiled.sizes import questions
from keyfence.policy.compiled.tenants import Values
from keyfence.policy.compiled.ttl import FINE, UNSIZED
from keyfence.policy.compiled.written import BY_THE_FORM, WrittenCheck, can_check, checked_by

from . import checks
from .asker import Asker
from .command_evidence import NONE, evidence_of
from .content import breaks
from .evaluation import NOTHING_KNOWN, Known
from .evaluator import Evaluator
from .forms import Call, CommandForm, CommandForms, KeyKind, places_of
from .runs import Run

# Doubts about which the evaluator's answer holds for all keys of one target, unless a grant may cover some of
# them.
_ALIKE = checks.COMMANDS | checks.RIGHTS | checks.FORM | checks.TYPE | checks.LIFETIME | checks.CARRIED


class Answers:
    """The evaluator's answers for one service."""

    def __init__(self, evaluator: Evaluator, service: int, among: Container[str]) -> None:
        """`among` are the commands that may be admitted."""
        self._evaluator = evaluator
        self._policy = evaluator.policy
        self._service = service
        self._among = among
        self._evidence = partial(evidence_of, self._policy, service, basis=evaluator.basis)
        # By target and what a command writes.
        self._written: dict[tuple[int, int], WrittenCheck] = {}

    def knows(self, name: bytes) -> bool:
        """Whether a server has a command of this name whose keys the cache can find."""
        return name in ONE_KEY or name in CALL_LAYOUTS or name in KEYLESS

    def command(self, name: bytes) -> CommandForms | None:
        """A command that `knows`, without any form yet; None if the evaluator has to see each."""
        one, call = ONE_KEY.get(name), CALL_LAYOUTS.get(name)
        command = one.command if one else call.command if call else KEYLESS[name]
        if command.name not in self._among:
            return None
        if one is not None and one.options_decide and one.layout.options == cache_forms.NO_OPTIONS:
            return None
        if one is None and call is None and not self._evaluator.admits_alone(self._service, name):
            return None
        touches = Touches(command, (Access(0, b"", 0),) if one is not None else ())
        targets = max(len(self._policy.targets), len(self._policy.channels))
        return CommandForms(name, command, one, call, targets, self._evidence(touches))

    # -- one kind of key

    def kind(
        self,
        form: CommandForm,
        run: Run | None,
        at: int,
        number: int,
        argv: list[bytes],
        known: Known = NOTHING_KNOWN,
    ) -> KeyKind:
        """What all keys of the target `number` have in common that stand in the same run as the key at `at`.
        Without a run, it is the command's only key. `known` is what is known of the whole command."""
        if run is not None and run.is_channel:
            channel = self._policy.channels[number]
            kind = KeyKind(form, number, channel, NONE, run.number)
            kind.joins = channel.tenancy is None
            return kind
        alone, position = argv, at
        if run is not None:
            last = form.command.runs[-1]
            alone = shortened(form.command, argv, [at if run is last else last.at])
            position = run.at if run is last and alone is not argv else at
        touches = extract(alone) if known.touches is None else known.touches
        accesses = [one for one in touches.accesses if one.position == position]
        if form.index and (len(touches.accesses) > 1 or touches.problem is not None):
            accesses = []
        evidence = self._evidence(touches, keys=known.keys) if form.index else NONE
        kind = KeyKind(form, number, self._policy.targets[number], evidence, run.number if run else 0)
        self._assess(kind, touches, accesses[0] if len(accesses) == 1 else None)
        return kind

    def _assess(self, kind: KeyKind, touches: Touches, access: Access | None) -> None:
        """Note what the evaluator says of all keys of a kind. `access` is what the command touches there;
        None: that is not one key."""
        target, command = kind.target, touches.command
        resolved = self._prepare(kind, access)
        if resolved < 0:
            kind.looks = -1
        if resolved < 0 or target is None or command is None or access is None:
            return
        doubts, kind.outcome = self._evaluator.standing_of_all(self._service, command, access, target)
        kind.is_clean = not doubts & ~resolved
        if kind.form.command.has_several:
            has_grants = self._evaluator.has_grants(self._service, command.name)
            # Without grants, the answer about one key of each target is that about all of them.
            kind.binds = has_grants and bool(target.alike)
            alike = 0 if has_grants else _ALIKE
            kind.joins = not doubts & (checks.TYPE_IN_KEY | ~(resolved | alike))
        if target.entry is not None and kind.outcome in UNSIZED:
            kind.questions = tuple(questions(target.entry, access))

    def _prepare(self, kind: KeyKind, access: Access | None) -> int:
        """Prepare the checks of each key of a kind. Returns the doubts of the evaluator that these resolve,
        as a sum; -1: a fault is possible that the cache cannot find."""
        resolved = checks.OPEN  # the outcome is kept with the kind
        named = words = written = None
        target, form = kind.target, kind.form
        if target is None:
            return resolved
        if target.kind in checks.NAMED and not target.names_sure:
            named = self._evaluator.checks.keys.name_check(target)
            resolved |= checks.NAME
        entry = target.entry if target.kind in ("entry", "scope") else None
        if target.kind in ("entry", "scope") and not (entry is not None and entry.types):
            given = self._policy.home(target).type_words
            if given and (access is None or checks.carries(access)):
                return -1
            words = TypeWords(given, access.types) if given and access is not None and access.types else None
            resolved |= checks.TYPE_IN_KEY
        if entry is None or not _shows_content(form.command, access):
            resolved |= checks.CONTENT
        elif entry.on_content:
            content = form.command.layout.content
            if not can_check(entry, content):
                return -1
            written = self._written_check(kind.number, entry, content)
            by_form = checked_by(BY_THE_FORM, entry, content)
            if access is not None and not breaks(by_form, access, entry):
                resolved |= checks.CONTENT
        kind.checks(named, words, written)
        return resolved

    def _written_check(self, number: int, entry: Entry, content: int) -> WrittenCheck | None:
        """The check of such content in the keys of an entry, if the entry requires anything of it."""
        check = self._written.get((number, content))
        if check is None:
            check = self._written[number, content] = WrittenCheck(entry, content)
        return check if check.requires else None

    # -- a set of kinds

    def call(
        self,
        form: CommandForm,
        chosen: list[KeyKind],
        several: bool,
        argv: list[bytes],
        values: Values,
        budget: Budget,
    ) -> Call | None:
        """The evaluator's answer about a command with one key of each kind; None if it finds a violation, or
        its answer may be another one for the next command. `several`: a rule about several keys is asked. It
        takes its steps from `budget`."""
        command = form.command
        last = len(command.runs) - 1
        one = shortened(command, argv, [kind.at for kind in chosen if kind.run == last])
        touches = extract(one)
        if not self._is_kept(command, one, touches):
            return None
        evaluator = self._evaluator
        # What a pattern reaches depends on the caller; what it reaches without values, it reaches with them.
        asker = Asker(self._service, values if touches.pattern is None else ())
        evaluation = evaluator.evaluation(asker, one, touches)
        evaluation.budget = budget
        if driven(evaluator.verdict(evaluation)).violations:
            return None
        left = {open_key.access.position: open_key.outcome for open_key in evaluation.left_open}
        for access in touches.accesses:
            kind = self._kind_at(command, chosen, access)
            if kind is None or kind.outcome != left.get(access.position, FINE):
                return None
        is_trusted = touches.script is not None and self._policy.shares(touches.script)
        return Call(command.name, self._evidence(touches, several=several), is_trusted)

    def _target(self, access: Access) -> Target:
        return self._policy.targets[self._policy.classifier.first(access.key)]

    def _kind_at(self, command: CommandForms, chosen: list[KeyKind], access: Access) -> KeyKind | None:
        """The kind of one key of a command that was placed last."""
        target = self._target(access)
        for kind in chosen:
            run = command.runs[kind.run]
            if kind.target is target and access.position in range(run.at, run.stop, run.step):
                return kind
        return None

    def _is_kept(self, command: CommandForms, argv: list[bytes], touches: Touches) -> bool:
        """Whether an answer about a command holds for others like it, and at any time. It places the
        command."""
        evaluator = self._evaluator
        keys: list[int] = []
        channels: list[int] = []
        data, places, count = b"".join(argv), places_of(argv), len(argv)
        for run in command.runs:
            if not run.place(data, places, count):
                return False
            (channels if run.is_channel else keys).extend(range(run.at, run.stop, run.step))
        if keys != [one.position for one in touches.accesses]:
            return False
        if channels != [one.position for one in touches.channels]:
            return False
        if touches.problem is not None or touches.databases:
            return False
        if touches.pattern is not None:
            return not evaluator.may_lapse
        if touches.script is None and not touches.channels:
            return bool(keys)
        if evaluator.may_lapse or evaluator.has_grants(self._service, command.name):
            return False
        registration = None if touches.script is None else self._policy.registration(touches.script)
        if registration is None:
            return True
        return _touches_its_keys_alone(registration, [self._target(one) for one in touches.accesses])


def _shows_content(command: CommandForms, access: Access | None) -> bool:
    """Whether such a command may show what the key holds afterwards."""
    if command.index:
        return command.shows_content
    return access is None or (access.content is not None and access.content.carried is None)


def _touches_its_keys_alone(registration: Registration, targets: Sequence[Target]) -> bool:
    """Whether a script touches nothing but its declared keys, and may do so with any keys of these
    targets."""
    if registration.reads or registration.writes or registration.publishes or registration.prefixes:
        return False
    patterns = registration.patterns
    return not patterns or (len(patterns) == len(targets) == 1 and patterns[0] == targets[0].pattern)


def shortened(command: CommandForms, argv: list[bytes], chosen: list[int]) -> list[bytes]:
    """A command of the same form that has only these keys of the last run."""
    if command.options != cache_forms.NO_OPTIONS or not command.runs:
        return argv
    run = command.runs[-1]
    kept = [argv[at + more] for at in chosen for more in range(run.step)]
    before, behind = argv[: run.at], argv[run.stop :]
    if run.is_counted:
        before[run.count_at] = b"%d" % len(chosen)
    return before + kept + (behind[: len(chosen)] if run.limit > 1 else behind)
