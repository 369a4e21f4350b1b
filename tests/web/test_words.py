from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyfence.policy.rules import RULES
from keyfence.web import words


@pytest.mark.parametrize(
    ("past", "said"),
    [
        (-60, "just now"),
        (0, "just now"),
        (59, "just now"),
        (60, "1 minute ago"),
        (3599, "59 minutes ago"),
        (3600, "1 hour ago"),
        (36 * 3600, "36 hours ago"),
        (48 * 3600, "2 days ago"),
    ],
)
def test_a_time_in_the_past_is_said_in_its_largest_unit(past: int, said: str) -> None:
    shown = str(words.ago(1e9, 1e9 + past))
    assert f">{said}</time>" in shown
    assert 'title="2001-09-09 01:46:40 UTC"' in shown
    assert 'datetime="2001-09-09T01:46:40+00:00"' in shown


def test_a_part_of_a_whole_is_said_in_percent() -> None:
    assert [words.share(value) for value in (1.0, 0.5, 0.004, 0.006)] == ["100%", "50%", "< 1%", "1%"]


def test_a_command_to_copy_is_the_text_in_whole_words() -> None:
    shown = str(words.command("keyfence --admin <x>\x1b"))
    assert shown == "<span>keyfence</span> <span>--admin</span> <span>&lt;x&gt;\\u001b</span>"


def test_no_time_and_no_number_are_a_dash() -> None:
    assert words.ago(None) == words.ago(0.0) == words.clock(None) == words.key("") == words.NONE
    assert words.number(None) == words.rate(None) == words.latency(None) == words.NONE


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0"), (999, "999"), (1234567, "1\u202f234\u202f567"), (-1234.0, "-1\u202f234"), (0.25, "0.2")],
)
def test_numbers_have_a_thin_space_between_their_thousands(value: float, shown: str) -> None:
    assert words.number(value) == shown


def test_rates_below_ten_have_a_decimal() -> None:
    assert [words.rate(value) for value in (0.0, 0.04, 9.94, 10.4, 12345.6)] == [
        *("0.0", "0.0", "9.9", "10"),
        "12\u202f346",
    ]


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(1e-5, "≤ 10 µs"), (2.5e-4, "≤ 250 µs"), (1e-3, "≤ 1 ms"), (0.5, "≤ 500 ms"), (2.0, "≤ 2 s")],
)
def test_a_latency_is_an_upper_bound_in_its_unit(seconds: float, shown: str) -> None:
    assert words.latency(seconds) == shown


def test_a_latency_beyond_the_last_bound_names_that_bound() -> None:
    assert words.latency(math.inf) == "> 2 s"


def test_a_count_has_its_noun() -> None:
    assert words.count_of(1, "finding") == "1 finding"
    assert words.count_of(2000, "finding") == "2\u202f000 findings"
    assert words.count_of(0, "entry", "entries") == "0 entries"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain: <b>", "plain: <b>"),
        ("a\x1b[2Jb\nc\x00", "a\\u001b[2Jb\\u000ac\\u0000"),
        ("\u202egnp.exe\u2066", "\\u202egnp.exe\\u2066"),
        ("\udcff\u200b", "\\udcff\\u200b"),
        ("ключ 键", "ключ 键"),
        (7, "7"),
    ],
)
def test_what_does_not_print_gets_a_visible_sign(text: object, shown: str) -> None:
    assert words.inert(text) == shown


@given(st.text())
def test_any_text_becomes_one_printable_line_that_can_be_sent(text: str) -> None:
    shown = words.inert(text)
    assert shown.isprintable()
    assert shown.encode("utf-8").decode() == shown


def test_a_key_is_escaped_and_isolated_from_the_text_around_it() -> None:
    assert words.key("<script>\u202e") == "<code><bdi>&lt;script&gt;\\u202e</bdi></code>"


def test_arguments_are_quoted_as_in_a_shell() -> None:
    assert words.quoted(["SET", "a b", "it's", "\x1b"]) == """SET 'a b' 'it'"'"'s' '\\u001b'"""


def test_a_badge_says_what_its_word_means() -> None:
    assert words.badge("not ready") == (
        '<span class="badge not-ready" title="enforcing it would refuse commands">not ready</span>'
    )
    assert 'title="refused with NOPERM"' in words.badge("refused")
    assert words.badge("<x>") == '<span class="badge &lt;x&gt;" title="">&lt;x&gt;</span>'


def test_a_url_has_no_empty_parameters_and_quotes_the_others() -> None:
    assert words.url("/findings") == "/findings"
    assert words.url("/findings", rule="", offset=0, text="a&b=ü") == "/findings?text=a%26b%3D%C3%BC"
    given_ = {"rule": "ttl.required", "text": ""}
    assert words.with_parameters(given_, offset=50) == "?rule=ttl.required&offset=50"
    assert words.with_parameters(given_, rule="") == "?"
    assert words.segment("a/b?c#d e") == "a%2Fb%3Fc%23d%20e"


def test_every_rule_has_a_meaning_and_a_remedy_and_an_unknown_one_has_none() -> None:
    for rule in RULES:
        for sentence in (words.meaning_of(rule), words.remedy_of(rule)):
            assert sentence.endswith(".")
            assert sentence[0] == sentence[0].upper()
    assert words.meaning_of("no.such") == words.remedy_of("no.such") == ""


def test_rights_are_one_line() -> None:
    nobody: dict[str, list[str]] = {"writers": [], "consumers": [], "readers": []}
    assert words.rights_text(nobody) == "nobody"
    rights = nobody | {"writers": ["a", "b"], "readers": ["c"]}
    assert words.rights_text(rights) == "written by a, b; read by c"
