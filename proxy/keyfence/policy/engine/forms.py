# cython: annotation_typing=False
"""What the decision cache keeps: commands, their forms, the kinds of their keys, and answers.

Rule: two commands have one form if only keys, values, fields and elements differ. If it is unclear whether an
argument is an option, the command has no form, and the evaluator is asked. What depends on a key's name or on
what is written is checked in each call. Tables are bounded.
"""

from __future__ import annotations

from array import array

from keyfence.commands import cache_forms
from keyfence.commands.arguments import integer, word
from keyfence.commands.call_layouts import CallLayout
from keyfence.commands.extract import OneKey
from keyfence.commands.model import Command
from keyfence.commands.table import COMMANDS
from keyfence.policy.compiled.named import KINDS, NameCheck, TypeWords
from keyfence.policy.compiled.policy import Target
from keyfence.policy.compiled.sizes import Question
from keyfence.policy.compiled.ttl import FINE
from keyfence.policy.compiled.written import MOST_FAULTS, Arrangement, WrittenCheck
from keyfence.policy.verdict import COVERED
from keyfence.shapes.skeleton import skeleton

from .command_evidence import Evidence
from .counts import Admitted, ViolationCounter
from .evaluation import Known
from .runs import runs_of

MAX_FORMS = 64  # forms of one command …
MAX_KINDS = 131_072  # … and kinds of keys of all commands; beyond these, all are forgotten and asked for anew
LONGEST_FORM = 6  # arguments that decide …
MOST_BYTES = 1024  # … and their length
RECENT_NAMES = 256  # command names to find by four of their letters and their length

_RECENT = MAX_FORMS  # forms of one command to find by some bytes of their options
_LETTERS = 65  # the options before scores begin with letters, and no score or coordinate but inf does
# As C integers, where this runs compiled.
_NO_OPTIONS, _TO_END, _ONE_OPTION = cache_forms.NO_OPTIONS, cache_forms.TO_END, cache_forms.ONE_OPTION
_TRIMMING, _FLAGS, _UP_TO = cache_forms.TRIMMING, cache_forms.FLAGS, cache_forms.UP_TO
_RECENT_NAMES = RECENT_NAMES
# The faults of a command are a sum: those of what it writes and, each times a weight, those of its key
# and the number of the waivers that name the key, which is at most `waiver_keys.MAX_STATES`. So a sum fits
# 32 bits.
NAMED = (MOST_FAULTS + 1) ** 2
WAIVED = NAMED * KINDS
_NAMED = NAMED


