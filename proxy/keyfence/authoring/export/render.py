"""Writes key builders as a module of one language.

Rule: the templates hold all code, and this module only what they fill in. The code is as the language's
formatter writes it (ruff format, gofmt, rustfmt).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from keyfence.policy.patterns.regular import Node

from .builders import Builder, Builders, Form, Parameter
from .forms import regex, tree
from .identifiers import Taken
from .languages import LANGUAGES, Language, python_escaped, python_quote

if TYPE_CHECKING:
    from jinja2 import Environment

RUFF_WIDTH = 88
RUST_CALL = 60  # characters that rustfmt lets the arguments of a call have on one line
RUST_WIDTH = 100


class Named(NamedTuple):
    """A builder's identifiers in one language."""

    builder: Builder
    function: str
    parameters: tuple[str, ...]


class _Forms:
    """The forms of a module, each once, with the names of their constants."""

    def __init__(self, language: Language, taken: Taken) -> None:
        self._language = language
        self._taken = taken
        self._known: dict[tuple[str, Node], str] = {}
        self.listed: list[Mapping[str, Any]] = []

    def constant(self, form: Form, wanted: str) -> str:
        """Returns the constant that holds a form."""
        language = self._language
        known = self._known.get((form.name, form.node))
        if known is not None:
            return known
        name = self._taken.take(language.constant(f"form {wanted}"))
        if language.name == "go":  # not exported
            name = name[0].lower() + name[1:]
        elif language.name == "python":
            name = f"_{name}"
        self._known[form.name, form.node] = name
        written = regex(form.node, splits=language.splits)
        self.listed.append(
            {
                "constant": name,
                "name": language.text(form.name),
                "text": language.text(form.text),
                "comment": language.comment(form.text),
                "form": language.form(tree(form.node), written),
            }
        )
        return name


def names_in(builders: Builders, language: str) -> list[Named]:
    """Returns the identifiers of all builders in a language."""
    return [one["named"] for one in _functions(builders, LANGUAGES[language])[0]]


def render(builders: Builders, language: str, module: str = "") -> str:
    """Returns the module's code. `module` is its name: of the package in Go, the class in Java. Raises
    ValueError for a name that the language does not take."""
    one = LANGUAGES[language]
    package, _, name = (module or one.module).rpartition(".")
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) or not re.fullmatch(r"[A-Za-z0-9_.]*", package):
        raise ValueError(f"{module!r} is not a name in {language}; use letters, digits and _")
    functions, forms = _functions(builders, one)
    template = code_templates("keyfence.authoring.export").get_template(
        f"{language}.jinja", globals=_EXPRESSIONS
    )
    return template.render(
        builders=builders,
        of=one.comment(f"{builders.policy}, revision {builders.revision}"),
        whose=one.comment(f"the service {builders.service}" if builders.service else "all services"),
        package=package,
        module=name,
        functions=functions,
        forms=forms,
        has_times=any(function["times"] for function in functions),
        has_constants=any(function["times"] or function["fields"] for function in functions),
        left_out=[(one.comment(name), why) for name, why in builders.left_out],
    )


def _functions(builders: Builders, language: Language) -> tuple[list[Any], list[Mapping[str, Any]]]:
    taken = Taken(language.reserved)
    forms = _Forms(language, taken)
    named = [taken.take(language.function(builder.entry)) for builder in builders.builders]
    functions = [
        _function(builder, function, language, taken, forms)
        for builder, function in zip(builders.builders, named, strict=True)
    ]
    return functions, forms.listed


def _function(
    builder: Builder, function: str, language: Language, taken: Taken, forms: _Forms
) -> Mapping[str, Any]:
    entry, comment = builder.entry, language.comment
    own = Taken(language.reserved | {function})
    identifiers = {one.name: own.take(language.parameter(one.name)) for one in builder.parameters}
    checks = [
        {
            "form": forms.constant(one.form, f"{entry} {one.name}" if one.tells_members else one.name),
            "identifier": identifiers[one.name],
        }
        for one in builder.parameters
    ]
    return {
        "named": Named(builder, function, tuple(identifiers.values())),
        "entry": comment(entry),
        "function": function,
        "parameters": list(identifiers.values()),
        "typed": [f"{one}: str" for one in identifiers.values()],  # in Python
        "checks": checks,
        "key_checks": [
            {"form": forms.constant(one, f"{entry} key"), "excludes": one.excludes}
            for one in builder.key_forms
        ],
        "longest": builder.longest,
        "pieces": [
            (identifiers[part.name], True) if isinstance(part, Parameter) else (part, False)
            for part in builder.parts
        ],
        "notes": [comment(one) for one in _notes(builder)],
        "times": [
            {
                "constant": language.constant(f"{entry} ttl {one.name}"),
                "milliseconds": one.milliseconds,
                "comment": _TIMES[one.name],
            }
            for one in builder.times
        ],
        "fields": [
            {
                "constant": taken.take(language.constant(f"{entry} field {field}")),
                "text": language.text(field),
            }
            for field in builder.fields
        ],
    }


