"""Prepared replies, and the fillers in them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyfence.policy.compiled.policy import CompiledPolicy, Target
from keyfence.policy.loading.load import load_policy, parse_policy
from keyfence.policy.wording import prepared
from keyfence.policy.wording.masking import shown_in
from keyfence.policy.wording.prepared import Draft, Filler, ShownKey
from tests.policy.cases import POLICIES

SECRETS = """
policy: p
services: [a]
placeholders: {token: {is: "[0-9a-f]{16,32}", secret: true}, id: "[a-z0-9]+"}
scopes: {shop: {prefix: "shop:v1:", writers: [a]}}
keys:
  session: {key: "shop:v1:session:<token>"}
  glued: {key: "shop:v1:web:sess-<token>"}
  cart: {key: "shop:v1:cart:<id>"}
"""
POLICY = {
    "cubesandbox": load_policy(POLICIES / "cubesandbox.yaml"),
    "general": load_policy(POLICIES / "general.yaml"),  # without secrets
    "secrets": parse_policy(SECRETS),
}
WORDS = "shop v1 session web sess- cart bench user 17 0123456789abcdef cube master api topsecret1 __key"
PIECES = st.sampled_from([*WORDS.split(), "x" * 60, "__keyspace@0__", *":::{}*?\u00e9\n'\" \\\ue000\udcff"])
KEYS = st.lists(PIECES, max_size=9).map(lambda pieces: "".join(pieces).encode("utf-8", "surrogateescape"))


@given(st.sampled_from(sorted(POLICY)), KEYS)
def test_a_filler_shows_a_key_as_messages_do(name: str, key: bytes) -> None:
    policy = POLICY[name]
    for target in (policy.target(key), None):
        wanted = shown_in(policy, key, target).encode("utf-8", "backslashreplace")
        assert ShownKey(policy, target).fill(key) == wanted


@pytest.mark.parametrize(
    ("policy", "key"),
    [
        ("cubesandbox", b"bench:user:17"),  # shown as it is
        ("cubesandbox", b"bench:user:123456789"),  # its end may be a secret
        ("cubesandbox", b"cube:v1:proxy:x:17"),
        ("cubesandbox", b"cube:v1:master:node:metric:n1"),  # an entry without secrets
        ("general", b"user:1"),
    ],
)
def test_most_keys_are_shown_without_asking_for_the_words(policy: str, key: bytes) -> None:
    loaded = POLICY[policy]
    target = loaded.target(key)
    wanted = shown_in(loaded, key, target)  # from now on the name's beginning is known

    def asked(_policy: CompiledPolicy, key: bytes, _target: Target | None) -> str:
        raise AssertionError(key)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(prepared, "shown_in", asked)
        assert ShownKey(loaded, target).fill(key) == wanted.encode()
        with pytest.raises(AssertionError):
            ShownKey(loaded, target).fill(b"a\n")


def test_a_draft_replaces_what_depends_on_the_key_and_nothing_else() -> None:
    draft = Draft(b"k:1")
    shown = draft.mark(b"k:1", Filler(bytes.decode))
    size = draft.mark(b"k:1", Filler(lambda key: str(len(key))))
    ready = draft.prepared(f"-NO {shown} has {size} bytes, {shown}\r\n".encode())
    assert ready is not None
    assert ready.reply(b"k:1") == b"-NO k:1 has 3 bytes, k:1\r\n"
    assert ready.reply(b"k:4711") == b"-NO k:4711 has 6 bytes, k:4711\r\n"


def test_a_reply_with_a_mark_of_nobody_is_not_prepared() -> None:
    draft = Draft(b"k")
    draft.mark(b"k", Filler(bytes.decode))
    assert draft.prepared("-NO \ue000 \ue001\r\n".encode()) is None
    assert draft.prepared("-NO \ue000\r\n".encode()) is not None


def test_a_text_that_is_missing_for_a_key_fills_no_reply() -> None:
    draft = Draft(b"k1")
    ready = draft.prepared(f"-NO; {draft.mark(b'k1', Filler(lambda key: key[1:].decode()))}\r\n".encode())
    assert ready is not None
    assert ready.reply(b"k1") == b"-NO; 1\r\n"
    with pytest.raises(ValueError, match="no text"):
        ready.reply(b"k")


def test_a_draft_has_a_bounded_number_of_marks() -> None:
    draft = Draft(b"k")
    marks = [draft.mark(b"k", Filler(bytes.decode)) for _ in range(65)]
    assert draft.prepared("".join(marks).encode()) is None
