"""The codes of `check`'s warnings, and the comments by which a policy acknowledges a warning in place.

    lock: {key: "a:<id>", writers: [b]}   # keyfence: ignore foreign-entry b is about to take this scope over

Rule: a comment acknowledges one warning at its place, with a reason. A comment that acknowledges nothing is
reported, so that no comment outlives its cause.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence

import yaml

from keyfence.policy.diagnostics import Diagnostic, Place, did_you_mean

from .yaml import Source, tokens

# Codes do not change: policy files and CI jobs name them. docs/tools.md has the same table.
CODES: Mapping[str, str] = {
    "claim-inside": "a claim is inside another file's claim, and that file does not delegate it",
    "colon": "a placeholder admits `:`, so it can span segments",
    "ends-soon": "an exception (legacy, a grant) ends within 14 days",
    "foreign-entry": "an entry can be written by other services, but by no writer of its scope",
    "idle-delegate": "no file of the folder claims what this one delegates",
    "idle-rights": "no entry takes the rights at the policy's top",
    "idle-service": "a service can do nothing with any key or channel",
    "legacy-overlap": "a legacy form also matches keys of the convention",
    "name-rules": "every key of an entry breaks the naming rules",
    "never-matches": "more specific entries take all keys of an entry",
    "short-sha1": "a script is known by the beginning of its SHA-1",
    "stricter-file": "a stricter file of the folder overrides what this one allows scripts",
    "ttl-at-write": "an entry requires each write to set a time to live, and no command of its type can",
    "unclear-form": "a legacy form may stand for several keys of one service",
    "unowned-form": "no service may use a legacy form, because it does not show who owns a key",
    "unwritten-scope": "no service may write to a scope or to any entry in it",
}
# Faults of the comments themselves. No comment can acknowledge these.
COMMENT_CODES: Mapping[str, str] = {
    "bad-ignore": "a `keyfence: ignore` comment without a known code or without a reason",
    "unused-ignore": "a `keyfence: ignore` comment where there is no such warning",
}

_COMMENT = re.compile(r"(?:(?<=\s)|^)#\s*keyfence:\s*ignore\b(?P<what>.*)")


@dataclasses.dataclass(slots=True)
class _Ignore:
    place: Place
    code: str
    line: int  # that it applies to
    excerpt: str
    width: int
    used: bool = False

    def warning(self, code: str, message: str) -> Diagnostic:
        return Diagnostic(self.place, "warning", message, self.excerpt, self.width, code=code)


def settle(source: Source, warnings: Sequence[Diagnostic], *, whole: bool) -> tuple[list[Diagnostic], int]:
    """Returns the warnings of a file that no comment acknowledges, with the warnings about comments, and the
    number of acknowledged ones. If the file was not checked as a `whole`, unused comments are not
    reported."""
    found: list[Diagnostic] = []
    ignores: list[_Ignore] = []
    for one in _comments(source):
        fault = _fault(one)
        if fault is None:
            ignores.append(one)
        else:
            found.append(fault)
    ignored = 0
    for warning in warnings:
        lines = _lines(source, warning)
        fitting = [one for one in ignores if one.code == warning.code and one.line in lines]
        for one in fitting:
            one.used = True
        if fitting and warning.level == "warning":
            ignored += 1
        else:
            found.append(warning)
    for one in ignores:
        if whole and not one.used:
            message = f"there is no warning {one.code} here to ignore; remove the comment"
            found.append(one.warning("unused-ignore", message))
    return found, ignored


def _lines(source: Source, warning: Diagnostic) -> set[int]:
    """Returns the lines at which a comment can acknowledge a warning: its own, and those of the names above
    it."""
    path = warning.path
    names = {source.place(path[:length], of_key=True).line for length in range(2, len(path) + 1)}
    return names | {warning.place.line}


def _comments(source: Source) -> list[_Ignore]:
    """Returns the ignoring comments of a file. Their `code` is the whole text after the word `ignore`."""
    matches = [(at, match) for at, text in enumerate(source.lines) if (match := _COMMENT.search(text))]
    if not matches:
        return []
    scalars = _scalars(source)
    return [
        _Ignore(
            place=Place(source.file, at + 1, match.start() + 1),
            code=match["what"].strip(),
            line=_subject(source.lines, at, match.start()),
            excerpt=source.lines[at],
            width=len(match[0].rstrip()),
        )
        for at, match in matches
        if not any(first <= (at, match.start()) < last for first, last in scalars)
    ]


def _scalars(source: Source) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Returns the spans of all scalars in a file: text in a scalar that looks like a comment is not one."""
    return [
        ((token.start_mark.line, token.start_mark.column), (token.end_mark.line, token.end_mark.column))
        for token in tokens("\n".join(source.lines))
        if isinstance(token, yaml.ScalarToken)
    ]


def _subject(lines: Sequence[str], at: int, column: int) -> int:
    """Returns the line that a comment applies to, from 1: its own, or the next one that is not a comment."""
    if lines[at][:column].strip():
        return at + 1
    below = (number for number in range(at + 1, len(lines)) if not lines[number].lstrip().startswith("#"))
    return next(below, at) + 1


def _fault(one: _Ignore) -> Diagnostic | None:
    """Returns what is wrong with a comment. If nothing is, cuts the reason off its code."""
    code, _, reason = one.code.partition(" ")
    if code not in CODES:
        message = f"{code!r} is not the code of a warning{did_you_mean(code, CODES)}" if code else "no code"
        return one.warning("bad-ignore", f"{message}; write keyfence: ignore CODE REASON")
    if not reason.strip():
        return one.warning("bad-ignore", f"a reason is missing; write keyfence: ignore {code} REASON")
    one.code = code
    return None
