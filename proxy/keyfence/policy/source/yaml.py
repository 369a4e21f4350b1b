"""Reads YAML as text with positions.

Rule: every scalar is the text in the file (`off`, `12:34` and `NO` stay text), a duplicate key is an error,
and each value knows its line and column.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import yaml
from yaml.composer import ComposerError
from yaml.events import (
    AliasEvent,
    MappingEndEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
    StreamEndEvent,
)
from yaml.reader import ReaderError

from keyfence.policy.diagnostics import Diagnostic, FileError, Place, file_error

from .files import Unreadable, read_file, shown_name

# People write policies by hand; a larger file is a mistake, or has aliases that multiply.
MAX_NODES = 500_000
MAX_DEPTH = 64

# The tags that YAML gives to text by its look. Here, all of it is text; any other tag is a mistake.
_PLAIN_TAGS = frozenset(
    "tag:yaml.org,2002:" + name
    for name in ("str", "int", "float", "bool", "null", "timestamp", "merge", "value")
)

_STR, _MERGE, _SEQ, _MAP = (f"tag:yaml.org,2002:{name}" for name in ("str", "merge", "seq", "map"))

PathKey = tuple[str | int, ...]


class Source:
    """The data of one YAML file, with the place of each part of it."""

    def __init__(self, file: str, text: str, *, keep_going: bool = False) -> None:
        """Raises FileError. With `keep_going`, only for text that is not YAML; other faults are in
        `faults`."""
        self.file = file
        self.lines = text.splitlines()
        self.data: Any = {}
        self._values: dict[PathKey, Place] = {}
        self._keys: dict[PathKey, Place] = {}
        self._widths: dict[Place, int] = {}  # of the scalars, in characters
        self.faults: list[Diagnostic] = []
        self._nodes = 0
        self._read(text)
        if self.faults and not keep_going:
            raise FileError(self.faults)

    def _take_places(self, other: Source) -> None:
        """Begins as another form of the same file."""
        self.file = other.file
        self.lines = other.lines
        self.faults = []
        self._values, self._keys, self._widths = other._values, other._keys, other._widths

    def original(self, path: Sequence[str | int]) -> PathKey:
        """Returns the path in the file of the part at `path` in `data`."""
        return tuple(path)

    def place(self, path: Sequence[str | int], *, of_key: bool = False) -> Place:
        """Returns the place of the value (or of its key) at `path`; for an unknown path, that of its nearest
        parent."""
        at = self.original(path)
        if of_key and at in self._keys:
            return self._keys[at]
        while at and at not in self._values:
            at = at[:-1]
        return self._values.get(at, Place(self.file, 1, 1))

    def has(self, path: Sequence[str | int]) -> bool:
        """Whether there is a value at `path`."""
        return self.original(path) in self._values

    def error(
        self,
        path: Sequence[str | int],
        message: str,
        *,
        of_key: bool = False,
        example: str = "",
        relies_on: Sequence[PathKey] = (),
    ) -> Diagnostic:
        place = self.place(path, of_key=of_key)
        found = self._diagnostic("error", place, message, self.original(path), example)
        return found._replace(relies_on=tuple(map(self.original, relies_on))) if relies_on else found

    def warning(
        self, code: str, path: Sequence[str | int], message: str, *, of_key: bool = False, example: str = ""
    ) -> Diagnostic:
        place = self.place(path, of_key=of_key)
        found = self._diagnostic("warning", place, message, self.original(path), example)
        return found._replace(code=code)

    def _diagnostic(
        self,
        level: Literal["error", "warning"],
        place: Place,
        message: str,
        path: PathKey = (),
        example: str = "",
    ) -> Diagnostic:
        """Returns a fault with the line at its place."""
        excerpt = self.lines[place.line - 1] if place.line <= len(self.lines) else ""
        return Diagnostic(place, level, message, excerpt, self._widths.get(place, 1), example, path)

    def _read(self, text: str) -> None:
        try:
            root = _root_node(text)
        except ReaderError as exc:
            before = text[: exc.position].split("\n")
            place = Place(self.file, len(before), len(before[-1]) + 1)
            message = f"not YAML: the character U+{ord(text[exc.position]):04X}"
            raise FileError([self._diagnostic("error", place, message)]) from None
        except yaml.MarkedYAMLError as exc:
            mark = exc.problem_mark or exc.context_mark
            place = Place(self.file, mark.line + 1, mark.column + 1) if mark else Place(self.file, 1, 1)
            problem = " ".join(part for part in (exc.context, exc.problem) if part)
            message = problem if isinstance(exc, _TooDeep) else f"not YAML: {problem}"
            raise FileError([self._diagnostic("error", place, message)]) from None
        except (yaml.YAMLError, RecursionError, ValueError) as exc:
            first_line = str(exc).splitlines()[0] if str(exc) else type(exc).__name__
            raise file_error(self.file, f"not YAML: {first_line}") from None
        if root is None:
            raise file_error(self.file, "the file is empty")
        if not isinstance(root, yaml.MappingNode):
            message = "expected a mapping (name: value) at the top"
            raise FileError([self._diagnostic("error", self._at(root), message)])
        self.data = self._plain(root, ())

    def _at(self, node: yaml.Node) -> Place:
        mark, end = node.start_mark, node.end_mark
        place = Place(self.file, mark.line + 1, mark.column + 1)
        if isinstance(node, yaml.ScalarNode) and end.line == mark.line:
            self._widths[place] = max(end.column - mark.column, 1)
        return place

    def _fault(self, node: yaml.Node, message: str) -> None:
        self.faults.append(self._diagnostic("error", self._at(node), message))

    def _plain(self, node: yaml.Node, path: PathKey) -> Any:
        self._nodes += 1
        if self._nodes > MAX_NODES or len(path) > MAX_DEPTH:
            message = "the file is too large or too deep"
            raise FileError([self._diagnostic("error", self._at(node), message)])
        self._values[path] = self._at(node)
        if isinstance(node, yaml.ScalarNode):
            if node.tag not in _PLAIN_TAGS:
                self._fault(node, f"the tag {node.tag} is not allowed; write the value as plain text")
            return node.value
        if isinstance(node, yaml.SequenceNode):
            return [self._plain(child, (*path, index)) for index, child in enumerate(node.value)]
        return self._mapping(node, path)

    def _mapping(self, node: yaml.Node, path: PathKey) -> dict[str, Any]:
        plain: dict[str, Any] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self._fault(key, "a key must be plain text; quote it if it has [ ] { } or , in it")
                continue
            if key.tag == _MERGE:
                self._fault(key, "merge keys (<<) are not allowed; write the values out")
                continue
            at = (*path, key.value)
            if key.value in plain:
                first = self._keys[at]
                self._fault(key, f"duplicate key {key.value!r}; the first one is in line {first.line}")
                continue
            self._keys[at] = self._at(key)
            plain[key.value] = self._plain(value, at)
        return plain


def _root_node(text: str) -> yaml.Node | None:
    """Returns the root of a file, None for an empty one. Raises yaml.YAMLError.

    libyaml's parser, if PyYAML was built with it, takes a third of the time. If it finds a fault, PyYAML's
    own parser reads the file again, so that the fault has the same words everywhere.
    """
    if yaml.__with_libyaml__:
        with suppress(yaml.YAMLError, UnicodeError):
            return _Composer(yaml.CSafeLoader(text)).document()
    return _Composer(yaml.SafeLoader(text)).document()


def tokens(text: str) -> list[yaml.Token]:
    """Returns the tokens of a file that `Source` has read. PyYAML's own scanner reads what libyaml rejects,
    such as `[a:]`."""
    if yaml.__with_libyaml__:
        with suppress(yaml.YAMLError):
            return list(yaml.scan(text, Loader=yaml.CSafeLoader))
    return list(yaml.scan(text, Loader=yaml.SafeLoader))


def _joined(text: str, at: Any) -> str:
    """A scalar without halves of characters: JSON writes an emoji as two escapes (`\\ud83d\\ude00`). Raises
    ComposerError for one half alone."""
    if text.isascii():
        return text
    try:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeDecodeError:
        raise ComposerError(None, None, "an escape is one half of a character (a surrogate)", at) from None


class _Composer:
    """Makes the tree of nodes from a parser's events, to a bounded depth.

    libyaml's own composer recurses for each level without a limit, so `[[[[…` would end the process.
    """

    def __init__(self, parser: yaml.SafeLoader | yaml.CSafeLoader) -> None:
        self._next: Callable[[], Any] = parser.get_event
        self._anchors: dict[str, yaml.Node] = {}

    def document(self) -> yaml.Node | None:
        """Returns the root of the only document; None if there is none. Raises yaml.YAMLError, _TooDeep."""
        self._next()  # the stream begins
        if isinstance(self._next(), StreamEndEvent):
            return None
        root = self._node(self._next(), 0)
        self._next()  # the document ends
        event = self._next()
        if not isinstance(event, StreamEndEvent):
            raise ComposerError(
                "expected a single document in the stream",
                root.start_mark,
                "but found another document",
                event.start_mark,
            )
        return root

    def _node(self, event: Any, depth: int) -> yaml.Node:
        start, end = event.start_mark, event.end_mark
        if isinstance(event, AliasEvent):
            if event.anchor not in self._anchors:
                raise ComposerError(None, None, f"found undefined alias {event.anchor!r}", start)
            return self._anchors[event.anchor]
        tag = None if event.tag == "!" else event.tag
        node: yaml.Node
        if isinstance(event, ScalarEvent):
            plain_tag = _MERGE if event.implicit[0] and event.value == "<<" else _STR
            node = yaml.ScalarNode(tag or plain_tag, _joined(event.value, start), start, end)
            self._anchor(event, node)
            return node
        if depth > MAX_DEPTH:
            raise _TooDeep(start)
        if isinstance(event, SequenceStartEvent):
            node = yaml.SequenceNode(tag or _SEQ, [], start, end)
            self._anchor(event, node)
            while not isinstance(event := self._next(), SequenceEndEvent):
                node.value.append(self._node(event, depth + 1))
            return node
        node = yaml.MappingNode(tag or _MAP, [], start, end)
        self._anchor(event, node)
        while not isinstance(event := self._next(), MappingEndEvent):
            key = self._node(event, depth + 1)
            node.value.append((key, self._node(self._next(), depth + 1)))
        return node

    def _anchor(self, event: Any, node: yaml.Node) -> None:
        if event.anchor is None:
            return
        known = self._anchors.setdefault(event.anchor, node)
        if known is not node:
            raise ComposerError(
                f"found duplicate anchor {event.anchor!r}; first occurrence",
                known.start_mark,
                "second occurrence",
                event.start_mark,
            )


class _TooDeep(yaml.MarkedYAMLError):
    """The file has more levels than a policy may have."""

    def __init__(self, mark: Any) -> None:
        super().__init__(problem="the file is too large or too deep", problem_mark=mark)


class Pruned(Source):
    """A source without some of its parts. The other parts keep their places."""

    def __init__(self, whole: Source, out: Collection[PathKey]) -> None:
        self._take_places(whole)
        self._kept: dict[PathKey, list[int]] = {}  # path of a list here: its items' indexes in the whole
        self.data = {} if () in out else self._prune(whole.data, (), (), out)

    def _prune(self, value: Any, there: PathKey, here: PathKey, out: Collection[PathKey]) -> Any:
        if isinstance(value, dict):
            return {
                key: self._prune(part, (*there, key), (*here, key), out)
                for key, part in value.items()
                if (*there, key) not in out
            }
        if isinstance(value, list):
            kept = self._kept[here] = [at for at in range(len(value)) if (*there, at) not in out]
            items = enumerate(kept)
            return [self._prune(value[at], (*there, at), (*here, number), out) for number, at in items]
        return value

    def original(self, path: Sequence[str | int]) -> PathKey:
        found: PathKey = ()
        for number, part in enumerate(path):
            kept = self._kept.get(tuple(path[:number]))
            if kept is not None and isinstance(part, int) and part < len(kept):
                part = kept[part]
            found = (*found, part)
        return found


def read_source(path: str | Path, *, keep_going: bool = False) -> Source:
    """Reads a YAML file. Raises FileError, also for a file that cannot be read or is not UTF-8. `keep_going`
    is that of Source."""
    name = shown_name(path)
    try:
        data = read_file(path)
        text = data.decode("utf-8-sig")
    except Unreadable as exc:
        raise file_error(name, str(exc)) from None
    except UnicodeDecodeError as exc:
        before = exc.object[: exc.start].split(b"\n")  # without the byte order mark
        place = Place(name, len(before), len(before[-1].decode()) + 1)
        byte = exc.start + len(data) - len(exc.object)
        message = f"not UTF-8 text (byte {byte}); save the file as UTF-8"
        raise FileError([Diagnostic(place, "error", message)]) from None
    return Source(name, text, keep_going=keep_going)
