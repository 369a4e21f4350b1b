"""What a digest or a notification says, as one document, and the document as text, Markdown and HTML.

Rule: a text that is not keyfence's own is a `name`. Each form shows a name letter by letter: in it, nothing
is a link, a mention or markup.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from keyfence.policy.show import in_lines, one_line

WIDTH = 80  # columns of the text
MAX_NAME = 120  # characters of a name
# What Markdown takes for markup within a line, but not after a backslash.
_MARKUP = frozenset("\\`*_[]<>#|~&")


class Part(NamedTuple):
    """A part of a line: plain words of keyfence, a name, or a link (`to` is its URL)."""

    text: str
    is_name: bool = False
    to: str = ""


class Line(NamedTuple):
    """One line of a list. With `is_under` it belongs to the line before it."""

    parts: tuple[Part, ...]
    is_under: bool = False

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.parts)


class Section(NamedTuple):
    """Lines about one thing. Without a title they follow the headline."""

    title: str
    lines: tuple[Line, ...]


class Document(NamedTuple):
    """A headline, and what there is to say."""

    title: str
    sections: tuple[Section, ...]
    page: str = ""  # the URL at which one reads on


def name(text: str) -> Part:
    """A text that clients, a policy or a file may have shaped."""
    shown = one_line(text)
    return Part(shown if len(shown) <= MAX_NAME else f"{shown[: MAX_NAME - 1]}…", is_name=True)


def line(*parts: str | Part, is_under: bool = False) -> Line:
    """A line of parts; a plain text is keyfence's own."""
    return Line(tuple(Part(one) if isinstance(one, str) else one for one in parts), is_under)


# -- as text


def as_text(document: Document) -> str:
    """For a terminal of 80 columns, and for e-mail."""
    found = in_lines(document.title, WIDTH)
    for section in document.sections:
        found += ["", *([section.title] if section.title else [])]
        for one in section.lines:
            first = ("    " if one.is_under else "  ") if section.title else ""
            found += in_lines(one.text, WIDTH, first, f"{first}  " if section.title else "")
    if document.page:
        found += ["", document.page]
    return "\n".join(found) + "\n"


# -- as Markdown


def as_markdown(document: Document) -> str:
    """Markdown, as GitHub reads it."""
    found = [f"# {_plain(document.title)}"]
    for section in document.sections:
        found += ["", *([f"## {_plain(section.title)}", ""] if section.title else [])]
        for one in section.lines:
            mark = f"{'  ' * one.is_under}- " if section.title else ""
            found.append(f"{mark}{''.join(map(_part_in_markdown, one.parts))}")
    if document.page:
        found += ["", f"<{document.page}>"]
    return "\n".join(found) + "\n"


def _plain(text: str) -> str:
    return "".join(f"\\{char}" if char in _MARKUP else char for char in text)


def _part_in_markdown(part: Part) -> str:
    if part.to:
        return f"[{_plain(part.text)}](<{part.to}>)"
    if not part.is_name:
        return _plain(part.text)
    # A name is code, in which no backslash escapes. More backticks around it than it has in a row.
    fence = "`" * (max(map(len, _runs(part.text)), default=0) + 1)
    pad = " " if part.text[:1] in ("`", "") or part.text[-1:] == "`" else ""
    return f"{fence}{pad}{part.text}{pad}{fence}"


def _runs(text: str) -> Iterator[str]:
    """The runs of backticks in a text."""
    return (run for run in "".join(char if char == "`" else " " for char in text).split() if run)


# -- as HTML


def as_html(document: Document) -> str:
    """A whole page, without script and without anything that is fetched."""
    found = [
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
        f"<title>{html.escape(document.title)}</title></head>",
        '<body style="font-family: sans-serif">',
        f"<h1>{html.escape(document.title)}</h1>",
    ]
    for section in document.sections:
        if section.title:
            found += [f"<h2>{html.escape(section.title)}</h2>", "<ul>", *_items(section.lines), "</ul>"]
        else:
            found += [f"<p>{_line_in_html(one)}</p>" for one in section.lines]
    if document.page:
        found.append(f"<p>{_link(document.page, document.page)}</p>")
    return "\n".join([*found, "</body></html>"]) + "\n"


def _items(lines: Sequence[Line]) -> Iterator[str]:
    for one in lines:
        style = ' style="margin-left: 2em"' if one.is_under else ""
        yield f"<li{style}>{_line_in_html(one)}</li>"


def _line_in_html(line: Line) -> str:
    return "".join(map(_part_in_html, line.parts))


def _part_in_html(part: Part) -> str:
    if part.to:
        return _link(part.to, part.text)
    shown = html.escape(part.text)
    return f"<code>{shown}</code>" if part.is_name else shown


def _link(to: str, text: str) -> str:
    return f'<a href="{html.escape(to)}">{html.escape(text)}</a>'