_TIMES = {"": "usual", "min": "least", "max": "greatest"}


def _notes(builder: Builder) -> Sequence[str]:
    about = builder.about or f"A key of {builder.entry}"
    return [f"{about.rstrip('.')}: {builder.key}", "", *builder.facts]


# -- how the templates write expressions


def _python_key(pieces: Sequence[tuple[str, bool]]) -> str:
    literal = "".join(text for text, is_value in pieces if not is_value)
    quote = python_quote(literal)
    if not any(is_value for _, is_value in pieces):
        return f"{quote}{python_escaped(literal, quote)}{quote}"
    text = "".join(
        f"{{{part}}}" if is_value else re.sub("[{}]", r"\g<0>\g<0>", python_escaped(part, quote))
        for part, is_value in pieces
    )
    return f"f{quote}{text}{quote}"


def _python_line(expression: str, before: str, indent: int) -> str:
    """Returns `before` and an expression that cannot be divided, in parentheses if only so it fits."""
    space = " " * indent
    if len(space + before + expression) > RUFF_WIDTH >= indent + 4 + len(expression):
        return f"{space}{before}(\n{space}    {expression}\n{space})"
    return f"{space}{before}{expression}"


def _python_call(before: str, arguments: Sequence[str], after: str = ")", indent: int = 0) -> str:
    """Returns a call, with its arguments on one line each if it is too long for one."""
    space = " " * indent
    line = f"{space}{before}{', '.join(arguments)}{after}"
    if len(line) <= RUFF_WIDTH or not arguments:
        return line
    return f"{space}{before}\n" + "".join(f"{space}    {one},\n" for one in arguments) + space + after


def _rust_call(before: str, arguments: Sequence[str], after: str, indent: int = 0) -> str:
    space = " " * indent
    line = ", ".join(arguments)
    if len(line) <= RUST_CALL and indent + len(before + line + after) <= RUST_WIDTH:
        return f"{space}{before}{line}{after}"
    return f"{space}{before}\n" + "".join(f"{space}    {one},\n" for one in arguments) + space + after


def _rust_signature(function: str, parameters: Sequence[str]) -> str:
    typed = [f"{one}: &str" for one in parameters]
    line = f"pub fn {function}({', '.join(typed)}) -> Result<String, InvalidKey> {{"
    if len(line) <= RUST_WIDTH:
        return line
    return (
        f"pub fn {function}(\n"
        + "".join(f"    {one},\n" for one in typed)
        + (") -> Result<String, InvalidKey> {")
    )


def _joined(language: str, sign: str, pieces: Sequence[tuple[str, bool]]) -> str:
    text = LANGUAGES[language].text
    return sign.join(part if is_value else text(part) for part, is_value in pieces)


def _seconds(milliseconds: int) -> tuple[int, str]:
    """Returns a time and the unit that its constant's name ends with."""
    whole = milliseconds % 1000 == 0
    return (milliseconds // 1000, "SECONDS") if whole else (milliseconds, "MS")


def _rust_key(pieces: Sequence[tuple[str, bool]]) -> str:
    text = LANGUAGES["rust"].text
    return (
        '"'
        + "".join(f"{{{part}}}" if is_value else _rust_braces(text(part)[1:-1]) for part, is_value in pieces)
        + '"'
    )


def _rust_braces(text: str) -> str:
    return re.sub(
        r"\\u\{[0-9a-f]+\}|[{}]", lambda found: found[0] if len(found[0]) > 1 else found[0] * 2, text
    )


@functools.cache
def code_templates(package: str, **filters: Callable[..., str]) -> Environment:
    """Returns the templates of a package, which are code and not HTML: what is filled in is escaped before,
    or by one of `filters`."""
    # Imported for the first module, so that other commands do not wait for it.
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader(package),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        auto_reload=False,
    )
    environment.filters |= filters
    return environment


_EXPRESSIONS = {
    "python_key": _python_key,
    "python_line": _python_line,
    "python_call": _python_call,
    "rust_call": _rust_call,
    "rust_key": _rust_key,
    "rust_signature": _rust_signature,
    "joined": _joined,
    "seconds": _seconds,
}
