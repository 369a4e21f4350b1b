"""The shapes of keys that no entry of the policy covers: `jwt_active:<uuid>:<uuid>`, `user_roles:<int>`.

Rule: a piece of a key appears in a shape only if it looks like a word; everything else becomes a placeholder.
If keys must not be shown, a word must also recur at its position. Between calls, only salted 64-bit hashes of
words and the shapes themselves are kept.

A shape is text. In it, `<` always begins a placeholder: a key's own `<` is written `\\x3c`, and its backslash
`\\x5c`. `parsed` takes a shape apart again.

- A piece looks like a word if it consists of letters, in runs of at most 20, joined by `_`, `-` or `.`, with
  at most 32 characters, in one case or in camel case with three letters per hump on average, and without six
  consonants in a row. A version (`v1`) also counts as a word.
- A word recurs if it was seen before, after the same words, in a key whose other parts are of the same kind.
- A position with more than MAX_WORDS different words holds names rather than words. It shows `<*>` from then
  on, except for words that were seen ESTABLISHED times before.
- If the policy has secrets, a piece that may be one (`secrecy`) appears only if it is a word as a whole, is
  not at the position of a secret in one of the policy's patterns, and was at its position in DISTINCT
  different keys. So a single key shows nothing of itself, even if it is used again and again.

Everything is bounded: shapes, kinds of keys, nodes, and the part of a key that is read.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Set
from typing import NamedTuple

from .secrecy import MASKED, OPEN, UNKNOWN, Secrecy

OTHER = "other"
ANY = "<*>"
ID = "<id>"
MORE = "<more>"
BYTES = "<bytes>"
HOLE = "\0"  # never part of a key that is split, because it is not printable
MAX_SHAPES = 4_000
MAX_KINDS = 1_000  # sequences of separators and placeholders, each with its own tree of words
MAX_NODES = 20_000
MAX_FIRST_WORDS = 256  # different words at the first position of a longer key; these identify the offenders
MAX_WORDS = 48  # different words at any other position
ESTABLISHED = 16  # how often a word must have been seen to remain when its position is widened
DISTINCT = 16  # in how many different keys a possible secret must have been seen
TRIED = 64  # how often a possible secret is seen before a key keeps the shape without this word
MAX_LENGTH = 256  # characters of a key that are read
MAX_PARTS = 24  # words, placeholders and separators of a key that are read
MAX_CACHED = 4_096

# Values that contain a separator are found before the key is split.
_COMPOUND = re.compile(
    r"""(?<![^\W_])(?:
      (?P<uuid>[0-9A-Fa-f]{8}-(?:[0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12})
    | (?P<date>[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}
        (?::[0-9]{2}(?:[.,][0-9]{1,9})?)?(?:Z|[+-][0-9]{2}:?[0-9]{2})?)
    | (?P<email>[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){0,4}\.[A-Za-z]{2,24})
    | (?P<mac>(?:[0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2})
    | (?P<ip>(?:[0-9A-Fa-f]{1,4}:){7}[0-9A-Fa-f]{1,4}
        | (?:[0-9A-Fa-f]{1,4}:){1,6}:(?:[0-9A-Fa-f]{1,4}(?::[0-9A-Fa-f]{1,4}){0,5})?)
    )(?![^\W_])""",
    re.VERBOSE,
)
_MAY_HOLD_COMPOUND = re.compile(r"[@T ]|::|(?::[^:]{1,4}){5}|-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-").search
_SEPARATORS = re.compile(r"([:|{}@#*?\[\]()<>\"'`!$%^\\\s]+)").split
_INNER = re.compile(r"([/_.,;=&~+-]+)")
_IPV4 = r"[0-9]{1,3}(?:\.[0-9]{1,3}){3}"
_KINDS = re.compile(
    rf"""(?P<uuid>[0-9a-fA-F]{{8}}-[0-9a-fA-F]{{4}}-[0-9a-fA-F]{{4}}-[0-9a-fA-F]{{4}}-[0-9a-fA-F]{{12}})
    | (?P<ip>{_IPV4})
    | (?P<date>(?:19|20)[0-9][0-9][-/._]?(?:0[1-9]|1[0-2])[-/._]?(?:0[1-9]|[12][0-9]|3[01]))
    | (?P<int>-?[0-9]+(?:\.[0-9]+)?)
    | (?P<hex>(?=.{{16}}|.*[0-9])(?:[0-9a-f]{{8,}}|[0-9A-F]{{8,}}))""",
    re.VERBOSE,
).fullmatch
_PLACEHOLDERS = ("", "<uuid>", "<ip>", "<date>", "<int>", "<hex>")  # by the number of the group
_VERSION = re.compile(r"[vV][0-9]{1,3}")
_LETTERS = r"[^\W\d_]{1,20}"
_WORD = re.compile(rf"{_LETTERS}(?:[_.-]{_LETTERS})*")
# A word next to an id has at least three letters, because ids in base64url contain letters before `-` and
# `_`.
_LEADING = re.compile(r"([^\W\d_]{3,20})([/_.,;=&~+-])(.+)")
_TRAILING = re.compile(r"(.+)([/_.,;=&~+-])([^\W\d_]{3,20})")
_NUMBERED = re.compile(rf"({_LETTERS}(?:[_.-]{_LETTERS})*)({_IPV4}|[0-9]{{1,20}})")
_CONSONANTS = re.compile(r"[bcdfghjklmnpqrstvwxz]{6}", re.IGNORECASE)
_HUMPS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")

# Hidden words next to an id belong to the id.
_BLURRED = re.compile(r"(?:<\*>[/_.,;=&~+-])*<id>(?:[/_.,;=&~+-](?:<\*>|<id>))*")
_SOME_ID = b"V1StGXR8_Z5jdHi6B-myT"  # a text that is classified as an id
_NONE: frozenset[str] = frozenset()
_words: set[int] = set()  # a cache: hashes of texts that look like words


class Placeholder(NamedTuple):
    """A part of a shape that stands for text of a kind."""

    kind: str  # int, uuid, more, * …


def parsed(shape: str) -> list[str | Placeholder]:
    """Returns the literal text of a shape and its placeholders, in their order."""
    parts: list[str | Placeholder] = []
    at = 0
    for found in _PLACEHOLDER.finditer(shape):
        parts += [_unescaped(shape[at : found.start()]), Placeholder(found[1])]
        at = found.end()
    parts.append(_unescaped(shape[at:]))
    return [part for part in parts if part]


_PLACEHOLDER = re.compile(r"<(\*|[a-z]{2,12})>")
_ESCAPES = {"\\": "\\x5c", "<": "\\x3c"}
_ESCAPED = re.compile(r"\\x(3c|5c)")


def _escaped(text: str) -> str:
    """The text between two parts of a key, as shapes have it."""
    return "".join(_ESCAPES.get(char, char) for char in text) if "<" in text or "\\" in text else text


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), text)


def is_older(shape: str, keys: Iterable[str]) -> bool:
    """Returns whether a shape of these keys, as they are shown, may be of an older version, which escaped
    nothing: then a placeholder in it may be the text of a key."""
    return "\\x3c" not in shape and any("<" in key.replace(MASKED.decode(), "") for key in keys)


@dataclasses.dataclass(slots=True)
class Anatomy:
    """A split key: a frame of separators and placeholders with a HOLE for each word, and the words."""

    frame: list[str] = dataclasses.field(default_factory=list)
    words: list[str] = dataclasses.field(default_factory=list)

    def word(self, text: str) -> None:
        self.frame.append(HOLE)
        self.words.append(text)

    def filled(self, words: list[str]) -> str:
        """The frame with words in its holes."""
        supply = iter(words)
        return "".join([next(supply) if part is HOLE else part for part in self.frame])


@dataclasses.dataclass(slots=True)
class _Node:
    """A position in the keys of one kind, after certain words."""

    # hashes of the keys with this word, if it may be a secret
    keys: set[int] = dataclasses.field(default_factory=set)
    children: dict[int, _Node] = dataclasses.field(default_factory=dict)  # by the word's hash
    count: int = 0
    wide: bool = False
    rest: _Node | None = None  # the node for all words that have no node of their own

    def size(self) -> int:
        return (
            1 + sum(child.size() for child in self.children.values()) + (self.rest.size() if self.rest else 0)
        )

    def take(self, other: _Node) -> None:
        """Merge another node into this one, so that widening forgets as little as possible."""
        self.count += other.count
        self.keys |= other.keys
        for word, child in other.children.items():
            self.children.setdefault(word, _Node()).take(child)
        if other.rest is not None:
            self.rest = self.rest or _Node()
            self.rest.take(other.rest)
        self.wide = self.wide or other.wide
        if len(self.children) > MAX_WORDS:
            self.widen(MAX_WORDS)

    def widen(self, most: int) -> None:
        """Forget the words of this position, because they are names. Up to `most` established words
        remain."""
        rest = self.rest or _Node()
        often = sorted(self.children.items(), key=lambda item: -item[1].count)
        kept = {word: child for word, child in often[:most] if child.count >= ESTABLISHED}
        for word, child in often:
            if word not in kept:
                rest.take(child)
        self.children, self.rest, self.wide = kept, rest, True


class Shapes:
    """Learns shapes from keys. Not thread-safe."""

    def __init__(self, *, trusting: bool = False, secrecy: Secrecy | None = None) -> None:
        """`trusting`: show words at once, so that a finding's shape is right from its first key on. Use it
        only where the keys themselves may be shown. `secrecy`: for a policy with secrets."""
        self._trusting = trusting
        self.secrecy = secrecy
        self._roots: dict[str, _Node] = {}
        self._shapes: set[str] = set()
        self._cache: dict[int, str] = {}  # final shapes by the key's hash
        self._nodes = 0
        self.resets = 0  # how often final shapes were forgotten
        self.learned = 0  # how many hidden words have become visible
        self.is_open = False  # whether the last shape hides a word that may become visible with more keys

    def settled(self, key: bytes) -> str | None:
        """The final shape of a key, which it keeps until `resets` changes; None if it has none yet."""
        return self._cache.get(hash(key))

    def final(self, key: bytes) -> str | None:
        """The final shape of a key that may be a new one; None if `shape` has to learn from it. Learns
        nothing."""
        known = self._cache.get(hash(key))
        if known is not None:
            return known
        anatomy, suspects = self._taken_apart(key)
        node = self._roots.get("".join(anatomy.frame))
        shown: list[str] = []
        for word in anatomy.words:
            child = node.children.get(hash(word)) if node is not None else None
            if child is not None:
                if child.count < ESTABLISHED or not self._shows(child, word in suspects, child.count):
                    return None
                node = child
                shown.append(word)
            elif node is not None and node.rest is not None:
                node = node.rest  # of all words of a wide position that have no node of their own
                shown.append(ANY)
            else:
                return None
        shape = _filled(anatomy, shown)
        return shape if node is not None and shape in self._shapes else None

    def shape(self, key: bytes) -> str:
        """The shape of a key; `other` if there are MAX_SHAPES already. The shape of a key may change while
        its words are being learnt."""
        mark = hash(key)
        known = self._cache.get(mark)
        if known is not None:
            self.is_open = False
            return known
        anatomy, suspects = self._taken_apart(key)
        words, settled = self._learn(anatomy, mark, suspects)
        shape = self._admitted(_filled(anatomy, words))
        if settled:
            if len(self._cache) >= MAX_CACHED:
                self._cache.clear()
            self._cache[mark] = shape
        return shape

    def reshaped(self, key: bytes) -> str:
        """The current shape of a key that was seen before. Learns nothing from the key."""
        anatomy, suspects = self._taken_apart(key)
        return self._admitted(_filled(anatomy, self._known(anatomy, suspects)))

    def _taken_apart(self, key: bytes) -> tuple[Anatomy, Set[str]]:
        if self.secrecy is None:
            return take_apart(key), _NONE
        guarded, suspects, is_whole = _guarded(key, self.secrecy)
        anatomy = take_apart(guarded)
        if not is_whole and anatomy.frame[-1:] not in ([MORE], [BYTES]):
            anatomy.frame.append(MORE)
        return anatomy, suspects

    def _admitted(self, shape: str) -> str:
        """The shape, or `other` if there are too many shapes."""
        if shape not in self._shapes:
            if len(self._shapes) >= MAX_SHAPES:
                return OTHER
            self._shapes.add(shape)
        return shape

    def _learn(self, anatomy: Anatomy, key: int, suspects: Set[str]) -> tuple[list[str], bool]:
        """The words to show, and whether the result is final. `suspects` are the words that may be
        secrets."""
        words = anatomy.words
        kind = "".join(anatomy.frame)
        self.is_open = False
        node = self._roots.get(kind)
        if node is None:
            if len(self._roots) >= MAX_KINDS:
                return [ANY] * len(words), False
            node = self._roots[kind] = _Node()
        shown: list[str] = []
        settled = True
        for word in words:
            first = not shown and len(kind) > 1
            child = self._step(node, word, first)
            if child is None:
                return shown + [ANY] * (len(words) - len(shown)), False
            child.count += 1
            named = child is not node.rest
            is_suspect = word in suspects
            hidden = not self._shows(child, is_suspect, child.count - 1)
            if named and is_suspect and len(child.keys) < DISTINCT:
                child.keys.add(key)
            shows = named and self._shows(child, is_suspect, child.count)
            self.learned += shows and hidden and child.count > 1
            self.is_open = self.is_open or (named and not shows)
            shown.append(word if shows else ANY)
            steady = shows or not named or (is_suspect and child.count >= TRIED)
            # Count a word until it is established, so that it remains when its position is widened.
            settled = settled and steady and (not named or child.count >= ESTABLISHED)
            node = child
        return shown, settled

    def _shows(self, node: _Node, is_suspect: bool, times: int) -> bool:
        """Whether a word that was seen `times` times is shown."""
        return len(node.keys) >= DISTINCT if is_suspect else self._trusting or times > 1

    def _known(self, anatomy: Anatomy, suspects: Set[str]) -> list[str]:
        """The words to show, without learning."""
        node = self._roots.get("".join(anatomy.frame))
        shown: list[str] = []
        for word in anatomy.words:
            child = None if node is None else node.children.get(hash(word))
            shows = child is not None and self._shows(child, word in suspects, child.count)
            shown.append(word if shows else ANY)
            node = child if child is not None or node is None else node.rest
        return shown

    def _step(self, node: _Node, word: str, first: bool) -> _Node | None:
        """The node after a word; None if there are MAX_NODES already."""
        child = node.children.get(hash(word))
        if child is not None:
            return child
        if not node.wide and len(node.children) >= (MAX_FIRST_WORDS if first else MAX_WORDS):
            self._widen(node, MAX_FIRST_WORDS if first else MAX_WORDS)
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

    def _widen(self, node: _Node, most: int) -> None:
        before = node.size()
        node.widen(most)
        self._nodes += node.size() - before
        self._cache.clear()
        self.resets += 1


def _filled(anatomy: Anatomy, words: list[str]) -> str:
    shape = anatomy.filled(words)
    return _BLURRED.sub(ID, shape) if ANY in shape and ID in shape else shape


def _guarded(key: bytes, secrecy: Secrecy) -> tuple[bytes, set[str], bool]:
    """The key with an id in place of each piece that may be a secret; the pieces that may be secrets but are
    words as a whole, which stay in the key; and whether this is the whole key. It ends before a piece that
    may be a secret and that no id can be, because it holds a separator."""
    parts: list[bytes] = []
    suspects: set[str] = set()
    for piece, kind in secrecy.pieces(key[: 4 * MAX_LENGTH]):
        text = piece.decode("utf-8", "surrogateescape")
        if kind == OPEN or _KINDS(text) is not None:  # a piece with a kind becomes a placeholder
            parts.append(piece)
        elif kind == UNKNOWN and (looks_like_word(text) or _VERSION.fullmatch(text) is not None):
            suspects.add(text)
            parts.append(piece)
        elif len(_SEPARATORS(text)) > 1 or not text.isprintable():
            return b"".join(parts), suspects, False
        else:
            parts.append(_SOME_ID)
    is_whole = len(key) <= 4 * MAX_LENGTH
    return b"".join(parts if is_whole else parts[:-1]), suspects, is_whole  # the last piece is cut


def take_apart(key: bytes) -> Anatomy:
    """Split a key into words, placeholders and separators."""
    text = key[: 4 * MAX_LENGTH].decode("utf-8", "surrogateescape")
    cut = text[:MAX_LENGTH]
    whole = len(cut) == len(text) and len(key) <= 4 * MAX_LENGTH
    anatomy = Anatomy()
    frame = anatomy.frame
    if not cut.isprintable():
        # Read only the text before binary data, up to the last colon, the separator of all conventions.
        start = next(index for index, char in enumerate(cut) if not char.isprintable())
        _split(cut[: cut.rfind(":", 0, start) + 1], anatomy)
        frame.append(BYTES)
        return anatomy
    at = 0
    if _MAY_HOLD_COMPOUND(cut):
        for match in _COMPOUND.finditer(cut):
            _split(cut[at : match.start()], anatomy)
            frame.append(f"<{match.lastgroup}>")
            at = match.end()
    _split(cut[at:], anatomy)
    if not whole or len(frame) > MAX_PARTS:
        # The last piece is incomplete, so it would be misread.
        del frame[min(len(frame) - 1, MAX_PARTS) :]
        del anatomy.words[frame.count(HOLE) :]
        frame.append(MORE)
    return anatomy


def _split(text: str, anatomy: Anatomy) -> None:
    frame = anatomy.frame
    pieces = _SEPARATORS(text)
    for index in range(0, len(pieces), 2):
        piece = pieces[index]
        if len(frame) > MAX_PARTS:
            return
        if piece and not _plain(piece, anatomy):
            _segment(piece, anatomy)
        if index + 1 < len(pieces):
            frame.append(_escaped(pieces[index + 1]))


def _segment(text: str, anatomy: Anatomy) -> None:
    """Add a segment that consists of words and ids, or is an id."""
    numbered = _NUMBERED.fullmatch(text)
    if numbered is not None and len(numbered[1]) > 2 and looks_like_word(numbered[1]):
        anatomy.word(numbered[1])
        anatomy.frame.append("<ip>" if "." in numbered[2] else "<int>")
        return
    pieces = _INNER.split(text)
    if len(pieces) > 1:
        if _all_plain(pieces, anatomy):
            return
        leading = _LEADING.fullmatch(text)
        if leading is not None and looks_like_word(leading[1]):
            anatomy.word(leading[1])
            anatomy.frame.append(leading[2])
            if not _plain(leading[3], anatomy):
                _segment(leading[3], anatomy)
            return
        trailing = _TRAILING.fullmatch(text)
        if trailing is not None and looks_like_word(trailing[3]):
            if not _plain(trailing[1], anatomy):
                _segment(trailing[1], anatomy)
            anatomy.frame.append(trailing[2])
            anatomy.word(trailing[3])
            return
    anatomy.frame.append(ID)


def _all_plain(pieces: list[str], anatomy: Anatomy) -> bool:
    """Add all pieces and separators if each piece is a word or a named kind; otherwise add nothing."""
    parts, words = len(anatomy.frame), len(anatomy.words)
    for index, piece in enumerate(pieces):
        if index % 2:
            anatomy.frame.append(piece)
        elif piece and not _plain(piece, anatomy):
            del anatomy.frame[parts:], anatomy.words[words:]
            return False
    return True


def _plain(text: str, anatomy: Anatomy) -> bool:
    """Add a piece if it is a word or of a named kind. Return whether it was added."""
    mark = hash(text)
    if mark not in _words:
        kind = _KINDS(text)
        if kind is not None:
            anatomy.frame.append(_PLACEHOLDERS[kind.lastindex or 0])
            return True
        if not looks_like_word(text) and _VERSION.fullmatch(text) is None:
            return False
        if len(_words) >= MAX_CACHED:
            _words.clear()
        _words.add(mark)
    anatomy.word(text)
    return True


def looks_like_word(text: str) -> bool:
    """Whether a piece of a key looks like a word, as defined at the top of this file, versions excluded."""
    if len(text) > 32 or _WORD.fullmatch(text) is None or _CONSONANTS.search(text):
        return False
    if text.islower() or text.isupper() or not text.isascii():
        return True
    humps = _HUMPS.findall(text)
    return sum(map(len, humps)) >= 3 * len(humps) or text.istitle()
