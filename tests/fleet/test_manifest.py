"""A signature file says which contents were signed, and nothing else passes for one."""

from __future__ import annotations

import json

import pytest

from keyfence.fleet.manifest import (
    CANDIDATE_FORMAT,
    FORMAT,
    MAX_SEQUENCE,
    MAX_SIGNED,
    BadManifest,
    Manifest,
    Signed,
    check_name,
    check_path,
    check_sequence,
    differences,
    digest_of,
    parse_signed,
)

ONE = Manifest("shop", 7, (("shop.yaml", digest_of(b"one")),), "ada", "é", "2026-07-01T12:00:00Z")
SIGNED = Signed(ONE, ONE.line(), "0123456789abcdef", bytes(64))


def changed(**fields: object) -> bytes:
    data = json.loads(ONE.line()) | fields
    return SIGNED.text().replace(ONE.line(), json.dumps(data).encode())


def test_it_comes_back_as_it_was_written() -> None:
    assert parse_signed(SIGNED.text()) == SIGNED
    assert SIGNED.text().count(b"\n") == 2


def test_what_is_signed_as_a_candidate_is_no_policy_nor_the_other_way_round() -> None:
    candidate = ONE._replace(base=6)
    signed = SIGNED._replace(manifest=candidate, line=candidate.line())
    assert parse_signed(signed.text(), CANDIDATE_FORMAT) == signed
    assert signed.status()["base"] == 6
    assert "base" not in SIGNED.status()
    for text, form in ((signed.text(), FORMAT), (SIGNED.text(), CANDIDATE_FORMAT)):
        with pytest.raises(BadManifest, match=f"is not of the format {form}"):
            parse_signed(text, form)


@pytest.mark.parametrize("base", [None, True, -1, MAX_SEQUENCE + 1, "6"])
def test_a_candidate_says_on_which_version_it_is_based(base: object) -> None:
    with pytest.raises(BadManifest, match="does not say on which version it is based"):
        parse_signed(changed(format=CANDIDATE_FORMAT, base=base), CANDIDATE_FORMAT)


def test_two_manifests_of_one_sequence_are_told_apart() -> None:
    other = SIGNED._replace(line=ONE._replace(message="other").line())
    assert other.digest != SIGNED.digest


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "is not a manifest and its signature"),
        (b"[" * 10_000, "is not a manifest and its signature"),
        (b"\xff\xfe{\x00}\x00", "is not a manifest and its signature"),
        (b"x" * (MAX_SIGNED + 1), "has more than"),
        (changed(format="keyfence-policy-2"), "is not of the format keyfence-policy-1"),
        (changed(sequence=True), "has no sequence"),
        (changed(sequence=0), "has no sequence"),
        (changed(sequence=MAX_SEQUENCE + 1), "has no sequence"),
        (changed(time="yesterday"), "has no time"),
        (changed(author=None), "lacks its name, author or message"),
        (changed(message="m" * 1001), "lacks its name, author or message"),
        (changed(name="../shop"), "has a name that no policy may have"),
        (changed(files=[]), "names no files"),
        (changed(files={"shop.yaml": "abc"}), "has a file without a hash"),
        (ONE.line() + b"\n", "has no Ed25519 signature"),
        (ONE.line() + b"\n0123456789abcdef AAAA\n", "has no Ed25519 signature"),
        (ONE.line() + b"\nKEY " + b"A" * 86 + b"==", "has no Ed25519 signature"),
        (ONE.line() + b"\n0123456789abcdef !", "is not a manifest and its signature"),
    ],
    ids=range(18),
)
def test_what_is_no_signature_file_says_why(content: bytes, why: str) -> None:
    with pytest.raises(BadManifest, match=why):
        parse_signed(content)


def test_each_file_that_differs_is_named() -> None:
    two = ONE._replace(files=(("a.yaml", digest_of(b"a")), ("b.yaml", digest_of(b"b"))))
    assert differences(two, {"a.yaml": b"a", "b.yaml": b"b"}) == []
    assert differences(two, {"a.yaml": b"x", "c.yaml": b"c"}) == [
        "a.yaml has another content than was signed",
        "c.yaml was not signed",
        "b.yaml was signed, and is missing",
    ]


def test_names_and_sequences_are_bounded() -> None:
    assert (check_name("shop-2.eu"), check_sequence(1)) == ("shop-2.eu", 1)
    for name in ("", "a b", "a/b", "-a", "é", "a" * 65):
        with pytest.raises(ValueError, match="a letter first"):
            check_name(name)
    for number in (0, -1, MAX_SEQUENCE + 1):
        with pytest.raises(ValueError, match="a sequence is a number"):
            check_sequence(number)


OUTSIDE = ["/etc/passwd", "../x.yaml", "a/../../x.yaml", "a//x.yaml", "a/", ""]
NO_NAMES = [".", "./x.yaml", "a\0b.yaml", "a\nb.yaml", "x" * 256, "a/" * 600 + "x", "\ud800.yaml"]


@pytest.mark.parametrize("path", [*OUTSIDE, *NO_NAMES])
def test_a_manifest_names_no_file_outside_the_policy_s_folder(path: str) -> None:
    """Whoever promotes a candidate writes its files into a folder, and may trust its author less."""
    with pytest.raises(ValueError, match=r"is outside the policy's folder|is no name for a policy's file"):
        check_path(path)
    with pytest.raises(BadManifest, match="names a file that is not in the policy's folder"):
        parse_signed(changed(files={path: digest_of(b"one")}))


@pytest.mark.parametrize("path", ["shop.yaml", "scripts/..x.lua", "é/ü.yaml", "x" * 255])
def test_a_file_in_the_policy_s_folder_has_any_other_path(path: str) -> None:
    assert parse_signed(changed(files={path: digest_of(b"one")})).manifest.files[0][0] == path
