"""Properties of `extract` that hold for any argv."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from keyfence.commands.arguments import word
from keyfence.commands.extract import extract
from keyfence.commands.model import DELETE, GROUP, READ, WRITE
from tests.commands.calls import GRAMMATICAL, NAMES, TRICKY, WORDS, Argv, calls

ANY = st.one_of(GRAMMATICAL, calls(TRICKY), calls(NAMES))
OPTIONS = frozenset(map(word, WORDS))


def without_arguments(argv: Argv) -> list[tuple[object, ...]]:
    """Everything that is found, without the arguments themselves."""
    touches = extract(argv)
    accesses = [(access.position, access.needs, access.types, access.ttl) for access in touches.accesses]
    channels = [(channel.position, channel.publish) for channel in touches.channels]
    return [touches.command, touches.problem, *accesses, *channels]  # type: ignore[list-item]


@settings(max_examples=300)
@given(ANY)
def test_case_does_not_matter(argv: Argv) -> None:
    assert without_arguments([a.lower() for a in argv]) == without_arguments([a.upper() for a in argv])


@settings(max_examples=300)
@given(ANY)
def test_a_word_ends_at_a_nul_byte(argv: Argv) -> None:
    """C strings end there. Only a command's name is compared as a whole."""
    ended = [a + b"\0x" if i > 0 and word(a) in OPTIONS else a for i, a in enumerate(argv)]
    assert without_arguments(ended) == without_arguments(argv)


@settings(max_examples=500)
@given(st.one_of(ANY, st.lists(st.binary(max_size=12), max_size=9)))
@example([b"SORT", b"a", b"STORE"])
@example([b"EVAL", b"x", b"9" * 400])
def test_everything_found_is_in_the_arguments(argv: Argv) -> None:
    touches = extract(argv)
    for access in touches.accesses:
        assert 0 < access.position < len(argv)
        assert access.key == argv[access.position]
        assert access.needs & ~(DELETE | GROUP) or not access.needs
        assert access.needs & (READ | WRITE | DELETE | GROUP) == access.needs
        assert access.ttl is None or 0 <= access.ttl.position < len(argv)
        for field in access.content.fields if access.content is not None else ():
            assert field.name == argv[field.position]
            assert not field.value_position or field.value == argv[field.value_position]
    for channel in touches.channels:
        assert channel.name == argv[channel.position]
    if (
        touches.pattern is not None
        and touches.command is not None
        and touches.command.name in ("KEYS", "SCAN")
    ):
        assert touches.pattern.position == 0 or touches.pattern.glob == argv[touches.pattern.position]
    if touches.script is not None:
        assert touches.script.name == argv[touches.script.position]
    if touches.problem is not None:
        assert 0 <= touches.problem.position < max(1, len(argv))
        assert touches.problem.reason
