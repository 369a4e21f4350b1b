"""Compiles the scripts and functions that a policy registers.

Rule: only the SHA-1 of its text identifies a script, also one of a library that keyfence knows. A function is
identified by its name as Redis reads it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from keyfence.commands.arguments import function_name
from keyfence.commands.model import READ, WRITE
from keyfence.policy.compiled.scripts import (
    LEAST_DIGITS,
    PREFIX,
    SHA1_DIGITS,
    Registration,
    Template,
    Uncaptured,
    Unregistered,
    parse_ttl,
)
from keyfence.policy.diagnostics import did_you_mean
from keyfence.policy.source.files import Unreadable, read_file
from keyfence.policy.source.libraries import (
    FILE,
    UnknownVersion,
    chosen_versions,
    libraries,
    scripts_of,
    versions_of,
)
from keyfence.policy.source.model import FunctionModel, ScriptModel, TouchModel

from .commands import build_run_commands
from .context import CompilerContext


def build_scripts(context: CompilerContext) -> dict[bytes, Registration]:
    """Returns the registered scripts by the SHA-1s of their texts."""
    scripts: dict[bytes, Registration] = {}
    for name, model in context.model.scripts.items():
        path = ("scripts", name)
        if model.library or model.prefix or model.versions:
            known = _of_library(context, name, model, path)
        else:
            registration = _registration(context, name, model, path)
            known = [(sha1, registration) for sha1 in _sha1s(context, model, path)]
        taken: dict[str, None] = {}
        for sha1, one in known:
            if sha1 in scripts:
                taken[scripts[sha1].name] = None
            elif one is not None:
                scripts[sha1] = one
        for other in taken:
            context.error(path, f"the script {other} has the same SHA-1", of_key=True)
    return scripts


# The settings of a library's entry; the file of libraries gives the others.
_OF_LIBRARY = frozenset({"about", "library", "versions", "prefix", "commands"})


def _of_library(
    context: CompilerContext, name: str, model: ScriptModel, path: tuple[str, ...]
) -> list[tuple[bytes, Registration | None]]:
    """Returns the registrations of a library's scripts, each with the SHA-1 of its text."""
    if model.library not in libraries():
        near = did_you_mean(model.library, libraries())
        place = (*path, "library") if model.library else path
        what = f"keyfence does not know the scripts of {model.library!r}" if model.library else "no library"
        context.error(place, f"{what}{near}", of_key=not model.library)
        return []
    for field in sorted(model.model_fields_set - _OF_LIBRARY):
        context.error((*path, field), f"keyfence knows this of {model.library}; remove {field}")
    if not model.prefix:
        message = f"no prefix; write how the keys of {model.library} begin, as prefix: {model.library}:"
        context.error(path, message, of_key=True)
    for index, text in enumerate(model.prefix):
        if not text or set(text) & set("<>*"):
            context.error((*path, "prefix", index), f"{text!r} is not a prefix; write plain text")
    try:
        versions = chosen_versions(model.library, model.versions)
    except UnknownVersion as exc:
        newest = ", ".join(versions_of(model.library)[-3:])
        message = f"keyfence knows no {model.library} {exc}; it knows …, {newest}"
        context.error((*path, "versions"), message)
        return []
    context.texts.append(FILE.read_bytes())
    every = Template(f"<{PREFIX}>*", frozenset({PREFIX}))
    runs = build_run_commands(context, model.commands, (*path, "commands"))
    prefixes = tuple(text.encode() for text in model.prefix)
    return [
        (
            one.sha1,
            Registration(
                name=name,
                keys=one.keys,
                patterns=(),
                declared=READ | WRITE if one.writes else READ,
                reads=(every,),
                writes=(every,) if one.writes else (),
                publishes=(),
                bound=tuple(context.callers.items()),
                runs=runs,
                prefixes=prefixes,
            ),
        )
        for one in scripts_of(model.library, versions)
    ]


def build_unregistered(context: CompilerContext) -> Unregistered:
    """Returns what the file says about scripts that are not registered."""
    model, path = context.model.unregistered_scripts, ("unregistered_scripts", "services")
    numbers = {
        context.number(name, (*path, name), of_key=True): word for name, word in model.services.items()
    }
    return Unregistered(
        model.default, tuple((number, word) for number, word in numbers.items() if number is not None)
    )


