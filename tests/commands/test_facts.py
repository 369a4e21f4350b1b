"""The rows of commands (`commands.families`): each fact stands once, and fits the servers' own table."""

from __future__ import annotations

import pytest

from keyfence.commands.arguments import MOST_OPTIONS
from keyfence.commands.cache_forms import NO_OPTIONS, TO_END
from keyfence.commands.effects import effect_of
from keyfence.commands.facts import KEYS_ONLY, NOTHING_SPECIAL, Connection, Facts, each, together
from keyfence.commands.families import FACTS
from keyfence.commands.model import Content, Field, Members
from keyfence.commands.table import COMMANDS
from tests.commands.test_extract import touched

ROWS = {row.command.name: row for row in COMMANDS.values()}


def test_every_row_is_about_a_command_of_the_table() -> None:
    assert FACTS.keys() - ROWS.keys() == set()
    assert all(ROWS[name].facts is facts for name, facts in FACTS.items())


def test_a_command_without_a_row_has_nothing_special() -> None:
    assert {row.facts for name, row in ROWS.items() if name not in FACTS} == {NOTHING_SPECIAL}


def test_a_command_has_one_row() -> None:
    with pytest.raises(ValueError, match="two rows for GET"):
        together(each("GET SET", NOTHING_SPECIAL), {"GET": Facts(leaves_integer=True)})


def test_a_bar_in_a_list_of_names_stands_before_a_subcommand() -> None:
    assert each("XGROUP|CREATE", NOTHING_SPECIAL) == {"XGROUP CREATE": NOTHING_SPECIAL}


@pytest.mark.parametrize("name", FACTS)
def test_a_row_fits_the_key_specs(name: str) -> None:
    facts, row = FACTS[name], ROWS[name]
    keys = [spec for spec in row.specs if spec.is_key]
    assert len(facts.on_keys) <= len(row.specs)
    if facts.layout != Facts().layout:
        assert len(keys) == 1
        # `decides` says which arguments decide, if there is one; the layout says what is written.
        assert facts.decides is None or (facts.decides, facts.layout.options) == (KEYS_ONLY, NO_OPTIONS)
    assert facts.rights is None or len(keys) == 1
    assert facts.rights is None or facts.found is None


@pytest.mark.parametrize("name", FACTS)
def test_a_row_with_a_function_says_in_words_what_it_finds(name: str) -> None:
    facts = FACTS[name]
    assert facts.found is None or (facts.found.where and facts.found.access)
    assert facts.rights is None or facts.rights.access
    assert facts.named is None or facts.named.kind in ("channels", "database", "key pattern", "script")


@pytest.mark.parametrize("name", [name for name, facts in FACTS.items() if facts.has_fixed_shape])
def test_only_a_command_that_needs_its_own_connection_states_that_its_reply_has_a_fixed_shape(
    name: str,
) -> None:
    assert FACTS[name].connection in (Connection.OWN, Connection.STAYS)


@pytest.mark.parametrize("name", [name for name, facts in FACTS.items() if facts.answers_twice])
def test_what_makes_redis_answer_twice_is_part_of_the_form(name: str) -> None:
    """So the decision cache asks once for each form."""
    facts = FACTS[name]
    assert facts.answers_twice is not None
    argv = [b"%d" % number for number in range(MOST_OPTIONS + 2)]
    assert facts.layout.options == TO_END
    assert facts.answers_twice(argv)  # too many options to look at
    assert not facts.answers_twice(argv[:9])


A_VALUE = Content(b"v", 2)
FIELDS = Content(fields=(Field(2, b"f", 3, b"v"),))
A_FIELD = Content(fields=(Field(2, b"f", 0, b""),))


# The layout tells it, which the decision cache uses too. So it is stated here once more.
TOLD_BY_LAYOUT = {
    "GETSET k v": A_VALUE,
    "HINCRBY k f 1": A_FIELD,
    "HINCRBYFLOAT k f 1": A_FIELD,
    "HMSET k f v": FIELDS,
    "HSET k f v": FIELDS,
    "HSETNX k f v": FIELDS,
    "LINSERT k BEFORE a b": Content(members=Members(4, 1, [b"b"])),
    "LPUSH k a b": Content(members=Members(2, 1, (b"a", b"b"))),
    "LPUSHX k a b": Content(members=Members(2, 1, (b"a", b"b"))),
    "LSET k 0 a": Content(members=Members(3, 1, [b"a"])),
    "MSET k v": A_VALUE,
    "MSETNX k v": A_VALUE,
    "PSETEX k 5 v": Content(b"v", 3),
    "RPUSH k a b": Content(members=Members(2, 1, (b"a", b"b"))),
    "RPUSHX k a b": Content(members=Members(2, 1, (b"a", b"b"))),
    "SADD k a b": Content(members=Members(2, 1, (b"a", b"b"))),
    "SET k v EX 5": A_VALUE,
    "SETEX k 5 v": Content(b"v", 3),
    "SETNX k v": A_VALUE,
    "ZINCRBY k 1 a": Content(members=Members(3, 1, [b"a"])),
}


@pytest.mark.parametrize("text", TOLD_BY_LAYOUT)
def test_a_layout_tells_what_the_command_writes(text: str) -> None:
    assert touched(text).accesses[0].content == TOLD_BY_LAYOUT[text]


def test_every_layout_that_tells_the_content_is_stated_above() -> None:
    told = {name for name, facts in FACTS.items() if not any(on_key.content for on_key in facts.on_keys)}
    shown = {name for name in told if effect_of(ROWS[name], 0).content_of is not None}
    assert shown == {text.split()[0] for text in TOLD_BY_LAYOUT}
