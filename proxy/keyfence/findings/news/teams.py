"""A document as an Adaptive Card, for a webhook of a workflow in Microsoft Teams.

Rule: a line is a RichTextBlock, in whose runs Teams reads no Markdown. Only what is written `{{…}}` has a
meaning there, so no such text is left. The whole message stays below the 28 KB that Teams takes.
"""

from __future__ import annotations

import json
from typing import Any

from .document import Document, Line, Part

MAX_PART = 500  # characters of a part of a line
MAX_BYTES = 24 * 1024  # of the message; Teams counts 28 KB, and adds to it


def message(document: Document) -> dict[str, Any]:
    """What the trigger "When a Teams webhook request is received" takes."""
    body: list[dict[str, Any]] = [_text(document.title, size="Large")]
    used = len(json.dumps(body))
    for one in _blocks(document):
        used += len(json.dumps(one)) + 2
        if used > MAX_BYTES:
            body.append(_text("and more, which does not fit into a message: keyfence news"))
            break
        body.append(one)
    card: dict[str, Any] = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "msteams": {"width": "Full"},
        "body": body,
    }
    if document.page:
        card["actions"] = [{"type": "Action.OpenUrl", "title": "Open the page", "url": document.page}]
    attachment = {"contentType": "application/vnd.microsoft.card.adaptive", "contentUrl": None}
    return {"type": "message", "attachments": [{**attachment, "content": card}]}


def _blocks(document: Document) -> list[dict[str, Any]]:
    found = []
    for section in document.sections:
        found += [_text(section.title)] if section.title else []
        found += map(_line, section.lines)
    return found


def _text(text: str, **more: str) -> dict[str, Any]:
    run = {"type": "TextRun", "text": _inert(text), "weight": "Bolder", **more}
    return {"type": "RichTextBlock", "spacing": "Medium", "inlines": [run]}


def _line(line: Line) -> dict[str, Any]:
    mark = _run(Part("\u2003◦ " if line.is_under else "• "))
    return {"type": "RichTextBlock", "spacing": "Small", "inlines": [mark, *map(_run, line.parts)]}


def _run(part: Part) -> dict[str, Any]:
    run: dict[str, Any] = {"type": "TextRun", "text": _inert(part.text)}
    if part.to:
        return run | {"selectAction": {"type": "Action.OpenUrl", "url": part.to}}
    return run | {"fontType": "Monospace"} if part.is_name else run


def _inert(text: str) -> str:
    """Text in which there is no {{DATE(…)}}."""
    cut = text if len(text) <= MAX_PART else text[: MAX_PART - 1] + "…"
    return cut.replace("{{", "{ {")
