# cython: annotation_typing=False
"""Command forms, and the decision cache's entries for each.

Rule: two commands have one form if only key, value, fields and elements differ. If it is unclear whether an
argument is an option, the command has no form, and the evaluator decides.
"""

from __future__ import annotations

from keyfence.commands import cache_forms
from keyfence.commands.arguments import integer, word
from keyfence.commands.extract import OneKey
from keyfence.commands.model import Access
from keyfence.policy.compiled.policy import Entry
from keyfence.shapes.skeleton import skeleton

from .counts import Admitted, ViolationCounter
from .evidence import Evidence

MAX_FORMS = 64  # forms of one command; further ones take the slow path …
MAX_DECISIONS = 131_072  # … and those for which forms times targets exceed this
LONGEST_FORM = 6  # arguments
LONGEST_OPTION = 32  # bytes

# As C integers, where this runs compiled.
_BEHIND_VALUE, _BEHIND_KEY = cache_forms.BEHIND_VALUE, cache_forms.BEHIND_KEY
_BEFORE_VALUE, _SCORED = cache_forms.BEFORE_VALUE, cache_forms.SCORED
_XADD, _XADD_ID = cache_forms.XADD, cache_forms.XADD_ID
_SEVERAL_KEYS, _KEYLESS = cache_forms.SEVERAL_KEYS, cache_forms.KEYLESS


class CommandForm:
    """One form of one command."""

    def __init__(self, one: OneKey, kind: int, targets: int, spelled: bytes, evidence: Evidence) -> None:
        """`kind` is one of `cache_forms`; `targets` is how many the policy has; `evidence` is that of a
        command on keys of no target, or without keys."""
        name = one.command.name
        self.name = name
        self.one = one
        self.kind = kind
        self.spelled = spelled  # the command's name as the client spells it
        self.index = one.key_at  # the index of the key
        self.has_more = kind == _SEVERAL_KEYS  # all arguments after the key are keys too
        self.shows_content = one.shows_content
        self.value_at = cache_forms.VALUE_AT.get(name, 0)
        self.fields_at = cache_forms.FIELDS_AT.get(name, 0)
        self.targets = targets
        self.decisions: list[CachedDecision | None] = []  # by target …
        self.kept = 0  # … with room for this many: for all of them, once one is kept
        self.on_no_target = CachedDecision(self, -1, 0, 0, kind == _KEYLESS, False, evidence)
        # For a command whose options decide: its forms by their options. For such a form: its options as
        # sent.
        self.forms: dict[tuple[bytes, ...], CommandForm | None] = {}
        self.most_forms = min(MAX_FORMS, MAX_DECISIONS // max(targets, 1))
        self.recent: CommandForm | None = None  # the form found last
        self.written = b""

    def keep(self, decision: CachedDecision) -> None:
        """Keep the decision about the keys of one target."""
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
        evidence: Evidence,
    ) -> None:
        super().__init__(form.name, evidence)
        self.form = form
        self.target = target  # its index; -1: no target, or no key
        self.outcome = outcome  # the command's outcome for its key's time to live (`ttl.outcome`)
        self.looks = looks  # the things to check in each call, as a sum (decision_cache._NAME …); -1: others
        self.is_clean = is_clean  # nothing is wrong if these checks find nothing
        self.is_covered = is_covered  # violations are counted together, not for each shape of key
        # The counters of such commands: by `Lookup.faults`; or if no entry covers the key, by its skeleton.
        self.counters: dict[int | bytes | None, ViolationCounter] = {}
        self.by_shape: dict[str, ViolationCounter] = {}  # the same by shape, for keys of no known skeleton
        # Counts what is evidence, but no admitted command of its own: further keys of one, refused commands.
        self.further = Admitted("", evidence)
        self.hit = new_lookup(self, "", 0)
        self.miss = new_lookup(self, RULE, -1 if looks else 0)

    def counter(self, faults: int, key: bytes) -> ViolationCounter | None:
        """The counter of the violations that every command with these faults on a key like this one has; None
        if it is not known."""
        counter = self.counters.get(self.mark(faults, key))
        return counter if counter is not None and counter.live else None

    def mark(self, faults: int, key: bytes) -> int | bytes | None:
        """What tells such commands from all with other violations; None: nothing that is checked here."""
        if self.is_covered:
            return faults if faults >= 0 else None
        return (skeleton(key) or None) if faults == 0 else None


# The reasons why the cache does not admit a command: labels of a metric (docs/operations.md).
COMMAND = "command"
FORM = "form"
KEYS = "keys"
KEY = "key"
CONTENT = "content"
RULE = "rule"


class Lookup:
    """The cache's answer to one command. `new_lookup` makes it."""

    decision: CachedDecision | None  # None: nothing is known. Of several keys, that of the first one …
    others: list[CachedDecision] | None  # … and those of the keys with other decisions; None: there are none
    is_admitted: bool  # the command passes
    reason: str  # why it is not admitted
    # Encodes the kind and number of faults in the written content; 0: none. -1: unknown, so there is no
    # common counter.
    faults: int


def new_lookup(
    decision: CachedDecision | None, reason: str, faults: int, others: list[CachedDecision] | None = None
) -> Lookup:
    """Makes an answer. Compiled code calls this without a tuple of arguments, which a class would need."""
    lookup = Lookup.__new__(Lookup)
    lookup.decision = decision
    lookup.others = others
    lookup.is_admitted = not reason
    lookup.reason = reason
    lookup.faults = faults
    return lookup


def options_before_scores(argv: list[bytes]) -> tuple[bytes, ...]:
    """The options NX, CH … between the key and the first score."""
    at = 2
    while at < len(argv) and at < 2 + LONGEST_FORM and word(argv[at]) in cache_forms.SCORED_OPTIONS:
        at += 1
    return tuple(argv[2:at])


def is_trimmed(options: tuple[bytes, ...]) -> bool:
    """Whether XADD's options are MAXLEN, ~ or =, and a number, so that the ID follows."""
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
    """Whether to check the arguments after the key, for a command that writes neither one value nor fields;
    None: other checks are needed too."""
    if name in cache_forms.OFFSETS:
        return False if entry.max_value is None else None
    if name not in cache_forms.ELEMENTS or entry.members is not None or entry.scores is not None:
        return None
    return entry.max_value is not None or entry.max_members is not None
