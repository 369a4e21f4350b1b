"""Arguments of a request are compared by one module only: `keyfence.commands.arguments`.

Servers end a word at a NUL byte and fold ASCII letters only. Code that compares an argument in another way
would evaluate, or follow, another command than the one that runs. So this test searches the rooms that read
requests for every comparison outside these readers: folding letters, comparing with a value, looking up in a
table.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.servers import PROJECT

PACKAGE = PROJECT / "proxy" / "keyfence"
ROOMS = ("authoring", "commands", "identity", "policy", "session", "shapes")
FOLDS = frozenset({"upper", "lower", "casefold", "swapcase", "title", "capitalize"})
SEARCHES = frozenset({"startswith", "endswith", "removeprefix", "removesuffix", "find", "index", "isdigit"})
# Names that mean a request, and names that mean one argument of it, in any module.
REQUESTS = frozenset({"argv", "arguments"})

# Functions that may compare a request's argument directly, with the reason.
RAW = {
    ("commands/arguments.py", "word"): "it is the reader",
    ("commands/arguments.py", "fold"): "it is the reader",
    ("commands/arguments.py", "function_name"): "it is the reader",
    ("commands/arguments.py", "may_hold"): "it is the reader",
    ("commands/arguments.py", "integer"): "it is the reader",
    (
        "commands/extract.py",
        "extract",
    ): "two spellings need no folding; others go through fold",
    ("commands/extract.py", "_container.plan"): "as in extract",
    ("session/fastpath.py", "is_named"): "as fold, in C; nothing of that length with a NUL is such a name",
    ("session/conversation/known_client.py", "KnownClient.can_move"): "a library's own name for itself",
    ("session/handlers/table.py", "handler_of"): "as fold; a name with a NUL is read by word",
    (
        "policy/engine/decision_cache.py",
        "DecisionCache._find",
    ): "a form is found by the spelling that the evaluator was asked about",
    (
        "policy/engine/forms.py",
        "CommandForms._options",
    ): "a form is found by its spelling; the evaluator reads a `*` that is spelled otherwise",
    (
        "policy/compiled/policy.py",
        "Fields.form_of",
    ): "a field in another case is another field, and the message says so",
    ("policy/compiled/policy.py", "Fields.meant"): "as in form_of",
}
# Functions that fold text from elsewhere: from the server, from the policy, or text for people.
OTHERS = {
    ("commands/learned.py", "_entries"): "a server's reply",
    ("commands/learned.py", "_name"): "a server's reply",
    ("commands/table.py", "spec_from"): "a server's reply",
    ("commands/call_layouts.py", "_layouts"): "the table's names",
    ("commands/extract.py", "_one_key_commands"): "the table's names",
    ("commands/extract.py", "_compile_all"): "the table's names",
    ("commands/extract.py", "_keyless_commands"): "the table's names",
    ("session/sentinel/commands.py", "_lower"): "the table's names",
    ("policy/compiler/commands.py", "*"): "the policy's text",
    ("policy/compiler/requirements.py", "*"): "the policy's text",
    ("policy/compiler/scripts.py", "*"): "the policy's text",
    ("policy/diagnostics.py", "*"): "the policy's text",
    ("session/handlers/inband.py", "_fault"): "the names and arguments of keyfence's own commands",
    ("policy/compiler/merge.py", "*"): "the policy's text",
    ("policy/units.py", "*"): "the policy's text",
    ("policy/compiled/names.py", "*"): "a key that is shown",
    ("policy/compiled/secrets.py", "_take"): "the policy's text",
    ("policy/compiled/splittable.py", "splittable"): "the configuration's text",
    ("policy/compiled/written.py", "_may_hold_a_case_of"): "the policy's names of fields",
    ("policy/source/validate.py", "*"): "an error's text",
    ("policy/enforcement/waivers.py", "*"): "the waivers' text",
    ("authoring/testing.py", "*"): "an error's text",
    ("authoring/sequences.py", "*"): "an error's text",
    ("policy/enforcement/baseline.py", "_yaml"): "a text of the file that is written",
    ("authoring/export/acl_commands.py", "words"): "the table's names",
    ("authoring/learn/applications.py", "_application"): "a script's SHA-1",
    ("authoring/learn/seen.py", "Evidence._add_rest"): "a script's SHA-1",
    ("authoring/learn/extend.py", "*"): "names of the policy that is written",
    ("authoring/learn/layout.py", "*"): "names of the policy that is written",
    ("authoring/learn/legacy.py", "*"): "names of the policy that is written",
    ("authoring/learn/naming.py", "*"): "names of the policy that is written",
    ("authoring/learn/typos.py", "_plain"): "words of keys that were seen, to compare them with each other",
    ("authoring/learn/values.py", "*"): "pieces of keys that were seen, by their class",
    ("authoring/export/identifiers.py", "*"): "the policy's names, as identifiers",
    ("authoring/export/render.py", "*"): "the policy's names, as identifiers",
    ("policy/remedies/remedies.py", "_charset"): "a key that is proposed",
    ("policy/show.py", "shown_name"): "a name that is shown",
    ("policy/compiled/scripts.py", "sha1_of"): "a SHA-1: forty hex digits, or none that is known",
    ("shapes/secrecy.py", "*"): "a key that is shown",
}


class Use(NamedTuple):
    """A comparison of an argument outside the readers."""

    module: str
    function: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.module}:{self.line} in {self.function}: {self.text}"


class Comparisons(ast.NodeVisitor):
    """Finds such comparisons in one module."""

    def __init__(self, module: str) -> None:
        self.module = module
        self.found: list[Use] = []
        self._functions: list[str] = []
        self._arguments: list[set[str]] = [set()]  # names of single arguments, by function

    def _note(self, node: ast.AST) -> None:
        function = ".".join(self._functions)
        self.found.append(Use(self.module, function, node.lineno, ast.unparse(node)[:90]))  # type: ignore[attr-defined]

    def _is_raw(self, node: ast.AST) -> bool:
        """Returns whether the expression is an argument of a request, unread, or a part of one."""
        if isinstance(node, ast.Name):
            return node.id in self._arguments[-1]
        if isinstance(node, ast.Subscript):
            inside = node.value
            return (isinstance(inside, ast.Name) and inside.id in REQUESTS) or self._is_raw(inside)
        if isinstance(node, ast.Attribute):
            return node.attr in REQUESTS
        return isinstance(node, ast.Call) and _called(node) in FOLDS and self._is_raw(_receiver(node))

    # -- names for arguments

    def _bind(self, target: ast.AST, value: ast.AST) -> None:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            for one, other in zip(target.elts, value.elts, strict=False):
                self._bind(one, other)
        elif isinstance(target, ast.Name) and self._is_raw(value):
            self._arguments[-1].add(target.id)

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            self._bind(target, node.value)
        self.generic_visit(node)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self._bind(node.target, node.value)
        self.generic_visit(node)

    def _loop(self, target: ast.AST, values: ast.AST) -> None:
        is_request = isinstance(values, ast.Name) and values.id in REQUESTS
        if isinstance(target, ast.Name) and (is_request or self._is_raw(values)):
            self._arguments[-1].add(target.id)

    def visit_For(self, node: ast.For) -> None:
        self._loop(node.target, node.iter)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        self._loop(node.target, node.iter)
        self.generic_visit(node)

    def _visit_comprehension(
        self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp
    ) -> None:
        for one in node.generators:
            self._loop(one.target, one.iter)
        self.generic_visit(node)

    visit_ListComp = visit_SetComp = visit_GeneratorExp = visit_DictComp = _visit_comprehension

    # -- comparisons of arguments

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._functions.append(node.name)
        own = {one.arg for one in node.args.args if one.arg == "argument"}
        self._arguments.append(self._arguments[-1] | own)
        self.generic_visit(node)
        self._arguments.pop()
        self._functions.pop()

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._functions.append(node.name)
        self.generic_visit(node)
        self._functions.pop()

    def visit_Compare(self, node: ast.Compare) -> None:
        sides = [node.left, *node.comparators]
        compares = all(isinstance(one, ast.Eq | ast.NotEq | ast.In | ast.NotIn) for one in node.ops)
        if compares and any(map(self._is_raw, sides)) and not any(map(_is_empty, sides)):
            self._note(node)
        self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if self._is_raw(node.slice):
            self._note(node)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        called = _called(node)
        looks_up = (
            called == "get" and isinstance(node.func, ast.Attribute) and any(map(self._is_raw, node.args))
        )
        searches = (
            called in SEARCHES and isinstance(node.func, ast.Attribute) and self._is_raw(node.func.value)
        )
        converts = called in ("int", "float") and any(map(self._is_raw, node.args))
        if called in FOLDS or looks_up or searches or converts:
            self._note(node)
        self.generic_visit(node)


def _called(node: ast.Call) -> str:
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""


def _receiver(node: ast.Call) -> ast.AST:
    return node.func.value if isinstance(node.func, ast.Attribute) else node


def _is_empty(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value == b""


def comparisons(source: str, module: str) -> list[Use]:
    visitor = Comparisons(module)
    visitor.visit(ast.parse(source))
    return visitor.found


def modules() -> Iterator[Path]:
    for room in ROOMS:
        yield from sorted((PACKAGE / room).rglob("*.py"))


def every_use() -> list[Use]:
    return [
        use for path in modules() for use in comparisons(path.read_text(), str(path.relative_to(PACKAGE)))
    ]


def excuse(use: Use) -> tuple[str, str] | None:
    """Returns the exception that covers a use."""
    for place in ((use.module, use.function), (use.module, "*")):
        if place in RAW or place in OTHERS:
            return place
    return None


def test_only_the_readers_compare_arguments() -> None:
    assert [str(use) for use in every_use() if excuse(use) is None] == []


def test_every_listed_exception_is_still_needed() -> None:
    assert {*RAW, *OTHERS} - {excuse(use) for use in every_use()} == set()


@pytest.mark.parametrize(
    "line",
    [
        'argv[1].upper() == b"REPLY"',
        'argv[1] == b"STORE"',
        'argv[at + 1] in (b"~", b"=")',
        "TABLE.get(argv[0])",
        "TABLE[argv[0]]",
        "argv[1] in TABLE",
        'name = argv[0]\\n    return name == b"GET"',
        'return any(one == b"DB" for one in argv[3:])',
        'return [one for one in argv if one in (b"DB",)]',
        'for argument in argv[2:]:\\n        if argument == b"NX":\\n            return 1',
        "int(argv[1])",
        "argv[1].isdigit()",
        'argv[0].startswith(b"X")',
        "subcommand = argv[1].upper() if len(argv) > 1 else b''",
        "name, left = argv[2], 3\\n    return TABLE.get(name)",
    ],
)
def test_every_form_of_comparison_is_found(line: str) -> None:
    text = line.replace("\\n", "\n")
    assert comparisons(f"def judge(argv):\n    {text}\n", "policy/x.py"), text


@pytest.mark.parametrize(
    "line",
    [
        'word(argv[1]) == b"REPLY"',
        "TABLE.get(fold(argv[0]))",
        "integer(argv[2]) in (2, 3)",
        "len(argv[1]) > 3",
    ],
)
def test_results_of_the_readers_may_be_compared(line: str) -> None:
    assert not comparisons(f"def judge(argv):\n    {line}\n", "policy/x.py")
