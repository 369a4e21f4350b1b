"""The shapes of keys that no entry of the policy covers: `jwt_active:<uuid>:<uuid>`, `user_roles:<int>`.

Rule: a piece of a key shows in a shape only if it looks like a word and recurs at its place; all else becomes
a placeholder. Between calls nothing of a key is held but salted 64-bit hashes of words and the shapes
themselves.

"Looks like a word": letters only, in runs of at most 20, joined by `_`, `-` or `.`, 32 characters at most, in
one case or in camel humps of three letters on average, without six consonants in a row; or a version (`v1`).
"Recurs": the words before it were the same, the rest of the key was of the same kind, and it isn't the first
time. A place that has held more than MAX_WORDS different words holds names rather than words, and shows `<*>`
from then on. Everything is bounded: shapes, kinds of key, nodes, the part of a key that is looked at.
"""

from __future__ import annotations

import re
from typing import NamedTuple

OTHER = "other"
ANY = "<*>"
MORE = "<more>"
MAX_SHAPES = 1_000
MAX_KINDS = 1_000  # sequences of separators and placeholders, one tree of words each
MAX_NODES = 20_000
MAX_FIRST_WORDS = 256  # different words at the first place of a longer key: these tell the offenders apart
MAX_WORDS = 24  # at any other place
ESTABLISHED = 16  # times that a first word must have been seen to outlive its place's widening
MAX_LENGTH = 256  # characters of a key that are looked at
MAX_ATOMS = 24
MAX_CACHED = 4_096

# What holds a separator itself is found before the key is split.
_COMPOUND = re.compile(
    r"""(?<![^\W_])(?:
      (?P<date>\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:[.,]\d{1,9})?)?(?:Z|[+-]\d\d:?\d\d)?)
    | (?P<email>[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){0,4}\.[A-Za-z]{2,24})
    | (?P<mac>(?:[0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2})
    | (?P<ip>(?:[0-9A-Fa-f]{1,4}:){7}[0-9A-Fa-f]{1,4}
        | (?:[0-9A-Fa-f]{1,4}:){1,6}:(?:[0-9A-Fa-f]{1,4}(?::[0-9A-Fa-f]{1,4}){0,5})?)
    )(?![^\W_])""",
    re.VERBOSE,
)
_SEPARATORS = re.compile(r"([:|{}@#*?\[\]()<>\"'`!$%^\\\s]+)")
_INNER = re.compile(r"([/_.,;=&~+-]+)")
_IPV4 = r"\d{1,3}(?:\.\d{1,3}){3}"
_KINDS = re.compile(
    rf"""(?P<uuid>[0-9a-fA-F]{{8}}-[0-9a-fA-F]{{4}}-[0-9a-fA-F]{{4}}-[0-9a-fA-F]{{4}}-[0-9a-fA-F]{{12}})
    | (?P<ip>{_IPV4})
    | (?P<date>(?:19|20)\d\d[-/._]?(?:0[1-9]|1[0-2])[-/._]?(?:0[1-9]|[12]\d|3[01]))
    | (?P<int>-?\d+(?:\.\d+)?)
    | (?P<hex>[0-9a-f]{{8,}}|[0-9A-F]{{8,}})""",
    re.VERBOSE,
)
_VERSION = re.compile(r"[vV]\d{1,3}")
_LETTERS = r"[^\W\d_]{1,20}"
_WORD = re.compile(rf"{_LETTERS}(?:[_.-]{_LETTERS})*")
_LEADING = re.compile(rf"((?:{_LETTERS}[/_.,;=&~+-]+)+)(.+)")
_TRAILING = re.compile(rf"(.+?)((?:[/_.,;=&~+-]+{_LETTERS})+)")
_NUMBERED = re.compile(rf"({_LETTERS}(?:[_.-]{_LETTERS})*)({_IPV4}|\d{{1,20}})")
_CONSONANTS = re.compile(r"[bcdfghjklmnpqrstvwxz]{6}", re.IGNORECASE)
_HUMPS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


