"""The languages that builders are written in, and how each one writes names, texts and forms.

Rule: whatever text a policy holds, the code that comes out is only code of this module's templates: texts are
literals, and comments are one line each.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import NamedTuple

from keyfence.policy.show import PLAIN

from .forms import Tree
from .identifiers import camel, go_camel, go_pascal, screaming, snake

Name = Callable[[str], str]


class Language(NamedTuple):
    """One language that builders are written in."""

    name: str
    suffix: str  # of the file
    module: str  # the name of the module, package or class, if the user gives none
    function: Name
    parameter: Name
    constant: Name
    text: Callable[[str], str]  # a text as a literal
    form: Callable[[Tree, str], str]  # a form as an expression; the text is its regular expression
    comment: Callable[[str], str]  # a text for a comment
    reserved: frozenset[str]
    splits: bool = False  # its regular expressions need small counters


def _python_text(text: str) -> str:
    quote = python_quote(text)
    return f"{quote}{python_escaped(text, quote)}{quote}"


def python_quote(text: str) -> str:
    """Returns the quote that ruff prefers for a text: the one that needs fewer escapes."""
    return "'" if text.count('"') > text.count("'") else '"'


def python_escaped(text: str, quote: str) -> str:
    """Returns a text as it stands between these quotes."""
    return "".join(
        f"\\{char}" if char in f"\\{quote}" else char if char.isprintable() else _python_escape(ord(char))
        for char in text
    )


def _python_escape(code: int) -> str:
    if code in _PYTHON_ESCAPES:
        return _PYTHON_ESCAPES[code]
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"


_PYTHON_ESCAPES = {9: "\\t", 10: "\\n", 13: "\\r"}


def _escaped(text: bytes, escape: Callable[[int], str]) -> str:
    """Returns a literal of printable ASCII; other bytes are escaped."""
    inner = (chr(byte) if byte in PLAIN else escape(byte) for byte in text)
    return '"' + "".join(inner) + '"'


def _go_text(text: str) -> str:
    return _escaped(text.encode(), lambda byte: f"\\x{byte:02x}")


def _lua_text(text: str) -> str:
    return _lua_bytes(text.encode())


def _lua_bytes(text: bytes) -> str:
    return _escaped(text, lambda byte: f"\\{byte:03d}")


def _rust_byte(byte: int) -> str:
    return f"b'{chr(byte)}'" if byte in PLAIN else f"b'\\x{byte:02x}'"


def _rust_text(text: str) -> str:
    return (
        '"'
        + "".join(
            char if char.isprintable() and char not in '\\"' else f"\\u{{{ord(char):x}}}" for char in text
        )
        + '"'
    )


def _lua_form(form: Tree, _: str) -> str:
    def write(one: Tree, parts: list[str]) -> str:
        most = "nil" if one.most is None else str(one.most)
        if one.kind == "set":
            pairs = bytes(byte for both in one.ranges for byte in both)
            return f"set({_lua_bytes(pairs)}, {one.least}, {most})"
        if one.kind == "text":
            return f"lit({_lua_bytes(one.text)})"
        if one.kind == "rep":
            return f"rep({parts[0]}, {one.least}, {most})"
        return f"{one.kind}({{ {', '.join(parts)} }})"

    return form.written(write)


def _rust_form(form: Tree, _: str) -> str:
    def write(one: Tree, parts: list[str]) -> str:
        most = "NO_LIMIT" if one.most is None else str(one.most)
        if one.kind == "set":
            sets = ", ".join(f"({_rust_byte(first)}, {_rust_byte(last)})" for first, last in one.ranges)
            return f"Part::Set(&[{sets}], {one.least}, {most})"
        if one.kind == "text":
            return 'Part::Text(b"' + "".join(_rust_byte(byte)[2:-1] for byte in one.text) + '")'
        if one.kind == "rep":
            return f"Part::Rep(&{parts[0]}, {one.least}, {most})"
        return f"Part::{'Seq' if one.kind == 'seq' else 'Any'}(&[{', '.join(parts)}])"

    return form.written(write)


def _plain_comment(text: str) -> str:
    return text


def _python_comment(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"""', "'''")


def _block_comment(text: str) -> str:
    """Java reads \\u escapes in comments too."""
    return text.replace("\\", "\\ ").replace("*/", "* /")


_PYTHON_WORDS = (
    "False None True and as assert async await break class continue def del elif else except finally for "
    "from global if import in is lambda nonlocal not or pass raise return try while with yield str bytes "
    "re Final ValueError len annotations"
)
_GO_WORDS = (
    "break case chan const continue default defer else fallthrough for func go goto if import interface map "
    "package range return select struct switch type var string error byte rune len nil true false err fmt "
    "regexp time key check invalid init"
)
_TYPESCRIPT_WORDS = (
    "break case catch class const continue debugger default delete do else enum export extends false finally "
    "for function if import in instanceof new null return super switch this throw true try typeof var void "
    "while with implements interface let package private protected public static yield await async any "
    "string number boolean key check eval arguments undefined constructor name value"
)
_JAVA_WORDS = (
    "abstract assert boolean break byte case catch char class const continue default do double else enum "
    "extends final finally float for goto if implements import instanceof int interface long native new "
    "package private protected public return short static strictfp super switch synchronized this throw "
    "throws transient try void volatile while true false null var record yield key check getClass hashCode "
    "equals toString notify notifyAll wait clone finalize"
)
_RUST_WORDS = (
    "as async await break const continue crate dyn else enum extern false fn for if impl in let loop match "
    "mod move mut pub ref return self static struct super trait true type unsafe use where while abstract "
    "become box do final macro override priv typeof unsized virtual yield try gen str key check format"
)
_LUA_WORDS = (
    "and break do else elseif end false for function goto if in local nil not or repeat return then true "
    "until while set seq any rep check error forms key string pairs ipairs type _M lit"
)

LANGUAGES = {
    one.name: one
    for one in (
        Language(
            *("python", ".py", "redis_keys", snake, snake, screaming),
            text=_python_text,
            form=lambda _, form: f'rb"{form}"',
            comment=_python_comment,
            reserved=frozenset(_PYTHON_WORDS.split()),
        ),
        Language(
            *("go", ".go", "rediskeys", go_pascal, go_camel, go_pascal),
            text=_go_text,
            form=lambda _, form: f"`\\A(?:{form})\\z`",
            comment=_plain_comment,
            reserved=frozenset(_GO_WORDS.split()),
            splits=True,
        ),
        Language(
            *("typescript", ".ts", "redisKeys", camel, camel, screaming),
            text=json.dumps,
            form=lambda _, form: f"/^(?:{form})$/",
            comment=_block_comment,
            reserved=frozenset(_TYPESCRIPT_WORDS.split()),
        ),
        Language(
            *("java", ".java", "RedisKeys", camel, camel, screaming),
            text=json.dumps,
            form=lambda _, form: json.dumps(form),
            comment=_block_comment,
            reserved=frozenset(_JAVA_WORDS.split()),
        ),
        Language(
            *("rust", ".rs", "redis_keys", snake, snake, screaming),
            text=_rust_text,
            form=_rust_form,
            comment=_plain_comment,
            reserved=frozenset(_RUST_WORDS.split()),
        ),
        Language(
            *("lua", ".lua", "redis_keys", snake, snake, screaming),
            text=_lua_text,
            form=_lua_form,
            comment=_plain_comment,
            reserved=frozenset(_LUA_WORDS.split()),
        ),
    )
}
