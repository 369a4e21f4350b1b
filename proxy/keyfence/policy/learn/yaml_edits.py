"""Edits of a YAML file as text: adding to its lists and mappings.

Rule: an edit only inserts text. Every comment, and the order of everything that was there, stays. (The one
exception: a single word that becomes a list gets its brackets.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

Path = Sequence[str]


class EditError(ValueError):
    """The text has a form that cannot be edited in this way."""


def find(text: str, path: Path) -> yaml.Node | None:
    """Returns the node at a path of keys; None if there is none. An empty path is the whole file."""
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    for key in path:
        if not isinstance(node, yaml.MappingNode):
            return None
        node = next((value for name, value in node.value if name.value == key), None)
    return node


def add_to_list(text: str, path: Path, item: str) -> str:
    """Returns the text with an item more in a list, which is made if it is not there."""
    node = find(text, path)
    if node is None:
        return add_to_mapping(text, path[:-1], path[-1], [f"[{item}]"])
    if isinstance(node, yaml.ScalarNode):
        start, end = node.start_mark.index, node.end_mark.index
        return f"{text[:start]}[{text[start:end]}, {item}]{text[end:]}"
    if not isinstance(node, yaml.SequenceNode):
        raise EditError(f"{'.'.join(path)} is not a list")
    if node.flow_style:
        return _insert(text, node.end_mark.index - 1, f", {item}" if node.value else item)
    last = node.value[-1]
    indent = " " * node.value[0].start_mark.column
    return _insert(text, _line_end(text, _end_of(last)), f"\n{indent[:-2]}- {item}")


def add_to_mapping(text: str, path: Path, key: str, lines: Sequence[str], above: Sequence[str] = ()) -> str:
    """Returns the text with a key more in a mapping, which is made if it is not there.

    `lines` are the value: one line to stand behind the key, or the lines of a mapping in block style.
    `above` are lines of comment.
    """
    node = find(text, path)
    if node is None or (isinstance(node, yaml.ScalarNode) and not node.value):
        if not path:
            raise EditError("the file is empty")
        inner = [f"{key}: {lines[0]}"] if _is_value(lines) else [f"{key}:", *(f"  {one}" for one in lines)]
        return add_to_mapping(text, path[:-1], path[-1], [*above, *inner, *([""] if len(inner) < 2 else [])])
    if not isinstance(node, yaml.MappingNode):
        raise EditError(f"{'.'.join(path)} is not a mapping")
    if node.flow_style:
        value = lines[0] if len(lines) == 1 else f"{{{', '.join(line.strip() for line in lines)}}}"
        at = len(text[: node.end_mark.index - 1].rstrip())
        return _insert(text, at, f", {key}: {value}" if node.value else f"{key}: {value}")
    indent = " " * node.value[0][0].start_mark.column
    block = [f"{indent}{line}" for line in above]
    if _is_value(lines):
        block.append(f"{indent}{key}: {lines[0]}")
    else:
        block += [f"{indent}{key}:", *(f"{indent}  {line}" for line in lines if line)]
    return _insert(text, _line_end(text, _end_of(node.value[-1][1])), "\n" + "\n".join(block))


def _is_value(lines: Sequence[str]) -> bool:
    """Whether lines are a value that stands behind its key, and not a mapping in block style."""
    return len(lines) == 1


def _end_of(node: Any) -> int:
    """Returns where a node's own text ends. The marks of block nodes lie behind the comments that follow."""
    if isinstance(node, yaml.ScalarNode) or node.flow_style:
        return int(node.end_mark.index)
    if not node.value:
        return int(node.start_mark.index)
    last = node.value[-1]
    return _end_of(last[1] if isinstance(last, tuple) else last)


def _line_end(text: str, at: int) -> int:
    end = text.find("\n", max(at - 1, 0) if text[at - 1 : at] == "\n" else at)
    return len(text.rstrip("\n")) if end < 0 else end


def _insert(text: str, at: int, what: str) -> str:
    return text[:at] + what + text[at:]
