from __future__ import annotations

import html.parser
from collections.abc import Callable

import pytest

from keyfence.findings.news.document import (
    MAX_NAME,
    WIDTH,
    Document,
    Part,
    Section,
    as_html,
    as_markdown,
    as_text,
    line,
    name,
)

HOSTILE = "<script>alert(1)</script> [x](http://evil) **b** `c` & \n# y\r\x1b[31m \u202etxt"
DOCUMENT = Document(
    "keyfence: 1 new finding",
    (
        Section("", (line("From noon to noon."),)),
        Section(
            "New findings",
            (
                line(Part("f-1", to="https://page.example/findings/f-1"), " on ", name(HOSTILE)),
                line("and more", is_under=True),
            ),
        ),
    ),
    "https://page.example",
)


def test_text_is_for_80_columns() -> None:
    text = as_text(DOCUMENT)
    assert text.startswith("keyfence: 1 new finding\n\nFrom noon to noon.\n\nNew findings\n  f-1 on ")
    assert "\n    and more\n" in text
    assert max(map(len, text.splitlines())) <= WIDTH


@pytest.mark.parametrize("form", [as_text, as_markdown, as_html])
def test_no_form_has_a_control_character_of_a_name(form: Callable[[Document], str]) -> None:
    shown = form(DOCUMENT)
    assert not {"\x1b", "\r", "\u202e"} & set(shown)
    assert sum(text.startswith(("# y", " # y")) for text in shown.splitlines()) == 0


class Elements(html.parser.HTMLParser):
    """Collects what a browser would make of a text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for key, value in attrs if key == "href"]


def test_a_name_in_html_is_no_element() -> None:
    found = Elements(as_html(DOCUMENT))
    assert "script" not in found.tags
    assert set(found.links) == {"https://page.example/findings/f-1", "https://page.example"}
    assert "<code>&lt;script&gt;alert(1)" in as_html(DOCUMENT)


@pytest.mark.parametrize("text", ["`", "``a`", "a", "`x", "x`", "a``b`c"])
def test_a_name_in_markdown_is_one_piece_of_code(text: str) -> None:
    shown = as_markdown(Document("t", (Section("s", (line(name(text)),)),)))
    (item,) = [one for one in shown.splitlines() if one.startswith("- ")]
    code = item[2:]
    fence = code[: len(code) - len(code.lstrip("`"))]
    inner = code[len(fence) : len(code) - len(fence)]
    assert code.endswith(fence)
    assert inner.strip(" ") == text
    assert fence not in inner.replace(fence + "`", "")  # no run of the same length ends it before


def test_a_long_name_is_cut() -> None:
    assert len(name("x" * 500).text) == MAX_NAME
    assert name("x" * 500).text.endswith("…")
