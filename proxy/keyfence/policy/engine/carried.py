"""Content that a command carries from key to key: RENAME, COPY, LMOVE, SUNIONSTORE.

Rule: argv does not show such content, so the policy's rules for both keys decide. Content may go to a key if
no additional service may read it there, and if the target requires nothing of it that the source does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from keyfence.commands.model import READ, Carried
from keyfence.policy.compiled.policy import CompiledPolicy, Entry, Fields, Target
from keyfence.policy.compiled.requirements import REQUIREMENTS
from keyfence.policy.patterns.value_forms import Form, NumberRange

MAX_KNOWN = 10_000  # pairs of targets whose answer is kept
# The requirements that content must keep, and the types that they apply to.
_ITEMS = {one.item: frozenset(one.types) for one in REQUIREMENTS.values() if one.carried and one.types}
_OWN = frozenset({"entry", "legacy", "malformed", "scope"})  # kinds of targets that say who may read


class Moves:
    """One policy's answers about content that goes from the keys of one target to those of another."""

    def __init__(self, policy: CompiledPolicy) -> None:
        self._gained: dict[tuple[int, int], tuple[int, ...]] = {}
        self._harmless: set[tuple[int, int, str]] = set()
        self._reads_words = any(home.type_words for home in policy.homes)

    def gained_by(self, source: Target | None, target: Target) -> tuple[int, ...]:
        """Returns the numbers of the services that may read the target and not the source."""
        if source is None or source is target or source.kind not in _OWN or target.kind not in _OWN:
            return ()
        pair = id(source), id(target)
        known = self._gained.get(pair)
        if known is None:
            known = () if _is_its_new_form(source, target) else tuple(_readers_beside(source, target))
            if len(self._gained) < MAX_KNOWN:
                self._gained[pair] = known
        return known

    def are_harmless(self, source: Target | None, target: Target, carried: Carried) -> bool:
        """Whether such content is known to break nothing, for any keys of these targets."""
        return (id(source), id(target), carried.kind) in self._harmless

    def remember(self, sources: Iterable[Target | None], target: Target, carried: Carried) -> None:
        """Remembers that content from these sources breaks nothing."""
        if self._reads_words or len(self._harmless) > MAX_KNOWN:
            return  # a word in the key may say its type, so the answer depends on the key
        for source in sources:
            self._harmless.add((id(source), id(target), carried.kind))

    def unequal(self, source: Target | None, target: Target, carried: Carried, types: Sequence[str]) -> str:
        """Returns a requirement that the target has on the content and the source does not, such as `fields`;
        "" if there is none.

        `types` are the types that the content may have; none: any type.
        """
        asked = target.entry
        if asked is None or not asked.on_content or source is target:
            return ""
        known = source.entry if source is not None else None
        same_file = source is not None and source.home == target.home
        for item in _items(carried):
            if (types and not _ITEMS[item] & set(types)) or not _asks(asked, item):
                continue
            mine = getattr(known, item) if known is not None else None
            if not _is_as_strict(mine, getattr(asked, item), same_file):
                return item
        return ""


def type_doubt(given: Sequence[str], wanted: Sequence[str]) -> bool | None:
    """Whether a value of the types `given` surely has none of the types `wanted`. False: it surely has one.
    None: neither is sure."""
    if not wanted or (given and set(given) <= set(wanted)):
        return False
    return None if not given or set(given) & set(wanted) else True


def _items(carried: Carried) -> Sequence[str]:
    if carried.kind == "value":
        return tuple(_ITEMS)
    # If both keys require the same, a sum of scores is not checked, just as an increment is not.
    return ("values",) if carried.kind == "result" else ("members", "scores")


def _asks(entry: Entry, item: str) -> bool:
    asked = getattr(entry, item)
    return asked is not None and (not isinstance(asked, Form) or asked.restricts)


def _is_its_new_form(source: Target, target: Target) -> bool:
    """Whether a key is only renamed from a deprecated form to its replacement."""
    return source.kind == "legacy" and (source.name, source.home) == (target.name, target.home)


def _readers_beside(source: Target, target: Target) -> Iterator[int]:
    gone = source.denied_before or source.denied
    for number, held in enumerate(target.rights):
        if not held & READ & ~target.denied[number]:
            continue
        if not source.rights[number] & READ & ~gone[number] or _asked_more(source, target, number):
            yield number


def _asked_more(source: Target, target: Target, service: int) -> bool:
    """Whether a service may read both, but some of its callers only the target."""
    if source.tenancy is None:
        return False
    asked = set(source.tenancy.bindings_to_read(service))
    return not asked <= set(target.tenancy.bindings_to_read(service) if target.tenancy is not None else ())


def _is_as_strict(mine: object, asked: object, same_file: bool) -> bool:
    """Whether everything of the form `mine` surely has the form `asked`."""
    if mine is asked:
        return True
    if isinstance(mine, NumberRange) and isinstance(asked, NumberRange):
        return asked.low <= mine.low and mine.high <= asked.high
    if isinstance(mine, Form) and isinstance(asked, Form):
        # In another file, a placeholder of the same name may mean something else.
        return same_file and mine.text == asked.text
    if isinstance(mine, Fields) and isinstance(asked, Fields):
        return same_file and _described(mine) == _described(asked)
    return False


def _described(fields: Fields) -> tuple[object, ...]:
    named = {name: form.text for name, form in fields.named.items()}
    return named, [(name.text, value.text) for name, value in fields.patterned], fields.exact
