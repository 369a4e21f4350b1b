from __future__ import annotations

from keyfence.findings.news.document import Document, Part, Section, line, name
from keyfence.findings.news.slack import MAX_BLOCKS, MAX_SECTION, message


def of(*lines: object, title: str = "New findings") -> dict[str, object]:
    return message(Document("keyfence: news", (Section(title, lines),), "https://page.example"))  # type: ignore[arg-type]


def texts(body: dict[str, object]) -> list[str]:
    return [one["text"]["text"] for one in body["blocks"]]  # type: ignore[attr-defined]


def test_a_section_is_a_block_with_a_bold_title() -> None:
    one = line(Part("f-1", to="https://page.example/findings/f-1"), " on ", name("<!channel> `x` & *y*"))
    assert texts(of(one, line("and more", is_under=True))) == [
        "keyfence: news",
        "*New findings*\n"
        "• <https://page.example/findings/f-1|f-1> on `&lt;!channel&gt; 'x' &amp; *y*`\n"
        "      ◦ and more",
        "<https://page.example>",
    ]


def test_slack_takes_the_longest_message() -> None:
    body = of(*(line(name("<&>" * 40), " ", name("&" * 120), f" {number}") for number in range(2_000)))
    shown = texts(body)
    assert len(shown) <= MAX_BLOCKS
    assert all(len(one) <= MAX_SECTION for one in shown)
    assert sum(map(len, shown)) < 13_000
    assert shown[-1] == "and more, which does not fit into a message: keyfence news"


def test_a_line_of_many_names_is_cut_between_them() -> None:
    (shown,) = texts(of(line(*[name("&" * 120)] * 20), title=""))[1:-1]
    assert len(shown) <= MAX_SECTION + 1
    assert shown.endswith("`…")


def test_nothing_is_unfolded_and_nobody_is_called() -> None:
    body = of(line("x"))
    assert (body["parse"], body["unfurl_links"], body["unfurl_media"]) == ("none", False, False)