def build_functions(context: CompilerContext) -> dict[bytes, Registration]:
    """Returns the registered functions by `arguments.function_name`."""
    functions: dict[bytes, Registration] = {}
    for name, model in context.model.functions.items():
        registration = _registration(context, name, model, ("functions", name))
        key = function_name(name.encode())
        if key in functions:
            message = (
                f"the function {functions[key].name} is the same to Redis, which ignores the case of names"
            )
            context.error(("functions", name), message, of_key=True)
        elif registration is not None:
            functions[key] = registration
    return functions


def _sha1s(context: CompilerContext, model: ScriptModel, path: tuple[str, ...]) -> list[bytes]:
    sha1s = []
    for index, text in enumerate(model.sha1):
        digits = text.removesuffix("...").removesuffix("…").lower()
        least = SHA1_DIGITS if digits == text.lower() else LEAST_DIGITS
        if not least <= len(digits) <= SHA1_DIGITS or not set(digits) <= set("0123456789abcdef"):
            context.error(
                (*path, "sha1", index),
                f"{text!r} is not a SHA-1; write 40 hex digits, or at least {LEAST_DIGITS} and ...",
            )
        elif model.shared and len(digits) < SHA1_DIGITS:
            message = "shared needs the whole SHA-1: a client can make another script whose SHA-1 begins with"
            context.error((*path, "sha1", index), f"{message} {digits}")
        sha1s.append(digits.encode())
    if model.source and "://" in context.source.file:
        context.error(
            (*path, "source"), "a policy from a URL has no files beside it; write the script's sha1"
        )
    elif model.source:
        file = Path(context.source.file).parent / model.source
        try:
            script = read_file(file)
            sha1s.append(hashlib.sha1(script, usedforsecurity=False).hexdigest().encode())
            context.texts.append(script)
        except Unreadable as exc:
            context.error((*path, "source"), f"{file} {exc}")
    elif not sha1s:
        context.error(path, "neither sha1 nor source: nothing identifies this script", of_key=True)
    return sha1s


def _registration(
    context: CompilerContext, name: str, model: FunctionModel, path: tuple[str, ...]
) -> Registration | None:
    texts = model.keys if isinstance(model.keys, list) else []
    patterns = [context.pattern(text, (*path, "keys", index)) for index, text in enumerate(texts)]
    known = [pattern for pattern in patterns if pattern is not None]
    if len(known) < len(patterns):
        return None
    captured = frozenset(hole.name for pattern in known for hole in pattern.holes) | context.callers.keys()
    templates = {
        "reads": tuple(_templates(context, model.reads, captured, (*path, "reads"))),
        "writes": tuple(_templates(context, model.writes, captured, (*path, "writes"))),
        "publishes": tuple(
            _templates(
                context, [TouchModel(key=one) for one in model.publishes], captured, (*path, "publishes")
            )
        ),
    }
    # Templates list all keys that a script touches. It touches the declared keys only if `declared` says so.
    declared = model.declared or ("none" if templates["reads"] or templates["writes"] else "both")
    return Registration(
        name=name,
        keys=None if model.keys == "any" else len(texts) if isinstance(model.keys, list) else model.keys,
        patterns=tuple(known),
        declared={"none": 0, "read": READ, "write": WRITE, "both": READ | WRITE}[declared],
        shared=model.shared,
        bound=tuple(context.callers.items()),
        runs=build_run_commands(context, model.commands, (*path, "commands")),
        reads=templates["reads"],
        writes=templates["writes"],
        publishes=templates["publishes"],
    )


def _templates(
    context: CompilerContext, touched: Iterable[TouchModel], captured: frozenset[str], path: tuple[str, ...]
) -> Iterable[Template]:
    for index, one in enumerate(touched):
        try:
            ttl = parse_ttl(one.ttl) if one.ttl else None
            runs = build_run_commands(context, one.commands, (*path, index, "commands"))
            yield Template(one.key, captured, one.type, ttl, runs)
        except ValueError as exc:
            relies_on = [(*path[:2], "keys")] if isinstance(exc, Uncaptured) else []
            context.error((*path, index), f"{one.key!r}: {exc}", relies_on=relies_on)
