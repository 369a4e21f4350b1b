# cython: annotation_typing=False, boundscheck=False, wraparound=False
"""What a policy requires of a key's name, ready to be checked in the bytes where the key lies.

Rule: a fault is counted exactly if the evaluator finds it (`compiled.names`, `compiled.policy.types_in`). No
object is made for a name, unless a length in characters has to be counted.

All indexes are in bounds: callers pass spans within `data`, and the automaton of the type words gives only
numbers of these words.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from functools import lru_cache

from keyfence.policy.patterns.automaton import Classifier
from keyfence.policy.patterns.determinize import classify
from keyfence.policy.patterns.patterns import exact_pattern
from keyfence.policy.source.model import HashTag, Length
from keyfence.policy.verdict import Severity

from .names import LengthLimit, Names, rule_of

# The result of a check is a sum: for each rule that the name breaks, its weight; twice that for a `must`.
_LENGTH, _CHARSET, _FORMAT, _TAG = 1, 3, 9, 27
_TYPE = 54  # a word in the key says that the command is for another type
KINDS = 108  # results are below this

_ANY_TAG, _OPTIONAL, _REQUIRED = 0, 1, 2
_TAGS: Mapping[HashTag, int] = {"any": _ANY_TAG, "optional": _OPTIONAL, "required": _REQUIRED}
_SEVERITIES: Mapping[Severity, int] = {"should": 1, "must": 2}
_OPEN, _CLOSE, _SEPARATOR = 123, 125, 58
_ASCII = 128


class NameCheck:
    """The naming rules for the keys of one kind."""

    def __init__(self, names: Names, limit: Length | None, tag: HashTag, bytes_sure: bool = False) -> None:
        """`limit` is an additional one for this kind of key. `bytes_sure`: only lengths and hash tags may be
        wrong."""
        limits = [*names.limits, *([LengthLimit("must", limit)] if limit is not None else [])]
        # A broken `must` comes first, because it makes the `should` needless.
        limits.sort(key=lambda one: (one.severity, one.limit.most))
        self._limits = [one.limit for one in limits]
        self._mosts = array("q", [one.most for one in self._limits])
        self._shortest = min(self._mosts, default=-1)  # no shorter name is too long
        self._in_characters = bytes(one.characters for one in self._limits)
        self._severities = bytes(_SEVERITIES[one.severity] for one in limits)
        self._automaton = None if bytes_sure else names.automaton
        self._automata = [check.automaton for check in names.checks]
        self._forbids = bytes(check.forbids for check in names.checks)
        self._weights = bytes(
            _SEVERITIES[check.severity] * (_CHARSET if rule_of(check) == "key.charset" else _FORMAT)
            for check in names.checks
        )
        self._tag = _TAGS[tag]

    def faults(self, data: bytes, start: int, end: int) -> int:
        """The faults of the name `data[start:end]`; 0: there are none."""
        found = 0
        if 0 <= self._shortest < end - start:
            found = self._length(data, start, end)
        if self._automaton is not None and self._automaton.match_span(data, start, end) < 0:
            found += self._broken(data, start, end)
        if self._tag != _ANY_TAG and not self._is_tagged(data, start, end):
            found += _TAG
        return found

    def _length(self, data: bytes, start: int, end: int) -> int:
        raw = data
        severities, in_characters = self._severities, self._in_characters
        for number in range(len(self._limits)):
            most = self._mosts[number]
            if end - start > most and (
                not in_characters[number]
                or _is_ascii(data, start, end)
                or self._limits[number].of(raw[start:end]) > most
            ):
                return severities[number] * _LENGTH
        return 0

    def _broken(self, data: bytes, start: int, end: int) -> int:
        """The rules on a name's bytes that it breaks."""
        forbids, weights = self._forbids, self._weights
        charset = form = 0
        for number in range(len(self._automata)):
            automaton = self._automata[number]
            is_accepted = automaton.match_span(data, start, end) >= 0
            if is_accepted == bool(forbids[number]):
                weight = weights[number]
                if weight >= _FORMAT:
                    form = max(form, weight)
                else:
                    charset = max(charset, weight)
        return charset + form

    def _is_tagged(self, data: bytes, start: int, end: int) -> bool:
        """Whether the name has one pair of braces that is not empty, or none where that may be."""
        raw = data
        opened = closed = -1
        for at in range(start, end):
            byte = raw[at]
            if byte < _OPEN:
                continue
            if byte == _OPEN:
                if opened >= 0:
                    return False
                opened = at
            elif byte == _CLOSE:
                if opened < 0 or closed >= 0 or at == opened + 1:
                    return False
                closed = at
        return closed >= 0 or (opened < 0 and self._tag == _OPTIONAL)


@lru_cache(256)
def _classifier(words: tuple[bytes, ...]) -> Classifier:
    """The automaton of a policy's type words, for all commands."""
    return classify([exact_pattern(word) for word in words])


class TypeWords:
    """Whether a command may be used on a key, by the first of the key's segments that stands for a type."""

    def __init__(self, words: Mapping[bytes, Sequence[str]], types: Sequence[str]) -> None:
        """`types` are those that the command is for."""
        self._words = _classifier(tuple(words))
        self._fits = bytes(any(one in given for one in types) for given in words.values())

    def faults(self, data: bytes, start: int, end: int) -> int:
        """The faults of the key `data[start:end]`; 0: there are none."""
        raw, fits = data, self._fits
        at = start
        while at <= end:
            stop = at
            while stop < end and raw[stop] != _SEPARATOR:
                stop += 1
            number = self._words.first_in(data, at, stop)
            if number >= 0:
                return 0 if fits[number] else _TYPE
            at = stop + 1
        return 0


def _is_ascii(data: bytes, start: int, end: int) -> bool:
    raw = data
    for at in range(start, end):  # noqa: SIM110 - a loop in C, where it is compiled
        if raw[at] >= _ASCII:
            return False
    return True
