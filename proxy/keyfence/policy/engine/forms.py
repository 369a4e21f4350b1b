# cython: annotation_typing=False
"""Command forms, and the decision cache's entries for each.

Rule: two commands have one form if only key, value, fields and elements differ. If it is unclear whether an
argument is an option, the command has no form, and the evaluator decides.
"""

from __future__ import annotations

from array import array

from keyfence.commands import cache_forms
from keyfence.commands.arguments import integer, word
from keyfence.commands.extract import OneKey
from keyfence.policy.compiled.named import KINDS, NameCheck, TypeWords
from keyfence.policy.compiled.policy import Target
from keyfence.policy.compiled.sizes import Question
from keyfence.policy.compiled.written import MOST_FAULTS, Arrangement, WrittenCheck
from keyfence.shapes.skeleton import skeleton

from .counts import Admitted, ViolationCounter
from .evaluation import Evaluation
from .evidence import Evidence

MAX_FORMS = 64  # forms of one command; further ones take the slow path …
MAX_DECISIONS = 131_072  # … and those for which forms times targets exceed this
LONGEST_FORM = 6  # arguments
LONGEST_OPTION = 32  # bytes
RECENT_NAMES = 256  # command names to find by four of their letters and their length

_RECENT = 16  # forms of one command to find by the bytes of their options
_LETTERS = 65  # the options before scores begin with letters, and no score or coordinate but inf does
# As C integers, where this runs compiled.
_TO_END, _ONE_OPTION = cache_forms.TO_END, cache_forms.ONE_OPTION
_TRIMMING, _FLAGS = cache_forms.TRIMMING, cache_forms.FLAGS
_KEYLESS = cache_forms.KEYLESS
_RECENT_NAMES = RECENT_NAMES
# The faults of a command are a sum: those of what it writes and, each times a weight, those of its key
# and the number of the waivers that name the key, which is at most `waiver_keys.MAX_STATES`. So a sum fits
# 32 bits.
NAMED = (MOST_FAULTS + 1) ** 2
WAIVED = NAMED * KINDS
_NAMED = NAMED


