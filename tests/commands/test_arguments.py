from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyfence.commands.arguments import (
    LONGEST_WORD,
    MOST_OPTIONS,
    TooManyOptions,
    each_option,
    fold,
    integer,
    may_hold,
    word,
)
from keyfence.commands.model import Streamed


def test_a_name_ends_at_a_nul_byte_as_it_does_for_the_server() -> None:
    assert word(b"store\0x") == b"STORE"
    assert word(b"\0store") == b""


def test_only_ascii_letters_fold() -> None:
    assert word("ſtore".encode()) != b"STORE"
    assert word(b"m\xe9") == b"M\xe9"


def test_a_long_argument_matches_no_name() -> None:
    assert word(b"a" * 1_000_000) == b"A" * (LONGEST_WORD + 1)


def test_all_bytes_of_a_command_name_count() -> None:
    assert fold(b"get") == b"GET"
    assert fold(b"get\0x") == fold(b"get\0") == fold(b"xgroup create") == b""
    assert fold(b"a" * LONGEST_WORD) == b"A" * LONGEST_WORD
    assert fold(b"a" * (LONGEST_WORD + 1)) == b""


def test_a_streamed_argument_is_read_from_its_first_bytes_and_is_no_number() -> None:
    assert word(Streamed(b"store\0xxx", 2_000_000)) == b"STORE"
    assert integer(Streamed(b"1" * 256, 2_000_000)) is None
    assert may_hold(Streamed(b"x" * 256, 2_000_000), b"*")
    assert not may_hold(b"x", b"*")


@pytest.mark.parametrize(
    "argument", [b"", b"+1", b"01", b"-0", b"00", b" 1", b"1 ", b"1_0", b"1.0", b"0x1", b"1\n", b"\xd9\xa1"]
)
def test_an_argument_that_redis_does_not_read_as_an_integer_is_none(argument: bytes) -> None:
    assert integer(argument) is None


@given(st.integers(-(2**64), 2**64))
def test_integers_of_up_to_64_bits_are_read(number: int) -> None:
    expected = number if -(2**63) <= number < 2**63 else None
    assert integer(str(number).encode()) == expected


def test_a_number_of_a_million_digits_is_none() -> None:
    assert integer(b"9" * 1_000_000) is None


def test_the_arguments_of_an_option_are_not_read_as_options() -> None:
    argv = b"SORT k limit STORE asc store LIMIT".split()
    found = list(each_option(argv, 2, {b"LIMIT": 2, b"STORE": 1}))
    assert found == [(b"LIMIT", 2), (b"STORE", 5)]


def test_an_option_that_lacks_its_arguments_has_no_name() -> None:
    argv = b"SORT k ASC LIMIT 1".split()
    assert list(each_option(argv, 2, {b"LIMIT": 2})) == [(b"ASC", 2), (b"", 3), (b"1", 4)]


def test_no_more_options_are_read_than_a_client_sends() -> None:
    with pytest.raises(TooManyOptions):
        list(each_option([b"ASC"] * (MOST_OPTIONS + 2), 2, {}))