class Atom(NamedTuple):
    """A piece of a key: a word, or what stands for a placeholder or separator."""

    text: str
    is_word: bool


class _Node:
    """A place in the keys of one kind, after certain words."""

    __slots__ = ("children", "count", "rest", "wide")

    def __init__(self) -> None:
        self.children: dict[int, _Node] = {}  # by the word's hash
        self.count = 0
        self.wide = False
        self.rest: _Node | None = None  # where all words without a node of their own lead

    def size(self) -> int:
        return (
            1 + sum(child.size() for child in self.children.values()) + (self.rest.size() if self.rest else 0)
        )

    def take(self, other: _Node) -> None:
        """Add what was learnt behind another node, so that widening forgets as little as may be."""
        self.count += other.count
        for word, child in other.children.items():
            self.children.setdefault(word, _Node()).take(child)
        if other.rest is not None:
            self.rest = self.rest or _Node()
            self.rest.take(other.rest)
        self.wide = self.wide or other.wide
        if len(self.children) > MAX_WORDS:
            self.widen(spare=None)

    def widen(self, spare: int | None) -> None:
        """Forget the words of this place, but for those seen `spare` times: they are names of things."""
        rest = self.rest or _Node()
        kept: dict[int, _Node] = {}
        for word, child in self.children.items():
            if spare is not None and child.count >= spare:
                kept[word] = child
            else:
                rest.take(child)
        self.children, self.rest, self.wide = kept, rest, True


class Shapes:
    """Learns shapes from the keys that it is shown. Not for use by several threads at once."""

    def __init__(self) -> None:
        self._roots: dict[str, _Node] = {}
        self._shapes: set[str] = set()
        self._cache: dict[int, str] = {}  # by the key's hash; only what is learnt for good
        self._nodes = 0

    def shape(self, key: bytes) -> str:
        """The shape of a key; `other` once MAX_SHAPES are given out. Equal keys may change their shape while
        the words in them are being learnt."""
        mark = hash(key)
        known = self._cache.get(mark)
        if known is not None:
            return known
        atoms = atoms_of(key)
        words, settled = self._learn(atoms)
        supply = iter(words)
        shape = "".join(next(supply) if atom.is_word else atom.text for atom in atoms)
        if shape not in self._shapes:
            if len(self._shapes) >= MAX_SHAPES:
                return OTHER
            self._shapes.add(shape)
        if settled:
            if len(self._cache) >= MAX_CACHED:
                self._cache.clear()
            self._cache[mark] = shape
        return shape

    def _learn(self, atoms: list[Atom]) -> tuple[list[str], bool]:
        """The words to show, and whether showing them again would give the same."""
        words = [atom.text for atom in atoms if atom.is_word]
        kind = "".join("\0" if atom.is_word else atom.text for atom in atoms)
        node = self._roots.get(kind)
        if node is None:
            if len(self._roots) >= MAX_KINDS:
                return [ANY] * len(words), False
            node = self._roots[kind] = _Node()
        shown: list[str] = []
        settled = True
        for word in words:
            first = not shown and len(atoms) > 1
            child = self._step(node, word, first)
            if child is None:
                return shown + [ANY] * (len(words) - len(shown)), False
            child.count += 1
            named = child is not node.rest
            shown.append(word if named and child.count > 1 else ANY)
            settled = settled and (child.count > 1 if named else node.wide)
            # A first word is counted on until it is established, so that its place's widening spares it.
            settled = settled and (not first or not named or child.count >= ESTABLISHED)
            node = child
        return shown, settled

    def _step(self, node: _Node, word: str, first: bool) -> _Node | None:
        """The node behind a word; None where there is no room for one."""
        child = node.children.get(hash(word))
        if child is not None:
            return child
        if not node.wide and len(node.children) >= (MAX_FIRST_WORDS if first else MAX_WORDS):
            self._widen(node, spare=ESTABLISHED if first else None)
        if node.wide and node.rest is not None:
            return node.rest
        if self._nodes >= MAX_NODES:
            return None
        self._nodes += 1
        child = _Node()
        if node.wide:
            node.rest = child
        else:
            node.children[hash(word)] = child
        return child

    def _widen(self, node: _Node, spare: int | None) -> None:
        before = node.size()
        node.widen(spare)
        self._nodes += node.size() - before
        self._cache.clear()


