# cython: annotation_typing=False
"""Command forms, and what the decision cache keeps of each.

Rule: two commands are of one form if only key, value, fields and elements differ. What surely is no option
is none; where that is unclear the command has no form, and the evaluator decides.
"""

from __future__ import annotations

from keyfence.commands import cache_forms
from keyfence.commands.arguments import integer, word
from keyfence.commands.extract import OneKey
from keyfence.commands.model import Access
from keyfence.policy.compiled.policy import Entry

from .counts import Admitted, ViolationCounter

MAX_FORMS = 64  # of one command; further ones take the slow path …
MAX_DECISIONS = 131_072  # … and those for which forms times targets is more
LONGEST_FORM = 6  # arguments
LONGEST_OPTION = 32  # bytes

# As C integers, where this runs compiled.
_BEHIND_VALUE, _BEHIND_KEY = cache_forms.BEHIND_VALUE, cache_forms.BEHIND_KEY
_BEFORE_VALUE, _SCORED = cache_forms.BEFORE_VALUE, cache_forms.SCORED
_XADD, _XADD_ID = cache_forms.XADD, cache_forms.XADD_ID
_SEVERAL_KEYS, _KEYLESS = cache_forms.SEVERAL_KEYS, cache_forms.KEYLESS


class CommandForm:
    """One form of one command."""

    def __init__(self, one: OneKey, kind: int, targets: int, spelled: bytes, evidence: object) -> None:
        """`kind` is one of `cache_forms`; `targets` is how many the policy has; `evidence` is that of a
        command on keys of no target, or without keys."""
        name = one.command.name
        self.name = name
        self.one = one
        self.kind = kind
        self.spelled = spelled  # the command's name as the client writes it
        self.index = one.key_at  # of the key
        self.has_more = kind == _SEVERAL_KEYS  # all arguments behind the key are keys too
        self.shows_content = one.shows_content
        self.value_at = cache_forms.VALUE_AT.get(name, 0)
        self.fields_at = cache_forms.FIELDS_AT.get(name, 0)
        self.targets = targets
        self.decisions: list[CachedDecision | None] = []  # by target …
        self.kept = 0  # … and for how many there is room: all, once one is kept
        self.on_no_target = CachedDecision(self, -1, 0, 0, kind == _KEYLESS, False, evidence)
        # Of a command whose options decide: its forms by these; of such a form: its options as they are sent.
        self.forms: dict[tuple[bytes, ...], CommandForm | None] = {}
        self.most_forms = min(MAX_FORMS, MAX_DECISIONS // max(targets, 1))
        self.recent: CommandForm | None = None  # the form that was found last
        self.written = b""

    def keep(self, decision: CachedDecision) -> None:
        """Keep what was decided of the keys of one target."""
        if not self.kept:
            self.decisions = [None] * self.targets
            self.kept = self.targets
        self.decisions[decision.target] = decision

    def with_options(self, argv: list[bytes]) -> CommandForm | None:
        """The form with the options of this call; None for a rare one."""
        size = len(argv)
        if self.kind == _BEHIND_VALUE:
            if size == 3:
                options: tuple[bytes, ...] = ()
            elif size > 3 + LONGEST_FORM:
                return None
            else:
                options = tuple(argv[3:])
        elif self.kind == _BEHIND_KEY:
            if size > 2 + LONGEST_FORM:
                return None
            options = tuple(argv[2:])
        elif self.kind == _BEFORE_VALUE:
            if size != 4:
                return None
            options = (argv[2],)
        elif self.kind == _SCORED:
            options = options_before_scores(argv)
            if len(options) == LONGEST_FORM:
                return None
        elif size > 2 and argv[2] == b"*":
            options = ()
        elif size <= _XADD_ID or argv[_XADD_ID] != b"*":
            return None
        else:
            options = tuple(argv[2:_XADD_ID])
        if options in self.forms:
            found = self.forms[options]
            if found is not None:
                self.recent = found
            return found
        if len(self.forms) >= self.most_forms or max(map(len, options), default=0) > LONGEST_OPTION:
            return None
        form = self.forms[options] = self._new_form(options)
        if form is not None:
            self.recent = form
        return form

    def _new_form(self, options: tuple[bytes, ...]) -> CommandForm | None:
        form = CommandForm(self.one, self.kind, self.targets, self.spelled, self.on_no_target.evidence)
        if self.kind == _XADD:
            form.fields_at = 3 + len(options)
            if options and not is_trimmed(options):
                return None
        form.written = b"".join([b"$%d\r\n%b\r\n" % (len(option), option) for option in options])
        return form


class CachedDecision(Admitted):
    """What the evaluator said of one command form on the keys of one target, and how many such commands were
    admitted."""

    def __init__(
        self,
        form: CommandForm,
        target: int,
        outcome: int,
        looks: int,
        is_clean: bool,
        is_covered: bool,
        evidence: object,
    ) -> None:
        super().__init__(form.name, evidence)
        self.form = form
        self.target = target  # its index; -1: no target, or no key
        self.outcome = outcome  # what the command means for its key's time to live (`ttl.outcome`)
        self.looks = (
            looks  # what to look at in each call, as a sum (decision_cache._NAME …); -1: other things
        )
        self.is_clean = is_clean  # nothing is wrong where nothing is wrong with that
        self.is_covered = is_covered  # violations are counted together, not by the key's shape
        # The violations that such commands share, by `Lookup.faults`; if the key is not covered, by its
        # skeleton too.
        self.counters: dict[int, ViolationCounter] = {}
        self.shaped: dict[int, dict[bytes, ViolationCounter]] = {}
        self.further = Admitted("", evidence)  # keys of this target that commands on another one had too
        self.hit = Lookup(self, "", 0)
        self.miss = Lookup(self, RULE, -1 if looks else 0)


# Why the cache doesn't admit a command: labels of a metric (docs/operations.md).
COMMAND = "command"
FORM = "form"
KEYS = "keys"
KEY = "key"
CONTENT = "content"
RULE = "rule"


class Lookup:
    """What the cache knows of one command."""

    def __init__(
        self,
        decision: CachedDecision | None,
        reason: str,
        faults: int,
        others: list[CachedDecision] | None = None,
    ) -> None:
        self.decision = decision  # None: nothing is known. Of several keys, that of the first one …
        self.others = others  # … and those of the keys with other decisions; None: there are none
        self.is_admitted = not reason  # nothing is wrong with the command
        self.reason = reason  # why it isn't admitted
        # Encodes what is wrong with what is written, and how much; 0: nothing. -1: unknown, so there is no
        # common counter.
        self.faults = faults


def options_before_scores(argv: list[bytes]) -> tuple[bytes, ...]:
    """NX, CH … between the key and the first score."""
    at = 2
    while at < len(argv) and at < 2 + LONGEST_FORM and word(argv[at]) in cache_forms.SCORED_OPTIONS:
        at += 1
    return tuple(argv[2:at])


def is_trimmed(options: tuple[bytes, ...]) -> bool:
    """Whether XADD's options are MAXLEN, ~ or =, and a number: then the ID follows."""
    trims = word(options[0]) == b"MAXLEN" and word(options[1]) in (b"~", b"=")
    return trims and integer(options[2]) is not None


def trims(access: Access, entry: Entry) -> bool:
    """Whether XADD keeps the stream as short as it must be."""
    content = access.content
    if entry.maxlen is None:
        return True
    if content is None or content.maxlen is None:
        return False
    return content.maxlen <= entry.maxlen and not (entry.maxlen_exact and content.maxlen_approximate)


def looks_at_elements(name: str, entry: Entry) -> bool | None:
    """Whether to look at the arguments behind the key, for a command that writes neither one value nor
    fields; None: at something else, too."""
    if name in cache_forms.OFFSETS:
        return False if entry.max_value is None else None
    if name not in cache_forms.ELEMENTS or entry.members is not None or entry.scores is not None:
        return None
    return entry.max_value is not None or entry.max_members is not None