class CommandForms:
    """One command, by its name as clients spell it, and its forms."""

    def __init__(
        self,
        spelled: bytes,
        command: Command,
        one: OneKey | None,
        call: CallLayout | None,
        targets: int,
        evidence: Evidence,
    ) -> None:
        """`one` says where the key is of a command that may have a single one; `call` where keys are and what
        decides if there may be several, or a script, a pattern or a channel. `targets` is how many kinds of
        keys the policy tells apart; `evidence` is that of a command on keys of no target, or without keys."""
        self.spelled = spelled
        self.name = command.name
        of_row = one or call
        self.layout = layout = of_row.layout if of_row is not None else cache_forms.PLAIN
        self.index = one.key_at if one is not None else 0  # the index of a single key; 0: see `runs`
        self.shows_content = one is not None and one.shows_content
        self.runs = runs_of(call) if call is not None else []
        self.has_several = call is not None
        self.answers_twice = COMMANDS[self.name.encode()].facts.answers_twice
        self.options, self.options_at, self.options_to = layout.options, layout.options_at, 0
        if call is not None and call.decides[0]:
            self.options_at, self.options_to = call.decides
            self.options = _UP_TO if self.options_to else _TO_END
        self.targets = targets
        self.evidence = evidence
        self.most_forms = min(MAX_FORMS, MAX_KINDS // max(targets * len(self.runs), targets, 1))
        # Further forms of a command with one key take the slow path, because clients compute options. Those
        # of other commands replace the earlier ones, because patterns come in and go out of use.
        self.renews = one is None
        self.forget()

    def forget(self) -> None:
        """Forget all forms."""
        self.only = CommandForm(self, ()) if self.options == _NO_OPTIONS else None
        self.forms: dict[tuple[bytes, ...], CommandForm] = {}  # by their options
        self.recent: list[CommandForm | None] = [None] * _RECENT  # those found last

    def options_end(self, data: bytes, places: array[int], count: int) -> int:
        """The number of the argument after the options, in a call of `count` arguments, which begin and end
        in `data` where `places` says. `sent_with` shows whether these are the options."""
        at, options = self.options_at, self.options
        if options == _TO_END:
            return count
        if options == _UP_TO:
            return min(self.options_to, count)
        if options == _ONE_OPTION:
            return at + 1 if count == at + 2 else -1
        if options == _TRIMMING:
            return at + 4 if count > at and places[2 * at + 1] - places[2 * at] > 1 else at + 1
        while at < count and data[places[2 * at]] >= _LETTERS:
            at += 1
        return at

    def sent_with(self, data: bytes, start: int, end: int) -> CommandForm | None:
        """The form with the options `data[start:end]`, as they are sent; None if `with_options` has not found
        it lately."""
        form = self.recent[_bucket(data, start, end)]
        return form if form is not None and stands(form.written, data, start, end) else None

    def with_options(self, argv: list[bytes]) -> CommandForm | None:
        """The form with the options of this call; None for a rare one."""
        if self.only is not None:
            return self.only
        options = self._options(argv)
        if options is None:
            return None
        form = self.forms.get(options)
        if form is None:
            if len(options) > LONGEST_FORM or sum(map(len, options)) > MOST_BYTES:
                return None
            if self.options == _TRIMMING and len(options) > 1 and not is_trimmed(options):
                return None
            if self.answers_twice is not None and self.answers_twice(argv):
                return None
            if len(self.forms) >= self.most_forms:
                if not self.renews:
                    return None
                self.forms.clear()
            form = self.forms[options] = CommandForm(self, options)
        self.recent[_bucket(form.written, 0, len(form.written))] = form
        return form

    def _options(self, argv: list[bytes]) -> tuple[bytes, ...] | None:
        """The arguments that are options, with the `*` after XADD's."""
        at, size = self.options_at, len(argv)
        if self.options == _TO_END:
            stop = size
        elif self.options == _UP_TO:
            stop = min(self.options_to, size)
        elif self.options == _ONE_OPTION:
            stop = at + 1 if size == at + 2 else -1
        elif self.options == _FLAGS:
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


class CommandForm:
    """One form of one command."""

    def __init__(self, command: CommandForms, options: tuple[bytes, ...]) -> None:
        self.command = command
        self.name = command.name
        self.index = command.index
        self.written = b"".join([b"$%d\r\n%b\r\n" % (len(option), option) for option in options])  # as sent
        layout = command.layout
        # What it writes, from the key on.
        self.content_from = (layout.content_at or command.options_at + len(options)) - max(command.index, 1)
        if b"INCR" in map(word, options):
            layout = layout._replace(is_scored=False)  # it is an increment
        self.arrangement = Arrangement(layout)
        self.kinds: list[KeyKind | None] = []  # by run and target, once one is known
        self.on_no_target = KeyKind(self, -1, None, command.evidence)
        # For commands with several keys: the answers by the kinds of the keys, and whether a rule about
        # several keys was asked. None: something may be wrong.
        self.calls: dict[tuple[frozenset[KeyKind], bool], Call | None] = {}
        self.is_seen = False  # such a command has come before
        self.recent: Call | None = None  # the answer found last …
        self.recent_kinds = 0  # … the number of the kinds of its keys: those whose `recent` it is too …
        self.recent_several = False  # … and whether the rule was asked

    def keep(self, kind: KeyKind) -> None:
        """Keep what is known of the keys of one target."""
        targets = self.command.targets
        if not self.kinds:
            self.kinds = [None] * (targets * max(len(self.command.runs), 1))
        self.kinds[kind.run * targets + kind.number] = kind

    def find_first(self, call: Call | None, chosen: list[KeyKind], several: bool) -> None:
        """Find this answer first, if the next command has keys of the same kinds."""
        self.recent, self.recent_kinds, self.recent_several = call, len(chosen), several
        for kind in chosen:
            kind.recent = call


class KeyKind(Admitted):
    """What the keys of one target have in common in commands of one form: what the evaluator says of them,
    what is checked in each call, and how many commands with one such key alone were admitted."""

    def __init__(
        self, form: CommandForm, number: int, target: Target | None, evidence: Evidence, run: int = 0
    ) -> None:
        """`number` is the target's; -1: no target, or no key. `run` is that of the run that the keys are
        in."""
        super().__init__(form.name, evidence)
        self.form = form
        self.number = number
        self.target = target
        self.run = run
        # Violations are counted together, not for each shape of key.
        self.is_covered = target is not None and target.kind in COVERED
        self.outcome = FINE  # the command's outcome for such a key (`ttl.outcome`)
        self.questions: tuple[Question, ...] = ()  # about the key's size, if the outcome leaves it open
        # What is checked in each call: the key's name, the words in it, and what is written.
        self.named: NameCheck | None = None
        self.words: TypeWords | None = None
        self.written: WrittenCheck | None = None
        self.looks = 0  # 1: there is something to check; -1: something that the cache cannot check
        self.is_clean = False  # nothing is wrong with a single key if the checks of a call find nothing
        self.joins = False  # one answer holds for commands with any number of such keys
        # All keys of a command must share a placeholder's value, but for those that a grant covers.
        self.binds = False
        # In the current command with several keys, and in the last one:
        self.turn = 0  # the number of the last command that had such a key …
        self.at = 0  # … the position of its first one …
        self.before: KeyKind | None = None  # … and the kind that came before in that command
        self.recent: Call | None = None  # the answer that was found last for a command with such a key
        # The counters of commands with one such key (`mark`).
        self.counters: dict[int | bytes | tuple[int, bytes] | None, ViolationCounter] = {}
        self.by_shape: dict[str, ViolationCounter] = {}  # the same by shape, for keys of no known skeleton
        self.recent_counter: ViolationCounter | None = None  # the one that `counter` has found last …
        self.recent_faults = 0  # … for a command with these faults
        self.further = Admitted("", evidence)  # counts refused commands, which are evidence too
        self.hit = new_lookup(self, "", 0)
        self.miss = new_lookup(self, RULE, 0)  # if the checks find nothing either …
        self.recent_miss: Lookup | None = None  # … and what was found last if they do

    def checks(self, named: NameCheck | None, words: TypeWords | None, written: WrittenCheck | None) -> None:
        """Check these in each call."""
        self.named, self.words, self.written = named, words, written
        self.looks = 0 if named is None and words is None and written is None else 1

    def faults(self, data: bytes, places: array[int], count: int, at: int) -> int:
        """The faults that the key at `at` shows, with what is written to it, in a call of `count` arguments,
        which begin and end in `data` where `places` says; 0: there are none; -1: more is wrong than a number
        can express."""
        found = 0
        check, form = self.written, self.form
        if check is not None:
            found = check.faults(data, places, count, at + form.content_from, form.arrangement)
            if found < 0:
                return -1
        if self.named is not None or self.words is not None:
            found += self.key_faults(data, places[2 * at], places[2 * at + 1])
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
        recent = self.recent_counter
        if not self.is_covered or recent is None or faults != self.recent_faults or not recent.live:
            recent = self.counters.get(self.mark(faults, key))
            if recent is not None and not recent.live:
                recent = None
            self.recent_counter, self.recent_faults = recent, faults
        return recent

    def forget(self) -> None:
        """Forget all counters."""
        self.counters.clear()
        self.by_shape.clear()
        self.recent_counter = None

    def mark(self, faults: int, key: bytes) -> int | bytes | tuple[int, bytes] | None:
        """What tells such commands from all with other violations; None: nothing that is checked here. If no
        entry covers the key, its skeleton does, together with the faults."""
        if faults < 0 or self.is_covered:
            return faults if faults >= 0 else None
        known = skeleton(key)
        if not known:
            return None
        return (faults, known) if faults else known


class Call(Admitted):
    """The evaluator's answer about commands with keys of the same kinds, and how many were admitted."""

    def __init__(self, name: str, evidence: Evidence, is_trusted: bool) -> None:
        """`is_trusted`: it runs a script that may run on a connection that clients share."""
        super().__init__(name, evidence)
        self.is_trusted = is_trusted
        self.way = 0  # how sessions send such commands, once one has; the values are theirs
        self.hit = new_lookup(None, "", 0, self)


# The reasons why the cache does not admit a command: labels of a metric (docs/operations.md).
COMMAND = "command"
FORM = "form"
KEYS = "keys"
KEY = "key"
CONTENT = "content"
RULE = "rule"


class Lookup:
    """The cache's answer to one command. `new_lookup` makes it."""

    decision: KeyKind | None  # of a command with one key; None: nothing is known
    # For an admitted command with several keys, a script, a pattern or a channel: the answer, and the keys
    # that it leaves something open for, with their positions; None: there are none.
    call: Call | None
    opens: list[tuple[KeyKind, int]] | None
    is_admitted: bool  # the command passes
    reason: str  # why it is not admitted
    # Encodes the faults of the key's name and of what is written, and the waivers that name the key; 0: none.
    # -1: unknown, so there is no common counter.
    faults: int
    form: CommandForm | None  # of a command with a single key that is classified …
    number: int  # … and the number of the key's target; -1: none
    known: Known | None  # what is known of a command from which the cache has just learned


def new_lookup(
    decision: KeyKind | None,
    reason: str,
    faults: int,
    call: Call | None = None,
    opens: list[tuple[KeyKind, int]] | None = None,
    form: CommandForm | None = None,
    number: int = -1,
) -> Lookup:
    """Makes an answer. `form` and `number` are the decision's, if there is one. Compiled code calls this
    without a tuple of arguments, which a class would need."""
    lookup = Lookup.__new__(Lookup)
    lookup.decision = decision
    lookup.call = call
    lookup.opens = opens
    lookup.is_admitted = not reason
    lookup.reason = reason
    lookup.faults = faults
    if decision is not None:
        form, number = decision.form, decision.number
    lookup.form = form
    lookup.number = number
    lookup.known = None
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
    size = end - start
    if size < 5:
        return 0  # without options
    raw = data
    middle = start + size // 2
    letters = raw[end - 3] + 3 * raw[end - 4] + 5 * raw[middle] + 7 * raw[middle + 1]
    return (size + letters) % _RECENT


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
