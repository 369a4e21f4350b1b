"""Edits of a YAML file as text: adding to its lists and mappings.

Rule: an edit inserts text, and replaces at most a single word. Every comment, and the order of everything
that was there, stays.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
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


def with_first_item(text: str, section: str, item: str) -> str:
    """Returns the text with an item more, which comes first in a list of the top level. `item` is YAML on one
    line. Raises EditError, YAMLError."""
    before = _document(text)
    node = find(text, (section,)) if before else None
    newline = "\r\n" if "\r\n" in text else "\n"
    if node is None:
        gap = "" if not text or text.endswith("\n") else newline
        after = f"{text}{gap}{section}:{newline}  - {item}{newline}"
    elif not isinstance(node, yaml.SequenceNode):
        raise EditError(f"{section} is not a list")
    elif node.flow_style:
        at = text.index("[", node.start_mark.index) + 1  # an anchor may come before it
        after = _insert(text, at, f"{item}{', ' if node.value else ''}")
    else:
        dash = text.rindex("-", 0, node.value[0].start_mark.index)
        at = text.rfind("\n", 0, dash) + 1
        after = _insert(text, at, f"{text[at:dash]}- {item}{newline}")
    expected = {**before, section: [yaml.safe_load(item), *before.get(section, [])]}
    with contextlib.suppress(EditError, yaml.YAMLError):
        if _document(after) == expected:
            return after
    raise EditError(f"its {section} are written in a way that is only changed by hand")


def with_lines(text: str, lines: Mapping[str, Any]) -> str:
    """Returns the text with these lines: mappings are merged, lists united, and words replaced. Raises
    EditError, YAMLError."""
    after = text
    for key, value in lines.items():
        after = _merge(after, (key,), value)
    expected = _merged(yaml.load(text, yaml.BaseLoader), yaml.load(flow_text(lines), yaml.BaseLoader))
    if yaml.load(after, yaml.BaseLoader) != expected:
        raise EditError("it is written in a way that is only changed by hand")
    return after


def flow_text(value: Any) -> str:
    """Returns a value as YAML on one line."""
    text = yaml.safe_dump([value], default_flow_style=True, width=1_000_000, sort_keys=False)
    return str(text).strip()[1:-1]


def _merge(text: str, path: Path, value: Any) -> str:
    node = find(text, path)
    if node is None:
        return add_to_mapping(text, path[:-1], path[-1], [flow_text(value)])
    if isinstance(node, yaml.ScalarNode) and not node.value and not node.style:
        return _insert(text, node.start_mark.index, f" {flow_text(value)}")
    if isinstance(value, Mapping):
        for key, one in value.items():
            text = _merge(text, (*path, str(key)), one)
        return text
    if isinstance(value, list):
        known = [one.value for one in (node.value if isinstance(node, yaml.SequenceNode) else [node])]
        for one in value:
            if str(one) not in known:
                text = add_to_list(text, path, flow_text(one))
        return text
    if not isinstance(node, yaml.ScalarNode):
        raise EditError(f"{'.'.join(path)} is not a word")
    return text[: node.start_mark.index] + flow_text(value) + text[node.end_mark.index :]


def _merged(old: Any, new: Any) -> Any:
    if isinstance(new, dict):
        kept = dict(old) if isinstance(old, dict) else {}
        return kept | {name: _merged(kept.get(name), value) for name, value in new.items()}
    if isinstance(new, list):
        held = [old] if isinstance(old, str) else list(old or [])
        return [*held, *(one for one in new if one not in held)]
    return new


def _document(text: str) -> dict[Any, Any]:
    found = yaml.safe_load(text)
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise EditError("its top level is not a mapping")
    return found


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
