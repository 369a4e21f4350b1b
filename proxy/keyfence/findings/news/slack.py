"""A document as a message for Slack's incoming webhooks, and for what understands them.

Rule: Slack finds no markup of its own in a name, and takes the message: it refuses one with more than 50
blocks, with more than 3,000 characters in a section, or with some 13,000 in all.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .document import Document, Line, Part

MAX_BLOCKS = 50
MAX_SECTION = 2_990  # characters of a section's text, with its escapes
MAX_IN_ALL = 12_000
MAX_LINE = 500  # characters of a name, before its escapes


def message(document: Document) -> dict[str, Any]:
    """A message of the document. `text` is for what shows no blocks."""
    texts = list(_fitting(_texts(document)))
    return {
        "text": "\n".join(texts),
        "blocks": [
            {"type": "section", "text": {"type": "mrkdwn", "text": one, "verbatim": True}} for one in texts
        ],
        "parse": "none",
        "link_names": False,
        "unfurl_links": False,
        "unfurl_media": False,
    }


def _texts(document: Document) -> Iterator[str]:
    """The texts of the blocks: the headline, then each section in as few as it fits."""
    yield escaped(document.title)[:MAX_SECTION]
    for section in document.sections:
        waiting = [f"*{escaped(section.title)}*"] if section.title else []
        for one in map(_line, section.lines):
            if waiting and len("\n".join([*waiting, one])) > MAX_SECTION:
                yield "\n".join(waiting)
                waiting = []
            waiting.append(one)
        if waiting:
            yield "\n".join(waiting)
    if document.page:
        yield f"<{escaped(document.page)}>"


def _fitting(texts: Iterator[str]) -> Iterator[str]:
    """As many of the texts as Slack takes, and a sentence in place of the others."""
    used = 0
    for number, one in enumerate(texts, 1):
        used += len(one)
        if number == MAX_BLOCKS or used > MAX_IN_ALL:
            yield "and more, which does not fit into a message: keyfence news"
            return
        yield one


def _line(line: Line) -> str:
    text = "      ◦ " if line.is_under else "• "
    for part in map(_part, line.parts):
        if len(text) + len(part) > MAX_SECTION:
            return f"{text}…"
        text += part
    return text


def _part(part: Part) -> str:
    if part.to:
        return f"<{escaped(part.to)}|{escaped(part.text)}>"
    return _as_code(part.text) if part.is_name else escaped(part.text)


def _as_code(text: str) -> str:
    """A name as Slack shows it letter by letter: in code, nothing is a link, a mention, an emoji or bold."""
    cut = text if len(text) <= MAX_LINE else text[: MAX_LINE - 1] + "…"
    return "`" + escaped(cut.replace("`", "'")) + "`"


def escaped(text: str) -> str:
    """Text in which Slack finds no markup of its own."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