def atoms_of(key: bytes) -> list[Atom]:
    """A key as words, placeholders and separators."""
    text = key[: 4 * MAX_LENGTH].decode("utf-8", "surrogateescape")
    atoms: list[Atom] = []
    cut = text[:MAX_LENGTH]
    at = 0
    for match in _COMPOUND.finditer(cut):
        _split(cut[at : match.start()], atoms)
        atoms.append(Atom(f"<{match.lastgroup}>", False))
        at = match.end()
    _split(cut[at:], atoms)
    if len(cut) < len(text) or len(key) > 4 * MAX_LENGTH or len(atoms) > MAX_ATOMS:
        # What a cut leaves of the last piece would be taken for something that it isn't.
        atoms = [*atoms[: min(len(atoms) - 1, MAX_ATOMS)], Atom(MORE, False)]
    return atoms


def _split(text: str, atoms: list[Atom]) -> None:
    for index, piece in enumerate(_SEPARATORS.split(text)):
        if not piece:
            continue
        if index % 2:
            atoms.append(Atom(piece if piece.isprintable() else "<bytes>", False))
        elif len(atoms) <= MAX_ATOMS:
            _segment(piece, atoms)


def _segment(text: str, atoms: list[Atom]) -> None:
    """One segment, as plainly as it can be said: a placeholder, a word, or words around an id."""
    if not text.isprintable():
        atoms.append(Atom("<bytes>", False))
        return
    plain = _plain(text)
    if plain is not None:
        atoms.append(plain)
        return
    numbered = _NUMBERED.fullmatch(text)
    if numbered is not None and looks_like_word(numbered[1]) and len(numbered[1]) > 2:
        atoms += (Atom(numbered[1], True), Atom("<ip>" if "." in numbered[2] else "<int>", False))
        return
    pieces = _INNER.split(text)
    if len(pieces) > 1:
        known = [_plain(piece) for piece in pieces[::2] if piece]
        if all(known):
            _interleave(pieces, atoms)
            return
        leading = _LEADING.fullmatch(text)
        if leading is not None and looks_like_word(leading[1].rstrip("/_.,;=&~+-")):
            _words(leading[1], atoms)
            _segment(leading[2], atoms)
            return
        trailing = _TRAILING.fullmatch(text)
        if trailing is not None and looks_like_word(trailing[2].lstrip("/_.,;=&~+-")):
            _segment(trailing[1], atoms)
            _words(trailing[2], atoms)
            return
    atoms.append(Atom("<id>", False))


def _plain(text: str) -> Atom | None:
    kind = _KINDS.fullmatch(text)
    if kind is not None:
        return Atom(f"<{kind.lastgroup}>", False)
    if _VERSION.fullmatch(text) or looks_like_word(text):
        return Atom(text, True)
    return None


def _interleave(pieces: list[str], atoms: list[Atom]) -> None:
    for index, piece in enumerate(pieces):
        atom = Atom(piece, False) if index % 2 else _plain(piece)
        if piece and atom is not None:
            atoms.append(atom)


def _words(text: str, atoms: list[Atom]) -> None:
    """Words with the separators before or after them, the words among them as one."""
    start = len(text) - len(text.lstrip("/_.,;=&~+-"))
    end = len(text.rstrip("/_.,;=&~+-"))
    for piece, is_word in ((text[:start], False), (text[start:end], True), (text[end:], False)):
        if piece:
            atoms.append(Atom(piece, is_word))


def looks_like_word(text: str) -> bool:
    """Whether a piece of a key is a word by the rule at the head of this file (a version apart)."""
    if len(text) > 32 or _WORD.fullmatch(text) is None or _CONSONANTS.search(text):
        return False
    if text.islower() or text.isupper() or not text.isascii():
        return True
    humps = _HUMPS.findall(text)
    return sum(map(len, humps)) >= 3 * len(humps) or text.istitle()