class CommandForm:
    """One form of one command."""

    def __init__(
        self,
        one: OneKey,
        kind: int,
        layout: cache_forms.Layout,
        targets: int,
        spelled: bytes,
        evidence: Evidence,
    ) -> None:
        """`kind` is where the options are (`cache_forms`); `targets` is how many the policy has; `evidence`
        is that of a command on keys of no target, or without keys."""
        name = one.command.name
        self.name = name
        self.one = one
        self.kind = kind
        self.layout = layout
        self.spelled = spelled  # the command's name as the client spells it
        self.index = one.key_at  # the index of the key
        self.shows_content = one.shows_content
        self.options_at = layout.options_at
        self.content = layout.content
        self.content_at = layout.content_at
        self.arrangement = Arrangement(layout)
        self.targets = targets
        self.decisions: list[CachedDecision | None] = []  # by target …
        self.kept = 0  # … with room for this many: for all of them, once one is kept
        self.on_no_target = CachedDecision(self, -1, False, evidence)
        self.on_no_target.is_clean = kind == _KEYLESS
        # For a command whose options decide: its forms by their options. For such a form: its options as
        # sent.
        self.forms: dict[tuple[bytes, ...], CommandForm | None] = {}
        self.most_forms = min(MAX_FORMS, MAX_DECISIONS // max(targets, 1))
        self.recent: list[CommandForm | None] = []  # those found last, once one was found
        self.written = b""

    def keep(self, decision: CachedDecision) -> None:
        """Keep the decision about the keys of one target."""
        if not self.kept:
            self.decisions = [None] * self.targets
            self.kept = self.targets
        self.decisions[decision.target] = decision

    def options_end(self, data: bytes, places: array[int], count: int) -> int:
        """The number of the argument after the options, in a call of `count` arguments, which begin and end
        in `data` where `places` says. `sent_with` shows whether these are the options."""
        at = self.options_at
        if self.kind == _TO_END:
            return count
        if self.kind == _ONE_OPTION:
            return at + 1 if count == at + 2 else -1
        if self.kind == _TRIMMING:
            return at + 4 if count > at and places[2 * at + 1] - places[2 * at] > 1 else at + 1
        while at < count and data[places[2 * at]] >= _LETTERS:
            at += 1
        return at

    def sent_with(self, data: bytes, start: int, end: int) -> CommandForm | None:
        """The form with the options `data[start:end]`, as they are sent; None if `with_options` has not found
        it lately."""
        if not self.recent:
            return None
        form = self.recent[_bucket(data, start, end)]
        return form if form is not None and stands(form.written, data, start, end) else None

    def with_options(self, argv: list[bytes]) -> CommandForm | None:
        """The form with the options of this call; None for a rare one."""
        options = self._options(argv)
        if options is None or len(options) > LONGEST_FORM:
            return None
        if options in self.forms:
            form = self.forms[options]
        elif len(self.forms) >= self.most_forms or max(map(len, options), default=0) > LONGEST_OPTION:
            return None
        else:
            form = self.forms[options] = self._new_form(options)
        if form is not None:
            if not self.recent:
                self.recent = [None] * _RECENT
            self.recent[_bucket(form.written, 0, len(form.written))] = form
        return form

    def _options(self, argv: list[bytes]) -> tuple[bytes, ...] | None:
        """The arguments that are options, with the `*` after XADD's."""
        at, size = self.options_at, len(argv)
        if self.kind == _TO_END:
            stop = size
        elif self.kind == _ONE_OPTION:
            stop = at + 1 if size == at + 2 else -1
        elif self.kind == _FLAGS:
            stop = at
            while (
                stop < size and stop <= at + LONGEST_FORM and word(argv[stop]) in cache_forms.SCORED_OPTIONS
            ):
                stop += 1
        elif size > at and argv[at] == b"*":
            stop = at + 1
        else:
            stop = at + 4 if size > at + 3 and argv[at + 3] == b"*" else -1
        return tuple(argv[at : min(stop, at + LONGEST_FORM + 1)]) if stop >= 0 else None

    def _new_form(self, options: tuple[bytes, ...]) -> CommandForm | None:
        if self.kind == _TRIMMING and len(options) > 1 and not is_trimmed(options):
            return None
        evidence = self.on_no_target.evidence
        form = CommandForm(self.one, self.kind, self.layout, self.targets, self.spelled, evidence)
        if not form.content_at:
            form.content_at = form.options_at + len(options)
        if b"INCR" in map(word, options):
            form.arrangement = Arrangement(self.layout._replace(is_scored=False))  # it is an increment
        form.written = b"".join([b"$%d\r\n%b\r\n" % (len(option), option) for option in options])
        return form


UNKNOWN = -1  # an outcome that no answer of the evaluator has shown yet


class KeyKind:
    """What the keys of one target have in common in commands of one form (`calls`)."""

    def __init__(self, name: str, number: int, target: Target, run: int) -> None:
        """`name` is the command's; `number` is the target's; `run` is that of the run that the keys are
        in."""
        self.name = name
        self.number = number
        self.target = target
        self.run = run
        # All keys of a command must share a placeholder's value, but for those that a grant covers.
        self.binds = bool(target.alike)
        self.outcome = UNKNOWN  # the command's outcome for such a key (`ttl.outcome`)
        self.questions: tuple[Question, ...] = ()  # about the key's size, if the outcome leaves it open
        # What is checked in each call: a key's name, and the value behind it.
        self.named: NameCheck | None = None
        self.written: WrittenCheck | None = None
        self.looks = 0  # as of `CachedDecision`
        self.turn = 0  # the last command that had such a key …
        self.at = 0  # … the position of its first one …
        self.before: KeyKind | None = None  # … and the kind that came before in that command
        self.recent: Call | None = None  # the answer that was found last for a command with such a key

    def checks(self, named: NameCheck | None, written: WrittenCheck | None) -> None:
        """Check these in each call."""
        self.named, self.written = named, written
        self.looks = 0 if named is None and written is None else 1


class Call(Admitted):
    """The evaluator's answer about commands with keys of the same kinds, and how many were admitted."""

    def __init__(self, name: str, evidence: Evidence, is_trusted: bool) -> None:
        """`is_trusted`: it runs a script that may run on a connection that clients share."""
        super().__init__(name, evidence)
        self.is_trusted = is_trusted
        self.way = 0  # how sessions send such commands, once one has; the values are theirs
        self.hit = new_lookup(None, "", 0, self)


class CachedDecision(Admitted):
    """What the evaluator said of one command form on the keys of one target, and how many such commands were
    admitted."""

    def __init__(self, form: CommandForm, target: int, is_covered: bool, evidence: Evidence) -> None:
        super().__init__(form.name, evidence)
        self.form = form
        self.target = target  # its index; -1: no target, or no key
        self.is_covered = is_covered  # violations are counted together, not for each shape of key
        self.outcome = 0  # the command's outcome for its key's time to live (`ttl.outcome`)
        self.is_clean = False  # nothing is wrong if the checks of a call find nothing
        # What is checked in each call: the key's name, the words in it, and what is written.
        self.named: NameCheck | None = None
        self.words: TypeWords | None = None
        self.written: WrittenCheck | None = None
        self.looks = 0  # 1: there is something to check; -1: something that the cache cannot check
        # The counters of such commands (`mark`).
        self.counters: dict[int | bytes | tuple[int, bytes] | None, ViolationCounter] = {}
        self.by_shape: dict[str, ViolationCounter] = {}  # the same by shape, for keys of no known skeleton
        self.recent: ViolationCounter | None = None  # the counter that `counter` has found last …
        self.recent_faults = 0  # … for a command with these faults
        self.further = Admitted("", evidence)  # counts refused commands, which are evidence too
        self.hit = new_lookup(self, "", 0)
        self.miss = new_lookup(self, RULE, 0)  # if the checks find nothing either …
        self.recent_miss: Lookup | None = None  # … and what was found last if they do

    def checks(self, named: NameCheck | None, words: TypeWords | None, written: WrittenCheck | None) -> None:
        """Check these in each call."""
        self.named, self.words, self.written = named, words, written
        self.looks = 0 if named is None and words is None and written is None else 1

    def faults(self, data: bytes, places: array[int], count: int) -> int:
        """The faults of a call of `count` arguments, which begin and end in `data` where `places` says; 0:
        there are none; -1: more is wrong than a number can express."""
        found = 0
        check, form = self.written, self.form
        if check is not None:
            found = check.faults(data, places, count, form.content_at, form.arrangement)
            if found < 0:
                return -1
        if self.named is not None or self.words is not None:
            at = 2 * form.index
            found += self.key_faults(data, places[at], places[at + 1])
        return found

    def key_faults(self, data: bytes, start: int, end: int) -> int:
        """The faults that the key `data[start:end]` shows."""
        found = 0
        if self.named is not None:
            found = self.named.faults(data, start, end)
        if self.words is not None:
            found += self.words.faults(data, start, end)
        return found * _NAMED

    def counter(self, faults: int, key: bytes) -> ViolationCounter | None:
        """The counter of the violations that every command with these faults on a key like this one has; None
        if it is not known. If the target covers its keys, the key itself is not looked at."""
        recent = self.recent
        if not self.is_covered or recent is None or faults != self.recent_faults or not recent.live:
            recent = self.counters.get(self.mark(faults, key))
            if recent is not None and not recent.live:
                recent = None
            self.recent, self.recent_faults = recent, faults
        return recent

    def forget(self) -> None:
        """Forget all counters."""
        self.counters.clear()
        self.by_shape.clear()
        self.recent = None

    def mark(self, faults: int, key: bytes) -> int | bytes | tuple[int, bytes] | None:
        """What tells such commands from all with other violations; None: nothing that is checked here. If no
        entry covers the key, its skeleton does, together with the faults."""
        if faults < 0 or self.is_covered:
            return faults if faults >= 0 else None
        known = skeleton(key)
        if not known:
            return None
        return (faults, known) if faults else known


# The reasons why the cache does not admit a command: labels of a metric (docs/operations.md).
COMMAND = "command"
FORM = "form"
KEYS = "keys"
KEY = "key"
CONTENT = "content"
RULE = "rule"


class Lookup:
    """The cache's answer to one command. `new_lookup` makes it."""

    decision: CachedDecision | None  # of a command with one key; None: nothing is known
    # For an admitted command with several keys, a script, a pattern or a channel: the answer, and the keys
    # that it leaves something open for, with their positions; None: there are none.
    call: Call | None
    opens: list[tuple[KeyKind, int]] | None
    is_admitted: bool  # the command passes
    reason: str  # why it is not admitted
    # Encodes the faults of the key's name and of what is written, and the waivers that name the key; 0: none.
    # -1: unknown, so there is no common counter.
    faults: int
    asked: Evaluation | None  # the evaluation of the command, if the evaluator was asked about it


def new_lookup(
    decision: CachedDecision | None,
    reason: str,
    faults: int,
    call: Call | None = None,
    opens: list[tuple[KeyKind, int]] | None = None,
) -> Lookup:
    """Makes an answer. Compiled code calls this without a tuple of arguments, which a class would need."""
    lookup = Lookup.__new__(Lookup)
    lookup.decision = decision
    lookup.call = call
    lookup.opens = opens
    lookup.is_admitted = not reason
    lookup.reason = reason
    lookup.faults = faults
    lookup.asked = None
    return lookup


def shows_more(faults: int) -> bool:
    """Whether a key has faults whose words depend on more than the key (a length, a number of levels)."""
    return faults // NAMED % KINDS > 0


def is_trimmed(options: tuple[bytes, ...]) -> bool:
    """Whether XADD's options are MAXLEN, ~ or =, and a number, so that the ID follows."""
    trims = word(options[0]) == b"MAXLEN" and word(options[1]) in (b"~", b"=")
    return trims and integer(options[2]) is not None


def _bucket(data: bytes, start: int, end: int) -> int:
    """The place among the recent forms of the one with the options `data[start:end]`, as they are sent."""
    if end - start < 5:
        return 0  # without options
    raw = data
    return (end - start + raw[end - 3] + 3 * raw[end - 4]) % _RECENT


def stands(text: bytes, data: bytes, start: int, end: int) -> bool:
    """Whether `data[start:end]` is `text`. The span must be within the data."""
    size = len(text)
    if end - start != size or end > len(data) or start < 0:
        return False
    one, other = text, data
    for at in range(size):  # noqa: SIM110 - a loop in C, where it is compiled
        if one[at] != other[start + at]:
            return False
    return True


def name_bucket(data: bytes, start: int, end: int) -> int:
    """The place of the command's name `data[start:end]`, of two letters or more, among RECENT_NAMES. Few of
    the frequent names share one: commands that do, and take turns, are taken apart into objects."""
    raw, size = data, end - start
    letters = 61 * raw[start] + 62 * raw[start + 1] + 60 * raw[start + size // 2] + 23 * raw[end - 1]
    return (letters + 37 * size) % _RECENT_NAMES


def places_of(argv: list[bytes]) -> array[int]:
    """Where each argument begins and ends if they are joined."""
    places = array("q", bytes(16 * len(argv)))
    at = 0
    for number, argument in enumerate(argv):
        places[2 * number] = at
        at += len(argument)
        places[2 * number + 1] = at
    return places
