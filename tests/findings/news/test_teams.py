from __future__ import annotations

import json
from typing import Any

from keyfence.findings.news.document import Document, Part, Section, line, name
from keyfence.findings.news.teams import message


def card_of(document: Document) -> Any:
    body = message(document)
    (attachment,) = body["attachments"]
    assert (body["type"], attachment["contentType"]) == (
        "message",
        "application/vnd.microsoft.card.adaptive",
    )
    return attachment["content"]


def test_a_line_is_runs_in_which_teams_reads_no_markdown() -> None:
    one = line(Part("f-1", to="https://page.example/findings/f-1"), " on ", name("**x** [y](http://z)"))
    card = card_of(Document("news", (Section("New", (one,)),), "https://page.example"))
    assert card["type"] == "AdaptiveCard"
    assert {block["type"] for block in card["body"]} == {"RichTextBlock"}
    mark, link, on, shown = card["body"][-1]["inlines"]
    assert link["selectAction"] == {"type": "Action.OpenUrl", "url": "https://page.example/findings/f-1"}
    assert (mark["text"], on["text"]) == ("• ", " on ")
    assert (shown["text"], shown["fontType"]) == ("**x** [y](http://z)", "Monospace")
    assert card["actions"] == [
        {"type": "Action.OpenUrl", "title": "Open the page", "url": "https://page.example"}
    ]


def test_a_name_is_no_function_of_a_card() -> None:
    card = card_of(Document("news", (Section("", (line(name("{{DATE(2026-01-01T00:00:00Z)}}")),)),)))
    assert "{{" not in json.dumps(card)


def test_teams_takes_the_longest_message() -> None:
    lines = tuple(line(name("ü" * 120), f" {number}") for number in range(1_000))
    document = Document("news", (Section("New", lines),))
    assert len(json.dumps(message(document))) < 28 * 1024
    last = card_of(document)["body"][-1]["inlines"][0]["text"]
    assert last == "and more, which does not fit into a message: keyfence news"
