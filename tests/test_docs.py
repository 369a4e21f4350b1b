"""Every link between the documents has a target."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers import PROJECT

DOCUMENTS = sorted([*PROJECT.glob("*.md"), *PROJECT.glob("docs/*.md")])
_FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_LINK = re.compile(r"\]\(([^)\s]+)\)")


def text_of(document: Path) -> str:
    """Returns the document without its code blocks."""
    return _FENCED.sub("", document.read_text())


def anchors(document: Path) -> set[str]:
    """Returns the anchors that GitHub makes for the document's headings."""
    headings = (heading.lower() for heading in _HEADING.findall(text_of(document)))
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in headings}


def broken(document: Path) -> Iterator[str]:
    for link in _LINK.findall(text_of(document)):
        if link.startswith(("http://", "https://", "mailto:")):
            continue
        path, _, anchor = link.partition("#")
        target = document.parent / path if path else document
        if not target.exists() or (anchor and anchor not in anchors(target)):
            yield link


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.name)
def test_every_link_has_a_target(document: Path) -> None:
    assert list(broken(document)) == []
